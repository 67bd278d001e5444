"""check.py PROGRAM HELM HAPROXY VALKEY: the tests of the chart and of the examples for Kubernetes.

What a cluster would do is done here by hand: files of ConfigMaps are laid out as Kubernetes does
it, agents are started with the arguments of their containers, and configurations of HAProxy are
put together as the ingress controller does it.
"""

import http.client
import http.server
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import kubernetes_validate
import yaml

sys.path.append(str(Path(__file__).resolve().parent.parent / "support"))
from patient import patient  # noqa: E402

PROGRAM, HELM, HAPROXY, VALKEY = (str(Path(arg).absolute()) for arg in sys.argv[1:])
CHART = "deploy/helm/gcra-spoa"
EXAMPLES = Path("deploy/kubernetes")
VALUES = sorted(Path("tests/kubernetes/values").glob("*.yaml"))
# The oldest version that Chart.yaml names and has a schema, and the newest.
VERSIONS = ["1.25.0", "1.37.0"]
# A helm that was compiled here takes an old version for granted.
# What every use of the chart needs.
KUBERNETES = ["--kube-version", VERSIONS[-1], "--set", "image.repository=registry.example/agent"]
# A rate that gives nothing back during a test, so that the counts are exact.
SLOW = "20/d burst 20"
# How long anything may take on a busy machine.
PATIENCE = 60

passed = []


def test(function):
    began = time.monotonic()
    function()
    passed.append(function.__name__)
    print(f"ok  {function.__doc__ or function.__name__} ({time.monotonic() - began:.1f} s)")


def run(*command, fails=False):
    done = subprocess.run(command, capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    sys.exit(f"{what}: not within {PATIENCE} s")


def free_port():
    """Below the ports that the kernel gives to connections, so that it stays free."""
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket() as listener:
            try:
                listener.bind(("0.0.0.0", port))
                return port
            except OSError:
                pass


def template(*arguments, chart=CHART):
    text = run(HELM, "template", "gcra-spoa", chart, "--namespace", "gcra-spoa", *KUBERNETES,
               *arguments)
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects, kind):
    return [each for each in objects if each["kind"] == kind]


# --- The chart ---------------------------------------------------------------------------------


def versions():
    """Chart.yaml has the version of the program"""
    workspace = Path("Cargo.toml").read_text().split("[workspace.package]")[1].split("\n[")[0]
    version = re.search(r'^version = "(.+)"$', workspace, re.MULTILINE)[1]
    chart = yaml.safe_load(Path(CHART, "Chart.yaml").read_text())
    for key in "version", "appVersion":
        if chart[key] != version:
            sys.exit(f"Chart.yaml: {key} is {chart[key]}, and that of Cargo.toml is {version}")


def lint():
    """helm lint --strict"""
    for arguments in [], *(["--values", str(file)] for file in VALUES):
        run(HELM, "lint", "--strict", "--quiet", CHART, *KUBERNETES, *arguments)


def schemas():
    """objects are valid in Kubernetes 1.25 and 1.37"""
    for arguments in [], *(["--values", str(file)] for file in VALUES):
        for each in template(*arguments):
            # The operator's own object: Kubernetes has no schema of it.
            if each["kind"] != "ServiceMonitor":
                for version in VERSIONS:
                    kubernetes_validate.validate(each, version, strict=True)


def everything():
    """each kind of object can be had, and three kinds are the default"""
    kinds = {each["kind"] for each in template("-f", "tests/kubernetes/values/everything.yaml")}
    expected = {"ConfigMap", "Deployment", "Service"}
    assert {each["kind"] for each in template()} == expected
    more = {"PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"}
    assert kinds == expected | more, kinds


def same_values():
    """values.yaml and values.schema.json have the same values"""
    schema = json.loads(Path(CHART, "values.schema.json").read_text())
    values = yaml.safe_load(Path(CHART, "values.yaml").read_text())

    def compare(tree, properties, prefix=""):
        for key in sorted(set(tree) | (set(properties) - {"global"})):
            name = f"{prefix}{key}"
            assert key in tree, f"values.yaml has no {name}"
            assert key in properties, f"values.schema.json has no {name}"
            inner = properties[key].get("properties")
            if inner:
                compare(tree[key], inner, f"{name}.")

    compare(values, schema["properties"])


def wrong_values():
    """values that cannot be meant are refused with a sentence"""
    store = "store.url=redis://valkey.example"
    policy = "config=[policy.check]"
    network = "networkPolicy.enabled=true"
    haproxy = "networkPolicy.haproxy[0].podSelector.matchLabels.a=b"
    for values, sentence in [
        (["replicas=2"], "a client gets up to 2 times the limit"),
        (["replicas=2", store, policy], "no policy in 'config' that has 'shared = true'"),
        (["config=[store]\nurl = 1"], "has a section [store]"),
        (["store.settings=strict = true"], "'store.url' is empty"),
        (["store.existingSecret=password"], "'store.url' is empty"),
        (["store.url=redis://gcra:secret@valkey.example"], "has a password in it"),
        (["store.url=valkey.example"], "Write an address such as"),
        (["listenAddress=0.0.0.0:9000"], "an IP address without a port"),
        (["table.sizeLimit=1G"], "a number and Ki, Mi or Gi"),
        (["service.adminPort=9001"], "overlap"),
        ([network], "'networkPolicy.haproxy' is empty"),
        ([network, haproxy, store], "'networkPolicy.store' is empty"),
        ([network, haproxy, "serviceMonitor.enabled=true"], "'networkPolicy.prometheus' is empty"),
        (["agentsPerPod=0"], "/agentsPerPod"),
        (["agentPerPod=3"], "agentPerPod"),
        (["limit.rate=fast"], "a count and a period"),
        (["limit.burst=0"], "/limit/burst"),
        (["table.slots=4"], "/table/slots"),
        (["drainSeconds=3s"], "/drainSeconds"),
        (["image.digest=latest"], "64 hexadecimal digits"),
        (["image.repository="], "'image.repository' is not set"),
    ]:
        arguments = [word for value in values for word in ("--set", value)]
        said = run(HELM, "template", CHART, *KUBERNETES, *arguments, fails=True)
        assert sentence in said, f"{values}: {said}"
    template("--set", "replicas=2,allowSeparateLimits=true")


def refused(sentence, *arguments, release="gcra-spoa"):
    said = run(HELM, "template", release, CHART, *KUBERNETES, *arguments, fails=True)
    assert sentence in said, f"{arguments}: {said}"


def checked(text):
    """What `gcra-spoa check` says of the text, and whether it is valid."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([PROGRAM, "check", "--config", file.name],
                              capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def rates():
    """rates and bursts: the agent takes those that render, and refuses those that do not"""
    def config(rate, burst):
        return (f'[policy.check]\nkey = ["ip"]\n'
                f'limits = ["{rate}{"" if burst is None else f" burst {burst}"}"]\n')

    for rate, burst in [
        ("deny", 20), ("unlimited", 20), ("deny", None), ("unlimited", None), ("100/s", 20),
        ("0.5/s", None), (".5/s", 1), ("5000/min", 4294967294), ("1/10s", 7), ("100/250ms", 20),
        ("1000000/ms", 20), ("1/hr", 3), ("2/minutes", 3), ("1/seconds", 3), ("1/365days", 1),
        ("1000000000/sec", None), ("86400000000000/d", 4294967294), ("1.000000/hour", None),
    ]:
        limit = json.dumps({"rate": rate, "burst": burst})
        [found] = of_kind(template("--set-json", f"limit={limit}"), "ConfigMap")
        valid, said = checked(found["data"]["gcra-spoa.toml"])
        assert valid, f"{limit}: {said}"
        # The only remark that such a number can deserve is that buckets drain slowly.
        for line in said.splitlines():
            assert " warning: " not in line or "can keep a slot of the table" in line, line

    # There is nothing to share then, which the agent says itself.
    for rate in "deny", "unlimited":
        [found] = of_kind(template("--set", f"limit.rate={rate},store.url=redis://h"), "ConfigMap")
        valid, said = checked(found["data"]["gcra-spoa.toml"])
        assert valid and "no policy uses the store" in said, said

    kind = "Write a count and a period"
    for rate, burst, sentence in [
        ("0/s", 20, kind), ("0.0/s", 20, kind), ("100/x", 20, kind), ("./s", 20, kind),
        ("1./s", 20, kind), ("1.2.3/s", 20, kind), ("100/fortnight", 20, kind),
        ("100/", 20, kind), ("1/0s", 20, kind), ("1e3/s", 20, kind), ("1/S", 20, kind),
        ("1/s\n", 20, kind), ("Deny", 20, kind),
        ("99999999999999999999/s", 20, "The fastest rate is 1000000/ms"),
        ("1000000001/s", 20, "The fastest rate is 1000000/ms"),
        ("1/99999999999d", 1, "The longest period is 584 years"),
        ("4294967295/h", None, "at most 4294967294"),
        ("100/s", 4294967295, "/limit/burst"), ("100/s", 10**15, "/limit/burst"),
        ("100/s", 10**19, "/limit/burst"), ("100/s", -1, "/limit/burst"),
    ]:
        refused(sentence, "--set-json", f"limit={json.dumps({'rate': rate, 'burst': burst})}")
        assert not checked(config(rate, burst))[0], (rate, burst)


def files():
    """a file without a policy, and a section [store] in whatever spelling, are refused"""
    for text in "  \n", "# a limit\n", 'answer = ["reason"]':
        refused("has no policy", "--set-json", f"config={json.dumps(text)}")
        assert not checked(text)[0], text
    policy = '[policy.check]\nlimits = "1/s"\nkey = ["ip"]\n'
    address = 'url = "redis://h"\n'
    for text in [
        f"{policy}[store]\n{address}", f"{policy}  [ store ] # x\n{address}",
        f'{policy}["store"]\n{address}', f"{policy}[ 'store' ]\n{address}",
        f"store.{address}{policy}", f" store . {address}{policy}", f'"store".{address}{policy}',
        f"answer = []\nstore = {{{address.strip()}}}\n{policy}",
        f"'store' = {{{address.strip()}}}\n{policy}",
    ]:
        refused("has a section [store]", "--set-json", f"config={json.dumps(text)}")
        valid, said = checked(text)
        assert valid and "the store" in said, f"{text}: {said}"
    for text in [
        '[policy.store]\nlimits = "1/s"\nkey = ["ip"]\n',
        '[policy]\nstore.limits = "1/s"\nstore.key = ["ip"]\n',
        f"# [store]\n{policy}# store.{address}",
    ]:
        valid, said = checked(text)
        assert valid, f"{text}: {said}"
        template("--set-json", f"config={json.dumps(text)}")
    inline = 'policy.check = { limits = "1/s", key = ["ip"], shared = true }\n'
    for text in f"{policy}shared = true\n", f"{policy}'shared' = true\n", inline:
        template("--set", "replicas=2,store.url=redis://h",
                 "--set-json", f"config={json.dumps(text)}")
    # A list whose first line is the one that is indented.
    text = "  192.0.2.0/24\n198.51.100.7\n"
    [found] = of_kind(template("--set-json", f"files={json.dumps({'a.txt': text})}"), "ConfigMap")
    assert found["data"]["a.txt"] == text, found


class Unique(yaml.SafeLoader):
    """Refuses a key that is there twice, as Kubernetes does."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice: {keys}"
        return super().construct_mapping(node, deep)


def keys():
    """keys that the chart itself writes are refused, and so are wrong types"""
    for values, sentence in [
        ({"podLabels": {"app.kubernetes.io/name": "x"}}, "'podLabels' has"),
        ({"podLabels": {"app.kubernetes.io/instance": "x"}}, "'podLabels' has"),
        ({"podAnnotations": {"gcra-spoa/store": "x"}}, "'podAnnotations' has"),
        ({"files": {"gcra-spoa.toml": "x"}}, "'files' has"),
        ({"serviceMonitor": {"enabled": True, "labels": {"helm.sh/chart": "x"}}},
         "'serviceMonitor.labels' has"),
        ({"serviceMonitor": {"labels": {"app.kubernetes.io/name": "x"}}},
         "'serviceMonitor.labels' has"),
        ({"files": {"..": "x"}}, "invalid propertyName"),
        ({"podLabels": {"a": 1}}, "/podLabels/a"),
        ({"podLabels": {"a": "b c"}}, "/podLabels/a"),
        ({"podAnnotations": {"a": True}}, "/podAnnotations/a"),
        ({"nodeSelector": {"a": 1}}, "/nodeSelector/a"),
        ({"serviceMonitor": {"labels": {"a": 1}}}, "/serviceMonitor/labels/a"),
        ({"env": [{"value": "x"}]}, "/env/0"),
        ({"env": [{"name": ""}]}, "/env/0"),
        ({"env": [{"name": "A", "value": 1}]}, "/env/0/value"),
        ({"imagePullSecrets": [{}]}, "/imagePullSecrets/0"),
        ({"store": {"url": "redis://h", "existingSecret": "UPPER"}}, "/store/existingSecret"),
        ({"store": {"url": "redis://h", "passwordKey": "../a"}}, "/store/passwordKey"),
        ({"limit": {"message": "a" * 65}}, "/limit/message"),
        ({"limit": {"message": "a" * 300}}, "/limit/message"),
    ]:
        words = [word for name, value in values.items()
                 for word in ("--set-json", f"{name}={json.dumps(value)}")]
        refused(sentence, *words)
    for file in VALUES:
        text = run(HELM, "template", CHART, *KUBERNETES, "--values", str(file))
        list(yaml.load_all(text, Unique))
    template("--set", f"limit.message={'a' * 64}")


def names():
    """names are valid in Kubernetes, or refused with a sentence"""
    label = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
    for release, values, expected in [
        ("gcra-spoa", "", "gcra-spoa"),
        ("edge", "", "edge-gcra-spoa"),
        ("my.release", "", "my-release-gcra-spoa"),
        ("my.gcra-spoa", "", "my-gcra-spoa"),
        ("edge", "nameOverride=Rate_Limit", "edge-rate-limit"),
        ("edge", "nameOverride=1.5", "edge-1-5"),
        ("true", "nameOverride=e", "true"),
        ("1", "fullnameOverride=one", "one"),
        ("edge", "fullnameOverride=null", "null"),
        ("edge", f"fullnameOverride={'a' * 59}-b", "a" * 59),
        ("edge", f"fullnameOverride={'a' * 58}--b", "a" * 58),
        ("edge", f"nameOverride={'a' * 62}.b", f"edge-{'a' * 55}"),
    ]:
        text = run(HELM, "template", release, CHART, *KUBERNETES, "--namespace", "123",
                   "--set", "serviceMonitor.enabled=true", "--set-string",
                   values or "image.tag=")
        for each in yaml.safe_load_all(text):
            name = each["metadata"]["name"]
            assert name in (expected, f"{expected}-1", f"{expected}-2"), (name, expected)
            assert re.fullmatch(label, name), name
            assert each["metadata"]["namespace"] == "123"
            for value in each["metadata"]["labels"].values():
                assert isinstance(value, str), each["metadata"]["labels"]
                assert re.fullmatch("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value), value
            if each["kind"] != "ServiceMonitor":
                kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
    template("--set", "fullnameOverride=null,nameOverride=null,podLabels=null,files=null")
    refused("begin with a letter", release="1abc")
    for name in "UPPER", "a_b", "1a", "a.b", "-a", "a-", "a" * 59 + ".b", "a b":
        refused("'fullnameOverride' is", "--set-string", f"fullnameOverride={name}")
    for name in "a/b", "a b", "-a", "_":
        refused("'nameOverride' is", "--set-string", f"nameOverride={name}")


# --- Agents ------------------------------------------------------------------------------------


class Pod:
    """The volumes of a pod as folders, and its containers as processes of this machine."""

    def __init__(self, spec, sources, address="127.0.0.1", ports=None):
        """`sources` has the files of ConfigMaps and Secrets, by their names; `ports` the ports
        here by those of the containers."""
        self.address = address
        self.ports = {} if ports is None else ports
        self.folder = Path(tempfile.mkdtemp(prefix="gcra-", dir="/dev/shm"))
        self.containers = spec["containers"]
        self.agents = []
        mounts = [each for box in self.containers for each in box["volumeMounts"]]
        self.moved = {m["mountPath"]: str(self.folder / m["name"]) for m in mounts}
        for volume in spec["volumes"]:
            (self.folder / volume["name"]).mkdir()
            if "configMap" in volume:
                self.lay_out(volume["name"], sources[volume["configMap"]["name"]])
            elif "secret" in volume:
                self.lay_out(volume["name"], sources[volume["secret"]["secretName"]])

    def move(self, text):
        paths = "|".join(map(re.escape, sorted(self.moved, key=len, reverse=True)))
        whole_path = rf"(?<![\w./-])({paths})(?![\w.-])"
        return re.sub(whole_path, lambda found: self.moved[found[1]], text)

    def lay_out(self, volume, files):
        """As the kubelet does: all files change together, with the link ..data."""
        folder = self.folder / volume
        version = tempfile.mkdtemp(prefix="..", dir=folder)
        for name, text in files.items():
            Path(version, name).write_text(self.move(text))
            Path(version, name).chmod(0o440)
            if not (folder / name).is_symlink():
                (folder / name).symlink_to(f"..data/{name}")
        (folder / "..data_tmp").symlink_to(Path(version).name)
        (folder / "..data_tmp").rename(folder / "..data")

    def __enter__(self):
        for container in self.containers:
            arguments = []
            for argument in container["args"]:
                argument = self.move(argument)
                found = re.fullmatch(r"--(listen|admin)=0\.0\.0\.0:(\d+)", argument)
                if found:
                    port = self.ports.setdefault(int(found[2]), free_port())
                    argument = f"--{found[1]}={self.address}:{port}"
                arguments.append(argument)
            log = open(self.folder / f"{container['name']}.log", "w")
            process = subprocess.Popen([PROGRAM, *arguments], stdout=log, stderr=log)
            self.agents.append((container, process))
        try:
            for container, process in self.agents:
                named = {p["name"]: p["containerPort"] for p in container["ports"]}
                for probe in "readinessProbe", "livenessProbe":
                    if probe in container:
                        get = container[probe]["httpGet"]
                        port = self.ports[named.get(get["port"], get["port"])]
                        until(f"{probe} of {container['name']}", lambda: self.probe(
                            process, container, port, get["path"]))
        except BaseException:
            self.__exit__()
            raise
        return self

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def probe(self, process, container, port, path):
        if process.poll() is not None:
            sys.exit(f"{container['name']} has ended:\n{self.log(container['name'])}")
        return self.get(port, path) is not None

    def get(self, port, path):
        """What is served there, or nothing. The name is an address, as for the kubelet."""
        try:
            connection = http.client.HTTPConnection(self.address, port, timeout=PATIENCE)
            connection.request("GET", path, headers={"Host": "10.244.0.7"})
            response = connection.getresponse()
            body = response.read().decode()
            connection.close()
            return body if response.status == 200 else None
        except OSError:
            return None

    def __exit__(self, *_):
        for _, process in self.agents:
            process.terminate()
        for container, process in self.agents:
            status = process.wait(PATIENCE)
            assert status == 0, f"{container['name']}: {status}"
        shutil.rmtree(self.folder)


SECRETS = {"gcra-spoa-store": {"password": "secret\n", "salt": "0123456789abcdef0123456789\n"}}


def chart_pod(objects, change=lambda text: text, **where):
    sources = dict(SECRETS)
    for each in of_kind(objects, "ConfigMap") + of_kind(objects, "Secret"):
        files = each.get("data") or each["stringData"]
        sources[each["metadata"]["name"]] = {name: change(text) for name, text in files.items()}
    return Pod(of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"], sources, **where)


def agents_start():
    """rendered files pass `gcra-spoa check`; agents start with the rendered flags"""
    for file in None, *VALUES:
        objects = template(*(["--values", str(file)] if file else []))
        deployment = of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]
        pod = chart_pod(objects)
        config = pod.folder / "config" / "gcra-spoa.toml"
        said = run(PROGRAM, "check", "--config", str(config))
        assert "0 warnings" in said, said
        with pod:
            table = pod.folder / "table" / "gcra-spoa.table"
            said = run(PROGRAM, "table", "info", "--table", str(table))
            count = len(deployment["containers"])
            assert f"used by {count} processes" in said, said
            # The limit of the volume suffices for the table and the leases, and twice at a resize.
            limit = next(v["emptyDir"]["sizeLimit"] for v in deployment["volumes"]
                         if "emptyDir" in v)
            size = sum(each.stat().st_size for each in table.parent.iterdir())
            assert 2 * size <= int(limit.removesuffix("Mi")) << 20, (size, limit)
        drain = max(int(re.search(r"--drain=(\d+)s", " ".join(each["args"]))[1])
                    for each in deployment["containers"])
        assert deployment["terminationGracePeriodSeconds"] > drain


def change_without_restart():
    """a change of the ConfigMap is read without a restart"""
    pod = chart_pod(template("--set", "agentsPerPod=1"))
    with pod:
        changed = template("--set", "agentsPerPod=1,limit.rate=7/s,limit.burst=3")
        pod.lay_out("config", of_kind(changed, "ConfigMap")[0]["data"])
        until("the new limit", lambda: "7 per second, up to 3 at once" in pod.log("agent-1"))
    # The pods stay as they are, too.
    old = of_kind(template("--set", "agentsPerPod=1"), "Deployment")
    assert old == of_kind(changed, "Deployment")


# --- HAProxy -----------------------------------------------------------------------------------


def controller(folder, snippet, auxiliary, first=""):
    """The configuration as the controller writes it: the snippet is at the end of a frontend, and
    the lines of a custom resource are before the controller's own rules."""
    port = free_port()
    Path(folder, "haproxy.cfg").write_text(f"""\
global
  default-path config
  log stdout format raw local0
  stats socket {folder}/runtime.sock level admin

defaults haproxytech
  timeout http-request 60000
  timeout connect 60000
  timeout client 60000
  timeout server 60000

frontend https from haproxytech
  mode http
  bind 127.0.0.1:{free_port()}
{indent(first)}
  http-request set-var(txn.base) base
  use_backend %[var(txn.path_match),field(1,.)]
{indent(snippet)}

frontend http from haproxytech
  mode http
  bind 127.0.0.1:{port}
{indent(first)}
  http-request set-var(txn.base) base
  http-request set-var(txn.path_match) str(app)
  use_backend %[var(txn.path_match),field(1,.)]
  default_backend app
{indent(snippet)}

backend app from haproxytech
  mode http
  http-request return status 200
""")
    Path(folder, "haproxy-aux.cfg").write_text(patient(auxiliary))
    return port


def indent(text):
    return "\n".join(f"  {line}" for line in text.splitlines())


def limits(folder, port, servers, least=20):
    """Starts HAProxy, and sees that the burst is allowed and no more."""
    files = ["-f", f"{folder}/haproxy.cfg", "-f", f"{folder}/haproxy-aux.cfg"]
    said = run(HAPROXY, "-c", *files)
    with open(f"{folder}/haproxy.log", "w") as log:
        process = subprocess.Popen([HAPROXY, "-db", *files], stdout=log, stderr=log)
    try:
        def up():
            if process.poll() is not None:
                sys.exit(f"HAProxy has ended:\n{Path(folder, 'haproxy.log').read_text()}")
            try:
                with socket.socket(socket.AF_UNIX) as runtime:
                    runtime.connect(f"{folder}/runtime.sock")
                    runtime.sendall(b"show stat\n")
                    stat = b"".join(iter(lambda: runtime.recv(65536), b"")).decode()
            except OSError:
                return False
            rows = [row.split(",") for row in stat.splitlines() if row.startswith("gcra-agents,")]
            return sum(row[17] == "UP" and row[36] == "L7OK" for row in rows) == servers

        until(f"{servers} agents that are UP", up)
        answers = []
        for _ in range(30):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", "/")
            answer = connection.getresponse()
            answers.append(answer.status)
            retry_after = answer.headers.get("Retry-After")
            connection.close()
        allowed = answers.count(200)
        assert least <= allowed <= 20 and allowed + answers.count(429) == 30, (answers, said)
        return retry_after
    finally:
        process.kill()
        process.wait()


def parts(name):
    """The values of an example for the controller's chart."""
    return yaml.safe_load(Path(EXAMPLES, name, "values.yaml").read_text())["controller"]


def spoe(folder):
    config = yaml.safe_load(Path(EXAMPLES, "spoe-configmap.yaml").read_text())
    for name, text in config["data"].items():
        Path(folder, name).write_text(patient(text))


def slow(text):
    return text.replace("100/s burst 20", SLOW)


def sidecar_pod():
    values = parts("sidecar")
    config = yaml.safe_load(Path(EXAMPLES, "sidecar/configmap.yaml").read_text())
    sources = {"gcra-spoa": {name: slow(text) for name, text in config["data"].items()}}
    volumes = [v for v in values["extraVolumes"] if v["name"] != "gcra-spoe"]
    return Pod({"containers": values["initContainers"], "volumes": volumes}, sources), values


def sidecar():
    """the sidecars: 20 requests are allowed, and 10 get 429"""
    pod, values = sidecar_pod()
    with pod, tempfile.TemporaryDirectory() as folder:
        spoe(folder)
        snippet = values["config"]["frontend-config-snippet"].replace("/etc/haproxy-spoe", folder)
        port = controller(folder, snippet, pod.move(values["auxiliaryConfig"]))
        assert int(limits(folder, port, 2)) > 1000


def sidecar_objects():
    """the sidecars are valid in a pod of Kubernetes 1.29 and 1.37; settings in comments, too"""
    values = parts("sidecar")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "controller"},
        "spec": {
            "containers": [{"name": "controller", "image": "controller",
                            "volumeMounts": values["extraVolumeMounts"]}],
            "initContainers": values["initContainers"],
            "volumes": values["extraVolumes"],
        },
    }
    volumes = {each["name"] for each in values["extraVolumes"]}
    boxes = pod["spec"]["containers"] + values["initContainers"]
    assert {m["name"] for box in boxes for m in box["volumeMounts"]} == volumes
    for version in "1.29.0", "1.37.0":
        kubernetes_validate.validate(pod, version, strict=True)
        for file in "spoe-configmap.yaml", "sidecar/configmap.yaml":
            each = yaml.safe_load(Path(EXAMPLES, file).read_text())
            kubernetes_validate.validate(each, version, strict=True)
    config = yaml.safe_load(Path(EXAMPLES, "sidecar/configmap.yaml").read_text())
    text = re.sub(r"(?m)^# (?=\w+ =|\[)", "", config["data"]["gcra-spoa.toml"])
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        said = run(PROGRAM, "check", "--config", file.name)
        assert "valkey.example" in said and "0 warnings" in said, said


def counted(rules):
    """The rules that count requests without a decision, as HAProxy gets them."""
    track, *variables = rules
    lines = (f"http-request {track['type']}{track['track_sc_stick_counter']}"
             f" {track['track_sc_key']} table {track['track_sc_table']}\n")
    for rule in variables:
        lines += (f"http-request {rule['type']}({rule['var_scope']}.{rule['var_name']})"
                  f" {rule['var_expr']} {rule['cond']} {rule['cond_test']}\n")
    return lines


def custom_resource():
    """the custom resource: 20 requests are allowed, and 10 get 429"""
    frontend = yaml.safe_load(Path(EXAMPLES, "crd/frontend.yaml").read_text())["spec"]
    [filter] = frontend["filter_list"]
    *counting, rule = frontend["http_request_rule_list"]
    headers = " ".join(f"hdr {each['name']} {each['fmt']}" for each in rule["return_hdrs"])
    lines = (
        f"filter {filter['type']} engine {filter['spoe_engine']} config {filter['spoe_config']}\n"
        f"{counted(counting)}"
        f"http-request {rule['type']} deny_status {rule['deny_status']}"
        f" content-type {rule['return_content_type']}"
        f" {rule['return_content_format']} {rule['return_content']} {headers}"
        f" {rule['cond']} {rule['cond_test']}")
    config = parts("crd")["config"]
    assert config["frontend-config-snippet"] is None
    assert config["cr-frontend-http"] == config["cr-frontend-https"] == "haproxy-controller/gcra"
    pod, values = sidecar_pod()
    with pod, tempfile.TemporaryDirectory() as folder:
        spoe(folder)
        first = lines.replace("/etc/haproxy-spoe", folder)
        port = controller(folder, "", pod.move(values["auxiliaryConfig"]), first)
        assert int(limits(folder, port, 2)) > 1000


def name_server(listener, addresses):
    """Answers each question for A with the addresses, and others with none."""
    while True:
        try:
            question, client = listener.recvfrom(4096)
        except OSError:
            return
        end = question.index(b"\0", 12) + 5
        found = addresses if question[end - 4:end - 2] == b"\0\x01" else []
        answer = question[:2] + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0)
        answer += question[12:end]
        for address in found:
            answer += b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 5, 4) + socket.inet_aton(address)
        listener.sendto(answer, client)


def behind_dns(objects, pods):
    """HAProxy with the example's values, and a name server that knows the pods."""
    values = parts("deployment")
    auxiliary = values["auxiliaryConfig"]
    for each in of_kind(objects, "Service"):
        name = f"{each['metadata']['name']}.{each['metadata']['namespace']}.svc.cluster.local"
        port = next(p["port"] for p in each["spec"]["ports"] if p["name"] == "spop")
        assert f"{name}:{port}" in auxiliary, name
        auxiliary = auxiliary.replace(f"{name}:{port}", f"{name}:{pods[0].ports[port]}")
    # What the C library asks would leave this machine.
    assert "init-addr last,libc,none" in auxiliary
    auxiliary = auxiliary.replace("last,libc,none", "none")
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    threading.Thread(target=name_server, args=(listener, [pod.address for pod in pods]),
                     daemon=True).start()
    auxiliary = auxiliary.replace("parse-resolv-conf",
                                  f"nameserver test 127.0.0.1:{listener.getsockname()[1]}")
    with listener, tempfile.TemporaryDirectory() as folder:
        spoe(folder)
        snippet = values["config"]["frontend-config-snippet"].replace("/etc/haproxy-spoe", folder)
        port = controller(folder, snippet, auxiliary)
        # With a store, a machine may hold cells that it does not need.
        assert int(limits(folder, port, 2 * len(pods), 20 if len(pods) == 1 else 10)) > 0


def deployment():
    """the Deployment and the DNS: 20 requests are allowed, and 10 get 429"""
    objects = template()
    with chart_pod(objects, slow) as pod:
        behind_dns(objects, [pod])


def notes():
    """NOTES.txt has the backend of the example"""
    with tempfile.TemporaryDirectory() as folder:
        # `helm template` leaves the notes out, and `helm install` needs a cluster.
        chart = shutil.copytree(CHART, Path(folder, "gcra-spoa"))
        Path(chart, "templates/notes.yaml").write_text(
            'kind: Notes\ntext: |\n'
            '  {{- include (print .Template.BasePath "/NOTES.txt") . | nindent 2 }}\n')
        [said] = of_kind(template(chart=str(chart)), "Notes")
    expected = parts("deployment")["auxiliaryConfig"].replace(" from haproxytech", "")
    for line in expected.splitlines():
        assert line.strip() in said["text"], f"NOTES.txt does not have: {line}"


def store():
    """two pods and a store: at most 20 of 30 requests are allowed, by both together"""
    port = free_port()
    server = subprocess.Popen(
        [VALKEY, "--bind", "127.0.0.1", "--port", str(port), "--save", "",
         "--maxmemory-policy", "noeviction", "--requirepass", "secret"],
        stdout=subprocess.DEVNULL)
    try:
        objects = template("--set", f"replicas=2,store.url=redis://127.0.0.1:{port}/0,"
                           "store.existingSecret=gcra-spoa-store",
                           "--set-string", 'store.settings=wait = "8s"')
        one = chart_pod(objects, slow)
        two = chart_pod(objects, slow, address="127.0.0.2", ports=one.ports)

        def checked():
            said = subprocess.run(
                [PROGRAM, "store", "check", "--config",
                 str(one.folder / "config" / "gcra-spoa.toml")], capture_output=True, text=True)
            return "limits can be shared" in said.stdout

        until("the store", checked)
        def used(pod):
            return all("gcra_store_up 1" in (pod.get(pod.ports[port], "/metrics") or "")
                       for port in (9101, 9102))

        with one, two:
            until("agents that use the store", lambda: used(one) and used(two))
            behind_dns(objects, [one, two])
    finally:
        server.kill()
        server.wait()


class DataPlane(http.server.BaseHTTPRequestHandler):
    """What the script asks of the Data Plane API."""

    def log_message(self, *_):
        pass

    def answer(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.server.asked.append(("GET", self.path, None))
        self.answer(200, "7\n")

    def do_PUT(self):
        self.do_POST()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        # "admin:secret"
        assert self.headers["Authorization"] == "Basic YWRtaW46c2VjcmV0"
        self.server.asked.append((self.command, self.path, body))
        self.answer(201, '{"_version":7,"id":"4f-2","status":"in_progress"}')


def data_plane():
    """what is sent to the Data Plane API: 20 requests are allowed, and 10 get 429"""
    pod = chart_pod(template(), slow)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), DataPlane)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pod, tempfile.TemporaryDirectory() as folder:
        agents = [f"127.0.0.1:{pod.ports[port]}" for port in (9000, 9001)]
        os.environ.update(DATAPLANE=f"http://127.0.0.1:{server.server_port}",
                          DATAPLANE_AUTH="admin:secret", FRONTEND="http", SPOE_DIR=folder)
        run(str(EXAMPLES / "dataplaneapi/apply"), *agents)
        server.shutdown()
        root = "/v3/services/haproxy"
        section = f"{root}/configuration"
        expected = [
            f"POST {root}/spoe/spoe_files",
            f"GET {section}/version",
            f"POST {root}/transactions?version=7",
            *[f"POST {section}/backends?transaction_id=4f-2"] * 2,
            *[f"POST {section}/backends/gcra-agents/servers?transaction_id=4f-2"] * 2,
            f"POST {section}/frontends/http/filters/0?transaction_id=4f-2",
            *[f"POST {section}/frontends/http/http_request_rules/{rule}?transaction_id=4f-2"
              for rule in range(4)],
            f"PUT {root}/transactions/4f-2",
        ]
        asked = [f"{method} {path}" for method, path, _ in server.asked]
        assert asked == expected, asked
        upload = server.asked[0][2]
        assert 'name="file_upload"; filename="spoe-gcra.conf"' in upload
        text = upload.split("\r\n\r\n", 1)[1].rsplit("\r\n--", 1)[0]
        Path(folder, "spoe-gcra.conf").write_text(patient(text.replace("\r\n", "\n")))
        backend, table, one, two, filter, *counting, rule = (
            json.loads(body) for _, _, body in server.asked[3:12])
        checks = backend["default_server"]
        stick = table["stick_table"]
        auxiliary = f"""
backend {table['name']}
  mode {table['mode']}
  stick-table type {stick['type']} size {stick['size']} store {stick['store']}

backend {backend['name']}
  mode {backend['mode']}
  timeout connect {backend['connect_timeout']}
  timeout server {backend['server_timeout']}
  timeout check {backend['check_timeout']}
  retries {backend['retries']}
  option redispatch {backend['redispatch']['interval']}
  option spop-check
  default-server check inter {checks['inter']} fastinter {checks['fastinter']} \
fall {checks['fall']} rise {checks['rise']}
  server {one['name']} {one['address']}:{one['port']}
  server {two['name']} {two['address']}:{two['port']}
"""
        first = (f"filter spoe engine {filter['spoe_engine']} config {filter['spoe_config']}\n"
                 f"{counted(counting)}"
                 f"http-request deny deny_status {rule['deny_status']} "
                 f"{rule['cond']} {rule['cond_test']}")
        limits(folder, controller(folder, "", auxiliary, first), 2)


for each in [versions, lint, schemas, everything, same_values, wrong_values, rates, files,
             keys, names, agents_start, change_without_restart, sidecar_objects, sidecar,
             custom_resource, deployment, notes, store, data_plane]:
    test(each)
print(f"Kubernetes: {len(passed)} passed, 0 failed; the chart and the examples, without a cluster")

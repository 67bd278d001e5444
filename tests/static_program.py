#!/usr/bin/env python3
"""static_program.py DIST: runs the static program for 64-bit ARM in qemu-aarch64, as users do.

Two agents share one table behind a real HAProxy. One runs on a CPU of ARMv8.0 (cortex-a53), which
changes a slot with ldxp and stxp, the other on one with LSE (neoverse-n1), which has casp. Exactly
the burst must be allowed. Then come the commands on that table, and agents that are killed.
HAPROXY names the HAProxy, if it is not in PATH.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

CPUS = ("cortex-a53", "neoverse-n1")
BURST = 300
REQUESTS = 480
CLIENTS = 8
# Only a test that fails waits for it.
PATIENCE = 120

HAPROXY_CFG = """
global
    log stdout format raw local0 notice
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend web
    bind 127.0.0.1:{port}
    filter spoe engine gcra config {directory}/spoe.conf
    http-request return status 500 if {{ var(txn.gcra.err) -m found }}
    http-request return status 501 unless {{ var(txn.gcra.blocked) -m found }}
    http-request return status 429 if {{ var(txn.gcra.blocked) -m bool }}
    http-request return status 200
backend agents
    mode {mode}
    balance roundrobin
    timeout connect 5s
    timeout server 60s
    server agent0 unix@{directory}/agent0.sock
    server agent1 unix@{directory}/agent1.sock
"""

SPOE_CONF = """
[gcra]
spoe-agent gcra
    messages check
    use-backend agents
    option var-prefix gcra
    option set-on-error err
    timeout hello 10s
    timeout idle 30s
    timeout processing 30s
spoe-message check
    args key=req.fhdr(x-key)
    event on-frontend-http-request
"""


def find_haproxy():
    path = os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin"
    found = os.environ.get("HAPROXY") or shutil.which("haproxy", path=path)
    if not found:
        sys.exit("HAProxy is not installed; install 'haproxy', or name it with HAPROXY")
    return found


def wait_until(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"FAILED: waited in vain until {what}")
        time.sleep(0.05)


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"FAILED: {what}: {found!r} instead of {wanted!r}")


class Test:
    """A directory with the program, a table and sockets, and the processes that were started."""

    def __init__(self, program, directory):
        self.directory = pathlib.Path(directory)
        self.program = self.directory / "gcra-spoa"
        shutil.copy(program, self.program)
        self.table = self.directory / "table"
        self.log = open(self.directory / "log", "a+", encoding="utf-8")
        self.children = []

    def end(self, failed):
        """Ends all processes, and shows their log if the test failed."""
        for child in self.children:
            child.kill()
            child.wait()
        if failed:
            self.log.seek(0)
            sys.stderr.write(self.log.read())
        self.log.close()

    def command(self, args, cpu):
        return ["qemu-aarch64", "-cpu", cpu, str(self.program), *map(str, args)]

    def run(self, *args, cpu=CPUS[0], status=0, **options):
        """Runs a command to its end, and returns what it printed."""
        done = subprocess.run(self.command(args, cpu), capture_output=True, text=True,
                              timeout=PATIENCE, **options)
        if done.returncode != status:
            sys.exit(f"FAILED: {args} ended with {done.returncode} instead of {status}: "
                     f"{done.stdout}{done.stderr}")
        return done.stdout if status == 0 else done.stderr

    def start(self, command):
        child = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.children.append(child)
        return child

    def agent(self, number, *options):
        path = self.directory / f"agent{number}.sock"
        child = self.start(self.command(
            ["--table", self.table, "--listen", f"unix:{path}",
             "--rate", "1/h", "--burst", BURST, "--key", "key", *options], CPUS[number]))

        def listens():
            if child.poll() is not None:
                sys.exit(f"FAILED: agent {number} ended with {child.returncode}")
            with socket.socket(socket.AF_UNIX) as client:
                return client.connect_ex(str(path)) == 0

        wait_until(f"agent {number} listens", listens)
        return child

    def haproxy(self):
        haproxy = find_haproxy()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        said = subprocess.run([haproxy, "-v"], capture_output=True, text=True, check=True)
        numbers = said.stdout.split("version ", 1)[1].split(".", 2)
        mode = "spop" if (int(numbers[0]), int(numbers[1].split("-")[0])) >= (3, 1) else "tcp"
        (self.directory / "spoe.conf").write_text(SPOE_CONF)
        config = self.directory / "haproxy.cfg"
        config.write_text(HAPROXY_CFG.format(port=self.port, directory=self.directory, mode=mode))
        self.proxy = self.start([haproxy, "-db", "-f", str(config)])

        def listens():
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until("HAProxy listens", listens)

    def ask(self, key, requests):
        """How many of the requests with this key got which status."""
        def some(_):
            statuses = []
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
            for _ in range(requests // CLIENTS):
                connection.request("GET", "/", headers={"X-Key": key})
                response = connection.getresponse()
                response.read()
                statuses.append(response.status)
            return statuses

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            statuses = [status for part in pool.map(some, range(CLIENTS)) for status in part]
        return {status: statuses.count(status) for status in sorted(set(statuses))}


def commands_say_why_a_table_cannot_be_changed(test):
    """A file that its user may only read is refused, not mapped: a load may write a slot."""
    folder = test.directory / "readable"
    folder.mkdir(mode=0o755)
    copy = folder / "table"
    shutil.copy(test.table, copy)
    copy.chmod(0o400)
    options = {}
    if os.geteuid() == 0:
        os.chown(copy, 65534, 65534)
        test.directory.chmod(0o755)
        options["user"] = 65534
    for args in (["info"], ["check"], ["get", "shared"]):
        for cpu in CPUS:
            said = test.run("table", *args, "--table", copy, cpu=cpu, status=1, **options)
            expect(f"the error of {args}", "Permission denied" in said, True)


def slots_change_with_the_best_instruction(test):
    """A static program knows what its CPU can do: with LSE it uses casp, and only then."""
    casp = re.compile(r":  48[2367][0-9a-f][7f][c-f][0-9a-f]{2} ")
    log = test.directory / "instructions"
    for cpu in CPUS:
        # So that there is something to reset.
        test.ask("shared", CLIENTS)
        command = test.command(["table", "reset", "--table", test.table, "shared"], cpu)
        subprocess.run(command[:1] + ["-d", "in_asm", "-D", str(log)] + command[1:],
                       capture_output=True, timeout=PATIENCE, check=True)
        with open(log, encoding="utf-8", errors="replace") as lines:
            found = any(casp.search(line) for line in lines)
        expect(f"casp on {cpu}", found, cpu == "neoverse-n1")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program = pathlib.Path(sys.argv[1]) / "gcra-spoa"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        test = Test(program, directory)
        failed = True
        try:
            check(test)
            failed = False
        finally:
            test.end(failed)
    print(f"{program}: two agents on {' and '.join(CPUS)} allowed exactly {BURST} of {REQUESTS} "
          f"requests, and all commands answered, in {time.monotonic() - started:.0f} s")


def check(test):
    for cpu in CPUS:
        expect("the version", test.run("--version", cpu=cpu).split()[0], "gcra-spoa")
    agents = [test.agent(number, "--slots", 4096) for number in range(len(CPUS))]
    test.haproxy()

    table = ["--table", test.table]
    denied = REQUESTS - BURST
    expect("the statuses", test.ask("shared", REQUESTS), {200: BURST, 429: denied})

    info = json.loads(test.run("table", "info", "--json", *table))
    expect("the slots, live buckets and agents",
           (info["slots"], info["live"], len(info["processes"])), (4096, 1, len(CPUS)))
    for cpu in CPUS:
        expect("the faults", "no fault in 4096 slots" in
               test.run("table", "check", *table, cpu=cpu), True)
        expect("what is said of the client", "blocked" in
               test.run("table", "get", *table, "shared", cpu=cpu), True)
    expect("the explanation", "blocked" in
           test.run("explain", *table, "key=shared"), True)
    test.run("name", *table, "shared")
    commands_say_why_a_table_cannot_be_changed(test)

    test.run("exempt", "--for", "1h", *table, "shared")
    wait_until("the agents exempt the client",
               lambda: test.ask("shared", 40) == {200: 40})
    test.run("exempt", "--end", *table, "shared")
    wait_until("the exemption ends", lambda: test.ask("shared", 40) == {429: 40})

    # The agents move to the new file, and what the client owes moves with them.
    test.run("table", "resize", "--slots", 8192, *table, cpu=CPUS[1])
    expect("the statuses after a resize", test.ask("shared", 16), {429: 16})
    slots_change_with_the_best_instruction(test)
    # These were resets.
    expect("the statuses after a reset", test.ask("shared", REQUESTS), {200: BURST, 429: denied})
    expect("the faults", "no fault in 8192 slots" in test.run("table", "check", *table), True)

    # A new agent finds what a killed one has counted, whichever of the two it was.
    for number, agent in enumerate(agents):
        expect("the statuses before a kill", test.ask(f"killed{number}", 80), {200: 80})
        agent.kill()
        agent.wait()
        agents[number] = test.agent(number)
        # A new one, because the old one may not have noticed yet that a connection is lost.
        test.proxy.kill()
        test.haproxy()
        expect("the statuses after a kill", test.ask(f"killed{number}", REQUESTS),
               {200: BURST - 80, 429: REQUESTS - BURST + 80})

    for number, agent in enumerate(agents):
        agent.send_signal(signal.SIGTERM)
        expect(f"the exit status of agent {number}", agent.wait(PATIENCE), 0)


if __name__ == "__main__":
    main()

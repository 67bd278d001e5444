//! Requests that had no decision because HAProxy got no answer: what its table counts, what its
//! log says, and what the agents count together are the same.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use spop_codec::{Scope, Value};
use tempfile::TempDir;

use crate::support;
use crate::support::admin::{ADMIN, get, status, top};
use crate::support::proxy::Proxy;
use crate::support::spop::Spop;
use crate::support::{
    Agent, Client, Haproxy, admin, agent_binary, directory, free_port, haproxy_folder, needs,
    wait_until,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// More than any client of these tests needs.
const RATE: [&str; 4] = ["--rate", "1000000/s", "--key", "ip"];

/// How many requests there were, by `err`.
type ByErr = BTreeMap<String, u64>;

fn add(to: &mut ByErr, more: &ByErr) {
    more.iter().for_each(|(err, count)| *to.entry(err.clone()).or_default() += count);
}

/// The counts of an agent.
fn counted(admin: &str) -> ByErr {
    let metrics = get(admin, "/metrics").body;
    let lines = metrics.lines().filter_map(|line| {
        let (err, count) =
            line.strip_prefix("gcra_haproxy_undecided_total{err=\"")?.split_once("\"} ")?;
        Some((err.to_owned(), count.parse().unwrap()))
    });
    lines.filter(|(_, count)| *count > 0).collect()
}

/// The counts in the table of HAProxy.
fn in_table(haproxy: &Haproxy) -> ByErr {
    let text = haproxy.say("show table undecided\n");
    let entries = text.lines().filter_map(|line| {
        let word = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name));
        let count = word("http_req_cnt=").or_else(|| word("conn_cnt="))?;
        Some((word("key=")?.to_owned(), count.parse().unwrap()))
    });
    entries.collect()
}

/// The counts in the log of HAProxy, if it has a line for each of these requests.
fn in_log(haproxy: &Haproxy, requests: usize) -> Option<ByErr> {
    let logged = |haproxy: &Haproxy| {
        let lines = haproxy.process.lines();
        lines.iter().filter_map(|line| Some(line.split_once(" err=")?.1.to_owned())).collect()
    };
    let count = |haproxy: &Haproxy| {
        let lines: Vec<String> = logged(haproxy);
        lines.len()
    };
    let mut errs = ByErr::new();
    haproxy.has_logged(requests, count).then(|| {
        let lines: Vec<String> = logged(haproxy);
        for err in lines.into_iter().filter(|err| err != "-") {
            *errs.entry(err).or_default() += 1;
        }
        errs
    })
}

/// Two agents on one table, and what those counted that had to end.
struct Agents {
    directory: TempDir,
    addresses: [SocketAddr; 2],
    now: [(Agent, String); 2],
    before: ByErr,
}

impl Agents {
    fn start() -> Self {
        let directory = directory();
        let addresses = [free_port(LOOPBACK), free_port(LOOPBACK)];
        let now = addresses.map(|address| Self::one(directory.path(), address));
        Self { directory, addresses, now, before: ByErr::new() }
    }

    fn one(directory: &Path, address: SocketAddr) -> (Agent, String) {
        let address = address.to_string();
        let args = ["--drain", "0", "--listen", &address];
        // The table has as many slots as it has.
        admin::of(Agent::start_with(
            &directory.join("table"),
            &[&args[..], &ADMIN, &RATE].concat(),
        ))
    }

    fn table(&self) -> std::path::PathBuf {
        self.directory.path().join("table")
    }

    fn counted(&self) -> ByErr {
        let mut sum = self.before.clone();
        self.now.iter().for_each(|(_, admin)| add(&mut sum, &counted(admin)));
        sum
    }

    fn signal(&self, signal: Signal) {
        self.now.iter().for_each(|(agent, _)| agent.process.signal(signal));
    }

    /// The agents' counts end with the agents, and are kept here.
    fn kill(&mut self) {
        self.before = self.counted();
        self.now.iter_mut().for_each(|(agent, _)| agent.process.kill());
    }

    fn start_again(&mut self) {
        let directory = self.directory.path();
        self.now = self.addresses.map(|address| Self::one(directory, address));
    }
}

/// The shipped file with rules of all kinds below those that count, and a message that a client
/// can make too large.
fn configuration() -> TempDir {
    let folder = directory();
    let shipped = |name| std::fs::read_to_string(haproxy_folder().join(name)).unwrap();
    let rules = "    http-request deny if { path /deny }\n    \
                 http-request return status 204 if { path /return }\n    \
                 http-request redirect location / if { path /redirect }\n    \
                 default_backend app\n";
    let text = shipped("haproxy.cfg").replacen("    default_backend app\n", rules, 1);
    std::fs::write(folder.path().join("haproxy.cfg"), text).unwrap();
    let long = "args ip=src,ipmask(32,64) a=req.fhdr(x-long) b=req.fhdr(x-long)";
    let text = shipped("spoe-gcra.conf").replacen(
        "args ip=src,ipmask(32,64)\n\n",
        &format!("{long}\n\n"),
        1,
    );
    assert!(text.contains(long));
    std::fs::write(folder.path().join("spoe-gcra.conf"), text).unwrap();
    folder
}

struct Scene {
    agents: Agents,
    haproxy: Haproxy,
    requests: usize,
    _configuration: TempDir,
}

impl Scene {
    fn new(agents: Agents, asked: [SocketAddr; 2]) -> Self {
        let configuration = configuration();
        let [one, other] = asked.map(|address| address.to_string());
        let file = configuration.path().join("haproxy.cfg");
        let haproxy = Haproxy::start_as_shipped(
            file.to_str().unwrap(),
            &[("GCRA_AGENT1", &one), ("GCRA_AGENT2", &other)],
        );
        let scene = Self { agents, haproxy, requests: 0, _configuration: configuration };
        scene.wait_for("UP");
        scene
    }

    fn wait_for(&self, state: &str) {
        for server in ["agent1", "agent2"] {
            self.haproxy.wait_for("gcra-agents", server, state);
        }
    }

    /// Requests that each rule ends, and such as reach the server.
    fn ask(&mut self, rounds: usize, headers: &[(&str, &str)]) {
        for _ in 0..rounds {
            for path in ["/", "/deny", "/return", "/redirect"] {
                Client::new(self.haproxy.frontend).get_with(path, headers).unwrap();
                self.requests += 1;
            }
        }
    }

    /// Loses requests until HAProxy has counted one of these errors: on a busy machine it may
    /// have taken the agents for dead before, and counts another one.
    fn lose(&mut self, errs: &[&str], how: impl Fn(&mut Self)) {
        wait_until(&format!("HAProxy has counted {errs:?}"), || {
            how(self);
            self.wait_for("UP");
            let table = in_table(&self.haproxy);
            errs.iter().any(|err| table.contains_key(*err))
        });
    }

    /// Asks until the agents have heard of all that HAProxy has counted, and compares it with the
    /// log. Returns it.
    fn agrees(&mut self) -> ByErr {
        let mut table = ByErr::new();
        wait_until("the agents have counted what HAProxy has", || {
            self.ask(1, &[]);
            table = in_table(&self.haproxy);
            table == self.agents.counted()
        });
        if let Some(log) = in_log(&self.haproxy, self.requests) {
            assert_eq!(log, table);
        }
        table
    }
}

fn sum(counts: &ByErr) -> u64 {
    counts.values().sum()
}

#[test]
fn each_request_without_a_decision_is_counted_once_whatever_the_cause() {
    needs!(support::haproxy());
    let agents = Agents::start();
    let proxies = agents.addresses.map(Proxy::start);
    let asked = proxies.each_ref().map(Proxy::address);
    let mut scene = Scene::new(agents, asked);
    scene.ask(2, &[]);
    let mut before = sum(&scene.agrees());
    let mut grew = |scene: &mut Scene, what: &str, errs: &[&str]| {
        let now = scene.agrees();
        assert!(sum(&now) >= before + 4, "{what}: {now:?}, {before} before");
        assert!(errs.iter().any(|err| now.contains_key(*err)), "{what}: {now:?}");
        before = sum(&now);
    };

    scene.lose(&["1"], |scene| {
        scene.agents.signal(Signal::STOP);
        scene.ask(2, &[]);
        scene.agents.signal(Signal::CONT);
    });
    grew(&mut scene, "hang", &["1"]);

    // Longer than `timeout processing`.
    proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(80)));
    scene.ask(2, &[]);
    proxies.iter().for_each(|proxy| proxy.delay(Duration::ZERO));
    scene.wait_for("UP");
    grew(&mut scene, "late", &["1"]);

    // With so large a header the message does not fit into a frame.
    let long = "x".repeat(9_000);
    scene.lose(&["3", "259"], |scene| scene.ask(2, &[("x-long", &long)]));
    grew(&mut scene, "too large", &["3", "259"]);

    scene.agents.kill();
    scene.ask(2, &[]);
    scene.wait_for("DOWN");
    scene.ask(1, &[]);
    scene.agents.start_again();
    scene.wait_for("UP");
    grew(&mut scene, "gone", &["2", "257"]);

    // The sentences of the agents about it. An agent may not tell another one in time.
    let (_, admin) = &scene.agents.now[0];
    wait_until("the sum says why", || {
        status(admin)["together"]["haproxy_undecided_why"].is_string()
    });
    let said = |agent: &Agent| {
        let lines = agent.process.lines();
        lines.iter().any(|line| line.contains("had no decision, says HAProxy"))
    };
    wait_until("an agent says it", || scene.agents.now.iter().any(|(agent, _)| said(agent)));
    top(&["--admin", admin], &["had no decision, says HAProxy"]);
}

#[test]
fn haproxies_add_up_over_reloads_restarts_and_a_resize() {
    needs!(support::haproxy());
    let agents = Agents::start();
    let [one, other] = agents.addresses.map(|address| address.to_string());
    let start = || {
        let environment = [("GCRA_AGENT1", &one[..]), ("GCRA_AGENT2", &other[..])];
        Haproxy::start_as_shipped("haproxy.cfg", &environment)
    };
    let (mut agents, mut haproxies) = (agents, [start(), start()]);
    let wait_for = |haproxies: &[Haproxy; 2], state: &str| {
        for haproxy in haproxies {
            haproxy.wait_for("gcra-agents", "agent1", state);
            haproxy.wait_for("gcra-agents", "agent2", state);
        }
    };
    // The counts of processes that were replaced.
    let mut ended = ByErr::new();
    let ask = |haproxies: &[Haproxy; 2], count: usize| {
        for haproxy in haproxies {
            (0..count).for_each(|_| drop(Client::new(haproxy.frontend).get("/")));
        }
    };
    let agree_once = |agents: &Agents, haproxies: &[Haproxy; 2], ended: &ByErr| {
        let mut expected = ByErr::new();
        wait_until("the agents have counted what both have", || {
            ask(haproxies, 1);
            expected = ended.clone();
            haproxies.iter().for_each(|haproxy| add(&mut expected, &in_table(haproxy)));
            agents.counted() == expected
        });
        expected
    };
    let agree = |agents: &Agents, haproxies: &[Haproxy; 2], ended: &ByErr| {
        agree_once(agents, haproxies, ended);
        // Counts that were reported before are not new.
        ask(haproxies, 6);
        // One of these may have had no decision: what no agent has heard of would be lost with
        // the process.
        agree_once(agents, haproxies, ended)
    };
    wait_for(&haproxies, "UP");
    let lose = |agents: &Agents, haproxies: &[Haproxy; 2], count| {
        agents.signal(Signal::STOP);
        ask(haproxies, count);
        agents.signal(Signal::CONT);
        wait_for(haproxies, "UP");
    };

    lose(&agents, &haproxies, 3);
    let first = agree(&agents, &haproxies, &ended);
    assert!(sum(&first) >= 6, "{first:?}");

    // One is reloaded, and the other goes on.
    add(&mut ended, &in_table(&haproxies[0]));
    let mut old = haproxies[0].reload();
    old.wait();
    haproxies[0].wait_for_statistics();
    wait_for(&haproxies, "UP");
    lose(&agents, &haproxies, 2);
    let second = agree(&agents, &haproxies, &ended);
    assert!(sum(&second) >= sum(&first) + 4, "{second:?}, {first:?} before");

    // Agents that are started anew, and a table of another size, know what was counted.
    agents.kill();
    agents.start_again();
    wait_for(&haproxies, "UP");
    agree(&agents, &haproxies, &ended);
    let mut resize = Command::new(agent_binary());
    resize.args(["table", "resize", "--slots", "8192", "--table"]).arg(agents.table());
    assert!(resize.output().unwrap().status.success());
    let has_moved = |(agent, _): &(Agent, String)| {
        agent.process.lines().iter().any(|line| line.contains("resized"))
    };
    wait_until("the agents have moved", || agents.now.iter().all(has_moved));
    agree(&agents, &haproxies, &ended);
    agents.kill();
    agents.start_again();
    wait_for(&haproxies, "UP");
    lose(&agents, &haproxies, 2);
    let last = agree(&agents, &haproxies, &ended);
    assert!(sum(&last) >= sum(&second) + 4, "{last:?}, {second:?} before");
}

/// An application that answers a login with 401, once it may.
fn application() -> (String, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (has_come, come) = mpsc::channel();
    let (go_on, may) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]).unwrap();
            has_come.send(()).unwrap();
            may.recv().unwrap();
            let answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\
                           connection: close\r\n\r\n";
            stream.write_all(answer).unwrap();
        }
    });
    (address, come, go_on)
}

#[test]
fn a_response_that_nobody_settles_is_counted() {
    needs!(support::haproxy());
    let agents = Agents::start();
    let [one, other] = agents.addresses.map(|address| address.to_string());
    let (application, come, go_on) = application();
    let haproxy = Haproxy::start_as_shipped(
        "failed-logins.cfg",
        &[("GCRA_AGENT1", &one), ("GCRA_AGENT2", &other), ("GCRA_APP", &application)],
    );
    let wait_for = |state: &str| {
        haproxy.wait_for("gcra-agents", "agent1", state);
        haproxy.wait_for("gcra-agents", "agent2", state);
    };
    let frontend = haproxy.frontend;
    wait_for("UP");
    let logged_in = Cell::new(0);
    let log_in = |meanwhile: &dyn Fn()| {
        let status = thread::spawn(move || Client::new(frontend).get("/login").unwrap().status);
        come.recv_timeout(support::PATIENCE).unwrap();
        meanwhile();
        go_on.send(()).unwrap();
        assert_eq!(status.join().unwrap(), 401);
        logged_in.set(logged_in.get() + 1);
    };
    let known = || {
        let table = haproxy.say("show table unsettled\n");
        let count = table.split_once("gpc0=")?.1.split_whitespace().next()?;
        Some(count.parse::<u64>().unwrap())
    };
    // On a busy machine, a request may have no decision, whose response needs none.
    for _ in 0..30 {
        // HAProxy 2.6 can hold the response for a minute if they are killed.
        log_in(&|| agents.signal(Signal::STOP));
        agents.signal(Signal::CONT);
        wait_for("UP");
        if known() >= Some(3) {
            break;
        }
    }
    assert!(known() >= Some(3), "{:?}", known());
    let unsettled = |(_, admin): &(Agent, String)| {
        let metrics = get(admin, "/metrics").body;
        let line = metrics.lines().find_map(|it| it.strip_prefix("gcra_haproxy_unsettled_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    wait_until("the agents have heard of each", || {
        log_in(&|| ());
        Some(agents.now.iter().map(unsettled).sum()) == known()
    });
    let lost = sum(&in_table(&haproxy)) + known().unwrap();
    assert!(lost <= logged_in.get(), "{lost} of {}: one is counted twice", logged_in.get());
}

/// The files that need TLS, a token or a newer HAProxy are left out.
#[test]
fn each_shipped_file_counts_what_it_logs() {
    needs!(support::haproxy());
    let application = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let application_address = application.local_addr().unwrap().to_string();
    thread::spawn(move || application.incoming().for_each(drop));
    let mut names: Vec<_> = std::fs::read_dir(haproxy_folder())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".cfg"))
        .collect();
    names.sort();
    let directory = directory();
    for name in names {
        let since = match &name[..] {
            "plans.cfg" | "fingerprint.cfg" | "unix-socket.cfg" => continue,
            "bandwidth.cfg" => (2, 7),
            "delay.cfg" => (3, 2),
            "headers.cfg" => (3, 4),
            _ => (2, 6),
        };
        if support::haproxy_since(since).is_err() {
            continue;
        }
        let address = free_port(LOOPBACK).to_string();
        let haproxy = Haproxy::start_as_shipped(
            &name,
            &[
                ("GCRA_AGENT1", &address),
                ("GCRA_AGENT2", &address),
                ("GCRA_APP", &application_address),
            ],
        );
        let mut requests = 0;
        let mut ask = || {
            // A path and a key that each file asks about.
            for (path, key) in [("/login", "key-4711"), ("/api/x", "other")] {
                let headers = [("x-api-key", key)];
                let _ = Client::new(haproxy.frontend).get_with(path, &headers);
                requests += 1;
            }
        };
        (0..6).for_each(|_| ask());
        let lost = in_table(&haproxy);
        assert!(sum(&lost) > 0, "{name}");

        let scope = if name == "tcp.cfg" { "sess" } else { "txn" };
        let args = [&ADMIN[..], &["--rate", "1000000/s", "--scope", scope]].concat();
        let table = directory.path().join(&name);
        let (_agent, admin) = admin::of(Agent::start_at(&table, &address, &args));
        let mut table = ByErr::new();
        wait_until(&format!("the agent has heard what {name} counts"), || {
            ask();
            table = in_table(&haproxy);
            counted(&admin) == table
        });
        if let Some(log) = in_log(&haproxy, requests) {
            assert_eq!(log, table, "{name}");
        }
        let metrics = get(&admin, "/metrics").body;
        assert!(metrics.contains("\ngcra_unmatched_total 0\n"), "{name}: {metrics}");
    }
}

#[test]
fn a_report_is_never_decided_and_a_wrong_one_changes_nothing() {
    let directory = directory();
    // One limit for whatever comes: a report must not be charged.
    let (agent, admin) = admin::start(&directory.path().join("table"), &["--rate", "2/d"]);
    let mut spop = Spop::connect(&agent.address);
    let host = ("host", Value::String(b"web1"));
    let since = ("since", Value::Int64(1_800_000_000_000_000));
    let count = |of: &'static str, count| (of, Value::Int64(count));
    for _ in 0..9 {
        assert!(spop.ask(&[("gcra-undecided", &[host, since, count("err1", 5)])]).is_empty());
    }
    let both = spop.ask(&[("gcra-undecided-b", &[host, since, count("err1", 6)]), ("check", &[])]);
    assert_eq!(both.len(), 1);
    assert!(!both[0].2, "nothing was charged before");
    assert_eq!(counted(&admin), BTreeMap::from([("1".to_owned(), 6)]));

    // HAProxy reports until it is answered.
    let told = ("told", Value::Int64(1_795_888_238_769_174));
    let answer = spop.ask_by(&[("gcra-undecided", &[host, since, told])], |scope, name, value| {
        (scope, name, value.as_integer())
    });
    assert_eq!(answer, [(Scope::Process, "told".to_owned(), told.1.as_integer())]);

    let long = "h".repeat(3_000);
    let wrong: [&[(&str, Value<'_>)]; 14] = [
        &[],
        &[host, count("err1", 99)],
        &[since, count("err1", 99)],
        &[("host", Value::Null), since, count("err1", 99)],
        &[("host", Value::String(b"")), since, count("err1", 99)],
        &[host, ("since", Value::Null), count("err1", 99)],
        &[host, ("since", Value::String(b"1")), count("err1", 99)],
        &[host, since, ("err1", Value::Null)],
        &[host, since, ("err1", Value::String(b"99"))],
        &[host, since, count("err1", -99)],
        &[host, since, count("err1", i64::MAX)],
        &[host, since, count("err", 99)],
        &[host, since, count("err01", 99), count("err999", 99), count("errs", 99)],
        &[("host", Value::String(long.as_bytes())), since, count("err1", 0)],
    ];
    for args in wrong {
        assert!(spop.ask(&[("gcra-undecided", args)]).is_empty(), "{args:?}");
    }
    assert_eq!(counted(&admin), BTreeMap::from([("1".to_owned(), 6)]));
    // More processes than a table remembers.
    for number in 1..200 {
        let since = ("since", Value::Int64(number));
        spop.ask(&[("gcra-undecided", &[host, since, count("err257", 1)])]);
    }
    spop.ask(&[("gcra-undecided", &[host, since, count("unsettled", 3)])]);
    let expected = [("1".to_owned(), 6), ("257".to_owned(), 199)];
    assert_eq!(counted(&admin), BTreeMap::from(expected));
    let metrics = get(&admin, "/metrics").body;
    assert!(metrics.contains("\ngcra_haproxy_unsettled_total 3\n"), "{metrics}");
    assert!(metrics.contains("\ngcra_unmatched_total 0\n"), "{metrics}");
    let names_what_lacks = |line: &String| line.contains("set-var proc.gcra_since date(0,us)");
    wait_until("the log says what a report lacks", || {
        agent.process.lines().iter().any(names_what_lacks)
    });
    assert!(!spop.is_blocked(&[]), "the second cell of two");
    assert!(spop.is_blocked(&[]));
}

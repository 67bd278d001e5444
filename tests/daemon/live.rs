//! HAProxy as operators run it: other frame sizes, several threads and engines, other sockets,
//! reloads and restarts under load. Each test has a configuration of its own, and `HAPROXY=/path`
//! chooses the version.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spop_agent::{Limits, ListenAddress, Reply, Request, Scope, VarName};

use crate::support;
use crate::support::{
    Agent, Client, Haproxy, directory, free_port, haproxy_version, needs, wait_until,
};

/// A configuration in which requests without an answer can be told from those that pass or are
/// denied.
struct Config<'a> {
    global: &'a str,
    /// In the spoe-agent section.
    agent: &'a str,
    args: &'a str,
    /// All that the agent is asked, in the place of one message with these args.
    messages: Option<&'a str>,
    processing: &'a str,
    servers: &'a [&'a str],
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self {
            global: "",
            agent: "",
            args: "ip=src",
            messages: None,
            processing: "20s",
            servers: &[],
        }
    }
}

impl Config<'_> {
    fn start(&self) -> Haproxy {
        let directory = directory();
        let file = |name: &str| directory.path().join(name);
        let Self { global, agent, args, messages, processing, servers } = self;
        let one = format!(
            "    messages check
spoe-message check
    args {args}
    event on-frontend-http-request
"
        );
        let messages = messages.unwrap_or(&one);
        let spoe = format!(
            "[gcra]
spoe-agent gcra
    use-backend agents
    option var-prefix gcra
    option set-on-error err
    timeout hello 20s
    timeout idle 30s
    timeout processing {processing}
    {agent}
{messages}"
        );
        // A second engine asks about the same requests, through a configuration of its own.
        let second = spoe.replace("[gcra]", "[other]").replace("agent gcra", "agent other");
        let second = second.replace("var-prefix gcra", "var-prefix other");
        fs::write(file("spoe.conf"), &spoe).unwrap();
        fs::write(file("other.conf"), second).unwrap();
        let folder = directory.path().display();
        // Without a decision of either engine, a request fails.
        let (other, other_failed) = match args.contains("path") || self.messages.is_some() {
            true => (String::new(), ""),
            false => (
                format!("filter spoe engine other config {folder}/other.conf"),
                "http-request return status 500 content-type text/plain lf-string \
                 \"err=%[var(txn.other.err)]\" unless { var(txn.other.blocked) -m found }",
            ),
        };
        let servers: String = servers
            .iter()
            .enumerate()
            .map(|(n, server)| format!("    server agent{n} {server}\n"))
            .collect();
        let haproxy = format!(
            "global
    {global}
defaults
    mode http
    timeout connect 10s
    timeout client 1m
    timeout server 1m
    option redispatch 1
    retries 1
frontend web
    bind \"${{GCRA_HTTP}}\"
    filter spoe engine gcra config {folder}/spoe.conf
    {other}
    http-request return status 429 if {{ var(txn.gcra.blocked) -m bool }}
    http-request return status 500 content-type text/plain lf-string \
             \"err=%[var(txn.gcra.err)]\" unless {{ var(txn.gcra.blocked) -m found }}
    {other_failed}
    http-request return status 200
backend agents
.if version_atleast(3.1-dev0)
    mode spop
.else
    mode tcp
.endif
    option spop-check
    timeout check 10s
    default-server check inter 300ms fall 2 rise 1
{servers}"
        );
        fs::write(file("haproxy.cfg"), haproxy).unwrap();
        let mut haproxy = Haproxy::start(file("haproxy.cfg").to_str().unwrap(), &[]);
        haproxy.configuration = Some(directory);
        for number in 0..self.servers.len() {
            haproxy.wait_for("agents", &format!("agent{number}"), "UP");
        }
        haproxy
    }
}

#[test]
fn versions_are_understood() {
    for (text, version) in [
        ("2.6.12-1+deb12u3", (2, 6)),
        ("2.8.25-5cf5d0683", (2, 8)),
        ("3.4.7-1~bpo13+1", (3, 4)),
        ("3.5-dev5", (3, 5)),
        ("3.10.0", (3, 10)),
    ] {
        assert_eq!(support::parse_version(text), Some(version), "{text}");
    }
}

/// An agent whose limit no test reaches.
fn generous(table: &std::path::Path, listen: &str, drain: &str) -> Agent {
    Agent::start_with(
        table,
        &["--rate", "1000000/s", "--slots", "4096", "--listen", listen, "--drain", drain],
    )
}

/// The answers to clients that ask as fast as they are answered: by status, with the text for
/// those without a decision.
#[derive(Debug, Default)]
struct Got {
    statuses: BTreeMap<u16, u64>,
    errors: BTreeMap<String, u64>,
    /// Connections that HAProxy closed, as it does when it is reloaded.
    closed: u64,
}

impl Got {
    fn of(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }
}

fn ask(
    frontend: SocketAddr,
    clients: u32,
    path: &str,
    while_: impl Fn(u32) -> bool + Sync,
) -> Got {
    let ask_alone = || {
        let (mut client, mut got) = (Client::new(frontend), Got::default());
        let mut asked = 0;
        while while_(asked) {
            asked += 1;
            match client.get(path) {
                Ok(response) => {
                    *got.statuses.entry(response.status).or_default() += 1;
                    if response.status == 500 {
                        *got.errors.entry(response.body).or_default() += 1;
                    }
                }
                Err(_) => got.closed += 1,
            }
        }
        got
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(ask_alone)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(
            Got::default(),
            |mut sum, got| {
                got.statuses
                    .into_iter()
                    .for_each(|(status, count)| *sum.statuses.entry(status).or_default() += count);
                got.errors
                    .into_iter()
                    .for_each(|(error, count)| *sum.errors.entry(error).or_default() += count);
                sum.closed += got.closed;
                sum
            },
        )
    })
}

/// Every one of so many requests is answered by the agent.
fn all_answered(haproxy: &Haproxy, clients: u32, requests: u32, path: &str) {
    let got = ask(haproxy.frontend, clients, path, |asked| asked < requests);
    assert_eq!(got.of(200), u64::from(clients * requests), "{got:?}");
}

#[test]
fn two_hundred_clients_at_once_find_a_cold_agent() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = generous(&directory.path().join("table"), "127.0.0.1:0", "0");
    let haproxy = Config { servers: &[&agent.address], ..Config::default() }.start();
    all_answered(&haproxy, 200, 10, "/");
    // Two engines ask.
    assert_eq!(agent.stop(), 2 * 200 * 10);
}

#[test]
fn several_threads_and_two_engines_are_served_alike() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = generous(&directory.path().join("table"), "127.0.0.1:0", "0");
    let haproxy =
        Config { global: "nbthread 2", servers: &[&agent.address], ..Config::default() }.start();
    all_answered(&haproxy, 40, 50, "/");
    assert_eq!(agent.stop(), 2 * 40 * 50);
}

#[test]
fn over_ipv6_unix_and_abstract_sockets() {
    needs!(support::ipv6());
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let socket = directory.path().join("agent.sock");
    let (unix, name) =
        (format!("unix:{}", socket.display()), format!("gcra-test-{}", std::process::id()));
    let agents =
        ["[::1]:0", &unix, &format!("abns:{name}")].map(|listen| generous(&table, listen, "0"));
    let servers =
        [agents[0].address.clone(), format!("unix@{}", socket.display()), format!("abns@{name}")];
    for (agent, server) in agents.into_iter().zip(&servers) {
        let haproxy = Config { servers: &[server], ..Config::default() }.start();
        all_answered(&haproxy, 5, 20, "/");
        assert_eq!(agent.stop(), 2 * 5 * 20, "{server}");
    }
}

#[test]
fn small_frames_and_large_buffers() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agent = generous(&table, "127.0.0.1:0", "0");
    let haproxy =
        Config { agent: "max-frame-size 256", servers: &[&agent.address], ..Config::default() }
            .start();
    all_answered(&haproxy, 30, 20, "/");
    drop(haproxy);
    let agent = generous(&table, "127.0.0.1:0", "0");
    let large = Config {
        global: "tune.bufsize 131072",
        args: "ip=src path=path",
        servers: &[&agent.address],
        ..Config::default()
    };
    let haproxy = large.start();
    all_answered(&haproxy, 30, 20, "/");
    all_answered(&haproxy, 5, 5, &format!("/{}", "x".repeat(60_000)));
}

/// HAProxy up to 3.0 sends a message larger than a frame in pieces, unless configured otherwise,
/// and later versions do not send it. Either way other requests are not affected, and there is no
/// storm of connections.
#[test]
fn a_message_larger_than_a_frame_hurts_nobody() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = generous(&directory.path().join("table"), "127.0.0.1:0", "0");
    let config = Config {
        agent: "max-frame-size 256",
        args: "ip=src path=path",
        servers: &[&agent.address],
        ..Config::default()
    };
    let haproxy = config.start();
    let long = format!("/{}", "x".repeat(600));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let others =
            scope.spawn(|| ask(haproxy.frontend, 5, "/", |_| !stop.load(Ordering::Relaxed)));
        let got = ask(haproxy.frontend, 2, &long, |asked| asked < 10);
        stop.store(true, Ordering::Relaxed);
        let others = others.join().unwrap();
        assert_eq!(others.of(200), others.statuses.values().sum::<u64>(), "{others:?}");
        if haproxy_version() < (3, 1) {
            assert_eq!(got.of(200), 20, "put together by the agent: {got:?}");
        } else {
            assert_eq!(
                (got.of(500), &got.errors),
                (20, &BTreeMap::from([("err=3".to_owned(), 20)])),
                "too big"
            );
        }
    });
    let (_, connections) = agent.stop_and_count();
    assert!(connections < 30, "{connections} connections");
}

/// The shortest time that makes sense. How many answers are late depends on the machine; what one
/// costs does not.
#[test]
fn a_late_answer_costs_its_own_request_and_no_connection() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = generous(&directory.path().join("table"), "127.0.0.1:0", "0");
    let haproxy =
        Config { processing: "5ms", servers: &[&agent.address], ..Config::default() }.start();
    let got = ask(haproxy.frontend, 16, "/", |asked| asked < 500);
    println!("{got:?}");
    let (asked, late) = (16 * 500, got.of(500));
    assert_eq!(got.of(200) + late, asked, "{got:?}");
    assert!(
        got.errors.keys().all(|error| error == "err=1"),
        "timed out, and nothing else: {got:?}"
    );
    let (notifies, connections) = agent.stop_and_count();
    assert!(
        notifies >= 2 * (asked - late) && connections < 200 + 2 * late,
        "{notifies} NOTIFYs on {connections} connections, and {late} requests were late"
    );
}

/// From 3.1 on, HAProxy never again reads a connection whose receive buffer was once completely
/// full. So the answers stay below that: large ones one at a time, small ones twenty.
#[test]
fn large_answers_wedge_no_connection() {
    needs!(support::haproxy());
    const NAME: VarName<'static> = VarName::from_static("blocked");
    for (buffer, answer_bytes, max_ack_size) in [
        (16_384, 700, 815),
        (16_384, 1200, 2000),
        (16_384, 16_000, 16_379),
        // Where `option spop-check` goes on offering what a usual buffer takes.
        (4096, 290, 815),
        (8192, 700, 815),
    ] {
        let mut limits = Limits::default();
        limits.max_ack_size = max_ack_size;
        let agent = spop_agent::Agent::new(move |_: &Request<'_>, reply: &mut Reply<'_>| {
            // Long enough for HAProxy to send all that it may.
            thread::sleep(Duration::from_micros(300));
            reply.set_var(Scope::Transaction, NAME, false);
            let answer = vec![b'x'; answer_bytes];
            // The first answers of a connection may have to be smaller.
            reply.set_var(Scope::Session, NAME, &answer[..]);
        });
        let address = free_port(Ipv4Addr::LOCALHOST.into());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = thread::spawn(move || {
            let stopped = async {
                let _ = stopped.await;
            };
            agent.limits(limits).run(NonZeroUsize::MIN, &[ListenAddress::Tcp(address)], stopped)
        });
        wait_until("the agent listens", || TcpStream::connect(address).is_ok());
        let haproxy = Config {
            global: &format!("tune.bufsize {buffer}\n    tune.maxrewrite 512"),
            servers: &[&address.to_string()],
            ..Config::default()
        }
        .start();
        all_answered(&haproxy, 100, 10, "/");
        stop.send(()).unwrap();
        serving.join().unwrap().unwrap();
    }
}

#[test]
fn haproxy_is_reloaded_twenty_times_under_load() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = generous(&directory.path().join("table"), "127.0.0.1:0", "0");
    let mut haproxy = Config { servers: &[&agent.address], ..Config::default() }.start();
    let (frontend, stop) = (haproxy.frontend, AtomicBool::new(false));
    // On a slow machine, they have not asked often when the last reload is done.
    let goes_on = |asked| asked < 300 || !stop.load(Ordering::Relaxed);
    let got = thread::scope(|scope| {
        let clients = scope.spawn(|| ask(frontend, 6, "/", goes_on));
        for _ in 0..20 {
            let mut old = haproxy.reload();
            assert!(old.wait().success());
        }
        stop.store(true, Ordering::Relaxed);
        clients.join().unwrap()
    });
    println!("{got:?}");
    assert!(got.of(200) > 1000, "{got:?}");
    // The old process of 2.6 calls the ordinary end of its connections an error of the requests on
    // them.
    let allowed = if haproxy_version() < (2, 8) { got.of(200) / 100 } else { 0 };
    assert!(got.of(500) <= allowed, "{got:?}");
    let (_, connections) = agent.stop_and_count();
    assert!(connections < 21 * 2 * 50, "{connections} connections");
}

/// The shipped configuration in which a request without a decision gets 503.
struct Shipped {
    table: tempfile::TempDir,
    agents: [Option<Agent>; 2],
    addresses: [String; 2],
    haproxy: Haproxy,
}

impl Shipped {
    /// With the times that `start` gives HAProxy.
    fn start(start_haproxy: impl FnOnce(&str, &[(&str, &str)]) -> Haproxy) -> Self {
        let table = directory();
        // They come back there, and no client may have got the port from the system meanwhile.
        let addresses = [(); 2].map(|()| free_port(Ipv4Addr::LOCALHOST.into()).to_string());
        let start = |address: &String| Some(generous(&table.path().join("table"), address, "2"));
        let agents = addresses.each_ref().map(start);
        let environment = [("GCRA_AGENT1", &addresses[0][..]), ("GCRA_AGENT2", &addresses[1])];
        let haproxy = start_haproxy("fail-closed.cfg", &environment);
        let shipped = Self { table, agents, addresses, haproxy };
        shipped.wait_for(0, "UP");
        shipped.wait_for(1, "UP");
        shipped
    }

    fn wait_for(&self, agent: usize, state: &str) {
        self.haproxy.wait_for("gcra-agents", &format!("agent{}", agent + 1), state);
    }
}

/// Two agents take turns in being restarted, as for an upgrade, with the shipped configuration.
#[test]
fn agents_are_restarted_in_turn_under_load() {
    needs!(support::haproxy());
    // HAProxy on a busy machine may not notice in time that an agent ends.
    assert!((0..5).any(|_| are_restarted_in_turn()));
}

/// False if HAProxy may have noticed too late that an agent ends.
fn are_restarted_in_turn() -> bool {
    let mut shipped = Shipped::start(Haproxy::start);
    let (frontend, stop) = (shipped.haproxy.frontend, AtomicBool::new(false));
    // All clients together ask some thousand times a second, which leaves time to others.
    let goes_on = |asked| {
        thread::sleep(Duration::from_millis(4));
        asked < 50 || !stop.load(Ordering::Relaxed)
    };
    let mut has_noticed = true;
    let got = thread::scope(|scope| {
        let clients = scope.spawn(|| ask(frontend, 32, "/", goes_on));
        for round in 0..4 {
            let turn = round % 2;
            let mut agent = shipped.agents[turn].take().unwrap();
            let signalled = Instant::now();
            agent.process.signal(Signal::TERM);
            shipped.wait_for(turn, "DOWN");
            // An agent fails its checks for half of the time that it drains.
            has_noticed &= signalled.elapsed() < Duration::from_secs(1);
            assert!(agent.process.wait().success());
            let table = shipped.table.path().join("table");
            shipped.agents[turn] = Some(generous(&table, &shipped.addresses[turn], "2"));
            shipped.wait_for(turn, "UP");
        }
        stop.store(true, Ordering::Relaxed);
        clients.join().unwrap()
    });
    println!("{got:?}");
    assert!(got.of(200) > 1000 && got.closed == 0, "{got:?}");
    // Up to 3.0 a DISCONNECT can cross requests on their way.
    let allowed = if haproxy_version() < (3, 1) { got.of(200) / 50 } else { 0 };
    assert!(got.of(503) <= allowed || !has_noticed, "{got:?}");
    has_noticed
}

/// A hanging agent costs each client some requests until its check has failed, and none later.
#[test]
fn a_stopped_agent_is_asked_no_more_once_it_is_down() {
    needs!(support::haproxy());
    const CLIENTS: u32 = 16;
    let shipped = Shipped::start(Haproxy::start_as_shipped);
    let [first, _] = &shipped.agents;
    let first = &first.as_ref().unwrap().process;
    let frontend = shipped.haproxy.frontend;
    // Gives it connections.
    wait_until("the agents answer", || {
        ask(frontend, CLIENTS, "/", |asked| asked < 20).of(200) > 0
    });

    first.signal(Signal::STOP);
    let down = AtomicBool::new(false);
    let until_down = thread::scope(|scope| {
        let clients =
            scope.spawn(|| ask(frontend, CLIENTS, "/", |_| !down.load(Ordering::Relaxed)));
        shipped.wait_for(0, "DOWN");
        let answers = || Client::new(frontend).get("/").unwrap().status == 200;
        wait_until("the other agent answers", answers);
        down.store(true, Ordering::Relaxed);
        clients.join().unwrap()
    });
    // The connections that HAProxy up to 3.0 still has to it end within `timeout server`, which is
    // too long for a test.
    let mut later = Vec::new();
    wait_until("no client is sent to the stopped agent any more", || {
        let got = ask(frontend, CLIENTS, "/", |asked| asked < 50);
        later.push(got.of(503));
        got.of(503) == 0
    });
    println!("{until_down:?}, then {later:?}");

    first.signal(Signal::CONT);
    shipped.wait_for(0, "UP");
}

/// The shipped configurations with an agent that does not run, one that accepts and says nothing,
/// and one that closes at once.
#[test]
fn the_shipped_configurations_do_without_a_good_agent() {
    needs!(support::haproxy());
    for closes in [false, true] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepting = thread::spawn(move || {
            let mut kept = Vec::new();
            // Ends with the test, which makes the last connection itself.
            for stream in listener.incoming().map_while(Result::ok) {
                if stream.peer_addr().is_ok_and(|peer| peer.ip().to_string() == "127.0.0.9") {
                    return;
                }
                if !closes {
                    kept.push(stream);
                }
            }
        });
        for (config, status) in [("haproxy.cfg", 200), ("fail-closed.cfg", 503)] {
            let haproxy = Haproxy::start_as_shipped(
                config,
                &[("GCRA_AGENT1", &address), ("GCRA_AGENT2", &address)],
            );
            haproxy.wait_for("gcra-agents", "agent1", "DOWN");
            haproxy.wait_for("gcra-agents", "agent2", "DOWN");
            let got = ask(haproxy.frontend, 2, "/", |asked| asked < 10);
            assert_eq!(got.of(status), 20, "{config}: {got:?}");
        }
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.9:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.connect(&address.parse::<SocketAddr>().unwrap().into()).unwrap();
        accepting.join().unwrap();
    }
}

/// With a larger `tune.bufsize` HAProxy sends longer messages, and a client writes the longest:
/// the recipe "By API key, or by address where there is no key", without a hash of the key.
#[test]
fn a_long_arg_voids_no_message() {
    needs!(support::haproxy());
    let directory = directory();
    let file = |name: &str| directory.path().join(name);
    let policies = "[policy.api]\nlimits = \"5/h burst 10\"\nkey = [\"key\", \"else ip\"]\n\n\
                    [policy.address]\nlimits = \"1/h burst 5\"\nkey = [\"ip\"]\n";
    fs::write(file("policies.toml"), policies).unwrap();
    let agent =
        Agent::start(&file("table"), &["--config", file("policies.toml").to_str().unwrap()]);
    let messages = "    messages api address
spoe-message api
    args key=req.fhdr(x-api-key) ip=src
    event on-frontend-http-request
spoe-message address
    args ip=src
    event on-frontend-http-request
";
    let config = Config {
        global: "tune.bufsize 32768",
        messages: Some(messages),
        servers: &[&agent.address],
        ..Config::default()
    };
    let haproxy = config.start();
    let mut client = Client::new(haproxy.frontend);
    let mut ask = |key: &str| client.get_with("/", &[("X-Api-Key", key)]).unwrap().status;
    let long = "a".repeat(20_000);
    let statuses: Vec<_> = (0..8).map(|n| ask(&format!("{n}{long}"))).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429], "the limit of the address");
    assert_eq!(ask("short"), 429);
}

//! The configurations that ask only when it matters, each held against the bound that its comments
//! state.

use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::end_to_end::tls_client;
use crate::support;
use crate::support::{
    Agent, Client, Haproxy, Tally, certificate, directory, free_port, haproxy_folder, needs,
    openssl, patient,
};

const RATE: [&str; 6] = ["--rate", "100/s", "--burst", "20", "--cost", "cost"];
const INTERVAL: Duration = Duration::from_millis(10);
const BURST: u64 = 20;

/// So slow that what a test uses up stays used up.
const HOURLY: [&str; 4] = ["--rate", "20/h", "--cost", "cost"];

/// Requests that a client may have made and not paid for.
const UNPAID: u64 = 7;

fn client(number: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, number).into()
}

fn behind(agents: [&Agent; 2]) -> [(&'static str, &str); 2] {
    [("GCRA_AGENT1", &agents[0].address), ("GCRA_AGENT2", &agents[1].address)]
}

/// How many of `requests` pass.
fn passing(client: &mut Client, requests: u32) -> u32 {
    (0..requests).map(|_| u32::from(client.get("/").unwrap().status == 200)).sum()
}

/// The messages that HAProxy sends, for a changed configuration in another folder.
fn patient_conf(directory: &Path) -> PathBuf {
    let conf = fs::read_to_string(haproxy_folder().join("spoe-ask-less.conf")).unwrap();
    let path = directory.join("spoe-ask-less.conf");
    fs::write(&path, patient(&conf)).unwrap();
    path
}

/// How many requests the limit allows from `start` to now.
fn allowed_since(start: Instant, interval: Duration) -> u64 {
    BURST + u64::try_from(start.elapsed().as_nanos() / interval.as_nanos()).unwrap()
}

/// Connections of one client that ask as fast as they can for this time, and on a busy machine
/// until one is denied. Returns how many requests passed, and how many did not.
fn hammer(haproxy: &Haproxy, connections: u32, duration: Duration) -> (u64, u64) {
    let start = Instant::now();
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let mut client = Client::from(haproxy.frontend, client(1));
            let is_over = is_over.clone();
            thread::spawn(move || {
                let (mut passed, mut denied) = (0, 0);
                while !is_over.load(Ordering::Relaxed) && start.elapsed() < 20 * duration {
                    match client.get("/").unwrap().status {
                        200 => passed += 1,
                        429 => {
                            denied += 1;
                            is_over.fetch_or(start.elapsed() >= duration, Ordering::Relaxed);
                        }
                        other => panic!("{other}"),
                    }
                }
                (passed, denied)
            })
        })
        .collect();
    let tallies = threads.into_iter().map(|thread| thread.join().unwrap());
    tallies.fold((0, 0), |(passed, denied), tally| (passed + tally.0, denied + tally.1))
}

#[test]
fn every_8th_request_asks_for_all_eight() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &HOURLY), Agent::start(&table, &HOURLY)];
    let haproxy = Haproxy::start("every-kth.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::new(haproxy.frontend);
    // 7 pass and the 8th asks, twice; then 7 more, and the 24th would be charged beyond the 20.
    assert_eq!(passing(&mut client, 23), 23);
    assert_eq!(passing(&mut client, 30), 0, "they are not forgotten when they can't be paid for");
    let asked: u64 = agents.map(Agent::stop).iter().sum();
    assert_eq!(asked, 2 + 30);
}

#[test]
fn who_makes_few_requests_is_never_asked_about() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let haproxy = Haproxy::start("every-kth.cfg", &behind([&agent, &agent]));
    for number in 1..=50 {
        assert_eq!(passing(&mut Client::from(haproxy.frontend, client(number)), 7), 7);
    }
    assert_eq!(passing(&mut Client::from(haproxy.frontend, client(1)), 1), 1);
    assert_eq!(agent.stop(), 1);
}

#[test]
fn each_haproxy_process_lets_seven_more_pass() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let start = || Haproxy::start("every-kth.cfg", &behind([&agent, &agent]));
    assert_eq!(passing(&mut Client::new(start().frontend), 60), 23);
    assert_eq!(passing(&mut Client::new(start().frontend), 60), 7);
}

/// Also while an old process still serves its last requests. Connections that are never idle are
/// not closed by it at once.
#[test]
fn each_process_of_a_reloaded_haproxy_lets_seven_more_pass_and_no_more() {
    needs!(support::haproxy());
    const RELOADS: u64 = 3;
    for config in ["every-kth.cfg", "ask-less.cfg", "ask-less-loop.cfg"] {
        let directory = directory();
        let agent = Agent::start(&directory.path().join("table"), &HOURLY);
        let conf = patient_conf(directory.path());
        let mut environment = behind([&agent, &agent]).to_vec();
        environment.push(("GCRA_SPOE_CONF", conf.to_str().unwrap()));
        // Requests that should have been asked about and got no answer are another matter.
        let text = patient(&fs::read_to_string(haproxy_folder().join(config)).unwrap());
        let rule = "http-request deny status 503 if { var(txn.cost) -m found } !{ \
                    var(txn.gcra.blocked) -m found }";
        let copy = directory.path().join(config);
        let deny = "    http-request deny status 429 content-type text/plain string \"Too many \
                    requests. Try again in a second.\\n\" hdr Retry-After 1 if { \
                    var(txn.gcra.blocked) -m bool }\n";
        assert_eq!(text.matches(deny).count(), 1, "{config}");
        fs::write(&copy, text.replace(deny, &format!("{deny}    {rule}\n"))).unwrap();
        let mut haproxy = Haproxy::start(copy.to_str().unwrap(), &environment);
        let (frontend, stop) = (haproxy.frontend, AtomicBool::new(false));
        let mut ended = Vec::new();
        let passed: u64 = thread::scope(|scope| {
            let hammer = || {
                let mut client = Client::from(frontend, client(1));
                let mut passed = 0;
                while !stop.load(Ordering::Relaxed) {
                    // A process that ends may close a connection without an answer.
                    passed +=
                        u64::from(client.get("/").is_ok_and(|response| response.status == 200));
                }
                passed
            };
            let clients: Vec<_> = (0..32).map(|_| scope.spawn(hammer)).collect();
            for _ in 0..RELOADS {
                ended.push(haproxy.reload().wait());
            }
            stop.store(true, Ordering::Relaxed);
            clients.into_iter().map(|client| client.join().unwrap()).sum()
        });
        assert!(ended.iter().all(|status| status.success()), "{config}: {ended:?}");
        let bound = BURST + UNPAID * (1 + RELOADS);
        assert!(passed <= bound, "{config}: {passed} passed, {bound} may");
    }
}

/// Or the process that is being replaced would forget, over and over, a client whose connections
/// are in the handshake.
#[test]
fn a_connection_is_tracked_before_its_tls_handshake() {
    needs!(support::haproxy());
    needs!(openssl());
    let directory = directory();
    let conf = patient_conf(directory.path());
    let agent = free_port(client(1)).to_string();
    let environment = [
        ("GCRA_AGENT1", &agent[..]),
        ("GCRA_AGENT2", &agent[..]),
        ("GCRA_SPOE_CONF", conf.to_str().unwrap()),
    ];
    let tls = format!(":8080}}\" ssl crt {}\n", certificate(directory.path()).display());
    for config in ["every-kth.cfg", "remember.cfg", "ask-less.cfg", "ask-less-loop.cfg"] {
        let text = fs::read_to_string(haproxy_folder().join(config)).unwrap();
        assert_eq!(text.matches(":8080}\"\n").count(), 1, "{config}");
        let copy = directory.path().join(config);
        fs::write(&copy, text.replace(":8080}\"\n", &tls)).unwrap();
        let haproxy = Haproxy::start(copy.to_str().unwrap(), &environment);
        let _silent = TcpStream::connect(haproxy.frontend).unwrap();
        support::wait_until("the connection is tracked", || {
            haproxy.say("show table clients\n").contains(" use=1 ")
        });
    }
}

/// The two ends of a TLS client's connection, between which nothing has passed.
struct Held([TcpStream; 2]);

impl Held {
    /// Lets the handshake begin.
    fn release(self) {
        let others = self.0.each_ref().map(|end| end.try_clone().unwrap());
        for (mut from, mut to) in self.0.into_iter().zip(others.into_iter().rev()) {
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    }
}

/// The old process would forget the client before each seven, if it were tracked only after the
/// handshake. These connections stay with it, and later ones go to the new process. (It clears its
/// table as long as some entry is tracked; here that is another client's. HAProxy 3.4.7 cleared
/// none.)
#[test]
fn each_process_lets_seven_more_pass_if_handshakes_end_after_a_reload() {
    needs!(support::haproxy());
    needs!(openssl());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let other_port = free_port(Ipv4Addr::LOCALHOST.into());
    let pem = certificate(directory.path());
    let tls = format!(":8080}}\" ssl crt {}\n    bind {other_port}\n", pem.display());
    let text = fs::read_to_string(haproxy_folder().join("ask-less.cfg")).unwrap();
    assert_eq!(text.matches(":8080}\"\n").count(), 1);
    let text = text.replace(":8080}\"\n", &tls).replace("http-request 10s", "http-request 60s");
    let copy = directory.path().join("ask-less.cfg");
    fs::write(&copy, text).unwrap();
    patient_conf(directory.path());
    let mut haproxy = Haproxy::start(copy.to_str().unwrap(), &behind([&agent, &agent]));

    let between = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let web = between.local_addr().unwrap().to_string();
    let file = tls_client(directory.path(), "");
    let speaks_tls = Haproxy::start(file.to_str().unwrap(), &[("WEB", &web)]);
    let (frontend, tls_frontend) = (haproxy.frontend, speaks_tls.frontend);
    let request = || {
        let passes = thread::spawn(move || passing(&mut Client::new(tls_frontend), 1) == 1);
        let (end, _) = between.accept().unwrap();
        (Held([end, Client::from(frontend, client(1)).connect().unwrap()]), passes)
    };
    let mut other = Client::from(other_port, client(2)).connect().unwrap();
    other.write_all(b"GET / ").unwrap();
    let mut requests: Vec<_> = (0..35).map(|_| request()).collect();
    support::wait_until("all are connected", || {
        let all = haproxy.say("show stat\n");
        let line = all.lines().find(|line| line.starts_with("web,FRONTEND,")).unwrap();
        line.split(',').nth(4) == Some("36")
    });

    let mut old = haproxy.reload();
    let mut passed = 0;
    while !requests.is_empty() {
        // It clears what nobody tracks about once a second.
        thread::sleep(Duration::from_millis(1500));
        for (held, passes) in requests.drain(..7) {
            held.release();
            passed += u64::from(passes.join().unwrap());
        }
    }
    drop(other);
    assert!(old.wait().success());
    // Two questions for eight are allowed, as without a reload.
    assert_eq!(passed, 16 + UNPAID);
    let by_the_new_one = (0..20).filter(|_| {
        let (held, passes) = request();
        held.release();
        passes.join().unwrap()
    });
    assert_eq!(by_the_new_one.count() as u64, UNPAID);
}

#[test]
fn a_client_who_hammers_every_kth_gets_what_the_limit_allows_and_seven() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &RATE), Agent::start(&table, &RATE)];
    let haproxy = Haproxy::start("every-kth.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::from(haproxy.frontend, client(1));
    let tally = Tally::of(&mut client, 300, Duration::from_secs(4));
    assert_eq!(tally.other, 0, "{tally:?}");
    tally.assert_not_too_many(INTERVAL, BURST + UNPAID);
    // Eight are charged at once or none.
    tally.assert_not_too_few(INTERVAL, BURST - UNPAID - 1);
}

#[test]
fn many_connections_at_once_get_no_more_and_no_less() {
    needs!(support::haproxy());
    for (config, unpaid) in [
        ("every-kth.cfg", UNPAID),
        ("remember.cfg", 0),
        ("ask-less.cfg", UNPAID),
        ("ask-less-loop.cfg", UNPAID),
    ] {
        let directory = directory();
        let table = directory.path().join("table");
        // Slow enough for a busy machine to ask for more.
        let args = ["--rate", "10/s", "--burst", "20", "--cost", "cost"];
        let agents = [Agent::start(&table, &args), Agent::start(&table, &args)];
        let haproxy = Haproxy::start(config, &behind([&agents[0], &agents[1]]));
        let start = Instant::now();
        let (passed, denied) = hammer(&haproxy, 16, Duration::from_secs(1));
        let bound = allowed_since(start, Duration::from_millis(100)) + unpaid;
        assert!(
            passed <= bound && denied > 0,
            "{config}: {passed} passed, {denied} did not, {bound} may"
        );
        // They were charged for what passed and not eight times as much. On a busy machine they
        // may not have asked for a while, and what is due beyond a full bucket is lost.
        assert!(passed > bound / 4, "{config}: {passed} passed, {bound} may");
    }
}

#[test]
fn requests_at_the_same_time_are_not_charged_for_the_same_seven() {
    needs!(support::haproxy());
    for config in ["every-kth.cfg", "ask-less.cfg", "ask-less-loop.cfg"] {
        let directory = directory();
        let agent = Agent::start(&directory.path().join("table"), &HOURLY);
        let haproxy = Haproxy::start(config, &behind([&agent, &agent]));
        assert_eq!(passing(&mut Client::from(haproxy.frontend, client(1)), 7), 7);
        agent.process.signal(Signal::STOP);
        let threads: Vec<_> = (0..6)
            .map(|_| {
                let mut client = Client::from(haproxy.frontend, client(1));
                thread::spawn(move || passing(&mut client, 1))
            })
            .collect();
        thread::sleep(Duration::from_millis(100));
        agent.process.signal(Signal::CONT);
        let passed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(passed, 6, "{config}: 8 and 5 are within the burst of 20");
    }
}

#[test]
fn who_keeps_to_seven_less_than_the_burst_is_never_blocked() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &RATE);
    let haproxy = Haproxy::start("ask-less.cfg", &behind([&agent, &agent]));
    let mut client = Client::from(haproxy.frontend, client(1));
    for round in 0..20 {
        assert_eq!(passing(&mut client, 13), 13, "{round}");
        thread::sleep(INTERVAL * 13);
    }
}

#[test]
fn a_client_long_silent_is_forgotten_with_what_it_owes() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let copy = directory.path().join("every-kth.cfg");
    let config = patient(&fs::read_to_string(haproxy_folder().join("every-kth.cfg")).unwrap());
    assert!(config.contains("expire 10m"));
    fs::write(&copy, config.replace("expire 10m", "expire 100ms")).unwrap();
    let conf = patient_conf(directory.path());
    let mut environment = behind([&agent, &agent]).to_vec();
    environment.push(("GCRA_SPOE_CONF", conf.to_str().unwrap()));
    let haproxy = Haproxy::start(copy.to_str().unwrap(), &environment);
    for _ in 0..6 {
        // Silent is a client without a connection.
        assert_eq!(passing(&mut Client::new(haproxy.frontend), 7), 7);
        support::wait_until("HAProxy has forgotten it", || {
            haproxy.say("show table clients\n").contains("used:0")
        });
    }
    assert_eq!(agent.stop(), 0);
}

/// The stick table is full of clients that have a connection.
#[test]
fn a_client_that_cannot_be_tracked_is_asked_about_each_time() {
    needs!(support::haproxy());
    for config in ["every-kth.cfg", "ask-less.cfg"] {
        let directory = directory();
        let agent = Agent::start(&directory.path().join("table"), &HOURLY);
        let conf = patient_conf(directory.path());
        let mut environment = behind([&agent, &agent]).to_vec();
        environment.push(("GCRA_SPOE_CONF", conf.to_str().unwrap()));
        let text = patient(&fs::read_to_string(haproxy_folder().join(config)).unwrap());
        assert!(text.contains("size 1m "), "{config}");
        let copy = directory.path().join(config);
        fs::write(&copy, text.replace("size 1m ", "size 1 ")).unwrap();
        let haproxy = Haproxy::start(copy.to_str().unwrap(), &environment);
        let mut tracked = Client::from(haproxy.frontend, client(1));
        assert_eq!(passing(&mut tracked, 7), 7);
        let mut other = Client::from(haproxy.frontend, client(2));
        let passed = passing(&mut other, 40);
        assert_eq!(passing(&mut tracked, 1), 1, "{config}");
        // HAProxy 3.2 makes the table larger instead, so that all clients are tracked.
        if support::haproxy_version() == (3, 2) {
            assert_eq!(passed, 23, "{config}");
        } else {
            assert_eq!((passed, agent.stop()), (20, 40 + 1), "{config}");
        }
    }
}

#[test]
fn what_no_agent_answered_is_paid_for_when_one_is_back() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let address = free_port(client(1)).to_string();
    let environment = [("GCRA_AGENT1", &address[..]), ("GCRA_AGENT2", &address[..])];
    let haproxy = Haproxy::start("every-kth.cfg", &environment);
    haproxy.wait_for("gcra-agents", "agent1", "DOWN");
    haproxy.wait_for("gcra-agents", "agent2", "DOWN");
    let mut client = Client::new(haproxy.frontend);
    assert_eq!(passing(&mut client, 50), 50, "nobody to ask");
    let agent = Agent::start_at(&table, &address, &HOURLY);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    haproxy.wait_for("gcra-agents", "agent2", "UP");
    // The first is charged 8; then 7 and the 8th; then 7.
    assert_eq!(passing(&mut client, 60), 16);
    assert_eq!(agent.stop(), 2 + 44);
}

/// The rule is where the guide says it belongs: behind the one that gives the lock back.
#[test]
fn a_rule_that_denies_without_an_answer_keeps_no_lock() {
    needs!(support::haproxy());
    let directory = directory();
    let args = ["--rate", "2000/h", "--cost", "cost"];
    let agent = Agent::start(&directory.path().join("table"), &args);
    let shipped = |name: &str| fs::read_to_string(haproxy_folder().join(name)).unwrap();
    let conf = directory.path().join("spoe-ask-less.conf");
    fs::write(conf, shipped("spoe-ask-less.conf")).unwrap();
    let text = shipped("ask-less.cfg");
    let (before, after) = text.rsplit_once("if { var(txn.gcra.blocked) -m bool }\n").unwrap();
    let rule = "if { var(txn.gcra.blocked) -m bool }\n    http-request deny status 503 unless { \
                var(txn.gcra.blocked) -m found }\n";
    let copy = directory.path().join("ask-less.cfg");
    fs::write(&copy, format!("{before}{rule}{after}")).unwrap();
    let haproxy = Haproxy::start_as_shipped(copy.to_str().unwrap(), &behind([&agent, &agent]));
    let mut client = Client::new(haproxy.frontend);
    assert_eq!(passing(&mut client, 7), 7);
    agent.process.signal(Signal::STOP);
    assert_eq!(client.get("/").unwrap().status, 503);
    agent.process.signal(Signal::CONT);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    passing(&mut client, 400);
    // One in eight, and again where the machine stood still.
    let asked = agent.stop();
    assert!(asked < 200, "asked {asked} times");
}

/// The rules after the one that asks are those that make room for the next to ask for eight.
/// HAProxy evaluates them although nobody waits for the answer any more.
#[test]
fn a_client_that_goes_away_while_it_asks_leaves_the_counters_in_order() {
    needs!(support::haproxy());
    let directory = directory();
    let agent =
        Agent::start(&directory.path().join("table"), &["--rate", "2000/h", "--cost", "cost"]);
    let haproxy = Haproxy::start("every-kth.cfg", &behind([&agent, &agent]));
    let mut client = Client::new(haproxy.frontend);
    assert_eq!(passing(&mut client, 7), 7);
    agent.process.signal(Signal::STOP);
    Client::reset_while_waiting(haproxy.frontend);
    agent.process.signal(Signal::CONT);
    assert_eq!(passing(&mut client, 800), 800);
    // One in eight, and those that were not answered in time, because the machine stood still:
    // then the next one asks again. Had the counter stayed, it would be each of them.
    let asked = agent.stop();
    assert!((100..400).contains(&asked), "asked {asked} times");
}

#[test]
fn a_refusal_is_remembered_and_costs_no_cell() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &RATE), Agent::start(&table, &RATE)];
    let haproxy = Haproxy::start("remember.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::from(haproxy.frontend, client(1));
    let start = Instant::now();
    let tally = Tally::of(&mut client, 1_000, Duration::from_secs(4));
    let five_ms = u64::try_from(start.elapsed().as_millis() / 5).unwrap();
    assert_eq!(tally.other, 0, "{tally:?}");
    tally.assert_not_too_many(INTERVAL, BURST);
    // The cells that came due while it was not asked about are spent.
    tally.assert_not_too_few(INTERVAL, BURST - 3);
    let asked: u64 = agents.map(Agent::stop).iter().sum();
    let once_per_interval = tally.allowed + five_ms + 1;
    assert!(asked <= once_per_interval, "asked {asked} times, {tally:?}");
}

#[test]
fn both_together_hold_the_bound_of_every_kth() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &RATE), Agent::start(&table, &RATE)];
    let haproxy = Haproxy::start("ask-less.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::from(haproxy.frontend, client(1));
    let start = Instant::now();
    let tally = Tally::of(&mut client, 1_000, Duration::from_secs(4));
    let five_ms = u64::try_from(start.elapsed().as_millis() / 5).unwrap();
    assert_eq!(tally.other, 0, "{tally:?}");
    tally.assert_not_too_many(INTERVAL, BURST + UNPAID);
    tally.assert_not_too_few(INTERVAL, BURST - UNPAID - 1 - 3);
    let asked: u64 = agents.map(Agent::stop).iter().sum();
    // Of each eight that pass one asks, and in each 5 ms one more at most that is blocked.
    let bound = tally.allowed / 8 + five_ms + 1;
    assert!(asked <= bound, "asked {asked} times, {tally:?}");
}

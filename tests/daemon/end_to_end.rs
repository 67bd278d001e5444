//! A real HAProxy, with the files of `haproxy/`, in front of real agents on one table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support;
use crate::support::valkey::{Server, valkey};
use crate::support::{
    Agent, Client, Haproxy, Tally, certificate, directory, free_port, haproxy_binary,
    haproxy_folder, needs, openssl, two_agents, wait_until,
};

/// So low that a client asks for more also where each answer takes long, as on a busy machine.
const RATE: [&str; 4] = ["--rate", "25/s", "--burst", "20"];
const INTERVAL: Duration = Duration::from_millis(40);
const BURST: u64 = 20;

/// So slow that what a test uses up stays used up.
const HOURLY: [&str; 2] = ["--rate", "10/h"];

const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn behind(agents: [&Agent; 2]) -> [(&'static str, &str); 2] {
    [("GCRA_AGENT1", &agents[0].address), ("GCRA_AGENT2", &agents[1].address)]
}

/// How many of `requests` pass.
fn passing(client: &mut Client, requests: u32) -> u32 {
    (0..requests).map(|_| u32::from(client.get("/").unwrap().status == 200)).sum()
}

#[test]
fn two_agents_hold_one_limit_for_each_client_to_the_last_cell() {
    needs!(support::haproxy());
    // HAProxy decides whom it asks. As long as one agent answers in time it may have no need of
    // another connection.
    let both_were_asked = (0..4).any(|_| {
        let directory = directory();
        let table = directory.path().join("table");
        let agents = [Agent::start(&table, &RATE), Agent::start(&table, &RATE)];
        let haproxy = Haproxy::start("haproxy.cfg", &behind([&agents[0], &agents[1]]));

        let hammer = |source| {
            let mut client = Client::from(haproxy.frontend, source);
            move || Tally::of(&mut client, 300, Duration::from_secs(4))
        };
        let (one, other) = (thread::spawn(hammer(ONE)), thread::spawn(hammer(OTHER)));
        for tally in [one.join().unwrap(), other.join().unwrap()] {
            assert_eq!(tally.other, 0, "{tally:?}");
            tally.assert_not_too_many(INTERVAL, BURST);
            tally.assert_not_too_few(INTERVAL, BURST);
        }
        agents.map(Agent::stop).iter().all(|asked| *asked > 0)
    });
    assert!(both_were_asked, "in four runs HAProxy asked one agent only");
}

#[test]
fn the_shipped_files_are_valid_without_a_warning() {
    needs!(support::haproxy());
    needs!(openssl());
    let directory = directory();
    let certificate = certificate(directory.path());
    let printed = std::fs::read_dir(haproxy_folder().join("printed")).unwrap();
    for file in std::fs::read_dir(haproxy_folder()).unwrap().chain(printed) {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "cfg") {
            let mut check = Command::new(haproxy_binary());
            check.arg("-c").arg("-f").arg(&path).env("GCRA_CERT", &certificate);
            let output = check.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            if let Some(why) = needs_more(&path) {
                assert!(!output.status.success() && said.contains(&why), "{said}");
                continue;
            }
            assert!(
                output.status.success() && !said.contains("WARNING"),
                "{}: {said}",
                path.display()
            );
        }
    }
}

/// The sentence about a shipped file if the HAProxy to test with is too old for it.
fn needs_more(path: &Path) -> Option<String> {
    let known = [("bandwidth.cfg", (2, 7)), ("delay.cfg", (3, 2)), ("headers.cfg", (3, 4))];
    let (name, (major, minor)) = known.into_iter().find(|(name, _)| path.ends_with(name))?;
    let is_too_old = support::haproxy_since((major, minor)).is_err();
    is_too_old.then(|| format!("{name} needs HAProxy {major}.{minor}"))
}

/// The decisions in the log lines of a HAProxy, from `blocked` to `err` (haproxy/README.md, "What
/// the log says").
fn logged(haproxy: &Haproxy) -> Vec<[String; 5]> {
    let lines = haproxy.process.lines();
    let decisions = lines.iter().filter_map(|line| line.split_once(" blocked="));
    let fields = decisions.map(|(_, rest)| {
        // Some files log more.
        let more = ["bandwidth=", "fingerprint=", "limit_name=", "client="];
        let mut words = rest.split(' ').filter(|word| more.iter().all(|it| !word.starts_with(it)));
        let mut field = |name| {
            let word = words.next().unwrap_or_else(|| panic!("no {name} in {rest}"));
            word.strip_prefix(name).unwrap_or_else(|| panic!("no {name} in {rest}")).to_owned()
        };
        let fields = ["", "policy=", "reason=", "retry_after=", "err="].map(&mut field);
        assert_eq!(words.next(), None, "{rest}");
        fields
    });
    fields.collect()
}

#[test]
fn each_shipped_file_logs_the_decision_and_its_reason() {
    needs!(support::haproxy());
    let directory = directory();
    let limits: String = ["check", "by-key", "by-ip", "check-path"]
        .iter()
        .map(|message| format!("[policy.{message}]\nlimits = '8/2m'\n"))
        .collect();
    let answer = "answer = ['policy', 'reason', 'retry_after']\n";
    let agent = |scope| {
        let file = directory.path().join(format!("{scope}.toml"));
        std::fs::write(&file, format!("scope = '{scope}'\n{answer}{limits}")).unwrap();
        Agent::start(&directory.path().join(scope), &["--config", file.to_str().unwrap()])
    };
    let (txn, sess) = (agent("txn"), agent("sess"));
    // For tcp.cfg: it closes each connection.
    let application = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let application_address = application.local_addr().unwrap().to_string();
    thread::spawn(move || application.incoming().for_each(drop));
    let shipped = std::fs::read_dir(haproxy_folder()).unwrap();
    let shipped: Vec<_> = shipped
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".cfg"))
        // These need a socket, a token, a key, TLS or responses: they have tests of their own.
        .filter(|name| !["unix-socket.cfg", "plans.cfg", "api-plans.cfg"].contains(&&**name))
        .filter(|name| !["fingerprint.cfg", "failed-logins.cfg", "tokens.cfg"].contains(&&**name))
        .collect();
    assert_eq!(shipped.len(), 13);
    for (client, name) in (1..).zip(&shipped) {
        if needs_more(Path::new(name)).is_some() {
            continue;
        }
        let address = if name == "tcp.cfg" { &sess.address } else { &txn.address };
        let haproxy = Haproxy::start(
            name,
            &[
                ("GCRA_AGENT1", address),
                ("GCRA_AGENT2", address),
                ("GCRA_APP", &application_address),
            ],
        );
        // One client for each file, so that no bucket is shared.
        let ip = Ipv4Addr::new(127, 0, 1, client).into();
        let policies = ["check", "by-ip", "check-path"];
        let mut said = Vec::new();
        wait_until(&format!("{name} logs that a client was blocked"), || {
            let _ = Client::from(haproxy.frontend, ip).get("/api/x");
            said = logged(&haproxy);
            said.iter().any(|[blocked, ..]| blocked == "1")
        });
        for [blocked, policy, reason, retry_after, err] in said {
            let decided = (policies.contains(&&policy[..]), &reason[..], &err[..]);
            match &blocked[..] {
                "0" => assert_eq!((decided, &retry_after[..]), ((true, "-", "-"), "0"), "{name}"),
                "1" => {
                    assert_eq!(decided, (true, "limit", "-"), "{name}");
                    assert!(
                        (1..=15).contains(&retry_after.parse().unwrap()),
                        "{name}: {retry_after}"
                    );
                }
                other => panic!("{name}: blocked={other}"),
            }
        }
    }
}

#[test]
fn a_denied_request_gets_429_and_when_to_come_back() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let haproxy = Haproxy::start(
        "haproxy.cfg",
        &[("GCRA_AGENT1", &agent.address), ("GCRA_AGENT2", &agent.address)],
    );
    let mut client = Client::new(haproxy.frontend);
    assert_eq!(passing(&mut client, 10), 10);
    let denied = client.get("/").unwrap();
    assert_eq!(denied.status, 429);
    assert!(denied.head.contains("\nretry-after: "), "{}", denied.head);
    assert!(denied.body.starts_with("Too many requests"), "{}", denied.body);
    // An agent with --rate sets `blocked` alone.
    if !haproxy.has_logged(11, |haproxy| logged(haproxy).len()) {
        return;
    }
    for (number, fields) in (1..).zip(logged(&haproxy)) {
        let blocked = if number > 10 { "1" } else { "0" };
        assert_eq!(fields, [blocked, "-", "-", "-", "-"]);
    }
}

#[test]
fn ipv6_clients_are_limited_too() {
    needs!(support::ipv6());
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [
        Agent::start_at(&table, "[::1]:0", &HOURLY),
        Agent::start_at(&table, "127.0.0.1:0", &HOURLY),
    ];
    let ip = Ipv6Addr::LOCALHOST.into();
    let haproxy = Haproxy::start_on("haproxy.cfg", ip, &behind([&agents[0], &agents[1]]));
    assert!(agents[0].address.starts_with("[::1]:"));
    assert_eq!(passing(&mut Client::new(haproxy.frontend), 15), 10);
    let [first, second] = agents.map(Agent::stop);
    assert_eq!(first + second, 15);
    assert!(first > 0, "the agent on [::1] was asked");
}

#[test]
fn an_agent_killed_under_load_costs_no_cell_too_many() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let mut agents = [Agent::start(&table, &RATE), Agent::start(&table, &RATE)];
    // Fail-closed, so that each 200 is an agent's decision.
    let haproxy = Haproxy::start("fail-closed.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::from(haproxy.frontend, ONE);
    let (mut kill, mut allowed_before) = (Some(&mut agents[0].process), 0);
    let start = Instant::now();
    let tally = Tally::watched(&mut client, 300, Duration::from_secs(5), |tally| {
        if start.elapsed() > Duration::from_secs(2)
            && let Some(victim) = kill.take()
        {
            victim.kill();
            allowed_before = tally.allowed;
        }
    });
    tally.assert_not_too_many(INTERVAL, BURST);
    // HAProxy goes on with the other one. How much it allows depends on how often it was asked.
    assert!(tally.allowed > allowed_before, "{allowed_before} before, {tally:?}");
    haproxy.wait_for("gcra-agents", "agent1", "DOWN");
    haproxy.wait_for("gcra-agents", "agent2", "UP");
}

#[test]
fn all_agents_restarted_go_on_counting_where_they_were() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let addresses = [free_port(ONE).to_string(), free_port(ONE).to_string()];
    let start = || addresses.clone().map(|address| Agent::start_at(&table, &address, &HOURLY));
    let agents = start();
    let haproxy = Haproxy::start("fail-closed.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::new(haproxy.frontend);
    assert_eq!(passing(&mut client, 6), 6);

    for agent in agents {
        agent.stop();
    }
    assert_eq!(client.get("/").unwrap().status, 503, "nobody to ask");
    let mut agents = start();
    let back_up = || {
        haproxy.wait_for("gcra-agents", "agent1", "UP");
        haproxy.wait_for("gcra-agents", "agent2", "UP");
    };
    back_up();
    assert_eq!(passing(&mut client, 2), 2);

    // And without being asked to stop.
    for agent in &mut agents {
        agent.process.kill();
    }
    let _agents = start();
    back_up();
    assert_eq!(passing(&mut client, 6), 2);
}

#[test]
fn haproxy_restarted_finds_the_counts_as_they_were() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &HOURLY), Agent::start(&table, &HOURLY)];
    let mut haproxy = Haproxy::start("haproxy.cfg", &behind([&agents[0], &agents[1]]));
    assert_eq!(passing(&mut Client::new(haproxy.frontend), 6), 6);
    haproxy.process.stop();
    drop(haproxy);
    let haproxy = Haproxy::start("haproxy.cfg", &behind([&agents[0], &agents[1]]));
    assert_eq!(passing(&mut Client::new(haproxy.frontend), 6), 4);
}

/// As on several machines (docs/OPERATING.md).
#[test]
fn two_haproxies_that_ask_the_same_agent_share_one_limit() {
    needs!(support::haproxy());
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let start = || Haproxy::start("haproxy.cfg", &behind([&agent, &agent]));
    let haproxies = [start(), start()];
    let mut clients = haproxies.each_ref().map(|haproxy| Client::new(haproxy.frontend));
    let passed: u32 = (0..15).map(|number| passing(&mut clients[number % 2], 1)).sum();
    assert_eq!(passed, 10);
}

#[test]
fn without_an_agent_requests_pass_or_not_as_configured() {
    needs!(support::haproxy());
    let nobody = [free_port(ONE).to_string(), free_port(ONE).to_string()];
    let environment = [("GCRA_AGENT1", &nobody[0][..]), ("GCRA_AGENT2", &nobody[1][..])];
    let open = Haproxy::start_as_shipped("haproxy.cfg", &environment);
    assert_eq!(passing(&mut Client::new(open.frontend), 30), 30);
    let closed = Haproxy::start_as_shipped("fail-closed.cfg", &environment);
    let mut client = Client::new(closed.frontend);
    for _ in 0..3 {
        assert_eq!(client.get("/").unwrap().status, 503);
    }
}

#[test]
fn health_checks_follow_the_agent() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [(); 2].map(|()| Agent::start_at(&table, &free_port(ONE).to_string(), &RATE));
    let haproxy = Haproxy::start("haproxy.cfg", &behind([&agents[0], &agents[1]]));
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    let [first, second] = agents;
    let address = first.address.clone();
    assert_eq!(first.stop(), 0, "health checks are no NOTIFYs");
    haproxy.wait_for("gcra-agents", "agent1", "DOWN");
    haproxy.wait_for("gcra-agents", "agent2", "UP");
    let _back = Agent::start_at(&table, &address, &RATE);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    drop(second);
}

#[test]
fn several_workers_answer_several_connections() {
    needs!(support::haproxy());
    let directory = directory();
    // No cell comes back in this test.
    let args = ["--rate", "1000/d", "--threads", "3"];
    let agent = Agent::start(&directory.path().join("table"), &args);
    let haproxy = Haproxy::start(
        "haproxy.cfg",
        &[("GCRA_AGENT1", &agent.address), ("GCRA_AGENT2", &agent.address)],
    );
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Client::new(haproxy.frontend);
            thread::spawn(move || passing(&mut client, 200))
        })
        .collect();
    let allowed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(allowed, 1000);
    drop(haproxy);
    assert_eq!(agent.stop(), 1600);
}

#[test]
fn over_a_unix_socket() {
    needs!(support::haproxy());
    let directory = directory();
    let socket = directory.path().join("agent.sock");
    let agent = Agent::start_at(
        &directory.path().join("table"),
        &format!("unix:{}", socket.display()),
        &HOURLY,
    );
    let haproxy = Haproxy::start("unix-socket.cfg", &[("GCRA_SOCKET", socket.to_str().unwrap())]);
    assert_eq!(passing(&mut Client::new(haproxy.frontend), 15), 10);
    haproxy.has_logged(15, |haproxy| logged(haproxy).len());
    agent.stop();
    assert!(!socket.exists(), "the agent removed its socket");
}

#[test]
fn each_api_key_has_its_own_limit_and_the_keyless_are_limited_by_address() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &HOURLY), Agent::start(&table, &HOURLY)];
    let haproxy = Haproxy::start("api-key.cfg", &behind([&agents[0], &agents[1]]));
    let with_key = |source, key: Option<&str>| {
        let mut client = Client::from(haproxy.frontend, source);
        let headers: Vec<_> = key.into_iter().map(|key| ("X-Api-Key", key)).collect();
        (0..15).filter(|_| client.get_with("/", &headers).unwrap().status == 200).count()
    };
    assert_eq!(with_key(ONE, Some("alice")), 10);
    assert_eq!(with_key(OTHER, Some("alice")), 0, "the same key from elsewhere");
    for document in ["haproxy/README.md", "docs/TROUBLESHOOTING.md"] {
        let text = std::fs::read_to_string(document).unwrap();
        let line = text.lines().map(str::trim).find(|line| line.starts_with("KEY=$("));
        let script = line.unwrap();
        let script = format!("{script}; exec \"$0\" table reset --table \"$1\" \"$KEY\"");
        let mut reset = Command::new("sh");
        reset.args(["-c", &script]).arg(support::agent_binary()).arg(&table);
        let output = reset.env("APIKEY", "alice").output().unwrap();
        assert!(output.status.success(), "{document}: {output:?}");
        assert_eq!(with_key(ONE, Some("alice")), 10, "{document}");
    }
    assert_eq!(with_key(ONE, Some("bob")), 10);
    assert_eq!(with_key(ONE, None), 10);
    assert_eq!(with_key(OTHER, None), 10);
    // A key that looks like an address is no address.
    assert_eq!(with_key(ONE, Some("127.0.0.1")), 10);
}

/// The answers of one round of requests.
#[derive(Debug, Default)]
struct Round {
    /// When each answer of 200 was there.
    passed: Vec<Instant>,
    /// The `Retry-After` of each 429.
    denied: Vec<u64>,
}

/// Sends requests at the same time, one on each of so many connections.
fn at_once(haproxy: &Haproxy, ip: Ipv4Addr, requests: usize) -> Round {
    let start = Arc::new(Barrier::new(requests));
    let threads: Vec<_> = (0..requests)
        .map(|_| {
            let (start, frontend) = (start.clone(), haproxy.frontend);
            thread::spawn(move || {
                let mut client = Client::from(frontend, ip.into());
                start.wait();
                let response = client.get("/").unwrap();
                (response, Instant::now())
            })
        })
        .collect();
    let mut round = Round::default();
    for (response, at) in threads.into_iter().map(|thread| thread.join().unwrap()) {
        match response.status {
            200 => round.passed.push(at),
            429 => {
                let wait =
                    response.head.lines().find_map(|line| line.strip_prefix("retry-after: "));
                round.denied.push(wait.unwrap().trim().parse().unwrap());
            }
            other => panic!("{other}"),
        }
    }
    round.passed.sort();
    round
}

/// Only lower bounds: on a slow machine all takes longer, and fewer requests come at a time.
#[test]
fn requests_over_the_limit_wait_for_their_turn() {
    needs!(support::haproxy());
    // An older one refuses the file, which is tested above.
    if support::haproxy_since((3, 2)).is_ok() {
        they_wait_for_their_turn(None);
    }
}

#[test]
fn machines_keep_one_queue() {
    needs!(support::haproxy());
    needs!(valkey());
    if support::haproxy_since((3, 2)).is_ok() {
        they_wait_for_their_turn(Some(&Server::start(&[])));
    }
}

fn they_wait_for_their_turn(store: Option<&Server>) {
    const BURST: usize = 5;
    const INTERVAL: Duration = Duration::from_millis(100);
    const MAX_DELAY_MS: u64 = 2_000;
    let directory = directory();
    let policies = haproxy_folder().join("delay.toml");
    let mut agents = two_agents(directory.path(), &policies, store);
    let haproxy = Haproxy::start("delay.cfg", &behind([&agents[0], &agents[1]]));
    // Until a machine was fast enough that some had to wait, and some would have had to wait for
    // too long. Each round has a client of its own.
    let (mut client, mut too_early) = (0, 0);
    let mut waits_and_denials = |what: &str| {
        wait_until(what, || {
            client += 1;
            let start = Instant::now();
            let round = at_once(&haproxy, Ipv4Addr::new(127, 0, 2, client), 40);
            // In the time until each passes no more have passed than the limit allows. HAProxy may
            // begin to count the delay before the agent does, by one round of its events. That is
            // much less than this, unless HAProxy stood still in this round.
            let least =
                |place| INTERVAL * u32::try_from(usize::saturating_sub(place, BURST)).unwrap();
            let passed: Vec<_> = round.passed.iter().map(|at| *at - start).collect();
            let is_kept = (1..)
                .zip(&passed)
                .all(|(place, at)| *at + Duration::from_millis(500) >= least(place));
            too_early = if is_kept { 0 } else { too_early + 1 };
            assert!(too_early < 3, "in three rounds, too many have passed too early: {passed:?}");
            // At the end of the longest delay it would be the turn of at least one.
            assert!(round.denied.iter().all(|wait| (1..=2).contains(wait)), "{round:?}");
            is_kept && !round.denied.is_empty() && round.passed.len() > 2 * BURST
        });
    };
    waits_and_denials("some wait and some are denied");
    // Who is killed takes no place in the queue away.
    agents[0].process.kill();
    haproxy.wait_for("gcra-agents", "agent1", "DOWN");
    waits_and_denials("the same with one agent");

    // As HAProxy saw it.
    let mut longest = 0;
    for line in haproxy.process.lines() {
        let Some((before, after)) = line.split_once(" delay_ms=") else { continue };
        let mut words = after.split(' ');
        let (delay, blocked) = (words.next().unwrap(), words.next().unwrap());
        let delay: u64 = delay.parse().unwrap_or_else(|_| panic!("no answer: {line}"));
        assert!(delay <= MAX_DELAY_MS && (delay == 0 || blocked == "blocked=0"), "{line}");
        let timers = before.split(' ').find(|word| word.matches('/').count() == 4);
        let active = timers.unwrap().rsplit('/').next().unwrap().parse::<u64>().unwrap();
        // It counts whole milliseconds.
        assert!(active + 2 >= delay, "{line}");
        longest = longest.max(delay);
    }
    assert!(longest > 0);
}

/// The number of requests of a client that pass, of one more than `most`.
fn passed_of(haproxy: &Haproxy, client: Ipv4Addr, most: usize) -> usize {
    let mut client = Client::from(haproxy.frontend, client.into());
    (0..=most).filter(|_| client.get("/").unwrap().status == 200).count()
}

#[test]
fn an_address_its_network_and_its_provider_have_limits_that_are_charged_together() {
    needs!(support::haproxy());
    let directory = directory();
    let mut text = std::fs::read_to_string(haproxy_folder().join("networks.toml")).unwrap();
    // So few that the order of requests says who is denied, and none comes back meanwhile.
    for (shipped, here) in [
        ("\"10/s burst 20\"", "\"4/d\""),
        ("rate = \"50/s\", burst = 100", "rate = \"8/d\""),
        ("rate = \"200/s\", burst = 400", "rate = \"12/d\""),
        ("rate = \"1000/s\", burst = 2000", "rate = \"20/d\""),
    ] {
        assert!(text.contains(shipped), "{shipped}");
        text = text.replace(shipped, here);
    }
    let policies = directory.path().join("networks.toml");
    std::fs::write(&policies, text).unwrap();
    let table = directory.path().join("table");
    let args = ["--config", policies.to_str().unwrap()];
    let agents = [Agent::start(&table, &args), Agent::start(&table, &args)];
    let haproxy = Haproxy::start("networks.cfg", &behind([&agents[0], &agents[1]]));
    for (client, passed) in [
        ([127, 0, 1, 1], 4),
        ([127, 0, 1, 2], 4),
        // The network of both has used its 8.
        ([127, 0, 1, 3], 0),
        // AS64496 has another network, and 4 left. The denied requests above were not charged.
        ([127, 0, 2, 1], 4),
        ([127, 0, 2, 2], 0),
        // Without a provider these count by their addresses.
        ([127, 0, 3, 1], 4),
        ([127, 0, 4, 1], 4),
        // All together have used their 20.
        ([127, 0, 5, 1], 0),
    ] {
        assert_eq!(passed_of(&haproxy, client.into(), 4), passed, "{client:?}");
    }
    if haproxy.has_logged(8 * 5, |haproxy| logged(haproxy).len()) {
        let decisions = logged(&haproxy);
        let denied = decisions.iter().filter(|[blocked, ..]| blocked == "1").count();
        assert_eq!(denied, 8 * 5 - 20, "{decisions:?}");
    }
}

#[test]
fn the_limit_of_a_customer_is_what_its_token_says() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let policies = haproxy_folder().join("plans.toml");
    let args = ["--config", policies.to_str().unwrap()];
    let agents = [Agent::start(&table, &args), Agent::start(&table, &args)];
    let haproxy = Haproxy::start("plans.cfg", &behind([&agents[0], &agents[1]]));
    const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";
    // {"sub": "acme", "rate_limit": "2/h burst 3", "exp": 4102444800}
    let acme = "eyJzdWIiOiAiYWNtZSIsICJyYXRlX2xpbWl0IjogIjIvaCBidXJzdCAzIiwg\
                ImV4cCI6IDQxMDI0NDQ4MDB9";
    // {"sub": "other", "exp": 4102444800}
    let other = "eyJzdWIiOiAib3RoZXIiLCAiZXhwIjogNDEwMjQ0NDgwMH0";
    // {"sub": "late", "rate_limit": "2/h", "exp": 1700000000}
    let late = "eyJzdWIiOiAibGF0ZSIsICJyYXRlX2xpbWl0IjogIjIvaCIsICJleHAiOiAxNzAwMDAwMDAwfQ";
    let mut client = Client::new(haproxy.frontend);
    let mut get = |claims: &str, signature: &str| {
        let token = format!("Bearer {HEADER}.{claims}.{signature}");
        client.get_with("/", &[("authorization", &*token)]).unwrap().status
    };
    let [of_acme, of_other, of_late] = [
        "K05yUcMaCYvfNrW_ADxJup3IBuDSi_D3WJ1WO10WtoI",
        "_HbbPOhbQV6eqMDIOhfb-3QyMxUz4q6FYZNpnN23Q5w",
        "8OHupov84CGEnCrSwXwOHy1VajfEtRe_eH021XHhbfo",
    ];
    for status in [200, 200, 200, 429, 429] {
        assert_eq!(get(acme, of_acme), status);
    }
    // The default is 5/s burst 10.
    assert_eq!(get(other, of_other), 200);
    // A signature by another secret, one of another token, and a token that has ended.
    for (claims, signature) in
        [(acme, "rgMzcFK5LwWyl0ACB4pH6vodtQqLA-UZIntabrWxKV8"), (other, of_acme), (late, of_late)]
    {
        assert_eq!(get(claims, signature), 401);
    }
    let mut without = Client::new(haproxy.frontend);
    assert_eq!(without.get("/").unwrap().status, 401);
}

/// The file of a HAProxy that passes on what it gets to the address in `WEB`, over TLS.
fn tls_client(directory: &Path, options: &str) -> PathBuf {
    let folder = directory.join("clients");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("client.cfg");
    let text = format!(
        "defaults\n    mode http\n    timeout connect 60s\n    timeout client 60s\n    timeout \
         server 60s\nlisten client\n    bind \"${{GCRA_HTTP}}\"\n    server web \"${{WEB}}\" \
         ssl verify none{options}\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn each_kind_of_tls_client_can_have_a_limit() {
    needs!(support::haproxy());
    needs!(openssl());
    let directory = directory();
    // The trial of fingerprint.toml is in force here, with numbers that do not depend on the time.
    let shipped = std::fs::read_to_string(haproxy_folder().join("fingerprint.toml")).unwrap();
    let lines = ["limits = \"10/s burst 20\"\nobserve = { ", "rate = \"200/s\", burst = 400, "];
    assert!(lines.iter().all(|line| shipped.contains(line)), "{shipped}");
    let text = shipped.replace(lines[0], "limits = { ").replace(lines[1], "rate = \"3/d\", ");
    let policies = directory.path().join("fingerprint.toml");
    std::fs::write(&policies, text).unwrap();
    let args = ["--config", policies.to_str().unwrap()];
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &args), Agent::start(&table, &args)];
    let pem = certificate(directory.path());
    let mut environment = behind([&agents[0], &agents[1]]).to_vec();
    environment.push(("GCRA_CERT", pem.to_str().unwrap()));
    let haproxy = Haproxy::start("fingerprint.cfg", &environment);
    // The TLS clients are HAProxies, too, with different ciphers.
    let client = tls_client(directory.path(), " ssl-max-ver TLSv1.2 ciphers \"${CIPHERS}\"");
    let web = haproxy.frontend.to_string();
    for ciphers in ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"] {
        let environment = [("WEB", &*web), ("CIPHERS", ciphers)];
        let tls = Haproxy::start(client.to_str().unwrap(), &environment);
        assert_eq!(passed_of(&tls, Ipv4Addr::LOCALHOST, 4), 3, "{ciphers}");
    }
    haproxy.has_logged(10, |haproxy| logged(haproxy).len());
    let lines = haproxy.process.lines();
    let said = lines.iter().filter_map(|line| line.split_once(" fingerprint="));
    let mut fingerprints: Vec<_> = said.map(|(_, fingerprint)| fingerprint.to_owned()).collect();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 2, "{fingerprints:?}");
    assert!(fingerprints.iter().all(|it| it.len() == 32), "{fingerprints:?}");
}

/// The seconds after 1970.
fn wall_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// When the window ends, in seconds after 1970, by the seconds until then that a field of a
/// response says. In Berlin it is the beginning of an hour. The response came between two times.
fn window_end(field: &str, [before, after]: [u64; 2]) -> u64 {
    let until: u64 = field.parse().unwrap_or_else(|_| panic!("'{field}'"));
    // It was rounded up.
    let mut moments = before + until - 1..=after + until;
    let is_hour = |moment: &u64| moment.is_multiple_of(3600);
    moments.find(is_hour).unwrap_or_else(|| panic!("{field} between {before} and {after}"))
}

#[test]
fn a_contract_counts_the_requests_of_a_day_over_all_agents() {
    needs!(support::haproxy());
    a_contract_counts(None);
}

#[test]
fn a_contract_counts_the_requests_of_a_day_over_all_machines() {
    needs!(support::haproxy());
    needs!(valkey());
    a_contract_counts(Some(&Server::start(&[])));
}

fn a_contract_counts(store: Option<&Server>) {
    const COUNT: usize = 100;
    let directory = directory();
    let policies = haproxy_folder().join("contract.toml");
    let mut agents = two_agents(directory.path(), &policies, store);
    let haproxy = Haproxy::start("contract.cfg", &behind([&agents[0], &agents[1]]));
    let found = |head: &str, name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
        Some(line.trim().to_owned())
    };
    let field = |head: &str, name: &str| {
        found(head, name).unwrap_or_else(|| panic!("no {name} in {head}"))
    };
    // Until a run of it begins and ends on the same day.
    let mut last = 1;
    let mut of_one_day = |what: &str, agents: &mut [Agent; 2], kill: bool| {
        wait_until(what, || {
            last += 1;
            let mut client = Client::from(haproxy.frontend, Ipv4Addr::new(127, 0, 3, last).into());
            let (mut passed, mut undecided, mut ends) = (0, 0, Vec::new());
            for request in 0..COUNT + 20 {
                if kill && request == COUNT / 2 {
                    agents[0].process.kill();
                    haproxy.wait_for("gcra-agents", "agent1", "DOWN");
                }
                let before = wall_s();
                let response = client.get("/").unwrap();
                let times = [before, wall_s()];
                let Some(limit) = found(&response.head, "ratelimit") else {
                    // The agent was killed before it answered, and perhaps after it counted.
                    assert!(kill && response.status == 200, "{}", response.head);
                    undecided += 1;
                    continue;
                };
                let (left, until) =
                    limit.strip_prefix("\"by-ip\";r=").unwrap().split_once(";t=").unwrap();
                ends.push(window_end(until, times));
                let policy = field(&response.head, "ratelimit-policy");
                assert_eq!(policy, "\"by-ip\";q=100;w=86400");
                match response.status {
                    200 => passed += 1,
                    429 => {
                        assert_eq!(left, "0");
                        ends.push(window_end(&field(&response.head, "retry-after"), times));
                    }
                    other => panic!("{other}"),
                }
                let is_one_day = ends.iter().all(|end| *end == ends[0]);
                if response.status == 200 && is_one_day && undecided == 0 {
                    assert_eq!(left.parse::<usize>().unwrap(), COUNT - passed);
                }
            }
            let is_one_day = ends.iter().all(|end| *end == ends[0]);
            let right = COUNT - usize::min(undecided, COUNT)..=COUNT;
            assert!(!is_one_day || right.contains(&passed), "{passed} of {COUNT}, {undecided}");
            is_one_day
        });
    };
    of_one_day("a client without a key has 100 a day", &mut agents, false);
    // An agent that is killed takes nothing along.
    of_one_day("the same while an agent is killed", &mut agents, true);
    // A key has a contract beside its rate.
    let mut client = Client::new(haproxy.frontend);
    let response = client.get_with("/", &[("x-api-key", "alice")]).unwrap();
    let limits = field(&response.head, "ratelimit");
    // Its cell is back after 50 ms, which an answer of the store can take.
    let left = ["\"by-key.1\";r=39;t=1", "\"by-key.1\";r=40;t=0"];
    assert!(left.iter().any(|left| limits.starts_with(left)), "{limits}");
    assert!(limits.contains(", \"by-key.contract\";r=9999;t="), "{limits}");
    assert_eq!(
        field(&response.head, "ratelimit-policy"),
        "\"by-key.1\";q=40;w=2, \"by-key.contract\";q=10000;w=86400"
    );
}

#[test]
fn each_path_has_its_own_limit() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &HOURLY), Agent::start(&table, &HOURLY)];
    let haproxy = Haproxy::start("per-path.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::new(haproxy.frontend);
    for path in ["/a", "/b"] {
        let passed = (0..15).filter(|_| client.get(path).unwrap().status == 200).count();
        assert_eq!(passed, 10, "{path}");
    }
}

#[test]
fn a_group_is_sent_for_some_paths_only() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agents = [Agent::start(&table, &HOURLY), Agent::start(&table, &HOURLY)];
    let haproxy = Haproxy::start("group.cfg", &behind([&agents[0], &agents[1]]));
    let mut client = Client::new(haproxy.frontend);
    let mut passed = |path| (0..15).filter(|_| client.get(path).unwrap().status == 200).count();
    assert_eq!(passed("/"), 15);
    assert_eq!(passed("/api/x"), 10);
    assert_eq!(passed("/"), 15);
    let [first, second] = agents.map(Agent::stop);
    assert_eq!(first + second, 15, "asked about /api only");
}

#[test]
fn tcp_connections_are_limited() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let args = ["--rate", "10/h", "--scope", "sess"];
    let agents = [Agent::start(&table, &args), Agent::start(&table, &args)];
    // Some service to protect: HAProxy itself, answering HTTP.
    let nobody = free_port(ONE).to_string();
    let application = Haproxy::start_as_shipped(
        "haproxy.cfg",
        &[("GCRA_AGENT1", &nobody), ("GCRA_AGENT2", &nobody)],
    );
    let address = application.frontend.to_string();
    let mut environment = behind([&agents[0], &agents[1]]).to_vec();
    environment.push(("GCRA_APP", &address));
    let haproxy = Haproxy::start("tcp.cfg", &environment);
    haproxy.wait_for("gcra-agents", "agent1", "UP");
    // Each client is a new connection.
    let passed = (0..15).filter(|_| Client::new(haproxy.frontend).get("/").is_ok()).count();
    assert_eq!(passed, 10);
    let mut patient = Client::from(haproxy.frontend, OTHER);
    assert_eq!(passing(&mut patient, 30), 30, "one connection is one connection");
}

#[test]
fn a_second_agent_on_the_same_port_says_so() {
    needs!(support::haproxy());
    let directory = directory();
    let table = directory.path().join("table");
    let agent = Agent::start(&table, &RATE);
    let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
        .args(RATE)
        .args(["--slots", "4096", "--listen", &agent.address, "--table"])
        .arg(&table)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains(&agent.address) && said.contains("is another agent running there?"),
        "{said}"
    );
    wait_until("the first one still runs", || agent.process.lines().len() >= 3);
}

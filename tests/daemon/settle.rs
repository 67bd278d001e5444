//! Limits that responses charge, behind a real HAProxy: the shipped files for failed logins and
//! for tokens, as they are written.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spop_agent::{Scope, testing};

use crate::support;
use crate::support::valkey::{Server, valkey};
use crate::support::{
    Agent, Client, Haproxy, directory, haproxy_folder, needs, two_agents, wait_until,
};

const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn behind([first, second]: [&Agent; 2]) -> [(&'static str, &str); 2] {
    [("GCRA_AGENT1", &first.address), ("GCRA_AGENT2", &second.address)]
}

/// A server that answers as each request says: with the status in `X-Status`, and with the tokens
/// in `X-Cost`, if it is there.
fn gateway(directory: &Path) -> Haproxy {
    let config = directory.join("gateway.cfg");
    let text = "defaults\n    mode http\n    timeout connect 5s\n    timeout client 30s\n    \
                timeout server 30s\nfrontend web\n    bind \"${GCRA_HTTP}\"\n    http-request \
                return status 401 if { req.hdr(x-status) 401 }\n    http-request return status \
                200 hdr X-Tokens \"%[req.hdr(x-cost)]\" if { req.hdr(x-cost) -m found }\n    \
                http-request return status 200\n";
    std::fs::write(&config, text).unwrap();
    Haproxy::start_as_shipped(config.to_str().unwrap(), &[])
}

#[test]
fn only_failed_logins_use_up_the_limit() {
    needs!(support::haproxy());
    only_failed_logins_count(None);
}

#[test]
fn only_failed_logins_use_up_the_limit_of_all_machines() {
    needs!(support::haproxy());
    needs!(valkey());
    only_failed_logins_count(Some(&Server::start(&[])));
}

fn only_failed_logins_count(store: Option<&Server>) {
    let directory = directory();
    let policies = haproxy_folder().join("failed-logins.toml");
    let agents = two_agents(directory.path(), &policies, store);
    let gateway = gateway(directory.path());
    let address = gateway.frontend.to_string();
    let mut environment = behind([&agents[0], &agents[1]]).to_vec();
    environment.push(("GCRA_APP", &address));
    let haproxy = Haproxy::start("failed-logins.cfg", &environment);
    let wrong = [("X-Status", "401")];
    let login = |source, headers: &[(&str, &str)]| {
        Client::from(haproxy.frontend, source).get_with("/login", headers).unwrap()
    };
    let start = Instant::now();
    for _ in 0..5 {
        assert_eq!(login(ONE, &[]).status, 200, "right passwords are free");
    }
    let statuses: Vec<_> = (0..5).map(|_| login(ONE, &wrong).status).collect();
    let right = login(ONE, &[]);
    assert_eq!(statuses[..3], [401, 401, 401]);
    // A cell comes back in 20 s.
    if start.elapsed() < Duration::from_secs(15) {
        assert_eq!(statuses[3..], [429, 429]);
        assert_eq!(right.status, 429, "with the right one, too");
        let wait = right.head.lines().find_map(|line| line.strip_prefix("retry-after: "));
        assert!((1..=20).contains(&wait.unwrap().trim().parse::<u32>().unwrap()), "{wait:?}");
    }
    let mut elsewhere = Client::from(haproxy.frontend, ONE);
    assert_eq!(elsewhere.get_with("/", &wrong).unwrap().status, 401, "another path");
    assert_eq!(login(OTHER, &wrong).status, 401, "another client");
    let logged = |haproxy: &Haproxy, what: &str| {
        haproxy.process.lines().iter().filter(|line| line.contains(what)).count()
    };
    let denied = statuses.iter().chain([&right.status]).filter(|status| **status == 429).count();
    if haproxy.has_logged(13, |haproxy| logged(haproxy, " blocked=")) {
        let blocked = logged(&haproxy, " blocked=1 ");
        assert_eq!(blocked, denied, "the response does not change the answer to the request");
    }
}

#[test]
fn tokens_are_settled_by_what_the_response_cost() {
    needs!(support::haproxy());
    tokens_are_settled(None);
}

#[test]
fn tokens_are_settled_on_all_machines() {
    needs!(support::haproxy());
    needs!(valkey());
    tokens_are_settled(Some(&Server::start(&[])));
}

fn tokens_are_settled(store: Option<&Server>) {
    let directory = directory();
    // So slow that what the test spends stays spent.
    let shipped = std::fs::read_to_string(haproxy_folder().join("tokens.toml")).unwrap();
    let slow = shipped.replace("100000/m", "100000/d").replace("2000000/d", "200000/d");
    assert_ne!(slow, shipped);
    // As haproxy/README.md says.
    let slow = if store.is_some() { slow.replace("unsettled = 20000\n", "") } else { slow };
    let policies = directory.path().join("tokens.toml");
    std::fs::write(&policies, slow).unwrap();
    let agents = two_agents(directory.path(), &policies, store);
    let gateway = gateway(directory.path());
    let address = gateway.frontend.to_string();
    let mut environment = behind([&agents[0], &agents[1]]).to_vec();
    environment.push(("GCRA_APP", &address));
    let haproxy = Haproxy::start("tokens.cfg", &environment);
    let ask = |key: &str, cost: &str| {
        let headers = [("X-Api-Key", key), ("X-Cost", cost)];
        let response = Client::from(haproxy.frontend, ONE).get_with("/", &headers[..]).unwrap();
        let left = response.head.lines().find_map(|line| line.strip_prefix("ratelimit: "));
        let left = left.map(|left| {
            let number = left.split("\"llm.minute\";r=").nth(1).unwrap().split(';').next();
            number.unwrap().parse::<u64>().unwrap()
        });
        (response.status, left)
    };
    // In the time of the test some tokens come back, and by then the number is larger.
    let start = Instant::now();
    let is_left = |(status, left): (u16, Option<u64>), spent: u64| {
        let back = u64::try_from(start.elapsed().as_millis()).unwrap() * 100_000 / 86_400_000 + 1;
        let left = left.unwrap();
        assert_eq!(status, 200);
        assert!((100_000 - spent..=100_000 - spent + back).contains(&left), "{left} {spent}");
    };
    // The estimate of the first one is 1000, and the rest is given back.
    is_left(ask("alice", "300"), 300);
    // The next one is estimated at 300, and costs more.
    is_left(ask("alice", "70000"), 70_300);
    // This one would be estimated at 70000. At most 50000 are, and 29700 are left.
    let (status, left) = ask("alice", "1");
    assert_eq!(status, 429);
    assert!(left.unwrap() < 30_000, "{left:?}");
    // Another client. Without a number, the estimate stays charged.
    is_left(ask("bob", "many"), 1_000);
    is_left(ask("bob", "99500"), 100_000);
    assert_eq!(ask("bob", "1").0, 429);
}

/// Requests and responses of one client reach two agents whose numbers differ. Only one agent has
/// read a change, or their files differ. A response gives nothing back where its request was not
/// charged.
#[test]
fn agents_whose_numbers_differ_spend_no_more_than_their_limits() {
    let file = |limit: &str, prefix: u8| {
        format!(
            "[policy.api]\nlimits = \"{limit}\"\nkey = [\"ip\"]\nipv4_prefix = {prefix}\n\
             reserve = \"estimate\"\ncost = \"tokens\"\nsettle = \"usage\"\n"
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (first, second) in [
        (file("500/d burst 100", 32), file("1000/d burst 100", 32)),
        (file("1000/d burst 100", 32), file("500/d burst 100", 32)),
        (file("1000/d burst 100", 32), file("1000/d burst 120", 32)),
        (file("1000/d burst 100", 24), file("1000/d burst 100", 32)),
    ] {
        for reloads in [false, true] {
            let directory = directory();
            let files = ["first", "second"].map(|name| directory.path().join(name));
            let agent = |file: &Path, text: &str| {
                std::fs::write(file, text).unwrap();
                let args = ["--config", file.to_str().unwrap(), "--listen", "127.0.0.1:0"];
                Agent::start_with(&directory.path().join("table"), &args)
            };
            let begins = if reloads { &first } else { &second };
            let agents = [agent(&files[0], &first), agent(&files[1], begins)];
            if reloads {
                std::fs::write(&files[1], &second).unwrap();
                agents[1].process.signal(Signal::HUP);
                let is_in_force = |line: &String| line.contains("was read again, and is in force");
                wait_until("the file is in force", || {
                    agents[1].process.lines().iter().any(is_in_force)
                });
            }
            let spent = runtime.block_on(spend_at_the_first(&agents));
            assert_eq!(spent, 100, "{first}and\n{second}by a reload: {reloads}");
        }
    }
}

/// Sends requests of 10 cells to both agents. Those to the first one cost 10, and the others
/// nothing, whichever agent learns it. Returns what the first one has let through.
async fn spend_at_the_first([first, second]: &[Agent; 2]) -> u32 {
    let mut first = testing::Client::connect(&first.address).await.unwrap();
    let mut second = testing::Client::connect(&second.address).await.unwrap();
    let ip = ("ip", OTHER.into());
    let (request, mut spent) = ([ip, ("estimate", 10_u32.into())], 0);
    for round in 0..100 {
        let answer = first.ask(&[("api", &request)]).await.unwrap();
        if answer.var(Scope::Transaction, "blocked") == Some(false.into()) {
            spent += 10;
        }
        let answer = second.ask(&[("api", &request)]).await.unwrap();
        let Some(reserved) = answer.var(Scope::Transaction, "reserved") else { continue };
        let response = [ip, ("tokens", 0_u32.into()), ("reserved", reserved)];
        let agent = if round % 3 == 0 { &mut first } else { &mut second };
        agent.ask(&[("usage", &response)]).await.unwrap();
    }
    spent
}

/// A server that takes its time for a request with `X-Slow`, which costs 60 000 tokens then, and
/// counts those that it began. Others cost nothing.
struct SlowServer {
    address: SocketAddr,
    began: Arc<AtomicU64>,
}

impl SlowServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let began = Arc::<AtomicU64>::default();
        let count = began.clone();
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let count = count.clone();
                thread::spawn(move || Self::serve(stream, &count));
            }
        });
        Self { address, began }
    }

    fn serve(stream: TcpStream, began: &AtomicU64) {
        let (mut writer, mut lines) =
            (stream.try_clone().unwrap(), BufReader::new(stream).lines());
        let (mut is_slow, mut is_empty) = (false, true);
        while let Some(Ok(line)) = lines.next() {
            is_slow |= line.to_ascii_lowercase().starts_with("x-slow:");
            if !line.is_empty() || is_empty {
                is_empty = line.is_empty();
                continue;
            }
            let tokens = if is_slow { 60_000 } else { 0 };
            if is_slow {
                began.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(400));
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Tokens:";
            if writer.write_all(format!("{answer} {tokens}\r\n\r\n").as_bytes()).is_err() {
                return;
            }
            (is_slow, is_empty) = (false, true);
        }
    }
}

/// HAProxy 3.4 drops the response of a client that has gone, and sends no message about it. With
/// `unsettled` each request that the server began is charged, by its response or without it; also
/// if the agent is killed that was asked.
#[test]
fn tokens_of_clients_that_close_early_are_charged() {
    needs!(support::haproxy());
    // A busy machine may leave all of the requests without a decision, and none is to be charged.
    assert!((0..5).any(|_| are_charged_when_clients_close_early()));
}

/// False if no request has to be charged.
fn are_charged_when_clients_close_early() -> bool {
    let directory = directory();
    let shipped = std::fs::read_to_string(haproxy_folder().join("tokens.toml")).unwrap();
    let own =
        shipped.replace("\"6m\"", "\"2s\"").replace("unsettled = 20000", "unsettled = 60000");
    assert_ne!(own, shipped);
    let policies = directory.path().join("tokens.toml");
    std::fs::write(&policies, own).unwrap();
    let [mut first, second] = two_agents(directory.path(), &policies, None);
    let server = SlowServer::start();
    let address = server.address.to_string();
    let mut environment = behind([&first, &second]).to_vec();
    environment.push(("GCRA_APP", &address));
    let haproxy = Haproxy::start("tokens.cfg", &environment);
    let start = Instant::now();
    let leave = || {
        let client = Client::from(haproxy.frontend, ONE);
        let mut stream = client.connect().unwrap();
        let request = "GET /slow HTTP/1.1\r\nHost: a\r\nX-Api-Key: alice\r\nX-Slow: 1\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(100));
    };
    let began = || server.began.load(Ordering::Relaxed);
    let mut leavers = 0;
    // On a busy machine the first requests may not have reached the server by then.
    wait_until("the server has begun a request", || {
        let more = if leavers == 0 { 8 } else { 1 };
        (0..more).for_each(|_| leave());
        leavers += more;
        began() > 0
    });
    first.process.kill();
    // Those without an answer of the agent reach the server, too.
    let undecided = || {
        let is_undecided = |line: &&String| {
            line.contains(" /slow ") && line.contains(" blocked=- ") && !line.contains(" err=-")
        };
        haproxy.process.lines().iter().filter(is_undecided).count() + haproxy.dropped_lines()
    };
    let due = || began().saturating_sub(undecided() as u64);
    let mut used = 0;
    wait_until("what the server began is charged", || {
        let headers = [("X-Api-Key", "alice")];
        let response = Client::from(haproxy.frontend, ONE).get_with("/", &headers).unwrap();
        let left = response.head.lines().find_map(|line| line.strip_prefix("ratelimit: "));
        let left = left.and_then(|left| left.split("\"llm.day\";r=").nth(1));
        let left = left.and_then(|left| left.split(';').next()?.parse::<u64>().ok());
        // 2 000 000 in a day come back at this rate.
        let back = u64::try_from(start.elapsed().as_millis()).unwrap() * 2_000_000 / 86_400_000;
        used = left.map_or(used, |left| 2_000_000 - left);
        used + back + 1 >= due() * 60_000
    });
    assert!(used <= leavers * 60_000, "each at most once: {used} for {}", began());
    println!("the server began {} requests, and {used} tokens are charged", began());
    due() > 0
}

/// The commands show the cells that no response has settled yet. A reset clears them, and they are
/// kept while no agent runs.
#[test]
fn what_is_unsettled_is_shown_and_cleared() {
    let directory = directory();
    let (file, table) = (directory.path().join("policies.toml"), directory.path().join("table"));
    let policies = "[policy.api]\nlimits = \"1000/d\"\nkey = [\"ip\"]\nreserve = 5\ncost = \
                    \"tokens\"\nsettle = \"usage\"\nsettle_within = \"1d\"\nunsettled = 50\n";
    std::fs::write(&file, policies).unwrap();
    let start = || Agent::start(&table, &["--config", file.to_str().unwrap()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |agent: &Agent, clients: &[IpAddr]| {
        runtime.block_on(async {
            let mut client = testing::Client::connect(&agent.address).await.unwrap();
            for ip in clients {
                let answer = client.ask(&[("api", &[("ip", (*ip).into())])]).await.unwrap();
                assert!(answer.var(Scope::Transaction, "reserved").is_some());
            }
        });
    };
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(support::agent_binary());
        command.args(arguments).arg("--table").arg(&table);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        said
    };
    let mut first = start();
    ask(&first, &[ONE, ONE, OTHER]);
    first.process.kill();
    let agent = start();
    ask(&agent, &[ONE]);
    let said = run(&["table", "get", "127.0.0.1"]);
    assert!(said.contains("no response yet: 135 cells may follow"), "{said}");
    let said = run(&["explain", "ip=127.0.0.2"]);
    assert!(said.contains("no response yet: 45 cells may follow"), "{said}");
    let said = run(&["table", "reset", "127.0.0.1"]);
    assert!(said.contains("135 cells of unsettled requests are not charged any more"), "{said}");
    let said = run(&["explain", "ip=127.0.0.1"]);
    assert!(!said.contains("unsettled"), "{said}");
    let said = run(&["table", "get", "127.0.0.2", "--json"]);
    assert!(said.contains("\"unsettled\":{\"open\":45,\"overdue\":0}"), "{said}");
    agent.stop();
}

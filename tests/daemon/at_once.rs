//! Shared policies whose requests are charged in the store one by one: those with `max_delay`,
//! with `settle`, with `bandwidth`, and with a count in windows. Two machines, with a real store.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use spop_agent::testing::{self, Answer, Client};
use spop_agent::{Scope, Value};
use tempfile::TempDir;

use crate::support;
use crate::support::proxy::Proxy;
use crate::support::server_groups::{cluster, cluster_url};
use crate::support::valkey::{Server, valkey};
use crate::support::{Agent, admin, directory, free_port, needs, wait_until};

/// An agent with a table of its own, as on a machine of its own.
struct Machine {
    directory: TempDir,
    agent: Agent,
    /// The address of its status.
    admin: String,
}

/// Machines with the same policies and one store.
struct Machines {
    each: Vec<Machine>,
    /// One, or those of a cluster.
    servers: Vec<Server>,
    runtime: tokio::runtime::Runtime,
}

/// The answer, beside `blocked`.
const ANSWER: &str = "\"remaining\", \"reason\", \"retry_after\", \"ratelimit\"";

fn config(servers: &[Server], policies: &str) -> String {
    // No policy has one, or no answer.
    let bandwidth = if policies.contains("bandwidth") { ", \"bandwidth\"" } else { "" };
    let url = if servers.len() > 1 { cluster_url(servers) } else { servers[0].url() };
    config_at(&url, bandwidth, policies)
}

fn config_at(url: &str, more_answers: &str, policies: &str) -> String {
    // A machine for tests may stand still for longer than a request should wait.
    format!(
        "answer = [{ANSWER}{more_answers}]\n[store]\nurl = \"{url}\"\nleast_replicas = 0\n\
         wait = \"10s\"\n{policies}"
    )
}

impl Machines {
    fn start(count: usize, policies: &str) -> Self {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]);
        Self::start_with(vec![server], count, policies)
    }

    fn start_with(servers: Vec<Server>, count: usize, policies: &str) -> Self {
        let each = (0..count).map(|_| Machine::start(&config(&servers, policies))).collect();
        Self::of(each, servers)
    }

    fn of(each: Vec<Machine>, servers: Vec<Server>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let machines = Self { each, servers, runtime };
        for machine in &machines.each {
            machine.wait_for("is used");
        }
        machines
    }

    fn reload(&self, policies: &str) {
        for machine in &self.each {
            let file = machine.directory.path().join("gcra-spoa.toml");
            fs::write(file, config(&self.servers, policies)).unwrap();
            machine.agent.process.signal(Signal::HUP);
            machine.wait_for("was read again, and is in force");
        }
    }

    fn ask(&self, machine: usize, messages: &[testing::Question<'_>]) -> Answer {
        self.runtime.block_on(async {
            let mut client = Client::connect(&self.each[machine].agent.address).await.unwrap();
            client.ask(messages).await.unwrap()
        })
    }

    /// The answer of a machine to a message `api` of this client.
    fn api(&self, machine: usize, ip: &str) -> Answer {
        self.ask(machine, &[("api", &[("ip", address(ip))])])
    }

    /// Runs a command on a machine, and returns what it prints.
    fn run(&self, machine: usize, args: &[&str]) -> String {
        let output = self.output(machine, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn output(&self, machine: usize, args: &[&str]) -> Output {
        let folder = self.each[machine].directory.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.args(args).arg("--table").arg(folder.join("table"));
        command.arg("--config").arg(folder.join("gcra-spoa.toml"));
        command.output().unwrap()
    }
}

impl Machine {
    fn start(config: &str) -> Self {
        let directory = directory();
        let file = directory.path().join("gcra-spoa.toml");
        fs::write(&file, config).unwrap();
        let audit = directory.path().join("audit");
        let args = ["--config", file.to_str().unwrap(), "--audit", audit.to_str().unwrap()];
        let (agent, admin) = admin::start(&directory.path().join("table"), &args);
        Self { directory, agent, admin }
    }

    fn wait_for(&self, said: &str) {
        wait_until(said, || self.agent.process.lines().iter().any(|line| line.contains(said)));
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&admin::get(&self.admin, "/status?own").body).unwrap()
    }
}

fn address(ip: &str) -> Value<'static> {
    Value::from(ip.parse::<std::net::IpAddr>().unwrap())
}

fn is_blocked(answer: &Answer) -> bool {
    answer.var(Scope::Transaction, "blocked") == Some(true.into())
}

fn number(answer: &Answer, name: &str) -> u64 {
    match answer.var(Scope::Transaction, name) {
        Some(Value::Uint64(number)) => number,
        Some(Value::Uint32(number)) => number.into(),
        Some(Value::Int64(number)) => u64::try_from(number).unwrap(),
        Some(Value::Int32(number)) => u64::try_from(number).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

fn text(answer: &Answer, name: &str) -> String {
    match answer.var(Scope::Transaction, name) {
        Some(Value::String(text)) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

fn reason(answer: &Answer) -> String {
    text(answer, "reason")
}

/// A window that does not end while a test runs.
fn month() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let zone = if now % 86_400 > 80_000 { "Asia/Tokyo" } else { "UTC" };
    format!("window = \"month {zone}\"")
}

const SHARED: &str = "shared = true\nwithout_store = \"closed\"\nkey = [\"ip\"]\n";

/// Whether a denial that is remembered still holds, and for how long, is asked at one moment. This
/// asks so often that some requests come when a denial is nearly over.
#[test]
fn a_request_that_is_blocked_is_never_told_to_wait_for_nothing() {
    needs!(valkey());
    // A busy machine may not ask more often than the first limit allows.
    let is_enough = ["100/s", "10/s"].into_iter().any(|rate| {
        let blocked = blocked_under(&format!("{rate} burst 3"));
        println!("{blocked} blocked of 8000 under {rate}");
        blocked > 1_000
    });
    assert!(is_enough);
}

/// Asks two machines 8000 times for one client. Returns how many requests were blocked, each of
/// which was told to wait.
fn blocked_under(limit: &str) -> usize {
    let policy = format!("[policy.api]\n{SHARED}limits = \"{limit}\"\nmax_delay = \"50ms\"\n");
    let machines = Machines::start(2, &policy);
    let ask = async |machine: &Machine| {
        let mut client = Client::connect(&machine.agent.address).await.unwrap();
        let mut blocked = 0;
        for _ in 0..1_000 {
            let args = [("ip", address("192.0.2.1"))];
            let answer = client.ask(&[("api", &args)]).await.unwrap();
            if is_blocked(&answer) {
                assert!(number(&answer, "retry_after") > 0, "{answer:?}");
                blocked += 1;
            }
        }
        blocked
    };
    let ask = &ask;
    thread::scope(|scope| {
        // A busy machine asks more often on more connections.
        let asking = machines.each.iter().flat_map(|machine| [machine; 4]).map(|machine| {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(ask(machine))
            })
        });
        let asking: Vec<_> = asking.collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).sum()
    })
}

#[test]
fn a_count_is_exact_over_all_machines() {
    needs!(valkey());
    let month = month();
    let policy = |count: u32| {
        format!(
            "[policy.api]\n{SHARED}limits = {{ count = {count}, {month} }}\n\
             [policy.both]\nmessage = \"both\"\n{SHARED}\
             limits = [{{ count = 3, {month} }}, \"10/d burst 10\"]\n"
        )
    };
    let machines = Machines::start(2, &policy(10));
    let ask = |number: usize| machines.api(number % 2, "192.0.2.1");
    let answers: Vec<_> = (0..15).map(ask).collect();
    let allowed: Vec<_> = answers.iter().map(|answer| !is_blocked(answer)).collect();
    assert_eq!(allowed, [[true; 5].as_slice(), &[true; 5], &[false; 5]].concat());
    let left: Vec<_> = answers.iter().map(|answer| number(answer, "remaining")).collect();
    assert_eq!(left[..11], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]);
    assert!(number(&answers[14], "retry_after") > 0);
    assert!(!is_blocked(&machines.api(0, "192.0.2.2")), "another client");
    let explained =
        machines.run(1, &["explain", "--ask-store", "ip=192.0.2.1", "--message", "api"]);
    assert!(explained.contains("10 of 10 counted in this window"), "{explained}");
    assert!(explained.contains("a request now is blocked"), "{explained}");

    // Another count finds what is used.
    machines.reload(&policy(12));
    wait_until("what was denied is asked about again", || !is_blocked(&ask(0)));
    let allowed = (1..6).filter(|number| !is_blocked(&ask(*number))).count();
    assert_eq!(allowed, 1);

    // All limits or none: what the count denies does not use up the other limit.
    let both =
        |number: usize| machines.ask(number % 2, &[("both", &[("ip", address("192.0.2.3"))])]);
    let answers: Vec<_> = (0..9).map(both).collect();
    assert!(answers[..3].iter().all(|answer| !is_blocked(answer)));
    assert!(answers[3..].iter().all(is_blocked));
    let explained =
        machines.run(0, &["explain", "--ask-store", "ip=192.0.2.3", "--message", "both"]);
    assert!(
        explained.contains("3 of 3 counted") && explained.contains("7 of 10 free"),
        "{explained}"
    );

    // A reset makes the store forget it.
    let reset = machines.run(1, &["table", "reset", "192.0.2.1"]);
    assert!(reset.contains("the store "), "{reset}");
    wait_until("the client is free", || !is_blocked(&ask(0)));
}

#[test]
fn each_limit_says_what_is_left() {
    needs!(valkey());
    let policies = format!(
        "[policy.api]\n{SHARED}cost = \"n\"\nlimits = [{{ name = \"day\", rate = \"10/d\" }}, \
         {{ name = \"count\", count = 4, {} }}]\n",
        month()
    );
    let machines = Machines::start(2, &policies);
    let ask = |machine, cost: i32| {
        let args = [("ip", address("192.0.2.1")), ("n", cost.into())];
        let answer = machines.ask(machine, &[("api", &args)]);
        let limits = text(&answer, "ratelimit");
        let left = |name: &str| {
            let said = limits.split(&format!("\"api.{name}\";r=")).nth(1)?;
            said.split(';').next()?.parse::<u32>().ok()
        };
        let wait = number(&answer, "retry_after");
        (is_blocked(&answer), left("day"), left("count"), wait > 0)
    };
    assert_eq!(ask(0, 3), (false, Some(7), Some(1), false));
    assert_eq!(ask(1, 0), (false, Some(7), Some(1), false), "a cost of 0 asks");
    // The count is asked first, and denies.
    assert_eq!(ask(0, 2), (true, None, Some(1), true));
    assert_eq!(ask(1, 5), (true, Some(7), Some(1), true), "more than the count");
    assert_eq!(ask(1, 1), (false, Some(6), Some(0), false));
    assert_eq!(ask(0, 0), (false, Some(6), Some(0), true), "one of a cell would have to wait");
}

/// A client that is over its own limit takes no cell of a limit that it has together with others,
/// not even for a moment.
#[test]
fn a_clients_own_limit_is_asked_first() {
    needs!(valkey());
    // Without a rule, their order would depend on the names.
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let policy = |name: &str| {
        format!(
            "[policy.{name}]\nmessage = \"{name}\"\n{SHARED}limits = [{{ name = \"all\", \
             count = 1, key = [\"group\"], {0} }}, {{ name = \"own\", count = 1, {0} }}]\n",
            month()
        )
    };
    let machines = Machines::start(2, &NAMES.map(policy).concat());
    for name in NAMES {
        let ask = |machine, ip| {
            let args = [("ip", address(ip)), ("group", "all".into())];
            machines.ask(machine, &[(name, &args)])
        };
        assert!(!is_blocked(&ask(0, "192.0.2.1")));
        // Another client is denied by the limit of all together, and gets its own cell back.
        assert!(is_blocked(&ask(0, "192.0.2.2")));
        wait_until("the cell is given back", || {
            let args =
                ["explain", "--ask-store", "--message", name, "ip=192.0.2.2", "group=str:all"];
            machines.run(0, &args).contains("0 of 1 counted in this window")
        });
        // This machine has to ask the store.
        let denied = ask(1, "192.0.2.1");
        assert!(is_blocked(&denied));
        let limits = text(&denied, "ratelimit");
        assert!(limits.starts_with(&format!("\"{name}.own\";r=0;")), "{limits}");
        assert!(!limits.contains("all"), "{limits}");
    }
}

/// The cells for which an agent was killed are charged at most, and never given out again.
#[test]
fn an_agent_that_is_killed_takes_nothing_along() {
    needs!(valkey());
    const COUNT: usize = 1_500;
    let policies = format!("[policy.api]\n{SHARED}limits = {{ count = {COUNT}, {} }}\n", month());
    let mut machines = Machines::start(2, &policies);
    // No client of another program gets this port while the agent is away.
    let place = free_port(Ipv4Addr::LOCALHOST.into()).to_string();
    let restart = |machine: &mut Machine| {
        machine.agent.process.kill();
        let table = machine.directory.path().join("table");
        let file = machine.directory.path().join("gcra-spoa.toml");
        let args = [&admin::ADMIN, &["--config", file.to_str().unwrap()][..]].concat();
        machine.agent = Agent::start_at(&table, &place, &args);
    };
    restart(&mut machines.each[0]);
    let addresses: Vec<_> =
        machines.each.iter().map(|machine| machine.agent.address.clone()).collect();
    let (allowed, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..6)
        .map(|number| {
            let (address, allowed, lost) =
                (addresses[number % 2].clone(), allowed.clone(), lost.clone());
            thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(ask_until_blocked(&address, &allowed, &lost));
            })
        })
        .collect();
    for share in 1..=3 {
        wait_until("some are allowed", || allowed.load(Ordering::Relaxed) > share * COUNT / 5);
        restart(&mut machines.each[0]);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let [allowed, lost] = [allowed, lost].map(|count| count.load(Ordering::Relaxed));
    assert!(allowed <= COUNT && allowed + lost >= COUNT, "{allowed} and {lost}");
    let explained = machines.run(1, &["explain", "--ask-store", "ip=192.0.2.1"]);
    assert!(explained.contains("1500 of 1500 counted"), "{explained}");
}

/// Asks an agent until it denies a request. Adds up those that it allows, and those of which it is
/// not known, because the agent was killed over them.
async fn ask_until_blocked(address: &str, allowed: &AtomicUsize, lost: &AtomicUsize) {
    let end = Instant::now() + support::PATIENCE;
    while Instant::now() < end {
        let Ok(mut client) = Client::connect(address).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        loop {
            let answer = client.ask(&[("api", &[("ip", self::address("192.0.2.1"))])]).await;
            let Ok(answer) = answer else {
                lost.fetch_add(1, Ordering::Relaxed);
                break;
            };
            if !is_blocked(&answer) {
                allowed.fetch_add(1, Ordering::Relaxed);
            } else if reason(&answer) == "limit" {
                return;
            }
        }
    }
    panic!("it was never blocked");
}

#[test]
fn failed_logins_on_all_machines_count_together() {
    needs!(valkey());
    let machines = Machines::start(
        2,
        &format!(
            "[policy.api]\n{SHARED}limits = \"4/d burst 4\"\nsettle = \"failed\"\nmax_debt = \
             \"1d\"\n"
        ),
    );
    let failed = |machine| machines.ask(machine, &[("failed", &[("ip", address("192.0.2.1"))])]);
    for machine in [0, 1, 0, 1, 0, 1, 0, 1] {
        let look = machines.api(machine, "192.0.2.1");
        assert!(!is_blocked(&look), "a request costs nothing");
        assert_eq!(number(&look, "remaining"), 4);
    }
    for (machine, left) in [(0, 3), (1, 2), (0, 1), (1, 0), (0, 0)] {
        assert_eq!(number(&failed(machine), "remaining"), left);
    }
    for machine in [0, 1] {
        let look = machines.api(machine, "192.0.2.1");
        assert!(is_blocked(&look));
        // Five are owed, and one must be free.
        let wait = number(&look, "retry_after");
        assert!((40_000..=2 * 21_600).contains(&wait), "{wait}");
    }
    let explained = machines.run(1, &["explain", "--ask-store", "ip=192.0.2.1"]);
    assert!(explained.contains("a request now is blocked"), "{explained}");
    // An agent notes that it uses the store some time after it has begun to.
    wait_until("an agent says that it uses the store", || {
        let explained = machines.run(1, &["explain", "ip=192.0.2.1"]);
        explained.contains("the store is asked about a request now")
    });
    assert!(!is_blocked(&machines.api(1, "192.0.2.2")), "another client");
    let explained = machines.run(1, &["explain", "--ask-store", "ip=192.0.2.2"]);
    assert!(explained.contains("a request now is allowed, and reserves no cell"), "{explained}");
    let settled = &machines.each[0].status()["policies"][0];
    assert_eq!(settled["settled"]["charged"], 3, "{settled}");
    assert_eq!(settled["settled_cells"]["overdrawn"], 1, "{settled}");
}

#[test]
fn what_is_reserved_on_one_machine_is_settled_on_another() {
    needs!(valkey());
    let policies = format!(
        "[policy.api]\n{SHARED}limits = [\"100000/d\", {{ count = 50000, {} }}]\n\
         settle = \"usage\"\ncost = \"tokens\"\nreserve = \"estimate\"\nmax_debt = \"30d\"\n",
        month()
    );
    let machines = Machines::start(2, &policies);
    let ask = |machine, estimate: i32| {
        let args = [("ip", address("192.0.2.1")), ("estimate", estimate.into())];
        machines.ask(machine, &[("api", &args)])
    };
    let usage = |machine, reserved: &Answer, tokens: i32| {
        let reserved = reserved.var(Scope::Transaction, "reserved").unwrap_or(Value::Null);
        let args =
            [("ip", address("192.0.2.1")), ("tokens", tokens.into()), ("reserved", reserved)];
        machines.ask(machine, &[("usage", &args)])
    };
    let explained =
        || machines.run(0, &["explain", "--ask-store", "ip=192.0.2.1", "estimate=int64:1"]);
    // More than a lease could hold, and given back exactly.
    let first = ask(0, 20_000);
    assert!(!is_blocked(&first));
    assert_eq!(number(&first, "remaining"), 30_000, "of the count");
    assert_eq!(number(&usage(1, &first, 12_000), "remaining"), 38_000);
    // The next one costs more than it reserves.
    let second = ask(1, 3_000);
    assert_eq!(number(&usage(0, &second, 30_000), "remaining"), 8_000);
    let said = explained();
    assert!(said.contains("42000 of 50000 counted in this window"), "{said}");
    // Of the other limit a cell comes back in 0.9 s.
    let owed = said.split("in the store: ").find_map(|it| it.split_once(" cells owed")).unwrap();
    let owed: u32 = owed.0.parse().unwrap();
    assert!((41_000..=42_000).contains(&owed), "{said}");
    // Too much for the count: nothing is charged under the other limit.
    let third = ask(0, 9_000);
    assert!(is_blocked(&third) && reason(&third) == "limit");
    assert_eq!(third.var(Scope::Transaction, "reserved"), None);
    wait_until("what was charged is given back", || {
        let said = explained();
        let owed = said.split("in the store: ").find_map(|it| it.split_once(" cells owed"));
        owed.unwrap().0.parse::<u32>().unwrap() <= 42_000
    });
    // Cells that are given back on a machine end what it has remembered of a denial.
    let all = ask(0, 8_000);
    assert!(!is_blocked(&all) && is_blocked(&ask(0, 9)));
    usage(0, &all, 0);
    let few = ask(0, 9);
    assert!(!is_blocked(&few));
    usage(0, &few, 0);
    // Beyond the count, into debt.
    let fourth = ask(1, 8_000);
    assert!(!is_blocked(&fourth));
    assert_eq!(number(&usage(1, &fourth, 20_000), "remaining"), 0);
    assert!(is_blocked(&ask(0, 0)), "a request needs a cell");
    let cells = &machines.each[1].status()["policies"][0]["settled_cells"];
    assert_eq!(
        (&cells["charged"], &cells["given_back"]),
        (&12_000.into(), &8_000.into()),
        "{cells}"
    );
}

/// The moments at which requests go on, by the answers: one cell comes back every 10 s.
#[test]
fn machines_keep_one_queue() {
    needs!(valkey());
    let policies =
        format!("[policy.api]\n{SHARED}limits = \"6/m burst 2\"\nmax_delay = \"60s\"\n");
    let machines = Machines::start(2, &policies);
    let start = Instant::now();
    let (mut asked, mut client) = (Vec::new(), String::new());
    // After a pause longer than that, a cell may have come back that nobody has waited for.
    let is_fast = (1..=5).any(|attempt| {
        client = format!("192.0.2.{attempt}");
        let ask = |number: usize| {
            let before = start.elapsed();
            let answer = machines.api(number % 2, &client);
            (before, start.elapsed(), answer)
        };
        asked = (0..12).map(ask).collect();
        start.elapsed() - asked[0].0 < Duration::from_secs(10)
    });
    assert!(is_fast, "{asked:?}");
    let allowed: Vec<_> = asked.iter().filter(|(_, _, answer)| !is_blocked(answer)).collect();
    // Two at once, and six in a minute.
    assert_eq!(allowed.len(), 8, "{asked:?}");
    for (place, (before, after, answer)) in allowed.iter().enumerate() {
        let delay = Duration::from_millis(number(answer, "delay_ms"));
        // The earliest that this one may go on if the first request came at the latest moment,
        // and the latest.
        let due = Duration::from_secs(10 * (u64::try_from(place).unwrap().saturating_sub(1)));
        let (first, earliest) = (asked[0].0, asked[0].1);
        if delay > Duration::ZERO {
            assert!(*after + delay >= first + due, "{place}: {asked:?}");
            assert!(*before + delay <= earliest + due + Duration::from_millis(1), "{asked:?}");
        }
    }
    // By the clock of the store, the moments are exact.
    let files = machines.each.iter().map(|machine| machine.directory.path().join("audit"));
    let files: Vec<_> = files.collect();
    let audit = |rate: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.arg("audit").args(&files).args(["--rate", rate, "--burst", "2"]);
        command.status().unwrap().code()
    };
    assert_eq!((audit("6/m"), audit("5/m")), (Some(0), Some(1)));
    let lines = fs::read_to_string(&files[0]).unwrap();
    let is_by_store = |line: &&str| line.starts_with('@') && line.ends_with(" allowed");
    assert!(lines.lines().filter(is_by_store).count() >= 3, "{lines}");
    let denied = asked.iter().find(|(_, _, answer)| is_blocked(answer)).unwrap();
    assert!((1..=10).contains(&number(&denied.2, "retry_after")), "{denied:?}");
    // Its queue is full now, and has a place soon.
    let client = format!("ip={client}");
    let explain = ["explain", "--ask-store", &client];
    let explained = machines.run(0, &explain);
    let blocked = explained.contains("a request now is blocked; the next one is allowed in ");
    let delayed = explained.contains("a request now is allowed with a delay of ");
    assert!(blocked || delayed, "{explained}");
    let delayed =
        || machines.run(0, &explain).contains("a request now is allowed with a delay of");
    wait_until("there is a place in the queue", delayed);
    let reset = machines.output(0, &["table", "reset", &client]);
    let said = String::from_utf8_lossy(&reset.stderr);
    assert!(
        said.contains("a machine that has just blocked the client does so for up to 1 s more")
    );
    assert_eq!(number(&denied.2, "delay_ms"), 0);
}

/// All limits are charged or none, also where requests wait for them.
#[test]
fn what_is_denied_takes_no_place_in_a_queue() {
    needs!(valkey());
    // In this test no cell comes back.
    let policies = format!(
        "[policy.counted]\n{SHARED}max_delay = \"5d\"\n\
         limits = [\"1/d burst 1\", {{ count = 2, {} }}]\n\
         [policy.group]\n{SHARED}max_delay = \"5d\"\n\
         limits = [{{ name = \"own\", rate = \"1/d\", burst = 1 }}, \
         {{ name = \"group\", rate = \"1/d\", burst = 3, key = [\"group\"] }}]\n",
        month()
    );
    let machines = Machines::start(3, &policies);
    let ask = |message: &str, machine: usize, ip: &str| {
        let args = [("ip", address(ip)), ("group", "all".into())];
        machines.ask(machine, &[(message, &args)])
    };
    let owed = |message: &str, limit: &str| {
        let args =
            ["explain", "--ask-store", "--message", message, "ip=192.0.2.1", "group=str:all"];
        let said = machines.run(0, &args);
        let line = said.lines().find(|line| line.contains(&format!("limit '{limit}'")));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        let owed = line.split("in the store: ").nth(1).unwrap().split(' ').next().unwrap();
        owed.trim_end_matches(':').parse::<u32>().unwrap_or_else(|_| panic!("{line}"))
    };
    let blocked = |message: &'static str, ip: &'static str| {
        move |number: usize| is_blocked(&ask(message, number % 2, ip))
    };
    let ones: Vec<_> = (0..9).map(blocked("counted", "192.0.2.1")).collect();
    assert_eq!(ones.iter().filter(|blocked| !**blocked).count(), 2, "{ones:?}");
    assert_eq!(owed("counted", "counted.1"), 2, "those that the count denies take no place");

    // One at once and 5 that wait; of all together 3 and 5.
    let ones: Vec<_> = (0..9).map(|number| ask("group", number % 2, "192.0.2.1")).collect();
    let allowed: Vec<_> = ones.iter().filter(|answer| !is_blocked(answer)).collect();
    assert_eq!(allowed.len(), 6, "{ones:?}");
    // The last one has its turn after five days in its own queue, and after three in the group's.
    let days = number(allowed[5], "delay_ms").div_ceil(86_400_000);
    assert_eq!(days, 5);
    let others: Vec<_> = (0..9).map(blocked("group", "192.0.2.2")).collect();
    assert_eq!(others.iter().filter(|blocked| !**blocked).count(), 2, "{others:?}");
    // This one is denied by the group, and its own queue is empty after that. The machine has not
    // been told before that the group is denied.
    assert!(is_blocked(&ask("group", 2, "192.0.2.3")));
    assert_eq!(owed("group", "group.own"), 6);
    assert_eq!(owed("group", "group.group"), 8);
    let key = ["ip=192.0.2.3", "group=str:all"];
    let args = [&["explain", "--ask-store", "--message", "group"], &key[..]].concat();
    let said = machines.run(0, &args);
    assert!(said.contains("nothing is owed or lent, so all 1 are free"), "{said}");
}

#[test]
fn what_is_owed_on_all_machines_slows_a_client() {
    needs!(valkey());
    let policies = format!(
        "[policy.api]\n{SHARED}limits = \"10/d burst 10\"\nbandwidth = {{ full = \"10m\", least = \
         \"50k\" }}\n"
    );
    let machines = Machines::start(2, &policies);
    let (full, least) = (10_u64 << 20, 50_u64 << 10);
    for used in 1..=10 {
        let answer = machines.api(usize::try_from(used).unwrap() % 2, "192.0.2.1");
        let line = full - (full - least) * used / 10;
        // A little of the debt is paid off meanwhile.
        let bytes = number(&answer, "bandwidth");
        assert!((line..line + full / 20).contains(&bytes), "{bytes} for {used}");
    }
    assert!(is_blocked(&machines.api(0, "192.0.2.1")));
}

#[test]
fn a_client_that_is_blocked_does_not_flood_the_store() {
    needs!(valkey());
    let policies = format!("[policy.api]\n{SHARED}limits = {{ count = 1, {} }}\n", month());
    let machines = Machines::start(1, &policies);
    assert!(!is_blocked(&machines.api(0, "192.0.2.1")));
    let charges = || machines.each[0].status()["store"]["charges"].as_u64().unwrap();
    let (before, start) = (charges(), Instant::now());
    for _ in 0..500 {
        assert!(is_blocked(&machines.api(0, "192.0.2.1")));
    }
    // One in a second at most, and the status is up to date.
    let most = start.elapsed().as_secs() + 2;
    assert!((1..=most).contains(&(charges() - before)), "{} of {most}", charges() - before);
}

#[test]
fn without_the_store_a_policy_is_closed_or_open_for_a_time() {
    needs!(valkey());
    let policy = |name: &str, without: &str| {
        format!(
            "[policy.{name}]\nshared = true\nwithout_store = {without}\nkey = [\"ip\"]\n\
             limits = \"2/d burst 2\"\nsettle = \"{name}-failed\"\nreserve = 1\n"
        )
    };
    let policies = policy("closed", "\"closed\"") + &policy("open", "\"open\"\nopen_for = \"1h\"");
    let mut machines = Machines::start(1, &policies);
    let ask = |machines: &Machines, message: &str| {
        machines.ask(0, &[(message, &[("ip", address("192.0.2.1"))])])
    };
    for message in ["closed", "open"] {
        assert!(!is_blocked(&ask(&machines, message)));
    }
    machines.servers[0].kill();
    machines.each[0].wait_for("cannot be used");
    let closed = ask(&machines, "closed");
    assert!(is_blocked(&closed) && reason(&closed) == "store");
    for _ in 0..5 {
        let open = ask(&machines, "open");
        assert!(!is_blocked(&open));
        // Nothing is charged, so that the response gives nothing back.
        assert_eq!(open.var(Scope::Transaction, "reserved"), None);
    }
    ask(&machines, "open-failed");
    let status = machines.each[0].status();
    assert_eq!(status["policies"][1]["settled"]["no_store"], 1, "{status}");
    machines.servers[0].restart();
    wait_until("it is used again", || !is_blocked(&ask(&machines, "closed")));
}

/// A request that one limit denies has its cells back from the others when it is answered, also on
/// other machines.
#[test]
fn cells_of_a_denied_request_are_free_when_it_is_answered() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let policies = "[policy.api]\nshared = true\nwithout_store = \"closed\"\nkey = [\"ip\"]\n\
                    bandwidth = { full = \"10m\", least = \"50k\" }\nlimits = [\
                    { name = \"each\", rate = \"2/d\", burst = 2 }, \
                    { name = \"group\", rate = \"1/d\", burst = 1, key = [\"group\"] }]\n";
    let far = Proxy::start(server.address());
    let urls = [format!("redis://{}", far.address()), server.url()];
    let each = urls.map(|url| Machine::start(&config_at(&url, "", policies)));
    let machines = Machines::of(each.into(), vec![server]);
    let ask = |machine: usize, ip: &str, group: &str| {
        machines.ask(machine, &[("api", &[("ip", address(ip)), ("group", group.into())])])
    };
    far.delay(Duration::from_millis(100));
    assert!(!is_blocked(&ask(0, "192.0.2.99", "used-up")));
    for client in 1..=3 {
        let ip = format!("192.0.2.{client}");
        assert!(!is_blocked(&ask(1, &ip, &ip)));
        // Whichever of its limits is charged first.
        assert!(is_blocked(&ask(0, &ip, "used-up")));
        assert!(!is_blocked(&ask(1, &ip, &format!("other-{ip}"))), "client {client}");
    }
}

/// While a request waits to hear that its second limit denies it, what it has taken under the
/// first one drains, and others are allowed for that. (On a machine that stands still for a while
/// the others come too late to be allowed twice.)
#[test]
fn cells_of_a_denied_request_that_have_drained_make_no_room() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let policies = format!(
        "[policy.api]\n{SHARED}cost = \"cost\"\nlimits = [\"25/s burst 20\", {{ name = \
         \"group\", rate = \"20/d\", burst = 20, key = [\"group\"] }}]\n\
         bandwidth = {{ full = \"10m\", least = \"50k\" }}\n"
    );
    let far = Proxy::start(server.address());
    let urls = [format!("redis://{}", far.address()), server.url()];
    let each = urls.map(|url| Machine::start(&config_at(&url, "", &policies)));
    let machines = Machines::of(each.into(), vec![server]);
    let ask = |machine: usize, ip: &str, group: &str, cost: i32| {
        let args = [("ip", address(ip)), ("group", group.into()), ("cost", cost.into())];
        is_blocked(&machines.ask(machine, &[("api", &args)]))
    };
    assert!(!ask(1, "192.0.2.9", "used-up", 20));
    let before = machines.servers[0].say(&["DBSIZE"]);
    far.delay(Duration::from_millis(200));
    thread::scope(|scope| {
        let address = &machines.each[0].agent.address;
        let denied = scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let ip = self::address("192.0.2.1");
                let args = [("ip", ip), ("group", "used-up".into()), ("cost", 20.into())];
                Client::connect(address).await.unwrap().ask(&[("api", &args)]).await.unwrap()
            })
        });
        wait_until("the cells are taken", || machines.servers[0].say(&["DBSIZE"]) != before);
        wait_until("most of them have drained", || !ask(1, "192.0.2.1", "first", 17));
        assert!(is_blocked(&denied.join().unwrap()));
        ask(1, "192.0.2.1", "second", 17);
    });
    let files = machines.each.iter().map(|machine| machine.directory.path().join("audit"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    command.arg("audit").args(files).args(["--rate", "25/s", "--burst", "20"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The limits of a request may be on different servers of a cluster.
#[test]
fn what_one_server_has_charged_is_given_back_if_another_is_away() {
    needs!(valkey());
    let policy = format!(
        "[policy.api]\n{SHARED}limits = [{{ count = 5, {0} }}, {{ count = 9, key = [\"group\"], \
         {0} }}]\n",
        month()
    );
    let mut machines = Machines::start_with(cluster(2), 1, &policy);
    machines.servers[1].kill();
    // Of so many clients, some have their own limit on one server and that of their group on the
    // other one.
    let ask = |client: &u8| {
        let args =
            [("ip", address(&format!("192.0.2.{client}"))), ("group", i32::from(*client).into())];
        let answer = machines.ask(0, &[("api", &args)]);
        assert!(!is_blocked(&answer) || reason(&answer) == "store");
        is_blocked(&answer)
    };
    let (blocked, allowed): (Vec<u8>, Vec<u8>) = (1..=20).partition(ask);
    assert!(blocked.len() > 1 && allowed.len() > 1, "{blocked:?}");
    machines.servers[1].restart();
    let counted = |client: &u8, count: u8| {
        let (ip, group) = (format!("ip=192.0.2.{client}"), format!("group=int32:{client}"));
        wait_until("the store counts what was allowed, and no more", || {
            let explained = machines.run(0, &["explain", "--ask-store", &ip, &group]);
            explained.contains(&format!("{count} of 5 counted in this window"))
                && explained.contains(&format!("{count} of 9 counted in this window"))
        });
    };
    blocked.iter().for_each(|client| counted(client, 0));
    allowed.iter().for_each(|client| counted(client, 1));
}

//! Agents of one machine whose stores differ, as while `[store]` is changed and agents are
//! restarted one by one. And machines, one of which is a copy of the other.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use spop_codec::Value;

use crate::support::spop::Spop;
use crate::support::valkey::{Server, valkey};
use crate::support::{Agent, PATIENCE, admin, directory, needs, wait_until};

const RATE: f64 = 100.0;
const BURST: f64 = 20.0;

fn store() -> Server {
    Server::start(&["--maxmemory-policy", "noeviction"])
}

/// Starts an agent with a limit of [`RATE`] and [`BURST`], and waits until it has reached its
/// store. `salt` is a file beside the table.
fn agent(table: &Path, name: &str, server: &Server, salt: Option<&str>) -> Agent {
    let file = table.with_file_name(format!("{name}.toml"));
    let salt = salt.map_or_else(String::new, |salt| {
        let path = table.with_file_name(format!("{name}.salt"));
        fs::write(&path, salt).unwrap();
        format!("salt_file = \"{}\"\n", path.display())
    });
    let config = format!(
        "[store]\nurl = \"{}\"\nwait = \"1s\"\n{salt}[policy.check]\n\
         limits = [\"{RATE}/s burst {BURST}\"]\nkey = [\"ip\"]\nshared = true\n\
         without_store = \"closed\"\n",
        server.url()
    );
    fs::write(&file, config).unwrap();
    let (agent, _) = admin::start(table, &["--config", file.to_str().unwrap()]);
    wait_until("the store is used", || has_line(&agent, "is used"));
    agent
}

fn has_line(agent: &Agent, said: &str) -> bool {
    agent.process.lines().iter().any(|line| line.contains(said))
}

/// Cells that were spent between two moments.
#[derive(Clone, Copy)]
struct Spent {
    from: Duration,
    to: Duration,
    cells: usize,
}

/// The cells that clients were allowed.
#[derive(Default)]
struct Judge {
    spent: Mutex<Vec<Spent>>,
}

impl Judge {
    /// Sends requests to an agent for so long, several times what the limit allows.
    fn ask(&self, start: Instant, agent: &str, time: Duration) {
        let mut spop = Spop::connect(agent);
        let client = [("ip", Value::from("192.0.2.1".parse::<std::net::IpAddr>().unwrap()))];
        let end = start.elapsed() + time;
        while start.elapsed() < end {
            let from = start.elapsed();
            let cells = usize::from(!spop.is_blocked(&client));
            let to = start.elapsed();
            self.spent.lock().unwrap().push(Spent { from, to, cells });
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn cells(&self) -> usize {
        self.spent.lock().unwrap().iter().map(|spent| spent.cells).sum()
    }

    /// How many cells more than `limits` such limits allow were spent for sure, in the worst
    /// interval.
    fn too_many(&self, limits: f64) -> f64 {
        let mut spent = self.spent.lock().unwrap().clone();
        spent.sort_by_key(|spent| spent.to);
        let most = |first: Duration| {
            let mut cells = 0_usize;
            let after = spent.iter().filter(|spent| spent.from >= first);
            let over = after.map(|spent| {
                cells += spent.cells;
                let time = (spent.to - first).as_secs_f64();
                f64::from(u32::try_from(cells).unwrap()) - limits * (BURST + RATE * time)
            });
            over.fold(f64::MIN, f64::max)
        };
        spent.iter().map(|spent| most(spent.from)).fold(f64::MIN, f64::max)
    }
}

/// Asks both agents at the same time.
fn ask_both(agents: [&Agent; 2], time: Duration) -> Judge {
    let (judge, start) = (Judge::default(), Instant::now());
    // A busy machine may need longer until enough was allowed.
    while judge.cells() <= 20 {
        assert!(start.elapsed() < PATIENCE, "{}", judge.cells());
        thread::scope(|scope| {
            for agent in agents {
                scope.spawn(|| judge.ask(start, &agent.address, time));
            }
        });
    }
    judge
}

const WHILE: Duration = Duration::from_secs(6);

#[test]
fn agents_of_one_table_with_two_stores_lend_the_limit_of_each_at_most() {
    needs!(valkey());
    let (directory, servers) = (directory(), [store(), store()]);
    let table = directory.path().join("table");
    let first = agent(&table, "first", &servers[0], None);
    let second = agent(&table, "second", &servers[1], None);
    let judge = ask_both([&first, &second], WHILE);
    assert!(judge.too_many(2.0) <= 0.0, "{} too many", judge.too_many(2.0));
    assert!(
        has_line(&second, "table.leases was of another store"),
        "{:?}",
        second.process.lines()
    );
    wait_until("the first one says it, too", || has_line(&first, "uses another store"));
}

#[test]
fn another_salt_is_another_store() {
    needs!(valkey());
    let (directory, server) = (directory(), store());
    let table = directory.path().join("table");
    let [one, other] = ["0123456789abcdef", "fedcba9876543210"];
    let first = agent(&table, "first", &server, Some(one));
    let second = agent(&table, "second", &server, Some(other));
    let judge = ask_both([&first, &second], WHILE);
    assert!(judge.too_many(2.0) <= 0.0, "{} too many", judge.too_many(2.0));
}

#[test]
fn agents_that_get_another_store_one_by_one_lend_the_limit_of_each_at_most() {
    needs!(valkey());
    let (directory, servers) = (directory(), [store(), store()]);
    let table = directory.path().join("table");
    let start = |name, server| agent(&table, name, &servers[server], None);
    let (first, second) = (start("first", 0), start("second", 0));
    let (judge, began) = (Judge::default(), Instant::now());
    thread::scope(|scope| {
        scope.spawn(|| judge.ask(began, &second.address, WHILE));
        scope.spawn(|| {
            judge.ask(began, &first.address, WHILE / 3);
            drop(first);
            let first = start("first", 1);
            judge.ask(began, &first.address, WHILE / 2);
        });
    });
    drop(second);
    // From here on, all are of one store again.
    let (second, third) = (start("second", 1), start("third", 1));
    assert!(!has_line(&third, "another store"), "{:?}", third.process.lines());
    let _ = began;
    let again = ask_both([&second, &third], WHILE / 3);
    assert!(judge.too_many(2.0) <= 0.0, "{} too many", judge.too_many(2.0));
    assert!(again.too_many(1.0) <= 0.0, "{} too many", again.too_many(1.0));
}

#[test]
fn a_copy_of_a_table_and_its_leases_is_another_machine() {
    needs!(valkey());
    let (directory, server) = (directory(), store());
    let table = directory.path().join("table");
    let first = agent(&table, "first", &server, None);
    let judge = Judge::default();
    judge.ask(Instant::now(), &first.address, Duration::from_millis(100));
    let copy = directory.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for name in ["table", "table.leases"] {
        fs::copy(directory.path().join(name), copy.join(name)).unwrap();
    }
    let second = agent(&copy.join("table"), "second", &server, None);
    let judge = ask_both([&first, &second], WHILE);
    assert!(judge.too_many(1.0) <= 0.0, "{} too many", judge.too_many(1.0));
    assert!(has_line(&second, "was a copy"), "{:?}", second.process.lines());
}

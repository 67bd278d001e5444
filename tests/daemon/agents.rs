//! Several agents of one table, seen through one agent: `/status` and `top` tell about all, and no
//! agent that is slow, stopped, dead or something else holds them up.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gcra_table::Table;
use gcra_table::board::Profile;
use rustix::process::Signal;
use serde_json::Value as Json;
use spop_codec::Value;

use crate::support;
use crate::support::admin::{get, start, status, top};
use crate::support::spop::Spop;
use crate::support::{Agent, directory, wait_until};

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<std::net::IpAddr>().unwrap())
}

/// The entry of `agents` for the agent with this process id.
fn entry(status: &Json, pid: u32) -> Json {
    let agents = status["agents"].as_array().unwrap();
    agents.iter().find(|agent| agent["pid"] == pid).cloned().unwrap_or_default()
}

/// The reason in its entry, if there is no status.
fn why(status: &Json, pid: u32) -> String {
    entry(status, pid)["why"].as_str().unwrap_or_default().to_owned()
}

fn clients(list: &Json) -> Vec<(&str, u64)> {
    let clients = list.as_array().unwrap().iter();
    clients
        .map(|client| (client["client"].as_str().unwrap(), client["requests"].as_u64().unwrap()))
        .collect()
}

/// The agents of the shipped unit have other addresses than the default one.
#[test]
fn top_finds_the_agents_of_a_table() {
    let directory = directory();
    let table = directory.path().join("table");
    let name = table.to_str().unwrap();
    let run = || {
        let mut command = Command::new(support::agent_binary());
        let output = command.args(["top", "--once", "--table", name]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), error)
    };
    let silent = Agent::start(&table, &["--rate", "10/h"]);
    let none = format!("no running agent of the table {name} has an --admin");
    wait_until(&format!("the agent without --admin has introduced itself: {none}"), || {
        let (is_success, _, error) = run();
        !is_success && error.contains(&none)
    });
    let (agent, admin) = start(&table, &["--rate", "10/h"]);
    wait_until("the agent with --admin is found", || {
        let (is_success, page, _) = run();
        is_success && page.contains("agents") && page.contains("gcra-spoa")
    });
    drop((silent, agent, admin));
}

#[test]
fn any_agent_tells_about_all_of_its_table() {
    let directory = directory();
    let table = directory.path().join("table");
    let args = ["--rate", "10/h", "--key", "ip"];
    let (first, first_admin) = start(&table, &args);
    let (second, second_admin) = start(&table, &args);
    let silent = Agent::start(&table, &args);
    // The limit is shared, so that the second one blocks everything from this client.
    let ask = |agent: &Agent, client, times| {
        Spop::connect(&agent.address).allowed(&[("ip", ip(client))], times)
    };
    assert_eq!(ask(&first, "192.0.2.1", 25), 10);
    assert_eq!(ask(&second, "192.0.2.1", 5), 0);
    assert_eq!(ask(&second, "192.0.2.2", 14), 10);
    assert_eq!(ask(&silent, "192.0.2.1", 1), 0);

    for admin in [&first_admin, &second_admin] {
        let mut told = Json::Null;
        wait_until("all agents have introduced themselves", || {
            told = status(admin);
            let agents = told["agents"].as_array().unwrap();
            agents.len() == 3 && told["together"]["agents"] == 2
        });
        let together = &told["together"]["policies"][0];
        assert_eq!(together["decisions"]["blocked"], 24);
        assert_eq!(together["decisions"]["allowed"], 20);
        assert_eq!(clients(&together["top_blocked"]), [("192.0.2.1", 20), ("192.0.2.2", 4)]);
        assert_eq!(clients(&together["top_allowed"]), [("192.0.2.1", 10), ("192.0.2.2", 10)]);
        assert!(together["top_blocked"][0]["per_second"].as_f64().unwrap() > 0.0);
        assert_eq!(told["together"]["notifies"]["answered"], 44);
        // The agent's own numbers stay its own.
        assert_eq!(told["agents"][0]["this_agent"], true);
        assert_eq!(told["agents"][0]["pid"], told["pid"]);
        assert_eq!(told["agents"][0]["status"]["notifies"], told["notifies"]);
        assert!(told["notifies"]["answered"].as_u64().unwrap() < 30);
        wait_until("the limits of all are known", || {
            told = status(admin);
            let agents = told["agents"].as_array().unwrap();
            agents.len() == 3 && agents.iter().all(|agent| agent["same_limits"] == true)
        });
        assert_eq!(why(&told, silent.process.id()), "it has no --admin");
        let own: Json = serde_json::from_str(&get(admin, "/status?own").body).unwrap();
        assert_eq!(own["pid"], told["pid"]);
        assert_eq!((&own["agents"], &own["together"]), (&Json::Null, &Json::Null));
    }

    // By name, and an agent that is asked twice is counted once.
    let localhost = first_admin.replace("127.0.0.1", "localhost");
    let parts = [
        "gcra-spoa 0.1.0: 2 of 3 agents answered, serving, up ",
        "\nBLOCKED, last ",
        "\n192.0.2.1 ",
        "  it has no --admin\n",
    ];
    let page = top(&["--admin", &localhost, "--admin", &second_admin], &parts);
    let line = page.lines().find(|line| line.starts_with("192.0.2.1 ")).unwrap();
    assert!(line.split_whitespace().any(|word| word == "20"), "{page}");
    let mut json = Json::Null;
    wait_until("all have answered in time", || {
        let page = top(&["--json", "--admin", &first_admin, "--admin", &second_admin], &[]);
        json = serde_json::from_str(&page).unwrap();
        json["together"]["agents"] == 2 && json["no_answer"] == Json::Array(Vec::new())
    });
    assert_eq!(json["together"]["notifies"]["answered"], 44);
    assert_eq!(json["agents"].as_array().unwrap().len(), 3);
}

#[test]
fn an_agent_that_is_stopped_or_killed_is_named() {
    let directory = directory();
    let table = directory.path().join("table");
    let (first, admin) = start(&table, &["--rate", "10/h"]);
    let (mut other, other_admin) = start(&table, &["--rate", "10/h"]);
    let pid = other.process.id();
    let stop = || {
        wait_until("the other one answers", || entry(&status(&admin), pid)["status"].is_object());
        other.process.signal(Signal::STOP);
    };
    stop();
    let no_answer = format!("no answer from {other_admin}");
    wait_until("it does not answer", || {
        let why = why(&status(&admin), pid);
        // On a busy machine it can be stopped for so long that it is not asked any more.
        if why == "it is stopped (SIGSTOP)" {
            other.process.signal(Signal::CONT);
            stop();
        }
        why.starts_with(&no_answer)
    });
    // Nothing else waits for it.
    assert_eq!(get(&admin, "/healthz").status, 200);
    assert_eq!(get(&admin, "/metrics").status, 200);
    assert_eq!(Spop::connect(&first.address).allowed(&[("ip", ip("192.0.2.1"))], 3), 3);
    wait_until("what the first one did is told", || {
        let together = status(&admin)["together"].clone();
        together["agents"] == 1 && together["notifies"]["answered"] == 3
    });
    top(&["--admin", &admin], &[": 1 of 2 agents answered, "]);
    other.process.signal(Signal::CONT);
    wait_until("it answers again", || entry(&status(&admin), pid)["status"].is_object());
    other.process.kill();
    wait_until("it is not there", || !entry(&status(&admin), pid)["status"].is_object());
    let killed = || status(&admin)["killed"].clone();
    wait_until("it is among those that were killed", || {
        killed()[0]["pid"] == pid && killed()[0]["pid_namespace"] == "ours"
    });
    // One that has said that it stops is not.
    let (third, _) = start(&table, &["--rate", "10/h"]);
    let pid = third.process.id();
    third.stop();
    wait_until("it has left", || entry(&status(&admin), pid).is_null());
    assert_eq!(killed().as_array().unwrap().len(), 1);
}

#[test]
fn agents_with_other_limits_are_counted() {
    let directory = directory();
    let table = directory.path().join("table");
    let (_first, admin) = start(&table, &["--rate", "10/h"]);
    let disagreeing = || {
        let text = get(&admin, "/metrics").body;
        let line = text.lines().find(|line| line.starts_with("gcra_table_disagreeing_agents "));
        line.unwrap().rsplit_once(' ').unwrap().1.to_owned()
    };
    let (same, _) = start(&table, &["--rate", "10/h"]);
    let (other, _) = start(&table, &["--rate", "20/h"]);
    wait_until("one is counted", || disagreeing() == "1");
    let mut same_limits = [Json::Null, Json::Null];
    wait_until("the limits of both are known", || {
        let told = status(&admin);
        same_limits =
            [&same, &other].map(|agent| entry(&told, agent.process.id())["same_limits"].clone());
        same_limits.iter().all(Json::is_boolean)
    });
    assert_eq!(same_limits, [Json::Bool(true), Json::Bool(false)]);
    top(&["--admin", &admin], &["other limits"]);
    other.stop();
    wait_until("it has left", || disagreeing() == "0");
}

/// Something in the place of an agent: an entry in the table, and a listener at its address.
struct Fake {
    table: Table,
    asked: Arc<AtomicUsize>,
    profile: Profile,
}

impl Fake {
    /// `answer` gets each connection after its request was read.
    fn new(path: &Path, answer: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin: SocketAddr = listener.local_addr().unwrap();
        let (table, _) = Table::open_or_create(path, None).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let (counter, answer) = (asked.clone(), Arc::new(answer));
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                counter.fetch_add(1, Ordering::Relaxed);
                let answer = answer.clone();
                thread::spawn(move || {
                    let _ = stream.read(&mut [0; 1024]);
                    answer(stream);
                });
            }
        });
        let profile = Profile { limits: 1, has_file: false, salt: 0, admin: Some(admin) };
        let fake = Self { table, asked, profile };
        fake.beat();
        fake
    }

    fn beat(&self) {
        self.table.beat();
        self.table.board().introduce(&self.profile);
    }
}

fn send(mut stream: TcpStream, bytes: &[u8]) {
    // The agent may have given up.
    let _ = stream.write_all(bytes);
}

const OK: &str = "HTTP/1.1 200 OK\r\n\r\n";

#[test]
fn whatever_is_at_an_address_costs_little() {
    let directory = directory();
    let table = directory.path().join("table");
    let (agent, admin) = start(&table, &["--rate", "10/h"]);
    let own = get(&admin, "/status?own").body;
    let text = |text: String| move |stream| send(stream, text.as_bytes());
    let endless = |start: &'static str, piece: &'static [u8], pause: Duration| {
        move |mut stream: TcpStream| {
            let _ = stream.write_all(start.as_bytes());
            while stream.write_all(piece).is_ok() {
                thread::sleep(pause);
            }
        }
    };
    let wrong = own.replace("\"policies\":[", "\"policies\":[7,");
    let other = own.replace("\"pid\":", "\"pid\":1");
    let fakes = [
        Fake::new(&table, endless(OK, &[b'['; 65_536], Duration::ZERO)),
        Fake::new(&table, endless("", &[b'a'; 65_536], Duration::ZERO)),
        Fake::new(&table, endless(OK, b" ", Duration::from_millis(50))),
        Fake::new(&table, |stream| {
            thread::sleep(Duration::from_secs(5));
            drop(stream);
        }),
        Fake::new(&table, drop),
        Fake::new(&table, text(format!("{OK}\u{1b}[2J<html>"))),
        Fake::new(&table, text(format!("{OK}{}", "[".repeat(100_000)))),
        Fake::new(&table, text(format!("{OK}{wrong}"))),
        Fake::new(&table, text(format!("{OK}{other}"))),
        Fake::new(&table, text("HTTP/1.1 421 Misdirected Request\r\n\r\n".to_owned())),
    ];
    let memory = || {
        let path = format!("/proc/{}/status", agent.process.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let before = memory();
    let mut told = Json::Null;
    let mut agents = Vec::new();
    wait_until("all are listed", || {
        fakes.iter().for_each(Fake::beat);
        told = status(&admin);
        agents = told["agents"].as_array().unwrap().clone();
        agents.len() == 1 + fakes.len()
    });
    // On a busy machine any of them may not answer in time, but not each time.
    let mut missing = vec![
        "too long",
        "within 1000 ms",
        "not the --admin address of an",
        "another agent answers",
    ];
    wait_until("each is found out", || {
        for agent in &agents[1..] {
            let why = agent["why"].as_str().unwrap_or_default();
            assert!(agent["status"].is_null(), "{agent}");
            assert!(why.contains("127.0.0.1:") && why.len() < 300, "{agent}");
            assert!(!why.contains('\x1b'), "{agent}");
            missing.retain(|part| !why.contains(part));
        }
        if !missing.is_empty() {
            println!("{missing:?} in none of {agents:#?}");
            fakes.iter().for_each(Fake::beat);
            agents = status(&admin)["agents"].as_array().unwrap().clone();
        }
        missing.is_empty()
    });
    // While it asks, nothing else waits.
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            thread::sleep(Duration::from_millis(600));
            get(&admin, "/status").status
        });
        assert_eq!(get(&admin, "/healthz").status, 200);
        assert_eq!(get(&admin, "/metrics").status, 200);
        assert!(!Spop::connect(&agent.address).is_blocked(&[("ip", ip("192.0.2.1"))]));
        assert_eq!(asking.join().unwrap(), 200);
    });
    let grown = memory().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB more");
}

#[test]
fn many_viewers_cost_one_question() {
    let directory = directory();
    let table = directory.path().join("table");
    let (_agent, admin) = start(&table, &["--rate", "10/h"]);
    let mut answer: Json = serde_json::from_str(&get(&admin, "/status?own").body).unwrap();
    // This process is in the place of an agent.
    answer["pid"] = std::process::id().into();
    answer["start_time_seconds"] = 1.0.into();
    let answer = format!("{OK}{answer}");
    let fake = Fake::new(&table, move |stream| send(stream, answer.as_bytes()));
    wait_until("it is asked", || {
        fake.beat();
        status(&admin)["together"]["agents"] == 2
    });
    let (asked, began) = (fake.asked.load(Ordering::Relaxed), Instant::now());
    for _ in 0..5 {
        thread::scope(|scope| {
            let viewers: Vec<_> =
                (0..20).map(|_| scope.spawn(|| get(&admin, "/status").status)).collect();
            for viewer in viewers {
                assert_eq!(viewer.join().unwrap(), 200);
            }
        });
    }
    // Once in half a second, however long this took.
    let most = began.elapsed().as_millis() / 500 + 1;
    let asked = fake.asked.load(Ordering::Relaxed) - asked;
    assert!(asked as u128 <= most, "{asked} questions for 100 viewers, and {most} is the most");
}

/// An agent is kept from running while it answers what it has read, and another one charges the
/// same clients meanwhile. By the time of its read it would deny all of them what is left. It may
/// deny it to as many as it decides about by one reading of the clock.
#[test]
fn an_agent_that_stood_still_does_not_decide_by_an_old_time() {
    const CLIENTS: u16 = 4000;
    let directory = directory();
    let table = directory.path().join("table");
    let args = ["--rate", "1/d", "--burst", "2", "--slots", "131072", "--listen", "127.0.0.1:0"];
    let agents = [(); 2].map(|()| Agent::start_with(&table, &args));
    let [mut first, mut second] = agents.each_ref().map(|agent| Spop::connect(&agent.address));
    for round in 0..12 {
        let ask = |spop: &mut Spop| {
            let args = |client: u16| {
                let [high, low] = client.to_be_bytes();
                [("ip", Value::Ipv4([10, round, high, low].into()))]
            };
            let args: Vec<_> = (0..CLIENTS).map(args).collect();
            let messages: Vec<_> = args.iter().map(|args| [("check", &args[..])]).collect();
            let notifies: Vec<_> = messages.iter().map(|messages| &messages[..]).collect();
            let answers = spop.ask_all(&notifies);
            answers.iter().filter(|answer| matches!(answer[..], [(_, _, true)])).count()
        };
        let denied = thread::scope(|scope| {
            let by_first = scope.spawn(|| ask(&mut first));
            thread::sleep(Duration::from_millis(round.into()));
            agents[0].process.signal(Signal::STOP);
            let by_second = ask(&mut second);
            agents[0].process.signal(Signal::CONT);
            by_first.join().unwrap() + by_second
        });
        assert!(denied <= 64, "round {round}: {denied} of {CLIENTS} clients were denied once");
    }
}

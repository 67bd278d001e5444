//! `gcra-spoa table …`, while agents use the table.

use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value as Json;
use spop_codec::Value;

use crate::support::spop::Spop;
use crate::support::{Agent, directory, in_time, wait_until};

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<std::net::IpAddr>().unwrap())
}

fn run(table: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    command.arg("table").args(args).arg("--table").arg(table).output().unwrap()
}

/// The output of a command, which must succeed.
fn answer(table: &Path, args: &[&str]) -> String {
    let output = run(table, args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(table: &Path, args: &[&str]) -> Vec<Json> {
    let lines = answer(table, &[args, &["--json"]].concat());
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The error message of a command, and its exit status.
fn complaint(table: &Path, args: &[&str]) -> (String, i32) {
    let output = run(table, args);
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        String::from_utf8(output.stderr).unwrap().trim_end().to_owned(),
        output.status.code().unwrap(),
    )
}

#[test]
fn a_live_table_is_looked_at_and_keys_are_reset() {
    let directory = directory();
    let table = directory.path().join("table");
    let agents =
        [Agent::start(&table, &["--rate", "10/h"]), Agent::start(&table, &["--rate", "10/h"])];
    let mut spop = Spop::connect(&agents[0].address);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.1"))], 4), 4);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.2"))], 12), 10);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.3")), ("path", "/a,b".into())], 12), 10);

    let get = |keys: &[&str]| answer(&table, &[&["get"], keys].concat());
    // 24 minutes, six, and an hour, less what has passed on a slow machine.
    let left = get(&["192.0.2.1"]);
    let ends =
        |minutes| format!("192.0.2.1: 6 of 10 left; all 10 again in {minutes} min\n") == left;
    assert!((21..=24).any(ends), "{left}");
    let blocked = get(&["192.0.2.2"]);
    let starts = |minutes| {
        blocked.starts_with(&format!(
            "192.0.2.2: blocked; the next request is allowed in {minutes} min"
        ))
    };
    assert!((3..=6).any(starts), "{blocked}");
    let ends = |minutes| blocked.contains(&format!(", all 10 again in {minutes} min"));
    assert!((57..=60).any(ends), "{blocked}");
    assert!(get(&[r"192.0.2.3,/a\,b"]).contains("blocked"));
    let none = |key: &str| {
        format!(
            "{key}: no bucket: no request with this key was counted lately, or its debt is paid \
             off\n"
        )
    };
    let found = |args: &[&str]| {
        let output = run(&table, args);
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    };
    assert_eq!(found(&["get", "192.0.2.9"]), (none("192.0.2.9"), Some(1)));
    // The configurations in haproxy/ cut IPv6 addresses.
    assert_eq!(spop.allowed(&[("ip", ip("2001:db8:1:2::"))], 12), 10);
    for command in ["get", "reset"] {
        let output = run(&table, &[command, "2001:db8:1:2::5"]);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), none("2001:db8:1:2::5"));
        let note = String::from_utf8(output.stderr).unwrap();
        assert!(note.contains("the table has a bucket for 2001:db8:1:2::, and none"), "{note}");
        assert!(note.ends_with(", the KEY to write is 2001:db8:1:2::\n"), "{note}");
    }
    assert!(get(&["2001:db8:1:2::"]).starts_with("2001:db8:1:2::: blocked; "));
    assert_eq!(json(&table, &["info"])[0]["flags"], "--rate 10/h --burst 10");
    let output = run(&table, &["get", "192.0.2.1"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("192.0.2.1: 6 of 10 left; all "));
    let mut explain = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
    let output =
        explain.args(["explain", "ip=192.0.2.2", "--table"]).arg(&table).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("a request now is blocked"));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(answer(&table, &["info"]).contains("\nlimit: --rate 10/h --burst 10, by the flags"));
    let (sentence, _) = complaint(directory.path(), &["info"]);
    assert!(sentence.contains(" is a directory; write "), "{sentence}");
    let keys = json(&table, &["get", "192.0.2.1", "192.0.2.2"]);
    let shown =
        |key: &Json| (key["key"].to_string(), key["blocked"] == true, key["remaining"].as_u64());
    assert_eq!(shown(&keys[0]), ("\"192.0.2.1\"".to_owned(), false, Some(6)));
    assert_eq!(shown(&keys[1]), ("\"192.0.2.2\"".to_owned(), true, Some(0)));
    assert!((180_000..=360_000).contains(&keys[1]["retry_after_ms"].as_u64().unwrap()));

    let info = json(&table, &["info"]).remove(0);
    assert_eq!(
        (&info["live"], &info["pending"], &info["slots"]),
        (&4.into(), &0.into(), &4096.into())
    );
    let pids: Vec<_> =
        info["processes"].as_array().unwrap().iter().map(|process| &process["pid"]).collect();
    assert!(agents.iter().all(|agent| pids.contains(&&agent.process.id().into())), "{info}");
    let words = answer(&table, &["info"]);
    assert!(words.contains("4096 slots, 448 KiB; created "), "{words}");
    assert!(
        words.contains("  live              4    0.0 %   buckets that owe something"),
        "{words}"
    );
    assert!(words.contains("used by 2 processes: "), "{words}");

    let forgiven = answer(&table, &["reset", "192.0.2.2", "192.0.2.9"]);
    let owed = |minutes| format!("192.0.2.2: a debt of {minutes} min was forgiven\n");
    assert!((56..=59).any(|minutes| forgiven.contains(&owed(minutes))), "{forgiven}");
    assert_eq!(found(&["reset", "192.0.2.9"]), (none("192.0.2.9"), Some(1)));
    assert!(answer(&table, &["reset", "2001:db8:1:2::"]).contains("was forgiven"));
    assert_eq!(spop.allowed(&[("ip", ip("2001:db8:1:2::"))], 12), 10);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.2"))], 12), 10);
    assert_eq!(
        spop.allowed(&[("ip", ip("192.0.2.1"))], 12),
        6,
        "the other keys stay as they were"
    );

    // An agent that is stopped is no longer listed; one that is killed, after a while.
    let [one, mut other] = agents;
    one.stop();
    wait_until("one is left", || {
        json(&table, &["info"])[0]["processes"].as_array().unwrap().len() == 1
    });
    other.process.kill();
    wait_until("none is left", || answer(&table, &["info"]).contains("used by no process"));
    assert!(get(&["192.0.2.2"]).contains("blocked"), "no agent is needed");
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_table_is_resized_under_load_and_agents_move_by_themselves() {
    // The time in which a used burst comes back.
    const FULL: Duration = Duration::from_millis(50);
    let directory = directory();
    let table = directory.path().join("table");
    let args = ["--rate", "2000/s", "--burst", "100"];
    let mut agents = vec![Agent::start(&table, &args), Agent::start(&table, &args)];
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    let hammer = |address: String, stop: &AtomicBool| {
        let mut spop = Spop::connect(&address);
        let first = Instant::now();
        let (mut allowed, mut pauses, mut last) = (0, Duration::ZERO, first);
        while !stop.load(Ordering::Relaxed) {
            allowed += spop.allowed(&[("ip", ip("192.0.2.1"))], 50);
            thread::sleep(Duration::from_millis(1));
            // On a busy machine there may be no requests for a while, and a full bucket gains
            // nothing in that time.
            pauses += Some(last.elapsed()).filter(|pause| *pause > FULL / 4).unwrap_or_default();
            last = Instant::now();
        }
        (allowed, pauses, first..last)
    };
    let asked: Vec<(usize, Duration, Range<Instant>)> = thread::scope(|scope| {
        let threads: Vec<_> = agents
            .iter()
            .map(|agent| {
                let (address, stop) = (agent.address.clone(), &stop);
                scope.spawn(move || hammer(address, stop))
            })
            .collect();
        // Stops the threads even if an assertion fails.
        let _stop = SetWhenDropped(&stop);
        for slots in ["65536", "1024"] {
            let resized = json(&table, &["resize", "--slots", slots]).remove(0);
            // On a busy machine it may have drained by then.
            let carried = resized["carried"].as_u64().unwrap();
            assert!(carried <= 1 && resized["evicted"] == 0, "{resized}");
            for agent in &agents {
                let moved = format!("the table was resized; it now has {slots} slots");
                wait_until("the agents have moved", || {
                    agent.process.lines().iter().any(|line| line.ends_with(&moved))
                });
            }
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let cells = |time: Duration| usize::try_from(time.as_micros() / 500).unwrap();
    let bound = 100 + cells(start.elapsed());
    let allowed: usize = asked.iter().map(|(allowed, ..)| allowed).sum();
    assert!(allowed <= bound, "{allowed} allowed, {bound} would be right");
    // As long as somebody asked.
    let first = asked.iter().map(|(.., asked)| asked.start).min().unwrap();
    let last = asked.iter().map(|(.., asked)| asked.end).max().unwrap();
    let right = 100 + cells(last - first);
    let lost = 300 + asked.iter().map(|(_, pauses, _)| cells(*pauses)).sum::<usize>();
    assert!(
        allowed + lost >= right,
        "{allowed} allowed, {right} would be right, and {lost} may be lost"
    );
    assert!(answer(&table, &["check"]).contains("no fault in 1024 slots"));

    // An agent that is started now says what size the table has.
    agents.clear();
    let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
        .args(["--rate", "1/s", "--listen", "127.0.0.1:0", "--slots", "4096", "--table"])
        .arg(&table)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("has 1024 slots, and --slots asks for 4096; leave --slots out"),
        "{said}"
    );
    let agent = Agent::start_with(&table, &["--rate", "2000/s", "--listen", "127.0.0.1:0"]);
    assert!(agent.process.lines().iter().any(|line| line.contains("1024 slots, opened")));
}

/// A table that was too small once is not called too small after it has grown, and agents that
/// are stopped or were killed are not taken for agents that decide.
#[test]
fn a_resize_tells_what_was_lost_and_which_agents_have_moved() {
    let directory = directory();
    let table = directory.path().join("table");
    let flags = ["--rate", "10/h"];
    let stopped = Agent::start(&table, &flags);
    let agent = Agent::start(&table, &flags);
    // On a busy machine an agent may move after the command has looked.
    let both_move = |slots: &&str| {
        let resized = json(&table, &["resize", "--slots", slots]).remove(0);
        (&resized["agents"], &resized["not_moved"]) == (&2.into(), &Json::Array(vec![]))
    };
    assert!(["8192", "4096", "8192", "4096"].iter().any(both_move));
    let mut spop = Spop::connect(&agent.address);
    for last in 1..=20 {
        assert_eq!(spop.allowed(&[("ip", ip(&format!("192.0.2.{last}")))], 1), 1);
    }
    let (sentence, status) = complaint(&table, &["resize", "--slots", "8"]);
    let too_few = "8 slots are too few for its 20 live buckets: some would be forgotten";
    assert!(sentence.contains(too_few) && status == 1, "{sentence}");
    assert!(sentence.ends_with("; take 64 or more, or add --force"), "{sentence}");
    let shrunk = json(&table, &["resize", "--slots", "8", "--force"]).remove(0);
    assert_eq!((&shrunk["carried"], &shrunk["evicted"]), (&8.into(), &12.into()), "{shrunk}");
    let words = answer(&table, &["info"]);
    assert!(words.contains("8 slots, 384 KiB; resized "), "{words}");
    let lost = "evictions: 12 buckets since it was resized, which owed ";
    assert!(words.contains(lost) && words.contains("; the table is too small"), "{words}");

    let both = |words: &str| words.contains("used by 2 processes: ");
    let id = stopped.process.id();
    let not_moved =
        format!("1 of 2 agents have moved\nagent {id} is stopped (SIGSTOP), and moves when it");
    // On a busy machine the other agent may move too late.
    let tells_which = |slots: &&str| {
        stopped.process.signal(Signal::CONT);
        wait_until("both use the table", || both(&answer(&table, &["info"])));
        stopped.process.signal(Signal::STOP);
        let grown = answer(&table, &["resize", "--slots", slots]);
        let carried = format!("to {slots} slots; 8 live buckets were carried over\n");
        assert!(grown.contains(&carried), "{grown}");
        grown.contains(&not_moved)
    };
    assert!(["4096", "8192", "4096", "8192"].iter().any(tells_which));
    let words = answer(&table, &["info"]);
    let none = "evictions: none since it was resized; 12 buckets before that\n";
    assert!(words.contains(none), "{words}");

    stopped.process.signal(Signal::CONT);
    wait_until("it has moved", || both(&answer(&table, &["info"])));
    stopped.process.signal(Signal::STOP);
    // For as long as it is alive, whether it is silent or not.
    wait_until("it is shown as stopped", || {
        let words = answer(&table, &["info"]);
        words.contains(&format!("{id} (stopped, alive ")) && both(&words)
    });
    wait_until("it has been silent for long", || {
        let info = json(&table, &["info"]).remove(0);
        let all = info["processes"].as_array().unwrap();
        let silent =
            |process: &Json| process["pid"] == id && process["silent_ms"].as_u64() > Some(5500);
        all.iter().any(|process| silent(process) && process["stopped"] == true)
    });
    drop(stopped);
    let words = answer(&table, &["info"]);
    assert!(!both(&words), "a killed agent is gone at once: {words}");
    wait_until("one is left", || answer(&table, &["info"]).contains("used by process "));
    let note = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    wait_until("there is no note", || note(&run(&table, &["get", "192.0.2.1"])).is_empty());
    drop(agent);
    let note = note(&run(&table, &["get", "192.0.2.1"]));
    assert!(note.contains("no agent uses the table "), "{note}");
}

/// Nothing can be reset or exempted until it is finished, and every command says how.
#[test]
fn an_interrupted_resize_is_named_until_it_is_finished() {
    let directory = directory();
    let table = directory.path().join("table");
    let agent = Agent::start(&table, &["--rate", "3/h"]);
    let mut spop = Spop::connect(&agent.address);
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(spop.allowed(&args, 5), 3);
    let block = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
        .args(["block", "--for", "1h", "192.0.2.9", "--table", table.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(block.status.success(), "{block:?}");
    // On a slow machine a resize may be finished before it is killed.
    let is_interrupted = |slots: &&str| {
        let mut resize = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
            .args(["table", "resize", "--slots", slots, "--table", table.to_str().unwrap()])
            .spawn()
            .unwrap();
        wait_until("it has begun", || {
            json(&table, &["info"])[0]["being_resized"] == true
                || resize.try_wait().unwrap().is_some()
        });
        resize.kill().unwrap();
        resize.wait().unwrap();
        answer(&table, &["info"]).contains("was interrupted")
    };
    let slots = ["8192", "16384", "32768", "65536"].into_iter().find(is_interrupted).unwrap();

    let finish = format!(
        "a resize to {slots} slots was interrupted; finish it: 'gcra-spoa table resize --table {} \
         --slots {slots}'",
        table.display()
    );
    assert!(answer(&table, &["info"]).contains(&finish));
    let check = run(&table, &["check"]);
    assert!(String::from_utf8(check.stdout).unwrap().contains(&finish));
    assert_eq!(check.status.code(), Some(1));
    assert!(complaint(&table, &["reset", "192.0.2.1"]).0.contains(&finish));
    let exempt = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
        .args(["exempt", "--for", "1m", "192.0.2.1", "--table", table.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(String::from_utf8(exempt.stderr).unwrap().contains(&finish));
    for end in [&["block", "--end"][..], &["block", "--end", "--json"]] {
        let end = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
            .args(end)
            .args(["192.0.2.9", "--table", table.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(String::from_utf8(end.stderr).unwrap().contains(&finish));
        assert_eq!(String::from_utf8(end.stdout).unwrap(), "", "the block has not ended");
    }
    let warning = "the table has been in the middle of a resize for 10 s";
    wait_until("the agent says so", || {
        agent.process.lines().iter().any(|line| line.contains(warning))
    });
    assert_eq!(spop.allowed(&args, 5), 0, "decisions go on");

    answer(&table, &["resize", "--slots", slots]);
    assert!(!answer(&table, &["info"]).contains("interrupted"));
    assert!(answer(&table, &["check"]).contains("no fault"));
    assert!(answer(&table, &["reset", "192.0.2.1"]).contains("was forgiven"));
    assert_eq!(spop.allowed(&args, 5), 3);
}

/// The resizer is killed when all buckets have moved, and before the new file has the name.
#[test]
fn a_resize_without_its_last_step_is_named_until_it_is_finished() {
    let directory = directory();
    let table = directory.path().join("table");
    let file = directory.path().join("gcra.toml");
    fs::write(&file, "[policy.check]\nlimits = \"3/h\"\n").unwrap();
    let agent = Agent::start(&table, &["--config", file.to_str().unwrap()]);
    let mut spop = Spop::connect(&agent.address);
    let args = [("ip", ip("192.0.2.1"))];
    assert_eq!(spop.allowed(&args, 5), 3);
    let slots = ["8192", "16384", "32768", "65536"]
        .into_iter()
        .find(|slots| {
            // A resize cannot give its file the name while this holds the lock of the old one.
            let old = OpenOptions::new().read(true).open(&table).unwrap();
            let next = directory.path().join("table.next");
            let reads_as_1 = |file: &fs::File, at| {
                let mut bytes = [0; 4];
                file.read_exact_at(&mut bytes, at).is_ok() && bytes == 1_u32.to_ne_bytes()
            };
            let mut resize = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
                .args(["table", "resize", "--slots", slots, "--table", table.to_str().unwrap()])
                .spawn()
                .unwrap();
            wait_until("it has begun", || reads_as_1(&old, 1044));
            rustix::fs::flock(&old, rustix::fs::FlockOperation::LockExclusive).unwrap();
            wait_until("all buckets have moved", || {
                fs::File::open(&next).map_or(true, |next| reads_as_1(&next, 1048))
            });
            resize.kill().unwrap();
            resize.wait().unwrap();
            // On a slow machine it may have taken the lock before.
            next.exists()
        })
        .unwrap();
    let moved = format!("the table was resized; it now has {slots} slots");
    wait_until("the agent has moved", || {
        agent.process.lines().iter().any(|line| line.contains(&moved))
    });

    let finish = format!(
        "a resize to {slots} slots was interrupted; finish it: 'gcra-spoa table resize --table {} \
         --slots {slots}'",
        table.display()
    );
    wait_until("the agent is seen", || {
        let info = answer(&table, &["info"]);
        assert!(info.contains(&finish), "{info}");
        info.contains("used by process ")
    });
    let check = run(&table, &["check"]);
    assert!(String::from_utf8(check.stdout).unwrap().contains(&finish));
    assert_eq!(check.status.code(), Some(1));
    // All other commands speak to the agent in its new file.
    let command = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.args(words).arg("--table").arg(&table);
        let output = in_time(|| command.output().unwrap());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let reloaded = command(&["reload", "--config", file.to_str().unwrap()]);
    assert!(reloaded.contains("in force in 1 agent"), "{reloaded}");
    assert!(answer(&table, &["reset", "192.0.2.1"]).contains("was forgiven"));
    assert_eq!(spop.allowed(&args, 5), 3);
    command(&["exempt", "--for", "1m", "192.0.2.1"]);
    wait_until("the client is exempt", || spop.allowed(&args, 5) == 5);

    let finished = answer(&table, &["resize", "--slots", slots]);
    assert!(finished.contains("the agent that uses it has moved"), "{finished}");
    assert!(!answer(&table, &["info"]).contains("interrupted"));
    assert!(answer(&table, &["check"]).contains("no fault"));
    assert_eq!(spop.allowed(&args, 5), 5);
}

/// The header says that another file takes over, but there is none.
#[test]
fn a_resize_without_its_new_file_is_a_fault() {
    let directory = directory();
    let table = directory.path().join("table");
    drop(gcra_table::Table::open_or_create(&table, None).unwrap());
    let file = OpenOptions::new().write(true).open(&table).unwrap();
    file.write_all_at(&1_u32.to_ne_bytes(), 1044).unwrap();
    let gone = "it is being resized, and the file that takes over from it is gone; stop every \
                agent that uses it and \
                remove it, and a new one is made";
    let output = run(&table, &["check"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.starts_with(&format!("{gone}\n")), "{told}");
    assert!(!told.contains("keeps working"), "{told}");
    assert!(answer(&table, &["info"]).lines().any(|line| line == format!("fault: {gone}")));
    assert_eq!(json(&table, &["info"])[0]["successor_fault"], gone);
}

#[test]
fn check_finds_what_is_wrong() {
    let directory = directory();
    let table = directory.path().join("table");
    let agent = Agent::start(&table, &["--rate", "10/h"]);
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.1"))], 4), 4);
    assert!(answer(&table, &["check"]).contains("no fault in 4096 slots"));

    let file = OpenOptions::new().read(true).write(true).open(&table).unwrap();
    let slot = |number: u64| 0x60000 + 16 * number;
    let read = |number: u64| {
        let mut bytes = [0; 16];
        file.read_exact_at(&mut bytes, slot(number)).unwrap();
        bytes
    };
    let live = (0..4096).find(|number| read(*number) != [0; 16]).unwrap();
    let beside = live ^ 1;
    file.write_all_at(&read(live), slot(beside)).unwrap();
    // Elsewhere: a bucket without a key, one that owes decades, and a seal.
    let elsewhere = (live + 64) % 4096;
    file.write_all_at(&read(live), slot(elsewhere)).unwrap();
    let mut decades = read(live);
    decades[7] |= 0x0c;
    let other = (live + 128) % 4096;
    file.write_all_at(&decades, slot(other)).unwrap();
    file.write_all_at(&[0x40], slot((live + 192) % 4096) + 15).unwrap();

    let output = run(&table, &["check"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    for fault in [
        format!("a second bucket of the key in slot {}", live.min(beside)),
        format!("slot {elsewhere}: a live bucket where its key is never looked for"),
        format!("slot {other}: owes "),
        format!("slot {}: sealed, though the table is not being resized", (live + 192) % 4096),
        "the table keeps working, and each fault heals when its bucket is idle".to_owned(),
    ] {
        assert!(said.contains(&fault), "{fault}: {said}");
    }
    let faults = run(&table, &["check", "--json"]);
    assert_eq!(faults.status.code(), Some(1));
    let faults: Json = serde_json::from_slice(&faults.stdout).unwrap();
    assert!(faults["faults"].as_array().unwrap().len() >= 4);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.9"))], 12), 10, "it goes on working");
}

#[test]
fn what_a_command_can_not_do_is_one_sentence() {
    let directory = directory();
    let table = directory.path().join("table");
    let missing = format!(
        "gcra-spoa: there is no table {}; start an agent, which creates it, or name the table \
         of your agents with --table",
        table.display()
    );
    for args in
        [&["info"][..], &["check"], &["reset", "a"], &["get", "a"], &["resize", "--slots", "8"]]
    {
        assert_eq!(complaint(&table, args), (missing.clone(), 1), "{args:?}");
    }
    assert!(!table.exists());
    for (args, said) in [
        (
            &["get", "--configs", "f", "a"][..],
            "'--configs' is not a flag of 'gcra-spoa table get'; did you",
        ),
        (&["get", "-abc"], "if it is a KEY, write '--' and all KEYs behind"),
        (&["reset", "10.0.0.777"], "'10.0.0.777' is not an address or network; write one, such"),
        (&["get"], "'gcra-spoa table get' needs KEY (see"),
        (&["reset", "int32:x"], "'x' is not a value of the type int32"),
        (&["resize"], "'gcra-spoa table resize' needs --slots N"),
        (&["resize", "--slots", "3"], "from 8 to 1073741824"),
        (&["info", "--rate", "1/s"], "--rate"),
        (&["inof"], "inof"),
    ] {
        let (sentence, status) = complaint(&table, args);
        assert_eq!(status, 2, "{args:?}: {sentence}");
        assert!(sentence.contains(said) && !sentence.contains('\n'), "{args:?}: {sentence}");
    }
    let agent = Agent::start(&table, &["--rate", "10/h"]);
    let (sentence, status) = complaint(&table, &["resize", "--slots", "4096"]);
    assert_eq!(
        (sentence, status),
        (
            format!(
                "gcra-spoa: table {}: it has 4096 slots already, so there is nothing to do",
                table.display()
            ),
            1
        )
    );
    let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa")).arg("table").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let sentence = "gcra-spoa: 'gcra-spoa table' needs a command behind it: info, get, reset, \
                    resize, check (see 'gcra-spoa table --help')\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), sentence);
    for args in [&["get", "ip=192.0.2.1"][..], &["reset", "ip=192.0.2.1"]] {
        let (sentence, status) = complaint(&table, args);
        assert_eq!(status, 2);
        let told = "the key has no arg 'ip', which 'ip=192.0.2.1' names; it is all args of the";
        assert!(sentence.contains(told), "{sentence}");
    }
    // The limit of this agent is in no file.
    let config = directory.path().join("gcra.toml");
    fs::write(&config, "[policy.a]\nlimits = \"10/h\"\nkey = [\"ip\"]\n").unwrap();
    for command in ["get", "reset"] {
        let args = [command, "--config", config.to_str().unwrap(), "192.0.2.1"];
        let (sentence, status) = complaint(&table, &args);
        let told = "have their limit from --rate, and not from a file; write 'gcra-spoa table";
        assert!(sentence.contains(told) && status == 2, "{sentence}");
    }
    assert!(agent.stop() == 0);
    // A file that is not a table is no table whose mode is wrong.
    let (sentence, status) = complaint(&config, &["info"]);
    assert!(sentence.ends_with(" is not a table of gcra-spoa; choose another file with --table"));
    assert_eq!(status, 1);
}

/// Counts in windows are seen, cleared and moved like debts.
#[test]
fn counts_in_windows_are_shown_and_reset() {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    fs::write(
        &file,
        "[policy.check]\nkey = [\"ip\"]\nlimits = [\"100/s\", { name = \"contract\", count = 5, \
         window = \"day\" }]\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let day = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.unwrap().as_secs() / 86_400
    };
    // Until it begins and ends on the same day.
    for number in 1.. {
        let today = day();
        let table = directory.path().join(format!("table-{number}"));
        let agent = Agent::start(&table, &["--config", file]);
        let mut spop = Spop::connect(&agent.address);
        let allowed =
            |spop: &mut Spop, requests| spop.allowed(&[("ip", ip("192.0.2.1"))], requests) as u64;
        let get = || run(&table, &["get", "--config", file, "192.0.2.1", "--json"]);
        let counts = || {
            let output = String::from_utf8(get().stdout).unwrap();
            let lines = output.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
            let mut lines = lines.filter(|json| json["limit"] == "check.contract");
            let json = lines.next().unwrap();
            (json["remaining"].as_u64().unwrap(), json["window"].as_str().unwrap().to_owned())
        };
        let utc = "day UTC".to_owned();
        let seen = [allowed(&mut spop, 3), counts().0];
        let words = run(&table, &["get", "--config", file, "192.0.2.1"]);
        let blocked = [allowed(&mut spop, 9), counts().0];
        let window = counts().1;
        let reset = run(&table, &["reset", "--config", file, "192.0.2.1", "--json"]);
        let again = [allowed(&mut spop, 9), counts().0];
        let _ = answer(&table, &["resize", "--slots", "8192"]);
        let moved = [allowed(&mut spop, 9), counts().0];
        if day() != today {
            continue;
        }
        assert_eq!((seen, blocked, again, moved), ([3, 2], [2, 0], [5, 0], [0, 0]));
        assert_eq!(window, utc);
        let words = String::from_utf8(words.stdout).unwrap();
        let line = words.lines().find(|line| line.contains("per calendar day")).unwrap();
        assert!(
            line.contains("5 per calendar day in UTC: 2 of 5 left; all 5 again in ")
                && line.contains(": the window ends at ")
                && line.ends_with(" 00:00:00 in UTC"),
            "{words}"
        );
        let reset = String::from_utf8(reset.stdout).unwrap();
        let lines = reset.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
        let mut lines = lines.filter(|json| json["limit"] == "check.contract");
        assert_eq!(lines.next().unwrap()["forgiven_count"], 5, "{reset}");
        break;
    }
}

/// A policy whose messages say their limit, two agents, and what `table reset` says.
struct Plans {
    directory: tempfile::TempDir,
    agents: [Agent; 2],
}

impl Plans {
    fn start() -> Self {
        let directory = directory();
        let file = directory.path().join("gcra-spoa.toml");
        let text = "[policy.check]\nkey = [\"ip\"]\nlimits = { arg = \"plan\", \
                    default = \"5/h burst 1\", most = \"90000/h burst 90000\" }\n";
        fs::write(&file, text).unwrap();
        let table = directory.path().join("table");
        let agents =
            std::array::from_fn(|_| Agent::start(&table, &["--config", file.to_str().unwrap()]));
        Self { directory, agents }
    }

    fn allowed(&self, spop: &mut Spop, client: &str, plan: &str, requests: usize) -> usize {
        spop.allowed(&[("ip", ip(client)), ("plan", plan.into())], requests)
    }

    fn reset(&self, client: &str) -> (String, Option<i32>) {
        let file = self.directory.path().join("gcra-spoa.toml");
        let table = self.directory.path().join("table");
        let output = run(&table, &["reset", "--config", file.to_str().unwrap(), client]);
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8(said).unwrap(), output.status.code())
    }
}

#[test]
fn a_reset_clears_what_a_client_owes_under_numbers_that_were_just_used() {
    let plans = Plans::start();
    let mut spops = plans.agents.each_ref().map(|agent| Spop::connect(&agent.address));
    // More than an agent remembers as texts.
    for burst in 1..=100 {
        let plan = format!("1/h burst {burst}");
        assert_eq!(plans.allowed(&mut spops[0], "192.0.2.200", &plan, 1), 1);
    }
    for (place, plan) in ["7/h burst 2", "3/d burst 2", "2/d burst 2"].into_iter().enumerate() {
        let spop = &mut spops[place % 2];
        assert_eq!(plans.allowed(spop, "192.0.2.1", plan, 3), 2);
        let (said, status) = plans.reset("192.0.2.1");
        assert!(said.contains("limit 'check': a debt of "), "{said}");
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(plans.allowed(spop, "192.0.2.1", plan, 3), 2, "it was reset");
    }
}

#[test]
fn a_reset_says_that_there_were_more_numbers_than_the_table_keeps() {
    let plans = Plans::start();
    let mut spop = Spop::connect(&plans.agents[0].address);
    let plan = |burst: usize| format!("2/d burst {burst}");
    for burst in 1..=1100 {
        assert_eq!(plans.allowed(&mut spop, "192.0.2.200", &plan(burst), 1), 1);
    }
    assert_eq!(plans.allowed(&mut spop, "192.0.2.1", &plan(1101), 1102), 1101);
    let (said, status) = plans.reset("192.0.2.1");
    assert!(
        said.contains("no space for all limits that messages have said, so under limit 'check'"),
        "{said}"
    );
    assert_eq!(status, Some(1), "{said}");
    // The debts in the table are cleared all the same.
    assert_eq!(plans.allowed(&mut spop, "192.0.2.2", &plan(9), 10), 9);
    let (said, status) = plans.reset("192.0.2.2");
    assert!(said.contains("limit 'check': a debt of "), "{said}");
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(plans.allowed(&mut spop, "192.0.2.2", &plan(9), 10), 9);
}

#[test]
fn a_reset_says_that_agents_deny_each_request() {
    let directory = directory();
    let table = directory.path().join("table");
    let agent = Agent::start(&table, &["--rate", "deny"]);
    assert!(Spop::connect(&agent.address).is_blocked(&[("ip", ip("192.0.2.1"))]));
    let reset = || run(&table, &["reset", "192.0.2.1"]);
    let said = "192.0.2.1: every request is blocked, because the limit is \"deny\"; a reset does \
                not change that\n";
    wait_until("the agent says which limit it has", || {
        String::from_utf8(reset().stdout).unwrap() == said
    });
    assert_eq!(reset().status.code(), Some(1));
}

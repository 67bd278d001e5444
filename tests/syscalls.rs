//! The system calls of the real agent for each NOTIFY, counted by strace: no more than a read, a
//! write and a wait for whatever has come together.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod support;

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use spop_codec::Value;
use support::spop::{Messages, Spop};
use support::{Agent, needs};

const READS: [&str; 4] = ["read(", "readv(", "recvfrom(", "recvmsg("];
const WRITES: [&str; 4] = ["write(", "writev(", "sendto(", "sendmsg("];

/// The system calls that the housekeeping may make in a second, in which its timer wakes it four
/// times.
const OTHERS_PER_SECOND: usize = 25;

/// The runtime's word to itself that a timer has woken a task. It goes to no socket.
const WAKE_UP: &str = r#""\1\0\0\0\0\0\0\0", 8)"#;

const ROUNDS: usize = 100;

/// As a strict seccomp filter would refuse it. The runtime below would panic without it.
#[test]
fn a_refused_pair_of_sockets_is_one_sentence() {
    needs!(strace());
    let directory = support::directory();
    let table = directory.path().join("table");
    let admin = ["--admin", "127.0.0.1:0"];
    let store = ["--store", "redis://127.0.0.1:1"];
    for more in [&[][..], &admin, &store] {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "inject=socketpair:error=EPERM", "-o", "/dev/null"]);
        command.arg(env!("CARGO_BIN_EXE_gcra-spoa")).args(["--rate", "100/s", "--slots", "64"]);
        command.args(["--listen", "127.0.0.1:0", "--table"]).arg(&table);
        let output = command.args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{more:?}: {said}");
        assert!(said.contains("socketpair") && !said.contains("panicked"), "{more:?}: {said}");
    }
}

#[test]
fn what_comes_together_takes_one_read_and_one_write() {
    needs!(strace());
    let directory = support::directory();
    let trace = directory.path().join("trace");
    let mut command = Command::new("strace");
    // -D: the agent is the child, and strace beside it ends when the agent does.
    command.args(["-D", "-f", "-qq", "-o"]).arg(&trace).arg(env!("CARGO_BIN_EXE_gcra-spoa"));
    command.args(["--rate", "100/s", "--slots", "4096", "--listen", "127.0.0.1:0", "--table"]);
    let agent = Agent::start_command(command.arg(directory.path().join("table")));
    let mut spop = Spop::connect(&agent.address);

    for together in [50, 1] {
        let args = [("ip", Value::Ipv4(Ipv4Addr::LOCALHOST))];
        let message: Messages<'_> = &[("check", &args)];
        let burst = vec![message; together];
        // strace writes a line when its call returns, which may be after the answer is here. But
        // the line of a write is there before the next request is answered. So one more stands
        // before and one behind those that are counted.
        assert_eq!(spop.ask_all(&[message]).len(), 1);
        let before = lines(&trace);
        let start = Instant::now();
        for _ in 0..ROUNDS {
            assert_eq!(spop.ask_all(&burst).len(), together);
        }
        assert_eq!(spop.ask_all(&[message]).len(), 1);
        let calls = &lines(&trace)[before.len()..];
        let seconds = usize::try_from(start.elapsed().as_secs()).unwrap() + 2;

        let count = |names: &[&str]| {
            let named =
                calls.iter().filter(|call| names.iter().any(|name| call.starts_with(name)));
            named.filter(|call| !call.contains(WAKE_UP)).count()
        };
        // The last one was read, and perhaps answered.
        let (reads, writes) = (count(&READS).saturating_sub(1), count(&WRITES));
        println!(
            "{ROUNDS} x {together} NOTIFYs: {reads} reads, {writes} writes, {} calls in all",
            calls.len()
        );
        // Each of the two others may be among them with a read, a write and a wait.
        let others = seconds * OTHERS_PER_SECOND + 6;
        let sample = calls[..calls.len().min(20)].join("\n");
        assert!(
            reads <= ROUNDS && writes <= ROUNDS + 2,
            "{ROUNDS} times {together} NOTIFYs took {reads} reads and {writes} writes, and \
             {ROUNDS} of each are enough:\n{sample}"
        );
        assert!(
            reads >= ROUNDS && writes >= ROUNDS,
            "strace shows {reads} reads and {writes} writes only:\n{sample}"
        );
        assert!(
            calls.len() <= 3 * ROUNDS + others,
            "{ROUNDS} times {together} NOTIFYs took {} system calls, and a read, a write and a \
             wait for each are enough \
             (and {others} for everything else):\n{sample}",
            calls.len()
        );
    }
    agent.stop();
}

/// The system calls so far, without the ids of their threads.
fn lines(trace: &Path) -> Vec<String> {
    // The last line is written when its call returns, so wait until there are no more.
    let mut text = fs::read_to_string(trace).unwrap();
    loop {
        thread::sleep(Duration::from_millis(100));
        let next = fs::read_to_string(trace).unwrap();
        if next == text {
            break;
        }
        text = next;
    }
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(_, call)| call.trim_start().to_owned())
        .collect()
}

/// Whether strace is there, and allowed to trace.
fn strace() -> Result<(), String> {
    let tried = Command::new("strace")
        .args(["-D", "-f", "-qq", "-o", "/dev/null", "true"])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => Err("strace is not allowed to trace".into()),
        Err(_) => Err("strace is not installed".into()),
    }
}

//! The daemon without HAProxy, frame by frame: keys, limits, several processes, and the stop.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use spop_codec::haproxy::{HelloFields, encode_hello};
use spop_codec::{Scope, Value};

use crate::support;
use crate::support::spop::Spop;
use crate::support::{Agent, directory, wait_until};

/// So slow that no cell comes back during a test.
const HOURLY: [&str; 2] = ["--rate", "10/h"];

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<std::net::IpAddr>().unwrap())
}

#[test]
fn two_processes_asked_for_one_key_hold_the_bound_to_the_last_cell() {
    let directory = directory();
    let table = directory.path().join("table");
    let args = ["--rate", "2000/s", "--burst", "100"];
    let agents = [Agent::start(&table, &args), Agent::start(&table, &args)];
    let start = Instant::now();
    let hammer = |agent: &Agent| {
        let address = agent.address.clone();
        move || {
            let mut spop = Spop::connect(&address);
            let (mut allowed, mut rounds) = (0, 0);
            // On a busy machine, a thread may begin when the second is over.
            while rounds < 20 || start.elapsed() < Duration::from_secs(1) {
                allowed += spop.allowed(&[("ip", ip("192.0.2.1"))], 50);
                rounds += 1;
            }
            allowed
        }
    };
    // Two connections to each, all for the same key.
    let threads: Vec<_> =
        (0..4).map(|number| thread::spawn(hammer(&agents[number % 2]))).collect();
    let allowed: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let elapsed = start.elapsed();
    let bound = 100 + usize::try_from(elapsed.as_micros() / 500).unwrap();
    assert!(allowed <= bound, "{allowed} allowed, {bound} would be right");
    // On a busy machine there may have been a pause, in which a full bucket gains nothing. But
    // more than one burst was due.
    assert!(allowed > 100, "{allowed} allowed, {bound} would be right");
}

#[test]
fn all_args_make_the_key_by_type_and_value() {
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let mut spop = Spop::connect(&agent.address);
    let keys: [&[(&str, Value<'_>)]; 15] = [
        &[],
        &[("", Value::Null)],
        &[("", Value::Null), ("", Value::Null)],
        &[("", false.into())],
        &[("", true.into())],
        &[("", 1_i64.into())],
        &[("", 1_u64.into())],
        &[("", ip("1.0.0.0"))],
        &[("", ip("::1"))],
        &[("", "".into())],
        &[("", "ab".into())],
        &[("", "a".into()), ("", "b".into())],
        &[("", "".into()), ("", "ab".into())],
        &[("", b"ab"[..].into())],
        &[("", "1".into())],
    ];
    for key in keys {
        assert_eq!(spop.allowed(key, 15), 10, "{key:?}");
    }
    // Names do not matter, nor do the names of messages.
    let renamed = spop.ask(&[("other", &[("x", "ab".into())])]);
    assert_eq!(renamed, [(Scope::Transaction, "blocked".to_owned(), true)]);
}

#[test]
fn an_ipv4_address_counts_as_one_in_either_form() {
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.1"))], 6), 6);
    assert_eq!(spop.allowed(&[("ip", ip("::ffff:192.0.2.1"))], 6), 4);
    assert_eq!(spop.allowed(&[("ip", ip("::192.0.2.1"))], 6), 6, "that is another one");
}

#[test]
fn named_args_make_the_key_and_without_them_nothing_is_decided() {
    let directory = directory();
    let args = ["--rate", "10/h", "--key", "ip,path", "--var", "stop", "--scope", "sess"];
    let agent = Agent::start(&directory.path().join("table"), &args);
    let mut spop = Spop::connect(&agent.address);
    let mut blocked = |args: &[(&str, Value<'_>)]| spop.ask(&[("check", args)]);
    for n in 0..12_i64 {
        // The order does not matter, nor do other args.
        let answer = blocked(&[("n", n.into()), ("path", "/".into()), ("ip", ip("192.0.2.1"))]);
        assert_eq!(answer, [(Scope::Session, "stop".to_owned(), n >= 10)]);
    }
    assert_eq!(
        blocked(&[("ip", ip("192.0.2.1")), ("path", "/b".into())]),
        [(Scope::Session, "stop".to_owned(), false)]
    );
    assert_eq!(blocked(&[("ip", ip("192.0.2.1"))]), [], "no path");
    assert_eq!(blocked(&[]), []);
}

#[test]
fn a_message_is_charged_what_its_cost_says() {
    let directory = directory();
    let agent =
        Agent::start(&directory.path().join("table"), &[&HOURLY[..], &["--cost", "n"]].concat());
    let mut spop = Spop::connect(&agent.address);
    // The cost is not part of the key, wherever it stands.
    assert!(!spop.is_blocked(&[("k", "a".into()), ("n", 4_i64.into())]));
    assert!(
        spop.is_blocked(&[("n", 7_u32.into()), ("k", "a".into())]),
        "6 are left, and nothing is charged"
    );
    assert!(!spop.is_blocked(&[("n", 5_i32.into()), ("k", "a".into())]));
    assert!(!spop.is_blocked(&[("k", "a".into())]), "without a cost it is one");
    assert!(spop.is_blocked(&[("k", "a".into()), ("n", Value::Null)]), "and so is null");
    assert!(!spop.is_blocked(&[("k", "a".into()), ("n", 0_u64.into())]), "0 is never blocked");

    let b = |cost| [("k", "b".into()), ("n", cost)];
    for cost in [0_i64, 11, 1 << 32, i64::MAX] {
        assert_eq!(spop.is_blocked(&b(cost.into())), cost > 10, "{cost}");
    }
    assert!(spop.is_blocked(&b("11".into())), "as req.fhdr sends it");
    for cost in [(-1_i64).into(), i32::MIN.into(), true.into(), "1 s".into(), ip("192.0.2.1")] {
        assert_eq!(spop.ask(&[("check", &b(cost))]), [], "{cost:?}");
    }
    assert!(!spop.is_blocked(&b(10_i64.into())), "nothing was charged so far");
}

#[test]
fn a_cost_and_named_args() {
    let directory = directory();
    let args = ["--rate", "10/h", "--key", "ip", "--cost", "n"];
    let agent = Agent::start(&directory.path().join("table"), &args);
    let mut spop = Spop::connect(&agent.address);
    let of = |n: i64| [("n", n.into()), ("ip", ip("192.0.2.1")), ("path", "/".into())];
    assert_eq!([9, 2, 1, 1].map(|n| spop.is_blocked(&of(n))), [false, true, false, true]);
    // Each message of a NOTIFY has a cost of its own.
    let [a, b] =
        ["192.0.2.2", "192.0.2.3"].map(|address| [("ip", ip(address)), ("n", 6_i64.into())]);
    let mut both = || spop.ask(&[("a", &a), ("b", &b)])[0].2;
    assert_eq!([both(), both()], [false, true]);
}

#[test]
fn several_messages_are_blocked_when_one_is() {
    let directory = directory();
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    let mut spop = Spop::connect(&agent.address);
    let (one, other) = ([("k", "one".into())], [("k", "other".into())]);
    assert_eq!(spop.allowed(&one, 9), 9);
    let mut both = || spop.ask(&[("a", &one), ("b", &other)])[0].2;
    assert_eq!([both(), both()], [false, true]);
    assert_eq!(spop.allowed(&other, 15), 8, "each was charged");
    assert_eq!(spop.ask(&[]), [], "no message, no decision");
}

#[test]
fn nothing_and_everything_can_be_let_through() {
    let directory = directory();
    for (rate, blocked) in [("deny", true), ("unlimited", false)] {
        let agent = Agent::start(&directory.path().join(rate), &["--rate", rate]);
        let mut spop = Spop::connect(&agent.address);
        for _ in 0..3 {
            assert_eq!(spop.is_blocked(&[("ip", ip("192.0.2.1"))]), blocked, "{rate}");
        }
    }
}

#[test]
fn an_idle_key_has_its_full_burst_again() {
    let directory = directory();
    let agent =
        Agent::start(&directory.path().join("table"), &["--rate", "100/s", "--burst", "20"]);
    let mut spop = Spop::connect(&agent.address);
    for _ in 0..3 {
        let start = Instant::now();
        let allowed = spop.allowed(&[("ip", ip("192.0.2.1"))], 60);
        let more = usize::try_from(start.elapsed().as_millis() / 10).unwrap();
        assert!((20..=20 + more).contains(&allowed), "{allowed} allowed");
        thread::sleep(Duration::from_millis(250));
    }
}

#[test]
fn a_table_too_small_forgets_and_says_so() {
    let directory = directory();
    let args = ["--rate", "10/h", "--slots", "8", "--listen", "127.0.0.1:0"];
    let agent = Agent::start_with(&directory.path().join("table"), &args);
    let mut spop = Spop::connect(&agent.address);
    // A key that is denied stays denied, however many other keys come.
    assert_eq!(spop.allowed(&[("k", "greedy".into())], 15), 10);
    for n in 0..1000_i64 {
        assert!(!spop.is_blocked(&[("k", n.into())]));
        assert!(spop.is_blocked(&[("k", "greedy".into())]));
    }
}

#[test]
fn sigint_and_sigterm_end_it_in_order() {
    let directory = directory();
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM")] {
        let mut agent = Agent::start(&directory.path().join("table"), &HOURLY);
        let mut spop = Spop::connect(&agent.address);
        spop.is_blocked(&[]);
        agent.process.signal(signal);
        assert_eq!(agent.process.wait().code(), Some(0));
        wait_until("it says why", || agent.process.lines().iter().any(|line| line.contains(name)));
    }
}

#[test]
fn the_log_says_what_was_started() {
    let directory = directory();
    let table = directory.path().join("table");
    let args = ["--rate", "100/s", "--burst", "20", "--key", "ip"];
    let first = Agent::start(&table, &args);
    let second = Agent::start(&table, &args);
    let said =
        |agent: &Agent, what: &str| agent.process.lines().iter().any(|line| line.contains(what));
    for agent in [&first, &second] {
        assert!(said(agent, "100 per second, up to 20 at once, for each ip"));
        assert!(said(agent, &format!("table {}: 4096 slots, ", table.display())));
        assert!(said(agent, "listening on 127.0.0.1:"));
    }
    assert!(said(&first, ", created") && said(&second, ", opened"));
}

#[test]
fn what_can_not_be_is_one_sentence_and_the_right_exit_status() {
    let directory = directory();
    let table = directory.path().join("table");
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa")).args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let sentences: Vec<_> =
            said.lines().filter(|line| line.starts_with("gcra-spoa: ")).collect();
        assert_eq!(sentences.len(), 1, "{said}");
        (output.status.code().unwrap(), sentences[0].to_owned())
    };
    let (status, said) = run(&["--rate", "fast"]);
    assert!(status == 2 && said.contains("'fast' is not a rate"), "{status} {said}");
    let (status, said) = run(&[]);
    assert!(status == 2 && said.contains("--config FILE"), "{status} {said}");

    std::fs::write(&table, "something else").unwrap();
    let args = ["--rate", "1/s", "--listen", "127.0.0.1:0", "--table", table.to_str().unwrap()];
    let (status, said) = run(&args);
    assert!(
        status == 1 && (said.contains("has mode 0") || said.contains("is not a table")),
        "{status} {said}"
    );

    for (option, text) in [("--version", env!("CARGO_PKG_VERSION")), ("--help", "--burst")] {
        let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa")).arg(option).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8(output.stdout).unwrap().contains(text));
    }
}

/// Commands would take a table that a failed start has left for that of the agents.
#[test]
fn an_agent_whose_address_is_taken_leaves_no_table() {
    let directory = directory();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let table = directory.path().join("table");
    for flags in [&["--listen", &address][..], &["--listen", "127.0.0.1:0", "--admin", &address]] {
        let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"))
            .args(["--rate", "1/s", "--table"])
            .arg(&table)
            .args(flags)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&format!("could not listen on {address}")), "{said}");
        assert_eq!(output.status.code(), Some(1));
        assert!(!table.exists());
    }
}

/// A port scanner, a browser, a plain TCP check and HAProxy's own health check leave next to
/// nothing in the log.
#[test]
fn strangers_and_health_checks_do_not_fill_the_log() {
    let (directory, began) = (directory(), Instant::now());
    let agent = Agent::start(&directory.path().join("table"), &HOURLY);
    // Once a minute the log sums up the lines that are left out. A busy machine may take longer.
    let is_summary =
        |line: &String| line.contains(" left out;") || line.contains(" sent no HELLO and w");
    let other_lines = || {
        let lines = agent.process.lines();
        lines.into_iter().filter(|line| !is_summary(line)).collect::<Vec<_>>()
    };
    let minutes = || usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    let before = other_lines().len();
    let mut hello = [0; 256];
    let fields =
        HelloFields { capabilities: "", healthcheck: Some(true), ..HelloFields::default() };
    let length = encode_hello(&mut hello, &fields).unwrap();
    let strangers: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"\0\0\0\0",
        b"",
        &hello[..length],
    ];
    for round in 0..1_000 {
        let mut stream = TcpStream::connect(&agent.address).unwrap();
        stream.write_all(strangers[round % strangers.len()]).unwrap();
        if round % 2 == 0 {
            // With a reset, as HAProxy ends its checks.
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    let mut spop = Spop::connect(&agent.address);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.1"))], 3), 3, "it serves as before");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(other_lines().len(), before, "{:#?}", other_lines());
    let summaries = agent.process.lines().iter().filter(|line| is_summary(line)).count();
    assert!(summaries <= minutes(), "{:#?}", agent.process.lines());
    drop(spop);

    // The log has all that matters: the peer, the reason, and what to do.
    let mut stream = Spop::connect(&agent.address).into_stream();
    let peer = stream.local_addr().unwrap();
    stream.write_all(b"\0\0\0\x08\0\0\0\0\x01\x01\x01x").unwrap();
    wait_until("it is told", || other_lines().len() > before);
    let line = other_lines()[before].clone();
    assert!(
        line.contains("WARN") && line.contains(&format!("connection from {peer} ended: ")),
        "{line}"
    );
    assert!(line.contains("set 'no option send-frag-payload'"), "{line}");
    // ... but not without end.
    for _ in 0..50 {
        let mut stream = Spop::connect(&agent.address).into_stream();
        stream.write_all(b"\0\0\0\x08\0\0\0\0\x01\x01\x01x").unwrap();
        let _ = stream.read(&mut [0; 256]);
    }
    thread::sleep(Duration::from_millis(500));
    let told = other_lines().len() - before;
    assert!(told <= 5 * (1 + minutes()), "{told}: {:#?}", other_lines());
    let mut process = agent.process;
    assert!(process.stop().success());
    let lines = process.lines();
    let told = lines.iter().filter(|line| line.contains("WARN ] connection from ")).count();
    let left_out = lines.iter().filter_map(|line| {
        line.split_once(" more warning")?.0.rsplit(' ').next()?.parse::<usize>().ok()
    });
    assert!((5..=5 * (1 + minutes())).contains(&told), "{lines:#?}");
    assert_eq!(told + left_out.sum::<usize>(), 51, "each is told or counted: {lines:#?}");
    assert!(lines.iter().any(|line| line.contains("connections sent no HELLO")), "{lines:#?}");
}

/// When all file descriptors are in use, the agent waits for some, says so now and then, and
/// continues.
#[test]
fn it_survives_having_no_descriptors_left() {
    let directory = directory();
    let table = directory.path().join("table");
    let script = format!(
        "ulimit -n 64; exec {} --rate 10/h --slots 64 --drain 0 --listen 127.0.0.1:0 --table {}",
        env!("CARGO_BIN_EXE_gcra-spoa"),
        table.display()
    );
    let began = Instant::now();
    let agent = Agent::start_command(Command::new("sh").args(["-c", &script]));
    let mut served = Spop::connect(&agent.address);
    let crowd: Vec<_> = (0..200).map(|_| TcpStream::connect(&agent.address).unwrap()).collect();
    // "Too many open files" of glibc, "No file descriptors available" of musl.
    let words = std::io::Error::from(rustix::io::Errno::MFILE).to_string();
    let said = || agent.process.lines().iter().filter(|line| line.contains(&words)).count();
    wait_until("it has run out", || said() > 0);
    assert_eq!(served.allowed(&[("ip", ip("192.0.2.1"))], 3), 3, "open connections are served");
    thread::sleep(Duration::from_millis(700));
    // A few times a minute.
    let most = 5 * (1 + began.elapsed().as_secs() / 60);
    assert!(said() as u64 <= most, "{:#?}", agent.process.lines());
    assert!(
        agent
            .process
            .lines()
            .iter()
            .any(|line| line.contains("raise the limit of open files (LimitNOFILE="))
    );
    drop(crowd);
    let mut late = Spop::connect(&agent.address);
    assert_eq!(late.allowed(&[("ip", ip("192.0.2.1"))], 9), 7, "and so is who comes then");
    assert_eq!(agent.stop(), 12);
}

/// As with systemd: the socket exists before the agent, and remains when the agent ends.
#[test]
fn a_socket_is_inherited_and_outlives_the_agent() {
    let directory = directory();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let start = || {
        let mut command = Command::new("sh");
        command.stdin(std::os::fd::OwnedFd::from(socket.try_clone().unwrap()));
        let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3<&0 </dev/null";
        command.args(["-c", script, "sh"]).arg(support::agent_binary()).arg("--table");
        command.arg(directory.path().join("table")).args(HOURLY).args([
            "--listen",
            "inherited",
            "--drain",
            "0",
        ]);
        Agent::start_command(&mut command)
    };
    let agent = start();
    assert_eq!(agent.address, address);
    assert_eq!(Spop::connect(&address).allowed(&[("ip", ip("192.0.2.1"))], 5), 5);
    agent.stop();
    // A client that connects now is not refused, but waits until an agent runs again.
    let waiting = TcpStream::connect(&address).unwrap();
    let agent = start();
    assert_eq!(Spop::connect(&address).allowed(&[("ip", ip("192.0.2.1"))], 10), 5);
    drop(waiting);
    agent.stop();

    let output = Command::new(support::agent_binary())
        .args(HOURLY)
        .args(["--listen", "inherited", "--table"])
        .arg(directory.path().join("table"))
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("no sockets are inherited: LISTEN_FDS is not set"), "{error}");
}

/// Its signal handlers are set before it says that it listens, because a service manager may stop
/// it at that moment.
#[test]
fn a_signal_just_after_it_listens_ends_it_in_order() {
    let directory = directory();
    for round in 0..20 {
        let mut agent = Agent::start(&directory.path().join("table"), &["--rate", "10/h"]);
        let signal = [Signal::TERM, Signal::INT, Signal::USR1][round % 3];
        agent.process.signal(signal);
        assert_eq!(agent.process.wait().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn shapes_are_learned_anew_when_odd_ones_have_all_places() {
    let directory = directory();
    let mut command = Command::new("env");
    command.arg("RUST_LOG=debug").arg(support::agent_binary());
    command.arg("--table").arg(directory.path().join("table"));
    command.args(HOURLY).args(["--slots", "4096", "--listen", "127.0.0.1:0"]);
    let agent = Agent::start_command(&mut command);
    let mut spop = Spop::connect(&agent.address);
    for odd in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert_eq!(spop.allowed(&[(odd, ip("192.0.2.1"))], 1), 1);
    }
    let allowed: usize = (0..1000).map(|_| spop.allowed(&[("ip", ip("192.0.2.2"))], 1)).sum();
    assert_eq!(allowed, 10);
    let is_said = |line: &String| line.contains("all shapes are learned anew");
    wait_until("shapes are learned anew", || agent.process.lines().iter().any(is_said));
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.2"))], 100), 0);
    assert_eq!(spop.allowed(&[("ip", ip("192.0.2.3"))], 100), 10);
}

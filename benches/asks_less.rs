//! The instructions that HAProxy executes for a request, with the files that ask less and with a
//! stick table: `make guard-haproxy`.
//!
//! `cargo test -p benches --bench asks_less [-- --write | --quick] [--haproxy PATH]...`. Valgrind
//! counts instructions of user space, from when HAProxy has served some requests to before it
//! ends. It fails if a file's figure is above its bound, which is relative to the stick table. The
//! HAProxys are those that `--haproxy` names, else those in target/haproxy/. `--write` writes the
//! figures into docs/BENCHMARKS.md. `--quick` does each load once with the installed HAProxy,
//! without Valgrind, and judges nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a bench may end with a message, and its numbers are small"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/haproxys.rs"]
mod haproxys;
#[path = "support/host.rs"]
mod host;
#[path = "support/page.rs"]
mod page;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use haproxys::version;
use support::{Agent, Client, Process, directory, free_port, haproxy_folder, wait_until};

#[derive(Clone, Copy, Eq, PartialEq)]
enum Load {
    /// Each client makes one request, on a connection of its own.
    New,
    /// One client sends as fast as it can on one connection, and nearly all is denied.
    Flood,
}

/// How requests are limited.
struct Setup {
    name: &'static str,
    /// The file in haproxy/ that it is made of.
    file: &'static str,
    /// The most instructions for each load, in hundredths of what a stick table takes: some more
    /// than they are, because runs on a busy machine differ by that. They only go down.
    bounds: [Option<u64>; 2],
}

const NO_LIMITER: &str = "no limiter";
const STICK_TABLE: &str = "stick table";

/// The stick table is first: the others are relative to it.
const SETUPS: [Setup; 6] = [
    Setup { name: STICK_TABLE, file: "haproxy.cfg", bounds: [None, None] },
    Setup { name: NO_LIMITER, file: "haproxy.cfg", bounds: [None, None] },
    Setup { name: "asked each time", file: "haproxy.cfg", bounds: [None, None] },
    Setup { name: "every-kth.cfg", file: "every-kth.cfg", bounds: [Some(104), None] },
    Setup { name: "remember.cfg", file: "remember.cfg", bounds: [None, Some(104)] },
    Setup { name: "ask-less.cfg", file: "ask-less.cfg", bounds: [Some(105), Some(104)] },
];

/// Requests before the counting, and those that are counted.
const COUNTS: [u64; 2] = [500, 2000];

const RUNS: usize = 2;

/// Under Valgrind everything takes far longer, and how much depends on the machine. So the limit
/// is slow and what is remembered lasts: of a flood, hardly a request is asked about. (Without
/// Valgrind it is one in 5 to 10 ms.)
const RATE: &str = "3/m";
const REMEMBERED: &str = "gpc_rate(1,10s)";

fn main() -> ExitCode {
    program::build();
    let quick = asked::quick();
    let haproxys = if quick { vec![support::haproxy_binary()] } else { haproxys() };
    let mut section = format!(
        "## Instructions of HAProxy\n\nFor each request, user space, counted by Valgrind, and in \
         parentheses relative to a stick table:\n`make guard-haproxy`, which fails above the \
         bounds\n({}):\n\n",
        host::description()
    );
    let mut failed = false;
    for load in [Load::New, Load::Flood] {
        section += match load {
            Load::New => "Each client makes one request, on a connection of its own:\n\n",
            Load::Flood => "\nOne client sends as fast as it can, and nearly all is denied:\n\n",
        };
        let mut rows: Vec<String> =
            SETUPS.iter().map(|setup| format!("| {:<17} |", setup.name)).collect();
        let mut head = "| HAProxy           |".to_owned();
        for haproxy in &haproxys {
            write!(head, " {} |", version(haproxy)).unwrap();
            let mut stick_table = 1;
            for (setup, row) in SETUPS.iter().zip(&mut rows) {
                if quick {
                    run(haproxy, setup, load, [10, 10], None);
                    continue;
                }
                let each = instructions(haproxy, setup, load) / COUNTS[1];
                if setup.name == STICK_TABLE {
                    stick_table = each;
                }
                let ratio = each as f64 / stick_table as f64;
                write!(row, " {each} ({ratio:.2}) |").unwrap();
                println!("{} {:<17} {each:>6} ({ratio:.3})", version(haproxy), setup.name);
                let bound = setup.bounds[usize::from(load == Load::Flood)];
                if bound.is_some_and(|bound| each * 100 > stick_table * bound) {
                    failed = true;
                    println!("    above its bound of {} hundredths", bound.unwrap());
                }
            }
        }
        for (setup, row) in SETUPS.iter().zip(&mut rows) {
            let bound = setup.bounds[usize::from(load == Load::Flood)];
            let bound =
                bound.map_or(String::new(), |bound| format!("{:.2}", bound as f64 / 100.0));
            write!(row, " {bound} |").unwrap();
        }
        let line = format!("|---|{}---:|", "---:|".repeat(haproxys.len()));
        section += &format!("{head} bound |\n{line}\n{}\n", rows.join("\n"));
    }
    section.push('\n');
    if asked::flag("--write") {
        page::write("asks-less", &section);
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn haproxys() -> Vec<PathBuf> {
    let args: Vec<_> = std::env::args().collect();
    let named = args.windows(2).filter(|pair| pair[0] == "--haproxy").map(|pair| pair[1].clone());
    let mut all: Vec<PathBuf> = named.map(PathBuf::from).collect();
    if all.is_empty() {
        all = haproxys::fetched();
    }
    assert!(!all.is_empty(), "there is no HAProxy to count: 'make guard-haproxy' fetches some");
    all
}

/// The instructions of the counted requests: the fewest of some runs, because a HAProxy that has
/// to wait for a busy machine wakes up more often.
fn instructions(haproxy: &Path, setup: &Setup, load: Load) -> u64 {
    let once = |_| {
        let folder = directory();
        let profile = folder.path().join("profile");
        run(haproxy, setup, load, COUNTS, Some(&profile));
        // Its first dump.
        let profile = profile.with_extension("1");
        let text = fs::read_to_string(profile).expect("callgrind wrote a profile");
        let totals = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals");
        totals.parse().expect("a number")
    };
    (0..RUNS).map(once).min().expect("there is one")
}

fn run(haproxy: &Path, setup: &Setup, load: Load, counts: [u64; 2], profile: Option<&Path>) {
    let folder = directory();
    let args = [
        "--rate",
        RATE,
        "--burst",
        "20",
        "--cost",
        "cost",
        "--unasked",
        "7",
        "--slots",
        "4096",
        "--drain",
        "0",
        "--listen",
        "127.0.0.1:0",
    ];
    // Who is asked about each request needs no reserve, and keeps none.
    let args = if setup.file == "haproxy.cfg" || setup.file == "remember.cfg" {
        [&args[..4], &args[8..]].concat()
    } else {
        args.to_vec()
    };
    let agent = Agent::start_with(&folder.path().join("table"), &args);
    let frontend = free_port(Ipv4Addr::LOCALHOST.into());
    let config = folder.path().join("haproxy.cfg");
    fs::write(&config, configuration(setup, frontend, &agent.address)).unwrap();
    for name in ["spoe-gcra.conf", "spoe-ask-less.conf"] {
        let text = fs::read_to_string(haproxy_folder().join(name)).unwrap();
        fs::write(folder.path().join(name), support::patient(&text)).unwrap();
    }
    let mut command = match profile {
        None => Command::new(haproxy),
        Some(profile) => under_valgrind(haproxy, profile, folder.path()),
    };
    let mut process = Process::start("haproxy", command.arg("-db").arg("-f").arg(&config));
    wait_until("HAProxy listens", || TcpStream::connect(frontend).is_ok());
    let mut client = Client::new(frontend);
    let mut denied = 0;
    for number in 0..counts[0] + counts[1] {
        if number == counts[0] && profile.is_some() {
            tell_callgrind(&process, "zero");
        }
        if load == Load::New {
            client = new_client(frontend, number);
        }
        denied += u64::from(is_denied(&mut client));
    }
    if profile.is_some() {
        tell_callgrind(&process, "dump");
    }
    let limits = setup.name != NO_LIMITER && load == Load::Flood;
    assert!(
        profile.is_none() || (denied > 0) == limits,
        "{}: {denied} were denied: {:?}",
        setup.name,
        process.lines()
    );
    // It ends at once, and not when its last connection does.
    process.signal(rustix::process::Signal::TERM);
    process.wait();
}

fn new_client(frontend: SocketAddr, number: u64) -> Client {
    let [.., a, b] = number.to_be_bytes();
    Client::from(frontend, Ipv4Addr::new(127, 1, a, b.max(1)).into())
}

fn is_denied(client: &mut Client) -> bool {
    match client.get("/").unwrap().status {
        200 => false,
        429 => true,
        other => panic!("{other}"),
    }
}

/// Lets it forget what it has counted, or write it into a file of its own.
fn tell_callgrind(process: &Process, what: &str) {
    let mut vgdb = Command::new("vgdb");
    let output = vgdb.arg(format!("--pid={}", process.id())).arg(what).output().expect("vgdb");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// HAProxy in Valgrind. Where it is started by a script, because it has libraries of its own, the
/// last command of that is.
fn under_valgrind(haproxy: &Path, profile: &Path, folder: &Path) -> Command {
    let valgrind = format!("valgrind --tool=callgrind --callgrind-out-file={}", profile.display());
    let bytes = fs::read(haproxy).unwrap();
    if !bytes.starts_with(b"#!/bin/sh") {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {valgrind} \"$0\" \"$@\"")]).arg(haproxy);
        return command;
    }
    let text = String::from_utf8(bytes).unwrap().replace("exec ", &format!("exec {valgrind} "));
    // Its own name is for reloads, and Valgrind does not know the option.
    let text = text.replace(&format!("--argv0 \"{}\"", haproxy.display()), "");
    let real = fs::canonicalize(haproxy).unwrap();
    let text = text.replace(&format!("--argv0 \"{}\"", real.display()), "");
    let script = folder.join("haproxy");
    fs::write(&script, text).unwrap();
    let mut command = Command::new("sh");
    command.arg(script);
    command
}

/// The shipped file with one thread, and without the checks of agents, which take the longer the
/// longer a run is. Without a limiter, and with a stick table, other rules are in place of the
/// agent's, and its variables are not logged.
fn configuration(setup: &Setup, frontend: SocketAddr, agent: &str) -> String {
    let text = fs::read_to_string(haproxy_folder().join(setup.file)).unwrap();
    let mut changed = String::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let has_agent = ![NO_LIMITER, STICK_TABLE].contains(&setup.name);
        match first {
            "global" => changed.push_str("global\n    nbthread 1"),
            "bind" if line.contains("GCRA_HTTP") => {
                write!(changed, "    bind {frontend}").unwrap();
            }
            "default-server" => {}
            "server" if second == "agent2" => {}
            "server" if second == "agent1" => {
                write!(changed, "    server agent1 {agent}").unwrap();
            }
            "filter" => {
                let conf = if setup.file == "haproxy.cfg" { "gcra" } else { "ask-less" };
                let line = format!("    filter spoe engine gcra config spoe-{conf}.conf");
                changed.push_str(if has_agent { &line } else { "" });
            }
            // The files that ask less leave the server's headers alone.
            "option" if second == "forwardfor" => {}
            "http-request" if second == "del-header" => {}
            "log-format" if !has_agent => {
                let (usual, _) = line.split_once(" blocked=").unwrap();
                write!(changed, "{usual}\"").unwrap();
            }
            // Those about requests without a decision, and about tunnels.
            "http-request"
                if !has_agent && ["gcra.err", " 405 "].iter().any(|it| line.contains(it)) => {}
            "http-request" if second == "deny" && setup.name == NO_LIMITER => {}
            "http-request" if second == "deny" && setup.name == STICK_TABLE => {
                let (deny, _) = line.split_once(" if ").unwrap();
                write!(
                    changed,
                    "    http-request track-sc0 src,ipmask(32,64) table clients\n{deny} if {{ \
                     sc_http_req_rate(0) gt 100 }}"
                )
                .unwrap();
            }
            "stick-table" => changed.push_str(&line.replace("gpc_rate(1,5ms)", REMEMBERED)),
            _ => changed.push_str(line),
        }
        changed.push('\n');
    }
    if setup.name == STICK_TABLE {
        changed.push_str(
            "backend clients\n    stick-table type ipv6 size 1m expire 10m store \
             http_req_rate(1h)\n",
        );
    }
    changed
}

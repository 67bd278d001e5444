//! The instructions that HAProxy executes for a request, with a stick table and with an agent:
//! `make guard-haproxy`.
//!
//! `cargo test -p benches --bench guard_haproxy [-- --write | --quick] [--haproxy PATH]...`.
//! Valgrind counts instructions of user space, from when HAProxy has served some requests to
//! before it ends. It fails if a figure is above its bound, which is relative to the stick table.
//! The HAProxys are those that `--haproxy` names, else those in target/haproxy/. `--write` writes
//! the figures into docs/BENCHMARKS.md. `--quick` does each load once with the installed HAProxy,
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
#[path = "support/callgrind.rs"]
mod callgrind;
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
use std::path::Path;
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
    /// The most instructions for each load, in hundredths of a stick table's, with the dearest
    /// HAProxy. They are a little above the measured ones, because runs on a busy machine differ.
    /// They only go down.
    bounds: [Option<u64>; 2],
}

const NO_LIMITER: &str = "no limiter";
const STICK_TABLE: &str = "stick table";

/// The stick table is first: the others are relative to it.
const SETUPS: [Setup; 3] = [
    Setup { name: STICK_TABLE, bounds: [None, None] },
    Setup { name: NO_LIMITER, bounds: [None, None] },
    Setup { name: "asked each time", bounds: [Some(230), Some(268)] },
];

/// Requests before the counting, and those that are counted.
const COUNTS: [u64; 2] = [500, 2000];

const RUNS: usize = 2;

const CONF: &str = "spoe-gcra.conf";

/// Under Valgrind everything takes far longer, and how much depends on the machine. So the limit
/// is slow.
const RATE: &str = "3/m";

fn main() -> ExitCode {
    program::build();
    let quick = asked::quick();
    let haproxys = haproxys::asked(quick);
    assert!(!haproxys.is_empty(), "there is no HAProxy: 'make guard-haproxy' fetches some");
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
        page::write("guard-haproxy", &section);
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The instructions of the counted requests: the fewest of some runs, because a HAProxy that has
/// to wait for a busy machine wakes up more often.
fn instructions(haproxy: &Path, setup: &Setup, load: Load) -> u64 {
    let once = |_| {
        let folder = directory();
        let profile = folder.path().join("profile");
        run(haproxy, setup, load, COUNTS, Some(&profile));
        callgrind::first_dump(&profile)
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
        "--slots",
        "4096",
        "--drain",
        "0",
        "--listen",
        "127.0.0.1:0",
    ];
    let agent = Agent::start_with(&folder.path().join("table"), &args);
    let frontend = free_port(Ipv4Addr::LOCALHOST.into());
    let config = folder.path().join("haproxy.cfg");
    fs::write(&config, configuration(setup, frontend, &agent.address)).unwrap();
    let text = fs::read_to_string(haproxy_folder().join(CONF)).unwrap();
    fs::write(folder.path().join(CONF), support::patient(&text)).unwrap();
    let mut command = match profile {
        None => Command::new(haproxy),
        Some(profile) => callgrind::command(haproxy, profile, folder.path()),
    };
    let mut process = Process::start("haproxy", command.arg("-db").arg("-f").arg(&config));
    wait_until("HAProxy listens", || TcpStream::connect(frontend).is_ok());
    let mut client = Client::new(frontend);
    let mut denied = 0;
    for number in 0..counts[0] + counts[1] {
        if number == counts[0] && profile.is_some() {
            callgrind::tell(&process, "zero");
        }
        if load == Load::New {
            client = callgrind::new_client(frontend, number);
        }
        denied += u64::from(is_denied(&mut client));
    }
    if profile.is_some() {
        callgrind::tell(&process, "dump");
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

fn is_denied(client: &mut Client) -> bool {
    match client.get("/").unwrap().status {
        200 => false,
        429 => true,
        other => panic!("{other}"),
    }
}

/// The shipped file with one thread, and without the checks of agents, which take the longer the
/// longer a run is. Without a limiter, and with a stick table, other rules are in place of the
/// agent's, and its variables are not logged.
fn configuration(setup: &Setup, frontend: SocketAddr, agent: &str) -> String {
    let text = fs::read_to_string(haproxy_folder().join("haproxy.cfg")).unwrap();
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
                let line = format!("    filter spoe engine gcra config {CONF}");
                changed.push_str(if has_agent { &line } else { "" });
            }
            // Rules that change header fields cost the same with each limiter.
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

//! The instructions that HAProxy executes for a request that it decides itself, beside a stick
//! table: `make guard-haproxy`.
//!
//! `cargo test -p benches --bench in_process [-- --write | --quick] [--haproxy PATH]...`. Valgrind
//! counts instructions of user space, from when HAProxy has served some requests to before it
//! ends. It fails if a figure is above its bound, which is relative to the stick table. The
//! HAProxys are those that `--haproxy` names, else those in target/haproxy/. `--write` writes the
//! figures into docs/BENCHMARKS.md. `--quick` does each load once with the installed HAProxy,
//! without Valgrind and with the module that tests have, and judges nothing.
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
#[path = "support/inside.rs"]
mod inside;
#[path = "support/page.rs"]
mod page;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};

use haproxys::version;
use inside::Limit;
use support::{Client, Process, directory, free_port, wait_until};

/// The requests that are counted.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Load {
    /// Each client makes one request, on a connection of its own.
    New,
    /// One client, within its limit, on one connection.
    KeepAlive,
    /// The same, and a connection for each request.
    ConnectionEach,
    /// One client on one connection, and nearly all is denied.
    Flood,
    /// As on one connection, with the header fields of a browser.
    Browser,
}

/// With the name of the row.
const LOADS: [(Load, &str); 5] = [
    (Load::New, "a new client"),
    (Load::KeepAlive, "keep-alive"),
    (Load::ConnectionEach, "a connection each"),
    (Load::Flood, "a flood, denied"),
    (Load::Browser, "a browser's fields"),
];

/// The fields that a browser sends.
const FIELDS: [(&str, &str); 9] = [
    ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("Accept-Language", "en-US,en;q=0.5"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Cookie", "session=0123456789abcdef0123456789abcdef; theme=dark; consent=1"),
    ("Upgrade-Insecure-Requests", "1"),
    ("Sec-Fetch-Dest", "document"),
    ("Sec-Fetch-Mode", "navigate"),
    ("Priority", "u=0, i"),
];

/// How requests are limited. The stick table is first: the others are relative to it.
const SETUPS: [Limit; 3] = [Limit::StickTable, Limit::Converter, Limit::Answer];

/// The requests that are counted. Lua's collector needs up to 3000 for a cycle, and some of these
/// cost more than others.
fn counted(limit: Limit) -> u64 {
    if limit.is_inside() { 3_000 } else { 1_000 }
}

/// Those before them. The module names the clients of all of the first 4096 requests in a minute,
/// and of half of those that follow. With the other variables, which costs more, that is not much.
fn warm_up(limit: Limit) -> u64 {
    if limit == Limit::Converter { 4_200 } else { 500 }
}

/// A HAProxy that waits for a busy machine wakes up more often. So what is above its bound is
/// counted again, and the fewest count.
const RUNS: usize = 3;

/// The most instructions, in hundredths of a stick table's. They only go down. With HAProxy 2.6
/// and 2.8 a stick table costs less.
fn bound(limit: Limit, load: Load, haproxy: &str) -> Option<u64> {
    let [old, new] = match load {
        Load::New => [132, 125],
        Load::KeepAlive => [129, 121],
        Load::ConnectionEach => [124, 118],
        Load::Flood => [132, 123],
        Load::Browser => [122, 116],
    };
    let bound = if haproxy.starts_with("2.") { old } else { new };
    (limit == Limit::Converter).then_some(bound)
}

fn main() -> ExitCode {
    let quick = asked::quick();
    if quick {
        program::build();
    }
    let haproxys = haproxys::asked(quick);
    assert!(!haproxys.is_empty(), "there is no HAProxy: 'make guard-haproxy' fetches some");
    let mut cells = vec![String::new(); LOADS.len() * SETUPS.len()];
    let mut versions = Vec::new();
    let mut failed = false;
    for haproxy in &haproxys {
        let version = version(haproxy);
        let mut cells = cells.iter_mut();
        for (load, name) in LOADS {
            if quick {
                SETUPS.iter().for_each(|limit| run(haproxy, *limit, load, [10, 10], None));
                continue;
            }
            let mut stick_table = 1;
            for (limit, cell) in SETUPS.into_iter().zip(&mut cells) {
                let most = bound(limit, load, &version).map(|bound| stick_table * bound / 100);
                let each = instructions(haproxy, limit, load, most);
                if limit == Limit::StickTable {
                    stick_table = each;
                }
                let ratio = each as f64 / stick_table as f64;
                write!(cell, " {each} ({ratio:.2}) |").unwrap();
                println!("{version} {name:<18} {:<14} {each:>6} ({ratio:.3})", limit.name());
                if most.is_some_and(|most| each > most) {
                    failed = true;
                    println!("    above its bound of {}", most.unwrap());
                }
            }
        }
        versions.push(version);
    }
    if asked::flag("--write") {
        page::write("in-process", &section(&versions, &cells));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The section of docs/BENCHMARKS.md, with a cell of each version in each of `cells`.
fn section(versions: &[String], cells: &[String]) -> String {
    let mut section = format!(
        "## Instructions of HAProxy that decides itself\n\nFor each request, user space, counted \
         by Valgrind, and in parentheses relative to a stick table:\n`make guard-haproxy`, which \
         fails above the bounds, one for 2.x and one for 3.x\n({}).\n\n| load | limited by \
         | {} | bounds |\n|---|---|{}---|\n",
        host::description(),
        versions.join(" | "),
        "---:|".repeat(versions.len())
    );
    let rows = LOADS.iter().flat_map(|load| SETUPS.map(|limit| (load, limit)));
    for ((&(load, name), limit), cells) in rows.zip(cells) {
        let name = if limit == SETUPS[0] { name } else { "" };
        write!(section, "| {name} | {} |{cells}", limit.name()).unwrap();
        let bound = |haproxy| bound(limit, load, haproxy).map(|bound| bound as f64 / 100.0);
        match bound("2.").zip(bound("3.")) {
            Some((old, new)) => writeln!(section, " {old:.2}, {new:.2} |").unwrap(),
            None => section.push_str(" |\n"),
        }
    }
    section.push('\n');
    section
}

/// The instructions of a counted request. If they are more than `most`, the fewest of some runs.
fn instructions(haproxy: &Path, limit: Limit, load: Load, most: Option<u64>) -> u64 {
    let mut fewest = u64::MAX;
    for _ in 0..RUNS {
        let folder = directory();
        let profile = folder.path().join("profile");
        run(haproxy, limit, load, [warm_up(limit), counted(limit)], Some(&profile));
        fewest = fewest.min(callgrind::first_dump(&profile) / counted(limit));
        if most.is_none_or(|most| fewest <= most) {
            break;
        }
    }
    fewest
}

fn run(haproxy: &Path, limit: Limit, load: Load, counts: [u64; 2], profile: Option<&Path>) {
    let folder = directory();
    let frontend = free_port(Ipv4Addr::LOCALHOST.into());
    let config = folder.path().join("haproxy.cfg");
    let (rate, per_hour) = match load {
        // Under Valgrind everything takes far longer, so the limit is low.
        Load::Flood => ("--rate 3/m --burst 20", 100),
        _ => ("--rate 1000000/s --burst 1000000", 1_000_000_000),
    };
    let module = match profile {
        None => support::lua_module(),
        Some(_) => inside::optimized_module(),
    };
    let table = folder.path().join("table");
    let setting = inside::Setting { module, table, words: rate, per_hour, threads: 1, agent: "" };
    let text = inside::configuration(limit, &version(haproxy), frontend, &setting);
    fs::write(&config, text).unwrap();
    let mut command = match profile {
        None => Command::new(haproxy),
        Some(profile) => callgrind::command(haproxy, profile, folder.path()),
    };
    let mut process = Process::start("haproxy", command.arg("-db").arg("-f").arg(&config));
    wait_until("HAProxy listens", || TcpStream::connect(frontend).is_ok());
    if limit.is_inside() {
        process.wait_for_table();
    }
    let fields: &[(&str, &str)] = if load == Load::Browser { &FIELDS } else { &[] };
    let mut client = Client::new(frontend);
    let mut denied = 0;
    for number in 0..counts[0] + counts[1] {
        if number == counts[0] && profile.is_some() {
            callgrind::tell(&process, "zero");
        }
        match load {
            Load::New => client = callgrind::new_client(frontend, number),
            Load::ConnectionEach => client = Client::new(frontend),
            Load::KeepAlive | Load::Flood | Load::Browser => {}
        }
        match client.get_with("/", fields).unwrap().status {
            200 => {}
            429 => denied += 1,
            other => panic!("{other}"),
        }
    }
    if profile.is_some() {
        callgrind::tell(&process, "dump");
    }
    assert!(
        profile.is_none() || (denied > 0) == (load == Load::Flood),
        "{}: {denied} were denied: {:?}",
        limit.name(),
        process.lines()
    );
    // It ends at once, and not when its last connection does.
    process.signal(rustix::process::Signal::TERM);
    process.wait();
}

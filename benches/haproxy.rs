//! The cost of limiting through a real HAProxy: `cargo bench -p benches --bench haproxy`.
//!
//! `cargo bench -p benches --bench haproxy [-- PART-OF-A-ROW'S-NAME]... [--quick] [--write]
//! [--rounds N] [--seconds N] [--haproxy PATH]... [--peer PATH]`. The HAProxys are those that
//! `--haproxy` names, else those in target/haproxy/, else the installed one. `--peer`, or
//! `GCRA_GO_PEER`, is another agent to compare with; its first argument is the address it listens
//! on. The load comes from `wrk`, one thread with 32 connections, and HAProxy answers by itself
//! from one thread; all of them run on the same cores. `--quick` only tries out some rows with the
//! installed HAProxy; `--write` writes the figures into docs/BENCHMARKS.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a bench may end with a message, and its numbers are small"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/haproxy_report.rs"]
mod haproxy_report;
#[path = "support/haproxys.rs"]
mod haproxys;
#[path = "support/host.rs"]
mod host;
#[path = "support/machine.rs"]
mod machine;
#[path = "support/median.rs"]
mod median;
#[path = "support/page.rs"]
mod page;
#[path = "support/program.rs"]
mod program;
#[path = "support/setups.rs"]
mod setups;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "support/usage.rs"]
mod usage;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use setups::{Group, Load, Setup, Started};

/// The figures of one setup in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// Of HAProxy and of the agent, for each request.
    pub haproxy_us: f64,
    pub agent_us: f64,
    /// NOTIFYs for each request, where the agent counts them.
    pub asked: Option<f64>,
    /// The share of the machine's cores that other programs took.
    pub others: f64,
}

/// A setup with one HAProxy, and its rounds.
pub(crate) struct Row {
    pub version: String,
    binary: PathBuf,
    pub setup: Setup,
    pub rounds: Vec<Figures>,
}

struct Options {
    /// Parts of the names of rows; an empty list wants all rows.
    wanted: Vec<String>,
    quick: bool,
    write: bool,
    rounds: usize,
    seconds: u64,
    haproxys: Vec<PathBuf>,
    peer: Option<PathBuf>,
}

fn main() {
    // Cargo adds an argument of its own.
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [first, listen, delay_ms] = &args[..]
        && first == setups::AGENT
    {
        return setups::be_agent(listen, Duration::from_millis(delay_ms.parse().unwrap()));
    }
    program::build();
    let options = Options::of(&args);
    assert!(
        Command::new("wrk").arg("--version").output().is_ok(),
        "wrk is not installed: install the package 'wrk'"
    );

    let mut left_out = Vec::new();
    let mut rows = Vec::new();
    for (number, binary) in options.haproxys.iter().enumerate() {
        let version = haproxys::version(binary);
        // The curve is shown for the oldest and the newest.
        let at_an_end = number == 0 || number + 1 == options.haproxys.len();
        for setup in setups::all(options.peer.as_deref(), options.quick) {
            let name = format!("{version} {}: {}", setup.group.name(), setup.name);
            let is_shown = at_an_end || setup.group != Group::Share;
            if options.wants(&name) && is_shown && (!options.quick || setup.is_quick()) {
                rows.push(Row {
                    version: version.clone(),
                    binary: binary.clone(),
                    setup,
                    rounds: Vec::new(),
                });
            }
        }
    }
    if options.peer.is_none() {
        left_out.push("the Go agent (no --peer, and no GCRA_GO_PEER)".to_owned());
        eprintln!("left out: {}", left_out[0]);
    }
    for round in 1..=options.rounds {
        for row in &mut rows {
            let figures = run(row, options.seconds, options.quick);
            eprintln!(
                "round {round} {:<7} {:<12} {:<28} {:>7.0}/s p99 {:>6.0} us, \
                 CPU {:>5.1} + {:>5.1} us",
                row.version,
                row.setup.group.name(),
                row.setup.name,
                figures.per_second,
                figures.p99_us,
                figures.haproxy_us,
                figures.agent_us
            );
            row.rounds.push(figures);
        }
    }
    let blind: Vec<_> = options
        .haproxys
        .iter()
        .filter(|_| options.wants("blind"))
        .map(|binary| {
            (
                haproxys::version(binary),
                [None, Some(0), Some(1), Some(10), Some(100)]
                    .map(|delay| blind(binary, delay, options.quick)),
            )
        })
        .collect();

    let (rounds, seconds) = (options.rounds, options.seconds);
    println!("{}", haproxy_report::text(&rows, &blind, &left_out, rounds, seconds));
    if options.write && !rows.is_empty() {
        page::write("haproxy", &haproxy_report::section(&rows, rounds, seconds));
    }
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|part| name.contains(part))
    }

    fn of(args: &[String]) -> Self {
        let quick = asked::quick();
        let mut haproxys = haproxys::asked(quick);
        if haproxys.is_empty() {
            haproxys.push(support::haproxy_binary());
        }
        let peer = asked::values("--peer")
            .first()
            .map(PathBuf::from)
            .or(std::env::var_os("GCRA_GO_PEER").map(Into::into));
        let is_value = |index: usize| {
            index > 0
                && matches!(
                    &args[index - 1][..],
                    "--rounds" | "--seconds" | "--haproxy" | "--peer"
                )
        };
        let wanted = args
            .iter()
            .enumerate()
            .filter(|(index, arg)| !arg.starts_with("--") && !is_value(*index))
            .map(|(_, arg)| arg.clone());
        Self {
            wanted: wanted.collect(),
            quick,
            write: asked::flag("--write"),
            rounds: asked::number("--rounds", if quick { 1 } else { 3 }) as usize,
            seconds: asked::number("--seconds", if quick { 1 } else { 3 }),
            peer: peer.filter(|path| path.is_file()),
            haproxys,
        }
    }
}

/// One round of one setup, with processes of its own.
fn run(row: &Row, mut seconds: u64, quick: bool) -> Figures {
    let started = Started::new(&row.binary, &row.setup);
    // Connections to the agent are made, and a few keys known.
    let mut client = support::Client::new(started.frontend);
    (0..20).for_each(|_| assert!(client.get("/").unwrap().status != 503));
    drop(client);
    let pids =
        [Some(started.haproxy.id()), started.agent.as_ref().map(|agent| agent.process.id())];
    let cpu = || pids.map(|pid| pid.map_or(Duration::ZERO, usage::cpu_time));
    let (since, before) = (machine::Since::now(), cpu());
    let [requests, micros, failed, denied, p50, p99, p999] = loop {
        let figures = wrk(&started, row.setup.load, seconds);
        // A busy machine may need longer until a client is over its limit.
        let [_, _, _, denied, ..] = figures;
        if !quick || denied > 0.0 || !row.setup.denies() || seconds > 16 {
            break figures;
        }
        seconds *= 2;
    };
    let after = cpu();
    let running = (0..2).map(|number| (after[number] - before[number]).as_secs_f64()).sum();
    let others = since.others(running);
    assert!(failed == 0.0, "{failed} requests failed: {:#?}", started.haproxy.lines());
    assert!(
        (denied > 0.0) == row.setup.denies(),
        "{}, {}: {denied} of {requests} requests were denied",
        row.setup.group.name(),
        row.setup.name
    );
    let each = |number: usize| (after[number] - before[number]).as_secs_f64() * 1e6 / requests;
    let mut figures = Figures {
        per_second: requests / micros * 1e6,
        p50_us: p50,
        p99_us: p99,
        p999_us: p999,
        haproxy_us: each(0),
        agent_us: each(1),
        asked: None,
        others,
    };
    if row.setup.counts() {
        figures.asked = Some(started.agent.unwrap().stop() as f64 / requests);
    }
    figures
}

/// Requests, microseconds, socket errors, answers other than 200, and three percentiles.
fn wrk(started: &Started, load: Load, seconds: u64) -> [f64; 7] {
    let script = started.directory.path().join("load.lua");
    std::fs::write(&script, load.script()).unwrap();
    let output = Command::new("wrk")
        .args(["-t1", "-c32", &format!("-d{seconds}"), "-s"])
        .arg(script)
        .arg(format!("http://{}/", started.frontend))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find_map(|line| line.strip_prefix("figures "));
    let mut numbers =
        line.unwrap_or_else(|| panic!("{said}")).split(' ').map(|number| number.parse().unwrap());
    [(); 7].map(|()| numbers.next().unwrap())
}

/// The median and the 99th percentile of one request after another, in microseconds.
pub(crate) type Latency = [f64; 2];

fn blind(binary: &Path, delay_ms: Option<u64>, quick: bool) -> Latency {
    let started = Started::new(binary, &setups::delayed(delay_ms));
    let mut client = support::Client::new(started.frontend);
    let requests = match delay_ms {
        _ if quick => 3,
        Some(ms @ 10..) => 3_000 / ms,
        _ => 2_000,
    };
    let mut micros = Vec::new();
    for number in 0..requests + 5 {
        let start = Instant::now();
        assert_eq!(client.get("/").unwrap().status, 200);
        // The first ones make connections.
        if number >= 5 {
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    micros.sort_by(f64::total_cmp);
    [micros[micros.len() / 2], micros[micros.len() * 99 / 100]]
}

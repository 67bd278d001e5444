//! The processor time of HAProxy that decides itself, beside a stick table and SPOE: `make
//! bench-in-process`.
//!
//! `cargo test -p benches --bench in_process_time [-- --write|--quick] [--rounds N] [--seconds N]
//! [--haproxy PATH]...`. It measures what `cargo build --release -p gcra-lua -p gcra-spoa` has
//! built. The load comes from wrk, one thread with 32 connections or with one, and all run on the
//! same cores. The HAProxys are those that `--haproxy` names, else those in target/haproxy/; with
//! the last one also two threads are tried, with a state of Lua for each and with one for both.
//! `--write` writes the figures into docs/BENCHMARKS.md, and `--quick` tries each limit for a
//! second, with the builds of the tests.
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
#[path = "support/inside.rs"]
mod inside;
#[path = "support/median.rs"]
mod median;
#[path = "support/page.rs"]
mod page;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "support/usage.rs"]
mod usage;

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use haproxys::version;
use inside::Limit;
use median::median;
use support::{Agent, Process, directory, free_port, haproxy_folder, wait_until};

/// The stick table is first: the others are relative to it.
const LIMITS: [Limit; 3] = [Limit::StickTable, Limit::Converter, Limit::Asked];

/// Those with two threads.
const SEVERAL_THREADS: [Limit; 4] =
    [Limit::StickTable, Limit::Converter, Limit::OneState, Limit::Asked];

/// Requests of one client.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Load {
    AllPass,
    /// Nearly all are denied.
    Flood,
    /// All pass, one after the other. Nothing waits for other requests, so a request that waits
    /// for Lua's collector is seen.
    OneConnection,
}

impl Load {
    const ALL: [Self; 3] = [Self::AllPass, Self::Flood, Self::OneConnection];

    fn name(self) -> &'static str {
        match self {
            Self::AllPass => "One client, all pass",
            Self::Flood => "One client, a flood",
            Self::OneConnection => "One client with one connection, all pass",
        }
    }

    fn connections(self) -> u32 {
        if self == Self::OneConnection { 1 } else { 32 }
    }
}

/// The script with which wrk prints its figures.
const SCRIPT: &str = "function done(summary, latency, requests)
    io.write(string.format('figures %d %d %d %d %d %d\\n', summary.requests, summary.duration,
        summary.errors.status, latency:percentile(50), latency:percentile(99),
        latency:percentile(99.9)))
end
";

#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    percentiles: [f64; 3],
    /// Of HAProxy and the agent for each request, in microseconds.
    haproxy: f64,
    agent: f64,
}

struct Row {
    haproxy: PathBuf,
    threads: u32,
    load: Load,
    limit: Limit,
    rounds: Vec<Figures>,
}

fn main() {
    let quick = asked::quick();
    if quick {
        program::build();
    }
    let (rounds, seconds) =
        if quick { (1, 1) } else { (asked::number("--rounds", 5), asked::number("--seconds", 3)) };
    let haproxys = haproxys::asked(quick);
    let newest = haproxys.last().expect("'make bench-in-process' fetches some").clone();
    let mut rows = Vec::new();
    let one = haproxys.iter().map(|haproxy| (haproxy, 1));
    for (haproxy, threads) in one.chain([(&newest, 2)]) {
        for load in Load::ALL {
            let limits = if threads == 1 { &LIMITS[..] } else { &SEVERAL_THREADS };
            // One connection has one thread.
            for limit in limits.iter().filter(|_| threads == 1 || load != Load::OneConnection) {
                let (haproxy, limit) = (haproxy.clone(), *limit);
                rows.push(Row { haproxy, threads, load, limit, rounds: Vec::new() });
            }
        }
    }
    // Before the first round, it is that of other programs.
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    let others = text.split(' ').next().unwrap_or_default().to_owned();
    for round in 1..=rounds {
        for row in &mut rows {
            let figures = run(row, seconds, quick);
            println!(
                "round {round} {} {} threads, {}: {:<11} {:>6.0}/s CPU {:.1} + {:.1} us, p99.9 \
                 {:.0} us",
                version(&row.haproxy),
                row.threads,
                row.load.name(),
                row.limit.name(),
                figures.per_second,
                figures.haproxy,
                figures.agent,
                figures.percentiles[2]
            );
            row.rounds.push(figures);
        }
    }
    let section = section(&rows, rounds, seconds, &others);
    println!("{section}");
    if asked::flag("--write") {
        page::write("in-process-time", &section);
    }
}

impl Row {
    fn median(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }
}

fn section(rows: &[Row], rounds: u64, seconds: u64, others: &str) -> String {
    let mut text = format!(
        "## HAProxy that decides itself\n\nMicroseconds of processor time for each request, of \
         HAProxy and of the agent. In parentheses: both\ntogether, relative to a stick table, the \
         median of the rounds' ratios. wrk has one thread and 32\nconnections or one, and all run \
         on the same cores. Medians of {rounds} interleaved rounds of {seconds} s of\n\
         `make bench-in-process`, with a load of {others} by other programs\n({}).\n",
        host::description()
    );
    for load in Load::ALL {
        write!(
            text,
            "\n{}:\n\n| HAProxy | limited by | CPU µs | p99.9 µs |\n|---|---|---:|---:|\n",
            load.name()
        )
        .unwrap();
        for row in rows.iter().filter(|row| row.load == load) {
            let stick_table = rows.iter().find(|other| {
                other.limit == Limit::StickTable
                    && other.load == load
                    && (&other.haproxy, other.threads) == (&row.haproxy, row.threads)
            });
            let both = |figures: &Figures| figures.haproxy + figures.agent;
            let ratios = row.rounds.iter().zip(&stick_table.expect("it is first").rounds);
            let ratio = median(ratios.map(|(one, other)| both(one) / both(other)).collect());
            let threads = if row.threads == 1 { "" } else { ", 2 threads" };
            writeln!(
                text,
                "| {}{threads} | {} | {:.1} + {:.1} ({ratio:.2}) | {:.0} |",
                version(&row.haproxy),
                row.limit.name(),
                row.median(|figures| figures.haproxy),
                row.median(|figures| figures.agent),
                row.median(|figures| figures.percentiles[2]),
            )
            .unwrap();
        }
    }
    text.push('\n');
    text
}

/// One round, with processes of its own.
fn run(row: &Row, seconds: u64, quick: bool) -> Figures {
    let folder = directory();
    let path = |name: &str| folder.path().join(name);
    let frontend = free_port(Ipv4Addr::LOCALHOST.into());
    let (words, per_hour) = match row.load == Load::Flood {
        true => ("--rate 100/h --burst 20", 100),
        false => ("--rate 100000000/s --burst 1000000", 4_000_000_000),
    };
    let agent = (row.limit == Limit::Asked).then(|| {
        let program = match quick {
            true => support::agent_binary(),
            false => program::target().join("release/gcra-spoa"),
        };
        let mut command = Command::new(program);
        command.arg("--table").arg(path("table")).args(words.split(' '));
        Agent::start_command(command.args(["--drain", "0", "--listen", "127.0.0.1:0"]))
    });
    let module = if quick { support::lua_module() } else { inside::optimized_module() };
    let setting = inside::Setting {
        module,
        table: path("table"),
        words,
        per_hour,
        threads: row.threads,
        agent: agent.as_ref().map_or("", |agent| &agent.address),
    };
    let text = inside::configuration(row.limit, &version(&row.haproxy), frontend, &setting);
    fs::write(path("haproxy.cfg"), text).unwrap();
    let asks = fs::read_to_string(haproxy_folder().join("spoe-gcra.conf")).unwrap();
    fs::write(path("spoe-gcra.conf"), support::patient(&asks)).unwrap();
    fs::write(path("load.lua"), SCRIPT).unwrap();
    let mut command = Command::new(&row.haproxy);
    let mut haproxy =
        Process::start("haproxy", command.arg("-db").arg("-f").arg(path("haproxy.cfg")));
    wait_until("HAProxy listens", || TcpStream::connect(frontend).is_ok());
    if row.limit.is_inside() {
        haproxy.wait_for_table();
    }
    let connections = row.load.connections();
    wrk(&path("load.lua"), frontend, connections, Duration::from_secs(1));
    let pids = [Some(haproxy.id()), agent.as_ref().map(|agent| agent.process.id())];
    let cpu = || pids.map(|pid| pid.map_or(Duration::ZERO, usage::cpu_time));
    let before = cpu();
    let [requests, micros, denied, percentiles @ ..] =
        wrk(&path("load.lua"), frontend, connections, Duration::from_secs(seconds));
    let after = cpu();
    assert_eq!(
        denied > 0.0,
        row.load == Load::Flood,
        "{}: {:?}",
        row.limit.name(),
        haproxy.lines()
    );
    haproxy.kill();
    let each = |number: usize| (after[number] - before[number]).as_secs_f64() * 1e6 / requests;
    let per_second = requests / micros * 1e6;
    Figures { per_second, percentiles, haproxy: each(0), agent: each(1) }
}

/// Requests, microseconds, answers other than 200, and three percentiles.
fn wrk(
    script: &Path,
    frontend: std::net::SocketAddr,
    connections: u32,
    duration: Duration,
) -> [f64; 6] {
    let mut wrk = Command::new("wrk");
    let (connections, seconds) = (format!("-c{connections}"), format!("-d{}", duration.as_secs()));
    wrk.args(["-t1", &connections, &seconds, "-s"]).arg(script);
    let output = wrk.arg(format!("http://{frontend}/")).output().expect("wrk is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find_map(|line| line.strip_prefix("figures "));
    let mut numbers =
        line.unwrap_or_else(|| panic!("{said}")).split(' ').map(|number| number.parse().unwrap());
    [(); 6].map(|()| numbers.next().unwrap())
}

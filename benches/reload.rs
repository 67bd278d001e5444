//! The cost of a file with many overrides that have limits of their own: to check it, and to
//! reload it while the agent decides.
//!
//! `cargo bench -p benches --bench reload [-- --write | --quick]`. Bounds are in CPU time, because
//! that moves less with other work of the machine; the longest wait for an answer has a wide one.
//! It fails above a bound. `--write` writes the figures into docs/BENCHMARKS.md. `--quick` only
//! tries it out, and judges nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_precision_loss,
    reason = "a bench may end with a message, and its numbers are small"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/host.rs"]
mod host;
#[path = "support/median.rs"]
mod median;
#[path = "support/page.rs"]
mod page;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use median::median;
use rustix::process::Signal;
use spop_codec::Value;
use support::spop::Spop;
use support::{Agent, wait_until};

const OVERRIDES: [u32; 2] = [50_000, 100_000];
const ROUNDS: usize = 5;

/// The most CPU time that `check` may take for each override, and that the agent may take for each
/// in a reload, in microseconds: 100 000 are checked within 2 s.
const BOUND_US: f64 = 20.0;

/// The longest that an answer may take during a reload. A reload that decisions wait for takes
/// several times that.
const LONGEST: Duration = Duration::from_millis(500);

const HEAD: &str = "\
| overrides | `check`, CPU | for each | reload, CPU | for each | in force after | longest answer |
| --------: | -----------: | -------: | ----------: | -------: | -------------: | -------------: |
";

struct Figures {
    check: Duration,
    reload: Duration,
    in_force: Duration,
    longest: Duration,
}

fn main() -> ExitCode {
    program::build();
    let quick = asked::quick();
    let mut section = format!(
        "## Many limits in one file\n\nOverrides that each have a limit of their own: \
         `cargo bench -p benches --bench reload -- --write`.\nIt fails above {BOUND_US} us of CPU \
         time for each override, in `check` or in the agent. It also fails if\nan answer takes \
         longer than {} ms. ({})\n\n{HEAD}",
        LONGEST.as_millis(),
        host::description()
    );
    let mut is_within = true;
    for overrides in OVERRIDES {
        let overrides = if quick { overrides / 100 } else { overrides };
        let rounds = if quick { 1 } else { ROUNDS };
        let all: Vec<_> = (0..rounds).map(|_| round(overrides)).collect();
        let of = |part: fn(&Figures) -> Duration| {
            median(all.iter().map(|figures| part(figures).as_secs_f64()).collect())
        };
        let (check, reload) = (of(|it| it.check), of(|it| it.reload));
        let longest = all.iter().map(|it| it.longest).max().unwrap();
        let each = |seconds: f64| seconds * 1e6 / f64::from(overrides);
        writeln!(
            section,
            "| {:>9} | {check:>10.2} s | {:>5.1} us | {reload:>9.2} s | {:>5.1} us | {:>12.2} s | \
             {:>11} ms |",
            thousands(overrides),
            each(check),
            each(reload),
            of(|it| it.in_force),
            longest.as_millis()
        )
        .unwrap();
        is_within &= each(check).max(each(reload)) <= BOUND_US && longest <= LONGEST;
    }
    println!("{section}");
    if asked::flag("--write") {
        section.push_str(
            "\nTimes are medians of 5 rounds. In the reload all limits change, and one client \
             asks meanwhile; the\nlast column is how long it waited at most. CPU time is of all \
             threads of the agent, with the\nanswers to this client.\n\n",
        );
        page::write("reload", &section);
    }
    if quick || is_within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn round(overrides: u32) -> Figures {
    let directory = support::directory();
    let (file, table) = (directory.path().join("gcra.toml"), directory.path().join("table"));
    write(&file, overrides, 1000);
    let check = check(&file);
    let agent = Agent::start(&table, &["--config", file.to_str().unwrap()]);
    write(&file, overrides, 2000);
    let is_over = AtomicBool::new(false);
    let (cpu, in_force, longest) = thread::scope(|scope| {
        let asking = scope.spawn(|| longest_answer(&agent, &is_over));
        let spent = || cpu_time(&agent.process.id().to_string(), 14);
        let before = spent();
        let start = Instant::now();
        agent.process.signal(Signal::HUP);
        let is_said = |line: &String| line.contains("was read again, and is in force");
        wait_until("the file is in force", || agent.process.lines().iter().any(is_said));
        let in_force = start.elapsed();
        let cpu = spent().saturating_sub(before);
        is_over.store(true, Ordering::Relaxed);
        (cpu, in_force, asking.join().unwrap())
    });
    Figures { check, reload: cpu, in_force, longest }
}

/// The longest time that one client waits for an answer. It asks about once in a millisecond.
fn longest_answer(agent: &Agent, is_over: &AtomicBool) -> Duration {
    let mut spop = Spop::connect(&agent.address);
    let ip = Value::Ipv4(Ipv4Addr::new(192, 0, 2, 1));
    let mut longest = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        spop.is_blocked(&[("ip", ip)]);
        longest = longest.max(start.elapsed());
        thread::sleep(Duration::from_millis(1));
    }
    longest
}

/// The CPU time of `gcra-spoa check`.
fn check(file: &Path) -> Duration {
    let mut command = Command::new(support::agent_binary());
    command.arg("check").arg("--config").arg(file).stdout(Stdio::null());
    let before = children();
    assert!(command.status().unwrap().success());
    children().saturating_sub(before)
}

/// The CPU time of this process's children that have ended.
fn children() -> Duration {
    cpu_time("self", 16)
}

/// The CPU time by two fields of a process's `stat` that follow each other, in hundredths of a
/// second. The time of threads that have ended is in it.
fn cpu_time(process: &str, field: usize) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The state behind the name is the third field.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields = fields.split(' ').skip(field - 3).take(2);
    Duration::from_millis(10 * fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>())
}

/// A file with so many overrides, each with a limit that no other has.
fn write(file: &Path, overrides: u32, least: u32) {
    let mut text = String::from("[policy.check]\nlimits = \"100/s\"\n[policy.check.overrides]\n");
    for number in 0..overrides {
        let ip = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
        writeln!(text, "\"{ip}\" = \"{}/h\"", least + number).unwrap();
    }
    fs::write(file, text).unwrap();
}

fn thousands(number: u32) -> String {
    match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{thousands} {:03}", number % 1000),
    }
}

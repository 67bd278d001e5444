//! The cost of a NOTIFY to the agent: CPU of the real process, from the kernel's accounting, with
//! every ACK checked.
//!
//! `cargo bench -p benches --bench agent [-- PART-OF-A-ROW'S-NAME] [--quick] [--agent PATH]...`.
//! The loads are bursts of 8192 NOTIFYs, windows of 64, and one at a time. Each is on a million
//! and on 100 000 keys in random order, and on one hot key, with the default table. There are also
//! bursts on four connections at once, with two workers. Beside our agent runs a control, which
//! does nothing but decode, decide and answer, and the agents that `--agent` names, such as an
//! earlier release. They take turns within a round. `AGENT_ARGS` replaces the agent's `--rate
//! 100/s --burst 20`. Throughput is of agent and generator together and moves with the machine;
//! CPU per NOTIFY is steadier. `--quick` only tries it out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench may end with a message"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/control.rs"]
mod control;
#[path = "support/limit.rs"]
mod limit;
#[path = "support/median.rs"]
mod median;
#[path = "support/notifies.rs"]
mod notifies;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "support/usage.rs"]
mod usage;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use median::median;
use notifies::Notifies;
use support::Agent;
use support::spop::Spop;
use usage::cpu_time;

const ROUNDS: usize = 5;
/// How often each load is offered in a round, because the kernel counts user time in hundredths
/// of a second.
const REPEATS: usize = 4;
/// A million are nearly as many as the default table has slots.
const KEYS: [(u32, &str); 3] =
    [(1_000_000, "1 000 000 keys"), (100_000, "100 000 keys"), (1, "one key")];

/// The argument that makes this program the control.
const CONTROL: &str = "--control";

/// How a load is offered.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    notifies: usize,
    /// NOTIFYs sent before the answers to them are read.
    window: usize,
    /// Each on a thread of its own. The agent has half as many workers.
    connections: usize,
}

const LOADS: [Load; 4] = [
    Load { name: "bursts of 8192", notifies: 2_000_000, window: 8192, connections: 1 },
    Load { name: "four connections", notifies: 1_000_000, window: 8192, connections: 4 },
    Load { name: "windows of 64", notifies: 500_000, window: 64, connections: 1 },
    Load { name: "one at a time", notifies: 30_000, window: 1, connections: 1 },
];

/// The agents to measure.
#[derive(Clone)]
enum Program {
    Control,
    Ours,
    Other(PathBuf),
}

impl Program {
    fn name(&self) -> String {
        match self {
            Self::Control => "control".to_owned(),
            Self::Ours => "gcra-spoa".to_owned(),
            Self::Other(path) => path.display().to_string(),
        }
    }

    fn start(&self, table: &std::path::Path, load: Load) -> Agent {
        let limit = limit::args();
        let threads = load.connections.div_ceil(2).to_string();
        let with_args = |mut command: Command| {
            command.arg("--table").arg(table).args(["--listen", "127.0.0.1:0"]);
            command.args(["--threads", &threads]).args(limit.split_whitespace());
            Agent::start_command(&mut command)
        };
        match self {
            Self::Control => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                Agent::start_command(command.arg(CONTROL))
            }
            Self::Ours => with_args(Command::new(support::agent_binary())),
            Self::Other(path) => with_args(Command::new(path)),
        }
    }
}

fn main() {
    if asked::flag(CONTROL) {
        return control::run();
    }
    program::build();
    println!(
        "{:<16} {:<14} {:<16} {:>14} {:>6} {:>7} {:>12} {:>10}",
        "load", "keys", "program", "CPU ns/NOTIFY", "user", "kernel", "NOTIFYs/s", "to control"
    );
    let (wanted, others) = arguments();
    let quick = asked::quick();
    let programs: Vec<_> = [Program::Control, Program::Ours].into_iter().chain(others).collect();
    let (rounds, repeats) = if quick { (1, 1) } else { (ROUNDS, REPEATS) };
    for mut load in LOADS {
        if quick {
            load.notifies /= 100;
        }
        for (keys, name) in KEYS {
            if !format!("{} {name}", load.name).contains(&wanted) {
                continue;
            }
            let mut done = vec![Vec::new(); programs.len()];
            for _ in 0..rounds {
                for (program, done) in programs.iter().zip(&mut done) {
                    done.push(run(program, load, keys, repeats));
                }
            }
            for (program, own) in programs.iter().zip(&done) {
                let of = |figure: fn(&Round) -> f64| median(own.iter().map(figure).collect());
                let ratios = own.iter().zip(&done[0]).map(|(own, control)| own.cpu / control.cpu);
                println!(
                    "{:<16} {name:<14} {:<16} {:>14.1} {:>6.1} {:>7.1} {:>12.0} {:>10.2}",
                    load.name,
                    program.name(),
                    of(|round| round.cpu),
                    of(|round| round.cpu * round.user_share),
                    of(|round| round.cpu * (1.0 - round.user_share)),
                    of(|round| round.per_second),
                    median(ratios.collect())
                );
            }
        }
    }
}

/// The part of a name, and the other agents.
fn arguments() -> (String, Vec<Program>) {
    let (mut wanted, mut others) = (String::new(), Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--agent" {
            others.push(Program::Other(args.next().expect("a path after --agent").into()));
        } else if !arg.starts_with("--") {
            wanted = arg;
        }
    }
    (wanted, others)
}

#[derive(Clone, Copy)]
struct Round {
    /// Nanoseconds for each NOTIFY.
    cpu: f64,
    user_share: f64,
    per_second: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a few million")]
fn run(program: &Program, load: Load, keys: u32, repeats: usize) -> Round {
    let directory = support::directory();
    let agent = program.start(&directory.path().join("table"), load);
    let notifies = Notifies::new(load.notifies, keys);
    let mut streams: Vec<_> =
        (0..load.connections).map(|_| Spop::connect(&agent.address).into_stream()).collect();

    // Warm: the table's pages are mapped, its keys known.
    streams.iter_mut().for_each(|stream| notifies.exchange(stream, 8192));
    let (start, cpu_before, ticks_before) =
        (Instant::now(), cpu_time(agent.process.id()), ticks(&agent));
    thread::scope(|scope| {
        for stream in &mut streams {
            let notifies = &notifies;
            scope.spawn(move || (0..repeats).for_each(|_| notifies.exchange(stream, load.window)));
        }
    });
    let (elapsed, cpu, ticks) =
        (start.elapsed(), cpu_time(agent.process.id()) - cpu_before, ticks(&agent));
    let (user, system) = (ticks.0 - ticks_before.0, ticks.1 - ticks_before.1);
    let notifies = (load.notifies * repeats * load.connections) as f64;
    Round {
        cpu: cpu.as_secs_f64() * 1e9 / notifies,
        user_share: user as f64 / (user + system).max(1) as f64,
        per_second: notifies / elapsed.as_secs_f64(),
    }
}

/// Hundredths of a second in user mode and in the kernel.
fn ticks(agent: &Agent) -> (u64, u64) {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.process.id())).unwrap();
    // The second field is a name in parentheses.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse().unwrap(), fields[12].parse().unwrap())
}

//! What a NOTIFY costs the agent: CPU of the real process, from the kernel's accounting, with
//! every ACK checked.
//!
//! `cargo bench -p benches --bench agent [-- PART-OF-A-ROW'S-NAME] [--quick]`. Three loads: bursts
//! of 8192 NOTIFYs, windows of 64, and one at a time; each on a million and on 100 000 keys in
//! random order, and on one hot key, with the default table. `AGENT_ARGS` replaces the agent's
//! `--rate 100/s --burst 20`. Throughput is of agent and generator together and moves with the
//! machine; CPU per NOTIFY is steadier. `--quick` only tries it out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench may end with a message"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/limit.rs"]
mod limit;
#[path = "support/notifies.rs"]
mod notifies;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "support/usage.rs"]
mod usage;

use std::fs;
use std::time::Instant;

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

/// How a load is offered.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    notifies: usize,
    /// NOTIFYs sent before the answers to them are read.
    window: usize,
}

const LOADS: [Load; 3] = [
    Load { name: "bursts of 8192", notifies: 2_000_000, window: 8192 },
    Load { name: "windows of 64", notifies: 500_000, window: 64 },
    Load { name: "one at a time", notifies: 30_000, window: 1 },
];

fn main() {
    program::build();
    println!(
        "{:<16} {:<16} {:>14} {:>8} {:>8} {:>14}",
        "load", "keys", "CPU ns/NOTIFY", "user", "kernel", "NOTIFYs/s"
    );
    let (wanted, quick) = (asked::wanted(), asked::quick());
    let (rounds, repeats) = if quick { (1, 1) } else { (ROUNDS, REPEATS) };
    for mut load in LOADS {
        if quick {
            load.notifies /= 100;
        }
        for (keys, name) in KEYS {
            if !format!("{} {name}", load.name).contains(&wanted) {
                continue;
            }
            let mut done: Vec<_> = (0..rounds).map(|_| run(load, keys, repeats)).collect();
            done.sort_by(|a, b| a.cpu_ns.total_cmp(&b.cpu_ns));
            let Round { cpu_ns, user_share, per_second } = done[rounds / 2];
            let user_ns = cpu_ns * user_share;
            println!(
                "{:<16} {name:<16} {cpu_ns:>14.1} {user_ns:>8.1} {:>8.1} {per_second:>14.0}",
                load.name,
                cpu_ns - user_ns
            );
        }
    }
}

#[derive(Clone, Copy)]
struct Round {
    cpu_ns: f64,
    user_share: f64,
    per_second: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a few million")]
fn run(load: Load, keys: u32, repeats: usize) -> Round {
    let directory = support::directory();
    let limit = limit::args();
    let args: Vec<_> =
        ["--listen", "127.0.0.1:0"].into_iter().chain(limit.split_whitespace()).collect();
    let agent = Agent::start_with(&directory.path().join("table"), &args);
    let mut stream = Spop::connect(&agent.address).into_stream();
    let notifies = Notifies::new(load.notifies, keys);

    // Warm: the table's pages are mapped, its keys known.
    notifies.exchange(&mut stream, 8192);
    let (start, cpu_before, ticks_before) =
        (Instant::now(), cpu_time(agent.process.id()), ticks(&agent));
    for _ in 0..repeats {
        notifies.exchange(&mut stream, load.window);
    }
    let (elapsed, cpu, ticks) =
        (start.elapsed(), cpu_time(agent.process.id()) - cpu_before, ticks(&agent));
    let (user, system) = (ticks.0 - ticks_before.0, ticks.1 - ticks_before.1);
    let notifies = (load.notifies * repeats) as f64;
    Round {
        cpu_ns: cpu.as_secs_f64() * 1e9 / notifies,
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

//! The agent side by side with others, under the same loads: `make bench-peers`, which builds the
//! others first.
//!
//! `cargo bench -p benches --bench peers [-- PART-OF-A-LOAD'S-NAME] [--quick]`. Throughput,
//! latency, CPU and memory, medians of interleaved rounds. `--quick` only tries it out.
//! `AGENT_ARGS` replaces the agent's `--rate 100/s --burst 20`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a bench may end with a message, and its numbers are small"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/host.rs"]
mod host;
#[path = "support/limit.rs"]
mod limit;
#[path = "support/load.rs"]
mod load;
#[path = "support/machine.rs"]
mod machine;
#[path = "support/peers_report.rs"]
mod peers_report;
#[path = "support/program.rs"]
mod program;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "support/usage.rs"]
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use load::{Check, Fault, Generator, NOTIFY_BYTES, Offer};
use peers_report::{Figures, Report};
use support::Agent;

/// The agents, in the order of the columns.
const PEERS: [&str; 6] =
    ["gcra-spoa", "echo", "spawn + mpsc", "spop crate", "negasus", "DropMorePackets"];
const OURS: usize = 0;
const ECHO: usize = 1;
const NEGASUS: usize = 4;
/// Its answers to NOTIFYs that come together get mixed up on their way, so it gets one at a time.
const ONE_BY_ONE: usize = 5;

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    connections: usize,
    offer: Offer,
}

const LOADS: [Load; 7] = [
    Load { name: "burst, 1 connection", connections: 1, offer: Offer::Burst(2_000_000) },
    Load { name: "burst, 4 connections", connections: 4, offer: Offer::Burst(250_000) },
    Load { name: "window of 64, 1 conn.", connections: 1, offer: Offer::Window(64) },
    Load { name: "window of 64, 8 conn.", connections: 8, offer: Offer::Window(64) },
    Load { name: "one at a time, 1 conn.", connections: 1, offer: Offer::Window(1) },
    Load { name: "one at a time, 8 conn.", connections: 8, offer: Offer::Window(1) },
    Load { name: "one at a time, 64 conn.", connections: 64, offer: Offer::Window(1) },
];

/// The most NOTIFYs that negasus gets in one burst, on all connections together.
const NEGASUS_BURST: usize = 200_000;

type Samples = [[Vec<Figures>; PEERS.len()]; LOADS.len()];

fn main() {
    let (wanted, quick) = (asked::wanted(), asked::quick());
    let (rounds, seconds) = if quick { (1, 0.05) } else { (3, 1.0) };

    program::build();
    let mut left_out = Vec::new();
    let peers: Vec<_> = (0..PEERS.len()).filter(|peer| is_built(*peer, &mut left_out)).collect();
    let mut samples: [Samples; 2] = Default::default();
    let since = machine::Since::now();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for (socket, samples) in ["TCP", "Unix socket"].iter().zip(&mut samples) {
            for (load, row) in
                LOADS.iter().zip(samples).filter(|(load, _)| load.name.contains(&wanted))
            {
                for peer in &peers {
                    if *peer == ONE_BY_ONE && !matches!(load.offer, Offer::Window(1)) {
                        continue;
                    }
                    let mut load = *load;
                    if let (true, Offer::Burst(notifies)) = (quick, &mut load.offer) {
                        *notifies /= 100;
                    }
                    match measure(
                        *peer,
                        load,
                        *socket == "Unix socket",
                        Duration::from_secs_f64(seconds),
                    ) {
                        Ok(figures) => row[*peer].push(figures),
                        Err(fault) => {
                            left_out.push(format!(
                                "{} ({}, {socket}: {fault})",
                                PEERS[*peer], load.name
                            ));
                        }
                    }
                }
            }
        }
    }

    // All agents have ended by now.
    let others = since.others(0.0);

    let [tcp, unix] = samples.map(|samples| samples.map(|row| row.map(medians)));
    let report = Report { tcp, unix, rounds, seconds, others, left_out: &left_out };
    println!("{}", report.text());
}

fn medians(samples: Vec<Figures>) -> Option<Figures> {
    let median = |figure: &dyn Fn(&Figures) -> f64| {
        let mut values: Vec<_> = samples.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    Some(Figures {
        per_second: median(&|figures| figures.per_second)?,
        latency_us: [
            median(&|figures| figures.latency_us[0])?,
            median(&|figures| figures.latency_us[1])?,
            median(&|figures| figures.latency_us[2])?,
        ],
        cpu_ns: median(&|figures| figures.cpu_ns)?,
        peak_mib: median(&|figures| figures.peak_mib)?,
    })
}

/// One load on a process of its own.
fn measure(peer: usize, mut load: Load, unix: bool, duration: Duration) -> Result<Figures, Fault> {
    if let (NEGASUS, Offer::Burst(notifies)) = (peer, load.offer) {
        load.offer = Offer::Burst(notifies.min(NEGASUS_BURST / load.connections));
    }
    let directory = support::directory();
    let agent = start(peer, directory.path(), unix);
    let pid = agent.process.id();
    // All ACKs of echo are equal, so their ids say nothing.
    let check = if peer == ECHO { Check::ExceptId } else { Check::All };
    let mut generator = Generator::connect(&agent.address, load.connections, load.offer, check)
        .map_err(|error| format!("no connection: {error}"))?;

    generator.run(duration / 5)?;
    let before = usage::cpu_time(pid);
    let outcome = generator.run(duration)?;
    let cpu = usage::cpu_time(pid) - before;
    let quantile = |quantile| outcome.latency.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Figures {
        per_second: outcome.notifies as f64 / outcome.elapsed.as_secs_f64(),
        latency_us: [quantile(0.5), quantile(0.99), quantile(0.999)],
        cpu_ns: cpu.as_nanos() as f64 / outcome.notifies as f64,
        peak_mib: peak_private_kib(pid) as f64 / 1024.0,
    })
}

/// The most memory it had at once, in KiB, without what it shares with others.
fn peak_private_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = |name| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    kib("VmHWM:") - kib("RssShmem:")
}

fn start(peer: usize, directory: &Path, unix: bool) -> Agent {
    let address = if unix {
        format!("unix:{}", directory.join("agent.sock").display())
    } else {
        "127.0.0.1:0".to_owned()
    };
    if peer == OURS {
        let limit = limit::args();
        let args: Vec<_> = ["--slots", "1048576", "--listen", &address]
            .into_iter()
            .chain(limit.split_whitespace())
            .collect();
        return Agent::start_with(&directory.join("table"), &args);
    }
    let mut command = Command::new(program(peer));
    command.arg(address);
    if peer == ECHO {
        command.arg(NOTIFY_BYTES.to_string());
    }
    Agent::start_command(&mut command)
}

/// Where `benches/peers/build` puts it: beside the profiles of the target folder.
fn program(peer: usize) -> PathBuf {
    let bench = std::env::current_exe().expect("this program");
    let target = bench.ancestors().nth(3).expect("it is TARGET/PROFILE/deps/peers-HASH");
    target
        .join("peers/release")
        .join(["", "echo", "spawn-mpsc", "spop-crate", "negasus", "dropmorepackets"][peer])
}

fn is_built(peer: usize, left_out: &mut Vec<String>) -> bool {
    let is_built = peer == OURS || program(peer).is_file();
    if !is_built {
        left_out.push(format!(
            "{} (not built; `make bench-peers` builds all whose compiler is there)",
            PEERS[peer]
        ));
    }
    is_built
}

//! The cost of sharing a limit. Three hosts hold leases, and three have each request charged in
//! the store. Beside them, three call a script of the store for each request, and three count by
//! themselves. `make bench-cluster`.
//!
//! `cargo bench -p benches --bench cluster [-- PART-OF-A-LOAD'S-NAME | away] [--quick]`. Asks, CPU
//! of the store and of the agents, and latency, each under the same steady load, medians of
//! interleaved rounds. `--quick` only tries it out.
//!
//! The cost of deciding by shares while the store is away is too small to be seen between agents
//! that were started one after the other. It is measured in short rounds on the same agents.
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
#[path = "support/machine.rs"]
mod machine;
#[path = "support/paced.rs"]
mod paced;
#[path = "support/program.rs"]
mod program;
#[path = "support/script_agent.rs"]
mod script_agent;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "support/usage.rs"]
mod usage;

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use paced::Outcome;
use support::Agent;
use support::valkey::Server;
use tempfile::TempDir;
use usage::cpu_time;

const HOSTS: usize = 3;
const PER_SECOND: u64 = 1000;
const BURST: u64 = 200;
/// The keys of the load without a hot one. Each host asks about each of them once.
const KEYS: u32 = 10_000;

/// Who decides.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Alone,
    Leases,
    /// As policies with `max_delay` are: by agents that ask the store about each request.
    AtOnce,
    Script,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Alone, "each host alone"),
    (Way::Leases, "leases"),
    (Way::AtOnce, "a charge each"),
    (Way::Script, "a script call each"),
];

struct Load {
    name: &'static str,
    /// Requests to each host.
    per_second: u32,
    /// Whether there is one key; otherwise there are [`KEYS`], in another order on each host.
    is_hot: bool,
}

const LOADS: [Load; 4] = [
    load("a hot key far above its limit, 12 000/s", 4_000, true),
    load("a hot key above its limit, 6000/s", 2_000, true),
    load("a hot key below its limit, 900/s", 300, true),
    load("10 000 keys, each seen first, 6000/s", 2_000, false),
];

/// The argument that makes this program the agent that calls a script.
const SCRIPT_AGENT: &str = "script-agent";

/// The load while the store is away.
const WHILE_AWAY: Load = load("the store is away, a hot key above its limit, 6000/s", 2_000, true);

const fn load(name: &'static str, per_second: u32, is_hot: bool) -> Load {
    Load { name, per_second, is_hot }
}

/// The figures of one run.
#[derive(Clone, Copy)]
struct Figures {
    allowed_per_second: f64,
    asks: f64,
    store_us: f64,
    agent_us: f64,
    p50_us: f64,
    p99_us: f64,
}

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [agent, store] = &args[..]
        && agent == SCRIPT_AGENT
    {
        return script_agent::serve(store, PER_SECOND, BURST);
    }
    program::build();
    support::valkey::valkey().expect("make valkey fetches a server");
    let (wanted, quick) = (asked::wanted(), asked::quick());
    let (rounds, milliseconds) = if quick { (1, 200) } else { (5, 5_000) };

    if WHILE_AWAY.name.contains(&wanted) {
        while_away(quick);
    }
    let since = machine::Since::now();
    let mut runs = vec![[const { Vec::new() }; WAYS.len()]; LOADS.len()];
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for (load, runs) in LOADS.iter().zip(&mut runs) {
            // One that is hot, and the one that is not.
            let is_tried = !quick || load.per_second == 2_000;
            if !is_tried || !load.name.contains(&wanted) {
                continue;
            }
            for ((way, _), runs) in WAYS.iter().zip(runs) {
                runs.push(measure(&Hosts::start(*way), load, milliseconds));
            }
        }
    }
    if runs.iter().flatten().any(|runs| !runs.is_empty()) {
        // All agents and stores have ended by now.
        print(&runs, rounds, milliseconds / 1000, since.others(0.0));
    }
}

/// Hosts that decide alone beside hosts that decide by shares, both started once.
fn while_away(quick: bool) {
    let (rounds, milliseconds) = if quick { (1, 200) } else { (41, 1_000) };
    let wait = |seconds| {
        if !quick {
            thread::sleep(Duration::from_secs(seconds));
        }
    };
    let since = machine::Since::now();
    let [mut alone, mut away] = [Vec::new(), Vec::new()];
    {
        let of_alone = Hosts::start(Way::Alone);
        let mut of_away = Hosts::start(Way::Leases);
        // Hosts are counted only after a while, and shares begin some time after the loss.
        wait(9);
        // Its end kills it.
        of_away.store = None;
        wait(5);
        for _ in 0..rounds {
            alone.push(measure(&of_alone, &WHILE_AWAY, milliseconds));
            away.push(measure(&of_away, &WHILE_AWAY, milliseconds));
        }
    }
    println!(
        "{}; medians of {rounds} interleaved rounds of 1 s,\nother programs took {:.0} % of the \
         machine ({}):\n",
        WHILE_AWAY.name,
        100.0 * since.others(0.0),
        host::description()
    );
    println!(
        "| decided by      | allowed/s | agent µs | p50 µs | p99 µs |\n\
         | --------------- | --------: | -------: | -----: | -----: |"
    );
    for (name, runs) in [("each host alone", &alone), ("shares", &away)] {
        let of = |of: fn(&Figures) -> f64| median(runs, of);
        println!(
            "| {name:<15} | {:>9.0} | {:>8.2} | {:>6.1} | {:>6.1} |",
            of(|it| it.allowed_per_second),
            of(|it| it.agent_us),
            of(|it| it.p50_us),
            of(|it| it.p99_us),
        );
    }
    println!();
}

/// Agents and a store of their own.
struct Hosts {
    agents: Vec<Agent>,
    /// `None`: it is away.
    store: Option<Server>,
    _directories: Vec<TempDir>,
}

impl Hosts {
    fn start(way: Way) -> Self {
        let store = Server::start(&[]);
        let directories: Vec<_> = (0..HOSTS).map(|_| support::directory()).collect();
        let agents: Vec<_> =
            directories.iter().map(|directory| start(way, directory.path(), &store)).collect();
        // Requests of keys that are not in the load, so that connections and scripts are there.
        let first = if asked::quick() { 5 } else { 50 };
        run(&agents, |host| vec![1_000_000 + host; first], 100);
        Self { agents, store: Some(store), _directories: directories }
    }
}

/// Measures one load.
fn measure(hosts: &Hosts, load: &Load, milliseconds: u32) -> Figures {
    let agents = &hosts.agents;
    let store = hosts.store.as_ref();
    let used = || {
        let agents: Duration = agents.iter().map(|agent| cpu_time(agent.process.id())).sum();
        let store = store.map_or(Duration::ZERO, |store| cpu_time(store.id()));
        [store, agents].map(|time| time.as_secs_f64())
    };
    let calls = || store.map_or(0, calls);
    let idle = Duration::from_millis(milliseconds.into()) * 2 / 5;
    let before = used();
    thread::sleep(idle);
    let after = used();
    let idle = [0, 1].map(|of| (after[of] - before[of]) / idle.as_secs_f64());

    let (asks_before, before, start) = (calls(), used(), Instant::now());
    let count = (load.per_second * milliseconds / 1000) as usize;
    let outcome = run(agents, |host| keys(load, host, count), load.per_second);
    let (elapsed, after) = (start.elapsed().as_secs_f64(), used());
    let requests = outcome.requests as f64;
    let [store_us, agent_us] =
        [0, 1].map(|of| 1e6 * (after[of] - before[of] - idle[of] * elapsed).max(0.0) / requests);
    let quantile = |quantile| outcome.latency.value_at_quantile(quantile) as f64 / 1e3;
    Figures {
        allowed_per_second: outcome.allowed as f64 / elapsed,
        asks: (calls() - asks_before) as f64 / requests,
        store_us,
        agent_us,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
    }
}

/// Each host is asked at the same time.
fn run(agents: &[Agent], keys: impl Fn(u32) -> Vec<u32> + Sync, per_second: u32) -> Outcome {
    let keys = &keys;
    thread::scope(|scope| {
        let hosts: Vec<_> = (0..)
            .zip(agents)
            .map(|(host, agent)| {
                scope.spawn(move || paced::run(&agent.address, &keys(host), per_second))
            })
            .collect();
        let mut all = Outcome::new();
        hosts.into_iter().for_each(|host| all.add(&host.join().unwrap()));
        all
    })
}

fn keys(load: &Load, host: u32, count: usize) -> Vec<u32> {
    if load.is_hot {
        return vec![0; count];
    }
    // A step that has no factor in common with the number of keys leads to all of them. Hosts are
    // a third of all keys apart.
    let first = host * KEYS / u32::try_from(HOSTS).unwrap();
    (0..KEYS).cycle().map(|number| (first + number * 7_919) % KEYS).take(count).collect()
}

fn start(way: Way, directory: &Path, store: &Server) -> Agent {
    if way == Way::Script {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        return Agent::start_command(command.args([SCRIPT_AGENT, &store.url()]));
    }
    let table = directory.join("table");
    if way == Way::AtOnce {
        // So short a delay that the limit stays the same, and so long a wait that the store
        // decides about each request.
        let config = format!(
            "[store]\nurl = \"{}\"\nwait = \"1s\"\n[policy.api]\nmessage = \"check\"\n\
             key = [\"ip\"]\nshared = true\nwithout_store = \"open\"\nmax_delay = \"1ms\"\n\
             limits = \"{PER_SECOND}/s burst {BURST}\"\n",
            store.url()
        );
        let file = directory.join("gcra-spoa.toml");
        std::fs::write(&file, config).expect("a file in a directory of this bench");
        let file = file.to_str().expect("a path in UTF-8");
        return Agent::start_with(&table, &["--listen", "127.0.0.1:0", "--config", file]);
    }
    let (rate, burst) = (format!("{PER_SECOND}/s"), BURST.to_string());
    let limit = ["--listen", "127.0.0.1:0", "--rate", &rate, "--burst", &burst];
    let url = store.url();
    let shared = ["--store", &*url];
    let shared: &[&str] = if way == Way::Alone { &[] } else { &shared };
    Agent::start_with(&table, &[&limit, shared].concat())
}

/// How many scripts the store has run.
fn calls(store: &Server) -> u64 {
    let statistics = store.say(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok()
    };
    ["cmdstat_evalsha", "cmdstat_eval"].iter().filter_map(|name| calls(name)).sum()
}

/// The median of a figure over the rounds.
fn median(runs: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    middle(runs.iter().map(of).collect())
}

/// The median of the differences within a round: what moves with the machine moves both.
fn added(runs: &[Figures], alone: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    middle(runs.iter().zip(alone).map(|(run, alone)| of(run) - of(alone)).collect())
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(runs: &[[Vec<Figures>; WAYS.len()]], rounds: usize, seconds: u32, others: f64) {
    println!(
        "Three hosts with the limit {PER_SECOND}/s, burst {BURST}, and one store, all on the same \
         cores; medians of\n{rounds} interleaved rounds of {seconds} s; other programs took \
         {:.0} % of the machine\n({}):\n",
        100.0 * others,
        host::description()
    );
    for (load, runs) in LOADS.iter().zip(runs) {
        if runs[0].is_empty() {
            continue;
        }
        println!("{}:\n", load.name);
        println!(
            "| decided by         | allowed/s | asks/request | store µs | agent µs \
             | p50 µs | p99 µs | store full |\n\
             | ------------------ | --------: | -----------: | -------: | -------: \
             | -----: | -----: | ---------: |"
        );
        for ((way, name), of_way) in WAYS.iter().zip(runs) {
            let [p50, p99] = if *way == Way::Alone {
                // To these the others add something.
                let of = |of: fn(&Figures) -> f64| format!("{:.0}", median(of_way, of));
                [of(|it| it.p50_us), of(|it| it.p99_us)]
            } else {
                let of = |of: fn(&Figures) -> f64| format!("{:+.0}", added(of_way, &runs[0], of));
                [of(|it| it.p50_us), of(|it| it.p99_us)]
            };
            let store_us = median(of_way, |it| it.store_us);
            let full = match way {
                Way::Alone => "never".to_owned(),
                _ => format!("{:.0}/s", 1e6 / store_us),
            };
            println!(
                "| {name:<18} | {:>9.0} | {:>12.4} | {store_us:>8.2} | {:>8.2} | {p50:>6} \
                 | {p99:>6} | {full:>10} |",
                median(of_way, |it| it.allowed_per_second),
                median(of_way, |it| it.asks),
                median(of_way, |it| it.agent_us),
            );
        }
        println!();
    }
    println!(
        "\"Store µs\" and \"agent µs\" are CPU per request, user and kernel, without what idle \
         processes use.\n\"Store full\" is the requests per second at which that CPU fills the \
         store's one thread. p50 and p99\nare from NOTIFY to ACK, without HAProxy: of hosts that \
         decide alone, and what the others add to\nthat."
    );
}

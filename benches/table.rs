//! The cost of a decision in the table alone, and in limiters that could be used instead.
//!
//! `cargo bench -p benches --bench table [-- PART-OF-A-ROW'S-NAME] [--quick] [--write]`.
//! Nanoseconds per decision and thread, medians of interleaved rounds. `--quick` only tries it
//! out; `--write` also writes the most important columns into docs/BENCHMARKS.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a bench may end with a message, and its numbers are small"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/host.rs"]
mod host;
#[path = "support/limiters.rs"]
mod limiters;
#[path = "support/page.rs"]
mod page;
#[path = "support/report.rs"]
mod report;

use std::thread;
use std::time::Instant;

use limiters::{LIMITERS, Limiter, Rate};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Zipf};

/// Never denies, and no key is ever idle again: every decision writes, which is the dearer case.
const ALLOW: Rate = Rate { interval_ns: 100_000_000, burst: 1_000_000_000 };
/// 100 per second: of millions of decisions about one key nearly all are denied.
const DENY: Rate = Rate { interval_ns: 10_000_000, burst: 20 };

/// Keys that are limited alike. All rows of a population use the same limiters.
struct Population {
    name: &'static str,
    keys: u32,
    rate: Rate,
}

const POPULATIONS: [Population; 4] = [
    Population { name: "one key, denied", keys: 1, rate: DENY },
    Population { name: "one key", keys: 1, rate: ALLOW },
    Population { name: "10 000 keys", keys: 10_000, rate: ALLOW },
    Population { name: "1 000 000 keys", keys: 1_000_000, rate: ALLOW },
];

/// Which of the keys come how often, and on how many threads.
struct Row {
    load: String,
    threads: usize,
    zipf_exponent: f64,
    /// For each limiter, nanoseconds per decision in each round.
    ns: [Vec<f64>; LIMITERS.len()],
}

impl Row {
    fn name(&self) -> String {
        let s = if self.threads == 1 { "" } else { "s" };
        format!("{}, {} thread{s}", self.load, self.threads)
    }

    fn medians(mut self) -> report::Row {
        let medians = self.ns.each_mut().map(|ns| {
            ns.sort_by(f64::total_cmp);
            ns[ns.len() / 2]
        });
        report::Row { name: self.name(), ns: medians }
    }
}

impl Population {
    fn rows(&self) -> Vec<Row> {
        let spreads: &[_] =
            if self.keys == 1 { &[("", 0.0)] } else { &[(", uniform", 0.0), (", zipf", 1.0)] };
        let row = |&(spread, zipf_exponent), threads| Row {
            load: format!("{}{spread}", self.name),
            threads,
            zipf_exponent,
            ns: Default::default(),
        };
        spreads.iter().flat_map(|spread| [1, 2].map(|threads| row(spread, threads))).collect()
    }
}

fn main() {
    let (wanted, quick, write) = (asked::wanted(), asked::quick(), asked::flag("--write"));
    let (decisions, rounds) = if quick { (4_000, 1) } else { (2_000_000, 5) };

    let mut left_out = Vec::new();
    let mut work = Vec::new();
    for population in POPULATIONS {
        let mut rows = population.rows();
        rows.retain(|row| row.name().contains(&wanted));
        if rows.is_empty() {
            continue;
        }
        if quick && population.keys > 10_000 {
            left_out.push(population.name);
            continue;
        }
        eprintln!("preparing {}", population.name);
        let limiters = limiters::all(population.keys, population.rate);
        let rows = rows
            .into_iter()
            .map(|row| (draw(population.keys, row.zipf_exponent, 2 * decisions), row));
        work.push((limiters, population.rate, rows.collect::<Vec<_>>()));
    }

    for round in 0..=rounds {
        eprintln!("round {round} of {rounds}");
        for (limiters, rate, rows) in &mut work {
            for (sample, row) in rows {
                for (limiter, results) in limiters.iter().zip(&mut row.ns) {
                    let ns = run(limiter, *rate, &sample[..row.threads * decisions], row.threads);
                    // The first round warms up.
                    if round > 0 {
                        results.push(ns);
                    }
                }
            }
        }
    }

    let rows: Vec<_> =
        work.into_iter().flat_map(|(_, _, rows)| rows).map(|(_, row)| row.medians()).collect();
    println!(
        "{}",
        report::table(&rows, &std::array::from_fn::<_, { LIMITERS.len() }, _>(|at| at))
    );
    if !left_out.is_empty() {
        println!("left out by --quick: {}", left_out.join("; "));
    }
    if write {
        page::write("table", &report::section(&rows, rounds));
    }
}

/// Draws keys by Zipf's law; with an exponent of 0 all are equally frequent.
fn draw(keys: u32, zipf_exponent: f64, count: usize) -> Vec<u32> {
    let law = Zipf::new(f64::from(keys), zipf_exponent).unwrap();
    // The ranks begin with 1.
    law.sample_iter(SmallRng::seed_from_u64(1)).map(|rank| rank as u32 - 1).take(count).collect()
}

/// Each thread decides about its own part of the sample. Returns nanoseconds per decision of one
/// thread.
fn run(limiter: &Limiter, rate: Rate, sample: &[u32], threads: usize) -> f64 {
    let decisions = sample.len() / threads;
    let start = Instant::now();
    let allowed: usize = thread::scope(|scope| {
        let threads: Vec<_> =
            sample.chunks(decisions).map(|part| scope.spawn(move || limiter(part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let ns = start.elapsed().as_nanos() as f64 / decisions as f64;
    // A limiter that does not limit must not be compared with limiters that do.
    assert!(
        allowed == sample.len() || (rate == DENY && allowed < sample.len() / 2),
        "{allowed} were allowed"
    );
    ns
}

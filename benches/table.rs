//! What a decision costs in the table alone: `cargo bench --bench table`.
//!
//! Nanoseconds per decision and thread, medians of interleaved rounds. "Batched" hashes and prefetches 32 keys before it
//! decides the first, as the agent does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_precision_loss, reason = "a bench")]

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};
use std::thread;
use std::time::Instant;

use gcra_table::{Quota, Slots, Table};

const DECISIONS: u32 = 3_000_000;
const ROUNDS: usize = 5;

/// The keys of a row and the quota they have.
struct Row {
    name: &'static str,
    keys: u32,
    threads: usize,
    batch: usize,
    quota: Quota,
}

fn quota(interval_ns: u64, burst: u32) -> Quota {
    Quota::new(NonZeroU64::new(interval_ns).unwrap(), NonZeroU32::new(burst).unwrap()).unwrap()
}

fn main() {
    // Everything conforms, so everything writes: the dearer case. And 100 per second, where one key is denied.
    let (allow, deny) = (quota(1, 1_000_000_000), quota(10_000_000, 20));
    let row = |name, keys, threads, batch, quota| Row { name, keys, threads, batch, quota };
    let rows = [
        row("one key, allowed", 1, 1, 1, allow),
        row("one key, allowed, 2 threads", 1, 2, 1, allow),
        row("one key, denied", 1, 1, 1, deny),
        row("one key, denied, 2 threads", 1, 2, 1, deny),
        row("10 000 keys", 10_000, 1, 1, allow),
        row("1 000 000 keys", 1_000_000, 1, 1, allow),
        row("1 000 000 keys, batched", 1_000_000, 1, 32, allow),
        row("1 000 000 keys, batched, 2 threads", 1_000_000, 2, 32, allow),
    ];
    let table = Table::in_memory(Slots::new(1 << 22).unwrap()).unwrap();
    let mut results = vec![Vec::new(); rows.len()];
    for _ in 0..=ROUNDS {
        for (row, results) in rows.iter().zip(&mut results) {
            results.push(run(&table, row));
        }
    }
    println!("{:<36} {:>12}", "", "ns/decision");
    for (row, mut results) in rows.iter().zip(results) {
        // The first round warms up.
        results.remove(0);
        results.sort_by(f64::total_cmp);
        println!("{:<36} {:>12.1}", row.name, results[ROUNDS / 2]);
    }
}

fn run(table: &Table, row: &Row) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        for thread in 0..row.threads {
            scope.spawn(move || decide(table, row, thread as u64));
        }
    });
    start.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
}

fn decide(table: &Table, row: &Row, seed: u64) {
    let mut random = seed;
    let mut key = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        table.hash(&(((random >> 32) * u64::from(row.keys)) >> 32).to_le_bytes())
    };
    let mut batch = Vec::with_capacity(row.batch);
    for _ in 0..DECISIONS as usize / row.batch {
        // One reading of the clock a batch; a single decision is measured without it.
        let mut now = if row.batch > 1 { table.now() } else { 1 << 50 };
        batch.clear();
        batch.extend((0..row.batch).map(|_| key()));
        if row.batch > 1 {
            batch.iter().for_each(|key| table.prefetch(*key));
        }
        for key in &batch {
            let _ = black_box(table.charge(*key, row.quota, 1, &mut now));
        }
    }
}

//! The cost of counting a decision: nanoseconds more than the same loop without counting.
//!
//! `cargo bench -p benches --bench stats [-- --quick]`. Keys are hashed before the loop, and names
//! are addresses, as in the daemon. `--quick` only tries it out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench may end with a message"
)]

#[path = "support/asked.rs"]
mod asked;
#[path = "support/median.rs"]
mod median;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Instant;

use gcra_spoa::testing::{RequestCounts, WorkerLane};
use gcra_table::{KeyHash, Slots, Table};
use median::median;

const ROUNDS: usize = 9;
const DECISIONS: u32 = 20_000_000;

fn main() {
    let (rounds, decisions) = if asked::quick() { (1, 6_400) } else { (ROUNDS, DECISIONS) };
    let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
    println!(
        "{:<44} {:>8} {:>8} {:>8}",
        "ns a decision, medians of 9 rounds", "loop", "counted", "costs"
    );
    for threads in [1, 2] {
        for keys in [1_usize, 1 << 16] {
            let clients: Vec<_> = (0..u32::try_from(keys).unwrap())
                .map(|key| (table.hash(&key.to_le_bytes()), Ipv4Addr::from(key)))
                .collect();
            let (mut bare, mut counted) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                bare.push(on(threads, &|| round(&clients, decisions, |_, _, _| {})));
                // A new minute for each, which is when most is sampled.
                let stats = RequestCounts::new(NonZeroUsize::new(4096).unwrap());
                counted.push(on(threads, &|| {
                    round(&clients, decisions, |lane, is_blocked, (key, ip)| {
                        stats.count(lane, is_blocked, key, ip);
                    })
                }));
                assert_eq!(stats.total(), u64::from(decisions) * threads as u64);
            }
            let (bare, counted) = (median(bare), median(counted));
            let name = format!("{threads} thread(s), {keys} client(s)");
            println!("{name:<44} {bare:>8.2} {counted:>8.2} {:>8.2}", counted - bare);
        }
    }
}

/// Nanoseconds a decision, on the slowest of the threads.
fn on(threads: usize, round: &(impl Fn() -> f64 + Sync)) -> f64 {
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(round)).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
    })
}

fn round(
    clients: &[(KeyHash, Ipv4Addr)],
    decisions: u32,
    each: impl Fn(WorkerLane, bool, (KeyHash, Ipv4Addr)),
) -> f64 {
    let mut random = 1_u64;
    let start = Instant::now();
    for read in 0..decisions / 32 {
        // Once a read, as the daemon does.
        let lane = WorkerLane::of_this_thread();
        for _ in 0..32 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let place = usize::try_from(random >> 33).unwrap() & (clients.len() - 1);
            each(lane, read & 3 == 0, black_box(clients[place]));
        }
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(decisions)
}

//! The limiters that are compared, each in its ordinary use.

use std::collections::HashMap;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use gcra_table::{KeyHash, Nanos, Quota, Slots, Table};
use governor::RateLimiter;

/// As many NOTIFYs as the agent often finds in one read.
const BATCH: usize = 32;

/// The columns, in the order of [`all`].
///
/// * *null* is the loop that all others run in, without a limiter.
/// * *one reading*, *clock each* and *batches of 32* are ours. The first has one reading of the
///   clock for all decisions, and the second has one for each. The third decides as the agent
///   does: 32 keys are hashed and their lines prefetched, the clock is read once, and then the 32
///   are decided.
/// * *governor* is `RateLimiter::keyed` with its defaults: a `DashMap`, std's hasher, and a
///   reading of its own clock (quanta, the CPU's time stamp counter) for each decision.
/// * *DashMap* is token buckets in a `DashMap<IpAddr, _>`, with `Instant::now` for each decision.
/// * *Mutex* is GCRA in a `Mutex<HashMap<IpAddr, u64>>`, the clock read for each decision.
///
/// Our table has twice as many slots as keys, rounded up to a power of two.
pub(crate) const LIMITERS: [&str; 7] =
    ["null", "one reading", "clock each", "batches of 32", "governor", "DashMap", "Mutex"];

/// A cell in each interval, and a burst at once.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    pub interval_ns: u64,
    pub burst: u32,
}

/// Decides about one cell of each key and says how many were allowed.
pub(crate) type Limiter = Box<dyn Fn(&[u32]) -> usize + Sync>;

/// All of [`LIMITERS`], knowing all keys.
pub(crate) fn all(keys: u32, rate: Rate) -> [Limiter; LIMITERS.len()] {
    let slots = (2 * u64::from(keys)).next_power_of_two().max(8);
    let table = Arc::new(Table::in_memory(Slots::new(slots).unwrap()).unwrap());
    let limiters = [
        one_by_one(|key| black_box(key).is_ipv4()),
        ours_one_reading(Arc::clone(&table), rate),
        ours_clock_per_decision(Arc::clone(&table), rate),
        ours_batched(table, rate),
        governor(rate),
        token_buckets(rate),
        mutex(rate),
    ];
    let all: Vec<_> = (0..keys).collect();
    for limiter in &limiters {
        limiter(&all);
    }
    limiters
}

fn one_by_one(is_allowed: impl Fn(IpAddr) -> bool + Sync + 'static) -> Limiter {
    Box::new(move |keys| keys.iter().filter(|key| is_allowed(address(**key))).count())
}

/// The keys are from 10.0.0.0/8.
fn address(key: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + key).into()
}

fn hash(table: &Table, key: IpAddr) -> KeyHash {
    match key {
        IpAddr::V4(address) => table.hash(&address.octets()),
        IpAddr::V6(address) => table.hash(&address.octets()),
    }
}

fn quota(rate: Rate) -> Quota {
    Quota::new(Nanos(rate.interval_ns), rate.burst).unwrap()
}

fn ours_one_reading(table: Arc<Table>, rate: Rate) -> Limiter {
    let quota = quota(rate);
    Box::new(move |keys| {
        let mut now = table.reading();
        let is_allowed =
            |key| table.charge(hash(&table, address(key)), quota, 1, &mut now).is_allowed();
        keys.iter().copied().map(is_allowed).filter(|allowed| *allowed).count()
    })
}

fn ours_clock_per_decision(table: Arc<Table>, rate: Rate) -> Limiter {
    let quota = quota(rate);
    one_by_one(move |key| {
        table.charge(hash(&table, key), quota, 1, &mut table.reading()).is_allowed()
    })
}

fn ours_batched(table: Arc<Table>, rate: Rate) -> Limiter {
    let quota = quota(rate);
    Box::new(move |keys| {
        let mut hashes = Vec::with_capacity(BATCH);
        let mut allowed = 0;
        for batch in keys.chunks(BATCH) {
            hashes.clear();
            hashes.extend(batch.iter().map(|key| hash(&table, address(*key))));
            hashes.iter().for_each(|key| table.prefetch(*key, quota));
            let mut now = table.reading();
            allowed += hashes
                .iter()
                .filter(|key| table.charge(**key, quota, 1, &mut now).is_allowed())
                .count();
        }
        allowed
    })
}

fn governor(rate: Rate) -> Limiter {
    let quota = governor::Quota::with_period(Duration::from_nanos(rate.interval_ns)).unwrap();
    let limiter = RateLimiter::keyed(quota.allow_burst(NonZeroU32::new(rate.burst).unwrap()));
    one_by_one(move |key| limiter.check_key(&key).is_ok())
}

struct TokenBucket {
    tokens: f64,
    updated: Instant,
}

fn token_buckets(rate: Rate) -> Limiter {
    let burst = f64::from(rate.burst);
    let tokens_per_second = 1e9 / rate.interval_ns as f64;
    let buckets = DashMap::new();
    one_by_one(move |key| {
        let now = Instant::now();
        let mut bucket = buckets.entry(key).or_insert(TokenBucket { tokens: burst, updated: now });
        // Another thread may have come first with a later reading; then no time has passed.
        let elapsed = now.duration_since(bucket.updated);
        bucket.updated += elapsed;
        bucket.tokens = (bucket.tokens + elapsed.as_secs_f64() * tokens_per_second).min(burst);
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        allowed
    })
}

fn mutex(rate: Rate) -> Limiter {
    let drain_ns = rate.interval_ns * u64::from(rate.burst);
    let start = Instant::now();
    let tats = Mutex::new(HashMap::new());
    one_by_one(move |key| {
        let now = start.elapsed().as_nanos() as u64;
        let mut tats = tats.lock().unwrap();
        let tat: &mut u64 = tats.entry(key).or_insert(now);
        let next = now.max(*tat) + rate.interval_ns;
        let allowed = next - now <= drain_ns;
        if allowed {
            *tat = next;
        }
        allowed
    })
}

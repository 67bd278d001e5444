//! Decisions by a table that is too small: `cargo bench -p benches --bench full_table`.
//!
//! Requests of a million clients (Zipf, s = 1), 200 000 per second of simulated time. Our table
//! decides about them. So do tables of the same shape that forget the bucket used least recently,
//! or the one paid off soonest; and so does an exact map. Where there are two limits, each request
//! is charged by the first, and by the second if the first allows it. A cell is allowed wrongly
//! when the exact map denies it. Then the attack: one client at a hundred times its limit, and a
//! spray of keys that are never seen again, under the same limit or a slow one. `--quick` only
//! tries it out.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a bench may end with a message, and its numbers are small"
)]

#[path = "support/asked.rs"]
mod asked;

use std::collections::HashMap;

use gcra_table::{Admission, ManualClock, Nanos, Quota, Slots, Table, Time};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Zipf};

const CLIENTS: u32 = 1_000_000;
const PER_SECOND: u64 = 200_000;

fn main() {
    // Of the requests and of the attack's steps, one in so many, and all sizes or two.
    let (scale, sizes) = if asked::quick() { (1_000, 2) } else { (1, usize::MAX) };
    println!(
        "{:<28} {:>9} {:>9} | {:>10} {:>10} {:>10} {:>10} | {:>10}",
        "limits", "active", "slots", "ours", "forgiven", "LRU", "soonest", "denied"
    );
    let (fast, middle, slow) =
        (quota(10_000_000, 20), quota(6_000_000_000, 10), quota(8_640_000_000, 10_000));
    for (name, limits, seconds) in [
        ("100/s burst 20", &[fast][..], 10),
        ("10/m burst 10", &[middle], 60),
        ("100/s burst 20, 10000/d", &[fast, slow], 10),
        ("10/m burst 10, 10000/d", &[middle, slow], 60),
    ] {
        let requests = draw(PER_SECOND * seconds / scale);
        let all = [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21];
        for slots in all.into_iter().take(sizes) {
            let row = simulate(&requests, limits, slots);
            let share = |wrong: u64| format!("{:.4} %", 100.0 * wrong as f64 / row.denied as f64);
            println!(
                "{name:<28} {:>9} {slots:>9} | {:>10} {:>10} {:>10} {:>10} | {:>10}",
                row.active,
                share(row.ours),
                row.forgiven_cells,
                share(row.lru),
                share(row.soonest),
                row.denied
            );
        }
    }
    println!();
    println!("one client at 10 000/s, limit 100/s burst 20, 65 536 slots, 5 s; it may have 519");
    for (fresh, name) in [(fast, "100/s burst 20"), (slow, "10000/d")] {
        for fresh_per_second in [1_000_000, 5_000_000] {
            let [ours, lru, soonest, random] = attack(fresh, fresh_per_second, scale);
            println!(
                "{fresh_per_second} fresh keys/s of {name}: ours {ours}, LRU {lru}, \
                 soonest {soonest}, random {random}"
            );
        }
    }
}

fn quota(interval_ns: u64, burst: u32) -> Quota {
    Quota::new(Nanos(interval_ns), burst).unwrap()
}

fn draw(count: u64) -> Vec<u32> {
    let law = Zipf::new(f64::from(CLIENTS), 1.0).unwrap();
    law.sample_iter(SmallRng::seed_from_u64(1))
        .map(|rank| rank as u32)
        .take(count as usize)
        .collect()
}

struct Row {
    /// Buckets that owed something at the end, by the exact map. They are what needs slots.
    active: usize,
    denied: u64,
    ours: u64,
    forgiven_cells: u64,
    lru: u64,
    soonest: u64,
}

fn simulate(requests: &[u32], limits: &[Quota], slots: u64) -> Row {
    let (table, clock) = Table::with_manual_clock(Slots::new(slots).unwrap()).unwrap();
    let mut lru = Forgetful::new(slots, Victim::Oldest);
    let mut soonest = Forgetful::new(slots, Victim::Soonest);
    let mut exact = HashMap::new();
    let (mut denied, mut wrong) = (0, [0; 3]);
    let by_all = |charge: &mut dyn FnMut(usize, Quota) -> bool| {
        limits.iter().enumerate().all(|(place, quota)| charge(place, *quota))
    };
    for client in requests {
        clock.advance(Nanos(1_000_000_000 / PER_SECOND));
        let mut now = table.reading();
        let (at, key) = (now.time().0, table.hash(&client.to_ne_bytes()));
        let bucket = |place: usize| client + CLIENTS * place as u32;
        let allowed =
            by_all(&mut |place, quota| charge_exact(&mut exact, bucket(place), quota, at));
        let by_others = [
            by_all(&mut |_, quota| table.charge(key, quota, 1, &mut now).is_allowed()),
            by_all(&mut |place, quota| lru.charge(bucket(place), quota, at)),
            by_all(&mut |place, quota| soonest.charge(bucket(place), quota, at)),
        ];
        denied += u64::from(!allowed);
        for (wrong, by_other) in wrong.iter_mut().zip(by_others) {
            *wrong += u64::from(!allowed && by_other);
        }
    }
    let now = table.now().0;
    let active = exact.values().filter(|tat| **tat > now).count();
    let forgiven_cells = table.evictions().forgiven.div_ceil(limits[0].emission_interval());
    let [ours, lru, soonest] = wrong;
    Row { active, denied, ours, forgiven_cells, lru, soonest }
}

fn attack(fresh_quota: Quota, fresh_per_second: u64, scale: u64) -> [u32; 4] {
    const SECONDS: u64 = 5;
    const SLOTS: u64 = 65_536;
    let quota = quota(10_000_000, 20);
    let (table, clock): (Table, ManualClock) =
        Table::with_manual_clock(Slots::new(SLOTS).unwrap()).unwrap();
    let mut others = [Victim::Oldest, Victim::Soonest, Victim::Random]
        .map(|victim| Forgetful::new(SLOTS, victim));
    let mut allowed = [0; 4];
    let mut fresh = 0_u32;
    for _ in 0..SECONDS * 10_000 / scale {
        let mut now = table.reading();
        allowed[0] +=
            u32::from(table.charge(table.hash(b"client"), quota, 1, &mut now).is_allowed());
        for (allowed, other) in allowed[1..].iter_mut().zip(&mut others) {
            *allowed += u32::from(other.charge(u32::MAX, quota, now.time().0));
        }
        for _ in 0..fresh_per_second / 10_000 {
            fresh += 1;
            let _ = table.charge(table.hash(&fresh.to_ne_bytes()), fresh_quota, 1, &mut now);
            for other in &mut others {
                other.charge(fresh, fresh_quota, now.time().0);
            }
        }
        clock.advance(Nanos(100_000));
    }
    allowed
}

/// The TAT after the cell, if it is allowed.
fn admit(tat: u64, quota: Quota, now: u64) -> Option<u64> {
    match quota.admit(Time(tat), Time(now), 1) {
        Admission::Conforming { tat } => Some(tat.0),
        _ => None,
    }
}

fn charge_exact(tats: &mut HashMap<u32, u64>, key: u32, quota: Quota, now: u64) -> bool {
    let tat = tats.entry(key).or_insert(0);
    admit(*tat, quota, now).map(|charged| *tat = charged).is_some()
}

#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Oldest,
    Soonest,
    Random,
}

/// A table of the same shape, that forgets by another rule.
struct Forgetful {
    slots: Vec<Slot>,
    victim: Victim,
    random: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    key: u32,
    tat: u64,
    used: u64,
}

impl Forgetful {
    fn new(slots: u64, victim: Victim) -> Self {
        Self { slots: vec![Slot::default(); slots as usize], victim, random: 1 }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    fn charge(&mut self, key: u32, quota: Quota, now: u64) -> bool {
        let lines = self.slots.len() / 4;
        let mixed = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (mixed >> 40) as usize % lines;
        let second = (first + 1 + (mixed >> 8) as usize % (lines - 1)) % lines;
        let places = || (4 * first..4 * first + 4).chain(4 * second..4 * second + 4);
        let own =
            places().find(|place| self.slots[*place].key == key && self.slots[*place].used > 0);
        let place = own
            .or_else(|| places().find(|place| self.slots[*place].tat <= now))
            .unwrap_or_else(|| match self.victim {
                Victim::Oldest => places().min_by_key(|place| self.slots[*place].used).unwrap(),
                Victim::Soonest => places().min_by_key(|place| self.slots[*place].tat).unwrap(),
                Victim::Random => places().nth((self.random() % 8) as usize).unwrap(),
            });
        let tat = if own.is_some() { self.slots[place].tat } else { 0 };
        let charged = admit(tat, quota, now);
        self.slots[place] = Slot { key, tat: charged.unwrap_or(tat), used: now };
        charged.is_some()
    }
}

//! The arithmetic and the table against a model that is the promise itself.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::{NonZeroU32, NonZeroU64};

use gcra_table::{Admission, Quota, Slots, Table};
use proptest::prelude::*;

/// The promise, word for word: it keeps every admission and asks, for each interval that ends now and begins with
/// one of them, whether the cells in it would stay within `burst + t / T`.
struct Naive {
    interval_ns: u64,
    burst: u32,
    admitted: Vec<(u64, u32)>,
}

impl Naive {
    fn conforms(&self, now: u64, cells: u32) -> bool {
        let mut within = u64::from(cells);
        let fits = |within: u64, t: u64| {
            // within <= burst + t / T
            u128::from(within.saturating_sub(u64::from(self.burst))) * u128::from(self.interval_ns)
                <= u128::from(t)
        };
        cells <= self.burst
            && self.admitted.iter().rev().all(|&(at, cells)| {
                within += u64::from(cells);
                fits(within, now - at)
            })
    }

    fn charge(&mut self, now: u64, cells: u32) -> bool {
        let conforms = self.conforms(now, cells);
        if conforms && cells > 0 {
            self.admitted.push((now, cells));
        }
        conforms
    }
}

fn quotas() -> impl Strategy<Value = (u64, u32)> {
    (prop_oneof![1_u64..20, 1_u64..2_000_000_000], prop_oneof![1_u32..5, 1_u32..200])
}

fn quota((interval_ns, burst): (u64, u32)) -> Quota {
    Quota::new(NonZeroU64::new(interval_ns).unwrap(), NonZeroU32::new(burst).unwrap()).unwrap()
}

/// Steps of time that are interesting for an interval: none, a little, about one, about a burst.
fn steps() -> impl Strategy<Value = Vec<(u8, u64, u32)>> {
    prop::collection::vec((0_u8..5, any::<u64>(), prop_oneof![9 => 1_u32..3, 1 => 0_u32..300]), 1..120)
}

fn step_ns(kind: u8, random: u64, quota: Quota) -> u64 {
    let interval = quota.emission_interval_ns();
    match kind {
        0 => 0,
        1 => random % 3,
        2 => random % interval,
        3 => interval - 1 + random % 3,
        _ => random % (quota.drain_ns() + 2),
    }
}

proptest! {
    /// A denial's wait is exact too: a moment less is refused, and then it conforms.
    #[test]
    fn admit_is_the_promise(parameters in quotas(), steps in steps()) {
        let quota = quota(parameters);
        let mut naive = Naive { interval_ns: parameters.0, burst: parameters.1, admitted: Vec::new() };
        let (mut now, mut tat) = (0, 0);
        for (kind, random, cells) in steps {
            now += step_ns(kind, random, quota);
            match quota.admit(tat, now, cells) {
                Admission::Conforming { tat: next } => {
                    prop_assert!(naive.charge(now, cells));
                    prop_assert_eq!(next, tat.max(now) + u64::from(cells) * quota.emission_interval_ns());
                    tat = next;
                }
                Admission::Early { wait_ns } => {
                    prop_assert!(!naive.conforms(now, cells));
                    prop_assert!(!naive.conforms(now + wait_ns - 1, cells));
                    prop_assert!(naive.conforms(now + wait_ns, cells));
                }
                Admission::Oversize => prop_assert!(cells > quota.burst()),
            }
            let remaining = quota.remaining(tat.saturating_sub(now));
            prop_assert!(remaining == 0 || naive.conforms(now, remaining));
            prop_assert!(!naive.conforms(now, remaining + 1));
        }
    }

    /// No number makes the arithmetic overflow.
    #[test]
    fn admit_is_total(parameters in quotas(), tat in 0_u64..1 << 63, now in 0_u64..1 << 63, cells: u32) {
        let quota = quota(parameters);
        let _ = quota.admit(tat, now, cells);
        let _ = quota.remaining(tat.saturating_sub(now));
    }

    /// Many keys in one table, each against a model of its own. Real time passes, so the quota is so slow that no cell
    /// comes back meanwhile: each key gets its burst and no more, whatever is mixed with it.
    #[test]
    fn keys_do_not_touch_each_other(burst in 1_u32..20, keys in prop::collection::vec(0_u16..60, 1..600)) {
        let table = Table::in_memory(Slots::new(256).unwrap()).unwrap();
        let quota = quota((3_600_000_000_000, burst));
        let mut now = table.now();
        let mut used = [0_u32; 60];
        for key in keys {
            let used = &mut used[usize::from(key)];
            let decision = table.charge(table.hash(&key.to_ne_bytes()), quota, 1, &mut now);
            prop_assert_eq!(decision.is_allowed(), *used < burst);
            *used += u32::from(decision.is_allowed());
        }
        prop_assert_eq!(table.evictions(), gcra_table::Evictions::default());
    }
}

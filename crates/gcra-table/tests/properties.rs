//! The arithmetic and the table against a model that is the promise itself.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::{NonZeroU32, NonZeroU64};

use gcra_table::{Admission, Quota, Slots, Table};
use proptest::prelude::*;

/// The promise, word for word: it keeps every admission and asks, for each interval that ends now
/// and begins with one of them, whether the cells in it would stay within `burst + t / T`.
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
    prop::collection::vec(
        (0_u8..5, any::<u64>(), prop_oneof![9 => 1_u32..3, 1 => 0_u32..300]),
        1..120,
    )
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

    /// Many keys in one table, each against a model of its own, while time passes and some cells are given back.
    #[test]
    fn a_table_is_a_model_for_each_key(
        parameters in quotas(),
        steps in prop::collection::vec((0_u16..40, 0_u8..5, any::<u64>(), 0_u32..4, any::<u8>()), 1..400),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(512).unwrap()).unwrap();
        let quota = quota(parameters);
        let mut models: Vec<_> = (0..40)
            .map(|_| Naive { interval_ns: parameters.0, burst: parameters.1, admitted: Vec::new() })
            .collect();
        for (key, kind, random, cells, then) in steps {
            clock.advance(step_ns(kind, random, quota));
            let (model, key) = (&mut models[usize::from(key)], table.hash(&key.to_ne_bytes()));
            let mut now = table.now();
            let decision = table.charge(key, quota, cells, &mut now);
            prop_assert_eq!(decision.is_allowed(), model.charge(now, cells));
            if let Some(wait_ns) = decision.retry_after_ns() {
                prop_assert!(model.conforms(now + wait_ns, cells) && !model.conforms(now + wait_ns - 1, cells));
            }
            prop_assert_eq!(table.owed_ns(key, quota, now), decision.owed_ns());
            match then {
                0..50 if decision.is_allowed() && cells > 0 => {
                    clock.advance(u64::from(then));
                    prop_assert!(table.refund(key, quota, cells, &decision));
                    model.admitted.pop();
                }
                250.. => {
                    prop_assert_eq!(table.reset(key, quota, now), Some(decision.owed_ns()));
                    model.admitted.clear();
                }
                _ => {}
            }
        }
        prop_assert_eq!(table.evictions(), gcra_table::Evictions::default());
        prop_assert_eq!(table.check(), []);
    }

    /// Two keys may be given a cell back only while nobody has used them since.
    #[test]
    fn a_late_refund_is_refused(others in 1_usize..5) {
        let (table, _) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
        let quota = quota((1_000, 10));
        let key = table.hash(b"a");
        let mut now = table.now();
        let first = table.charge(key, quota, 1, &mut now);
        let last = (0..others).map(|_| table.charge(key, quota, 1, &mut now)).last().unwrap();
        prop_assert!(!table.refund(key, quota, 1, &first));
        prop_assert!(table.refund(key, quota, 1, &last));
        prop_assert!(!table.refund(key, quota, 1, &last), "once");
        prop_assert_eq!(table.owed_ns(key, quota, now), 1_000 * others as u64);
    }
}

/// The attack on every limiter that forgets who came least recently: make new keys until yours is
/// gone.
#[test]
fn a_spray_of_fresh_keys_frees_nobody_who_is_denied() {
    const SECONDS: u64 = 1;
    let (table, clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
    let quota = quota((10_000_000, 20));
    let client = table.hash(b"client");
    let mut allowed = 0;
    // Every millisecond the client asks once, ten times what it may, and 1000 new keys come.
    for millisecond in 0..SECONDS * 1_000 {
        let mut now = table.now();
        allowed += u64::from(table.charge(client, quota, 1, &mut now).is_allowed());
        for fresh in 0..1_000_u64 {
            let _ = table.charge(
                table.hash(&(millisecond * 1_000 + fresh).to_ne_bytes()),
                quota,
                1,
                &mut now,
            );
        }
        clock.advance(1_000_000);
    }
    assert!(table.evictions().evicted_live > 500_000, "{:?}", table.evictions());
    assert_eq!(
        allowed,
        20 + 100 * SECONDS - 1,
        "the bound, less the interval that has not passed"
    );
}

/// A penalty keeps a key out for longer, up to its ceiling and no further; without one the same
/// debt is forgiven at once.
#[test]
fn a_penalty_is_owed_up_to_its_ceiling() {
    const MS: u64 = 1_000_000;
    let (table, clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
    let plain = quota((100 * MS, 5));
    let quota = plain.with_penalty(10_000 * MS).unwrap();
    assert_eq!((quota.most_owed_ns(), quota.punishing().burst()), (10_500 * MS, 105));
    let key = table.hash(b"a");
    let mut now = table.now();
    assert!(table.charge(key, quota, 5, &mut now).is_allowed());
    for _ in 0..200 {
        assert!(!table.charge(key, quota, 1, &mut now).is_allowed());
        let _ = table.charge(key, quota.punishing(), 1, &mut now);
    }
    assert_eq!(table.owed_ns(key, quota, now), 10_500 * MS, "the ceiling");
    clock.advance(10_099 * MS);
    let mut now = table.now();
    assert!(!table.charge(key, quota, 1, &mut now).is_allowed());
    clock.advance(MS);
    let mut now = table.now();
    assert!(table.charge(key, quota, 1, &mut now).is_allowed(), "one cell, as promised");
    assert!(!table.charge(key, quota, 1, &mut now).is_allowed(), "and no burst");

    let _ = table.charge(key, quota.punishing(), 100, &mut now);
    // The penalty is taken out of the configuration: a full burst is owed, and not the penalty.
    let least_tat = plain.carry_over(quota, table.tat(key, quota), now);
    assert_eq!(least_tat, now + plain.drain_ns());
    assert!(!table.charge_owing(key, plain, 1, &mut now, least_tat).is_allowed());
    clock.advance(100 * MS);
    assert!(table.charge_owing(key, plain, 1, &mut table.now(), least_tat).is_allowed());
}

/// Each of two quotas would find the other's debts damaged, and forgive them, if they shared a
/// bucket.
#[test]
fn two_quotas_in_turn_forgive_nothing() {
    let (table, clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
    let key = table.hash(b"a");
    let pairs = [
        (1_000_000, [quota((1_000_000, 20)), quota((1_000_000, 30))]),
        (10_000, [quota((86_400_000_000, 1_000)), quota((864_000_000_000, 100))]),
        (
            10_000,
            [quota((1_000_000, 20)), quota((1_000_000, 20)).with_penalty(1_000_000).unwrap()],
        ),
    ];
    for (turns, pair) in pairs {
        clock.advance(1_000_000_000_000_000);
        let mut allowed = [0_u32; 2];
        for turn in 0..turns {
            let which = turn % 2;
            allowed[which] +=
                u32::from(table.charge(key, pair[which], 1, &mut table.now()).is_allowed());
        }
        assert_eq!(allowed, pair.map(Quota::burst));
    }
}

proptest! {
    /// However processes with different numbers take turns on one key, each admits just what it would admit alone; so all
    /// of them together admit at most the sum of what each allows.
    #[test]
    fn each_of_several_quotas_admits_what_it_would_alone(
        parameters in prop::collection::vec(quotas(), 2..5),
        steps in prop::collection::vec((0_usize..4, 0_u8..5, any::<u64>(), 0_u32..4), 1..400),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(512).unwrap()).unwrap();
        let key = table.hash(b"a");
        let mut distinct = parameters.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let mut models: Vec<_> = distinct
            .iter()
            .map(|(interval_ns, burst)| Naive { interval_ns: *interval_ns, burst: *burst, admitted: Vec::new() })
            .collect();
        for (which, kind, random, cells) in steps {
            let which = which % models.len();
            let quota = quota(distinct[which]);
            clock.advance(step_ns(kind, random, quota));
            let mut now = table.now();
            let decision = table.charge(key, quota, cells, &mut now);
            prop_assert_eq!(decision.is_allowed(), models[which].charge(now, cells));
        }
        prop_assert_eq!(table.check(), []);
    }

    /// After a change of numbers a key is decided as if it had made, at the moment of the change, as many requests as it
    /// owed cells, but at most the new burst. (What is left of a cell counts as a part, so two models are asked: one in which it
    /// counts as nothing, and one in which it counts as a whole cell.)
    #[test]
    fn a_debt_survives_a_change_of_numbers(
        before in quotas(),
        after in quotas(),
        cells_before in 0_u32..40,
        idle in any::<u64>(),
        steps in steps(),
    ) {
        prop_assume!(before != after);
        let (table, clock) = Table::with_manual_clock(Slots::new(512).unwrap()).unwrap();
        let key = table.hash(b"a");
        let (quota_before, quota_after) = (quota(before), quota(after));
        for _ in 0..cells_before {
            let _ = table.charge(key, quota_before, 1, &mut table.now());
        }
        clock.advance(idle % (quota_before.drain_ns() + 2));
        let changed = table.now();
        let owed_ns = table.owed_ns(key, quota_before, changed);
        let [mut fewer, mut more] = [owed_ns / before.0, owed_ns.div_ceil(before.0)].map(|cells| {
            let mut model = Naive { interval_ns: after.0, burst: after.1, admitted: Vec::new() };
            model.admitted.push((changed, u32::try_from(cells).unwrap().min(after.1)));
            model
        });
        for (kind, random, cells) in steps {
            clock.advance(step_ns(kind, random, quota_after));
            let mut now = table.now();
            let least_tat = quota_after.carry_over(quota_before, table.tat(key, quota_before), changed);
            let decision = table.charge_owing(key, quota_after, cells, &mut now, least_tat);
            if decision.is_allowed() {
                prop_assert!(cells == 0 || fewer.conforms(now, cells));
                fewer.admitted.push((now, cells));
                more.admitted.push((now, cells));
            } else {
                prop_assert!(!more.conforms(now, cells));
            }
        }
    }
}

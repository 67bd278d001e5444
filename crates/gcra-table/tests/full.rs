//! The buckets that a table forgets when it is too small, where limits differ in how long they
//! take to pay off.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "tests, with small numbers"
)]

use std::time::Duration;

use gcra_table::{KeyHash, MAX_DRAIN, ManualClock, Nanos, Quota, Slots, Table, Window};
use proptest::prelude::*;

const DAY_S: u64 = 86_400;
const SECONDS: u64 = 20;

fn table(slots: u64) -> (Table, ManualClock) {
    let (table, clock) = Table::with_manual_clock(Slots::new(slots).unwrap()).unwrap();
    // So that an hour begins now.
    clock.set_wall(0);
    (table, clock)
}

/// `count` cells in `seconds`, and up to `burst` at once.
fn limit(count: u64, seconds: u64, burst: u32) -> Quota {
    Quota::new(Nanos(seconds * 1_000_000_000 / count), burst).unwrap()
}

fn ask(table: &Table, key: KeyHash, quota: Quota) -> bool {
    table.charge(key, quota, 1, &mut table.reading()).is_allowed()
}

/// The first hour of the wall clock.
fn hour(table: &Table) -> Window {
    Window::new(3600, 0, table.wall_reading().time_at(3600))
}

/// Goes through some seconds. In each millisecond `client` is called `per_second / 1000` times on
/// average. The others come, too: each comes `each` times in all.
fn go(
    clock: &ManualClock,
    per_second: u64,
    others: u64,
    each: u64,
    mut client: impl FnMut(),
    mut other: impl FnMut(u64),
) {
    let (mut asked, mut came) = (0, 0);
    for millisecond in 1..=SECONDS * 1_000 {
        while asked * 1_000 < per_second * millisecond {
            client();
            asked += 1;
        }
        while came * SECONDS * 1_000 < others * each * millisecond {
            other(came % others);
            came += 1;
        }
        clock.advance(Nanos::from_millis(1));
    }
}

/// A policy with a fast and a slow limit: one client is far over the fast one, and 3000 others
/// come. Returns what is allowed to the one.
fn two_limits_of_one_key(slots: u64) -> u32 {
    let (table, clock) = table(slots);
    let (fast, slow) = (limit(10, 1, 20), limit(10_000, DAY_S, 10_000));
    let both = |key: KeyHash| ask(&table, key, fast) && ask(&table, key, slow);
    let mut allowed = 0;
    go(
        &clock,
        100,
        3_000,
        3,
        || allowed += u32::from(both(table.hash(b"client"))),
        |other| {
            both(table.hash(&other.to_ne_bytes()));
        },
    );
    assert_eq!(table.evictions().evicted_live > 0, slots < 4096, "{:?}", table.evictions());
    allowed
}

#[test]
fn a_slow_limit_does_not_clear_the_debt_of_a_fast_one() {
    // 20 at once, and one each 100 ms of the 20 s less one millisecond.
    assert_eq!(two_limits_of_one_key(1 << 16), 219);
    assert_eq!(two_limits_of_one_key(1024), 219);
}

/// Clients far over `100/s burst 20` and `6/m burst 8`, beside new keys that `other` charges.
/// Returns what is allowed to each of the two.
fn beside_others(slots: u64, other: impl Fn(&Table, KeyHash)) -> [u32; 2] {
    let (table, clock) = table(slots);
    let (fast, middle) = (limit(100, 1, 20), limit(6, 60, 8));
    let keys = [table.hash(b"fast"), table.hash(b"middle")];
    let (mut allowed, mut asked) = ([0; 2], 0_u32);
    go(
        &clock,
        300,
        3_000,
        3,
        || {
            allowed[0] += u32::from(ask(&table, keys[0], fast));
            if asked.is_multiple_of(6) {
                allowed[1] += u32::from(ask(&table, keys[1], middle));
            }
            asked += 1;
        },
        |number| other(&table, table.hash(&number.to_ne_bytes())),
    );
    assert_eq!(table.evictions().evicted_live > 0, slots < 4096, "{:?}", table.evictions());
    allowed
}

#[test]
fn new_keys_of_a_slow_limit_free_no_client_that_is_denied() {
    let slow = |table: &Table, key: KeyHash| {
        let _ = ask(table, key, limit(1_000, DAY_S, 1_000));
    };
    assert_eq!(beside_others(1 << 16, slow), [2019, 9]);
    assert_eq!(beside_others(1024, slow), [2019, 9]);
}

#[test]
fn new_keys_of_a_count_free_no_client_that_is_denied() {
    let counted = |table: &Table, key: KeyHash| {
        let tally = table.count(key, hour(table), 1_000, 1, &mut table.reading()).unwrap();
        assert!(tally.is_allowed());
    };
    assert_eq!(beside_others(1 << 16, counted), [2019, 9]);
    assert_eq!(beside_others(1024, counted), [2019, 9]);
}

/// Also if each of them uses up half of its own limit.
#[test]
fn new_keys_that_use_half_of_their_limit_free_no_client_that_is_denied() {
    let half = |table: &Table, key: KeyHash| {
        let (quota, mut now) = (limit(10, 60, 10), table.reading());
        if table.look_up(key, quota, now.time()).is_none() {
            assert!(table.charge(key, quota, 5, &mut now).is_allowed());
        }
    };
    assert_eq!(beside_others(1 << 16, half), [2019, 9]);
    assert_eq!(beside_others(1024, half), [2019, 9]);
}

/// And the other way round: counted cells are not forgotten for new keys of a fast limit.
#[test]
fn a_count_that_is_used_up_is_not_freed_by_new_keys() {
    let (table, clock) = table(1024);
    let key = table.hash(b"client");
    let fast = limit(1, 10, 20);
    let mut allowed = 0;
    go(
        &clock,
        100,
        5_000,
        2,
        || {
            let tally = table.count(key, hour(&table), 50, 1, &mut table.reading()).unwrap();
            allowed += u32::from(tally.is_allowed());
        },
        |number| {
            let _ = ask(&table, table.hash(&number.to_ne_bytes()), fast);
        },
    );
    assert!(table.evictions().evicted_live > 1_000);
    assert_eq!(allowed, 50);
}

/// Under what a key is limited.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Rate(Quota),
    /// So many in the window.
    Count(u32),
}

/// Limits of all drain times from 5 ms on, and counts. Some have a larger cap on the debt.
fn limits() -> impl Strategy<Value = Limit> {
    let drains = (5_000_000_f64.ln()..(MAX_DRAIN.0 as f64).ln()).prop_map(f64::exp);
    let rates =
        (drains, 1_u32..2_000, 0_u64..5).prop_filter_map("is valid", |(drain, burst, cap)| {
            let quota = Quota::new(Nanos((drain as u64).div_ceil(burst.into())), burst).ok()?;
            quota.with_most_owed(quota.drain_time().saturating_mul(cap)).ok().map(Limit::Rate)
        });
    prop_oneof![4 => rates, 1 => (0_f64..22.0).prop_map(|ln| Limit::Count(ln.exp() as u32))]
}

impl Limit {
    /// Charges a part of the limit, at least one cell.
    fn charge(self, table: &Table, key: KeyHash, part: f64) {
        let now = &mut table.reading();
        match self {
            Self::Rate(quota) => {
                let most = quota.up_to_cap();
                let cells = ((part * f64::from(most.burst())) as u32).max(1);
                assert!(table.charge(key, most, cells, now).is_allowed());
            }
            Self::Count(most) => {
                let cells = ((part * f64::from(most)) as u32).max(1);
                assert!(table.count(key, hour(table), most, cells, now).unwrap().is_allowed());
            }
        }
    }

    /// The debt of the key and the whole limit, in the same unit; `None` without a bucket.
    fn part_owed(self, table: &Table, key: KeyHash) -> Option<(u128, u128)> {
        match self {
            Self::Rate(quota) => {
                let owed = table.look_up(key, quota, table.now())?;
                Some((owed.0.into(), quota.drain_time().0.into()))
            }
            Self::Count(most) => Some((table.counted_in(key, hour(table))?.into(), most.into())),
        }
    }
}

proptest! {
    /// A client asks for seven times its limit, beside a flood of new keys. Their limit takes up
    /// to a million times as long to pay off. The client is allowed as many cells as if it were
    /// alone.
    #[test]
    fn a_client_far_over_its_limit_is_not_forgotten(
        interval_ns in 1_000_000_u64..1_000_000_000,
        burst in 5_u32..30,
        slower in 1_u64..1_000_000,
        slow_burst in 50_u32..1_000,
        flood in 1_u64..20,
    ) {
        const ASKS: u64 = 300;
        let (table, clock) = table(64);
        let fast = Quota::new(Nanos(interval_ns), burst).unwrap();
        let slow_ns = fast.drain_time().0 * slower / u64::from(slow_burst);
        let slow = Quota::new(Nanos(slow_ns.max(1)), slow_burst).unwrap();
        let (client, mut allowed) = (table.hash(b"client"), 0);
        for time in 0..ASKS {
            allowed += u64::from(ask(&table, client, fast));
            for number in 0..flood {
                ask(&table, table.hash(&(time * flood + number).to_ne_bytes()), slow);
            }
            clock.advance(Nanos(interval_ns / 7));
        }
        let last_ask_ns = (ASKS - 1) * (interval_ns / 7);
        prop_assert_eq!(allowed, u64::from(burst) + last_ask_ns / interval_ns);
    }

    /// Of eight buckets the one goes that owes the smallest part of its own limit. As a slot knows
    /// a drain time within a factor of 1.5, and a count within one of 2, it may be another one,
    /// which owes less than so many times that part.
    #[test]
    fn what_is_evicted_owes_the_least_part(
        buckets in prop::collection::vec((limits(), 0_f64..1.0), 8),
        ninth in limits(),
        wait in 0_u64..5_000_000,
    ) {
        let (table, clock) = table(8);
        for (number, (limit, part)) in (0_u8..).zip(&buckets) {
            limit.charge(&table, table.hash(&[number]), *part);
        }
        clock.advance(Nanos(wait));
        let part = |(number, (limit, _)): (u8, &(Limit, f64))| {
            limit.part_owed(&table, table.hash(&[number]))
        };
        let parts = || (0_u8..).zip(&buckets).map(part);
        let before: Vec<_> = parts().map(Option::unwrap).collect();
        prop_assume!(before.iter().all(|(owed, _)| *owed > 0));
        ninth.charge(&table, table.hash(b"the ninth"), 0.0);
        let gone = parts().zip(&before).filter(|(after, _)| after.is_none());
        let gone: Vec<_> = gone.map(|(_, before)| *before).collect();
        prop_assert_eq!((gone.len(), table.evictions().evicted_live), (1, 1));
        let (owed, whole) = gone[0];
        let counts = |place: usize| matches!(buckets[place].0, Limit::Count(_));
        let has_gone = parts().position(|after| after.is_none()).unwrap();
        for (place, (others, others_whole)) in before.into_iter().enumerate() {
            // owed / whole < 1.5 * others / others_whole
            let twice = if counts(place) || counts(has_gone) { 4 } else { 3 };
            prop_assert!(2 * owed * others_whole < twice * others * whole);
        }
    }
}

#[test]
fn buckets_keep_their_classes_when_the_table_is_resized() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("table");
    let (table, _) = Table::open_or_create(&path, Some(Slots::new(64).unwrap())).unwrap();
    let (fast, slow) = (limit(10, 600, 10), limit(100, DAY_S, 100));
    let client = table.hash(b"client");
    assert!((0..10).all(|_| ask(&table, client, fast)));
    for stranger in 0..7_u8 {
        assert!(ask(&table, table.hash(&[stranger]), slow));
    }
    Table::resize(&path, Slots::new(8).unwrap(), Duration::ZERO).unwrap();
    let (table, _) = Table::open_or_create(&path, None).unwrap();
    assert_eq!((table.occupancy().live, table.evictions().evicted_live), (8, 0));
    for stranger in 7..20_u8 {
        assert!(ask(&table, table.hash(&[stranger]), slow));
    }
    assert!(table.look_up(client, fast, table.now()) > Some(Nanos::from_secs(300)));
}

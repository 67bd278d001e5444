//! Beside each other: what a client owes in the table and in the store, while the numbers of its
//! limit change.

use gcra_lease::{Change, Charge, Micros, Record, Records, StoreTime};
use gcra_policy::sharing::{in_whole_cells, lent, most_carried_over};
use gcra_table::{Quota, Time};

use super::*;

/// A cell takes whole microseconds, and has a longest delay or none.
fn numbers() -> impl Strategy<Value = (u64, u32, u64)> {
    let cell_us = prop::sample::select(vec![3_600, 10_000, 1_000_000, 36_000_000, 360_000_000]);
    (cell_us, 1..13_u32, prop_oneof![3 => Just(0_u64), 1 => 1..500_000_000_u64])
}

#[derive(Clone, Debug)]
enum Step {
    Wait { us: u64 },
    Charge { cells: u32, times: usize },
    Change { numbers: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait =
        prop_oneof![1..50_000_u64, 1_000_000..20_000_000_u64, 100_000_000..2_000_000_000_u64];
    let step = prop_oneof![
        3 => wait.prop_map(|us| Step::Wait { us }),
        6 => (1..4_u32, 1..15_usize).prop_map(|(cells, times)| Step::Charge { cells, times }),
        3 => (0..4_usize).prop_map(|numbers| Step::Change { numbers }),
    ];
    prop::collection::vec(step, 10..60)
}

/// The client of one limit, in a table and in a store.
struct Both {
    table: Table,
    clock: ManualClock,
    quotas: Vec<Quota>,
    /// Which of them is in force.
    now: usize,
    changed: Time,
    records: Records,
}

impl Both {
    /// The least debt because of the other numbers.
    fn least_tat(&self) -> Time {
        let (quota, now) = (self.quotas[self.now], self.table.now());
        let others =
            self.quotas.iter().filter(|other| other.without_delay() != quota.without_delay());
        let carried = others.map(|other| {
            let tat = self.table.tat(self.table.hash(b"client"), *other);
            quota.carry_over(*other, tat, self.changed, now)
        });
        carried.max().unwrap_or_default()
    }

    fn store_time(&self) -> StoreTime {
        StoreTime(1_800_000_000_000_000 + self.table.now().0 / 1_000)
    }

    /// Whether the cells are allowed in the table and in the store, and how many ns are owed
    /// then.
    fn charge(&mut self, cells: u32) -> ([bool; 2], [u64; 2]) {
        let (key, quota) = (self.table.hash(b"client"), self.quotas[self.now]);
        let (least, mut reading) = (self.least_tat(), self.table.reading());
        let decision = self.table.charge_owing(key, quota, cells, &mut reading, least);
        let owed = self.table.tat(key, quota).max(least).saturating_since(self.table.now());

        let (limit, now) = (lent(quota).unwrap(), self.store_time());
        let ago = Micros(self.table.now().saturating_since(self.changed).0 / 1_000);
        let change = Change { ago, most: most_carried_over(quota, &limit, false) };
        let max_delay = Micros(quota.max_delay().0 / 1_000);
        let charge = Charge::Take { cells, needs: 0, max_delay };
        let (of, begin) = ((&limit, &change), || Record::new(now));
        let charged = self.records.charge_at_once(of, now, begin, &charge);
        let in_store = limit.time_to_drain(charged.taken).0 * 1_000;
        ([decision.is_allowed(), charged.allowed], [owed.0, in_store])
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Several changes without a request in between, there and back, with and without a longest
    /// delay. The store and the table keep the same debts.
    #[test]
    fn what_is_owed_after_changes_is_the_same_in_the_table_and_in_the_store(
        numbers in prop::collection::vec(numbers(), 1..5),
        steps in steps(),
    ) {
        let (table, clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
        clock.advance(Nanos::from_secs(1));
        let quota = |(cell_us, burst, delay_us): (u64, u32, u64)| {
            let quota = Quota::new(Nanos(cell_us * 1_000), burst).unwrap();
            in_whole_cells(quota.with_max_delay(Nanos(delay_us * 1_000)).unwrap())
        };
        // Rounding under a fast limit counts for more under a slow one.
        let cells = || numbers.iter().map(|(cell_us, ..)| *cell_us);
        let ratio = cells().max().unwrap() / cells().min().unwrap();
        let slack_ns = 50_000 + 1_000 * ratio;
        let quotas: Vec<_> = numbers.iter().copied().map(quota).collect();
        let changed = table.now();
        let mut both = Both { table, clock, quotas, now: 0, changed, records: Records::default() };
        for step in steps {
            match step {
                Step::Wait { us } => both.clock.advance(Nanos(us * 1_000)),
                Step::Change { numbers } => {
                    let next = numbers % both.quotas.len();
                    if next != both.now {
                        both.clock.advance(Nanos::from_millis(1));
                        (both.now, both.changed) = (next, both.table.now());
                    }
                }
                Step::Charge { cells, times } => {
                    for _ in 0..times {
                        let ([here, there], [owed, in_store]) = both.charge(cells);
                        let differ = owed.abs_diff(in_store);
                        // Rounding to units and to ns decides about the last cell by chance.
                        if here != there && differ <= slack_ns {
                            return Ok(());
                        }
                        prop_assert_eq!(here, there, "{} and {} ns are owed", owed, in_store);
                        prop_assert!(differ <= slack_ns, "{} and {} ns", owed, in_store);
                    }
                }
            }
        }
    }
}

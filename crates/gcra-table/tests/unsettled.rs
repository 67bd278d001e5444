//! The cells of requests that no response settles, compared with a model that keeps each of them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use gcra_table::{MOST_UNSETTLED, Nanos, Slots, Table, Term, UnsettledCells};
use proptest::prelude::*;

const MINUTE: Duration = Duration::from_secs(60);

fn term(number: u64) -> Term {
    Term::at(MINUTE * u32::try_from(number).unwrap(), MINUTE)
}

fn add(table: &Table, key: &[u8], term: Term, cells: u32) {
    let until = table.now().saturating_add(Nanos::from_secs(3600));
    assert!(table.add_unsettled(
        table.hash(key),
        term,
        cells,
        (until, 1000),
        &mut table.reading()
    ));
}

#[test]
fn a_term_is_a_multiple_of_its_length() {
    let at = |ms| Term::at(Duration::from_millis(ms), MINUTE);
    assert_eq!(at(59_999), at(0));
    assert_ne!(at(60_000), at(59_999));
    assert_eq!(at(119_999), at(60_000));
}

#[test]
fn more_than_a_sum_can_hold_is_forgiven_and_none_of_it_leaks_into_another() {
    let table = Table::in_memory(Slots::new(64).unwrap()).unwrap();
    let key = table.hash(b"a");
    add(&table, b"a", term(100), MOST_UNSETTLED - 1);
    add(&table, b"a", term(100), u32::MAX);
    add(&table, b"a", term(101), 7);
    let most = MOST_UNSETTLED;
    let all = UnsettledCells { open: most + 7, overdue: 0 };
    assert_eq!(table.unsettled(key, term(101)), all);
    assert_eq!(table.take_overdue(key, term(101), &mut table.reading()), 0);
    assert_eq!(table.unsettled(key, term(102)), UnsettledCells { open: 7, overdue: most });
    assert_eq!(table.take_overdue(key, term(102), &mut table.reading()), most);
    assert!(!table.remove_unsettled(key, term(100), 1, &mut table.reading()), "it was taken");
    assert!(table.remove_unsettled(key, term(101), 7, &mut table.reading()));
    assert_eq!(table.reset_unsettled(key), Some(0));
}

/// After 32 terms old cells may look like new ones. Then nothing is charged too early, and all of
/// it in the end.
#[test]
fn a_client_that_was_away_for_long_is_charged_later_and_not_earlier() {
    for away in 2..200 {
        let table = Table::in_memory(Slots::new(64).unwrap()).unwrap();
        let key = table.hash(b"a");
        add(&table, b"a", term(100), 5);
        let mut taken = table.take_overdue(key, term(100 + away), &mut table.reading());
        if away < 32 {
            assert_eq!(taken, 5, "{away}");
        }
        add(&table, b"a", term(100 + away), 1);
        let next = table.take_overdue(key, term(101 + away), &mut table.reading());
        assert!(next == 0 || next == 5, "{away}: the new one is not overdue yet");
        taken += next;
        for later in 2..70 {
            taken += table.take_overdue(key, term(100 + away + later), &mut table.reading());
        }
        assert_eq!(taken, 6, "{away}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add(u32),
    /// One of those that are open, by its place.
    Remove(usize),
    Take,
    Pass(u64),
    Resize,
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<(u8, Step)>> {
    let step = prop_oneof![
        10 => (0..50_u32).prop_map(Step::Add),
        8 => any::<usize>().prop_map(Step::Remove),
        5 => Just(Step::Take),
        4 => prop_oneof![4 => Just(1_u64), 1 => 2..5_u64].prop_map(Step::Pass),
        1 => Just(Step::Resize),
        1 => Just(Step::Reset),
    ];
    prop::collection::vec((0..3_u8, step), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_added_is_removed_or_taken_once(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        let slots = Some(Slots::new(64).unwrap());
        let (old, _) = Table::open_or_create(&path, slots).unwrap();
        // Two processes; one opens the table anew after each resize, and the other follows.
        let open = || Table::open_or_create(&path, None).unwrap().0;
        let mut new = open();
        // The key, the term and the cells.
        let mut open_ones = Vec::<(u8, u64, u32)>::new();
        let (mut now, mut slots) = (1_000, 64);
        for (place, (key, step)) in steps.into_iter().enumerate() {
            let table = if place % 2 == 0 { &old } else { &new };
            let (hash, reading) = (table.hash(&[key]), &mut table.reading());
            match step {
                Step::Add(cells) => {
                    add(table, &[key], term(now), cells);
                    open_ones.push((key, now, cells));
                }
                Step::Remove(which) if !open_ones.is_empty() => {
                    let (key, at, cells) = open_ones.swap_remove(which % open_ones.len());
                    let hash = table.hash(&[key]);
                    prop_assert!(table.remove_unsettled(hash, term(at), cells, reading));
                }
                Step::Remove(_) => {}
                Step::Take => {
                    let is_overdue = |it: &(u8, u64, u32)| it.0 == key && it.1 + 2 <= now;
                    let overdue = open_ones.iter().filter(|it| is_overdue(it));
                    let sum: u32 = overdue.map(|it| it.2).sum();
                    prop_assert_eq!(table.unsettled(hash, term(now)).overdue, sum);
                    prop_assert_eq!(table.take_overdue(hash, term(now), reading), sum);
                    open_ones.retain(|it| !is_overdue(it));
                }
                // As long as a client is not away for 32 terms, nothing looks younger than it is.
                Step::Pass(terms) => now += terms,
                Step::Resize => {
                    slots = if slots == 64 { 128 } else { 64 };
                    let wait = Duration::ZERO;
                    Table::resize(&path, Slots::new(slots).unwrap(), wait).unwrap();
                    new = open();
                }
                Step::Reset => {
                    let sum: u32 = open_ones.iter().filter(|it| it.0 == key).map(|it| it.2).sum();
                    if let Some(reset) = table.reset_unsettled(hash) {
                        prop_assert_eq!(reset, sum);
                        open_ones.retain(|it| it.0 != key);
                    }
                }
            }
            // A bucket of an earlier term takes cells of a later one only once its own were taken.
            if open_ones.iter().any(|it| it.1 + 2 <= now) {
                for key in 0..3 {
                    let is_overdue = |it: &(u8, u64, u32)| it.0 == key && it.1 + 2 <= now;
                    let overdue = open_ones.iter().filter(|it| is_overdue(it));
                    let sum: u32 = overdue.map(|it| it.2).sum();
                    let hash = new.hash(&[key]);
                    prop_assert_eq!(new.take_overdue(hash, term(now), &mut new.reading()), sum);
                    open_ones.retain(|it| !is_overdue(it));
                }
            }
        }
        prop_assert!(new.check().is_empty());
    }
}

/// Threads add, settle and take at once, over the ends of terms. Every cell is settled or taken
/// once, or is still there.
#[test]
fn at_once_from_many_threads_every_cell_counts_once() {
    let table = Table::in_memory(Slots::new(64).unwrap()).unwrap();
    let key = table.hash(b"a");
    let (clock, added, gone) = (AtomicU64::new(1_000), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (table, clock, added, gone) = (&table, &clock, &added, &gone);
            scope.spawn(move || {
                for round in 0..20_000_u32 {
                    let at = term(clock.load(Ordering::Relaxed));
                    let taken = table.take_overdue(key, at, &mut table.reading());
                    gone.fetch_add(taken.into(), Ordering::Relaxed);
                    let cells = 1 + (round + thread) % 5;
                    add(table, b"a", at, cells);
                    added.fetch_add(cells.into(), Ordering::Relaxed);
                    if round % 3 == 0
                        && table.remove_unsettled(key, at, cells, &mut table.reading())
                    {
                        gone.fetch_add(cells.into(), Ordering::Relaxed);
                    }
                    if thread == 0 && round % 50 == 0 {
                        clock.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let left = table.reset_unsettled(key).unwrap();
    assert_eq!(added.into_inner(), gone.into_inner() + u64::from(left));
    assert_eq!(table.gave_up(), 0);
}

#[test]
fn a_wall_clock_that_is_set_back_charges_nobody_early() {
    for back in 1..30 {
        let table = Table::in_memory(Slots::new(64).unwrap()).unwrap();
        let key = table.hash(b"a");
        add(&table, b"a", term(101), 5);
        let take = |number| table.take_overdue(key, term(number), &mut table.reading());
        assert_eq!((take(101 - back), take(102 - back), take(102)), (0, 0, 0), "{back}");
        assert_eq!(take(103), 5, "{back}");
    }
}

//! Counts in calendar windows, compared with a model that is the promise itself.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use gcra_table::{KEPT, ManualClock, Nanos, Quota, Slots, Table, Window, limit_id};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600;
/// When the tests begin: 2026-03-01, in seconds after 1970.
const START: u64 = 1_772_323_200;

fn table(slots: u64) -> (Table, ManualClock) {
    let (table, clock) = Table::with_manual_clock(Slots::new(slots).unwrap()).unwrap();
    clock.set_wall(START * SECOND);
    (table, clock)
}

fn wall_s(table: &Table) -> u64 {
    table.wall_reading().wall_ns() / SECOND
}

/// The window of so many seconds in which the wall clock is.
fn window(table: &Table, seconds: u64) -> Window {
    let reading = table.wall_reading();
    let start = reading.wall_ns() / SECOND / seconds * seconds;
    let end = reading.time_at((start + seconds).try_into().unwrap());
    let calendar = limit_id(&[b"test", &seconds.to_le_bytes()]);
    Window::new(calendar, start.try_into().unwrap(), end)
}

/// Counts in the window of this moment.
fn count(table: &Table, key: &[u8], seconds: u64, most: u32, cells: u32) -> bool {
    let window = window(table, seconds);
    let tally = table.count(table.hash(key), window, most, cells, &mut table.reading());
    tally.unwrap().is_allowed()
}

/// A change of the clocks between two requests.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Seconds pass.
    Pass(u64),
    /// The wall clock is set forward or back.
    Set(i64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Pass(0)),
        4 => (0_u64..4000).prop_map(Step::Pass),
        1 => (0..3 * HOUR).prop_map(Step::Pass),
        1 => (-300_i64..300).prop_map(Step::Set),
    ]
}

proptest! {
    /// Every window of every key is a count of its own. The wall clock is set forward and back
    /// meanwhile, in all by less than the time for which counts are kept.
    #[test]
    fn a_table_is_a_count_for_each_key_and_window(
        most in 0_u32..30,
        steps in prop::collection::vec((steps(), 0_u8..6, 0_u32..4, any::<u8>()), 1..300),
    ) {
        let (table, clock) = table(4096);
        let mut naive = HashMap::<(u8, u64), u32>::new();
        let mut set_back = 0;
        for (step, key, cells, then) in steps {
            match step {
                Step::Pass(seconds) => clock.advance(Nanos::from_secs(seconds)),
                Step::Set(by) => {
                    set_back += by.min(0).unsigned_abs();
                    if set_back < KEPT.0 / SECOND {
                        let wall_ns = table.wall_reading().wall_ns();
                        clock.set_wall(wall_ns.saturating_add_signed(by * 1_000_000_000));
                    }
                }
            }
            let window = window(&table, HOUR);
            let used = naive.entry((key, wall_s(&table) / HOUR)).or_default();
            let key = table.hash(&[key]);
            let tally = table.count(key, window, most, cells, &mut table.reading()).unwrap();
            let fits = cells == 0 || *used + cells <= most;
            prop_assert_eq!(tally.is_allowed(), fits);
            if fits {
                *used += cells;
            }
            prop_assert_eq!(tally.used(), *used);
            prop_assert_eq!(table.counted_in(key, window).unwrap_or(0), *used);
            match then {
                0..40 if fits => {
                    prop_assert_eq!(table.uncount(key, window, cells, &mut table.reading()), table
                        .counted_in(key, window).is_some());
                    *used -= cells;
                }
                250.. => {
                    prop_assert_eq!(table.reset_count(key, window), Some(*used));
                    *used = 0;
                }
                _ => {}
            }
        }
        prop_assert_eq!(table.evictions(), gcra_table::Evictions::default());
        prop_assert!(table.check().is_empty());
    }

    /// GCRA and counts in one table do not meet.
    #[test]
    fn a_count_and_a_quota_of_one_key_are_apart(
        steps in prop::collection::vec(any::<bool>(), 1..60),
    ) {
        let (table, _clock) = table(64);
        let quota = Quota::new(Nanos::from_secs(10), 7).unwrap();
        let (mut counted, mut charged) = (0, 0);
        for counts in steps {
            if counts {
                counted += u32::from(count(&table, b"a", HOUR, 11, 1));
            } else {
                let key = table.hash(b"a");
                let decision = table.charge(key, quota, 1, &mut table.reading());
                charged += u32::from(decision.is_allowed());
            }
            prop_assert!(counted <= 11 && charged <= 7);
        }
        let found = table.counted_in(table.hash(b"a"), window(&table, HOUR));
        prop_assert_eq!(found.unwrap_or(0), counted);
    }
}

#[test]
fn another_most_finds_the_same_count() {
    let (table, _clock) = table(64);
    assert!((0..5).all(|_| count(&table, b"a", HOUR, 5, 1)));
    assert!(!count(&table, b"a", HOUR, 5, 1) && !count(&table, b"a", HOUR, 3, 1));
    assert!(count(&table, b"a", HOUR, 6, 1) && !count(&table, b"a", HOUR, 6, 1));
    assert!(!count(&table, b"b", HOUR, 6, 7) && count(&table, b"b", HOUR, 7, 7));
}

/// The slots of windows come free by themselves, an hour after the end of each.
#[test]
fn a_slot_comes_free_an_hour_after_its_window() {
    let (table, clock) = table(8);
    for key in 0..8_u8 {
        assert!(count(&table, &[key], HOUR, 1, 1));
    }
    let live = || table.occupancy().live;
    clock.advance(Nanos::from_secs(2 * HOUR - 1));
    assert_eq!(live(), 8);
    // It is a multiple of 2^38 ns.
    clock.advance(Nanos::from_secs(277));
    assert_eq!(live(), 0);
    assert!(count(&table, b"another", HOUR, 1, 1));
    assert_eq!(table.evictions(), gcra_table::Evictions::default());
}

/// The window began when the wall clock was read, and has ended when the cell is to be counted.
#[test]
fn a_window_is_not_opened_after_its_end() {
    let (table, clock) = table(64);
    let (key, then) = (table.hash(b"a"), window(&table, HOUR));
    let read_long_ago = &mut table.reading();
    assert!(table.count(key, then, 1, 1, read_long_ago).unwrap().is_allowed());
    clock.advance(Nanos::from_secs(HOUR));
    // There is a bucket, which says that nothing is left.
    assert!(!table.count(key, then, 1, 1, read_long_ago).unwrap().is_allowed());
    clock.advance(Nanos::from_secs(2 * HOUR));
    for key in 0..200_u8 {
        let _ = count(&table, &[key], HOUR, 1, 1);
    }
    assert_eq!(table.counted_in(key, then), None, "its slot was taken");
    assert!(table.count(key, then, 1, 1, read_long_ago).is_err());
}

/// The promise of the documents: the wall clock may be set back by an hour.
#[test]
fn a_wall_clock_that_is_set_back_gives_nothing_twice() {
    let (table, clock) = table(64);
    assert!(count(&table, b"a", HOUR, 1, 1));
    let before = table.wall_reading().wall_ns();
    clock.advance(Nanos::from_secs(HOUR));
    assert!(count(&table, b"a", HOUR, 1, 1), "the next hour");
    clock.set_wall(before);
    assert!(!count(&table, b"a", HOUR, 1, 1), "again the hour before");
    // Other keys need slots all the while, until it ends for the second time.
    for n in 0..HOUR - 1 {
        clock.advance(Nanos::from_secs(1));
        let quota = Quota::new(Nanos(1), 1).unwrap();
        let _ = table.charge(table.hash(&n.to_le_bytes()), quota, 1, &mut table.reading());
        assert!(!count(&table, b"a", HOUR, 1, 1), "{n} s later");
    }
    assert_eq!(table.evictions(), gcra_table::Evictions::default());
}

/// A day that is over half gone when the wall clock is set forward and back again.
#[test]
fn a_wall_clock_that_was_wrong_for_a_while_gives_nothing_twice() {
    const DAY: u64 = 24 * HOUR;
    let (table, clock) = table(64);
    assert!(count(&table, b"a", DAY, 1, 1));
    let wall_ns = table.wall_reading().wall_ns();
    clock.set_wall(wall_ns + 400 * DAY * SECOND);
    assert!(count(&table, b"a", DAY, 1, 1));
    clock.advance(Nanos::from_secs(9 * HOUR));
    clock.set_wall(wall_ns + 9 * HOUR * SECOND);
    assert!(!count(&table, b"a", DAY, 1, 1));
    clock.advance(Nanos::from_secs(15 * HOUR));
    assert!(count(&table, b"a", DAY, 1, 1), "the next day");
}

#[test]
fn a_resize_moves_counts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    let (table, _) = Table::open_or_create(&path, Some(Slots::new(64).unwrap())).unwrap();
    // A window of a week from now, so that the test is in one window whatever the time.
    let reading = table.wall_reading();
    let now_s = i64::try_from(reading.wall_ns() / SECOND).unwrap();
    let window = Window::new(1, now_s, reading.time_at(now_s + 7 * 86_400));
    let count = |table: &Table, key: u32, cells| {
        let key = table.hash(&key.to_le_bytes());
        table.count(key, window, 10, cells, &mut table.reading()).unwrap().is_allowed()
    };
    // There is a slot for each of eight keys, in any two lines.
    assert!((0..8).all(|key| count(&table, key, 7)));
    Table::resize(&path, Slots::new(256).unwrap(), std::time::Duration::ZERO).unwrap();
    // By a process that has not noticed it, and by one that has.
    assert!(!count(&table, 3, 4) && count(&table, 3, 3));
    let (new, _) = Table::open_or_create(&path, None).unwrap();
    assert!(!count(&new, 3, 1) && !count(&new, 4, 4) && count(&new, 4, 3));
    assert_eq!(new.counted_in(new.hash(&5_u32.to_le_bytes()), window), Some(7));
    assert_eq!(new.reset_count(new.hash(&5_u32.to_le_bytes()), window), Some(7));
    assert!(count(&table, 5, 10) && !count(&new, 5, 1));
    let uncount = |key: u32, cells| {
        table.uncount(table.hash(&key.to_le_bytes()), window, cells, &mut table.reading())
    };
    // Cells that were counted in the new table are taken back there.
    assert!(count(&table, 7, 2) && uncount(7, 2));
    assert_eq!(new.counted_in(new.hash(&7_u32.to_le_bytes()), window), Some(7));
    assert!(new.check().is_empty());
}

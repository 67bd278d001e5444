//! The interleavings of adding, removing and taking what requests cost that no response settles.

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::{Actor, Arc, CLOCK, K, Table, together};
use crate::bucket::context::Moved;
use crate::bucket::unsettled::{Content, Term};
use crate::time::{Nanos, Reading, Time};
use crate::used::Used;

const UNTIL: Time = CLOCK.saturating_add(Nanos(100));

fn term(number: u32) -> Term {
    Term::at(Duration::from_secs(number.into()), Duration::from_secs(1))
}

/// The content of a bucket with this sum of the term 4. In the term 6 it is overdue.
fn sum(cells: u32) -> Time {
    Content(Used::none(UNTIL, 1000)).with(cells, term(4))
}

impl Actor {
    /// Changes the content, in a table that may be moving to another one. Returns how many cells
    /// that made more or less.
    fn change(&self, [old, new]: &[&Table; 2], change: impl Fn(Content) -> Option<Time>) -> u64 {
        let now = &mut Reading::at(CLOCK);
        let change = |value| change(Content::in_bucket(value));
        let before = match old.bucket(K).change(change, now, &self.context(old, None)) {
            Ok(before) => before,
            Err(Moved) => {
                let context = self.context(new, Some(old.bucket(K)));
                new.bucket(K).change(change, now, &context).unwrap()
            }
        };
        before.map_or(0, |before| {
            let (before, after) = (Content::in_bucket(before), change(before));
            let after = Content::in_bucket(after.unwrap());
            u64::from(before.cells().abs_diff(after.cells()))
        })
    }

    /// Takes all cells, in the term 6.
    fn take(&self, tables: &[&Table; 2]) -> u64 {
        self.change(tables, |it| {
            let is_overdue = it.cells() > 0 && it.terms_before(term(6)) > 0;
            is_overdue.then(|| it.with(0, term(6)))
        })
    }

    /// Removes two cells of the term 4.
    fn remove(&self, tables: &[&Table; 2]) -> u64 {
        self.change(tables, |it| {
            let left = it.cells().checked_sub(2).filter(|_| it.is_of(term(4)))?;
            Some(it.with(left, term(4)))
        })
    }

    /// Adds a cell in the term 4.
    fn add(&self, tables: &[&Table; 2]) -> u64 {
        self.change(tables, |it| {
            Some(Content(it.0.joined_with(Used::none(UNTIL, 1000))).with(it.cells() + 1, term(4)))
        })
    }
}

fn left(table: &Table) -> u64 {
    table.tat(K).map_or(0, |value| Content::in_bucket(value).cells().into())
}

/// Two processes take what is overdue.
fn two_take() {
    let table = Arc::new(Table::new());
    table.put(0, K, sum(5));
    let taken = together(&table, [|table, actor| actor.take(&[table, table]); 2]);
    assert_eq!(taken.iter().sum::<u64>(), 5, "taken once");
    assert_eq!(left(&table), 0);
}

/// A late response comes while its request is taken.
fn take_against_a_response() {
    let table = Arc::new(Table::new());
    table.put(0, K, sum(5));
    let [taken, removed] = together(
        &table,
        [|table, actor| actor.take(&[table, table]), |table, actor| actor.remove(&[table, table])],
    );
    assert!(removed == 0 || removed == 2);
    assert_eq!((taken, left(&table)), (5 - removed, 0), "taken or removed");
}

/// The first two requests of a client come at once.
fn two_first_requests() {
    let table = Arc::new(Table::new());
    together(&table, [|table, actor| actor.add(&[table, table]); 2]);
    assert_eq!(left(&table), 2, "both were added");
}

/// The table is moved to another one while a process takes what is overdue.
fn take_against_a_move() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, sum(5));
    let [taken, _] = together(
        &tables,
        [
            |[old, new], actor| actor.take(&[old, new]),
            |tables, actor| {
                actor.carry_all(tables);
                0
            },
        ],
    );
    assert_eq!(left(&tables[1]), 5 - taken, "what was not taken is left");
}

/// The same while a request adds a cell.
fn add_against_a_move() {
    let tables = Arc::new([Table::new(), Table::new()]);
    tables[0].successor.store(1, Ordering::Relaxed);
    tables[0].put(0, K, sum(5));
    together(
        &tables,
        [
            |[old, new], actor| actor.add(&[old, new]),
            |tables, actor| {
                actor.carry_all(tables);
                0
            },
        ],
    );
    assert_eq!(left(&tables[1]), 6, "no cell was left behind");
}

#[cfg(gcra_loom)]
super::models! {
    what_is_overdue_is_taken_once: two_take {
        taking_by_a_store_is_caught = StoreCharge, "taken once";
    }
    a_cell_is_taken_or_settled: take_against_a_response {
        settling_by_a_store_is_caught = StoreCharge, "taken or removed";
    }
    first_requests_open_one_bucket: two_first_requests {}
    what_is_taken_beside_a_move_is_taken_once: take_against_a_move {}
    what_is_added_beside_a_move_is_kept: add_against_a_move {
        adding_without_the_inheritance_is_caught = NothingInherited, "left behind";
    }
}

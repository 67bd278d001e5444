//! [`Records`]: what the store knows about one key, whatever numbers its limit has had.

// ADR 44: What cannot be lent is charged in the store.

use alloc::vec::Vec;

use crate::charge::{Charge, Charged};
use crate::limit::{SharedLimit, Units};
use crate::message::{Ask, AskReply};
use crate::record::Record;
use crate::rule::{Rule, without};
use crate::time::{Micros, StoreTime};

/// The records of one key under one limit: one for each of the numbers under which it owes
/// something, or has cells on loan.
///
/// A host says under which numbers it [asks](Self::ask) or [charges](Self::charge_at_once). The
/// debts of the key under other numbers count, too, because a change of numbers forgives nothing.
/// The other records stay as they are until all is paid off, so hosts whose numbers differ for a
/// while charge the key each in a record of its own.
///
/// As for a [`Record`], a script with doubles gives the same answers, bit for bit.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Records {
    /// The one that was used last comes first.
    each: Vec<(SharedLimit, Record)>,
}

/// That a limit has got the numbers that it has, as a host knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Change {
    /// How long ago.
    pub ago: Micros,
    /// The most that is owed because of earlier numbers: a burst, and what drains in the longest
    /// delay; or the largest debt.
    pub most: Units,
}

impl Change {
    /// Nothing is owed because of other numbers.
    pub const NONE: Self = Self { ago: Micros(1 << 53), most: Units::ZERO };
}

impl Records {
    /// Records are kept for as many numbers as this, because requests may say the numbers. Those
    /// that were used longest ago are forgotten first.
    pub const MOST: usize = 64;

    /// The records as a store has kept them, the one that was used last first.
    pub const fn kept(each: Vec<(SharedLimit, Record)>) -> Self {
        Self { each }
    }

    /// Each record, with its numbers.
    pub fn each(&self) -> &[(SharedLimit, Record)] {
        &self.each
    }

    /// Takes an ask at the moment `now`, under the numbers of `limit`: see [`Record::ask`]. If
    /// nothing is known about the key under any numbers, `begin` makes its record.
    ///
    /// The key owes at least as many cells as under any of the other numbers. From the change on
    /// these are paid off at the faster of both rates: never more counts than the key owes at
    /// `now` under the other numbers. If something is charged or granted, what counts then becomes
    /// a debt under the numbers of `limit`. Cells lent under other numbers are not free, but do
    /// not become a debt: most of them come back.
    pub fn ask(
        &mut self,
        (limit, change): (&SharedLimit, &Change),
        now: StoreTime,
        begin: impl FnOnce() -> Record,
        ask: &Ask,
    ) -> Option<AskReply> {
        let Opened { own, carried, record, .. } = self.open((limit, change), now, begin);
        let opened = record.owed;
        let reply = record.ask_beside(limit, now, ask, carried.beside(opened));
        let is_granted =
            reply.is_some_and(|reply| reply.granted > 0) && !without(Rule::GrantIsWritten);
        if record.owed == opened && !is_granted {
            record.owed = own;
        }
        reply
    }

    /// The same for a charge: see [`Record::charge_at_once`].
    pub fn charge_at_once(
        &mut self,
        (limit, change): (&SharedLimit, &Change),
        now: StoreTime,
        begin: impl FnOnce() -> Record,
        charge: &Charge,
    ) -> Charged {
        let Opened { own, carried, last_used, record } = self.open((limit, change), now, begin);
        if let Charge::Less { .. } = charge {
            // Nothing is given back here that was charged under other numbers.
            record.owed = own;
            let charged = record.charge_beside(limit, charge, last_used, Units::ZERO);
            let owed = record.owed.max(carried.owed);
            let lent = limit.cells(record.lent()).saturating_add(carried.beside(owed));
            return Charged { taken: owed.saturating_add(lent), ..charged };
        }
        let opened = record.owed;
        let charged = record.charge_beside(limit, charge, last_used, carried.beside(opened));
        if record.owed == opened {
            record.owed = own;
        }
        charged
    }

    /// The record for `limit`, with the debts under other numbers added to it.
    #[must_use]
    pub fn look(
        mut self,
        of: (&SharedLimit, &Change),
        now: StoreTime,
        begin: impl FnOnce() -> Record,
    ) -> Record {
        let Opened { carried, record, .. } = self.open(of, now, begin);
        Record { owed: record.owed.max(carried.with_lent), ..record.clone() }
    }

    fn open(
        &mut self,
        (limit, change): (&SharedLimit, &Change),
        now: StoreTime,
        begin: impl FnOnce() -> Record,
    ) -> Opened<'_> {
        let own = self.each.iter().position(|(of, _)| of.numbers() == limit.numbers());
        let is_known = !self.each.is_empty();
        let own = own.map(|place| self.each.remove(place).1);
        self.each.iter_mut().for_each(|(of, record)| record.settle(of, now));
        self.each.retain(|(_, record)| record.owed > Units::ZERO || !record.leases.is_empty());
        let mut carried = Carried { owed: Units::ZERO, with_lent: Units::ZERO };
        for (of, record) in &self.each {
            let mut record = record.clone();
            record.settle(of, now);
            let with_lent = record.owed.saturating_add(of.cells(record.lent()));
            carried.owed = carried.owed.max(change.carries(of, record.owed, limit));
            carried.with_lent = carried.with_lent.max(change.carries(of, with_lent, limit));
        }
        let mut record = own.unwrap_or_else(|| if is_known { Record::new(now) } else { begin() });
        let last_used = record.advance(limit, now);
        let own = record.owed;
        record.owed = own.max(carried.owed);
        self.each.truncate(Self::MOST - 1);
        self.each.insert(0, (*limit, record));
        let record = &mut self.each[0].1;
        Opened { own, carried, last_used, record }
    }
}

struct Opened<'r> {
    /// Its own debt.
    own: Units,
    /// The debts and leases under other numbers, as they count under these.
    carried: Carried,
    /// See [`Record::advance`].
    last_used: StoreTime,
    /// With the larger one of both that is owed.
    record: &'r mut Record,
}

#[derive(Clone, Copy)]
struct Carried {
    owed: Units,
    /// As if what is lent were owed.
    with_lent: Units,
}

impl Carried {
    /// The units that it adds to a debt of `owed`.
    fn beside(self, owed: Units) -> Units {
        self.with_lent.saturating_sub(owed)
    }
}

impl Change {
    /// Converts a debt under the numbers of `of` to those of `limit`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a script computes with doubles, and the result is that of a limit"
    )]
    fn carries(&self, of: &SharedLimit, owed: Units, limit: &SharedLimit) -> Units {
        let owed = owed.0 as f64;
        let [old_cell, new_cell] = [of, limit].map(|limit| limit.cells(1).0 as f64);
        let [old_scale, new_scale] = [of, limit].map(|limit| limit.drained_in(Micros(1)).0 as f64);
        let ago = self.ago.0 as f64;
        let converted = |owed: f64| ceil(owed / old_cell * new_cell);
        let then = converted(owed + ago * old_scale).min(self.most.0 as f64);
        Units(converted(owed).min(then - ago * new_scale).max(0.0) as u64)
    }
}

/// The next whole number, of a number that is not negative. `core` has none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "it is below 2^53, where all whole numbers are doubles"
)]
fn ceil(number: f64) -> f64 {
    const WHOLE: f64 = (1_u64 << 53) as f64;
    if number >= WHOLE {
        return number;
    }
    let below = number as u64 as f64;
    if below < number { below + 1.0 } else { below }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ceil;

    proptest! {
        #[test]
        fn ceil_is_that_of_std(
            number in prop_oneof![
                0.0..1e20_f64,
                0.0..10.0_f64,
                (0_u32..100).prop_map(f64::from),
            ]
        ) {
            prop_assert_eq!(ceil(number), number.ceil());
        }
    }
}

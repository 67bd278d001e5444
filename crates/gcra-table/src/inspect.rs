//! The view of a table from outside: how full it is, and whether anything is wrong with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;

use crate::clock;
use crate::file::open;
use crate::file::open_error::{OpenError, OpenErrorKind};
use crate::quota::MAX_DRAIN;
use crate::sentences::sentences;
use crate::slot::{Slot, Word};
use crate::slots::Slots;
use crate::table::{Origin, Table};
use crate::time::{Nanos, Time};

/// The slots of a table, by what they hold. They are counted one after another, so in a busy table
/// the numbers are exact to a few slots.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Occupancy {
    /// Buckets that owe something.
    pub live: u64,
    /// Slots that any key may take: they were never used, or their key has its full burst again.
    pub idle: u64,
    /// Buckets that are about to be opened. If there are more than a few, killed processes left
    /// them behind, and other keys will take their slots.
    pub pending: u64,
    /// Slots whose buckets are moving to another table.
    pub sealed: u64,
}

/// A fault of a table: see [`Table::check`].
#[derive(Debug)]
pub struct TableFault {
    slot: Option<usize>,
    kind: FaultKind,
}

sentences! {
    /// The kinds of [`TableFault`].
    #[derive(Debug)]
    #[non_exhaustive]
    pub enum FaultKind {
        Misplaced => "a live bucket where its key is never looked for";
        Twice { other: usize } => "a second bucket of the key in slot {other}";
        TooFar { owed: Nanos }
            => "owes {} days, more than any limit can", owed.0 / Nanos::from_secs(86_400).0;
        Sealed => "sealed, though the table is not being resized";
        TimeAhead { by: Nanos }
            => "the last sign of life is {} s in the future", by.0 / Nanos::from_secs(1).0;
        SuccessorGone => "it is being resized, and the file that takes over from it is gone";
        SuccessorUnusable { why: OpenError }
            => "it is being resized, and its successor cannot be opened: {why}";
    }
}

impl TableFault {
    /// The slot that it is about, if it is about one.
    pub const fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// The kind of the fault.
    pub const fn kind(&self) -> &FaultKind {
        &self.kind
    }

    /// Whether it goes away by itself, once what the keys concerned owe has drained.
    pub const fn heals(&self) -> bool {
        !matches!(self.kind, FaultKind::SuccessorGone | FaultKind::SuccessorUnusable { .. })
    }
}

impl fmt::Display for TableFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slot) = self.slot {
            write!(f, "slot {slot}: ")?;
        }
        write!(f, "{}", self.kind)
    }
}

impl Table {
    /// Counts what the slots hold.
    pub fn occupancy(&self) -> Occupancy {
        let now = self.now();
        let mut occupancy = Occupancy::default();
        for word in self.each_slot().map(Slot::load) {
            let count = match (word.tat(), word.ticket()) {
                (Some(tat), _) if tat > now => &mut occupancy.live,
                (Some(_), _) => &mut occupancy.idle,
                (None, Some(_)) => &mut occupancy.pending,
                (None, None) => &mut occupancy.sealed,
            };
            *count += 1;
        }
        occupancy
    }

    /// How often the table was resized.
    pub fn generation(&self) -> u64 {
        self.file.as_ref().map_or(0, |origin| origin.header.generation)
    }

    /// How long ago the file was made, by the wall clock. `None` for a table in memory.
    pub fn age(&self) -> Option<Nanos> {
        let created_ns = self.file.as_ref()?.header.created_wall_ns;
        Some(Nanos(clock::wall_ns().saturating_sub(created_ns)))
    }

    /// The name and version of the crate that made the file. Empty for a table in memory.
    pub fn creator(&self) -> String {
        let creator = self.file.as_ref().map(|origin| origin.header.creator).unwrap_or_default();
        // It is printed, and anything can be in a damaged file.
        let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let plain: Vec<u8> = creator.into_iter().filter(is_plain).collect();
        String::from_utf8_lossy(&plain).into_owned()
    }

    /// Whether its buckets are moving to a table of another size.
    pub fn is_being_resized(&self) -> bool {
        self.is_superseded()
    }

    /// The number of slots to which a resize was interrupted, if one was, until a
    /// [`resize`](Self::resize) to this number has finished the work. Decisions are exact
    /// meanwhile. Unless all buckets have moved already, keys cannot be reset. This takes a tenth
    /// of a second.
    pub fn interrupted_resize(&self) -> Option<Slots> {
        let Origin { path, file, header, role } = self.file.as_ref()?;
        if self.is_superseded() {
            return open::interrupted_resize(path, header);
        }
        open::is_left_without_name(path, *file, header, *role).then(|| self.slots())
    }

    /// The fault of the file that takes over from this one, if this is being resized. Without that
    /// file the keys whose slots have moved are denied, and that does not heal.
    pub fn successor_fault(&self) -> Option<TableFault> {
        // A table in memory has no file to lose.
        self.file.as_ref().filter(|_| self.is_superseded())?;
        let why = self.open_successor().err()?;
        let kind = match why.kind() {
            OpenErrorKind::NoSuccessor => FaultKind::SuccessorGone,
            _ => FaultKind::SuccessorUnusable { why },
        };
        Some(TableFault { slot: None, kind })
    }

    /// Verifies what must hold at every moment, in a table that may be in use:
    ///
    /// * every live bucket lies in one of its key's eight slots, and no key has two;
    /// * none owes more than any limit can, and no slot is sealed unless the table is being
    ///   resized;
    /// * the table's time has not gone backwards;
    /// * if it is being resized, the file that takes over from it is there.
    ///
    /// Most faults cost no more than a wrong limit for the keys concerned until their debt has
    /// drained, and the table heals by itself. A missing successor [does
    /// not](TableFault::heals).
    pub fn check(&self) -> Vec<TableFault> {
        let slots: Vec<&Slot> = self.each_slot().collect();
        let now = self.now();
        let mut faults = Vec::from_iter(self.successor_fault());
        let last = Time(self.shared().last_ns.load(Ordering::Relaxed));
        if last > now.saturating_add(Nanos::from_secs(1)) {
            let by = last.saturating_since(now);
            faults.push(TableFault { slot: None, kind: FaultKind::TimeAhead { by } });
        }
        let mut seen: HashMap<u64, usize> = HashMap::new();
        for (index, slot) in slots.iter().enumerate() {
            let word = slot.load();
            let mut fault = |kind| faults.push(TableFault { slot: Some(index), kind });
            if word.sealed_tat().is_some() && !self.is_superseded() {
                fault(FaultKind::Sealed);
            }
            let Some(tat) = word.tat() else { continue };
            if word.fingerprint() == 0 {
                continue;
            }
            if tat > now && !self.bucket(word.id()).may_be_in(slot) {
                fault(FaultKind::Misplaced);
            }
            let owed = tat.saturating_since(now);
            if owed > MAX_DRAIN {
                fault(FaultKind::TooFar { owed });
            }
            if let Some(other) = seen.insert(word.fingerprint(), index)
                && both_hold(slots[other], slot, word.fingerprint())
            {
                fault(FaultKind::Twice { other });
            }
        }
        faults
    }
}

/// Whether two slots hold confirmed buckets of one key at the same moment, and not one after the
/// other.
fn both_hold(one: &Slot, other: &Slot, fingerprint: u64) -> bool {
    let confirmed = |word: Word| word.is_bucket_of(fingerprint);
    let before = one.load();
    let meanwhile = other.load();
    confirmed(before) && confirmed(meanwhile) && one.load() == before
}

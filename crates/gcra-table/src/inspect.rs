//! What can be seen of a table from outside: how full it is, who uses it, and whether all is as it
//! should be.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;

use crate::attached::{self, Process};
use crate::clock;
use crate::header::PROCESSES;
use crate::quota::MAX_DRAIN_NS;
use crate::slot::{Slot, Word};
use crate::table::Table;

/// What the slots of a table hold. Counted one after the other, so in a busy table it is true to a
/// few slots.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Occupancy {
    /// Buckets that owe something.
    pub live: u64,
    /// Slots that anybody may take: never used, or their key has its full burst again.
    pub idle: u64,
    /// Buckets about to be opened. More than a few are the leftovers of killed processes, to be
    /// taken over.
    pub pending: u64,
    /// Slots whose buckets are moving to another table.
    pub sealed: u64,
}

/// What is wrong with a table: see [`Table::check`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    slot: Option<usize>,
    kind: FaultKind,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum FaultKind {
    Misplaced,
    Twice { other: usize },
    TooFar { owed_ns: u64 },
    Sealed,
    TimeAhead { ns: u64 },
    SuccessorGone,
    SuccessorUnusable { why: String },
}

impl Fault {
    /// Whether the table gets over it by itself, once what the keys concerned owe has drained.
    #[must_use]
    pub fn heals(&self) -> bool {
        !matches!(self.kind, FaultKind::SuccessorGone | FaultKind::SuccessorUnusable { .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(slot) = self.slot {
            write!(f, "slot {slot}: ")?;
        }
        match &self.kind {
            FaultKind::Misplaced => f.write_str("a live bucket where its key is never looked for"),
            FaultKind::Twice { other } => write!(f, "a second bucket of the key in slot {other}"),
            FaultKind::TooFar { owed_ns } => {
                write!(f, "owes {} days, more than any limit can", owed_ns / 86_400_000_000_000)
            }
            FaultKind::Sealed => f.write_str("sealed, though the table is not being resized"),
            FaultKind::TimeAhead { ns } => {
                write!(f, "the last sign of life lies {} s in the future", ns / 1_000_000_000)
            }
            FaultKind::SuccessorGone => f.write_str(
                "it is being resized, and the file that takes over from it is gone; stop every agent that uses it \
                 and remove it, and a new one is made",
            ),
            FaultKind::SuccessorUnusable { why } => {
                write!(f, "it is being resized, and its successor can't be opened: {why}")
            }
        }
    }
}

impl Table {
    /// Counts what the slots hold.
    #[must_use]
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

    /// The processes that use the table, as far as they [`beat`](Self::beat) and there is room to
    /// list them.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        self.listed_processes().into_iter().filter(Process::is_alive).collect()
    }

    /// As [`processes`](Self::processes), with those that have left or fallen silent, until others
    /// take their places.
    #[must_use]
    pub fn listed_processes(&self) -> Vec<Process> {
        attached::listed(self.process_entries(), self.now())
    }

    /// How many processes can be listed.
    pub const MOST_PROCESSES: usize = PROCESSES;

    /// How often, in all, processes that are not listed for want of room called
    /// [`beat`](Self::beat). Each does so about once a second, so two readings some seconds apart
    /// tell about how many there are.
    #[must_use]
    pub fn unlisted_beats(&self) -> u64 {
        self.shared().unlisted_beats.0.load(Ordering::Relaxed)
    }

    /// How often the table was resized.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.origin().map_or(0, |origin| origin.header.generation)
    }

    /// How long ago the file was made, in nanoseconds of the wall clock. `None` for one in memory.
    #[must_use]
    pub fn age_ns(&self) -> Option<u64> {
        self.origin().map(|origin| clock::wall_ns().saturating_sub(origin.header.created_wall_ns))
    }

    /// What made the file: crate and version. Empty for one in memory.
    #[must_use]
    pub fn creator(&self) -> String {
        let creator = self.origin().map(|origin| origin.header.creator).unwrap_or_default();
        String::from_utf8_lossy(&creator).trim_end_matches('\0').to_owned()
    }

    /// Whether its buckets are moving to a table of another size.
    #[must_use]
    pub fn is_being_resized(&self) -> bool {
        self.is_superseded()
    }

    /// What is wrong with the file that takes over from this one, if it is being resized. Without
    /// that file the keys whose slots have moved are denied, and no time heals it.
    #[must_use]
    pub fn successor_fault(&self) -> Option<Fault> {
        // One in memory has no file to lose.
        self.origin().filter(|_| self.is_superseded())?;
        let why = self.open_successor().err()?;
        let kind = match why.is_no_successor() {
            true => FaultKind::SuccessorGone,
            false => FaultKind::SuccessorUnusable { why: why.to_string() },
        };
        Some(Fault { slot: None, kind })
    }

    /// How often the file was attached to, modulo 2^32.
    #[must_use]
    pub fn attachments(&self) -> u32 {
        self.shared().attachments.load(Ordering::Relaxed)
    }

    /// Verifies what must hold at every moment, in a table that may be in use:
    ///
    /// * every live bucket lies in one of its key's eight slots, and no key has two;
    /// * none owes more than any limit can, and no slot is sealed unless the table is being
    ///   resized;
    /// * the table's time has not gone backwards;
    /// * if it is being resized, the file that takes over from it is there.
    ///
    /// Most faults cost no more than a wrong limit for the keys concerned until it has drained,
    /// and the table heals by itself. A missing successor [does not heal](Fault::heals).
    #[must_use]
    pub fn check(&self) -> Vec<Fault> {
        let slots: Vec<&Slot> = self.each_slot().collect();
        let now = self.now();
        let mut faults = Vec::from_iter(self.successor_fault());
        let last_ns = self.shared().last_ns.load(Ordering::Relaxed);
        if last_ns > now.saturating_add(1_000_000_000) {
            faults.push(Fault { slot: None, kind: FaultKind::TimeAhead { ns: last_ns - now } });
        }
        let mut seen: HashMap<u64, usize> = HashMap::new();
        for (index, slot) in slots.iter().enumerate() {
            let word = slot.load();
            let mut fault = |kind| faults.push(Fault { slot: Some(index), kind });
            if word.sealed_tat().is_some() && !self.is_superseded() {
                fault(FaultKind::Sealed);
            }
            let Some(tat) = word.tat() else { continue };
            if word.fingerprint() == 0 {
                continue;
            }
            if tat > now && !self.bucket(word.fingerprint()).may_be_in(slot) {
                fault(FaultKind::Misplaced);
            }
            if tat.saturating_sub(now) > MAX_DRAIN_NS {
                fault(FaultKind::TooFar { owed_ns: tat - now });
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

/// Whether two slots hold confirmed buckets of one key at one moment, and not one after the other.
fn both_hold(one: &Slot, other: &Slot, fingerprint: u64) -> bool {
    let confirmed = |word: Word| word.fingerprint() == fingerprint && word.tat().is_some();
    let before = one.load();
    let meanwhile = other.load();
    confirmed(before) && confirmed(meanwhile) && one.load() == before
}

//! Sealing slots, by which a table that is being resized gives its buckets away.
//!
//! A table that is being resized is sealed slot by slot. A sealed slot never changes again and
//! keeps its last TAT, so that a late charge on it fails, and nothing is lost between reading the
//! TAT and carrying it over. A key's bucket is in this table as long as its slot is confirmed. If
//! none is, and one of its eight slots is sealed, then the bucket is in the successor. A process
//! that opens it there does three steps:
//!
//! 1. *Seal* what is left of the key's eight slots here. A process killed here leaves some slots
//!    sealed: every process that comes for one of their keys goes to the successor.
//! 2. *Read* the last TAT of the key from the sealed slots. They never change again, so it does
//!    not matter how often this is done, or by how many processes.
//! 3. *Open* the bucket in the successor with that TAT (`opening.rs`), and not with an idle one. A
//!    process killed before this leaves a debt that is only in the sealed slot, where the next
//!    process that comes for the key, or the resizer, finds it.
//!
//! In all cases a cell that was charged here counts in the successor, and none counts twice.

// ADR 22: A resize seals slots.

use crate::bucket::Bucket;
use crate::mutation::{Mutation, broken};
use crate::slot::{Slot, Word};
use crate::sync::{Ordering, fence};
use crate::time::Time;

impl Bucket<'_> {
    /// Seals the eight slots, and returns the last TAT of the key here (zero if there was no
    /// bucket).
    pub(crate) fn seal(&self) -> Time {
        self.slots()
            .map(seal)
            .filter(|word| word.fingerprint() == self.fingerprint())
            .filter_map(Word::sealed_tat)
            .max()
            .unwrap_or(Time::ZERO)
    }
}

/// Seals a slot, and returns what it holds from then on.
pub(crate) fn seal(slot: &Slot) -> Word {
    // A process that sees the seal must see the flag that gives it its meaning.
    fence(Ordering::Release);
    // This ends: a slot is exchanged only by a process whose charge or opening succeeds.
    loop {
        let word = slot.load();
        if word.sealed_tat().is_some() {
            return word;
        }
        if broken(Mutation::SealStores) {
            #[cfg(gcra_model)]
            slot.store(word.sealed());
            return word.sealed();
        }
        if slot.exchange(word, word.sealed()) {
            return word.sealed();
        }
    }
}

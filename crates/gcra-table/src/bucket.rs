//! A key's bucket: the slots of the table that may hold it, and how it is found there.
//!
//! A key has two candidate lines of four slots each, so eight slots. Its bucket is the one slot
//! among them that has the key's fingerprint and is *confirmed*. A slot whose TAT is not in the
//! future is *idle*: it means the same as a slot that was never used. So a process that needs a
//! slot may take an idle one, and nothing is lost. The table needs no other upkeep.
//!
//! Each step with a bucket has a file of its own, which begins with the argument for it:
//!
//! | step | file |
//! |---|---|
//! | charging it, and taking a charge back | `charge.rs` |
//! | opening it, because the key has none | `opening.rs` |
//! | sealing its slot, when the table is resized | `seal.rs` |
//! | carrying it over to the successor | `carry.rs` |
//! | giving cells back later | `give_back.rs` |
//! | forgetting what the key owes | `reset.rs` |
//! | keeping what requests cost that no response settles | `unsettled.rs` |
//!
//! **Every operation ends.** It makes attempts, and loses one only to a process that got further.
//! A charge loses to another charge, and after `burst` other charges it is a denial. An opening
//! loses to an announcement, a removal or a confirmation in the same slots. No known schedule
//! makes an operation lose more than a few attempts. If one should lose [`MAX_ATTEMPTS`], it gives
//! up: the cells are denied, and that is counted.

// ADR 21: A bucket's place follows from its fingerprint.
// ADR 15: Each limit of a key has lines of its own.

pub(crate) mod carry;
pub(crate) mod charge;
pub(crate) mod context;
pub(crate) mod give_back;
pub(crate) mod look;
pub(crate) mod opening;
pub(crate) mod reset;
pub(crate) mod seal;
pub(crate) mod ticket;
pub(crate) mod unsettled;
pub(crate) mod window;

use crate::bucket::look::{CANDIDATES, SeenSlots};
use crate::cpu::{Loads, prefetch};
#[cfg(gcra_model)]
use crate::mutation::{Mutation, broken};
use crate::slot::{BucketId, LINE_SLOTS, Line, Slot, Word};
use crate::time::Time;

/// How many attempts an operation may lose before it gives up. The models need fewer, and fail
/// beyond that.
pub(crate) const MAX_ATTEMPTS: u32 = if cfg!(gcra_model) { 24 } else { 10_000 };

/// The place of a key in the table: what tells its bucket from others, and the slots where it may
/// be.
///
/// Positions count through the first line and then through the second. They follow from the hash
/// of the key, so every process sees the same ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket<'a> {
    lines: [&'a Line; 2],
    id: BucketId,
}

impl<'a> Bucket<'a> {
    /// This bucket in these two lines (never the same).
    #[inline]
    pub(crate) const fn new(lines: [&'a Line; 2], id: BucketId) -> Self {
        Self { lines, id }
    }

    /// The two lines that may hold it.
    #[inline]
    pub(crate) const fn lines(&self) -> [&'a Line; 2] {
        self.lines
    }

    /// The id that tells it from all others.
    #[inline]
    pub(crate) const fn id(&self) -> BucketId {
        self.id
    }

    #[inline]
    pub(crate) const fn fingerprint(&self) -> u64 {
        self.id.fingerprint
    }

    /// A bucket of this key with this TAT, as a slot holds it.
    #[inline]
    pub(crate) const fn confirmed(&self, tat: Time) -> Word {
        Word::confirmed(self.id, tat)
    }

    #[inline]
    pub(crate) fn slot(&self, position: usize) -> &'a Slot {
        &self.lines[position / LINE_SLOTS].slots[position % LINE_SLOTS]
    }

    #[inline]
    pub(crate) fn slots(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        let [first, second] = self.lines;
        first.slots.iter().chain(&second.slots)
    }

    /// Whether `slot` is one of the eight.
    pub(crate) fn may_be_in(&self, slot: &Slot) -> bool {
        self.slots().any(|candidate| core::ptr::eq(candidate, slot))
    }

    /// A position that differs from key to key.
    #[expect(clippy::cast_possible_truncation, reason = "below the number of candidates")]
    pub(crate) const fn arbitrary_position(&self) -> usize {
        (self.id.fingerprint % CANDIDATES as u64) as usize
    }

    /// The confirmed slot of the key, what it holds, and the TAT in it.
    #[inline(always)]
    pub(crate) fn find(&self) -> Option<(&'a Slot, Word, Time)> {
        // Without this, a bucket in the second line costs two fetches from memory, one after the
        // other.
        prefetch(self.lines[1]);
        Self::find_fetched(self.lines, self.id.fingerprint, Loads::of_this_cpu())
    }

    /// As [`find`](Self::find), for the bucket with this fingerprint in two lines that were asked
    /// for before.
    #[inline(always)]
    pub(crate) fn find_fetched(
        [first, second]: [&'a Line; 2],
        fingerprint: u64,
        cpu: Loads,
    ) -> Option<(&'a Slot, Word, Time)> {
        first.slots.iter().chain(&second.slots).find_map(|slot| {
            let word = slot.load_on(cpu);
            word.is_bucket_of(fingerprint).then(|| (slot, word, word.value()))
        })
    }

    /// Loads the eight slots, one after another.
    #[inline]
    pub(crate) fn look(&self) -> SeenSlots {
        let cpu = Loads::of_this_cpu();
        SeenSlots::at(self.id.fingerprint, |position| self.slot(position).load_on(cpu))
    }

    /// The exchange of a charge. A mutation breaks it into a load and a store, to see that a model
    /// notices.
    #[inline]
    pub(crate) fn exchange(slot: &Slot, current: Word, new: Word) -> bool {
        #[cfg(gcra_model)]
        if broken(Mutation::StoreCharge) {
            let unchanged = slot.load() == current;
            if unchanged {
                slot.store(new);
            }
            return unchanged;
        }
        #[cfg(gcra_model)]
        if broken(Mutation::HalfExchange) {
            return slot.exchange_low_half(current, new);
        }
        slot.exchange(current, new)
    }
}

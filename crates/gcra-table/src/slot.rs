//! One slot of the table: 16 bytes that say which key's bucket this is and what the key owes.

use core::fmt;

use crate::sync::{AtomicU128, Ordering};
use crate::time::Time;

/// Slots in a line: four fill one cache line. The loom models use fewer.
pub(crate) const LINE_SLOTS: usize = if cfg!(gcra_loom) { 2 } else { 4 };

/// The slots that share a cache line, and so are fetched together.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line {
    pub(crate) slots: [Slot; LINE_SLOTS],
}

#[cfg(not(gcra_model))]
const _: () = assert!(size_of::<Slot>() == 16 && size_of::<Line>() == 64);

/// A word that is only ever changed whole.
///
/// # Orderings
///
/// The key and what it owes change together, and a slot guards nothing else in memory. So loads
/// and exchanges need atomicity and no more: all are `Relaxed`. The order *between* slots matters
/// in two places, and there is a fence in each: opening a bucket (`opening.rs`, sequentially
/// consistent), and sealing a slot (`seal.rs`, a release, with an acquire where a seal is met).
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Slot(AtomicU128);

impl Slot {
    #[cfg(gcra_model)]
    pub(crate) fn new() -> Self {
        Self(AtomicU128::new(0))
    }

    /// Whether an instruction of this CPU changes a slot whole. The substitute of portable-atomic
    /// is a lock within one process, which other processes do not see.
    #[cfg(not(gcra_model))]
    pub(crate) fn is_lock_free() -> bool {
        AtomicU128::is_lock_free()
    }

    #[inline]
    pub(crate) fn load(&self) -> Word {
        Word(self.load_bits())
    }

    /// Puts `new` in the place of `current`. False if the slot holds something else by now.
    #[inline]
    pub(crate) fn exchange(&self, current: Word, new: Word) -> bool {
        self.exchange_bits(current.0, new.0)
    }

    /// As [`load`](Self::load), whatever the bits mean.
    #[inline]
    pub(crate) fn load_bits(&self) -> u128 {
        #[cfg(not(gcra_model))]
        return crate::cpu::load(&self.0);
        #[cfg(gcra_model)]
        self.0.load(Ordering::Relaxed)
    }

    /// As [`exchange`](Self::exchange), whatever the bits mean.
    #[inline]
    pub(crate) fn exchange_bits(&self, current: u128, new: u128) -> bool {
        self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Only for tests and for mutations: changes the slot, whatever it holds.
    #[cfg(any(gcra_model, test))]
    pub(crate) fn store(&self, word: Word) {
        self.store_bits(word.0);
    }

    /// As [`store`](Self::store), whatever the bits mean.
    #[cfg(any(gcra_model, test))]
    pub(crate) fn store_bits(&self, bits: u128) {
        self.0.store(bits, Ordering::Relaxed);
    }

    /// Only for a mutation: an exchange that compares the TAT and not the key.
    #[cfg(gcra_model)]
    pub(crate) fn exchange_low_half(&self, current: Word, new: Word) -> bool {
        let low = |word: Word| word.0 & u128::from(u64::MAX);
        let there = self.load();
        low(there) == low(current) && self.exchange(there, Word(there.0 >> 64 << 64 | low(new)))
    }
}

/// What a slot holds: the fingerprint of a key in the upper half, and in the lower half one of
/// three things, which its two highest bits tell apart.
///
/// | bits 63, 62 | it is | bits 61..0 |
/// |---|---|---|
/// | 0 0 | a *confirmed* bucket | its TAT |
/// | 1 any | an *announcement*: a process is about to open the bucket | a ticket |
/// | 0 1 | *sealed*: the slot never changes again; its bucket is in the successor | the last TAT |
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct Word(u128);

const PENDING: u64 = 1 << 63;
const SEALED: u64 = 1 << 62;
const VALUE: u64 = SEALED - 1;

impl Word {
    /// A slot that was never used: no key has fingerprint 0.
    pub(crate) const EMPTY: Self = Self(0);

    /// A bucket. No TAT reaches bit 62: clocks and drain times stay far below 146 years.
    pub(crate) const fn confirmed(fingerprint: u64, tat: Time) -> Self {
        Self::new(fingerprint, tat.0 & VALUE)
    }

    /// The announcement of a bucket. `ticket` is below 2^62, and no ticket is used twice in a
    /// slot.
    pub(crate) const fn pending(fingerprint: u64, ticket: u64) -> Self {
        Self::new(fingerprint, ticket & VALUE | PENDING)
    }

    /// What the word becomes when its slot is sealed: a bucket keeps its TAT, an announcement is
    /// dropped.
    pub(crate) const fn sealed(self) -> Self {
        match self.tat() {
            Some(tat) => Self::new(self.fingerprint(), tat.0 | SEALED),
            None => Self::new(0, SEALED),
        }
    }

    const fn new(fingerprint: u64, low: u64) -> Self {
        Self((fingerprint as u128) << 64 | low as u128)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of the word")]
    const fn halves(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64)
    }

    pub(crate) const fn fingerprint(self) -> u64 {
        self.halves().0
    }

    /// The TAT of a confirmed bucket.
    #[inline]
    pub(crate) const fn tat(self) -> Option<Time> {
        let (_, low) = self.halves();
        if low & !VALUE == 0 { Some(Time(low)) } else { None }
    }

    /// The ticket of an announcement.
    pub(crate) const fn ticket(self) -> Option<u64> {
        let (_, low) = self.halves();
        if low & PENDING == 0 { None } else { Some(low & VALUE) }
    }

    /// The last TAT of a sealed slot.
    pub(crate) const fn sealed_tat(self) -> Option<Time> {
        let (_, low) = self.halves();
        if low & !VALUE == SEALED { Some(Time(low & VALUE)) } else { None }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fingerprint = self.fingerprint();
        match (self.tat(), self.ticket(), self.sealed_tat()) {
            (Some(tat), ..) => write!(f, "{{{fingerprint:x} tat {tat}}}"),
            (_, Some(ticket), _) => write!(f, "{{{fingerprint:x} pending {ticket}}}"),
            (.., tat) => write!(f, "{{{fingerprint:x} sealed {tat:?}}}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_bucket_or_an_announcement_or_sealed() {
        let parts =
            |word: Word| (word.fingerprint(), word.tat(), word.ticket(), word.sealed_tat());
        let bucket = Word::confirmed(u64::MAX, Time(5));
        assert_eq!(parts(bucket), (u64::MAX, Some(Time(5)), None, None));
        assert_eq!(parts(bucket.sealed()), (u64::MAX, None, None, Some(Time(5))));
        let announced = Word::pending(3, 0);
        assert_eq!(parts(announced), (3, None, Some(0), None));
        assert_eq!(parts(announced.sealed()), (0, None, None, Some(Time::ZERO)));
        assert_eq!(parts(Word::EMPTY), (0, Some(Time::ZERO), None, None));
        let largest = Word::confirmed(1, Time(u64::MAX));
        assert_eq!(parts(largest), (1, Some(Time((1 << 62) - 1)), None, None));
    }
}

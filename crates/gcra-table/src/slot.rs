//! One slot of the table: 16 bytes that say whose bucket this is and what it owes.

use core::fmt;

use crate::sync::{AtomicU128, Ordering};

/// Slots in a line: four fill one cache line. The loom models make do with fewer.
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
/// Whose bucket it is and what it owes change together, and nothing else in memory is guarded by a
/// slot. So loads and exchanges need atomicity and no more: all are `Relaxed`. The order *between*
/// slots matters in two places, and `bucket.rs` puts a fence in each: opening a bucket
/// (sequentially consistent), and sealing a slot (release, and acquire where a seal is met).
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Slot(AtomicU128);

impl Slot {
    #[cfg(gcra_model)]
    pub(crate) fn new() -> Self {
        Self(AtomicU128::new(0))
    }

    /// Whether slots are changed by an instruction of this CPU. The library's substitute is a lock
    /// of one process, which means nothing to the others.
    #[cfg(not(gcra_model))]
    pub(crate) fn is_lock_free() -> bool {
        AtomicU128::is_lock_free()
    }

    #[inline]
    pub(crate) fn load(&self) -> Word {
        #[cfg(not(gcra_model))]
        return Word(crate::region::load(&self.0));
        #[cfg(gcra_model)]
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Puts `new` in the place of `current`. False when the slot holds something else by now.
    #[inline]
    pub(crate) fn exchange(&self, current: Word, new: Word) -> bool {
        self.0.compare_exchange(current.0, new.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Only for tests and broken models: changes the slot without asking what it holds.
    #[cfg(any(gcra_model, test))]
    pub(crate) fn store(&self, word: Word) {
        self.0.store(word.0, Ordering::Relaxed);
    }

    /// Only for a broken model: an exchange that looks at the TAT and not at whose it is.
    #[cfg(gcra_model)]
    pub(crate) fn exchange_low_half(&self, current: Word, new: Word) -> bool {
        let low = |word: Word| word.0 & u128::from(u64::MAX);
        let there = self.load();
        low(there) == low(current) && self.exchange(there, Word(there.0 >> 64 << 64 | low(new)))
    }
}

/// What a slot holds: the fingerprint in the upper half, and in the lower one of three things,
/// told apart by its two highest bits.
///
/// | bits 63, 62 | it is | bits 61..0 |
/// |---|---|---|
/// | 0 0 | a *confirmed* bucket | its TAT |
/// | 1 any | an *announcement*: someone is about to open the bucket | a ticket |
/// | 0 1 | *sealed*: the slot never changes again, its bucket lives on in a larger or smaller table | the last TAT |
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct Word(u128);

const PENDING: u64 = 1 << 63;
const SEALED: u64 = 1 << 62;
const VALUE: u64 = SEALED - 1;

impl Word {
    /// A slot never used: no key has fingerprint 0.
    pub(crate) const EMPTY: Self = Self(0);

    /// A bucket. No TAT reaches bit 62: clocks and drain times stay far below 146 years.
    pub(crate) const fn confirmed(fingerprint: u64, tat: u64) -> Self {
        Self::new(fingerprint, tat & VALUE)
    }

    /// The announcement of a bucket. `ticket` is below 2^62 and, in this slot, never used twice.
    pub(crate) const fn pending(fingerprint: u64, ticket: u64) -> Self {
        Self::new(fingerprint, ticket & VALUE | PENDING)
    }

    /// What becomes of the word when its slot is sealed: a bucket keeps its TAT, an announcement
    /// is dropped.
    pub(crate) const fn sealed(self) -> Self {
        match self.tat() {
            Some(tat) => Self::new(self.fingerprint(), tat | SEALED),
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
    pub(crate) const fn tat(self) -> Option<u64> {
        let (_, low) = self.halves();
        if low & !VALUE == 0 { Some(low) } else { None }
    }

    /// The ticket of an announcement.
    pub(crate) const fn ticket(self) -> Option<u64> {
        let (_, low) = self.halves();
        if low & PENDING == 0 { None } else { Some(low & VALUE) }
    }

    /// The last TAT of a sealed slot.
    pub(crate) const fn sealed_tat(self) -> Option<u64> {
        let (_, low) = self.halves();
        if low & !VALUE == SEALED { Some(low & VALUE) } else { None }
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

/// How many slots a table has: a power of two from 8 to 2^30 (16 bytes each).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Slots(u32);

impl Slots {
    /// 2^20 slots, 16 MiB: room for half a million keys active within one drain time.
    pub const DEFAULT: Self = Self(1 << 20);
    const MIN: u64 = 8;
    const MAX: u64 = 1 << 30;

    /// At least `slots` slots: rounded up to a power of two.
    ///
    /// # Errors
    ///
    /// Fewer than 8 or more than 2^30.
    pub fn new(slots: u64) -> Result<Self, SlotsError> {
        if !(Self::MIN..=Self::MAX).contains(&slots) {
            return Err(SlotsError(slots));
        }
        u32::try_from(slots.next_power_of_two()).map(Self).map_err(|_| SlotsError(slots))
    }

    /// Exactly as many as a file says it has.
    pub(crate) fn exactly(slots: u64) -> Option<Self> {
        Self::new(slots).ok().filter(|rounded| u64::from(rounded.0) == slots)
    }

    /// The number of slots.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The bytes these slots take.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0 as u64 * 16
    }
}

/// A number of slots that no table can have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlotsError(u64);

impl fmt::Display for SlotsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} slots: a table has from {} to {} (16 bytes each; twice the keys active within burst/rate is plenty)",
            self.0,
            Slots::MIN,
            Slots::MAX
        )
    }
}

impl core::error::Error for SlotsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_bucket_or_an_announcement_or_sealed() {
        let parts =
            |word: Word| (word.fingerprint(), word.tat(), word.ticket(), word.sealed_tat());
        let bucket = Word::confirmed(u64::MAX, 5);
        assert_eq!(parts(bucket), (u64::MAX, Some(5), None, None));
        assert_eq!(parts(bucket.sealed()), (u64::MAX, None, None, Some(5)));
        let announced = Word::pending(3, 0);
        assert_eq!(parts(announced), (3, None, Some(0), None));
        assert_eq!(parts(announced.sealed()), (0, None, None, Some(0)));
        assert_eq!(parts(Word::EMPTY), (0, Some(0), None, None));
        assert_eq!(parts(Word::confirmed(1, u64::MAX)), (1, Some((1 << 62) - 1), None, None));
    }

    #[test]
    fn slots_are_rounded_up_and_bounded() {
        assert_eq!(Slots::new(8).unwrap().get(), 8);
        assert_eq!(Slots::new(9).unwrap().get(), 16);
        assert_eq!(Slots::new(1_000_000).unwrap(), Slots::DEFAULT);
        assert_eq!(Slots::new(1 << 30).unwrap().bytes(), 16 << 30);
        for slots in [0, 7, (1 << 30) + 1, u64::MAX] {
            assert_eq!(Slots::new(slots), Err(SlotsError(slots)));
        }
    }
}

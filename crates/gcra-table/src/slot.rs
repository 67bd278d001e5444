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

#[cfg(not(gcra_loom))]
const _: () = assert!(size_of::<Slot>() == 16 && size_of::<Line>() == 64);

/// A word that is only ever changed whole.
///
/// # Orderings
///
/// Whose bucket it is and what it owes change together, and nothing else in memory is guarded by a slot. So
/// loads and exchanges need atomicity and no more: all are `Relaxed`. The one place where the order *between*
/// slots matters is inserting a key, and there `bucket.rs` puts a sequentially consistent fence.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Slot(AtomicU128);

impl Slot {
    #[cfg(gcra_loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU128::new(0))
    }

    /// Whether slots are changed by an instruction of this CPU. The library's substitute is a lock of one process,
    /// which means nothing to the others.
    #[cfg(not(gcra_loom))]
    pub(crate) fn is_lock_free() -> bool {
        AtomicU128::is_lock_free()
    }

    #[inline]
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Puts `new` in the place of `current`. False when the slot holds something else by now.
    #[inline]
    pub(crate) fn exchange(&self, current: Word, new: Word) -> bool {
        self.0.compare_exchange(current.0, new.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Only for tests and broken models: changes the slot without asking what it holds.
    #[cfg(any(gcra_loom, test))]
    pub(crate) fn store(&self, word: Word) {
        self.0.store(word.0, Ordering::Relaxed);
    }
}

/// What a slot holds: the fingerprint in the upper half, and below it either a TAT (the bucket is confirmed) or
/// an announcement (bit 63 is set: someone is about to open the bucket).
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct Word(u128);

const PENDING: u64 = 1 << 63;

impl Word {
    /// A slot never used: no key has fingerprint 0.
    pub(crate) const EMPTY: Self = Self(0);

    /// A bucket. No TAT reaches bit 63: clocks and drain times stay far below 146 years.
    pub(crate) const fn confirmed(fingerprint: u64, tat: u64) -> Self {
        Self::new(fingerprint, tat & !PENDING)
    }

    /// The announcement of a bucket. `ticket` is below 2^63 and, in this slot, never used twice.
    pub(crate) const fn pending(fingerprint: u64, ticket: u64) -> Self {
        Self::new(fingerprint, ticket | PENDING)
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
    pub(crate) const fn tat(self) -> Option<u64> {
        let (_, low) = self.halves();
        if low & PENDING == 0 { Some(low) } else { None }
    }

    /// The ticket of an announcement.
    pub(crate) const fn ticket(self) -> Option<u64> {
        let (_, low) = self.halves();
        if low & PENDING == 0 { None } else { Some(low & !PENDING) }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tat(), self.ticket()) {
            (Some(tat), _) => write!(f, "{{{:x} tat {tat}}}", self.fingerprint()),
            (_, ticket) => write!(f, "{{{:x} pending {ticket:?}}}", self.fingerprint()),
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
    fn a_word_is_a_bucket_or_an_announcement() {
        let bucket = Word::confirmed(u64::MAX, 5);
        assert_eq!((bucket.fingerprint(), bucket.tat(), bucket.ticket()), (u64::MAX, Some(5), None));
        let announced = Word::pending(3, 0);
        assert_eq!((announced.fingerprint(), announced.tat(), announced.ticket()), (3, None, Some(0)));
        assert_eq!(Word::EMPTY.tat(), Some(0));
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

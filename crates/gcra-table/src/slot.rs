//! One slot of the table: 16 bytes that say which key's bucket this is and what the key owes.

// ADR 18: A slot is 128 bits and changes whole.

use core::fmt;

use crate::burst_class::{Class, IN_FINGERPRINT};
use crate::cpu::Loads;
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
/// in two places, and there is a fence in each. Opening a bucket has a sequentially consistent
/// fence (`opening.rs`). Sealing a slot has a release, with an acquire where a seal is met
/// (`seal.rs`).
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
        self.load_on(Loads::of_this_cpu())
    }

    /// As [`load`](Self::load), where several slots are loaded.
    #[inline(always)]
    pub(crate) fn load_on(&self, cpu: Loads) -> Word {
        Word(self.load_bits_on(cpu))
    }

    /// Puts `new` in the place of `current`. False if the slot holds something else by now.
    #[inline]
    pub(crate) fn exchange(&self, current: Word, new: Word) -> bool {
        self.exchange_bits(current.0, new.0)
    }

    /// As [`load`](Self::load), whatever the bits mean.
    #[inline]
    pub(crate) fn load_bits(&self) -> u128 {
        self.load_bits_on(Loads::of_this_cpu())
    }

    #[inline(always)]
    #[cfg_attr(gcra_model, expect(unused_variables, reason = "models have atomics of their own"))]
    fn load_bits_on(&self, cpu: Loads) -> u128 {
        #[cfg(not(gcra_model))]
        return cpu.load(&self.0);
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

/// The content of a slot: the fingerprint of a key in the upper half, and what its two highest
/// bits say.
///
/// | bits 127, 126 | it is | bits 63 to 0 |
/// |---|---|---|
/// | 0 0 | a *confirmed* bucket | four bits of its class, and its TAT, 60 bits |
/// | 1 any | an *announcement*: a process is about to open the bucket | a ticket |
/// | 0 1 | *sealed*: the slot never changes again; its bucket is in the successor | as it was |
///
/// The two highest bits of the fingerprint are the lowest of the class. So whether a slot is the
/// confirmed bucket of a key is one comparison.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct Word(u128);

/// The identity of a bucket: whose it is, and the class of its limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BucketId {
    /// 62 bits, never 0: 60 of a hash, and two of the class.
    pub(crate) fingerprint: u64,
    pub(crate) class: Class,
}

impl BucketId {
    /// The bucket with the fingerprint that this hash gives.
    #[inline]
    pub(crate) const fn new(hash: u64, class: Class) -> Self {
        // Two bits of the slot say what it holds, and 0 is a slot that was never used.
        let bits = hash >> 4;
        let bits = if bits == 0 { 1 } else { bits };
        Self { fingerprint: bits | class.in_fingerprint(), class }
    }
}

const TAGS: u64 = 0b11 << 62;
const PENDING: u64 = 0b10 << 62;
const SEALED: u64 = 0b01 << 62;
const CLASS_SHIFT: u32 = 60;
const VALUE: u64 = (1 << CLASS_SHIFT) - 1;

impl Word {
    /// A slot that was never used: no key has fingerprint 0.
    pub(crate) const EMPTY: Self = Self(0);

    /// A bucket. No TAT reaches bit 60: clocks and drain times stay far below 36 years.
    #[inline]
    pub(crate) const fn confirmed(id: BucketId, tat: Time) -> Self {
        let class = id.class.number() as u64 / 4;
        Self::new(id.fingerprint, class << CLASS_SHIFT | tat.0 & VALUE)
    }

    /// The announcement of a bucket. No ticket is used twice in a slot.
    pub(crate) const fn pending(fingerprint: u64, ticket: u64) -> Self {
        Self::new(fingerprint | PENDING, ticket)
    }

    /// The word after its slot is sealed: a bucket keeps its TAT and its class, an announcement is
    /// dropped.
    pub(crate) const fn sealed(self) -> Self {
        match self.tat() {
            Some(_) => Self(self.0 | (SEALED as u128) << 64),
            None => Self::new(SEALED, 0),
        }
    }

    const fn new(high: u64, low: u64) -> Self {
        Self((high as u128) << 64 | low as u128)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of the word")]
    const fn halves(self) -> (u64, u64) {
        ((self.0 >> 64) as u64, self.0 as u64)
    }

    /// Whether it is the confirmed bucket with this fingerprint.
    #[inline]
    pub(crate) const fn is_bucket_of(self, fingerprint: u64) -> bool {
        self.halves().0 == fingerprint
    }

    /// Whether it is an announcement of the bucket with this fingerprint.
    #[inline]
    pub(crate) const fn is_announcement_of(self, fingerprint: u64) -> bool {
        self.halves().0 | SEALED == fingerprint | TAGS
    }

    pub(crate) const fn fingerprint(self) -> u64 {
        self.halves().0 & !TAGS
    }

    /// The class that a bucket has, or had when it was sealed.
    #[expect(clippy::cast_possible_truncation, reason = "two bits and four bits")]
    pub(crate) const fn class(self) -> Class {
        let (high, low) = self.halves();
        let class_low = (high & !TAGS) >> IN_FINGERPRINT;
        Class::from_number(((low >> CLASS_SHIFT) * 4 + class_low) as u8)
    }

    /// The id that tells this bucket, or the one that was sealed here, from all others.
    pub(crate) const fn id(self) -> BucketId {
        BucketId { fingerprint: self.fingerprint(), class: self.class() }
    }

    /// The TAT, if this is a confirmed bucket.
    #[inline]
    pub(crate) const fn value(self) -> Time {
        Time(self.halves().1 & VALUE)
    }

    /// The same with another TAT.
    #[inline]
    pub(crate) const fn with_value(self, tat: Time) -> Self {
        let (high, low) = self.halves();
        // No TAT reaches bit 60, so there is nothing to mask. One that did would change the class.
        Self::new(high, low & !VALUE | tat.0)
    }

    /// The TAT of a confirmed bucket.
    #[inline]
    pub(crate) const fn tat(self) -> Option<Time> {
        if self.halves().0 & TAGS == 0 { Some(self.value()) } else { None }
    }

    pub(crate) const fn ticket(self) -> Option<u64> {
        let (high, low) = self.halves();
        if high & PENDING == 0 { None } else { Some(low) }
    }

    /// The last TAT of a sealed slot.
    pub(crate) const fn sealed_tat(self) -> Option<Time> {
        let (high, low) = self.halves();
        if high & TAGS == SEALED { Some(Time(low & VALUE)) } else { None }
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fingerprint = self.fingerprint();
        match (self.tat(), self.ticket(), self.sealed_tat()) {
            (Some(tat), ..) => {
                write!(f, "{{{fingerprint:x} class {} tat {tat}}}", self.class().number())
            }
            (_, Some(ticket), _) => write!(f, "{{{fingerprint:x} pending {ticket}}}"),
            (.., tat) => write!(f, "{{{fingerprint:x} sealed {tat:?}}}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: BucketId = BucketId { fingerprint: !TAGS, class: Class::from_number(11) };

    #[test]
    fn a_word_is_a_bucket_or_an_announcement_or_sealed() {
        let parts =
            |word: Word| (word.fingerprint(), word.tat(), word.ticket(), word.sealed_tat());
        let bucket = Word::confirmed(ID, Time(5));
        assert_eq!(parts(bucket), (!TAGS, Some(Time(5)), None, None));
        assert_eq!(parts(bucket.sealed()), (!TAGS, None, None, Some(Time(5))));
        assert_eq!((bucket.id(), bucket.sealed().id()), (ID, ID), "the class stays");
        let announced = Word::pending(4, 0);
        assert_eq!(parts(announced), (4, None, Some(0), None));
        assert_eq!(parts(announced.sealed()), (0, None, None, Some(Time::ZERO)));
        assert_eq!(parts(Word::EMPTY), (0, Some(Time::ZERO), None, None));
        let largest = Word::confirmed(ID, Time(u64::MAX));
        assert_eq!(parts(largest), (!TAGS, Some(Time((1 << 60) - 1)), None, None));
        assert_eq!(largest.id(), ID);
    }

    #[test]
    fn a_word_is_known_by_its_upper_half() {
        let is = |word: Word, fingerprint| {
            (word.is_bucket_of(fingerprint), word.is_announcement_of(fingerprint))
        };
        let bucket = Word::confirmed(BucketId { fingerprint: 4, ..ID }, Time(5));
        assert_eq!([is(bucket, 4), is(bucket, 8)], [(true, false), (false, false)]);
        assert_eq!(is(bucket.sealed(), 4), (false, false));
        let announced = Word::pending(4, u64::MAX);
        assert_eq!([is(announced, 4), is(announced, 8)], [(false, true), (false, false)]);
        assert_eq!(announced.ticket(), Some(u64::MAX));
    }

    #[test]
    fn no_fingerprint_is_0_or_has_the_bits_that_say_what_a_slot_holds() {
        let fingerprint = |hash| BucketId::new(hash, ID.class).fingerprint;
        let class = 3 << IN_FINGERPRINT;
        let expected = [class | 1, class | 1, class | 1, class | 2, !TAGS];
        assert_eq!([0, 15, 16, 32, u64::MAX].map(fingerprint), expected);
        let other = BucketId::new(16, Class::from_number(8));
        assert_eq!(other.fingerprint, 1);
    }
}

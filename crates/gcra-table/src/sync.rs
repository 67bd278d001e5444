//! The atomics of the slots: the machine's, or loom's under `--cfg gcra_loom`.
//!
//! The cfg has a name of our own because a bare `loom` would reach the dependencies too.

#[cfg(not(gcra_loom))]
pub(crate) use portable_atomic::AtomicU128;
#[cfg(not(gcra_loom))]
pub(crate) use std::sync::atomic::{Ordering, fence};

#[cfg(gcra_loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};

/// A 128-bit word for loom, which has none: two halves of 32 bits each in one 64-bit word.
///
/// The models keep fingerprints below 2^32 and times below 2^31, so nothing is lost; that is checked.
#[cfg(gcra_loom)]
#[derive(Debug)]
pub(crate) struct AtomicU128(loom::sync::atomic::AtomicU64);

#[cfg(gcra_loom)]
impl AtomicU128 {
    pub(crate) fn new(word: u128) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(Self::pack(word)))
    }

    pub(crate) fn load(&self, order: Ordering) -> u128 {
        Self::unpack(self.0.load(order))
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u128,
        new: u128,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u128, u128> {
        self.0
            .compare_exchange(Self::pack(current), Self::pack(new), success, failure)
            .map(Self::unpack)
            .map_err(Self::unpack)
    }

    /// Only for a broken variant: a store that asks nobody.
    pub(crate) fn store(&self, word: u128, order: Ordering) {
        self.0.store(Self::pack(word), order);
    }

    /// Bit 63 of the low half (pending) becomes bit 31.
    fn pack(word: u128) -> u64 {
        let packed = ((word >> 64) << 32 | (word >> 63 & 1) << 31 | word & 0x7fff_ffff) as u64;
        assert_eq!(Self::unpack(packed), word, "the model's numbers are too large");
        packed
    }

    fn unpack(packed: u64) -> u128 {
        let packed = u128::from(packed);
        (packed >> 32) << 64 | (packed >> 31 & 1) << 63 | packed & 0x7fff_ffff
    }
}

//! The atomics of the slots: the machine's, or a model checker's.
//!
//! `--cfg gcra_model --cfg gcra_loom` builds the models with loom (every interleaving, and the
//! older values that relaxed loads may see), `--cfg gcra_model --cfg gcra_shuttle` with shuttle
//! (random interleavings of larger models). The cfgs have names of their own because a bare `loom`
//! would reach the dependencies too.

#[cfg(not(gcra_model))]
pub(crate) use portable_atomic::AtomicU128;
#[cfg(not(gcra_model))]
pub(crate) use std::sync::atomic::{Ordering, fence};

#[cfg(gcra_loom)]
use loom::sync::atomic as model;
#[cfg(gcra_shuttle)]
use shuttle::sync::atomic as model;

#[cfg(gcra_model)]
pub(crate) use model::{Ordering, fence};

/// A 128-bit word for the checkers, which have none: two halves of 32 bits each in one 64-bit
/// word.
///
/// The models keep fingerprints below 2^32 and times below 2^30, so nothing is lost. `pack` checks
/// that.
#[cfg(gcra_model)]
#[derive(Debug)]
pub(crate) struct AtomicU128(model::AtomicU64);

#[cfg(gcra_model)]
impl AtomicU128 {
    pub(crate) fn new(word: u128) -> Self {
        Self(model::AtomicU64::new(Self::pack(word)))
    }

    pub(crate) fn load(&self, order: Ordering) -> u128 {
        if crate::mutation::changes().loads_are_exchanges {
            return Self::unpack(self.0.fetch_add(0, order));
        }
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

    /// Only for mutations: a store, whatever is there.
    pub(crate) fn store(&self, word: u128, order: Ordering) {
        self.0.store(Self::pack(word), order);
    }

    /// Bits 63 and 62 of the low half (pending, sealed) become bits 31 and 30.
    fn pack(word: u128) -> u64 {
        let packed = ((word >> 64) << 32 | (word >> 62 & 3) << 30 | word & 0x3fff_ffff) as u64;
        assert_eq!(Self::unpack(packed), word, "the model's numbers are too large");
        packed
    }

    fn unpack(packed: u64) -> u128 {
        let packed = u128::from(packed);
        (packed >> 32) << 64 | (packed >> 30 & 3) << 62 | packed & 0x3fff_ffff
    }
}

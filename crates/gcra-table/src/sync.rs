//! The atomics of the slots: the machine's, or a model checker's.
//!
//! `--cfg gcra_model --cfg gcra_loom` builds the models with loom (every interleaving, and the
//! older values that relaxed loads may see), `--cfg gcra_model --cfg gcra_shuttle` with shuttle
//! (random interleavings of larger models). The cfgs have names of their own because a bare `loom`
//! would reach the dependencies too.

#[cfg(not(gcra_model))]
pub(crate) use portable_atomic::AtomicU128;
#[cfg(not(gcra_model))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(gcra_loom)]
use loom::sync::atomic as model;
#[cfg(gcra_shuttle)]
use shuttle::sync::atomic as model;

#[cfg(gcra_model)]
pub(crate) use model::{AtomicU64, Ordering, fence};

/// A 128-bit word for the checkers, which have none: a 64-bit word that holds the number of a
/// value, in the order in which the values were first seen. (It is 0 for 0.)
#[cfg(gcra_model)]
#[derive(Debug)]
pub(crate) struct AtomicU128(model::AtomicU64);

#[cfg(gcra_model)]
impl AtomicU128 {
    pub(crate) fn new(word: u128) -> Self {
        Self(model::AtomicU64::new(number(word)))
    }

    pub(crate) fn load(&self, order: Ordering) -> u128 {
        if crate::mutation::changes().loads_are_exchanges {
            return value(self.0.fetch_add(0, order));
        }
        value(self.0.load(order))
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u128,
        new: u128,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u128, u128> {
        self.0
            .compare_exchange(number(current), number(new), success, failure)
            .map(value)
            .map_err(value)
    }

    /// Only for mutations: a store, whatever is there.
    pub(crate) fn store(&self, word: u128, order: Ordering) {
        self.0.store(number(word), order);
    }
}

#[cfg(gcra_model)]
static VALUES: std::sync::Mutex<Vec<u128>> = std::sync::Mutex::new(Vec::new());
#[cfg(gcra_model)]
static NUMBERS: std::sync::Mutex<std::collections::BTreeMap<u128, u64>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

#[cfg(gcra_model)]
fn number(value: u128) -> u64 {
    if value == 0 {
        return 0;
    }
    let mut numbers = NUMBERS.lock().unwrap();
    let next = numbers.len() as u64 + 1;
    *numbers.entry(value).or_insert_with(|| {
        VALUES.lock().unwrap().push(value);
        next
    })
}

#[cfg(gcra_model)]
fn value(number: u64) -> u128 {
    let place = usize::try_from(number).unwrap().checked_sub(1);
    place.map_or(0, |place| VALUES.lock().unwrap()[place])
}

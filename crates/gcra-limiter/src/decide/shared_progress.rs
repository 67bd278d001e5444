//! [`SharedProgress`]: how far a request has got under shared limits, and what was decided.

// ADR 35: Every message takes one path to its verdict.

use arrayvec::ArrayVec;
use gcra_policy::{MAX_LIMITS, Sharing};
use gcra_table::{LeaseKey, Nanos};

use crate::decide::charges_under_way::{ChargesUnderWay, UnderWay};
use crate::lease_client::waiting::Waits;
use crate::reservations::Reservation;
use crate::verdict::Reason;

/// How far a request has got under the limits of one policy.
#[derive(Debug, Default)]
pub(crate) struct SharedProgress {
    /// The limits that cells were asked for.
    pub(super) asked: [bool; MAX_LIMITS],
    pub(crate) waits: Option<Waits>,
    /// The keys that it waited for before that, and the cells that were free in the store then.
    pub(super) free: ArrayVec<(LeaseKey, u32), MAX_LIMITS>,
    /// The replies of the store so far, if it is asked about each request.
    pub(crate) at_once: Option<Box<ChargesUnderWay>>,
    /// How the policy is shared for which it waits.
    pub(crate) sharing: Option<Sharing>,
}

/// Whether a request may wait for the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Patience {
    /// It may, and it asks when it waits.
    MayWait,
    /// It waits, and asks itself.
    Asks,
    /// It has waited for as long as it may.
    MustAnswer,
}

/// The decision about a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedDecision {
    pub reason: Option<Reason>,
    /// How long the request has to wait, if it is allowed.
    pub delay: Nanos,
    pub reserved: Option<Reservation>,
    /// When the request may go on by the clock of the store, in ns since 1970, if the store has
    /// decided about it.
    pub(crate) store_ns: Option<u64>,
}

/// The request has to wait for the store. Its [`SharedProgress`] has the reason.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MustWait;

impl SharedProgress {
    /// The cells of a key that were free in the store when it answered last, as far as the request
    /// has waited for that.
    pub(super) fn free_of(&self, key: LeaseKey) -> u32 {
        match self.waits.as_ref().filter(|waits| waits.key == key) {
            Some(waits) => waits.free(),
            None => self.free.iter().rfind(|(of, _)| *of == key).map_or(0, |(_, free)| *free),
        }
    }

    /// The charge that it waits for, if it does.
    pub(crate) fn under_way(&mut self) -> Option<&mut UnderWay> {
        self.at_once.as_deref_mut().and_then(ChargesUnderWay::under_way)
    }
}

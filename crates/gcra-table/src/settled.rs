//! What came of correcting what a key was charged before.

use crate::quota::Quota;
use crate::time::Nanos;

/// What came of [`charge_up_to_cap`](crate::Table::charge_up_to_cap) or of
/// [`give_back`](crate::Table::give_back).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Settled {
    /// How many cells were charged, or given back: whole cells, rounded down.
    pub cells: u32,
    /// Of the cells that were charged: how many lie beyond the burst, the whole or a part of them.
    pub beyond_burst: u32,
    /// What the key owes after it.
    pub owed: Nanos,
}

impl Settled {
    /// After so many cells were charged to a key that owes so much with them.
    pub(crate) fn charged(quota: Quota, cells: u32, owed: Nanos) -> Self {
        let beyond = owed.saturating_sub(quota.drain_time()).div_ceil(quota.emission_interval());
        let beyond_burst = u32::try_from(beyond).unwrap_or(u32::MAX).min(cells);
        Self { cells, beyond_burst, owed }
    }

    /// After so much was given back to a key that still owes so much.
    pub(crate) fn given_back(quota: Quota, given_back: Nanos, owed: Nanos) -> Self {
        let cells = given_back.0 / quota.emission_interval().0;
        Self { cells: u32::try_from(cells).unwrap_or(u32::MAX), beyond_burst: 0, owed }
    }
}

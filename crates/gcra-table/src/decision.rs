//! The decision of the table about some cells of a key, and the outcome of correcting a charge.

use crate::quota::{Admission, Quota};
use crate::time::{Nanos, Time};

/// The decision of the table about some cells of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a decision that is not read limits nothing"]
pub struct Decision {
    admission: Admission,
    owed: Nanos,
}

impl Decision {
    /// Whether the cells are allowed. If so they were charged; if not, nothing was charged.
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Conforming { .. })
    }

    /// How long it takes until denied cells would be allowed, if nothing else is charged until
    /// then. `None` if they are allowed, or if they are more than the burst and never will be.
    pub const fn retry_after(&self) -> Option<Nanos> {
        match self.admission {
            Admission::Early { wait } => Some(wait),
            Admission::Conforming { .. } | Admission::Oversize => None,
        }
    }

    /// The debt of the key after the decision: it has its full burst again after this time.
    pub const fn owed(&self) -> Nanos {
        self.owed
    }

    /// The TAT that the charge led to.
    pub(crate) const fn charged_tat(&self) -> Option<Time> {
        match self.admission {
            Admission::Conforming { tat } => Some(tat),
            Admission::Early { .. } | Admission::Oversize => None,
        }
    }

    pub(crate) fn new(admission: Admission, tat: Time, now: Time) -> Self {
        let tat = if let Admission::Conforming { tat } = admission { tat } else { tat };
        Self { admission, owed: tat.saturating_since(now) }
    }

    /// Cells about which the table cannot decide are denied: that may be too strict, but never too
    /// generous.
    pub(crate) const fn undecidable(quota: Quota) -> Self {
        let wait = quota.emission_interval();
        Self { admission: Admission::Early { wait }, owed: quota.drain_time() }
    }
}

/// The outcome of [`charge_up_to_cap`](crate::Table::charge_up_to_cap) or of
/// [`give_back`](crate::Table::give_back).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Settled {
    /// How many cells were charged, or given back: whole cells, rounded down.
    pub cells: u32,
    /// Of the cells that were charged: how many lie beyond the burst, the whole or a part of them.
    pub beyond_burst: u32,
    /// The debt of the key after it.
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

//! What the table decides about some cells of a key.

use crate::quota::{Admission, Quota};
use crate::time::{Nanos, Time};

/// What the table decided about some cells of a key.
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

    /// What the key owes after the decision: it has its full burst again after this time.
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

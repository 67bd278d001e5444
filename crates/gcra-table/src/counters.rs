//! The counters of a table, over all processes. They lie in the shared file.

// ADR 32: Counting takes no locked instruction, and names are sampled.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::time::Nanos;

/// The cost of a table that was too small: see [`Table::evictions`](crate::Table::evictions).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Evictions {
    /// Buckets that were forgotten while their keys owed something.
    pub evicted_live: u64,
    /// The debts of those keys. Divided by the emission interval of their quota, this is the
    /// number of cells that may have been allowed too many.
    pub forgiven: Nanos,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    evicted_live: AtomicU64,
    forgiven_ns: AtomicU64,
    gave_up: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counted {
    pub(crate) evictions: Evictions,
    /// Operations that lost all their attempts and gave up.
    pub(crate) gave_up: u64,
}

impl Counted {
    /// `combine` applied to each number of both.
    pub(crate) fn with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let (mine, others) = (self.evictions, other.evictions);
        Self {
            evictions: Evictions {
                evicted_live: combine(mine.evicted_live, others.evicted_live),
                forgiven: Nanos(combine(mine.forgiven.0, others.forgiven.0)),
            },
            gave_up: combine(self.gave_up, other.gave_up),
        }
    }
}

impl Counters {
    pub(crate) fn evicted(&self, owed: Nanos) {
        self.evicted_live.fetch_add(1, Ordering::Relaxed);
        self.forgiven_ns.fetch_add(owed.0, Ordering::Relaxed);
    }

    /// An operation has lost all its attempts. No model may get here.
    #[cold]
    pub(crate) fn gave_up(&self) {
        #[cfg(gcra_model)]
        panic!("an operation lost all its attempts");
        #[cfg(not(gcra_model))]
        self.gave_up.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counted(&self) -> Counted {
        Counted {
            evictions: Evictions {
                evicted_live: self.evicted_live.load(Ordering::Relaxed),
                forgiven: Nanos(self.forgiven_ns.load(Ordering::Relaxed)),
            },
            gave_up: self.gave_up.load(Ordering::Relaxed),
        }
    }

    /// Raises each number to the number that was counted elsewhere. This may be repeated, and
    /// several processes may do it at once.
    pub(crate) fn raise_to(&self, counted: Counted) {
        let Counted { evictions: Evictions { evicted_live, forgiven }, gave_up } = counted;
        self.evicted_live.fetch_max(evicted_live, Ordering::Relaxed);
        self.forgiven_ns.fetch_max(forgiven.0, Ordering::Relaxed);
        self.gave_up.fetch_max(gave_up, Ordering::Relaxed);
    }
}

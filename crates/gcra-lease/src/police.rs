//! [`Police`]: one exact bucket that sees each request when it is allowed, and says when it would
//! have denied one.

use crate::limit::{SharedLimit, Units};

/// A GCRA bucket in the units of a limit.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Police {
    /// The theoretical arrival time: the moment at which nothing is owed any more.
    tat: u128,
    /// Cells beyond the burst that are allowed after a fault.
    pub(crate) extra: u32,
}

impl Police {
    /// A bucket that owes this much.
    pub(crate) fn owing(limit: &SharedLimit, now: u64, owed: Units, extra: u32) -> Self {
        Self { tat: units(limit, now) + u128::from(owed.0), extra }
    }

    /// From now on, this many cells more may be allowed at once.
    pub(crate) fn tolerate(&mut self, cells: u32) {
        self.extra += cells;
    }

    /// Notes cells that are allowed `now` (in µs), in the order of time. How many cells too many
    /// they are, rounded up; 0 if they conform.
    pub(crate) fn allow(&mut self, limit: &SharedLimit, now: u64, cells: u32) -> u32 {
        let now = units(limit, now);
        self.tat = self.tat.max(now) + u128::from(limit.cells(cells).0);
        let most = u128::from(limit.cells(limit.burst()).0)
            + u128::from(self.extra) * u128::from(limit.cells(1).0);
        let over = (self.tat - now).saturating_sub(most);
        u32::try_from(over.div_ceil(u128::from(limit.cells(1).0))).unwrap_or(u32::MAX)
    }

    /// Whether these cells would conform now; if so, they are noted.
    pub(crate) fn would_allow(&mut self, limit: &SharedLimit, now: u64, cells: u32) -> bool {
        let mut after = *self;
        let conforms = after.allow(limit, now, cells) == 0;
        if conforms {
            *self = after;
        }
        conforms
    }

    /// The debt now, in units.
    pub(crate) fn owed(&self, limit: &SharedLimit, now: u64) -> u64 {
        u64::try_from(self.tat.saturating_sub(units(limit, now))).unwrap_or(u64::MAX)
    }
}

fn units(limit: &SharedLimit, micros: u64) -> u128 {
    u128::from(micros) << limit.fraction_bits()
}

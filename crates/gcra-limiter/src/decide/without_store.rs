//! Decisions about a request under shared limits while the store cannot be asked.

// ADR 44: What cannot be lent is charged in the store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use arrayvec::ArrayVec;
use gcra_policy::{Limit, MAX_LIMITS, Sharing, WithoutStore};
use gcra_table::{Nanos, Reading};

use crate::answer::LimitUsage;
use crate::decide::claim::SharedQuestion;
use crate::decide::local::LocalCharge;
use crate::lease_client::agenda::LeaseTarget;
use crate::verdict::Reason;

/// The treatment of a request instead of asking the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Instead {
    /// It is blocked.
    Closed,
    /// It is allowed, as all requests still are for `left`.
    Open { left: Duration },
    /// The share of this machine decides.
    Share,
}

impl Instead {
    /// The treatment under a policy after the store has been away for this time.
    pub fn of(Sharing { without_store, at_once }: Sharing, away: Nanos) -> Self {
        match without_store {
            WithoutStore::Closed => Self::Closed,
            WithoutStore::Open { for_ } if Duration::from(away) < for_ => {
                Self::Open { left: for_.saturating_sub(away.into()) }
            }
            // There is no share of such a limit.
            WithoutStore::Share | WithoutStore::Open { .. } if at_once => Self::Closed,
            WithoutStore::Share | WithoutStore::Open { .. } => Self::Share,
        }
    }
}

/// The decision that would be made about a request without the store.
#[derive(Clone, Copy, Debug)]
pub struct ForeseenWithoutStore {
    /// For how long the store has been away.
    pub away: Nanos,
    pub instead: Instead,
    /// How many machines a share is for; 0 if that is not known.
    pub machines: u32,
    /// Why it would be blocked, if it would.
    pub reason: Option<Reason>,
    pub wait: Nanos,
}

impl<'p> SharedQuestion<'p, '_, '_> {
    /// Decides without the store, as the policy says.
    pub(crate) fn without_store(
        &self,
        limits: &'p [Limit],
        now: &mut Reading,
        target: &LeaseTarget,
    ) -> (Option<Reason>, ArrayVec<LimitUsage, MAX_LIMITS>) {
        let since = self.lease_client.away_since(self.table, target).unwrap_or(now.time());
        let away = now.time().saturating_since(since);
        match Instead::of(self.sharing, away) {
            Instead::Closed => return (Some(Reason::Store), ArrayVec::new()),
            Instead::Open { .. } => {
                self.lease_client.counts.open.fetch_add(1, Ordering::Relaxed);
                return (None, ArrayVec::new());
            }
            Instead::Share => {}
        }
        let share = |quota| self.lease_client.share(self.table, target, quota);
        let Self { table, question, message, .. } = *self;
        LocalCharge::new(table, now, self.row(), question, Some(message))
            .by_share(limits, share, true)
    }

    /// Foresees the decision about a request that has to ask the store about this one of the
    /// limits. `None` if the store can be asked. Nothing is charged.
    pub fn foresee_without_store(
        &self,
        limits: &'p [Limit],
        place: usize,
    ) -> Option<ForeseenWithoutStore> {
        let (place, limit) = (0..).zip(limits).nth(place)?;
        let target = self.target(self.claim(place, limit))?;
        if self.lease_client.is_starting(&target) {
            return None;
        }
        let since = self.lease_client.away_since(self.table, &target)?;
        let mut now = self.table.reading();
        let away = now.time().saturating_since(since);
        let instead = Instead::of(self.sharing, away);
        let machines = self.lease_client.hosts(now.time());
        let (reason, wait) = match instead {
            Instead::Closed => (Some(Reason::Store), Nanos::ZERO),
            Instead::Open { .. } => (None, Nanos::ZERO),
            Instead::Share => {
                let share = |quota| self.lease_client.share(self.table, &target, quota);
                let Self { table, question, message, .. } = *self;
                let (row, message) = (self.row(), Some(message));
                let charge = LocalCharge::new(table, &mut now, row, question, message);
                let (reason, said) = charge.by_share(limits, share, false);
                (reason, said.iter().map(|said| said.wait).max().unwrap_or_default())
            }
        };
        Some(ForeseenWithoutStore { away, instead, machines, reason, wait })
    }
}

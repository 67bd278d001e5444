//! [`ChargesUnderWay`]: the charges of a message in the store, those that are made and those on
//! their way.

// ADR 52: A denied request gives back what has not drained.

use std::time::Duration;

use arrayvec::ArrayVec;
use gcra_lease::{Charge as StoreCharge, Charged, Micros, Units};
use gcra_policy::MAX_LIMITS;
use gcra_store::{Charging, NotCharged};
use gcra_table::{Nanos, Table, Time, WallReading};

use crate::lease_client::agenda::LeaseTarget;

/// The most charges of one message: a look at each limit, and a charge.
pub(super) const MOST_STEPS: usize = 2 * MAX_LIMITS;

/// How far a message has got.
#[derive(Debug)]
pub(crate) struct ChargesUnderWay {
    /// When it began, by the wall clock. That says in which windows it is charged.
    pub(super) began: WallReading,
    /// The records of its limits, in the order of the claims.
    pub(super) targets: ArrayVec<LeaseTarget, MAX_LIMITS>,
    /// The steps that the store has replied to, in their order.
    pub(super) done: ArrayVec<Done, MOST_STEPS>,
    /// The charges that it still has to reply to.
    pub(super) under_way: ArrayVec<UnderWay, MAX_LIMITS>,
    /// Whether the message is denied, and what it was charged is being given back.
    pub(super) is_undone: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) place: usize,
    pub(super) charge: StoreCharge,
    pub(super) charged: Charged,
    /// When the reply came, or when it had come to an earlier request.
    pub(super) at: Time,
    pub(super) limit: gcra_lease::SharedLimit,
}

/// A charge on its way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    pub(super) place: usize,
    pub(super) charge: StoreCharge,
    pub(super) charging: Charging,
    pub(super) outcome: Option<Result<Charged, NotCharged>>,
}

impl ChargesUnderWay {
    /// A charge of which nothing is known, if there is one.
    pub(crate) fn under_way(&mut self) -> Option<&mut UnderWay> {
        self.under_way.iter_mut().find(|under_way| under_way.outcome.is_none())
    }

    pub(super) fn is_denied(&self) -> bool {
        self.done.iter().any(|done| !done.charged.allowed)
    }

    /// When the message began, since 1970.
    pub(super) fn began_at(&self) -> Duration {
        Duration::from_nanos(self.began.wall_ns())
    }

    /// Takes what came of a charge.
    pub(super) fn take(
        &mut self,
        table: &Table,
        under_way: &UnderWay,
        charged: Charged,
    ) -> Option<Done> {
        let UnderWay { place, charge, .. } = *under_way;
        let limit = *self.targets.get(place)?.bucket.limit();
        let done = Done { place, charge, charged, at: table.now(), limit };
        self.done.try_push(done).ok()?;
        Some(done)
    }
}

impl UnderWay {
    /// Waits for the reply. If the future is dropped, nothing is lost.
    pub(crate) async fn wait(&mut self) {
        self.outcome = Some(self.charging.outcome().await);
    }

    /// Looks whether the reply has come.
    pub(super) fn look(&mut self) -> Option<Result<Charged, NotCharged>> {
        self.outcome = self.outcome.or_else(|| self.charging.now());
        self.outcome
    }
}

impl Done {
    /// The part of the cells that were owed and lent that is still owed.
    pub(super) fn taken(&self, now: Time) -> Units {
        let passed = Micros(now.saturating_since(self.at).0 / 1_000);
        self.charged.taken.saturating_sub(self.limit.drained_in(passed))
    }

    /// How long a request has to wait for these cells, if it is denied. A count is free again when
    /// its window ends.
    pub(super) fn wait(&self, now: Time, charge: StoreCharge) -> Nanos {
        let denied = Charged { allowed: false, ..self.charged };
        let wait = Nanos::from(denied.wait(&self.limit, &charge));
        wait.saturating_sub(now.saturating_since(self.at))
    }

    /// Whether nothing was to be charged.
    pub(super) fn is_look(&self) -> bool {
        matches!(self.charge, StoreCharge::Take { cells: 0, .. })
    }

    /// Gives back the cells of the request, which another limit denies. A place in a queue is not
    /// given back: others may have taken places behind it. If the request left its place, another
    /// request would go on at the same time as one behind.
    pub(super) fn undo(&self) -> Option<StoreCharge> {
        let Charged { allowed, cells, now, .. } = self.charged;
        match self.charge {
            StoreCharge::Take { max_delay: Micros::ZERO, .. } if allowed && cells > 0 => {
                Some(StoreCharge::Less { cells, taken_at: Some(now) })
            }
            _ => None,
        }
    }

    /// When a request that is allowed may go on, if it has to wait.
    pub(super) fn goes_on(&self) -> Option<Time> {
        let delay = Nanos::from(self.charged.delay(&self.limit));
        (delay > Nanos::ZERO).then(|| self.at.saturating_add(delay))
    }
}

#[cfg(test)]
mod tests {
    use gcra_lease::StoreTime;

    use super::*;

    /// Between a look at a queue and a place in it another request may come, so this happens only
    /// now and then.
    #[test]
    fn a_place_in_a_queue_is_never_given_back() {
        let limit = gcra_lease::SharedLimit::new(Duration::from_secs(1), 5).unwrap();
        let done = |max_delay, allowed| {
            let taken = limit.cells(3);
            let now = StoreTime(7);
            let charged = Charged { allowed, cells: 3, beyond_burst: 0, taken, now };
            let charge = StoreCharge::Take { cells: 3, needs: 0, max_delay };
            Done { place: 0, charge, charged, at: Time(9_000), limit }.undo()
        };
        let back = StoreCharge::Less { cells: 3, taken_at: Some(StoreTime(7)) };
        assert_eq!(done(Micros::ZERO, true), Some(back), "by the clock of the store");
        assert_eq!(done(Micros::ZERO, false), None, "nothing was charged");
        assert_eq!(done(Micros(1), true), None);
    }
}

//! Limits whose requests are charged in the store at once: those of policies with `max_delay`,
//! with `settle`, with `bandwidth`, or with a count in windows. What all machines owe at this
//! moment matters there, so no cells are lent.
//!
//! The limits of a request are charged one after the other. When one of them denies it, those
//! before it get their cells back.

use arrayvec::ArrayVec;
use gcra_lease::{Charge as InStore, Charged, HostTime, Micros, Units};
use gcra_store::{Charging, NotCharged};
use gcra_table::{Nanos, Reading, Time, WallReading};

use crate::answer::{Standing, Standings};
use crate::borrower::Loan;
use crate::decide::in_window;
use crate::decide_shared::{Attempt, Claim, Decided, MustWait, Patience, Shared};
use crate::policy::{Limit, MAX_LIMITS, Policy};
use crate::verdict::{Reason, Verdict};

/// What the store has said about the limits of a message, one after the other.
#[derive(Debug, Default)]
pub(crate) struct AtOnce {
    /// What came of the first steps.
    done: ArrayVec<Done, MOST_STEPS>,
    under_way: Option<UnderWay>,
}

/// The most charges of one message: a look at each limit, and a charge.
const MOST_STEPS: usize = 2 * MAX_LIMITS;

/// What is to be done about a message, one after the other.
type Steps<'p> = ArrayVec<Step<'p>, MOST_STEPS>;

/// A charge that is to be made.
#[derive(Clone, Copy)]
struct Step<'p> {
    claim: Claim<'p>,
    charge: InStore,
}

/// A charge that is made.
#[derive(Clone, Copy, Debug)]
struct Done {
    charge: InStore,
    charged: Charged,
    /// When the reply came, or when it had come to an earlier request.
    at: Time,
    limit: gcra_lease::Limit,
}

/// A charge on its way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    charging: Charging,
    outcome: Option<Result<Charged, NotCharged>>,
}

/// What a limit says after a response has settled it: what was to be done, and what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledInStore<'p> {
    pub(crate) standing: Standing<'p>,
    pub(crate) charge: InStore,
    pub(crate) charged: Charged,
}

/// What each limit of a message says, after its response has settled it.
pub(crate) type AllSettled<'p> = ArrayVec<SettledInStore<'p>, MAX_LIMITS>;

/// The store cannot be used, or has not answered.
#[derive(Clone, Copy, Debug)]
struct NoAnswer;

impl AtOnce {
    /// The charge that is under way, if there is no answer yet.
    pub(super) fn under_way(&mut self) -> Option<&mut UnderWay> {
        self.under_way.as_mut().filter(|under_way| under_way.outcome.is_none())
    }
}

impl UnderWay {
    /// Waits for the reply. If the future is dropped, nothing is lost.
    pub(crate) async fn wait(&mut self) {
        self.outcome = Some(self.charging.outcome().await);
    }

    fn outcome(&mut self) -> Option<Result<Charged, NotCharged>> {
        self.outcome.take().or_else(|| self.charging.now())
    }
}

impl Done {
    /// What of the cells that were owed and lent is owed yet.
    fn taken(&self, now: Time) -> Units {
        let passed = Micros(now.saturating_since(self.at).0 / 1_000);
        self.charged.taken.saturating_sub(self.limit.drained_in(passed))
    }

    /// How long the request has to wait, if it is denied. A count is free again when its window
    /// ends.
    fn wait(&self, now: Time) -> Nanos {
        let wait = Nanos::from(self.charged.wait(&self.limit, &self.charge));
        wait.saturating_sub(now.saturating_since(self.at))
    }

    /// Whether nothing was to be charged.
    fn is_look(&self) -> bool {
        matches!(self.charge, InStore::Take { cells: 0, .. })
    }

    /// When a request that is allowed may go on, if it has to wait.
    fn goes_on(&self) -> Option<Time> {
        let delay = Nanos::from(self.charged.delay(&self.limit));
        (delay > Nanos::ZERO).then(|| self.at.saturating_add(delay))
    }
}

impl<'p> Shared<'p, '_, '_> {
    /// Decides, or goes one step further.
    ///
    /// # Errors
    ///
    /// The request has to wait.
    pub(crate) fn decide_at_once(
        &self,
        limits: &'p [Limit],
        now: &mut Reading,
        attempt: &mut Attempt,
        patience: Patience,
        standings: Option<&mut Standings<'p>>,
    ) -> Result<Decided, MustWait> {
        let claims = self.claims_at_once(limits);
        let policy = self.policy();
        let wall = self.table.wall_reading();
        let denied = |reason| Decided { reason: Some(reason), ..Decided::default() };
        if let Some(claim) = claims.iter().find(|it| self.question.cells > it.quota.burst()) {
            add(standings, policy, [never(claim, wall)]);
            return Ok(denied(Reason::Oversize));
        }
        if let Some((claim, done)) = self.denied_before(&claims, attempt, now.time()) {
            add(standings, policy, [standing(claim, &done, wall)]);
            return Ok(denied(Reason::Limit));
        }
        let steps = self.steps(&claims);
        let outcome = self.charge_each(&steps, attempt, patience)?;
        let done = attempt.at_once.take().unwrap_or_default().done;
        let stats = &self.in_force.each[self.question.policy].stats;
        if let Err(NoAnswer) = outcome {
            let loan = claims.first().and_then(|claim| self.loan(*claim));
            let reason = match loan {
                Some(loan) => self.without_store(limits, now, &loan).0,
                None => Some(Reason::Store),
            };
            // What was charged before stays charged if the request is allowed.
            if reason.is_some() {
                self.undo(&steps, &done);
            }
            let verdict = Verdict::new(self.question.policy, policy.observes, reason);
            stats.count_without_store(verdict.outcome);
            return Ok(Decided { reason, ..Decided::default() });
        }
        // The replies have come after the reading before it.
        *now = self.table.reading();
        let (mut is_denied, mut goes_on) = (false, now.time());
        let mut said = ArrayVec::<_, MAX_LIMITS>::new();
        for claim in &claims {
            let of_claim = |(step, _): &(&Step<'p>, &Done)| step.claim.key == claim.key;
            let Some((_, done)) = steps.iter().zip(&done).rfind(of_claim) else {
                continue;
            };
            let mut standing = standing(claim, done, wall);
            if done.charged.allowed {
                goes_on = done.goes_on().unwrap_or(goes_on).max(goes_on);
            } else {
                is_denied = true;
                self.punish_at_once(claim, &mut standing);
            }
            said.push(standing);
        }
        add(standings, policy, said);
        if is_denied {
            self.undo(&steps, &done);
            return Ok(denied(Reason::Limit));
        }
        let delay = goes_on.saturating_since(now.time());
        if delay > Nanos::ZERO {
            stats.count_delayed();
        }
        // The moment of the first charge, or the one from which on each limit has its cells: that
        // keeps to all limits, because none was charged before it.
        let charges = done.iter().filter(|done| !done.is_look());
        let first = charges.clone().map(|done| done.charged.now.0.saturating_mul(1_000));
        let has_cells = charges.map(|done| done.charged.has_cells_ns(&done.limit));
        let store_ns = first.take(1).chain(has_cells).max();
        Ok(Decided { reason: None, delay, is_charged: true, store_ns })
    }

    /// Corrects what a request was charged, as its response says: `charge` is what is to be done
    /// for a limit, if anything is. `None` if the store has not answered.
    ///
    /// # Errors
    ///
    /// The message has to wait.
    pub(crate) fn settle_at_once(
        &self,
        limits: &'p [Limit],
        charge: impl Fn(&'p Limit, WallReading) -> Option<InStore>,
        attempt: &mut Attempt,
        patience: Patience,
    ) -> Result<Option<AllSettled<'p>>, MustWait> {
        let claims = self.claims_at_once(limits);
        let wall = self.table.wall_reading();
        let step = |claim: Claim<'p>| Some(Step { charge: charge(claim.limit, wall)?, claim });
        let steps: Steps<'p> = claims.into_iter().filter_map(step).collect();
        let outcome = self.charge_each(&steps, attempt, patience)?;
        let all_done = attempt.at_once.take().unwrap_or_default().done;
        let mut said = ArrayVec::new();
        for (Step { claim, .. }, done) in steps.iter().zip(&all_done) {
            let Done { charge, charged, limit, .. } = *done;
            if matches!(charge, InStore::Less { .. }) {
                self.borrower.denials.forget(claim.key, &limit);
            }
            said.push(SettledInStore { standing: standing(claim, done, wall), charge, charged });
        }
        Ok(outcome.is_ok().then_some(said))
    }

    /// The limits with the keys that they count by: first those of which cells can be given back,
    /// and then those under which requests wait; of both, first those that count by the key of the
    /// policy, so that a client that is over its own limit uses up none that it has together with
    /// others.
    fn claims_at_once(&self, limits: &'p [Limit]) -> ArrayVec<Claim<'p>, MAX_LIMITS> {
        let mut claims = self.claims(limits);
        claims.sort_by_key(|claim| {
            let delays = claim.quota.max_delay() > Nanos::ZERO;
            (delays, claim.limit.key.is_some(), claim.limit.id)
        });
        claims
    }

    /// What is to be done about a request: each limit is charged. If requests wait for several of
    /// them, these are looked at before that, because a place in a queue cannot be given back.
    fn steps(&self, claims: &[Claim<'p>]) -> Steps<'p> {
        let charge = |claim: &Claim<'p>| Step { claim: *claim, charge: self.request(claim) };
        let charges = claims.iter().map(charge);
        let look = |Step { claim, charge }: Step<'p>| match charge {
            InStore::Take { cells, needs, max_delay } if max_delay > Micros::ZERO => {
                let needs = cells.max(needs);
                Some(Step { claim, charge: InStore::Take { cells: 0, needs, max_delay } })
            }
            _ => None,
        };
        let looks: ArrayVec<_, MAX_LIMITS> = charges.clone().filter_map(look).collect();
        let looks = looks.into_iter().skip(1);
        looks.chain(charges).collect()
    }

    /// What a request is charged under a limit.
    fn request(&self, claim: &Claim<'p>) -> InStore {
        // One that its response will charge needs a cell, whatever it reserves.
        let needs = u32::from(self.policy().settle.is_some());
        let max_delay = Micros(claim.quota.max_delay().0 / 1_000);
        InStore::Take { cells: self.question.cells, needs, max_delay }
    }

    /// The limit that has denied such a request not long ago, if one has, as the store said then.
    fn denied_before<'c>(
        &self,
        claims: &'c [Claim<'p>],
        attempt: &Attempt,
        now: Time,
    ) -> Option<(&'c Claim<'p>, Done)> {
        // It is looked for once, before the first charge. A penalty is charged for each request.
        if attempt.at_once.is_some() || self.policy().penalty.is_some() {
            return None;
        }
        claims.iter().find_map(|claim| {
            let (charge, limit) = (self.request(claim), *self.loan(*claim)?.bucket.limit());
            let denials = &self.borrower.denials;
            let denial = denials.of(claim.key, &limit, &charge, HostTime::from(now))?;
            let passed = HostTime::from(now).saturating_since(denial.at);
            let at = now.saturating_sub(Nanos::from(passed));
            let done = Done { charge, charged: denial.charged, at, limit };
            (limit.window().is_some() || done.wait(now) > Nanos::ZERO).then_some((claim, done))
        })
    }

    /// Makes one charge after the other, until one is denied.
    fn charge_each(
        &self,
        steps: &[Step<'p>],
        attempt: &mut Attempt,
        patience: Patience,
    ) -> Result<Result<(), NoAnswer>, MustWait> {
        loop {
            let done = &attempt.at_once.get_or_insert_default().done;
            let is_denied = done.last().is_some_and(|done| !done.charged.allowed);
            let next = steps.get(done.len()).filter(|_| !is_denied);
            let Some(Step { claim, charge }) = next else { return Ok(Ok(())) };
            let charge = *charge;
            let Some(loan) = self.loan(*claim) else { return Ok(Err(NoAnswer)) };
            let Ok(charged) = self.charge(claim, &loan, charge, attempt, patience)? else {
                return Ok(Err(NoAnswer));
            };
            let (at, limit) = (self.table.now(), *loan.bucket.limit());
            if !charged.allowed && self.policy().penalty.is_none() {
                let denials = &self.borrower.denials;
                denials.note(claim.key, &limit, &charge, charged, HostTime::from(at));
            }
            let done = Done { charge, charged, at, limit };
            attempt.at_once.get_or_insert_default().done.push(done);
        }
    }

    /// Charges one limit, or takes what has come of that.
    fn charge(
        &self,
        claim: &Claim<'p>,
        loan: &Loan,
        charge: InStore,
        attempt: &mut Attempt,
        patience: Patience,
    ) -> Result<Result<Charged, NoAnswer>, MustWait> {
        let at_once = attempt.at_once.get_or_insert_default();
        if let Some(mut under_way) = at_once.under_way.take() {
            return match under_way.outcome() {
                Some(outcome) => Ok(outcome.map_err(|_| NoAnswer)),
                // Perhaps the store makes it all the same.
                None if patience == Patience::Over => Ok(Err(NoAnswer)),
                None => {
                    at_once.under_way = Some(under_way);
                    Err(MustWait)
                }
            };
        }
        let is_starting = self.borrower.is_starting(loan);
        let is_away = self.borrower.is_away(self.table, loan) && !is_starting;
        if is_away || patience == Patience::Over {
            return Ok(Err(NoAnswer));
        }
        if attempt.waits.is_none() {
            attempt.waits = Some(self.borrower.join(claim.key, self.question.cells));
        }
        if patience == Patience::Asks {
            match self.borrower.charge(self.table, loan, charge) {
                Ok(charging) => at_once.under_way = Some(UnderWay { charging, outcome: None }),
                Err(_) if is_starting => {}
                Err(_) => return Ok(Err(NoAnswer)),
            }
        }
        Err(MustWait)
    }

    /// Gives back what was charged for a request that is denied all the same.
    fn undo(&self, steps: &[Step<'p>], done: &[Done]) {
        for (Step { claim, charge }, Done { charged, .. }) in steps.iter().zip(done) {
            let InStore::Take { cells: 1.., max_delay, .. } = *charge else { continue };
            // Others may have taken places behind this one. If it were left, another request would
            // go on at the same time as one of them.
            if !charged.allowed || max_delay > Micros::ZERO {
                continue;
            }
            if let Some(loan) = self.loan(*claim) {
                let less = InStore::Less { cells: charged.cells };
                // If it cannot be sent, the limit is too strict by these cells.
                let _ = self.borrower.charge(self.table, &loan, less);
            }
        }
    }

    /// Charges the penalty of a request that is denied by a limit, as for limits of this machine.
    fn punish_at_once(&self, claim: &Claim<'p>, standing: &mut Standing<'p>) {
        let policy = self.policy();
        let Claim { limit, quota, .. } = *claim;
        let has_none = policy.observes || limit.key.is_some() || limit.calendar.is_some();
        let Some(penalty) = policy.penalty.filter(|_| !has_none) else { return };
        let cost = quota.emission_interval().saturating_mul(penalty.cells.into());
        let owed = standing.owed.saturating_add(cost);
        // Beyond the ceiling nothing more is charged.
        let Some(loan) = self.loan(*claim).filter(|_| owed <= quota.most_owed()) else { return };
        let more = InStore::More { cells: penalty.cells };
        if self.borrower.charge(self.table, &loan, more).is_ok() {
            standing.owed = owed;
            standing.wait = standing.wait.saturating_add(cost);
        }
    }
}

fn add<'p>(
    standings: Option<&mut Standings<'p>>,
    policy: &Policy,
    said: impl IntoIterator<Item = Standing<'p>>,
) {
    if let Some(standings) = standings {
        said.into_iter().for_each(|standing| standings.add(standing, policy));
    }
}

/// What a limit says about a request that costs more than it ever allows. The store is not asked
/// what the client owes, so nothing is left for such a request.
fn never<'p>(claim: &Claim<'p>, wall: WallReading) -> Standing<'p> {
    let Claim { limit, quota, .. } = *claim;
    match &limit.calendar {
        Some(calendar) => in_window(limit, quota.burst(), calendar.ends_in(wall), true),
        None => {
            let (owed, wait) = (quota.drain_time(), quota.drain_time());
            Standing { limit, quota, owed, wait, window_ends: Nanos::ZERO }
        }
    }
}

/// What a limit says after a charge.
fn standing<'p>(claim: &Claim<'p>, done: &Done, wall: WallReading) -> Standing<'p> {
    let Claim { limit, quota, .. } = *claim;
    let (now, is_denied) = (wall.time(), !done.charged.allowed);
    let taken = done.taken(now);
    if let Some(calendar) = &limit.calendar {
        let used = u32::try_from(taken.0).unwrap_or(u32::MAX);
        return in_window(limit, used, calendar.ends_in(wall), is_denied);
    }
    let lent = &done.limit;
    let owed = Nanos::from(lent.time_to_drain(taken));
    // A cell is rounded up to units, and these to microseconds. No cell must get lost by that in
    // the answer.
    let left = lent.whole_cells(lent.cells(lent.burst()).saturating_sub(taken));
    let used = quota.emission_interval().saturating_mul((quota.burst() - left).into());
    let owed = if left > 0 { owed.min(used) } else { owed };
    let wait = if is_denied { done.wait(now) } else { Nanos::ZERO };
    Standing { limit, quota, owed, wait, window_ends: Nanos::ZERO }
}

//! Limits whose requests are charged in the store at once: those of policies with `max_delay`,
//! with `settle`, with `bandwidth`, or with a count in windows. The debt over all machines at this
//! moment matters there, so no cells are lent.
//!
//! The limits of a request are charged one after the other. When a limit denies the request, the
//! limits before it get their cells back. All charges are in the windows in which the request
//! began, also if a window ends while the request waits.

// ADR 44: What cannot be lent is charged in the store.

use arrayvec::ArrayVec;
use gcra_lease::{Charge as StoreCharge, Charged, HostTime, Micros};
use gcra_policy::{Limit, MAX_LIMITS, Policy};
use gcra_table::{Nanos, Reading, Time, WallReading};

use crate::answer::{BucketStanding, LimitUsage, LimitUsages};
use crate::decide::charges_under_way::{ChargesUnderWay, Done, MOST_STEPS, UnderWay};
use crate::decide::claim::{Claim, SharedQuestion};
use crate::decide::shared_progress::{MustWait, Patience, SharedDecision, SharedProgress};
use crate::lease_client::agenda::LeaseTarget;
use crate::reservations::Reservation;
use crate::verdict::{Reason, Verdict};

/// A charge that is to be made to the limit at this place among the claims.
#[derive(Clone, Copy)]
struct Step {
    place: usize,
    charge: StoreCharge,
}

/// The steps for a message, one after the other.
type Steps = ArrayVec<Step, MOST_STEPS>;

/// A limit after a response has settled it: its standing, the charge, and the outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledInStore {
    /// `None` for a bucket from before a change.
    pub usage: Option<LimitUsage>,
    pub charge: StoreCharge,
    pub charged: Charged,
}

/// Each limit of a message after its response has settled it.
pub(crate) type AllSettled = ArrayVec<SettledInStore, MAX_LIMITS>;

/// A charge of nothing, which is always allowed: what is owed now?
pub(crate) const LOOK: StoreCharge =
    StoreCharge::Take { cells: 0, needs: 0, max_delay: Micros::ZERO };

/// Why a message does not go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stop {
    /// It has to wait for the store.
    Wait,
    /// The store cannot be used, or has not answered.
    NoAnswer,
}

impl<'p> SharedQuestion<'p, '_, '_> {
    /// Decides, or goes one step further.
    ///
    /// # Errors
    ///
    /// The request has to wait.
    pub(crate) fn decide_at_once(
        &self,
        limits: &'p [Limit],
        now: &mut Reading,
        so_far: &mut SharedProgress,
        patience: Patience,
        usages: Option<&mut LimitUsages>,
    ) -> Result<SharedDecision, MustWait> {
        let claims = self.claims_at_once(limits);
        let policy = self.policy();
        so_far.sharing = Some(self.sharing);
        let denied = |reason| SharedDecision { reason: Some(reason), ..SharedDecision::default() };
        let is_new = so_far.at_once.is_none();
        let Some(at_once) = self.begin(&claims, so_far) else { return Ok(denied(Reason::Store)) };
        let is_oversize = claims.iter().any(|claim| self.is_too_large(claim));
        let oversize = is_oversize.then_some(Reason::Oversize);
        // A penalty is charged for each request.
        if is_new
            && oversize < Some(Reason::Limit)
            && policy.penalty.is_none()
            && let Some(done) = self.denied_before(&claims, at_once, now.time())
        {
            let said = self.usage(&claims[done.place], &done, at_once.began, now.time());
            add(usages, policy, [said]);
            so_far.at_once = None;
            return Ok(denied(Reason::Limit));
        }
        let steps = if is_oversize { self.looks(&claims) } else { self.steps(&claims) };
        let outcome = self.charge_in_turn(&claims, &steps, so_far, patience);
        if outcome == Err(Stop::Wait) {
            return Err(MustWait);
        }
        if outcome.is_ok() {
            self.undo_and_wait(&claims, so_far, patience)?;
        }
        let Some(at_once) = so_far.at_once.take() else { return Ok(denied(Reason::Store)) };
        let stats = &self.row().stats;
        if outcome.is_err() {
            let unanswered = steps.get(at_once.done.len()).map_or(0, |step| step.place);
            let reason = oversize.or_else(|| match at_once.targets.get(unanswered) {
                Some(target) => self.without_store(limits, now, target).0,
                None => Some(Reason::Store),
            });
            // Also if it is allowed: nothing is reserved then.
            drop(self.undo(&claims, &at_once));
            let verdict = Verdict::new(self.question.policy, policy.observes, reason);
            stats.seldom.without_store.add(verdict.outcome.index(), 1);
            return Ok(SharedDecision { reason, ..SharedDecision::default() });
        }
        // The replies have come after the reading before it.
        *now = self.table.reading();
        let decision = after_charges(&at_once, oversize, self.question.cells, now.time());
        add(usages, policy, self.said_after(&claims, &at_once, now.time()));
        if decision.delay > Nanos::ZERO {
            stats.seldom.delayed.add(0, 1);
        }
        Ok(decision)
    }

    /// Whether the message costs more than a limit ever allows.
    fn is_too_large(&self, claim: &Claim<'_>) -> bool {
        self.question.cells > claim.quota.burst()
    }

    /// The standing of each limit after the last charge. Where one denies the message, its penalty
    /// is charged.
    fn said_after(
        &self,
        claims: &[Claim<'p>],
        at_once: &ChargesUnderWay,
        now: Time,
    ) -> ArrayVec<LimitUsage, MAX_LIMITS> {
        let is_denied = at_once.is_denied();
        // A request that is denied waits from its denial on. Later it may be free already.
        let moment = match at_once.done.last() {
            Some(done) if is_denied => done.at,
            _ => now,
        };
        let mut said = ArrayVec::new();
        for (place, claim) in claims.iter().enumerate() {
            let last = at_once.done.iter().rfind(|done| done.place == place);
            let Some(mut done) = last.copied() else { continue };
            // The store has said meanwhile how much was given back.
            let mut undone = at_once.under_way.iter().filter(|it| it.place == place);
            if let Some(Ok(undone)) = undone.find_map(|it| it.outcome) {
                (done.charged.taken, done.at) = (undone.taken, moment);
            }
            let mut usage = self.usage(claim, &done, at_once.began, moment);
            if self.is_too_large(claim) {
                usage.wait = match claim.limit.calendar() {
                    None => claim.quota.drain_time(),
                    Some(_) => usage.window_ends,
                };
            }
            if !done.charged.allowed || self.is_too_large(claim) {
                self.punish_at_once(claim, at_once.targets.get(place), &mut usage);
            }
            said.push(usage);
        }
        said
    }

    /// Corrects the charges of a request, as its response says. `charge` is the correction for a
    /// limit whose record has this mark, if there is one. `is_charged` is whether cells are given
    /// back in the record with this mark, which may be a record from before a change. All limits
    /// are settled at the same time. `None` if the store has not answered about any limit.
    ///
    /// # Errors
    ///
    /// The message has to wait.
    pub(crate) fn settle_at_once(
        &self,
        limits: &'p [Limit],
        charge: impl Fn(u32) -> Option<StoreCharge>,
        is_charged: impl Fn(u32) -> bool,
        so_far: &mut SharedProgress,
        patience: Patience,
    ) -> Result<Option<AllSettled>, MustWait> {
        let mut claims = self.claims_at_once(limits);
        let Some(at_once) = self.begin(&claims, so_far) else { return Ok(None) };
        let (began, own) = (at_once.began, claims.len());
        for place in 0..own {
            let claim = claims[place];
            if !at_once.targets.get(place).is_some_and(|target| is_charged(target.bucket.mark()))
                && let Some(target) = self
                    .former_targets(claim, began.second())
                    .into_iter()
                    .find(|target| is_charged(target.bucket.mark()))
                && claims.try_push(claim).is_ok()
                && at_once.targets.len() < claims.len()
            {
                at_once.targets.push(target);
            }
        }
        let step = |(place, target): (usize, &LeaseTarget)| {
            Some(Step { place, charge: charge(target.bucket.mark())? })
        };
        // First what is given back, so that the others say what is left after that.
        let steps: Steps = at_once.targets.iter().enumerate().rev().filter_map(step).collect();
        self.charge_all(&claims, &steps, so_far, patience)?;
        let all_done = so_far.at_once.take().map(|at_once| at_once.done).unwrap_or_default();
        let mut said = ArrayVec::new();
        for done in &all_done {
            let Some(claim) = claims.get(done.place) else { continue };
            let Done { charge, charged, limit, .. } = *done;
            if matches!(charge, StoreCharge::Less { .. }) {
                self.lease_client.denials.forget(claim.key, &limit);
            }
            // Nobody waits for a response.
            let usage = self.usage(claim, done, began, self.table.now());
            let usage = LimitUsage { wait: Nanos::ZERO, ..usage };
            let usage = (done.place < own).then_some(usage);
            said.push(SettledInStore { usage, charge, charged });
        }
        let is_answered = steps.is_empty() || !said.is_empty();
        Ok(is_answered.then_some(said))
    }

    /// Begins, if nothing has begun. `None` if the store cannot compute a limit, which the
    /// check of the configuration refuses.
    fn begin<'a>(
        &self,
        claims: &[Claim<'p>],
        so_far: &'a mut SharedProgress,
    ) -> Option<&'a mut ChargesUnderWay> {
        if so_far.at_once.is_none() {
            let began = self.table.wall_reading();
            let target = |claim: &Claim<'p>| self.target_at(*claim, began.second());
            let targets = claims.iter().map(target).collect::<Option<_>>()?;
            let (done, under_way) = (ArrayVec::new(), ArrayVec::new());
            so_far.at_once = Some(Box::new(ChargesUnderWay {
                began,
                targets,
                done,
                under_way,
                is_undone: false,
            }));
        }
        so_far.at_once.as_deref_mut()
    }

    /// The limits with the keys that they count by. First come the limits whose cells can be given
    /// back, and then those under which requests wait. In both groups, those that count by the key
    /// of the policy come first. So a client that is over its own limit uses up no limit that it
    /// has together with others.
    fn claims_at_once(&self, limits: &'p [Limit]) -> ArrayVec<Claim<'p>, MAX_LIMITS> {
        let mut claims = self.claims(limits);
        claims.sort_by_key(|claim| {
            let delays = claim.quota.max_delay() > Nanos::ZERO;
            (delays, claim.limit.key.is_some(), claim.limit.id)
        });
        claims
    }

    /// The steps for a request: each limit is charged. If requests wait for several of them, these
    /// are looked at before that, because a place in a queue cannot be given back.
    fn steps(&self, claims: &[Claim<'p>]) -> Steps {
        let charges = claims.iter().enumerate();
        let charges = charges.map(|(place, claim)| Step { place, charge: self.request(claim) });
        let look = |Step { place, charge }| match charge {
            StoreCharge::Take { cells, needs, max_delay } if max_delay > Micros::ZERO => {
                let needs = cells.max(needs);
                Some(Step { place, charge: StoreCharge::Take { cells: 0, needs, max_delay } })
            }
            _ => None,
        };
        // The first one is charged right after.
        let looks = charges.clone().filter_map(look).skip(1);
        looks.chain(charges).collect()
    }

    /// The steps for a request that costs more than a limit ever allows: each limit says what the
    /// client owes.
    fn looks(&self, claims: &[Claim<'p>]) -> Steps {
        (0..claims.len()).map(|place| Step { place, charge: LOOK }).collect()
    }

    /// The charge for a request under a limit.
    fn request(&self, claim: &Claim<'p>) -> StoreCharge {
        // One that its response will charge needs a cell, whatever it reserves.
        let needs = u32::from(self.policy().settle().is_some());
        let max_delay = Micros(claim.quota.max_delay().0 / 1_000);
        StoreCharge::Take { cells: self.question.cells, needs, max_delay }
    }

    /// The reply about a limit that has denied such a request not long ago, if one has.
    fn denied_before(
        &self,
        claims: &[Claim<'p>],
        at_once: &ChargesUnderWay,
        now: Time,
    ) -> Option<Done> {
        let of_each = claims.iter().zip(&at_once.targets).enumerate();
        of_each.into_iter().find_map(|(place, (claim, target))| {
            let (charge, limit) = (self.request(claim), *target.bucket.limit());
            let denials = &self.lease_client.denials;
            let denial = denials.of(claim.key, &limit, &charge, HostTime::from(now))?;
            let passed = HostTime::from(now).saturating_since(denial.at);
            let at = now.saturating_sub(Nanos::from(passed));
            let done = Done { place, charge, charged: denial.charged, at, limit };
            let is_denied = limit.window().is_some() || done.wait(now, charge) > Nanos::ZERO;
            is_denied.then_some(done)
        })
    }

    /// Makes one charge after the other, until one is denied.
    fn charge_in_turn(
        &self,
        claims: &[Claim<'p>],
        steps: &[Step],
        so_far: &mut SharedProgress,
        patience: Patience,
    ) -> Result<(), Stop> {
        loop {
            let at_once = so_far.at_once.as_deref_mut().ok_or(Stop::NoAnswer)?;
            let is_denied = at_once.done.last().is_some_and(|done| !done.charged.allowed);
            let next = steps.get(at_once.done.len()).filter(|_| !is_denied);
            let Some(step) = next else { return Ok(()) };
            if at_once.under_way.is_empty() {
                self.send(claims, *step, so_far, patience)?;
            }
            let at_once = so_far.at_once.as_deref_mut().ok_or(Stop::NoAnswer)?;
            let mut under_way = at_once.under_way.pop().ok_or(Stop::Wait)?;
            match under_way.look() {
                Some(outcome) => {
                    let charged = outcome.map_err(|_| Stop::NoAnswer)?;
                    let done = at_once.take(self.table, &under_way, charged);
                    self.note_denial(claims, &done.ok_or(Stop::NoAnswer)?);
                }
                // Perhaps the store makes it all the same.
                None if patience == Patience::MustAnswer => return Err(Stop::NoAnswer),
                None => {
                    at_once.under_way.push(under_way);
                    return Err(Stop::Wait);
                }
            }
        }
    }

    /// Makes all charges at the same time. Those that are not answered are left out of `done`.
    fn charge_all(
        &self,
        claims: &[Claim<'p>],
        steps: &[Step],
        so_far: &mut SharedProgress,
        patience: Patience,
    ) -> Result<(), MustWait> {
        let is_sent = so_far.at_once.as_ref().is_some_and(|it| !it.under_way.is_empty());
        if !is_sent {
            for step in steps {
                // A step that cannot be sent stays as it is.
                if self.send(claims, *step, so_far, patience) == Err(Stop::Wait) {
                    return Err(MustWait);
                }
            }
        }
        let Some(at_once) = so_far.at_once.as_deref_mut() else { return Ok(()) };
        if at_once.under_way.iter_mut().any(|under_way| under_way.look().is_none())
            && patience != Patience::MustAnswer
        {
            return Err(MustWait);
        }
        for mut under_way in std::mem::take(&mut at_once.under_way) {
            if let Some(Ok(charged)) = under_way.look() {
                let _ = at_once.take(self.table, &under_way, charged);
            }
        }
        Ok(())
    }

    /// Sends a charge, if the message may wait for the reply.
    fn send(
        &self,
        claims: &[Claim<'p>],
        Step { place, charge }: Step,
        so_far: &mut SharedProgress,
        patience: Patience,
    ) -> Result<(), Stop> {
        let at_once = so_far.at_once.as_deref_mut().ok_or(Stop::NoAnswer)?;
        let target = at_once.targets.get(place).ok_or(Stop::NoAnswer)?;
        let claim = claims.get(place).ok_or(Stop::NoAnswer)?;
        let is_away = self.lease_client.is_away(self.table, target);
        let is_starting = is_away && self.lease_client.is_starting(target);
        if patience == Patience::MustAnswer || (is_away && !is_starting) {
            return Err(Stop::NoAnswer);
        }
        if so_far.waits.is_none() {
            so_far.waits = Some(self.lease_client.join(claim.key, self.question.cells));
        }
        if is_starting || patience == Patience::MayWait {
            return Err(Stop::Wait);
        }
        let charging = self.lease_client.charge(self.table, target, charge);
        let charging = charging.map_err(|_| Stop::NoAnswer)?;
        let under_way = UnderWay { place, charge, charging, outcome: None };
        at_once.under_way.try_push(under_way).map_err(|_| Stop::NoAnswer)
    }

    /// Remembers that a charge was denied. A penalty is charged for each request, so that each of
    /// them asks.
    fn note_denial(&self, claims: &[Claim<'p>], done: &Done) {
        let Done { charge, charged, at, limit, .. } = done;
        if let Some(claim) = claims.get(done.place)
            && !charged.allowed
            && self.policy().penalty.is_none()
        {
            self.lease_client.denials.note(
                claim.key,
                limit,
                charge,
                *charged,
                HostTime::from(*at),
            );
        }
    }

    /// After one limit has denied the request: gives back what others have charged, and waits
    /// until the store has done so. The client may ask another machine as soon as it has its
    /// answer.
    fn undo_and_wait(
        &self,
        claims: &[Claim<'p>],
        so_far: &mut SharedProgress,
        patience: Patience,
    ) -> Result<(), MustWait> {
        let Some(at_once) = so_far.at_once.as_deref_mut() else { return Ok(()) };
        if at_once.done.last().is_none_or(|done| done.charged.allowed) {
            return Ok(());
        }
        if !at_once.is_undone {
            at_once.is_undone = true;
            at_once.under_way = self.undo(claims, at_once);
        }
        let waits = at_once.under_way.iter_mut().any(|under_way| under_way.look().is_none());
        if waits && patience != Patience::MustAnswer { Err(MustWait) } else { Ok(()) }
    }

    /// Gives back what was charged for a request that is denied all the same.
    fn undo(
        &self,
        claims: &[Claim<'p>],
        at_once: &ChargesUnderWay,
    ) -> ArrayVec<UnderWay, MAX_LIMITS> {
        let mut all = ArrayVec::new();
        for done in &at_once.done {
            let (place, undo) = (done.place, done.undo());
            let there = claims.get(place).zip(at_once.targets.get(place));
            if let Some((charge, (claim, target))) = undo.zip(there) {
                // If it cannot be sent, the limit is too strict by these cells.
                if let Ok(charging) = self.lease_client.charge(self.table, target, charge) {
                    let _ = all.try_push(UnderWay { place, charge, charging, outcome: None });
                }
                self.lease_client.denials.forget(claim.key, &done.limit);
            }
        }
        all
    }

    /// Charges the penalty of a request that is denied by a limit, as for limits of this machine.
    fn punish_at_once(
        &self,
        claim: &Claim<'p>,
        target: Option<&LeaseTarget>,
        usage: &mut LimitUsage,
    ) {
        let Claim { limit, quota, .. } = *claim;
        let Some(penalty) = self.policy().penalty_under(limit) else { return };
        let after = penalty.after(usage.owed, quota);
        let Some((owed, target)) = after.zip(target) else { return };
        let more = StoreCharge::More { cells: penalty.cells };
        if self.lease_client.charge(self.table, target, more).is_ok() {
            usage.wait = usage.wait.saturating_add(owed.saturating_sub(usage.owed));
            usage.owed = owed;
        }
    }

    /// The standing of a limit after a charge, at the moment `now`. `began` says in which window
    /// that was.
    fn usage(&self, claim: &Claim<'p>, done: &Done, began: WallReading, now: Time) -> LimitUsage {
        let Claim { limit, place, quota, .. } = *claim;
        let taken = done.taken(now);
        // A request that costs nothing is allowed, and learns how long one of a cell would wait.
        let (is_denied, asked) = match done.charge {
            StoreCharge::Take { cells: 0, needs: 0, .. } => {
                let max_delay = Micros(quota.max_delay().0 / 1_000);
                let one = StoreCharge::Take { cells: 1, needs: 0, max_delay };
                let most = done.limit.cells(done.limit.burst());
                let most = most.saturating_add(one.drains_meanwhile(&done.limit));
                (taken.saturating_add(done.limit.cells(1)) > most, one)
            }
            charge => (!done.charged.allowed, charge),
        };
        if let Some(calendar) = limit.calendar() {
            let used = u32::try_from(taken.0).unwrap_or(u32::MAX);
            let ends = began.time_at(calendar.bounds(began).end);
            // It may have ended while the request waited for the store.
            let least = Nanos(is_denied.into());
            let ends_in = ends.saturating_since(now).max(least);
            return BucketStanding::in_window(quota, used, ends_in, is_denied).of(place, quota);
        }
        let lent = &done.limit;
        let owed = Nanos::from(lent.time_to_drain(taken));
        // A cell is rounded up to units, and these to microseconds. No cell must get lost by that
        // in the answer.
        let left = lent.whole_cells(lent.cells(lent.burst()).saturating_sub(taken));
        let used = quota.emission_interval().saturating_mul((quota.burst() - left).into());
        let owed = if left > 0 { owed.min(used) } else { owed };
        let wait = if is_denied { done.wait(now, asked) } else { Nanos::ZERO };
        BucketStanding::of_rate(owed, wait).of(place, quota)
    }
}

/// The decision at `now`, after the last charge of a message that costs so many cells and is
/// `denied` for that already, or is not.
fn after_charges(
    at_once: &ChargesUnderWay,
    denied: Option<Reason>,
    cells: u32,
    now: Time,
) -> SharedDecision {
    let reason = denied.max(at_once.is_denied().then_some(Reason::Limit));
    if reason.is_some() {
        return SharedDecision { reason, ..SharedDecision::default() };
    }
    let goes_on = at_once.done.iter().filter_map(Done::goes_on).max();
    let delay = goes_on.map_or(Nanos::ZERO, |goes_on| goes_on.saturating_since(now));
    // The moment of the first charge, or the one from which on each limit has its cells: that
    // keeps to all limits, because none was charged before it.
    let charges = at_once.done.iter().filter(|done| !done.is_look());
    let first = charges.clone().map(|done| done.charged.now.0.saturating_mul(1_000));
    let has_cells = charges.map(|done| done.charged.has_cells_ns(&done.limit));
    let store_ns = first.take(1).chain(has_cells).max();
    let marks = at_once.targets.iter().map(|target| target.bucket.mark()).collect();
    let reserved = Some(Reservation { cells, at: at_once.began_at(), marks, client: None });
    SharedDecision { reason, delay, reserved, store_ns }
}

fn add(
    usages: Option<&mut LimitUsages>,
    policy: &Policy,
    said: impl IntoIterator<Item = LimitUsage>,
) {
    if let Some(usages) = usages {
        said.into_iter().for_each(|usage| usages.add(&usage, policy));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gcra_lease::{Charged, StoreTime, Units};
    use gcra_table::{Slots, Table};

    use super::*;

    /// A charge of one cell under 1/s with a burst of 5, at 7 ms by both clocks: so many cells are
    /// owed after it.
    fn charged(place: usize, owed: u32, allowed: bool) -> Done {
        let limit = gcra_lease::SharedLimit::new(Duration::from_secs(1), 5).unwrap();
        let (taken, now) = (limit.cells(owed), StoreTime(7_000));
        let charged = Charged { allowed, cells: 1, beyond_burst: 0, taken, now };
        let max_delay = Micros::from_millis(9_000);
        let charge = StoreCharge::Take { cells: 1, needs: 0, max_delay };
        Done { place, charge, charged, at: Time(7_000_000), limit }
    }

    fn after(done: &[Done], denied: Option<Reason>, now: Time) -> SharedDecision {
        let (table, _clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
        let at_once = ChargesUnderWay {
            began: table.wall_reading(),
            targets: ArrayVec::new(),
            done: done.iter().copied().collect(),
            under_way: ArrayVec::new(),
            is_undone: false,
        };
        after_charges(&at_once, denied, 1, now)
    }

    #[test]
    fn a_request_goes_on_when_it_has_its_cells_under_each_limit() {
        let done = [charged(0, 2, true), charged(1, 8, true), charged(2, 6, true)];
        let decision = after(&done, None, Time(7_000_000));
        assert_eq!((decision.reason, decision.delay), (None, Nanos::from_secs(3)));
        assert_eq!(decision.store_ns, Some(3_007_000_000));
        assert_eq!(decision.reserved.map(|reserved| reserved.cells), Some(1));
        let later = after(&done, None, Time(2_007_000_000));
        assert_eq!(later.delay, Nanos::from_secs(1), "the replies took two seconds");
        assert_eq!(after(&done[..1], None, Time(7_000_000)).delay, Nanos::ZERO);
        assert_eq!(after(&done[..1], None, Time(7_000_000)).store_ns, Some(7_000_000));
    }

    #[test]
    fn what_is_denied_reserves_nothing_and_does_not_wait() {
        let done = [charged(0, 8, true), charged(1, 5, false)];
        let oversize = Some(Reason::Oversize);
        for (before, reason) in [(None, Some(Reason::Limit)), (oversize, oversize)] {
            let decision = after(&done, before, Time(7_000_000));
            assert_eq!((decision.reason, decision.delay), (reason, Nanos::ZERO));
            assert!(decision.reserved.is_none() && decision.store_ns.is_none());
        }
        assert_eq!(after(&done[..1], oversize, Time(0)).reason, oversize);
    }

    #[test]
    fn a_look_says_nothing_about_when_a_request_goes_on() {
        let mut look = charged(0, 0, true);
        (look.charge, look.charged.taken) = (LOOK, Units(0));
        look.charged.now = StoreTime(99_000);
        let decision = after(&[look, charged(0, 1, true)], None, Time(7_000_000));
        assert_eq!(decision.store_ns, Some(7_000_000));
    }
}

//! From a question to a verdict: charges the buckets of a key.

// ADR 14: Several limits are looked at before one is charged.
// ADR 31: The hot path moves values in registers.

use std::cell::OnceCell;
use std::slice;

use arrayvec::ArrayVec;
use gcra_policy::calendar::Calendar;
use gcra_policy::{Limit, LimitNumbers, MAX_LIMITS, Rule, SaltInForce};
use gcra_table::{
    Admission, BucketPlace, Decision, KeyHash, Nanos, Quota, Reading, Table, Time, Window,
};
use spop_agent::Message;

use crate::active_policies::{ActivePolicies, ActivePolicy, SingleCharge};
use crate::answer::{BucketStanding, LimitUsage, LimitUsages};
use crate::earlier_policies::LimitedClient;
use crate::limit_bucket::{LimitBucket, lacks_a_key};
use crate::question::Question;
use crate::unsettled::unsettled;
use crate::verdict::{Reason, Verdict};

/// In how many windows one after another cells are counted that find each of them over. More than
/// two happen only where the process is stopped for as long as a window.
pub(crate) const MOST_WINDOWS: usize = 4;

/// Decides about one message, and charges its cells to the buckets of its key.
///
/// `now` is the reading of the table's clock that a round shares; the table brings it forward when
/// it had to read the clock again. The standing of each limit is added to `usage`, where an
/// answer needs it. `goes_on` becomes the moment at which the message may go on by the limits, for
/// the audit. `message` is called only while changes may matter.
#[inline(always)]
pub fn decide<'p, 'm>(
    table: &Table,
    now: &mut Reading,
    row: &'p ActivePolicy,
    question: Question,
    usages: Option<&mut LimitUsages>,
    goes_on: Option<&mut Time>,
    message: impl FnOnce() -> Option<Message<'m>>,
) -> Verdict {
    let mut at = None;
    let (reason, delay) = match row.policy.rule(question.rule) {
        Rule::Deny => (Some(Reason::Denied), Nanos::ZERO),
        Rule::Unlimited => (None, Nanos::ZERO),
        Rule::Limits(limits) => {
            let is_read = row.reads_messages || row.has_changed;
            let message = if is_read { message() } else { None };
            let mut charge = LocalCharge::new(table, now, row, question, message.as_ref());
            let decided = charge.all(limits, usages);
            at = charge.goes_on;
            decided
        }
    };
    if let Some(goes_on) = goes_on {
        *goes_on = at.unwrap_or(now.time().saturating_add(delay));
    }
    let verdict = Verdict::new(question.policy, row.policy.observes, reason);
    verdict.after(delay).delaying(row.delays)
}

/// As [`decide`], where a policy has only this limit, and this is the place of its bucket.
#[inline(always)]
pub(crate) fn decide_single(
    table: &Table,
    now: &mut Reading,
    single: &SingleCharge,
    place: &BucketPlace<'_>,
    question: Question,
) -> Verdict {
    let reason =
        reason_of(&table.charge_at(place, &single.quota, question.cells, now, Time::ZERO));
    Verdict::new(question.policy, single.observes, reason)
}

/// A limit, as it would decide about a message now.
#[derive(Clone, Copy, Debug)]
pub struct Preview<'p> {
    pub limit: &'p Limit,
    /// The debt of the client, and its wait, if it sends nothing more.
    pub usage: LimitUsage,
    /// The wait in the answer to the message, which has the penalty in it.
    pub wait_if_asked: Nanos,
    /// The debt of the key's bucket; `None` if there is no bucket. The client owes more than its
    /// bucket where a debt is carried over from earlier policies.
    pub bucket: Option<Nanos>,
    /// When the window ends, in seconds after 1970, if the limit counts in windows.
    pub window_end: Option<i64>,
}

/// The verdict of [`decide`] if it were called now, and that of each limit. Charges nothing.
pub fn preview<'p>(
    table: &Table,
    in_force: &'p ActivePolicies,
    question: Question,
    message: &Message<'_>,
) -> (Verdict, ArrayVec<Preview<'p>, MAX_LIMITS>) {
    let row = in_force.row(question.policy);
    let rule = row.policy.rule(question.rule);
    let mut now = table.reading();
    let at = now.time();
    let charge = LocalCharge::new(table, &mut now, row, question, Some(message));
    let mut reason = (*rule == Rule::Deny).then_some(Reason::Denied);
    let mut delay = Nanos::ZERO;
    let mut preview = ArrayVec::new();
    // They are charged before it is decided.
    let overdue = unsettled(table, in_force, question).map_or(0, |unsettled| unsettled.overdue);
    for (place, limit) in (0..).zip(rule.limits()).take(MAX_LIMITS) {
        // A command may know a client by the policy's key alone.
        if lacks_a_key(slice::from_ref(limit), message) {
            continue;
        }
        let space = OnceCell::new();
        let claim = &charge.claim(limit, &space);
        let (found, denied) = match overdue {
            0 => charge.look(claim),
            overdue => charge.look_after(claim, overdue),
        };
        let usage = found.of(question.place(place), *claim.quota);
        reason = reason.max(denied);
        delay = delay.max(charge.delay_of(*claim.quota, charge.owed_with_cells(&usage)));
        let punished = denied.and_then(|_| charge.owed_when_punished(limit, &usage));
        let if_asked = punished.map_or(found, |owed| charge.ask(claim, owed).0);
        let (bucket, window_end) = match claim.limit.calendar() {
            None => (table.look_up(claim.key, *claim.quota, at), None),
            Some(calendar) => {
                let at = table.wall_reading();
                let used = table.counted_in(claim.key, calendar.window(at));
                (used.map(|_| usage.owed), Some(calendar.bounds(at).end))
            }
        };
        let bucket = if overdue > 0 { Some(usage.owed) } else { bucket };
        let wait_if_asked = if_asked.wait;
        preview.push(Preview { limit, usage, wait_if_asked, bucket, window_end });
    }
    (Verdict::new(question.policy, row.policy.observes, reason).after(delay), preview)
}

/// What each limit said.
type Said = ArrayVec<BucketStanding, MAX_LIMITS>;

pub struct LocalCharge<'t, 'p, 'm> {
    table: &'t Table,
    now: &'t mut Reading,
    row: &'p ActivePolicy,
    question: Question,
    /// Needed for limits with a key or numbers of their own, and to find what a key owed under
    /// earlier policies.
    message: Option<&'t Message<'m>>,
    /// When the message may go on by all limits, if several were charged, each by a reading of its
    /// own.
    goes_on: Option<Time>,
}

/// Space for the quotas of limits whose numbers each message says, and for shares.
type Quotas = [OnceCell<Quota>; MAX_LIMITS];

/// A limit that a message has to satisfy, and the key that it counts by.
#[derive(Clone, Copy, Debug)]
struct LocalClaim<'p> {
    limit: &'p Limit,
    /// That of the limit for this message, or a share of it. By reference: copies of it took a
    /// quarter of a decision by two limits.
    quota: &'p Quota,
    key: KeyHash,
    /// The TAT that the key has at least, by its debts under earlier numbers.
    least_tat: Time,
}

/// The charge for a claim, so that it can be taken back.
#[derive(Clone, Copy, Debug)]
enum Undo {
    Bucket(Decision),
    Window(Window),
}

impl<'t, 'p, 'm> LocalCharge<'t, 'p, 'm> {
    pub fn new(
        table: &'t Table,
        now: &'t mut Reading,
        row: &'p ActivePolicy,
        question: Question,
        message: Option<&'t Message<'m>>,
    ) -> Self {
        Self { table, now, row, question, message, goes_on: None }
    }

    /// Decides by a share of each limit: `share` names the share of a quota, and the TAT that each
    /// key has at least. Without a share, the message is blocked. `charges` is whether the shares
    /// are charged; if not, this only says what would be decided.
    pub(crate) fn by_share(
        mut self,
        limits: &'p [Limit],
        share: impl Fn(Quota) -> Option<(Quota, Time)>,
        charges: bool,
    ) -> (Option<Reason>, ArrayVec<LimitUsage, MAX_LIMITS>) {
        let quotas = Quotas::default();
        let claim = |(limit, space): (&'p Limit, _)| {
            let key = self.question.key;
            let LimitBucket { key, quota: whole } =
                LimitBucket::of(self.table, limit, key, self.message);
            let (quota, least_tat) = share(whole)?;
            let quota = OnceCell::get_or_init(space, || quota);
            Some((LocalClaim { limit, quota, key, least_tat }, whole))
        };
        let claims: Option<(ArrayVec<_, MAX_LIMITS>, ArrayVec<_, MAX_LIMITS>)> =
            limits.iter().zip(&quotas).map(claim).collect();
        let Some((claims, whole)) = claims else { return (Some(Reason::Store), ArrayVec::new()) };
        let mut said = ArrayVec::new();
        let reason = match charges {
            true => self.charge_claims(&claims, &mut said),
            false => self.look_at(&claims, &mut said),
        };
        let usage = |(place, ((claim, whole), said)): (u32, ((&LocalClaim<'_>, Quota), _))| {
            of_share(said, *claim.quota, whole).of(self.question.place(place), whole)
        };
        (reason, (0..).zip(claims.iter().zip(whole).zip(said)).map(usage).collect())
    }

    /// The claim on a limit.
    #[inline(always)]
    fn claim<'q>(&self, limit: &'q Limit, space: &'q OnceCell<Quota>) -> LocalClaim<'q> {
        let (key, quota, least_tat) = match limit {
            Limit {
                numbers: LimitNumbers::Fixed(quota),
                key: None,
                salt: SaltInForce(Some(salt)),
                ..
            } if self.message.is_none() => (self.question.key.under(*salt), quota, Time::ZERO),
            _ => self.claim_by_message(limit, space),
        };
        LocalClaim { limit, quota, key, least_tat }
    }

    #[inline(never)]
    fn claim_by_message<'q>(
        &self,
        limit: &Limit,
        space: &'q OnceCell<Quota>,
    ) -> (KeyHash, &'q Quota, Time) {
        let Self { table, row, message, .. } = *self;
        let current = LimitBucket::of(table, limit, self.question.key, message);
        let least_tat = message.map_or(Time::ZERO, |message| {
            let asked = LimitedClient { table, policy: &row.policy, limit, current, message };
            row.least_tat(asked, self.now.time())
        });
        (current.key, space.get_or_init(|| current.quota), least_tat)
    }

    /// Charges all limits, or none. Returns why the message is denied, if it is, and how long its
    /// request has to wait if it is not.
    #[inline(never)]
    fn all(
        &mut self,
        limits: &'p [Limit],
        usages: Option<&mut LimitUsages>,
    ) -> (Option<Reason>, Nanos) {
        let (quotas, mut claims) = (Quotas::default(), ArrayVec::<_, MAX_LIMITS>::new());
        for (limit, space) in limits.iter().zip(&quotas) {
            claims.push(self.claim(limit, space));
        }
        let mut said = ArrayVec::new();
        let reason = self.charge_claims(&claims, &mut said);
        let mut delay = Nanos::ZERO;
        if self.row.may_delay && reason.is_none() {
            // It goes on when it conforms to each limit.
            let both = claims.iter().zip(&said);
            let delays = both.map(|(claim, said)| self.delay_of(*claim.quota, said.owed));
            delay = delays.max().unwrap_or_default();
        }
        if delay > Nanos::ZERO {
            self.row.stats.seldom.delayed.add(0, 1);
        }
        if let Some(usages) = usages {
            for (place, (claim, said)) in (0..).zip(claims.iter().zip(&said)) {
                let usage = said.of(self.question.place(place), *claim.quota);
                usages.add(&usage, &self.row.policy);
            }
        }
        (reason, delay)
    }

    /// How long a message has to wait that a limit has allowed, if the client owes this much with
    /// it. A message that costs nothing never waits.
    fn delay_of(&self, quota: Quota, owed: Nanos) -> Nanos {
        // Without a longest delay nothing that is allowed owes more than a burst.
        if self.question.cells == 0 { Nanos::ZERO } else { quota.delay(owed) }
    }

    /// The debt of a client with this standing, with the cells of the message added.
    fn owed_with_cells(&self, usage: &LimitUsage) -> Nanos {
        let interval = usage.quota.emission_interval();
        usage.owed.saturating_add(interval.saturating_mul(self.question.cells.into()))
    }

    /// Charges the buckets of all claims, or none. Adds the standing of each to `said`.
    #[inline(always)]
    fn charge_claims(&mut self, claims: &[LocalClaim<'_>], said: &mut Said) -> Option<Reason> {
        match claims {
            [claim] if self.question.cells > 0 => {
                let (mut usage, reason, _) = self.charge(claim);
                if reason.is_some()
                    && let Some(punished) = self.punish(claim)
                {
                    usage = punished;
                }
                said.push(usage);
                reason
            }
            claims => self.charge_all(claims, said),
        }
    }

    /// Charges one bucket, unless it denies the cells.
    #[inline(always)]
    fn charge(&mut self, claim: &LocalClaim<'_>) -> (BucketStanding, Option<Reason>, Undo) {
        if let Some(calendar) = claim.limit.calendar() {
            return self.count(claim, calendar);
        }
        let LocalClaim { quota, key, least_tat, .. } = *claim;
        let (place, cells) = (self.table.place(key, quota), self.question.cells);
        let decision = self.table.charge_at(&place, quota, cells, self.now, least_tat);
        let usage = standing_of(*quota, &decision);
        (usage, reason_of(&decision), Undo::Bucket(decision))
    }

    /// Counts the cells in the window of this moment, unless they are too many for it.
    #[inline(never)]
    fn count(
        &mut self,
        claim: &LocalClaim<'_>,
        calendar: &Calendar,
    ) -> (BucketStanding, Option<Reason>, Undo) {
        let (LocalClaim { key, quota: &quota, .. }, cells) = (*claim, self.question.cells);
        let mut at = self.table.wall_reading();
        for _ in 0..MOST_WINDOWS {
            let window = calendar.window(at);
            // An error means that it has ended meanwhile.
            if let Ok(tally) = self.table.count(key, window, quota.burst(), cells, self.now) {
                let reason = match tally.is_allowed() {
                    true => None,
                    false if cells > quota.burst() => Some(Reason::Oversize),
                    false => Some(Reason::Limit),
                };
                let ends_in = calendar.ends_in(at);
                let is_denied = reason.is_some();
                let usage = BucketStanding::in_window(quota, tally.used(), ends_in, is_denied);
                return (usage, reason, Undo::Window(window));
            }
            at = self.table.wall_reading();
        }
        // This process is stopped again and again.
        let (all, ends_in) = (quota.burst(), calendar.ends_in(at));
        let usage = BucketStanding::in_window(quota, all, ends_in, true);
        (usage, Some(Reason::Limit), Undo::Window(calendar.window(at)))
    }

    /// Charges several buckets: all, or none.
    ///
    /// Looks at all buckets first. So a client that one limit denies does not keep writing to the
    /// buckets of other limits, and learns how long to wait for all. When another request was
    /// faster between the look and the charge, the cells charged already are given back.
    #[inline(always)]
    fn charge_all(&mut self, claims: &[LocalClaim<'_>], said: &mut Said) -> Option<Reason> {
        let mut reason = None;
        for claim in claims {
            let denied = match claim.limit.calendar() {
                // In place: in one for both, a standing would go over the stack.
                None => {
                    let (owed, wait, denied) = self.look_at_rate(claim);
                    said.push(BucketStanding::of_rate(owed, wait));
                    denied
                }
                Some(calendar) => {
                    let (usage, denied) = self.look_in_window(claim, calendar);
                    said.push(usage);
                    denied
                }
            };
            if denied.is_some() {
                if let Some(punished) = self.punish(claim)
                    && let Some(usage) = said.last_mut()
                {
                    *usage = punished;
                }
                reason = reason.max(denied);
            }
        }
        if reason.is_some() || self.question.cells == 0 {
            return reason;
        }
        let mut all_charged = ArrayVec::<Undo, MAX_LIMITS>::new();
        let mut goes_on = None::<Time>;
        for (place, claim) in claims.iter().enumerate() {
            let (usage, denied, charged) = self.charge(claim);
            said[place] = usage;
            if denied.is_none() {
                all_charged.push(charged);
                // A charge can read the clock again. So the moment is that of the first charge, or
                // the one from which on each limit has its cells: it keeps to all limits exactly,
                // because no limit was charged before it.
                let at = self.now.time();
                let has_cells = at.saturating_add(usage.owed);
                let has_cells = has_cells.saturating_sub(claim.quota.drain_time());
                goes_on = Some(goes_on.unwrap_or(at).max(has_cells));
                continue;
            }
            if let Some(punished) = self.punish(claim) {
                said[place] = punished;
            }
            for (place, (claim, charged)) in claims.iter().zip(&all_charged).enumerate() {
                let LocalClaim { quota: &quota, key, .. } = *claim;
                let cells = self.question.cells;
                // If it is too late to give the cells back, the limit is too strict for a moment,
                // and never too generous.
                let _ = match charged {
                    Undo::Bucket(decision) => self.table.refund(key, quota, cells, decision),
                    Undo::Window(window) => self.table.uncount(key, *window, cells, self.now),
                };
                said[place] = self.look(claim).0;
            }
            return denied;
        }
        self.goes_on = goes_on;
        None
    }

    /// The outcome of charges of these claims, if they were made now.
    fn look_at(&self, claims: &[LocalClaim<'_>], said: &mut Said) -> Option<Reason> {
        let look = |claim| {
            let (usage, denied) = self.look(claim);
            said.push(usage);
            denied
        };
        claims.iter().map(look).max().flatten()
    }

    /// The outcome of a charge, if it were made now.
    #[inline(always)]
    fn look(&self, claim: &LocalClaim<'_>) -> (BucketStanding, Option<Reason>) {
        if let Some(calendar) = claim.limit.calendar() {
            return self.look_in_window(claim, calendar);
        }
        let (owed, wait, reason) = self.look_at_rate(claim);
        (BucketStanding::of_rate(owed, wait), reason)
    }

    /// The same for a limit with a rate: what is owed, how long to wait, and why it denies.
    #[inline(always)]
    fn look_at_rate(&self, claim: &LocalClaim<'_>) -> (Nanos, Nanos, Option<Reason>) {
        let LocalClaim { quota, key, least_tat, .. } = *claim;
        let place = self.table.place(key, quota);
        let tat = self.table.tat_at(&place, quota).max(least_tat);
        let mut owed = tat.saturating_since(self.now.time());
        if owed > quota.most_owed().max(least_tat.saturating_since(self.now.time())) {
            // The slot is damaged, or was charged at a later reading of the clock. The charge will
            // find out.
            owed = quota.burst_tolerance();
        }
        let (wait, reason) = self.ask_rate(quota, owed);
        (owed, wait, reason)
    }

    /// As [`look`](Self::look), if this many cells were charged before, as far as they fit.
    fn look_after(&self, claim: &LocalClaim<'_>, cells: u32) -> (BucketStanding, Option<Reason>) {
        let LocalClaim { limit, quota: &quota, key, least_tat, .. } = *claim;
        if let Some(calendar) = limit.calendar() {
            let window = calendar.window(self.table.wall_reading());
            let used = self.table.counted_in(key, window).unwrap_or(0);
            return self.ask_in_window(claim, calendar, used.saturating_add(cells));
        }
        let tat = self.table.tat(key, quota).max(least_tat);
        let owed = tat.saturating_since(self.now.time());
        let fits = cells.min(quota.up_to_cap().remaining(owed));
        let more = quota.emission_interval().saturating_mul(fits.into());
        self.ask(claim, owed.saturating_add(more))
    }

    /// The outcome of a count in the window of this moment, if it were made now.
    fn look_in_window(
        &self,
        claim: &LocalClaim<'_>,
        calendar: &Calendar,
    ) -> (BucketStanding, Option<Reason>) {
        let window = calendar.window(self.table.wall_reading());
        self.ask_in_window(claim, calendar, self.table.counted_in(claim.key, window).unwrap_or(0))
    }

    /// The same if so many cells are counted already.
    fn ask_in_window(
        &self,
        claim: &LocalClaim<'_>,
        calendar: &Calendar,
        used: u32,
    ) -> (BucketStanding, Option<Reason>) {
        let (cells, most) = (self.question.cells, claim.quota.burst());
        let is_denied = u64::from(used) + u64::from(cells.max(1)) > most.into();
        let reason = match cells > most {
            true => Some(Reason::Oversize),
            false => (is_denied && self.can_block()).then_some(Reason::Limit),
        };
        let ends_in = calendar.ends_in(self.table.wall_reading());
        (BucketStanding::in_window(*claim.quota, used, ends_in, is_denied), reason)
    }

    /// Whether a limit can block the message: if it costs something, or if its response will. That
    /// needs a cell, whatever the request reserves.
    fn can_block(&self) -> bool {
        self.question.cells > 0 || self.row.policy.settle().is_some()
    }

    /// The standing of a limit for the cells of a key that owes this much, and why it denies them.
    ///
    /// No cells are always allowed, unless the response charges. The wait is the one for a single
    /// cell then, which is what a request that costs something has to wait.
    fn ask(&self, claim: &LocalClaim<'_>, owed: Nanos) -> (BucketStanding, Option<Reason>) {
        let (wait, reason) = self.ask_rate(claim.quota, owed);
        (BucketStanding::of_rate(owed, wait), reason)
    }

    /// How long to wait, and why the cells are denied.
    #[inline(always)]
    fn ask_rate(&self, quota: &Quota, owed: Nanos) -> (Nanos, Option<Reason>) {
        let cells = self.question.cells;
        // A debt is how far the TAT is ahead of now. So at the moment 0 the TAT is the debt.
        let (now, tat) = (Time::ZERO, Time::ZERO.saturating_add(owed));
        match quota.admit(tat, now, cells.max(1)) {
            Admission::Conforming { .. } => (Nanos::ZERO, None),
            Admission::Early { wait } => (wait, self.can_block().then_some(Reason::Limit)),
            Admission::Oversize => (quota.drain_time(), Some(Reason::Oversize)),
        }
    }

    /// Charges the penalty to a client that asks while it is denied, up to the ceiling. Returns
    /// the standing after it: a client that waits for the time in its answer must pass.
    #[inline]
    fn punish(&mut self, claim: &LocalClaim<'_>) -> Option<BucketStanding> {
        let penalty = self.row.policy.penalty_under(claim.limit)?;
        self.charge_penalty(claim, penalty.cells)
    }

    /// Beyond the ceiling nothing is charged, and the debt stays as it is.
    #[cold]
    fn charge_penalty(&mut self, claim: &LocalClaim<'_>, cells: u32) -> Option<BucketStanding> {
        let LocalClaim { quota, key, least_tat, .. } = *claim;
        let quota = quota.up_to_cap();
        let decision = self.table.charge_owing(key, quota, cells, self.now, least_tat);
        decision.is_allowed().then(|| self.ask(claim, decision.owed()).0)
    }

    /// The debt of a client with this standing after its penalty, if one would be charged.
    fn owed_when_punished(&self, limit: &Limit, usage: &LimitUsage) -> Option<Nanos> {
        let penalty = self.row.policy.penalty_under(limit)?;
        let (now, tat) = (Time::ZERO, Time::ZERO.saturating_add(usage.owed));
        match usage.quota.up_to_cap().admit(tat, now, penalty.cells) {
            Admission::Conforming { tat } => Some(tat.saturating_since(now)),
            Admission::Early { .. } | Admission::Oversize => None,
        }
    }
}

/// The standing of a share of a limit, as that of the limit, whose quota is `whole`: as many cells
/// are left as the share has.
fn of_share(usage: BucketStanding, share: Quota, whole: Quota) -> BucketStanding {
    let BucketStanding { owed, wait, window_ends } = usage;
    let left = if wait > Nanos::ZERO { 0 } else { share.remaining(owed) };
    let used = whole.burst().saturating_sub(left);
    let used = Nanos(whole.emission_interval().0.saturating_mul(used.into()));
    BucketStanding { owed: owed.max(used), wait, window_ends }
}

/// Why a bucket denied the cells, if it did.
#[inline(always)]
pub(crate) fn reason_of(decision: &Decision) -> Option<Reason> {
    match (decision.is_allowed(), decision.retry_after()) {
        (true, _) => None,
        (false, Some(_)) => Some(Reason::Limit),
        (false, None) => Some(Reason::Oversize),
    }
}

/// The standing of a limit after a charge.
#[inline(always)]
fn standing_of(quota: Quota, decision: &Decision) -> BucketStanding {
    // A cost above the burst is never allowed. One burst later it still is not.
    let never = if decision.is_allowed() { Nanos::ZERO } else { quota.drain_time() };
    let wait = decision.retry_after().unwrap_or(never);
    BucketStanding::of_rate(decision.owed(), wait)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use gcra_table::Slots;

    use super::*;
    use crate::stats::Stats;
    use crate::written_message::WrittenMessage;
    use gcra_policy::flags;
    use gcra_policy::key::NamedValue;

    #[test]
    fn as_many_cells_are_left_of_a_limit_as_its_share_has() {
        let (table, _clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
        let policies = flags::policies_of_rate("10/s".parse().unwrap(), Some(20)).unwrap();
        let in_force = ActivePolicies::at_start(policies, &Stats::new(NonZeroUsize::MIN), &table);
        let arg = NamedValue { name: "ip".to_owned(), value: "192.0.2.1".parse().unwrap() };
        let message = WrittenMessage::new(b"", &[arg]).unwrap();
        let asked = message.message().unwrap();
        let question = Question::new(&in_force, &table, &asked).ok().unwrap();
        let row = in_force.row(0);
        let limits = row.policy.rule(question.rule).limits();
        // That of one of three machines.
        let share = Quota::new(Nanos(limits[0].quota(None).emission_interval().0 * 3), 6).unwrap();
        let left = |charges| {
            let (table, share) = (&table, |_: Quota| Some((share, Time::ZERO)));
            let mut now = table.reading();
            let (reason, said) = LocalCharge::new(table, &mut now, row, question, Some(&asked))
                .by_share(limits, share, charges);
            (reason, said[0].remaining())
        };
        for remaining in (0..6).rev() {
            assert_eq!(left(true), (None, remaining));
        }
        assert_eq!(left(true), (Some(Reason::Limit), 0));
        assert_eq!(left(false), (Some(Reason::Limit), 0));
    }
}

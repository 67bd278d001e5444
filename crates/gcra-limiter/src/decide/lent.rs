//! From a question to a verdict, under limits that this host shares with others: spends cells that
//! the store has lent, or says that the request has to wait for some.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{iter, mem};

use arrayvec::ArrayVec;
use gcra_lease::{HostTime, Step};
use gcra_policy::sharing::{Sharing, WithoutStore};
use gcra_policy::sharing::{counted, lent, most_carried_over};
use gcra_policy::{Limit, MAX_LIMITS, Policy};
use gcra_store::{Bucket, Names};
use gcra_table::{KeyHash, LeaseKey, LeaseNeed, Leases, Nanos, Quota, Reading, Table};
use gcra_text::duration::nanoseconds;
use spop_agent::Message;

use crate::answer::{Standing, Standings};
use crate::borrower::loan::Loan;
use crate::borrower::waiting::Waits;
use crate::borrower::{Asking, Borrower};
use crate::decide::at_once::AtOnce;
use crate::decide::at_once::UnderWay;
use crate::decide::local::Charge;
use crate::earlier_policies::{Asked, FormerBucket};
use crate::limit_bucket::{LimitBucket, own_key_bytes};
use crate::message_key::key_bytes;
use crate::policies_in_force::InForce;
use crate::question::Question;
use crate::reservations::Reservation;
use crate::verdict::{Reason, Verdict};

/// Another host may have missed the store that much earlier, and use its share by now.
const OPEN_IS_OVER_EARLIER: Nanos = Nanos::from_millis(1_500);

/// The most buckets from before changes that are looked for.
const MOST_FORMER: usize = 16;

/// What is needed to decide about a message under shared limits.
#[derive(Clone, Copy)]
pub struct Shared<'p, 't, 'm> {
    pub borrower: &'t Borrower,
    pub leases: &'t Leases,
    pub table: &'t Table,
    pub in_force: &'p InForce,
    pub sharing: Sharing,
    pub question: Question,
    pub message: &'m Message<'m>,
}

/// A limit that a message has to satisfy, and what it counts by.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'p> {
    pub(crate) limit: &'p Limit,
    /// The numbers of the limit for this message.
    pub(crate) quota: Quota,
    /// The key in the table of this machine.
    pub(crate) local: KeyHash,
    pub(crate) key: LeaseKey,
}

/// How far a request has got under the limits of one policy.
#[derive(Debug, Default)]
pub struct Attempt {
    /// The limits that cells were asked for.
    asked: [bool; MAX_LIMITS],
    /// What it waits for.
    pub(crate) waits: Option<Waits>,
    /// What it waited for before that, and the cells that were free in the store then.
    free: ArrayVec<(LeaseKey, u32), MAX_LIMITS>,
    /// What the store has said so far, if it is asked about each request.
    pub(crate) at_once: Option<Box<AtOnce>>,
    /// How the policy is shared for which it waits.
    pub(crate) sharing: Option<Sharing>,
}

/// Whether a request may wait for the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Patience {
    /// It may, and it asks when it waits.
    WillAsk,
    /// It waits, and asks itself.
    Asks,
    /// It has waited for as long as it may.
    Over,
}

/// What was decided about a message.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    /// Why it is denied, if it is.
    pub reason: Option<Reason>,
    /// How long the request has to wait, if it is allowed.
    pub delay: Nanos,
    /// What was charged, if it was.
    pub reserved: Option<Reservation>,
    /// When the request may go on by the clock of the store, in ns since 1970, if the store has
    /// decided about it.
    pub(crate) store_ns: Option<u64>,
}

/// The request has to wait for the store. What for is in its [`Attempt`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MustWait;

/// What is done with a request instead of asking the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Instead {
    /// It is blocked.
    Closed,
    /// It is allowed, as all requests are for this time yet.
    Open { left: Duration },
    /// The share of this machine decides.
    Share,
}

impl Instead {
    /// What a policy does after the store has been away for this time.
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

/// What would be decided about a request without the store.
#[derive(Clone, Copy, Debug)]
pub struct ForeseenWithoutStore {
    /// For how long the store has been away.
    pub away: Nanos,
    pub instead: Instead,
    /// How many machines a share is for; 0 if that is not known.
    pub machines: u32,
    /// Why it would be blocked, if it would.
    pub reason: Option<Reason>,
    /// How long the client has to wait.
    pub wait: Nanos,
}

impl Attempt {
    /// What the request waits for, if it does.
    pub(crate) fn waits(&self) -> Option<&Waits> {
        self.waits.as_ref()
    }

    /// The cells of a key that were free in the store when it answered last, as far as the request
    /// has waited for that.
    fn free_of(&self, key: LeaseKey) -> u32 {
        match self.waits.as_ref().filter(|waits| waits.key() == key) {
            Some(waits) => waits.free(),
            None => self.free.iter().rfind(|(of, _)| *of == key).map_or(0, |(_, free)| *free),
        }
    }

    /// How the policy is shared for which the request waits.
    pub(crate) fn sharing(&self) -> Option<Sharing> {
        self.sharing
    }

    /// The charge that it waits for, if it does.
    pub(crate) fn under_way(&mut self) -> Option<&mut UnderWay> {
        self.at_once.as_deref_mut().and_then(AtOnce::under_way)
    }
}

/// After cells of a key were spent: asks for more if what is left will not last, and reports what
/// was spent if that cannot wait.
#[cold]
pub(crate) fn ask_ahead(
    borrower: &Borrower,
    table: &Table,
    in_force: &InForce,
    question: Question,
    message: &Message<'_>,
    key: LeaseKey,
) {
    let leases = borrower.leases();
    let policy = &in_force.policies.list[question.policy];
    let (Some(sharing), [limit]) = (policy.shared, policy.rule(question.rule).limits()) else {
        return;
    };
    let leases = &leases;
    let shared = Shared { borrower, leases, table, in_force, sharing, question, message };
    borrower.spent(table, key, || shared.loan(shared.claim(limit)));
}

impl<'p> Shared<'p, '_, '_> {
    /// Decides, or goes one step further.
    ///
    /// # Errors
    ///
    /// The request has to wait.
    pub fn decide(
        &self,
        limits: &'p [Limit],
        now: &mut Reading,
        attempt: &mut Attempt,
        patience: Patience,
        standings: Option<&mut Standings<'p>>,
    ) -> Result<Option<Reason>, MustWait> {
        let claims = self.claims(limits);
        let cells = self.question.cells;
        let needs: ArrayVec<_, MAX_LIMITS> = claims
            .iter()
            .map(|claim| LeaseNeed { key: claim.key, cells, burst: claim.quota.burst() })
            .collect();
        let at = HostTime::from(now.time());
        let step = self.leases.decide(at, &needs, self.borrower.patience());
        let (reason, standings_of) = match step {
            Step::Allow => {
                self.spent(&claims);
                (None, self.standings(&claims, at, attempt, None))
            }
            Step::TooLarge { limit } => {
                let never = claims.get(limit).map(|claim| claim.quota.drain_time());
                let denied = never.map(|never| (limit, never));
                (Some(Reason::Oversize), self.standings(&claims, at, attempt, denied))
            }
            Step::Block { limit, until } => {
                let wait = Nanos::from(until.saturating_since(at));
                let wait = self.punish(&claims, limit, wait);
                (Some(Reason::Limit), self.standings(&claims, at, attempt, Some((limit, wait))))
            }
            Step::Wait { limit, .. } | Step::Ask { limit, .. } => {
                let claim = claims.get(limit);
                let Some((claim, loan)) =
                    claim.and_then(|claim| Some((claim, self.loan(*claim)?)))
                else {
                    return Ok(Some(Reason::Store));
                };
                if self.may_wait(&loan, attempt, patience) {
                    attempt.sharing = Some(self.sharing);
                    if attempt.waits.as_ref().is_none_or(|waits| waits.key() != claim.key) {
                        let waits = self.borrower.join(claim.key, cells);
                        if let Some(before) = attempt.waits.replace(waits) {
                            // When there is no space, it has waited for one of them twice.
                            let _ = attempt.free.try_push((before.key(), before.free()));
                        }
                    }
                    let asks = patience == Patience::Asks;
                    let asking = match step {
                        Step::Ask { least, .. } if asks => {
                            if let Some(asked) = attempt.asked.get_mut(limit) {
                                *asked = true;
                            }
                            if self.in_force.each[self.question.policy].has_changed {
                                self.give_former_back(*claim);
                            }
                            self.borrower.ask(self.table, loan.clone(), least)
                        }
                        _ => Asking::UnderWay,
                    };
                    if asking == Asking::UnderWay {
                        return Err(MustWait);
                    }
                }
                let decided = self.without_store(limits, now, &loan);
                let Question { policy, .. } = self.question;
                let verdict = Verdict::new(policy, self.policy().observes, decided.0);
                self.in_force.each[policy].stats.count_without_store(verdict.outcome);
                decided
            }
        };
        if reason.is_some() {
            self.give_back(&claims, attempt);
        }
        if let Some(standings) = standings {
            let policy = self.policy();
            standings_of.into_iter().for_each(|standing| standings.add(standing, policy));
        }
        Ok(reason)
    }

    /// Whether the store can be waited for.
    fn may_wait(&self, loan: &Loan, attempt: &Attempt, patience: Patience) -> bool {
        let is_away = self.borrower.is_away(self.table, loan);
        patience != Patience::Over
            && (!is_away || self.borrower.is_starting(loan))
            && !attempt.waits.as_ref().is_some_and(Waits::is_away)
    }

    pub(crate) fn policy(&self) -> &'p Policy {
        &self.in_force.policies.list[self.question.policy]
    }

    /// The limits with the keys that they count by, in an order that is the same on all hosts.
    pub(crate) fn claims(&self, limits: &'p [Limit]) -> ArrayVec<Claim<'p>, MAX_LIMITS> {
        let claim = |limit: &'p Limit| self.claim(limit);
        let mut claims: ArrayVec<_, MAX_LIMITS> =
            limits.iter().take(MAX_LIMITS).map(claim).collect();
        claims.sort_by_key(|claim| claim.limit.id);
        claims
    }

    fn claim(&self, limit: &'p Limit) -> Claim<'p> {
        let bucket = LimitBucket::of(self.table, limit, self.question.key, Some(self.message));
        let LimitBucket { key: local, quota } = bucket;
        Claim { limit, quota, local, key: bucket.lease_key(limit) }
    }

    /// What the borrower has to know about a key.
    fn loan(&self, claim: Claim<'_>) -> Option<Loan> {
        self.loan_at(claim, self.table.wall_reading().second())
    }

    /// The same in the windows of this second after 1970.
    pub(crate) fn loan_at(&self, claim: Claim<'_>, second: i64) -> Option<Loan> {
        let Claim { limit, quota, key, .. } = claim;
        let Self { table, in_force, question, message, .. } = *self;
        let names = &self.borrower.names;
        let client = Client { in_force, table, question, message };
        let bucket = client.bucket(names, limit, quota, second)?;
        let lent_limit = *bucket.limit();
        let shares_after = match self.sharing.without_store {
            _ if self.sharing.at_once => None,
            WithoutStore::Share => Some(Nanos::ZERO),
            WithoutStore::Closed => None,
            WithoutStore::Open { for_ } => {
                Some(Nanos(nanoseconds(for_)).saturating_sub(OPEN_IS_OVER_EARLIER))
            }
        };
        Some(Loan { key, limit: lent_limit, bucket, quota, shares_after })
    }

    /// The client of a claim, for whom former buckets are looked for.
    pub(crate) fn asked<'a>(&'a self, claim: Claim<'a>) -> Asked<'a, 'a> {
        let Claim { limit, quota, local, .. } = claim;
        let current = LimitBucket { key: local, quota };
        let Self { table, question, message, .. } = *self;
        Asked { table, rule: question.rule, limit, current, message }
    }

    /// What the borrower has to know about the buckets that the client of a claim had before a
    /// change.
    pub(crate) fn former_loans(
        &self,
        claim: Claim<'_>,
        second: i64,
    ) -> ArrayVec<Loan, MOST_FORMER> {
        let Self { in_force, question, message, .. } = *self;
        let (Claim { limit, local, .. }, asked) = (claim, self.asked(claim));
        let buckets = in_force.earlier.buckets(question.policy, asked);
        let Some(loan) = self.loan_at(claim, second).filter(|_| !buckets.is_empty()) else {
            return ArrayVec::new();
        };
        let own = (local, record_key(self.policy(), limit, message));
        let former = in_force.earlier.limits(question.policy, asked);
        let former = former.map(|(old, limit, key)| (key, record_key(old, limit, message)));
        let keys: Vec<_> = iter::once(own).chain(former).collect();
        let loan = |FormerBucket { key, quota, .. }: FormerBucket| {
            let (_, bytes) = keys.iter().find(|(known, _)| *known == key)?;
            let limit_in_store = lent(quota).ok()?;
            let name = limit.record_name.clone();
            let bucket = self.borrower.names.bucket(name, bytes, limit_in_store);
            let key = LimitBucket { key, quota }.lease_key(limit);
            Some(Loan { key, limit: limit_in_store, bucket, quota, ..loan.clone() })
        };
        buckets.into_iter().filter_map(loan).take(MOST_FORMER).collect()
    }

    /// Gives back the cells that this machine holds under numbers or keys from before a change.
    /// They would count as spent.
    #[cold]
    fn give_former_back(&self, claim: Claim<'_>) {
        let now = HostTime::from(self.table.now());
        for loan in self.former_loans(claim, self.table.wall_reading().second()) {
            let holding = self.leases.holding(loan.key, now);
            if holding.held(now) > 0 || holding.unreported() > 0 {
                self.borrower.give_back(self.table, loan, u32::MAX);
            }
        }
    }

    /// After cells were spent under all limits: whether to ask for more ahead of need.
    fn spent(&self, claims: &[Claim<'p>]) {
        for claim in claims {
            self.borrower.spent(self.table, claim.key, || self.loan(*claim));
        }
    }

    /// Gives back what was asked for and is of no use, because the request is denied.
    fn give_back(&self, claims: &[Claim<'p>], attempt: &mut Attempt) {
        for (claim, asked) in claims.iter().zip(&mut attempt.asked) {
            if mem::take(asked)
                && let Some(loan) = self.loan(*claim)
            {
                self.borrower.give_back(self.table, loan, self.question.cells);
            }
        }
    }

    /// Notes the penalty of a request that is denied by a limit. Returns how long to wait.
    fn punish(&self, claims: &[Claim<'p>], limit: usize, wait: Nanos) -> Nanos {
        let policy = self.policy();
        let (Some(penalty), false, Some(claim)) =
            (policy.penalty, policy.observes, claims.get(limit))
        else {
            return wait;
        };
        // Other clients count by the key of such a limit, too, and would wait for longer. And a
        // client is within its limit if it waits only for cells that other machines hold.
        if claim.limit.key.is_some() || self.borrower.waits_for_others(self.table, claim.key) {
            return wait;
        }
        let quota = claim.quota;
        let interval = quota.emission_interval().0;
        let cost = Nanos(interval.saturating_mul(penalty.cells.into()));
        let noted = u64::from(self.borrower.noted(self.table, claim.key));
        let wait = Nanos(wait.0.saturating_add(interval.saturating_mul(noted)));
        // Beyond the ceiling nothing more is charged.
        if wait.0.saturating_add(cost.0) > quota.most_owed().0 {
            return wait;
        }
        let Some(loan) = self.loan(*claim) else { return wait };
        match self.borrower.punish(self.table, loan, penalty.cells) {
            true => Nanos(wait.0.saturating_add(cost.0)),
            false => wait,
        }
    }

    /// What each limit says: an estimate, because only the store knows what all hosts owe.
    /// `denied` is the limit that denies the request, and how long to wait for it.
    fn standings(
        &self,
        claims: &[Claim<'p>],
        now: HostTime,
        attempt: &Attempt,
        denied: Option<(usize, Nanos)>,
    ) -> ArrayVec<Standing<'p>, MAX_LIMITS> {
        let standing = |(place, claim): (usize, &Claim<'p>)| {
            let Claim { limit, quota, key, .. } = *claim;
            let wait = denied.filter(|(limit, _)| *limit == place).map(|(_, wait)| wait);
            let free = attempt.free_of(key);
            let held = self.leases.holding(key, now).held(now);
            let remaining = match wait {
                Some(_) => 0,
                None => held.saturating_add(free).min(quota.burst()),
            };
            let owed = u64::from(quota.burst() - remaining);
            let owed = Nanos(owed * quota.emission_interval().0);
            // No limit that is lent counts in windows.
            let (wait, window_ends) = (wait.unwrap_or(Nanos::ZERO), Nanos::ZERO);
            Standing { limit, quota, owed, wait, window_ends }
        };
        claims.iter().enumerate().map(standing).collect()
    }

    /// Decides without the store, as the policy says.
    pub(crate) fn without_store(
        &self,
        limits: &'p [Limit],
        now: &mut Reading,
        loan: &Loan,
    ) -> (Option<Reason>, ArrayVec<Standing<'p>, MAX_LIMITS>) {
        let since = self.borrower.away_since(self.table, loan).unwrap_or(now.time());
        let away = now.time().saturating_since(since);
        match Instead::of(self.sharing, away) {
            Instead::Closed => return (Some(Reason::Store), ArrayVec::new()),
            Instead::Open { .. } => {
                self.borrower.counts.open.fetch_add(1, Ordering::Relaxed);
                return (None, ArrayVec::new());
            }
            Instead::Share => {}
        }
        let share = |quota| self.borrower.share(self.table, loan, quota);
        let Self { table, in_force, question, message, .. } = *self;
        Charge::new(table, now, in_force, question, Some(message.clone()))
            .by_share(limits, share, true)
    }

    /// What would be decided now about a request that has to ask the store about this one of the
    /// limits. `None` if the store can be asked. Nothing is charged.
    pub fn foresee_without_store(
        &self,
        limits: &'p [Limit],
        limit: &'p Limit,
    ) -> Option<ForeseenWithoutStore> {
        let loan = self.loan(self.claim(limit))?;
        if self.borrower.is_starting(&loan) {
            return None;
        }
        let since = self.borrower.away_since(self.table, &loan)?;
        let mut now = self.table.reading();
        let away = now.time().saturating_since(since);
        let instead = Instead::of(self.sharing, away);
        let machines = self.borrower.hosts(now.time());
        let (reason, wait) = match instead {
            Instead::Closed => (Some(Reason::Store), Nanos::ZERO),
            Instead::Open { .. } => (None, Nanos::ZERO),
            Instead::Share => {
                let share = |quota| self.borrower.share(self.table, &loan, quota);
                let Self { table, in_force, question, message, .. } = *self;
                let message = Some(message.clone());
                let charge = Charge::new(table, &mut now, in_force, question, message);
                let (reason, said) = charge.by_share(limits, share, false);
                (reason, said.iter().map(|said| said.wait).max().unwrap_or_default())
            }
        };
        Some(ForeseenWithoutStore { away, instead, machines, reason, wait })
    }
}

/// The client of a message under limits that machines share.
#[derive(Clone, Copy)]
pub struct Client<'a, 'm> {
    pub in_force: &'a InForce,
    pub table: &'a Table,
    pub question: Question,
    pub message: &'a Message<'m>,
}

impl Client<'_, '_> {
    /// Its bucket in the store under a limit that has these numbers, `second` seconds after 1970,
    /// with what it owes since before a change. `None` if the store cannot compute the limit,
    /// which the check of the configuration refuses.
    pub fn bucket(
        &self,
        names: &Names,
        limit: &Limit,
        quota: Quota,
        second: i64,
    ) -> Option<Bucket> {
        let Self { in_force, table, question, message } = *self;
        let Question { policy: index, rule, key, .. } = question;
        let (policy, earlier) = (&in_force.policies.list[index], &in_force.earlier);
        let mut bucket = bucket_of(names, policy, limit, quota, message, second)?;
        if limit.by_arg.is_some() || limit.calendar.is_some() {
            return Some(bucket);
        }
        let current = LimitBucket { quota, ..LimitBucket::of(table, limit, key, Some(message)) };
        let asked = Asked { table, rule, limit, current, message };
        let ago = earlier.changed(index, asked).map(|at| table.now().saturating_since(at));
        if let Some(at) = ago.and_then(|ago| Instant::now().checked_sub(ago.into())) {
            let most = most_carried_over(quota, bucket.limit(), policy.settle.is_some());
            bucket = bucket.with_change(at, most);
        }
        for (old, limit, _) in earlier.limits(index, asked) {
            if let Some(before) = bucket_of(names, old, limit, limit.quota, message, second) {
                bucket = bucket.moved_from(&before);
            }
        }
        Some(bucket)
    }
}

/// The bucket in the store of a message's key under a limit of the policy that has these numbers,
/// `second` seconds after 1970. `None` if the store cannot compute the limit.
pub fn bucket_of(
    names: &Names,
    policy: &Policy,
    limit: &Limit,
    quota: Quota,
    message: &Message<'_>,
    second: i64,
) -> Option<Bucket> {
    let limit_in_store = match &limit.calendar {
        None => lent(quota),
        Some(calendar) => counted(quota, calendar.bounds_at(second)),
    };
    let key = record_key(policy, limit, message);
    Some(names.bucket(limit.record_name.clone(), &key, limit_in_store.ok()?))
}

/// The bytes of a message's key under a limit of the policy.
fn record_key(policy: &Policy, limit: &Limit, message: &Message<'_>) -> Vec<u8> {
    match &limit.key {
        None => key_bytes(policy, message),
        Some(parts) => own_key_bytes(parts, message),
    }
}

//! From a question to a verdict: charges the buckets of a key.

use arrayvec::ArrayVec;
use gcra_table::{Admission, Decision, KeyHash, Nanos, Reading, Table, Time};
use spop_agent::Message;

use crate::earlier::least_tat;
use crate::in_force::InForce;
use crate::policy::answer::Standing;
use crate::policy::{Limit, MAX_LIMITS, Policy, Rule};
use crate::question::Question;
use crate::verdict::{Reason, Verdict};

/// The limits of one request whose standings are kept for its answer. More limits than these are
/// charged all the same.
const MAX_STANDINGS: usize = 2 * MAX_LIMITS;

/// What the limits of a request said, in the order in which they were asked.
pub(crate) type Standings<'p> = ArrayVec<Standing<'p>, MAX_STANDINGS>;

/// Decides about one message, and charges its cells to the buckets of its key.
///
/// `now` is the reading of the table's clock that a round shares; the table brings it forward
/// when it had to read the clock again. What each limit said is added to `standings`, where an
/// answer needs it. `message` is called only while earlier policies may matter.
#[inline(always)]
pub(crate) fn decide<'p, 'm>(
    table: &Table,
    now: &mut Reading,
    in_force: &'p InForce,
    question: Question,
    standings: Option<&mut Standings<'p>>,
    message: impl FnOnce() -> Option<Message<'m>>,
) -> Verdict {
    let policy = &in_force.policies.list[question.policy];
    let reason = match in_force.each[question.policy].usual {
        Some(usual) => {
            let key = usual.key(table, question.key);
            reason_of(&table.charge(key, usual.quota, question.cells, now))
        }
        _ => match policy.rule(question.rule) {
            Rule::Deny => Some(Reason::Denied),
            Rule::Unlimited => None,
            Rule::Limits(limits) => {
                let message = if in_force.earlier.is_empty() { None } else { message() };
                Charge { table, now, in_force, policy, question, message }.all(limits, standings)
            }
        },
    };
    Verdict::new(question.policy, policy.observes, reason)
}

/// The charge of one message.
struct Charge<'t, 'p, 'm> {
    table: &'t Table,
    now: &'t mut Reading,
    in_force: &'p InForce,
    policy: &'p Policy,
    question: Question,
    /// Needed to find what its key owed under earlier policies.
    message: Option<Message<'m>>,
}

/// The bucket of one limit.
#[derive(Clone, Copy, Debug)]
struct Bucket<'p> {
    limit: &'p Limit,
    key: KeyHash,
    /// The TAT that the key has at least, by what it owed under earlier policies.
    least_tat: Time,
}

impl<'p> Charge<'_, 'p, '_> {
    fn bucket(&self, limit: &'p Limit) -> Bucket<'p> {
        let key = limit.key(self.table, self.question.key);
        let least_tat = match &self.message {
            None => Time::ZERO,
            Some(message) => {
                let Question { policy, rule, .. } = self.question;
                least_tat(&self.in_force.earlier, self.table, policy, rule, limit, key, message)
            }
        };
        Bucket { limit, key, least_tat }
    }

    /// Charges all limits, or none. Returns why the message is denied, if it is.
    #[inline(never)]
    fn all(
        &mut self,
        limits: &'p [Limit],
        standings: Option<&mut Standings<'p>>,
    ) -> Option<Reason> {
        let buckets: ArrayVec<_, MAX_LIMITS> =
            limits.iter().take(MAX_LIMITS).map(|limit| self.bucket(limit)).collect();
        let (said, reason) = match &buckets[..] {
            [bucket] => {
                let (decision, reason) = self.charge(*bucket);
                let mut standing = standing_of(bucket.limit, &decision);
                if reason.is_some() {
                    self.punish(*bucket, &mut standing);
                }
                (ArrayVec::from_iter([standing]), reason)
            }
            buckets => self.charge_all(buckets),
        };
        if let Some(standings) = standings {
            let space = standings.remaining_capacity();
            standings.extend(said.into_iter().take(space));
        }
        reason
    }

    /// Charges one bucket, unless it denies the cells.
    fn charge(
        &mut self,
        Bucket { limit, key, least_tat }: Bucket<'p>,
    ) -> (Decision, Option<Reason>) {
        let cells = self.question.cells;
        let decision = self.table.charge_owing(key, limit.quota, cells, self.now, least_tat);
        (decision, reason_of(&decision))
    }

    /// Charges several buckets, or none of them.
    ///
    /// Looks at all of them first, so that a client that one limit denies does not keep writing
    /// to the buckets of the others, and learns how long to wait for all. When another request was
    /// faster between the look and the charge, what was charged already is given back.
    fn charge_all(
        &mut self,
        buckets: &[Bucket<'p>],
    ) -> (ArrayVec<Standing<'p>, MAX_LIMITS>, Option<Reason>) {
        let mut standings = ArrayVec::<_, MAX_LIMITS>::new();
        let mut reason = None;
        for bucket in buckets {
            let (mut standing, denied) = self.look(*bucket);
            if denied.is_some() {
                self.punish(*bucket, &mut standing);
            }
            standings.push(standing);
            reason = reason.or(denied);
        }
        if reason.is_some() || self.question.cells == 0 {
            return (standings, reason);
        }
        let mut charged = ArrayVec::<Decision, MAX_LIMITS>::new();
        for (place, bucket) in buckets.iter().enumerate() {
            let (decision, denied) = self.charge(*bucket);
            standings[place] = standing_of(bucket.limit, &decision);
            if denied.is_none() {
                charged.push(decision);
                continue;
            }
            self.punish(*bucket, &mut standings[place]);
            for (place, (bucket, decision)) in buckets.iter().zip(&charged).enumerate() {
                let Bucket { limit, key, .. } = *bucket;
                // If it is too late to give the cells back, the limit is too strict for a moment,
                // and never too generous.
                let _ = self.table.refund(key, limit.quota, self.question.cells, decision);
                standings[place] = self.look(*bucket).0;
            }
            return (standings, denied);
        }
        (standings, None)
    }

    /// What a charge would say now.
    fn look(
        &self,
        Bucket { limit, key, least_tat }: Bucket<'p>,
    ) -> (Standing<'p>, Option<Reason>) {
        let tat = self.table.tat(key, limit.quota).max(least_tat);
        let mut owed_ns = tat.saturating_since(self.now.time()).0;
        if owed_ns > limit.quota.most_owed().0 {
            // The slot is damaged, or was charged at a later reading of the clock. The charge will
            // find out.
            owed_ns = limit.quota.burst_tolerance().0;
        }
        self.ask(limit, owed_ns)
    }

    /// What a limit says about the cells of a key that owes this much.
    fn ask(&self, limit: &'p Limit, owed_ns: u64) -> (Standing<'p>, Option<Reason>) {
        let admission = limit.quota.admit(Time(owed_ns), Time::ZERO, self.question.cells);
        let (wait_ns, reason) = match admission {
            Admission::Conforming { .. } => (0, None),
            Admission::Early { wait } => (wait.0, Some(Reason::Limit)),
            Admission::Oversize => (limit.quota.drain_time().0, Some(Reason::Oversize)),
        };
        (Standing { limit, owed_ns, wait_ns }, reason)
    }

    /// Charges the penalty to a client that asks while it is blocked, up to the ceiling, and
    /// brings its standing up to date: a client that waits as long as its answer says must pass.
    #[cold]
    fn punish(&mut self, bucket: Bucket<'p>, standing: &mut Standing<'p>) {
        let (Some(penalty), false) = (self.policy.penalty, self.policy.observes) else { return };
        let Bucket { limit, key, least_tat } = bucket;
        let quota = limit.quota.up_to_cap();
        let decision = self.table.charge_owing(key, quota, penalty.cells, self.now, least_tat);
        // Beyond the ceiling nothing more is charged, and the debt stays as it is.
        if decision.is_allowed() {
            *standing = self.ask(limit, decision.owed().0).0;
        }
    }
}

/// Why a bucket denied the cells, if it did.
#[inline(always)]
fn reason_of(decision: &Decision) -> Option<Reason> {
    match (decision.is_allowed(), decision.retry_after()) {
        (true, _) => None,
        (false, Some(_)) => Some(Reason::Limit),
        (false, None) => Some(Reason::Oversize),
    }
}

/// What a limit says after a charge.
fn standing_of<'p>(limit: &'p Limit, decision: &Decision) -> Standing<'p> {
    // A cost above the burst never passes. One burst later it still does not.
    let never = if decision.is_allowed() { Nanos::ZERO } else { limit.quota.drain_time() };
    let wait_ns = decision.retry_after().unwrap_or(never).0;
    Standing { limit, owed_ns: decision.owed().0, wait_ns }
}

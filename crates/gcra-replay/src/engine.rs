//! Decides requests of a log as an agent does, at the times of the log: the same policies, the
//! same code, and a table of its own, whose clock goes by the log.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;

use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::answer::{LimitUsage, LimitUsages};
use gcra_limiter::client_name::write_client;
use gcra_limiter::decide::local::decide;
use gcra_limiter::limit_bucket::{LimitBucket, lacks_a_key};
use gcra_limiter::question::{Question, Unanswerable};
use gcra_limiter::stats::Stats;
use gcra_limiter::verdict::Verdict;
use gcra_policy::answers::Var;
use gcra_policy::{Limit, Policies, Policy};
use gcra_table::{KeyHash, ManualClock, Nanos, Reading, Slots, Table, Time};
use spop_agent::Message;

/// The last moment of a table's clock that a replay gets to: 18 years after the beginning.
const LAST: Time = Time(1 << 59);

/// Policies that decide about requests of the past.
pub(crate) struct Engine {
    pub(crate) table: Table,
    clock: ManualClock,
    in_force: ActivePolicies,
    /// The latest moment that was decided about, in microseconds since 1970.
    latest: Option<i64>,
    /// The policies that machines share. They are decided as if one bucket held all of the limit.
    pub(crate) shared: Vec<String>,
}

/// The verdict of one policy on a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'s> {
    pub verdict: Verdict,
    pub key: KeyHash,
    /// The answers of its limits, in their order; empty if the rule is not made of limits.
    pub usages: &'s [LimitUsage],
}

/// The verdict of all policies on a message together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    pub verdict: Verdict,
    /// The key of the policy that gave the verdict.
    pub key: KeyHash,
}

impl Engine {
    /// With an empty table of this size. The error: there is no memory for it.
    pub(crate) fn new(mut policies: Policies, slots: Slots) -> io::Result<Self> {
        let mut shared = Vec::new();
        for policy in policies.list.iter_mut().map(Arc::make_mut) {
            if policy.shared.take().is_some() && !policy.is_trial {
                shared.push(policy.name.to_string());
            }
        }
        // With another variable to set, each decision says what each limit says.
        policies.answers.others = vec![Var::RetryAfterMs];
        let (table, clock) = Table::with_manual_clock(slots)?;
        let in_force = ActivePolicies::at_start(policies, &Stats::new(NonZeroUsize::MIN), &table);
        Ok(Self { table, clock, in_force, latest: None, shared })
    }

    pub(crate) fn policies(&self) -> &[Arc<Policy>] {
        &self.in_force.policies.list
    }

    /// The question about a message. Its buckets are on their way from memory.
    pub(crate) fn question(&self, message: &Message<'_>) -> Result<Question, Unanswerable> {
        let question = Question::new(&self.in_force, &self.table, message)?;
        let prefetch = |limits: &[Limit]| {
            for limit in limits {
                let bucket = LimitBucket::of(&self.table, limit, question.key, Some(message));
                bucket.prefetch(&self.table, limit);
            }
        };
        let policy = &self.policies()[question.policy];
        prefetch(policy.rule(question.rule).limits());
        if let Some(trial) = policy.trial {
            prefetch(self.policies()[trial].rule.limits());
        }
        Ok(question)
    }

    /// Lets the time go on to this moment, in microseconds since 1970. A moment in the past counts
    /// as the latest one.
    pub(crate) fn advance_to(&mut self, at: i64) {
        let by = self.latest.map_or(0, |latest| at.saturating_sub(latest));
        if let Ok(by @ 1..) = u64::try_from(by) {
            // A log with a wrong date must not take the clock to where a table's time ends.
            let most = LAST.saturating_since(self.clock.now());
            self.clock.advance(Nanos(by.saturating_mul(1_000)).min(most));
        }
        let latest = self.latest.map_or(at, |latest| latest.max(at));
        self.latest = Some(latest);
        // Days and hours are those of the log.
        self.clock.set_wall(u64::try_from(latest).unwrap_or(0).saturating_mul(1_000));
    }

    /// Decides about a message now, and charges its cells. `step` is called for the policy and for
    /// its trial, if it has one.
    pub(crate) fn decide(
        &self,
        question: Question,
        message: &Message<'_>,
        mut step: impl FnMut(Step<'_>),
    ) -> Decided {
        let mut ask = |question: Question| {
            let mut now = Reading::at(self.clock.now());
            let mut usages = LimitUsages::default();
            let verdict = decide(
                &self.table,
                &mut now,
                self.in_force.row(question.policy),
                question,
                Some(&mut usages),
                None,
                || Some(message.clone()),
            );
            step(Step { verdict, key: question.key, usages: usages.listed() });
            verdict
        };
        let mut verdict = ask(question);
        let trial = question.of_trial(&self.policies()[question.policy]);
        // A trial says nothing about a message without a value for the key of one of its limits.
        let has_keys =
            |trial: &Question| !lacks_a_key(self.policies()[trial.policy].rule.limits(), message);
        if let Some(trial) = trial.filter(has_keys) {
            verdict = verdict.and(ask(trial));
        }
        Decided { verdict, key: question.key }
    }

    /// Writes the name of the client of a message, as logs and `top` write it.
    pub(crate) fn write_client(
        &self,
        name: &mut String,
        policy: usize,
        key: KeyHash,
        message: &Message<'_>,
    ) {
        write_client(name, &self.policies()[policy], key, Some(message.clone()));
    }
}

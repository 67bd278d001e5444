//! The ways to a decision about a request of one message, whether it was decoded or is of a known
//! shape. [`DecisionPath`] says which way a request takes.

// ADR 31: The hot path moves values in registers.
// ADR 35: Every message takes one path to its verdict.

use gcra_policy::RuleAt;
use gcra_table::{BucketPlace, KeyHash, Leases, Reading, Table};
use spop_agent::{Message, Reply};

use crate::active_policies::{ActivePolicies, ActivePolicy, DecisionPath};
use crate::answer::{Answer, LimitUsages};
use crate::client_name::write_client;
use crate::counting::count;
use crate::decide::local::{decide, decide_single};
use crate::lease_client::LeaseClient;
use crate::question::{Question, prefetch_limits};
use crate::reservations::Reserved;
use crate::stats::LaneStats;

/// The values that all decisions of a round about requests of one message need.
#[derive(Clone, Copy)]
pub(crate) struct OneMessage<'r> {
    pub(crate) table: &'r Table,
    pub(crate) in_force: &'r ActivePolicies,
    /// The lease client and the leases of this host, if there is a store.
    pub(crate) borrowing: Option<(&'r LeaseClient, &'r Leases)>,
}

/// The outcome of [`OneMessage::decide`].
pub(crate) enum Decided {
    /// The message is decided and counted, and `blocked` is all that is answered.
    Blocked(bool),
    /// [`OneMessage::answer`] decides it, and sets all variables.
    ByAnswer,
    /// All that may be asked about the message has to be asked, or the request has to wait.
    No,
}

impl<'r> OneMessage<'r> {
    /// Starts to fetch the memory that the decision about a message will need, by the policy in
    /// this row. Returns the place of the bucket on the usual path. `message` is called for
    /// policies that read messages.
    #[inline(always)]
    pub(crate) fn prefetch<'m>(
        &self,
        row: &ActivePolicy,
        (key, rule): (KeyHash, RuleAt),
        message: impl FnOnce() -> Option<Message<'m>>,
    ) -> Option<BucketPlace<'r>> {
        let Self { table, in_force, borrowing } = *self;
        if let Some(place) = row.path.place(table, key) {
            return Some(place);
        }
        match (&row.path, borrowing) {
            (DecisionPath::SingleLease(single), Some((_, leases))) => {
                leases.prefetch(single.lease_key(key));
            }
            _ => prefetch_limits(table, in_force, row, rule, key, message),
        }
        None
    }

    /// Decides about the message of a question, and counts the verdict, unless more is needed for
    /// that. `place` is that of its bucket on the usual path.
    #[inline(always)]
    pub(crate) fn decide<'m>(
        &self,
        row: &ActivePolicy,
        stats: LaneStats<'_>,
        now: &mut Reading,
        question: impl Fn() -> Question,
        place: Option<BucketPlace<'_>>,
        message: impl Fn() -> Option<Message<'m>>,
    ) -> Decided {
        let Self { table, in_force, .. } = *self;
        // Each way makes a question of its own: one for all would be in memory for the usual way.
        if let Some(place) = place {
            let DecisionPath::SingleCharge(single) = &row.path else { return Decided::No };
            let question = question();
            let verdict = decide_single(table, now, single, &place, question);
            count(in_force, row, stats, question, verdict, message);
            return Decided::Blocked(verdict.is_blocked());
        }
        match &row.path {
            DecisionPath::SingleLease(single) => {
                let question = question();
                let spent = self.spend(single, now.time(), question, &message);
                let Some(verdict) = spent else { return Decided::No };
                count(in_force, row, stats, question, verdict, message);
                Decided::Blocked(verdict.is_blocked())
            }
            DecisionPath::Plain if in_force.vars.has_others() => Decided::ByAnswer,
            DecisionPath::Plain => {
                Decided::Blocked(self.is_blocked(row, stats, now, question(), message))
            }
            DecisionPath::SingleCharge(_) | DecisionPath::Full => Decided::No,
        }
    }

    /// As [`decide`](Self::decide), on the [plain path](DecisionPath::Plain): apart from the usual
    /// one, which would have its code.
    #[inline(never)]
    fn is_blocked<'m>(
        &self,
        row: &ActivePolicy,
        stats: LaneStats<'_>,
        now: &mut Reading,
        question: Question,
        message: impl Fn() -> Option<Message<'m>>,
    ) -> bool {
        let verdict = decide(self.table, now, row, question, None, None, &message);
        count(self.in_force, row, stats, question, verdict, message);
        verdict.is_blocked()
    }

    /// Decides about a message on the [plain path](DecisionPath::Plain), counts the verdict, and
    /// sets all variables of the answer.
    #[inline(never)]
    pub(crate) fn answer<'m>(
        &self,
        row: &ActivePolicy,
        stats: LaneStats<'_>,
        now: &mut Reading,
        question: Question,
        message: impl Fn() -> Option<Message<'m>>,
        reply: &mut Reply<'_>,
    ) {
        let Self { table, in_force, .. } = *self;
        let (mut usages, reserved) = (LimitUsages::default(), Reserved::default());
        let verdict = decide(table, now, row, question, Some(&mut usages), None, &message);
        count(in_force, row, stats, question, verdict, &message);
        let client = |name: &mut String| write_client(name, &row.policy, question.key, message());
        let (verdict, usages, reserved) = (Some(verdict), &usages, &reserved);
        let ActivePolicies { policies, vars, .. } = in_force;
        Answer { policies, vars, verdict, usages, reserved, client: &client }.write(reply);
    }
}

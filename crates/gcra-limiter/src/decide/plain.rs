//! The decision and the answer on the plain path (`DecisionPath::Plain`), for a request that was
//! decoded and for one of a known shape.

// ADR 31: The hot path moves values in registers.

use gcra_table::{Reading, Table};
use spop_agent::{Message, Reply};

use crate::active_policies::{ActivePolicies, ActivePolicy};
use crate::answer::{Answer, LimitUsages};
use crate::client_name::write_client;
use crate::counting::count;
use crate::decide::local::decide;
use crate::question::Question;
use crate::reservations::Reserved;
use crate::stats::LaneStats;

/// The values that the decision needs.
#[derive(Clone, Copy)]
pub(crate) struct Plain<'r> {
    pub(crate) table: &'r Table,
    pub(crate) in_force: &'r ActivePolicies,
    pub(crate) row: &'r ActivePolicy,
    /// The counters of the policy that this thread writes.
    pub(crate) stats: LaneStats<'r>,
}

impl Plain<'_> {
    /// Decides about a message, counts the verdict, and sets all variables of the answer.
    #[inline(never)]
    pub(crate) fn answer<'m>(
        self,
        now: &mut Reading,
        question: Question,
        message: impl Fn() -> Option<Message<'m>>,
        reply: &mut Reply<'_>,
    ) {
        let Self { table, in_force, row, stats } = self;
        let (mut usages, reserved) = (LimitUsages::default(), Reserved::default());
        let verdict = decide(table, now, row, question, Some(&mut usages), None, &message);
        count(in_force, row, stats, question, verdict, &message);
        let client = |name: &mut String| write_client(name, &row.policy, question.key, message());
        let (verdict, usages, reserved) = (Some(verdict), &usages, &reserved);
        let ActivePolicies { policies, vars, .. } = in_force;
        Answer { policies, vars, verdict, usages, reserved, client: &client }.write(reply);
    }
}

//! The handler that the agent calls: from a request to its answer.
//!
//! No socket, no task: ordinary functions of a request and a reading of the clock.

// ADR 11: The handler may prepare a batch.
// ADR 31: The hot path moves values in registers.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use gcra_policy::answers::{Answers, Var};
use gcra_policy::{Sharing, WithoutStore};
use gcra_table::{Leases, Table};
use spop_agent::{AckWriter, Agent, Handler, Limits, Reply, Request, ShapedNotifies, Value};

use crate::active_policies::ActivePolicies;
use crate::answer::LimitUsages;
use crate::audit_lines::{AuditFile, Lines};
use crate::decide::path::{Decided, OneMessage};
use crate::decide::request::{Deciding, Progress};
use crate::decide::shared_progress::Patience;
use crate::lease_client::LeaseClient;
use crate::question::{Question, Unanswerable};
use crate::round::Round;
use crate::stats::Lane;
use crate::undecided::Undecided;
use crate::verdict::Reason;
use crate::waiting_request::WaitingRequest;

/// How many requests of a connection may wait for the store. Those for which cells are here are
/// answered beside them.
const MOST_WAITING: NonZeroUsize = NonZeroUsize::new(1_024).unwrap();

/// Decides about requests by the policies in force.
pub struct Limiter {
    /// The table in use. A resize puts another one in its place.
    table: Arc<ArcSwap<Table>>,
    /// A reload puts others in their place.
    in_force: Arc<ArcSwap<ActivePolicies>>,
    undecided: Arc<Undecided>,
    /// Where each decision is written down, if that is wanted.
    audit: Option<Arc<AuditFile>>,
    /// The limits that are shared with other hosts, if there is a store.
    lease_client: Option<Arc<LeaseClient>>,
}

impl Limiter {
    pub fn new(table: Arc<ArcSwap<Table>>, in_force: Arc<ArcSwap<ActivePolicies>>) -> Self {
        Self { table, in_force, undecided: Arc::default(), audit: None, lease_client: None }
    }

    /// The same, with each decision written down.
    pub fn with_audit(self, audit: Option<Arc<AuditFile>>) -> Self {
        Self { audit, ..self }
    }

    /// The same, with limits that are shared with other hosts.
    pub fn with_lease_client(self, lease_client: Option<Arc<LeaseClient>>) -> Self {
        Self { lease_client, ..self }
    }

    /// An agent that answers by this limiter.
    pub fn into_agent(self) -> Agent<Self> {
        let wait =
            self.lease_client.as_ref().map(|lease_client| Duration::from(lease_client.wait()));
        let agent = Agent::new(self);
        let Some(wait) = wait else { return agent };
        // After that time the request has been answered without the store.
        agent.deadline(wait + Duration::from_secs(1)).max_in_flight(MOST_WAITING)
    }

    /// Limits for an agent that sets only `blocked`, and the reason if that is an order. The
    /// largest ACK is small then, so HAProxy may keep 20 NOTIFYs in flight with nearly any buffer.
    pub fn limits_for_blocked_only(answers: &Answers) -> Limits {
        let action = AckWriter::set_var_size(answers.blocked, &Value::Bool(true))
            + AckWriter::set_var_size(Var::Reason.name(), &Reason::Blocked.as_str().into());
        let mut limits = Limits::default();
        if let Ok(max_ack_size) = u32::try_from(AckWriter::max_length(action)) {
            limits.max_ack_size = max_ack_size;
        }
        limits
    }

    /// The counters of messages that got no decision.
    pub fn undecided(&self) -> Arc<Undecided> {
        self.undecided.clone()
    }
}

impl Handler for Limiter {
    type Round = Round;

    /// The question about the first message. Its buckets are on their way from memory.
    type Prepared = Result<Question, Unanswerable>;

    #[inline]
    fn round(&self) -> Round {
        let table = self.table.load();
        let now = table.reading();
        let audit = self.audit.as_ref().map(|audit| Box::new(Lines::new(audit.clone())));
        let leases = self.lease_client.as_ref().map(|lease_client| lease_client.leases());
        let (in_force, lane) = (self.in_force.load(), Lane::of_this_thread());
        Round { table, in_force, now, lane, audit, has_learned: false, leases }
    }

    #[inline(always)]
    fn prepare(&self, round: &mut Round, request: &Request<'_>) -> Self::Prepared {
        let Round { table, in_force, leases, .. } = &*round;
        let message = request.messages().next().ok_or(Unanswerable::NoMessage)?;
        let question = Question::new(in_force, table, &message)?;
        let borrowing = self.borrowing(leases);
        let (row, found) = (in_force.row(question.policy), (question.key, question.rule));
        // A copy, so that the usual path keeps the message in registers.
        let message = || Some(message.clone());
        OneMessage { table, in_force, borrowing }.prefetch(row, found, message);
        Ok(question)
    }

    /// Charges every message. The request is blocked when one of them is. If no message could be
    /// decided, nothing is set, and HAProxy's rules see that the variable is missing.
    #[inline(always)]
    fn answer(
        &self,
        round: &mut Round,
        first: Self::Prepared,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    ) {
        // Taken apart, and moved below: a reference to a part would have all of it copied to the
        // stack, and read back from there (docs/internals/ARCHITECTURE.md, "Performance notes").
        if let Ok(question) = first
            && request.messages().len() == 1
            && round.audit.is_none()
        {
            let Round { table, in_force, now, lane, audit: _, leases, has_learned } = &mut *round;
            let row = in_force.row(question.policy);
            let (stats, borrowing) = (row.stats.on(*lane), self.borrowing(leases));
            let one = OneMessage { table, in_force, borrowing };
            let message = || request.messages().next();
            let place = row.path.place(table, question.key);
            let decided = one.decide(row, stats, now, || question, place, message);
            if !matches!(decided, Decided::No) {
                in_force.shapes.learn_once(has_learned, in_force, request, question);
            }
            match decided {
                // It fits: the limit for ACKs is at least the size of this one.
                Decided::Blocked(is_blocked) => {
                    return reply.append(&in_force.blocked[usize::from(is_blocked)]);
                }
                Decided::ByAnswer => {
                    return one.answer(row, stats, now, question, message, reply);
                }
                Decided::No => {}
            }
        }
        self.answer_more(round, first, request, reply);
    }

    fn answer_shaped(&self, round: &mut Round, notifies: &mut ShapedNotifies<'_, '_>) {
        round.answer_known(self.lease_client.as_deref(), notifies);
    }
}

impl Limiter {
    /// The lease client, and the leases of a round, if there is a store.
    #[inline]
    fn borrowing<'r>(
        &'r self,
        leases: &'r Option<Guard<Arc<Leases>>>,
    ) -> Option<(&'r LeaseClient, &'r Leases)> {
        Some((self.lease_client.as_deref()?, leases.as_deref()?))
    }

    /// As [`answer`](Self::answer), for any number of messages and on all paths.
    #[inline(never)]
    fn answer_more(
        &self,
        round: &mut Round,
        first: Result<Question, Unanswerable>,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    ) {
        let Round { table, in_force, now, lane, audit, leases, .. } = round;
        let deciding = Deciding {
            in_force,
            table,
            borrowing: self.borrowing(leases),
            undecided: &self.undecided,
            lane: *lane,
            patience: Patience::MayWait,
        };
        let mut usages = LimitUsages::default();
        let wanted = !in_force.policies.answers.others.is_empty();
        let mut progress = Progress::default();
        let audit = audit.as_deref_mut();
        let wanted = wanted.then_some(&mut usages);
        let messages = request.messages();
        if deciding.go_on(messages, Some(first), now, &mut progress, wanted, audit).is_ok() {
            progress.answer(in_force, &usages, request.messages(), reply);
            return;
        }
        // This answer leaves if there is no memory to wait in.
        if let Some(Sharing { without_store, .. }) = progress.so_far.sharing {
            let is_blocked =
                progress.is_blocked() || !matches!(without_store, WithoutStore::Open { .. });
            let answers = &in_force.policies.answers;
            reply.set_var(answers.scope, answers.blocked, is_blocked);
        }
        let Some(lease_client) = self.lease_client.clone() else { return };
        let waiting = WaitingRequest {
            lease_client,
            table: self.table.clone(),
            undecided: self.undecided.clone(),
            audit: self.audit.clone(),
            usages,
            in_force: Arc::clone(in_force),
            request: request.to_owned(),
            progress,
        };
        reply.later(|reply| waiting.answer(reply));
    }
}

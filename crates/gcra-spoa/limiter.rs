//! The handler that the agent calls: from a request to its answer.
//!
//! No socket, no task: ordinary functions of a request and a reading of the clock.

use std::mem;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use arrayvec::ArrayVec;
use gcra_table::{KeyHash, Reading, Table};
use spop_agent::{AckWriter, Handler, Limits, Message, Reply, Request, Value};

use crate::answer::{self, Standings};
use crate::audit::{Audit, Lines};
use crate::decide::decide;
use crate::in_force::InForce;
use crate::policy::variables::Answers;
use crate::policy::{Part, Policy};
use crate::question::{Question, Unanswerable};
use crate::redact::{NamedPart, write_name};
use crate::stats::Lane;
use crate::undecided::Undecided;
use crate::verdict::Verdict;

/// The parts of a key that are written when a client is named. The others still make the key.
const MAX_NAMED_PARTS: usize = 8;

/// Decides about requests by the policies in force.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The table in use. A resize puts another one in its place.
    table: Arc<ArcSwap<Table>>,
    /// A reload puts others in their place.
    in_force: Arc<ArcSwap<InForce>>,
    undecided: Arc<Undecided>,
    /// Where each decision is written down, if that is wanted.
    audit: Option<Arc<Audit>>,
}

/// What is read once for all requests of a round.
#[derive(Debug)]
pub(crate) struct Round {
    table: Guard<Arc<Table>>,
    in_force: Guard<Arc<InForce>>,
    now: Reading,
    lane: Lane,
    /// In a box, because a round without it must stay small.
    audit: Option<Box<Lines>>,
}

impl Limiter {
    pub(crate) fn new(table: Arc<ArcSwap<Table>>, in_force: Arc<ArcSwap<InForce>>) -> Self {
        Self { table, in_force, undecided: Arc::default(), audit: None }
    }

    /// The same, with each decision written down.
    pub(crate) fn with_audit(self, audit: Option<Arc<Audit>>) -> Self {
        Self { audit, ..self }
    }

    /// Limits for an agent that sets only `blocked`, and never anything else. The largest ACK is
    /// small then, so HAProxy may keep 20 NOTIFYs in flight whatever its buffers are.
    pub(crate) fn limits_for_blocked_only(answers: &Answers) -> Limits {
        let action = AckWriter::set_var_size(answers.blocked, &Value::Bool(true));
        match u32::try_from(AckWriter::max_length(action)) {
            Ok(max_ack_size) => Limits { max_ack_size, ..Limits::default() },
            Err(_) => Limits::default(),
        }
    }

    /// The counters of messages that got no decision.
    pub(crate) fn undecided(&self) -> Arc<Undecided> {
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
        Round { table, in_force: self.in_force.load(), now, lane: Lane::of_this_thread(), audit }
    }

    #[inline(always)]
    fn prepare(&self, round: &mut Round, request: &Request<'_>) -> Self::Prepared {
        let (table, policies) = (&round.table, &round.in_force.policies);
        let message = request.messages().next().ok_or(Unanswerable::NoMessage)?;
        let question = Question::new(&round.in_force, table, &message)?;
        if let Some(usual) = round.in_force.each[question.policy].usual {
            table.prefetch(usual.key(table, question.key), usual.quota);
            return Ok(question);
        }
        let policy = &policies.list[question.policy];
        for limit in policy.rule(question.rule).limits() {
            table.prefetch(limit.key(table, question.key), limit.quota);
        }
        if let Some(trial) = policy.trial {
            for limit in policies.list[trial].rule.limits() {
                table.prefetch(limit.key(table, question.key), limit.quota);
            }
        }
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
            && round.in_force.each[question.policy].usual.is_some()
            && round.audit.is_none()
        {
            let message = || request.messages().next();
            let Round { table, in_force, now, lane, audit: _ } = round;
            let verdict = verdict_on(in_force, table, now, *lane, question, None, message);
            // It fits: the limit for ACKs is at least the size of this one.
            let _ = reply.append(&in_force.blocked[usize::from(verdict.is_blocked())]);
            return;
        }
        // One call, because two would leave more to the path above.
        let answer_any = match round.in_force.is_plain && round.audit.is_none() {
            true => Self::answer_any::<false>,
            false => Self::answer_any::<true>,
        };
        answer_any(self, round, first, request, reply);
    }
}

impl Limiter {
    /// As [`answer`](Self::answer), for any number of messages and variables. `MORE` says whether
    /// a policy has a trial, clients are exempt, or decisions are written down: without it, no
    /// request pays for that.
    #[inline(never)]
    fn answer_any<const MORE: bool>(
        &self,
        round: &mut Round,
        first: Result<Question, Unanswerable>,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    ) {
        let Round { table, in_force, now, lane, audit } = round;
        let policies = &in_force.policies;
        let wants_standings = !policies.answers.others.is_empty();
        let mut standings = Standings::default();
        let mut verdict = None::<Verdict>;
        let mut first = Some(first);
        for message in request.messages() {
            let question = match first.take() {
                Some(question) => question,
                None => Question::new(in_force, table, &message),
            };
            match question {
                Ok(question) => {
                    let wanted = wants_standings.then_some(&mut standings);
                    let next = if MORE {
                        let ask =
                            Ask { in_force, table, lane: *lane, question, message: &message };
                        verdict_with_more(ask, now, wanted, audit.as_deref_mut())
                    } else {
                        let asked = || Some(message.clone());
                        verdict_on(in_force, table, now, *lane, question, wanted, asked)
                    };
                    verdict = Some(verdict.map_or(next, |verdict| verdict.and(next)));
                }
                Err(why) => self.count_undecided(in_force, *lane, why, &message),
            }
        }
        if let Some(verdict) = verdict {
            // If it does not fit, the check of the file counted wrong. What was written stays.
            let _ = answer::write(
                &policies.answers,
                verdict,
                &policies.list[verdict.policy].name,
                &standings,
                reply,
            );
        }
    }

    #[cold]
    fn count_undecided(
        &self,
        in_force: &InForce,
        lane: Lane,
        why: Unanswerable,
        message: &Message<'_>,
    ) {
        match why {
            Unanswerable::NoMessage => {}
            Unanswerable::Unmatched => self.undecided.count_unmatched(&in_force.policies, message),
            Unanswerable::Undecided(policy) => {
                in_force.each[policy].stats.count_undecided(lane);
                self.undecided.count_undecided(&in_force.policies.list[policy], message);
            }
        }
    }
}

/// Decides about a message, and counts the verdict.
#[inline(always)]
fn verdict_on<'p, 'm>(
    in_force: &'p InForce,
    table: &Table,
    now: &mut Reading,
    lane: Lane,
    question: Question,
    standings: Option<&mut Standings<'p>>,
    message: impl Fn() -> Option<Message<'m>>,
) -> Verdict {
    let verdict = decide(table, now, in_force, question, standings, &message);
    count(in_force, lane, question, verdict, message);
    verdict
}

#[inline(always)]
fn count<'m>(
    in_force: &InForce,
    lane: Lane,
    Question { policy, key, .. }: Question,
    verdict: Verdict,
    message: impl Fn() -> Option<Message<'m>>,
) {
    in_force.each[policy].stats.count(lane, verdict.outcome, key, |name| {
        write_client(name, &in_force.policies.list[policy], key, message());
    });
}

/// What is asked about one message.
#[derive(Clone, Copy)]
struct Ask<'p, 'm> {
    in_force: &'p InForce,
    table: &'p Table,
    lane: Lane,
    question: Question,
    message: &'m Message<'m>,
}

/// As [`verdict_on`], for any policy: it may have a trial, and clients that are exempt, and the
/// decision may have to be written down.
#[inline(never)]
fn verdict_with_more<'p>(
    ask: Ask<'p, '_>,
    now: &mut Reading,
    standings: Option<&mut Standings<'p>>,
    mut audit: Option<&mut Lines>,
) -> Verdict {
    let Ask { in_force, table, lane, question, message: asked } = ask;
    let Question { policy, rule, key, .. } = question;
    let (Policy { trial, observes, .. }, each) =
        (&in_force.policies.list[policy], &in_force.each[policy]);
    let message = || Some(asked.clone());
    let mut write = |now: &Reading, question: Question, outcome| {
        if let Some(lines) = audit.as_deref_mut() {
            let policy = &in_force.policies.list[question.policy];
            lines.add(table, now.time(), policy, question.cells, outcome, asked);
        }
    };
    if each.is_exempt(key, now.time()) {
        let verdict = Verdict::new(policy, *observes, None);
        count(in_force, lane, question, verdict, message);
        write(now, question, None);
        return verdict;
    }
    let verdict = verdict_on(in_force, table, now, lane, question, standings, message);
    write(now, question, Some(verdict.outcome));
    let Some(trial) = trial.filter(|_| !rule.is_override()) else { return verdict };
    // The numbers of a trial would contradict the verdict.
    let question = Question { policy: trial, ..question };
    let tried = verdict_on(in_force, table, now, lane, question, None, message);
    write(now, question, Some(tried.outcome));
    verdict.and(tried)
}

/// Writes the name of a message's client, for logs.
#[cold]
pub(crate) fn write_client<'m>(
    name: &mut String,
    policy: &Policy,
    key: KeyHash,
    message: Option<Message<'m>>,
) {
    /// The number of the fallback that the next part comes from, and the parts before it.
    type Parts<'m> = (u8, ArrayVec<NamedPart<'m>, MAX_NAMED_PARTS>);
    let mut parts = Parts::default();
    if let Some(message) = message {
        let part = |(fallback, parts): &mut Parts<'m>, part: Part<'m>| {
            let (fallback, prefix) = (mem::take(fallback), policy.key.prefix_of(part));
            let _ = parts.try_push(NamedPart { fallback, value: part.value, prefix });
        };
        let fallback = |parts: &mut Parts<'m>, number| parts.0 = number;
        let _ = policy.for_each_part(&message, &mut parts, part, fallback);
    }
    write_name(name, key, parts.1);
}

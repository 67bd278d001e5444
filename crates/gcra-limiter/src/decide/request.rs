//! One request with all that may be asked about it: several messages, policies with trials,
//! orders about clients, limits that are shared, and lines of audit. It may have to wait for
//! the store on its way, and goes on later where it was.

// ADR 12: Every message of a NOTIFY is charged.
// ADR 35: Every message takes one path to its verdict.
// ADR 37: A trial is a policy behind all others.

use gcra_policy::haproxy::report::is_report;
use gcra_policy::{Limit, MAX_LIMITS, Policy, Rule};
use gcra_table::board::OrderKind;
use gcra_table::{KeyHash, Leases, Reading, Table, Time};
use spop_agent::{Message, Messages};

use crate::active_policies::{ActivePolicies, ActivePolicy};
use crate::answer::{self, Answer, LimitUsages, SetVars};
use crate::audit_lines::{AuditOutcome, Lines, Moment};
use crate::client_name::write_client;
use crate::counting::{count, count_tried, count_undecided};
use crate::decide::claim::SharedQuestion;
use crate::decide::local::decide;
use crate::decide::overdue::charge_overdue;
use crate::decide::settle::{SettlingInStore, settle};
use crate::decide::shared_progress::{MustWait, Patience, SharedDecision, SharedProgress};
use crate::lease_client::LeaseClient;
use crate::limit_bucket::{LimitBucket, lacks_a_key, note_said};
use crate::question::{Question, Unanswerable};
use crate::reservations::{Reservation, Reserved, wall_ms};
use crate::stats::Lane;
use crate::undecided::Undecided;
use crate::unsettled;
use crate::verdict::{Reason, Verdict};

/// The values that a decision about a request needs.
#[derive(Clone, Copy)]
pub(crate) struct Deciding<'p, 't> {
    pub in_force: &'p ActivePolicies,
    pub table: &'t Table,
    /// The lease client and the leases of this host, if there is a store.
    pub borrowing: Option<(&'t LeaseClient, &'t Leases)>,
    pub undecided: &'t Undecided,
    pub lane: Lane,
    pub patience: Patience,
}

/// How far a request has got.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// How many of its messages are decided.
    messages: usize,
    /// The verdict on these.
    pub verdict: Option<Verdict>,
    /// The verdict on the next one, whose trial is still undecided.
    next: Option<Verdict>,
    pub(crate) so_far: SharedProgress,
    /// Whether the next message was asked about already, before the request had to wait.
    is_next_asked: bool,
    pub reserved: Reserved,
    /// Up to when HAProxy has reported requests without a decision.
    pub told: Option<i64>,
    /// The message with this verdict, if variables beside `blocked` are wanted.
    decider: Option<Decider>,
}

/// A message, and who its client is.
#[derive(Clone, Copy, Debug)]
struct Decider {
    /// The place of the message in its request.
    message: usize,
    policy: usize,
    key: KeyHash,
}

impl Progress {
    /// Whether a message that is decided blocks the request already.
    pub(crate) fn is_blocked(&self) -> bool {
        [self.verdict, self.next].iter().flatten().any(|verdict| verdict.is_blocked())
    }

    /// Writes the answer, once all messages are decided.
    #[inline(always)]
    pub(crate) fn answer(
        &self,
        in_force: &ActivePolicies,
        usages: &LimitUsages,
        messages: Messages<'_>,
        reply: &mut impl SetVars,
    ) {
        let Self { verdict, reserved, told, decider, .. } = self;
        let client = |name: &mut String| {
            if let Some(Decider { message, policy, key }) = *decider {
                let message = messages.clone().nth(message);
                write_client(name, &in_force.row(policy).policy, key, message);
            }
        };
        let ActivePolicies { policies, vars, .. } = in_force;
        Answer { policies, vars, verdict: *verdict, usages, reserved, client: &client }
            .write(reply);
        if let Some(told) = told {
            answer::write_told(*told, reply);
        }
    }
}

impl<'p> Deciding<'p, '_> {
    /// Decides about the messages that are still undecided. `first` is the question about the
    /// first of them, if it is known.
    ///
    /// # Errors
    ///
    /// The request has to wait. Decisions before that stay.
    pub(crate) fn go_on(
        self,
        messages: Messages<'_>,
        first: Option<Result<Question, Unanswerable>>,
        now: &mut Reading,
        progress: &mut Progress,
        mut usages: Option<&mut LimitUsages>,
        mut audit: Option<&mut Lines>,
    ) -> Result<(), MustWait> {
        let mut first = first;
        let is_named = usages.is_some();
        for message in messages.skip(progress.messages) {
            let question = match first.take() {
                Some(question) => question,
                None if progress.is_next_asked => {
                    Question::again(self.in_force, self.table, &message)
                }
                None => Question::new(self.in_force, self.table, &message),
            };
            progress.is_next_asked = true;
            match question {
                Ok(question) => {
                    let (usages, audit) = (usages.as_deref_mut(), audit.as_deref_mut());
                    let Self { in_force, table, lane, .. } = self;
                    let row = in_force.row(question.policy);
                    let next = if row.path.is_local() && audit.is_none() {
                        let (stats, message) = (row.stats.on(lane), || Some(message.clone()));
                        let next = decide(table, now, row, question, usages, None, message);
                        count(in_force, row, stats, question, next, message);
                        next
                    } else {
                        let asked = Asked { deciding: self, row, question, message: &message };
                        asked.verdict(now, progress, usages, audit)?
                    };
                    let verdict = progress.verdict;
                    let decides = verdict.is_none_or(|verdict| verdict.is_weaker_than(next));
                    if is_named && decides {
                        let Question { policy, key, .. } = question;
                        let message = progress.messages;
                        progress.decider = Some(Decider { message, policy, key });
                    }
                    progress.verdict = Some(verdict.map_or(next, |verdict| verdict.and(next)));
                }
                Err(why) => match why.settles(&self.in_force.policies, &message) {
                    Some(policy) => {
                        let (usages, audit) = (usages.as_deref_mut(), audit.as_deref_mut());
                        let so_far = &mut progress.so_far;
                        self.settle(policy, &message, now, so_far, usages, audit)?;
                    }
                    None if is_report(message.name) => {
                        progress.told = self.undecided.haproxy.hear(self.table, &message);
                    }
                    None => {
                        let Self { in_force, undecided, lane, .. } = self;
                        count_undecided(in_force, undecided, lane, why, &message);
                    }
                },
            }
            progress.messages += 1;
            progress.is_next_asked = false;
            if self.borrowing.is_some() {
                progress.so_far = SharedProgress::default();
            }
        }
        // A request that is blocked by another policy has no response.
        if progress.reserved.must_be_settled() && !progress.is_blocked() {
            unsettled::add(self.table, now, self.in_force, &progress.reserved);
        }
        Ok(())
    }

    /// Settles a request of the policy with this index, as the message of its response says.
    ///
    /// # Errors
    ///
    /// The message has to wait.
    #[cold]
    fn settle(
        self,
        policy: usize,
        message: &Message<'_>,
        now: &mut Reading,
        so_far: &mut SharedProgress,
        usages: Option<&mut LimitUsages>,
        audit: Option<&mut Lines>,
    ) -> Result<(), MustWait> {
        let Self { in_force, table, borrowing, undecided, lane, patience } = self;
        let asked = &in_force.row(policy).policy;
        let settled = match asked.shared {
            None => {
                let cells = settle(table, now, in_force, policy, message, usages);
                cells.map(|(charged, less)| (charged, less, None))
            }
            Some(sharing) => {
                let settling = SettlingInStore { table, in_force, borrowing, sharing, message };
                settling.settle(policy, so_far, patience, usages)?
            }
        };
        match settled {
            Some((charged, given_back, store_ns)) => {
                undecided.count_unsettled(asked, message);
                if let Some(lines) = audit {
                    let at = store_ns.map_or(Moment::Table(now.time()), Moment::Store);
                    let settled =
                        [(charged, AuditOutcome::Charged), (given_back, AuditOutcome::GivenBack)];
                    for (cells, outcome) in settled.into_iter().filter(|(cells, _)| *cells > 0) {
                        lines.add(table, at, asked, cells, outcome, message);
                    }
                }
            }
            None => {
                let why = Unanswerable::Undecided(policy);
                count_undecided(in_force, undecided, lane, why, message);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Asked<'p, 't, 'm> {
    deciding: Deciding<'p, 't>,
    /// That of the policy of the question.
    row: &'p ActivePolicy,
    question: Question,
    message: &'m Message<'m>,
}

impl<'p> Asked<'p, '_, '_> {
    fn policy(&self) -> &'p Policy {
        &self.row.policy
    }

    /// The verdict of the policy and its trial.
    fn verdict(
        self,
        now: &mut Reading,
        progress: &mut Progress,
        usages: Option<&mut LimitUsages>,
        mut audit: Option<&mut Lines>,
    ) -> Result<Verdict, MustWait> {
        let Question { rule, key, .. } = self.question;
        let Policy { trial, .. } = self.policy();
        let order = || self.row.order(key, self.message, now.time());
        let verdict = match progress.next {
            Some(verdict) => verdict,
            None => match order() {
                Some(order) => return Ok(self.obey(order.kind, now.time(), progress, audit)),
                None => self.decide(now, progress, usages, audit.as_deref_mut())?,
            },
        };
        let Some(trial) = trial.filter(|_| !rule.is_override()) else { return Ok(verdict) };
        let row = self.deciding.in_force.row(trial);
        let limits = row.policy.rule.limits();
        if row.reads_messages {
            if lacks_a_key(limits, self.message) {
                return Ok(verdict);
            }
            // The numbers of a trial are counted nowhere.
            note_said(self.deciding.table, limits, self.message).for_each(drop);
        }
        if progress.next.is_none() {
            progress.next = Some(verdict);
            progress.so_far = SharedProgress::default();
        }
        // The numbers of a trial would contradict the verdict.
        let question = Question { policy: trial, ..self.question };
        let tried = Self { row, question, ..self }.decide(now, progress, None, audit)?;
        progress.next = None;
        Ok(verdict.and(tried))
    }

    /// The verdict that an order says. Nothing is charged, and no trial is asked.
    #[cold]
    fn obey(
        self,
        order: OrderKind,
        now: Time,
        progress: &mut Progress,
        audit: Option<&mut Lines>,
    ) -> Verdict {
        let reason = match order {
            OrderKind::Exempt => None,
            OrderKind::Block => Some(Reason::Blocked),
        };
        let verdict = Verdict::new(self.question.policy, self.policy().observes, reason);
        let verdict = verdict.delaying(self.row.delays);
        self.count(verdict, None);
        self.row.stats.seldom.count_ordered(order);
        self.write(Moment::Table(now), audit, reason.map(|_| verdict));
        self.reserve(progress, None);
        verdict
    }

    /// The verdict of the policy of the question, counted and written down.
    fn decide(
        self,
        now: &mut Reading,
        progress: &mut Progress,
        usages: Option<&mut LimitUsages>,
        mut audit: Option<&mut Lines>,
    ) -> Result<Verdict, MustWait> {
        let Deciding { in_force, table, borrowing, patience, .. } = self.deciding;
        let Self { row, question, message, .. } = self;
        let policy = self.policy();
        // When its cells go on: that is what a limit is about.
        let mut goes_on = now.time();
        if policy.reserves() {
            let charged = charge_overdue(table, now, in_force, question, message);
            if charged > 0
                && let Some(lines) = audit.as_deref_mut()
            {
                let at = Moment::Table(now.time());
                lines.add(table, at, policy, charged, AuditOutcome::Charged, message);
            }
        }
        // Before anything is charged: a window may end meanwhile.
        let mut reserved = policy.reserves().then(|| self.reservation());
        let mut store_ns = None;
        let verdict = match (policy.shared, policy.rule(question.rule), borrowing) {
            (Some(sharing), Rule::Limits(limits), Some((lease_client, leases))) => {
                // A cell counts as spent at this moment, and may have been lent just now.
                *now = table.reading();
                let shared = SharedQuestion {
                    lease_client,
                    leases,
                    table,
                    in_force,
                    sharing,
                    question,
                    message,
                };
                let so_far = &mut progress.so_far;
                let decided = match sharing.at_once {
                    true => shared.decide_at_once(limits, now, so_far, patience, usages)?,
                    false => {
                        let reason = shared.decide(limits, now, so_far, patience, usages)?;
                        // It reserves nothing, because nothing settles it.
                        SharedDecision { reason, ..SharedDecision::default() }
                    }
                };
                let SharedDecision { reason, delay, .. } = decided;
                (reserved, store_ns) = (decided.reserved, decided.store_ns);
                goes_on = now.time().saturating_add(delay);
                let verdict = Verdict::new(question.policy, policy.observes, reason);
                verdict.after(delay).delaying(row.delays)
            }
            // The store was not there when the agent was started.
            (Some(_), Rule::Limits(_), None) => {
                Verdict::new(question.policy, policy.observes, Some(Reason::Store))
            }
            _ => {
                let message = || Some(message.clone());
                decide(table, now, row, question, usages, Some(&mut goes_on), message)
            }
        };
        self.count(verdict, progress.next);
        let at = store_ns.map_or(Moment::Table(goes_on), Moment::Store);
        self.write(at, audit, Some(verdict));
        let has_limits = !policy.rule(question.rule).limits().is_empty();
        self.reserve(progress, reserved.filter(|_| verdict.reason.is_none() && has_limits));
        Ok(verdict)
    }

    /// The reservation of the message if it is allowed now.
    fn reservation(&self) -> Reservation {
        let Self { question: Question { rule, key, cells, .. }, message, .. } = *self;
        let table = self.deciding.table;
        let must_be_settled = self.policy().settle().is_some_and(|it| it.unsettled.is_some());
        let mark =
            |limit: &Limit| LimitBucket::of(table, limit, key, Some(message)).mark(table, limit);
        let marks = self.policy().rule(rule).limits().iter().take(MAX_LIMITS).map(mark).collect();
        let client = must_be_settled.then_some(key);
        Reservation { cells, at: wall_ms(table), marks, client }
    }

    /// Notes what the message has reserved, if its policy reserves anything.
    fn reserve(&self, progress: &mut Progress, reserved: Option<Reservation>) {
        if self.policy().reserves() {
            progress.reserved.add(self.question.policy, reserved);
            self.deciding.undecided.count_unreserved(self.policy(), self.message);
        }
    }

    /// Counts the verdict. If it is that of a trial, `in_force` is the verdict of its policy.
    fn count(&self, verdict: Verdict, in_force: Option<Verdict>) {
        let (Self { row, question, message, .. }, verdict_in_force) = (*self, in_force);
        let Deciding { in_force, lane, .. } = self.deciding;
        match verdict_in_force {
            None => {
                let message = || Some(message.clone());
                count(in_force, row, row.stats.on(lane), question, verdict, message);
            }
            Some(first) => count_tried(in_force, row, lane, question, verdict, first, message),
        }
    }

    fn write(&self, at: Moment, audit: Option<&mut Lines>, verdict: Option<Verdict>) {
        if let Some(lines) = audit {
            let outcome = verdict.map(|verdict| verdict.outcome).into();
            let cells = self.question.cells;
            lines.add(self.deciding.table, at, self.policy(), cells, outcome, self.message);
        }
    }
}

//! From a request to its answer: which policy and which buckets its messages belong to, and
//! whether they conform.
//!
//! No socket, no task: an ordinary function of a request and a reading of the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use arrayvec::ArrayVec;
use gcra_table::{Admission, Decision, KeyHash, KeyHasher, Quota, Table};
use spop_agent::{Actions, Args, Handler, Limits, Message, Reply, Request, Value};

use crate::key::{write_lowercase, write_narrowed, write_part};
use crate::name::write_name;
use crate::past::{self, Past};
use crate::policy::answer::{Reason, Report, Standing};
use crate::policy::{Limit, MAX_LIMITS, Part, Policies, Policy, Rule, RuleAt};
use crate::stats::{Lane, Outcome, PolicyStats, Stats};

/// The limits of one request whose standing is told. Those of further messages count all the same.
const MAX_STANDINGS: usize = 2 * MAX_LIMITS;

/// The parts of a key that are told when a client is named.
const MAX_NAMED_PARTS: usize = 8;

/// Decides about requests by the policies in force.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The table in use. A resize puts another one in its place.
    table: Arc<ArcSwap<Table>>,
    /// What holds. A reload puts others in their place.
    policies: Arc<ArcSwap<InForce>>,
    unclear: Arc<Unclear>,
}

/// Policies, and where the decisions of each are counted.
#[derive(Debug)]
pub(crate) struct InForce {
    pub(crate) policies: Arc<Policies>,
    /// What was in force before, as long as somebody may owe something by it; the latest last.
    past: Vec<Past>,
    /// The usual case, in which deciding takes the fewest steps: the limit that the flags give,
    /// and nothing that is past.
    plain_quota: Option<Quota>,
    stats: Vec<Arc<PolicyStats>>,
    /// What is answered where only `blocked` is: when it is false, and when it is true.
    blocked: [Actions; 2],
}

impl InForce {
    /// A policy goes on with the counts that there are under its name. What keys owe by what was
    /// in force before, they owe on.
    fn new(policies: Arc<Policies>, past: Vec<Past>, stats: &Stats) -> Self {
        let stats = policies.list.iter().map(|policy| stats.policy(&policy.name)).collect();
        let blocked = [false, true].map(|blocked| {
            let mut actions = Actions::new();
            // It fits: a name has 56 characters at most.
            let _ =
                actions.set_var(policies.answers.scope, policies.answers.blocked, blocked.into());
            actions
        });
        let plain_quota = match &policies.list[..] {
            [Policy { rule: Rule::Limits(limits), .. }]
                if policies.is_fixed && past.is_empty() =>
            {
                limits.first().map(|limit| limit.quota)
            }
            _ => None,
        };
        Self { policies, past, plain_quota, stats, blocked }
    }

    /// The policies that a process starts with.
    pub(crate) fn at_start(policies: Policies, stats: &Stats, table: &Table) -> Self {
        let past = Past::at_start(&policies, table);
        Self::new(Arc::new(policies), past, stats)
    }

    /// What is to be in force instead, after a reload has read these policies.
    pub(crate) fn replaced_by(&self, policies: Policies, stats: &Stats, table: &Table) -> Self {
        let policies = Arc::new(policies);
        let past = Past::after(&self.past, &self.policies, &policies, table.now());
        past::register(&policies, table);
        Self::new(policies, past, stats)
    }

    /// The same without the past that nobody can owe anything by any more; `None` when there is
    /// none to leave out.
    pub(crate) fn without_old_past(&self, stats: &Stats, now: u64) -> Option<Self> {
        // Asked once a second, and there is seldom anything to leave out.
        if self.past.iter().all(|past| past.may_matter(now)) {
            return None;
        }
        let past = self.past.iter().filter(|past| past.may_matter(now)).cloned().collect();
        Some(Self::new(self.policies.clone(), past, stats))
    }
}

/// Messages that got no decision.
#[derive(Debug, Default)]
pub(crate) struct Unclear {
    /// An arg that makes the key was not there, or the cost was none.
    pub(crate) undecided: AtomicU64,
    /// No policy is for them.
    pub(crate) unmatched: AtomicU64,
}

impl Limiter {
    pub(crate) fn new(table: Arc<ArcSwap<Table>>, policies: Arc<ArcSwap<InForce>>) -> Self {
        Self { table, policies, unclear: Arc::default() }
    }

    /// Where only `blocked` is answered, the largest ACK is known, and small: so HAProxy may keep
    /// 20 NOTIFYs in flight whatever its buffers. More answers fit the library's default, as
    /// reading the file has made sure.
    pub(crate) fn limits(policies: &Policies) -> Limits {
        // Type, flags and two ids of ten bytes; then action, count, scope, length, name and value.
        const HEADER: usize = 1 + 4 + 10 + 10;
        let action = 4 + policies.answers.blocked.as_str().len() + 1;
        match u32::try_from(HEADER + action) {
            Ok(max_ack_size) if policies.is_fixed => Limits { max_ack_size, ..Limits::default() },
            _ => Limits::default(),
        }
    }

    /// Counts the messages that got no decision.
    pub(crate) fn unclear(&self) -> Arc<Unclear> {
        self.unclear.clone()
    }

    /// What is asked about a message; `None` when no policy is for it, when it lacks an arg of the
    /// key, or when its cost is none.
    #[inline(always)]
    fn question(
        table: &Table,
        policies: &Policies,
        message: &Message<'_>,
    ) -> Result<Question, NoQuestion> {
        let args = message.args();
        let index = policies.of(&message.clone()).ok_or(NoQuestion::Unmatched)?;
        let policy = &policies.list[index];
        let cells = match &policy.cost {
            None => 1,
            Some(name) => cells(message.arg(name).unwrap_or(Value::Null))
                .ok_or(NoQuestion::Undecided(index))?,
        };
        let (parts, exception) = match policy.is_plain {
            true => hash_plain(table.hasher(), policy, args).map(|parts| (parts, None)),
            // Both are copies, so that the path without them keeps message and hasher in
            // registers.
            false => hash_parts(table.hasher(), policy, &message.clone()),
        }
        .ok_or(NoQuestion::Undecided(index))?;
        let rule = RuleAt::new(exception);
        Ok(Question { policy: index, rule, cells, parts })
    }

    /// Whether a message conforms: `None`, or why not. Tells what each limit says of its key,
    /// where somebody wants to know.
    #[inline]
    fn verdict<'p>(
        table: &Table,
        now: &mut u64,
        InForce { policies, past, .. }: &'p InForce,
        question: &Question,
        message: &Message<'_>,
        standings: Option<&mut Standings<'p>>,
    ) -> Option<Reason> {
        let policy = &policies.list[question.policy];
        let limits = match policy.rule(question.rule) {
            Rule::Deny => return Some(Reason::Denied),
            Rule::Unlimited => return None,
            Rule::Limits(limits) => limits,
        };
        let claim = |limit: &'p Limit| {
            let key = key_of(table, question.parts, limit.id);
            // Only a copy of the message is lent, as above.
            let least_tat = match &past[..] {
                [] => 0,
                past => least_tat(past, table, question, limit, key, &message.clone()),
            };
            Claim { limit, key, least_tat }
        };
        let mut asked = Asked { table, now, policy, cells: question.cells };
        if let [limit] = &limits[..] {
            let claim = claim(limit);
            let (mut standing, reason, _) = asked.charge(&claim);
            if reason.is_some() {
                asked.punish(&claim, &mut standing);
            }
            if let Some(standings) = standings {
                let _ = standings.try_push(standing);
            }
            return reason;
        }
        let claims: ArrayVec<_, MAX_LIMITS> = limits.iter().take(MAX_LIMITS).map(claim).collect();
        let (each, reason) = asked.charge_all(&claims);
        if let Some(standings) = standings {
            let room = standings.remaining_capacity();
            standings.extend(each.into_iter().take(room));
        }
        reason
    }
}

type Standings<'p> = ArrayVec<Standing<'p>, MAX_STANDINGS>;

/// A limit of the rule that holds for a message, and the key that it counts by.
#[derive(Clone, Copy, Debug)]
struct Claim<'p> {
    limit: &'p Limit,
    key: KeyHash,
    /// The TAT that the key has at least, by what it owed under earlier numbers.
    least_tat: u64,
}

/// What a key owes by what was in force before, as the least TAT that it has under this limit.
#[cold]
fn least_tat(
    past: &[Past],
    table: &Table,
    Question { policy, rule, .. }: &Question,
    limit: &Limit,
    key: KeyHash,
    message: &Message<'_>,
) -> u64 {
    let (mut before, mut least_tat) = (None, 0);
    for past in past {
        before =
            past.owed(table, before, *policy, rule.is_exception(), limit, key, message).or(before);
        // Not only by the latest: a limit with a small burst between two with larger ones forgives
        // nothing.
        least_tat = least_tat.max(before.map_or(0, |before| before.least_tat(limit.quota)));
    }
    least_tat
}

/// One message's charge.
struct Asked<'t, 'p> {
    table: &'t Table,
    now: &'t mut u64,
    policy: &'p Policy,
    cells: u32,
}

impl<'p> Asked<'_, 'p> {
    /// Charges one limit, if the cells conform.
    #[inline]
    fn charge(&mut self, claim: &Claim<'p>) -> (Standing<'p>, Option<Reason>, Decision) {
        let Claim { limit, key, least_tat } = *claim;
        let decision = self.table.charge_owing(key, limit.quota, self.cells, self.now, least_tat);
        let reason = match (decision.is_allowed(), decision.retry_after_ns()) {
            (true, _) => None,
            (false, Some(_)) => Some(Reason::Limit),
            (false, None) => Some(Reason::Oversize),
        };
        // What costs more than the burst never passes; one burst later it will still not have
        // passed.
        let never = if reason.is_some() { limit.quota.drain_ns() } else { 0 };
        let wait_ns = decision.retry_after_ns().unwrap_or(never);
        (Standing { limit, owed_ns: decision.owed_ns(), wait_ns }, reason, decision)
    }

    /// Charges all limits, or none.
    ///
    /// Looks at all of them first, so that a client who is denied by one does not keep writing to
    /// the others, and learns how long to wait for all. When somebody else was faster between
    /// the look and the charge, what was charged is given back.
    fn charge_all(
        &mut self,
        claims: &[Claim<'p>],
    ) -> (ArrayVec<Standing<'p>, MAX_LIMITS>, Option<Reason>) {
        let mut standings = ArrayVec::<_, MAX_LIMITS>::new();
        let mut reason = None;
        for claim in claims {
            let (mut standing, denied) = self.look(claim);
            if denied.is_some() {
                self.punish(claim, &mut standing);
            }
            standings.push(standing);
            reason = reason.or(denied);
        }
        if reason.is_some() || self.cells == 0 {
            return (standings, reason);
        }
        let mut charged = ArrayVec::<Decision, MAX_LIMITS>::new();
        for (place, claim) in claims.iter().enumerate() {
            let (standing, denied, decision) = self.charge(claim);
            standings[place] = standing;
            if denied.is_none() {
                charged.push(decision);
                continue;
            }
            self.punish(claim, &mut standings[place]);
            for (place, (claim, decision)) in claims.iter().zip(&charged).enumerate() {
                // Too late to give back is too strict for a moment, and never too generous.
                let _ = self.table.refund(claim.key, claim.limit.quota, self.cells, decision);
                standings[place] = self.look(claim).0;
            }
            return (standings, denied);
        }
        (standings, None)
    }

    /// What a charge would say now.
    fn look(&mut self, claim: &Claim<'p>) -> (Standing<'p>, Option<Reason>) {
        let Claim { limit, key, least_tat } = *claim;
        let tat = self.table.tat(key, limit.quota).max(least_tat);
        let mut owed_ns = tat.saturating_sub(*self.now);
        if owed_ns > limit.quota.most_owed_ns() {
            // The slot is damaged, or was charged at a later reading of the clock. The charge will
            // tell.
            owed_ns = limit.quota.burst_tolerance_ns();
        }
        self.standing(limit, owed_ns)
    }

    /// What a limit says of the cells for a key that owes so much.
    fn standing(&self, limit: &'p Limit, owed_ns: u64) -> (Standing<'p>, Option<Reason>) {
        let (wait_ns, reason) = match limit.quota.admit(owed_ns, 0, self.cells) {
            Admission::Conforming { .. } => (0, None),
            Admission::Early { wait_ns } => (wait_ns, Some(Reason::Limit)),
            Admission::Oversize => (limit.quota.drain_ns(), Some(Reason::Oversize)),
        };
        (Standing { limit, owed_ns, wait_ns }, reason)
    }

    /// Charges a client that goes on asking while it is blocked, up to the ceiling, and brings
    /// what it is told up to date: a client that waits as long as it is told must get in.
    fn punish(&mut self, claim: &Claim<'p>, standing: &mut Standing<'p>) {
        let (Some(penalty), false) = (self.policy.penalty, self.policy.observes) else { return };
        let Claim { limit, key, least_tat } = *claim;
        let quota = limit.quota.punishing();
        let decision = self.table.charge_owing(key, quota, penalty.cells, self.now, least_tat);
        // Beyond the ceiling nothing more is charged, and what is owed stays.
        if decision.is_allowed() {
            *standing = self.standing(limit, decision.owed_ns()).0;
        }
    }
}

/// Why there is nothing to ask about a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoQuestion {
    NoMessage,
    Unmatched,
    /// By the policy at this place.
    Undecided(usize),
}

/// What is asked about a message: by which rule, about whom, and how many cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    policy: usize,
    rule: RuleAt,
    cells: u32,
    /// The hash of the key's parts.
    parts: KeyHash,
}

/// The key by which the limit with this id counts.
#[inline]
pub(crate) fn key_of(table: &Table, parts: KeyHash, limit: u64) -> KeyHash {
    if limit == 0 { parts } else { table.derive(parts, limit) }
}

/// Hashes the parts of a key as they are. `None` when one is not there.
#[inline(always)]
fn hash_plain(mut hasher: KeyHasher, policy: &Policy, args: Args<'_>) -> Option<KeyHash> {
    for name in &policy.key.args {
        write_part(&mut hasher, args.clone().find(|arg| arg.name == &**name)?.value);
    }
    if policy.key.args.is_empty() {
        // A loop of its own: `for_each` would not be inlined.
        for arg in args {
            write_part(&mut hasher, arg.value);
        }
    }
    Some(hasher.finish())
}

/// Hashes the parts of a key, some left out, some grouped, and finds the rule of the exception
/// that one of them may be.
#[inline(never)]
pub(crate) fn hash_parts(
    mut hasher: KeyHasher,
    policy: &Policy,
    message: &Message<'_>,
) -> Option<(KeyHash, Option<u32>)> {
    let exception = policy.for_each_part(message, |Part { value, narrowed }| {
        match value {
            Value::String(bytes) if policy.key.lowercase => write_lowercase(&mut hasher, bytes),
            value => write_part(&mut hasher, value),
        }
        if let Some(prefix) = narrowed {
            write_narrowed(&mut hasher, prefix);
        }
    })?;
    Some((hasher.finish(), exception))
}

/// Writes what the client of a message is called.
#[cold]
fn write_client(
    name: &mut String,
    policy: &Policy,
    client: KeyHash,
    message: Option<Message<'_>>,
) {
    let mut parts = ArrayVec::<Value<'_>, MAX_NAMED_PARTS>::new();
    if let Some(message) = message {
        // What is beyond them is left out of the name, and of nothing else.
        let _ = policy.for_each_part(&message, |part| {
            let _ = parts.try_push(part.value);
        });
    }
    write_name(name, client, parts);
}

/// The cells that a cost stands for. Null, which HAProxy sends for what it could not find, is one
/// cell as it would be without a cost; what is negative or no integer is no cost.
fn cells(cost: Value<'_>) -> Option<u32> {
    let cells = match cost {
        Value::Null => 1,
        Value::Int32(integer) => integer.try_into().ok()?,
        Value::Int64(integer) => integer.try_into().ok()?,
        Value::Uint32(integer) => integer.into(),
        Value::Uint64(integer) => integer,
        Value::Bool(_) | Value::Ipv4(_) | Value::Ipv6(_) | Value::String(_) | Value::Binary(_) => {
            return None;
        }
    };
    // Still more than any burst but the largest there can be.
    Some(u32::try_from(cells).unwrap_or(u32::MAX))
}

/// What is read once for everything that came in one read.
#[derive(Debug)]
pub(crate) struct Turn {
    table: Guard<Arc<Table>>,
    in_force: Guard<Arc<InForce>>,
    now: u64,
    lane: Lane,
}

impl Handler for Limiter {
    type Turn = Turn;

    /// What is asked about the first message. Its buckets are on their way from memory.
    type Prepared = Result<Question, NoQuestion>;

    #[inline]
    fn turn(&self) -> Turn {
        let table = self.table.load();
        let now = table.now();
        Turn { table, in_force: self.policies.load(), now, lane: Lane::of_this_thread() }
    }

    #[inline(always)]
    fn prepare(&self, turn: &mut Turn, request: &Request<'_>) -> Self::Prepared {
        let (table, InForce { policies, plain_quota, .. }) = (&turn.table, &**turn.in_force);
        let message = request.messages().next().ok_or(NoQuestion::NoMessage)?;
        let question = Self::question(table, policies, &message)?;
        if let Some(quota) = plain_quota {
            table.prefetch(question.parts, *quota);
        } else {
            for limit in policies.list[question.policy].rule(question.rule).limits() {
                table.prefetch(key_of(table, question.parts, limit.id), limit.quota);
            }
        }
        Ok(question)
    }

    /// Every message is charged; the request is blocked when one of them is. Where no message
    /// could be decided nothing is set, and HAProxy's rules see that the variable is missing.
    #[inline(always)]
    fn answer(
        &self,
        turn: &mut Turn,
        first: Self::Prepared,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    ) {
        let Turn { table, in_force, now, lane } = turn;
        let InForce { policies, plain_quota, stats, blocked: answers, .. } = &***in_force;
        // Taken apart, and moved below: a reference to a part would have it all copied to the
        // stack and wait there.
        if let Ok(Question { policy: index, cells, parts, .. }) = first
            && let Some(quota) = plain_quota
            && request.messages().len() == 1
        {
            let policy = &policies.list[index];
            let blocked = !table.charge(parts, *quota, cells, now).is_allowed();
            let outcome = if blocked { Outcome::Blocked } else { Outcome::Allowed };
            stats[index].count(*lane, outcome, parts, move |name| {
                write_client(name, policy, parts, request.messages().next());
            });
            // It fits: `limits` counted it.
            let _ = reply.append(&answers[usize::from(blocked)]);
            return;
        }
        self.answer_any(turn, first, request, reply);
    }
}

impl Limiter {
    /// As [`answer`](Self::answer), whatever is asked.
    #[inline(never)]
    fn answer_any(
        &self,
        turn: &mut Turn,
        first: Result<Question, NoQuestion>,
        request: &Request<'_>,
        reply: &mut Reply<'_>,
    ) {
        let Turn { table, in_force, now, lane } = turn;
        let InForce { policies, stats, .. } = &***in_force;
        let answers = &policies.answers;
        let wants_standings = !answers.others.is_empty();
        let mut standings = Standings::new();
        let mut report = None::<Report<'_>>;
        let mut first = Some(first);
        for message in request.messages() {
            let question = match first.take() {
                Some(question) => question,
                None => Self::question(table, policies, &message),
            };
            let question = match question {
                Ok(question) => question,
                Err(why) => {
                    if let NoQuestion::Undecided(policy) = why {
                        stats[policy].count_undecided(*lane);
                    }
                    self.unclear.count(why);
                    continue;
                }
            };
            let policy = &policies.list[question.policy];
            let wanted = wants_standings.then_some(&mut standings);
            let reason = Self::verdict(table, now, in_force, &question, &message, wanted);
            let outcome = match reason {
                None => Outcome::Allowed,
                Some(_) if policy.observes => Outcome::WouldBlock,
                Some(_) => Outcome::Blocked,
            };
            stats[question.policy].count(*lane, outcome, question.parts, |name| {
                write_client(name, policy, question.parts, Some(message));
            });
            let verdict = Report {
                blocked: reason.is_some() && !policy.observes,
                would_block: reason.is_some(),
                policy: &policy.name,
                reason,
            };
            report = Some(report.map_or(verdict, |report| report.and(verdict)));
        }
        if let Some(report) = report {
            // Where it does not fit, the file's reader counted wrong: what was written stays.
            let _ = answers.write(&report, &standings, reply);
        }
    }
}

impl Unclear {
    #[cold]
    fn count(&self, why: NoQuestion) {
        let counter = match why {
            NoQuestion::NoMessage => return,
            NoQuestion::Unmatched => &self.unmatched,
            NoQuestion::Undecided(_) => &self.undecided,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_whole_number_of_any_type() {
        let costs = [3_i32.into(), 3_u32.into(), 3_i64.into(), 3_u64.into()];
        assert_eq!(costs.map(cells), [Some(3); 4]);
        assert_eq!([cells(0_i32.into()), cells(0_u64.into())], [Some(0); 2], "a peek");
        assert_eq!(cells(Value::Null), Some(1));
    }

    #[test]
    fn a_cost_beyond_the_tables_largest_is_the_largest() {
        assert_eq!(cells(u64::from(u32::MAX).into()), Some(u32::MAX));
        assert_eq!(cells((1_i64 << 32).into()), Some(u32::MAX));
        assert_eq!(cells(u64::MAX.into()), Some(u32::MAX));
    }

    #[test]
    fn what_is_negative_or_no_integer_is_no_cost() {
        for value in [(-1_i32).into(), i64::MIN.into(), true.into(), "3".into(), b"3"[..].into()] {
            assert_eq!(cells(value), None, "{value:?}");
        }
    }
}

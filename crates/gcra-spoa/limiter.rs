//! From a request to its answer: which policy and which buckets its messages belong to, and whether they conform.
//!
//! No socket, no task: an ordinary function of a request and a reading of the clock.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use arrayvec::ArrayVec;
use gcra_table::{Admission, Decision, KeyHash, KeyHasher, Quota, Table};
use spop_agent::{Actions, Args, Handler, Limits, Message, Reply, Request, Value};

use crate::key::{write_lowercase, write_part};
use crate::name::write_name;
use crate::policy::answer::{Reason, Report, Standing};
use crate::policy::{KeyParts, Limit, MAX_LIMITS, Policies, Policy, Rule, RuleAt};
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
    pub(crate) policies: Policies,
    stats: Vec<Arc<PolicyStats>>,
    /// What is answered where only `blocked` is: when it is false, and when it is true.
    blocked: [Actions; 2],
}

impl InForce {
    /// A policy goes on with the numbers that there are under its name.
    pub(crate) fn new(policies: Policies, stats: &Stats) -> Self {
        let stats = policies.list.iter().map(|policy| stats.policy(&policy.name)).collect();
        let blocked = [false, true].map(|blocked| {
            let mut actions = Actions::new();
            // It fits: a name has 56 characters at most.
            let _ = actions.set_var(policies.answers.scope, policies.answers.blocked, blocked.into());
            actions
        });
        Self { policies, stats, blocked }
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

    /// Where only `blocked` is answered, the largest ACK is known, and small: so HAProxy may keep 20 NOTIFYs in flight whatever its
    /// buffers. More answers fit the library's default, as reading the file has made sure.
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

    /// What is asked about a message; `None` when no policy is for it, when it lacks an arg of the key, or when its cost is none.
    #[inline(always)]
    fn question(table: &Table, policies: &Policies, message: &Message<'_>) -> Result<Question, NoQuestion> {
        let args = message.args();
        let index = policies.of(&message.clone()).ok_or(NoQuestion::Unmatched)?;
        let policy = &policies.list[index];
        let cells = match &policy.cost {
            None => 1,
            Some(name) => {
                cells(message.arg(name).unwrap_or(Value::Null)).ok_or(NoQuestion::Undecided(index))?
            }
        };
        let (parts, exception) = match policy.is_plain {
            true => hash_plain(table.hasher(), policy, args).map(|parts| (parts, None)),
            // Both are copies, so that the path without them keeps message and hasher in registers.
            false => hash_parts(table.hasher(), policy, &message.clone()),
        }
        .ok_or(NoQuestion::Undecided(index))?;
        let rule = RuleAt::new(exception);
        Ok(Question { policy: index, rule, cells, parts })
    }

    /// Whether a message conforms: `None`, or why not. Tells what each limit says of its key, where somebody wants to know.
    #[inline]
    fn verdict<'p>(
        table: &Table,
        now: &mut u64,
        policy: &'p Policy,
        question: &Question,
        standings: Option<&mut Standings<'p>>,
    ) -> Option<Reason> {
        let mut asked = Asked { table, now, policy, cells: question.cells };
        let limits = match policy.rule(question.rule) {
            Rule::Deny => return Some(Reason::Denied),
            Rule::Unlimited => return None,
            Rule::Limits(limits) => limits,
        };
        if let [limit] = &limits[..] {
            let key = key_of(table, question.parts, limit);
            let (standing, reason, _) = asked.charge(limit, key);
            if let Some(standings) = standings {
                let _ = standings.try_push(standing);
            }
            if reason.is_some() {
                asked.punish(limit, key);
            }
            return reason;
        }
        let keys: ArrayVec<_, MAX_LIMITS> =
            limits.iter().take(MAX_LIMITS).map(|limit| key_of(table, question.parts, limit)).collect();
        let (each, reason) = asked.charge_all(limits, &keys);
        if let Some(standings) = standings {
            let room = standings.remaining_capacity();
            standings.extend(each.into_iter().take(room));
        }
        reason
    }
}

type Standings<'p> = ArrayVec<Standing<'p>, MAX_STANDINGS>;

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
    fn charge(&mut self, limit: &'p Limit, key: KeyHash) -> (Standing<'p>, Option<Reason>, Decision) {
        let decision = self.table.charge(key, limit.quota, self.cells, self.now);
        let reason = match (decision.is_allowed(), decision.retry_after_ns()) {
            (true, _) => None,
            (false, Some(_)) => Some(Reason::Limit),
            (false, None) => Some(Reason::Oversize),
        };
        // What costs more than the burst never passes; one burst later it will still not have passed.
        let never = if reason.is_some() { limit.quota.drain_ns() } else { 0 };
        let wait_ns = decision.retry_after_ns().unwrap_or(never);
        (Standing { limit, owed_ns: decision.owed_ns(), wait_ns }, reason, decision)
    }

    /// Charges all limits, or none.
    ///
    /// Looks at all of them first, so that a client who is denied by one does not keep writing to the others, and learns how long to
    /// wait for all. When somebody else was faster between the look and the charge, what was charged is given back.
    fn charge_all(
        &mut self,
        limits: &'p [Limit],
        keys: &[KeyHash],
    ) -> (ArrayVec<Standing<'p>, MAX_LIMITS>, Option<Reason>) {
        let mut standings = ArrayVec::<_, MAX_LIMITS>::new();
        let mut reason = None;
        for (limit, key) in limits.iter().zip(keys) {
            let (standing, denied) = self.look(limit, *key);
            standings.push(standing);
            if denied.is_some() {
                self.punish(limit, *key);
            }
            reason = reason.or(denied);
        }
        if reason.is_some() || self.cells == 0 {
            return (standings, reason);
        }
        let mut charged = ArrayVec::<(KeyHash, Quota, Decision), MAX_LIMITS>::new();
        for ((limit, key), standing) in limits.iter().zip(keys).zip(&mut standings) {
            let (now, denied, decision) = self.charge(limit, *key);
            *standing = now;
            if denied.is_some() {
                for (key, quota, decision) in charged {
                    // Too late to give back is too strict for a moment, and never too generous.
                    let _ = self.table.refund(key, quota, self.cells, &decision);
                }
                return (standings, denied);
            }
            charged.push((*key, limit.quota, decision));
        }
        (standings, None)
    }

    /// What a charge would say now.
    fn look(&mut self, limit: &'p Limit, key: KeyHash) -> (Standing<'p>, Option<Reason>) {
        let quota = limit.quota;
        let mut owed_ns = self.table.owed_ns(key, *self.now);
        if owed_ns > quota.most_owed_ns() {
            // By an older quota, or by a later reading of the clock. The charge will tell.
            owed_ns = quota.burst_tolerance_ns();
        }
        let (wait_ns, reason) = match quota.admit(owed_ns, 0, self.cells) {
            Admission::Conforming { .. } => (0, None),
            Admission::Early { wait_ns } => (wait_ns, Some(Reason::Limit)),
            Admission::Oversize => (quota.drain_ns(), Some(Reason::Oversize)),
        };
        (Standing { limit, owed_ns, wait_ns }, reason)
    }

    /// Charges a client who goes on asking while it is blocked, up to the ceiling.
    fn punish(&mut self, limit: &Limit, key: KeyHash) {
        let (Some(penalty), false) = (self.policy.penalty, self.policy.observes) else { return };
        // Beyond the ceiling nothing more is charged.
        let _ = self.table.charge(key, limit.quota.punishing(), penalty.cells, self.now);
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

/// The bucket of a key under one limit.
#[inline]
fn key_of(table: &Table, parts: KeyHash, limit: &Limit) -> KeyHash {
    if limit.suffix.is_empty() { parts } else { table.derive(parts, &limit.suffix) }
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

/// Hashes the parts of a key, some left out, some grouped, and finds out whether one of them is an exception.
#[inline(never)]
fn hash_parts(
    mut hasher: KeyHasher,
    policy: &Policy,
    message: &Message<'_>,
) -> Option<(KeyHash, Option<u32>)> {
    let mut exception = None;
    policy.for_each_part(message, |value| {
        exception = exception.or_else(|| policy.exception(value));
        write_grouped(&mut hasher, &policy.key, value);
    })?;
    Some((hasher.finish(), exception))
}

/// Writes what the client of a message is called.
#[cold]
fn write_client(name: &mut String, policy: &Policy, client: KeyHash, message: Option<Message<'_>>) {
    let mut parts = ArrayVec::<Value<'_>, MAX_NAMED_PARTS>::new();
    if let Some(message) = message {
        // What is beyond them is left out of the name, and of nothing else.
        let _ = policy.for_each_part(&message, |value| {
            let _ = parts.try_push(grouped(&policy.key, value));
        });
    }
    write_name(name, client, parts);
}

/// An address as the policy groups it.
fn grouped<'a>(key: &KeyParts, value: Value<'a>) -> Value<'a> {
    match value {
        Value::Ipv4(ip) => Value::Ipv4(network_v4(ip, key.ipv4_prefix)),
        Value::Ipv6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => Value::Ipv4(network_v4(ip, key.ipv4_prefix)),
            None => Value::Ipv6(network_v6(ip, key.ipv6_prefix)),
        },
        value => value,
    }
}

/// Writes a part of the key, as the policy groups it.
fn write_grouped(hasher: &mut KeyHasher, key: &KeyParts, value: Value<'_>) {
    match value {
        Value::String(bytes) if key.lowercase => write_lowercase(hasher, bytes),
        value => write_part(hasher, grouped(key, value)),
    }
}

fn network_v4(ip: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    (u32::from(ip) & mask).into()
}

fn network_v6(ip: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    (u128::from(ip) & mask).into()
}

/// The cells that a cost stands for. Null, which HAProxy sends for what it could not find, is one cell as it would be without
/// a cost; what is negative or no integer is no cost.
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
        let (table, policies) = (&turn.table, &turn.in_force.policies);
        let message = request.messages().next().ok_or(NoQuestion::NoMessage)?;
        let question = Self::question(table, policies, &message)?;
        if policies.is_fixed {
            table.prefetch(question.parts);
        } else {
            for limit in policies.list[question.policy].rule(question.rule).limits() {
                table.prefetch(key_of(table, question.parts, limit));
            }
        }
        Ok(question)
    }

    /// Every message is charged; the request is blocked when one of them is. Where no message could be decided nothing
    /// is set, and HAProxy's rules see that the variable is missing.
    #[inline(always)]
    fn answer(&self, turn: &mut Turn, first: Self::Prepared, request: &Request<'_>, reply: &mut Reply<'_>) {
        let Turn { table, in_force, now, lane } = turn;
        let InForce { policies, stats, blocked: answers } = &***in_force;
        // The usual case in the fewest steps: the flags' one policy, and one message.
        // Taken apart, and moved below: a reference to a part would have it all copied to the stack and wait there.
        if let Ok(Question { policy: index, cells, parts, .. }) = first
            && policies.is_fixed
            && request.messages().len() == 1
        {
            let policy = &policies.list[index];
            let blocked = match &policy.rule {
                Rule::Limits(limits) => !table.charge(parts, limits[0].quota, cells, now).is_allowed(),
                Rule::Deny => true,
                Rule::Unlimited => false,
            };
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
            let reason = Self::verdict(table, now, policy, &question, wanted);
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

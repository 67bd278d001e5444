//! [`InProcess`]: decides about requests in the process that has them. No frame comes and no ACK
//! leaves; the policies, the keys, the buckets and the counters are those of an agent.

// ADR 54: Asking less is gone: HAProxy decides in the same table.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use gcra_policy::haproxy::report::is_report;
use gcra_policy::{Policies, RuleAt};
use gcra_table::{Nanos, Reading, Table};
use spop_agent::{Message, Value};
use spop_codec::haproxy::NotifyWriter;
use spop_codec::{Frame, FrameId, Messages, decode};

use crate::active_policies::{ActivePolicies, ActivePolicy, DecisionPath, Hashing, SingleCharge};
use crate::answer::{LimitUsages, SetVars};
use crate::counting::count;
use crate::decide::local::reason_of;
use crate::decide::request::{Deciding, Progress};
use crate::decide::shared_progress::Patience;
use crate::message_key::hash_key;
use crate::question::Question;
use crate::shaped::hash_as_sent;
use crate::stats::Lane;
use crate::undecided::Undecided;
use crate::verdict::{Reason, Verdict};

/// The state that decides.
#[derive(Debug)]
pub struct InProcess {
    /// The table in use. A resize puts another one in its place.
    pub table: Arc<ArcSwap<Table>>,
    pub in_force: Arc<ArcSwap<ActivePolicies>>,
    pub undecided: Arc<Undecided>,
}

/// The table and the policies that a thread has found in force. A thread looks each time whether
/// they still are, which costs less than to load them. What is no longer in force is kept until
/// the thread asks again.
#[derive(Debug)]
pub struct FoundPolicies {
    lane: Lane,
    table: Cache<Arc<ArcSwap<Table>>, Arc<Table>>,
    in_force: Cache<Arc<ArcSwap<ActivePolicies>>, Arc<ActivePolicies>>,
}

/// A request that is asked about.
#[derive(Clone, Copy, Debug)]
pub struct AskedRequest<'a> {
    /// The name that a message about it would have; `None` for the one of the only policy.
    pub message: Option<&'a [u8]>,
    /// The args of that message. If there is one without a name, it is the arg of the key.
    pub args: &'a [(&'a [u8], Value<'a>)],
}

/// How long a request has to wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaitInProcess {
    /// It is not known: nothing could be decided.
    Undecided,
    /// It is allowed.
    Allowed,
    /// It is blocked, and the same request would be allowed after this time, or the order about
    /// its client ends then.
    After(Nanos),
    /// It is blocked, and always will be.
    Never,
}

impl WaitInProcess {
    fn of(verdict: Option<Verdict>, usages: &LimitUsages) -> Self {
        match verdict {
            None => Self::Undecided,
            Some(verdict) if !verdict.is_blocked() => Self::Allowed,
            Some(verdict) => match usages.wait() {
                Some(wait) if verdict.may_come_back() => Self::After(wait),
                _ => Self::Never,
            },
        }
    }
}

impl InProcess {
    /// What is in force now, for the [`wait`](Self::wait)s of a thread.
    pub fn found_in_force(&self) -> FoundPolicies {
        let (table, in_force) =
            (Cache::new(self.table.clone()), Cache::new(self.in_force.clone()));
        FoundPolicies { lane: Lane::of_this_thread(), table, in_force }
    }

    /// Decides about a request, and charges it. The message about it is written to `buffer` where
    /// it is needed; if it is larger than that, nothing is decided.
    ///
    /// `found` is of this limiter and of the calling thread.
    #[inline(always)]
    pub fn wait(
        &self,
        found: &mut FoundPolicies,
        asked: AskedRequest<'_>,
        buffer: &mut [u8],
    ) -> WaitInProcess {
        let (table, in_force) = (&**found.table.load(), &**found.in_force.load());
        let mut now = table.reading();
        match single(in_force, &asked) {
            Some((policy, row, single, value)) => {
                let (key, rule) = (hash_as_sent(table, value), RuleAt::new(None));
                let question = Question { policy, rule, cells: 1, key };
                let policies = &in_force.policies;
                let charge = ChargeSingle { table, in_force, row, lane: found.lane, single };
                charge.wait(&mut now, question, || written(policies, asked, buffer)?.next())
            }
            None => self.wait_of_message(table, in_force, &mut now, asked, buffer),
        }
    }

    /// The same for all other requests.
    #[inline(never)]
    fn wait_of_message(
        &self,
        table: &Table,
        in_force: &ActivePolicies,
        now: &mut Reading,
        asked: AskedRequest<'_>,
        buffer: &mut [u8],
    ) -> WaitInProcess {
        let Some(messages) = written(&in_force.policies, asked, buffer) else {
            return WaitInProcess::Undecided;
        };
        let Some(message) = messages.clone().next() else { return WaitInProcess::Undecided };
        let question = Question::new(in_force, table, &message);
        if let Ok(question) = question
            && let row = in_force.row(question.policy)
            && let DecisionPath::SingleCharge(single) = &row.path
        {
            let lane = Lane::of_this_thread();
            let charge = ChargeSingle { table, in_force, row, lane, single };
            return charge.wait(now, question, || Some(message));
        }
        let (mut usages, mut progress) = (LimitUsages::default(), Progress::default());
        let deciding = self.deciding(table, in_force);
        let usage = Some(&mut usages);
        // Nothing is shared, so that it never waits.
        let asked = messages.clone();
        let _ = deciding.go_on(asked, Some(question), now, &mut progress, usage, None);
        wait_after(table, in_force, messages, progress.verdict, &usages)
    }

    /// Decides about a request, charges it, and sets the variables that an agent sets. Where
    /// `blocked` is the only one, the wait of a blocked request is not known, and
    /// [`WaitInProcess::Never`].
    pub fn answer(
        &self,
        asked: AskedRequest<'_>,
        buffer: &mut [u8],
        reply: &mut impl SetVars,
    ) -> WaitInProcess {
        let (table, in_force) = (self.table.load(), self.in_force.load());
        let Some(messages) = written(&in_force.policies, asked, buffer) else {
            return WaitInProcess::Undecided;
        };
        let (mut usages, mut progress) = (LimitUsages::default(), Progress::default());
        let wanted = Some(&mut usages);
        let deciding = self.deciding(&table, &in_force);
        let (asked, mut now) = (messages.clone(), table.reading());
        let _ = deciding.go_on(asked, None, &mut now, &mut progress, wanted, None);
        progress.answer(&in_force, &usages, messages.clone(), reply);
        wait_after(&table, &in_force, messages, progress.verdict, &usages)
    }

    fn deciding<'p, 't>(
        &'t self,
        table: &'t Table,
        in_force: &'p ActivePolicies,
    ) -> Deciding<'p, 't> {
        let (undecided, lane) = (&*self.undecided, Lane::of_this_thread());
        Deciding {
            in_force,
            table,
            borrowing: None,
            undecided,
            lane,
            patience: Patience::MustAnswer,
        }
    }
}

/// The place of the policy, its row, its limit and the value of the key, where a request is
/// decided by one charge and its message need not be written for that.
#[inline]
fn single<'p, 'a>(
    in_force: &'p ActivePolicies,
    asked: &AskedRequest<'a>,
) -> Option<(usize, &'p ActivePolicy, &'p SingleCharge, Value<'a>)> {
    let &[(arg, value)] = asked.args else { return None };
    let rows = in_force.rows();
    let is_for = |row: &ActivePolicy, name: &[u8]| {
        row.policy.message.as_deref().is_none_or(|known| *known == *name)
    };
    let place = match asked.message {
        None => only_policy(&in_force.policies)?,
        Some(name) if is_report(name) => return None,
        Some(name) => rows.iter().position(|row| is_for(row, name))?,
    };
    // Which policy a message has may depend on its values.
    let up_to = rows.get(..=place)?;
    let (row, depends) = (up_to.last()?, up_to.iter().any(|row| row.policy.when.is_some()));
    let policy = &row.policy;
    if depends || value == Value::Null {
        return None;
    }
    let is_whole_key = match &policy.key.args[..] {
        [] => true,
        [known] => arg.is_empty() || *known.name == *arg,
        _ => false,
    };
    let DecisionPath::SingleCharge(single) = &row.path else { return None };
    let is_usual = is_whole_key && row.hashing == Hashing::Exact && policy.price.arg().is_none();
    is_usual.then_some((place, row, single, value))
}

/// The only policy, if there is one. Trials come last.
fn only_policy(policies: &Policies) -> Option<usize> {
    policies.list.get(1).is_none_or(|policy| policy.is_trial).then_some(0)
}

/// The one charge of the usual path.
struct ChargeSingle<'r> {
    table: &'r Table,
    in_force: &'r ActivePolicies,
    row: &'r ActivePolicy,
    lane: Lane,
    single: &'r SingleCharge,
}

impl ChargeSingle<'_> {
    /// Makes it, and counts the verdict.
    #[inline]
    fn wait<'m>(
        self,
        now: &mut Reading,
        question: Question,
        message: impl FnOnce() -> Option<Message<'m>>,
    ) -> WaitInProcess {
        let Self { table, in_force, row, lane, single } = self;
        let decision = table.charge(single.key(question.key), single.quota, question.cells, now);
        let reason = reason_of(&decision);
        let verdict = Verdict::new(question.policy, single.observes, reason);
        count(in_force, row, row.stats.on(lane), question, verdict, message);
        match (verdict.is_blocked(), decision.retry_after()) {
            (false, _) => WaitInProcess::Allowed,
            (true, Some(wait)) if reason != Some(Reason::Oversize) => WaitInProcess::After(wait),
            (true, _) => WaitInProcess::Never,
        }
    }
}

/// How long a request with this verdict has to wait.
fn wait_after(
    table: &Table,
    in_force: &ActivePolicies,
    mut messages: Messages<'_>,
    verdict: Option<Verdict>,
    usages: &LimitUsages,
) -> WaitInProcess {
    match verdict {
        Some(verdict @ Verdict { policy, reason: Some(Reason::Blocked), .. })
            if verdict.is_blocked() =>
        {
            let message = messages.next();
            let left =
                message.and_then(|message| left_of_order(table, in_force, policy, &message));
            left.map_or(WaitInProcess::Never, WaitInProcess::After)
        }
        verdict => WaitInProcess::of(verdict, usages),
    }
}

/// How long the order about the client of a message is still in force.
#[cold]
fn left_of_order(
    table: &Table,
    in_force: &ActivePolicies,
    place: usize,
    message: &Message<'_>,
) -> Option<Nanos> {
    let row = in_force.row(place);
    let (key, _) = hash_key(table.hasher(), &row.policy, message)?;
    let now = table.now();
    Some(row.order(key, message, now)?.until.saturating_since(now))
}

/// The message about a request, as HAProxy would send it. `None` if the buffer is too small.
fn written<'b>(
    policies: &Policies,
    AskedRequest { message, args }: AskedRequest<'_>,
    buffer: &'b mut [u8],
) -> Option<Messages<'b>> {
    let policy = match message {
        None => only_policy(policies),
        Some(_) => policies.list.iter().position(|policy| policy.message.as_deref() == message),
    };
    let policy = policy.and_then(|place| policies.list.get(place));
    let own = policy.and_then(|policy| policy.message.as_deref());
    let mut writer = NotifyWriter::new(buffer, FrameId { stream: 1, frame: 1 }).ok()?;
    writer.message(message.or(own).unwrap_or_default()).ok()?;
    for (name, value) in args {
        let of_key = || Some(&*policy?.key.args.first()?.name);
        let name = if name.is_empty() { of_key().unwrap_or_default() } else { name };
        writer.arg(name, *value).ok()?;
    }
    let length = writer.finish();
    match decode(buffer.get(..length)?, u32::MAX) {
        Ok(Some((Frame::Notify(notify), _))) => Some(notify.messages()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::num::NonZeroUsize;
    use std::path::Path;

    use gcra_policy::file::document;
    use gcra_policy::policy_id;
    use gcra_table::Slots;
    use gcra_table::board::{Order, OrderKind, OrderTarget};

    use super::*;
    use crate::answer::AnswerVar;
    use crate::stats::Stats;

    /// The names of the variables that were set, with their texts.
    #[derive(Debug, Default)]
    struct Vars(Vec<(String, Option<String>)>);

    impl SetVars for Vars {
        fn set(&mut self, var: &AnswerVar, value: Option<Value<'_>>) {
            let text = |value: Value<'_>| String::from_utf8(value.as_bytes()?.to_vec()).ok();
            self.0.push((var.name.as_str().to_owned(), value.and_then(text)));
        }
    }

    /// HAProxy gets the time until the end of the order, and the variables that an agent sets.
    #[test]
    fn a_block_is_a_wait_until_its_end() {
        let text = "answer = [\"reason\", \"retry_after\"]\n[policy.api]\nlimits = \"1/d\"\n\
                    key = [\"ip\"]\n[policy.api.overrides]\n\"10.1.2.9\" = \"deny\"\n";
        let policies = document::parse(Path::new("gcra-spoa.toml"), text).unwrap();
        let (table, clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
        let order = Order {
            policy: policy_id("api"),
            kind: OrderKind::Block,
            target: OrderTarget::Network { first: Ipv4Addr::new(10, 1, 2, 0).into(), prefix: 29 },
            until: table.now().saturating_add(Nanos::from_secs(60)),
            given: table.now(),
            since: table.now(),
            key: "10.1.2.0/29".to_owned(),
            note: String::new(),
            giver: String::new(),
        };
        table.board().give_order(&order).unwrap();
        let in_force = ActivePolicies::at_start(policies, &Stats::new(NonZeroUsize::MIN), &table);
        let limiter = InProcess {
            table: Arc::new(ArcSwap::from_pointee(table)),
            in_force: Arc::new(ArcSwap::from_pointee(in_force)),
            undecided: Arc::default(),
        };
        let mut found = limiter.found_in_force();
        let mut ask = |last: u8| {
            let args = [(&b"ip"[..], Value::Ipv4(Ipv4Addr::new(10, 1, 2, last)))];
            let asked = AskedRequest { message: Some(b"api"), args: &args };
            let mut buffer = [0; 256];
            let wait = limiter.wait(&mut found, asked, &mut buffer);
            let mut vars = Vars::default();
            let answered = limiter.answer(asked, &mut buffer, &mut vars);
            assert!(answered == wait || wait == WaitInProcess::Allowed, "{answered:?} {wait:?}");
            (wait, vars.0)
        };
        clock.advance(Nanos::from_secs(20));
        for _ in 0..3 {
            let (wait, vars) = ask(7);
            assert_eq!(wait, WaitInProcess::After(Nanos::from_secs(40)));
            let reason = ("reason".to_owned(), Some("blocked".to_owned()));
            assert!(vars.contains(&reason), "{vars:?}");
            assert!(vars.iter().all(|(name, _)| name != "retry_after"), "{vars:?}");
        }
        assert_eq!(ask(9).0, WaitInProcess::Never, "another one is denied by its override");
        clock.advance(Nanos::from_secs(40));
        assert_eq!(ask(7).0, WaitInProcess::Allowed, "nothing was charged");
    }
}

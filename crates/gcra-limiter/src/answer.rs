//! The answer to a request: its variables. Some of them are header fields of
//! draft-ietf-httpapi-ratelimit-headers-11, or a list of these.

// ADR 31: The hot path moves values in registers.

use std::cell::Cell;
use std::mem;

use arrayvec::ArrayVec;
use gcra_policy::answers::{Answers, MAX_LISTED, Var};
use gcra_policy::haproxy::report::TOLD;
use gcra_policy::{Bandwidth, Limit, LimitPlace, Policies, Policy};
use gcra_table::{Nanos, Quota};
use spop_agent::{
    BufferFull, HeaderListWriter, LateReply, Reply, Scope, SetVar, TextWriter, Value, VarName,
};

use crate::reservations::Reserved;
use crate::verdict::{Reason, Verdict};

/// The state of a key under one limit, after a decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitUsage {
    pub limit: LimitPlace,
    /// The numbers of the limit for this request.
    pub quota: Quota,
    pub owed: Nanos,
    /// How long the client has to wait until the same request would be allowed, perhaps with a
    /// delay; 0 when it was.
    pub wait: Nanos,
    /// How long it is until the window of the limit ends; 0 if it does not count in windows.
    pub window_ends: Nanos,
}

/// The state of a key's bucket after a decision: the numbers of a [`LimitUsage`] that differ
/// from decision to decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketStanding {
    pub(crate) owed: Nanos,
    pub(crate) wait: Nanos,
    pub(crate) window_ends: Nanos,
}

impl BucketStanding {
    /// That of a limit with a rate.
    pub(crate) const fn of_rate(owed: Nanos, wait: Nanos) -> Self {
        Self { owed, wait, window_ends: Nanos::ZERO }
    }

    /// That of a limit that counts in windows, if so many cells are counted in this one.
    pub(crate) fn in_window(quota: Quota, used: u32, ends_in: Nanos, is_denied: bool) -> Self {
        // More were counted if the file allowed more then, or if responses have charged more.
        let owed = quota.emission_interval().saturating_mul(used.min(quota.burst()).into());
        let wait = if is_denied { ends_in } else { Nanos::ZERO };
        Self { owed, wait, window_ends: ends_in }
    }

    /// That of the limit in this place, with this quota.
    #[inline]
    pub(crate) const fn of(self, limit: LimitPlace, quota: Quota) -> LimitUsage {
        let Self { owed, wait, window_ends } = self;
        LimitUsage { limit, quota, owed, wait, window_ends }
    }
}

impl LimitUsage {
    /// How long it takes until the limit is whole again, if the client sends no request.
    fn whole_after(&self) -> Nanos {
        if self.window_ends > Nanos::ZERO { self.window_ends } else { self.owed }
    }

    /// The same in seconds, rounded up. A debt within the burst takes no longer than a whole
    /// burst, of which [`window`] says the seconds.
    fn whole_after_s(&self) -> u64 {
        let seconds = self.whole_after().secs_ceil();
        // A window has a second at least.
        let is_of_burst =
            seconds > 1 && self.window_ends == Nanos::ZERO && self.owed <= self.quota.drain_time();
        if is_of_burst { seconds.min(window(self.quota)) } else { seconds }
    }

    pub fn remaining(&self) -> u32 {
        self.quota.remaining(self.owed)
    }

    /// Whether this limit is at least as restrictive as the other one: it has the longer wait, or
    /// else fewer requests left.
    fn is_as_tight_as(&self, other: &Self) -> bool {
        if self.wait != other.wait {
            return self.wait > other.wait;
        }
        let (own, others) = (self.remaining(), other.remaining());
        if own == others { self.whole_after() >= other.whole_after() } else { own < others }
    }
}

/// The standings of the limits of a request, in the order in which they were asked.
///
/// A policy that only observes must not change the answer of one that is enforced. So what its
/// limits said is kept only as long as no limit of another policy was asked.
#[derive(Debug, Default)]
pub struct LimitUsages {
    /// The first of them, for the header fields. Behind these may be one more, the tightest one.
    said: ArrayVec<LimitUsage, { MAX_LISTED + 1 }>,
    /// The place of the most restrictive of all of them.
    tightest: usize,
    /// Whether they are those of a policy that is enforced.
    are_enforced: bool,
    /// The fewest bytes per second that a policy in force gives, if one has a bandwidth.
    bandwidth: Option<u32>,
}

impl LimitUsages {
    /// The standing of each limit, as far as the header fields list it.
    pub fn listed(&self) -> &[LimitUsage] {
        self.said.get(..MAX_LISTED).unwrap_or(&self.said)
    }

    #[inline]
    fn tightest(&self) -> Option<&LimitUsage> {
        self.said.get(self.tightest)
    }

    /// How long the client has to wait, if a limit was asked.
    pub(crate) fn wait(&self) -> Option<Nanos> {
        self.tightest().map(|usage| usage.wait)
    }

    /// Adds what a limit of a policy said.
    #[inline]
    pub fn add(&mut self, usage: &LimitUsage, policy: &Policy) {
        self.say(usage, policy.observes, policy.bandwidth);
    }

    /// As [`add`](Self::add), of a policy that observes or does not, and may have a bandwidth.
    #[inline]
    fn say(&mut self, usage: &LimitUsage, observes: bool, bandwidth: Option<Bandwidth>) {
        match (observes, self.are_enforced) {
            (true, true) => return,
            (false, false) => {
                // In place: what was said takes many bytes, and there is seldom anything.
                self.said.clear();
                (self.tightest, self.bandwidth, self.are_enforced) = (0, None, true);
            }
            _ => {}
        }
        // A policy that only observes slows no client.
        if let Some(bandwidth) = bandwidth.filter(|_| !observes) {
            let bytes = bandwidth.at(usage.owed, usage.quota);
            self.bandwidth = Some(self.bandwidth.map_or(bytes, |fewest| fewest.min(bytes)));
        }
        if self.tightest().is_none_or(|tightest| usage.is_as_tight_as(tightest)) {
            self.said.truncate(MAX_LISTED);
            self.tightest = self.said.len();
        } else if self.said.len() >= MAX_LISTED {
            return;
        }
        self.said.push(*usage);
    }
}

/// A variable of an answer, with its action encoded up to the value.
#[derive(Debug)]
pub struct AnswerVar {
    pub scope: Scope,
    pub name: VarName<'static>,
    action: SetVar,
}

impl AnswerVar {
    fn new(scope: Scope, name: VarName<'static>) -> Self {
        Self { scope, name, action: SetVar::new(scope, name) }
    }
}

/// The variables of each answer.
#[derive(Debug)]
pub struct AnswerVars {
    blocked: AnswerVar,
    /// The reason of an order.
    reason: AnswerVar,
    others: Vec<(Var, AnswerVar)>,
}

impl AnswerVars {
    pub fn new(Answers { scope, blocked, others }: &Answers) -> Self {
        let other = |var: &Var| (*var, AnswerVar::new(*scope, var.name()));
        let others = others.iter().map(other).collect();
        let reason = AnswerVar::new(*scope, Var::Reason.name());
        Self { blocked: AnswerVar::new(*scope, *blocked), reason, others }
    }

    /// Whether an answer has more than `blocked`.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }
}

pub trait SetVars {
    /// Sets a variable, or unsets it without a value. It is left out if the answer would be larger
    /// than HAProxy accepts.
    fn set(&mut self, var: &AnswerVar, value: Option<Value<'_>>);

    /// Sets a variable to the text that `write` writes.
    fn set_text(
        &mut self,
        var: &AnswerVar,
        write: impl Fn(&mut TextWriter<'_, '_>) -> Result<(), BufferFull>,
    ) {
        let mut space = [0; LONGEST_TEXT];
        if let Ok(text) = TextWriter::text_in(&mut space, write) {
            self.set(var, Some(Value::String(text)));
        }
    }
}

impl SetVars for Reply<'_> {
    #[inline(always)]
    fn set(&mut self, var: &AnswerVar, value: Option<Value<'_>>) {
        match value {
            Some(value) => self.set(&var.action, value),
            None => self.unset_var(var.scope, var.name),
        }
    }

    #[inline(always)]
    fn set_text(
        &mut self,
        var: &AnswerVar,
        write: impl Fn(&mut TextWriter<'_, '_>) -> Result<(), BufferFull>,
    ) {
        self.set_text(&var.action, write);
    }
}

impl SetVars for LateReply {
    fn set(&mut self, var: &AnswerVar, value: Option<Value<'_>>) {
        match value {
            Some(value) => self.set(&var.action, value),
            None => self.unset_var(var.scope, var.name),
        }
    }
}

/// Answers a report of requests without a decision. HAProxy would send it again without that.
#[cold]
pub fn write_told(told: i64, reply: &mut impl SetVars) {
    const NAME: VarName<'_> = VarName::from_static(TOLD);
    reply.set(&AnswerVar::new(Scope::Process, NAME), Some(told.into()));
}

/// The answer to a request.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    pub policies: &'a Policies,
    pub vars: &'a AnswerVars,
    /// `None` if no message could be decided, and for a response that has settled its request.
    pub verdict: Option<Verdict>,
    /// Those of all limits that were asked.
    pub usages: &'a LimitUsages,
    pub reserved: &'a Reserved,
    /// Writes the name of the client of the message whose verdict it is.
    pub client: &'a dyn Fn(&mut String),
}

thread_local! {
    /// Space for names of clients, so that an answer allocates nothing.
    static CLIENT: Cell<String> = const { Cell::new(String::new()) };
}

impl Answer<'_> {
    /// Writes it. Without a verdict `blocked` is not set, and only what is left is set, because
    /// the rest stays as the request was answered.
    ///
    /// Each variable is set whole or not at all: one that does not fit into the ACK is left out,
    /// and the next one may be shorter and fit.
    #[inline(always)]
    pub fn write(self, reply: &mut impl SetVars) {
        let AnswerVars { blocked, reason, others } = self.vars;
        if let Some(verdict) = self.verdict {
            // It fits into every ACK, and so do `reason` and `delay_ms`, which is the first of the
            // others.
            reply.set(blocked, Some(verdict.is_blocked().into()));
            // Also where `answer` does not name it: rules must not tell this client to come back.
            if verdict.is_by_order() {
                reply.set(reason, Some(Reason::Blocked.as_str().into()));
            }
        }
        // Looked up once: what is written to the reply could be anything else in memory.
        let (listed, tightest) = (self.usages.listed(), self.usages.tightest());
        for (var, named) in others {
            if !self.set_left(*var, named, listed, tightest, reply) {
                self.set_decided(*var, named, reply);
            }
        }
    }

    /// Sets a variable that is not about what is left of the limits.
    fn set_decided(&self, var: Var, named: &AnswerVar, reply: &mut impl SetVars) {
        let Self { policies, usages, reserved, .. } = *self;
        let Some(verdict) = self.verdict else {
            if var == Var::Headers && usages.tightest().is_some() {
                let _ = self.set_headers(named, Nanos::ZERO, reply);
            }
            return;
        };
        let reservations;
        let value = match (var, usages.tightest()) {
            (Var::WouldBlock, _) => Some(verdict.would_block().into()),
            (Var::Policy, _) => Some((&*policies.list[verdict.policy].name).into()),
            (Var::Reason, _) if verdict.is_by_order() => return,
            (Var::Reason, _) => verdict.reason.map(|reason| reason.as_str().into()),
            (Var::LimitName, tightest) => {
                let tightest = tightest.filter(|_| !verdict.is_denied());
                let limit = tightest.and_then(|usage| policies.limit_at(usage.limit));
                limit.map(|limit| (&*limit.label).into())
            }
            (Var::Client, _) => return self.set_client(named, reply),
            (Var::Bandwidth, _) => {
                usages.bandwidth.filter(|_| !verdict.is_blocked()).map(Value::from)
            }
            // Those of an earlier answer for the same request would be wrong now.
            (Var::Headers, None) => None,
            // The standings of other policies do not help a client that is denied in any case.
            (Var::RetryAfter | Var::RetryAfterMs, Some(_)) if verdict.is_denied() => None,
            (Var::RetryAfter, Some(usage)) => Some(usage.wait.secs_ceil().into()),
            (Var::RetryAfterMs, Some(usage)) => Some(usage.wait.millis_ceil().into()),
            (Var::DelayMs, _) => match verdict.delay_ms_to_answer() {
                Some(delay_ms) => Some(delay_ms.into()),
                None => return,
            },
            // Another message of the same request may have set it, for another policy.
            (Var::Reserved, _) if !reserved.was_asked() => return,
            (Var::Reserved, _) => {
                let are_made = !verdict.is_blocked();
                reservations = are_made.then(|| reserved.text(policies)).flatten();
                reservations.as_deref().map(Value::from)
            }
            (Var::Headers, Some(usage)) => {
                // A client whose request can never be allowed is not told to come back.
                let comes_back = verdict.is_blocked() && verdict.may_come_back();
                let wait = if comes_back { usage.wait } else { Nanos::ZERO };
                // A list that is too long is left out.
                let _ = self.set_headers(named, wait, reply);
                return;
            }
            // The rest is about what is left, or about the wait of a limit.
            _ => return,
        };
        reply.set(named, value);
    }

    /// Sets a variable that says what is left of the limits, if a limit was asked. Returns false
    /// if it is another variable.
    #[inline(always)]
    fn set_left(
        &self,
        var: Var,
        named: &AnswerVar,
        listed: &[LimitUsage],
        tightest: Option<&LimitUsage>,
        reply: &mut impl SetVars,
    ) -> bool {
        let policies = self.policies;
        match (var, tightest) {
            (Var::Remaining, Some(it)) => reply.set(named, Some(it.remaining().into())),
            (Var::Limit, Some(it)) => reply.set(named, Some(it.quota.burst().into())),
            (Var::Reset, Some(it)) => reply.set(named, Some(it.whole_after_s().into())),
            (Var::RateLimit, Some(_)) => {
                reply.set_text(named, |text| ratelimit(policies, listed, text));
            }
            (Var::RateLimitPolicy, Some(_)) => {
                reply.set_text(named, |text| ratelimit_policy(policies, listed, text));
            }
            _ => return false,
        }
        true
    }

    #[cold]
    fn set_client(&self, named: &AnswerVar, reply: &mut impl SetVars) {
        let mut name = CLIENT.take();
        name.clear();
        (self.client)(&mut name);
        reply.set(named, Some((&*name).into()));
        CLIENT.set(name);
    }

    /// Sets a variable to the header fields as a list for HAProxy's `set-headers-bin`. `wait` is
    /// the time after which the client can come back; with 0 there is no `retry-after`.
    ///
    /// The names are in lower case, as HAProxy sends them, so that its `prefix ratelimit` finds
    /// them.
    ///
    /// # Errors
    ///
    /// The list would be larger than an ACK.
    // Not inlined, so that no other answer needs the space for a list.
    #[inline(never)]
    fn set_headers(
        &self,
        named: &AnswerVar,
        wait: Nanos,
        reply: &mut impl SetVars,
    ) -> Result<(), BufferFull> {
        let (policies, listed) = (self.policies, self.usages.listed());
        let (mut list, mut space) = ([0; MAX_LIST], [0; LONGEST_TEXT]);
        let mut list = HeaderListWriter::new(&mut list);
        let text = TextWriter::text_in(&mut space, |it| ratelimit_policy(policies, listed, it))?;
        list.header(b"ratelimit-policy", text)?;
        let text = TextWriter::text_in(&mut space, |it| ratelimit(policies, listed, it))?;
        list.header(b"ratelimit", text)?;
        if wait > Nanos::ZERO {
            let seconds = wait.secs_ceil();
            let text = TextWriter::text_in(&mut space, |it| it.push_with_number([], seconds))?;
            list.header(b"retry-after", text)?;
        }
        reply.set(named, Some(Value::Binary(list.finish()?)));
        Ok(())
    }
}

/// More than an ACK can have, in bytes.
const MAX_LIST: usize = 1024;

/// More than the longest list of limits has, in bytes: of each its policy's name and its own, and
/// two numbers.
const LONGEST_TEXT: usize = MAX_LISTED * (2 * 64 + 64);

/// `"api";r=12;t=3`: the requests that are left, and the seconds until the burst is full again or
/// the window ends, as in the variable `reset`. The draft allows 0 for a burst that is full.
///
/// The list has the order of the configuration, so that each member keeps its place.
fn ratelimit(
    policies: &Policies,
    usages: &[LimitUsage],
    text: &mut TextWriter<'_, '_>,
) -> Result<(), BufferFull> {
    members(policies, usages, text, |text, _, usage| {
        text.push_with_number(*b"r=", usage.remaining().into())?;
        text.push_with_number(*b";t=", usage.whole_after_s())
    })
}

/// `"api";q=20;w=2`: the burst, and the seconds in which an empty one is full again; or the count,
/// and the usual length of its window.
fn ratelimit_policy(
    policies: &Policies,
    usages: &[LimitUsage],
    text: &mut TextWriter<'_, '_>,
) -> Result<(), BufferFull> {
    members(policies, usages, text, |text, limit, usage| {
        let window = match limit.calendar() {
            None => window(usage.quota),
            Some(calendar) => calendar.unit().nominal_s().into(),
        };
        text.push_with_number(*b"q=", usage.quota.burst().into())?;
        text.push_with_number(*b";w=", window)
    })
}

/// A list of the limits, each with the parameters that `parameters` writes.
#[inline(always)]
fn members(
    policies: &Policies,
    usages: &[LimitUsage],
    text: &mut TextWriter<'_, '_>,
    parameters: impl Fn(&mut TextWriter<'_, '_>, &Limit, &LimitUsage) -> Result<(), BufferFull>,
) -> Result<(), BufferFull> {
    let mut between = 2;
    for usage in usages {
        let Some(limit) = policies.limit_at(usage.limit) else { continue };
        let member = limit.member.as_bytes();
        text.push_short(member.get(mem::take(&mut between)..).unwrap_or(member))?;
        parameters(text, limit, usage)?;
    }
    Ok(())
}

/// The seconds in which an empty burst is full again, rounded up; at least 1.
fn window(quota: Quota) -> u64 {
    const SECOND_NS: u64 = 1_000_000_000;
    let ns = quota.drain_time().0;
    // The time for a cell was rounded up to whole nanoseconds. So 7/h takes 2 ns more than an
    // hour, and still has a window of 3600 seconds.
    let rounded_up_by = ns % SECOND_NS;
    let seconds = if rounded_up_by < u64::from(quota.burst()) {
        ns / SECOND_NS
    } else {
        ns.div_ceil(SECOND_NS)
    };
    seconds.max(1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use gcra_table::Rate;
    use proptest::prelude::*;
    use spop_agent::AckWriter;

    use super::*;
    use crate::reservations::Reservation;
    use gcra_policy::file::document;
    use gcra_policy::{Limit, LimitIdentity, MAX_LIMITS, Rule, RuleAt, flags};

    /// An answer that was written down: each variable, and the bytes of its value if it was set.
    #[derive(Debug, Default)]
    struct WrittenAnswer {
        vars: Vec<(String, Option<Vec<u8>>)>,
        /// The bytes of an ACK with it.
        length: usize,
    }

    impl WrittenAnswer {
        /// The answer with this verdict.
        fn of(
            policies: &Policies,
            verdict: Verdict,
            usages: &LimitUsages,
            reserved: &Reserved,
        ) -> Self {
            let (vars, verdict) = (&AnswerVars::new(&policies.answers), Some(verdict));
            let mut written = Self::default();
            Answer { policies, vars, verdict, usages, reserved, client: &|_| {} }
                .write(&mut written);
            written
        }

        fn var(&self, name: &str) -> Option<&[u8]> {
            self.vars.iter().find(|(var, _)| var == name)?.1.as_deref()
        }
    }

    impl SetVars for WrittenAnswer {
        fn set(&mut self, var: &AnswerVar, value: Option<Value<'_>>) {
            let name = var.name;
            self.length += value.map_or(0, |value| AckWriter::set_var_size(name, &value));
            let bytes = |value: Value<'_>| match value.as_bytes() {
                Some(bytes) => bytes.to_vec(),
                None => value.as_integer().unwrap_or_default().to_string().into_bytes(),
            };
            self.vars.push((name.as_str().to_owned(), value.map(bytes)));
        }
    }

    /// The fields of a list whose strings are shorter than 2288 bytes, read byte by byte.
    fn naive(mut list: &[u8]) -> Vec<(String, String)> {
        let mut string = || {
            let mut next = || {
                let (first, rest) = list.split_first().unwrap();
                list = rest;
                usize::from(*first)
            };
            let length = match next() {
                first if first < 240 => first,
                first => first + 16 * next(),
            };
            let (string, rest) = list.split_at(length);
            list = rest;
            String::from_utf8(string.to_vec()).unwrap()
        };
        let mut fields = Vec::new();
        loop {
            let field = (string(), string());
            if field == Default::default() {
                assert!(list.is_empty(), "something follows the end: {list:?}");
                return fields;
            }
            fields.push(field);
        }
    }

    fn verdicts() -> impl Strategy<Value = Verdict> {
        let reasons =
            [Reason::Limit, Reason::Oversize, Reason::Denied, Reason::Store, Reason::Blocked];
        (any::<bool>(), prop::option::of(prop::sample::select(reasons.to_vec())))
            .prop_map(|(observes, reason)| Verdict::new(0, observes, reason))
    }

    /// The standing of the limit at this place in the first policy.
    fn usage(limit: u32, of: &Limit, owed: Nanos, wait: Nanos) -> LimitUsage {
        let limit = LimitPlace { policy: 0, rule: RuleAt::new(None), limit };
        BucketStanding::of_rate(owed, wait).of(limit, of.quota(None))
    }

    const LABEL: &str = "[a-z]{1,20}(\\.[a-z]{1,9})?";

    proptest! {
        #[test]
        fn the_list_has_what_the_variables_say(
            verdict in verdicts(),
            limits in prop::collection::vec(
                (LABEL, 1_u32.., any::<u64>(), any::<u64>(), any::<bool>()),
                0..9,
            ),
        ) {
            let limits: Vec<_> = limits
                .into_iter()
                .map(|(label, burst, owed, wait, observes)| {
                    let quota = Quota::new(Nanos(1_000), burst).unwrap();
                    let rate = "1/s".parse().unwrap();
                    let limit = Limit::new(label, LimitIdentity::of_flags(), &rate, quota);
                    // A wait of some seconds is as likely as one of centuries, and as none.
                    let [owed, wait] = [owed, wait].map(|ns| Nanos(ns >> (ns % 65).min(63)));
                    (limit, owed, wait, observes)
                })
                .collect();
            let mut usages = LimitUsages::default();
            for (place, (limit, owed, wait, observes)) in (0..).zip(&limits) {
                let usage = usage(place, limit, *owed, *wait);
                usages.say(&usage, *observes, None);
            }
            let others = vec![Var::Headers, Var::RateLimit, Var::RateLimitPolicy, Var::RetryAfter];
            let mut policies = flags::policies_of_rate("1/s".parse().unwrap(), None).unwrap();
            policies.answers = Answers { others, ..Answers::blocked_only() };
            let rule = Rule::Limits(limits.into_iter().map(|it| it.0).collect());
            Arc::make_mut(&mut policies.list[0]).rule = rule;
            let reserved = Reserved::default();
            let written = WrittenAnswer::of(&policies, verdict, &usages, &reserved);

            let text = |name: &str| Some(String::from_utf8(written.var(name)?.to_vec()).unwrap());
            let mut expected = Vec::new();
            for name in ["ratelimit-policy", "ratelimit"] {
                let value = text(&name.replace('-', "_"));
                expected.extend(value.map(|value| (name.to_owned(), value)));
            }
            if let Some(wait) = text("retry_after")
                && wait != "0"
                && verdict.is_blocked()
                && !matches!(
                    verdict.reason,
                    Some(Reason::Oversize | Reason::Denied | Reason::Blocked)
                )
            {
                expected.push(("retry-after".to_owned(), wait));
            }
            // Where nothing is known, an earlier list is unset.
            let list = written.var("headers").map(naive);
            prop_assert_eq!(list, (!expected.is_empty()).then_some(expected));
            prop_assert!(written.vars.iter().any(|(name, _)| name == "headers"));
            let reason = (verdict.is_blocked() && verdict.reason == Some(Reason::Blocked))
                .then_some(&b"blocked"[..]);
            prop_assert_eq!(written.var("reason"), reason, "rules must know of an order");
        }
    }

    #[test]
    fn the_bandwidth_is_that_of_what_is_owed() {
        let text = "answer = [\"bandwidth\", \"headers\"]\n[policy.api]\nlimits = \"9/h\"\n\
                    bandwidth = { full = \"2m\", least = \"1m\" }\n";
        let policies = document::parse(Path::new("gcra-spoa.toml"), text).unwrap();
        let policy = &policies.list[0];
        let limit = policy.limits().next().unwrap();
        let mut usages = LimitUsages::default();
        let owed = Nanos(limit.quota(None).drain_time().0 / 2);
        usages.add(&usage(0, limit, owed, Nanos::ZERO), policy);
        let verdict = Verdict::new(0, false, None);
        let written = WrittenAnswer::of(&policies, verdict, &usages, &Reserved::default());
        assert_eq!(written.var("bandwidth"), Some(&b"1572864"[..]));
    }

    /// The longest header fields that the check of a file allows fit, whatever the numbers are.
    #[test]
    fn a_list_fits_where_the_check_of_the_file_says_so() {
        // The longest numbers: bursts of ten digits, and times of eight or nine.
        let limits: Vec<_> = (0..MAX_LIMITS)
            .map(|more| format!("\"40/s burst {}\"", 4_000_000_000 - more))
            .collect();
        let longest = (1..64_usize).rev().find_map(|length| {
            let name = "n".repeat(length);
            let text = format!(
                "answer = [\"headers\", \"policy\"]\n[policy.{name}]\nlimits = [{}]\n\
                 [policy.other]\nlimits = \"1/s\"\n",
                limits.join(", ")
            );
            document::parse(Path::new("gcra-spoa.toml"), &text).ok()
        });
        let policies = longest.unwrap();
        let name = &policies.list[0].name;
        assert!((6..60).contains(&name.len()), "{name}");
        let mut usages = LimitUsages::default();
        let (owed, wait) = (Nanos(70_000_000_000_000_000), Nanos(100_000_000_000_000_000));
        for _ in 0..2 {
            for (place, limit) in (0..).zip(policies.list[0].limits()) {
                usages.say(&usage(place, limit, owed, wait), false, None);
            }
        }
        assert_eq!(usages.listed().len(), MAX_LISTED);
        let verdict = Verdict::new(0, false, Some(Reason::Limit));
        let written = WrittenAnswer::of(&policies, verdict, &usages, &Reserved::default());
        assert_eq!(naive(written.var("headers").unwrap()).len(), 3);
        let length = AckWriter::max_length(written.length);
        let most = spop_agent::Limits::default().max_ack_size as usize;
        assert!((most - 70..=most).contains(&length), "{length} of {most}");
    }

    /// Four policies can reserve cells for one request, and their limits are listed, too.
    #[test]
    fn an_answer_about_four_policies_that_reserve_is_as_long_as_said() {
        let policies: String = (1..6)
            .map(|number| {
                format!(
                    "[policy.policy-{number}]\nlimits = [\"40/s burst 4000000000\", \"50/s burst \
                     4000000000\"]\nkey = [\"key\"]\nreserve = \"n\"\ncost = \"n\"\n\
                     settle = \"s{number}\"\n"
                )
            })
            .collect();
        let text = format!("answer = [\"ratelimit\"]\n{policies}");
        let policies = document::parse(Path::new("gcra-spoa.toml"), &text).unwrap();
        let (mut usages, mut reserved) = (LimitUsages::default(), Reserved::default());
        let (owed, wait) = (Nanos(70_000_000_000_000_000), Nanos::ZERO);
        for (of, policy) in policies.list.iter().take(4).enumerate() {
            let at = std::time::Duration::from_millis(u64::MAX);
            let marks = policy.limits().map(|_| u32::MAX).collect();
            reserved.add(of, Some(Reservation { cells: u32::MAX, at, marks, client: None }));
            for (place, limit) in (0..).zip(policy.limits()) {
                let mut usage = usage(place, limit, owed, wait);
                usage.limit.policy = of;
                usages.add(&usage, policy);
            }
        }
        let verdict = Verdict::new(0, false, None);
        let written = WrittenAnswer::of(&policies, verdict, &usages, &reserved);
        assert_eq!(written.var("reserved").unwrap().split(|byte| *byte == b',').count(), 4);
        let length = u32::try_from(AckWriter::max_length(written.length)).unwrap();
        assert!(policies.about_frames(length).is_some(), "{length}");
        // The numbers here are shorter than the longest.
        assert_eq!(policies.about_frames(length + 130), None, "{length}");
    }

    #[test]
    fn a_window_is_that_of_the_rate_as_it_is_written() {
        for (rate, burst, seconds) in [
            ("7/h", None, 3600),
            ("7/s", None, 1),
            ("7/s", Some(70), 10),
            ("999999/d", None, 86_400),
            ("10/s", Some(15), 2),
            ("100/s", Some(20), 1),
            ("3/h", Some(1), 1200),
            ("1000000/ms", None, 1),
            ("1/h", None, 3600),
        ] {
            let quota = rate.parse::<Rate>().unwrap().quota(burst).unwrap();
            assert_eq!(window(quota), seconds, "{rate} {burst:?}");
        }
    }
}

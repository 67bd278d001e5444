//! The answer to a request: its variables. Some of them are header fields of
//! draft-ietf-httpapi-ratelimit-headers-11, or a list of these.

use std::fmt::Write as _;

use arrayvec::ArrayVec;
use gcra_policy::answers::{Answers, MAX_LISTED, Var};
use gcra_policy::haproxy_report::TOLD;
use gcra_policy::{Bandwidth, Limit, LimitPlace, Policies, Policy};
use gcra_table::{Nanos, Quota};
use spop_agent::{BufferFull, HeaderListWriter, LateReply, Reply, Scope, Value, VarName};

use crate::reservations::Reserved;
use crate::verdict::Verdict;

/// The state of a key under one limit, after a decision.
#[derive(Clone, Copy, Debug)]
pub struct LimitStanding {
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

impl LimitStanding {
    /// That of a limit with a rate.
    pub(crate) const fn of_rate(
        limit: LimitPlace,
        quota: Quota,
        owed: Nanos,
        wait: Nanos,
    ) -> Self {
        Self { limit, quota, owed, wait, window_ends: Nanos::ZERO }
    }

    /// How long it takes until the limit is whole again, if the client sends no request.
    fn whole_after(&self) -> Nanos {
        if self.window_ends > Nanos::ZERO { self.window_ends } else { self.owed }
    }

    /// The same in seconds, rounded up. A debt within the burst takes no longer than a whole
    /// burst, of which [`window`] says the seconds.
    fn whole_after_s(&self, limit: &Limit) -> u64 {
        let seconds = self.whole_after().secs_ceil();
        match self.window_ends == Nanos::ZERO && self.owed <= self.quota.drain_time() {
            true => seconds.min(window(self.whole(limit))),
            false => seconds,
        }
    }

    /// The numbers of the limit for this request, as they are written: with what is in reserve.
    fn whole(&self, limit: &Limit) -> Quota {
        match &limit.reserve {
            Some(reserve) => reserve.written,
            None => self.quota,
        }
    }

    /// The most cells that a client can spend at once.
    fn most(&self, limit: &Limit) -> u32 {
        self.whole(limit).burst()
    }

    /// The same, if what HAProxy may have let pass without asking is owed, too. A question that
    /// was `charged` has paid for its process.
    fn with_unpaid(self, limit: &Limit, charged: u32) -> Self {
        let Some(reserve) = &limit.reserve else { return self };
        let unpaid = reserve.unasked.unpaid_after(charged);
        let unpaid = self.quota.emission_interval().saturating_mul(unpaid);
        Self { owed: self.owed.saturating_add(unpaid), ..self }
    }

    pub fn remaining(&self) -> u32 {
        self.quota.remaining(self.owed)
    }

    /// Whether this limit is at least as restrictive as the other one: it has the longer wait, or
    /// else fewer requests left.
    fn is_as_tight_as(&self, other: &Self) -> bool {
        let order = self.wait.cmp(&other.wait);
        let order = order.then(other.remaining().cmp(&self.remaining()));
        order.then(self.whole_after().cmp(&other.whole_after())).is_ge()
    }
}

/// The standings of the limits of a request, in the order in which they were asked.
///
/// A policy that only observes must not change the answer of one that is enforced. So what its
/// limits said is kept only as long as no limit of another policy was asked.
#[derive(Debug, Default)]
pub struct Standings {
    /// The first of them, for the header fields.
    listed: ArrayVec<LimitStanding, MAX_LISTED>,
    /// The most restrictive of all of them.
    tightest: Option<LimitStanding>,
    /// Whether they are those of a policy that is enforced.
    are_enforced: bool,
    /// The fewest bytes per second that a policy in force gives, if one has a bandwidth.
    bandwidth: Option<u32>,
}

impl Standings {
    /// The standing of each limit, as far as the header fields list it.
    pub fn listed(&self) -> &[LimitStanding] {
        &self.listed
    }

    /// Adds what a limit of a policy said about a message that was charged this many cells.
    pub fn add(&mut self, standing: LimitStanding, policy: &Policy, charged: u32) {
        let limit = policy.limit_at(standing.limit);
        let standing = limit.map_or(standing, |limit| standing.with_unpaid(limit, charged));
        self.say(standing, policy.observes, policy.bandwidth);
    }

    /// As [`add`](Self::add), of a policy that observes or does not, and may have a bandwidth.
    fn say(&mut self, standing: LimitStanding, observes: bool, bandwidth: Option<Bandwidth>) {
        match (observes, self.are_enforced) {
            (true, true) => return,
            (false, false) => {
                // In place: what is listed takes many bytes, and there is seldom anything.
                self.listed.clear();
                (self.tightest, self.bandwidth, self.are_enforced) = (None, None, true);
            }
            _ => {}
        }
        // A policy that only observes slows no client.
        if let Some(bandwidth) = bandwidth.filter(|_| !observes) {
            let bytes = bandwidth.at(standing.owed, standing.quota);
            self.bandwidth = Some(self.bandwidth.map_or(bytes, |fewest| fewest.min(bytes)));
        }
        let _ = self.listed.try_push(standing);
        if self.tightest.is_none_or(|tightest| standing.is_as_tight_as(&tightest)) {
            self.tightest = Some(standing);
        }
    }
}

pub trait SetVars {
    /// Sets a variable, or unsets it without a value.
    ///
    /// # Errors
    ///
    /// The ACK would be larger than HAProxy accepts.
    fn set(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: Option<Value<'_>>,
    ) -> Result<(), BufferFull>;
}

macro_rules! set_vars {
    ($($reply:ty),*) => {$(
        impl SetVars for $reply {
            #[inline(always)]
            fn set(
                &mut self,
                scope: Scope,
                name: VarName<'_>,
                value: Option<Value<'_>>,
            ) -> Result<(), BufferFull> {
                match value {
                    Some(value) => self.set_var(scope, name, value),
                    None => self.unset_var(scope, name),
                }
            }
        }
    )*};
}

set_vars!(Reply<'_>, LateReply);

/// Answers a report of requests without a decision. HAProxy would send it again without that.
#[cold]
pub fn write_told(told: i64, reply: &mut impl SetVars) {
    const NAME: VarName<'_> = VarName::from_static(TOLD);
    let _ = reply.set(Scope::Process, NAME, Some(told.into()));
}

/// Writes the answer to a request. `standings` are those of all limits that were asked. If no
/// message could be decided, `blocked` is not set; and after a response has settled its request,
/// only what is left is set, because the rest stays as the request was answered.
///
/// Each variable is set whole or not at all: one that does not fit into the ACK is left out, and
/// the next one may be shorter and fit.
#[inline(always)]
pub fn write(
    policies: &Policies,
    verdict: Option<Verdict>,
    standings: &Standings,
    reserved: &Reserved,
    reply: &mut impl SetVars,
) {
    let Answers { scope, blocked, others } = &policies.answers;
    if let Some(verdict) = verdict {
        // It fits into every ACK, and so does `delay_ms`, which is the first of the others.
        let _ = reply.set(*scope, *blocked, Some(verdict.is_blocked().into()));
    }
    // It allocates only where header fields are wanted.
    let mut text = String::new();
    for var in others {
        let _ = match verdict {
            Some(verdict) => {
                set_decided(policies, *var, verdict, standings, reserved, &mut text, reply)
            }
            None => set_left(policies, *var, Nanos::ZERO, standings, &mut text, reply),
        };
    }
}

fn set_decided(
    policies: &Policies,
    var: Var,
    verdict: Verdict,
    standings: &Standings,
    reserved: &Reserved,
    text: &mut String,
    reply: &mut impl SetVars,
) -> Result<(), BufferFull> {
    let reservations;
    let value = match (var, standings.tightest) {
        (Var::WouldBlock, _) => Some(verdict.would_block().into()),
        (Var::Policy, _) => Some((&*policies.list[verdict.policy].name).into()),
        (Var::Reason, _) => verdict.reason.map(|reason| reason.as_str().into()),
        (Var::Bandwidth, _) => {
            standings.bandwidth.filter(|_| !verdict.is_blocked()).map(Value::from)
        }
        // Those of an earlier answer for the same request would be wrong now.
        (Var::Headers, None) => None,
        // The standings of other policies do not help a client that is denied in any case.
        (Var::RetryAfter | Var::RetryAfterMs, Some(_)) if verdict.is_denied() => None,
        (Var::RetryAfter, Some(standing)) => Some(standing.wait.secs_ceil().into()),
        (Var::RetryAfterMs, Some(standing)) => Some(standing.wait.millis_ceil().into()),
        (Var::DelayMs, _) => match verdict.delay_ms_to_answer() {
            Some(delay_ms) => Some(delay_ms.into()),
            None => return Ok(()),
        },
        // Another message of the same request may have set it, for another policy.
        (Var::Reserved, _) if !reserved.was_asked() => return Ok(()),
        (Var::Reserved, _) => {
            let are_made = !verdict.is_blocked();
            reservations = are_made.then(|| reserved.text(policies)).flatten();
            reservations.as_deref().map(Value::from)
        }
        _ => {
            // A client whose request can never be allowed is not told to come back.
            let comes_back = verdict.is_blocked() && verdict.may_come_back();
            let wait = standings.tightest.filter(|_| comes_back).map(|standing| standing.wait);
            let wait = wait.unwrap_or_default();
            return set_left(policies, var, wait, standings, text, reply);
        }
    };
    reply.set(policies.answers.scope, var.name(), value)
}

/// Sets a variable that says what is left of the limits, if it is one of these and a limit was
/// asked. `wait` is when the client can come back, in header fields.
fn set_left(
    policies: &Policies,
    var: Var,
    wait: Nanos,
    standings: &Standings,
    text: &mut String,
    reply: &mut impl SetVars,
) -> Result<(), BufferFull> {
    let Some(standing) = standings.tightest else { return Ok(()) };
    let Some(limit) = policies.limit_at(standing.limit) else { return Ok(()) };
    let scope = policies.answers.scope;
    let value = match var {
        Var::Remaining => standing.remaining().into(),
        Var::Limit => standing.most(limit).into(),
        Var::Reset => standing.whole_after_s(limit).into(),
        Var::RateLimit => {
            ratelimit(policies, &standings.listed, text);
            (&**text).into()
        }
        Var::RateLimitPolicy => {
            ratelimit_policy(policies, &standings.listed, text);
            (&**text).into()
        }
        Var::Headers => {
            return set_headers(policies, &standings.listed, wait, text, reply);
        }
        Var::WouldBlock
        | Var::RetryAfter
        | Var::RetryAfterMs
        | Var::Policy
        | Var::Reason
        | Var::Bandwidth
        | Var::DelayMs
        | Var::Reserved => return Ok(()),
    };
    reply.set(scope, var.name(), Some(value))
}

/// More than an ACK can have, in bytes.
const MAX_LIST: usize = 1024;

/// Sets a variable to the header fields as a list for HAProxy's `set-headers-bin`. `wait` is the
/// time after which the client can come back; with 0 there is no `retry-after`.
///
/// The names are in lower case, as HAProxy sends them, so that its `prefix ratelimit` finds them.
///
/// # Errors
///
/// The ACK would be larger than HAProxy accepts.
// Not inlined, so that no other answer needs the space for a list.
#[inline(never)]
fn set_headers(
    policies: &Policies,
    standings: &[LimitStanding],
    wait: Nanos,
    text: &mut String,
    reply: &mut impl SetVars,
) -> Result<(), BufferFull> {
    let mut list = [0; MAX_LIST];
    let mut list = HeaderListWriter::new(&mut list);
    ratelimit_policy(policies, standings, text);
    list.header(b"ratelimit-policy", text.as_bytes())?;
    ratelimit(policies, standings, text);
    list.header(b"ratelimit", text.as_bytes())?;
    if wait > Nanos::ZERO {
        text.clear();
        let _ = write!(text, "{}", wait.secs_ceil());
        list.header(b"retry-after", text.as_bytes())?;
    }
    let value = Value::Binary(list.finish()?);
    reply.set(policies.answers.scope, Var::Headers.name(), Some(value))
}

/// `"api";r=12;t=3`: the requests that are left, and the seconds until the burst is full again or
/// the window ends, as in the variable `reset`. The draft allows 0 for a burst that is full.
///
/// The list has the order of the configuration, so that each member keeps its place.
fn ratelimit(policies: &Policies, standings: &[LimitStanding], text: &mut String) {
    text.clear();
    for standing in standings {
        let Some(limit) = policies.limit_at(standing.limit) else { continue };
        let comma = if text.is_empty() { "" } else { ", " };
        let (label, remaining) = (&limit.label, standing.remaining());
        // Writing to a string does not fail.
        let _ =
            write!(text, "{comma}\"{label}\";r={remaining};t={}", standing.whole_after_s(limit));
    }
}

/// `"api";q=20;w=2`: the burst, and the seconds in which an empty one is full again; or the count,
/// and the usual length of its window.
fn ratelimit_policy(policies: &Policies, standings: &[LimitStanding], text: &mut String) {
    text.clear();
    for standing in standings {
        let Some(limit) = policies.limit_at(standing.limit) else { continue };
        let comma = if text.is_empty() { "" } else { ", " };
        let window = match limit.calendar() {
            None => window(standing.whole(limit)),
            Some(calendar) => calendar.unit().nominal_s().into(),
        };
        let (label, most) = (&limit.label, standing.most(limit));
        let _ = write!(text, "{comma}\"{label}\";q={most};w={window}");
    }
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

    use gcra_table::Rate;
    use proptest::prelude::*;
    use spop_agent::AckWriter;

    use super::*;
    use crate::reservations::Reservation;
    use crate::verdict::Reason;
    use gcra_policy::file::document;
    use gcra_policy::{LimitIdentity, MAX_LIMITS, Rule, RuleAt, flags};

    /// An answer that was written down: each variable, and the bytes of its value if it was set.
    #[derive(Debug, Default)]
    struct WrittenAnswer {
        vars: Vec<(String, Option<Vec<u8>>)>,
        /// The bytes of an ACK with it.
        length: usize,
    }

    impl WrittenAnswer {
        fn var(&self, name: &str) -> Option<&[u8]> {
            self.vars.iter().find(|(var, _)| var == name)?.1.as_deref()
        }
    }

    impl SetVars for WrittenAnswer {
        fn set(
            &mut self,
            _: Scope,
            name: VarName<'_>,
            value: Option<Value<'_>>,
        ) -> Result<(), BufferFull> {
            self.length += value.map_or(0, |value| AckWriter::set_var_size(name, &value));
            let bytes = |value: Value<'_>| match value.as_bytes() {
                Some(bytes) => bytes.to_vec(),
                None => value.as_integer().unwrap_or_default().to_string().into_bytes(),
            };
            self.vars.push((name.as_str().to_owned(), value.map(bytes)));
            Ok(())
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
        let reasons = [Reason::Limit, Reason::Oversize, Reason::Denied, Reason::Store];
        (any::<bool>(), prop::option::of(prop::sample::select(reasons.to_vec())))
            .prop_map(|(observes, reason)| Verdict::new(0, observes, reason))
    }

    /// The standing of the limit at this place in the first policy.
    fn standing(limit: u32, of: &Limit, owed: Nanos, wait: Nanos) -> LimitStanding {
        let limit = LimitPlace { policy: 0, rule: RuleAt::new(None), limit };
        LimitStanding::of_rate(limit, of.quota(None), owed, wait)
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
            let mut standings = Standings::default();
            for (place, (limit, owed, wait, observes)) in (0..).zip(&limits) {
                let standing = standing(place, limit, *owed, *wait);
                standings.say(standing, *observes, None);
            }
            let others = vec![Var::Headers, Var::RateLimit, Var::RateLimitPolicy, Var::RetryAfter];
            let mut policies = flags::policies_of_rate("1/s".parse().unwrap(), None).unwrap();
            policies.answers = Answers { others, ..Answers::blocked_only() };
            policies.list[0].rule = Rule::Limits(limits.into_iter().map(|it| it.0).collect());
            let reserved = Reserved::default();
            let mut written = WrittenAnswer::default();
            write(&policies, Some(verdict), &standings, &reserved, &mut written);

            let text = |name: &str| Some(String::from_utf8(written.var(name)?.to_vec()).unwrap());
            let mut expected = Vec::new();
            for name in ["ratelimit-policy", "ratelimit"] {
                let value = text(&name.replace('-', "_"));
                expected.extend(value.map(|value| (name.to_owned(), value)));
            }
            if let Some(wait) = text("retry_after")
                && wait != "0"
                && verdict.is_blocked()
                && !matches!(verdict.reason, Some(Reason::Oversize | Reason::Denied))
            {
                expected.push(("retry-after".to_owned(), wait));
            }
            // Where nothing is known, an earlier list is unset.
            let list = written.var("headers").map(naive);
            prop_assert_eq!(list, (!expected.is_empty()).then_some(expected));
            prop_assert_eq!(written.vars[1].0.as_str(), "headers");
        }
    }

    #[test]
    fn the_bandwidth_is_that_of_what_is_owed() {
        let text = "answer = [\"bandwidth\", \"headers\"]\n[policy.api]\nlimits = \"9/h\"\n\
                    bandwidth = { full = \"2m\", least = \"1m\" }\n";
        let policies = document::parse(Path::new("gcra-spoa.toml"), text).unwrap();
        let policy = &policies.list[0];
        let limit = policy.limits().next().unwrap();
        let mut standings = Standings::default();
        let owed = Nanos(limit.quota(None).drain_time().0 / 2);
        standings.add(standing(0, limit, owed, Nanos::ZERO), policy, 0);
        let mut written = WrittenAnswer::default();
        let verdict = Some(Verdict::new(0, false, None));
        write(&policies, verdict, &standings, &Reserved::default(), &mut written);
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
        let mut standings = Standings::default();
        let (owed, wait) = (Nanos(70_000_000_000_000_000), Nanos(100_000_000_000_000_000));
        for _ in 0..2 {
            for (place, limit) in (0..).zip(policies.list[0].limits()) {
                standings.say(standing(place, limit, owed, wait), false, None);
            }
        }
        assert_eq!(standings.listed().len(), MAX_LISTED);
        let mut written = WrittenAnswer::default();
        let verdict = Some(Verdict::new(0, false, Some(Reason::Limit)));
        write(&policies, verdict, &standings, &Reserved::default(), &mut written);
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
        let (mut standings, mut reserved) = (Standings::default(), Reserved::default());
        let (owed, wait) = (Nanos(70_000_000_000_000_000), Nanos::ZERO);
        for (of, policy) in policies.list.iter().take(4).enumerate() {
            let at = std::time::Duration::from_millis(u64::MAX);
            let marks = policy.limits().map(|_| u32::MAX).collect();
            reserved.add(of, Some(Reservation { cells: u32::MAX, at, marks, client: None }));
            for (place, limit) in (0..).zip(policy.limits()) {
                let mut standing = standing(place, limit, owed, wait);
                standing.limit.policy = of;
                standings.add(standing, policy, 0);
            }
        }
        let mut written = WrittenAnswer::default();
        let verdict = Some(Verdict::new(0, false, None));
        write(&policies, verdict, &standings, &reserved, &mut written);
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

//! The answer to a request: its variables, two of them header fields of
//! draft-ietf-httpapi-ratelimit-headers-11.

use std::fmt::Write as _;

use arrayvec::ArrayVec;
use gcra_table::{Nanos, Quota};
use spop_agent::{BufferFull, LateReply, Reply, Scope, Value, VarName};

use crate::policy::variables::{Answers, Var};
use crate::policy::{Limit, LimitPlace, MAX_LIMITS, Policies};
use crate::verdict::Verdict;

/// The state of a key under one limit, after a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing<'p> {
    pub(crate) limit: &'p Limit,
    pub(crate) owed: Nanos,
    /// How long the client has to wait until the same request would be allowed; 0 when it was.
    pub(crate) wait: Nanos,
}

impl Standing<'_> {
    pub(crate) fn remaining(&self) -> u32 {
        self.limit.quota.remaining(self.owed)
    }

    /// Whether this limit is at least as restrictive as the other one: it has the longer wait, or
    /// else fewer requests left.
    fn is_as_tight_as(&self, other: &Self) -> bool {
        let order = self.wait.cmp(&other.wait);
        let order = order.then(other.remaining().cmp(&self.remaining()));
        order.then(self.owed.cmp(&other.owed)).is_ge()
    }
}

/// The most limits that the header fields of one answer list: those of two policies.
const MAX_LISTED: usize = 2 * MAX_LIMITS;

/// What the limits of a request said, in the order in which they were asked.
///
/// A policy that only observes must not change the answer of one that is enforced. So what its
/// limits said is kept only as long as no limit of another policy was asked.
#[derive(Debug, Default)]
pub(crate) struct Standings<'p> {
    /// The first of them, for the header fields.
    listed: ArrayVec<Standing<'p>, MAX_LISTED>,
    /// The most restrictive of all of them.
    tightest: Option<Standing<'p>>,
    /// Whether they are those of a policy that is enforced.
    are_enforced: bool,
}

impl<'p> Standings<'p> {
    /// What each limit said, as far as the header fields list it.
    pub(crate) fn listed(&self) -> &[Standing<'p>] {
        &self.listed
    }

    /// Adds what a limit of a policy said.
    pub(crate) fn add(&mut self, standing: Standing<'p>, observes: bool) {
        match (observes, self.are_enforced) {
            (true, true) => return,
            (false, false) => *self = Self { are_enforced: true, ..Self::default() },
            _ => {}
        }
        let _ = self.listed.try_push(standing);
        if self.tightest.is_none_or(|tightest| standing.is_as_tight_as(&tightest)) {
            self.tightest = Some(standing);
        }
    }
}

/// What limits said, without a reference to the policies: for a request that waits.
#[derive(Debug, Default)]
pub(crate) struct KeptStandings {
    listed: Vec<(LimitPlace, Nanos, Nanos)>,
    tightest: Option<(LimitPlace, Nanos, Nanos)>,
    are_enforced: bool,
}

impl Standings<'_> {
    /// The same without a reference to the policies, whose limits they are about.
    pub(crate) fn keep(&self, policies: &Policies) -> KeptStandings {
        let keep = |standing: &Standing<'_>| {
            let place = policies.place_of(standing.limit)?;
            Some((place, standing.owed, standing.wait))
        };
        KeptStandings {
            listed: self.listed.iter().filter_map(keep).collect(),
            tightest: self.tightest.as_ref().and_then(keep),
            are_enforced: self.are_enforced,
        }
    }
}

impl KeptStandings {
    /// What was kept, about the limits of the same policies.
    pub(crate) fn of(self, policies: &Policies) -> Standings<'_> {
        let restore =
            |(place, owed, wait)| Some(Standing { limit: policies.limit_at(place)?, owed, wait });
        Standings {
            listed: self.listed.into_iter().filter_map(restore).take(MAX_LISTED).collect(),
            tightest: self.tightest.and_then(restore),
            are_enforced: self.are_enforced,
        }
    }
}

/// What variables are set in.
pub(crate) trait SetVars {
    fn set_var<'v>(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: impl Into<Value<'v>>,
    ) -> Result<(), BufferFull>;

    fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull>;
}

impl SetVars for Reply<'_> {
    #[inline(always)]
    fn set_var<'v>(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: impl Into<Value<'v>>,
    ) -> Result<(), BufferFull> {
        Reply::set_var(self, scope, name, value)
    }

    fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
        Reply::unset_var(self, scope, name)
    }
}

impl SetVars for LateReply {
    fn set_var<'v>(
        &mut self,
        scope: Scope,
        name: VarName<'_>,
        value: impl Into<Value<'v>>,
    ) -> Result<(), BufferFull> {
        LateReply::set_var(self, scope, name, value)
    }

    fn unset_var(&mut self, scope: Scope, name: VarName<'_>) -> Result<(), BufferFull> {
        LateReply::unset_var(self, scope, name)
    }
}

/// Writes the answer to a request. `standings` are those of all limits that were asked. If no
/// message could be decided, nothing is set.
#[inline(always)]
pub(crate) fn write(
    policies: &Policies,
    verdict: Option<Verdict>,
    standings: &Standings<'_>,
    reply: &mut impl SetVars,
) {
    if let Some(verdict) = verdict {
        let policy = &policies.list[verdict.policy].name;
        // If it does not fit, the check of the file counted wrong. What was written stays.
        let _ = set_vars(&policies.answers, verdict, policy, standings, reply);
    }
}

/// Sets the variables. `policy` is the name of the policy that gave the verdict.
///
/// # Errors
///
/// The ACK would be larger than HAProxy accepts. The variables before that are set.
#[inline(always)]
fn set_vars(
    answers: &Answers,
    verdict: Verdict,
    policy: &str,
    standings: &Standings<'_>,
    reply: &mut impl SetVars,
) -> Result<(), BufferFull> {
    reply.set_var(answers.scope, answers.blocked, verdict.is_blocked())?;
    // It allocates only where header fields are wanted.
    let mut text = String::new();
    for var in &answers.others {
        let name = var.name();
        match (var, standings.tightest) {
            (Var::WouldBlock, _) => reply.set_var(answers.scope, name, verdict.would_block())?,
            (Var::Policy, _) => reply.set_var(answers.scope, name, policy)?,
            (Var::Reason, _) => match verdict.reason {
                Some(reason) => reply.set_var(answers.scope, name, reason.as_str())?,
                None => reply.unset_var(answers.scope, name)?,
            },
            (_, None) => {}
            (Var::Remaining, Some(standing)) => {
                reply.set_var(answers.scope, name, standing.remaining())?;
            }
            (Var::Limit, Some(standing)) => {
                reply.set_var(answers.scope, name, standing.limit.quota.burst())?;
            }
            (Var::RetryAfter, Some(standing)) => {
                reply.set_var(answers.scope, name, standing.wait.secs_ceil())?;
            }
            (Var::RetryAfterMs, Some(standing)) => {
                reply.set_var(answers.scope, name, standing.wait.millis_ceil())?;
            }
            (Var::Reset, Some(standing)) => {
                reply.set_var(answers.scope, name, standing.owed.secs_ceil())?;
            }
            (Var::RateLimit, Some(_)) => {
                ratelimit(&standings.listed, &mut text);
                reply.set_var(answers.scope, name, &*text)?;
            }
            (Var::RateLimitPolicy, Some(_)) => {
                ratelimit_policy(&standings.listed, &mut text);
                reply.set_var(answers.scope, name, &*text)?;
            }
        }
    }
    Ok(())
}

/// `"api";r=12;t=3`: the requests that are left, and the seconds until the burst is full again.
/// The list has the order of the configuration, so that each member keeps its place.
fn ratelimit(standings: &[Standing<'_>], text: &mut String) {
    text.clear();
    for standing in standings {
        let comma = if text.is_empty() { "" } else { ", " };
        let (label, remaining) = (&standing.limit.label, standing.remaining());
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{comma}\"{label}\";r={remaining};t={}",
            standing.owed.secs_ceil().max(1)
        );
    }
}

/// `"api";q=20;w=2`: the burst, and the seconds in which an empty one is full again.
fn ratelimit_policy(standings: &[Standing<'_>], text: &mut String) {
    text.clear();
    for Standing { limit, .. } in standings {
        let comma = if text.is_empty() { "" } else { ", " };
        let (window, quota) = (window(limit.quota), limit.quota.burst());
        let _ = write!(text, "{comma}\"{}\";q={quota};w={window}", limit.label);
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
    use gcra_table::Rate;

    use super::*;

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

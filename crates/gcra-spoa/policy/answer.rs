//! The variables of an answer, and the header fields of
//! draft-ietf-httpapi-ratelimit-headers-11.

use std::fmt::Write as _;

use gcra_table::Nanos;
use spop_agent::{BufferFull, Reply, Scope, VarName};

use crate::policy::Limit;
use crate::verdict::Verdict;

/// Which variables are set, in which scope.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    pub(crate) scope: Scope,
    /// The name of `blocked`, which a flag can change.
    pub(crate) blocked: VarName<'static>,
    pub(crate) others: Vec<Var>,
}

/// A variable beside `blocked`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Var {
    WouldBlock,
    Remaining,
    Limit,
    RetryAfter,
    RetryAfterMs,
    Reset,
    Policy,
    Reason,
    RateLimit,
    RateLimitPolicy,
}

impl Var {
    pub(crate) const ALL: [Self; 10] = [
        Self::WouldBlock,
        Self::Remaining,
        Self::Limit,
        Self::RetryAfter,
        Self::RetryAfterMs,
        Self::Reset,
        Self::Policy,
        Self::Reason,
        Self::RateLimit,
        Self::RateLimitPolicy,
    ];

    pub(crate) const fn name(self) -> VarName<'static> {
        VarName::from_static(match self {
            Self::WouldBlock => "would_block",
            Self::Remaining => "remaining",
            Self::Limit => "limit",
            Self::RetryAfter => "retry_after",
            Self::RetryAfterMs => "retry_after_ms",
            Self::Reset => "reset",
            Self::Policy => "policy",
            Self::Reason => "reason",
            Self::RateLimit => "ratelimit",
            Self::RateLimitPolicy => "ratelimit_policy",
        })
    }
}

/// The state of a key under one limit, after a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing<'p> {
    pub(crate) limit: &'p Limit,
    pub(crate) owed_ns: u64,
    /// How long the client has to wait until the same request would be allowed; 0 when it was.
    pub(crate) wait_ns: u64,
}

impl Standing<'_> {
    fn remaining(&self) -> u32 {
        self.limit.quota.remaining(Nanos(self.owed_ns))
    }
}

impl Answers {
    /// `txn.PREFIX.blocked` and nothing else.
    pub(crate) fn blocked_only() -> Self {
        Self {
            scope: Scope::Transaction,
            blocked: VarName::from_static("blocked"),
            others: Vec::new(),
        }
    }

    /// Sets the variables. `policy` is the name of the policy that gave the verdict; `standings`
    /// are those of all limits that were asked, in order.
    ///
    /// # Errors
    ///
    /// The ACK would be larger than HAProxy accepts. The variables before that are set.
    #[inline]
    pub(crate) fn write(
        &self,
        verdict: Verdict,
        policy: &str,
        standings: &[Standing<'_>],
        reply: &mut Reply<'_>,
    ) -> Result<(), BufferFull> {
        reply.set_var(self.scope, self.blocked, verdict.is_blocked())?;
        if self.others.is_empty() {
            Ok(())
        } else {
            self.write_others(verdict, policy, standings, reply)
        }
    }

    fn write_others(
        &self,
        verdict: Verdict,
        policy: &str,
        standings: &[Standing<'_>],
        reply: &mut Reply<'_>,
    ) -> Result<(), BufferFull> {
        // The most restrictive one: the longest wait, or else the fewest requests left.
        let tightest = standings.iter().max_by(|a, b| {
            a.wait_ns
                .cmp(&b.wait_ns)
                .then(b.remaining().cmp(&a.remaining()))
                .then(a.owed_ns.cmp(&b.owed_ns))
        });
        // It allocates only where header fields are wanted.
        let mut text = String::new();
        for var in &self.others {
            let name = var.name();
            match (var, tightest) {
                (Var::WouldBlock, _) => reply.set_var(self.scope, name, verdict.would_block())?,
                (Var::Policy, _) => reply.set_var(self.scope, name, policy)?,
                (Var::Reason, _) => match verdict.reason {
                    Some(reason) => reply.set_var(self.scope, name, reason.as_str())?,
                    None => reply.unset_var(self.scope, name)?,
                },
                (_, None) => {}
                (Var::Remaining, Some(standing)) => {
                    reply.set_var(self.scope, name, standing.remaining())?;
                }
                (Var::Limit, Some(standing)) => {
                    reply.set_var(self.scope, name, standing.limit.quota.burst())?;
                }
                (Var::RetryAfter, Some(standing)) => {
                    reply.set_var(self.scope, name, seconds(standing.wait_ns))?;
                }
                (Var::RetryAfterMs, Some(standing)) => {
                    reply.set_var(self.scope, name, standing.wait_ns.div_ceil(1_000_000))?;
                }
                (Var::Reset, Some(standing)) => {
                    reply.set_var(self.scope, name, seconds(standing.owed_ns))?;
                }
                (Var::RateLimit, Some(_)) => {
                    ratelimit(standings, &mut text);
                    reply.set_var(self.scope, name, &*text)?;
                }
                (Var::RateLimitPolicy, Some(_)) => {
                    ratelimit_policy(standings, &mut text);
                    reply.set_var(self.scope, name, &*text)?;
                }
            }
        }
        Ok(())
    }
}

const fn seconds(ns: u64) -> u64 {
    ns.div_ceil(1_000_000_000)
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
            seconds(standing.owed_ns).max(1)
        );
    }
}

/// `"api";q=20;w=2`: the burst, and the seconds in which an empty one is full again.
fn ratelimit_policy(standings: &[Standing<'_>], text: &mut String) {
    text.clear();
    for Standing { limit, .. } in standings {
        let comma = if text.is_empty() { "" } else { ", " };
        let window = seconds(limit.quota.drain_time().0).max(1);
        let _ = write!(text, "{comma}\"{}\";q={};w={window}", limit.label, limit.quota.burst());
    }
}

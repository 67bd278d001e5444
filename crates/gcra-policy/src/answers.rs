//! Which variables are set beside `blocked`, and in which scope.

use spop_agent::{Scope, VarName};

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
    /// All header fields in one list.
    Headers,
    /// Bytes per second for the response.
    Bandwidth,
    DelayMs,
    /// What the request has reserved, for its response to bring back.
    Reserved,
}

impl Var {
    pub(crate) const ALL: [Self; 14] = [
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
        Self::Headers,
        Self::Bandwidth,
        Self::DelayMs,
        Self::Reserved,
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
            Self::Headers => "headers",
            Self::Bandwidth => "bandwidth",
            Self::DelayMs => "delay_ms",
            Self::Reserved => "reserved",
        })
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
}

//! Which variables are set beside `blocked`, and in which scope.

use spop_agent::{Scope, VarName};

use crate::limit::MAX_LIMITS;

/// The most limits that the header fields of one answer list: those of two policies.
pub const MAX_LISTED: usize = 2 * MAX_LIMITS;

/// The most policies that reserve cells for one request. What a further one reserves is not
/// brought back.
pub const MOST_RESERVED: usize = 4;

/// The bytes of an entry of `reserved` besides the policy's name: numbers, and what stands between
/// entries.
pub const LONGEST_NUMBERS: usize =
    " 4294967295 18446744073709551615, ".len() + MAX_LIMITS * " ffffffff".len();

/// Which variables are set, in which scope.
#[derive(Clone, Debug)]
pub struct Answers {
    pub scope: Scope,
    /// The name of `blocked`, which a flag can change.
    pub blocked: VarName<'static>,
    pub others: Vec<Var>,
}

/// A variable beside `blocked`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Var {
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
    pub const ALL: [Self; 14] = [
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

    /// Its name in HAProxy, behind the prefix.
    pub const fn name(self) -> VarName<'static> {
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
    pub fn blocked_only() -> Self {
        Self {
            scope: Scope::Transaction,
            blocked: VarName::from_static("blocked"),
            others: Vec::new(),
        }
    }
}

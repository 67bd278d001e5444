//! Which variables are set beside `blocked`, and in which scope.

use spop_codec::{Scope, VarName};

use crate::limit::MAX_LIMITS;

/// The most limits that the header fields of one answer list: those of two policies.
pub const MAX_LISTED: usize = 2 * MAX_LIMITS;

/// The most policies that reserve cells for one request. The reservation of a further one is not
/// brought back.
pub const MOST_RESERVED: usize = 4;

/// The bytes of an entry of `reserved` besides the policy's name: numbers, and what stands between
/// entries.
pub const LONGEST_NUMBERS: usize =
    " 4294967295 18446744073709551615, ".len() + MAX_LIMITS * " ffffffff".len();

/// The longest name of a client, in bytes.
pub const LONGEST_CLIENT: usize = 140;

#[derive(Clone, Debug)]
pub struct Answers {
    pub scope: Scope,
    /// The name of `blocked`, which a flag can change.
    pub blocked: VarName<'static>,
    pub others: Vec<Var>,
}

gcra_text::words! {
    /// A variable beside `blocked`.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Var {
        WouldBlock = "would_block",
        Remaining = "remaining",
        Limit = "limit",
        RetryAfter = "retry_after",
        RetryAfterMs = "retry_after_ms",
        Reset = "reset",
        Policy = "policy",
        Reason = "reason",
        /// The name of the limit that the numbers are of.
        LimitName = "limit_name",
        /// The name that logs have for the client.
        Client = "client",
        RateLimit = "ratelimit",
        RateLimitPolicy = "ratelimit_policy",
        /// All header fields in one list.
        Headers = "headers",
        /// Bytes per second for the response.
        Bandwidth = "bandwidth",
        DelayMs = "delay_ms",
        /// The reservation of the request, for its response to bring back.
        Reserved = "reserved",
    }
}

impl Var {
    /// Its name in HAProxy, behind the prefix.
    pub const fn name(self) -> VarName<'static> {
        VarName::from_static(self.as_str())
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

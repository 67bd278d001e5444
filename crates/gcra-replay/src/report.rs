//! The findings of `replay`, as `--json` prints it. docs/REPLAY.md describes each name.

use serde::Serialize;

use crate::suggest::suggestions::Suggestions;
use crate::tally::{Reasons, Totals};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub version: u32,
    pub program: String,
    /// When the report was made, in seconds since 1970.
    pub made: u64,
    pub files: Vec<String>,
    pub format: String,
    /// Which date of a line counts, in words.
    pub time: String,
    pub(crate) mapping: Vec<Mapped>,
    pub messages: Vec<String>,
    pub configuration: Configuration,
    /// A sentence without which the numbers must not be read.
    pub(crate) caution: Option<String>,
    pub notes: Vec<String>,
    pub(crate) cannot_know: [&'static str; 4],
    pub lines: u64,
    pub requests: u64,
    pub bad: Vec<Bad>,
    /// Requests that were left out because they lay too far behind later ones in the log.
    pub late: u64,
    pub truncated: u64,
    /// When the first and the last request came, in seconds since 1970.
    pub first: Option<f64>,
    pub last: Option<f64>,
    pub total: Total,
    pub(crate) against: Option<Against>,
    pub(crate) log_answers: Option<LogAnswers>,
    pub policies: Vec<PolicyReport>,
    pub(crate) timeline: Timeline,
    pub(crate) most_blocked: Vec<BlockedClient>,
    pub suggest: Option<Suggestions>,
    /// How long it took, in seconds.
    pub seconds: f64,
    pub(crate) lines_per_second: f64,
}

/// An arg, and the field or constant that gives its value.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Mapped {
    pub arg: String,
    pub field: String,
}

/// The configurations: a file, or the flags of one.
#[derive(Debug, Serialize)]
pub(crate) struct Configuration {
    pub new: Option<String>,
    pub old: Option<String>,
}

/// Bad lines of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct Bad {
    pub kind: String,
    pub count: u64,
    /// The first of them.
    pub file: String,
    pub line: u64,
    pub(crate) excerpt: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Total {
    #[serde(flatten)]
    pub requests: Totals,
    pub clients: u64,
    pub(crate) clients_blocked: u64,
    pub(crate) clients_would_block: u64,
}

/// The decisions of the other configuration, and where the two differ.
#[derive(Debug, Serialize)]
pub(crate) struct Against {
    pub total: Total,
    /// Requests that only the new configuration blocks.
    pub newly_blocked: u64,
    /// Requests that only the old configuration blocks.
    pub(crate) newly_allowed: u64,
    /// Requests that the old configuration allows, and the new one would block if it did not only
    /// observe.
    pub(crate) newly_would_block: u64,
    pub(crate) clients_newly_blocked: u64,
    pub(crate) clients_newly_allowed: u64,
    pub(crate) most_newly_blocked: Vec<NewlyBlocked>,
}

/// A client that the new configuration blocks where the old one did not.
#[derive(Debug, Serialize)]
pub(crate) struct NewlyBlocked {
    pub policy: String,
    pub client: String,
    /// How many of its requests are newly blocked.
    pub requests: u64,
}

/// How often the log has these answers, how often it says that the agent blocked, and how often
/// that there was no decision.
#[derive(Debug, Default, Serialize)]
pub(crate) struct LogAnswers {
    #[serde(rename = "429")]
    pub(crate) too_many_requests: u64,
    #[serde(rename = "403")]
    pub(crate) forbidden: u64,
    /// `None` if the log has no field with the variable `blocked`.
    pub blocked: Option<u64>,
    /// `None` if the log does not have the fields with the variables `blocked` and `err`.
    pub undecided: Option<WithoutDecision>,
}

/// The requests about which HAProxy got no decision, as the log says.
#[derive(Debug, Default, Serialize)]
pub(crate) struct WithoutDecision {
    pub requests: u64,
    pub(crate) by_err: Vec<OfErr>,
    /// Requests whose line is cut before these fields, so that it does not say.
    pub cut: u64,
}

/// The requests without a decision that have one number in `err`, and what it means.
#[derive(Debug, Serialize)]
pub(crate) struct OfErr {
    pub err: u32,
    pub requests: u64,
    pub why: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    pub name: String,
    /// The policy as `check` prints it.
    pub in_words: String,
    pub key: String,
    /// "enforce" or "observe".
    pub mode: &'static str,
    pub observes: bool,
    pub allowed: u64,
    pub blocked: u64,
    pub would_block: u64,
    /// Those of the allowed ones that had to wait before they went on.
    pub delayed: u64,
    pub undecided: u64,
    pub reasons: Reasons,
    pub clients: u64,
    /// Clients with a request that was blocked, or would be.
    pub(crate) clients_blocked: u64,
    /// Whether `clients` is exact. If not, it is off by about 0.1 %.
    pub(crate) clients_exact: bool,
    pub limits: Vec<LimitReport>,
}

#[derive(Debug, Serialize)]
pub(crate) struct LimitReport {
    pub name: String,
    pub limit: String,
    #[serde(rename = "override")]
    pub is_override: bool,
    pub blocked: u64,
    pub would_block: u64,
    /// The longest time that a client would have had to wait, in seconds.
    pub(crate) worst_wait: f64,
}

/// The outcomes of requests over time.
#[derive(Debug, Serialize)]
pub(crate) struct Timeline {
    /// When the first step begins, in seconds since 1970.
    pub start: u64,
    /// How long each step is, in seconds.
    pub step: u64,
    pub allowed: Vec<u64>,
    pub blocked: Vec<u64>,
    pub would_block: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blocked_before: Option<Vec<u64>>,
}

/// A client with blocked requests, or with requests that would be.
#[derive(Debug, Serialize)]
pub(crate) struct BlockedClient {
    pub policy: String,
    pub client: String,
    pub requests: u64,
    pub blocked: u64,
    pub would_block: u64,
    pub newly_blocked: u64,
    /// When the first and the last of them came, in seconds since 1970.
    pub(crate) first_blocked: u64,
    pub(crate) last_blocked: u64,
    /// The longest wait, in seconds, and the limit that it was for.
    pub(crate) worst_wait: f64,
    pub limit: Option<String>,
    pub(crate) peak: ClientPeak,
    pub(crate) timeline: ClientTimeline,
}

/// The most requests in a second of the clock.
#[derive(Debug, Serialize)]
pub(crate) struct ClientPeak {
    pub per_second: u64,
}

/// The outcomes of a client's requests, in the steps of the report, from its first blocked request
/// on.
#[derive(Debug, Serialize)]
pub(crate) struct ClientTimeline {
    pub allowed: Vec<u64>,
    /// Blocked, or would be.
    pub blocked: Vec<u64>,
}

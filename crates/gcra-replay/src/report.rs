//! What `replay` found, as `--json` prints it. docs/REPLAY.md describes each name.

use serde::Serialize;

use crate::suggest::Suggestions;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this format.
    pub(crate) version: u32,
    pub(crate) program: String,
    /// When the report was made, in seconds since 1970.
    pub(crate) made: u64,
    pub(crate) files: Vec<String>,
    pub(crate) format: String,
    /// Which date of a line counts, in words.
    pub(crate) time: String,
    pub(crate) mapping: Vec<Mapped>,
    pub(crate) messages: Vec<String>,
    pub(crate) configuration: Configuration,
    /// What has to be known about the numbers; a sentence each.
    pub(crate) notes: Vec<String>,
    /// What a replay of this log cannot know; a sentence each.
    pub(crate) cannot_know: Vec<String>,
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    pub(crate) bad: Vec<Bad>,
    /// Requests that were left out because they lay too far behind later ones in the log.
    pub(crate) late: u64,
    pub(crate) truncated: u64,
    /// When the first and the last request came, in seconds since 1970.
    pub(crate) first: Option<f64>,
    pub(crate) last: Option<f64>,
    pub(crate) total: Total,
    pub(crate) against: Option<Against>,
    /// What the log itself says about blocked requests.
    pub(crate) log_answers: Option<LogAnswers>,
    pub(crate) policies: Vec<PolicyReport>,
    pub(crate) timeline: Timeline,
    pub(crate) most_blocked: Vec<Blocked>,
    pub(crate) suggest: Option<Suggestions>,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    pub(crate) lines_per_second: f64,
}

/// An arg, and the field or constant that gives its value.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Mapped {
    pub(crate) arg: String,
    pub(crate) field: String,
}

/// The configurations: a file, or the flags of one.
#[derive(Debug, Serialize)]
pub(crate) struct Configuration {
    pub(crate) new: Option<String>,
    pub(crate) old: Option<String>,
}

/// Bad lines of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct Bad {
    pub(crate) kind: String,
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) file: String,
    pub(crate) line: u64,
    pub(crate) excerpt: String,
}

/// What all requests came to.
#[derive(Debug, Serialize)]
pub(crate) struct Total {
    pub(crate) allowed: u64,
    pub(crate) blocked: u64,
    pub(crate) would_block: u64,
    /// Those of the first three that had to wait before they went on.
    pub(crate) delayed: u64,
    pub(crate) undecided: u64,
    pub(crate) unmatched: u64,
    pub(crate) clients: u64,
    pub(crate) clients_blocked: u64,
    pub(crate) clients_would_block: u64,
}

/// What the other configuration decides, and where the two differ.
#[derive(Debug, Serialize)]
pub(crate) struct Against {
    pub(crate) total: Total,
    /// Requests that only the new configuration blocks.
    pub(crate) newly_blocked: u64,
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
    pub(crate) policy: String,
    pub(crate) client: String,
    /// How many of its requests are newly blocked.
    pub(crate) requests: u64,
}

/// How often the log has these answers, and how often it says that the agent blocked.
#[derive(Debug, Default, Serialize)]
pub(crate) struct LogAnswers {
    #[serde(rename = "429")]
    pub(crate) too_many_requests: u64,
    #[serde(rename = "403")]
    pub(crate) forbidden: u64,
    /// `None` if the log has no field with the variable `blocked`.
    pub(crate) blocked: Option<u64>,
}

/// What one policy decided.
#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) name: String,
    /// The policy as `check` prints it.
    pub(crate) in_words: String,
    pub(crate) key: String,
    /// "enforce" or "observe".
    pub(crate) mode: &'static str,
    pub(crate) observes: bool,
    pub(crate) allowed: u64,
    pub(crate) blocked: u64,
    pub(crate) would_block: u64,
    /// Those of the allowed ones that had to wait before they went on.
    pub(crate) delayed: u64,
    pub(crate) undecided: u64,
    /// Why requests were blocked, or would be.
    pub(crate) reasons: Reasons,
    pub(crate) clients: u64,
    /// Clients with a request that was blocked, or would be.
    pub(crate) clients_blocked: u64,
    /// Whether `clients` is exact. If not, it is off by about 0.1 %.
    pub(crate) clients_exact: bool,
    pub(crate) limits: Vec<LimitReport>,
}

/// Why requests were blocked.
#[derive(Debug, Serialize)]
pub(crate) struct Reasons {
    pub(crate) limit: u64,
    /// The cost was above the burst.
    pub(crate) oversize: u64,
    /// The rule is `deny`.
    pub(crate) denied: u64,
}

/// What one limit denied.
#[derive(Debug, Serialize)]
pub(crate) struct LimitReport {
    pub(crate) name: String,
    pub(crate) limit: String,
    /// Whether it is one of an override.
    #[serde(rename = "override")]
    pub(crate) is_override: bool,
    pub(crate) blocked: u64,
    pub(crate) would_block: u64,
    /// The longest time that a client would have had to wait, in seconds.
    pub(crate) worst_wait: f64,
}

/// What came of requests over time.
#[derive(Debug, Serialize)]
pub(crate) struct Timeline {
    /// When the first step begins, in seconds since 1970.
    pub(crate) start: u64,
    /// How long each step is, in seconds.
    pub(crate) step: u64,
    pub(crate) allowed: Vec<u64>,
    pub(crate) blocked: Vec<u64>,
    pub(crate) would_block: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blocked_before: Option<Vec<u64>>,
}

/// A client with blocked requests, or with requests that would be.
#[derive(Debug, Serialize)]
pub(crate) struct Blocked {
    pub(crate) policy: String,
    pub(crate) client: String,
    pub(crate) requests: u64,
    pub(crate) blocked: u64,
    pub(crate) would_block: u64,
    pub(crate) newly_blocked: u64,
    /// When the first and the last of them came, in seconds since 1970.
    pub(crate) first_blocked: u64,
    pub(crate) last_blocked: u64,
    /// The longest wait, in seconds, and the limit that it was for.
    pub(crate) worst_wait: f64,
    pub(crate) limit: Option<String>,
    pub(crate) peak: Peak,
    pub(crate) timeline: ClientTimeline,
}

/// The most requests in a second of the clock.
#[derive(Debug, Serialize)]
pub(crate) struct Peak {
    pub(crate) per_second: u64,
}

/// What came of a client's requests, in the steps of the report, from its first blocked request
/// on.
#[derive(Debug, Serialize)]
pub(crate) struct ClientTimeline {
    pub(crate) allowed: Vec<u64>,
    /// Blocked, or would be.
    pub(crate) blocked: Vec<u64>,
}

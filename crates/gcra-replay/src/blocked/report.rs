//! Who was blocked, as `--json` prints it. docs/BLOCKED.md describes each name.

use serde::Serialize;

use crate::report::{Bad, OfErr};

#[derive(Debug, Serialize)]
pub(crate) struct BlockedReport {
    pub version: u32,
    pub program: String,
    /// When the report was made, in seconds since 1970.
    pub made: u64,
    pub files: Vec<String>,
    pub format: String,
    /// Which date of a line counts, in words.
    pub time: String,
    /// Which field of a line names the client.
    pub(crate) client_field: String,
    /// The time zone in which times are shown, and how many seconds it is east of UTC. All numbers
    /// are in UTC.
    pub(crate) zone: String,
    pub(crate) utc_offset: i32,
    /// The period of the question, in seconds since 1970, and its client as it was written.
    pub from: Option<i64>,
    pub to: Option<i64>,
    pub client: Option<String>,
    pub notes: Vec<String>,
    /// All lines, and all requests in them.
    pub lines: u64,
    pub(crate) log_requests: u64,
    pub bad: Vec<Bad>,
    /// Requests that were left out because they lay too far behind later ones in the log.
    pub late: u64,
    pub truncated: u64,
    /// When the first and the last of the requests came that were asked about.
    pub first: i64,
    pub last: i64,
    /// The requests that were asked about, and what became of them.
    pub requests: u64,
    pub allowed: u64,
    pub blocked: u64,
    pub(crate) no_decision: NoDecision,
    /// Requests whose line has a `blocked` that is no value of it.
    pub(crate) not_readable: u64,
    /// Requests whose line has neither `blocked` nor `err`: HAProxy did not ask about them, or
    /// their line is cut.
    pub(crate) not_asked: u64,
    pub(crate) clients_blocked: u64,
    pub(crate) causes: Vec<CauseReport>,
    pub clients: Vec<ClientReport>,
    /// Blocked requests of further clients, of which there were too many.
    pub(crate) unlisted: u64,
    pub(crate) timeline: BlockedTimeline,
}

/// The requests about which HAProxy got no decision, by the number in `err`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct NoDecision {
    pub requests: u64,
    pub(crate) by_err: Vec<OfErr>,
}

/// All blocked requests with one policy, limit and reason. A fact that the log does not say is
/// `None`.
#[derive(Debug, Serialize)]
pub(crate) struct CauseReport {
    pub policy: Option<String>,
    pub limit: Option<String>,
    pub reason: Option<String>,
    pub blocked: u64,
    pub clients: u64,
    /// The longest time that a client was told to wait, in seconds.
    pub(crate) longest_wait: Option<u64>,
}

/// Those of one client.
#[derive(Debug, Serialize)]
pub(crate) struct ClientReport {
    pub client: String,
    /// What it is known as, by `--names`.
    pub(crate) known_as: Option<String>,
    pub policy: Option<String>,
    pub limit: Option<String>,
    pub reason: Option<String>,
    pub blocked: u64,
    /// When the first and the last of them came, in seconds since 1970.
    pub first: i64,
    pub last: i64,
    pub(crate) longest_wait: Option<u64>,
}

/// The requests over time, in steps.
#[derive(Debug, Serialize)]
pub(crate) struct BlockedTimeline {
    /// When the first step begins, in seconds since 1970.
    pub start: u64,
    /// How long each step is, in seconds.
    pub step: u64,
    pub allowed: Vec<u64>,
    pub blocked: Vec<u64>,
    pub(crate) no_decision: Vec<u64>,
}

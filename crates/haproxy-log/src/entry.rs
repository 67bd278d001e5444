//! One request of a log, and what became of all lines.

use std::time::Duration;

use crate::bad::BadLine;

/// One request of a log.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// When the request came: microseconds since 1970, UTC. [`Format::time`](crate::Format::time)
    /// says which date of the line this is.
    pub at: i64,
    /// The values of the selected fields, in the order of the selection. `None`: the line has no
    /// value ("-", `<NOSRV>`).
    pub fields: &'a [Option<&'a [u8]>],
    /// Which input, counted from 0.
    pub input: usize,
    /// The number of the line in its input, counted from 1.
    pub line: u64,
}

/// The counts of one reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadCounts {
    /// Lines of all inputs, with empty ones.
    pub lines: u64,
    /// Requests that `each` was called with.
    pub entries: u64,
    /// Bad lines by kind.
    pub bad: Vec<BadLine>,
    /// Requests that lay too far behind later ones. They were not passed to `each`: to count them
    /// later than they came would make bursts that never were.
    pub late: u64,
    /// Requests whose line ends within a string, or behind one in quotes, as HAProxy cuts lines
    /// that are longer than `len` of its `log` directive. They are among `entries`; values that
    /// are cut off are absent.
    pub truncated: u64,
    /// A window for which no request would have been late, as far as the memory reaches. `None`:
    /// none was late.
    pub behind: Option<Duration>,
    /// The times of the first and the last request in microseconds since 1970, if there are any.
    pub first: Option<i64>,
    /// See `first`.
    pub last: Option<i64>,
}

//! The blocked requests of a log, counted by client and by cause.

use std::collections::HashMap;

use super::who::listed_as;
use crate::timeline::{Steps, merge};

/// The most clients that are counted apart, each by cause: about 200 MB.
const MOST_ROWS: usize = 1 << 20;

/// The most policies, limits and reasons that are counted apart. A configuration has fewer.
const MOST_CAUSES: usize = 1 << 12;

/// The facts that the line of a blocked request says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockedLine<'a> {
    pub(crate) client: &'a [u8],
    /// Policy, limit and reason.
    pub(crate) cause: [Option<&'a [u8]>; 3],
    /// How long the client was told to wait, in seconds.
    pub(crate) wait: Option<u64>,
}

/// Policy, limit and reason. Of those that a log does not say, the text is empty.
pub(crate) type Cause = [String; 3];

/// The blocked requests of a client, or of all, for one cause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockedRow {
    pub(crate) blocked: u64,
    pub(crate) clients: u64,
    /// In seconds since 1970.
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) longest_wait: Option<u64>,
}

impl BlockedRow {
    fn add(&mut self, at: i64, wait: Option<u64>) {
        if self.blocked == 0 {
            self.first = at;
        }
        self.blocked += 1;
        self.last = at;
        self.longest_wait = self.longest_wait.max(wait);
    }
}

#[derive(Debug, Default)]
pub(crate) struct BlockedTally {
    pub(crate) causes: HashMap<Cause, BlockedRow>,
    /// By client and cause.
    pub(crate) clients: HashMap<(String, Cause), BlockedRow>,
    /// Blocked requests of clients that are not among these, because there were too many.
    pub(crate) unlisted: u64,
}

impl BlockedTally {
    pub(crate) fn add(&mut self, at: i64, line: BlockedLine<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let cause = line.cause.map(|part| part.map(text).unwrap_or_default());
        let is_known = self.causes.contains_key(&cause);
        let cause = match is_known || self.causes.len() < MOST_CAUSES {
            true => cause,
            false => ["(others)".to_owned(), String::new(), String::new()],
        };
        let of_all = self.causes.entry(cause.clone()).or_default();
        of_all.add(at, line.wait);
        let key = (listed_as(line.client), cause);
        if self.clients.len() >= MOST_ROWS && !self.clients.contains_key(&key) {
            self.unlisted += 1;
            return;
        }
        let row = self.clients.entry(key).or_default();
        of_all.clients += u64::from(row.blocked == 0);
        row.add(at, line.wait);
    }
}

/// The requests over time: allowed, blocked, and those without a decision.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) steps: Steps,
    pub(crate) sums: Vec<[u64; 3]>,
}

impl Series {
    /// Counts a request of this second: 0, it was allowed; 1, blocked; 2, not decided about.
    pub(crate) fn add(&mut self, second: i64, of: usize) {
        let second = u64::try_from(second).unwrap_or(0);
        let place = self.steps.place(second, |longer| merge(&mut self.sums, longer));
        self.sums.resize(self.sums.len().max(place + 1), [0; 3]);
        self.sums[place][of] += 1;
    }
}

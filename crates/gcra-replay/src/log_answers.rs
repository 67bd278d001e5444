//! The answers of a log itself: those to requests that were blocked, and the requests about which
//! HAProxy got no decision.

use std::collections::BTreeMap;

use crate::mapping::Fields;
use crate::report::{LogAnswers, OfErr, WithoutDecision};

/// The most numbers in `err` that are counted. HAProxy has fewer.
const MOST_ERRS: usize = 300;

pub(crate) struct AnswersOfLog {
    status: Option<usize>,
    blocked: Option<usize>,
    err: Option<usize>,
    counts: LogAnswers,
    /// How many requests of each first digit of a status there are.
    classes: [u64; 10],
    /// Requests without a decision, by `err`.
    undecided: BTreeMap<u32, u64>,
    /// Requests of which the line says neither `blocked` nor `err`.
    silent: u64,
}

impl AnswersOfLog {
    pub(crate) fn new(fields: &mut Fields<'_>) -> Self {
        let status = fields.select_if_known("ST");
        let mut of = |name: &str| {
            let names = [format!("var(txn.gcra.{name})"), format!("var(sess.gcra.{name})")];
            names
                .iter()
                .map(String::as_str)
                .chain([name])
                .find_map(|it| fields.select_if_known(it))
        };
        let (blocked, err) = (of("blocked"), of("err"));
        let counts = LogAnswers { blocked: blocked.map(|_| 0), ..LogAnswers::default() };
        let (classes, undecided) = Default::default();
        Self { status, blocked, err, counts, classes, undecided, silent: 0 }
    }

    pub(crate) fn count(&mut self, values: &[Option<&[u8]>]) {
        let value = |place: Option<usize>| place.and_then(|place| *values.get(place)?);
        let status = value(self.status);
        match status {
            Some(b"429") => self.counts.too_many_requests += 1,
            Some(b"403") => self.counts.forbidden += 1,
            _ => {}
        }
        if let Some(&[digit @ b'0'..=b'9', ..]) = status {
            self.classes[usize::from(digit - b'0')] += 1;
        }
        let blocked = value(self.blocked);
        if let (Some(b"1" | b"true"), Some(count)) = (blocked, &mut self.counts.blocked) {
            *count += 1;
        }
        if blocked.is_some() {
            return;
        }
        // The last field of a format may have more behind it.
        let err = value(self.err).and_then(|err| err.split(|&byte| byte == b' ').next());
        match err.map(|err| str::from_utf8(err).ok().and_then(|err| err.parse().ok())) {
            Some(Some(err)) => {
                if self.undecided.len() < MOST_ERRS || self.undecided.contains_key(&err) {
                    *self.undecided.entry(err).or_default() += 1;
                }
            }
            Some(None) => {}
            None => self.silent += 1,
        }
    }

    /// Whether no request of the log was answered well, as in a log of only a part of them.
    pub(crate) fn has_only_errors(&self) -> bool {
        let [_, _, succeeded, redirected, ..] = self.classes;
        succeeded + redirected == 0 && self.classes.iter().any(|&count| count > 0)
    }

    /// What was found, in a log of which so many lines are cut.
    pub(crate) fn found(mut self, cut: u64) -> Option<LogAnswers> {
        if self.blocked.is_some() && self.err.is_some() {
            let by_err = self.undecided.iter();
            let by_err = by_err.map(|(&err, &requests)| OfErr { err, requests, why: why(err) });
            self.counts.undecided = Some(WithoutDecision {
                requests: self.undecided.values().sum(),
                by_err: by_err.collect(),
                cut: cut.min(self.silent),
            });
        }
        (self.status.is_some() || self.blocked.is_some()).then_some(self.counts)
    }
}

/// What HAProxy means by the variable `err`: docs/TROUBLESHOOTING.md has more.
fn why(err: u32) -> &'static str {
    match err {
        1 => "no answer within timeout processing",
        2 => "all agents were down",
        3 | 259 => "the message was larger than a frame",
        4 => "the client closed its connection",
        257 => "the connection to the agent broke, or all agents were down",
        256.. => "the agent ended the connection",
        _ => "another fault of HAProxy",
    }
}

//! The answers of a log itself: those to requests that were blocked, and the requests about which
//! HAProxy got no decision.

use std::collections::BTreeMap;

use crate::mapping::Fields;
use crate::report::{LogAnswers, OfErr, WithoutDecision};
use crate::said::{SaidFields, WhatIsSaid};

pub(crate) struct AnswersOfLog {
    status: Option<usize>,
    said: SaidFields,
    counts: LogAnswers,
    /// How many requests of each first digit of a status there are.
    classes: [u64; 10],
    undecided: UndecidedByErr,
    /// Requests of which the line says neither `blocked` nor `err`.
    silent: u64,
}

/// Requests without a decision, by `err`.
#[derive(Debug, Default)]
pub(crate) struct UndecidedByErr(BTreeMap<u32, u64>);

impl UndecidedByErr {
    pub(crate) fn add(&mut self, err: u32) {
        /// The most numbers in `err` that are told apart. HAProxy has fewer.
        const MOST: usize = 300;
        let is_known = self.0.len() < MOST || self.0.contains_key(&err);
        *self.0.entry(if is_known { err } else { u32::MAX }).or_default() += 1;
    }

    pub(crate) fn requests(&self) -> u64 {
        self.0.values().sum()
    }

    pub(crate) fn by_err(&self) -> Vec<OfErr> {
        let by_err = self.0.iter();
        by_err.map(|(&err, &requests)| OfErr { err, requests, why: why(err) }).collect()
    }
}

impl AnswersOfLog {
    pub(crate) fn new(fields: &mut Fields<'_>) -> Self {
        let status = fields.select_if_known("ST");
        let said = SaidFields::new(fields);
        let counts = LogAnswers { blocked: said.blocked.map(|_| 0), ..LogAnswers::default() };
        let (classes, undecided) = Default::default();
        Self { status, said, counts, classes, undecided, silent: 0 }
    }

    pub(crate) fn count(&mut self, values: &[Option<&[u8]>]) {
        let status = self.status.and_then(|place| *values.get(place)?);
        match status {
            Some(b"429") => self.counts.too_many_requests += 1,
            Some(b"403") => self.counts.forbidden += 1,
            _ => {}
        }
        if let Some(&[digit @ b'0'..=b'9', ..]) = status {
            self.classes[usize::from(digit - b'0')] += 1;
        }
        match self.said.decision(values) {
            WhatIsSaid::Blocked => {
                self.counts.blocked = self.counts.blocked.map(|count| count + 1);
            }
            WhatIsSaid::Allowed | WhatIsSaid::NotReadable => {}
            WhatIsSaid::None { err } => self.undecided.add(err),
            WhatIsSaid::Silent => self.silent += 1,
        }
    }

    /// Whether no request of the log was answered well, as in a log of only a part of them.
    pub(crate) fn has_only_errors(&self) -> bool {
        let [_, _, succeeded, redirected, ..] = self.classes;
        succeeded + redirected == 0 && self.classes.iter().any(|&count| count > 0)
    }

    /// The counts, for a log of which so many lines are cut.
    pub(crate) fn found(mut self, cut: u64) -> Option<LogAnswers> {
        let SaidFields { blocked, err } = self.said;
        if blocked.is_some() && err.is_some() {
            self.counts.undecided = Some(WithoutDecision {
                requests: self.undecided.requests(),
                by_err: self.undecided.by_err(),
                cut: cut.min(self.silent),
            });
        }
        (self.status.is_some() || blocked.is_some()).then_some(self.counts)
    }
}

/// The meaning of HAProxy's variable `err`: docs/TROUBLESHOOTING.md has more.
pub(crate) fn why(err: u32) -> &'static str {
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

//! The answers that a log itself shows to requests that were blocked.

use crate::mapping::Fields;
use crate::report::LogAnswers;

pub(crate) struct AnswersOfLog {
    status: Option<usize>,
    blocked: Option<usize>,
    counts: LogAnswers,
}

impl AnswersOfLog {
    pub(crate) fn new(fields: &mut Fields<'_>) -> Self {
        let status = fields.select_if_known("ST");
        let blocked = ["var(txn.gcra.blocked)", "var(sess.gcra.blocked)", "blocked"]
            .into_iter()
            .find_map(|name| fields.select_if_known(name));
        let counts = LogAnswers { blocked: blocked.map(|_| 0), ..LogAnswers::default() };
        Self { status, blocked, counts }
    }

    pub(crate) fn count(&mut self, values: &[Option<&[u8]>]) {
        let value = |place: Option<usize>| place.and_then(|place| *values.get(place)?);
        match value(self.status) {
            Some(b"429") => self.counts.too_many_requests += 1,
            Some(b"403") => self.counts.forbidden += 1,
            _ => {}
        }
        if let (Some(b"1" | b"true"), Some(count)) =
            (value(self.blocked), &mut self.counts.blocked)
        {
            *count += 1;
        }
    }

    pub(crate) fn found(self) -> Option<LogAnswers> {
        (self.status.is_some() || self.blocked.is_some()).then_some(self.counts)
    }
}

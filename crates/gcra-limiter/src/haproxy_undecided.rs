//! Requests that had no decision because HAProxy got no answer: how many, and why. Only HAProxy
//! knows, and says it in a [message](gcra_policy::haproxy::report) of its own.

use std::array;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gcra_policy::haproxy::report::{ERRS, HOST, REPORT, SET_SINCE, SINCE, TOLD, UNSETTLED};
use gcra_table::board::HEARD_KINDS;
use gcra_table::{KeyHash, Table};
use gcra_text::count::Count;
use spop_agent::{Message, Value};

/// The requests by `err`, in the order of [`ERRS`].
pub type ByErr = [u64; ERRS.len()];

/// The kinds of the table are the places in `ERRS`, and this one.
const UNSETTLED_KIND: usize = HEARD_KINDS - 1;

const _: () = assert!(ERRS.len() <= UNSETTLED_KIND);

/// The longest name of a host that is read, in bytes.
const MAX_HOST: usize = 255;

/// How many beats, of a second each, a minute has.
const MINUTE: usize = 60;

/// Counts the requests of which this agent was the first of its table to hear.
#[derive(Debug, Default)]
pub struct HaproxyUndecided {
    counts: [AtomicU64; ERRS.len()],
    /// Messages of responses that had no answer.
    unsettled: AtomicU64,
    /// Reports that do not say of which HAProxy process they are.
    nameless: AtomicU64,
    /// The counts at the beats of the last minute.
    minute: Mutex<VecDeque<ByErr>>,
}

impl HaproxyUndecided {
    /// Takes note of a report of HAProxy. HAProxy tells one agent of the table or another, until
    /// an agent has answered, so the table says how much is new. Returns up to when HAProxy has
    /// reported, which is the answer.
    #[cold]
    pub(crate) fn hear(&self, table: &Table, report: &Message<'_>) -> Option<i64> {
        let Some(source) = source(table, report) else {
            self.nameless.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        for arg in report.args() {
            // HAProxy counts in 32 bits.
            let count = arg.value.as_integer().and_then(|count| u32::try_from(count).ok());
            let (Some((kind, counter)), Some(count)) = (self.counter(arg.name), count) else {
                continue;
            };
            let new = table.board().hear(source, kind, count);
            counter.fetch_add(new.into(), Ordering::Relaxed);
        }
        let told = report.arg(TOLD.as_bytes())?.as_integer()?;
        i64::try_from(told).ok()
    }

    /// The counter for an arg of a report, with its kind.
    fn counter(&self, arg: &[u8]) -> Option<(usize, &AtomicU64)> {
        if *arg == *UNSETTLED.as_bytes() {
            return Some((UNSETTLED_KIND, &self.unsettled));
        }
        let err = arg.strip_prefix(b"err")?;
        let kind = ERRS.iter().position(|known| known.as_bytes() == err)?;
        Some((kind, &self.counts[kind]))
    }

    pub fn unsettled(&self) -> u64 {
        self.unsettled.load(Ordering::Relaxed)
    }

    pub fn counts(&self) -> ByErr {
        array::from_fn(|kind| self.counts[kind].load(Ordering::Relaxed))
    }

    /// To be called at each beat.
    pub fn beat(&self) {
        let mut minute = self.minute();
        minute.push_back(self.counts());
        if minute.len() > MINUTE {
            minute.pop_front();
        }
    }

    /// The counts of the last minute.
    pub fn last_minute(&self) -> ByErr {
        let before = self.minute().front().copied().unwrap_or_default();
        since(self.counts(), before)
    }

    fn minute(&self) -> MutexGuard<'_, VecDeque<ByErr>> {
        self.minute.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn nameless(&self) -> u64 {
        self.nameless.load(Ordering::Relaxed)
    }
}

/// The HAProxy process that reports.
fn source(table: &Table, report: &Message<'_>) -> Option<KeyHash> {
    let Some(Value::String(host @ [_, ..])) = report.arg(HOST.as_bytes()) else { return None };
    let since = report.arg(SINCE.as_bytes())?.as_integer().filter(|since| *since > 0)?;
    let mut hasher = table.hasher();
    hasher.write(b"haproxy process");
    hasher.write(&since.to_le_bytes());
    hasher.write(&host[..host.len().min(MAX_HOST)]);
    Some(hasher.finish())
}

/// How much each was raised.
pub fn since(now: ByErr, before: ByErr) -> ByErr {
    array::from_fn(|kind| now[kind].saturating_sub(before[kind]))
}

/// Why requests have this `err`, and what helps.
pub fn why(err: &str) -> &'static str {
    match err {
        "1" => {
            "no answer came within 'timeout processing': raise it in the spoe-agent section, or \
             find out what slows the agents down"
        }
        "2" | "257" => {
            "no agent answered: see whether agents run, and which servers of the backend \
             gcra-agents are DOWN"
        }
        "3" | "259" => {
            "the message was larger than a frame: let HAProxy send a hash of the args that \
             clients write, or raise its tune.bufsize"
        }
        "4" => "the client left before the answer, which no agent can help",
        _ => "the connection to the agent was ended: the agents' logs say why",
    }
}

/// A sentence about requests, if there are any: how many by `err`, and what helps most of them.
pub fn about<'e>(counts: impl IntoIterator<Item = (&'e str, u64)>) -> Option<String> {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let (most, _) = counts.first()?;
    let all = counts.iter().fold(0_u64, |all, (_, count)| all.saturating_add(*count));
    let each = counts.iter().map(|(err, count)| format!("{count} with err={err}"));
    let mostly = if counts.len() > 1 { "mostly " } else { "" };
    Some(format!(
        "{} had no decision, says HAProxy ({}); {mostly}{}",
        Count(all, "request", "requests"),
        each.collect::<Vec<_>>().join(", "),
        why(most)
    ))
}

/// A sentence about this many messages of responses that had no answer.
pub fn about_unsettled(count: u64) -> String {
    format!(
        "{} no answer, says HAProxy, so their costs may not be charged; its log says why, in the \
         field err",
        Count(count, "message of a response had", "messages of responses had")
    )
}

/// A sentence about this many reports that do not say of which HAProxy process they are.
pub fn about_nameless(count: u64) -> String {
    format!(
        "{} of requests without a decision named no HAProxy process; write '{SET_SINCE}' into its \
         section 'global', and '{HOST}=hostname {SINCE}=var(proc.gcra_since)' into the args of \
         the spoe-message '{REPORT}'",
        Count(count, "report", "reports")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_each_err_and_helps_against_most() {
        assert_eq!(about([("1", 0), ("2", 0)]), None);
        let said = about([("1", 857)]).unwrap();
        assert!(
            said.starts_with("857 requests had no decision, says HAProxy (857 with err=1); no")
        );
        assert!(said.contains("'timeout processing'"), "{said}");
        let said = about(ERRS.map(|err| (err, if err == "257" { 9 } else { 1 }))).unwrap();
        assert!(said.starts_with("22 requests had"), "{said}");
        assert!(said.contains("(9 with err=257, 1 with err=1, "), "{said}");
        assert!(said.contains("; mostly no agent answered"), "{said}");
        assert!(about([("4", 1)]).unwrap().starts_with("1 request had no decision"));
        assert!(about([("3", u64::MAX), ("4", 1)]).is_some());
    }

    #[test]
    fn the_last_minute_ends_a_minute_after_the_last_count() {
        let all = HaproxyUndecided::default();
        all.counts[2].fetch_add(5, Ordering::Relaxed);
        assert_eq!(all.last_minute()[2], 5, "before the first beat");
        all.beat();
        all.counts[2].fetch_add(3, Ordering::Relaxed);
        for _ in 0..MINUTE - 1 {
            all.beat();
            assert_eq!(all.last_minute()[2], 3);
        }
        for _ in 0..2 {
            all.beat();
        }
        assert_eq!(all.last_minute(), ByErr::default());
        assert_eq!(all.counts()[2], 8);
    }
}

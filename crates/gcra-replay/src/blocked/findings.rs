//! From the counts to the report of the blocked clients.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use gcra_policy::KnownClients;
use gcra_text::count::Count;
use gcra_text::duration::Utc;
use gcra_text::version;
use haproxy_log::{Format, ReadCounts};

use super::period::LogPeriod;
use super::report::{BlockedReport, BlockedTimeline, CauseReport, ClientReport, NoDecision};
use super::tally::{BlockedTally, Cause, Series};
use super::who::what_is_right;
use crate::findings::bad;
use crate::log_answers::UndecidedByErr;
use crate::logs::note_on_late;

/// Everything that was found about the requests that were asked about.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) requests: u64,
    pub(crate) allowed: u64,
    pub(crate) blocked: u64,
    pub(crate) not_readable: u64,
    pub(crate) not_asked: u64,
    pub(crate) undecided: UndecidedByErr,
    pub(crate) tally: BlockedTally,
    pub(crate) series: Series,
}

/// The log, and what was asked about it.
pub(crate) struct About<'a> {
    pub files: Vec<String>,
    pub format: &'a Format,
    pub(crate) client_field: String,
    /// What clients are known as.
    pub(crate) known: KnownClients,
    pub(crate) utc_offset: i32,
    pub(crate) period: LogPeriod,
    pub client: Option<&'a str>,
    /// Variables that no field of the log has.
    pub(crate) missing: Vec<&'static str>,
}

impl About<'_> {
    /// Why there is nothing to report of a log with requests of this time.
    pub(crate) fn nothing(&self, first: i64, last: i64) -> String {
        let at = |at: i64| at_in_zone(at, self.utc_offset);
        let LogPeriod { from, to, .. } = self.period;
        let client = self.client.map(|client| format!(" of the client '{client}'"));
        let from = from.map(|from| format!(" from {}", at(from)));
        let to = to.map(|to| format!(" before {}", at(to)));
        let asked: String = [client, from, to].into_iter().flatten().collect();
        let advice = match self.client {
            Some(it) => format!(", and no file has the name '{it}'{}", what_is_right(it)),
            None => {
                self.period.with_date(first).map(|dated| format!("; {dated}")).unwrap_or_default()
            }
        };
        format!(
            "no request{asked} is in {}, which has requests from {} to {}{advice}",
            self.files.join(", "),
            at(first),
            at(last)
        )
    }
}

/// A moment by the clock of the log, with its zone.
pub(crate) fn at_in_zone(local: i64, utc_offset: i32) -> String {
    let text = Utc(u64::try_from(local).unwrap_or(0)).to_string();
    format!("{} {}", text.trim_end_matches(" UTC"), zone(utc_offset))
}

impl Found {
    pub(crate) fn report(self, about: About<'_>, counts: &ReadCounts) -> BlockedReport {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let utc = |local: i64| local - i64::from(about.utc_offset);
        let Self { tally, series, .. } = self;
        let clients: HashSet<&str> = tally.clients.keys().map(|(client, _)| &**client).collect();
        let clients_blocked = clients.len() as u64;
        let notes = notes(&about, counts, tally.unlisted);
        let mut causes: Vec<_> = tally.causes.into_iter().collect();
        causes.sort_by(|(one, a), (other, b)| b.blocked.cmp(&a.blocked).then(one.cmp(other)));
        let mut clients: Vec<_> = tally.clients.into_iter().collect();
        clients.sort_by(|(one, a), (other, b)| b.blocked.cmp(&a.blocked).then(one.cmp(other)));
        BlockedReport {
            version: 1,
            program: format!("gcra-spoa {}", version::WORDS),
            made: now.as_secs(),
            files: about.files,
            format: about.format.name().to_owned(),
            time: about.format.time().to_owned(),
            client_field: about.client_field,
            zone: zone(about.utc_offset),
            utc_offset: about.utc_offset,
            from: about.period.from.map(utc),
            to: about.period.to.map(utc),
            client: about.client.map(str::to_owned),
            notes,
            lines: counts.lines,
            log_requests: counts.entries,
            bad: counts.bad.iter().map(bad).collect(),
            late: counts.late,
            truncated: counts.truncated,
            first: self.first,
            last: self.last,
            requests: self.requests,
            allowed: self.allowed,
            blocked: self.blocked,
            no_decision: NoDecision {
                requests: self.undecided.requests(),
                by_err: self.undecided.by_err(),
            },
            not_readable: self.not_readable,
            not_asked: self.not_asked,
            clients_blocked,
            causes: causes
                .into_iter()
                .map(|(cause, row)| {
                    let [policy, limit, reason] = said(cause);
                    let (blocked, clients) = (row.blocked, row.clients);
                    let longest_wait = row.longest_wait;
                    CauseReport { policy, limit, reason, blocked, clients, longest_wait }
                })
                .collect(),
            clients: clients
                .into_iter()
                .map(|((client, cause), row)| {
                    let [policy, limit, reason] = said(cause);
                    ClientReport {
                        known_as: about.known.get(&client).map(str::to_owned),
                        client,
                        policy,
                        limit,
                        reason,
                        blocked: row.blocked,
                        first: row.first,
                        last: row.last,
                        longest_wait: row.longest_wait,
                    }
                })
                .collect(),
            unlisted: tally.unlisted,
            timeline: timeline(&series),
        }
    }
}

/// The parts of a cause that the log says.
fn said(cause: Cause) -> [Option<String>; 3] {
    cause.map(|part| (!part.is_empty()).then_some(part))
}

fn timeline(series: &Series) -> BlockedTimeline {
    let of = |place: usize| series.sums.iter().map(|sums| sums[place]).collect();
    BlockedTimeline {
        start: series.steps.start(),
        step: series.steps.seconds(),
        allowed: of(0),
        blocked: of(1),
        no_decision: of(2),
    }
}

/// `UTC`, or `+01:00`.
fn zone(utc_offset: i32) -> String {
    let (sign, minutes) = (if utc_offset < 0 { '-' } else { '+' }, utc_offset.abs() / 60);
    match minutes {
        0 => "UTC".to_owned(),
        _ => format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60),
    }
}

fn notes(about: &About<'_>, counts: &ReadCounts, unlisted: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if !about.missing.is_empty() {
        notes.push(format!(
            "the log has no field with {}; haproxy/README.md says how a log-format has them",
            about.missing.join(", ")
        ));
    }
    notes.extend(note_on_late(counts));
    if counts.truncated > 0 {
        notes.push(format!(
            "{} cut, and what stands behind the cut is not known; write 'len 8192' in the log \
             line of haproxy.cfg",
            Count(counts.truncated, "line is", "lines are")
        ));
    }
    if unlisted > 0 {
        notes.push(format!(
            "there were too many clients to name them all: {} of further ones",
            Count(unlisted, "blocked request is", "blocked requests are")
        ));
    }
    notes
}

//! From the counts to the report.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gcra_policy::rate_words::rate_of;
use gcra_policy::{Limit, Policy};
use gcra_table::Nanos;
use gcra_text::count::Count;
use gcra_text::duration::Left;
use gcra_text::version;
use haproxy_log::{Format, ReadCounts};

use crate::logs::note_on_late;
use crate::mapping::Described;
use crate::replayed_config::{ReplayedConfig, Replaying};
use crate::report::{
    Against, Bad, BlockedClient, ClientPeak, ClientTimeline, Configuration, LimitReport,
    LogAnswers, NewlyBlocked, PolicyReport, Report, Timeline, Total,
};
use crate::suggest::grid::f64_from;
use crate::suggest::suggestions::Suggestions;
use crate::tally::{ClientCounts, Hit, LogTally, PolicyTally};

const MOST_LISTED: usize = 50;

/// The facts that no replay of a log can know.
const CANNOT_KNOW: [&str; 4] = [
    "whether HAProxy asked about each request: rules and the 'event' line of the spoe-message can \
     leave some out (monitor-uri, an 'if' condition), and this counts them all",
    "what clients would have done: one that is blocked may come back sooner, later or never, and \
     the log has what it did without these limits",
    "the time of a request to less than the log's resolution: requests at the same moment are \
     decided in the order of the log",
    "which of two equal local times is meant: where dates have no time zone, the hour that the \
     end of summer time repeats is one hour with the requests of both",
];

/// Everything that was found.
pub(crate) struct Findings<'f> {
    pub files: Vec<String>,
    pub format: &'f Format,
    pub counts: ReadCounts,
    pub(crate) replaying: Option<&'f Replaying>,
    pub described: Described,
    pub(crate) log_answers: Option<LogAnswers>,
    pub(crate) suggestions: Option<Suggestions>,
    pub seconds: f64,
}

impl Findings<'_> {
    pub(crate) fn report(self) -> Report {
        let empty = LogTally::default();
        let new = self.replaying.map(|replaying| &replaying.new);
        let old = self.replaying.and_then(|replaying| replaying.old.as_ref());
        let tally = new.map_or(&empty, |new| &new.tally);
        let notes = self.notes();
        let Self { files, format, counts, replaying, described, .. } = self;
        let hit = tally.most_hit(MOST_LISTED, |client| client.hit);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Report {
            version: 1,
            program: format!("gcra-spoa {}", version::WORDS),
            made: now.as_secs(),
            files,
            format: format.name().to_owned(),
            time: format.time().to_owned(),
            mapping: described.mapped,
            messages: described.messages,
            configuration: Configuration {
                new: new.map(|new| new.name.clone()),
                old: old.map(|old| old.name.clone()),
            },
            caution: described.caution,
            notes,
            cannot_know: CANNOT_KNOW,
            lines: counts.lines,
            requests: counts.entries,
            bad: counts.bad.iter().map(bad).collect(),
            late: counts.late,
            truncated: counts.truncated,
            first: counts.first.map(seconds_of),
            last: counts.last.map(seconds_of),
            total: total(tally),
            against: replaying.and_then(against),
            log_answers: self.log_answers,
            timeline: timeline(tally, old.is_some()),
            most_blocked: hit.into_iter().filter_map(|hit| Some(blocked(new?, hit))).collect(),
            policies: new.map(policies).unwrap_or_default(),
            suggest: self.suggestions,
            seconds: self.seconds,
            lines_per_second: f64_from(counts.lines) / self.seconds.max(1e-6),
        }
    }

    /// Notes on the numbers.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.described.notes.clone();
        for side in self.replaying.into_iter().flat_map(Replaying::sides) {
            let name = &side.name;
            for policy in &side.engine.shared {
                notes.push(format!(
                    "machines share the limits of policy '{policy}' of {name}; they are decided \
                     here as if one bucket held all of each, so the log must be that of all \
                     machines"
                ));
            }
            let evictions = side.engine.table.evictions();
            if evictions.evicted_live > 0 {
                notes.push(format!(
                    "the table was too small for {name}: what {} owed was forgotten, {} in all; \
                     write more --slots than {}",
                    Count(evictions.evicted_live, "client", "clients"),
                    Left(Duration::from_nanos(evictions.forgiven.get())),
                    side.engine.table.slots().get()
                ));
            }
            if side.tally.has_forgotten {
                notes.push(format!(
                    "there were too many clients to follow all of them ({name}): the requests and \
                     peaks of clients in the list count from when they last came back"
                ));
            }
            if !side.tally.clients.is_exact() {
                notes.push(format!("numbers of clients ({name}) are off by about 0.1 %"));
            }
        }
        notes.extend(note_on_late(&self.counts));
        if self.counts.truncated > 0 {
            notes.push(format!(
                "{} cut in the log, and args from what is missing have no value; HAProxy keeps \
                 them whole with 'len 8192' in its 'log' line",
                Count(self.counts.truncated, "line is", "lines are")
            ));
        }
        notes
    }
}

fn against(replaying: &Replaying) -> Option<Against> {
    let Replaying { new, old, changes, .. } = replaying;
    let newly = |(client, hit): (ClientCounts, Hit)| NewlyBlocked {
        policy: policy_name(new, hit.policy),
        requests: client.newly.into(),
        client: hit.name,
    };
    let clients = new.tally.most_hit(MOST_LISTED, |client| client.newly);
    Some(Against {
        total: total(&old.as_ref()?.tally),
        newly_blocked: changes.newly_blocked,
        newly_allowed: changes.newly_allowed,
        newly_would_block: changes.newly_would_block,
        clients_newly_blocked: changes.clients_newly_blocked.count(),
        clients_newly_allowed: changes.clients_newly_allowed.count(),
        most_newly_blocked: clients.into_iter().map(newly).collect(),
    })
}

fn total(tally: &LogTally) -> Total {
    Total {
        requests: tally.totals,
        clients: tally.clients.count(),
        clients_blocked: tally.clients_blocked.count(),
        clients_would_block: tally.clients_would_block.count(),
    }
}

pub(crate) fn bad(bad: &haproxy_log::BadLine) -> Bad {
    Bad {
        kind: bad.kind.to_string(),
        count: bad.count,
        file: bad.file.clone(),
        line: bad.line,
        excerpt: redacted(&bad.excerpt),
    }
}

/// A bad line without what may be a secret: of long words, only the beginning is shown.
fn redacted(excerpt: &str) -> String {
    const LONGEST: usize = 12;
    const SHOWN: usize = 4;
    let is_of_word =
        |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '+' | '/' | '=' | '~');
    let mut out = String::with_capacity(excerpt.len());
    // Each piece is a word, which may be empty, and the character behind it.
    for piece in excerpt.split_inclusive(|c| !is_of_word(c)) {
        let word = piece.trim_end_matches(|c| !is_of_word(c));
        if word.chars().count() > LONGEST {
            out.extend(word.chars().take(SHOWN));
            out.push('…');
            out.push_str(&piece[word.len()..]);
        } else {
            out.push_str(piece);
        }
    }
    out
}

fn policy_name(side: &ReplayedConfig, place: usize) -> String {
    side.engine.policies().get(place).map(|policy| policy.name.to_string()).unwrap_or_default()
}

fn policies(side: &ReplayedConfig) -> Vec<PolicyReport> {
    let pairs = side.engine.policies().iter().zip(&side.tally.policies);
    pairs.map(|(policy, tally)| policy_report(policy, tally)).collect()
}

/// A number of requests that were blocked: as blocked, or as would block.
fn split(observes: bool, hit: u64) -> (u64, u64) {
    if observes { (0, hit) } else { (hit, 0) }
}

fn policy_report(policy: &Policy, tally: &PolicyTally) -> PolicyReport {
    let (blocked, would_block) = split(policy.observes, tally.hit);
    let own = policy.rule.limits().len();
    let limits = policy.limits().zip(&tally.limits).enumerate();
    // Of overrides, only those that denied something: there may be thousands.
    let limits = limits.filter(|(place, (_, tally))| *place < own || tally.hit > 0);
    let limits = limits.map(|(place, (limit, tally))| {
        let (blocked, would_block) = split(policy.observes, tally.hit);
        LimitReport {
            name: limit.label.to_string(),
            limit: short_limit(limit),
            is_override: place >= own,
            blocked,
            would_block,
            worst_wait: seconds_of_wait(tally.worst_wait),
        }
    });
    PolicyReport {
        name: policy.name.to_string(),
        in_words: policy.in_words(),
        key: key_in_words(policy),
        mode: if policy.observes { "observe" } else { "enforce" },
        observes: policy.observes,
        allowed: tally.allowed,
        blocked,
        would_block,
        delayed: tally.delayed,
        undecided: tally.undecided,
        reasons: tally.reasons,
        clients: tally.clients.count(),
        clients_blocked: tally.clients_hit.count(),
        clients_exact: tally.clients.is_exact(),
        limits: limits.collect(),
    }
}

/// "100/s burst 20", as it is written in a file, or in words where no simple rate is the same.
fn short_limit(limit: &Limit) -> String {
    let quota = limit.quota(None);
    match rate_of(quota).filter(|_| limit.calendar().is_none()) {
        Some((rate, _)) => format!("{rate} burst {}", quota.burst()),
        None => limit.words.text.to_string(),
    }
}

/// "ip,path".
fn key_in_words(policy: &Policy) -> String {
    let names = policy.key.args.iter().map(|arg| String::from_utf8_lossy(&arg.name).into_owned());
    let names: Vec<_> = names.collect();
    if names.is_empty() { "all args".to_owned() } else { names.join(",") }
}

fn timeline(tally: &LogTally, has_other: bool) -> Timeline {
    let series = |place: usize| tally.series.iter().map(|sums| sums[place]).collect();
    Timeline {
        start: tally.steps.start(),
        step: tally.steps.seconds(),
        allowed: series(0),
        blocked: series(1),
        would_block: series(2),
        blocked_before: has_other.then(|| series(3)),
    }
}

fn blocked(side: &ReplayedConfig, (client, hit): (ClientCounts, Hit)) -> BlockedClient {
    let policy = side.engine.policies().get(hit.policy);
    let observes = policy.is_some_and(|policy| policy.observes);
    let (blocked, would_block) = split(observes, client.hit.into());
    let limit = hit.worst.and_then(|(_, place)| policy?.limits().nth(place));
    let mut steps = vec![[0; 2]; side.tally.series.len()];
    for (place, counts) in hit.steps {
        if let Some(step) = steps.get_mut(place) {
            *step = counts;
        }
    }
    let series = |outcome: usize| steps.iter().map(|step| step[outcome]).collect();
    BlockedClient {
        policy: policy_name(side, hit.policy),
        client: hit.name,
        requests: client.requests.into(),
        blocked,
        would_block,
        newly_blocked: client.newly.into(),
        first_blocked: hit.first,
        last_blocked: hit.last,
        worst_wait: hit.worst.map_or(0.0, |(wait, _)| seconds_of_wait(wait)),
        limit: limit.map(|limit| limit.label.to_string()),
        peak: ClientPeak { per_second: client.peak.most.into() },
        timeline: ClientTimeline { allowed: series(0), blocked: series(1) },
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of this century are exact")]
fn seconds_of(microseconds: i64) -> f64 {
    microseconds as f64 / 1e6
}

fn seconds_of_wait(wait: Nanos) -> f64 {
    f64_from(wait.get()) / 1e9
}

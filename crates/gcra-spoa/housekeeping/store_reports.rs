//! [`StoreReports`]: the lines of the log about requests that were decided without the store, and
//! about a file of leases that is too small.

use std::time::Duration;

use gcra_text::count::Count;
use gcra_text::duration::{Exact, Short};
use log::Level;

use super::once_per_minute::News;

/// The lines of the log so far.
#[derive(Debug, Default)]
pub(crate) struct StoreReports {
    last: Counted,
    /// The counts when the first request was decided without the store that is away now.
    began: Option<Counted>,
    /// That the store was away between two beats.
    short_news: News,
    /// The counts before the first time of that kind that the log has not told.
    short: Option<Counted>,
    /// That requests have stopped waiting, and how many had done so when the log last told it.
    timed_out_news: News,
    timed_out: u64,
    /// That entries were evicted, and how many when the log last told it.
    evicted_news: News,
    evicted: u64,
}

/// The counts since the agent was started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// How long the agent has been running.
    pub(crate) at: Duration,
    /// Whether the store cannot be asked about some keys now.
    pub(crate) is_away: bool,
    /// For how long no server could be used, all times together.
    pub(crate) away: Duration,
    /// Requests that were decided without it.
    pub(crate) without_store: u64,
    /// Of these, the ones that were allowed because a policy is open then.
    pub(crate) open: u64,
    /// Requests that stopped waiting for it.
    pub(crate) timed_out: u64,
    /// Entries that were evicted from the file of leases.
    pub(crate) evicted: u64,
}

impl StoreReports {
    /// Returns the lines for the log now; to be called once a second. `what_happens` is what
    /// policies do without the store, in words, and `wait` how long requests wait for it.
    pub(crate) fn beat(
        &mut self,
        now: Counted,
        wait: Duration,
        what_happens: impl FnOnce() -> String,
    ) -> Vec<(Level, String)> {
        let mut lines = Vec::new();
        let last = std::mem::replace(&mut self.last, now);
        let more = now.without_store > last.without_store;
        let was_away = now.away > last.away;
        match self.began {
            None if more && now.is_away => {
                self.began = Some(last);
                let said = format!("requests are decided without the store: {}", what_happens());
                lines.push((Level::Warn, said));
            }
            // It was away between two beats.
            None if more && was_away => {
                self.short.get_or_insert(last);
            }
            Some(began) if !now.is_away => {
                self.began = None;
                lines.push((Level::Info, decided_since(began, now)));
            }
            None | Some(_) => {}
        }
        if self.short_news.due(self.short.is_some())
            && let Some(began) = self.short.take()
        {
            lines.push((Level::Warn, decided_since(began, now)));
        }
        if self.timed_out_news.due(now.timed_out > self.timed_out) {
            let count = now.timed_out - self.timed_out;
            let requests = Count(count, "request has", "requests have");
            let were = if count == 1 { "was" } else { "were" };
            lines.push((
                Level::Warn,
                format!(
                    "{requests} stopped waiting for the store after {}, and {were} decided \
                     without it; if that goes on, the store or the network to it is too slow",
                    Exact(wait)
                ),
            ));
            self.timed_out = now.timed_out;
        }
        if self.evicted_news.due(now.evicted > self.evicted) {
            let entries = Count(now.evicted - self.evicted, "entry was", "entries were");
            lines.push((
                Level::Warn,
                format!(
                    "the file of leases is too small: {entries} evicted, so clients wait for the \
                     store more often; docs/OPERATING.md says how to enlarge it"
                ),
            ));
            self.evicted = now.evicted;
        }
        lines
    }
}

/// "12 requests were decided without the store in 5.1 s; up to 3 of them may have been allowed too
/// many".
fn decided_since(began: Counted, now: Counted) -> String {
    let requests = now.without_store.saturating_sub(began.without_store);
    let requests = Count(requests, "request was", "requests were");
    let took = Short(now.at.saturating_sub(began.at));
    let too_many = match now.open.saturating_sub(began.open) {
        0 => String::new(),
        open => format!("; up to {open} of them may have been allowed too many"),
    };
    format!("{requests} decided without the store in {took}{too_many}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Counted = Counted {
        at: Duration::ZERO,
        is_away: false,
        away: Duration::ZERO,
        without_store: 0,
        open: 0,
        timed_out: 0,
        evicted: 0,
    };

    fn beat(reports: &mut StoreReports, now: Counted) -> Vec<String> {
        let lines = reports.beat(now, Duration::from_millis(20), || "api is blocked".to_owned());
        lines.into_iter().map(|(level, line)| format!("{level} {line}")).collect()
    }

    fn away(seconds: u64, without_store: u64) -> Counted {
        let at = Duration::from_secs(seconds);
        Counted { at, is_away: true, away: at, without_store, ..NOTHING }
    }

    #[test]
    fn a_time_without_the_store_has_a_line_at_its_beginning_and_one_at_its_end() {
        let mut reports = StoreReports::default();
        assert!(beat(&mut reports, NOTHING).is_empty());
        assert!(beat(&mut reports, away(1, 0)).is_empty(), "no request came");
        let begun = beat(&mut reports, away(2, 3));
        assert_eq!(begun, ["WARN requests are decided without the store: api is blocked"]);
        assert!(beat(&mut reports, away(3, 30)).is_empty());
        let back = Counted { is_away: false, open: 4, ..away(5, 40) };
        let ended = beat(&mut reports, back);
        let said = "INFO 40 requests were decided without the store in 4.0 s; up \
                    to 4 of them may have been allowed too many";
        assert_eq!(ended, [said]);
        assert!(beat(&mut reports, back).is_empty());
        let short = Counted { is_away: false, open: 4, ..away(6, 41) };
        let said = "WARN 1 request was decided without the store in 1000 ms";
        assert_eq!(beat(&mut reports, short), [said]);
    }

    #[test]
    fn a_store_that_is_away_again_and_again_for_a_moment_has_a_line_a_minute() {
        let mut reports = StoreReports::default();
        let moment = |second| Counted { is_away: false, ..away(second, 2 * second) };
        let said = "WARN 2 requests were decided without the store in 1000 ms";
        assert_eq!(beat(&mut reports, moment(1)), [said]);
        for second in 2..=60 {
            assert!(beat(&mut reports, moment(second)).is_empty(), "{second}");
        }
        let said = "WARN 120 requests were decided without the store in 60 s";
        assert_eq!(beat(&mut reports, moment(61)), [said]);
    }

    #[test]
    fn requests_that_stop_waiting_have_a_line_a_minute() {
        let mut reports = StoreReports::default();
        let timed_out = |timed_out| Counted { timed_out, without_store: timed_out, ..NOTHING };
        let said = beat(&mut reports, timed_out(1));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with(
            "WARN 1 request has stopped waiting for the store after 20ms, and was decided"
        ));
        for second in 1..60 {
            assert!(beat(&mut reports, timed_out(1 + second)).is_empty());
        }
        let said = beat(&mut reports, timed_out(61));
        assert!(said[0].starts_with("WARN 60 requests have stopped waiting"), "{said:?}");
    }

    #[test]
    fn leases_that_were_evicted_have_a_line_a_minute() {
        let mut reports = StoreReports::default();
        let evicted = |evicted| Counted { evicted, ..NOTHING };
        let said = beat(&mut reports, evicted(1));
        let begins = "WARN the file of leases is too small: 1 entry was evicted, so clients";
        assert!(said[0].starts_with(begins), "{said:?}");
        assert!(beat(&mut reports, evicted(2)).is_empty());
    }
}

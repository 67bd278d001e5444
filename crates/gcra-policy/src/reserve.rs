//! The cells that are kept in reserve of a limit, and the sentences about them.

use std::fmt;
use std::time::Duration;

use gcra_table::{Nanos, Quota};
use gcra_text::count::Count;
use gcra_text::duration::{Exact, nanoseconds};

use crate::limit::Limit;
use crate::policy::Policy;
use crate::unasked::{NothingLeft, RELOADS, Reserve, Unasked};

/// Where settings are written, to name them in sentences.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Written {
    InFile,
    AsFlags,
}

impl Written {
    fn name(self, setting: &str) -> String {
        match self {
            Self::InFile => setting.to_owned(),
            Self::AsFlags => format!("--{}", setting.replace('_', "-")),
        }
    }

    fn number(self, setting: &str, number: impl fmt::Display) -> String {
        let (name, number) = (self.name(setting), number.to_string());
        match self {
            Self::InFile => format!("{name} = {number}"),
            Self::AsFlags => format!("{name} {number}"),
        }
    }

    fn time(self, setting: &str, time: Duration) -> String {
        let (name, time) = (self.name(setting), Exact(time));
        match self {
            Self::InFile => format!("{name} = \"{time}\""),
            Self::AsFlags => format!("{name} {time}"),
        }
    }
}

impl Limit {
    /// "up to 13 at once", of what decides; with the rate if it is another one.
    fn decided_in_words(&self) -> String {
        let (written, decided) = (self.written(), self.quota(None));
        match self.calendar() {
            Some(calendar) => calendar.count_in_words(decided.burst()),
            None if written.emission_interval() == decided.emission_interval() => {
                format!("up to {} at once", decided.burst())
            }
            None => {
                let rate = rate_in_words(decided.emission_interval());
                format!("{rate}, up to {} at once", decided.burst())
            }
        }
    }

    /// Keeps cells in reserve for requests that are not asked about. The error is a sentence.
    pub(crate) fn keep_in_reserve(
        &mut self,
        unasked: Unasked,
        spelling: Written,
    ) -> Result<(), String> {
        let (written, left) = (self.quota(None), self.left_beside(unasked, spelling)?);
        self.keep(Reserve { unasked, written }, left);
        Ok(())
    }

    /// The quota that is left if cells are kept in reserve. The error is a sentence.
    pub(crate) fn left_beside(
        &self,
        unasked: Unasked,
        spelling: Written,
    ) -> Result<Quota, String> {
        let text = &self.words.text;
        let (written, requests) = (self.quota(None), unasked.requests);
        let setting = spelling.number("unasked", requests);
        if self.calendar().is_some()
            && let Some(every) = unasked.reload_every
        {
            return Err(format!(
                "the limit '{text}' counts in a window, and {} lowers rates; leave it out, and \
                 lower the count by {} for each reload in a window",
                spelling.time("reload_every", every.into()),
                unasked.unpaid()
            ));
        }
        // Only numbers that would do are suggested.
        let fewer = || match unasked.most_requests(written) {
            0 => None,
            most => Some(format!("{} or less", spelling.number("unasked", most))),
        };
        match unasked.left_of(written) {
            Ok(left) => Ok(left),
            Err(NothingLeft::OfBurst) => {
                let what = if self.calendar().is_some() { "count" } else { "burst" };
                let larger = unasked.least_burst_at(written.emission_interval());
                let larger = larger.map(|least| format!("a {what} of at least {least}"));
                let without = format!("leave {} out", spelling.name("unasked"));
                let instead = match (larger, fewer()) {
                    (Some(larger), fewer) => {
                        format!("write {larger}, or {}", fewer.unwrap_or(without))
                    }
                    (None, Some(fewer)) => format!("write {fewer}"),
                    (None, None) => without,
                };
                Err(format!(
                    "{setting} keeps {}, and then a question costs up to {}: that is more than \
                     the {what} of {} of the limit '{text}'; {instead}",
                    unasked.reserve_in_words(),
                    unasked.most_cost(),
                    written.burst()
                ))
            }
            Err(NothingLeft::OfRate) => {
                let every = unasked.reload_every.unwrap_or_default();
                let forgotten = unasked.forgotten();
                let takes = written.emission_interval().saturating_mul(forgotten);
                let least = Duration::from_secs(takes.secs_ceil());
                let seldom = Nanos(nanoseconds(*RELOADS.end()));
                let seldom = Unasked { reload_every: Some(seldom), ..unasked };
                let instead = match seldom.left_of(written) {
                    Ok(_) => format!("write a time that is much longer than {}", Exact(least)),
                    Err(_) => fewer().map_or_else(
                        || format!("leave {} out", spelling.name("reload_every")),
                        |fewer| format!("write {fewer}"),
                    ),
                };
                Err(format!(
                    "with {} the limit '{text}' has no rate left: in that time HAProxy may forget \
                     {} that nobody has paid for; {instead}",
                    spelling.time("reload_every", every.into()),
                    Count(forgotten, "request", "requests")
                ))
            }
        }
    }
}

impl Policy {
    /// For how long HAProxy must not forget what a client has unpaid while it is silent. After
    /// that it matters no more: if it had been paid for, the client would owe nothing, or the
    /// window would be over. In whole seconds, of which stick tables are made.
    pub fn remembers(&self) -> Duration {
        let of = |limit: &Limit| match limit.calendar() {
            None => Duration::from_secs(limit.written().drain_time().secs_ceil()),
            Some(calendar) => calendar.unit().longest(),
        };
        let longest = self.limits().map(of).max().unwrap_or_default();
        // Of several processes each may forget as often as they may be reloaded.
        let several = self.unasked().filter(|unasked| unasked.processes > 1);
        let every = several.and_then(|unasked| unasked.reload_every).unwrap_or_default();
        longest.max(Duration::from_secs(every.secs_ceil()))
    }

    /// The consequences if HAProxy does not ask about each request, a line each.
    pub(crate) fn unasked_in_words(&self) -> Vec<String> {
        let Some(unasked) = self.unasked() else { return Vec::new() };
        let Unasked { requests, processes, reload_every } = unasked;
        let each = match processes {
            1 => "HAProxy".to_owned(),
            more => format!("each of {more} HAProxy processes"),
        };
        let passes = Count(requests, "request", "requests");
        let mut lines =
            vec![format!("{each} may let {passes} of a client pass between two questions")];
        // Overrides may be all that has limits.
        let numbers: Vec<_> = self.rule.limits().iter().map(Limit::decided_in_words).collect();
        if !numbers.is_empty() {
            let (reserve, numbers) = (unasked.reserve_in_words(), numbers.join("; and with "));
            lines.push(format!("with {reserve} agents decide with {numbers}"));
        }
        lines.push(format!(
            "HAProxy must remember a client that is silent for at least {}",
            Exact(self.remembers())
        ));
        lines.push(match reload_every {
            None if processes > 1 => format!(
                "each reload of a HAProxy lets up to {requests} more pass, and so does each that \
                 forgets a client, because there is no 'reload_every'"
            ),
            None => format!(
                "each reload of HAProxy lets up to {requests} more pass, because there is no \
                 'reload_every'"
            ),
            Some(every) => format!(
                "HAProxy may be reloaded {} after the last process that was replaced has ended",
                Exact(every.into())
            ),
        });
        lines
    }
}

/// "99.883 per second", rounded down: of a rate that is a little lower than one that people write.
pub(crate) fn rate_in_words(interval: Nanos) -> String {
    const SECOND_NS: u64 = 1_000_000_000;
    let units = [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400)];
    // In thousandths.
    let per = |seconds: u64| seconds * SECOND_NS * 1_000 / interval.0.max(1);
    let found = units.iter().find(|(_, seconds)| per(*seconds) >= 1_000);
    let (unit, seconds) = found.unwrap_or(&("day", 86_400));
    let thousandths = per(*seconds);
    format!("{}.{:03} per {unit}", thousandths / 1_000, thousandths % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_are_a_little_lower() {
        for (interval_ns, words) in [
            (10_011_680, "99.883 per second"),
            (720_000_000_000, "5.000 per hour"),
            (765_957_446_809, "4.699 per hour"),
            (1, "1000000000.000 per second"),
            (100_000_000_000_000, "0.864 per day"),
        ] {
            assert_eq!(rate_in_words(Nanos(interval_ns)), words);
        }
    }
}

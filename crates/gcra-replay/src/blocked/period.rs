//! The time of a log that is asked about: from one moment to another, each perhaps only a time of
//! the clock.

use gcra_text::duration::{Utc, parse_utc};

const DAY: i64 = 86_400;

/// The end of a period, by the clock of the log: in seconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PeriodEnd {
    /// Since the midnight of a day that the log says.
    OfClock(i64),
    /// Since 1970.
    OfDate(i64),
}

impl PeriodEnd {
    /// Reads `14:00`, `14:00:30`, `2026-11-28` or `2026-11-28T14:00`. The error is a sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let of_date = || Some(Self::OfDate(parse_utc(text)?));
        let of_clock = || {
            let is_clock = text.contains(':');
            is_clock.then(|| parse_utc(&format!("1970-01-01T{text}"))).flatten().map(Self::OfClock)
        };
        of_date().or_else(of_clock).ok_or_else(|| {
            format!("'{text}' is not a time; write 14:00, 14:00:30 or 2026-11-28T14:00")
        })
    }
}

/// From when to when, in seconds since 1970 by the clock of the log. The end is not in it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct LogPeriod {
    pub(crate) from: Option<i64>,
    pub(crate) to: Option<i64>,
    /// Whether the day is that on which the log begins.
    is_of_log: bool,
}

impl LogPeriod {
    /// The one that is meant in a log that begins then. The error is a sentence.
    pub(crate) fn new(
        from: Option<PeriodEnd>,
        to: Option<PeriodEnd>,
        begins: i64,
    ) -> Result<Self, String> {
        use PeriodEnd::{OfClock, OfDate};
        // The first time after a moment, and the last one before it, that the clock has this time.
        let after = |moment: i64, clock: i64| moment + DAY - (moment - clock).rem_euclid(DAY);
        let before = |moment: i64, clock: i64| after(moment, clock) - DAY;
        let before = |moment: i64, clock: i64| match before(moment, clock) {
            same if same == moment => same - DAY,
            earlier => earlier,
        };
        let (from, to, is_of_log) = match (from, to) {
            (Some(OfClock(from)), Some(OfClock(to))) => {
                let to = after(begins, to);
                (Some(before(to, from)), Some(to), true)
            }
            (Some(OfClock(from)), Some(OfDate(to))) => (Some(before(to, from)), Some(to), false),
            (Some(OfClock(from)), None) => {
                (Some(begins - begins.rem_euclid(DAY) + from), None, true)
            }
            (Some(OfDate(from)), Some(OfClock(to))) => (Some(from), Some(after(from, to)), false),
            (None, Some(OfClock(to))) => (None, Some(after(begins, to)), true),
            (from, to) => {
                let date = |moment| match moment {
                    Some(OfDate(at)) => Some(at),
                    _ => None,
                };
                (date(from), date(to), false)
            }
        };
        match (from, to) {
            (Some(from), Some(to)) if from >= to => {
                Err("--to is not later than --from; write a later --to".to_owned())
            }
            _ => Ok(Self { from, to, is_of_log }),
        }
    }

    pub(crate) fn has(&self, at: i64) -> bool {
        self.from.is_none_or(|from| from <= at) && self.to.is_none_or(|to| at < to)
    }

    /// How the day of a log that begins then is written, if it was left out.
    pub(crate) fn with_date(&self, begins: i64) -> Option<String> {
        let on_that_day = |(flag, at): (&str, Option<i64>)| {
            let at = begins - begins.rem_euclid(DAY) + at?.rem_euclid(DAY);
            Some(format!(" {flag} {}", written(at)))
        };
        let flags: String = [("--from", self.from), ("--to", self.to)]
            .into_iter()
            .filter_map(on_that_day)
            .collect();
        self.is_of_log.then(|| format!("for another day write the date, too, such as{flags}"))
    }

    /// Says so if a log from then to then has the same times of the clock once more, or lacks the
    /// midnight that lies in the period.
    pub(crate) fn check(&self, begins: i64, ends: i64) -> Result<(), String> {
        let Self { from, to, is_of_log } = *self;
        let is_one_day = |first: i64, last: i64| first.div_euclid(DAY) == last.div_euclid(DAY);
        if let (true, Some(from), Some(to)) = (is_of_log, from, to)
            && !is_one_day(from, to - 1)
            && is_one_day(begins, ends)
        {
            return Err("--to is not later than --from, and the log has no midnight between; \
                        write a later --to, or both with dates"
                .to_owned());
        }
        let Some(first) = from.or(to).filter(|first| is_of_log && first + DAY <= ends) else {
            return Ok(());
        };
        let flag = if from.is_some() { "--from" } else { "--to" };
        Err(format!(
            "the log has this time on several days; write the date, too, such as {flag} {} or \
             {flag} {}",
            written(first),
            written(first + (ends - first) / DAY * DAY)
        ))
    }
}

/// A moment as it can be written behind a flag.
fn written(at: i64) -> String {
    let text = Utc(u64::try_from(at).unwrap_or(0)).to_string();
    text.trim_end_matches(" UTC").replace(' ', "T")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(from: &str, to: &str, begins: &str) -> Result<(String, String), String> {
        let moment = |text: &str| (!text.is_empty()).then(|| PeriodEnd::parse(text).unwrap());
        let period = LogPeriod::new(moment(from), moment(to), parse_utc(begins).unwrap())?;
        let text = |at: Option<i64>| at.map(written).unwrap_or_default();
        Ok((text(period.from), text(period.to)))
    }

    #[test]
    fn a_time_of_the_clock_is_that_of_the_log() {
        for (from, to, begins, expected) in [
            ("14:00", "14:10", "2026-11-28T00:00", ("2026-11-28T14:00:00", "2026-11-28T14:10:00")),
            // A log of these ten minutes, which begins a little later.
            ("14:00", "14:10", "2026-11-28T14:02", ("2026-11-28T14:00:00", "2026-11-28T14:10:00")),
            // A log that was rotated in the morning.
            ("03:00", "03:10", "2026-11-28T06:25", ("2026-11-29T03:00:00", "2026-11-29T03:10:00")),
            ("23:50", "00:10", "2026-11-28T06:25", ("2026-11-28T23:50:00", "2026-11-29T00:10:00")),
            ("14:00", "14:00", "2026-11-28T06:25", ("2026-11-27T14:00:00", "2026-11-28T14:00:00")),
            ("14:00", "", "2026-11-28T14:02", ("2026-11-28T14:00:00", "")),
            ("", "14:00", "2026-11-28T14:02", ("", "2026-11-29T14:00:00")),
            (
                "2026-11-27",
                "00:00:30",
                "2026-11-01T00:00",
                ("2026-11-27T00:00:00", "2026-11-27T00:00:30"),
            ),
        ] {
            let expected = (expected.0.to_owned(), expected.1.to_owned());
            assert_eq!(period(from, to, begins).unwrap(), expected, "{from} {to} {begins}");
        }
        period("2026-11-28T14:00", "2026-11-28T13:00", "2026-11-28").unwrap_err();
        for wrong in ["14", "24:00", "14:60", "yesterday", "2026-13-01", "", "14:00Z"] {
            PeriodEnd::parse(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_log_of_several_days_needs_the_date() {
        let at = |text| parse_utc(text).unwrap();
        let moment = |text| Some(PeriodEnd::parse(text).unwrap());
        let (from, to) = (moment("14:00"), moment("14:10"));
        let begins = at("2026-11-26T10:00");
        let of_log = LogPeriod::new(from, to, begins).unwrap();
        of_log.check(begins, at("2026-11-27T13:59")).unwrap();
        let sentence = of_log.check(begins, at("2026-11-28T20:00")).unwrap_err();
        assert!(sentence.contains("--from 2026-11-26T14:00:00 or"), "{sentence}");
        assert!(sentence.ends_with("--from 2026-11-28T14:00:00"), "{sentence}");
        let from = moment("2026-11-26T14:00");
        let of_date = LogPeriod::new(from, to, begins).unwrap();
        of_date.check(begins, at("2026-11-28T20:00")).unwrap();
    }

    #[test]
    fn a_log_without_a_midnight_has_no_time_across_it() {
        let at = |text| parse_utc(text).unwrap();
        let moment = |text| Some(PeriodEnd::parse(text).unwrap());
        for (from, to, begins, ends, is_right) in [
            ("14:02", "14:01", "2026-11-29T14:00", "2026-11-29T14:04:59", false),
            ("14:02", "14:01", "2026-11-29T14:00:05", "2026-11-29T14:00:07", false),
            ("14:02", "14:02", "2026-11-29T06:25", "2026-11-29T20:00", false),
            ("23:50", "00:10", "2026-11-28T06:25", "2026-11-29T06:25", true),
            ("22:00", "00:00", "2026-11-28T06:25", "2026-11-28T23:59", true),
            ("14:00", "14:10", "2026-11-28T14:02", "2026-11-28T14:05", true),
        ] {
            let period = LogPeriod::new(moment(from), moment(to), at(begins)).unwrap();
            let checked = period.check(at(begins), at(ends));
            assert_eq!(checked.is_ok(), is_right, "{from} {to} {checked:?}");
            let starts = |why: &str| why.starts_with("--to is not later than --from, ");
            assert!(checked.as_ref().err().is_none_or(|why| starts(why)), "{checked:?}");
        }
    }
}

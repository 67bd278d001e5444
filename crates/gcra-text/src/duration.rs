//! Lengths of time as operators write and read them: `10m`, `50us`, "4.6 d".

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::sentence;
use crate::sentence::Sentence;

/// The units that are written, from the longest to the shortest, in nanoseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
];

/// Other words for units, the same as in a rate.
const OTHER_WORDS: [(&str, &[&str]); 4] = [
    ("d", &["day", "days"]),
    ("h", &["hr", "hour", "hours"]),
    ("m", &["min", "minute", "minutes"]),
    ("s", &["sec", "second", "seconds"]),
];

/// All words for units that [`parse`] takes.
pub fn unit_words() -> impl Iterator<Item = &'static str> {
    let others = OTHER_WORDS.iter().flat_map(|(_, words)| *words);
    UNITS.iter().map(|(unit, _)| *unit).chain(others.copied())
}

/// The units in one sentence, for error messages.
pub const UNITS_IN_WORDS: &str = "us, ms, s, m, h or d";

/// Reads a whole number and a unit, such as `10m`. `None` for anything else, and for more than 584
/// years.
pub fn parse(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(unit_at);
    let other = OTHER_WORDS.iter().find(|(_, words)| words.contains(&unit));
    let unit = other.map_or(unit, |(unit, _)| unit);
    let (_, unit_ns) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    count.parse::<u64>().ok()?.checked_mul(unit_ns).map(Duration::from_nanos)
}

/// As [`parse`], for a time in this range. The error is a sentence; `like` is right.
pub fn parse_in(
    text: &str,
    range: RangeInclusive<Duration>,
    like: &str,
) -> Result<Duration, Sentence> {
    parse(text).filter(|time| range.contains(time)).ok_or_else(|| {
        let (least, most) = (Exact(*range.start()), Exact(*range.end()));
        sentence!(
            "'{text}' is not a time from {least} to {most}; write a whole number and a unit, such \
             as {like}"
        )
    })
}

/// Reads several durations in a row, such as `1h30m`.
pub fn sum(text: &str) -> Option<Duration> {
    let is_start = |(at, c): &(usize, char)| {
        c.is_ascii_digit() && (*at == 0 || !text.as_bytes()[at - 1].is_ascii_digit())
    };
    let starts: Vec<_> = text.char_indices().filter(is_start).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let parts = starts.iter().zip(ends).map(|(start, end)| parse(text.get(*start..end)?));
    let sum = parts.sum::<Option<Duration>>();
    sum.filter(|_| starts.first() == Some(&0))
}

/// A length of time as it can be written: in the longest unit that is exact. Rounded up to whole
/// microseconds.
pub struct Exact(pub Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = nanoseconds(self.0).div_ceil(1_000).saturating_mul(1_000);
        let exact = UNITS.iter().find(|(_, unit_ns)| ns > 0 && ns.is_multiple_of(*unit_ns));
        match exact {
            Some((unit, unit_ns)) => write!(f, "{}{unit}", ns / unit_ns),
            None => f.write_str("0s"),
        }
    }
}

/// A length of time at a glance: two or three digits and a unit, rounded down. It is for what has
/// passed already.
pub struct Short(pub Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_short(f, nanoseconds(self.0), u64::div_euclid)
    }
}

/// The same rounded up. It is for what still has to pass: a client that waits for the time that it
/// reads must not come too early.
pub struct Left(pub Duration);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_short(f, nanoseconds(self.0), u64::div_ceil)
    }
}

/// How long a client has to wait, as one tells it: "10 min 2 s". From two minutes on it has two
/// units and is rounded up to the smaller one.
pub struct Wait(pub Duration);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = nanoseconds(self.0);
        let units = UNITS.iter().zip(&UNITS[1..]).take(3);
        let found = units.into_iter().find(|((_, unit_ns), _)| ns >= 2 * unit_ns);
        let Some(((unit, unit_ns), (small, small_ns))) = found else { return Left(self.0).fmt(f) };
        let smalls = ns.div_ceil(*small_ns);
        let (count, rest) = (smalls / (unit_ns / small_ns), smalls % (unit_ns / small_ns));
        write!(f, "{count} {}", spelled(unit))?;
        if rest > 0 { write!(f, " {rest} {}", spelled(small)) } else { Ok(()) }
    }
}

/// An "m" that stands alone could mean metres, months or a thousandth.
fn spelled(unit: &str) -> &str {
    if unit == "m" { "min" } else { unit }
}

/// Writes two or three digits and a unit. `divided` divides and rounds.
fn write_short(f: &mut fmt::Formatter<'_>, ns: u64, divided: fn(u64, u64) -> u64) -> fmt::Result {
    // A unit is used from two of it on, so that rounding never hides more than a tenth.
    let Some((unit, unit_ns)) = UNITS.iter().find(|(_, unit_ns)| ns >= 2 * unit_ns) else {
        return write!(f, "{ns} ns");
    };
    let unit = spelled(unit);
    match divided(ns, unit_ns / 10) {
        tenths @ 0..100 => write!(f, "{}.{} {unit}", tenths / 10, tenths % 10),
        _ => write!(f, "{} {unit}", divided(ns, *unit_ns)),
    }
}

/// At most [`u64::MAX`].
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A moment in seconds since 1970, with its date: "2026-11-22 09:05:00 UTC".
pub struct Utc(pub u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = i64::try_from(self.0).ok().and_then(|at| Timestamp::from_second(at).ok());
        let moment = moment.unwrap_or(Timestamp::MAX);
        write!(f, "{}", moment.strftime("%Y-%m-%d %H:%M:%S UTC"))
    }
}

/// Reads a moment that [`Utc`] writes, in seconds since 1970: `2026-11-22T09:05`, with or without
/// seconds; or a date, which is its midnight.
pub fn parse_utc(text: &str) -> Option<i64> {
    // A time zone would be another clock.
    let is_plain = |byte: u8| byte.is_ascii_digit() || b"-:T ".contains(&byte);
    let moment = text.bytes().all(is_plain).then(|| text.parse::<DateTime>().ok()).flatten()?;
    Some(moment.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Reads a moment of the local clock, `2026-11-29T09:00`, or of a zone that stands behind it: `Z`,
/// ` UTC` as [`Utc`] writes it, `+01:00`, or `[Europe/Berlin]`.
pub fn parse_moment(text: &str) -> Option<SystemTime> {
    let in_utc = text.strip_suffix(" UTC").map(|moment| format!("{moment}Z"));
    let text = in_utc.as_deref().unwrap_or(text);
    let moment = match text.parse::<Zoned>() {
        Ok(zoned) => zoned.timestamp(),
        Err(_) => match text.parse::<Timestamp>() {
            Ok(moment) => moment,
            Err(_) => {
                let is_plain = |byte: u8| byte.is_ascii_digit() || b"-:T ".contains(&byte);
                let plain = text.bytes().all(is_plain) && text.contains(':');
                let moment = plain.then(|| text.parse::<DateTime>().ok()).flatten()?;
                moment.to_zoned(TimeZone::system()).ok()?.timestamp()
            }
        },
    };
    Some(moment.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        for (text, ns) in [
            ("50us", 50_000),
            ("0s", 0),
            ("250ms", 250_000_000),
            ("3s", 3_000_000_000),
            ("10m", 600_000_000_000),
            ("30d", 2_592_000_000_000_000),
            ("30sec", 30_000_000_000),
            ("1second", 1_000_000_000),
            ("5min", 300_000_000_000),
            ("2minutes", 120_000_000_000),
            ("1hr", 3_600_000_000_000),
            ("2hours", 7_200_000_000_000),
            ("1day", 86_400_000_000_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "3", "s", "-3s", "+3s", "3 s", "3.5s", "3mins", "3S", "999999999999d"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_words_for_units_are_those_of_rates() {
        for (unit, words) in OTHER_WORDS {
            let rate = |unit: &str| format!("1/{unit}").parse::<gcra_table::Rate>();
            for word in words {
                assert!(rate(unit).is_ok() && rate(word) == rate(unit), "{word}");
                assert_eq!(parse(&format!("1{word}")), parse(&format!("1{unit}")), "{word}");
            }
        }
    }

    #[test]
    fn a_moment_has_a_zone_or_is_of_the_local_clock() {
        let at = |text: &str| {
            let since = parse_moment(text)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
            Some(since.as_secs())
        };
        let nine = 1_795_942_800;
        for text in [
            "2026-11-29T09:00Z",
            "2026-11-29 09:00:00 UTC",
            "2026-11-29T10:00+01:00",
            "2026-11-29T10:00[Europe/Berlin]",
            "2026-11-29T10:00+01:00[Europe/Berlin]",
        ] {
            assert_eq!(at(text), Some(nine), "{text}");
        }
        // No zone has more than 14 hours.
        for text in ["2026-11-29T09:00", "2026-11-29 09:00", "2026-11-29T09:00:00"] {
            assert!(at(text).is_some_and(|at| at.abs_diff(nine) <= 14 * 3600), "{text}");
        }
        for text in ["", "2026-11-29", "09:00", "tomorrow", "2026-11-29T25:00", "2026-13-01T00:00"]
        {
            assert_eq!(at(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for text in ["50us", "1500ms", "864s", "90m", "31d", "0s"] {
            assert_eq!(Exact(parse(text).unwrap()).to_string(), text);
        }
        assert_eq!(Exact(Duration::from_nanos(1)).to_string(), "1us");
        assert_eq!(Exact(parse("120m").unwrap()).to_string(), "2h");
    }

    #[test]
    fn short_durations_have_few_digits() {
        for (ns, words) in [
            (0, "0 ns"),
            (1_999, "1999 ns"),
            (12_345, "12 us"),
            (1_999_999, "1999 us"),
            (2_000_000, "2.0 ms"),
            (199_000_000, "199 ms"),
            (9_960_000_000, "9.9 s"),
            (90_000_000_000, "90 s"),
            (5_400_000_000_000, "90 min"),
            (400_000_000_000_000, "4.6 d"),
        ] {
            assert_eq!(Short(Duration::from_nanos(ns)).to_string(), words);
        }
    }

    #[test]
    fn what_is_left_is_rounded_up() {
        for (ns, words) in [
            (0, "0 ns"),
            (12_345, "13 us"),
            (2_000_000, "2.0 ms"),
            (2_000_001, "2.1 ms"),
            (9_900_000_001, "10 s"),
            (3_599_999_999_999, "60 min"),
            (119_999_999_999, "120 s"),
        ] {
            assert_eq!(Left(Duration::from_nanos(ns)).to_string(), words);
        }
    }

    #[test]
    fn a_wait_is_told_to_the_second() {
        for (ns, words) in [
            (0, "0 ns"),
            (5_900_000_000, "5.9 s"),
            (90_000_000_000, "90 s"),
            (119_999_999_999, "120 s"),
            (120_000_000_000, "2 min"),
            (601_620_000_000, "10 min 2 s"),
            (3_599_999_999_999, "60 min"),
            (7_200_000_000_001, "2 h 1 min"),
            (7_140_000_000_000, "119 min"),
            (400_000_000_000_000, "4 d 16 h"),
        ] {
            assert_eq!(Wait(Duration::from_nanos(ns)).to_string(), words);
        }
    }

    #[test]
    fn a_moment_that_is_written_is_read() {
        assert_eq!(parse_utc("2026-11-22T09:05"), Some(1_795_338_300));
        assert_eq!(parse_utc("2026-11-22 09:05:00"), Some(1_795_338_300));
        assert_eq!(parse_utc("2026-11-22"), Some(1_795_305_600));
        for text in ["", "2026-11-22T09:05Z", "2026-11-22T09:05+01:00", "2026-02-30", "09:05"] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }

    #[test]
    fn a_moment_has_its_date() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_795_338_300, "2026-11-22 09:05:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(Utc(seconds).to_string(), text);
        }
    }
}

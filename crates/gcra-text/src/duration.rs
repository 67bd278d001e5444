//! Lengths of time as operators write and read them: `10m`, `50us`, "4.6 d".

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;

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
) -> Result<Duration, String> {
    parse(text).filter(|time| range.contains(time)).ok_or_else(|| {
        let (least, most) = (Exact(*range.start()), Exact(*range.end()));
        format!(
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

/// Writes two or three digits and a unit. `divided` divides and rounds.
fn write_short(f: &mut fmt::Formatter<'_>, ns: u64, divided: fn(u64, u64) -> u64) -> fmt::Result {
    // A unit is used from two of it on, so that rounding never hides more than a tenth.
    let Some((unit, unit_ns)) = UNITS.iter().find(|(_, unit_ns)| ns >= 2 * unit_ns) else {
        return write!(f, "{ns} ns");
    };
    // An "m" that stands alone could mean metres, months or a thousandth.
    let unit = if *unit == "m" { "min" } else { unit };
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

//! The windows of a calendar: hours, days, weeks and months of a time zone; and the grammar of
//! `window`.
//!
//! The windows of a calendar follow each other without a gap, and none overlaps another, also
//! where clocks are changed. A day, week or month begins at its first midnight, or where that is
//! skipped, at the first moment after it. An hour begins at the full hour of the zone, or where
//! the zone changes its clocks by half an hour.

// ADR 42: A calendar window is a bucket of its own.
// ADR 43: Time zones come from the system, or from the program.

use std::hash::{Hash, Hasher};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

use gcra_table::{Nanos, WallReading, Window, limit_id};
use gcra_text::sentence;
use gcra_text::sentence::Sentence;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

gcra_text::words! {
    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    pub enum WindowUnit {
        Hour = "hour",
        Day = "day",
        Week = "week",
        Month = "month",
    }
}

const HOUR_S: i64 = 3600;
const DAY_S: i64 = 24 * HOUR_S;

impl WindowUnit {
    /// As people write it in other programs' files.
    fn meant_by(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        Some(match &*word {
            "h" | "hr" | "hours" | "hourly" => Self::Hour,
            "d" | "days" | "daily" | "date" => Self::Day,
            "w" | "weeks" | "weekly" => Self::Week,
            "mo" | "months" | "monthly" => Self::Month,
            _ => {
                let distance = |unit: &Self| strsim::damerau_levenshtein(unit.as_str(), &word);
                return Self::ALL.into_iter().min_by_key(distance).filter(|it| distance(it) < 2);
            }
        })
    }

    /// The length of most windows in seconds. That of a month is 30 days.
    pub const fn nominal_s(self) -> u32 {
        match self {
            Self::Hour => 3600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
        }
    }
}

/// The windows of a unit in a time zone.
#[derive(Debug)]
pub struct Calendar {
    unit: WindowUnit,
    zone: TimeZone,
    /// The name in the database of time zones.
    zone_name: Box<str>,
    /// A digest of when the zone changes its clocks, and how.
    rules: u64,
    /// The bounds that were worked out last: 40 bits for the start, in seconds after 1970, and 24
    /// for the length in seconds. With the length 0 it holds none.
    ///
    /// All threads of a process ask for the same window until it ends.
    latest: AtomicI64,
}

/// The start and the end of a window, in seconds after 1970. The end belongs to the next one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bounds {
    pub start: i64,
    pub end: i64,
}

const LENGTH_BITS: u32 = 24;
const LENGTH: i64 = (1 << LENGTH_BITS) - 1;

impl Bounds {
    fn contain(self, second: i64) -> bool {
        (self.start..self.end).contains(&second)
    }

    /// In one number; 0, which stands for none, where they do not fit.
    fn packed(self) -> i64 {
        let length = self.end.saturating_sub(self.start);
        let fits = (0..=LENGTH).contains(&length) && self.start.unsigned_abs() < 1 << 38;
        if fits { self.start << LENGTH_BITS | length } else { 0 }
    }

    fn of(packed: i64) -> Self {
        let start = packed >> LENGTH_BITS;
        Self { start, end: start + (packed & LENGTH) }
    }
}

impl Calendar {
    fn new(unit: WindowUnit, zone: TimeZone, zone_name: &str) -> Self {
        let zone_name: Box<str> = zone.iana_name().unwrap_or(zone_name).into();
        let rules = rules(&zone);
        Self { unit, zone, zone_name, rules, latest: AtomicI64::new(0) }
    }

    /// `UNIT` or `UNIT ZONE`. The error is a sentence.
    pub fn parse(text: &str) -> Result<Self, Sentence> {
        const HOW: &str = "write a unit (hour, day, week or month) and a time zone, such as \"day \
                           Europe/Berlin\"; without a zone it is UTC";
        let mut words = text.split_whitespace();
        let (unit, name, more) = (words.next(), words.next(), words.next());
        if unit.into_iter().chain(name).any(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        {
            return Err(sentence!(
                "'{text}' is not a window, because a window is one hour, one day, one week or one \
                 month; write the unit without a number, such as \"day Europe/Berlin\""
            ));
        }
        let Some(unit) = unit.filter(|_| more.is_none()) else {
            return Err(sentence!("'{text}' is not a window; {HOW}"));
        };
        let Some(unit) = WindowUnit::from_word(unit) else {
            let second = name.and_then(WindowUnit::from_word);
            let zone = name.map(|name| format!(" {name}")).unwrap_or_default();
            return Err(match (WindowUnit::meant_by(unit), second.map(WindowUnit::as_str)) {
                (_, Some(second)) => {
                    sentence!("'{text}' is not a window; write \"{second} {unit}\"")
                }
                (Some(meant), _) => {
                    let meant = meant.as_str();
                    sentence!("'{unit}' is not a unit of windows; did you mean \"{meant}{zone}\"?")
                }
                (None, _) => sentence!("'{unit}' is not a unit of windows; {HOW}"),
            });
        };
        let (name, word) = (name.unwrap_or("UTC"), unit.as_str());
        let database =
            format!("in the IANA database, such as \"{word} Europe/Berlin\" or \"{word} UTC\"");
        if depends_on_the_machine(name) {
            return Err(sentence!(
                "'{name}' is another time zone on another machine; write the name of one \
                 {database}"
            ));
        }
        zone(name).map(|zone| Self::new(unit, zone, name)).ok_or_else(|| {
            let right = match zone_meant_by(name) {
                Some(meant) => format!("did you mean \"{word} {meant}\"?"),
                None => format!("write its name {database}"),
            };
            sentence!("'{name}' is not a time zone; {right}")
        })
    }

    /// The window that a text probably means although it is none.
    pub(crate) fn meant_by(text: &str) -> Option<String> {
        let mut words = text.split_whitespace();
        let unit = |word| WindowUnit::from_word(word).or_else(|| WindowUnit::meant_by(word));
        let (first, second) = (words.next()?, words.next());
        let meant = match (second.and_then(WindowUnit::from_word), second) {
            (Some(second), _) => format!("{} {first}", second.as_str()),
            (None, None) => unit(first)?.as_str().to_owned(),
            (None, Some(name)) => {
                let known = if zone(name).is_some() { name } else { zone_meant_by(name)? };
                format!("{} {known}", unit(first)?.as_str())
            }
        };
        (words.next().is_none() && Self::parse(&meant).is_ok()).then_some(meant)
    }

    pub fn unit(&self) -> WindowUnit {
        self.unit
    }

    /// A digest of when the zone changes its clocks, and how. It differs after an update of the
    /// database that changes the zone.
    pub(crate) fn rules(&self) -> u64 {
        self.rules
    }

    /// The window of a moment, as the table counts in it.
    pub fn window(&self, now: WallReading) -> Window {
        let Bounds { start, end } = self.bounds(now);
        Window::new(end.abs_diff(start), start, now.time_at(end))
    }

    /// How long it is until the window of a moment ends.
    pub fn ends_in(&self, now: WallReading) -> Nanos {
        now.time_at(self.bounds(now).end).saturating_since(now.time())
    }

    pub fn bounds(&self, now: WallReading) -> Bounds {
        self.bounds_at(now.second())
    }

    /// The window of this second after 1970.
    pub fn bounds_at(&self, second: i64) -> Bounds {
        let latest = Bounds::of(self.latest.load(Ordering::Relaxed));
        if latest.contain(second) {
            return latest;
        }
        self.work_out(second)
    }

    fn work_out(&self, second: i64) -> Bounds {
        // A wall clock after the year 9999 gets windows of its own.
        let bounds = self.around(second).unwrap_or(Bounds { start: second, end: second + 1 });
        self.latest.store(bounds.packed(), Ordering::Relaxed);
        bounds
    }

    /// The window of this second after 1970.
    fn around(&self, second: i64) -> Option<Bounds> {
        let at = Timestamp::from_second(second).ok()?;
        if self.unit == WindowUnit::Hour {
            return self.hour_around(at);
        }
        let mut first = self.first_day(self.zone.to_datetime(at).date())?;
        let mut bounds = self.days_from(first)?;
        // Where clocks are set back over midnight, the evening before comes again after the day
        // has begun. It belongs to that day. (This ends: each day ends later than the one before.)
        while second >= bounds.end {
            first = self.day_after(first)?;
            bounds = self.days_from(first)?;
        }
        Some(bounds)
    }

    fn first_day(&self, day: Date) -> Option<Date> {
        match self.unit {
            WindowUnit::Hour | WindowUnit::Day => Some(day),
            WindowUnit::Week => {
                let past = i64::from(day.weekday().to_monday_zero_offset());
                day.checked_sub(SignedDuration::from_secs(past * DAY_S)).ok()
            }
            WindowUnit::Month => Some(day.first_of_month()),
        }
    }

    /// The first day of the window after the one with this first day.
    fn day_after(&self, first: Date) -> Option<Date> {
        match self.unit {
            WindowUnit::Hour | WindowUnit::Day => first.tomorrow().ok(),
            WindowUnit::Week => first.checked_add(SignedDuration::from_secs(7 * DAY_S)).ok(),
            WindowUnit::Month => first.last_of_month().tomorrow().ok(),
        }
    }

    fn days_from(&self, first: Date) -> Option<Bounds> {
        let (start, end) = (self.midnight(first)?, self.midnight(self.day_after(first)?)?);
        Some(Bounds { start, end })
    }

    fn midnight(&self, day: Date) -> Option<i64> {
        // The first of two midnights, and the first moment after one that is skipped.
        let begins = self.zone.to_ambiguous_timestamp(DateTime::from(day)).compatible().ok()?;
        let skipped = self.zone.to_datetime(begins);
        if skipped == DateTime::from(day) {
            return Some(begins.as_second());
        }
        // jiff adds the length of the gap, which ends before that if it began before midnight.
        let change = self.zone.preceding(begins.checked_add(ONE_SECOND).ok()?).next()?;
        Some(change.timestamp().as_second())
    }

    fn hour_around(&self, at: Timestamp) -> Option<Bounds> {
        let offset = |at: Timestamp| i64::from(self.zone.to_offset(at).seconds());
        let (second, ours) = (at.as_second(), offset(at));
        let mut start = second - (second + ours).rem_euclid(HOUR_S);
        let mut end = start + HOUR_S;
        // A change of the clocks within it cuts it, unless that is a change by full hours.
        let cuts = |other: i64| (other - ours) % HOUR_S != 0;
        if cuts(offset(Timestamp::from_second(start).ok()?))
            && let Some(change) = self.zone.preceding(at.checked_add(ONE_SECOND).ok()?).next()
        {
            start = start.max(change.timestamp().as_second());
        }
        if cuts(offset(Timestamp::from_second(end - 1).ok()?))
            && let Some(change) = self.zone.following(at).next()
        {
            end = end.min(change.timestamp().as_second());
        }
        Some(Bounds { start, end })
    }

    /// "10000 per calendar day in Europe/Berlin".
    pub(crate) fn count_in_words(&self, count: u32) -> String {
        format!("{count} per calendar {} in {}", self.unit.as_str(), self.zone_name)
    }

    /// Where its windows begin and end, and what follows for a time across two of them.
    pub(crate) fn bound_in_words(&self, count: u32) -> String {
        let twice = u64::from(count) * 2;
        // No length of time is named, because days and months differ: where 23 hours are a day, 24
        // hours can have a part of three.
        let (from, edge) = match self.unit {
            WindowUnit::Hour => ("from one full hour to the next", "a full hour"),
            WindowUnit::Day => ("from midnight to midnight", "a midnight"),
            WindowUnit::Week => ("from the midnight before Monday to the next", "that midnight"),
            WindowUnit::Month => ("from the midnight before the 1st to the next", "that midnight"),
        };
        format!("{from}, so up to {twice} shortly before and after {edge}")
    }

    /// "the next day begins at 2026-03-30 00:00:00 in Europe/Berlin, 2026-03-29 22:00:00 in UTC".
    pub(crate) fn next_in_words(&self, now: SystemTime) -> String {
        let at = |now: Timestamp| self.around(now.as_second());
        let next = match Timestamp::try_from(now).ok().and_then(at) {
            Some(Bounds { end, .. }) if *self.zone_name == *"UTC" => self.moment_in_words(end),
            Some(Bounds { end, .. }) => {
                // So that a zone that was mistaken is noticed: a day always begins at midnight.
                let utc = Timestamp::from_second(end).map(|at| TimeZone::UTC.to_datetime(at));
                let utc = utc.map(|at| format!(", {} {} in UTC", at.date(), at.time()));
                format!("{}{}", self.moment_in_words(end), utc.unwrap_or_default())
            }
            None => "an unknown time, because the clock of this machine is wrong".to_owned(),
        };
        format!("the next {} begins at {next}", self.unit.as_str())
    }

    /// A moment in the zone: "2026-03-30 00:00:00 in Europe/Berlin".
    pub fn moment_in_words(&self, second: i64) -> String {
        let Ok(at) = Timestamp::from_second(second) else {
            return format!("{second} s after 1970");
        };
        let at = self.zone.to_datetime(at);
        format!("{} {} in {}", at.date(), at.time(), self.zone_name)
    }

    /// How it is written in a file: "day Europe/Berlin".
    pub fn as_written(&self) -> String {
        format!("{} {}", self.unit.as_str(), self.zone_name)
    }
}

const ONE_SECOND: SignedDuration = SignedDuration::from_secs(1);

/// Equal calendars have the same windows.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        (self.unit, &self.zone_name, self.rules) == (other.unit, &other.zone_name, other.rules)
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.unit, &self.zone_name).hash(hasher);
    }
}

/// The digest of a zone's changes from 2020 to 2037, which is as far as databases list them. They
/// are the same at whatever time a process reads them.
fn rules(zone: &TimeZone) -> u64 {
    const BEGIN: i64 = 1_577_836_800;
    const END: i64 = 2_145_916_800;
    let begin = Timestamp::from_second(BEGIN).unwrap_or_default();
    let offset = |at: Timestamp| zone.to_offset(at).seconds();
    let mut text = offset(begin).to_string();
    for change in zone.following(begin) {
        let at = change.timestamp();
        if at.as_second() >= END {
            break;
        }
        text.push_str(&format!(" {} {}", at.as_second(), offset(at)));
    }
    limit_id(&[text.as_bytes()])
}

/// Has the system's database looked at again: the library keeps zones for some minutes.
pub(crate) fn look_again() {
    jiff::tz::db().reset();
}

/// Whether a name of the system's database stands for the zone that this machine is set to. Or it
/// stands for a copy of a zone that other machines may not have (`right/` has leap seconds).
fn depends_on_the_machine(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_set = ["localtime", "posixrules", "local"].contains(&&*name);
    is_set || name.starts_with("posix/") || name.starts_with("right/")
}

/// The time zone with this name. The system's database is asked first, then the one in the
/// program.
fn zone(name: &str) -> Option<TimeZone> {
    // Names of the database only, not the files of other things beside it.
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte));
    if !is_name || name.starts_with('/') {
        return None;
    }
    TimeZone::get(name).ok()
}

/// The longest name that may be a zone with a typing error in it, in bytes. None has more than 32.
const LONGEST_NAME: usize = 40;

fn zone_meant_by(name: &str) -> Option<&'static str> {
    // Looked up once, because a file can have many mistakes.
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(|| {
        let known = jiff::tz::db().available().map(|zone| zone.as_str().to_owned());
        known.filter(|zone| !depends_on_the_machine(zone)).collect()
    });
    if name.len() > LONGEST_NAME {
        return None;
    }
    let meant = name.to_ascii_lowercase().replace([' ', '-'], "_");
    let most = 1 + name.len() / 4;
    let distance = |zone: &str| {
        let zone = zone.to_ascii_lowercase();
        let city = zone.rsplit('/').next().unwrap_or(&zone);
        let distance = |known: &str| match known.len().abs_diff(meant.len()) {
            // The distance is at least that.
            more if more > most => more,
            _ => strsim::damerau_levenshtein(known, &meant),
        };
        // "Berlin" alone is the zone of that city.
        distance(&zone).min(1 + distance(city))
    };
    let (distance, zone) = KNOWN.iter().map(|zone| (distance(zone), zone)).min()?;
    (distance <= most).then_some(zone)
}

#[cfg(test)]
mod tests {
    use gcra_table::{Slots, Table};
    use proptest::prelude::*;

    use super::*;

    fn calendar(text: &str) -> Calendar {
        Calendar::parse(text).unwrap()
    }

    fn second(time: &str) -> i64 {
        time.parse::<Timestamp>().unwrap().as_second()
    }

    fn around(calendar: &Calendar, time: &str) -> [String; 2] {
        let Bounds { start, end } = calendar.around(second(time)).unwrap();
        [start, end].map(|second| Timestamp::from_second(second).unwrap().to_string())
    }

    #[test]
    fn windows_are_those_of_the_zone() {
        for (window, time, start, end) in [
            ("hour", "2026-03-01T10:20:30Z", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z"),
            ("day UTC", "2026-03-01T10:20:30Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"),
            (
                "day Europe/Berlin",
                "2026-03-01T23:00:00Z",
                "2026-03-01T23:00:00Z",
                "2026-03-02T23:00:00Z",
            ),
            (
                "day Europe/Berlin",
                "2026-03-01T22:59:59Z",
                "2026-02-28T23:00:00Z",
                "2026-03-01T23:00:00Z",
            ),
            // 2026-03-01 is a Sunday.
            (
                "week Europe/Berlin",
                "2026-03-01T12:00:00Z",
                "2026-02-22T23:00:00Z",
                "2026-03-01T23:00:00Z",
            ),
            (
                "month America/New_York",
                "2026-03-01T04:59:59Z",
                "2026-02-01T05:00:00Z",
                "2026-03-01T05:00:00Z",
            ),
            (
                "month America/New_York",
                "2026-03-01T05:00:00Z",
                "2026-03-01T05:00:00Z",
                "2026-04-01T04:00:00Z",
            ),
            ("month", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
            // Half an hour, and three quarters.
            (
                "hour Asia/Kolkata",
                "2026-03-01T10:20:30Z",
                "2026-03-01T09:30:00Z",
                "2026-03-01T10:30:00Z",
            ),
            (
                "hour Asia/Kathmandu",
                "2026-03-01T10:20:30Z",
                "2026-03-01T10:15:00Z",
                "2026-03-01T11:15:00Z",
            ),
            (
                "day Asia/Kolkata",
                "2026-03-01T18:30:00Z",
                "2026-03-01T18:30:00Z",
                "2026-03-02T18:30:00Z",
            ),
            // A day of 23 hours, and one of 25.
            (
                "day Europe/Berlin",
                "2026-03-29T12:00:00Z",
                "2026-03-28T23:00:00Z",
                "2026-03-29T22:00:00Z",
            ),
            (
                "day Europe/Berlin",
                "2026-10-25T12:00:00Z",
                "2026-10-24T22:00:00Z",
                "2026-10-25T23:00:00Z",
            ),
            // There was no midnight: the clocks went from 0:00 to 1:00.
            (
                "day America/Sao_Paulo",
                "2018-11-04T12:00:00Z",
                "2018-11-04T03:00:00Z",
                "2018-11-05T02:00:00Z",
            ),
            (
                "day Africa/Cairo",
                "2026-04-24T12:00:00Z",
                "2026-04-23T22:00:00Z",
                "2026-04-24T21:00:00Z",
            ),
            // The gap began at 23:30 of the day before, and ended half an hour after midnight.
            (
                "day America/Toronto",
                "1919-03-31T12:00:00Z",
                "1919-03-31T04:30:00Z",
                "1919-04-01T04:00:00Z",
            ),
            // There was no such day.
            (
                "day Pacific/Apia",
                "2011-12-30T09:59:59Z",
                "2011-12-29T10:00:00Z",
                "2011-12-30T10:00:00Z",
            ),
            (
                "day Pacific/Apia",
                "2011-12-30T10:00:00Z",
                "2011-12-30T10:00:00Z",
                "2011-12-31T10:00:00Z",
            ),
            // The clocks went from 0:01 back to 23:01 of the day before.
            (
                "day America/St_Johns",
                "2010-11-07T02:45:00Z",
                "2010-11-07T02:30:00Z",
                "2010-11-08T03:30:00Z",
            ),
            // By half an hour, at 2:00.
            (
                "hour Australia/Lord_Howe",
                "2026-04-04T14:59:59Z",
                "2026-04-04T14:00:00Z",
                "2026-04-04T15:00:00Z",
            ),
            (
                "hour Australia/Lord_Howe",
                "2026-04-04T15:00:00Z",
                "2026-04-04T15:00:00Z",
                "2026-04-04T15:30:00Z",
            ),
            (
                "hour Australia/Lord_Howe",
                "2026-10-03T15:30:00Z",
                "2026-10-03T15:30:00Z",
                "2026-10-03T16:00:00Z",
            ),
        ] {
            assert_eq!(around(&calendar(window), time), [start, end], "{window} {time}");
        }
    }

    /// Zones in which something odd has happened, and others.
    const ZONES: [&str; 14] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/Sao_Paulo",
        "America/St_Johns",
        "America/Havana",
        "Africa/Cairo",
        "Asia/Gaza",
        "Asia/Kathmandu",
        "Asia/Tehran",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Pacific/Kwajalein",
        "America/Scoresbysund",
    ];

    proptest! {
        /// From the start of a window to its end, each second is in it, and the next begins there.
        #[test]
        fn windows_follow_each_other(
            unit in prop::sample::select(WindowUnit::ALL.to_vec()),
            zone in prop::sample::select(ZONES.to_vec()),
            at in 0_i64..2_000_000_000,
            parts in prop::collection::vec(0.0..1.0_f64, 8),
        ) {
            let calendar = calendar(&format!("{} {zone}", unit.as_str()));
            let bounds = calendar.around(at).unwrap();
            prop_assert!(bounds.contain(at));
            let length = bounds.end - bounds.start;
            prop_assert!(length <= i64::from(unit.nominal_s()) + 2 * DAY_S);
            prop_assert_eq!(Bounds::of(bounds.packed()), bounds);
            for part in parts {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_precision_loss,
                    reason = "a part of a window"
                )]
                let second = bounds.start + (length as f64 * part) as i64;
                prop_assert_eq!(calendar.around(second).unwrap(), bounds, "{}", second);
            }
            prop_assert_eq!(calendar.around(bounds.end - 1).unwrap(), bounds);
            prop_assert_eq!(calendar.around(bounds.end).unwrap().start, bounds.end);
            prop_assert_eq!(calendar.around(bounds.start - 1).unwrap().end, bounds.start);
        }
    }

    /// Around each change of the clocks, to the second.
    #[test]
    fn windows_follow_each_other_where_clocks_change() {
        for zone in ZONES {
            for unit in WindowUnit::ALL {
                let calendar = calendar(&format!("{} {zone}", unit.as_str()));
                let changes = calendar.zone.following(Timestamp::UNIX_EPOCH).take(70);
                let changes: Vec<i64> =
                    changes.map(|change| change.timestamp().as_second()).collect();
                for change in changes {
                    let mut at = change - 26 * HOUR_S;
                    while at < change + 26 * HOUR_S {
                        let bounds = calendar.around(at).unwrap();
                        assert!(bounds.contain(at), "{zone} {unit:?} {at}");
                        assert_eq!(
                            calendar.around(bounds.end - 1),
                            Some(bounds),
                            "{zone} {unit:?}"
                        );
                        assert_eq!(
                            calendar.around(bounds.end).unwrap().start,
                            bounds.end,
                            "{zone} {unit:?} {at}"
                        );
                        at += 1777;
                    }
                }
            }
        }
    }

    /// A window begins at the hour, or on a day, that its name says.
    #[test]
    fn a_day_begins_with_its_date() {
        for zone in ZONES {
            let calendar = calendar(&format!("day {zone}"));
            for day in 0..7_000 {
                let Bounds { start, .. } = calendar.around(3 * day * DAY_S + 43_200).unwrap();
                let moment =
                    |second| calendar.zone.to_datetime(Timestamp::from_second(second).unwrap());
                assert!(
                    moment(start - 1).date() < moment(start).date(),
                    "{zone}: {} after {}",
                    moment(start),
                    moment(start - 1)
                );
            }
        }
    }

    #[test]
    fn the_latest_bounds_are_kept_and_left() {
        let (table, clock) = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap();
        let calendar = calendar("day Europe/Berlin");
        for time in ["1970-01-01T00:00:00Z", "2026-03-28T22:59:59Z", "2026-03-28T23:00:00Z"] {
            for _ in 0..3 {
                clock.set_wall(second(time).unsigned_abs() * 1_000_000_000);
                let bounds = calendar.bounds(table.wall_reading());
                assert_eq!(calendar.around(second(time)), Some(bounds));
                assert_eq!(Bounds::of(calendar.latest.load(Ordering::Relaxed)), bounds);
            }
        }
        assert_eq!(calendar.ends_in(table.wall_reading()), Nanos::from_secs(23 * 3600));
        clock.set_wall(u64::MAX);
        let _ = calendar.window(table.wall_reading());
    }

    #[test]
    fn a_wrong_window_says_what_is_right() {
        for (text, says) in [
            ("", "'' is not a window; write a unit (hour, day, week or month) and a time zone"),
            ("day Europe/Berlin x", "'day Europe/Berlin x' is not a window; write a unit"),
            (
                "2 day",
                "'2 day' is not a window, because a window is one hour, one day, one week or one \
                 month; write the unit without a number, such as \"day Europe/Berlin\"",
            ),
            ("2 days Europe/Berlin", "write the unit without a number"),
            ("24h", "write the unit without a number"),
            ("day 1", "write the unit without a number"),
            ("fortnight", "'fortnight' is not a unit of windows; write a unit (hour, day"),
            ("minute", "'minute' is not a unit of windows; write a unit"),
            ("days UTC", "'days' is not a unit of windows; did you mean \"day UTC\"?"),
            ("Day", "'Day' is not a unit of windows; did you mean \"day\"?"),
            ("daily Asia/Tokyo", "did you mean \"day Asia/Tokyo\"?"),
            (
                "Europe/Berlin day",
                "'Europe/Berlin day' is not a window; write \"day Europe/Berlin\"",
            ),
            (
                "day Europe/Berln",
                "'Europe/Berln' is not a time zone; did you mean \"day \
              Europe/Berlin\"?",
            ),
            ("week Berlin", "'Berlin' is not a time zone; did you mean \"week Europe/Berlin\"?"),
            (
                "day Atlantis/Capital",
                "'Atlantis/Capital' is not a time zone; write its name in the \
              IANA database, such as \"day Europe/Berlin\" or \"day UTC\"",
            ),
            (
                "day localtime",
                "'localtime' is another time zone on another machine; write the name of one in \
                 the IANA database, such as \"day Europe/Berlin\" or \"day UTC\"",
            ),
            ("week Local", "'Local' is another time zone on another machine"),
            ("day right/Europe/Berlin", "is another time zone on another machine"),
            ("day posix/UTC", "is another time zone on another machine"),
            ("day posixrules", "is another time zone on another machine"),
            ("day ../../etc/passwd", "is not a time zone"),
        ] {
            let error = Calendar::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    /// Where the system has none, as in a container image.
    #[test]
    fn the_program_has_a_database_of_its_own() {
        let database = jiff::tz::TimeZoneDatabase::bundled();
        for name in ZONES {
            let zone = database.get(name).unwrap();
            let ours = Calendar::new(WindowUnit::Day, zone, name);
            assert_eq!(ours.around(1_700_000_000), {
                calendar(&format!("day {name}")).around(1_700_000_000)
            });
        }
    }

    #[test]
    fn calendars_are_equal_where_unit_and_zone_are() {
        assert_eq!(calendar("day"), calendar("day UTC"));
        assert_eq!(calendar("day europe/berlin"), calendar("day Europe/Berlin"));
        assert_ne!(calendar("day Europe/Berlin"), calendar("day Europe/Paris"));
        assert_ne!(calendar("day"), calendar("hour"));
    }

    #[test]
    fn the_words_name_the_next_moment() {
        let calendar = calendar("day Europe/Berlin");
        assert_eq!(calendar.count_in_words(5), "5 per calendar day in Europe/Berlin");
        assert_eq!(calendar.as_written(), "day Europe/Berlin");
        assert_eq!(
            calendar.moment_in_words(second("2026-03-28T23:00:00Z")),
            "2026-03-29 00:00:00 in Europe/Berlin"
        );
    }
}

//! Dates of log lines.

/// Microseconds in a second.
pub(crate) const SECOND: i64 = 1_000_000;

/// The length of `22/Nov/2026:21:39:33.123`, which is `%t` and `%tr`.
pub(crate) const WITH_MILLISECONDS: usize = 24;
/// The length of `22/Nov/2026:21:39:33 +0100`, which is `%T`, `%Tl`, `%trg` and `%trl`.
pub(crate) const WITH_ZONE: usize = 26;

/// Days from 1970-01-01 to a date of the Gregorian calendar (Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", days_from_civil).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The number that decimal digits are. Nothing else may be there.
fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0, |sum: i64, digit| {
        let digit = digit.wrapping_sub(b'0');
        sum.checked_mul(10)?.checked_add(i64::from(digit)).filter(|_| digit < 10)
    })
}

fn month(name: &[u8]) -> Option<i64> {
    const NAMES: [&[u8; 3]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    let at = NAMES.iter().position(|month| month.as_slice() == name)?;
    i64::try_from(at + 1).ok()
}

/// Seconds since 1970, if all parts are in range.
fn seconds(date: [i64; 3], time: [i64; 3]) -> Option<i64> {
    let ([year, month, day], [hour, minute, second]) = (date, time);
    // 60 is a leap second.
    let fits = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let of_date = fits.then(|| days(year, month, day))?;
    // The 30th of February would be a day of March.
    let next = days(year + month / 12, month % 12 + 1, 1);
    (of_date < next).then_some(of_date * 86_400 + hour * 3600 + minute * 60 + second)
}

/// `21:39:33`
fn time_of_day(text: &[u8]) -> Option<[i64; 3]> {
    let &[a, b, b':', c, d, b':', e, f] = text else { return None };
    Some([number(&[a, b])?, number(&[c, d])?, number(&[e, f])?])
}

/// `22/Nov/2026:21:39:33`: seconds since 1970.
fn haproxy(text: &[u8]) -> Option<i64> {
    if text.len() != 20 || text[2] != b'/' || text[6] != b'/' || text[11] != b':' {
        return None;
    }
    let date = [number(&text[7..11])?, month(&text[3..6])?, number(&text[..2])?];
    seconds(date, time_of_day(&text[12..])?)
}

/// `+0100`, `+01:00`, `+01` or `Z`: seconds east of UTC.
fn zone(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text.split_first()? {
        (b'+', digits) => (1, digits),
        (b'-', digits) => (-1, digits),
        (b'Z' | b'z', []) => return Some(0),
        _ => return None,
    };
    let (hours, minutes) = match digits.len() {
        2 => (digits, &b"00"[..]),
        4 => digits.split_at(2),
        5 if digits[2] == b':' => (&digits[..2], &digits[3..]),
        _ => return None,
    };
    Some(sign * (number(hours)? * 3600 + number(minutes)? * 60))
}

/// Eight bytes as a number.
fn eight(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Reads dates of one log. It keeps the last second, because the next line's is mostly the same.
#[derive(Debug, Clone)]
pub(crate) struct Dates {
    last: [u64; 3],
    last_seconds: i64,
    /// Microseconds east of UTC of dates without a zone.
    offset: i64,
}

impl Dates {
    pub(crate) fn new(utc_offset: i32) -> Self {
        Self { last: [0; 3], last_seconds: 0, offset: i64::from(utc_offset) * SECOND }
    }

    /// `22/Nov/2026:21:39:33`: seconds since 1970.
    fn whole(&mut self, text: &[u8]) -> Option<i64> {
        let text: &[u8; 20] = text.try_into().ok()?;
        // In numbers, which is faster than to compare bytes.
        let [a, b, c] = [&text[..8], &text[8..16], &text[12..]].map(eight);
        if [a, b, c] != self.last {
            self.last_seconds = haproxy(text)?;
            self.last = [a, b, c];
        }
        Some(self.last_seconds)
    }

    /// `22/Nov/2026:21:39:33.123`, as microseconds since 1970.
    pub(crate) fn with_milliseconds(&mut self, text: &[u8]) -> Option<i64> {
        let (whole, &[b'.', a, b, c]) = text.split_at_checked(20)? else { return None };
        let whole = self.whole(whole)?;
        let milliseconds = number(&[a, b, c])?;
        Some(whole * SECOND + milliseconds * 1000 - self.offset)
    }

    /// `22/Nov/2026:21:39:33 +0100`, as microseconds since 1970.
    pub(crate) fn with_zone(&mut self, text: &[u8]) -> Option<i64> {
        let (whole, rest) = text.split_at_checked(20)?;
        let zone = zone(rest.strip_prefix(b" ")?)?;
        Some((self.whole(whole)? - zone) * SECOND)
    }

    /// A date in any of the notations above, in that of ISO 8601 (`2026-11-22T21:39:33.123Z`; a
    /// space may stand for the T, and slashes for the hyphens; `20261122T213933.123Z`), in those
    /// of RFC 1123 and of C (`Sun, 22 Nov 2026 21:39:33 GMT`, `Sun Nov 22 21:39:33 2026`), or as a
    /// number since 1970: seconds, with or without a fraction, milliseconds, microseconds or
    /// nanoseconds, by its size.
    pub(crate) fn any(&mut self, text: &[u8]) -> Option<i64> {
        let text = text.trim_ascii();
        if text.first().is_some_and(u8::is_ascii_alphabetic) || text.get(2) == Some(&b' ') {
            return self.with_words(text);
        }
        match text.get(2) {
            Some(b'/') if text.len() == WITH_ZONE && text[20] == b' ' => self.with_zone(text),
            Some(b'/') => {
                let (whole, rest) = text.split_at_checked(20)?;
                let whole = self.whole(whole)?;
                let fraction = match rest.split_first() {
                    None => 0,
                    Some((b'.', digits)) => fraction(digits)?,
                    _ => return None,
                };
                Some(whole * SECOND + fraction - self.offset)
            }
            _ if matches!(text.get(4), Some(b'-' | b'/')) => self.iso(text),
            _ if text.get(8) == Some(&b'T') => self.basic(text),
            _ => epoch(text),
        }
    }

    fn iso(&self, text: &[u8]) -> Option<i64> {
        let (date, rest) = text.split_at_checked(10)?;
        if date[4] != date[7] {
            return None;
        }
        let date = [number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?];
        let (&between, rest) = rest.split_first()?;
        if !matches!(between, b'T' | b't' | b' ' | b'_') {
            return None;
        }
        let (time, rest) = rest.split_at_checked(8)?;
        self.with_rest(seconds(date, time_of_day(time)?)?, rest)
    }

    /// `20261122T213933`, and what may follow the seconds.
    fn basic(&self, text: &[u8]) -> Option<i64> {
        let (whole, rest) = text.split_at_checked(15)?;
        let part = |from: usize, to: usize| number(&whole[from..to]);
        let date = [part(0, 4)?, part(4, 6)?, part(6, 8)?];
        let time = [part(9, 11)?, part(11, 13)?, part(13, 15)?];
        self.with_rest(seconds(date, time)?, rest)
    }

    /// `[Sun, ]22 Nov 2026 21:39:33[ GMT]` and `Sun Nov 22 21:39:33 2026`.
    fn with_words(&self, text: &[u8]) -> Option<i64> {
        let mut words = text.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        let mut next = || words.next().unwrap_or_default();
        let mut first = next();
        if !first.first().is_some_and(u8::is_ascii_digit) {
            first = next();
        }
        let (day, month, year, time) = match month(first) {
            // In C the year is the last word.
            Some(month) => {
                let (day, time) = (next(), next());
                (day, month, next(), time)
            }
            None => (first, month(next())?, next(), next()),
        };
        if year.len() != 4 || day.len() > 2 {
            return None;
        }
        let whole = seconds([number(year)?, month, number(day)?], time_of_day(time)?)?;
        let zone = next();
        let zone: &[u8] = if matches!(zone, b"GMT" | b"UTC") { b"Z" } else { zone };
        self.with_rest(whole, zone)
    }

    /// A date, and what stands behind its seconds: a fraction and a zone, or nothing.
    fn with_rest(&self, whole: i64, rest: &[u8]) -> Option<i64> {
        let digits = match rest.split_first() {
            Some((b'.' | b',', rest)) => {
                let end = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
                &rest[..end]
            }
            _ => &[],
        };
        let after = if digits.is_empty() { rest } else { &rest[1 + digits.len()..] };
        let after = after.trim_ascii_start();
        let offset = if after.is_empty() { self.offset } else { zone(after)? * SECOND };
        Some(whole * SECOND + fraction(digits)? - offset)
    }
}

/// The digits after the point: microseconds. Further digits are cut off.
fn fraction(digits: &[u8]) -> Option<i64> {
    let mut sum = 0;
    for place in 0..6 {
        let digit = digits.get(place).map_or(Some(0), |&digit| number(&[digit]))?;
        sum = sum * 10 + digit;
    }
    Some(sum)
}

/// A number since 1970: microseconds.
fn epoch(text: &[u8]) -> Option<i64> {
    let point = text.iter().position(|&b| b == b'.').unwrap_or(text.len());
    let whole = number(&text[..point])?;
    let digits = text.get(point + 1..).unwrap_or_default();
    // Seconds reach the year 5138, and milliseconds begin in 1973.
    let (scale, divide) = match whole.checked_ilog10().unwrap_or(0) {
        ..=10 => (SECOND, 1),
        11..=13 => (1000, 1),
        14..=16 => (1, 1),
        _ => (1, 1000),
    };
    let fraction = if scale == SECOND { fraction(digits)? } else { 0 };
    Some(whole * scale / divide + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations_of_one_moment_agree() {
        let mut dates = Dates::new(0);
        let expected = Some(1_795_383_573_123_000);
        for text in [
            "22/Nov/2026:21:39:33.123",
            "2026-11-22T21:39:33.123Z",
            "2026-11-22T22:39:33.123+01:00",
            "2026-11-22 16:39:33,123 -0500",
            "2026-11-22T21:39:33.123000999",
            "1795383573.123",
            "1795383573123",
            "1795383573123000",
            "1795383573123000999",
            "2026/11/22 21:39:33.123",
            "2026/11/22T21:39:33.123Z",
            "20261122T213933.123Z",
            "20261122T223933.123+0100",
        ] {
            assert_eq!(dates.any(text.as_bytes()), expected, "{text}");
        }
        for text in [
            "Sun, 22 Nov 2026 21:39:33 GMT",
            "Sun, 22 Nov 2026 22:39:33 +0100",
            "22 Nov 2026 21:39:33",
            "Sun Nov 22 21:39:33 2026",
            "20261122T213933Z",
            "2026/11/22 21:39:33",
        ] {
            assert_eq!(dates.any(text.as_bytes()), expected.map(|at| at - 123_000), "{text}");
        }
        let first = expected.map(|at| at - 21 * 86_400 * SECOND - 123_000);
        assert_eq!(dates.any(b"Sun Nov  1 21:39:33 2026"), first);
        assert_eq!(dates.with_milliseconds(b"22/Nov/2026:21:39:33.123"), expected);
        let whole = Some(1_795_383_573_000_000);
        assert_eq!(dates.with_zone(b"22/Nov/2026:21:39:33 +0000"), whole);
        assert_eq!(dates.any(b"22/Nov/2026:23:09:33 +0130"), whole);
        assert_eq!(dates.any(b"1795383573"), whole);
        let mut berlin = Dates::new(3600);
        assert_eq!(berlin.with_milliseconds(b"22/Nov/2026:22:39:33.123"), expected);
        assert_eq!(berlin.any(b"2026-11-22T22:39:33.123"), expected);
    }

    #[test]
    fn what_is_no_date_is_none() {
        let mut dates = Dates::new(0);
        for text in [
            "",
            "-",
            "22/Now/2026:21:39:33.123",
            "22/Nov/2026:24:39:33.123",
            "32/Nov/2026:21:39:33.123",
            "00/Nov/2026:21:39:33.123",
            "31/Nov/2026:21:39:33.123",
            "29/Feb/2026:21:39:33.123",
            "2026-02-30T21:39:33Z",
            "2/Nov/2026:21:39:33.123",
            "2026-13-22T21:39:33Z",
            "2026-11-22",
            "2026-11-22T21:39:33+1",
            "1795383573123000999999",
            "2026-11/22 21:39:33",
            "20261122T2139",
            "20261131T213933Z",
            "Sun, 22 Nov 26 21:39:33 GMT",
            "Sun, 22 Nov 2026",
            "Nov 22 21:39:33",
            "Sun, 31 Nov 2026 21:39:33 GMT",
            "Sun, 22 Nov 2026 21:39:33 PST",
            "-1",
        ] {
            assert_eq!(dates.any(text.as_bytes()), None, "{text}");
        }
        // A leap day, and the day after it.
        let day = |dates: &mut Dates, text: &str| dates.any(text.as_bytes()).unwrap_or_default();
        let first = day(&mut dates, "2024-02-29T00:00:00Z");
        assert_eq!(day(&mut dates, "2024-03-01T00:00:00Z") - first, 86_400 * SECOND);
    }
}

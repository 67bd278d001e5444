//! Rates as people write them: `100/s`, `0.5/s`, `1/10s`, `100/250ms`, `5/min`, `1000/day`.

use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;

use crate::quota::{Quota, QuotaError};
use crate::sentences::sentences;
use crate::time::Nanos;

/// The largest burst of a [`Rate`], in cells. It is one less than the largest number of cells, so
/// that a caller has a number for a cost that is above every burst.
pub const MAX_BURST: u32 = u32::MAX - 1;

/// A number of cells in a period of time, parsed from text.
///
/// The text is `COUNT/PERIOD`. The count is a positive decimal number; the period is a unit with
/// an optional whole number before it. The units are `ms`, `s`, `m`, `h` and `d`; `sec`, `min` and
/// `hr` are units as well, and so are `second`, `minute`, `hour` and `day` with or without a final
/// `s`. [`Display`](fmt::Display) writes the rate in words: "100 per second".
///
/// ```
/// use gcra_table::{Nanos, Rate};
///
/// let rate: Rate = "100/250ms".parse()?;
/// assert_eq!(rate.to_string(), "100 per 250 milliseconds");
/// assert_eq!(rate.quota(None)?.emission_interval(), Nanos(2_500_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    /// The count is `mantissa / scale`; the scale is a power of ten.
    mantissa: NonZeroU64,
    scale: u64,
    period: Period,
    emission_interval: Nanos,
}

/// The period of a [`Rate`]. [`Display`](fmt::Display) writes it in words: "second", "10 seconds".
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Period {
    units: NonZeroU64,
    unit: Unit,
}

impl Rate {
    /// The quota of this rate with this burst. If none is given, the burst is the count of the
    /// rate, rounded down and at least 1: a client with `100/s` may send 100 at once.
    ///
    /// The emission interval is the period divided by the count, rounded up to whole nanoseconds,
    /// so that rounding never allows more. (Up to a million per second it allows less by under
    /// 0.1 %.)
    ///
    /// # Errors
    ///
    /// The burst is zero or above [`MAX_BURST`], or takes too long to drain.
    pub fn quota(&self, burst: Option<u64>) -> Result<Quota, RateError> {
        let burst = burst.unwrap_or(self.whole_count().max(1));
        let burst = u32::try_from(burst)
            .ok()
            .filter(|burst| (1..=MAX_BURST).contains(burst))
            .ok_or(RateError::Burst(burst))?;
        Quota::new(self.emission_interval, burst).map_err(RateError::Quota)
    }

    fn whole_count(&self) -> u64 {
        self.mantissa.get() / self.scale
    }

    /// The period: "second" for `100/s`.
    pub const fn period(&self) -> Period {
        self.period
    }

    /// The most cells that a quota of this rate with this burst allows in any interval that lasts
    /// one period. They are the burst, and the cells that come back in the meantime.
    pub fn most_in_a_period(&self, burst: u32) -> u64 {
        self.whole_count().saturating_add(burst.into())
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        Self::parse(text).map_err(|problem| RateError::Text { text: text.into(), problem })
    }
}

impl Rate {
    /// As by [`FromStr`], without the string in the error: this allocates no memory.
    ///
    /// # Errors
    ///
    /// The string is not a rate.
    pub fn parse(text: &str) -> Result<Self, RateProblem> {
        let (count, period) = text.trim().split_once('/').ok_or(RateProblem::NoSlash)?;

        let (whole, fraction) = count.split_once('.').unwrap_or((count, ""));
        let digits = || whole.bytes().chain(fraction.bytes());
        if count.is_empty() || count.ends_with('.') || !digits().all(|byte| byte.is_ascii_digit())
        {
            return Err(RateProblem::Count);
        }
        let mantissa = digits().try_fold(0_u64, |number, digit| {
            number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
        });
        let mantissa = mantissa.ok_or(RateProblem::TooPrecise)?;
        let mantissa = NonZeroU64::new(mantissa).ok_or(RateProblem::Zero)?;
        let scale = u32::try_from(fraction.len())
            .ok()
            .and_then(|places| 10_u64.checked_pow(places))
            .ok_or(RateProblem::TooPrecise)?;

        let unit_at = period.find(|c: char| !c.is_ascii_digit()).ok_or(RateProblem::Unit)?;
        let (units, unit) = period.split_at(unit_at);
        let units: u64 = if units.is_empty() { Ok(1) } else { units.parse() }
            .map_err(|_| RateProblem::Period)?;
        let units = NonZeroU64::new(units).ok_or(RateProblem::Period)?;
        let unit = Unit::parse(unit).ok_or(RateProblem::Unit)?;

        let period_ns = units.get().checked_mul(unit.length.0).ok_or(RateProblem::Period)?;
        let interval_ns =
            (u128::from(period_ns) * u128::from(scale)).div_ceil(u128::from(mantissa.get()));
        let emission_interval =
            u64::try_from(interval_ns).map(Nanos).map_err(|_| RateProblem::Period)?;
        // More than one cell per nanosecond would count as one per nanosecond.
        if u128::from(mantissa.get()) > u128::from(period_ns) * u128::from(scale) {
            return Err(RateProblem::TooFast);
        }
        Ok(Self { mantissa, scale, period: Period { units, unit }, emission_interval })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.whole_count())?;
        if self.scale > 1 {
            let places = self.scale.ilog10() as usize;
            let fraction = format!("{:0places$}", self.mantissa.get() % self.scale);
            let fraction = fraction.trim_end_matches('0');
            if !fraction.is_empty() {
                write!(f, ".{fraction}")?;
            }
        }
        write!(f, " per {}", self.period)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.units.get() {
            1 => f.write_str(self.unit.name),
            units => write!(f, "{units} {}s", self.unit.name),
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Unit {
    name: &'static str,
    length: Nanos,
}

impl Unit {
    fn parse(text: &str) -> Option<Self> {
        let (name, length) = match text {
            "ms" => ("millisecond", Nanos::from_millis(1)),
            "s" | "sec" | "second" | "seconds" => ("second", Nanos::from_secs(1)),
            "m" | "min" | "minute" | "minutes" => ("minute", Nanos::from_secs(60)),
            "h" | "hr" | "hour" | "hours" => ("hour", Nanos::from_secs(3_600)),
            "d" | "day" | "days" => ("day", Nanos::from_secs(86_400)),
            _ => return None,
        };
        Some(Self { name, length })
    }
}

/// Why a rate or a burst is not valid.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum RateError {
    /// The string is not a rate.
    Text {
        /// The string that was given.
        text: Box<str>,
        /// The fault of the string.
        problem: RateProblem,
    },
    /// The burst is zero, or above [`MAX_BURST`].
    Burst(u64),
    /// The rate and the burst are valid, but not together.
    Quota(QuotaError),
}

sentences! {
    /// The fault of a rate as it was written.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[non_exhaustive]
    pub enum RateProblem {
        NoSlash => "it has no '/'";
        Count => "the part before the '/' is not a positive number";
        Zero => "it would never allow anything";
        TooPrecise => "the number before the '/' has too many digits";
        Period
            => "the number before the unit must be at least 1, and the period below 584 years";
        Unit => "the period must end in ms, s, m, h or d, or in sec, min, hour or day";
        TooFast => "the largest rate is 1000000/ms";
    }
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { text, problem } => write!(
                f,
                "'{text}' is not a rate: {problem} (rates are COUNT/PERIOD, like 100/s, 0.5/s, \
                 10/m, 1000/d or 100/250ms)"
            ),
            Self::Burst(0) => f.write_str("a burst of 0 allows nothing; the smallest is 1"),
            Self::Burst(burst) => {
                write!(f, "a burst of {burst} is too large; the largest is {MAX_BURST}")
            }
            Self::Quota(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RateError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Admission;
    use crate::time::Time;

    fn interval(text: &str) -> u64 {
        text.parse::<Rate>().unwrap().emission_interval.0
    }

    #[test]
    fn every_form_of_the_manual_is_understood() {
        assert_eq!(interval("100/s"), 10_000_000);
        assert_eq!(interval("5000/m"), 12_000_000);
        assert_eq!(interval("10/h"), 360_000_000_000);
        assert_eq!(interval("1000/d"), 86_400_000_000);
        assert_eq!(interval("0.5/s"), 2_000_000_000);
        assert_eq!(interval("1/10s"), 10_000_000_000);
        assert_eq!(interval("100/250ms"), 2_500_000);
        assert_eq!(interval("1000000/ms"), 1);
        for (short, long) in [
            ("1/s", &["1/sec", "1/second", "1/seconds"][..]),
            ("1/10s", &["1/10sec", "1/10seconds"]),
            ("1/m", &["1/min", "1/minute", "1/minutes"]),
            ("1/h", &["1/hr", "1/hour", "1/hours"]),
            ("1/d", &["1/day", "1/days"]),
        ] {
            for text in long {
                assert_eq!(text.parse::<Rate>(), short.parse(), "{text}");
            }
        }
    }

    #[test]
    fn the_interval_is_rounded_up() {
        assert_eq!(interval("3/s"), 333_333_334);
        assert_eq!(interval("7/s"), 142_857_143);
        assert_eq!(interval("0.7/s"), 1_428_571_429);
    }

    #[test]
    fn the_burst_is_the_count_of_the_rate_unless_given() {
        let burst =
            |rate: &str, burst| rate.parse::<Rate>().unwrap().quota(burst).unwrap().burst();
        assert_eq!(burst("100/s", None), 100);
        assert_eq!(burst("0.5/s", None), 1);
        assert_eq!(burst("2.5/s", None), 2);
        assert_eq!(burst("100/s", Some(20)), 20);
    }

    /// An idle client of `1000/h` makes 1000 requests at once, and 1000 more until the hour is
    /// over.
    #[test]
    fn any_period_has_the_burst_and_its_own_count() {
        let most = |rate: &str, burst| {
            let rate: Rate = rate.parse().unwrap();
            let quota = rate.quota(burst).unwrap();
            let most = rate.most_in_a_period(quota.burst());
            format!("{most} in any {}", rate.period())
        };
        assert_eq!(most("1000/h", None), "2000 in any hour");
        assert_eq!(most("100/s", Some(20)), "120 in any second");
        assert_eq!(most("2.9/10s", Some(1)), "3 in any 10 seconds");
        assert_eq!(most("0.5/s", None), "1 in any second");

        let quota = "1000/h".parse::<Rate>().unwrap().quota(None).unwrap();
        let (begin, mut tat, mut allowed) = (Time(1), Time::ZERO, 0);
        let mut now = begin;
        while now <= begin.saturating_add(Nanos::from_secs(3600)) {
            match quota.admit(tat, now, 1) {
                Admission::Conforming { tat: next } => (tat, allowed) = (next, allowed + 1),
                Admission::Early { wait } => now = now.saturating_add(wait),
                Admission::Oversize => unreachable!("one cell"),
            }
        }
        assert_eq!(allowed, 2000);
    }

    #[test]
    fn words() {
        let words = |text: &str| text.parse::<Rate>().unwrap().to_string();
        assert_eq!(words("100/s"), "100 per second");
        assert_eq!(words("0.50/s"), "0.5 per second");
        assert_eq!(words("0.05/m"), "0.05 per minute");
        assert_eq!(words("1.0/h"), "1 per hour");
        assert_eq!(words("1/10s"), "1 per 10 seconds");
        assert_eq!(words("100/250ms"), "100 per 250 milliseconds");
        assert_eq!(words("1000/d"), "1000 per day");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let problem = |text: &str| match text.parse::<Rate>() {
            Err(RateError::Text { problem, .. }) => problem,
            other => panic!("{text}: {other:?}"),
        };
        for text in ["", "100", "s"] {
            assert_eq!(problem(text), RateProblem::NoSlash, "{text}");
        }
        for text in ["/s", "-1/s", "1e3/s", "1./s", "./s", "a/s", "+1/s", "1_0/s", "١/s"] {
            assert_eq!(problem(text), RateProblem::Count, "{text}");
        }
        for text in ["0/s", "0.0/s"] {
            assert_eq!(problem(text), RateProblem::Zero, "{text}");
        }
        for text in ["1/", "1/5", "1/x", "1/mins", "1/SEC", "1/1 s", "1/s/s", "1/-5s", "1/1.5s"] {
            assert_eq!(problem(text), RateProblem::Unit, "{text}");
        }
        for text in ["1/0s", "1/99999999999999999999s", "1/999999999999d", "0.0000000001/d"] {
            assert_eq!(problem(text), RateProblem::Period, "{text}");
        }
        assert_eq!(problem("99999999999999999999/s"), RateProblem::TooPrecise);
        assert_eq!(problem("0.00000000000000000001/s"), RateProblem::TooPrecise);
        assert_eq!(problem("1000001/ms"), RateProblem::TooFast);
    }

    #[test]
    fn a_burst_has_bounds() {
        let rate: Rate = "100/s".parse().unwrap();
        assert_eq!(rate.quota(Some(0)), Err(RateError::Burst(0)));
        assert_eq!(rate.quota(Some(1 << 32)), Err(RateError::Burst(1 << 32)));
        assert!(matches!(
            "1/d".parse::<Rate>().unwrap().quota(Some(10_000)),
            Err(RateError::Quota(_))
        ));
    }
}

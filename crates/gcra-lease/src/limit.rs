//! [`SharedLimit`]: the numbers of a limit, in the units in which the store counts what is owed.

use core::fmt;
use core::time::Duration;

use crate::time::Micros;

/// An amount of debt: the time that it takes to drain, in units of 2^-k µs. k is a property of the
/// [`SharedLimit`].
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Units(pub u64);

impl Units {
    /// No debt.
    pub const ZERO: Self = Self(0);

    /// The sum. No sum of a [`SharedLimit`] comes near the end of the numbers.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, [`ZERO`](Self::ZERO) if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// How many cells may be spent, in the units of the store.
///
/// A script in the store computes with doubles, which hold whole numbers up to 2^53 exactly. A
/// double that counts microseconds since 1970 has no digits left for fractions of a cell. So the
/// record of a key is a moment in whole microseconds, and the debt at that moment, in [`Units`] of
/// 2^-k µs. The exponent k is the largest number up to 20 for which the most cells that a key may
/// owe are less than 2^50 units. A cell is rounded up to whole units, so rounding never allows
/// more.
///
/// ```
/// use core::time::Duration;
/// use gcra_lease::{SharedLimit, Units};
///
/// let limit = SharedLimit::new(Duration::from_millis(10), 20)?; // 100/s, burst 20
/// assert_eq!(limit.fraction_bits(), 20);
/// assert_eq!(limit.cells(1), Units(10_000 << 20));
/// # Ok::<(), gcra_lease::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SharedLimit {
    interval: Duration,
    burst: u32,
    ceiling: u32,
    cell: Units,
    fraction_bits: u32,
    longest_validity: Micros,
    window: Option<Window>,
}

/// A window of a calendar: when it begins and ends, in seconds since 1970.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Window {
    /// Its first second.
    pub begin: u64,
    /// The first second of the next one.
    pub end: u64,
}

const MOST_FRACTION_BITS: u32 = 20;
/// The most cells that a key may owe are less than this.
const CEILING_UNITS: u128 = 1 << 50;
/// No lease is valid for more than so many µs.
const MOST_VALIDITY: u64 = 1 << 30;

impl SharedLimit {
    /// How long a lease is valid at most, if [`with_longest_validity`] does not say otherwise.
    ///
    /// [`with_longest_validity`]: Self::with_longest_validity
    pub const LONGEST_VALIDITY: Micros = Micros::from_millis(2_000);

    /// One cell every `emission_interval`, and at most `burst` of them at once.
    ///
    /// # Errors
    ///
    /// One of the two is zero, or a full burst takes 2^50 µs (35 years) or longer to drain.
    pub fn new(emission_interval: Duration, burst: u32) -> Result<Self, LimitError> {
        if emission_interval.is_zero() || burst == 0 {
            return Err(LimitError::Zero);
        }
        let units = units_of_cell(emission_interval, burst).ok_or(LimitError::DrainTooLong)?;
        let (fraction_bits, cell) = units;
        Ok(Self {
            interval: emission_interval,
            burst,
            ceiling: burst,
            cell,
            fraction_bits,
            longest_validity: Self::LONGEST_VALIDITY,
            window: None,
        })
    }

    /// The limit that has these [numbers](Self::numbers). `None`: no limit has them.
    pub fn of_numbers(numbers: [u64; 5]) -> Option<Self> {
        let [burst, cell, bits, longest, ceiling] = numbers;
        let [burst, ceiling, fraction_bits] =
            [burst, ceiling, bits].map(|number| u32::try_from(number).ok());
        let (burst, ceiling, fraction_bits) = (burst?, ceiling?, fraction_bits?);
        let most = u128::from(cell) * u128::from(ceiling);
        let is_one = burst > 0
            && burst <= ceiling
            && cell > 0
            && fraction_bits <= MOST_FRACTION_BITS
            && most < CEILING_UNITS
            && longest <= MOST_VALIDITY;
        is_one.then(|| Self {
            interval: Duration::from_nanos(
                u64::try_from((u128::from(cell) * 1_000) >> fraction_bits).unwrap_or(u64::MAX),
            ),
            burst,
            ceiling,
            cell: Units(cell),
            fraction_bits,
            longest_validity: Micros(longest),
            window: None,
        })
    }

    /// The numbers by which the records of one key differ: the burst, a cell in units, the
    /// [fraction bits](Self::fraction_bits), the [longest validity](Self::longest_validity) in µs,
    /// and the [ceiling](Self::ceiling). For a [count](Self::count), 0 and its window.
    pub fn numbers(&self) -> [u64; 5] {
        if let Some(Window { begin, end }) = self.window {
            // No burst is 0.
            return [0, begin, end, 0, 0];
        }
        let [burst, bits, ceiling] = [self.burst, self.fraction_bits, self.ceiling].map(u64::from);
        [burst, self.cell.0, bits, self.longest_validity.0, ceiling]
    }

    /// At most so many cells in one window of a calendar, such as a day from midnight to midnight.
    /// Nothing drains in it: a unit of debt is a cell. Each window has a record of its own.
    ///
    /// It can be [charged at once](crate::Charge) only, because cells that were lent and not used
    /// would be lost until the window ends.
    ///
    /// # Errors
    ///
    /// The count is zero, or the window does not end after it begins.
    pub const fn count(most: u32, window: Window) -> Result<Self, LimitError> {
        if most == 0 || window.end <= window.begin {
            return Err(LimitError::Zero);
        }
        Ok(Self {
            interval: Duration::ZERO,
            burst: most,
            // The cost of a request is counted, whatever is allowed.
            ceiling: u32::MAX,
            cell: Units(1),
            fraction_bits: 0,
            longest_validity: Micros::ZERO,
            window: Some(window),
        })
    }

    /// The window in which it counts, if it is a [count](Self::count).
    pub const fn window(&self) -> Option<Window> {
        self.window
    }

    /// The same limit, for keys that penalties may bring to owe up to this many cells. Fewer than
    /// the burst mean the burst, which is also the ceiling of a [new](Self::new) limit.
    ///
    /// As much is allowed as before: a cell is lent only while the debt and the lent cells are
    /// together within the burst. Store and hosts must agree on the ceiling. A
    /// [count](Self::count) has no ceiling, and stays as it is.
    ///
    /// # Errors
    ///
    /// So many cells take 2^50 µs (35 years) or longer to drain.
    pub fn with_most_owed(self, cells: u32) -> Result<Self, LimitError> {
        if self.window.is_some() {
            return Ok(self);
        }
        let ceiling = cells.max(self.burst);
        let units = units_of_cell(self.interval, ceiling).ok_or(LimitError::DebtTooLong)?;
        let (fraction_bits, cell) = units;
        Ok(Self { ceiling, cell, fraction_bits, ..self })
    }

    /// The same limit, with leases that are valid for at most `longest`, 2^30 µs (18 minutes) at
    /// most. Store and hosts must agree on it.
    #[must_use]
    pub const fn with_longest_validity(self, longest: Micros) -> Self {
        let longest_validity =
            if longest.0 < MOST_VALIDITY { longest } else { Micros(MOST_VALIDITY) };
        Self { longest_validity, ..self }
    }

    /// The most cells at once.
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// The most cells that a key may owe, those of penalties included; the burst at least.
    pub const fn ceiling(&self) -> u32 {
        self.ceiling
    }

    /// k: a unit of debt is 2^-k µs.
    pub const fn fraction_bits(&self) -> u32 {
        self.fraction_bits
    }

    /// How long a lease is valid at most.
    pub const fn longest_validity(&self) -> Micros {
        self.longest_validity
    }

    /// The units of this number of cells.
    pub const fn cells(&self, count: u32) -> Units {
        Units(self.cell.0.saturating_mul(count as u64))
    }

    /// How many whole cells this debt is, rounded down.
    pub fn whole_cells(&self, units: Units) -> u32 {
        u32::try_from(units.0 / self.cell.0).unwrap_or(u32::MAX)
    }

    /// How many cells this debt is, rounded up.
    pub(crate) fn cells_up(&self, units: Units) -> u32 {
        u32::try_from(units.0.div_ceil(self.cell.0)).unwrap_or(u32::MAX)
    }

    /// The debt that drains in this time. Of a [count](Self::count), nothing.
    pub fn drained_in(&self, time: Micros) -> Units {
        if self.window.is_some() {
            return Units::ZERO;
        }
        Units(u64::try_from(u128::from(time.0) << self.fraction_bits).unwrap_or(u64::MAX))
    }

    /// How long this debt takes to drain, rounded up. Zero for a [count](Self::count), which
    /// begins again with its next window.
    pub const fn time_to_drain(&self, units: Units) -> Micros {
        if self.window.is_some() {
            return Micros::ZERO;
        }
        Micros(units.0.div_ceil(1 << self.fraction_bits))
    }

    /// How many ns a debt takes to drain, rounded up.
    pub(crate) fn ns_up(&self, units: Units) -> u64 {
        let ns = (u128::from(units.0) * 1_000).div_ceil(1 << self.fraction_bits);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The same, rounded down.
    pub(crate) fn ns_down(&self, units: Units) -> u64 {
        let ns = (u128::from(units.0) * 1_000) >> self.fraction_bits;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// The most that a record owes: the ceiling and the longest validity. Charges beyond that are
    /// forgiven.
    pub fn most_owed(&self) -> Units {
        self.cells(self.ceiling).saturating_add(self.drained_in(self.longest_validity))
    }

    /// The most that a record can owe because of cells that were lent: a full burst and the
    /// longest validity. An unknown debt is at most this.
    pub fn most_owed_by_lending(&self) -> Units {
        self.cells(self.burst).saturating_add(self.drained_in(self.longest_validity))
    }

    /// How long the store keeps a record after it was changed (`PX`), at least. By then every
    /// lease has expired. All cells that were lent, or that hosts with leases charged, have
    /// drained. 10 s are added, so that a clock that is corrected does not end a record. For a
    /// [count](Self::count), an hour. [`Record::kept_for`](crate::Record::kept_for) knows more.
    pub fn keeps_record(&self) -> Micros {
        if self.window.is_some() {
            return Micros::from_millis(3_600_000);
        }
        self.time_to_drain(self.most_owed())
            .saturating_add(self.longest_validity)
            .saturating_add(Self::SPARE)
    }

    /// For how long a record is kept after it is of no use any more.
    pub(crate) const SPARE: Micros = Micros::from_millis(10_000);

    /// The longest time that a request can wait for its cells: 2^52 units, which are 71 minutes
    /// for the largest number of fraction bits. [`with_most_owed`](Self::with_most_owed) makes it
    /// longer than what so many cells take to drain.
    pub const fn longest_delay(&self) -> Micros {
        Micros((1 << 52) >> self.fraction_bits)
    }
}

/// The number of fraction bits and a cell in those units, for a limit under which at most
/// `ceiling` cells are owed. `None`: so many take too long to drain.
fn units_of_cell(emission_interval: Duration, ceiling: u32) -> Option<(u32, Units)> {
    (0..=MOST_FRACTION_BITS).rev().find_map(|bits| {
        let cell = emission_interval.as_nanos().checked_mul(1 << bits)?.div_ceil(1_000);
        let all = cell.checked_mul(u128::from(ceiling))?;
        let cell = u64::try_from(cell).ok()?;
        (all < CEILING_UNITS).then_some((bits, Units(cell)))
    })
}

/// Why numbers are not a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum LimitError {
    /// The emission interval or the burst is zero.
    Zero,
    /// A full burst takes 2^50 µs or longer to drain.
    DrainTooLong,
    /// The most cells that may be owed take 2^50 µs or longer to drain.
    DebtTooLong,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "the emission interval and the burst of a limit must be above zero",
            Self::DrainTooLong => "a full burst must drain in less than 2^50 µs (35 years)",
            Self::DebtTooLong => {
                "the most cells that a key may owe must drain in less than 2^50 µs (35 years)"
            }
        })
    }
}

impl core::error::Error for LimitError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_exact_from_ten_million_a_second_to_one_a_year() {
        let fast = SharedLimit::new(Duration::from_nanos(100), 1_000_000).unwrap();
        assert_eq!(fast.fraction_bits(), 20);
        let error = fast.cells(1_000_000).0 as f64 / f64::from(1 << 20) / 100_000.0 - 1.0;
        assert!((0.0..1e-5).contains(&error), "{error}");

        let slow = SharedLimit::new(Duration::from_secs(365 * 86_400), 4).unwrap();
        assert_eq!(slow.fraction_bits(), 3);
        assert_eq!(slow.cells(1).0, 365 * 86_400 * 1_000_000 * 8);
    }

    #[test]
    fn the_fraction_is_as_long_as_a_burst_allows() {
        for (interval_us, burst) in [(1, 1), (1_000, 200), (1_000_000, 1_073), (1_000_000, 1_074)]
        {
            let limit = SharedLimit::new(Duration::from_micros(interval_us), burst).unwrap();
            let bits = limit.fraction_bits();
            let units = |bits: u32| (u128::from(interval_us) * u128::from(burst)) << bits;
            assert!(units(bits) < 1 << 50);
            assert!(bits == 20 || units(bits + 1) >= 1 << 50, "{interval_us} {burst} {bits}");
        }
    }

    #[test]
    fn a_ceiling_is_not_below_the_burst_and_takes_bits_of_the_fraction() {
        let limit = SharedLimit::new(Duration::from_secs(1), 1_000).unwrap();
        assert_eq!((limit.ceiling(), limit.fraction_bits()), (1_000, 20));
        assert_eq!(limit.with_most_owed(1_000), Ok(limit));
        assert_eq!(limit.with_most_owed(7), Ok(limit), "the burst is owed in any case");
        assert_eq!(limit.most_owed(), limit.most_owed_by_lending());

        let capped = limit.with_most_owed(4_000).unwrap();
        assert_eq!((capped.ceiling(), capped.burst(), capped.fraction_bits()), (4_000, 1_000, 18));
        let seconds = |units| capped.time_to_drain(units).get() / 1_000_000;
        assert_eq!(seconds(capped.most_owed()), 4_002);
        assert_eq!(seconds(capped.most_owed_by_lending()), 1_002);
        assert_eq!(capped.keeps_record(), Micros::from_millis(4_014_000));
        assert_eq!(capped.with_most_owed(0), Ok(limit), "and can be taken away again");
        assert_eq!(limit.with_most_owed(u32::MAX), Err(LimitError::DebtTooLong));
    }

    #[test]
    fn what_is_not_a_limit_is_an_error() {
        assert_eq!(SharedLimit::new(Duration::ZERO, 1), Err(LimitError::Zero));
        assert_eq!(SharedLimit::new(Duration::from_secs(1), 0), Err(LimitError::Zero));
        let year = Duration::from_secs(365 * 86_400);
        assert_eq!(SharedLimit::new(year, 40), Err(LimitError::DrainTooLong));
        assert_eq!(SharedLimit::new(Duration::MAX, u32::MAX), Err(LimitError::DrainTooLong));
    }
}

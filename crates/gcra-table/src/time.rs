//! Times: [`Nanos`], how long something takes; [`Time`], a moment of a table's clock; and
//! [`Reading`], the moment that decisions are made at.

use core::fmt;
use core::ops::Add;

/// A length of time, in nanoseconds.
///
/// ```
/// use gcra_table::Nanos;
///
/// assert_eq!(Nanos::from_millis(10) + Nanos(5), Nanos(10_000_005));
/// assert_eq!(Nanos(25).div_ceil(Nanos(10)), 3);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// The longest time that can be written: 584 years.
    pub const MAX: Self = Self(u64::MAX);

    /// This number of milliseconds, [`MAX`](Self::MAX) at most.
    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(milliseconds.saturating_mul(1_000_000))
    }

    /// This number of seconds, [`MAX`](Self::MAX) at most.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// The number of nanoseconds.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, [`MAX`](Self::MAX) at most.
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The rest when `other` is taken away, [`ZERO`](Self::ZERO) at least.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The product, [`MAX`](Self::MAX) at most.
    #[inline]
    #[must_use]
    pub const fn saturating_mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// How many times `other` fits into this, rounded up: a debt divided by an emission interval
    /// is a number of cells.
    ///
    /// # Panics
    ///
    /// `other` is [`ZERO`](Self::ZERO).
    #[inline]
    pub const fn div_ceil(self, other: Self) -> u64 {
        self.0.div_ceil(other.0)
    }

    /// The time in milliseconds, rounded up, so that waiting for it is long enough.
    pub const fn millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The time in seconds, rounded up.
    pub const fn secs_ceil(self) -> u64 {
        // In fewer steps than `div_ceil`, which works out the rest.
        self.0.saturating_sub(1) / 1_000_000_000 + if self.0 > 0 { 1 } else { 0 }
    }
}

impl Add for Nanos {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl From<Nanos> for core::time::Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

/// A moment, by the clock of a table: what the clock says when it is read, or a theoretical
/// arrival time (TAT).
///
/// It is written as the nanoseconds since the table's time began, which continues across reboots.
/// Moments of two tables cannot be compared, unless one is the
/// [successor](crate::Table::successor) of the other.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Time(pub u64);

impl Time {
    /// When the table's time began. As a TAT it means "owes nothing".
    pub const ZERO: Self = Self(0);

    /// How long after `earlier` this is; [`Nanos::ZERO`] if it is not after it. For a TAT and the
    /// present moment, this is what the key owes.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment that is this much later.
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, later: Nanos) -> Self {
        Self(self.0.saturating_add(later.0))
    }

    /// The moment that is this much earlier, [`ZERO`](Self::ZERO) at least.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, earlier: Nanos) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A reading of a table's clock, by which one decision is made, or several in a row.
///
/// Reading the clock costs as much as a decision, so a caller that has several cells to decide
/// about reads it once ([`Table::reading`](crate::Table::reading)) and passes the same reading to
/// each decision. Most decisions leave it as it is. Two must not be made by an old reading: the
/// one that opens a bucket, and the one that finds a bucket damaged. For those the table reads the
/// clock again and advances the caller's reading, so that what is decided next is never measured
/// with an older time than what was decided before. A reading never goes back.
///
/// After a decision, [`time`](Self::time) is the moment at which it was made.
#[derive(Debug, Eq, PartialEq)]
#[repr(transparent)]
pub struct Reading(Time);

impl Reading {
    /// A reading that says `time`.
    #[inline]
    pub const fn at(time: Time) -> Self {
        Self(time)
    }

    /// The time that the clock said.
    #[inline]
    pub const fn time(&self) -> Time {
        self.0
    }

    /// Advances the reading to `time`, unless it is later already.
    #[inline]
    pub fn advance_to(&mut self, time: Time) {
        self.0 = self.0.max(time);
    }
}

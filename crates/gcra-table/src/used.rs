//! The content of the bucket of a calendar window, in the place of a TAT: when it may be
//! forgotten, and how many cells were counted.

// ADR 42: A calendar window is a bucket of its own.

use crate::time::{Nanos, Time};

/// How long after its end the count of a window is kept, at least.
pub const KEPT: Nanos = Nanos::from_secs(3600);

/// The bits of the count. One more than a count can need, so that nothing is carried out of them.
pub(crate) const COUNT: u64 = (1 << 33) - 1;
const SIZE_SHIFT: u32 = 33;
const SIZES: u64 = 0x1f;
/// The bits below the expiry.
const BELOW: u64 = (1 << 38) - 1;

/// Cells that were counted in a window, as a slot holds them.
///
/// | bits | |
/// |---|---|
/// | 59 to 38 | the expiry: a moment of the table's time that is a multiple of 2^38 ns |
/// | 37 to 33 | the size of the limit: the binary logarithm of how many it allows |
/// | 32 to 0 | the count |
///
/// Taken as a TAT, which everything but the counting itself does, it is live until the expiry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Used(u64);

impl Used {
    pub(crate) const fn in_bucket(value: Time) -> Self {
        Self(value.0)
    }

    pub(crate) const fn to_value(self) -> Time {
        Time(self.0)
    }

    /// No cells in a window that ends at `end`, under a limit that allows `most`.
    pub(crate) const fn none(end: Time, most: u32) -> Self {
        // The first multiple after the moment up to which the count is kept.
        let expiry = (end.saturating_add(KEPT).0 | BELOW).saturating_add(1);
        // 2^size <= most < 2^(size + 1)
        let size = if most == 0 { 0 } else { most.ilog2() };
        Self(expiry | (size as u64) << SIZE_SHIFT)
    }

    pub(crate) const fn cells(self) -> u64 {
        self.0 & COUNT
    }

    /// The same with another count.
    pub(crate) const fn with_cells(self, cells: u64) -> Self {
        Self(self.0 & !COUNT | cells & COUNT)
    }

    /// With the later expiry of both, so that the count is kept long enough by any reading of the
    /// wall clock. And with the smaller limit of both, because corrections count without a limit.
    /// The count is that of `self`.
    pub(crate) const fn joined_with(self, other: Self) -> Self {
        if self.0 & !COUNT == other.0 & !COUNT {
            return self;
        }
        let (one, two) = (self.0 & !BELOW, other.0 & !BELOW);
        let expiry = if one > two { one } else { two };
        let (one, two) = (self.0 >> SIZE_SHIFT & SIZES, other.0 >> SIZE_SHIFT & SIZES);
        // A bucket that is not there yet has no limit.
        let size = if one < two && self.0 != 0 { one } else { two };
        Self(expiry | size << SIZE_SHIFT | self.cells())
    }

    /// Which part of the limit was counted, if `whole` is the smallest limit of its size. Zero
    /// once the window is over: then the count is kept only in case the wall clock is set back.
    pub(crate) fn part(self, whole: u128, now: Time) -> u128 {
        let expiry = Time(self.0 & !BELOW);
        if expiry.saturating_since(now) <= KEPT {
            return 0;
        }
        let size = self.0 >> SIZE_SHIFT & SIZES;
        (u128::from(self.cells()) * whole) >> size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expiry_is_after_the_end_and_leaves_space_for_the_count() {
        for end in [0, 1, BELOW, BELOW + 1, 1 << 50, 1 << 59] {
            let none = Used::none(Time(end), u32::MAX);
            assert_eq!(none.cells(), 0);
            let expiry = none.0 & !BELOW;
            assert!(expiry > end + KEPT.0 && expiry <= end + KEPT.0 + BELOW + 1);
            let full = none.with_cells(u32::MAX.into());
            assert_eq!(full.cells(), u32::MAX.into());
            // It is a TAT: bits 60 to 63 are free.
            assert_eq!((full.0 >> 60, full.0 & !BELOW), (0, expiry));
        }
    }

    #[test]
    fn of_two_limits_the_smaller_counts_and_of_two_expiries_the_later() {
        let (early, late) = (Time(1), Time(1 << 50));
        let counted = Used::none(early, 100).with_cells(7);
        let corrected = counted.joined_with(Used::none(late, u32::MAX));
        assert_eq!(corrected, Used::none(late, 100).with_cells(7));
        assert_eq!(corrected.joined_with(Used::none(early, 100)), corrected);
        let lower = corrected.joined_with(Used::none(early, 3));
        assert_eq!(lower, Used::none(late, 3).with_cells(7));
        assert_eq!(Used(0).joined_with(Used::none(early, 100)), Used::none(early, 100));
    }

    #[test]
    fn a_part_is_that_of_the_limit_until_the_window_is_over() {
        let end = Time(1 << 50);
        for most in [1, 3, 4, 5, 100, 10_000, u32::MAX] {
            let part = |cells: u32, now| {
                Used::none(end, most).with_cells(cells.into()).part(1 << 80, now)
            };
            let whole = part(most, Time::ZERO);
            assert!((1 << 80..2 << 80).contains(&whole), "{most}");
            assert!(
                part(most, Time(end.0 - 1)) == whole && part(most / 2, Time::ZERO) <= whole / 2
            );
            assert_eq!(part(most, end.saturating_add(Nanos(BELOW + 1))), 0);
        }
    }
}

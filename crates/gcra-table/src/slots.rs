//! How many slots a table has.

use core::fmt;

/// A number of slots: a power of two from 8 to 2^30 (16 bytes each).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Slots(u32);

impl Slots {
    /// 2^20 slots, 16 MiB: enough for half a million keys that are active within one drain time.
    pub const DEFAULT: Self = Self(1 << 20);
    /// The smallest number of slots.
    pub const MIN: u64 = 8;

    /// The largest number of slots.
    pub const MAX: u64 = 1 << 30;

    /// At least `slots` slots: the next power of two.
    ///
    /// # Errors
    ///
    /// The number is below 8 or above 2^30.
    pub fn new(slots: u64) -> Result<Self, SlotsError> {
        if !(Self::MIN..=Self::MAX).contains(&slots) {
            return Err(SlotsError(slots));
        }
        u32::try_from(slots.next_power_of_two()).map(Self).map_err(|_| SlotsError(slots))
    }

    /// Exactly this number, as a file says it, if a table can have it.
    pub(crate) fn exactly(slots: u64) -> Option<Self> {
        Self::new(slots).ok().filter(|rounded| u64::from(rounded.0) == slots)
    }

    /// The number of slots.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The bytes that these slots take.
    pub const fn bytes(self) -> u64 {
        self.0 as u64 * 16
    }
}

/// A number of slots that no table can have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlotsError(u64);

impl fmt::Display for SlotsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a table can have from {} to {} slots, and not {}",
            Slots::MIN,
            Slots::MAX,
            self.0
        )
    }
}

impl core::error::Error for SlotsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_rounded_up_and_bounded() {
        assert_eq!(Slots::new(8).unwrap().get(), 8);
        assert_eq!(Slots::new(9).unwrap().get(), 16);
        assert_eq!(Slots::new(1_000_000).unwrap(), Slots::DEFAULT);
        assert_eq!(Slots::new(1 << 30).unwrap().bytes(), 16 << 30);
        for slots in [0, 7, (1 << 30) + 1, u64::MAX] {
            assert_eq!(Slots::new(slots), Err(SlotsError(slots)));
        }
    }
}

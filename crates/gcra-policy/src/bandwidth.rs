//! How many bytes per second a client gets, by its debt.

use std::fmt;

use gcra_table::{Nanos, Quota};

/// The units of sizes, as HAProxy has them.
const UNITS: [(char, u32); 3] = [('k', 1 << 10), ('m', 1 << 20), ('g', 1 << 30)];

/// The most bytes per second.
const MAX: u32 = 1 << 30;

/// The bandwidth of each response of a client that is allowed, in bytes per second.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bandwidth {
    /// Where nothing is owed. At least `least`.
    pub full: u32,
    /// Where the burst is used up. At least 1.
    pub least: u32,
}

impl Bandwidth {
    /// The bandwidth of a client that owes this much under a limit: on the line from `full` to
    /// `least`, rounded down.
    pub fn at(self, owed: Nanos, quota: Quota) -> u32 {
        let all = u128::from(quota.drain_time().0.max(1));
        let free = all.saturating_sub(owed.0.into());
        let more = u128::from(self.full.saturating_sub(self.least)) * free / all;
        self.least.saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
    }

    /// "each response gets 10m bytes per second, down to 50k when the burst is used up".
    pub fn in_words(self) -> String {
        let (full, least) = (Size(self.full), Size(self.least));
        let bytes = if self.full == 1 { "byte" } else { "bytes" };
        if self.full == self.least {
            return format!("each response gets {full} {bytes} per second");
        }
        format!(
            "each response gets {full} {bytes} per second, down to {least} as the burst is used"
        )
    }
}

/// A size as HAProxy writes it.
pub(crate) struct Size(pub(crate) u32);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, size): &&(char, u32)| self.0.is_multiple_of(*size);
        match UNITS.iter().rev().find(whole) {
            Some((unit, size)) => write!(f, "{}{unit}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

/// `512000`, `500k` or `10m`; `None` if it is not a size from 1 to 1g.
pub(crate) fn size(text: &str) -> Option<u32> {
    let lower = text.to_ascii_lowercase();
    let with_unit = UNITS.iter().find_map(|(unit, size)| Some((lower.strip_suffix(*unit)?, size)));
    let (count, unit) = with_unit.unwrap_or((&lower, &1));
    // A number can have a sign for `parse`.
    let count = Some(count).filter(|count| count.bytes().all(|byte| byte.is_ascii_digit()));
    let size = count?.parse::<u32>().ok()?.checked_mul(*unit)?;
    (1..=MAX).contains(&size).then_some(size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The formula, with fractions.
        #[test]
        fn it_is_on_the_line_from_full_to_least(
            (least, full) in (1..=MAX).prop_flat_map(|least| (Just(least), least..=MAX)),
            interval in 1_u64..10_000_000_000,
            burst in 1_u32..100_000,
            part in 0.0..1.5_f64,
        ) {
            let quota = Quota::new(Nanos(interval), burst).unwrap();
            let bandwidth = Bandwidth { full, least };
            let drain = quota.drain_time().0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                reason = "part of a time"
            )]
            let owed = (drain as f64 * part) as u64;
            let got = bandwidth.at(Nanos(owed), quota);
            #[expect(clippy::cast_precision_loss, reason = "as exact as needed")]
            let share = (owed as f64 / drain as f64).min(1.0);
            let naive = f64::from(full) - f64::from(full - least) * share;
            prop_assert!((f64::from(got) - naive).abs() <= 2.0, "{} and {}", got, naive);
            prop_assert!((least..=full).contains(&got));
            // A client that owes more never gets more.
            prop_assert!(bandwidth.at(Nanos(owed + 1), quota) <= got);
            prop_assert_eq!(bandwidth.at(Nanos::ZERO, quota), full);
            for most in [Nanos(drain), Nanos::MAX] {
                prop_assert_eq!(bandwidth.at(most, quota), least);
            }
        }

        #[test]
        fn a_size_reads_as_it_is_written(bytes in 1..=MAX, shift in 0_u32..31) {
            let bytes = (bytes >> shift << shift).max(1);
            let written = Size(bytes).to_string();
            prop_assert_eq!(size(&written), Some(bytes));
            prop_assert_eq!(size(&written.to_uppercase()), Some(bytes));
            prop_assert_eq!(size(&bytes.to_string()), Some(bytes));
        }
    }

    #[test]
    fn sizes_are_those_of_haproxy() {
        for (text, bytes) in
            [("1", 1), ("50k", 51_200), ("10M", 10_485_760), ("1g", MAX), ("1048576k", MAX)]
        {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        let wrong =
            ["", "0", "0k", "k", "+1", "-1", "1.5m", "10 m", "10mb", "2g", "1073741825", "5000m"];
        for text in wrong {
            assert_eq!(size(text), None, "{text}");
        }
    }
}

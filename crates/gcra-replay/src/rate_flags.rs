//! The numbers of a quota as people write them: `--rate` and `--burst`.

use std::fmt;

use gcra_policy::rate_words::rate_of;
use gcra_table::{Quota, Rate};

/// A rate and a burst as they can be typed. [`Display`](fmt::Display) writes the flags.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RateFlags {
    text: String,
    pub(crate) rate: Rate,
    pub(crate) burst: u64,
}

impl RateFlags {
    /// The flags that give this quota; `None` if no simple rate does.
    pub(crate) fn of(quota: Quota) -> Option<Self> {
        let (text, rate) = rate_of(quota)?;
        Some(Self { text, rate, burst: quota.burst().into() })
    }
}

impl fmt::Display for RateFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, burst, rate: _ } = self;
        write!(f, "--rate {text} --burst {burst}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_written_as_the_flags_that_give_it() {
        for (rate, burst, flags) in [
            ("100/s", 20, "--rate 100/s --burst 20"),
            ("3/s", 3, "--rate 3/s --burst 3"),
            ("5/m", 3, "--rate 5/m --burst 3"),
            ("10/h", 10, "--rate 10/h --burst 10"),
            ("1000/d", 1, "--rate 1000/d --burst 1"),
            ("1/10s", 1, "--rate 6/m --burst 1"),
            ("1/7s", 1, "--rate 1/7s --burst 1"),
            ("1/3d", 1, "--rate 1/3d --burst 1"),
            ("0.5/s", 1, "--rate 30/m --burst 1"),
            ("1000000/ms", 1, "--rate 1000000000/s --burst 1"),
        ] {
            let quota = rate.parse::<Rate>().unwrap().quota(Some(burst)).unwrap();
            assert_eq!(RateFlags::of(quota).unwrap().to_string(), flags, "{rate}");
        }
    }
}

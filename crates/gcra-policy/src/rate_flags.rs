//! The `--rate` and `--burst` of agents without a file, found again from a table's register.

use std::fmt;

use gcra_table::{Quota, Rate, Table};

use crate::policies::Policies;
use crate::rate_words::rate_of;
use crate::sharing::{Sharing, WithoutStore};

/// A rate and a burst as they can be typed. [`Display`](fmt::Display) writes the flags.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RateFlags {
    text: String,
    pub rate: Rate,
    pub burst: u64,
    /// With `--store`: how the limit is shared.
    pub shared: Option<Sharing>,
}

impl RateFlags {
    /// The flags that give this quota; `None` if no simple rate does.
    pub fn of(quota: Quota) -> Option<Self> {
        let (text, rate) = rate_of(quota)?;
        Some(Self { text, rate, burst: quota.burst().into(), shared: None })
    }

    /// The same flags without a store, and with one in each way that there are flags for.
    pub fn shared_or_not(&self) -> impl Iterator<Item = Self> {
        let ways = [None].into_iter().chain(Sharing::all_of_flags().map(Some));
        ways.map(|shared| Self { shared, ..self.clone() })
    }

    /// Those of the agents that use a table now; `None` if they have a file, or not all of them
    /// have the same limits, or it is not known. `policies` are those of an agent with these
    /// flags: the agents may have `--rate deny` now, or a `--key`. Which store they have is not
    /// known.
    pub fn of_agents(
        table: &Table,
        policies: impl Fn(&Self) -> Result<Policies, String>,
    ) -> Option<Self> {
        let mut profiles = table.processes().into_iter().filter_map(|process| process.profile);
        let first = profiles.next().filter(|profile| !profile.has_file)?;
        if !profiles.all(|other| !other.has_file && other.limits == first.limits) {
            return None;
        }
        Self::latest(table)?
            .shared_or_not()
            .find(|flags| policies(flags).is_ok_and(|ours| ours.limits_digest == first.limits))
    }

    /// The numbers that an agent without a file had last, whatever its other flags are.
    pub fn latest(table: &Table) -> Option<Self> {
        let by_flags = table.registered().into_iter();
        let by_flags = by_flags.filter(|known| known.limit == 0 && !known.is_override);
        Self::of(by_flags.max_by_key(|known| known.since)?.quota)
    }
}

impl fmt::Display for RateFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, burst, rate: _, shared } = self;
        write!(f, "--rate {text} --burst {burst}")?;
        match shared {
            None => Ok(()),
            Some(Sharing { without_store: WithoutStore::Share, .. }) => {
                f.write_str(" --store URL")
            }
            Some(Sharing { without_store, .. }) => {
                write!(f, " --store URL --without-store {}", without_store.word())
            }
        }
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

//! How many requests HAProxy may let pass without asking, and what is kept in reserve for them.

use std::ops::RangeInclusive;
use std::time::Duration;

use gcra_table::{MAX_BURST, Nanos, Quota};
use gcra_text::count::Count;

pub(crate) const PROCESSES: RangeInclusive<u64> = 1..=1_000_000;

pub(crate) const RELOADS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(365 * 86_400);

/// How many requests may pass without a question.
///
/// In any time, HAProxy lets no more requests of a key pass than agents are asked to charge in it,
/// and besides them [`unpaid`](Self::unpaid), and as many more for each process that is replaced
/// in it. So agents decide with less than the limit that is written.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Unasked {
    /// How many of a key one HAProxy process lets pass between two questions. The next one asks
    /// for all of them and itself.
    pub requests: u32,
    pub processes: u32,
    /// The shortest time from the end of a process that was replaced to the next reload, if
    /// reloads are reckoned with.
    pub reload_every: Option<Nanos>,
}

/// A limit of which something is kept in reserve.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Reserve {
    pub unasked: Unasked,
    /// The numbers of the limit as it is written.
    pub written: Quota,
}

impl Unasked {
    /// How many requests of a key may have passed that no question has paid for, in all processes.
    pub fn unpaid(self) -> u64 {
        u64::from(self.requests) * u64::from(self.processes)
    }

    /// The same after a question that was charged this many cells, with processes that were
    /// replaced and live on. If it was charged for all that had passed in its process, no more of
    /// these are unpaid.
    pub fn unpaid_after(self, charged: u32) -> u64 {
        let has_paid = charged > self.requests;
        self.reserve() - if has_paid { u64::from(self.requests) } else { 0 }
    }

    /// How many cells are kept in reserve. A time in which a process is replaced has what both
    /// leave unpaid; of all further ones in that time, a lower rate takes care.
    pub fn reserve(self) -> u64 {
        self.unpaid().saturating_mul(if self.reload_every.is_some() { 2 } else { 1 })
    }

    /// How many unpaid requests HAProxy may forget in each `reload_every`. Each of several
    /// processes also forgets a client that is silent there for as long, and goes on elsewhere.
    /// (Of one process that is harmless: the client owes nothing by then.)
    pub(crate) fn forgotten(self) -> u64 {
        self.unpaid().saturating_mul(if self.processes > 1 { 2 } else { 1 })
    }

    /// The most that a question costs.
    pub fn most_cost(self) -> u64 {
        u64::from(self.requests) + 1
    }

    /// The smallest burst of a limit with this reserve, of which a question can still be paid.
    pub(crate) fn least_burst(self) -> u64 {
        self.reserve().saturating_add(self.most_cost())
    }

    /// The quota that agents decide with, if this is the limit that is written.
    pub(crate) fn left_of(self, written: Quota) -> Result<Quota, NothingLeft> {
        let too_small = NothingLeft::OfBurst;
        let left = u64::from(written.burst()).checked_sub(self.reserve()).ok_or(too_small)?;
        let burst = u32::try_from(left).ok().filter(|_| left >= self.most_cost());
        let burst = burst.ok_or(NothingLeft::OfBurst)?;
        let interval = written.emission_interval().0;
        let interval = match self.reload_every {
            None => interval,
            Some(Nanos(every_ns)) => {
                // In `every` as many cells less come back as are forgotten then.
                let takes = u128::from(interval) * u128::from(self.forgotten());
                let rest = u128::from(every_ns).checked_sub(takes).filter(|rest| *rest > 0);
                let rest = rest.ok_or(NothingLeft::OfRate)?;
                let longer = (u128::from(interval) * u128::from(every_ns)).div_ceil(rest);
                u64::try_from(longer).map_err(|_| NothingLeft::OfRate)?
            }
        };
        Quota::new(Nanos(interval), burst).map_err(|_| NothingLeft::OfRate)
    }

    /// The smallest burst that would do with this rate, if one does.
    pub(crate) fn least_burst_at(self, rate: Nanos) -> Option<u32> {
        let burst = u32::try_from(self.least_burst()).ok().filter(|it| *it <= MAX_BURST)?;
        let quota = Quota::new(rate, burst).ok()?;
        self.left_of(quota).is_ok().then_some(burst)
    }

    /// Of numbers of unasked requests that are less than this one, which would not do, the largest
    /// that does, with the other settings as they are; 0 if there is none.
    pub(crate) fn most_requests(self, written: Quota) -> u32 {
        let (mut does, mut does_not) = (0, self.requests);
        while does_not - does > 1 {
            let requests = does + (does_not - does) / 2;
            match (Self { requests, ..self }).left_of(written) {
                Ok(_) => does = requests,
                Err(_) => does_not = requests,
            }
        }
        does
    }

    /// "7 cells in reserve (7 for each of 2 processes)".
    pub(crate) fn reserve_in_words(self) -> String {
        let Self { requests, processes, reload_every } = self;
        let each = match (processes, reload_every) {
            (1, None) => String::new(),
            (1, Some(_)) => format!(" ({requests} before a reload, and {requests} after it)"),
            (_, None) => format!(" ({requests} for each of {processes} processes)"),
            (_, Some(_)) => format!(
                " ({requests} for each of {processes} processes before a reload, and {requests} \
                 after it)"
            ),
        };
        format!("{} in reserve{each}", Count(self.reserve(), "cell", "cells"))
    }
}

/// The part of a limit of which nothing is left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NothingLeft {
    OfBurst,
    OfRate,
}

#[cfg(test)]
mod tests {
    use gcra_table::Rate;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The sum that must hold for any number of reloads: what agents charge, what is unpaid,
        /// and what as many processes forget as can be replaced in that time.
        #[test]
        fn what_is_left_and_what_is_unpaid_are_the_limit(
            (interval, burst) in (1_u64..10_000_000_000, 1_u32..1_000),
            (requests, processes) in (1_u32..20, 1_u32..5),
            every_ns in prop::option::of(1_000_000_000_u64..1_000_000_000_000),
        ) {
            let written = Quota::new(Nanos(interval), burst).unwrap();
            let unasked = Unasked { requests, processes, reload_every: every_ns.map(Nanos) };
            let unpaid = requests * processes;
            let forgotten = if processes > 1 { 2 * unpaid } else { unpaid };
            let takes = interval.saturating_mul(forgotten.into());
            let reserve = if every_ns.is_some() { 2 * unpaid } else { unpaid };
            match unasked.left_of(written) {
                Ok(left) => {
                    prop_assert_eq!(left.burst() + reserve, burst);
                    prop_assert!(left.burst() > requests, "a question can be paid");
                    let slower = u128::from(left.emission_interval().0);
                    match every_ns {
                        None => prop_assert_eq!(slower, u128::from(interval)),
                        // 1 / slower <= 1 / interval - forgotten / every, and hardly less.
                        Some(every) => {
                            let rest = u128::from(every - takes);
                            let whole = u128::from(every) * u128::from(interval);
                            prop_assert!(slower * rest >= whole);
                            prop_assert!((slower - 1) * rest < whole);
                        }
                    }
                }
                Err(NothingLeft::OfBurst) => prop_assert!(burst < reserve + requests + 1),
                // Or it takes too long to drain.
                Err(NothingLeft::OfRate) => {
                    let rest = every_ns.unwrap().saturating_sub(takes);
                    prop_assert!(rest < every_ns.unwrap() / 100, "{rest} ns are left");
                }
            }
        }

        #[test]
        fn the_burst_and_the_count_that_a_sentence_names_are_right(
            (requests, processes) in (1_u32..20, 1_u32..5),
            (burst, reloads) in (1_u32..400, any::<bool>()),
        ) {
            let reload_every = reloads.then_some(Nanos::from_secs(86_400));
            let unasked = Unasked { requests, processes, reload_every };
            let of = |unasked: Unasked, burst: u64| {
                let quota = "1000/s".parse::<Rate>().unwrap().quota(Some(burst)).unwrap();
                unasked.left_of(quota)
            };
            let least = unasked.least_burst();
            prop_assert!(of(unasked, least).is_ok());
            prop_assert_eq!(of(unasked, least - 1), Err(NothingLeft::OfBurst));
            let suggested = unasked.least_burst_at(Nanos::from_millis(1));
            prop_assert_eq!(suggested.map(u64::from), Some(least));
            let written = "1000/s".parse::<Rate>().unwrap().quota(Some(burst.into())).unwrap();
            let with = |requests| Unasked { requests, ..unasked };
            let most = with(1_000).most_requests(written);
            prop_assert_eq!(of(with(most + 1), burst.into()), Err(NothingLeft::OfBurst));
            prop_assert!(most == 0 || of(with(most), burst.into()).is_ok());
        }
    }
}

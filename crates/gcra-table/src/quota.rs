//! GCRA: how many cells may pass, and when. Pure arithmetic on nanoseconds.

use core::fmt;
use core::num::{NonZeroU32, NonZeroU64};

/// The longest time, in nanoseconds, that a quota may take to drain: four years of 365 days.
///
/// No bucket ever owes more than this, so a TAT further in the future than this is a damaged one.
pub const MAX_DRAIN_NS: u64 = 4 * 365 * 86_400 * 1_000_000_000;

/// A limit in the terms of GCRA: one cell every emission interval, and how many may come at once.
///
/// "100 per second, up to 20 at once" lets twenty cells pass together and then one every 10 ms;
/// after a pause of any length it is twenty again, never twenty-one.
///
/// The algorithm is the virtual scheduling form of ITU-T I.371 (annex A): per key one TAT, the
/// theoretical arrival time of the next cell.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Quota {
    emission_interval_ns: NonZeroU64,
    burst: NonZeroU32,
    penalty_ns: u64,
    /// Follows from the three numbers above, as they were before [`punishing`](Self::punishing).
    salt: u64,
}

impl Quota {
    /// One cell every `emission_interval_ns`, at most `burst` of them at once.
    ///
    /// # Errors
    ///
    /// `burst` emission intervals are longer than [`MAX_DRAIN_NS`].
    pub const fn new(
        emission_interval_ns: NonZeroU64,
        burst: NonZeroU32,
    ) -> Result<Self, QuotaError> {
        match emission_interval_ns.get().checked_mul(burst.get() as u64) {
            Some(drain_ns) if drain_ns <= MAX_DRAIN_NS => Ok(Self {
                emission_interval_ns,
                burst,
                penalty_ns: 0,
                salt: salt(emission_interval_ns, burst, 0),
            }),
            _ => Err(QuotaError { emission_interval_ns, burst }),
        }
    }

    /// The same quota for keys that may owe up to `penalty_ns` more than a full burst, because
    /// they were charged for something else than cells that conformed
    /// ([`punishing`](Self::punishing)). What a key owes beyond that is forgiven when it is used.
    ///
    /// # Errors
    ///
    /// All that is longer than [`MAX_DRAIN_NS`].
    pub const fn with_penalty(self, penalty_ns: u64) -> Result<Self, QuotaError> {
        match self.drain_ns().checked_add(penalty_ns) {
            Some(most) if most <= MAX_DRAIN_NS => Ok(Self {
                penalty_ns,
                salt: salt(self.emission_interval_ns, self.burst, penalty_ns),
                ..self
            }),
            _ => Err(QuotaError {
                emission_interval_ns: self.emission_interval_ns,
                burst: self.burst,
            }),
        }
    }

    /// How much more than a full burst a key may owe, in nanoseconds.
    #[must_use]
    pub const fn penalty_ns(self) -> u64 {
        self.penalty_ns
    }

    /// The quota to charge a penalty by: of the same rate, with a burst that reaches up to the
    /// penalty's end.
    #[must_use]
    pub const fn punishing(self) -> Self {
        let more = self.penalty_ns / self.emission_interval_ns.get();
        #[expect(clippy::cast_possible_truncation, reason = "compared before")]
        let more = if more > u32::MAX as u64 { u32::MAX } else { more as u32 };
        Self { burst: self.burst.saturating_add(more), ..self }
    }

    /// What tells the buckets of this quota from those that the same keys have under other
    /// numbers.
    ///
    /// A TAT means something only together with the emission interval and the burst that led to
    /// it: a bucket that two quotas charge would be found damaged by the one with the shorter
    /// drain time, again and again, and each repair would forgive what the other one had
    /// charged. So no two quotas share a bucket.
    #[inline]
    pub(crate) const fn salt(self) -> u64 {
        self.salt
    }

    /// The TAT that a key has at least under this quota, when at `changed_ns` this quota took the
    /// place of `before`, under which the key has the TAT `tat`.
    ///
    /// What the key owed at the change counts in cells: 15 cells of a burst of 20 are 15 cells of
    /// a burst of 40. They drain at the new rate, and are never more than the new burst. All
    /// times are nanoseconds of the table's clock.
    #[must_use]
    pub const fn carry_over(self, before: Self, tat: u64, changed_ns: u64) -> u64 {
        let owed_ns = tat.saturating_sub(changed_ns);
        // A process that still has the numbers before may have charged the key since; it owed no
        // more than this then.
        let most_ns = before.most_owed_ns();
        let owed_ns = if owed_ns < most_ns { owed_ns } else { most_ns } as u128;
        // Rounded up, so that a change never forgives a part of a cell.
        let owed_ns = (owed_ns * self.emission_interval_ns.get() as u128)
            .div_ceil(before.emission_interval_ns.get() as u128);
        if owed_ns == 0 {
            return 0;
        }
        let most_ns = self.drain_ns();
        #[expect(clippy::cast_possible_truncation, reason = "compared before")]
        let owed_ns = if owed_ns < most_ns as u128 { owed_ns as u64 } else { most_ns };
        changed_ns.saturating_add(owed_ns)
    }

    /// The most that a key can owe, in nanoseconds.
    #[must_use]
    pub const fn most_owed_ns(self) -> u64 {
        self.drain_ns() + self.penalty_ns
    }

    /// The time per cell, T, in nanoseconds.
    #[must_use]
    pub const fn emission_interval_ns(self) -> u64 {
        self.emission_interval_ns.get()
    }

    /// How many cells an idle key may send at once.
    #[must_use]
    pub const fn burst(self) -> u32 {
        self.burst.get()
    }

    /// How long a full burst takes to drain, `burst * T`, in nanoseconds: the most a key can owe.
    #[must_use]
    pub const fn drain_ns(self) -> u64 {
        // `new` checked this product.
        self.cost_ns(self.burst.get())
    }

    /// The burst tolerance, τ = `(burst - 1) * T`, in nanoseconds: how early a cell may come.
    #[must_use]
    pub const fn burst_tolerance_ns(self) -> u64 {
        self.cost_ns(self.burst.get() - 1)
    }

    /// What `cells` cells add to a TAT. No more than `burst` of them are ever asked for.
    const fn cost_ns(self, cells: u32) -> u64 {
        self.emission_interval_ns.get() * cells as u64
    }

    /// Whether `cells` more cells conform at `now` for a key whose TAT is `tat`, and what comes of
    /// it.
    ///
    /// All times are nanoseconds of one clock. Zero cells always conform: that is a peek.
    #[must_use]
    #[inline]
    pub const fn admit(self, tat: u64, now: u64, cells: u32) -> Admission {
        let tat = if tat > now { tat } else { now };
        if cells == 0 {
            // Even where a penalty has made the key owe more than its burst.
            return Admission::Conforming { tat };
        }
        if cells > self.burst.get() {
            return Admission::Oversize;
        }
        let cost_ns = self.cost_ns(cells);
        // Conforming when `tat - now <= τ - (cells - 1) * T`, written without a difference that
        // could go below 0.
        let room_ns = self.drain_ns() - cost_ns;
        match (tat - now).saturating_sub(room_ns) {
            0 => Admission::Conforming { tat: tat.saturating_add(cost_ns) },
            wait_ns => Admission::Early { wait_ns },
        }
    }

    /// How many single cells would still conform at once for a key that owes `owed_ns` (its TAT
    /// minus now).
    #[must_use]
    pub const fn remaining(self, owed_ns: u64) -> u32 {
        let cells = self.drain_ns().saturating_sub(owed_ns) / self.emission_interval_ns.get();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most `burst`: `drain_ns` is `burst` intervals"
        )]
        let cells = cells as u32;
        cells
    }
}

/// A number that differs wherever the numbers of two quotas differ (or with a chance of 2^-64 does
/// not).
const fn salt(emission_interval_ns: NonZeroU64, burst: NonZeroU32, penalty_ns: u64) -> u64 {
    let salt = scramble(emission_interval_ns.get());
    scramble(scramble(salt ^ burst.get() as u64) ^ penalty_ns)
}

/// The output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators"): a permutation of all 64-bit numbers in which each bit of the input moves half of
/// the output's.
const fn scramble(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// What [`Quota::admit`] says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Admission {
    /// The cells conform; this is the TAT once they are charged.
    Conforming {
        /// Nanoseconds of the clock that `now` was read from.
        tat: u64,
    },
    /// The cells come too early. Nothing is charged.
    Early {
        /// After how many nanoseconds they would conform, if nothing else is charged until then.
        wait_ns: u64,
    },
    /// More cells than the burst: they can never conform. Nothing is charged.
    Oversize,
}

/// A quota that takes longer than [`MAX_DRAIN_NS`] to drain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QuotaError {
    emission_interval_ns: NonZeroU64,
    burst: NonZeroU32,
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = u128::from(self.emission_interval_ns.get()) * u128::from(self.burst.get())
            / (86_400 * 1_000_000_000);
        write!(
            f,
            "a burst of {} takes {days} days to drain at this rate; at most {} days can be counted, so lower \
             the burst or raise the rate",
            self.burst,
            MAX_DRAIN_NS / (86_400 * 1_000_000_000),
        )
    }
}

impl core::error::Error for QuotaError {}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// 100 per second, up to 20 at once.
    fn quota() -> Quota {
        Quota::new(NonZeroU64::new(10 * MS).unwrap(), NonZeroU32::new(20).unwrap()).unwrap()
    }

    fn conforming(admission: Admission) -> u64 {
        match admission {
            Admission::Conforming { tat } => tat,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_idle_key_has_its_burst_and_not_one_more() {
        let now = 7_000 * MS;
        let mut tat = 0;
        for _ in 0..20 {
            tat = conforming(quota().admit(tat, now, 1));
        }
        assert_eq!(tat, now + 200 * MS);
        assert_eq!(quota().admit(tat, now, 1), Admission::Early { wait_ns: 10 * MS });
        assert_eq!(quota().admit(tat, now + 10 * MS - 1, 1), Admission::Early { wait_ns: 1 });
        assert_eq!(
            quota().admit(tat, now + 10 * MS, 1),
            Admission::Conforming { tat: now + 210 * MS }
        );
    }

    #[test]
    fn quotas_with_other_numbers_have_another_salt() {
        let quota = |interval: u64, burst: u32| {
            Quota::new(NonZeroU64::new(interval).unwrap(), NonZeroU32::new(burst).unwrap())
                .unwrap()
        };
        let mut salts: Vec<_> = (1..40)
            .flat_map(|interval| (1..40).map(move |burst| quota(interval, burst)))
            .flat_map(|quota| {
                (0..4).map(move |penalty| quota.with_penalty(penalty).unwrap().salt())
            })
            .collect();
        let count = salts.len();
        salts.sort_unstable();
        salts.dedup();
        assert_eq!(salts.len(), count);
        let quota = quota(10 * MS, 20).with_penalty(MS).unwrap();
        assert_eq!(
            quota.salt(),
            quota.punishing().salt(),
            "a penalty is charged to the same bucket"
        );
    }

    #[test]
    fn a_debt_is_carried_over_in_cells() {
        let every = |interval_ms: u64, burst: u32| {
            Quota::new(NonZeroU64::new(interval_ms * MS).unwrap(), NonZeroU32::new(burst).unwrap())
                .unwrap()
        };
        let changed = 1_000 * MS;
        let owed =
            |new: Quota, cells: u64| new.carry_over(quota(), changed + cells * 10 * MS, changed);
        assert_eq!(
            owed(every(5, 40), 20),
            changed + 20 * 5 * MS,
            "a blocked key has 20 of 40 at once"
        );
        assert_eq!(owed(every(100, 20), 15), changed + 15 * 100 * MS, "15 of 20 are 15 of 20");
        assert_eq!(owed(every(10, 5), 15), changed + 5 * 10 * MS, "and never more than the burst");
        assert_eq!(owed(quota(), 15), changed + 15 * 10 * MS);
        assert_eq!(owed(quota(), 0), 0);
        assert_eq!(quota().carry_over(quota(), 0, changed), 0, "there was no bucket");
        assert_eq!(
            every(3, 40).carry_over(every(2, 40), changed + 1, changed),
            changed + 2,
            "rounded up"
        );
        let longest = Quota::new(NonZeroU64::new(MAX_DRAIN_NS).unwrap(), NonZeroU32::MIN).unwrap();
        assert_eq!(longest.carry_over(longest, u64::MAX, 0), MAX_DRAIN_NS);
        assert_eq!(longest.carry_over(every(1, 1), u64::MAX, 0), MAX_DRAIN_NS, "one cell");
        // An agent with the numbers before has gone on charging: no more than its burst was owed
        // at the change.
        assert_eq!(
            every(20, 100).carry_over(quota(), changed + 900 * MS, changed),
            changed + 20 * 20 * MS
        );
    }

    #[test]
    fn a_cost_is_charged_whole_or_not_at_all() {
        assert_eq!(quota().admit(0, 0, 20), Admission::Conforming { tat: 200 * MS });
        assert_eq!(quota().admit(1, 0, 20), Admission::Early { wait_ns: 1 });
        assert_eq!(quota().admit(0, 0, 21), Admission::Oversize);
        assert_eq!(quota().admit(0, 0, u32::MAX), Admission::Oversize);
    }

    #[test]
    fn a_peek_charges_nothing() {
        assert_eq!(quota().admit(200 * MS, 0, 0), Admission::Conforming { tat: 200 * MS });
        assert_eq!(quota().admit(0, 5, 0), Admission::Conforming { tat: 5 });
        let beyond = Admission::Conforming { tat: 900 * MS };
        assert_eq!(
            quota().admit(900 * MS, 0, 0),
            beyond,
            "owes more than its burst, by a penalty"
        );
    }

    #[test]
    fn remaining_counts_whole_cells() {
        assert_eq!(quota().remaining(0), 20);
        assert_eq!(quota().remaining(1), 19);
        assert_eq!(quota().remaining(190 * MS), 1);
        assert_eq!(quota().remaining(190 * MS + 1), 0);
        assert_eq!(quota().remaining(u64::MAX), 0);
    }

    #[test]
    fn the_longest_quota_is_four_years() {
        let year = NonZeroU64::new(365 * 86_400 * 1_000 * MS).unwrap();
        assert!(Quota::new(year, NonZeroU32::new(4).unwrap()).is_ok());
        let error = Quota::new(year, NonZeroU32::new(5).unwrap()).unwrap_err();
        assert!(error.to_string().contains("takes 1825 days"), "{error}");
        assert!(Quota::new(NonZeroU64::MAX, NonZeroU32::MAX).is_err());
    }
}

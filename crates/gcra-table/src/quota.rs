//! GCRA: how many cells may come, and when. Pure arithmetic on times.

// ADR 16: The numbers of a limit are part of its buckets' identity.
// ADR 39: A delay is what is owed beyond the burst.

use core::num::{NonZeroU32, NonZeroU64};

use crate::burst_class::Class;
use crate::sentences::sentences;
use crate::time::{Nanos, Time};

/// The longest time that a quota may take to drain, and the largest debt: four years of 365 days.
///
/// No bucket ever owes more than this, so a TAT that is further in the future is a damaged one.
pub const MAX_DRAIN: Nanos = Nanos::from_secs(4 * 365 * DAY_S);

const DAY_S: u64 = 86_400;
const DAY_NS: u64 = Nanos::from_secs(DAY_S).0;
const MOST_DAYS: u64 = MAX_DRAIN.0 / DAY_NS;

/// A rate and a burst in the terms of GCRA: one cell every emission interval, and how many may
/// come at once.
///
/// "100 per second, up to 20 at once" allows 20 cells together and then one every 10 ms. After a
/// pause of any length it is 20 again, never 21. In numbers:
///
/// ```
/// use gcra_table::{Admission, Nanos, Quota, Rate, Time};
///
/// let quota = Quota::new(Nanos::from_millis(10), 20)?;
/// assert_eq!(quota, "100/s".parse::<Rate>()?.quota(Some(20))?);
///
/// assert_eq!(quota.emission_interval(), Nanos::from_millis(10)); // T: the time for a cell
/// assert_eq!(quota.drain_time(), Nanos::from_millis(200));       // 20 * T
/// assert_eq!(quota.burst_tolerance(), Nanos::from_millis(190));  // tau = 19 * T
///
/// // An idle key sends 20 cells at once; the 21st conforms one emission interval later.
/// let now = Time(1_000_000_000);
/// let Admission::Conforming { tat } = quota.admit(Time::ZERO, now, 20) else { unreachable!() };
/// assert_eq!(tat.saturating_since(now), quota.drain_time());
/// let wait = Nanos::from_millis(10);
/// assert_eq!(quota.admit(tat, now, 1), Admission::Early { wait });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The algorithm is the virtual scheduling form of ITU-T I.371 (annex A): for each key one TAT,
/// the theoretical arrival time of its next cell. A cell *conforms* if it does not come too early
/// for that.
///
/// # How much a key may owe
///
/// A key owes the time until its TAT. By cells that conform it never owes more than the
/// drain time. A caller that wants to charge a key for something else, so that it stays denied for
/// longer, gives the quota a larger [cap on the debt](Self::with_most_owed) and charges by
/// [`up_to_cap`](Self::up_to_cap).
///
/// # Delay
///
/// A quota with a [longest delay](Self::with_max_delay) also admits cells that come too early, if
/// they conform within that time: they are charged now, and have to wait for their
/// [delay](Self::delay). A caller that lets each request go on after its delay has a shaper: what
/// goes on keeps to the rate and the burst, in the order in which it was charged.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Quota {
    emission_interval: NonZeroU64,
    burst: NonZeroU32,
    /// The most that a key owes by cells that are admitted: the drain time and the longest delay.
    admits_up_to: Nanos,
    /// At least that.
    most_owed: Nanos,
    /// Follows from the three numbers above, as they were before [`up_to_cap`](Self::up_to_cap).
    salt: u64,
    /// That of the drain time, as it was before [`up_to_cap`](Self::up_to_cap): what is owed beyond
    /// the burst counts as more than the whole limit.
    class: Class,
}

impl Quota {
    /// One cell every `emission_interval`, at most `burst` of them at once.
    ///
    /// # Errors
    ///
    /// The interval or the burst is zero, or a full burst takes longer than [`MAX_DRAIN`] to
    /// drain.
    pub const fn new(emission_interval: Nanos, burst: u32) -> Result<Self, QuotaError> {
        let Some(interval) = NonZeroU64::new(emission_interval.0) else {
            return Err(QuotaError::ZeroInterval);
        };
        let Some(cells) = NonZeroU32::new(burst) else {
            return Err(QuotaError::ZeroBurst);
        };
        match emission_interval.0.checked_mul(burst as u64) {
            Some(drain_ns) if drain_ns <= MAX_DRAIN.0 => Ok(Self {
                emission_interval: interval,
                burst: cells,
                admits_up_to: Nanos(drain_ns),
                most_owed: Nanos(drain_ns),
                salt: salt(interval, cells, Nanos::ZERO),
                class: Class::of(Nanos(drain_ns)),
            }),
            _ => Err(QuotaError::DrainTooLong { emission_interval, burst }),
        }
    }

    /// The same rate and burst, for keys that may owe up to `most_owed`. A debt beyond that is
    /// forgiven when the key is used. A cap below the [drain time](Self::drain_time) and the
    /// [longest delay](Self::with_max_delay) means these, which are also the cap of a
    /// [new](Self::new) quota.
    ///
    /// Quotas that differ in the cap do not share buckets.
    ///
    /// # Errors
    ///
    /// `most_owed` is longer than [`MAX_DRAIN`].
    pub const fn with_most_owed(self, most_owed: Nanos) -> Result<Self, QuotaError> {
        if most_owed.0 > MAX_DRAIN.0 {
            return Err(QuotaError::DebtTooLarge { most_owed });
        }
        let least = self.admits_up_to;
        let most_owed = if most_owed.0 > least.0 { most_owed } else { least };
        let beyond_drain = most_owed.saturating_sub(self.drain_time());
        Ok(Self {
            most_owed,
            salt: salt(self.emission_interval, self.burst, beyond_drain),
            ..self
        })
    }

    /// The same rate and burst, for cells that may be admitted up to `max_delay` before they
    /// conform. They are charged at once. Zero means that no cell is admitted before it conforms,
    /// as by a [new](Self::new) quota.
    ///
    /// ```
    /// use gcra_table::{Admission, Nanos, Quota, Time};
    ///
    /// // 10 per second, up to 1 at once. A cell that has to wait for at most 150 ms waits.
    /// let quota = Quota::new(Nanos::from_millis(100), 1)?;
    /// let quota = quota.with_max_delay(Nanos::from_millis(150))?;
    /// let now = Time(1_000_000_000);
    /// let mut tat = Time::ZERO;
    /// for delay_ms in [0, 100] {
    ///     let Admission::Conforming { tat: charged } = quota.admit(tat, now, 1) else {
    ///         unreachable!()
    ///     };
    ///     tat = charged;
    ///     assert_eq!(quota.delay(tat.saturating_since(now)), Nanos::from_millis(delay_ms));
    /// }
    /// // The next one would have to wait for 200 ms. 50 ms later it would be 150 ms.
    /// assert_eq!(quota.admit(tat, now, 1), Admission::Early { wait: Nanos::from_millis(50) });
    /// # Ok::<(), gcra_table::QuotaError>(())
    /// ```
    ///
    /// The [cap on the debt](Self::with_most_owed) becomes the drain time and `max_delay`. For a
    /// larger one, set it after this.
    ///
    /// # Errors
    ///
    /// The drain time and `max_delay` together are longer than [`MAX_DRAIN`].
    pub const fn with_max_delay(self, max_delay: Nanos) -> Result<Self, QuotaError> {
        let admits_up_to = self.drain_time().saturating_add(max_delay);
        Self { admits_up_to, ..self }.with_most_owed(admits_up_to)
    }

    /// The same without a [longest delay](Self::with_max_delay), for the same buckets.
    #[must_use]
    pub const fn without_delay(self) -> Self {
        Self { admits_up_to: self.drain_time(), ..self }
    }

    /// The quota that charges the same buckets up to the [cap on the debt](Self::with_most_owed):
    /// its rate is the same, and its burst is as large as the cap allows.
    ///
    /// Cells charged by it may lead a key beyond the drain time of `self`. Cells charged by `self`
    /// are denied until that has drained.
    #[must_use]
    pub const fn up_to_cap(self) -> Self {
        let cells = self.most_owed.0 / self.emission_interval.get();
        #[expect(clippy::cast_possible_truncation, reason = "compared before")]
        let cells = if cells > u32::MAX as u64 { u32::MAX } else { cells as u32 };
        // The cap is not below the drain time, so this is not below the burst.
        match NonZeroU32::new(cells) {
            Some(burst) => Self { burst, ..self }.without_delay(),
            None => self,
        }
    }

    /// The number that tells the buckets of this quota from those that the same keys have under
    /// other numbers.
    ///
    /// A TAT means something only together with the emission interval and the burst that led to
    /// it. If two quotas shared a bucket, the one with the shorter drain time would find it
    /// damaged, again and again, and each repair would forgive what the other one had charged.
    #[inline]
    pub(crate) const fn salt(self) -> u64 {
        self.salt
    }

    #[inline]
    pub(crate) const fn class(self) -> Class {
        self.class
    }

    /// The TAT that a key has at least under this quota, if at `changed` this quota took the place
    /// of `before`, under which the key has the TAT `tat`. All are times of one table, and
    /// [`Time::ZERO`] means that nothing is owed.
    ///
    /// The debt of the key at the change counts in cells: 15 cells of a burst of 20 are 15 cells
    /// of a burst of 40. From then on they are paid off at the faster of both rates: by this
    /// quota, and never more is carried over than the key owes at `now` under the quota before.
    /// They are never more than the new burst and what drains in the new
    /// [longest delay](Self::with_max_delay).
    #[must_use]
    pub const fn carry_over(self, before: Self, tat: Time, changed: Time, now: Time) -> Time {
        self.carry_over_up_to(self.admits_up_to, before, tat, changed, now)
    }

    /// As [`carry_over`](Self::carry_over), also for the debt beyond the burst, up to the whole
    /// cells of the [cap on the debt](Self::with_most_owed). It is for keys that are [charged up
    /// to the cap](crate::Table::charge_up_to_cap).
    #[must_use]
    pub const fn carry_over_up_to_cap(
        self,
        before: Self,
        tat: Time,
        changed: Time,
        now: Time,
    ) -> Time {
        // In whole cells, as charges are.
        self.carry_over_up_to(self.up_to_cap().drain_time(), before, tat, changed, now)
    }

    /// The TAT of a key under this quota at `until`, if `other` was in force for the key since
    /// `from`. The debt of the key is paid off at the faster of both rates. All are times of one
    /// table.
    ///
    /// So a debt that several changes have left behind can be [carried over](Self::carry_over):
    /// first through each quota that was in force in between, then to the one in force.
    #[must_use]
    pub const fn paid_off_beside(self, other: Self, tat: Time, from: Time, until: Time) -> Time {
        let (own, faster) = (self.emission_interval.get(), other.emission_interval.get());
        let Some(gain) = own.checked_sub(faster) else { return tat };
        // In this time `other` has paid off so much more, counted in time of this quota. Rounded
        // down, so that a change never forgives a part of a cell.
        let more = until.saturating_since(from).0 as u128 * gain as u128 / faster as u128;
        tat.saturating_sub(at_most_all(more))
    }

    const fn carry_over_up_to(
        self,
        most_owed: Nanos,
        before: Self,
        tat: Time,
        changed: Time,
        now: Time,
    ) -> Time {
        let owed_now = self.converted(before, tat.saturating_since(now)).0;
        if owed_now == 0 {
            return Time::ZERO;
        }
        let owed_then = self.converted(before, tat.saturating_since(changed)).0;
        let owed_then = if owed_then < most_owed.0 { owed_then } else { most_owed.0 };
        let by_this = changed.saturating_add(Nanos(owed_then));
        let by_before = now.saturating_add(Nanos(owed_now));
        if by_this.0 < by_before.0 { by_this } else { by_before }
    }

    /// A debt under the quota `before`, converted to this one, cell for cell. It is rounded up, so
    /// that a change never forgives a part of a cell.
    const fn converted(self, before: Self, owed: Nanos) -> Nanos {
        // A process that still uses the quota before may have charged the key since the change.
        // The key never owes more than this.
        let owed = if owed.0 < before.most_owed.0 { owed.0 } else { before.most_owed.0 } as u128;
        let owed = (owed * self.emission_interval.get() as u128)
            .div_ceil(before.emission_interval.get() as u128);
        at_most_all(owed)
    }

    /// The time for a cell, T.
    pub const fn emission_interval(self) -> Nanos {
        Nanos(self.emission_interval.get())
    }

    /// How many cells an idle key may send at once.
    pub const fn burst(self) -> u32 {
        self.burst.get()
    }

    /// How long a full burst takes to drain, `burst * T`: the most that a key owes by cells that
    /// conform.
    pub const fn drain_time(self) -> Nanos {
        // `new` checked this product, and `up_to_cap` stays below the cap.
        self.cost(self.burst.get())
    }

    /// The burst tolerance, τ = `(burst - 1) * T`: how early a cell may come.
    pub const fn burst_tolerance(self) -> Nanos {
        self.cost(self.burst.get() - 1)
    }

    /// How long cells may have to wait after they are admitted; zero if they never have to. See
    /// [`with_max_delay`](Self::with_max_delay).
    pub const fn max_delay(self) -> Nanos {
        self.admits_up_to.saturating_sub(self.drain_time())
    }

    /// How long cells have to wait that were admitted just now, if the key owes `owed` with them.
    /// Zero if they may go on at once.
    pub const fn delay(self, owed: Nanos) -> Nanos {
        owed.saturating_sub(self.drain_time())
    }

    /// The cap on the debt: the most that a key can owe.
    pub const fn most_owed(self) -> Nanos {
        self.most_owed
    }

    /// The time that `cells` cells add to a TAT. They are never more than `burst`.
    const fn cost(self, cells: u32) -> Nanos {
        Nanos(self.emission_interval.get() * cells as u64)
    }

    /// Whether `cells` more cells conform at `now` for a key whose TAT is `tat`, and what follows
    /// from that. Both are times of one clock. Zero cells always conform: that is a peek.
    ///
    /// If the quota has a [longest delay](Self::with_max_delay), cells conform here if they do so
    /// within it, and [`delay`](Self::delay) says how long they have to wait.
    #[must_use]
    #[inline]
    pub const fn admit(self, tat: Time, now: Time, cells: u32) -> Admission {
        let tat = if tat.0 > now.0 { tat } else { now };
        if cells == 0 {
            // Also for a key that owes more than its burst.
            return Admission::Conforming { tat };
        }
        if cells > self.burst.get() {
            return Admission::Oversize;
        }
        let cost = self.cost(cells);
        // Conforming if `tat - now <= τ - (cells - 1) * T`, and so much earlier as they may be
        // delayed, written so that no difference falls below 0.
        let space = self.admits_up_to.0 - cost.0;
        match (tat.0 - now.0).saturating_sub(space) {
            0 => Admission::Conforming { tat: tat.saturating_add(cost) },
            wait => Admission::Early { wait: Nanos(wait) },
        }
    }

    /// How many single cells would still conform at once, for a key that owes `owed`.
    pub const fn remaining(self, owed: Nanos) -> u32 {
        let cells = self.drain_time().saturating_sub(owed).0 / self.emission_interval.get();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "at most `burst`: the drain time is `burst` intervals"
        )]
        let cells = cells as u32;
        cells
    }
}

/// So many nanoseconds, or the most that there are.
#[expect(clippy::cast_possible_truncation, reason = "compared before")]
const fn at_most_all(ns: u128) -> Nanos {
    Nanos(if ns < u64::MAX as u128 { ns as u64 } else { u64::MAX })
}

/// A number that differs wherever the numbers of two quotas differ (except by a chance of 2^-64).
/// `beyond_drain` is how far the cap on the debt lies above the drain time.
const fn salt(emission_interval: NonZeroU64, burst: NonZeroU32, beyond_drain: Nanos) -> u64 {
    let salt = scramble(emission_interval.get());
    scramble(scramble(salt ^ burst.get() as u64) ^ beyond_drain.0)
}

/// The output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators"): a permutation of all 64-bit numbers in which each bit of the input moves half of
/// the output's.
pub(crate) const fn scramble(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The outcome of [`Quota::admit`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Admission {
    /// The cells conform, at once or after a [delay](Quota::delay).
    Conforming {
        /// The TAT once they are charged, by the clock that `now` was read from.
        tat: Time,
    },
    /// The cells come too early. Nothing is charged.
    Early {
        /// How long it takes until they conform, if nothing else is charged until then. With a
        /// [longest delay](Quota::with_max_delay): until they would be admitted with a delay.
        wait: Nanos,
    },
    /// The cells are more than the burst, so that they can never conform. Nothing is charged.
    Oversize,
}

sentences! {
    /// Why numbers are not a quota.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[non_exhaustive]
    pub enum QuotaError {
        ZeroInterval => "the time between two cells is zero";
        ZeroBurst => "a burst of 0 allows nothing; the smallest is 1";
        /// That is [`MAX_DRAIN`].
        DrainTooLong { emission_interval: Nanos, burst: u32 }
            => "a burst of {burst} takes {} days to pay off at this rate; at most {MOST_DAYS} \
                days can be counted, so lower the burst or raise the rate",
                u128::from(emission_interval.0) * u128::from(*burst) / u128::from(DAY_NS);
        /// That is [`MAX_DRAIN`], too.
        DebtTooLarge { most_owed: Nanos }
            => "a debt of {} days is too large; at most {MOST_DAYS} days can be counted",
                most_owed.0.div_ceil(DAY_NS);
    }
}

impl core::error::Error for QuotaError {}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Nanos {
        Nanos::from_millis(milliseconds)
    }

    const fn at_ms(milliseconds: u64) -> Time {
        Time(ms(milliseconds).0)
    }

    fn every(interval: Nanos, burst: u32) -> Quota {
        Quota::new(interval, burst).unwrap()
    }

    /// 100 per second, up to 20 at once.
    fn quota() -> Quota {
        every(ms(10), 20)
    }

    fn conforming(admission: Admission) -> Time {
        match admission {
            Admission::Conforming { tat } => tat,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_idle_key_has_its_burst_and_not_one_more() {
        let now = at_ms(7_000);
        let mut tat = Time::ZERO;
        for _ in 0..20 {
            tat = conforming(quota().admit(tat, now, 1));
        }
        assert_eq!(tat, at_ms(7_200));
        assert_eq!(quota().admit(tat, now, 1), Admission::Early { wait: ms(10) });
        let almost = at_ms(7_010).saturating_sub(Nanos(1));
        assert_eq!(quota().admit(tat, almost, 1), Admission::Early { wait: Nanos(1) });
        let then = quota().admit(tat, at_ms(7_010), 1);
        assert_eq!(then, Admission::Conforming { tat: at_ms(7_210) });
    }

    #[test]
    fn quotas_with_other_numbers_have_another_salt() {
        let mut salts: Vec<_> = (1..40)
            .flat_map(|interval| (1..40).map(move |burst| every(Nanos(interval), burst)))
            .flat_map(|quota| {
                let caps = (0..4).map(move |beyond| quota.drain_time() + Nanos(beyond));
                caps.map(move |cap| quota.with_most_owed(cap).unwrap().salt())
            })
            .collect();
        let count = salts.len();
        salts.sort_unstable();
        salts.dedup();
        assert_eq!(salts.len(), count);
    }

    /// Tables in use depend on these values.
    #[test]
    fn the_salts_stay_what_they_are() {
        assert_eq!(quota().salt(), 0xac01_e717_2611_619c);
        assert_eq!(quota().with_most_owed(ms(1_200)).unwrap().salt(), 0x775f_4f78_fd5e_15dc);
        assert_eq!(every(Nanos::from_secs(86), 1_000).salt(), 0xff6f_9a73_912f_f7b9);
    }

    #[test]
    fn up_to_the_cap_the_same_buckets_are_charged() {
        let capped = quota().with_most_owed(ms(1_205)).unwrap();
        assert_eq!((capped.burst(), capped.drain_time()), (20, ms(200)));
        let wide = capped.up_to_cap();
        assert_eq!(
            (wide.burst(), wide.drain_time(), wide.salt()),
            (120, ms(1_200), capped.salt())
        );
        assert_eq!((wide.most_owed(), capped.most_owed()), (ms(1_205), ms(1_205)));
        assert_eq!(wide.up_to_cap(), wide);
        assert_eq!(quota().up_to_cap(), quota());
        assert_eq!(quota().with_most_owed(Nanos::ZERO), Ok(quota()), "a cap below the drain time");
        assert_eq!(every(Nanos(1), 1).with_most_owed(ms(5_000)).unwrap().up_to_cap().burst(), {
            u32::MAX
        });
    }

    #[test]
    fn a_longest_delay_is_a_part_of_the_cap() {
        let delaying = quota().with_max_delay(ms(2_005)).unwrap();
        assert_eq!((delaying.burst(), delaying.drain_time()), (20, ms(200)));
        assert_eq!((delaying.max_delay(), delaying.most_owed()), (ms(2_005), ms(2_205)));
        let same_buckets = quota().with_most_owed(ms(2_205)).unwrap();
        assert_eq!(delaying.without_delay(), same_buckets);
        assert_eq!(quota().with_max_delay(Nanos::ZERO), Ok(quota()));
        assert_eq!(quota().max_delay(), Nanos::ZERO);
        assert_eq!(delaying.with_most_owed(Nanos::ZERO), Ok(delaying), "a cap below the delay");
        let capped = delaying.with_most_owed(ms(3_000)).unwrap();
        assert_eq!((capped.max_delay(), capped.most_owed()), (ms(2_005), ms(3_000)));
        assert_eq!(capped.up_to_cap().max_delay(), Nanos::ZERO);
        assert_eq!(capped.up_to_cap().burst(), 300);
        let most_owed = MAX_DRAIN + ms(200);
        assert_eq!(quota().with_max_delay(MAX_DRAIN), Err(QuotaError::DebtTooLarge { most_owed }));
        // A cost above the burst could not go on at one moment without breaking the limit.
        assert_eq!(delaying.admit(Time::ZERO, Time::ZERO, 21), Admission::Oversize);
    }

    #[test]
    fn what_is_delayed_is_carried_over_up_to_the_longest_delay() {
        let (changed, owed) = (at_ms(1_000), at_ms(1_000 + 200 + 500));
        let delaying = |max_delay| quota().with_max_delay(max_delay).unwrap();
        let carried = |new: Quota| {
            new.carry_over(delaying(ms(900)), owed, changed, changed).saturating_since(changed)
        };
        assert_eq!(carried(delaying(ms(600))), ms(700));
        assert_eq!(carried(delaying(ms(400))), ms(600));
        assert_eq!(carried(quota()), ms(200));
    }

    /// As charges do, so that a change leaves nobody with more than responses can charge.
    #[test]
    fn a_debt_beyond_the_burst_is_carried_over_up_to_whole_cells_of_the_cap() {
        let (changed, owed) = (at_ms(1_000), at_ms(1_000 + 20 * 10 + 1_000));
        let capped = |interval, burst, beyond| {
            let quota = every(ms(interval), burst);
            quota.with_most_owed(quota.drain_time().saturating_add(ms(beyond))).unwrap()
        };
        let before = capped(10, 20, 1_000);
        let carried = |new: Quota| {
            new.carry_over_up_to_cap(before, owed, changed, changed).saturating_since(changed)
        };
        assert_eq!(carried(capped(300, 5, 1_000)), ms(5 * 300 + 900), "three cells, not 3.33");
        assert_eq!(carried(capped(300, 5, 900)), ms(5 * 300 + 900));
        assert_eq!(carried(capped(300, 5, 299)), ms(5 * 300));
        assert_eq!(carried(before), ms(20 * 10 + 1_000));
        assert_eq!(carried(capped(5, 20, 10_000)), ms(120 * 5), "all that is owed");
    }

    #[test]
    fn a_debt_is_carried_over_in_cells() {
        let every_ms = |interval: u64, burst: u32| every(ms(interval), burst);
        let changed = at_ms(1_000);
        let owed = |new: Quota, cells: u64| {
            new.carry_over(quota(), changed.saturating_add(ms(10 * cells)), changed, changed)
        };
        let later = |milliseconds: u64| changed.saturating_add(ms(milliseconds));
        assert_eq!(owed(every_ms(5, 40), 20), later(20 * 5), "20 of 40 are left at once");
        assert_eq!(owed(every_ms(100, 20), 15), later(15 * 100), "15 of 20 are 15 of 20");
        assert_eq!(owed(every_ms(10, 5), 15), later(5 * 10), "and never more than the burst");
        assert_eq!(owed(quota(), 15), later(15 * 10));
        assert_eq!(owed(quota(), 0), Time::ZERO);
        let none = quota().carry_over(quota(), Time::ZERO, changed, changed);
        assert_eq!(none, Time::ZERO, "there was no bucket");
        let part = changed.saturating_add(Nanos(1));
        assert_eq!(
            every_ms(3, 40).carry_over(every_ms(2, 40), part, changed, changed),
            changed.saturating_add(Nanos(2)),
            "rounded up"
        );
        let (longest, end) = (every(MAX_DRAIN, 1), Time(u64::MAX));
        assert_eq!(longest.carry_over(longest, end, Time::ZERO, Time::ZERO), Time(MAX_DRAIN.0));
        let one_cell = longest.carry_over(every_ms(1, 1), end, Time::ZERO, Time::ZERO);
        assert_eq!(one_cell, Time(MAX_DRAIN.0));
        // A process with the quota before has gone on charging. At the change no more than its
        // burst was owed.
        let slower = every_ms(20, 100);
        assert_eq!(slower.carry_over(quota(), later(900), changed, changed), later(20 * 20));
    }

    #[test]
    fn a_debt_is_paid_off_at_the_faster_of_both_rates() {
        let changed = at_ms(1_000);
        let later = |milliseconds: u64| changed.saturating_add(ms(milliseconds));
        // 20 cells every 10 ms. By the rate before they are paid off in 200 ms, whatever the rate
        // is now.
        let (slow, tat) = (every(ms(100), 20), later(200));
        let owed = |new: Quota, now: Time| {
            new.carry_over(quota(), tat, changed, now).saturating_since(now)
        };
        assert_eq!(owed(slow, changed), ms(2_000));
        assert_eq!(owed(slow, later(50)), ms(1_500), "15 cells, as under the rate before");
        assert_eq!(owed(slow, later(199)), ms(10), "a tenth of a cell");
        assert_eq!(owed(slow, later(200)), Nanos::ZERO);
        // At twice the rate they take half the time.
        let fast = every(ms(5), 20);
        assert_eq!(owed(fast, changed), ms(100));
        assert_eq!(owed(fast, later(60)), ms(40));
        assert_eq!(owed(fast, later(100)), Nanos::ZERO);
        // A charge under the quota before after the change does not count from the change.
        let charged_later = |now: Time| slow.carry_over(quota(), later(900), changed, now);
        assert_eq!(charged_later(later(900)), Time::ZERO);
        assert_eq!(charged_later(later(890)), later(990));
    }

    #[test]
    fn a_cost_is_charged_whole_or_not_at_all() {
        let admit = |tat: Time, cells: u32| quota().admit(tat, Time::ZERO, cells);
        assert_eq!(admit(Time::ZERO, 20), Admission::Conforming { tat: at_ms(200) });
        assert_eq!(admit(Time(1), 20), Admission::Early { wait: Nanos(1) });
        assert_eq!(admit(Time::ZERO, 21), Admission::Oversize);
        assert_eq!(admit(Time::ZERO, u32::MAX), Admission::Oversize);
    }

    #[test]
    fn a_peek_charges_nothing() {
        let peek = |tat: Time, now: Time| conforming(quota().admit(tat, now, 0));
        assert_eq!(peek(at_ms(200), Time::ZERO), at_ms(200));
        assert_eq!(peek(Time::ZERO, Time(5)), Time(5));
        assert_eq!(peek(at_ms(900), Time::ZERO), at_ms(900), "owes more than its burst");
    }

    #[test]
    fn remaining_counts_whole_cells() {
        assert_eq!(quota().remaining(Nanos::ZERO), 20);
        assert_eq!(quota().remaining(Nanos(1)), 19);
        assert_eq!(quota().remaining(ms(190)), 1);
        assert_eq!(quota().remaining(ms(190) + Nanos(1)), 0);
        assert_eq!(quota().remaining(Nanos::MAX), 0);
    }

    #[test]
    fn what_is_not_a_quota_is_an_error() {
        let year = Nanos::from_secs(365 * DAY_S);
        assert!(Quota::new(year, 4).is_ok());
        let error = Quota::new(year, 5).unwrap_err();
        assert_eq!(error, QuotaError::DrainTooLong { emission_interval: year, burst: 5 });
        assert!(error.to_string().contains("takes 1825 days"), "{error}");
        assert!(Quota::new(Nanos::MAX, u32::MAX).is_err());
        assert_eq!(Quota::new(Nanos::ZERO, 1), Err(QuotaError::ZeroInterval));
        assert_eq!(Quota::new(year, 0), Err(QuotaError::ZeroBurst));
        let most_owed = MAX_DRAIN + Nanos(1);
        let error = quota().with_most_owed(most_owed).unwrap_err();
        assert_eq!(error, QuotaError::DebtTooLarge { most_owed });
        assert!(error.to_string().starts_with("a debt of 1461 days is too large; at most 1460"));
    }
}

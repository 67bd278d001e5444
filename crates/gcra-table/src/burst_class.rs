//! The class of a bucket: about how much its limit allows at once. A table that is full compares
//! by it what buckets of different limits owe.

// ADR 26: When the table is full, the smallest part of a limit is evicted.

use crate::mutation::{Mutation, broken};
use crate::time::{Nanos, Time};
use crate::used::Used;

/// The class of a limit's drain time, from 0 to 62; or 63 for a count in a calendar window.
///
/// A drain time of class c is at least 5 ms * 1.5^c, and less than one and a half times that. So
/// 63 classes reach from 5 ms to 13 years, beyond the longest drain time. A limit that is paid off
/// sooner is in class 0, too. A class takes 6 bits of a slot, and more would be missing from the
/// TAT or from the fingerprint.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Class {
    number: u8,
    /// The part of it in the fingerprint of a bucket, as the highest bits: the number modulo 4. It
    /// is worked out once, and not for each request.
    in_fingerprint: u64,
}

/// How many bits below it a fingerprint has.
pub(crate) const IN_FINGERPRINT: u32 = 60;

pub(crate) const CLASSES: u8 = 64;

/// The debt of a bucket that owes its whole limit, if that is the smallest of its class.
const WHOLE: u128 = 1 << 80;

impl Class {
    /// A bucket of this class has [`Used`] in the place of the TAT.
    pub(crate) const COUNT: Self = Self::from_number(CLASSES - 1);

    /// The class of a drain time.
    // Quotas are made once, and the rest of the code that makes them is small.
    #[inline(never)]
    pub(crate) const fn of(drain_time: Nanos) -> Self {
        let mut class = 0;
        while class < CLASSES - 2 && drain_time.0 >= least_drain_ns(class + 1) {
            class += 1;
        }
        Self::from_number(class)
    }

    /// The class that was written as this number. Of any other number, six bits count.
    pub(crate) const fn from_number(number: u8) -> Self {
        let number = number % CLASSES;
        Self { number, in_fingerprint: (number as u64 % 4) << IN_FINGERPRINT }
    }

    pub(crate) const fn number(self) -> u8 {
        self.number
    }

    #[inline]
    pub(crate) const fn in_fingerprint(self) -> u64 {
        self.in_fingerprint
    }

    /// About which part of its limit a bucket owes that holds `value` in the place of the TAT. The
    /// number means something only beside those of other buckets at the same `now`.
    ///
    /// By this number each bucket owes between what it really owes and one and a half times that,
    /// because it is divided by the smallest limit of its class. Of a limit that drains in less
    /// than 5 ms it owes less.
    pub(crate) fn part_owed(self, value: Time, now: Time) -> u128 {
        if broken(Mutation::EvictsByTime) {
            return value.0.into();
        }
        if self == Self::COUNT {
            return Used::in_bucket(value).part(WHOLE, now);
        }
        let parts_of_a_ns = WHOLE / u128::from(least_drain_ns(self.number));
        u128::from(value.saturating_since(now).0) * parts_of_a_ns
    }
}

/// The shortest drain time of a class, in nanoseconds.
const fn least_drain_ns(class: u8) -> u64 {
    LEAST_DRAIN_NS[class as usize % LEAST_DRAIN_NS.len()]
}

const LEAST_DRAIN_NS: [u64; CLASSES as usize - 1] = {
    let mut all = [Nanos::from_millis(5).0; CLASSES as usize - 1];
    let mut class = 1;
    while class < all.len() {
        all[class] = all[class - 1] + all[class - 1] / 2;
        class += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::MAX_DRAIN;

    #[test]
    fn each_drain_time_is_less_than_one_and_a_half_times_the_least_of_its_class() {
        let end = |class: Class| least_drain_ns(class.number) + least_drain_ns(class.number) / 2;
        for class in 0..CLASSES - 1 {
            let least = least_drain_ns(class);
            let class = Class::from_number(class);
            assert_eq!(Class::of(Nanos(least)), class);
            assert_eq!(Class::of(Nanos(end(class) - 1)), class);
        }
        assert_eq!(Class::of(Nanos(1)), Class::from_number(0));
        let last = Class::of(MAX_DRAIN);
        assert!(last != Class::COUNT && MAX_DRAIN.0 < end(last));
    }

    #[test]
    fn no_value_is_too_large_to_compare() {
        for class in (0..CLASSES).map(Class::from_number) {
            let part = |value| class.part_owed(Time(value), Time::ZERO);
            assert!(part((1 << 60) - 1) > 0 && part(0) == 0, "{class:?}");
        }
    }

    #[test]
    fn what_is_owed_counts_by_the_limit_and_not_by_the_time() {
        let now = Time(1_000_000_000_000);
        let part = |drain: Nanos, owed: u64| {
            Class::of(drain).part_owed(now.saturating_add(Nanos(owed)), now)
        };
        let (fast, slow) = (Nanos::from_secs(2), Nanos::from_secs(86_400));
        assert!(part(fast, fast.0 * 9 / 10) > part(slow, slow.0 * 5 / 9));
        assert!(part(slow, slow.0 * 9 / 10) > part(fast, fast.0 * 5 / 9));
        // A debt beyond the burst counts as more than the whole.
        assert!(part(fast, fast.0 * 6) > part(slow, slow.0));
    }
}

//! [`Outage`]: when a part of the store was away at last, and from when on it is asked again.
//!
//! While the store is away, each host may allow its share of a limit (`decide_shared.rs`). All
//! shares together stay within the limit; but what they have allowed is not in the store, and
//! hosts find the store again one after the other. So the end of an outage has rules, for limits
//! that have shares:
//!
//! * A host uses its share only if it has seen not long ago that the store is away
//!   ([`SEEN_AWAY_FOR`]), and not if another process of the host is answered.
//! * It asks again some time after it has found the store ([`ASK_AFTER`]). By then no host uses
//!   its share: all have either found the store, or have not seen for too long that it is away.
//! * For a while, each ask says that the key owes what shares may have allowed ([`Outage::owes`]):
//!   a full burst at that moment.
//!
//! An outage that is too short for shares to begin has none of this.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gcra_table::{Nanos, Quota, Time};

/// In an outage that a host has seen to be this short, no host uses its share. The share begins 2
/// s after the store was missed, which a host may notice 1.25 s later than another one.
const SHORT: Nanos = Nanos::from_millis(500);

/// How old an attempt to reach the store may be, whose failure says that the store is away. The
/// next attempt fails within 750 ms after it has begun.
pub(super) const SEEN_AWAY_FOR: Nanos = Nanos::from_millis(1_400);

/// How long after it has found the store again a host asks. An attempt that begins when the store
/// is back does not fail, so from `SEEN_AWAY_FOR` after that, no host uses its share.
const ASK_AFTER: Nanos = Nanos::from_millis(1_500);

/// When a part of the store was away. Times are of the table's clock, in nanoseconds.
#[derive(Debug)]
pub(super) struct Outage {
    since: AtomicU64,
    /// When it was back; 0 while it is away.
    until: AtomicU64,
    /// Whether shares may have been used.
    is_long: AtomicBool,
    /// How many hosts shared the limits when it went away; 0 if that was not known.
    hosts: AtomicU32,
    /// This process has not used it yet, and no attempt to has failed.
    is_starting: AtomicBool,
}

impl Outage {
    /// It has not been there yet.
    pub(super) fn new(now: Time) -> Self {
        Self {
            since: AtomicU64::new(now.0),
            until: AtomicU64::new(0),
            is_long: AtomicBool::new(false),
            hosts: AtomicU32::new(0),
            is_starting: AtomicBool::new(true),
        }
    }

    /// Notes whether it is away now.
    pub(super) fn note(&self, is_away: bool, now: Time, hosts: impl FnOnce() -> u32) {
        match (self.until(), is_away) {
            (Some(_), true) => {
                // One that is lost again before that has ended is the same outage.
                if self.is_over(now) {
                    self.since.store(now.0, Ordering::Relaxed);
                    self.hosts.store(hosts(), Ordering::Relaxed);
                }
                self.until.store(0, Ordering::Relaxed);
            }
            (None, false) => {
                let took = now.saturating_since(self.since());
                let is_first = self.is_starting.swap(false, Ordering::Relaxed);
                self.is_long.store(!is_first && took >= SHORT, Ordering::Relaxed);
                self.until.store(now.0.max(1), Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// An attempt to reach it has failed, so it was away before this process was started.
    pub(super) fn note_failure(&self, now: Time) {
        if self.is_starting.swap(false, Ordering::Relaxed) {
            let long_ago = now.0.saturating_sub(SHORT.0);
            self.since.fetch_min(long_ago, Ordering::Relaxed);
        }
    }

    /// From when on the store is asked, if it is back.
    fn ask_from(&self) -> Option<Time> {
        let wait = if self.is_long.load(Ordering::Relaxed) { ASK_AFTER } else { Nanos::ZERO };
        self.until().map(|until| until.saturating_add(wait))
    }

    /// Whether the store can be asked about limits that have shares.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.ask_from().is_some_and(|from| now >= from)
    }

    /// How many cells a key owes at least now, by what shares may have allowed: a full burst at
    /// the end of the outage.
    pub(super) fn owes(&self, now: Time, quota: Quota) -> u32 {
        let from = self.ask_from().filter(|_| self.is_long.load(Ordering::Relaxed));
        let drained = from.map(|from| now.saturating_since(from));
        drained.map_or(0, |drained| {
            let left = quota.drain_time().saturating_sub(drained).0;
            u32::try_from(left.div_ceil(quota.emission_interval().0)).unwrap_or(u32::MAX)
        })
    }

    /// Whether this process is about to reach it for the first time.
    pub(super) fn is_starting(&self) -> bool {
        self.is_starting.load(Ordering::Relaxed)
    }

    /// Since when it is away, or was if it is not asked yet.
    pub(super) fn since(&self) -> Time {
        Time(self.since.load(Ordering::Relaxed))
    }

    /// When it was back at last. `None`: it is away.
    fn until(&self) -> Option<Time> {
        let until = self.until.load(Ordering::Relaxed);
        (until > 0).then_some(Time(until))
    }

    /// How many hosts shared the limits when it went away; 0 if that was not known.
    pub(super) fn hosts(&self) -> u32 {
        self.hosts.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Time {
        Time(1_000_000_000_000 + ms * 1_000_000)
    }

    #[test]
    fn after_a_long_outage_the_store_is_asked_later_and_told_what_may_be_owed() {
        let quota = Quota::new(Nanos::from_millis(100), 5).unwrap();
        let outage = Outage::new(at(0));
        assert!(outage.is_starting() && !outage.is_over(at(1_000)));
        outage.note(false, at(2_000), || 0);
        assert!(outage.is_over(at(2_000)), "the first time, there is no haste");
        assert_eq!(outage.owes(at(2_000), quota), 0);
        outage.note(true, at(3_000), || 3);
        outage.note(true, at(3_100), || 4);
        assert_eq!((outage.since(), outage.until(), outage.hosts()), (at(3_000), None, 3));
        outage.note(false, at(3_499), || 0);
        assert!(outage.is_over(at(3_499)) && outage.owes(at(3_499), quota) == 0, "short");

        outage.note(true, at(4_000), || 3);
        outage.note(false, at(4_500), || 0);
        assert!(!outage.is_over(at(5_999)) && outage.is_over(at(6_000)));
        let owed = [6_000, 6_001, 6_100, 6_101, 6_499, 6_500, 9_000];
        assert_eq!(owed.map(|ms| outage.owes(at(ms), quota)), [5, 5, 4, 4, 1, 0, 0]);
    }

    #[test]
    fn a_store_that_is_lost_again_at_the_end_of_an_outage_was_never_back() {
        let outage = Outage::new(at(0));
        outage.note(false, at(10), || 0);
        outage.note(true, at(1_000), || 3);
        outage.note(false, at(4_000), || 3);
        outage.note(true, at(4_900), || 2);
        outage.note(false, at(4_950), || 2);
        assert_eq!((outage.since(), outage.hosts()), (at(1_000), 3));
        assert!(!outage.is_over(at(6_449)) && outage.is_over(at(6_450)));
    }

    #[test]
    fn a_process_that_is_started_in_an_outage_waits_after_it_too() {
        let outage = Outage::new(at(0));
        outage.note_failure(at(10));
        assert!(!outage.is_starting());
        outage.note(false, at(20), || 0);
        assert!(!outage.is_over(at(1_519)) && outage.is_over(at(1_520)));
    }
}

//! [`Outage`]: when a part of the store was away at last, and from when on it is asked again.
//!
//! While the store is away, each host may allow its share of a limit, from what is owed then
//! (`decide_shared.rs`). That stays within the limit if no host is lent cells by the store before
//! all hosts have reported what they allowed by their shares. So an outage that was long enough
//! for shares to be used has an end with an order, in which a host
//!
//! 1. finds the store again, and goes on with its shares for a while, because others have not;
//! 2. allows nothing by its shares any more, and reports them;
//! 3. asks again, when the others have reported, too.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gcra_table::{Nanos, Time};

/// No host allows anything by its share in an outage that another host has seen to be this short.
/// The share begins 2 s after the store was missed, which takes a host up to 1.25 s.
const SHORT: Nanos = Nanos::from_millis(500);

/// After another outage, shares are used for this long. Hosts look for the store four times a
/// second.
const SHARES_END_AFTER: Nanos = Nanos::from_millis(500);

/// Then they are reported: when every request that was decided by one has been counted.
const REPORT_AFTER: Nanos = Nanos::from_millis(550);

/// And then the store is asked again.
const ASK_AFTER: Nanos = Nanos::from_millis(1_000);

/// When a part of the store was away. Times are of the table's clock, in nanoseconds.
#[derive(Debug)]
pub(super) struct Outage {
    since: AtomicU64,
    /// When it was back; 0 while it is away.
    until: AtomicU64,
    /// Whether its end takes a while.
    is_long: AtomicBool,
    /// Whether shares were reported since it is back.
    is_reported: AtomicBool,
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
            is_reported: AtomicBool::new(false),
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
                self.is_reported.store(false, Ordering::Relaxed);
                self.until.store(now.0.max(1), Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Whether it is time to report shares. True once after each outage.
    pub(super) fn take_report(&self, now: Time) -> bool {
        self.is_since_its_end(now, REPORT_AFTER) && !self.is_reported.swap(true, Ordering::Relaxed)
    }

    /// Whether it is back for this long, or needs no time to end.
    fn is_since_its_end(&self, now: Time, after: Nanos) -> bool {
        let is_short = !self.is_long.load(Ordering::Relaxed);
        self.until().is_some_and(|until| is_short || now >= until.saturating_add(after))
    }

    /// Whether shares can be used, if the store cannot be asked.
    pub(super) fn has_shares(&self, now: Time) -> bool {
        !self.is_since_its_end(now, SHARES_END_AFTER)
    }

    /// An attempt to reach it has failed, so it was away before this process was started.
    pub(super) fn note_failure(&self, now: Time) {
        if self.is_starting.swap(false, Ordering::Relaxed) {
            let long_ago = now.0.saturating_sub(SHORT.0);
            self.since.fetch_min(long_ago, Ordering::Relaxed);
        }
    }

    /// Whether it can be asked.
    pub(super) fn is_over(&self, now: Time) -> bool {
        self.is_since_its_end(now, ASK_AFTER)
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
    pub(super) fn until(&self) -> Option<Time> {
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
    fn after_a_long_outage_shares_are_reported_before_the_store_is_asked() {
        let outage = Outage::new(at(0));
        assert!(outage.is_starting() && !outage.is_over(at(1_000)));
        outage.note(false, at(2_000), || 0);
        assert!(outage.is_over(at(2_000)), "the first time, there is no haste");
        assert_eq!(outage.until(), Some(at(2_000)));
        outage.note(true, at(3_000), || 3);
        outage.note(true, at(3_100), || 4);
        assert_eq!((outage.since(), outage.until(), outage.hosts()), (at(3_000), None, 3));
        outage.note(false, at(3_499), || 0);
        assert!(outage.is_over(at(3_499)) && outage.take_report(at(3_499)), "short");

        outage.note(true, at(4_000), || 3);
        assert!(outage.has_shares(at(4_001)) && !outage.take_report(at(4_001)));
        outage.note(false, at(4_500), || 0);
        assert!(outage.has_shares(at(4_999)) && !outage.has_shares(at(5_000)));
        assert!(!outage.take_report(at(5_049)) && outage.take_report(at(5_050)));
        outage.note(false, at(5_051), || 0);
        assert!(!outage.take_report(at(5_051)), "once");
        assert!(!outage.is_over(at(5_499)) && outage.is_over(at(5_500)));
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
        assert!(!outage.is_over(at(5_949)) && outage.is_over(at(5_950)));
    }

    #[test]
    fn a_process_that_is_started_in_an_outage_waits_after_it_too() {
        let outage = Outage::new(at(0));
        outage.note_failure(at(10));
        assert!(!outage.is_starting());
        outage.note(false, at(20), || 0);
        assert!(!outage.is_over(at(1_019)) && outage.is_over(at(1_020)));
    }
}

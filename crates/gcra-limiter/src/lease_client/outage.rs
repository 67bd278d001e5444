//! [`Outage`]: when a part of the store was last away, and when it may be asked again.
//!
//! While the store is away, each host may allow its share of a limit
//! (`decide/without_store.rs`). All shares together stay within the limit; but what they have
//! allowed is not in the store, and hosts lose the store and find it again one after the other. So
//! for limits that have shares there are rules:
//!
//! * A host uses its share only if it has seen not long ago that the store is away
//!   ([`SEEN_AWAY_FOR`]), and not if another process of the host uses it ([`HOST_USES_IT_FOR`]).
//! * A share starts as if everything on target had been spent [`SPENT_AFTER`] after the host lost
//!   the store. A share that has not begun when the host finds the store does not begin.
//! * Each host knows since when at the earliest another one can be without the store: since the
//!   **bound**. A store that is there for [`FOUND_WITHIN`] without a break is found by all hosts,
//!   so those that are without it later have lost it again.
//! * Cells that the store lends are valid until [`SPENT_AFTER`] after the bound at the longest: by
//!   then no share begins.
//! * An outage that is over soon after the bound ([`SHORT`]) is short: no share has begun, and all
//!   hosts find the store before one would. It is asked at once. If it is lost again before the
//!   bound has moved, the bound says for how long that goes on.
//! * After a longer outage, a host asks some time after it has found the store ([`ASK_AFTER`]). It
//!   does so, too, if another server has taken the place of the lost one, because sentinels do not
//!   learn that at the same moment. By then no host uses its share: all have either found the
//!   store, or have not seen for too long that it is away. The bound stays where it is until then.
//! * From then on, each ask says how long ago the key owed what shares may have allowed
//!   ([`Outage::owed_ago`]): a full burst at that moment.

// ADR 44: What cannot be lent is charged in the store.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gcra_lease::{Ask, Micros};
use gcra_table::{Nanos, Time};

/// How old an attempt to reach the store may be, whose failure says that the store is away. Each
/// takes 550 ms at most, and the next one begins within 50 ms.
const SEEN_AWAY_FOR: Nanos = Nanos::from_millis(1_300);

/// A share is not used if a process of this host has used the store this short a time ago. Each
/// says so all the time, but it may be stopped for a moment.
pub(crate) const HOST_USES_IT_FOR: Nanos = Nanos::from_millis(2_500);

/// How long after it has found the store again a host asks. An attempt that begins when the store
/// is back does not fail, so from `SEEN_AWAY_FOR` after that, no host uses its share. (The rest is
/// for a store that goes once more between two looks of this host.)
const ASK_AFTER: Nanos = Nanos::from_millis(1_500);

/// When all leases of the store are over, after a host has lost the store. Other hosts notice the
/// loss up to 1.25 s later, and a lease is valid for 2 s at most.
const SPENT_AFTER: Nanos = Nanos::from_millis(3_500);

/// A store that is there for so long without a break is found by all hosts.
const FOUND_WITHIN: Nanos = Nanos::from_millis(150);

const _: () = assert!(gcra_store::FOUND_WITHIN.as_nanos() == 150_000_000);

/// How long after the bound a short outage is over at the latest. The other hosts find the store
/// [`FOUND_WITHIN`] later, and the first share would begin [`SPENT_AFTER`] after the bound.
const SHORT: Nanos = Nanos::from_millis(3_000);

/// The store was found after a long outage, and it is still not known whether all hosts have.
const NOT_KNOWN: Time = Time(u64::MAX);

/// Nothing is asked for that would be valid for less than this.
const LEAST_VALIDITY: Nanos = Nanos::from_millis(50);

/// A store that is lost so short a time after it was found was not back, as far as it matters how
/// long it was away.
const CALM: Nanos = Nanos::from_millis(3_000);

/// A rule that the tests take away once, to show that they notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Rule {
    /// The bound moves only when the store was there for `FOUND_WITHIN`.
    FoundByAll,
    /// A short outage does not make the time shorter that is waited after a long one.
    StaysLater,
    /// Lent cells are over before a share can begin.
    OverBefore,
    /// A share that has not begun when the store is found does not begin.
    NotBegun,
    /// After a long outage the store is not asked at once.
    AskLater,
    /// The time until it is asked counts from when it was last found, also if it was lost
    /// unnoticed.
    FoundAgain,
    /// Cells that shares may have allowed are owed, also after the next outage.
    StaysOwed,
}

#[cfg(not(test))]
const fn without(_: Rule) -> bool {
    false
}

#[cfg(test)]
use tests::without;

/// The connection to a part of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected {
    pub since: Time,
    /// To which server, by a number.
    pub server: u64,
}

/// When a part of the store was away. Times are of the table's clock, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// When it was lost for the first time.
    since: AtomicU64,
    /// When it was lost for the last time.
    lost: AtomicU64,
    /// When it was back; 0 while it is away.
    until: AtomicU64,
    /// Hosts that are still without it have lost it after that moment.
    bound: AtomicU64,
    /// The server that was last found; 0 if none was.
    server: AtomicU64,
    /// From when on it is asked about all limits that have shares, if it is back;
    /// [`NOT_KNOWN`] until it was there for [`FOUND_WITHIN`] after a long outage.
    ask_from: AtomicU64,
    /// The moment at which a full burst may last be owed, because of shares; 0 if never.
    owed_at: AtomicU64,
    /// How long an outage with shares was at most.
    longest: AtomicU64,
    /// How many hosts shared the limits when it went away; 0 if that was not known.
    hosts: AtomicU32,
    /// This process has never used it, and no attempt to has failed.
    is_starting: AtomicBool,
}

impl Outage {
    /// It has never been there.
    pub(crate) fn new(now: Time) -> Self {
        Self {
            since: AtomicU64::new(now.0),
            lost: AtomicU64::new(now.0),
            is_starting: AtomicBool::new(true),
            ..Self::default()
        }
    }

    /// Notes the connection to it, or that it is away now; and when it was last known that it
    /// had been there for [`FOUND_WITHIN`].
    pub(crate) fn note(
        &self,
        connected: Option<Connected>,
        steady: Option<Time>,
        now: Time,
        hosts: impl FnOnce() -> u32,
    ) {
        match (self.until(), connected) {
            (Some(until), None) => {
                self.lost.store(now.0, Ordering::Relaxed);
                if self.is_over(now, Nanos::ZERO) {
                    let (hosts, goes_on) = (hosts(), now.saturating_since(until) < CALM);
                    if !goes_on {
                        self.since.store(now.0, Ordering::Relaxed);
                    }
                    if !goes_on || hosts > 0 {
                        self.hosts.store(hosts, Ordering::Relaxed);
                    }
                }
                self.until.store(0, Ordering::Release);
            }
            (None, Some(Connected { server, .. })) => {
                let before = self.server.swap(server, Ordering::Relaxed);
                self.found(now, before != 0 && before != server);
            }
            // It was away for a moment, and this process has not noticed.
            (Some(until), Some(Connected { since, server }))
                if since > until && !without(Rule::FoundAgain) =>
            {
                self.server.store(server, Ordering::Relaxed);
                self.found(now, false);
            }
            _ => {}
        }
        let Some(until) = self.until() else { return };
        let steady = if without(Rule::FoundByAll) { Some(now) } else { steady };
        let bound = steady.map_or(0, |steady| steady.0.saturating_sub(FOUND_WITHIN.0));
        self.bound.fetch_max(bound, Ordering::Relaxed);
        if self.ask_from() == NOT_KNOWN && steady.is_some_and(|steady| steady > until) {
            let ask_from = until.saturating_add(ASK_AFTER);
            self.owed_at.store(ask_from.0, Ordering::Relaxed);
            self.ask_from.store(ask_from.0, Ordering::Release);
        }
    }

    /// It is there. If another server has taken its place, other hosts may learn that later.
    fn found(&self, now: Time, is_another: bool) {
        // The first time, there was no outage.
        if self.is_starting.swap(false, Ordering::Relaxed) {
            self.since.store(now.0, Ordering::Relaxed);
            self.bound.store(now.0, Ordering::Relaxed);
        }
        let is_soon = now <= self.bound().saturating_add(SHORT);
        let is_short = (is_soon && !is_another) || without(Rule::AskLater);
        if !is_short {
            let length = now.saturating_since(self.since());
            self.longest.fetch_max(length.0, Ordering::Relaxed);
            self.ask_from.store(NOT_KNOWN.0, Ordering::Relaxed);
        } else if without(Rule::StaysOwed) {
            self.owed_at.store(0, Ordering::Relaxed);
        }
        if is_short && without(Rule::StaysLater) {
            self.ask_from.store(now.0, Ordering::Relaxed);
        }
        // A thread that sees this sees also what was written before.
        self.until.store(now.0.max(1), Ordering::Release);
    }

    /// It was away already when this process was started, and there were this many hosts before.
    pub(crate) fn goes_on(&self, hosts: u32, now: Time) {
        self.note_failure();
        self.since.fetch_min(now.0, Ordering::Relaxed);
        self.hosts.store(hosts, Ordering::Relaxed);
    }

    /// An attempt to reach it has failed, so it was away before this process was started, and it
    /// is not known for how long.
    pub(crate) fn note_failure(&self) {
        self.is_starting.store(false, Ordering::Relaxed);
    }

    /// Whether the store can be asked about a limit that has shares. `after` is how long an outage
    /// must be for shares to begin.
    pub(crate) fn is_over(&self, now: Time, after: Nanos) -> bool {
        let Some(until) = self.until() else { return false };
        let is_in_time = || self.valid_until() > now.saturating_add(LEAST_VALIDITY);
        self.is_without_shares(until, after) || (now >= self.ask_from() && is_in_time())
    }

    /// Whether an outage until then was too short for shares of such a limit.
    fn is_without_shares(&self, until: Time, after: Nanos) -> bool {
        until.saturating_since(self.since()) < after
    }

    /// For how long at most cells of such a limit may be valid that are asked for now.
    pub(crate) fn validity(&self, now: Time, after: Nanos) -> Nanos {
        match self.until() {
            Some(until) if self.is_without_shares(until, after) => Nanos(u64::MAX),
            _ => self.valid_until().saturating_since(now),
        }
    }

    /// Until when at most cells may be valid.
    fn valid_until(&self) -> Time {
        if without(Rule::OverBefore) {
            return Time(u64::MAX);
        }
        self.bound().saturating_add(SPENT_AFTER)
    }

    /// How long ago a key owed a full burst at the end of an outage, because shares may have
    /// allowed it. A reset after that has forgiven it.
    pub(crate) fn owed_ago(&self, now: Time, after: Nanos, reset: Time) -> Micros {
        let owed_at = Time(self.owed_at.load(Ordering::Relaxed));
        let longest = Nanos(self.longest.load(Ordering::Relaxed));
        if owed_at == Time(0) || longest < after || reset > owed_at {
            return Ask::NOTHING_OWED;
        }
        Micros(now.saturating_since(owed_at).0 / 1_000)
    }

    /// When a full burst was last owed, as far as a share is concerned: all that the store had
    /// lent was spent by then. `None` if no share is used now. The store was missed `missed` ago
    /// at least, and a process of this host has used it `used` ago.
    pub(crate) fn shares_from(
        &self,
        now: Time,
        after: Nanos,
        missed: Nanos,
        used: Nanos,
    ) -> Option<Time> {
        let from = Time(self.lost.load(Ordering::Relaxed)).saturating_add(SPENT_AFTER);
        let has_begun = self.until().is_none_or(|until| until >= from) || without(Rule::NotBegun);
        let is_used = missed <= SEEN_AWAY_FOR
            && used >= HOST_USES_IT_FOR
            && has_begun
            && !self.is_over(now, after);
        is_used.then_some(from)
    }

    /// Whether this process is about to reach it for the first time.
    pub(crate) fn is_starting(&self) -> bool {
        self.is_starting.load(Ordering::Relaxed)
    }

    /// Since when it is away, or was if it is still not asked.
    pub(crate) fn since(&self) -> Time {
        Time(self.since.load(Ordering::Relaxed))
    }

    /// When it was last back. `None`: it is away.
    fn until(&self) -> Option<Time> {
        let until = self.until.load(Ordering::Acquire);
        (until > 0).then_some(Time(until))
    }

    fn bound(&self) -> Time {
        Time(self.bound.load(Ordering::Relaxed))
    }

    fn ask_from(&self) -> Time {
        Time(self.ask_from.load(Ordering::Acquire))
    }

    /// How many hosts shared the limits when it went away; 0 if that was not known.
    pub(crate) fn hosts(&self) -> u32 {
        self.hosts.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static RULE: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn without(rule: Rule) -> bool {
        RULE.get() == Some(rule)
    }

    const fn at(ms: u64) -> Time {
        Time(1_000_000_000_000 + ms * 1_000_000)
    }

    fn to(since: u64, server: u64) -> Option<Connected> {
        Some(Connected { since: at(since), server })
    }

    fn is_over(outage: &Outage, ms: u64) -> bool {
        outage.is_over(at(ms), Nanos::ZERO)
    }

    /// For how many ms a full burst has drained, if shares may have allowed it.
    fn owed_ago(outage: &Outage, ms: u64) -> Option<u64> {
        let ago = outage.owed_ago(at(ms), Nanos::ZERO, Time::ZERO);
        (ago != Ask::NOTHING_OWED).then_some(ago.0 / 1_000)
    }

    fn lost(outage: &Outage, ms: u64, hosts: u32) {
        outage.note(None, None, at(ms), || hosts);
    }

    /// It is there, and was there for long enough at `steady`.
    fn there(outage: &Outage, ms: u64, steady: u64) {
        outage.note(to(0, 1), (steady > 0).then(|| at(steady)), at(ms), || 0);
    }

    #[test]
    fn after_a_long_outage_the_store_is_asked_later_and_told_what_may_be_owed() {
        let outage = Outage::new(at(0));
        assert!(outage.is_starting() && !is_over(&outage, 1_000));
        there(&outage, 2_000, 0);
        assert!(is_over(&outage, 2_000), "the first time, there is no haste");
        assert_eq!(owed_ago(&outage, 2_000), None);
        there(&outage, 5_000, 4_900);
        lost(&outage, 5_000, 3);
        lost(&outage, 5_100, 4);
        assert_eq!((outage.since(), outage.until(), outage.hosts()), (at(5_000), None, 3));
        there(&outage, 7_600, 4_900);
        assert!(is_over(&outage, 7_600) && owed_ago(&outage, 7_600).is_none(), "short");
        // No share begins before 8250.
        assert_eq!(outage.validity(at(7_600), Nanos::ZERO), Nanos::from_millis(650));
        assert!(is_over(&outage, 8_199) && !is_over(&outage, 8_200));
        there(&outage, 8_200, 8_150);
        assert_eq!(outage.validity(at(8_200), Nanos::ZERO), Nanos::from_millis(3_300));

        there(&outage, 20_000, 20_000);
        lost(&outage, 20_000, 3);
        there(&outage, 22_851, 20_000);
        assert!(!is_over(&outage, 24_350));
        there(&outage, 24_350, 24_150);
        assert!(!is_over(&outage, 24_350));
        there(&outage, 24_351, 24_150);
        assert!(is_over(&outage, 24_351));
        assert_eq!(outage.validity(at(24_351), Nanos::ZERO), Nanos::from_millis(3_149));
        assert_eq!([24_351, 30_000].map(|ms| owed_ago(&outage, ms)), [Some(0), Some(5_649)]);
        let told = |after, reset| {
            outage.owed_ago(at(24_351), Nanos::from_millis(after), at(reset)) == Micros::ZERO
        };
        assert!(told(2_851, 0) && !told(2_852, 0), "its shares begin later");
        let resets = [24_350, 24_351, 24_352].map(|reset| told(0, reset));
        assert_eq!(resets, [true, true, false], "shares are used until 24351");
        lost(&outage, 24_450, 3);
        there(&outage, 24_460, 24_350);
        assert!(
            is_over(&outage, 24_460) && owed_ago(&outage, 24_460) == Some(109),
            "it stays owed"
        );
    }

    #[test]
    fn limits_whose_shares_begin_later_are_asked_sooner() {
        let outage = Outage::new(at(0));
        there(&outage, 10, 0);
        there(&outage, 4_000, 4_000);
        lost(&outage, 4_000, 3);
        there(&outage, 9_000, 4_000);
        let after = Nanos::from_millis;
        assert!(
            !outage.is_over(at(9_000), Nanos::ZERO) && !outage.is_over(at(9_000), after(5_000))
        );
        assert!(outage.is_over(at(9_000), after(5_001)));
        assert_eq!(outage.validity(at(9_000), after(5_001)), Nanos(u64::MAX));
    }

    #[test]
    fn a_store_that_is_soon_lost_again_was_never_back() {
        let outage = Outage::new(at(0));
        there(&outage, 10, 0);
        there(&outage, 4_000, 4_000);
        lost(&outage, 4_000, 3);
        there(&outage, 7_000, 4_000);
        lost(&outage, 7_900, 2);
        there(&outage, 7_950, 4_000);
        assert_eq!((outage.since(), outage.hosts()), (at(4_000), 3));
        there(&outage, 9_450, 9_400);
        assert!(!is_over(&outage, 9_449) && is_over(&outage, 9_450));
        lost(&outage, 10_000, 2);
        assert_eq!((outage.since(), outage.hosts()), (at(4_000), 2));
        there(&outage, 10_100, 9_900);
        assert!(is_over(&outage, 10_100), "that is short");

        // It comes and goes, and is never there for long enough.
        lost(&outage, 11_000, 2);
        there(&outage, 11_100, 9_900);
        assert!(is_over(&outage, 11_100));
        lost(&outage, 11_200, 2);
        there(&outage, 12_601, 9_900);
        assert!(!is_over(&outage, 14_000));
        there(&outage, 14_101, 14_000);
        assert!(is_over(&outage, 14_101));
    }

    #[test]
    fn a_store_that_was_lost_unnoticed_is_found_again() {
        let outage = Outage::new(at(0));
        there(&outage, 10, 0);
        there(&outage, 4_000, 4_000);
        lost(&outage, 4_000, 3);
        there(&outage, 9_000, 4_000);
        outage.note(to(9_700, 1), Some(at(4_000)), at(9_710), || 3);
        there(&outage, 10_600, 10_500);
        assert!(!is_over(&outage, 11_209));
        there(&outage, 11_210, 11_100);
        assert!(is_over(&outage, 11_210));
        there(&outage, 19_900, 19_800);
        outage.note(to(20_000, 1), Some(at(19_900)), at(20_010), || 3);
        assert!(is_over(&outage, 20_010), "that was short");
    }

    #[test]
    fn another_server_is_asked_later() {
        let outage = Outage::new(at(0));
        there(&outage, 10, 0);
        there(&outage, 4_000, 4_000);
        lost(&outage, 4_000, 3);
        outage.note(to(4_500, 2), Some(at(4_000)), at(4_500), || 3);
        assert!(!is_over(&outage, 5_999));
        outage.note(to(4_500, 2), Some(at(5_900)), at(6_000), || 3);
        assert!(is_over(&outage, 6_000));
        outage.note(to(7_000, 3), Some(at(6_900)), at(7_000), || 3);
        assert!(is_over(&outage, 7_000), "it was not missed");
    }

    #[test]
    fn a_process_that_is_started_in_an_outage_waits_after_it_too() {
        let outage = Outage::new(at(0));
        outage.note_failure();
        assert!(!outage.is_starting());
        there(&outage, 20, 0);
        there(&outage, 1_520, 1_500);
        assert!(!is_over(&outage, 1_519) && is_over(&outage, 1_520));
    }

    #[test]
    fn a_process_that_is_started_again_in_an_outage_goes_on_with_its_share() {
        let outage = Outage::new(at(0));
        outage.goes_on(3, at(10));
        assert_eq!((outage.hosts(), outage.is_starting()), (3, false));
        let [missed, used] = [100, 60_000].map(Nanos::from_millis);
        let from = outage.shares_from(at(100), Nanos::ZERO, missed, used);
        assert_eq!(from, Some(at(3_500)));
        there(&outage, 5_000, 0);
        there(&outage, 6_500, 6_400);
        assert!(!is_over(&outage, 6_499) && is_over(&outage, 6_500));
    }

    #[test]
    fn a_share_begins_when_all_that_was_lent_is_spent() {
        let outage = Outage::new(at(0));
        there(&outage, 10, 0);
        there(&outage, 4_000, 4_000);
        lost(&outage, 4_000, 3);
        let from = |ms, missed, used| {
            let [missed, used] = [missed, used].map(Nanos::from_millis);
            outage.shares_from(at(ms), Nanos::ZERO, missed, used)
        };
        assert_eq!(from(7_000, 0, 3_000), Some(at(7_500)));
        assert_eq!(from(7_000, 1_300, 2_500), Some(at(7_500)));
        assert_eq!(from(7_000, 1_301, 3_000), None, "it may be back");
        assert_eq!(from(7_000, 0, 2_499), None, "another agent uses it");
        there(&outage, 7_100, 4_000);
        assert_eq!(from(7_200, 100, 3_000), None, "it has not begun");
        lost(&outage, 8_000, 3);
        assert_eq!(from(8_100, 100, 3_000), Some(at(11_500)));
        there(&outage, 11_600, 4_000);
        assert_eq!(from(11_700, 100, 3_000), Some(at(11_500)), "it has");
        there(&outage, 13_100, 13_000);
        assert_eq!(from(13_100, 100, 3_000), None, "it is asked");
    }

    /// Hosts and a store that comes and goes, for all of them alike. A host looks for it again and
    /// again, as `gcra-store` does, and asks whenever it may.
    mod with_a_store_that_comes_and_goes {
        use std::ops::Range;

        use fastrand::Rng;

        use super::*;

        /// The state of a host. Times are in milliseconds.
        struct Host {
            outage: Outage,
            is_away: bool,
            look: Look,
            missed: u64,
            used: u64,
            /// When it asks next, if it may.
            asks: u64,
            well_since: u64,
            /// When it was known that the store had been there for long enough.
            steady: Option<u64>,
            connected: u64,
        }

        /// A look that is under way.
        #[derive(Clone, Copy)]
        struct Look {
            began: u64,
            ends: u64,
            finds: bool,
            /// It needs another connection.
            anew: bool,
        }

        impl Look {
            /// The next one of a host that has a connection, or none.
            fn next(random: &mut Rng, store: &[bool], now: u64, calm: bool, has: bool) -> Self {
                let every = if calm { 500 } else { 62 };
                let began = now + random.u64(every * 3 / 4..=every * 5 / 4);
                let trip = random.u64(1..=10);
                if has && is_there(store, began, began + trip) {
                    return Self { began, ends: began + trip, finds: true, anew: false };
                }
                // A server that is gone may refuse, may say nothing, or answer when it goes on.
                let kind = random.u8(..3);
                let first = if has && kind > 0 { began + 50 } else { began };
                let look = |ends, finds| Self { began, ends, finds, anew: true };
                for so_far in (0..=496).step_by(62).map(|after| first + after) {
                    let ends = so_far + trip;
                    if is_there(store, so_far, ends) {
                        return look(ends, true);
                    }
                    if kind == 0 {
                        return look(ends, false);
                    }
                    let next =
                        (so_far + 1..so_far + 62).find(|&at| is_there(store, at, at + trip));
                    if let (2, Some(at)) = (kind, next) {
                        return look(at + trip, true);
                    }
                }
                look(first + 550, false)
            }
        }

        /// Whether the store is there all the time.
        fn is_there(store: &[bool], from: u64, to: u64) -> bool {
            let [from, to] = [from, to].map(|ms| usize::try_from(ms).unwrap());
            store[from..=to].iter().all(|there| *there)
        }

        /// When the store granted cells, until when they are valid, and until when shares may have
        /// been used as the ask says.
        #[derive(Clone, Copy, Debug)]
        struct Grant {
            at: u64,
            until: u64,
            said: u64,
        }

        /// The actions of hosts.
        #[derive(Default)]
        struct Done {
            grants: Vec<Grant>,
            /// When a share was used, and when all that was granted was taken to be spent.
            shares: Vec<(u64, u64)>,
            /// How often it was asked, and how often it would have been if there were no shares.
            asked: [u32; 2],
        }

        impl Done {
            /// Describes the first fault, if there is one.
            fn fault(&self) -> Option<String> {
                let mut grants = self.grants.iter().peekable();
                let (mut lent, mut shares) = (None::<Grant>, self.shares.iter().peekable());
                for &(now, spent) in &self.shares {
                    while let Some(grant) = grants.next_if(|grant| grant.at <= now) {
                        lent = lent.filter(|lent| lent.until > grant.until).or(Some(*grant));
                    }
                    if lent.is_some_and(|lent| lent.until > spent) {
                        return Some(format!("share at {now} from {spent}, {lent:?}"));
                    }
                }
                let mut share = 0;
                for grant in &self.grants {
                    while let Some((now, _)) = shares.next_if(|(now, _)| *now <= grant.at) {
                        share = *now;
                    }
                    if share > grant.said {
                        return Some(format!("{grant:?}, share until {share}"));
                    }
                }
                None
            }
        }

        const END: usize = 28_000;

        /// The store is there for up to `up` and away for up to `down`, and sometimes away or
        /// there for 4 s.
        fn by_chance(random: &mut Rng, up: u64, down: u64) -> Vec<bool> {
            let mut store = vec![true; 2_000];
            while store.len() < END + 2_000 {
                for (there, most) in [(false, down), (true, up)] {
                    let took = if random.u8(..8) == 0 { 4_000 } else { random.u64(1..=most) };
                    store.extend((0..took).map(|_| there));
                }
            }
            store
        }

        /// It hangs for so long in each period.
        fn in_a_rhythm(hang: usize, period: usize) -> Vec<bool> {
            (0..END + 2_000).map(|ms| ms < 2_000 || (ms - 2_000) % period >= hang).collect()
        }

        fn run(random: &mut Rng, store: &[bool]) -> Done {
            let mut hosts: Vec<Host> = (0..3)
                .map(|_| Host {
                    outage: Outage::new(at(0)),
                    is_away: true,
                    look: Look { began: 1, ends: 2, finds: true, anew: true },
                    missed: 0,
                    used: 0,
                    asks: 0,
                    well_since: 0,
                    steady: None,
                    connected: 0,
                })
                .collect();
            let busy: [u64; 3] = core::array::from_fn(|_| [10, 300, 2_500][random.usize(..3)]);
            let mut done = Done::default();
            for now in 0..u64::try_from(END).unwrap() {
                for (host, busy) in hosts.iter_mut().zip(busy) {
                    let mut lost = None;
                    if host.look.ends == now {
                        let look = host.look;
                        if !look.finds {
                            lost = Some(look.began);
                        } else {
                            if host.is_away {
                                host.well_since = now;
                            }
                            if host.is_away || look.anew {
                                host.connected = now;
                            } else if look.began >= host.connected + 150 {
                                host.steady = Some(look.began);
                            }
                            host.is_away = false;
                        }
                        let is_calm = look.finds && now >= host.well_since + 3_000;
                        host.look = Look::next(random, store, now, is_calm, look.finds);
                    }
                    // Others sign, and ask about other keys.
                    if !host.is_away && host.asks <= now {
                        host.asks = now + random.u64(1..=busy);
                        if is_there(store, now, now) {
                            done.asked[1] += 1;
                            if host.outage.is_over(at(now), Nanos::ZERO) {
                                done.asked[0] += 1;
                                let validity = host.outage.validity(at(now), Nanos::ZERO);
                                let until = now + 2_000.min(validity.0 / 1_000_000);
                                let owed_at = host.outage.owed_at.load(Ordering::Relaxed);
                                let said = owed_at.saturating_sub(at(0).0) / 1_000_000;
                                done.grants.push(Grant { at: now, until, said });
                            }
                        } else {
                            lost = Some(now);
                            if host.look.finds && !host.look.anew && host.look.began <= now {
                                host.look.finds = false;
                            }
                        }
                    }
                    if let Some(began) = lost {
                        host.missed = host.missed.max(began);
                        if !host.is_away && host.look.began > now {
                            // It has lost its connection, and looks for another one soon.
                            host.look = Look::next(random, store, now, false, false);
                        }
                        host.is_away = true;
                    }
                    let steady = host.steady.map(at);
                    let connected = (!host.is_away).then(|| to(host.connected, 1)).flatten();
                    host.outage.note(connected, steady, at(now), || 3);
                    if host.outage.is_over(at(now + 300), Nanos::ZERO) {
                        host.used = now;
                    }
                    let (missed, used) = (now - host.missed, now - host.used);
                    let [missed, used] = [missed, used].map(Nanos::from_millis);
                    let from = host.outage.shares_from(at(now), Nanos::ZERO, missed, used);
                    let from = from.map(|from| (from.0 - at(0).0) / 1_000_000);
                    if let Some(from) = from.filter(|from| *from < now) {
                        done.shares.push((now, from));
                    }
                }
            }
            done
        }

        fn scale() -> u64 {
            std::env::var("GCRA_LEASE_SCALE").ok().and_then(|it| it.parse().ok()).unwrap_or(1)
        }

        /// Runs of all kinds. Returns how often shares were used, and the first fault.
        fn runs(seeds: Range<u64>) -> (usize, Option<String>) {
            let mut used = 0;
            for seed in seeds {
                let mut random = Rng::with_seed(seed);
                let up = [60, 150, 300, 500, 1_000, 3_000][random.usize(..6)];
                let down = [100, 400, 1_500, 3_000][random.usize(..4)];
                let store = by_chance(&mut random, up, down);
                let done = run(&mut random, &store);
                used += done.shares.len();
                if let Some(fault) = done.fault() {
                    return (used, Some(format!("seed {seed}: {fault}")));
                }
            }
            (used, None)
        }

        #[test]
        fn no_host_uses_its_share_while_cells_of_the_store_may_be_spent() {
            let (used, fault) = runs(0..60 * scale());
            assert_eq!(fault, None);
            assert!(used > 10_000, "{used}");
        }

        #[test]
        fn each_rule_is_needed() {
            // The first seed is near to one that notices, so that the test does not take long.
            for (rule, first) in [
                (Rule::FoundByAll, 670),
                (Rule::StaysLater, 20),
                (Rule::OverBefore, 160),
                (Rule::NotBegun, 340),
                (Rule::AskLater, 0),
                (Rule::FoundAgain, 1110),
                (Rule::StaysOwed, 0),
            ] {
                RULE.set(Some(rule));
                let (_, fault) = runs(first..first + 5_000);
                assert!(fault.is_some(), "without {rule:?} nothing goes wrong");
            }
        }

        /// Hiccups, of which no share comes, cost no more than where there are no shares; also
        /// after an outage of which shares come, which has its price once.
        #[test]
        fn after_a_hiccup_the_store_is_asked_at_once() {
            for (hang, period) in [
                (200, 1_000),
                (400, 1_000),
                (400, 1_500),
                (200, 3_000),
                (400, 3_000),
                (400, 8_000),
                (150, 1_250),
                (80, 1_380),
                (200, 800),
                (150, 400),
                (200, 500),
                (400, 700),
            ] {
                for (outage, least) in [(0, 0.95), (3_000, 0.85)] {
                    let mut asked = [0; 2];
                    for seed in 0..5 {
                        let mut store = in_a_rhythm(hang, period);
                        store[2_000..2_000 + outage].fill(false);
                        let done = run(&mut Rng::with_seed(seed), &store);
                        assert_eq!(done.fault(), None, "{hang} {period}");
                        asked = [0, 1].map(|it: usize| asked[it] + done.asked[it]);
                    }
                    let [with, without] = asked.map(f64::from);
                    let what = format!("{hang} ms every {period} ms, after {outage} ms");
                    assert!(with > least * without, "{what}: {asked:?}");
                }
            }
        }
    }
}

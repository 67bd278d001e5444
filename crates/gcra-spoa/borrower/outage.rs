//! [`Outage`]: when a part of the store was away at last, and from when on it is asked again.
//!
//! While the store is away, each host may allow its share of a limit (`decide_shared.rs`). All
//! shares together stay within the limit; but what they have allowed is not in the store, and
//! hosts lose the store and find it again one after the other. So for limits that have shares
//! there are rules:
//!
//! * A host uses its share only if it has seen not long ago that the store is away
//!   ([`SEEN_AWAY_FOR`]), and not if another process of the host uses it ([`HOST_USES_IT_FOR`]).
//! * Shares begin as if all that the store has lent were spent at last [`SPENT_AFTER`] after the
//!   host has lost it.
//! * A host asks again some time after it has found the store ([`ASK_AFTER`]). By then no host
//!   uses its share: all have either found the store, or have not seen for too long that it is
//!   away.
//! * For a while, each ask says that the key owes what shares may have allowed ([`Outage::owes`]):
//!   a full burst at that moment.
//! * A store that is lost again soon ([`CALM`]) was not back: the outage goes on. So hosts do not
//!   ask a store that comes and goes, of which other hosts may see only that it goes.
//!
//! An outage that is too short for shares to begin has none of this.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use gcra_table::{Nanos, Quota, Time};

/// In an outage that a host has seen to be this short, no host uses its share: it begins
/// [`SPENT_AFTER`] after the store was missed, which a host may notice 1.25 s later than another
/// one.
const SHORT: Nanos = Nanos::from_millis(300);

/// How old an attempt to reach the store may be, whose failure says that the store is away. The
/// next attempt fails within 750 ms after it has begun.
const SEEN_AWAY_FOR: Nanos = Nanos::from_millis(1_400);

/// A share is not used if a process of this host has used the store this short a time ago. Each
/// says so all the time, but it may be stopped for a moment.
pub(super) const HOST_USES_IT_FOR: Nanos = Nanos::from_millis(2_500);

/// How long after it has found the store again a host asks. An attempt that begins when the store
/// is back does not fail, so from `SEEN_AWAY_FOR` after that, no host uses its share.
const ASK_AFTER: Nanos = Nanos::from_millis(1_500);

/// When a host has spent all that the store has lent it, after another host has lost the store. A
/// lease is valid for 2 s at most; and if the store comes back for a moment that is noticed by the
/// one host only, it asks at once, until [`SHORT`] after it had lost it.
const SPENT_AFTER: Nanos = Nanos::from_millis(3_500);

/// A store that is lost so short a time after it was found was not back.
const CALM: Nanos = Nanos::from_millis(3_000);

/// When a part of the store was away. Times are of the table's clock, in nanoseconds.
#[derive(Debug)]
pub(super) struct Outage {
    /// When it was lost for the first time.
    since: AtomicU64,
    /// When it was lost for the last time while it was asked.
    lost: AtomicU64,
    /// When it was back; 0 while it is away.
    until: AtomicU64,
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
            lost: AtomicU64::new(now.0),
            until: AtomicU64::new(0),
            hosts: AtomicU32::new(0),
            is_starting: AtomicBool::new(true),
        }
    }

    /// Notes whether it is away now.
    pub(super) fn note(&self, is_away: bool, now: Time, hosts: impl FnOnce() -> u32) {
        match (self.until(), is_away) {
            (Some(until), true) => {
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
                self.until.store(0, Ordering::Relaxed);
            }
            (None, false) => {
                // The first time, there was no outage.
                if self.is_starting.swap(false, Ordering::Relaxed) {
                    self.since.store(now.0, Ordering::Relaxed);
                }
                self.until.store(now.0.max(1), Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// It was away already when this process was started, and there were this many hosts before.
    pub(super) fn goes_on(&self, hosts: u32, now: Time) {
        self.note_failure(now);
        self.hosts.store(hosts, Ordering::Relaxed);
    }

    /// An attempt to reach it has failed, so it was away before this process was started.
    pub(super) fn note_failure(&self, now: Time) {
        if self.is_starting.swap(false, Ordering::Relaxed) {
            let long_ago = now.0.saturating_sub(SHORT.0);
            self.since.fetch_min(long_ago, Ordering::Relaxed);
        }
    }

    /// From when on the store is asked about a limit that has shares, if it is back. `after` is
    /// how long an outage must be for shares to begin.
    fn ask_from(&self, after: Nanos) -> Option<Time> {
        let until = self.until()?;
        let is_long = until.saturating_since(self.since()) >= after.max(SHORT);
        Some(if is_long { until.saturating_add(ASK_AFTER) } else { until })
    }

    /// Whether the store can be asked about such a limit.
    pub(super) fn is_over(&self, now: Time, after: Nanos) -> bool {
        self.ask_from(after).is_some_and(|from| now >= from)
    }

    /// How many cells a key owes at least now, by what shares may have allowed: a full burst at
    /// the end of the outage.
    pub(super) fn owes(&self, now: Time, after: Nanos, quota: Quota) -> u32 {
        let from = self.ask_from(after).filter(|from| self.until() < Some(*from));
        let drained = from.map(|from| now.saturating_since(from));
        drained.map_or(0, |drained| {
            let left = quota.drain_time().saturating_sub(drained).0;
            u32::try_from(left.div_ceil(quota.emission_interval().0)).unwrap_or(u32::MAX)
        })
    }

    /// When a full burst was owed at last, as far as a share is concerned: all that the store had
    /// lent was spent by then. `None` if no share is used now. The store was missed `missed` ago
    /// at least, and a process of this host has used it `used` ago.
    pub(super) fn shares_from(
        &self,
        now: Time,
        after: Nanos,
        missed: Nanos,
        used: Nanos,
    ) -> Option<Time> {
        let is_used =
            missed <= SEEN_AWAY_FOR && used >= HOST_USES_IT_FOR && !self.is_over(now, after);
        is_used.then(|| Time(self.lost.load(Ordering::Relaxed)).saturating_add(SPENT_AFTER))
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

    fn is_over(outage: &Outage, ms: u64) -> bool {
        outage.is_over(at(ms), Nanos::ZERO)
    }

    fn owes(outage: &Outage, ms: u64) -> u32 {
        outage.owes(at(ms), Nanos::ZERO, Quota::new(Nanos::from_millis(100), 5).unwrap())
    }

    #[test]
    fn after_a_long_outage_the_store_is_asked_later_and_told_what_may_be_owed() {
        let outage = Outage::new(at(0));
        assert!(outage.is_starting() && !is_over(&outage, 1_000));
        outage.note(false, at(2_000), || 0);
        assert!(is_over(&outage, 2_000), "the first time, there is no haste");
        assert_eq!(owes(&outage, 2_000), 0);
        outage.note(true, at(5_000), || 3);
        outage.note(true, at(5_100), || 4);
        assert_eq!((outage.since(), outage.until(), outage.hosts()), (at(5_000), None, 3));
        outage.note(false, at(5_299), || 0);
        assert!(is_over(&outage, 5_299) && owes(&outage, 5_299) == 0, "short");

        outage.note(true, at(9_000), || 3);
        outage.note(false, at(9_500), || 0);
        assert!(!is_over(&outage, 10_999) && is_over(&outage, 11_000));
        let owed = [11_000, 11_001, 11_100, 11_101, 11_499, 11_500, 14_000];
        assert_eq!(owed.map(|ms| owes(&outage, ms)), [5, 5, 4, 4, 1, 0, 0]);
        let later = Nanos::from_millis(501);
        assert!(outage.is_over(at(9_500), later), "no shares were used of such a limit");
    }

    #[test]
    fn a_store_that_is_soon_lost_again_was_never_back() {
        let outage = Outage::new(at(0));
        outage.note(false, at(10), || 0);
        outage.note(true, at(4_000), || 3);
        outage.note(false, at(7_000), || 3);
        outage.note(true, at(7_900), || 2);
        outage.note(false, at(7_950), || 2);
        assert_eq!((outage.since(), outage.hosts()), (at(4_000), 3));
        assert!(!is_over(&outage, 9_449) && is_over(&outage, 9_450));
        outage.note(true, at(10_000), || 2);
        outage.note(false, at(10_100), || 2);
        assert_eq!((outage.since(), outage.hosts()), (at(4_000), 2));
        assert!(!is_over(&outage, 11_599) && is_over(&outage, 11_600));

        // Short ones, the one soon after the other.
        outage.note(true, at(20_000), || 2);
        outage.note(false, at(20_200), || 2);
        assert!(is_over(&outage, 20_200));
        outage.note(true, at(20_300), || 2);
        outage.note(false, at(20_400), || 2);
        assert!(!is_over(&outage, 21_899) && is_over(&outage, 21_900));
    }

    #[test]
    fn a_process_that_is_started_in_an_outage_waits_after_it_too() {
        let outage = Outage::new(at(0));
        outage.note_failure(at(10));
        assert!(!outage.is_starting());
        outage.note(false, at(20), || 0);
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
        outage.note(false, at(5_000), || 0);
        assert!(!is_over(&outage, 6_499) && is_over(&outage, 6_500));
    }

    #[test]
    fn a_share_begins_when_all_that_was_lent_is_spent() {
        let outage = Outage::new(at(0));
        outage.note(false, at(10), || 0);
        outage.note(true, at(4_000), || 3);
        let from = |ms, missed, used| {
            let [missed, used] = [missed, used].map(Nanos::from_millis);
            outage.shares_from(at(ms), Nanos::ZERO, missed, used)
        };
        assert_eq!(from(7_000, 0, 3_000), Some(at(7_500)));
        assert_eq!(from(7_000, 1_400, 2_500), Some(at(7_500)));
        assert_eq!(from(7_000, 1_401, 3_000), None, "it may be back");
        assert_eq!(from(7_000, 0, 2_499), None, "another agent uses it");
        outage.note(false, at(7_100), || 3);
        assert_eq!(from(7_200, 100, 3_000), Some(at(7_500)));
        assert_eq!(from(8_600, 100, 3_000), None, "it is asked");
        outage.note(true, at(8_700), || 3);
        assert_eq!(from(8_800, 100, 3_000), Some(at(12_200)));
    }

    /// Hosts and a store that comes and goes, for all of them alike. A host looks for it again and
    /// again, as `gcra-store` does, and asks whenever it may.
    mod with_a_store_that_comes_and_goes {
        use fastrand::Rng;

        use super::*;

        /// What a host knows and does. Times are in milliseconds.
        struct Host {
            outage: Outage,
            is_away: bool,
            /// When the look under way began, and when it ends. A failed one is short or long.
            look: (u64, u64),
            missed: u64,
            used: u64,
            /// When it asks next, if it may.
            asks: u64,
            well_since: u64,
            /// Its asks say what was owed at that moment.
            says_from: u64,
        }

        fn look_at(random: &mut Rng, store: &[bool], now: u64, is_calm: bool) -> (u64, u64) {
            let every = if is_calm { 500 } else { 125 };
            let begin = now + random.u64(every * 3 / 4..=every * 5 / 4);
            // A server that is gone may refuse, or say nothing.
            let is_slow = !is_there(store, begin, begin) && random.bool();
            (begin, begin + if is_slow { 550 } else { random.u64(1..=10) })
        }

        /// Whether the store is there all the time.
        fn is_there(store: &[bool], from: u64, to: u64) -> bool {
            let [from, to] = [from, to].map(|ms| usize::try_from(ms).unwrap());
            store[from..=to].iter().all(|there| *there)
        }

        /// What hosts did.
        #[derive(Default)]
        struct Done {
            /// When the store granted cells, and until when the ask said that shares may have
            /// been used.
            grants: Vec<(u64, u64)>,
            /// When a share was used, and when all that was granted was taken to be spent.
            shares: Vec<(u64, u64)>,
        }

        /// The store is there for up to `up` and away for up to `down`, and sometimes for 4 s.
        fn run(seed: u64, up: u64, down: u64) -> Done {
            let mut random = Rng::with_seed(seed);
            let mut store = vec![true; 2_000];
            while store.len() < 30_000 {
                for (there, most) in [(false, down), (true, up)] {
                    let took = if random.u8(..8) == 0 { 4_000 } else { random.u64(1..=most) };
                    store.extend((0..took).map(|_| there));
                }
            }
            let mut hosts: Vec<Host> = (0..3)
                .map(|_| Host {
                    outage: Outage::new(at(0)),
                    is_away: true,
                    look: (1, 2),
                    missed: 0,
                    used: 0,
                    asks: 0,
                    well_since: 0,
                    says_from: 0,
                })
                .collect();
            let busy: [u64; 3] = core::array::from_fn(|_| [10, 300, 2_500][random.usize(..3)]);
            let mut done = Done::default();
            for now in 0..28_000 {
                for (host, busy) in hosts.iter_mut().zip(busy) {
                    let mut seen = None;
                    if host.look.1 == now {
                        let (began, _) = host.look;
                        seen = Some((is_there(&store, began, now), began));
                    }
                    // Others sign, and ask about other keys.
                    if !host.is_away && host.asks <= now {
                        host.asks = now + random.u64(1..=busy);
                        let is_there = is_there(&store, now, now);
                        if is_there {
                            if host.outage.is_over(at(now), Nanos::ZERO) {
                                let from = host.outage.ask_from(Nanos::ZERO).unwrap();
                                if host.outage.until() < Some(from) {
                                    host.says_from = (from.0 - at(0).0) / 1_000_000;
                                }
                                done.grants.push((now, host.says_from));
                            }
                        } else {
                            seen = Some((false, now));
                        }
                    }
                    if let Some((there, began)) = seen {
                        if there && host.is_away {
                            host.well_since = now;
                        }
                        if !there {
                            host.missed = host.missed.max(began);
                        }
                        host.is_away = !there;
                        let is_calm = there && now >= host.well_since + 3_000;
                        host.look = look_at(&mut random, &store, now, is_calm);
                    }
                    host.outage.note(host.is_away, at(now), || 3);
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

        #[test]
        fn no_host_uses_its_share_while_cells_of_the_store_may_be_spent() {
            let ups = [150, 300, 1_000, 3_000];
            let mut used = 0;
            for (seed, up) in (0..60).zip(ups.into_iter().cycle()) {
                let Done { grants, shares } = run(seed, up, 1_500);
                used += shares.len();
                for &(now, spent) in &shares {
                    let before = grants.iter().rev().find(|(grant, _)| *grant <= now);
                    let lent = before.map_or(0, |(grant, _)| grant + 2_000);
                    assert!(lent <= spent, "seed {seed}: share at {now}, lent until {lent}");
                }
                for &(now, said) in &grants {
                    let before = shares.iter().rev().find(|(share, _)| *share <= now);
                    let share = before.map_or(0, |(share, _)| *share);
                    assert!(share <= said, "seed {seed}: ask at {now}, share until {share}");
                }
            }
            assert!(used > 10_000, "{used}");
        }
    }
}

//! Counters of decisions and of their clients: counted for each policy where decisions are made,
//! and added up when they are read.
//!
//! Each worker counts on cache lines of its own, which no other thread writes: an addition is a
//! load, an add and a store, without a locked instruction. A registry keeps the counters of a
//! policy under its name, so that a reload does not reset them.

// ADR 32: Counting takes no locked instruction, and names are sampled.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_utils::CachePadded;
use gcra_policy::KnownClients;
use gcra_policy::policy::is_trial_name;
use spop_agent::Snapshot;

use crate::heaviest::{Clients, Heaviest, HeavyClients, Minutes};
use crate::history::{History, Past, PastCounts};
use crate::minute::Minute;
use crate::seldom_counts::SeldomCounts;
use crate::undecided::PrintableName;
use crate::verdict::{COUNTS, DECISIONS, NEWLY_BLOCKED, Outcome, UNDECIDED};

/// The place of the calling thread among the counters. It is looked up once in each round, and is
/// valid for that thread only.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    number: usize,
    // Two threads with one lane would lose counts.
    not_send: PhantomData<*const ()>,
}

impl Lane {
    #[inline]
    pub fn of_this_thread() -> Self {
        const NONE: usize = usize::MAX;
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<usize> = const { Cell::new(NONE) };
        }
        let number = NUMBER.with(|number| {
            if number.get() == NONE {
                number.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            number.get()
        });
        Self { number, not_send: PhantomData }
    }
}

#[derive(Debug)]
pub struct PolicyStats {
    /// One for each worker.
    own: Box<[CachePadded<LaneCounters>]>,
    /// For any other thread. The daemon has none that counts.
    shared: LaneCounters,
    /// Not for each worker, and not beside what each request reads.
    pub seldom: CachePadded<SeldomCounts>,
    /// An arg of the key whose value was an address written as a string.
    text_address: OnceLock<PrintableName>,
    /// The counts at the end of the last minute.
    reported: Mutex<[u64; COUNTS]>,
}

#[derive(Debug, Default)]
struct LaneCounters {
    counts: [AtomicU64; COUNTS],
    /// By outcome, so that blocked requests never mix with those that would have been blocked. Of
    /// a trial, the latter are only requests that its policy has allowed.
    heaviest: [Heaviest; DECISIONS],
}

impl LaneCounters {
    /// The sketch that takes a sample of the request that was counted last with this outcome, as
    /// the one with this number, if it is sampled.
    #[inline(always)]
    fn sampling(&self, outcome: Outcome, count: u64) -> Option<&Heaviest> {
        Some(&self.heaviest[outcome.index()]).filter(|heaviest| heaviest.samples(count))
    }
}

/// The counters of one policy that one lane writes.
#[derive(Clone, Copy)]
pub(crate) struct LaneStats<'s> {
    stripe: &'s LaneCounters,
    /// Whether no other thread writes them.
    is_own: bool,
}

impl<'s> LaneStats<'s> {
    /// See [`PolicyStats::count`].
    #[inline(always)]
    pub(crate) fn count(self, outcome: Outcome) -> Option<&'s Heaviest> {
        let count = self.add(outcome.index());
        self.stripe.sampling(outcome, count)
    }

    /// Adds one. Returns the new count.
    #[inline(always)]
    fn add(self, place: usize) -> u64 {
        let counter = &self.stripe.counts[place];
        if !self.is_own {
            return counter.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        }
        let count = counter.load(Ordering::Relaxed).wrapping_add(1);
        counter.store(count, Ordering::Relaxed);
        count
    }
}

impl PolicyStats {
    fn new(lanes: usize) -> Self {
        Self {
            own: (0..lanes).map(|_| CachePadded::default()).collect(),
            shared: LaneCounters::default(),
            seldom: CachePadded::default(),
            text_address: OnceLock::new(),
            reported: Mutex::default(),
        }
    }

    /// Counts a decision. Returns the sketch that wants to know the client, if the request is
    /// sampled.
    #[inline(always)]
    pub(crate) fn count(&self, lane: Lane, outcome: Outcome) -> Option<&Heaviest> {
        self.on(lane).count(outcome)
    }

    /// The counters that this lane writes.
    #[inline(always)]
    pub(crate) fn on(&self, lane: Lane) -> LaneStats<'_> {
        match self.own.get(lane.number) {
            Some(stripe) => LaneStats { stripe, is_own: true },
            None => LaneStats { stripe: &self.shared, is_own: false },
        }
    }

    /// Counts that a trial would block a message. `is_new` is whether its policy has allowed it:
    /// only then has it passed because the trial is no more than that. Returns as
    /// [`count`](Self::count).
    pub(crate) fn count_tried(&self, lane: Lane, is_new: bool) -> Option<&Heaviest> {
        let stats = self.on(lane);
        stats.add(Outcome::WouldBlock.index());
        if !is_new {
            return None;
        }
        let count = stats.add(NEWLY_BLOCKED);
        stats.stripe.sampling(Outcome::WouldBlock, count)
    }

    /// Remembers the arg that `find` names, unless one is remembered already.
    pub(crate) fn note_text_address(&self, find: impl FnOnce() -> Option<PrintableName>) {
        if self.text_address.get().is_none()
            && let Some(arg) = find()
        {
            let _ = self.text_address.set(arg);
        }
    }

    /// An arg of the key whose value was an address written as a string, if there was one.
    pub fn text_address(&self) -> Option<PrintableName> {
        self.text_address.get().copied()
    }

    /// Counts a message about which nothing could be decided.
    pub(crate) fn count_undecided(&self, lane: Lane) {
        self.on(lane).add(UNDECIDED);
    }

    /// How often each of [`OUTCOMES`](crate::verdict::OUTCOMES) was counted, and what was [`NEWLY_BLOCKED`].
    pub fn counts(&self) -> [u64; COUNTS] {
        let mut sums = [0_u64; COUNTS];
        for stripe in self.stripes() {
            for (sum, count) in sums.iter_mut().zip(&stripe.counts) {
                *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
            }
        }
        sums
    }

    /// The clients with the most requests of this outcome, the heaviest first.
    pub fn heaviest(&self, outcome: Outcome, minutes: Minutes) -> HeavyClients {
        let mut clients = Clients::default();
        self.add_to(&mut clients, outcome, minutes);
        clients.found()
    }

    /// Adds the requests of this outcome, which several workers have counted.
    fn add_to(&self, clients: &mut Clients, outcome: Outcome, minutes: Minutes) {
        for stripe in self.stripes() {
            clients.add(&stripe.heaviest[outcome.index()], minutes);
        }
    }

    fn stripes(&self) -> impl Iterator<Item = &LaneCounters> {
        self.own.iter().map(|stripe| &**stripe).chain([&self.shared])
    }

    fn rotate(&self) {
        for stripe in self.stripes() {
            stripe.heaviest.iter().for_each(Heaviest::rotate);
        }
    }

    fn since_last_call(&self) -> [u64; COUNTS] {
        let counts = self.counts();
        let mut reported = lock(&self.reported);
        let news = std::array::from_fn(|place| counts[place].saturating_sub(reported[place]));
        *reported = counts;
        news
    }
}

/// How far the life of the process has come, as a load balancer needs to know it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readiness {
    Starting,
    Serving,
    /// It was asked to stop, and still answers requests.
    Leaving,
}

/// Everything that the daemon itself counts. There is one for the whole process.
#[derive(Debug)]
pub struct Stats {
    lanes: usize,
    policies: Mutex<BTreeMap<String, Arc<PolicyStats>>>,
    started: Instant,
    started_wall: SystemTime,
    /// When the last full window of the heaviest clients began, and when the current one did.
    windows: Mutex<(Instant, Instant)>,
    readiness: Mutex<Readiness>,
    last_beat: Mutex<Instant>,
    pub reloads: ReloadCounts,
    /// How many agents of the table have other limits than this one.
    pub differing: AtomicU64,
    /// Requests for actions that were refused because their token was wrong.
    pub wrong_tokens: AtomicU64,
    /// The counts of the last minutes.
    history: Mutex<History>,
}

/// How often the configuration was read again.
#[derive(Debug, Default)]
pub struct ReloadCounts {
    pub ok: AtomicU64,
    /// It had mistakes, and the old one stayed in force.
    pub refused: AtomicU64,
}

impl Stats {
    pub fn new(threads: NonZeroUsize) -> Self {
        let now = Instant::now();
        Self {
            lanes: threads.get(),
            policies: Mutex::default(),
            started: now,
            started_wall: SystemTime::now(),
            windows: Mutex::new((now, now)),
            readiness: Mutex::new(Readiness::Starting),
            last_beat: Mutex::new(now),
            reloads: ReloadCounts::default(),
            wrong_tokens: AtomicU64::new(0),
            differing: AtomicU64::new(0),
            history: Mutex::default(),
        }
    }

    /// The counters of the policy with this name. They are always the same ones.
    pub fn policy(&self, name: &str) -> Arc<PolicyStats> {
        let mut policies = lock(&self.policies);
        let new = || Arc::new(PolicyStats::new(self.lanes));
        policies.entry(name.to_owned()).or_insert_with(new).clone()
    }

    /// The counters of all policies that were in force since the start, by name.
    pub fn policies(&self) -> Vec<(String, Arc<PolicyStats>)> {
        lock(&self.policies).iter().map(|(name, policy)| (name.clone(), policy.clone())).collect()
    }

    /// Ends a minute, which becomes [`Minutes::Last`]. Returns a sentence about the requests that
    /// were blocked in it, and one about those that would have been, if there were any.
    pub fn end_minute(&self, known: &KnownClients) -> Vec<String> {
        let policies = self.policies();
        for (_, policy) in &policies {
            policy.rotate();
        }
        {
            let mut windows = lock(&self.windows);
            *windows = (windows.1, Instant::now());
        }

        let mut minutes = [
            Minute::new(Outcome::Blocked, "blocked"),
            Minute::new(Outcome::WouldBlock, "would have been blocked"),
        ];
        for (name, policy) in &policies {
            let counts = policy.since_last_call();
            for minute in &mut minutes {
                let place = match minute.outcome {
                    // Requests that its policy has blocked are counted there.
                    Outcome::WouldBlock if is_trial_name(name) => NEWLY_BLOCKED,
                    outcome => outcome.index(),
                };
                if counts[place] > 0 {
                    minute.requests += counts[place];
                    policy.add_to(&mut minute.clients, minute.outcome, Minutes::Last);
                    let clients = policy.heaviest(minute.outcome, Minutes::Last);
                    minute.policies.push((name.clone(), clients));
                }
            }
        }
        minutes.iter().filter_map(|minute| minute.in_words(known)).collect()
    }

    /// Takes note of the counts until now, for [`past`](Self::past). `since_boot` is how long the
    /// machine has been running, and `unmatched` how many messages had no policy.
    pub fn remember(&self, since_boot: Duration, snapshot: &Snapshot, unmatched: u64) {
        let policies = self.policies();
        let each = policies.iter().map(|(name, policy)| (name.as_str(), policy.counts()));
        let counted = PastCounts {
            notifies: snapshot.notifies,
            unmatched,
            latency: snapshot.latency.buckets,
            ..PastCounts::of_policies(each)
        };
        lock(&self.history).beat(since_boot, &counted);
    }

    /// The counts of the last `most` slots of the last minutes.
    pub fn past(&self, since_boot: Duration, most: usize) -> Past {
        lock(&self.history).past(since_boot, most)
    }

    /// How much time is in [`Minutes::Now`].
    pub fn window(&self) -> Duration {
        lock(&self.windows).0.elapsed()
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn started(&self) -> SystemTime {
        self.started_wall
    }

    /// Notes that the thread of the housekeeping works.
    pub fn beat(&self) {
        *lock(&self.last_beat) = Instant::now();
        let mut readiness = lock(&self.readiness);
        if *readiness == Readiness::Starting {
            *readiness = Readiness::Serving;
        }
    }

    /// How long ago that was noted last.
    pub fn silent(&self) -> Duration {
        lock(&self.last_beat).elapsed()
    }

    /// From now on the process is leaving.
    pub fn leave(&self) {
        *lock(&self.readiness) = Readiness::Leaving;
    }

    pub fn readiness(&self) -> Readiness {
        *lock(&self.readiness)
    }
}

/// Locks a mutex, even after a panic of another thread: what these mutexes guard is consistent
/// after each statement.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::thread;

    use gcra_table::{Slots, Table};

    use super::*;
    use crate::heaviest::HeavyClient;
    use gcra_table::KeyHash;

    fn stats() -> Stats {
        // Threads of other tests have taken places, too.
        Stats::new(NonZeroUsize::new(4096).unwrap())
    }

    fn client(table: &Table, name: &str) -> KeyHash {
        table.hash(name.as_bytes())
    }

    /// Gives a sample to the sketch that wants one.
    fn offer(heaviest: Option<&Heaviest>, key: KeyHash, name: impl FnOnce(&mut String)) {
        if let Some(heaviest) = heaviest {
            heaviest.offer(key, crate::heaviest::Under::own, name);
        }
    }

    fn count(
        policy: &PolicyStats,
        lane: Lane,
        outcome: Outcome,
        key: KeyHash,
        name: impl FnOnce(&mut String),
    ) {
        offer(policy.count(lane, outcome), key, name);
    }

    #[test]
    fn the_threads_counts_add_up() {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let key = client(&table, "a");
        // With a lane for each thread, and with none.
        for stats in [stats(), Stats::new(NonZeroUsize::MIN)] {
            let policy = stats.policy("default");
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let lane = Lane::of_this_thread();
                        for n in 0..30_000 {
                            match n % 3 {
                                0 => count(&policy, lane, Outcome::Allowed, key, |_| {}),
                                1 => count(&policy, lane, Outcome::Blocked, key, |_| {}),
                                _ => policy.count_undecided(lane),
                            }
                        }
                    });
                }
            });
            assert_eq!(stats.policy("default").counts(), [40_000, 0, 40_000, 40_000, 0]);
            assert_eq!(stats.policy("other").counts(), [0; COUNTS]);
        }
    }

    #[test]
    fn a_client_of_several_workers_is_one() {
        let stats = stats();
        let policy = stats.policy("default");
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let (a, b) = (client(&table, "a"), client(&table, "b"));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let lane = Lane::of_this_thread();
                    for _ in 0..100 {
                        count(&policy, lane, Outcome::Blocked, a, |name| name.push('a'));
                    }
                    count(&policy, lane, Outcome::WouldBlock, b, |name| name.push('b'));
                });
            }
        });
        let found = |outcome| {
            let found = policy.heaviest(outcome, Minutes::Now);
            assert!(found.complete);
            let pair = |heavy: HeavyClient| (heavy.client, heavy.requests);
            found.heaviest.into_iter().map(pair).collect::<Vec<_>>()
        };
        assert_eq!(found(Outcome::Blocked), [("a".to_owned(), 200)]);
        assert_eq!(found(Outcome::WouldBlock), [("b".to_owned(), 2)]);
        assert_eq!(found(Outcome::Allowed), []);
    }

    /// A sampled request stands for a thousand, but says nothing about its client.
    #[test]
    fn of_a_million_clients_with_one_request_none_is_named() {
        let stats = stats();
        let policy = stats.policy("default");
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let lane = Lane::of_this_thread();
        let ask = |clients: std::ops::Range<u32>| {
            for number in clients {
                let key = table.hash(&number.to_le_bytes());
                count(&policy, lane, Outcome::Blocked, key, |name| {
                    write!(name, "{number}").unwrap();
                });
            }
        };
        ask(0..1_000_000);
        let named = |minutes| policy.heaviest(Outcome::Blocked, minutes).heaviest;
        assert_eq!(named(Minutes::Now), []);
        assert_eq!(
            stats.end_minute(&KnownClients::default()),
            ["1000000 requests from at least 128 clients were blocked in the last minute; no \
                 client had many of them"]
        );
        assert_eq!(named(Minutes::Last), []);
        // Not at the beginning of a minute either.
        for more in [1_001_000, 1_003_000, 1_100_000] {
            ask(1_000_000..more);
            assert_eq!(named(Minutes::Now), [], "{more}");
        }
    }

    /// The number of a client's requests may be too small, but not too large.
    #[test]
    fn the_heaviest_of_many_are_named_with_what_they_had_at_least() {
        let stats = stats();
        let policy = stats.policy("default");
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let lane = Lane::of_this_thread();
        let mut state = 1_u64;
        for number in 0..1_000_000_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // A fifth, a twentieth, and each of the rest once.
            let client = match (state >> 33) % 20 {
                0..4 => 1,
                4 => 2,
                _ => 10 + number,
            };
            let key = table.hash(&client.to_le_bytes());
            count(&policy, lane, Outcome::Allowed, key, |name| {
                write!(name, "{client}").unwrap();
            });
        }
        let found = policy.heaviest(Outcome::Allowed, Minutes::Now);
        assert!(!found.complete);
        let [first, second] = &found.heaviest[..] else { panic!("{found:?}") };
        assert_eq!((&*first.client, &*second.client), ("1", "2"));
        assert!((170_000..=201_000).contains(&first.requests), "{found:?}");
        assert!((35_000..=50_500).contains(&second.requests), "{found:?}");
    }

    #[test]
    fn a_minute_is_reported_once_and_shown_for_two() {
        let stats = stats();
        let policy = stats.policy("login");
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let (lane, key) = (Lane::of_this_thread(), client(&table, "a"));
        let nothing = [""; 0];
        assert_eq!(stats.end_minute(&KnownClients::default()), nothing);
        count(&policy, lane, Outcome::Allowed, key, |name| name.push('a'));
        assert_eq!(stats.end_minute(&KnownClients::default()), nothing, "no request was blocked");
        for _ in 0..3 {
            count(&policy, lane, Outcome::Blocked, key, |name| name.push_str("192.0.2.7"));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "192.0.2.7 = office\n").unwrap();
        let (known, _) = KnownClients::read(file.path()).unwrap();
        assert_eq!(
            stats.end_minute(&known),
            ["3 requests from 1 client were blocked in the last minute; most came from \
                 192.0.2.7 (office): 3 requests (policy login)"]
        );
        let blocked = || policy.heaviest(Outcome::Blocked, Minutes::Now).heaviest;
        assert_eq!(blocked().len(), 1);
        count(&policy, lane, Outcome::WouldBlock, key, |name| name.push('a'));
        assert_eq!(
            stats.end_minute(&KnownClients::default()),
            ["1 request from 1 client would have been blocked in the last minute; most came \
                 from a: 1 request (policy login)"]
        );
        assert_eq!(stats.end_minute(&KnownClients::default()), nothing);
        assert!(blocked().is_empty());
        assert_eq!(policy.counts(), [1, 1, 3, 0, 0], "and counted for ever");
    }

    /// A request that its policy has blocked is no news about a trial.
    #[test]
    fn of_a_trial_the_minute_has_only_what_has_passed() {
        let stats = stats();
        let policy = stats.policy("api.observe");
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let (lane, key) = (Lane::of_this_thread(), client(&table, "a"));
        let tried = |is_new| {
            offer(policy.count_tried(lane, is_new), key, |name| name.push('a'));
        };
        (0..9).for_each(|_| tried(false));
        assert_eq!(stats.end_minute(&KnownClients::default()), [""; 0]);
        (0..2).for_each(|_| tried(true));
        tried(false);
        assert_eq!(
            stats.end_minute(&KnownClients::default()),
            ["2 requests from 1 client would have been blocked in the last minute; most came \
                 from a: 2 requests (policy api.observe)"]
        );
        assert_eq!(policy.counts(), [0, 12, 0, 0, 2]);
        let listed = policy.heaviest(Outcome::WouldBlock, Minutes::Now).heaviest;
        assert_eq!(listed[0].requests, 2);
    }

    /// A client has other hashes under policies with other keys, and the same name.
    #[test]
    fn a_client_of_several_policies_is_one() {
        let stats = stats();
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let lane = Lane::of_this_thread();
        let count = |policy: &str, outcome, name: &str, times| {
            let key = client(&table, &format!("{policy} {name}"));
            let write = |to: &mut String| to.push_str(name);
            for _ in 0..times {
                match is_trial_name(policy) {
                    true => offer(stats.policy(policy).count_tried(lane, true), key, write),
                    false => offer(stats.policy(policy).count(lane, outcome), key, write),
                }
            }
        };
        count("api", Outcome::Blocked, "192.0.2.1", 2);
        count("login", Outcome::Blocked, "192.0.2.1", 1);
        count("login", Outcome::Blocked, "192.0.2.2", 1);
        count("api.observe", Outcome::WouldBlock, "192.0.2.1", 1);
        count("strict", Outcome::WouldBlock, "192.0.2.1", 9);
        count("strict", Outcome::Allowed, "192.0.2.3", 9);
        assert_eq!(
            stats.end_minute(&KnownClients::default()),
            [
                "4 requests from 2 clients were blocked in the last minute; most came from \
                 192.0.2.1: 3 requests (policies api and login)",
                "10 requests from 1 client would have been blocked in the last minute; most \
                 came from 192.0.2.1: 10 requests (policies api.observe and strict)",
            ]
        );
    }
}

//! Counters of decisions and of their clients: counted for each policy where decisions are made,
//! and added up when they are read.
//!
//! Each worker counts on cache lines of its own, which no other thread writes: an addition is a
//! load, an add and a store, without a locked instruction. A registry keeps the counters of a
//! policy under its name, so that a reload does not reset them.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crossbeam_utils::CachePadded;
use gcra_table::KeyHash;

use crate::heaviest::{Estimate, Found, Heaviest, HeavyClient, Window};
use crate::plural::Count;
use crate::verdict::Outcome;

/// The name of every outcome that is counted. The first three are those of a decision.
pub(crate) const OUTCOMES: [&str; 4] = ["allowed", "would_block", "blocked", "undecided"];
const UNDECIDED: usize = 3;

/// The place of the calling thread among the counters. It is looked up once in each round, and is
/// valid for that thread only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    number: usize,
    // Two threads with one lane would lose counts.
    not_send: PhantomData<*const ()>,
}

impl Lane {
    #[inline]
    pub(crate) fn of_this_thread() -> Self {
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

/// The counters of one policy.
#[derive(Debug)]
pub(crate) struct PolicyStats {
    /// One for each worker.
    own: Box<[CachePadded<Stripe>]>,
    /// For any other thread. The daemon has none that counts.
    shared: Stripe,
    /// The counts at the end of the last minute.
    reported: Mutex<[u64; OUTCOMES.len()]>,
}

#[derive(Debug, Default)]
struct Stripe {
    counts: [AtomicU64; OUTCOMES.len()],
    denied: Heaviest,
    allowed: Heaviest,
}

impl Stripe {
    #[inline(always)]
    fn decided(
        &self,
        outcome: Outcome,
        count: u64,
        client: KeyHash,
        name: impl FnOnce(&mut String),
    ) {
        let heaviest = match outcome {
            Outcome::Allowed => &self.allowed,
            Outcome::Blocked | Outcome::WouldBlock => &self.denied,
        };
        if heaviest.samples(count) {
            heaviest.offer(client, name);
        }
    }
}

impl PolicyStats {
    fn new(lanes: usize) -> Self {
        Self {
            own: (0..lanes).map(|_| CachePadded::default()).collect(),
            shared: Stripe::default(),
            reported: Mutex::default(),
        }
    }

    /// Counts a decision about a client. `name` writes the name of the client. It is called only
    /// for the requests that are sampled.
    #[inline(always)]
    pub(crate) fn count(
        &self,
        lane: Lane,
        outcome: Outcome,
        client: KeyHash,
        name: impl FnOnce(&mut String),
    ) {
        let (stripe, count) = self.add(lane, outcome.index());
        stripe.decided(outcome, count, client, name);
    }

    /// Counts a message about which nothing could be decided.
    pub(crate) fn count_undecided(&self, lane: Lane) {
        self.add(lane, UNDECIDED);
    }

    /// Adds one. Returns the stripe where it was counted, and the new count.
    #[inline(always)]
    fn add(&self, lane: Lane, place: usize) -> (&Stripe, u64) {
        match self.own.get(lane.number) {
            Some(stripe) => {
                // No other thread writes it.
                let count = stripe.counts[place].load(Ordering::Relaxed).wrapping_add(1);
                stripe.counts[place].store(count, Ordering::Relaxed);
                (stripe, count)
            }
            None => (
                &self.shared,
                self.shared.counts[place].fetch_add(1, Ordering::Relaxed).wrapping_add(1),
            ),
        }
    }

    /// How often each of [`OUTCOMES`] was counted.
    pub(crate) fn counts(&self) -> [u64; OUTCOMES.len()] {
        let mut sums = [0_u64; OUTCOMES.len()];
        for stripe in self.stripes() {
            for (sum, count) in sums.iter_mut().zip(&stripe.counts) {
                *sum = sum.wrapping_add(count.load(Ordering::Relaxed));
            }
        }
        sums
    }

    /// The clients with the most requests that were denied (blocked, or observed only), the
    /// heaviest first.
    pub(crate) fn denied(&self, window: Window) -> Found {
        Self::heaviest(self.stripes().map(|stripe| &stripe.denied), window)
    }

    /// The clients with the most requests that were allowed, the heaviest first.
    pub(crate) fn allowed(&self, window: Window) -> Found {
        Self::heaviest(self.stripes().map(|stripe| &stripe.allowed), window)
    }

    /// Adds up what several workers have counted for the same client.
    fn heaviest<'a>(all: impl Iterator<Item = &'a Heaviest>, window: Window) -> Found {
        let mut complete = true;
        let mut clients: HashMap<KeyHash, (String, Estimate)> = HashMap::new();
        for heaviest in all {
            complete &= heaviest.collect(window, |client, name, estimate| {
                let known = clients
                    .entry(client)
                    .or_insert_with(|| (name.to_owned(), Estimate::default()));
                known.1.add(estimate);
            });
        }
        Found::new(clients.into_values(), complete)
    }

    fn stripes(&self) -> impl Iterator<Item = &Stripe> {
        self.own.iter().map(|stripe| &**stripe).chain([&self.shared])
    }

    fn rotate(&self) {
        for stripe in self.stripes() {
            stripe.denied.rotate();
            stripe.allowed.rotate();
        }
    }

    /// What was counted since the last call.
    fn since_last_call(&self) -> [u64; OUTCOMES.len()] {
        let counts = self.counts();
        let mut reported = lock(&self.reported);
        let news = std::array::from_fn(|place| counts[place].saturating_sub(reported[place]));
        *reported = counts;
        news
    }
}

/// How far the life of the process has come, as a load balancer needs to know it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Readiness {
    Starting,
    Serving,
    /// It was asked to stop, and still answers requests.
    Leaving,
}

/// Everything that the daemon itself counts. There is one for the whole process.
#[derive(Debug)]
pub(crate) struct Stats {
    lanes: usize,
    policies: Mutex<BTreeMap<String, Arc<PolicyStats>>>,
    started: Instant,
    started_wall: SystemTime,
    /// When the last full window of the heaviest clients began, and when the current one did.
    windows: Mutex<(Instant, Instant)>,
    readiness: AtomicU8,
    /// In milliseconds after the start.
    last_beat: AtomicU64,
    pub(crate) reloads: Reloads,
    /// How many agents of the table have other limits than this one.
    pub(crate) differing: AtomicU64,
}

/// How often the configuration was read again.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    pub(crate) ok: AtomicU64,
    /// It had mistakes, and the old one stayed in force.
    pub(crate) refused: AtomicU64,
}

impl Stats {
    pub(crate) fn new(threads: NonZeroUsize) -> Self {
        let now = Instant::now();
        Self {
            lanes: threads.get(),
            policies: Mutex::default(),
            started: now,
            started_wall: SystemTime::now(),
            windows: Mutex::new((now, now)),
            readiness: AtomicU8::new(Readiness::Starting as u8),
            last_beat: AtomicU64::new(0),
            reloads: Reloads::default(),
            differing: AtomicU64::new(0),
        }
    }

    /// The counters of the policy with this name. They are always the same ones.
    pub(crate) fn policy(&self, name: &str) -> Arc<PolicyStats> {
        let mut policies = lock(&self.policies);
        if let Some(policy) = policies.get(name) {
            return policy.clone();
        }
        let policy = Arc::new(PolicyStats::new(self.lanes));
        policies.insert(name.to_owned(), policy.clone());
        policy
    }

    /// The counters of all policies that were in force since the start, by name.
    pub(crate) fn policies(&self) -> Vec<(String, Arc<PolicyStats>)> {
        lock(&self.policies).iter().map(|(name, policy)| (name.clone(), policy.clone())).collect()
    }

    /// Ends a minute, which becomes [`Window::Last`]. Returns a sentence about it if a request was
    /// denied in it.
    pub(crate) fn end_minute(&self) -> Option<String> {
        let policies = self.policies();
        for (_, policy) in &policies {
            policy.rotate();
        }
        {
            let mut windows = lock(&self.windows);
            *windows = (windows.1, Instant::now());
        }

        let (mut requests, mut clients, mut complete, mut tried) = (0_u64, 0, true, 0_u64);
        let mut heaviest: Option<(HeavyClient, String)> = None;
        for (name, policy) in policies {
            let [_, would_block, blocked, _] = policy.since_last_call();
            if blocked + would_block == 0 {
                continue;
            }
            requests += blocked;
            tried += would_block;
            let found = policy.denied(Window::Last);
            clients += found.clients;
            complete &= found.complete;
            if let Some(first) = found.heaviest.into_iter().next()
                && heaviest.as_ref().is_none_or(|(other, _)| first.requests > other.requests)
            {
                heaviest = Some((first, name));
            }
        }
        if clients == 0 {
            return None;
        }
        let (at_least, about) = if complete { ("", "") } else { ("at least ", "about ") };
        let counted = |requests| Count(requests, "request", "requests");
        let what = match (requests, tried) {
            (_, 0) => format!("blocked in the last minute: {}", counted(requests)),
            (0, _) => format!("would have been blocked in the last minute: {}", counted(tried)),
            _ => format!(
                "blocked in the last minute: {}, and {tried} would have been blocked,",
                counted(requests)
            ),
        };
        let who = match heaviest {
            Some((first, policy)) => {
                format!(
                    "; most came from {}: {about}{} (policy {policy})",
                    first.client,
                    counted(first.requests)
                )
            }
            None => "; no client had many of them".to_owned(),
        };
        let clients = Count(clients, "client", "clients");
        Some(format!("{what} from {at_least}{clients}{who}"))
    }

    /// How much time is in [`Window::Now`].
    pub(crate) fn window(&self) -> Duration {
        lock(&self.windows).0.elapsed()
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn started(&self) -> SystemTime {
        self.started_wall
    }

    /// Notes that the thread of the housekeeping works.
    pub(crate) fn beat(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_beat.store(now, Ordering::Relaxed);
        let _ = self.readiness.compare_exchange(
            Readiness::Starting as u8,
            Readiness::Serving as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// How long ago that was noted last.
    pub(crate) fn silent(&self) -> Duration {
        self.started
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last_beat.load(Ordering::Relaxed)))
    }

    /// From now on the process is leaving.
    pub(crate) fn leave(&self) {
        self.readiness.store(Readiness::Leaving as u8, Ordering::Relaxed);
    }

    pub(crate) fn readiness(&self) -> Readiness {
        match self.readiness.load(Ordering::Relaxed) {
            0 => Readiness::Starting,
            1 => Readiness::Serving,
            _ => Readiness::Leaving,
        }
    }
}

/// Locks a mutex, even after a panic of another thread: what these mutexes guard is consistent
/// after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::thread;

    use gcra_table::{Slots, Table};

    use super::*;

    fn stats() -> Stats {
        // Threads of other tests have taken places, too.
        Stats::new(NonZeroUsize::new(4096).unwrap())
    }

    fn client(table: &Table, name: &str) -> KeyHash {
        table.hash(name.as_bytes())
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
                                0 => policy.count(lane, Outcome::Allowed, key, |_| {}),
                                1 => policy.count(lane, Outcome::Blocked, key, |_| {}),
                                _ => policy.count_undecided(lane),
                            }
                        }
                    });
                }
            });
            assert_eq!(stats.policy("default").counts(), [40_000, 0, 40_000, 40_000]);
            assert_eq!(stats.policy("other").counts(), [0; 4]);
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
                        policy.count(lane, Outcome::Blocked, a, |name| name.push('a'));
                    }
                    policy.count(lane, Outcome::WouldBlock, b, |name| name.push('b'));
                });
            }
        });
        let found = policy.denied(Window::Now);
        assert!(found.complete);
        let found: Vec<_> =
            found.heaviest.iter().map(|heavy| (&*heavy.client, heavy.requests)).collect();
        assert_eq!(found, [("a", 200), ("b", 2)]);
        assert!(policy.allowed(Window::Now).heaviest.is_empty());
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
                policy
                    .count(lane, Outcome::Blocked, key, |name| write!(name, "{number}").unwrap());
            }
        };
        ask(0..1_000_000);
        let named = |window| policy.denied(window).heaviest;
        assert_eq!(named(Window::Now), []);
        assert_eq!(
            stats.end_minute().unwrap(),
            "blocked in the last minute: 1000000 requests from at least 128 clients; no client \
             had many of them"
        );
        assert_eq!(named(Window::Last), []);
        // Not at the beginning of a minute either.
        for more in [1_001_000, 1_003_000, 1_100_000] {
            ask(1_000_000..more);
            assert_eq!(named(Window::Now), [], "{more}");
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
            policy.count(lane, Outcome::Allowed, key, |name| write!(name, "{client}").unwrap());
        }
        let found = policy.allowed(Window::Now);
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
        assert_eq!(stats.end_minute(), None);
        policy.count(lane, Outcome::Allowed, key, |name| name.push('a'));
        assert_eq!(stats.end_minute(), None, "no request was blocked");
        for _ in 0..3 {
            policy.count(lane, Outcome::Blocked, key, |name| name.push('a'));
        }
        assert_eq!(
            stats.end_minute().as_deref(),
            Some(
                "blocked in the last minute: 3 requests from 1 client; most came from a: 3 \
                 requests (policy login)"
            )
        );
        assert_eq!(policy.denied(Window::Now).heaviest.len(), 1);
        policy.count(lane, Outcome::WouldBlock, key, |name| name.push('a'));
        let said = stats.end_minute().unwrap();
        assert!(
            said.starts_with(
                "would have been blocked in the last minute: 1 request from 1 client;"
            ),
            "{said}"
        );
        assert_eq!(stats.end_minute(), None);
        assert!(policy.denied(Window::Now).heaviest.is_empty());
        assert_eq!(policy.counts(), [1, 1, 3, 0], "and counted for ever");
    }
}

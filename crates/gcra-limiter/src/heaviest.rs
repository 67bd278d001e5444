//! The clients with the most requests in the last minutes: a bounded sketch of the decisions of
//! one thread.
//!
//! This is Space-Saving (Metwally, Agrawal, El Abbadi 2005): there are `COUNTERS` counters, and a
//! client without one takes over the smallest counter, with the count that stood there as its
//! possible error. A client with more than one in `COUNTERS` of the requests always has a counter.
//! The count without the possible error is reported.
//!
//! **Sampling.** The first `UNTIL_RARER` requests of a minute are all counted, so that small
//! numbers are exact. After each further `UNTIL_RARER` samples only half as many requests are
//! sampled, and each sample stands for twice as many requests. So the work has an upper bound that
//! does not grow with the load (about 60 000 samples a minute at a million requests a second).
//!
//! **The evidence of a sample.** A sample that stands for 1024 requests proves only that there was
//! one: of a million clients that each sent one request, a thousand are sampled. The estimate for
//! a client is the sum over its samples, and the variance of that sum is the sum of
//! `weight * (weight - 1)`. The sum less two standard deviations is reported, so the number is too
//! large for at most one client in 40. A client with four samples of one large weight has almost
//! nothing left, and is not named.
//!
//! **The window** is the current minute and the one before: there are two sketches, and once a
//! minute the older one is cleared.

// ADR 32: Counting takes no locked instruction, and names are sampled.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use gcra_policy::RuleAt;
use gcra_table::KeyHash;

/// Clients in one sketch.
const COUNTERS: usize = 128;

/// The capacity that a name starts with, so that a slightly longer one does not allocate again.
const NAME_BYTES: usize = 48;

/// How many samples of one weight are taken in a minute.
const UNTIL_RARER: u64 = 4096;

/// The largest weight is two to this.
const MAX_RARITY: u32 = 32;

/// The fewest requests with which a client is named, unless every request was counted.
const NAMED_FROM: u64 = 3;

/// By which rule of a policy a request was decided.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Under {
    /// Which of the policy's sets of rules this is, after reloads: later ones are larger.
    pub rules: u64,
    pub rule: RuleAt,
}

impl Under {
    /// By the rule of a policy for all keys.
    pub fn own() -> Self {
        Self { rules: 0, rule: RuleAt::new(None) }
    }
}

/// A client, and how many requests it sent: the exact number, or a cautious estimate if they were
/// sampled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HeavyClient {
    pub client: String,
    /// The hash of its key under one of the policies that have counted it.
    pub key: KeyHash,
    /// The rule of the last of its requests, as far as that is known.
    pub under: Under,
    pub requests: u64,
}

/// How many requests a client sent, by its samples. Estimates from several sketches add up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    sum: u64,
    /// The square of the standard deviation.
    variance: u64,
}

impl Estimate {
    /// Adds a sample that stands for `weight` requests.
    fn add_sample(&mut self, weight: u64) {
        // The sum overflows only after more than 2^37 requests in a minute.
        self.sum += weight;
        self.variance = self.variance.saturating_add(weight * (weight - 1));
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.variance = self.variance.saturating_add(other.variance);
    }

    /// The number of requests that there were at least. It is too large for at most one client
    /// in 40.
    pub(crate) fn at_least(self) -> u64 {
        let deviation = self.variance.isqrt();
        let rounded_up = deviation + u64::from(deviation * deviation < self.variance);
        self.sum.saturating_sub(2 * rounded_up)
    }
}

/// The heaviest clients, and whether they are all the clients.
#[derive(Debug)]
pub struct HeavyClients {
    /// The clients that are known to be heavy, the heaviest first.
    pub heaviest: Vec<HeavyClient>,
    /// How many clients there were at least.
    pub clients: usize,
    /// Every request was counted, and every client had a counter: the numbers are exact.
    pub complete: bool,
}

/// The counts of several sketches, by the name of the client. (A client has other hashes under
/// policies with other keys, but the same name.)
pub struct Clients {
    by_name: HashMap<String, (KeyHash, Under, Estimate)>,
    /// These are all the clients, and all their requests.
    complete: bool,
}

impl Default for Clients {
    fn default() -> Self {
        Self { by_name: HashMap::new(), complete: true }
    }
}

impl Clients {
    /// Adds what one thread has counted.
    pub fn add(&mut self, heaviest: &Heaviest, minutes: Minutes) {
        self.complete &= heaviest.collect(minutes, |key, name, under, estimate| {
            match self.by_name.get_mut(name) {
                Some((_, last, known)) => {
                    *last = under.max(*last);
                    known.add(estimate);
                }
                None => drop(self.by_name.insert(name.to_owned(), (key, under, estimate))),
            }
        });
    }

    /// Puts the clients in order, and leaves out those of which too little is known.
    pub fn found(&self) -> HeavyClients {
        let heavy = |(client, of): (&String, &(KeyHash, Under, Estimate))| {
            let (key, under, estimate) = *of;
            HeavyClient { client: client.clone(), key, under, requests: estimate.at_least() }
        };
        let mut heaviest: Vec<_> = self.by_name.iter().map(heavy).collect();
        let (clients, complete) = (heaviest.len(), self.complete);
        heaviest.retain(|heavy| complete || heavy.requests >= NAMED_FROM);
        heaviest.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.client.cmp(&b.client)));
        HeavyClients { heaviest, clients, complete }
    }
}

/// Which minutes a question is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Minutes {
    /// The last full minute.
    Last,
    /// The last full minute and this one.
    Now,
}

/// The heaviest clients among the decisions of one thread.
#[derive(Debug)]
pub struct Heaviest {
    /// A request is sampled if its number, scattered over all `u64` values, is at most this: all
    /// requests at first, then half of them, and so on. Changed only under the lock.
    threshold: AtomicU64,
    /// Locked by the one thread that counts, which never waits for it, and briefly by readers.
    sketches: Mutex<Sketches>,
}

#[derive(Debug, Default)]
struct Sketches {
    current: Sketch,
    last: Sketch,
    /// Samples in the current sketch.
    samples: u64,
}

impl Default for Heaviest {
    fn default() -> Self {
        Self { threshold: AtomicU64::new(u64::MAX), sketches: Mutex::default() }
    }
}

impl Heaviest {
    /// Whether the request with this number is sampled.
    ///
    /// Multiples of the golden ratio are spread evenly over the circle, and so is every second,
    /// every tenth or every n-th of them. So traffic that repeats after any number of requests is
    /// sampled as fairly as any other, and no random numbers are needed.
    #[inline(always)]
    pub(crate) fn samples(&self, number: u64) -> bool {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        number.wrapping_mul(GOLDEN) <= self.threshold.load(Ordering::Relaxed)
    }

    /// Takes a sample. It is dropped while another thread reads the sketches.
    #[cold]
    #[inline(never)]
    pub(crate) fn offer(
        &self,
        client: KeyHash,
        under: impl FnOnce() -> Under,
        name: impl FnOnce(&mut String),
    ) {
        let mut sketches = match self.sketches.try_lock() {
            Ok(sketches) => sketches,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let threshold = self.threshold.load(Ordering::Relaxed);
        let rarity = threshold.leading_zeros();
        sketches.current.add(client, under(), 1 << rarity, name);
        sketches.samples += 1;
        if sketches.samples.is_multiple_of(UNTIL_RARER) && rarity < MAX_RARITY {
            sketches.current.complete = false;
            self.threshold.store(threshold >> 1, Ordering::Relaxed);
        }
    }

    /// Starts a new minute.
    pub(crate) fn rotate(&self) {
        let mut sketches = self.lock();
        let Sketches { current, last, samples } = &mut *sketches;
        std::mem::swap(current, last);
        current.clear();
        *samples = 0;
        self.threshold.store(u64::MAX, Ordering::Relaxed);
    }

    /// Calls `each` once for each client of each sketch. Returns whether these were all the
    /// clients and all their requests.
    pub(crate) fn collect(
        &self,
        minutes: Minutes,
        mut each: impl FnMut(KeyHash, &str, Under, Estimate),
    ) -> bool {
        let sketches = self.lock();
        let wanted =
            [Some(&sketches.last), (minutes == Minutes::Now).then_some(&sketches.current)];
        let mut complete = true;
        for sketch in wanted.into_iter().flatten() {
            for (key, entry) in sketch.clients.iter().zip(&sketch.entries) {
                each(*key, &entry.name, entry.under, entry.own);
            }
            complete &= sketch.complete;
        }
        complete
    }

    fn lock(&self) -> MutexGuard<'_, Sketches> {
        self.sketches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Sketch {
    /// Kept apart from the entries, because these are what is searched.
    clients: Vec<KeyHash>,
    entries: Vec<Entry>,
    complete: bool,
    /// The count of the smallest entry when one was last taken over, and where to look for the
    /// next with as much: those before are larger, because counts only grow.
    smallest: (u64, usize),
}

impl Default for Sketch {
    fn default() -> Self {
        Self { clients: Vec::new(), entries: Vec::new(), complete: true, smallest: (0, 0) }
    }
}

#[derive(Debug)]
struct Entry {
    /// Its own requests, and those that may be another client's. Only this decides which entry is
    /// the smallest.
    requests: u64,
    /// Its own requests, by its own samples.
    own: Estimate,
    /// The rule of its last sample.
    under: Under,
    name: String,
}

impl Sketch {
    fn add(&mut self, client: KeyHash, under: Under, weight: u64, name: impl FnOnce(&mut String)) {
        let known = self.clients.iter().position(|known| *known == client);
        if let Some(entry) = known.and_then(|place| self.entries.get_mut(place)) {
            entry.requests += weight;
            entry.own.add_sample(weight);
            entry.under = under;
            return;
        }
        if self.clients.len() < COUNTERS {
            let mut entry = Entry {
                requests: weight,
                own: Estimate::default(),
                under,
                name: String::with_capacity(NAME_BYTES),
            };
            entry.own.add_sample(weight);
            name(&mut entry.name);
            self.clients.push(client);
            self.entries.push(entry);
            return;
        }
        self.complete = false;
        let place = self.smallest();
        if let Some(entry) = self.entries.get_mut(place) {
            self.clients[place] = client;
            entry.requests += weight;
            entry.own = Estimate::default();
            entry.own.add_sample(weight);
            entry.under = under;
            entry.name.clear();
            name(&mut entry.name);
        }
    }

    /// The place of the first of the smallest entries, which is to be taken over.
    fn smallest(&mut self) -> usize {
        let (least, from) = self.smallest;
        let as_small = self.entries[from..].iter().position(|entry| entry.requests == least);
        let place = as_small.map(|place| from + place).unwrap_or_else(|| {
            let places = 0..self.entries.len();
            places.min_by_key(|place| self.entries[*place].requests).unwrap_or_default()
        });
        self.smallest = (self.entries[place].requests, place + 1);
        place
    }

    fn clear(&mut self) {
        self.clients.clear();
        self.entries.clear();
        (self.complete, self.smallest) = (true, (0, 0));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fmt::Write as _;

    use gcra_table::{Slots, Table};

    use super::*;

    /// The counts of a sketch after requests from clients with these numbers, and the true ones.
    fn observe(
        requests: impl IntoIterator<Item = u64>,
    ) -> (HashMap<u64, u64>, HashMap<u64, u64>, bool) {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let heaviest = Heaviest::default();
        let (mut exact, mut said) = (HashMap::new(), HashMap::new());
        for (number, client) in requests.into_iter().enumerate() {
            *exact.entry(client).or_insert(0) += 1;
            if heaviest.samples(number as u64 + 1) {
                heaviest.offer(table.hash(&client.to_le_bytes()), Under::own, |name| {
                    write!(name, "{client}").unwrap();
                });
            }
        }
        let complete = heaviest.collect(Minutes::Now, |_, name, _, estimate| {
            assert_eq!(said.insert(name.parse().unwrap(), estimate.sum), None, "{name} twice");
        });
        (said, exact, complete)
    }

    fn random() -> impl FnMut() -> u64 {
        let mut state = 1_u64;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        }
    }

    #[test]
    fn few_clients_and_requests_are_counted_exactly() {
        let (said, exact, complete) = observe((0..4000).map(|n| n % 7 * (n % 3)));
        assert_eq!(said, exact);
        assert!(complete);
    }

    #[test]
    fn no_count_is_too_high_and_the_heavy_clients_are_found() {
        let mut random = random();
        // One client sends a tenth, one a twentieth, and the rest is spread over 100 000.
        let requests = (0..4000).map(|n| match n % 20 {
            0 | 1 => 1,
            2 => 2,
            _ => 10 + random() % 100_000,
        });
        let (said, exact, complete) = observe(requests);
        assert!(!complete);
        assert_eq!(said.len(), COUNTERS);
        for (client, requests) in &said {
            assert!(
                requests <= &exact[client],
                "client {client}: {requests} of {}",
                exact[client]
            );
        }
        assert!(said[&1] >= 350 && said[&2] >= 150, "{said:?}");
    }

    #[test]
    fn the_first_of_the_smallest_is_taken_over() {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let mut random = random();
        let mut sketch = Sketch::default();
        for number in 0..20_000_u32 {
            if number < 8_000 && number.is_multiple_of(400) {
                sketch.clear();
            }
            // Some clients come often, so that counts differ.
            let client = random() % if random().is_multiple_of(2) { 50 } else { 1_000 };
            let client = table.hash(&client.to_le_bytes());
            let is_new = !sketch.clients.contains(&client) && sketch.clients.len() == COUNTERS;
            let entries = sketch.entries.iter().enumerate();
            let smallest = entries.min_by_key(|(_, entry)| entry.requests).map(|(place, _)| place);
            sketch.add(client, Under::own(), 1 << (random() % 4), |_| {});
            if is_new {
                assert_eq!(sketch.clients[smallest.unwrap()], client, "{number}");
            }
        }
    }

    #[test]
    fn sampled_requests_stand_for_all() {
        let mut random = random();
        let requests = (0..3_000_000).map(|_| match random() % 100 {
            0..20 => 1,
            20..25 => 2,
            _ => 10 + random() % 100_000,
        });
        let (said, exact, _) = observe(requests);
        for client in [1, 2] {
            let (said, exact) = (said[&client], exact[&client]);
            assert!(
                said.abs_diff(exact) < exact / 5,
                "client {client}: {said}, and it was {exact}"
            );
        }
    }

    /// A sampler that took every 16th request would see only one of 16 clients that take turns.
    #[test]
    fn clients_that_take_turns_are_sampled_alike() {
        for clients in [2_u64, 3, 16, 64, 100] {
            let (said, exact, _) = observe((0..1_000_000).map(|n| n % clients));
            assert_eq!(said.len() as u64, clients);
            for (client, requests) in &said {
                let exact = exact[client];
                assert!(
                    requests.abs_diff(exact) < exact / 4,
                    "{clients}: client {client}: {requests}, and it was {exact}"
                );
            }
        }
    }

    #[test]
    fn few_samples_say_little_and_many_say_much() {
        let of = |samples: &[(u64, u64)]| {
            let mut estimate = Estimate::default();
            for (weight, count) in samples {
                (0..*count).for_each(|_| estimate.add_sample(*weight));
            }
            estimate.at_least()
        };
        assert_eq!([of(&[(1, 1)]), of(&[(1, 77)])], [1, 77], "every request was counted");
        assert_eq!([of(&[(1024, 1)]), of(&[(1024, 3)]), of(&[(1024, 4)])], [0, 0, 2]);
        assert_eq!(of(&[(1024, 5)]), 542);
        assert_eq!(of(&[(1024, 1000)]), 959_268);
        assert_eq!(of(&[(1, 100), (2, 100), (4, 100)]), 624);
        assert_eq!(of(&[(1 << 32, 1)]), 0);
    }

    #[test]
    fn the_work_does_not_grow_with_the_load() {
        let heaviest = Heaviest::default();
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let mut samples = 0;
        for number in 0..20_000_000 {
            if heaviest.samples(number) {
                samples += 1;
                heaviest.offer(table.hash(b"a"), Under::own, |_| {});
            }
        }
        assert!(samples < 14 * UNTIL_RARER, "{samples}");
    }

    #[test]
    fn a_sample_is_dropped_while_another_thread_reads() {
        let heaviest = Heaviest::default();
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let reading = heaviest.lock();
        heaviest.offer(table.hash(b"a"), Under::own, |_| panic!("sampled"));
        drop(reading);
        heaviest.collect(Minutes::Now, |_, _, _, _| panic!("there is no client"));
    }
}

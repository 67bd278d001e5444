//! Who has the most requests, now: a bounded sketch of one thread's decisions.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi 2005): so many counters, and who has none takes over
//! the smallest, with what stood there as its possible error. Who has more than one in
//! [`COUNTERS`] of the requests is always in it. What is told is the count without the possible
//! error, so nobody is accused of more than was seen.
//!
//! **Sampled.** The first [`UNTIL_RARER`] requests of a minute are all looked at, so that small
//! numbers are exact; after each so many that were looked at, half as many are, and each stands
//! for twice as many. So the work has an upper bound that does not grow with the load (some 60 000
//! samples a minute at a million requests a second).
//!
//! **What a sample says.** One that stands for 1024 requests says for certain only that there was
//! one: of a million clients that asked once, a thousand are sampled. How many requests a client
//! had is a sum over its samples, and the square of that sum's standard deviation is the sum of
//! `weight * (weight - 1)`. What is told is the sum less two standard deviations, so that the
//! number is too large for one client in 40, at most. A client with four samples of one large
//! weight has next to nothing left, and is not named.
//!
//! **Now** is this minute and the last: there are two sketches, and once a minute the older one
//! begins anew.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use gcra_table::KeyHash;

/// Clients in one sketch.
const COUNTERS: usize = 128;

/// Room for a usual name, so that it is not made when the next one is a little longer.
const NAME: usize = 48;

/// So many samples of one weight are taken in a minute.
const UNTIL_RARER: u64 = 4096;

/// The largest weight is two to this.
const MAX_RARITY: u32 = 32;

/// Where not every request was looked at and counted, a client is named when it had so many at
/// least.
const NAMED_FROM: u64 = 3;

/// A client, and how many requests it had: exactly, or at least and about, where it was sampled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Hitter {
    pub(crate) client: String,
    pub(crate) requests: u64,
}

/// How many requests a client had, by its samples. Those of several sketches add up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate {
    sum: u64,
    /// The square of the standard deviation.
    variance: u64,
}

impl Estimate {
    /// Adds a sample that stands for so many requests.
    fn add_sample(&mut self, weight: u64) {
        // It would take more than 2^37 requests in a minute to reach the end of the numbers here.
        self.sum += weight;
        self.variance = self.variance.saturating_add(weight * (weight - 1));
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.variance = self.variance.saturating_add(other.variance);
    }

    /// How many they were at least. This is too large for one client in 40, at most.
    pub(crate) fn at_least(self) -> u64 {
        let deviation = self.variance.isqrt();
        let rounded_up = deviation + u64::from(deviation * deviation < self.variance);
        self.sum.saturating_sub(2 * rounded_up)
    }
}

/// The heaviest clients, and whether these are all.
#[derive(Debug)]
pub(crate) struct Found {
    /// Those that are known to be heavy, the heaviest first.
    pub(crate) hitters: Vec<Hitter>,
    /// How many clients there were at least.
    pub(crate) clients: usize,
    /// Every request was looked at, and everybody had a counter: the numbers are exact.
    pub(crate) complete: bool,
}

impl Found {
    /// Puts clients in order, and leaves out those of whom too little is known.
    pub(crate) fn new(all: impl IntoIterator<Item = (String, Estimate)>, complete: bool) -> Self {
        let hitter = |(client, estimate): (String, Estimate)| Hitter {
            client,
            requests: estimate.at_least(),
        };
        let mut hitters: Vec<_> = all.into_iter().map(hitter).collect();
        let clients = hitters.len();
        hitters.retain(|hitter| complete || hitter.requests >= NAMED_FROM);
        hitters.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.client.cmp(&b.client)));
        Self { hitters, clients, complete }
    }
}

/// Which minutes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Window {
    /// The last full minute.
    Last,
    /// The last full minute and this one.
    Now,
}

/// The heaviest clients among the decisions of one thread.
#[derive(Debug)]
pub(crate) struct Hitters {
    /// What is sampled: the numbers that are scattered to no more than this. All at first, then
    /// half of them, and so on. Changed only under the lock.
    threshold: AtomicU64,
    /// Taken by the one thread that counts, which never waits for it, and for a moment by those
    /// who look.
    sketches: Mutex<Sketches>,
}

#[derive(Debug, Default)]
struct Sketches {
    current: Sketch,
    last: Sketch,
    /// Samples in the current one.
    samples: u64,
}

impl Default for Hitters {
    fn default() -> Self {
        Self { threshold: AtomicU64::new(u64::MAX), sketches: Mutex::default() }
    }
}

impl Hitters {
    /// Whether the request of this number is one to look at.
    ///
    /// Multiples of the golden ratio lie evenly on the circle, and so do every second, every
    /// tenth, and every n-th of them. So traffic that repeats itself after any number of
    /// requests is sampled as fairly as any other, and no random number is needed.
    #[inline(always)]
    pub(crate) fn samples(&self, number: u64) -> bool {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        number.wrapping_mul(GOLDEN) <= self.threshold.load(Ordering::Relaxed)
    }

    /// Takes a sample. Somebody who looks at the sketch just now costs this one.
    #[cold]
    #[inline(never)]
    pub(crate) fn offer(&self, client: KeyHash, name: impl FnOnce(&mut String)) {
        let mut sketches = match self.sketches.try_lock() {
            Ok(sketches) => sketches,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let threshold = self.threshold.load(Ordering::Relaxed);
        let rarity = threshold.leading_zeros();
        sketches.current.add(client, 1 << rarity, name);
        sketches.samples += 1;
        if sketches.samples.is_multiple_of(UNTIL_RARER) && rarity < MAX_RARITY {
            sketches.current.complete = false;
            self.threshold.store(threshold >> 1, Ordering::Relaxed);
        }
    }

    /// Begins a new minute.
    pub(crate) fn rotate(&self) {
        let mut sketches = self.lock();
        let Sketches { current, last, samples } = &mut *sketches;
        std::mem::swap(current, last);
        current.clear();
        *samples = 0;
        self.threshold.store(u64::MAX, Ordering::Relaxed);
    }

    /// Shows each client once a sketch: its name, and its requests. Returns whether these are all
    /// there were.
    pub(crate) fn collect(
        &self,
        window: Window,
        mut each: impl FnMut(KeyHash, &str, Estimate),
    ) -> bool {
        let sketches = self.lock();
        let wanted = [Some(&sketches.last), (window == Window::Now).then_some(&sketches.current)];
        let mut complete = true;
        for sketch in wanted.into_iter().flatten() {
            for (client, entry) in sketch.clients.iter().zip(&sketch.entries) {
                each(*client, &entry.name, entry.own);
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
    /// Apart from the rest, because they are what is searched.
    clients: Vec<KeyHash>,
    entries: Vec<Entry>,
    complete: bool,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { clients: Vec::new(), entries: Vec::new(), complete: true }
    }
}

#[derive(Debug)]
struct Entry {
    /// What it has and what may be somebody else's. Only this decides who is the smallest.
    requests: u64,
    /// What it has itself, by its own samples.
    own: Estimate,
    name: String,
}

impl Sketch {
    fn add(&mut self, client: KeyHash, weight: u64, name: impl FnOnce(&mut String)) {
        let known = self.clients.iter().position(|known| *known == client);
        if let Some(entry) = known.and_then(|place| self.entries.get_mut(place)) {
            entry.requests += weight;
            entry.own.add_sample(weight);
            return;
        }
        if self.clients.len() < COUNTERS {
            let name_room = String::with_capacity(NAME);
            let mut entry = Entry { requests: weight, own: Estimate::default(), name: name_room };
            entry.own.add_sample(weight);
            name(&mut entry.name);
            self.clients.push(client);
            self.entries.push(entry);
            return;
        }
        self.complete = false;
        let smallest = self.entries.iter_mut().enumerate().min_by_key(|(_, entry)| entry.requests);
        if let Some((place, entry)) = smallest {
            self.clients[place] = client;
            entry.requests += weight;
            entry.own = Estimate::default();
            entry.own.add_sample(weight);
            entry.name.clear();
            name(&mut entry.name);
        }
    }

    fn clear(&mut self) {
        self.clients.clear();
        self.entries.clear();
        self.complete = true;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fmt::Write as _;

    use gcra_table::{Slots, Table};

    use super::*;

    /// What a sketch says about requests of clients that have these numbers, and what is true.
    fn observe(
        requests: impl IntoIterator<Item = u64>,
    ) -> (HashMap<u64, u64>, HashMap<u64, u64>, bool) {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let hitters = Hitters::default();
        let (mut exact, mut said) = (HashMap::new(), HashMap::new());
        for (number, client) in requests.into_iter().enumerate() {
            *exact.entry(client).or_insert(0) += 1;
            if hitters.samples(number as u64 + 1) {
                hitters.offer(table.hash(&client.to_le_bytes()), |name| {
                    write!(name, "{client}").unwrap()
                });
            }
        }
        let complete = hitters.collect(Window::Now, |_, name, estimate| {
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
    fn nobody_is_accused_of_more_than_was_seen_and_the_heavy_ones_are_found() {
        let mut random = random();
        // One has a tenth, one a twentieth, and the rest is spread over 100 000.
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
                "client {client}: {said}, and {exact} is true"
            );
        }
    }

    /// A sampler that takes every 16th would see one of 16 who come in turn.
    #[test]
    fn clients_that_come_in_turn_are_seen_alike() {
        for clients in [2_u64, 3, 16, 64, 100] {
            let (said, exact, _) = observe((0..1_000_000).map(|n| n % clients));
            assert_eq!(said.len() as u64, clients);
            for (client, requests) in &said {
                let exact = exact[client];
                assert!(
                    requests.abs_diff(exact) < exact / 4,
                    "{clients}: client {client}: {requests}, and {exact} is true"
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
        assert_eq!([of(&[(1, 1)]), of(&[(1, 77)])], [1, 77], "all were looked at");
        assert_eq!([of(&[(1024, 1)]), of(&[(1024, 3)]), of(&[(1024, 4)])], [0, 0, 2]);
        assert_eq!(of(&[(1024, 5)]), 542);
        assert_eq!(of(&[(1024, 1000)]), 959_268);
        assert_eq!(of(&[(1, 100), (2, 100), (4, 100)]), 624);
        assert_eq!(of(&[(1 << 32, 1)]), 0);
    }

    #[test]
    fn the_work_does_not_grow_with_the_load() {
        let hitters = Hitters::default();
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let mut samples = 0;
        for number in 0..20_000_000 {
            if hitters.samples(number) {
                samples += 1;
                hitters.offer(table.hash(b"a"), |_| {});
            }
        }
        assert!(samples < 14 * UNTIL_RARER, "{samples}");
    }

    #[test]
    fn a_sample_is_given_up_while_somebody_looks() {
        let hitters = Hitters::default();
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let looking = hitters.lock();
        hitters.offer(table.hash(b"a"), |_| panic!("not asked"));
        drop(looking);
        hitters.collect(Window::Now, |_, _, _| panic!("nobody"));
    }
}

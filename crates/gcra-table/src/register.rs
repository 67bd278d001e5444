//! Which numbers a limit has had: the header keeps them, so that a process that starts with other
//! numbers than the one before it finds what its clients owe.
//!
//! An entry is written once and then stands for good, until its place is needed for another. It
//! has a checksum, which is written last: an entry whose writer was killed does not fit its
//! checksum, and counts as free. No decision depends on an entry that is missing: debts are then
//! forgiven when numbers change.

use core::num::{NonZeroU32, NonZeroU64};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;

use crate::hash::SipHasher;
use crate::quota::Quota;

/// How many entries the header has room for.
pub(crate) const ENTRIES: usize = 1024;

/// How many limits of its configuration a process should [register](crate::Table::put_in_force).
pub const MAX_REGISTERED: usize = ENTRIES / 2;

/// How often an entry is written again when another process wrote to the same place.
const ATTEMPTS: usize = 8;

/// Numbers of a limit, and since when: see the fields of [`Registered`].
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    /// The hash of the other words, or something else while the entry is being written.
    check: AtomicU64,
    /// Limit, emission interval, burst (and 2^32 for an exception), penalty, since.
    words: [AtomicU64; 5],
    _reserved: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Entry>() == 64);

/// How much later than ours the clock reading of another process may be.
const CLOCK_SLACK_NS: u64 = 10_000_000_000;

/// Marks the burst of an exception's numbers.
const EXCEPTION: u64 = 1 << 32;

/// What an entry holds while it is being written.
const WRITING: u64 = 1;

/// Numbers that a limit has, or has had.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registered {
    /// The limit's [id](crate::limit_id), or 0.
    pub limit: u64,
    /// Whether the numbers hold for exceptions, which may have any number of them at the same
    /// time.
    pub is_exception: bool,
    /// The numbers.
    pub quota: Quota,
    /// Since when, in nanoseconds of the table's clock.
    pub since_ns: u64,
}

impl Registered {
    fn to_words(self) -> [u64; 5] {
        let exception = if self.is_exception { EXCEPTION } else { 0 };
        [
            self.limit,
            self.quota.emission_interval_ns(),
            u64::from(self.quota.burst()) | exception,
            self.quota.penalty_ns(),
            self.since_ns,
        ]
    }

    fn from_words([limit, interval_ns, burst, penalty_ns, since_ns]: [u64; 5]) -> Option<Self> {
        let cells = NonZeroU32::new(u32::try_from(burst & !EXCEPTION).ok()?)?;
        let quota = Quota::new(NonZeroU64::new(interval_ns)?, cells)
            .ok()?
            .with_penalty(penalty_ns)
            .ok()?;
        Some(Self { limit, is_exception: burst & EXCEPTION != 0, quota, since_ns })
    }
}

/// The entries of a table's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register<'a> {
    entries: &'a [Entry],
    hasher: SipHasher,
    now: u64,
}

impl<'a> Register<'a> {
    pub(crate) fn new(entries: &'a [Entry], hasher: SipHasher, now: u64) -> Self {
        Self { entries, hasher, now }
    }

    /// All that is registered, in no order. What is damaged is left out.
    pub(crate) fn all(self) -> impl Iterator<Item = Registered> {
        self.entries.iter().filter_map(move |entry| self.read(entry))
    }

    /// Writes down that a limit has these numbers from now on, unless it has them already, and
    /// returns the others that it had before, each with the time when it had them last: the
    /// earliest first.
    pub(crate) fn put_in_force(self, limit: u64, quota: Quota) -> Vec<(Quota, u64)> {
        let mut history = self.history(limit);
        if history.last().is_none_or(|(current, _)| *current != quota) {
            let since_ns = self.now;
            self.write(Registered { limit, is_exception: false, quota, since_ns });
            history.push((quota, since_ns));
        }
        // Numbers that came and went several times count once, so that they don't push out others;
        // and those that are in force again are not past.
        let mut past: Vec<(Quota, u64)> = Vec::new();
        for pair in history.windows(2) {
            past.retain(|(before, _)| *before != pair[0].0);
            past.push((pair[0].0, pair[1].1));
        }
        past.retain(|(before, _)| *before != quota);
        past
    }

    /// Writes down that some exceptions of a limit have these numbers.
    pub(crate) fn add_exception(self, limit: u64, quota: Quota) {
        let known =
            |entry: Registered| entry.is_exception && entry.limit == limit && entry.quota == quota;
        if !self.all().any(known) {
            self.write(Registered { limit, is_exception: true, quota, since_ns: self.now });
        }
    }

    /// Writes down what another register says and this one does not.
    pub(crate) fn take_over(self, other: Register<'_>) {
        let mut missing: Vec<_> =
            other.all().filter(|entry| !self.all().any(|ours| ours == *entry)).collect();
        missing.sort_by_key(|entry| entry.since_ns);
        missing.into_iter().for_each(|entry| self.write(entry));
    }

    /// The numbers of a limit, each with the time from which it had them, the earliest first.
    fn history(self, limit: u64) -> Vec<(Quota, u64)> {
        let mut history: Vec<_> = self
            .all()
            .filter(|entry| entry.limit == limit && !entry.is_exception)
            .map(|entry| (entry.quota, entry.since_ns))
            .collect();
        history.sort_by_key(|(_, since_ns)| *since_ns);
        // Processes that start at the same time write the same.
        history.dedup_by_key(|(quota, _)| *quota);
        history
    }

    fn read(self, entry: &Entry) -> Option<Registered> {
        let check = entry.check.load(Ordering::Acquire);
        let words = entry.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        if check != self.check(words) {
            return None;
        }
        // A time far in the future is damage that the checksum does not show. (Another process may
        // have read its clock after we have read ours.)
        let latest_ns = self.now.saturating_add(CLOCK_SLACK_NS);
        Registered::from_words(words).filter(|registered| registered.since_ns <= latest_ns)
    }

    fn check(self, words: [u64; 5]) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(b"gcra-table register");
        for word in words {
            hasher.write(&word.to_le_bytes());
        }
        // Neither free nor being written.
        hasher.finish() | 2
    }

    fn write(self, registered: Registered) {
        let words = registered.to_words();
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.free_entry() else { return };
            let seen = entry.check.load(Ordering::Relaxed);
            if entry
                .check
                .compare_exchange(seen, WRITING, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            for (place, word) in entry.words.iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
            entry.check.store(self.check(words), Ordering::Release);
            if self.read(entry) == Some(registered) {
                return;
            }
        }
    }

    /// The entry to write to: one that holds nothing; else numbers that are no longer in force,
    /// the earliest; else one whose writer was killed, or is writing now; else the earliest of
    /// all.
    fn free_entry(self) -> Option<&'a Entry> {
        let mut latest: HashMap<u64, u64> = HashMap::new();
        for entry in self.all().filter(|entry| !entry.is_exception) {
            let since_ns = latest.entry(entry.limit).or_default();
            *since_ns = entry.since_ns.max(*since_ns);
        }
        let order = |entry: &&Entry| match self.read(entry) {
            None if entry.check.load(Ordering::Relaxed) == WRITING => (2, 0),
            None => (0, 0),
            Some(Registered { limit, is_exception, since_ns, .. }) => {
                let is_past =
                    !is_exception && latest.get(&limit).is_some_and(|latest| *latest > since_ns);
                (if is_past { 1 } else { 3 }, since_ns)
            }
        };
        self.entries.iter().min_by_key(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize) -> Vec<Entry> {
        (0..count)
            .map(|_| Entry {
                check: AtomicU64::new(0),
                words: core::array::from_fn(|_| AtomicU64::new(0)),
                _reserved: core::array::from_fn(|_| AtomicU64::new(0)),
            })
            .collect()
    }

    fn quota(burst: u32) -> Quota {
        Quota::new(NonZeroU64::new(1_000).unwrap(), NonZeroU32::new(burst).unwrap()).unwrap()
    }

    fn at(entries: &[Entry], now: u64) -> Register<'_> {
        Register::new(entries, SipHasher::new(b"0123456789abcdef"), now)
    }

    #[test]
    fn a_limit_has_a_history() {
        let entries = entries(16);
        assert_eq!(at(&entries, 10).put_in_force(7, quota(1)), []);
        assert_eq!(at(&entries, 20).put_in_force(7, quota(1)), [], "nothing has changed");
        assert_eq!(at(&entries, 25).put_in_force(8, quota(9)), [], "another limit");
        assert_eq!(at(&entries, 30).put_in_force(7, quota(2)), [(quota(1), 30)]);
        assert_eq!(
            at(&entries, 40).put_in_force(7, quota(2)),
            [(quota(1), 30)],
            "a second process"
        );
        let penalized = quota(2).with_penalty(5).unwrap();
        assert_eq!(at(&entries, 50).put_in_force(7, penalized), [(quota(1), 30), (quota(2), 50)]);
        assert_eq!(
            at(&entries, 60).put_in_force(7, quota(1)),
            [(quota(2), 50), (penalized, 60)],
            "and back"
        );
        for flip in 0..50 {
            at(&entries, 100 + flip).put_in_force(9, quota(1 + u32::try_from(flip % 2).unwrap()));
        }
        assert_eq!(
            at(&entries, 200).put_in_force(9, quota(3)),
            [(quota(1), 149), (quota(2), 200)]
        );
        at(&entries, 70).add_exception(7, quota(3));
        at(&entries, 80).add_exception(7, quota(3));
        let exceptions: Vec<_> =
            at(&entries, 90).all().filter(|entry| entry.is_exception).collect();
        assert_eq!(
            exceptions,
            [Registered { limit: 7, is_exception: true, quota: quota(3), since_ns: 70 }]
        );
    }

    #[test]
    fn a_full_register_keeps_what_is_in_force() {
        let entries = entries(4);
        for now in 0..100 {
            at(&entries, now).put_in_force(7, quota(1 + u32::try_from(now).unwrap()));
        }
        at(&entries, 100).put_in_force(8, quota(5));
        for now in 101..200 {
            at(&entries, now).put_in_force(7, quota(1 + u32::try_from(now).unwrap()));
        }
        assert_eq!(at(&entries, 200).put_in_force(8, quota(6)), [(quota(5), 200)]);
        assert_eq!(at(&entries, 201).put_in_force(7, quota(1)).last(), Some(&(quota(200), 201)));
    }

    #[test]
    fn what_is_damaged_or_half_written_counts_as_free() {
        let entries = entries(4);
        at(&entries, 10).put_in_force(7, quota(1));
        for word in 0..5 {
            let seen = entries[0].words[word].fetch_xor(1 << 20, Ordering::Relaxed);
            assert_eq!(at(&entries, 20).all().count(), 0, "word {word}");
            entries[0].words[word].store(seen, Ordering::Relaxed);
        }
        assert_eq!(at(&entries, 20).all().count(), 1);
        at(&entries, CLOCK_SLACK_NS + 20).put_in_force(8, quota(1));
        assert_eq!(at(&entries, 20).all().count(), 2);
        assert_eq!(at(&entries, 19).all().count(), 1, "from the future");
        entries[0].check.store(WRITING, Ordering::Relaxed);
        assert_eq!(at(&entries, 19).put_in_force(7, quota(2)), []);
        assert_eq!(at(&entries, 19).all().count(), 1);
    }

    #[test]
    fn a_register_takes_over_another() {
        let (old, new) = (entries(8), entries(8));
        at(&old, 10).put_in_force(7, quota(1));
        at(&new, 20).put_in_force(7, quota(2));
        for _ in 0..2 {
            at(&new, 30).take_over(at(&old, 30));
            assert_eq!(at(&new, 30).all().count(), 2);
        }
        assert_eq!(at(&new, 40).put_in_force(7, quota(3)), [(quota(1), 20), (quota(2), 40)]);
    }

    #[test]
    fn processes_that_start_together_write_the_same() {
        let entries = entries(64);
        std::thread::scope(|scope| {
            for now in 10..18 {
                let entries = &entries;
                scope.spawn(move || {
                    for limit in 0..4 {
                        let _ = at(entries, now).put_in_force(limit, quota(1));
                    }
                });
            }
        });
        for limit in 0..4 {
            assert_eq!(at(&entries, 20).put_in_force(limit, quota(2)), [(quota(1), 20)]);
        }
    }
}

//! [`Waiting`]: the requests of this process that wait for the store, by the key that they wait
//! for.
//!
//! An answer of the store wakes the requests that it decides about, and no others. The first of
//! the requests that still wait for a key makes sure that the store is asked. When it has its
//! answer, the next request is the first, and is woken. So a request is woken once or twice,
//! however many wait for its key.

// ADR 44: What cannot be lent is charged in the store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::AHashMap;
use gcra_lease::{Holding, HostTime, Look, Micros};
use gcra_table::LeaseKey;
use tokio::sync::Notify;

/// An answer that a request can make nothing of may be enough for a cheaper one behind it. After
/// this many such requests, no others are looked at.
const MOST_PASSED_OVER: usize = 64;

/// How often the first request that waits for a key looks whether another process of this host has
/// got cells. (Cells that this process gets wake it at once.)
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// With more keys than this, each looks less often, so that looking does not take all the time.
const KEYS_AT_ONCE: usize = 64;

/// The requests that wait. A key is in it while a request waits for the key.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    keys: Mutex<AHashMap<LeaseKey, Arc<Queue>>>,
    requests: AtomicU64,
}

/// The requests that wait for one key.
#[derive(Debug, Default)]
struct Queue {
    places: Mutex<Places>,
    /// The store's last news about this key.
    is_away: AtomicBool,
    free: AtomicU32,
}

/// The requests in the order in which they came.
#[derive(Debug, Default)]
struct Places {
    requests: BTreeMap<u64, Place>,
    next: u64,
    /// The cost of all of them.
    cells: u32,
}

#[derive(Debug)]
struct Place {
    cells: u32,
    woken: Arc<Notify>,
}

/// The outcome of an ask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// The store has answered: the host holds this now, and so many cells are free in the store.
    Answered { holding: Holding, now: HostTime, free: u32 },
    /// The answer came too late.
    Late,
    /// The store cannot be asked.
    Away,
}

/// A request that waits for a key, until it is dropped.
#[derive(Debug)]
pub struct Waits {
    of: Arc<Waiting>,
    queue: Arc<Queue>,
    pub(crate) key: LeaseKey,
    place: u64,
    /// Has a permit when the request can go on, or is the first by now.
    pub(crate) woken: Arc<Notify>,
}

impl Waiting {
    /// Lets a request of this cost wait for a key.
    pub(crate) fn join(self: &Arc<Self>, key: LeaseKey, cells: u32) -> Waits {
        let woken = Arc::new(Notify::new());
        let (queue, place) = {
            let mut keys = self.keys();
            let queue = keys.entry(key).or_default().clone();
            let place = queue.places().add(Place { cells, woken: woken.clone() });
            (queue, place)
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        Waits { of: self.clone(), queue, key, place, woken }
    }

    /// The cost of all requests that wait for this key.
    pub(crate) fn cells(&self, key: LeaseKey) -> u32 {
        self.keys().get(&key).map_or(0, |queue| queue.places().cells)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Wakes the requests that wait for this key and can go on now. `patience` is that of an ask.
    /// Returns whether any request waits for it.
    pub(crate) fn wake(&self, key: LeaseKey, news: News, patience: Micros) -> bool {
        let Some(queue) = self.keys().get(&key).cloned() else { return false };
        queue.is_away.store(matches!(news, News::Away), Ordering::Relaxed);
        if let News::Answered { free, .. } = news {
            queue.free.store(free, Ordering::Relaxed);
        }
        queue.places().wake(news, patience);
        true
    }

    fn keys(&self) -> MutexGuard<'_, AHashMap<LeaseKey, Arc<Queue>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// To be locked after the keys, if both are.
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn add(&mut self, place: Place) -> u64 {
        let number = self.next;
        self.next += 1;
        // Where cells are lent, a cost is at most 8191 of them, and there are not as many requests
        // as to make this wrap. Where a request is charged at once, nobody reads it.
        self.cells = self.cells.wrapping_add(place.cells);
        self.requests.insert(number, place);
        number
    }

    /// Takes a request out. If it was the first, the next one is woken.
    fn remove(&mut self, number: u64) {
        let was_first = self.is_first(number);
        if let Some(place) = self.requests.remove(&number) {
            self.cells = self.cells.wrapping_sub(place.cells);
        }
        if was_first {
            self.wake_first();
        }
    }

    fn is_first(&self, number: u64) -> bool {
        self.requests.first_key_value().is_some_and(|(first, _)| *first == number)
    }

    fn wake_first(&self) {
        if let Some((_, place)) = self.requests.first_key_value() {
            place.woken.notify_one();
        }
    }

    fn wake(&self, news: News, patience: Micros) {
        match news {
            News::Away => self.requests.values().for_each(|place| place.woken.notify_one()),
            News::Late => self.wake_first(),
            News::Answered { mut holding, now, .. } => {
                self.wake_first();
                let mut passed_over = 0;
                for place in self.requests.values() {
                    match holding.look(now, place.cells, patience) {
                        // The others get what this one leaves.
                        Look::Enough => {
                            holding.spend(now, place.cells);
                            place.woken.notify_one();
                        }
                        Look::Blocked { .. } => place.woken.notify_one(),
                        Look::Waiting { .. } | Look::Lacking => passed_over += 1,
                    }
                    if passed_over > MOST_PASSED_OVER {
                        break;
                    }
                }
            }
        }
    }
}

impl Waits {
    /// Whether no other request of this process has waited for the key for longer. The first one
    /// sees to it that the store is asked.
    pub(crate) fn is_first(&self) -> bool {
        self.queue.places().is_first(self.place)
    }

    /// How long the first request waits before it looks again.
    pub(crate) fn next_look(&self) -> Duration {
        let keys = self.of.keys().len();
        LOOK_EVERY.saturating_mul(u32::try_from(1 + keys / KEYS_AT_ONCE).unwrap_or(u32::MAX))
    }

    /// Whether the store could not be asked about this key the last time.
    pub(crate) fn is_away(&self) -> bool {
        self.queue.is_away.load(Ordering::Relaxed)
    }

    /// The cells that were free in the store when it last answered; 0 if it has not.
    pub(crate) fn free(&self) -> u32 {
        self.queue.free.load(Ordering::Relaxed)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.of.requests.fetch_sub(1, Ordering::Relaxed);
        let mut keys = self.of.keys();
        let mut places = self.queue.places();
        places.remove(self.place);
        if places.requests.is_empty() {
            keys.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::LazyLock;
    use std::task::{Context, Waker};

    use gcra_lease::{AskNumber, AskReply, HostId, SharedLimit, StoreTime, Wish};
    use gcra_table::{KeyHash, LeaseNumbers, Slots, Table};

    use super::*;

    const NOW: HostTime = HostTime(1_000_000);
    const PATIENCE: Micros = Micros::from_millis(50);

    /// A key for each number.
    fn key_of(number: u64) -> LeaseKey {
        static HASH: LazyLock<KeyHash> = LazyLock::new(|| {
            let (table, _clock) = Table::with_manual_clock(Slots::new(64).unwrap()).unwrap();
            table.hash(b"key")
        });
        LeaseKey::new(*HASH, LeaseNumbers::new(&[number]))
    }

    fn key() -> LeaseKey {
        key_of(1)
    }

    /// Requests of these costs that wait for a key, in this order.
    fn waiting(costs: &[u32]) -> (Arc<Waiting>, Vec<Waits>) {
        let (waiting, key) = (Arc::new(Waiting::default()), key());
        let waits = costs.iter().map(|cells| waiting.join(key, *cells)).collect();
        (waiting, waits)
    }

    /// The answer of the store to an ask for `least`: so many cells are granted, and others may be
    /// asked for in `come_back_ms`.
    fn answered(least: u32, granted: u32, come_back_ms: u64) -> News {
        let limit = SharedLimit::new(Duration::from_secs(1), 1_000).unwrap();
        let (mut holding, validity) = (Holding::new(), Micros::from_millis(500));
        let wish = Wish { want: least, least, validity };
        let sent = holding.ask(&limit, NOW, HostId(1), AskNumber(1), wish);
        let reply = AskReply {
            number: sent.ask.number,
            kept: 0,
            granted,
            free: 7,
            come_back_after: Micros::from_millis(come_back_ms),
            scarce: false,
            lent: false,
            hosts: 1,
            now: StoreTime(0),
        };
        assert!(holding.reply(NOW, &sent, &reply));
        News::Answered { holding, now: NOW, free: 7 }
    }

    /// Which of them were woken since the last time.
    fn woken(waits: &[Waits]) -> Vec<usize> {
        let is_woken = |waits: &Waits| {
            let mut context = Context::from_waker(Waker::noop());
            pin!(waits.woken.notified()).poll(&mut context).is_ready()
        };
        (0..waits.len()).filter(|number| is_woken(&waits[*number])).collect()
    }

    #[test]
    fn an_answer_wakes_as_many_as_it_is_enough_for() {
        let (waiting, waits) = waiting(&[1; 10]);
        assert!(waiting.wake(key(), answered(10, 3, 0), PATIENCE));
        assert_eq!(woken(&waits), [0, 1, 2]);
        assert_eq!(waits[9].free(), 7);
        assert!(woken(&waits).is_empty());
    }

    #[test]
    fn one_that_needs_more_does_not_keep_back_those_behind_it() {
        let (waiting, waits) = waiting(&[5, 2, 3, 1, 1]);
        waiting.wake(key(), answered(5, 4, 0), PATIENCE);
        assert_eq!(woken(&waits), [0, 1, 3, 4], "the first one asks, and 3 are too many");
    }

    #[test]
    fn all_are_woken_that_are_denied() {
        let (waiting, waits) = waiting(&[1, 2, 1, 3]);
        waiting.wake(key(), answered(1, 0, 40), PATIENCE);
        assert_eq!(woken(&waits), [0, 1, 2, 3]);
        let (waiting, waits) = self::waiting(&[2, 1, 2]);
        waiting.wake(key(), answered(2, 0, 40), PATIENCE);
        assert_eq!(woken(&waits), [0, 2], "one cell may be there");
    }

    #[test]
    fn all_are_woken_if_the_store_is_away_and_the_first_after_a_late_answer() {
        let (waiting, waits) = waiting(&[1; 3]);
        waiting.wake(key(), News::Late, PATIENCE);
        assert_eq!(woken(&waits), [0]);
        waiting.wake(key(), News::Away, PATIENCE);
        assert_eq!(woken(&waits), [0, 1, 2]);
        assert!(waits[1].is_away());
    }

    #[test]
    fn there_is_always_a_first_one() {
        let (waiting, mut waits) = waiting(&[1; 4]);
        drop(waits.remove(1));
        assert!(woken(&waits).is_empty());
        assert!(waits[0].is_first() && !waits[1].is_first());
        drop(waits.remove(0));
        assert_eq!(woken(&waits), [0]);
        assert!(waits[0].is_first());
        assert_eq!((waiting.requests(), waiting.cells(key())), (2, 2));
        waits.clear();
        assert!(!waiting.wake(key(), News::Away, PATIENCE));
        assert!(waiting.keys().is_empty());
    }

    #[test]
    fn few_that_lack_cells_are_passed_over() {
        let mut costs = vec![9; 100];
        costs.extend([1; 100]);
        let (waiting, waits) = waiting(&costs);
        waiting.wake(key(), answered(9, 8, 0), PATIENCE);
        assert_eq!(woken(&waits), [0]);
    }

    #[test]
    fn with_many_keys_each_looks_less_often() {
        let (waiting, waits) = waiting(&[1]);
        assert_eq!(waits[0].next_look(), LOOK_EVERY);
        let others: Vec<_> = (2..641).map(|number| waiting.join(key_of(number), 1)).collect();
        assert_eq!(waits[0].next_look(), 11 * LOOK_EVERY);
        drop(others);
        assert_eq!(waits[0].next_look(), LOOK_EVERY);
    }
}

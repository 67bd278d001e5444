//! [`Waiting`]: the requests of this process that wait for the store, by the key that they wait
//! for.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::AHashMap;
use gcra_table::LeaseKey;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// The requests that wait. A key is in it as long as one of them waits for it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    keys: Mutex<AHashMap<LeaseKey, Arc<Queue>>>,
    requests: AtomicU64,
}

/// The requests that wait for one key.
#[derive(Debug, Default)]
struct Queue {
    answered: Arc<Notify>,
    /// What all of them cost.
    cells: AtomicU32,
    /// How many they are.
    requests: AtomicU32,
    /// What the store last said about this key.
    is_away: AtomicBool,
    free: AtomicU32,
}

/// A request that waits for a key, until it is dropped.
#[derive(Debug)]
pub struct Waits {
    of: Arc<Waiting>,
    queue: Arc<Queue>,
    key: LeaseKey,
    cells: u32,
}

impl Waiting {
    /// Lets a request of this cost wait for a key.
    pub(crate) fn join(self: &Arc<Self>, key: LeaseKey, cells: u32) -> Waits {
        let queue = {
            let mut keys = self.keys();
            let queue = keys.entry(key).or_default().clone();
            queue.requests.fetch_add(1, Ordering::Relaxed);
            queue
        };
        // Where cells are lent, a cost is at most 8191 of them, and there are not as many requests
        // as to make this wrap. Where a request is charged at once, nobody reads it.
        queue.cells.fetch_add(cells, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        Waits { of: self.clone(), queue, key, cells }
    }

    /// What all requests cost that wait for this key.
    pub(crate) fn cells(&self, key: LeaseKey) -> u32 {
        self.keys().get(&key).map_or(0, |queue| queue.cells.load(Ordering::Relaxed))
    }

    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Wakes all requests that wait for this key. `free` is what the store said, if it answered;
    /// `is_away` is whether it cannot be asked. Returns whether there was one.
    pub(crate) fn wake(&self, key: LeaseKey, free: Option<u32>, is_away: bool) -> bool {
        let Some(queue) = self.keys().get(&key).cloned() else { return false };
        queue.is_away.store(is_away, Ordering::Relaxed);
        if let Some(free) = free {
            queue.free.store(free, Ordering::Relaxed);
        }
        queue.answered.notify_waiters();
        true
    }

    fn keys(&self) -> MutexGuard<'_, AHashMap<LeaseKey, Arc<Queue>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waits {
    pub(crate) fn key(&self) -> LeaseKey {
        self.key
    }

    /// Resolves when something has been said about the key since this call.
    pub(crate) fn answered(&self) -> OwnedNotified {
        self.queue.answered.clone().notified_owned()
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
        self.queue.cells.fetch_sub(self.cells, Ordering::Relaxed);
        self.of.requests.fetch_sub(1, Ordering::Relaxed);
        let mut keys = self.of.keys();
        if self.queue.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            keys.remove(&self.key);
        }
    }
}

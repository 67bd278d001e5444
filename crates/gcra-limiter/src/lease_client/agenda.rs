//! [`LeaseTarget`]: a key about which the store is asked. [`Agenda`]: the tasks of this process
//! for such keys, and when each is due.

// ADR 44: What cannot be lent is charged in the store.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};

use ahash::AHashMap;
use gcra_lease::HostTime;
use gcra_store::Bucket;
use gcra_table::{LeaseKey, Nanos};
use tokio::sync::Notify;

/// The most keys that are remembered. Cells of others are not given back: they expire, and the
/// limit is too strict by them.
const MOST_KEYS: usize = 65_536;

/// A key under a shared limit.
#[derive(Clone, Debug)]
pub struct LeaseTarget {
    pub key: LeaseKey,
    /// Its record in the store, with the limit as the store computes it.
    pub bucket: Bucket,
    /// Hosts may use shares of the limit in an outage that takes as long as this. `None`: they
    /// never do.
    pub(crate) shares_after: Option<Nanos>,
    /// When its policy was last reset, in ns since 1970; 0 if never.
    pub(crate) reset_at: u64,
}

/// The tasks for keys, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    inner: Mutex<Inner>,
    /// The first task has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// The task for each key, and when it is due. An entry of `times` with another time is over.
    keys: AHashMap<LeaseKey, (HostTime, Task, LeaseTarget)>,
    times: BinaryHeap<Reverse<(HostTime, LeaseKey)>>,
}

/// The step that is due for a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Task {
    /// Give back the cells that are held, before they expire.
    GiveBack,
    /// Report the penalties that were noted.
    Report,
}

impl Agenda {
    /// Notes what to do about a key. It replaces the earlier note, but a report is not put off.
    pub(crate) fn note(&self, at: HostTime, what: Task, target: LeaseTarget) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { keys, times } = &mut *inner;
        let key = target.key;
        if keys.get(&key).is_some_and(|(_, noted, _)| *noted == Task::Report)
            || (keys.len() >= MOST_KEYS && !keys.contains_key(&key))
        {
            return;
        }
        keys.insert(key, (at, what, target));
        // A key that is noted again and again leaves times behind that are over.
        if times.len() > 4 * keys.len() + 64 {
            *times = keys.iter().map(|(key, (at, ..))| Reverse((*at, *key))).collect();
        } else {
            times.push(Reverse((at, key)));
        }
        if times.peek().is_some_and(|Reverse((first, _))| *first == at) {
            self.changed.notify_one();
        }
    }

    /// Takes out what is to be done by now; and when the next thing is.
    pub(crate) fn take(
        &self,
        now: HostTime,
        done: &mut Vec<(Task, LeaseTarget)>,
    ) -> Option<HostTime> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { keys, times } = &mut *inner;
        while let Some(Reverse((at, key))) = times.peek().copied() {
            let is_current = keys.get(&key).is_some_and(|(noted, ..)| *noted == at);
            if is_current && at > now {
                return Some(at);
            }
            times.pop();
            if is_current && let Some((_, what, target)) = keys.remove(&key) {
                done.push((what, target));
            }
        }
        None
    }

    /// Resolves when something is to be done earlier than before.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

//! Staying awake for a while after a request, because waking up is what takes longest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

/// When something was read last, by any worker.
#[derive(Debug)]
pub(crate) struct Busy {
    for_ns: u64,
    start: Instant,
    last_read_ns: AtomicU64,
    again: Notify,
}

impl Busy {
    pub(crate) fn new(time: Duration) -> Self {
        let for_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            for_ns,
            start: Instant::now(),
            last_read_ns: AtomicU64::new(0),
            again: Notify::new(),
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Something was read.
    pub(crate) fn read(&self) {
        self.last_read_ns.store(self.now_ns(), Ordering::Relaxed);
        self.again.notify_waiters();
    }

    /// Keeps the thread that this is awaited in from sleeping, for ever. A call to `read` between
    /// the two waits goes unnoticed until the next one, which costs a wake-up and nothing
    /// else.
    pub(crate) async fn stay_awake(&self) {
        loop {
            self.again.notified().await;
            while self.now_ns().saturating_sub(self.last_read_ns.load(Ordering::Relaxed))
                < self.for_ns
            {
                yield_now().await;
            }
        }
    }
}

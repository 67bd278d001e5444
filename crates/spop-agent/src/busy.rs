//! Keeps workers awake for a while after a read, because to wake up takes most of the time of a
//! single request.

// ADR 10: Busy polling is off by default.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;

/// When any worker has read last.
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

    /// Notes that a worker has read.
    pub(crate) fn read(&self) {
        self.last_read_ns.store(self.now_ns(), Ordering::Relaxed);
        self.again.notify_waiters();
    }

    /// Keeps the current thread awake after each read, for ever. A call of `read` between the two
    /// waits is missed until the next call, which costs one wake-up and nothing else.
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

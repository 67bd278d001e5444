//! The workers' signs of life.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// How often each worker gives one.
const INTERVAL: Duration = Duration::from_secs(1);

/// When each worker has run last.
#[derive(Debug)]
pub(crate) struct Beats {
    start: Instant,
    /// In milliseconds after the start.
    last: Box<[AtomicU64]>,
}

impl Beats {
    /// For this number of workers, all of which run now.
    pub(crate) fn new(workers: usize) -> Self {
        Self { start: Instant::now(), last: (0..workers).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes once a second, without an end, that a worker runs. This must run on that worker.
    pub(crate) async fn beat(&self, worker: usize) {
        loop {
            if let Some(last) = self.last.get(worker) {
                let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
                last.store(now, Ordering::Relaxed);
            }
            sleep(INTERVAL).await;
        }
    }

    /// For how long the worker that has been silent longest has not run.
    pub(crate) fn silent(&self) -> Duration {
        let last = self.last.iter().map(|last| last.load(Ordering::Relaxed)).min();
        last.map_or(Duration::ZERO, |last| {
            self.start.elapsed().saturating_sub(Duration::from_millis(last))
        })
    }
}

//! The parts of the inside that benches use. They may change or go at any time.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use gcra_table::KeyHash;

use crate::heaviest::Under;
use crate::stats::{self, PolicyStats};
use crate::verdict::Outcome;

/// The counts of one policy, as each worker keeps them on a lane of its own.
pub struct RequestCounts(Arc<PolicyStats>);

/// The lane of a thread.
#[derive(Clone, Copy)]
pub struct WorkerLane(stats::Lane);

impl WorkerLane {
    /// The lane of the calling thread.
    #[must_use]
    #[inline]
    pub fn of_this_thread() -> Self {
        Self(stats::Lane::of_this_thread())
    }
}

impl RequestCounts {
    /// Counts of nothing, for threads with lanes below `lanes`.
    #[must_use]
    pub fn new(lanes: NonZeroUsize) -> Self {
        Self(stats::Stats::new(lanes).policy("default"))
    }

    /// Counts a request that was blocked or allowed, of a client that is named by its address.
    #[inline(always)]
    pub fn count(&self, lane: WorkerLane, is_blocked: bool, client: KeyHash, ip: Ipv4Addr) {
        let outcome = if is_blocked { Outcome::Blocked } else { Outcome::Allowed };
        if let Some(heaviest) = self.0.count(lane.0, outcome) {
            heaviest.offer(client, Under::own, |name| {
                // Writing to a string does not fail.
                let _ = write!(name, "{ip}");
            });
        }
    }

    /// How many requests were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.counts().iter().sum()
    }
}

//! [`AgentView`]: the parts of a running agent from which its status is gathered on request.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::history::Past;
use gcra_limiter::lease_client::LeaseClient;
use gcra_limiter::stats::{Readiness, Stats, lock};
use gcra_limiter::undecided::Undecided;
use gcra_table::{Leases, Table};
use spop_agent::Counters;
use tokio::sync::Mutex;

use crate::status::{Scan, Status, StatusSource, word};

/// How old the table's occupancy may be. Counting a million slots takes milliseconds.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The slots are counted so rarely that counting takes at most one part in `SHARE` of the time.
const SHARE: u32 = 20;

/// After this time without a beat, a worker counts as stuck.
pub const MAX_SILENCE: Duration = Duration::from_secs(10);

/// The parts of an agent that its status is gathered from.
pub struct AgentView {
    table: Arc<ArcSwap<Table>>,
    counters: Arc<Counters>,
    undecided: Arc<Undecided>,
    stats: Arc<Stats>,
    policies: Arc<ArcSwap<ActivePolicies>>,
    /// The part of this process that borrows cells for shared limits, if there is a store.
    lease_client: Option<Arc<LeaseClient>>,
    latest_scan: std::sync::Mutex<Option<Scan>>,
    /// Held by the one request that counts the slots.
    scanning: Mutex<()>,
}

impl AgentView {
    pub fn new(
        table: Arc<ArcSwap<Table>>,
        counters: Arc<Counters>,
        undecided: Arc<Undecided>,
        stats: Arc<Stats>,
        policies: Arc<ArcSwap<ActivePolicies>>,
        lease_client: Option<Arc<LeaseClient>>,
    ) -> Self {
        let (latest_scan, scanning) = Default::default();
        Self { table, counters, undecided, stats, policies, lease_client, latest_scan, scanning }
    }

    /// Why the agent does not work, if that is so.
    pub(crate) fn complaint(&self) -> Option<String> {
        let silent = self.stats.silent().max(self.counters.silent());
        // The housekeeping ends while the agent is leaving.
        let is_stuck = silent > MAX_SILENCE && self.stats.readiness() != Readiness::Leaving;
        is_stuck.then(|| format!("a worker has been stuck for {} s", silent.as_secs()))
    }

    /// Why the agent should get no requests, if that is so.
    pub(crate) fn excuse(&self) -> Option<String> {
        match self.stats.readiness() {
            Readiness::Serving => self.complaint(),
            readiness => Some(word(readiness).to_owned()),
        }
    }

    pub(crate) fn note_wrong_token(&self) {
        self.stats.wrong_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// The part of this agent that borrows cells for shared limits, if there is a store.
    pub fn lease_client(&self) -> Option<&LeaseClient> {
        self.lease_client.as_deref()
    }

    /// The cells of shared limits that the machine holds, if there is a store.
    pub fn leases(&self) -> Option<Guard<Arc<Leases>>> {
        self.lease_client.as_ref().map(|lease_client| lease_client.leases())
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    pub fn in_force(&self) -> Arc<ActivePolicies> {
        self.policies.load_full()
    }

    /// The counts of the last `most` slots of the last minutes.
    pub fn past(&self, most: usize) -> Past {
        let table = self.table.load();
        self.stats.past(table.since_boot(table.now()).into(), most)
    }

    /// Everything, now, with the table as it was last [scanned](Self::scan).
    pub fn status(&self) -> Status {
        Status::of(&StatusSource {
            stats: &self.stats,
            undecided: &self.undecided,
            snapshot: &self.counters.snapshot(),
            table: &self.table.load(),
            lease_client: self.lease_client(),
            leases: self.leases().as_ref().map(|leases| &***leases),
            in_force: &self.in_force(),
            scan: *lock(&self.latest_scan),
        })
    }

    /// Counts the table's slots, unless that was done a moment ago. Requests that come in the
    /// meantime wait for the same result.
    pub async fn scan(&self) {
        let _permit = self.scanning.lock().await;
        let last = *lock(&self.latest_scan);
        if last.is_some_and(|scan| scan.at.elapsed() < MAX_AGE.max(scan.took * SHARE)) {
            return;
        }
        let table = self.table.load_full();
        let lease_client = self.lease_client.clone();
        let began = Instant::now();
        // On another thread, because this one has other requests to answer.
        let counted = tokio::task::spawn_blocking(move || {
            (table.occupancy(), lease_client.map(|lease_client| lease_client.count_leases(&table)))
        });
        // It does not panic; if it did, an empty answer would be better than none.
        let (occupancy, leases) = counted.await.unwrap_or_default();
        *lock(&self.latest_scan) =
            Some(Scan { occupancy, leases, at: Instant::now(), took: began.elapsed() });
    }
}

//! The status of a running agent, gathered on request. `/status` sends it as JSON, `top` reads it,
//! and `/metrics` turns it into metrics.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, UNIX_EPOCH};

use arc_swap::{ArcSwap, Guard};
use gcra_inspect::process_list::is_this_process;
use gcra_limiter::borrower::Borrower;
use gcra_limiter::heaviest::{Found, HeavyClient, Under, Window};
use gcra_limiter::history::Past;
use gcra_limiter::policies_in_force::InForce;
use gcra_limiter::stats::{PolicyStats, Readiness, Stats, lock};
use gcra_limiter::undecided::Undecided;
use gcra_limiter::verdict::{NEWLY_BLOCKED, OUTCOMES, Outcome};
use gcra_policy::limit_from_arg::ArgValue;
use gcra_policy::policy::is_trial_name;
use gcra_table::{Evictions, KeyHash, LeaseCounts, Leases, Name, Nanos, Occupancy, Table};
use gcra_text::version;
use serde::{Deserialize, Serialize};
use spop_agent::{Counters, Latency as LatencyCounts, Snapshot};
use tokio::sync::Mutex;

use crate::agreement::differing;
use crate::client_waits::{Of, Waiting};
use crate::store_status::StoreStatus;

/// How many of the heaviest clients are listed.
pub(crate) const TOP: usize = 20;

/// How old the table's occupancy may be. Counting a million slots takes milliseconds.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The slots are counted so rarely that counting takes at most one part in `SHARE` of the time.
const SHARE: u32 = 20;

/// The shortest time over which a rate of requests is computed: the first requests after a start
/// would otherwise look like a flood.
const SHORTEST: Duration = Duration::from_secs(1);

/// Larger numbers in the status of another process are wrong.
const LARGEST: f64 = 1e15;

/// The statuses that say what is wrong with a frame that was received (SPOE.txt section 3.5).
const PROTOCOL_ERRORS: RangeInclusive<usize> = 3..=13;

/// After this time without a beat, a worker counts as stuck.
pub const MAX_SILENCE: Duration = Duration::from_secs(10);

/// The parts of an agent that its status is gathered from.
#[derive(Debug)]
pub struct Watched {
    table: Arc<ArcSwap<Table>>,
    counters: Arc<Counters>,
    undecided: Arc<Undecided>,
    stats: Arc<Stats>,
    /// The policies, if they are known.
    policies: Option<Arc<ArcSwap<InForce>>>,
    /// What this process does for shared limits, if there is a store.
    borrower: Option<Arc<Borrower>>,
    latest_scan: std::sync::Mutex<Option<Scan>>,
    /// Held by the one request that counts the slots.
    scanning: Mutex<()>,
}

/// What the table and the leases held when their slots and entries were last counted.
#[derive(Clone, Copy, Debug)]
struct Scan {
    occupancy: Occupancy,
    leases: Option<LeaseCounts>,
    at: Instant,
    took: Duration,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub state: String,
    pub(crate) start_time_seconds: f64,
    pub(crate) uptime_seconds: f64,
    /// The length of the window in which the heaviest clients were counted.
    pub(crate) window_seconds: f64,
    pub policies: Vec<Policy>,
    /// Messages for which there is no policy.
    pub unmatched: u64,
    pub notifies: Notifies,
    pub latency: Latency,
    pub connections: Connections,
    pub table: TableStatus,
    /// `None` without a store.
    pub store: Option<StoreStatus>,
    /// By result.
    pub(crate) config_reloads: BTreeMap<String, u64>,
    /// Requests for actions that were refused because their token was wrong.
    #[serde(default)]
    pub wrong_tokens: u64,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Policy {
    pub name: String,
    /// By outcome.
    pub decisions: BTreeMap<String, u64>,
    /// Of a trial: how many messages it would block that its policy has allowed. `None` for other
    /// policies.
    #[serde(default)]
    pub newly_blocked: Option<u64>,
    /// How many messages were allowed with a delay; of a policy that only observes, how many would
    /// have been. Each is among `decisions`, too.
    #[serde(default)]
    pub delayed: u64,
    /// What messages said about limits whose numbers are in an arg: how many said a valid limit,
    /// one that was lowered, an invalid one, and none. Empty if the policy has no such limit.
    #[serde(default)]
    pub limit_args: BTreeMap<String, u64>,
    /// How many messages of responses have settled requests, by how. Empty if none has.
    #[serde(default)]
    pub settled: BTreeMap<String, u64>,
    /// How many cells these have charged and given back. Empty if no message has settled requests.
    #[serde(default)]
    pub settled_cells: BTreeMap<String, u64>,
    /// The clients with the most requests that were blocked.
    pub(crate) top_blocked: Vec<Client>,
    /// The clients with the most requests that have passed, and would have been blocked if the
    /// policy did not only observe.
    pub(crate) top_would_block: Vec<Client>,
    /// The clients with the most allowed requests.
    pub(crate) top_allowed: Vec<Client>,
    pub(crate) top_is_exact: Exact,
    /// Whether it only observes because of an action.
    #[serde(default)]
    pub switched: bool,
    /// What a policy that is shared does without the store: "share", "closed" or "open". `None` if
    /// it is not shared.
    pub shared: Option<String>,
    /// The decisions that were made without the store, by outcome. Empty if it is not shared.
    #[serde(default)]
    pub without_store: BTreeMap<String, u64>,
}

/// Whether every request of an outcome was counted, so that the numbers of clients are exact.
/// Otherwise each is a cautious estimate, and clients of which too little is known are left out.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Exact {
    pub blocked: bool,
    pub would_block: bool,
    pub allowed: bool,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Client {
    pub client: String,
    pub requests: u64,
    /// The same divided by the length of the window.
    pub per_second: f64,
    /// How long it takes until a request of it is allowed, if it is over a limit now. Only where
    /// clients are listed because they were blocked, or would have been.
    #[serde(default)]
    pub wait_ms: Option<u64>,
    /// Why a request of it is blocked now: see [`Waiting::reason`].
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Notifies {
    pub answered: u64,
    pub(crate) shed: u64,
    pub(crate) reassembled: u64,
    pub(crate) overdue: u64,
    pub waiting: u64,
    pub(crate) handler_panics: u64,
    pub(crate) ack_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Latency {
    /// Each counts the NOTIFYs that took longer than the bound of the one before.
    pub buckets: Vec<Bucket>,
    pub(crate) sum_seconds: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Bucket {
    /// The upper bound; `None` for the last bucket, which has none.
    pub(crate) at_most_seconds: Option<f64>,
    pub count: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Connections {
    pub open: u64,
    pub(crate) accepted: u64,
    pub(crate) accept_errors: u64,
    /// Of incomplete frames and unread answers.
    pub(crate) buffered_bytes: u64,
    /// How many ended, by how.
    pub ended: BTreeMap<String, u64>,
    /// How many were ended with each status (SPOE.txt section 3.5).
    pub(crate) protocol_errors: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct TableStatus {
    /// The same for all agents that share the table, before and after a resize.
    pub id: String,
    pub slots: u64,
    /// How many slots are in each state. Empty if the slots have not been counted.
    pub(crate) states: BTreeMap<String, u64>,
    /// How old the numbers of states are.
    pub(crate) scanned_seconds_ago: f64,
    pub evictions: u64,
    pub(crate) forgiven_seconds: f64,
    pub gave_up: u64,
    /// The number of agents that use it.
    pub processes: u64,
    /// How many of them have other limits than this one.
    pub(crate) disagreeing_agents: u64,
    /// Its file was removed or replaced, so agents that start now use another table.
    pub(crate) detached: bool,
}

impl Watched {
    pub fn new(
        table: Arc<ArcSwap<Table>>,
        counters: Arc<Counters>,
        undecided: Arc<Undecided>,
        stats: Arc<Stats>,
    ) -> Self {
        let (policies, borrower) = Default::default();
        let (latest_scan, scanning) = Default::default();
        Self { table, counters, undecided, stats, policies, borrower, latest_scan, scanning }
    }

    /// The same, with what there is to say about policies that are shared.
    pub fn with_store(
        self,
        policies: Arc<ArcSwap<InForce>>,
        borrower: Option<Arc<Borrower>>,
    ) -> Self {
        Self { policies: Some(policies), borrower, ..self }
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

    /// Counts a request for an action whose token was wrong.
    pub(crate) fn note_wrong_token(&self) {
        self.stats.wrong_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// What this agent does for shared limits, if there is a store.
    pub fn borrower(&self) -> Option<&Borrower> {
        self.borrower.as_deref()
    }

    /// What the machine holds of shared limits, if there is a store.
    pub fn leases(&self) -> Option<Guard<Arc<Leases>>> {
        self.borrower.as_ref().map(|borrower| borrower.leases())
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// The policies, if they are known.
    pub fn in_force(&self) -> Option<Guard<Arc<InForce>>> {
        self.policies.as_ref().map(|policies| policies.load())
    }

    /// What was counted in the last `most` slots of the last minutes.
    pub fn past(&self, most: usize) -> Past {
        let table = self.table.load();
        self.stats.past(table.since_boot(table.now()).into(), most)
    }

    /// Everything, now, with the table as it was last [scanned](Self::scan).
    pub fn status(&self) -> Status {
        let scan = *lock(&self.latest_scan);
        let window = self.stats.window();
        let snapshot = self.counters.snapshot();
        let reloads = &self.stats.reloads;
        let since_epoch = self.stats.started().duration_since(UNIX_EPOCH).unwrap_or_default();
        Status {
            version: version::NUMBER.to_owned(),
            pid: std::process::id(),
            state: word(self.stats.readiness()).to_owned(),
            start_time_seconds: since_epoch.as_secs_f64(),
            uptime_seconds: self.stats.uptime().as_secs_f64(),
            window_seconds: window.as_secs_f64(),
            policies: self.policies(window.max(SHORTEST)),
            unmatched: self.undecided.unmatched.load(Ordering::Relaxed),
            notifies: Notifies {
                answered: snapshot.notifies,
                shed: snapshot.shed,
                reassembled: snapshot.reassembled,
                overdue: snapshot.overdue,
                waiting: snapshot.waiting,
                handler_panics: snapshot.handler_panics,
                ack_bytes: snapshot.ack_bytes,
            },
            latency: latency(&snapshot.latency),
            connections: connections(&snapshot),
            table: self.table_status(scan),
            store: self.borrower.as_ref().map(|borrower| {
                let leases = scan.and_then(|scan| scan.leases);
                StoreStatus::of(borrower, self.table.load().now(), leases)
            }),
            config_reloads: named([
                ("ok", reloads.ok.load(Ordering::Relaxed)),
                ("refused", reloads.refused.load(Ordering::Relaxed)),
            ]),
            wrong_tokens: self.stats.wrong_tokens.load(Ordering::Relaxed),
        }
    }

    fn policies(&self, window: Duration) -> Vec<Policy> {
        let in_force = self.policies.as_ref().map(|policies| policies.load());
        let (table, leases) = (self.table.load(), self.leases());
        let leases = leases.as_ref().map(|leases| &***leases);
        let known_as = |name: &str| {
            let in_force = in_force.as_ref()?;
            let place = in_force.policies.list.iter().position(|it| *it.name == *name)?;
            Some(Of { in_force, place, table: &table, leases, borrower: self.borrower() })
        };
        let policy = |(name, stats): (String, Arc<PolicyStats>)| {
            let [blocked, would_block, allowed] =
                [Outcome::Blocked, Outcome::WouldBlock, Outcome::Allowed]
                    .map(|outcome| stats.heaviest(outcome, Window::Now));
            let known = known_as(&name);
            let sharing = known.and_then(|of| of.in_force.policies.list[of.place].shared);
            let switched = known.map_or(&[][..], |of| &of.in_force.policies.switched);
            let waiting = |listed_as| {
                move |key, under| {
                    known.map_or_else(Waiting::default, |of| of.waiting(key, under, listed_as))
                }
            };
            let limit_args = stats.limit_args();
            let read = |of: Of<'_>| {
                let policy = &of.in_force.policies.list[of.place];
                policy.limits().any(|limit| limit.by_arg.is_some())
            };
            let reads_args = known.is_some_and(read) || limit_args.iter().any(|count| *count > 0);
            let limit_args = ArgValue::ALL.map(ArgValue::as_str).into_iter().zip(limit_args);
            let without_store = stats.without_store();
            // What was counted stays when a policy is no longer shared.
            let was_shared = without_store.iter().any(|(_, count)| *count > 0);
            let is_shown = self.borrower.is_some() && (sharing.is_some() || was_shared);
            let settled = stats.settled();
            // What was counted stays when a policy is no longer settled.
            let settles = |of: Of<'_>| of.in_force.policies.list[of.place].settle.is_some();
            let is_settled =
                known.is_some_and(settles) || settled.iter().any(|(_, count)| *count > 0);
            let counts = stats.counts();
            Policy {
                shared: sharing.map(|sharing| sharing.without_store.word().to_owned()),
                without_store: named(without_store.into_iter().filter(|_| is_shown)),
                switched: switched.iter().any(|switched| **switched == *name),
                newly_blocked: is_trial_name(&name).then_some(counts[NEWLY_BLOCKED]),
                name,
                decisions: named(OUTCOMES.into_iter().zip(counts)),
                delayed: stats.delayed(),
                limit_args: named(limit_args.filter(|_| reads_args)),
                settled: named(settled.into_iter().filter(|_| is_settled)),
                settled_cells: named(stats.settled_cells().into_iter().filter(|_| is_settled)),
                top_is_exact: Exact {
                    blocked: blocked.complete,
                    would_block: would_block.complete,
                    allowed: allowed.complete,
                },
                top_blocked: top(blocked, window, waiting(Outcome::Blocked)),
                top_would_block: top(would_block, window, waiting(Outcome::WouldBlock)),
                top_allowed: top(allowed, window, |_, _| Waiting::default()),
            }
        };
        self.stats.policies().into_iter().map(policy).collect()
    }

    fn table_status(&self, scan: Option<Scan>) -> TableStatus {
        let table = self.table.load();
        let Evictions { evicted_live, forgiven, .. } = table.evictions();
        let processes = table.processes();
        let me = processes.iter().find(|process| is_this_process(process));
        let own_limits = me.and_then(|me| me.profile).map(|profile| profile.limits);
        let states = |Occupancy { live, idle, pending, sealed, .. }| {
            named([("live", live), ("idle", idle), ("pending", pending), ("sealed", sealed)])
        };
        TableStatus {
            id: id_of(&table),
            slots: table.slots().get().into(),
            states: scan.map(|scan| states(scan.occupancy)).unwrap_or_default(),
            scanned_seconds_ago: scan.map_or(0.0, |scan| scan.at.elapsed().as_secs_f64()),
            evictions: evicted_live,
            forgiven_seconds: Duration::from(forgiven).as_secs_f64(),
            gave_up: table.gave_up(),
            processes: processes.len() as u64,
            disagreeing_agents: own_limits
                .map_or(0, |limits| differing(&table, limits).len() as u64),
            detached: table.name() != Name::Ours,
        }
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
        let borrower = self.borrower.clone();
        let began = Instant::now();
        // On another thread, because this one has other requests to answer.
        let counted = tokio::task::spawn_blocking(move || {
            (table.occupancy(), borrower.map(|borrower| borrower.count_leases(&table)))
        });
        // It does not panic; if it did, an empty answer would be better than none.
        let (occupancy, leases) = counted.await.unwrap_or_default();
        *lock(&self.latest_scan) =
            Some(Scan { occupancy, leases, at: Instant::now(), took: began.elapsed() });
    }
}

impl Policy {
    /// How many messages have passed that it would have blocked if it did not only observe.
    pub fn would_block(&self) -> u64 {
        let all = || self.decisions.get("would_block").copied().unwrap_or(0);
        self.newly_blocked.unwrap_or_else(all)
    }
}

impl Status {
    /// What tells one agent from all others.
    pub(crate) fn identity(&self) -> (u32, u64, String) {
        (self.pid, self.start_time_seconds.to_bits(), self.table.id.clone())
    }

    /// The same with numbers that can be added up, whatever another process has said.
    pub(crate) fn bounded(mut self) -> Self {
        for number in [
            &mut self.start_time_seconds,
            &mut self.uptime_seconds,
            &mut self.window_seconds,
            &mut self.latency.sum_seconds,
            &mut self.table.scanned_seconds_ago,
            &mut self.table.forgiven_seconds,
        ] {
            *number = number.clamp(0.0, LARGEST);
        }
        for number in self.store.iter_mut().flat_map(StoreStatus::floats) {
            *number = number.clamp(0.0, LARGEST);
        }
        for policy in &mut self.policies {
            let lists =
                [&mut policy.top_blocked, &mut policy.top_would_block, &mut policy.top_allowed];
            for client in lists.into_iter().flatten() {
                client.per_second = client.per_second.clamp(0.0, LARGEST);
            }
        }
        self
    }
}

/// Some digits that only agents with the key of this table can compute.
fn id_of(table: &Table) -> String {
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    format!("{:016x}", hash.hash_one(table.hash(b"gcra-spoa id of the table")))
}

fn word(readiness: Readiness) -> &'static str {
    match readiness {
        Readiness::Starting => "starting",
        Readiness::Serving => "serving",
        Readiness::Leaving => "leaving",
    }
}

fn named<'a>(numbers: impl IntoIterator<Item = (&'a str, u64)>) -> BTreeMap<String, u64> {
    numbers.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
}

fn top(
    found: Found,
    window: Duration,
    waiting: impl Fn(KeyHash, Under) -> Waiting,
) -> Vec<Client> {
    let client = |HeavyClient { client, key, under, requests }| {
        let per_second = float(requests) / window.as_secs_f64();
        let Waiting { wait, reason } = waiting(key, under);
        let (wait_ms, reason) = (wait.map(Nanos::millis_ceil), reason.map(str::to_owned));
        Client { client, requests, per_second, wait_ms, reason }
    };
    found.heaviest.into_iter().take(TOP).map(client).collect()
}

fn latency(counts: &LatencyCounts) -> Latency {
    let bucket = |(place, count): (usize, &u64)| Bucket {
        at_most_seconds: LatencyCounts::upper_bound(place).map(|bound| bound.as_secs_f64()),
        count: *count,
    };
    Latency {
        buckets: counts.buckets.iter().enumerate().map(bucket).collect(),
        sum_seconds: Duration::from_nanos(counts.sum_ns).as_secs_f64(),
    }
}

fn connections(snapshot: &Snapshot) -> Connections {
    let statuses = snapshot.protocol_error_statuses.iter().enumerate();
    Connections {
        open: snapshot.open,
        accepted: snapshot.connections,
        accept_errors: snapshot.accept_errors,
        buffered_bytes: snapshot.buffered_bytes,
        ended: named([
            ("closed", snapshot.closed),
            ("disconnected", snapshot.disconnected),
            ("health_check", snapshot.health_checks),
            ("stopped", snapshot.stopped),
            ("protocol_error", snapshot.protocol_errors),
            ("timeout", snapshot.timeouts),
            ("truncated", snapshot.truncated),
            ("no_memory", snapshot.no_memory),
            ("failed", snapshot.failed),
        ]),
        protocol_errors: statuses
            .filter(|(status, _)| PROTOCOL_ERRORS.contains(status))
            .map(|(status, count)| (status.to_string(), *count))
            .collect(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "all numbers of a client are far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

//! The status of a running agent. `/status` sends it as JSON, `top` reads it, and `/metrics` turns
//! it into metrics.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::iter;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, UNIX_EPOCH};

use gcra_inspect::order_state::OrderWords;
use gcra_inspect::process_list::is_this_process;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::heaviest::{HeavyClient, HeavyClients, Minutes};
use gcra_limiter::lease_client::LeaseClient;
use gcra_limiter::seldom_counts::NamedCounters;
use gcra_limiter::stats::{PolicyStats, Readiness, Stats};
use gcra_limiter::undecided::Undecided;
use gcra_limiter::verdict::{NEWLY_BLOCKED, OUTCOMES, Outcome};
use gcra_policy::Policy;
use gcra_policy::haproxy::report::ERRS;
use gcra_policy::policy::is_trial_name;
use gcra_table::board::OrderKind;
use gcra_table::{LeaseCounts, Leases, Name, Nanos, Occupancy, Table};
use gcra_text::version;
use serde::{Deserialize, Serialize};
use spop_agent::{Latency as LatencyCounts, Snapshot};

use crate::agreement::differing;
use crate::client_waits::{ClientSources, WaitReason, Waiting};
use crate::family::{
    Amount, Family, Labels, Metrics, NamedCounts, Samples, Sum, counter, first, float, gauge,
    histogram, named, part, some, sum,
};
use crate::store_status::{StoreSource, StoreStatus};

pub(crate) const TOP: usize = 20;

/// The shortest time over which a rate of requests is computed: the first requests after a start
/// would otherwise look like a flood.
const SHORTEST: Duration = Duration::from_secs(1);

/// The statuses that say what is wrong with a frame that was received (SPOE.txt section 3.5).
const PROTOCOL_ERRORS: RangeInclusive<usize> = 3..=13;

/// The parts of an agent that its status is read from.
pub(crate) struct StatusSource<'a> {
    pub stats: &'a Stats,
    pub undecided: &'a Undecided,
    pub snapshot: &'a Snapshot,
    pub table: &'a Table,
    pub lease_client: Option<&'a LeaseClient>,
    pub leases: Option<&'a Leases>,
    pub in_force: &'a ActivePolicies,
    pub scan: Option<Scan>,
}

impl StatusSource<'_> {
    fn policies(&self) -> Vec<PolicyStatus> {
        let Self { stats, table, lease_client, leases, in_force, .. } = *self;
        let window = stats.window().max(SHORTEST);
        let known_as = |name: &str| {
            let place = in_force.policies.list.iter().position(|it| *it.name == *name)?;
            Some(ClientSources { in_force, place, table, leases, lease_client })
        };
        let policies = stats.policies();
        let policy = policies.iter().map(|(name, stats)| {
            let heaviest = |outcome| stats.heaviest(outcome, Minutes::Now);
            PolicyStatus::of(&PolicyReading {
                name,
                stats,
                counts: stats.counts(),
                blocked: heaviest(Outcome::Blocked),
                would_block: heaviest(Outcome::WouldBlock),
                allowed: heaviest(Outcome::Allowed),
                window,
                known: known_as(name),
                has_store: lease_client.is_some(),
            })
        });
        policy.collect()
    }
}

/// The occupancy of the table and the leases when their slots and entries were last counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    pub occupancy: Occupancy,
    pub leases: Option<LeaseCounts>,
    pub at: Instant,
    pub took: Duration,
}

part! {
    /// The status of an agent. Its counters begin at 0 with it.
    Status of it: &StatusSource<'_>;

    version: String = version::NUMBER.to_owned();
    pid: u32 = std::process::id();
    state: String = word(it.stats.readiness()).to_owned();
    start_time_seconds: Amount =
        it.stats.started().duration_since(UNIX_EPOCH).unwrap_or_default().into()
        => gauge(2, "process_start_time_seconds",
            "When the agent was started, in seconds since 1970.");
    uptime_seconds: Amount = it.stats.uptime().into();
    /// The length of the window in which the heaviest clients were counted.
    window_seconds: Amount = it.stats.window().into();
    policies: Vec<PolicyStatus> = it.policies();
    #[serde(flatten)]
    counts: Counts = Counts::of(it);
    table: TableStatus = TableStatus::of(it);
    wrong_tokens: u64 = it.stats.wrong_tokens.load(Ordering::Relaxed)
        => counter(4, "gcra_admin_wrong_tokens_total",
            "Requests for actions of --admin that were refused because of a wrong token.");
}

part! {
    /// The counts of an agent that add up over agents.
    Counts of it: &StatusSource<'_>;

    unmatched: u64 = it.undecided.unmatched.load(Ordering::Relaxed), sum
        => counter(11, "gcra_unmatched_total",
            "Messages that got no decision, because there is no policy for them.");
    /// Requests that HAProxy got no answer for, by its `err`, of which this agent was the first
    /// of its table to hear.
    haproxy_undecided: NamedCounts =
        named(iter::zip(ERRS, it.undecided.haproxy.counts())), sum
        => counter(55, "gcra_haproxy_undecided_total",
            "Requests that had no decision because HAProxy got no answer, by its err.")
            .by("err");
    /// Those that were heard of within the last minute. Empty if there were none.
    haproxy_undecided_last_minute: NamedCounts =
        named(iter::zip(ERRS, it.undecided.haproxy.last_minute()).filter(|it| it.1 > 0)), sum;
    /// Messages of responses that HAProxy got no answer for.
    haproxy_unsettled: u64 = it.undecided.haproxy.unsettled(), sum
        => counter(56, "gcra_haproxy_unsettled_total",
            "Messages of responses that charged nothing because HAProxy got no answer.");
    notifies: Notifies = Notifies::of(it.snapshot), sum;
    latency: LatencyStatus = LatencyStatus::of(&it.snapshot.latency), sum
        => histogram(13, "gcra_latency_seconds", "Time from reading a NOTIFY to writing its ACK.");
    connections: Connections = Connections::of(it.snapshot), sum;
    /// `None` without a store.
    store: Option<StoreStatus> = it.lease_client.map(|lease_client| {
        let counts = it.scan.and_then(|scan| scan.leases);
        StoreStatus::of(&StoreSource::of(lease_client, it.table.now(), counts))
    }), sum;
    config_reloads: NamedCounts = named([
        ("ok", it.stats.reloads.ok.load(Ordering::Relaxed)),
        ("refused", it.stats.reloads.refused.load(Ordering::Relaxed)),
    ]), sum
        => counter(3, "gcra_config_reloads_total",
            "How often the configuration was read again, by result.").by("result");
}

part! {
    Notifies of it: &Snapshot;

    answered: u64 = it.notifies, sum
        => counter(12, "gcra_notifies_total", "NOTIFYs answered.");
    shed: u64 = it.shed, sum
        => counter(15, "gcra_notifies_shed_total",
            "NOTIFYs answered without a decision, because there were too many connections.");
    reassembled: u64 = it.reassembled, sum
        => counter(17, "gcra_notifies_reassembled_total",
            "NOTIFYs that arrived in several frames.");
    overdue: u64 = it.overdue, sum
        => counter(16, "gcra_notifies_overdue_total",
            "NOTIFYs whose late reply did not come in time.");
    waiting: u64 = it.waiting, sum
        => gauge(18, "gcra_waiting", "NOTIFYs that are waiting for a late reply.");
    handler_panics: u64 = it.handler_panics, sum
        => counter(19, "gcra_handler_panics_total",
            "NOTIFYs answered without a decision, because of a bug in the agent.");
    ack_bytes: u64 = it.ack_bytes, sum
        => counter(14, "gcra_ack_bytes_total", "Bytes of all ACKs.");
}

part! {
    Connections of it: &Snapshot;

    open: u64 = it.open, sum
        => gauge(20, "gcra_connections_open", "Connections from HAProxy that are open.");
    accepted: u64 = it.connections, sum
        => counter(21, "gcra_connections_accepted_total",
            "Connections accepted, health checks among them.");
    accept_errors: u64 = it.accept_errors, sum
        => counter(24, "gcra_accept_errors_total",
            "Connections that could not be accepted, such as without free file descriptors.");
    buffered_bytes: u64 = it.buffered_bytes, sum
        => gauge(25, "gcra_buffered_bytes",
            "Bytes of incomplete frames and unread answers that all connections keep.");
    ended: NamedCounts = named([
        ("closed", it.closed),
        ("disconnected", it.disconnected),
        ("health_check", it.health_checks),
        ("stopped", it.stopped),
        ("protocol_error", it.protocol_errors),
        ("timeout", it.timeouts),
        ("truncated", it.truncated),
        ("no_memory", it.no_memory),
        ("failed", it.failed),
    ]), sum
        => counter(22, "gcra_connections_total", "Connections that ended, by how.").by("end");
    protocol_errors: NamedCounts = PROTOCOL_ERRORS
        .map(|status| (status.to_string(), it.protocol_error_statuses[status]))
        .collect(), sum
        => counter(23, "gcra_protocol_errors_total",
            "Connections ended because of a wrong frame, by status (SPOE.txt section 3.5).")
            .by("status");
}

part! {
    TableStatus of it: &StatusSource<'_>;

    /// The same for all agents that share the table, before and after a resize.
    id: String = digits_of("gcra-spoa id of the table", it.table);
    slots: u64 = it.table.slots().get().into();
    /// How many slots are in each state. Empty if the slots have not been counted.
    states: NamedCounts = it.scan.map_or_else(NamedCounts::new, |scan| states(scan.occupancy))
        => gauge(26, "gcra_table_slots",
            "Slots of the shared table by state, counted at most every 10 s.").by("state");
    /// How old the numbers of states are.
    scanned_seconds_ago: Amount =
        it.scan.map_or_else(Amount::default, |scan| scan.at.elapsed().into());
    evictions: u64 = it.table.evictions().evicted_live
        => counter(27, "gcra_table_evictions_total",
            "Buckets that owed something and were evicted, because the shared table was full.");
    forgiven_seconds: Amount = Duration::from(it.table.evictions().forgiven).into()
        => counter(28, "gcra_table_forgiven_seconds_total",
            "What evicted buckets owed; times the rate, this many requests too many may have \
             been allowed.");
    gave_up: u64 = it.table.gave_up()
        => counter(29, "gcra_table_gave_up_total",
            "Requests denied because other decisions changed the bucket at every try.");
    processes: u64 = it.table.board().processes().len() as u64
        => gauge(30, "gcra_table_processes", "Agents that use the shared table.");
    disagreeing_agents: u64 = disagreeing(it.table)
        => gauge(31, "gcra_table_disagreeing_agents",
            "Agents that use the shared table with other limits than this one.");
    /// How many orders about clients are in force, by what they say.
    orders: NamedCounts = orders(it.table)
        => gauge(58, "gcra_table_orders",
            "Orders about clients in the shared table: exempt and block.").by("order");
    detached: bool = it.table.name() != Name::Ours
        => gauge(32, "gcra_table_detached",
            "1 while the file that this agent uses has been removed or replaced under its name.");
}

part! {
    PolicyStatus of it: &PolicyReading<'_>;

    name: String = it.name.to_owned();
    decisions: NamedCounts = named(OUTCOMES.into_iter().zip(it.counts)), sum
        => counter(5, "gcra_decisions_total",
            "Messages by policy and outcome. A blocked one was answered with blocked=true.")
            .by("outcome");
    /// Of a trial: how many messages it would block that its policy has allowed. `None` for other
    /// policies.
    newly_blocked: Option<u64> = is_trial_name(it.name).then_some(it.counts[NEWLY_BLOCKED]), sum
        => counter(6, "gcra_newly_blocked_total",
            "Messages by trial that it would block, and that its policy has allowed.");
    /// How many messages were allowed with a delay; of a policy that only observes, how many would
    /// have been. Each is among `decisions`, too.
    delayed: u64 = it.stats.seldom.delayed.sum(), sum
        => counter(7, "gcra_delayed_total",
            "Messages by policy that were allowed with a delay, because of max_delay.");
    /// Messages about limits whose numbers are in an arg: how many said a valid limit, one that
    /// was lowered, an invalid one, and none. Empty if the policy has no such limit.
    limit_args: NamedCounts = it.limit_args(), sum
        => counter(8, "gcra_limit_args_total",
            "Messages by policy and what the arg with the numbers of a limit was: valid, lowered \
             to the highest limit, invalid, or missing.").by("value");
    /// How many messages of responses have settled requests, by how. Empty if none has.
    settled: NamedCounts = it.if_settled(&it.stats.seldom.settled), sum
        => counter(9, "gcra_settled_total",
            "Messages of responses by policy that have settled requests, by outcome.")
            .by("outcome");
    /// Messages that orders have decided about: how many were of exempt clients, and how many of
    /// blocked ones. Each is among `decisions`, too.
    ordered: NamedCounts = named(it.stats.seldom.ordered.each()), sum
        => counter(57, "gcra_ordered_total",
            "Messages that an order has decided about, by policy and order: exempt or block.")
            .by("order");
    /// How many cells these have charged and given back. Empty if no message has settled requests.
    settled_cells: NamedCounts = it.if_settled(&it.stats.seldom.settled_cells), sum
        => counter(10, "gcra_settled_cells_total",
            "Cells that responses have charged and given back, by policy and kind.").by("kind");
    top_blocked: Vec<ClientRow> = it.top(&it.blocked, Some(Outcome::Blocked));
    /// The clients with the most requests that have passed, and would have been blocked if the
    /// policy did not only observe.
    top_would_block: Vec<ClientRow> = it.top(&it.would_block, Some(Outcome::WouldBlock));
    top_allowed: Vec<ClientRow> = it.top(&it.allowed, None);
    top_is_exact: ExactLists = ExactLists {
        blocked: it.blocked.complete,
        would_block: it.would_block.complete,
        allowed: it.allowed.complete,
    };
    /// Whether it only observes because of an action.
    switched: bool = it.is_switched(), some;
    /// How a shared policy decides without the store: "share", "closed" or "open". `None` if it is
    /// not shared.
    shared: Option<String> = it.shared().map(str::to_owned), first;
    /// The decisions that were made without the store, by outcome. Empty if it is not shared.
    without_store: NamedCounts = it.without_store(), sum
        => counter(49, "gcra_store_fallback_total",
            "Messages that were decided without the store, by policy and outcome.").by("verdict");
}

/// The sources of the status of a policy.
pub(crate) struct PolicyReading<'a> {
    name: &'a str,
    stats: &'a PolicyStats,
    counts: [u64; NEWLY_BLOCKED + 1],
    blocked: HeavyClients,
    would_block: HeavyClients,
    allowed: HeavyClients,
    window: Duration,
    /// The policy with its limits; `None` if it is no longer in force. Its counters stay.
    known: Option<ClientSources<'a>>,
    has_store: bool,
}

impl PolicyReading<'_> {
    fn policy(&self) -> Option<&Policy> {
        self.known.map(|of| &*of.in_force.row(of.place).policy)
    }

    fn limit_args(&self) -> NamedCounts {
        let counters = &self.stats.seldom.limit_args;
        let reads = |policy: &Policy| policy.limits().any(|limit| limit.by_arg().is_some());
        let is_shown = self.policy().is_some_and(reads) || counters.sum() > 0;
        named(counters.each().into_iter().filter(|_| is_shown))
    }

    fn if_settled<const N: usize>(&self, counters: &NamedCounters<N>) -> NamedCounts {
        let settles = self.policy().is_some_and(|policy| policy.settle().is_some());
        let is_shown = settles || self.stats.seldom.settled.sum() > 0;
        named(counters.each().into_iter().filter(|_| is_shown))
    }

    fn shared(&self) -> Option<&'static str> {
        Some(self.policy()?.shared?.without_store.word())
    }

    fn without_store(&self) -> NamedCounts {
        let counters = &self.stats.seldom.without_store;
        let is_shown = self.has_store && (self.shared().is_some() || counters.sum() > 0);
        named(counters.each().into_iter().filter(|_| is_shown))
    }

    fn is_switched(&self) -> bool {
        let switched = self.known.map_or(&[][..], |of| &of.in_force.policies.switched);
        switched.iter().any(|switched| **switched == *self.name)
    }

    /// The heaviest clients, with their wait if they are listed for an outcome with one.
    fn top(&self, found: &HeavyClients, listed_as: Option<Outcome>) -> Vec<ClientRow> {
        let row = |heavy: &HeavyClient| {
            let HeavyClient { client, key, under, requests } = heavy;
            let waits = self.known.zip(listed_as);
            let Waiting { wait, reason } =
                waits.map(|(of, listed_as)| of.waiting(heavy, listed_as)).unwrap_or_default();
            let waits = waits.filter(|_| reason == Some(WaitReason::Limit));
            let limit = waits.and_then(|(of, _)| of.limit(*key, *under).map(str::to_owned));
            ClientRow {
                client: client.clone(),
                known_as: self
                    .known
                    .and_then(|of| of.in_force.policies.known.get(client).map(str::to_owned)),
                requests: *requests,
                per_second: Amount(float(*requests) / self.window.as_secs_f64()),
                wait_ms: wait.map(Nanos::millis_ceil),
                reason: reason.map(|reason| reason.as_str().to_owned()),
                limit,
            }
        };
        found.heaviest.iter().take(TOP).map(row).collect()
    }
}

/// How many orders about clients a table has of each kind.
fn orders(table: &Table) -> NamedCounts {
    let all = table.board().orders();
    let count = |kind| all.iter().filter(|order| order.kind == kind).count() as u64;
    let kinds = [OrderKind::Exempt, OrderKind::Block];
    named(kinds.map(|kind| (OrderWords::of(kind).command, count(kind))))
}

/// Whether every request of an outcome was counted, so that the numbers of clients are exact.
/// Otherwise each is a cautious estimate, and clients of which too little is known are left out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ExactLists {
    pub blocked: bool,
    pub would_block: bool,
    pub allowed: bool,
}

impl ExactLists {
    pub(crate) fn each(self) -> [bool; 3] {
        [self.blocked, self.would_block, self.allowed]
    }
}

/// A client in a list of the heaviest.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ClientRow {
    pub client: String,
    /// What it is known as, by `names_file`.
    pub known_as: Option<String>,
    pub requests: u64,
    /// The same divided by the length of the window.
    pub per_second: Amount,
    /// How long it takes until a request of it is allowed, if it is over a limit now. Only where
    /// clients are listed because they were blocked, or would have been.
    pub wait_ms: Option<u64>,
    /// Why a request of it is blocked now: see [`Waiting::reason`].
    pub reason: Option<String>,
    /// The name of the limit that it waits for.
    pub limit: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct LatencyStatus {
    /// Each counts the NOTIFYs that took longer than the bound of the one before.
    pub buckets: Vec<LatencyBound>,
    pub(crate) sum_seconds: Amount,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct LatencyBound {
    /// The upper bound; `None` for the last one, which has none.
    pub(crate) at_most_seconds: Option<f64>,
    pub count: u64,
}

impl LatencyStatus {
    fn of(counts: &LatencyCounts) -> Self {
        let bound = |(place, count): (usize, &u64)| LatencyBound {
            at_most_seconds: LatencyCounts::upper_bound(place).map(|bound| bound.as_secs_f64()),
            count: *count,
        };
        Self {
            buckets: counts.buckets.iter().enumerate().map(bound).collect(),
            sum_seconds: Duration::from_nanos(counts.sum_ns).into(),
        }
    }
}

impl Sum for LatencyStatus {
    fn add(&mut self, other: &Self) {
        if self.buckets.is_empty() {
            self.buckets.clone_from(&other.buckets);
        } else {
            for (bound, more) in self.buckets.iter_mut().zip(&other.buckets) {
                bound.count.add(&more.count);
            }
        }
        self.sum_seconds.add(&other.sum_seconds);
    }
}

/// A bucket of Prometheus also counts everything below it.
impl Samples for LatencyStatus {
    fn each(&self, mut sample: impl FnMut(&str, Option<&str>, f64)) {
        let mut total = 0;
        for bound in &self.buckets {
            total += bound.count;
            if let Some(bound) = bound.at_most_seconds {
                sample("_bucket", Some(&bound.to_string()), float(total));
            }
        }
        sample("_bucket", Some("+Inf"), float(total));
        sample("_sum", None, self.sum_seconds.0);
        sample("_count", None, float(total));
    }
}

impl Status {
    /// Identifies an agent among all others.
    pub(crate) fn identity(&self) -> (u32, u64, String) {
        (self.pid, self.start_time_seconds.0.to_bits(), self.table.id.clone())
    }
}

impl PolicyStatus {
    /// How many messages have passed that it would have blocked if it did not only observe.
    pub fn would_block(&self) -> u64 {
        self.newly_blocked.unwrap_or_else(|| self.decided("would_block"))
    }

    pub(crate) fn decided(&self, outcome: &str) -> u64 {
        self.decisions.get(outcome).copied().unwrap_or(0)
    }
}

pub(crate) fn word(readiness: Readiness) -> &'static str {
    match readiness {
        Readiness::Starting => "starting",
        Readiness::Serving => "serving",
        Readiness::Leaving => "leaving",
    }
}

/// Digits for a text that only processes that can read the table can compute.
pub(crate) fn digits_of(text: &str, table: &Table) -> String {
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    format!("{:016x}", hash.hash_one(table.hash(text.as_bytes())))
}

fn states(Occupancy { live, idle, pending, sealed, .. }: Occupancy) -> NamedCounts {
    named([("live", live), ("idle", idle), ("pending", pending), ("sealed", sealed)])
}

fn disagreeing(table: &Table) -> u64 {
    let processes = table.board().processes();
    let me = processes.iter().find(|process| is_this_process(process));
    let limits = me.and_then(|me| me.profile).map(|profile| profile.limits);
    limits.map_or(0, |limits| differing(table, |it| it.limits != limits).len() as u64)
}

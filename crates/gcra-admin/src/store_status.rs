//! [`StoreStatus`]: what an agent says about the store through which limits are shared, and about
//! the cells that its machine holds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gcra_limiter::lease_client::LeaseClient;
use gcra_store::Store;
use gcra_table::{LeaseCounts, Time};
use serde::{Deserialize, Serialize};

use crate::family::{
    Amount, Family, Labels, Metrics, NamedCounts, Sum, counter, every, first, gauge, most, named,
    part, sum,
};

part! {
    /// The status of an agent's store. Counters begin at 0 with the agent.
    StoreStatus of it: &StoreSource<'_>;

    up: bool = it.lease_client.can_ask(it.now), every
        => gauge(33, "gcra_store_up", "1 while the store can be asked about every key.");
    /// For how long no server could be used; `None` while there is one.
    away_seconds: Option<Amount> = it.store().away_since().map(|since| since.elapsed().into()),
        most;
    /// For how long there was none, all times together. An outage is one outage for all agents.
    away_seconds_total: Amount = it.store().away_total().into(), most
        => counter(48, "gcra_store_away_seconds_total",
            "Time in which no server of the store could be used, since the agent was started.");
    /// Why servers cannot be used, a sentence for each.
    faults: Vec<String> = it.faults(), each;
    asks: u64 = it.counters.asks, sum
        => counter(34, "gcra_store_asks_total", "Asks for cells that were sent to the store.");
    charges: u64 = it.counters.charges, sum
        => counter(35, "gcra_store_charges_total",
            "Charges that were sent to the store: requests, and responses that settle them.");
    charges_unknown: u64 = it.counters.charges_unknown, sum
        => counter(36, "gcra_store_charges_unknown_total",
            "Charges without a reply that can be used.");
    charges_away: u64 = it.counters.charges_away, sum
        => counter(37, "gcra_store_charges_away_total",
            "Charges that were not sent, because no server could be used or too many were under \
             way.");
    calls: u64 = it.counters.calls, sum
        => counter(38, "gcra_store_calls_total",
            "Calls to servers of the store; a call has one ask or charge, or several.");
    replies: u64 = it.counters.replies, sum
        => counter(39, "gcra_store_replies_total", "Replies of the store that can be used.");
    answer_seconds: Amount = Duration::from_micros(it.counters.micros).into(), sum
        => counter(47, "gcra_store_answer_seconds_total",
            "Time from asks to their replies, all together.");
    granted_cells: u64 = it.counters.granted, sum
        => counter(44, "gcra_store_granted_cells_total", "Cells that the store has lent.");
    ignored: u64 = it.counters.ignored, sum
        => counter(42, "gcra_store_ignored_total",
            "Asks that the store has ignored, because a later one came first.");
    void: u64 = it.counters.void, sum
        => counter(40, "gcra_store_void_total", "Asks without a reply that can be used.");
    late: u64 = it.counters.late, sum
        => counter(41, "gcra_store_late_total",
            "Asks that the store did not answer in time. They are void, too.");
    not_sent: u64 = it.counters.away, sum
        => counter(43, "gcra_store_away_total",
            "Asks that were not sent, because no server could be used or too many were under \
             way.");
    clock_leaps: NamedCounts = named([
        ("forward", it.counters.leaps_forward),
        ("back", it.counters.leaps_back),
    ]), sum
        => counter(50, "gcra_store_clock_leaps_total",
            "How often the clock of a server of the store has leapt, by direction.")
            .by("direction");
    /// Requests that wait for a reply now.
    waiting: u64 = it.lease_client.waiting(), sum;
    waited: u64 = it.lease_client.counts.waited.load(Ordering::Relaxed), sum
        => counter(45, "gcra_store_waited_total",
            "Requests that have waited for a reply of the store.");
    /// Of these, the ones that stopped waiting because `--store-wait` was over.
    timed_out: u64 = it.lease_client.counts.timed_out.load(Ordering::Relaxed), sum
        => counter(46, "gcra_store_timed_out_total",
            "Requests that stopped waiting for a reply, and were decided without it.");
    leases: LeasesStatus = LeasesStatus::of(it), sum;
}

part! {
    /// The leases of a machine. They are the same for all agents of a table.
    LeasesStatus of it: &StoreSource<'_>;

    entries: u64 = it.lease_client.leases().entries(), most;
    /// How many entries are in each state. Empty if they have not been counted.
    states: NamedCounts = it.leases.map_or_else(NamedCounts::new, states), first
        => gauge(53, "gcra_lease_entries",
            "Entries of the file of leases by state, counted at most every 10 s.").by("state");
    held_cells: u64 = it.leases.unwrap_or_default().held, most
        => gauge(52, "gcra_lease_held_cells",
            "Cells that this machine can spend without asking, counted at most every 10 s.");
    machines: u64 = it.lease_client.hosts(it.now).into(), most
        => gauge(51, "gcra_lease_machines",
            "Machines that share limits with this one, itself included; 0 if that is not known.");
    evicted: u64 = it.lease_client.leases().evictions(), most
        => counter(54, "gcra_lease_evicted_total",
            "Entries that another key took although their own key needed them.");
}

/// The sources of the status of a store.
pub(crate) struct StoreSource<'a> {
    lease_client: &'a LeaseClient,
    counters: gcra_store::StoreCounters,
    now: Time,
    leases: Option<LeaseCounts>,
}

impl<'a> StoreSource<'a> {
    /// `leases` is what was found when the entries were counted last.
    pub(crate) fn of(
        lease_client: &'a LeaseClient,
        now: Time,
        leases: Option<LeaseCounts>,
    ) -> Self {
        Self { lease_client, counters: lease_client.store().counters(), now, leases }
    }

    fn store(&self) -> &Store {
        self.lease_client.store()
    }

    fn faults(&self) -> Vec<String> {
        let health = self.store().health();
        let of_server = |server: gcra_store::ServerHealth| {
            Some(format!("{}: {}", server.address, server.fault?))
        };
        let faults = health.fault.iter().map(ToString::to_string);
        faults.chain(health.servers.into_iter().filter_map(of_server)).collect()
    }
}

fn states(counts: LeaseCounts) -> NamedCounts {
    let LeaseCounts { in_use, blocked, free, over, announced, .. } = counts;
    named([
        ("in_use", in_use),
        ("blocked", blocked),
        ("free", free),
        ("over", over),
        ("announced", announced),
    ])
}

/// All faults that some agent sees.
fn each(faults: &mut Vec<String>, more: &Vec<String>) {
    for fault in more {
        if !faults.contains(fault) {
            faults.push(fault.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_one_outage_for_all_agents() {
        let of = |away, asks| StoreStatus {
            away_seconds: Some(Amount(away)),
            away_seconds_total: Amount(away),
            asks,
            ..StoreStatus::default()
        };
        let mut sum = of(15.0, 3);
        sum.add(&of(16.0, 4));
        sum.add(&of(0.5, 5));
        let longest = Amount(16.0);
        assert_eq!(
            (sum.away_seconds_total, sum.away_seconds, sum.asks),
            (longest, Some(longest), 12)
        );
    }
}

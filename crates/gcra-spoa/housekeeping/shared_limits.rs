//! Limits that hosts share: the file of leases, and what the log says about the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gcra_limiter::lease_client::LeaseClient;
use gcra_limiter::stats::PolicyStats;
use gcra_policy::describe::{blocked_without_store, without_store_in_words};
use gcra_policy::table_error::TableError;
use gcra_policy::{Policies, Policy, WithoutStore};
use gcra_text::count::Count;

use super::once_per_minute::OncePerMinute;
use super::running::Running;
use super::store_reports::{Counted, StoreReports};

/// The leases of this host, and the lines of the log about them.
pub(super) struct SharedLimits {
    lease_client: Option<Arc<LeaseClient>>,
    /// The most machines that the log has spoken of.
    machines: u32,
    reports: StoreReports,
    /// That the file of leases cannot be opened.
    lost: OncePerMinute,
}

impl SharedLimits {
    pub(super) fn new(lease_client: Option<Arc<LeaseClient>>) -> Self {
        let (machines, reports, lost) = Default::default();
        Self { lease_client, machines, reports, lost }
    }

    /// Looks after what this host holds of shared limits.
    pub(super) fn follow(&mut self, running: &Running) {
        let Some(lease_client) = self.lease_client.clone() else { return };
        self.report_store(&lease_client, running);
        let followed = lease_client.follow(&running.table.load());
        if self.lost.due(followed.is_err())
            && let Err(error) = followed
        {
            let error = TableError(error);
            log::error!("{error}; the agent goes on with the file that it had");
        }
    }

    /// Logs that requests are decided without the store, and what else is wrong with it.
    fn report_store(&mut self, lease_client: &LeaseClient, running: &Running) {
        let (store, counts, now) =
            (lease_client.store(), &lease_client.counts, running.table.load().now());
        let without_store = |(_, policy): &(String, Arc<PolicyStats>)| -> u64 {
            policy.seldom.without_store.sum()
        };
        let counted = Counted {
            at: running.stats.uptime(),
            is_away: !lease_client.can_ask(now),
            away: store.away_total(),
            without_store: running.stats.policies().iter().map(without_store).sum(),
            open: counts.open.load(Ordering::Relaxed),
            timed_out: counts.timed_out.load(Ordering::Relaxed),
            evicted: lease_client.leases().evictions(),
        };
        let machines = lease_client.hosts(now);
        if machines > self.machines {
            warn_about_bursts(&running.policies.load().policies, machines);
            self.machines = machines;
        }
        let what_happens = || all_without_store(&running.policies.load().policies, machines);
        for (level, line) in self.reports.beat(counted, lease_client.wait().into(), what_happens) {
            log::log!(level, "{line}");
        }
    }
}

/// Whether a policy allows a share of its limits without the store.
fn has_share(policy: &Policy) -> bool {
    policy.shared.is_some_and(|it| !it.at_once && it.without_store != WithoutStore::Closed)
}

/// Warns about the policies that would block without the store, because this many machines
/// cannot share a burst.
fn warn_about_bursts(policies: &Policies, machines: u32) {
    for policy in policies.without_trials().filter(|policy| has_share(policy)) {
        if let Some(requests) = blocked_without_store(policy, machines) {
            log::warn!(
                "policy '{}': without the store, all requests {requests} would be blocked, \
                 because {machines} machines cannot share a burst of less than {machines}; raise \
                 the burst",
                policy.name
            );
        }
    }
}

/// The words for the shared policies without the store. `machines` is how many share the limits.
fn all_without_store(policies: &Policies, machines: u32) -> String {
    let shared = policies.without_trials();
    let shared = shared.filter_map(|policy| {
        let words = without_store_in_words(policy, policy.shared?, machines);
        Some(format!("policy '{}': {words}", policy.name))
    });
    let machines = match machines {
        0 if !policies.without_trials().any(has_share) => None,
        0 => Some(
            "it is not known for sure how many machines there are, so the share is nothing"
                .to_owned(),
        ),
        machines => Some(format!("{} seen", Count(machines, "machine was", "machines were"))),
    };
    shared.chain(machines).collect::<Vec<_>>().join("; ")
}

//! How long the clients in a list have to wait, of whom only the hash of their key is known.

use gcra_lease::{HostTime, Look, Micros};
use gcra_table::{KeyHash, LeaseKey, Leases, Nanos, Table};

use crate::policy::{Limit, Policy, Rule};

/// How many overrides of a policy are looked at. (A client has buckets under the limits of its own
/// rule only, and which one that is cannot be seen from the hash.)
const MOST_RULES: usize = 16;

/// How long it takes until a request of this client is allowed, as far as the table and the leases
/// know; `None` if it is allowed now, or if its limit is "deny".
pub(crate) fn wait(
    table: &Table,
    leases: Option<&Leases>,
    policy: &Policy,
    key: KeyHash,
) -> Option<Nanos> {
    let overrides = policy.overrides.rules.iter().take(MOST_RULES);
    let limits = [&policy.rule].into_iter().chain(overrides).flat_map(Rule::limits);
    let of_limit = |limit: &Limit| match (policy.shared, leases) {
        (Some(_), Some(leases)) => blocked_for(table, leases, limit, key),
        (Some(_), None) => Nanos::ZERO,
        (None, _) => {
            let key = limit.key(table, key);
            let owed = table.owed(key, limit.quota, table.now());
            owed.saturating_sub(limit.quota.burst_tolerance())
        }
    };
    limits.map(of_limit).max().filter(|wait| *wait > Nanos::ZERO)
}

/// How long this machine does not ask the store about the client.
fn blocked_for(table: &Table, leases: &Leases, limit: &Limit, key: KeyHash) -> Nanos {
    let now = HostTime::from(table.now());
    let key = LeaseKey::new(limit.key(table, key), limit.quota);
    // Whether an ask is under way makes no difference.
    match leases.holding(key, now).look(now, 1, Micros(0)) {
        Look::Blocked { until } => Nanos(until.saturating_since(now).0.saturating_mul(1_000)),
        Look::Enough | Look::Waiting { .. } | Look::Lacking => Nanos::ZERO,
    }
}

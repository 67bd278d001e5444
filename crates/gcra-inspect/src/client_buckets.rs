//! All buckets in which a client can owe something, and whether it has any.

use std::collections::BTreeMap;

use anyhow::bail;
use gcra_limiter::unsettled;
use gcra_policy::{Limit, Policy};
use gcra_table::{KeyHash, Nanos, Quota, Registered, Table, Window};
use gcra_text::table_error;

use crate::explanation::{Asked, Decided, SharedSources, decided};
use crate::inspected_table::{Inspected, InspectedClient};

/// Whether a client has a bucket under any limit of its policy.
pub(crate) fn has_bucket(inspected: &Inspected, client: &InspectedClient) -> bool {
    Buckets::of(inspected, client).any_exists(&inspected.table)
}

/// Whether a client has a bucket, or this machine holds something for it.
pub(crate) fn is_known(inspected: &Inspected, client: &InspectedClient) -> bool {
    has_bucket(inspected, client)
        || decide(inspected, client)
            .is_some_and(|decided| decided.held.iter().any(|held| held.known))
}

/// Notes on a KEY that may mean another client, of which the table has a bucket.
pub fn notes(inspected: &Inspected, client: &InspectedClient) -> Vec<String> {
    inspected.notes_about_others(client, "a bucket", |client| is_known(inspected, client))
}

pub(crate) fn decide(inspected: &Inspected, client: &InspectedClient) -> Option<Decided> {
    let Inspected { table, in_force, leases, .. } = inspected;
    let shared = SharedSources { leases: leases.as_deref(), ..SharedSources::default() };
    let message = &client.message()?;
    Some(decided(Asked { in_force, table, shared, message }, client.question))
}

/// All buckets in which a client of a policy can owe something: under every limit of the policy,
/// by every quota that the limit has or has had.
pub(crate) struct Buckets<'p> {
    keys: Vec<KeyHash>,
    /// The name of each limit, by its id.
    limits: BTreeMap<u64, String>,
    quotas: Vec<(u64, Quota)>,
    /// The windows of this moment, by the limits that count in them.
    windows: Vec<(u64, Window)>,
    /// The policy, whose requests may be unsettled.
    policy: &'p Policy,
}

/// The debt or count that was cleared under a limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Forgiven {
    pub(crate) owed: Nanos,
    /// The cleared count, if the limit counts in windows.
    pub(crate) counted: Option<u32>,
    /// Cells that unsettled requests might have cost.
    pub(crate) unsettled: u32,
}

impl<'p> Buckets<'p> {
    pub(crate) fn of(inspected: &'p Inspected, client: &InspectedClient) -> Self {
        let policy = inspected.policy(client);
        // Cells that are charged between two resets of one bucket would be forgiven, too.
        let keys = distinct([client.question.key].into_iter().chain(inspected.other_keys(client)));
        let mut limits = BTreeMap::new();
        let trial = policy.trial.map(|trial| &inspected.in_force.policies.list[trial]);
        // A debt that a client shares with others is not its own to be cleared.
        let own = || {
            let all = policy.limits().chain(trial.into_iter().flat_map(Policy::limits));
            all.filter(|limit| limit.key.is_none())
        };
        // The same limit can have two names, because only one of several limits has a number in
        // its name: "ip.1" in the policy, and "ip" in an override. The client's own name
        // comes first, which header fields and `explain` have, too.
        let in_force = policy.rule(client.question.rule).limits();
        for limit in in_force.iter().filter(|limit| limit.key.is_none()).chain(own()) {
            limits.entry(limit.id).or_insert_with(|| limit.label.to_string());
        }
        let registered = inspected.table.registered().into_iter();
        let registered = registered.map(|Registered { limit, quota, .. }| (limit, quota));
        let now = inspected.table.wall_reading();
        let window = |limit: &Limit| Some((limit.id, limit.calendar()?.window(now)));
        let windows = distinct(own().filter_map(window));
        // The register may have no space for all.
        let own = own().filter(|limit| limit.calendar().is_none());
        let own = own.flat_map(|limit| {
            let quotas = known_quotas(&inspected.table, limit).into_iter();
            quotas.map(|quota| (limit.id, quota))
        });
        let quotas = registered.chain(own).filter(|(limit, _)| limits.contains_key(limit));
        let quotas = distinct(quotas);
        Self { keys, limits, quotas, windows, policy }
    }

    fn each(&self, table: &Table) -> impl Iterator<Item = (u64, KeyHash, Quota)> {
        self.quotas.iter().flat_map(move |(limit, quota)| {
            let salt = table.limit_salt(*limit);
            self.keys.iter().map(move |key| (*limit, key.under(salt), *quota))
        })
    }

    fn each_window(&self, table: &Table) -> impl Iterator<Item = (u64, KeyHash, Window)> {
        self.windows.iter().flat_map(move |(limit, window)| {
            let salt = table.limit_salt(*limit);
            self.keys.iter().map(move |key| (*limit, key.under(salt), *window))
        })
    }

    pub(crate) fn any_exists(&self, table: &Table) -> bool {
        let mut windows = self.each_window(table);
        if windows.any(|(_, key, window)| table.counted_in(key, window).is_some()) {
            return true;
        }
        let now = table.now();
        self.each(table).any(|(_, key, quota)| table.look_up(key, quota, now).is_some())
            || self.keys.iter().any(|key| unsettled::is_any(table, self.policy, *key))
    }

    /// Clears them. Returns what was forgiven under each limit that had a bucket.
    pub(crate) fn clear(
        &self,
        inspected: &Inspected,
    ) -> anyhow::Result<BTreeMap<String, Forgiven>> {
        let table = &inspected.table;
        let mut cleared = BTreeMap::<String, Forgiven>::new();
        let name = |limit: &u64| self.limits.get(limit).cloned().unwrap_or_default();
        for (limit, key, window) in self.each_window(table) {
            let exists = table.counted_in(key, window).is_some();
            let Some(counted) = table.reset_count(key, window) else {
                bail!(table_error::being_resized(&inspected.path, table));
            };
            if exists {
                let forgiven = cleared.entry(name(&limit)).or_default();
                forgiven.counted = forgiven.counted.max(Some(counted));
            }
        }
        for key in &self.keys {
            let Some(cells) = unsettled::reset(table, self.policy, *key) else {
                bail!(table_error::being_resized(&inspected.path, table));
            };
            if cells > 0 {
                // The cells would be charged under each limit.
                let limits = self.limits.values().cloned();
                limits.for_each(|limit| cleared.entry(limit).or_default().unsettled = cells);
            }
        }
        for (limit, key, quota) in self.each(table) {
            let now = table.now();
            let exists = table.look_up(key, quota, now).is_some();
            let Some(owed) = table.reset(key, quota, now) else {
                bail!(table_error::being_resized(&inspected.path, table));
            };
            if exists {
                let forgiven = cleared.entry(name(&limit)).or_default();
                forgiven.owed = owed.max(forgiven.owed);
            }
        }
        Ok(cleared)
    }
}

/// The numbers that a limit has; and if messages say them, all that are known: the default, the
/// highest, and those that agents of this table have written to its register.
pub(crate) fn known_quotas(table: &Table, limit: &Limit) -> Vec<Quota> {
    let mut quotas = vec![limit.quota(None)];
    if let Some(by_arg) = limit.by_arg() {
        let registered = table.registered().into_iter().filter(|known| known.limit == limit.id);
        quotas.extend(by_arg.quotas());
        quotas.extend(registered.map(|known| known.quota));
    }
    distinct(quotas)
}

/// The items without those that are the same as an earlier one.
fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}

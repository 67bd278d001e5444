//! All buckets in which a client can owe something, and whether it has any.

use std::collections::BTreeMap;
use std::iter;

use anyhow::bail;
use gcra_limiter::limit_bucket::LimitBucket;
use gcra_limiter::message_key::hash_key;
use gcra_limiter::unsettled;
use gcra_policy::table_error;
use gcra_policy::{Limit, Policy, Rule, RuleAt};
use gcra_table::{KeyHash, Nanos, Quota, Table, Window};

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

/// All buckets in which a client of a policy can owe something, under the policies in force and
/// under all others that agents have or had.
#[derive(Default)]
pub(crate) struct Buckets<'p> {
    /// The name of each limit, by its id.
    limits: BTreeMap<u64, String>,
    buckets: Vec<(u64, LimitBucket)>,
    /// The windows of this moment, by the limits that count in them.
    windows: Vec<(u64, KeyHash, Window)>,
    /// The policies whose requests may be unsettled, each with the key of the client.
    unsettled: Vec<(&'p Policy, KeyHash)>,
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
        let now = inspected.policy(client);
        let mut all = Self::default();
        let Some(message) = client.message() else { return all };
        for policies in iter::once(&*inspected.in_force.policies).chain(inspected.others()) {
            let is_in_force = |policy: &Policy| {
                let mut names = inspected.in_force.policies.list.iter().map(|it| &it.name);
                names.any(|name| *name == policy.name)
            };
            // Debts under a policy that is gone count, too.
            let found = policies.named(&now.name).or_else(|| {
                let mut list = policies.without_trials();
                list.find(|policy| policy.message == now.message && !is_in_force(policy))
            });
            let Some(policy) = found else { continue };
            // With the same settings of the key, the debts of all clients that have this key now;
            // with other settings, the debts of this client.
            let found = match policy.key_digest() == now.key_digest() {
                true => policy.rule_for_key_of(now, &message).map(|it| (client.question.key, it)),
                false => hash_key(inspected.table.hasher(), policy, &message)
                    .map(|(key, overridden)| (key, RuleAt::new(overridden))),
            };
            let Some((key, rule)) = found else { continue };
            let trial = policy.trial.and_then(|trial| policies.list.get(trial));
            all.add(&inspected.table, policy, policy.rule(rule), key);
            trial.into_iter().for_each(|it| all.add(&inspected.table, it, &it.rule, key));
        }
        all
    }

    /// Adds the buckets that a key has by this policy and this rule.
    fn add(&mut self, table: &Table, policy: &'p Policy, rule: &Rule, key: KeyHash) {
        push_new(&mut self.unsettled, (policy, key));
        // A debt that a client shares with others is not its own to be cleared.
        for limit in rule.limits().iter().filter(|limit| limit.key.is_none()) {
            // The name under the policies in force comes first.
            self.limits.entry(limit.id).or_insert_with(|| limit.label.to_string());
            let key = LimitBucket::of(table, limit, key, None).key;
            if let Some(calendar) = limit.calendar() {
                let window = calendar.window(table.wall_reading());
                push_new(&mut self.windows, (limit.id, key, window));
            } else {
                for quota in known_quotas(table, limit) {
                    push_new(&mut self.buckets, (limit.id, LimitBucket { key, quota }));
                }
            }
        }
    }

    pub(crate) fn any_exists(&self, table: &Table) -> bool {
        let mut windows = self.windows.iter();
        if windows.any(|(_, key, window)| table.counted_in(*key, *window).is_some()) {
            return true;
        }
        let now = table.now();
        let mut buckets = self.buckets.iter();
        buckets.any(|(_, it)| table.look_up(it.key, it.quota, now).is_some())
            || self.unsettled.iter().any(|(policy, key)| unsettled::is_any(table, policy, *key))
    }

    /// Clears them. Returns what was forgiven under each limit that had a bucket.
    pub(crate) fn clear(
        &self,
        inspected: &Inspected,
    ) -> anyhow::Result<BTreeMap<String, Forgiven>> {
        let table = &inspected.table;
        let mut cleared = BTreeMap::<String, Forgiven>::new();
        let name = |limit: &u64| self.limits.get(limit).cloned().unwrap_or_default();
        for (limit, key, window) in self.windows.iter().copied() {
            let exists = table.counted_in(key, window).is_some();
            let Some(counted) = table.reset_count(key, window) else {
                bail!(table_error::being_resized(&inspected.path, table));
            };
            if exists {
                let forgiven = cleared.entry(name(&limit)).or_default();
                forgiven.counted = forgiven.counted.max(Some(counted));
            }
        }
        for (policy, key) in &self.unsettled {
            let Some(cells) = unsettled::reset(table, policy, *key) else {
                bail!(table_error::being_resized(&inspected.path, table));
            };
            if cells > 0 {
                // The cells would be charged under each limit.
                let limits = self.limits.values().cloned();
                limits.for_each(|limit| cleared.entry(limit).or_default().unsettled = cells);
            }
        }
        for (limit, LimitBucket { key, quota }) in self.buckets.iter().copied() {
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
/// highest, and those that agents have written into the table.
pub(crate) fn known_quotas(table: &Table, limit: &Limit) -> Vec<Quota> {
    let mut quotas = vec![limit.quota(None)];
    if let Some(by_arg) = limit.by_arg() {
        let said = by_arg.quotas().into_iter().chain(table.board().said_of(limit.id));
        said.for_each(|quota| push_new(&mut quotas, quota));
    }
    quotas
}

/// Adds an item unless it is there.
fn push_new<T: PartialEq>(items: &mut Vec<T>, item: T) {
    if !items.contains(&item) {
        items.push(item);
    }
}

//! What was in force before, so that what a client owes survives a change of numbers.
//!
//! A bucket belongs to a key and the numbers of a limit, so after a change all buckets are new
//! ones. For a while the old ones are looked at beside them: a client is taken to owe at least as
//! many cells as it owed when the change was made. After one drain time of the new limit that can
//! make no difference any more, and the past is forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashMap;
use gcra_table::{KeyHash, MAX_REGISTERED, Quota, Table};
use spop_agent::Message;

use crate::limiter::{hash_parts, key_of};
use crate::policy::{Limit, Policies, Policy, Rule, RuleAt};

/// Changes that are remembered at once. What is owed by an earlier one is forgotten.
const MOST_PAST: usize = 8;

/// Policies that were in force, until others took their place.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    policies: Arc<Policies>,
    /// When the change was made, in nanoseconds of the table's clock.
    ended_ns: u64,
    /// From when on no key can owe anything by it: after the longest drain time of the limits
    /// that were changed.
    until_ns: u64,
    /// Which keys had an exception is known too. After a restart it is not.
    knows_exceptions: bool,
    /// For each policy in force: the place of the one that had its name, where limits, exceptions
    /// or keys were others.
    of: Vec<Option<usize>>,
}

/// What a key owes under numbers that were in force.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    quota: Quota,
    tat: u64,
    ended_ns: u64,
}

impl Past {
    /// What is past once `new` has taken the place of `old` at `now`.
    pub(crate) fn after(
        earlier: &[Self],
        old: &Arc<Policies>,
        new: &Policies,
        now: u64,
    ) -> Vec<Self> {
        let latest = Self::new(old.clone(), now, true);
        // What comes and goes several times counts once, so that it does not push out the others.
        let earlier = earlier.iter().filter(|past| past.policies.digest != old.digest);
        let past = earlier.cloned().chain([latest]).map(|past| {
            let of = past.places_of(new);
            past.seen_from(new, of)
        });
        Self::recent(past, now)
    }

    fn new(policies: Arc<Policies>, ended_ns: u64, knows_exceptions: bool) -> Self {
        Self { policies, ended_ns, until_ns: 0, knows_exceptions, of: Vec::new() }
    }

    /// The same, for policies in force of which these had others in their place.
    fn seen_from(self, in_force: &Policies, of: Vec<Option<usize>>) -> Self {
        let changed = in_force.list.iter().zip(&of).filter(|(_, old)| old.is_some());
        let drains =
            changed.flat_map(|(policy, _)| policy.limits()).map(|limit| limit.quota.drain_ns());
        let until_ns = drains.max().map_or(0, |drain_ns| self.ended_ns.saturating_add(drain_ns));
        Self { until_ns, of, ..self }
    }

    /// What matters still, and not more than is remembered.
    fn recent(past: impl Iterator<Item = Self>, now: u64) -> Vec<Self> {
        let mut past: Vec<_> = past.filter(|past| past.may_matter(now)).collect();
        past.drain(..past.len().saturating_sub(MOST_PAST));
        past
    }

    /// What is past when a process starts with these policies: the numbers that its table knows of
    /// their limits.
    ///
    /// From now on it knows these, and those of exceptions. Exceptions are not followed over a
    /// restart: what is known is which numbers there were, and not for which of the keys.
    pub(crate) fn at_start(policies: &Policies, table: &Table) -> Vec<Self> {
        let mut changes = BTreeMap::<u64, Vec<(usize, usize, Quota)>>::new();
        for (place, number, limit) in registered(policies) {
            for (quota, ended_ns) in table.put_in_force(limit.id, limit.quota) {
                changes.entry(ended_ns).or_default().push((place, number, quota));
            }
        }
        let past = changes.into_iter().map(|(ended_ns, changed)| {
            let mut of = vec![None; policies.list.len()];
            let mut list: Vec<Policy> = Vec::new();
            for (place, number, quota) in changed {
                let Rule::Limits(limits) = &policies.list[place].rule else { continue };
                let limit = Limit { quota, ..limits[number].clone() };
                match of[place].and_then(|old: usize| list.get_mut(old)) {
                    Some(Policy { rule: Rule::Limits(limits), .. }) => limits.push(limit),
                    _ => {
                        of[place] = Some(list.len());
                        list.push(policies.list[place].with_rule(Rule::Limits(vec![limit])));
                    }
                }
            }
            Self::new(Arc::new(policies.with_list(list)), ended_ns, false).seen_from(policies, of)
        });
        let past = Self::recent(past, table.now());
        register_exceptions(policies, table);
        past
    }

    /// For each policy in force: the place of the one of its name, if that has other limits,
    /// exceptions or keys.
    fn places_of(&self, in_force: &Policies) -> Vec<Option<usize>> {
        let places: AHashMap<_, _> = self
            .policies
            .list
            .iter()
            .enumerate()
            .map(|(place, old)| (&*old.name, place))
            .collect();
        let place_of = |policy: &Policy| {
            let place = *places.get(&*policy.name)?;
            let old = &self.policies.list[place];
            let is_same = (&old.rule, &old.overrides, &old.key)
                == (&policy.rule, &policy.overrides, &policy.key);
            (!is_same).then_some(place)
        };
        in_force.list.iter().map(place_of).collect()
    }

    /// Whether some key may owe something by it.
    pub(crate) fn may_matter(&self, now: u64) -> bool {
        now < self.until_ns
    }

    /// What the key of a message owes in the bucket that it had then under the limit of this name,
    /// or what it owed by the numbers `before` those, if that is more. `None` when nothing was
    /// limited then, or nothing has changed.
    ///
    /// The `current` bucket is never a past one, even where numbers have come back: what is
    /// charged to it now was not owed when those numbers ended, and would be carried over by
    /// each charge.
    #[expect(clippy::too_many_arguments, reason = "what is asked, and by which limit")]
    pub(crate) fn owed(
        &self,
        table: &Table,
        before: Option<Before>,
        policy: usize,
        is_exception: bool,
        limit: &Limit,
        current: KeyHash,
        message: &Message<'_>,
    ) -> Option<Before> {
        if is_exception && !self.knows_exceptions {
            return None;
        }
        let policy = &self.policies.list[(*self.of.get(policy)?)?];
        let (parts, exception) = hash_parts(table.hasher(), policy, message)?;
        let rule = policy.rule(RuleAt::new(exception));
        let Limit { quota, .. } = rule.limits().iter().find(|old| old.id == limit.id)?;
        let key: KeyHash = key_of(table, parts, limit.id);
        if (key, *quota) == (current, limit.quota) {
            return None;
        }
        let least_tat = before.map_or(0, |before| before.least_tat(*quota));
        let tat = table.tat(key, *quota).max(least_tat);
        Some(Before { quota: *quota, tat, ended_ns: self.ended_ns })
    }
}

/// The limits that a table knows the numbers of, as many as there is room for: the places of
/// policy and limit, and the limit.
fn registered(policies: &Policies) -> impl Iterator<Item = (usize, usize, &Limit)> {
    let limits = policies.list.iter().enumerate().flat_map(|(place, policy)| {
        policy.rule.limits().iter().enumerate().map(move |(number, limit)| (place, number, limit))
    });
    limits.take(MAX_REGISTERED)
}

/// Tells the table the numbers of all limits, those of exceptions too, so that a key can be reset
/// and later processes find what is owed.
pub(crate) fn register(policies: &Policies, table: &Table) {
    for (_, _, limit) in registered(policies) {
        let _ = table.put_in_force(limit.id, limit.quota);
    }
    register_exceptions(policies, table);
}

fn register_exceptions(policies: &Policies, table: &Table) {
    let room = MAX_REGISTERED - registered(policies).count();
    let exceptions = policies.list.iter().flat_map(|policy| &policy.overrides.rules);
    for limit in exceptions.flat_map(Rule::limits).take(room) {
        table.add_exception(limit.id, limit.quota);
    }
}

impl Before {
    /// The TAT that the key has at least under the numbers that took the place of these.
    pub(crate) fn least_tat(self, quota: Quota) -> u64 {
        quota.carry_over(self.quota, self.tat, self.ended_ns)
    }
}

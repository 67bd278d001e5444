//! The policies that were in force before, so that a client keeps its debt when limits change.
//!
//! A bucket belongs to a key and to the numbers of a limit, so after a change every key has new
//! buckets. For a while the old ones are read beside them: a client owes at least as many cells as
//! it owed when the change was made. After one drain time of the new limit, and its longest delay,
//! this can make no difference any more, and the earlier policies are dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use ahash::AHashMap;
use arrayvec::ArrayVec;
use gcra_table::{KeyHash, MAX_REGISTERED, Quota, Table, Time};
use spop_agent::Message;

use crate::limit_bucket::LimitBucket;
use crate::message_key::hash_key;
use crate::policy::{Limit, Policies, Policy, Rule, RuleAt};

/// Changes that are remembered at once. Debts from before the oldest one are forgotten.
const MAX_EARLIER: usize = 8;

/// Policies that were in force until others took their place.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    policies: Arc<Policies>,
    /// When the change was made, by the table's clock.
    ended: Time,
    /// When no key can owe anything under these policies any more: the longest drain time of the
    /// changed limits after the change, each with its longest delay, or its largest debt if
    /// responses charge.
    until: Time,
    /// The same for keys that can be found only by what this process remembers: those of policies
    /// with other overrides, or another `key`. The table's register has nothing about these.
    remembered_until: Time,
    /// Whether it is known which keys had an override. After a restart it is not.
    knows_overrides: bool,
    /// For each policy in force, the place of the earlier policy with its name, if the limits,
    /// overrides or keys of that one were different.
    places: Vec<Option<usize>>,
    /// For each policy in force, whether what is owed beyond a burst stays owed: responses have
    /// charged that.
    keeps_debts: Vec<bool>,
}

/// What a key owed under numbers that were in force.
#[derive(Clone, Copy, Debug)]
struct Debt {
    quota: Quota,
    tat: Time,
    ended: Time,
}

impl Debt {
    /// The TAT that the key has at least under this quota, which took the place of the old one.
    /// `keeps` is whether what is owed beyond a burst stays owed.
    fn least_tat(self, quota: Quota, keeps: bool) -> Time {
        let Self { quota: before, tat, ended } = self;
        match keeps {
            true => quota.carry_over_up_to_cap(before, tat, ended),
            false => quota.carry_over(before, tat, ended),
        }
    }
}

/// The TAT that a key has at least under a limit in force, by what it owed under earlier policies;
/// 0 when it owed nothing.
///
/// `policy` and `rule` are those in force for the message, and `key` is the limit's key for it.
#[cold]
pub(crate) fn least_tat(
    all: &[Earlier],
    table: &Table,
    policy: usize,
    rule: RuleAt,
    limit: &Limit,
    key: KeyHash,
    message: &Message<'_>,
) -> Time {
    let (mut debt, mut least_tat) = (None::<Debt>, Time::ZERO);
    if limit.calendar.is_some() {
        // Another count of the same windows finds the same buckets. In other windows it begins
        // at 0.
        return least_tat;
    }
    for earlier in all {
        let keeps = earlier.keeps_debts.get(policy).copied().unwrap_or_default();
        if let Some(bucket) = earlier.bucket(table, policy, rule, limit, key, message) {
            debt = Some(earlier.debt(table, bucket, debt, keeps));
        }
        // Not only by the latest debt: a limit with a small burst between two with larger ones
        // forgives nothing.
        let carried = debt.map_or(Time::ZERO, |debt| debt.least_tat(limit.quota, keeps));
        least_tat = least_tat.max(carried);
    }
    least_tat
}

/// The buckets that the key of a message had under a limit before, the latest last. The args are
/// those of [`least_tat`].
#[cold]
pub(crate) fn former_buckets(
    all: &[Earlier],
    table: &Table,
    policy: usize,
    rule: RuleAt,
    limit: &Limit,
    key: KeyHash,
    message: &Message<'_>,
) -> ArrayVec<(KeyHash, Quota), MAX_EARLIER> {
    let mut found = ArrayVec::new();
    for earlier in all.iter().take(MAX_EARLIER) {
        if let Some(bucket) = earlier.bucket(table, policy, rule, limit, key, message)
            && !found.contains(&bucket)
        {
            found.push(bucket);
        }
    }
    found
}

impl Earlier {
    /// What is earlier once `new` has taken the place of `old` at `now`.
    pub(crate) fn after(
        before: &[Self],
        old: &Arc<Policies>,
        new: &Policies,
        now: Time,
    ) -> Vec<Self> {
        let latest = Self::new(old.clone(), now, true);
        // Policies that come and go several times count once, so that they do not push out others.
        let before =
            before.iter().filter(|earlier| earlier.policies.text_digest != old.text_digest);
        let all = before.cloned().chain([latest]).map(|earlier| {
            let places = earlier.places_for(new);
            earlier.compared_with(new, places)
        });
        Self::recent(all, now)
    }

    /// What is earlier when a process starts with these policies: the numbers that the table's
    /// register has of their limits. The limits are registered with their new numbers.
    ///
    /// Overrides are not followed over a restart: the register has their numbers, and does not
    /// have the keys that they are for.
    pub(crate) fn at_start(policies: &Policies, table: &Table) -> Vec<Self> {
        let earlier = Self::registered(policies, table.now(), |limit| {
            table.put_in_force(limit.id, limit.quota)
        });
        register_overrides(policies, table);
        earlier
    }

    /// What would be earlier if a process started now with these policies. Registers nothing.
    pub(crate) fn if_started(policies: &Policies, table: &Table) -> Vec<Self> {
        Self::registered(policies, table.now(), |limit| table.quotas_before(limit.id, limit.quota))
    }

    /// What is earlier if `before` says which quotas a limit had, each with the time when it had
    /// it last.
    fn registered(
        policies: &Policies,
        now: Time,
        before: impl Fn(&Limit) -> Vec<(Quota, Time)>,
    ) -> Vec<Self> {
        let mut changes = BTreeMap::<Time, Vec<(usize, usize, Quota)>>::new();
        for (place, number, limit) in registered(policies) {
            for (quota, ended) in before(limit) {
                changes.entry(ended).or_default().push((place, number, quota));
            }
        }
        let all = changes.into_iter().map(|(ended, changed)| {
            let mut places = vec![None; policies.list.len()];
            let mut list: Vec<Policy> = Vec::new();
            for (place, number, quota) in changed {
                let Rule::Limits(limits) = &policies.list[place].rule else { continue };
                let limit = Limit { quota, ..limits[number].clone() };
                match places[place].and_then(|old: usize| list.get_mut(old)) {
                    Some(Policy { rule: Rule::Limits(limits), .. }) => limits.push(limit),
                    _ => {
                        places[place] = Some(list.len());
                        list.push(policies.list[place].with_rule(Rule::Limits(vec![limit])));
                    }
                }
            }
            Self::new(Arc::new(policies.with_list(list)), ended, false)
                .compared_with(policies, places)
        });
        Self::recent(all, now)
    }

    fn new(policies: Arc<Policies>, ended: Time, knows_overrides: bool) -> Self {
        let (until, remembered_until) = (Time::ZERO, Time::ZERO);
        let (places, keeps_debts) = (Vec::new(), Vec::new());
        Self { policies, ended, until, remembered_until, knows_overrides, places, keeps_debts }
    }

    /// The same beside the policies in force, for which these places were found.
    fn compared_with(self, in_force: &Policies, places: Vec<Option<usize>>) -> Self {
        let (mut until, mut remembered_until) = (Time::ZERO, Time::ZERO);
        for (policy, place) in in_force.list.iter().zip(&places) {
            let Some(old) = place.and_then(|place| self.policies.list.get(place)) else {
                continue;
            };
            let most_kept = |Limit { quota, .. }: &Limit| match policy.settle {
                Some(_) => quota.most_owed(),
                None => quota.drain_time().saturating_add(quota.max_delay()),
            };
            let drains = policy.limits().filter(|limit| limit.calendar.is_none()).map(most_kept);
            let Some(drain) = drains.max() else { continue };
            let drained = self.ended.saturating_add(drain);
            until = until.max(drained);
            let has_overrides = !(old.overrides.is_empty() && policy.overrides.is_empty());
            if old.key != policy.key
                || !old.has_keys_of_limits(policy)
                || (has_overrides && self.knows_overrides)
            {
                remembered_until = remembered_until.max(drained);
            }
        }
        let keeps_debts = in_force.list.iter().map(|policy| policy.settle.is_some()).collect();
        Self { until, remembered_until, places, keeps_debts, ..self }
    }

    /// Until when a client may owe something that only this process knows of.
    pub(crate) fn remembered_until(all: &[Self]) -> Time {
        all.iter().map(|earlier| earlier.remembered_until).max().unwrap_or_default()
    }

    /// Those that may still matter, and at most [`MAX_EARLIER`] of them.
    fn recent(all: impl Iterator<Item = Self>, now: Time) -> Vec<Self> {
        let mut all: Vec<_> = all.filter(|earlier| earlier.may_matter(now)).collect();
        all.drain(..all.len().saturating_sub(MAX_EARLIER));
        all
    }

    /// For each policy in force, the place of the one with its name here, if that one has
    /// different limits, overrides or keys.
    fn places_for(&self, in_force: &Policies) -> Vec<Option<usize>> {
        let places: AHashMap<_, _> = self
            .policies
            .list
            .iter()
            .enumerate()
            .map(|(place, old)| (&*old.name, place))
            .collect();
        let place_for = |policy: &Policy| {
            let place = *places.get(&*policy.name)?;
            let old = &self.policies.list[place];
            (!old.has_buckets_of(policy)).then_some(place)
        };
        in_force.list.iter().map(place_for).collect()
    }

    /// Whether a key may still owe something under these policies.
    pub(crate) fn may_matter(&self, now: Time) -> bool {
        now < self.until
    }

    /// The bucket that the key of a message had then under the limit with this name. `None` when
    /// nothing was limited then, or nothing has changed.
    ///
    /// The `current` bucket is never one of them, even where numbers have come back: what is
    /// charged to it now was not owed when those numbers ended, and each charge would carry it
    /// over again.
    pub(crate) fn bucket(
        &self,
        table: &Table,
        policy: usize,
        rule: RuleAt,
        limit: &Limit,
        current: KeyHash,
        message: &Message<'_>,
    ) -> Option<(KeyHash, Quota)> {
        if rule.is_override() && !self.knows_overrides {
            return None;
        }
        let policy = &self.policies.list[(*self.places.get(policy)?)?];
        let (key, overridden) = hash_key(table.hasher(), policy, message)?;
        let rule = policy.rule(RuleAt::new(overridden));
        let is_it = |old: &&Limit| old.id == limit.id && old.calendar.is_none();
        let old = rule.limits().iter().find(is_it)?;
        // A limit whose numbers messages say has buckets for each of them, and had them before.
        if old.by_arg.is_some() || limit.by_arg.is_some() {
            return None;
        }
        let LimitBucket { key, quota } = LimitBucket::of(table, old, key, Some(message));
        ((key, quota) != (current, limit.quota)).then_some((key, quota))
    }

    /// What was owed in this bucket, or under the numbers `before` those, whichever is more.
    fn debt(
        &self,
        table: &Table,
        (key, quota): (KeyHash, Quota),
        before: Option<Debt>,
        keeps: bool,
    ) -> Debt {
        let least_tat = before.map_or(Time::ZERO, |debt| debt.least_tat(quota, keeps));
        let tat = table.tat(key, quota).max(least_tat);
        Debt { quota, tat, ended: self.ended }
    }
}

/// The limits that have an entry in the table's register, as many as it has space for: the places
/// of the policy and of the limit, and the limit.
fn registered(policies: &Policies) -> impl Iterator<Item = (usize, usize, &Limit)> {
    let limits = policies.list.iter().enumerate().flat_map(|(place, policy)| {
        policy.rule.limits().iter().enumerate().map(move |(number, limit)| (place, number, limit))
    });
    // Where messages say the numbers, nothing is known of them here. What is counted in windows is
    // found without the register.
    let is_known = |limit: &Limit| limit.by_arg.is_none() && limit.calendar.is_none();
    limits.filter(move |(.., limit)| is_known(limit)).take(MAX_REGISTERED)
}

/// Writes the numbers of all limits, and of those of overrides, to the table's register. So a key
/// can be reset under all of them, and processes that start later find what is owed.
pub(crate) fn register(policies: &Policies, table: &Table) {
    for (_, _, limit) in registered(policies) {
        let _ = table.put_in_force(limit.id, limit.quota);
    }
    register_overrides(policies, table);
}

/// Writes down the numbers that messages have said so far, so that a key can be reset under them.
pub(crate) fn register_said(policies: &Policies, table: &Table) {
    for limit in policies.list.iter().flat_map(Policy::limits) {
        let said = limit.by_arg.iter().flat_map(|by_arg| by_arg.quotas(limit.quota));
        said.for_each(|quota| table.add_override(limit.id, quota));
    }
}

fn register_overrides(policies: &Policies, table: &Table) {
    let space = MAX_REGISTERED - registered(policies).count();
    let overrides = policies.list.iter().flat_map(|policy| &policy.overrides.rules);
    let is_known = |limit: &&Limit| limit.by_arg.is_none() && limit.calendar.is_none();
    let limits = overrides.flat_map(Rule::limits).filter(is_known);
    for limit in limits.take(space) {
        table.add_override(limit.id, limit.quota);
    }
}

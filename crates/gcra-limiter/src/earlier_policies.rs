//! The earlier policies, so that a client keeps its debt when limits change.
//!
//! A bucket belongs to a key and to the numbers of a limit, so after a change every key has new
//! buckets. For a while the earlier ones are read beside them, each once. A client owes as many
//! cells as it owed in one of them when the numbers came that are in force now; from then on these
//! are paid off at the faster of both rates. So a client that owes nothing by earlier numbers at
//! this moment owes nothing because of them, whatever was changed and whenever.
//!
//! This depends on the table, on what was in force and on the time of each change, and on nothing
//! that is written down for a client. So all processes come to the same result, again and again;
//! and so does a command that is told the [history](Earlier::history) of an agent.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::sync::Arc;

use arrayvec::ArrayVec;
use gcra_policy::{Limit, Overrides, Policies, Policy, Rule, RuleAt};
use gcra_table::{
    KeyHash, MAX_REGISTERED, Nanos, Quota, Register, Registered, Table, Time, limit_id,
};
use spop_agent::Message;

use crate::limit_bucket::LimitBucket;
use crate::message_key::hash_key;

/// Changes that are remembered for each policy, and earlier numbers that the table's register has
/// of each limit.
const MOST_CHANGES: usize = 8;

/// Numbers of overrides that are looked at for each limit after overrides were changed.
const MOST_OVERRIDES: usize = 64;

/// The most buckets that a client had under a limit, as far as they are looked at.
const MOST_BUCKETS: usize = 2 * MOST_CHANGES + MOST_OVERRIDES;

/// Policies that are not in force any more, and whose changes are remembered.
const MOST_GONE: usize = 512;

#[derive(Clone, Debug, Default)]
pub struct Earlier {
    each: Vec<PolicyChanges>,
    /// For policies that are not in force now, by their names. They may come back.
    gone: Vec<(Box<str>, PolicyChanges)>,
    /// The earlier policies, each until a moment, the earliest first.
    history: Vec<(Arc<Policies>, Time)>,
    /// Since when limits that machines share have their numbers.
    shared_since: HashMap<Numbers, Time>,
}

/// A limit, whether it is that of an override, and its quota without its longest delay.
type Numbers = (u64, bool, Quota);

#[derive(Clone, Debug, Default)]
pub struct PolicyChanges {
    /// The former policies, numbers and overrides, the latest first.
    former: Vec<Former>,
    /// From then on no client can owe anything because of them, if nothing changes again: the
    /// longest drain time of the limits in force after the latest change, each with its longest
    /// delay, or its largest debt if responses charge.
    matter_until: Time,
    /// Until when a bucket from before the latest change may owe something.
    kept_until: Time,
    /// Whether only this process knows in which buckets a client may owe something: the policy had
    /// other overrides or another `key`, or numbers that the table's register has no space for.
    only_here: bool,
}

/// A policy, numbers or overrides that were in force until a change.
#[derive(Clone, Debug)]
struct Former {
    ended: Time,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// A policy as this process had it.
    Policy(Arc<Policies>, usize),
    /// The numbers of one of the policy's own limits, as the table's register has them.
    Numbers { limit: u64, quota: Quota },
    /// The overrides were changed. The register has the numbers of overrides and not the clients
    /// that they are for, so a client may have a bucket under each of them.
    Overrides(Vec<Registered>),
}

/// A client under a limit that is in force, for whom former buckets are looked for.
#[derive(Clone, Copy)]
pub struct LimitedClient<'a, 'm> {
    pub table: &'a Table,
    pub rule: RuleAt,
    pub limit: &'a Limit,
    pub current: LimitBucket,
    pub message: &'a Message<'m>,
}

/// A bucket that a client had under a limit.
#[derive(Clone, Copy, Debug)]
pub struct FormerBucket {
    pub key: KeyHash,
    pub quota: Quota,
    /// When others took the place of these numbers for this client, as far as that is known.
    changed: Option<Time>,
}

impl Earlier {
    /// The earlier numbers when a process starts with these policies: those that the table's
    /// register has of their limits. The limits are registered with their new numbers.
    pub(crate) fn at_start(policies: &Policies, table: &Table) -> Self {
        Self::default().after(None, policies, table, RegisterUse::Write, table.now())
    }

    /// The earlier policies for a process with these policies and this [history](Self::history).
    /// Without any, those for a process that starts now. Registers nothing.
    pub(crate) fn of_history(
        history: &[(Arc<Policies>, Time)],
        policies: &Policies,
        table: &Table,
    ) -> Self {
        let first = history.first().map_or(policies, |(first, _)| first);
        let begun = Self::default().after(None, first, table, RegisterUse::Read, table.now());
        let next = history.iter().skip(1).map(|(next, _)| &**next).chain([policies]);
        let changes = history.iter().zip(next);
        let mut earlier = changes.fold(begun, |earlier, ((old, ended), next)| {
            earlier.after(Some(old), next, table, RegisterUse::Read, *ended)
        });
        earlier.forget_old(table.now());
        earlier
    }

    /// The earlier policies once `new` has taken the place of `old`. The limits are registered
    /// with their new numbers, so processes that start later find what is owed.
    pub(crate) fn after_change(&self, old: &Arc<Policies>, new: &Policies, table: &Table) -> Self {
        self.clone().after(Some(old), new, table, RegisterUse::Write, table.now())
    }

    fn after(
        self,
        old: Option<&Arc<Policies>>,
        new: &Policies,
        table: &Table,
        register: RegisterUse,
        now: Time,
    ) -> Self {
        let mut history = self.history;
        if let Some(old) = old {
            // Those that come and go several times count once.
            history.retain(|(known, _)| !have_same_buckets(known, old));
            history.push((old.clone(), now));
        }
        let mut before: HashMap<Box<str>, Vec<Former>> = HashMap::new();
        for (name, PolicyChanges { mut former, .. }) in self.gone {
            // If the policy comes back, its numbers are in force from now on, and not before.
            former.iter_mut().take(1).for_each(|former| former.ended = now);
            before.insert(name, former);
        }
        let list = old.map(|old| &old.list[..]).unwrap_or_default();
        let next: HashMap<&str, &Policy> =
            new.list.iter().map(|policy| (&*policy.name, policy)).collect();
        for (place, (policy, changes)) in list.iter().zip(self.each).enumerate() {
            let mut former = changes.former;
            if let Some(old) = old
                && !next.get(&*policy.name).is_some_and(|next| policy.has_buckets_of(next))
            {
                former.insert(0, Former { ended: now, what: What::Policy(old.clone(), place) });
            }
            before.insert(policy.name.clone(), former);
        }
        if let (Some(old), RegisterUse::Write) = (old, register) {
            note_unregistered(old, table);
        }
        let registered = register.put(new, table);
        let listed: HashSet<_> =
            table.registered().into_iter().map(|it| (it.limit, it.quota)).collect();
        let each = new.list.iter().zip(registered).map(|(policy, registered)| {
            let mut former = before.remove(&policy.name).unwrap_or_default();
            // The register says the numbers again, also those that other processes had meanwhile.
            former.retain(|former| former.policy().is_some());
            former.extend(registered);
            PolicyChanges::new(former, Some(policy), &listed, now)
        });
        let each = each.collect();
        let gone = before
            .into_iter()
            .map(|(name, former)| (name, PolicyChanges::new(former, None, &listed, now)));
        let mut gone: Vec<_> = gone.filter(|(_, changes)| !changes.former.is_empty()).collect();
        gone.sort_by_key(|(_, changes)| changes.kept_until);
        gone.drain(..gone.len().saturating_sub(MOST_GONE));
        let mut earlier = Self { each, gone, history, shared_since: shared_since(new, table) };
        earlier.shorten_history();
        earlier
    }

    /// Leaves out what nothing is remembered of, unless it came after something that is: a policy
    /// may have been gone in between.
    fn shorten_history(&mut self) {
        let changes = self.each.iter().chain(self.gone.iter().map(|(_, changes)| changes));
        let former = changes.flat_map(|changes| &changes.former);
        let remembered: HashSet<_> = former
            .filter_map(|former| match &former.what {
                What::Policy(policies, _) => Some(Arc::as_ptr(policies)),
                What::Numbers { .. } | What::Overrides(_) => None,
            })
            .collect();
        let is_remembered =
            |(it, _): &(Arc<Policies>, Time)| remembered.contains(&Arc::as_ptr(it));
        let history = &mut self.history;
        let first = history.iter().position(is_remembered).unwrap_or(history.len());
        history.drain(..first);
        let mut later = history.len();
        history.retain(|it| {
            later -= 1;
            later < MOST_CHANGES || is_remembered(it)
        });
    }

    /// When a limit that machines share got its numbers, as far as this machine knows it.
    pub(crate) fn changed(&self, policy: usize, asked: LimitedClient<'_, '_>) -> Option<Time> {
        let LimitedClient { rule, limit, current, .. } = asked;
        let numbers = (limit.id, rule.is_override(), current.quota.without_delay());
        let registered = self.shared_since.get(&numbers).copied();
        let buckets = self.buckets(policy, asked);
        registered.max(buckets.iter().filter_map(|found| found.changed).max())
    }

    /// The buckets that the key of a message had under a limit of this policy before.
    pub(crate) fn buckets(
        &self,
        policy: usize,
        asked: LimitedClient<'_, '_>,
    ) -> ArrayVec<FormerBucket, MOST_BUCKETS> {
        self.of(policy).map(|changes| changes.buckets(asked)).unwrap_or_default()
    }

    /// The limits that a client had in the place of one before, as this process knows them: each
    /// with its policy, and the key that the client had under it.
    pub(crate) fn limits<'a>(
        &'a self,
        policy: usize,
        asked: LimitedClient<'a, '_>,
    ) -> impl Iterator<Item = (&'a Policy, &'a Limit, KeyHash)> {
        let former = self.of(policy).into_iter().flat_map(|changes| &changes.former);
        former.filter_map(Former::policy).filter_map(move |old| {
            let (key, _, limit) = under(old, asked)?;
            let bucket = LimitBucket::of(asked.table, limit, key, Some(asked.message));
            Some((old, limit, bucket.key))
        })
    }

    /// The changes of the policy in force at this place.
    pub(crate) fn of(&self, policy: usize) -> Option<&PolicyChanges> {
        self.each.get(policy)
    }

    /// The earlier policies that may still matter, each until a moment, the earliest first.
    pub fn history(&self) -> &[(Arc<Policies>, Time)] {
        &self.history
    }

    /// Until when the history may matter.
    pub fn kept_until(&self) -> Time {
        let changes = self.each.iter().chain(self.gone.iter().map(|(_, changes)| changes));
        changes.map(|changes| changes.kept_until).max().unwrap_or_default()
    }

    /// Until when a client may owe something that only this process knows of.
    pub fn remembered_until(&self) -> Time {
        let each = self.each.iter().filter(|changes| changes.only_here);
        each.map(|changes| changes.matter_until).max().unwrap_or_default()
    }

    /// The places of the policies whose changes matter at this time.
    pub(crate) fn mattering(&self, now: Time) -> impl Iterator<Item = usize> {
        let matters = move |changes: &PolicyChanges| now < changes.matter_until;
        self.each.iter().enumerate().filter(move |(_, it)| matters(it)).map(|(place, _)| place)
    }

    /// Forgets the changes from before which nobody can owe anything any more.
    pub(crate) fn forget_old(&mut self, now: Time) {
        for changes in self.each.iter_mut().filter(|changes| changes.kept_until <= now) {
            *changes = PolicyChanges::default();
        }
        self.gone.retain(|(_, changes)| now < changes.kept_until);
        self.shorten_history();
    }
}

impl PolicyChanges {
    /// The changes after which this policy is in force, or none with its name. `listed` are the
    /// numbers that the table's register has.
    fn new(
        mut former: Vec<Former>,
        policy: Option<&Policy>,
        listed: &HashSet<(u64, Quota)>,
        now: Time,
    ) -> Self {
        former.sort_by_key(|former| std::cmp::Reverse(former.ended));
        // Policies that come and go several times count once, so that they do not push out
        // others.
        let mut seen: Vec<Former> = Vec::new();
        former.retain(|former| {
            let Some(old) = former.policy() else { return true };
            let is_in_force = policy.is_some_and(|policy| policy.has_buckets_of(old));
            let mut others = seen.iter().filter_map(Former::policy);
            let is_new = !is_in_force && !others.any(|other| other.has_buckets_of(old));
            let keeps = is_new && seen.len() < MOST_CHANGES;
            if keeps {
                seen.push(former.clone());
            }
            keeps
        });
        let Some(latest) = former.first().map(|former| former.ended) else {
            return Self::default();
        };
        let most_owed = policy.map(most_owed).unwrap_or_default();
        let kept = former.iter().map(Former::most_owed).max().unwrap_or_default();
        let (matter_until, kept_until) =
            (latest.saturating_add(most_owed), latest.saturating_add(kept.max(most_owed)));
        if kept_until <= now {
            return Self::default();
        }
        let is_listed = |(id, quota): (u64, Quota)| listed.contains(&(id, quota.without_delay()));
        let is_known = |former: &Former| {
            former.policy().zip(policy).is_none_or(|(old, policy)| {
                old.key == policy.key
                    && old.has_keys_of_limits(policy)
                    && old.overrides.is_empty()
                    && policy.overrides.is_empty()
                    && old.limits().filter_map(to_register).all(is_listed)
            })
        };
        let only_here = !former.iter().all(is_known);
        Self { former, matter_until, kept_until, only_here }
    }

    /// The TAT that a key has at least under a limit in force, by what it owes under earlier
    /// numbers; 0 if it owes nothing by them. `keeps_debts` is whether what is owed beyond a burst
    /// stays owed: responses have charged that.
    #[cold]
    pub fn least_tat(&self, asked: LimitedClient<'_, '_>, keeps_debts: bool, now: Time) -> Time {
        let LimitedClient { table, current: LimitBucket { quota, .. }, .. } = asked;
        let found = self.buckets(asked);
        let Some(since) = found.iter().filter_map(|found| found.changed).max() else {
            return Time::ZERO;
        };
        let carried = found.iter().map(|FormerBucket { key, quota: before, .. }| {
            let tat = table.tat(*key, *before);
            match keeps_debts {
                true => quota.carry_over_up_to_cap(*before, tat, since, now),
                false => quota.carry_over(*before, tat, since, now),
            }
        });
        carried.max().unwrap_or_default()
    }

    /// The buckets that the key of a message had under a limit before, the latest first, each
    /// once.
    ///
    /// The current bucket is never one of them, even where numbers have come back: what is charged
    /// to it counts by itself.
    #[cold]
    pub fn buckets(&self, asked: LimitedClient<'_, '_>) -> ArrayVec<FormerBucket, MOST_BUCKETS> {
        let LimitedClient { table, rule, limit, current, message, .. } = asked;
        let mut found = Found { current, buckets: ArrayVec::new() };
        // Another count of the same windows finds the same buckets, and in other windows it begins
        // at 0. A limit whose numbers messages say has buckets for each of them, and had them
        // before.
        if limit.fixed().is_none() {
            return found.buckets;
        }
        // The keys that the client had, each with the time when it had it last; and until when it
        // had the limits of the policy itself, and not those of an override.
        let mut keys = ArrayVec::<(KeyHash, Time), MOST_CHANGES>::new();
        let mut own_until = if rule.is_override() { None } else { Some(Time(u64::MAX)) };
        let with_policies = self.former.iter().filter_map(|it| Some((it.ended, it.policy()?)));
        for (ended, old) in with_policies {
            let Some((key, is_override, old)) = under(old, asked) else { continue };
            let before = LimitBucket::of(table, old, key, Some(message));
            found.add(before.key, before.quota, Some(ended));
            if !is_override {
                own_until = own_until.max(Some(ended));
            }
            if before.key != current.key && !keys.iter().any(|(key, _)| *key == before.key) {
                let _ = keys.try_push((before.key, ended));
            }
        }
        let keys = || iter::once((current.key, Time(u64::MAX))).chain(keys.iter().copied());
        for Former { ended, what } in &self.former {
            let What::Numbers { limit: id, quota } = what else { continue };
            for (key, until) in keys().filter(|_| *id == limit.id) {
                // A client with an override may have had it before these numbers ended.
                let was_own = own_until.is_some_and(|own_until| *ended <= own_until);
                found.add(key, *quota, was_own.then_some((*ended).min(until)));
            }
        }
        for Former { ended, what } in &self.former {
            let What::Overrides(registered) = what else { continue };
            let ours =
                |of: &&Registered| of.limit == limit.id && (of.is_override || rule.is_override());
            for Registered { quota, since, .. } in registered.iter().filter(ours) {
                for (key, until) in keys() {
                    let changed = (*ended).min(until);
                    // By a key that it had, it was never counted by numbers that came later.
                    // Clients that still have this key are.
                    let came_later = key != current.key && changed <= *since;
                    // Without a debt at the change there was no such override for the client.
                    let owes = table.tat(key, *quota) > *ended;
                    if owes && !came_later && !found.knows_end_of(key, *quota) {
                        found.add(key, *quota, Some(changed));
                    }
                }
            }
        }
        found.buckets
    }
}

/// Buckets that a client had, each once, without the one that it has.
struct Found {
    current: LimitBucket,
    buckets: ArrayVec<FormerBucket, MOST_BUCKETS>,
}

impl Found {
    fn add(&mut self, key: KeyHash, quota: Quota, changed: Option<Time>) {
        if (key, quota) == (self.current.key, self.current.quota) {
            return;
        }
        match self.buckets.iter_mut().find(|it| (it.key, it.quota) == (key, quota)) {
            Some(known) => known.changed = known.changed.max(changed),
            None => drop(self.buckets.try_push(FormerBucket { key, quota, changed })),
        }
    }

    fn knows_end_of(&self, key: KeyHash, quota: Quota) -> bool {
        let mut buckets = self.buckets.iter();
        buckets.any(|it| (it.key, it.quota) == (key, quota) && it.changed.is_some())
    }
}

impl Former {
    fn policy(&self) -> Option<&Policy> {
        match &self.what {
            What::Policy(policies, place) => policies.list.get(*place),
            What::Numbers { .. } | What::Overrides(_) => None,
        }
    }

    /// The most that a bucket can owe by these numbers.
    fn most_owed(&self) -> Nanos {
        match &self.what {
            What::Policy(..) => self.policy().map(most_owed).unwrap_or_default(),
            What::Numbers { quota, .. } => quota.most_owed(),
            What::Overrides(registered) => {
                registered.iter().map(|it| it.quota.most_owed()).max().unwrap_or_default()
            }
        }
    }
}

/// The most that a client can owe under the limits of a policy that have a rate.
fn most_owed(policy: &Policy) -> Nanos {
    let most = |quota: Quota| match policy.settle() {
        Some(_) => quota.most_owed(),
        None => quota.drain_time().saturating_add(quota.max_delay()),
    };
    policy.limits().filter_map(Limit::rate).map(most).max().unwrap_or_default()
}

/// The limit of this policy that a message was counted by in the place of the one in force, the
/// hash of its key, and whether that is the limit of an override.
fn under<'p>(
    policy: &'p Policy,
    asked: LimitedClient<'_, '_>,
) -> Option<(KeyHash, bool, &'p Limit)> {
    let LimitedClient { table, limit, message, .. } = asked;
    let (key, overridden) = hash_key(table.hasher(), policy, message)?;
    let rule = RuleAt::new(overridden);
    let mut limits = policy.rule(rule).limits().iter();
    let old = limits.find(|old| old.id == limit.id && old.fixed().is_some())?;
    Some((key, rule.is_override(), old))
}

/// Whether all buckets of these policies are those of the others, also of their trials.
fn have_same_buckets(policies: &Policies, others: &Policies) -> bool {
    let mut both = policies.list.iter().zip(&others.list);
    policies.limits_digest == others.limits_digest
        && policies.list.len() == others.list.len()
        && both.all(|(one, other)| one.name == other.name && one.has_buckets_of(other))
}

/// The use of the table's register.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RegisterUse {
    Read,
    Write,
}

impl RegisterUse {
    /// Puts the numbers of all limits in force, and those of overrides. So a key can be reset
    /// under all of them, and processes that start later find what is owed. Returns what was in
    /// force before, for each policy.
    fn put(self, policies: &Policies, table: &Table) -> Vec<Vec<Former>> {
        // It is read once for all limits: it has a thousand entries.
        let mut register = table.register();
        let known_before: HashSet<u64> = register.all().map(|it| it.limit).collect();
        let before = |register: &mut Register<'_>, id: u64, quota: Quota| match self {
            Self::Read => register.before(id, quota),
            Self::Write => register.put_in_force(id, quota),
        };
        let mut former: Vec<Vec<Former>> = policies.list.iter().map(|_| Vec::new()).collect();
        for (place, limit, quota) in registered(policies) {
            for (quota, ended) in before(&mut register, limit, quota) {
                former[place].push(Former { ended, what: What::Numbers { limit, quota } });
            }
        }
        // By limit, the latest first, also those that have come now.
        let mut known: HashMap<u64, Vec<Registered>> = HashMap::new();
        register.all().for_each(|it| known.entry(it.limit).or_default().push(it));
        for ours in known.values_mut() {
            ours.sort_by_key(|registered| std::cmp::Reverse(registered.since));
        }
        let mut space = MAX_REGISTERED - registered(policies).count();
        for (policy, former) in policies.list.iter().zip(&mut former) {
            let is_known = |id: u64| known_before.contains(&id);
            let id = overrides_id(policy);
            // As long as a policy has none, nothing is written about them.
            if (policy.overrides.is_empty() && !is_known(id)) || space == 0 {
                continue;
            }
            space -= 1;
            let versions = [&Overrides::default(), &policy.overrides].map(version_of);
            let [Some(none), Some(version)] = versions else { continue };
            let had_none = !is_known(id) && policy.limits().any(|limit| is_known(limit.id));
            if had_none {
                let _ = before(&mut register, id, none);
            }
            let earlier = before(&mut register, id, version).last().map(|(_, ended)| *ended);
            if let Some(ended) = earlier.or_else(|| had_none.then(|| table.now())) {
                former.push(Former { ended, what: What::Overrides(numbers_of(policy, &known)) });
            }
        }
        if self == Self::Write {
            let overrides = policies.list.iter().flat_map(|policy| &policy.overrides.rules);
            let limits = overrides.flat_map(Rule::limits);
            for (id, quota) in limits.filter_map(to_register).take(space) {
                register.add_override(id, quota);
            }
            register_said(policies, table);
        }
        former
    }
}

/// Writes down that the register has not all numbers of these policies, which are in force no more
/// and which only the processes know that had them, if it has had no space for some.
fn note_unregistered(old: &Policies, table: &Table) {
    let known: HashSet<_> =
        table.registered().into_iter().map(|it| (it.limit, it.quota)).collect();
    let limits = old.list.iter().flat_map(Policy::limits).filter_map(to_register);
    let missing = limits.filter(|(id, quota)| !known.contains(&(*id, quota.without_delay())));
    if let Some(longest) = missing.map(|(_, quota)| quota.most_owed()).max() {
        table.note_missing(longest);
    }
}

/// Since when the limits of shared policies have their numbers. Where the register does not say
/// it, they get them now.
fn shared_since(policies: &Policies, table: &Table) -> HashMap<Numbers, Time> {
    let shared = || policies.list.iter().filter(|policy| policy.shared.is_some());
    if shared().next().is_none() {
        return HashMap::new();
    }
    let mut since: HashMap<Numbers, Time> = HashMap::new();
    let mut latest: HashMap<u64, Registered> = HashMap::new();
    for registered in table.registered() {
        if registered.is_override {
            since.insert((registered.limit, true, registered.quota), registered.since);
        } else {
            let latest = latest.entry(registered.limit).or_insert(registered);
            if registered.since > latest.since {
                *latest = registered;
            }
        }
    }
    since.extend(latest.into_values().map(|it| ((it.limit, false, it.quota), it.since)));
    let now = table.now();
    let of_rule = |rule: &Rule, is_override: bool| {
        let numbers = |(id, quota): (u64, Quota)| (id, is_override, quota.without_delay());
        rule.limits().iter().filter_map(to_register).map(numbers).collect::<Vec<_>>()
    };
    let of_policy = |policy: &Policy| {
        let of_overrides = policy.overrides.rules.iter().flat_map(|rule| of_rule(rule, true));
        of_rule(&policy.rule, false).into_iter().chain(of_overrides).collect::<Vec<_>>()
    };
    let all = shared().flat_map(of_policy);
    all.map(|numbers| (numbers, since.get(&numbers).copied().unwrap_or(now))).collect()
}

/// The numbers that the limits of a policy have and had, also for overrides, by what is known of
/// each limit.
fn numbers_of(policy: &Policy, known: &HashMap<u64, Vec<Registered>>) -> Vec<Registered> {
    let mut ids: Vec<u64> = policy.limits().filter_map(to_register).map(|(id, _)| id).collect();
    ids.sort_unstable();
    ids.dedup();
    let of_one = |id: u64| known.get(&id).into_iter().flatten().take(MOST_OVERRIDES).copied();
    ids.into_iter().flat_map(of_one).collect()
}

/// By which the overrides of a policy are found in the register.
fn overrides_id(policy: &Policy) -> u64 {
    limit_id(&[b"overrides", policy.name.as_bytes()])
}

/// A quota that tells overrides apart in the register, which has space for quotas: its numbers are
/// a digest. Nobody owes anything by it, and it allows no long debt, so that its loss is not taken
/// for that of one.
fn version_of(overrides: &Overrides) -> Option<Quota> {
    let digest = overrides.digest();
    let quota = Quota::new(Nanos((digest >> 32) + 1), 1).ok()?;
    let beyond = Nanos(digest & u64::from(u32::MAX));
    quota.with_most_owed(quota.drain_time().saturating_add(beyond)).ok()
}

/// The limits that have an entry in the table's register, as many as it has space for: the place
/// of the policy, the id and the quota.
fn registered(policies: &Policies) -> impl Iterator<Item = (usize, u64, Quota)> {
    let limits = policies.list.iter().enumerate().flat_map(|(place, policy)| {
        let limits = policy.rule.limits().iter().filter_map(to_register);
        limits.map(move |(id, quota)| (place, id, quota))
    });
    limits.take(MAX_REGISTERED)
}

/// The id and the quota of a limit. Where messages say the numbers, nothing is known of them here.
/// A count in windows is found without the register.
fn to_register(limit: &Limit) -> Option<(u64, Quota)> {
    Some((limit.id, limit.fixed()?))
}

/// Writes down the numbers that messages can say by default, and those that they have said to
/// this process, where the table's register does not have them: it is another table since, or
/// others had more to write.
pub fn register_said(policies: &Policies, table: &Table) {
    let by_arg = policies.list.iter().flat_map(Policy::limits);
    let by_arg: Vec<_> = by_arg.filter_map(|limit| Some((limit.id, limit.by_arg()?))).collect();
    if by_arg.is_empty() {
        return;
    }
    let known: HashSet<_> =
        table.registered().into_iter().map(|it| (it.limit, it.quota)).collect();
    for (id, by_arg) in by_arg {
        for quota in by_arg.quotas() {
            if !known.contains(&(id, quota.without_delay())) {
                table.add_said(id, quota);
            }
        }
    }
}

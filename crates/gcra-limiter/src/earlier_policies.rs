//! The policies that were in force before, so that a client keeps its debt when the numbers of a
//! limit change.
//!
//! A bucket belongs to a key and to the numbers of a limit, so with other numbers a client has
//! another bucket. For a while the former ones are read beside it. Each former policy says which
//! numbers it had for this very client, and when it ended. The debt of the client at that moment
//! is paid off at the faster of both rates, through all changes since.
//!
//! The args and settings that make the key are part of the bucket, too: with another key, a client
//! begins anew. So a former bucket of one client is never the bucket of another one.
//!
//! This depends on the table and on the [`PolicyHistory`], which agents keep beside the table. It
//! depends on nothing that is written down for a client. So all processes come to the same result,
//! and so does a command.

// ADR 17: Debts survive a change of numbers without a conversion.

use std::collections::HashMap;
use std::sync::Arc;

use arrayvec::ArrayVec;
use gcra_policy::{Limit, Policies, Policy, RuleAt};
use gcra_table::{Nanos, Quota, Table, Time};
use spop_agent::Message;

use crate::limit_bucket::LimitBucket;
use crate::message_key::hash_key;

/// Changes that are remembered for each policy.
const MOST_CHANGES: usize = 8;

/// Documents that are remembered.
const MOST_FORMER: usize = 64;

/// The policies that were in force, the earliest first.
#[derive(Clone, Debug, Default)]
pub struct PolicyHistory {
    /// When the first of them came into force; if there is none, when those of now did.
    pub begun: Time,
    former: Vec<FormerPolicies>,
}

/// Policies that were in force until a moment.
#[derive(Clone, Debug)]
pub struct FormerPolicies {
    pub policies: Arc<Policies>,
    /// When they last came into force.
    pub since: Time,
    pub ended: Time,
    /// From then on no bucket of theirs can owe anything, unless another agent has them still.
    pub matter_until: Time,
}

impl PolicyHistory {
    /// A history that has nothing in it, for policies in force since `begun`.
    pub fn since(begun: Time) -> Self {
        Self { begun, former: Vec::new() }
    }

    /// Adds policies that were in force until now. If these came and went before, they count once.
    pub fn push_current(&mut self, policies: Arc<Policies>, now: Time) {
        self.push(policies, self.since_last(), now);
    }

    /// When the policies of now came into force.
    pub fn since_last(&self) -> Time {
        self.former.last().map_or(self.begun, |former| former.ended)
    }

    /// Adds policies that last came into force at `since`, and ended after all others.
    pub fn push(&mut self, policies: Arc<Policies>, since: Time, ended: Time) {
        self.former.retain(|former| !have_same_buckets(&former.policies, &policies));
        let matter_until = ended.saturating_add(most_owed(&policies.list));
        self.former.push(FormerPolicies { policies, since, ended, matter_until });
        let too_many = self.former.len().saturating_sub(MOST_FORMER);
        self.forget(too_many);
    }

    pub fn former(&self) -> &[FormerPolicies] {
        &self.former
    }

    /// How many of the first ones matter no more. One behind others stays: it says how fast the
    /// debts before it were paid off.
    fn over(&self, now: Time) -> usize {
        self.former.iter().take_while(|former| former.matter_until <= now).count()
    }

    fn forget(&mut self, first: usize) {
        if let Some(last) = self.former.drain(..first).next_back() {
            self.begun = last.ended;
        }
    }
}

/// The history of one of the policies in force.
#[derive(Clone, Debug, Default)]
pub struct PolicyChanges {
    /// The former states of the policy, the earliest first. Two beside each other differ, and the
    /// last one differs from the policy in force.
    former: Vec<FormerPolicy>,
    /// From then on no client owes anything because of them.
    matter_until: Time,
    /// Nothing is known about the time before that.
    begun: Time,
}

#[derive(Clone, Debug)]
struct FormerPolicy {
    policies: Arc<Policies>,
    /// Its place there; `None` if there was no such policy.
    place: Option<usize>,
    /// Whether it made keys as the policy in force does.
    has_same_key: bool,
    since: Time,
    ended: Time,
}

/// A client under a limit that is in force, for whom former buckets are looked for.
#[derive(Clone, Copy)]
pub struct LimitedClient<'a, 'm> {
    pub table: &'a Table,
    pub policy: &'a Policy,
    pub limit: &'a Limit,
    pub current: LimitBucket,
    pub message: &'a Message<'m>,
}

/// The bucket that a client had under a limit for a time; `None` if it had none there.
#[derive(Clone, Copy)]
struct Former {
    bucket: Option<LimitBucket>,
    since: Time,
    ended: Time,
}

impl PolicyHistory {
    /// Forgets what matters no more. Returns the history of each of the policies in force.
    pub(crate) fn changes_until(&mut self, policies: &Policies, now: Time) -> Vec<PolicyChanges> {
        self.forget(self.over(now));
        let places = self.former.iter().map(|former| {
            let list = former.policies.list.iter().enumerate();
            list.map(|(place, policy)| (&*policy.name, place)).collect()
        });
        let places: Vec<HashMap<&str, usize>> = places.collect();
        let each = policies.list.iter().map(|policy| {
            let mut changes = PolicyChanges { begun: self.begun, ..PolicyChanges::default() };
            let key_digest = policy.key_digest();
            let mut next = Some(policy);
            for (former, places) in self.former.iter().zip(&places).rev() {
                let place = places.get(&*policy.name).copied();
                let old = place.and_then(|place| former.policies.list.get(place));
                let is_same = match (old, next) {
                    (Some(old), Some(next)) => old.has_buckets_of(next),
                    (old, next) => old.is_none() && next.is_none(),
                };
                if is_same {
                    if let Some(last) = changes.former.last_mut()
                        && last.since <= former.ended
                    {
                        last.since = former.since;
                    }
                    continue;
                }
                let FormerPolicies { policies, since, ended, .. } = former.clone();
                let has_same_key = old.is_some_and(|old| old.key_digest() == key_digest);
                changes.former.push(FormerPolicy { policies, place, has_same_key, since, ended });
                if changes.former.len() == MOST_CHANGES {
                    break;
                }
                next = old;
            }
            let is_any = changes.former.iter().any(|former| former.place.is_some());
            if let Some(latest) = changes.former.first().filter(|_| is_any) {
                let most = most_owed(std::slice::from_ref(policy));
                changes.matter_until = latest.ended.saturating_add(most);
            }
            changes.former.reverse();
            changes
        });
        each.collect()
    }

    /// Whether it has something that matters no more.
    pub(crate) fn is_too_long(&self, now: Time) -> bool {
        self.over(now) > 0
    }
}

impl PolicyChanges {
    /// Whether a client may owe something because of them.
    pub fn may_owe(&self, now: Time) -> bool {
        now < self.matter_until
    }

    /// Since when a client has the numbers that it has now under a limit of the policy, as far as
    /// it is known.
    pub(crate) fn since(&self, asked: LimitedClient<'_, '_>) -> Time {
        let former = self.former(asked);
        former.last().map_or(self.begun, |former| former.ended)
    }

    /// The buckets that a client had before under a limit of the policy, without the one that it
    /// has, the latest first.
    pub(crate) fn buckets(
        &self,
        asked: LimitedClient<'_, '_>,
    ) -> ArrayVec<LimitBucket, MOST_CHANGES> {
        let mut buckets = ArrayVec::<LimitBucket, MOST_CHANGES>::new();
        for bucket in self.former(asked).iter().rev().filter_map(|it| it.bucket) {
            let is_new = !buckets.iter().any(|known| known.is_same(bucket));
            if is_new && !bucket.is_same(asked.current) {
                let _ = buckets.try_push(bucket);
            }
        }
        buckets
    }

    /// The earliest TAT that a client can have under a limit of the policy, because of its former
    /// debts; 0 without such debts.
    #[cold]
    pub(crate) fn least_tat(&self, asked: LimitedClient<'_, '_>, now: Time) -> Time {
        let LimitedClient { table, policy, current, .. } = asked;
        // Responses have charged them, and those beyond a burst stay, too.
        let keeps_debts = policy.settle().is_some();
        let former = self.former(asked);
        let quotas = former.iter().filter_map(|former| Some(former.bucket?.quota));
        let fastest = quotas.chain([current.quota]).min_by_key(|quota| quota.emission_interval());
        let mut least = Time::ZERO;
        for (place, Former { bucket, ended, .. }) in former.iter().enumerate() {
            let Some(LimitBucket { key, quota }) = bucket.filter(|it| !it.is_same(current)) else {
                continue;
            };
            let (mut tat, mut since) = (table.tat(key, quota), *ended);
            for next in former.iter().skip(place + 1) {
                // A quota that came and went more than once is known by its last time. Any quota
                // may have been in force in between, and a client without debt must pass.
                let has_gap = next.since > since;
                let beside = if has_gap { fastest } else { next.bucket.map(|it| it.quota) };
                if let Some(beside) = beside {
                    tat = quota.paid_off_beside(beside, tat, since, next.ended);
                }
                since = next.ended;
            }
            let carried = match keeps_debts {
                true => current.quota.carry_over_up_to_cap(quota, tat, since, now),
                false => current.quota.carry_over(quota, tat, since, now),
            };
            least = least.max(carried);
        }
        least
    }

    /// The buckets of a client until each change of the policy, the earliest first. The last one
    /// is another one than it has now.
    fn former(&self, asked: LimitedClient<'_, '_>) -> ArrayVec<Former, MOST_CHANGES> {
        let LimitedClient { limit, current, .. } = asked;
        // Another count of the same windows finds the same buckets. A limit whose numbers messages
        // say has buckets for each of them.
        if limit.fixed().is_none() {
            return ArrayVec::new();
        }
        let bucket = |former: &FormerPolicy| {
            let FormerPolicy { since, ended, .. } = *former;
            Former { bucket: former.bucket(asked), since, ended }
        };
        let mut former: ArrayVec<Former, MOST_CHANGES> =
            self.former.iter().take(MOST_CHANGES).map(bucket).collect();
        let is_current =
            |bucket: Option<LimitBucket>| bucket.is_some_and(|it| it.is_same(current));
        while former.last().is_some_and(|former| is_current(former.bucket)) {
            former.pop();
        }
        former
    }
}

impl FormerPolicy {
    /// The bucket that the client's key had under this limit, if it had one.
    fn bucket(&self, asked: LimitedClient<'_, '_>) -> Option<LimitBucket> {
        let LimitedClient { policy: now, limit, current, message, .. } = asked;
        let policy = self.policies.list.get(self.place?)?;
        let rule = match self.has_same_key {
            true => policy.rule_for_key_of(now, message)?,
            // Limits with keys of their own go on.
            false => RuleAt::new(hash_key(asked.table.hasher(), policy, message)?.1),
        };
        let mut limits = policy.rule(rule).limits().iter();
        let old = limits.find(|old| old.id == limit.id)?;
        let quota = old.fixed().filter(|_| old.key == limit.key)?;
        Some(LimitBucket { key: current.key, quota })
    }
}

/// The most that a client can owe under a limit of these policies that has a rate.
pub fn most_owed(policies: &[Arc<Policy>]) -> Nanos {
    let limits = policies.iter().flat_map(|policy| policy.limits());
    limits.filter_map(Limit::rate).map(Quota::most_owed).max().unwrap_or_default()
}

/// Whether all buckets of these policies are those of the others, also of their trials.
fn have_same_buckets(policies: &Policies, others: &Policies) -> bool {
    let mut both = policies.list.iter().zip(&others.list);
    policies.limits_digest == others.limits_digest
        && policies.list.len() == others.list.len()
        && both.all(|(one, other)| one.name == other.name && one.has_buckets_of(other))
}

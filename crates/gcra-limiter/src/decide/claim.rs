//! The claims of a message on the limits that this host shares with others: each limit with the
//! key that it counts by, and its records in the store.

// ADR 44: What cannot be lent is charged in the store.

use std::time::Instant;

use arrayvec::ArrayVec;
use gcra_policy::sharing::{Sharing, WithoutStore, counted, lent, most_carried_over};
use gcra_policy::{Limit, LimitPlace, MAX_LIMITS, Policy, id_since};
use gcra_store::{Bucket, Names};
use gcra_table::{KeyHash, LeaseKey, LeaseNumbers, Leases, Nanos, Quota, Table};
use gcra_text::duration::nanoseconds;
use spop_agent::Message;

use crate::active_policies::{ActivePolicies, ActivePolicy};
use crate::earlier_policies::LimitedClient;
use crate::lease_client::LeaseClient;
use crate::lease_client::agenda::LeaseTarget;
use crate::limit_bucket::{LimitBucket, own_key_bytes};
use crate::message_key::key_bytes;
use crate::question::Question;

/// Another host may have missed the store that much earlier, and use its share by now.
const OPEN_IS_OVER_EARLIER: Nanos = Nanos::from_millis(1_500);

/// The most buckets from before changes that are looked for.
const MOST_FORMER: usize = 16;

/// The values that a decision about a message under shared limits needs.
#[derive(Clone, Copy)]
pub struct SharedQuestion<'p, 't, 'm> {
    pub lease_client: &'t LeaseClient,
    pub leases: &'t Leases,
    pub table: &'t Table,
    pub in_force: &'p ActivePolicies,
    pub sharing: Sharing,
    pub question: Question,
    pub message: &'m Message<'m>,
}

/// A limit that a message has to satisfy, and what it counts by.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'p> {
    pub(crate) limit: &'p Limit,
    pub(crate) place: LimitPlace,
    /// The numbers of the limit for this message.
    pub(crate) quota: Quota,
    /// The key in the table of this machine.
    pub(crate) local: KeyHash,
    pub(crate) key: LeaseKey,
}

impl<'p> SharedQuestion<'p, '_, '_> {
    pub(crate) fn row(&self) -> &'p ActivePolicy {
        self.in_force.row(self.question.policy)
    }

    pub(crate) fn policy(&self) -> &'p Policy {
        &self.row().policy
    }

    /// The limits with the keys that they count by, in an order that is the same on all hosts.
    pub(crate) fn claims(&self, limits: &'p [Limit]) -> ArrayVec<Claim<'p>, MAX_LIMITS> {
        let claim = |(place, limit)| self.claim(place, limit);
        let mut claims: ArrayVec<_, MAX_LIMITS> =
            (0..).zip(limits).take(MAX_LIMITS).map(claim).collect();
        claims.sort_by_key(|claim| claim.limit.id);
        claims
    }

    pub(super) fn claim(&self, place: u32, limit: &'p Limit) -> Claim<'p> {
        let bucket = LimitBucket::of(self.table, limit, self.question.key, Some(self.message));
        let LimitBucket { key: local, quota } = bucket;
        let place = self.question.place(place);
        Claim { limit, place, quota, local, key: bucket.lease_key(limit) }
    }

    /// The facts about a key that the lease client needs.
    pub(super) fn target(&self, claim: Claim<'_>) -> Option<LeaseTarget> {
        self.target_at(claim, self.table.wall_reading().second())
    }

    /// The same in the windows of this second after 1970.
    pub(crate) fn target_at(&self, claim: Claim<'_>, second: i64) -> Option<LeaseTarget> {
        let Claim { limit, quota, key, .. } = claim;
        let Self { table, in_force, question, message, .. } = *self;
        let names = &self.lease_client.names;
        let client = SharedClient { in_force, table, question, message };
        let bucket = client.bucket(names, limit, quota, second)?;
        let shares_after = match self.sharing.without_store {
            _ if self.sharing.at_once => None,
            WithoutStore::Share => Some(Nanos::ZERO),
            WithoutStore::Closed => None,
            WithoutStore::Open { for_ } => {
                Some(Nanos(nanoseconds(for_)).saturating_sub(OPEN_IS_OVER_EARLIER))
            }
        };
        let reset_at = self.policy().reset_at;
        Some(LeaseTarget { key, bucket, shares_after, reset_at })
    }

    /// The client of a claim, for whom former buckets are looked for.
    pub(crate) fn asked<'a>(&'a self, claim: Claim<'a>) -> LimitedClient<'a, 'a> {
        let Claim { limit, quota, local, .. } = claim;
        let current = LimitBucket { key: local, quota };
        let (Self { table, message, .. }, policy) = (*self, self.policy());
        LimitedClient { table, policy, limit, current, message }
    }

    /// The facts that the lease client needs about the buckets that the client of a claim had
    /// before a change.
    pub(crate) fn former_targets(
        &self,
        claim: Claim<'_>,
        second: i64,
    ) -> ArrayVec<LeaseTarget, MOST_FORMER> {
        let buckets = self.row().changes.buckets(self.asked(claim));
        let target = self.target_at(claim, second).filter(|_| !buckets.is_empty());
        let Some(LeaseTarget { shares_after, reset_at, .. }) = target else {
            return ArrayVec::new();
        };
        let (limit, names) = (claim.limit, &self.lease_client.names);
        let bytes = record_key(self.policy(), limit, self.message);
        let former = |LimitBucket { key, quota }: LimitBucket| {
            let lent = lent(quota).ok()?;
            let key = LeaseKey::new(key, LeaseNumbers::new(&lent.numbers()));
            let bucket = names.bucket(limit.record_name.clone(), &bytes, lent);
            Some(LeaseTarget { key, bucket, shares_after, reset_at })
        };
        buckets.into_iter().filter_map(former).take(MOST_FORMER).collect()
    }
}

/// The client of a message under limits that machines share.
#[derive(Clone, Copy)]
pub struct SharedClient<'a, 'm> {
    pub in_force: &'a ActivePolicies,
    pub table: &'a Table,
    pub question: Question,
    pub message: &'a Message<'m>,
}

impl SharedClient<'_, '_> {
    /// Its bucket in the store under a limit that has these numbers, `second` seconds after 1970,
    /// with its debt from before a change. `None` if the store cannot compute the limit, which the
    /// check of the configuration refuses.
    pub fn bucket(
        &self,
        names: &Names,
        limit: &Limit,
        quota: Quota,
        second: i64,
    ) -> Option<Bucket> {
        let Self { in_force, table, question, message } = *self;
        let row = in_force.row(question.policy);
        let (policy, key) = (&*row.policy, question.key);
        let mut bucket = bucket_of(names, policy, limit, quota, message, second)?;
        if limit.fixed().is_none() {
            return Some(bucket);
        }
        let current = LimitBucket { quota, ..LimitBucket::of(table, limit, key, Some(message)) };
        let asked = LimitedClient { table, policy, limit, current, message };
        let ago = table.now().saturating_since(row.changes.since(asked));
        if let Some(at) = Instant::now().checked_sub(ago.into()) {
            let most = most_carried_over(quota, bucket.limit(), policy.settle().is_some());
            bucket = bucket.with_change(at, most);
        }
        Some(bucket)
    }
}

/// The bucket in the store of a message's key under a limit of the policy that has these numbers,
/// `second` seconds after 1970. `None` if the store cannot compute the limit.
pub fn bucket_of(
    names: &Names,
    policy: &Policy,
    limit: &Limit,
    quota: Quota,
    message: &Message<'_>,
    second: i64,
) -> Option<Bucket> {
    let limit_in_store = match limit.calendar() {
        None => lent(quota),
        Some(calendar) => counted(quota, calendar.bounds_at(second)),
    };
    let key = record_key(policy, limit, message);
    Some(names.bucket(limit.record_name.clone(), &key, limit_in_store.ok()?))
}

/// The bytes of a message's key under a limit of the policy: behind the limit's id, or with the
/// args' names if the limit has its own key. After a reset of the policy it is another id, which
/// also stands before a key of its own.
fn record_key(policy: &Policy, limit: &Limit, message: &Message<'_>) -> Vec<u8> {
    let id = id_since(limit.id, policy.reset_at).to_le_bytes();
    match &limit.key {
        None => [&id[..], &key_bytes(policy, message)].concat(),
        Some(parts) if policy.reset_at == 0 => own_key_bytes(parts, message),
        Some(parts) => [&id[..], &own_key_bytes(parts, message)].concat(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use gcra_policy::file::document;
    use gcra_policy::key::NamedValue;

    use super::*;
    use crate::written_message::WrittenMessage;

    #[test]
    fn each_reset_of_a_policy_has_records_of_its_own() {
        let text = "[policy.api]\nlimits = [\"2/d\", { rate = \"9/d\", key = [\"path\"] }]\n\
                    key = [\"ip\"]\n";
        let policy = document::parse(Path::new("f"), text).unwrap().list.remove(0);
        let named = |(name, value): (&str, &str)| NamedValue {
            name: name.to_owned(),
            value: value.parse().unwrap(),
        };
        let args = [("ip", "192.0.2.1"), ("path", "/")].map(named);
        let message = WrittenMessage::new(b"api", &args).unwrap();
        let keys = |reset_at| {
            let policy = Policy { reset_at, ..Policy::clone(&policy) };
            let limits = policy.rule.limits().iter();
            let key = |limit| record_key(&policy, limit, &message.message().unwrap());
            limits.map(key).collect::<Vec<_>>()
        };
        let all: BTreeSet<_> = [0, 1, 2].into_iter().flat_map(keys).collect();
        assert_eq!(all.len(), 6);
    }
}

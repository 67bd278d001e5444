//! The claims of a message on the limits that this host shares with others: each limit with the
//! key that it counts by, and its records in the store.

use std::iter;
use std::time::Instant;

use arrayvec::ArrayVec;
use gcra_policy::sharing::{Sharing, WithoutStore, counted, lent, most_carried_over};
use gcra_policy::{Limit, LimitPlace, MAX_LIMITS, Policy};
use gcra_store::{Bucket, Names};
use gcra_table::{KeyHash, LeaseKey, LeaseNumbers, Leases, Nanos, Quota, Table};
use gcra_text::duration::nanoseconds;
use spop_agent::Message;

use crate::borrower::Borrower;
use crate::borrower::due::Loan;
use crate::earlier_policies::{FormerBucket, LimitedClient};
use crate::limit_bucket::{LimitBucket, own_key_bytes};
use crate::message_key::key_bytes;
use crate::policies_in_force::InForce;
use crate::question::Question;

/// Another host may have missed the store that much earlier, and use its share by now.
const OPEN_IS_OVER_EARLIER: Nanos = Nanos::from_millis(1_500);

/// The most buckets from before changes that are looked for.
const MOST_FORMER: usize = 16;

/// The values that a decision about a message under shared limits needs.
#[derive(Clone, Copy)]
pub struct SharedQuestion<'p, 't, 'm> {
    pub borrower: &'t Borrower,
    pub leases: &'t Leases,
    pub table: &'t Table,
    pub in_force: &'p InForce,
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
    pub(crate) fn policy(&self) -> &'p Policy {
        &self.in_force.policies.list[self.question.policy]
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

    /// The facts about a key that the borrower needs.
    pub(super) fn loan(&self, claim: Claim<'_>) -> Option<Loan> {
        self.loan_at(claim, self.table.wall_reading().second())
    }

    /// The same in the windows of this second after 1970.
    pub(crate) fn loan_at(&self, claim: Claim<'_>, second: i64) -> Option<Loan> {
        let Claim { limit, quota, key, .. } = claim;
        let Self { table, in_force, question, message, .. } = *self;
        let names = &self.borrower.names;
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
        Some(Loan { key, bucket, quota, shares_after })
    }

    /// The client of a claim, for whom former buckets are looked for.
    pub(crate) fn asked<'a>(&'a self, claim: Claim<'a>) -> LimitedClient<'a, 'a> {
        let Claim { limit, quota, local, .. } = claim;
        let current = LimitBucket { key: local, quota };
        let Self { table, question, message, .. } = *self;
        LimitedClient { table, rule: question.rule, limit, current, message }
    }

    /// The facts that the borrower needs about the buckets that the client of a claim had before a
    /// change.
    pub(crate) fn former_loans(
        &self,
        claim: Claim<'_>,
        second: i64,
    ) -> ArrayVec<Loan, MOST_FORMER> {
        let Self { in_force, question, message, .. } = *self;
        let (Claim { limit, local, .. }, asked) = (claim, self.asked(claim));
        let buckets = in_force.earlier.buckets(question.policy, asked);
        let loan = self.loan_at(claim, second).filter(|_| !buckets.is_empty());
        let Some(Loan { shares_after, .. }) = loan else { return ArrayVec::new() };
        let own = (local, record_key(self.policy(), limit, message));
        let former = in_force.earlier.limits(question.policy, asked);
        let former = former.map(|(old, limit, key)| (key, record_key(old, limit, message)));
        let keys: Vec<_> = iter::once(own).chain(former).collect();
        let former = |FormerBucket { key, quota, .. }: FormerBucket| {
            let (_, bytes) = keys.iter().find(|(known, _)| *known == key)?;
            let lent = lent(quota).ok()?;
            let key = LeaseKey::new(key, LeaseNumbers::new(&lent.numbers()));
            let bucket = self.borrower.names.bucket(limit.record_name.clone(), bytes, lent);
            Some(Loan { key, bucket, quota, shares_after })
        };
        buckets.into_iter().filter_map(former).take(MOST_FORMER).collect()
    }
}

/// The client of a message under limits that machines share.
#[derive(Clone, Copy)]
pub struct SharedClient<'a, 'm> {
    pub in_force: &'a InForce,
    pub table: &'a Table,
    pub question: Question,
    pub message: &'a Message<'m>,
}

impl SharedClient<'_, '_> {
    /// Its bucket in the store under a limit that has these numbers, `second` seconds after 1970,
    /// with what it owes since before a change. `None` if the store cannot compute the limit,
    /// which the check of the configuration refuses.
    pub fn bucket(
        &self,
        names: &Names,
        limit: &Limit,
        quota: Quota,
        second: i64,
    ) -> Option<Bucket> {
        let Self { in_force, table, question, message } = *self;
        let Question { policy: index, rule, key, .. } = question;
        let (policy, earlier) = (&in_force.policies.list[index], &in_force.earlier);
        let mut bucket = bucket_of(names, policy, limit, quota, message, second)?;
        if limit.fixed().is_none() {
            return Some(bucket);
        }
        let current = LimitBucket { quota, ..LimitBucket::of(table, limit, key, Some(message)) };
        let asked = LimitedClient { table, rule, limit, current, message };
        let ago = earlier.changed(index, asked).map(|at| table.now().saturating_since(at));
        if let Some(at) = ago.and_then(|ago| Instant::now().checked_sub(ago.into())) {
            let most = most_carried_over(quota, bucket.limit(), policy.settle().is_some());
            bucket = bucket.with_change(at, most);
        }
        for (old, limit, _) in earlier.limits(index, asked) {
            if let Some(before) = bucket_of(names, old, limit, limit.quota(None), message, second)
            {
                bucket = bucket.moved_from(&before);
            }
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

/// The bytes of a message's key under a limit of the policy.
fn record_key(policy: &Policy, limit: &Limit, message: &Message<'_>) -> Vec<u8> {
    match &limit.key {
        None => key_bytes(policy, message),
        Some(parts) => own_key_bytes(parts, message),
    }
}

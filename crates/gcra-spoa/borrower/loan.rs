//! [`Loan`]: what the store has to be asked about a key.

use gcra_lease::Limit;
use gcra_store::Bucket;
use gcra_table::{LeaseKey, Quota};

/// A key under a shared limit.
#[derive(Clone, Debug)]
pub(crate) struct Loan {
    pub(crate) key: LeaseKey,
    /// The limit as the store computes it.
    pub(crate) limit: Limit,
    /// Its record in the store.
    pub(crate) bucket: Bucket,
    /// Its quota.
    pub(crate) quota: Quota,
    /// Whether hosts may use shares of the limit while the store is away.
    pub(crate) has_shares: bool,
}

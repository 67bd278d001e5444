//! [`Loan`]: what the store has to be asked about a key.

use gcra_lease::Limit;
use gcra_store::Bucket;
use gcra_table::{LeaseKey, Nanos, Quota};

/// A key under a shared limit.
#[derive(Clone, Debug)]
pub struct Loan {
    pub key: LeaseKey,
    /// The limit as the store computes it.
    pub limit: Limit,
    /// Its record in the store.
    pub bucket: Bucket,
    pub quota: Quota,
    /// Hosts may use shares of the limit in an outage that takes as long as this. `None`: they
    /// never do.
    pub(crate) shares_after: Option<Nanos>,
}

//! [`Loan`]: what the store has to be asked about a key.

use gcra_store::Bucket;
use gcra_table::{LeaseKey, Nanos, Quota};

/// A key under a shared limit.
#[derive(Clone, Debug)]
pub struct Loan {
    pub key: LeaseKey,
    /// Its record in the store, with the limit as the store computes it.
    pub bucket: Bucket,
    pub quota: Quota,
    /// Hosts may use shares of the limit in an outage that takes as long as this. `None`: they
    /// never do.
    pub(crate) shares_after: Option<Nanos>,
}

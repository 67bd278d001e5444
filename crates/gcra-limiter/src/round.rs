//! [`Round`]: the requests that are answered together, by one reading of the clock.

// ADR 11: The handler may prepare a batch.
// ADR 20: A bucket is opened at a fresh reading of the clock.

use std::sync::Arc;

use arc_swap::Guard;
use gcra_table::{Leases, Reading, Table};

use crate::active_policies::ActivePolicies;
use crate::audit_lines::Lines;
use crate::stats::Lane;

/// The values that are read once for all requests of a round.
pub struct Round {
    pub(crate) table: Guard<Arc<Table>>,
    pub(crate) in_force: Guard<Arc<ActivePolicies>>,
    pub(crate) now: Reading,
    pub(crate) lane: Lane,
    /// In a box, because a round without it must stay small.
    pub(crate) audit: Option<Box<Lines>>,
    /// Whether a request of the round has shown its shape.
    pub(crate) has_learned: bool,
    /// The leases of this host, if there is a store.
    pub(crate) leases: Option<Guard<Arc<Leases>>>,
}

//! The file of leases.

/// Where in the header the fields that change lie.
pub(crate) const LEASES_SHARED_AT: usize = 1024;

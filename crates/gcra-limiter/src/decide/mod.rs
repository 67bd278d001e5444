//! From a question to a verdict: what is charged where, and what waits for the store.

// ADR 14: Several limits are looked at before one is charged.
// ADR 35: Every message takes one path to its verdict.

pub(crate) mod charges_under_way;
pub mod claim;
pub(crate) mod direct_charge;
pub mod in_process;
pub(crate) mod lease_spender;
pub mod local;
pub(crate) mod overdue;
pub(crate) mod path;
pub(crate) mod request;
pub(crate) mod settle;
pub(crate) mod shared_progress;
pub mod without_store;

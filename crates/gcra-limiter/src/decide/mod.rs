//! From a question to a verdict: what is charged where, and what waits for the store.

// ADR 14: Several limits are looked at before one is charged.
// ADR 35: Every message takes one path to its verdict.

pub(crate) mod at_once;
pub(crate) mod attempt;
pub(crate) mod charges;
pub mod claim;
pub mod in_process;
pub(crate) mod lent;
pub mod local;
pub(crate) mod overdue;
pub(crate) mod plain;
pub(crate) mod request;
pub(crate) mod settle;
pub mod without_store;

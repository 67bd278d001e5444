//! From a question to a verdict: what is charged where, and what waits for the store.

pub(crate) mod at_once;
pub(crate) mod attempt;
pub(crate) mod charges;
pub mod claim;
pub(crate) mod lent;
pub mod local;
pub(crate) mod overdue;
pub(crate) mod request;
pub(crate) mod settle;
pub mod without_store;

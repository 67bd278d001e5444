//! From a question to a verdict: what is charged where, and what waits for the store.

pub mod at_once;
pub mod lent;
pub mod local;
pub mod request;
pub mod settle;

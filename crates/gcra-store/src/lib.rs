//! The store's end of limits that several machines share: leases in Valkey or Redis.
//!
//! The protocol is that of the crate [`gcra_lease`]. This crate sends its asks to a store and
//! brings the replies back. The host keeps its `Holding`s wherever it likes.

mod bucket;
mod config;
mod connection;
mod fault;
mod finder;
pub mod script;
mod store;
mod task;

pub use bucket::{Bucket, Names};
pub use config::{Address, Config, Password, Url, UrlError};
pub use fault::Fault;
pub use store::{Answer, Away, Counters, Health, Line, Outcome, ServerHealth, Store};

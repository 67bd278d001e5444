//! The client of a store, and the scripts that the store runs.

// ADR 38: The redis crate carries bytes, and the asks are our own.

mod advice;
mod bounded;
mod bucket;
mod check;
mod clocks;
mod connection;
mod fault;
mod finder;
mod lines;
mod message;
mod orders;
mod password;
pub mod script;
mod sentinels;
mod shared;
mod standing;
mod store;
mod task;

pub use advice::PERMISSIONS;
pub use bucket::{Bucket, Names};
pub use check::{Finding, Kind, check};
pub use fault::Fault;
pub use message::{AskAnswer, AskOutcome, NotCharged};
pub use orders::{
    LONGEST_WORDS, MOST_SHARED_ENDS, MOST_SHARED_ORDERS, NewOrder, ORDERS_SOURCE, OrderExchange,
    OrderId, SharedOrder,
};
pub use shared::{FOUND_WITHIN, Health, ServerHealth, StoreCounters};
pub use standing::Standing;
pub use store::{Asker, Away, Charging, Line, Store};

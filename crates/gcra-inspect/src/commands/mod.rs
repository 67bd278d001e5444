//! The commands that look at tables, agents, stores and files: one module each, with its flags.

pub mod audit;
pub mod check;
pub mod explain;
pub mod get;
pub mod name;
pub mod order;
pub mod reload;
pub mod reset;
pub mod store;
pub mod table;

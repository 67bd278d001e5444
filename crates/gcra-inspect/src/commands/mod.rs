//! The commands that look at tables, agents, stores and files: one module each, with its flags.

pub mod audit;
pub mod check;
pub mod exempt;
pub mod explain;
pub mod get;
pub mod name;
pub mod reload;
pub mod reset;
pub mod store;
pub mod table;

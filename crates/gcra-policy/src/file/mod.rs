//! The configuration file: from text to policies, with all mistakes at once.

pub mod bandwidth;
pub mod document;
pub mod key;
pub mod limits;
pub mod max_delay;
pub mod overrides;
pub mod penalty;
pub mod policy;
pub mod reader;
pub mod secrets;
pub mod settings;
pub mod settle;
pub mod sharing;
pub mod sources;
pub mod store;
pub mod syntax;
#[cfg(test)]
mod tests;

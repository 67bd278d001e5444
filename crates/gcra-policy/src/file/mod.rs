//! The configuration file: from text to policies, with all mistakes at once.

pub(crate) mod bandwidth;
pub mod document;
pub mod key;
pub(crate) mod limits;
pub(crate) mod max_delay;
pub(crate) mod overrides;
pub(crate) mod penalty;
pub(crate) mod policy;
pub(crate) mod reader;
pub mod secrets;
pub(crate) mod settings;
pub(crate) mod settle;
pub(crate) mod sharing;
pub(crate) mod sources;
pub(crate) mod store;
pub(crate) mod syntax;
#[cfg(test)]
mod tests;
pub(crate) mod unasked;

//! The configuration file: from text to policies, with all mistakes at once.

// ADR 33: The configuration reader reports all mistakes at once.

pub(crate) mod answer_size;
pub(crate) mod answers;
pub(crate) mod bandwidth;
pub mod document;
pub(crate) mod entries;
pub(crate) mod key;
pub(crate) mod limits;
pub(crate) mod max_delay;
pub mod names;
pub(crate) mod overrides;
pub(crate) mod penalty;
pub(crate) mod policy;
pub(crate) mod precedence;
pub(crate) mod reader;
pub mod secrets;
pub mod settings;
pub(crate) mod settle;
pub(crate) mod sharing;
pub(crate) mod sources;
pub(crate) mod store;
pub(crate) mod syntax;
#[cfg(test)]
mod tests;

pub use sources::read_text_within;

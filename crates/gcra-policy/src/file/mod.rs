//! The configuration file: from text to policies, with all mistakes at once.

pub mod document;
pub mod limits;
pub mod max_delay;
pub mod overrides;
pub mod penalty;
pub mod reader;
pub mod secrets;
pub mod sources;
pub mod syntax;
#[cfg(test)]
mod tests;

//! Replays the requests of HAProxy logs under limits.

mod addresses;
pub mod args;
pub mod command;
mod distinct;
mod engine;
mod findings;
mod html;
mod log_answers;
mod mapping;
mod page;
mod progress;
mod report;
mod side;
mod suggest;
mod suggesting;
mod tally;
#[cfg(test)]
mod tests;
mod timeline;
mod wanted;
mod words;

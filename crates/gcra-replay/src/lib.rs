//! What limits would have done to the requests of HAProxy logs.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

pub mod args;
pub mod command;
pub mod distinct;
pub mod engine;
pub mod findings;
pub mod html;
pub mod log_answers;
pub mod mapping;
pub mod progress;
pub mod report;
pub mod side;
pub mod suggest;
pub mod suggesting;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod timeline;
pub mod words;

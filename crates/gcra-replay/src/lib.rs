//! What limits would have done to the requests of HAProxy logs.

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
mod words;

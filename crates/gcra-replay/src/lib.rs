//! Replays the requests of HAProxy logs under limits, and says whom agents have blocked.

mod addresses;
pub mod args;
pub mod blocked;
pub mod command;
mod describe;
mod distinct;
mod engine;
mod findings;
mod html;
mod log_answers;
pub mod log_line;
mod logs;
mod mapping;
mod page;
mod progress;
mod replayed_config;
mod report;
mod said;
mod suggest;
mod suggesting;
mod tally;
#[cfg(test)]
mod tests;
mod timeline;
mod wanted;

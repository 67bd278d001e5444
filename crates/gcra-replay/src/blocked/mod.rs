//! `gcra-spoa blocked`: who was blocked, as HAProxy's logs say.

pub mod args;
pub mod command;
mod describe;
mod findings;
mod period;
mod report;
mod tally;
mod who;

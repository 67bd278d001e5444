//! HAProxy's configuration that fits the policies, and the message in which HAProxy reports.

pub(crate) mod args;
pub mod config;
mod in_process;
pub mod report;
mod shipped;

//! Status, metrics, the live page and top of gcra-spoa.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

pub mod actions;
pub mod agent_view;
pub mod agents;
pub mod agreement;
pub mod client_waits;
pub mod family;
pub mod log_lines;
pub mod metrics;
pub mod page;
#[cfg(test)]
mod sample;
pub mod server;
pub mod status;
pub mod status_sum;
pub mod store_status;
pub mod testing;
pub mod token;
pub mod top;
pub mod wrong_tokens;

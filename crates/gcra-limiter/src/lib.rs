//! From a message to its answer: the limiter of gcra-spoa.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

pub mod active_policies;
pub mod answer;
pub mod audit_lines;
pub mod client_name;
pub mod counting;
pub mod decide;
pub mod earlier_policies;
pub mod haproxy_undecided;
pub mod heaviest;
pub mod history;
pub(crate) mod known_shapes;
pub mod lease_client;
pub mod limit_bucket;
pub mod limiter;
pub mod message_key;
mod minute;
pub mod mistaken_args;
pub mod question;
pub mod reservations;
pub mod round;
pub mod seldom_counts;
pub(crate) mod settlement;
pub(crate) mod shaped;
pub mod stats;
pub mod testing;
pub mod undecided;
pub mod unsettled;
pub mod verdict;
pub mod waiting_request;
pub mod written_message;

//! The output of the commands of gcra-spoa about tables, clients and agents.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

pub mod agent_client;
pub mod client_buckets;
pub mod commands;
pub mod explanation;
mod explanation_words;
pub mod flags;
pub mod former_orders;
mod haproxy_folder;
pub mod inspected_table;
pub mod key_readings;
pub mod lease_state;
pub mod machines;
pub mod order_state;
pub mod orders;
pub mod outage_words;
pub mod policies_file;
pub mod process_list;
pub mod process_state;
pub mod store_orders;
pub mod store_reader;
mod store_resets;

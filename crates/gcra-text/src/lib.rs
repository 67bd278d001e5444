//! The text that the programs of gcra-spoa read and write: durations, counts, addresses, tables.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

pub mod columns;
pub mod config_note;
pub mod count;
pub mod duration;
pub mod embedded;
pub mod network;
pub mod output;
pub mod sentence;
pub mod version;
pub mod visible;
mod word_enum;

//! The store's end.
mod bucket;
pub mod script;
pub use bucket::{Bucket, Names};

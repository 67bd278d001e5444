//! What the tests share with those of the other crates.
#[path = "../../../../tests/support/skip.rs"]
mod skip;
#[path = "../../../../tests/support/valkey.rs"]
mod valkey;

pub(crate) use skip::needs;
pub use skip::skip;
pub use valkey::*;

//! The parts that these tests share with those of the other crates.
#[path = "../../../../tests/support/server_groups.rs"]
mod server_groups;
#[path = "../../../../tests/support/skip.rs"]
mod skip;
#[path = "../../../../tests/support/valkey.rs"]
#[allow(dead_code, reason = "tests of the agent use a part of it")]
mod valkey;

pub use server_groups::*;
pub(crate) use skip::needs;
pub use skip::skip;
pub use valkey::*;

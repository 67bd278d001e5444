//! Policies of gcra-spoa: their values, their file and their words.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

mod answer_size;
pub mod answers;
pub mod bandwidth;
pub mod calendar;
mod digest;
pub mod file;
pub mod flags;
mod haproxy_args;
mod haproxy_asks_less;
mod haproxy_config;
pub mod haproxy_report;
pub mod key;
pub mod key_bytes;
pub mod key_parts;
mod limit;
pub mod limit_from_arg;
pub mod origin;
mod overrides;
mod policies;
pub mod policy;
mod rate_guess;
pub mod rate_words;
mod reserve;
pub mod settle;
pub mod sharing;
pub mod store;
pub mod texts;
pub mod unasked;
pub mod watch;
pub mod words;

pub use bandwidth::Bandwidth;
pub use file::secrets;
pub use key_parts::{GroupedValue, KeyParts};
pub use limit::{Limit, LimitIdentity, LimitNumbers, MAX_LIMITS, Rule};
pub use overrides::{OverrideKey, Overrides};
pub use policies::Policies;
pub use policy::{LimitPlace, Penalty, Policy, Price, RuleAt, When, policy_id};
pub use settle::Settle;
pub use sharing::{Sharing, WithoutStore};
pub use unasked::{Reserve, Unasked};

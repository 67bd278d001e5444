//! Policies of gcra-spoa: their values, their file and their words.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

pub mod answer_size;
pub mod answers;
pub mod bandwidth;
pub mod calendar;
pub mod digest;
pub mod file;
pub mod flags;
pub mod haproxy_config;
pub mod key;
pub mod key_parts;
pub mod limit_from_arg;
pub mod override_key;
pub mod policy;
pub mod rate_flags;
pub mod rate_guess;
pub mod settle;
pub mod sharing;
pub mod store;
pub mod watch;
pub mod words;

pub use file::secrets;
pub use policy::{
    Bandwidth, KeyParts, Limit, LimitIdentity, LimitPlace, MAX_LIMITS, OverrideKey, Overrides,
    Part, Penalty, Policies, Policy, Rule, RuleAt, Settle, Sharing, When, WithoutStore, policy_id,
};

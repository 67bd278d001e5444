//! Policies of gcra-spoa: their values, their file and their words.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "used by this program alone; comments stand where a name does not say enough"
)]

pub mod answers;
pub mod bandwidth;
pub mod begin_anew;
pub mod calendar;
mod client_names;
pub mod describe;
mod digest;
pub mod file;
pub mod flags;
pub mod haproxy;
pub mod key;
pub mod key_bytes;
pub mod key_parts;
mod limit;
pub mod limit_from_arg;
pub mod orders;
mod overrides;
mod policies;
pub mod policy;
pub mod policy_text;
mod rate_guess;
pub mod rate_words;
pub mod settle;
pub mod sharing;
pub mod store;
pub mod table_error;
pub mod texts;
pub mod watch;

pub use bandwidth::Bandwidth;
pub use client_names::NameSalt;
pub use client_names::known::KnownClients;
pub use file::secrets;
pub use key_parts::{GroupedValue, KeyParts};
pub use limit::{Limit, LimitIdentity, LimitNumbers, MAX_LIMITS, Rule, SaltInForce, id_since};
pub use orders::ClientAddress;
pub use overrides::{OverrideKey, Overrides};
pub use policies::{ObserveError, Policies};
pub use policy::{LimitPlace, Penalty, Policy, Price, RuleAt, When, policy_id};
pub use settle::Settle;
pub use sharing::{Sharing, WithoutStore};

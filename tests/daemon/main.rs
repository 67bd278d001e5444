//! The tests of the daemon's real program, in one program: they are linked once, and while some
//! wait, others run. `cargo test --test daemon policies::` runs those of one file. Beside it are
//! only tests that need a process, or a part of the machine, of their own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    missing_docs,
    reason = "tests"
)]

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod agents;
mod at_once;
mod audit;
mod blocked;
mod changed_store;
mod changes;
mod checked;
mod end_to_end;
mod examples;
mod explain;
mod frames;
mod haproxy_undecided;
mod kept_policies;
mod live;
mod monitoring;
mod names;
mod oracle;
mod policies;
mod reload;
mod replay;
mod resets;
mod settle;
mod shared_limits;
mod shared_orders;
mod shared_policies;
mod sockets;
mod store;
mod table_commands;
mod typed;

//! The limiter of gcra-spoa inside HAProxy: a module that HAProxy's Lua loads. `gcra.lua` is the
//! part of it that HAProxy sees.
//!
//! While HAProxy reads its configuration, `prepare` of `module.rs` reads the policies and refuses
//! those that need an agent. That is before HAProxy changes its root and its user, and, for some
//! versions, before it forks. So nothing is opened then but the folder of the table. The table is
//! opened in the worker, by `tend`, which runs in a task of Lua once a second. Requests that come
//! before that get no decision.

// ADR 54: Asking less is gone: HAProxy decides in the same table.

#![cfg_attr(test, allow(dead_code, reason = "the functions that Lua calls"))]

mod asked_panics;
mod guarded;
mod log_lines;
#[cfg(not(test))]
mod lua;
mod module;
mod question;
mod results;
mod settings;
mod worker;

//! The border to HAProxy: what a client can try to get around a limit, and what honest clients send,
//! against the shipped files, real HAProxys, and an application that is lenient.
//!
//! A set-up ([`SetUp`]) is a shipped file, or any text of a `.cfg` and a `.conf`. Its rows are data:
//! a sentence, and requests with the statuses that they must get. Each row has an address and a
//! number of its own, so that rows do not share a bucket. All set-ups run with `$HAPROXY`; or, if
//! that is not set, with the installed HAProxy and with 3.4, if `tests/get-haproxy.sh` has fetched
//! it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod application;
mod keys;
mod request;
mod row;
mod set_up;
#[path = "../support/mod.rs"]
mod support;

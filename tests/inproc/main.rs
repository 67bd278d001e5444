//! The limiter inside HAProxy: real HAProxys that load the module, on tables that agents share.
//!
//! All tests run with `$HAPROXY`; or, if that is not set, with the installed HAProxy and with 3.4,
//! if `tests/get-haproxy.sh` has fetched it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod faults;
mod http2;
mod limits;
mod panics;
mod printed;
mod seen;
mod set_up;
mod starts;
#[path = "../support/mod.rs"]
mod support;

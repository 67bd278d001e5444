//! The script and the store on real servers: Valkey and Redis, fetched by `tests/get-valkey.sh`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

mod charges;
mod check;
mod cluster;
mod failing;
mod fake;
mod flooding;
mod host;
mod orders;
mod policed;
mod replicas;
mod same_as_the_model;
mod single;
mod standing;
mod support;

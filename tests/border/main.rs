//! The border to HAProxy: what a client can try to get around a limit, and what honest clients
//! send, against the shipped files, real HAProxys, and an application that is lenient.
//!
//! A set-up (`SetUp`) is a shipped file, or any text of a `.cfg` and a `.conf`. Its rows are data:
//! a sentence, and requests with the statuses that they must get. Each row has an address and a
//! number of its own, so that rows do not share a bucket. A set-up whose file has the rule that
//! denies what was not decided is tried with that rule, too, and then without an agent.
//!
//! All set-ups run with `$HAPROXY`; or, if that is not set, with the installed HAProxy and with
//! 3.4, if `tests/get-haproxy.sh` has fetched it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod addresses;
mod application;
mod common;
mod keys;
mod paths;
mod printed;
mod recipes;
mod request;
mod row;
mod set_up;
#[path = "../support/mod.rs"]
mod support;

use std::fs;

use support::{Client, Haproxy, haproxy_folder, needs, wait_until};

/// The files with the set-ups.
const SOURCES: [&str; 3] =
    [include_str!("addresses.rs"), include_str!("keys.rs"), include_str!("paths.rs")];

#[test]
fn every_shipped_file_is_a_set_up() {
    let mut missing = Vec::new();
    for entry in fs::read_dir(haproxy_folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let set_up = format!("SetUp::shipped(\"{name}\")");
        if name.ends_with(".cfg") && !SOURCES.iter().any(|source| source.contains(&set_up)) {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "without honest requests and attempts: {missing:?}");
}

#[test]
fn a_long_url_does_not_cut_the_decision_off_the_log() {
    for entry in fs::read_dir(haproxy_folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "cfg") {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("log stdout len 8192 "), "{}", path.display());
        }
    }
    needs!(support::haproxy());
    // There is no agent.
    let nobody = [("GCRA_AGENT1", "127.0.0.1:1"), ("GCRA_AGENT2", "127.0.0.1:1")];
    let haproxy = Haproxy::start_as_shipped("haproxy.cfg", &nobody);
    let url = format!("/{}", "x".repeat(4000));
    assert_eq!(Client::new(haproxy.frontend).get(&url).unwrap().status, 200);
    let mut said = None;
    wait_until("the request is logged", || {
        said = haproxy.process.lines().into_iter().find(|line| line.contains("GET /xxx"));
        said.is_some()
    });
    let said = said.unwrap();
    assert!(said.contains(" blocked=- ") && said.contains(" err="), "{said}");
}

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
use std::process::Command;

use support::{
    Agent, Client, Haproxy, agent_binary, directory, haproxy_folder, needs, wait_until,
};

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

/// No file says a wait to a client that an order blocks: there is no header, and not an empty one.
#[test]
fn a_client_that_an_order_blocks_is_not_told_to_come_back() {
    needs!(support::haproxy());
    for (name, policies, key) in [
        ("networks.cfg", Some("networks.toml"), "127.0.0.0/8"),
        ("policies.cfg", Some("gcra-spoa.toml"), "127.0.0.0/8"),
        ("bandwidth.cfg", Some("bandwidth.toml"), "127.0.0.0/8"),
        ("haproxy.cfg", None, "127.0.0.1"),
        ("api-key.cfg", None, "127.0.0.1"),
        ("behind-proxy.cfg", None, "127.0.0.1"),
        ("fail-closed.cfg", None, "127.0.0.1"),
        ("group.cfg", None, "127.0.0.1"),
        ("per-path.cfg", None, "127.0.0.1,/api"),
    ] {
        // It has a filter that older ones do not know.
        if name == "bandwidth.cfg" && support::haproxy_version() < (2, 7) {
            continue;
        }
        let folder = directory();
        let table = folder.path().join("table");
        let config = policies.map(|policies| haproxy_folder().join(policies));
        let flags = match &config {
            Some(config) => vec!["--config", config.to_str().unwrap()],
            None => vec!["--rate", "1000/s"],
        };
        let agent = Agent::start(&table, &flags);
        let agents = ["GCRA_AGENT1", "GCRA_AGENT2"].map(|name| (name, &*agent.address));
        let haproxy = Haproxy::start_as_shipped(name, &agents);
        haproxy.wait_for("gcra-agents", "agent1", "UP");
        let mut block = Command::new(agent_binary());
        block.args(["block", "--for", "1h", key, "--table"]).arg(&table);
        assert!(block.output().unwrap().status.success(), "{name}");
        wait_until(&format!("{name}: the agent follows"), || {
            agent.process.lines().iter().any(|line| line.contains(" is blocked for another "))
        });
        let get = || Client::new(haproxy.frontend).get("/api").unwrap();
        let mut response = get();
        // On a busy machine, a request may pass because there was no answer in time; or get 503,
        // by the file that denies it then.
        wait_until(&format!("{name}: a request has a decision"), || {
            let is_decided = ![200, 503].contains(&response.status);
            if !is_decided {
                response = get();
            }
            is_decided
        });
        assert_eq!(response.status, 429, "{name}");
        assert!(!response.head.contains("retry-after"), "{name}: {}", response.head);
    }
}

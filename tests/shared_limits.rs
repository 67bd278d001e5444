//! What operators see of limits that machines share through a store: in the metrics, the status,
//! the log, and in what commands say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::net::IpAddr;
use std::path::Path;

use serde_json::Value as Json;
use spop_codec::Value;
use support::spop::Spop;
use support::valkey::{Server, valkey};
use support::{Agent, admin, directory, needs, wait_until};

fn ip(text: &str) -> Value<'static> {
    Value::from(text.parse::<IpAddr>().unwrap())
}

fn store() -> Server {
    Server::start(&["--maxmemory-policy", "noeviction"])
}

/// Starts an agent that shares its limit of 10/h, and waits until it has reached the store.
fn agent(table: &Path, server: &Server, more: &[&str]) -> (Agent, String) {
    // A machine for tests may stand still for longer than a request should wait.
    let limit = ["--rate", "10/h", "--store", &server.url(), "--store-wait", "10s"];
    let (agent, address) = admin::start(table, &[&limit, more].concat());
    wait_until("the store is used", || status(&address)["store"]["up"] == true);
    (agent, address)
}

/// What the agent says about itself, now: the status of all agents can be half a second old.
fn status(address: &str) -> Json {
    serde_json::from_str(&admin::get(address, "/status?own").body).unwrap()
}

/// The value of a series in the metrics.
fn metric(address: &str, series: &str) -> f64 {
    let text = admin::get(address, "/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

#[test]
fn the_status_the_metrics_and_the_log_say_when_the_store_is_away() {
    needs!(valkey());
    let (directory, mut server) = (directory(), store());
    let (agent, address) = agent(&directory.path().join("table"), &server, &[]);
    let mut spop = Spop::connect(&agent.address);
    let allowed = spop.allowed(&[("ip", ip("192.0.2.1"))], 12);
    assert!((1..=10).contains(&allowed), "{allowed}");

    let status = status(&address);
    let store = &status["store"];
    assert_eq!((&store["up"], &store["away_seconds"]), (&true.into(), &Json::Null), "{store}");
    assert!(store["asks"].as_u64() > Some(0) && store["replies"] == store["asks"], "{store}");
    assert!(store["granted_cells"].as_u64() >= u64::try_from(allowed).ok(), "{store}");
    assert_eq!(store["leases"]["machines"], 1);
    assert_eq!(status["policies"][0]["shared"], "share");
    wait_until("the sum over the agents has it", || {
        admin::status(&address)["together"]["store"]["asks"] == store["asks"]
    });
    assert!(metric(&address, "gcra_store_up") > 0.0);
    assert!(metric(&address, "gcra_store_waited_total") > 0.0);
    assert!(metric(&address, "gcra_store_answer_seconds_total") > 0.0);
    let fallback = "gcra_store_fallback_total{policy=\"default\",verdict=\"blocked\"}";
    assert!(metric(&address, fallback) < 1.0);

    server.kill();
    wait_until("the store is away", || {
        // Only what is asked finds out.
        spop.is_blocked(&[("ip", ip("192.0.2.2"))]);
        self::status(&address)["store"]["up"] == false
    });
    // At this moment a full burst may be owed, so the share is nothing.
    assert!(spop.is_blocked(&[("ip", ip("192.0.2.3"))]));
    assert!(metric(&address, "gcra_store_up") < 1.0);
    assert!(metric(&address, "gcra_store_away_seconds_total") > 0.0);
    assert!(metric(&address, fallback) > 0.0);
    let store = &self::status(&address)["store"];
    assert!(store["away_seconds"].as_f64() > Some(0.0), "{store}");
    assert!(store["faults"][0].as_str().unwrap().contains("there is no connection"), "{store}");
    let has_line = |said: &str| {
        wait_until(said, || agent.process.lines().iter().any(|line| line.contains(said)));
    };
    has_line(
        "requests are decided without the store: policy 'default': each machine allows its share \
         of the limit; 1 machine was seen",
    );

    server.restart();
    has_line(" decided without the store, which was away for ");
    assert!(self::status(&address)["store"]["up"] == true);
}

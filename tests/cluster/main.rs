//! Three hosts share one limit through a real store. Each of them is an agent with a table file of
//! its own, and a HAProxy. All audit files together are held against one exact bucket, while the
//! store and the hosts fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod faults;
mod judge;
mod load;
#[path = "../support/mod.rs"]
mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use judge::{Limit, judge};
use load::{Load, Pattern};
use support::host::Host;
use support::valkey::{Server, valkey};
use support::{needs, wait_until};

const HOSTS: usize = 3;

/// The arguments of an agent that shares this limit.
fn shared(limit: Limit, store: &str) -> Vec<String> {
    [&limit.args()[..], &["--store".to_owned(), store.to_owned()]].concat()
}

fn start_hosts(limit: Limit, store: &str) -> Vec<Host> {
    (0..HOSTS).map(|_| Host::start(&shared(limit, store))).collect()
}

fn frontends(hosts: &[Host]) -> Vec<SocketAddr> {
    hosts.iter().map(Host::frontend).collect()
}

/// Waits until the agent uses the store: it says so, and gets replies.
fn wait_until_well(host: &Host) {
    let replies = || host.metric("gcra_store_replies_total").unwrap_or_default();
    let before = replies();
    wait_until("the agent uses the store again without help", || {
        host.metric("gcra_store_up") == Some(1.0) && replies() >= before + 3.0
    });
}

#[test]
fn one_limit_for_three_hosts_whatever_fails() {
    needs!(support::haproxy());
    needs!(valkey());
    let limit = Limit { per_second: 200, burst: 40 };
    // A server that writes each change to its disk before it answers loses nothing.
    let mut store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut hosts = start_hosts(limit, &store.url());
    let pattern =
        Pattern { source: Ipv4Addr::new(127, 0, 0, 1), per_second: 150, on_and_off: None };
    // Two connections to each host.
    let mut load = Load::start(&frontends(&hosts), &[pattern; 2]);
    hosts.iter().for_each(wait_until_well);
    load.allows_more(200, "all is well");

    store.kill();
    load.allows_more(100, "the store is away");
    store.restart();
    hosts.iter().for_each(wait_until_well);
    load.allows_more(200, "the store is back");

    store.freeze();
    thread::sleep(Duration::from_secs(1));
    store.thaw();
    hosts.iter().for_each(wait_until_well);
    load.allows_more(200, "the store does not hang any more");

    hosts[0].kill_agent();
    load.allows_more(100, "an agent is away");
    hosts[0].restart_agent();
    wait_until_well(&hosts[0]);

    hosts[1].kill_agent();
    hosts[1].lose_memory();
    hosts[1].restart_agent();
    wait_until_well(&hosts[1]);

    // Both at once: the agent begins without a store.
    store.kill();
    hosts[2].kill_agent();
    hosts[2].restart_agent();
    load.allows_more(50, "an agent has begun without the store");
    store.restart();
    hosts.iter().for_each(wait_until_well);
    load.allows_more(200, "all is well again");
    load.stop();

    let files: Vec<PathBuf> = hosts.iter().map(Host::audit).collect();
    let judgement = judge(&files, limit);
    println!("{judgement:?}");
    assert_eq!((judgement.too_many, judgement.worst), (0, 0), "{judgement:?}");
    assert!(judgement.percent() >= 90.0, "{judgement:?}");
    // Nothing was allowed that the files do not say, and many requests were too many.
    let answered = load.sum(|answers| &answers.allowed);
    assert!(answered <= judgement.allowed, "{answered} were answered: {judgement:?}");
    assert!(judgement.blocked > judgement.allowed / 2, "{judgement:?}");
    // The same decisions are too many for a smaller limit.
    let smaller = Limit { per_second: limit.per_second / 2, ..limit };
    assert!(judge(&files, smaller).too_many > 0);
}

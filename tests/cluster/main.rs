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
use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use judge::{Limit, allowed_in, exact_in, judge, until};
use load::{Load, Pattern};
use support::host::Host;
use support::proxy::Proxy;
use support::valkey::{Server, valkey};
use support::{needs, wait_until};

const HOSTS: usize = 3;

/// A store whose replies take longer than a request waits is not used, and those of a busy machine
/// take longer than a request should wait.
const WAIT: &str = "500ms";

/// The arguments of an agent that shares this limit, and what it does while the store is away.
fn shared(limit: Limit, store: &str, without_store: &str) -> Vec<String> {
    let words = ["--store", store, "--without-store", without_store];
    [&limit.args()[..], &words.map(ToOwned::to_owned)].concat()
}

fn start_hosts(limit: Limit, store: &str, without_store: &str) -> Vec<Host> {
    (0..HOSTS).map(|_| start_host(limit, store, without_store)).collect()
}

fn start_host(limit: Limit, store: &str, without_store: &str) -> Host {
    let args = shared(limit, store, without_store);
    Host::start_patient(&[&args[..], &["--store-wait".to_owned(), WAIT.to_owned()]].concat())
}

fn frontends(hosts: &[Host]) -> Vec<SocketAddr> {
    hosts.iter().map(Host::frontend).collect()
}

/// Waits until the agent uses the store: it says so, and gets replies.
fn wait_until_well(host: &Host) {
    let replies = || host.metric("gcra_store_replies_total").unwrap_or_default();
    let before = replies();
    wait_until("the agent uses the store again without help", || {
        host.metric("gcra_store_up") == Some(1.0) && replies() > before
    });
}

/// Waits until all hosts know of each other, so that they may use shares.
fn wait_until_counted(host: &Host) {
    wait_until("the agent knows how many machines there are", || {
        host.metric("gcra_lease_machines") == Some(HOSTS as f64)
    });
}

/// How many cells a host has allowed without the store's consent: because it was cut off, or
/// because a reply came too late, as on a busy machine.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
fn allowed_alone(host: &Host) -> u64 {
    let name = "gcra_store_fallback_total{policy=\"default\",verdict=\"allowed\"}";
    host.metric(name).expect("the agent has --admin") as u64
}

fn all_allowed_alone(hosts: &[Host]) -> u64 {
    hosts.iter().map(allowed_alone).sum()
}

/// Lets the clients ask for a while in which nothing fails, and longer while a busy machine lets
/// replies of the store come too late. Returns the parts of that time, by the clock of the audit
/// files.
fn calm(load: &Load) -> Vec<Range<u64>> {
    const MOST: usize = 20;
    const CELLS: u64 = 40;
    // The debt because of the fault before is over.
    load.allows_more(50, "all is well again");
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut is_good = false;
    while parts.len() < 4 || !is_good && parts.len() < MOST {
        let begin = now();
        load.allows_more(CELLS, "all is well");
        let end = now();
        is_good |= end - begin < 2 * CELLS * 1_000_000_000 / LIMIT.per_second;
        parts.push(begin..end);
    }
    parts
}

/// The clock of the audit files.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap()
}

/// So low that also the clients of a busy machine ask for much more.
const LIMIT: Limit = Limit { per_second: 50, burst: 20 };

const CLIENT: Pattern =
    Pattern { source: Ipv4Addr::new(127, 0, 0, 1), per_second: 150, on_and_off: None };

fn audits(hosts: &[Host]) -> Vec<PathBuf> {
    hosts.iter().map(Host::audit).collect()
}

/// Holds what all hosts have allowed against the limit.
fn assert_none_too_many(files: &[PathBuf]) {
    assert_at_most(files, 0);
}

/// The same, if hosts have allowed so many cells without the store.
fn assert_at_most(files: &[PathBuf], alone: u64) {
    let judgement = judge(files, LIMIT);
    println!("at most {alone}: {judgement:?}");
    assert!(judgement.worst <= alone, "at most {alone}: {judgement:?}");
    assert!(judgement.too_many == 0 || alone > 0, "{judgement:?}");
    // Otherwise this proves nothing: many requests were blocked, and the same decisions are too
    // many for a smaller limit.
    assert!(judgement.blocked > judgement.allowed / 2, "{judgement:?}");
    let smaller = Limit { per_second: LIMIT.per_second / 2, ..LIMIT };
    assert!(judge(files, smaller).too_many > 0);
}

/// In calm times the hosts allowed nearly what one bucket would, and the files have all of it. A
/// machine that is busy lets replies of the store come too late now and then, so half of it in a
/// part of each time is enough.
fn assert_not_too_few(files: &[PathBuf], load: &Load, calm: &[Vec<Range<u64>>]) {
    for parts in calm {
        let each = parts.iter().map(|times| {
            let (allowed, exact) = (allowed_in(files, times), exact_in(files, LIMIT, times));
            println!("{allowed} of {exact}");
            (allowed, exact)
        });
        let each: Vec<_> = each.collect();
        let enough = each.iter().any(|(allowed, exact)| 2 * allowed >= *exact);
        assert!(enough, "(allowed, of): {each:?} while nothing failed");
    }
    let (answered, allowed) = (load.sum(|answers| &answers.allowed), judge(files, LIMIT).allowed);
    assert!(answered <= allowed, "{answered} were answered, and {allowed} written down");
}

#[test]
fn one_limit_for_three_hosts_whatever_fails() {
    needs!(support::haproxy());
    needs!(valkey());
    // A server that writes each change to its disk before it answers loses nothing.
    let mut store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut hosts = start_hosts(LIMIT, &store.url(), "closed");
    // Two connections to each host.
    let mut load = Load::start(&frontends(&hosts), &[CLIENT; 2]);
    hosts.iter().for_each(wait_until_well);
    let before = calm(&load);

    store.kill();
    load.blocks_more(300, "the store is away");
    store.restart();
    hosts.iter().for_each(wait_until_well);
    load.allows_more(40, "the store is back");

    store.freeze();
    thread::sleep(Duration::from_secs(1));
    store.thaw();
    hosts.iter().for_each(wait_until_well);
    load.allows_more(40, "the store does not hang any more");

    hosts[0].kill_agent();
    load.allows_more(40, "an agent is away");
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
    load.blocks_more(100, "an agent has begun without the store");
    store.restart();
    hosts.iter().for_each(wait_until_well);
    let after = calm(&load);
    load.stop();
    let files = audits(&hosts);
    assert_none_too_many(&files);
    assert_not_too_few(&files, &load, &[before, after]);
}

/// The same where the store decides about each request: hosts that keep one queue.
#[test]
fn one_queue_for_three_hosts_whatever_fails() {
    needs!(support::haproxy());
    needs!(valkey());
    let mut store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let directory = support::directory();
    let file = directory.path().join("gcra-spoa.toml");
    let Limit { per_second, burst } = LIMIT;
    let text = format!(
        "[store]\nurl = \"{}\"\nwait = \"{WAIT}\"\n[policy.check]\nlimits = \"{per_second}/s \
         burst {burst}\"\nkey = [\"ip\"]\nmax_delay = \"400ms\"\nshared = true\n\
         without_store = \"closed\"\n",
        store.url()
    );
    std::fs::write(&file, text).unwrap();
    let args = ["--config".to_owned(), file.to_str().unwrap().to_owned()];
    let mut hosts: Vec<_> = (0..HOSTS).map(|_| Host::start_patient(&args)).collect();
    let mut load = Load::start(&frontends(&hosts), &[CLIENT; 2]);
    hosts.iter().for_each(wait_until_well);
    load.allows_more(100, "all is well");

    store.kill();
    load.blocks_more(300, "the store is away");
    store.restart();
    hosts.iter().for_each(wait_until_well);
    load.allows_more(40, "the store is back");

    store.freeze();
    thread::sleep(Duration::from_secs(1));
    store.thaw();
    hosts.iter().for_each(wait_until_well);
    load.allows_more(40, "the store does not hang any more");

    hosts[0].kill_agent();
    load.allows_more(40, "an agent is away");
    hosts[0].restart_agent();
    wait_until_well(&hosts[0]);

    hosts[1].kill_agent();
    hosts[1].lose_memory();
    hosts[1].restart_agent();
    wait_until_well(&hosts[1]);
    load.allows_more(100, "all is well again");
    load.stop();
    let files = audits(&hosts);
    assert_none_too_many(&files);
    let answered = load.sum(|answers| &answers.allowed);
    let allowed = judge(&files, LIMIT).allowed;
    assert!(answered <= allowed, "{answered} were answered, and {allowed} written down");
}

/// While the store is away for all, the shares of all hosts are one limit. When it comes back,
/// that is so, too, unless an attempt to reach it fails that began later, as on a very busy
/// machine.
#[test]
fn shares_are_one_limit_until_the_store_is_back() {
    needs!(support::haproxy());
    needs!(valkey());
    let mut store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let hosts = start_hosts(LIMIT, &store.url(), "share");
    let mut load = Load::start(&frontends(&hosts), &[CLIENT; 2]);
    hosts.iter().for_each(wait_until_well);
    hosts.iter().for_each(wait_until_counted);
    let before = calm(&load);
    store.kill();
    let alone_before = all_allowed_alone(&hosts);
    let away = calm(&load);
    let back = now();
    store.restart();
    hosts.iter().for_each(wait_until_well);
    // In this order: what is allowed alone between the two counts twice, and not at all otherwise.
    let alone_again = all_allowed_alone(&hosts);
    let returning = now() - back;
    let after = calm(&load);
    load.stop();
    let (files, copies) = (audits(&hosts), support::directory());
    assert_at_most(&until(&files, back, copies.path()), alone_before);
    let meanwhile = returning / (1_000_000_000 / LIMIT.per_second);
    let others = (LIMIT.burst + meanwhile) * (HOSTS as u64 - 1) / HOSTS as u64;
    let others = others + alone_before + (all_allowed_alone(&hosts) - alone_again);
    let judgement = judge(&files, LIMIT);
    println!("at most {others}: {judgement:?}");
    assert!(judgement.worst <= others, "at most {others}: {judgement:?}");
    assert_not_too_few(&files, &load, &[before, away, after]);
}

/// The others go on with the whole limit, so what such a host allows comes on top: its share, for
/// as long as it is cut off.
#[test]
fn a_host_that_alone_is_cut_off_allows_no_more_than_its_share() {
    needs!(support::haproxy());
    needs!(valkey());
    let store = Server::start(&[]);
    let proxy = Proxy::start(store.address());
    let proxied = format!("redis://{}", proxy.address());
    let urls = [&proxied, &store.url(), &store.url()];
    let hosts = urls.map(|url| start_host(LIMIT, url, "share"));
    let mut load = Load::start(&frontends(&hosts), &[CLIENT; 2]);
    hosts.iter().for_each(wait_until_well);
    hosts.iter().for_each(wait_until_counted);
    let before = calm(&load);
    let begin = now();
    let alone_before = hosts.each_ref().map(allowed_alone);
    proxy.cut(true);
    load.allows_more(250, "a host is cut off");
    proxy.cut(false);
    hosts.iter().for_each(wait_until_well);
    let cut_off = now() - begin;
    let its_own = allowed_alone(&hosts[0]) - alone_before[0];
    let after = calm(&load);
    load.stop();
    let files = audits(&hosts);
    let alone = all_allowed_alone(&hosts);
    assert_at_most(&until(&files, begin, support::directory().path()), alone_before.iter().sum());
    let share = (LIMIT.burst + cut_off / (1_000_000_000 / LIMIT.per_second)) / HOSTS as u64;
    assert!(its_own > 0, "the host uses its share");
    let most = share + (alone - its_own);
    let judgement = judge(&files, LIMIT);
    println!("at most {most}: {judgement:?}");
    assert!(judgement.worst <= most, "at most {most}: {judgement:?}");
    assert_not_too_few(&files, &load, &[before, after]);
}

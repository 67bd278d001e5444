//! A cluster: asks go to the server that has the tag, also while slots are on their way.

use gcra_store::{AskOutcome, Fault, Names};

use crate::host::{Host, config, config_without_looks};
use crate::support::{
    SLOTS, Server, cluster, cluster_url, cluster_with_replicas, follows, id, needs, valkey,
    wait_until,
};

/// Which node has the slot of this key.
pub fn owner(nodes: &[Server], host: &Host, key: &str) -> (usize, String) {
    let name = Names::new(b"").bucket("p.l", key.as_bytes(), host.limit).name();
    let slot = nodes[0].say(&["CLUSTER", "KEYSLOT", &name]);
    let slot: u16 = slot.trim_start_matches(':').trim().parse().unwrap();
    let count = u16::try_from(nodes.len()).unwrap();
    let place = (slot / (SLOTS / count)).min(count - 1);
    (place.into(), slot.to_string())
}

#[tokio::test]
async fn each_ask_goes_to_the_server_that_has_its_tag() {
    needs!(valkey());
    let mut nodes = cluster(3);
    let mut host = Host::ready(config(&cluster_url(&nodes))).await;
    assert_eq!(host.store.health().servers.len(), 3);
    let keys: Vec<_> = (0..60).map(|key| key.to_string()).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    host.submit(&keys).unwrap();
    let answers = host.answers(60).await;
    assert!(answers.iter().all(|answer| matches!(answer.outcome, AskOutcome::Reply(_))));
    let counters = host.store.counters();
    assert_eq!((counters.asks, counters.calls), (60, 3), "nothing had to be sent again");

    // One node dies. The keys of the others are still answered.
    let (dead, _) = owner(&nodes, &host, "0");
    let other = *keys.iter().find(|key| owner(&nodes, &host, key).0 != dead).unwrap();
    nodes[dead].kill();
    host.wait_for_fault(|fault| matches!(fault, Fault::Connection(_))).await;
    assert_eq!(host.ask("0").await, AskOutcome::Away);
    host.reply_again(other).await;
    nodes[dead].restart();
    host.reply_again("0").await;
}

#[tokio::test]
async fn slots_that_move() {
    needs!(valkey());
    let nodes = cluster(2);
    // A look makes a server learn the script, and finds the new place of a slot.
    let mut host = Host::ready(config_without_looks(&cluster_url(&nodes))).await;
    let (from, slot) = owner(&nodes, &host, "key");
    let to = 1 - from;
    let (from_id, to_id) = (id(&nodes[from]), id(&nodes[to]));
    let name = Names::new(b"").bucket("p.l", b"key", host.limit).name();

    // ASK: the slot is on its way, and the record is not at the old place.
    nodes[to].say(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    nodes[from].say(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    let before = host.store.counters();
    assert_eq!(host.reply("key").await.granted, 1);
    assert_eq!(host.store.counters().asks, before.asks + 2, "sent again, with ASKING");
    // And if the other server does not know the script.
    nodes[to].say(&["SCRIPT", "FLUSH"]);
    let before = host.store.counters();
    assert_eq!(host.reply("key").await.granted, 1);
    assert_eq!(host.store.counters().asks, before.asks + 3, "ASK, NOSCRIPT, and a reply");
    assert!(nodes[to].say(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).contains(&name));

    // TRYAGAIN: the record of a strict store is there, and its epoch is nowhere.
    let mut strict = config(&cluster_url(&nodes));
    strict.strict = true;
    let mut strict = Host::ready(strict).await;
    assert_eq!(strict.ask("key").await, AskOutcome::Void);
    assert!(strict.store.health().is_well(), "it passes by itself");

    // MOVED: the slot has a new place.
    for node in [to, from] {
        assert_eq!(nodes[node].say(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "+OK\r\n");
    }
    let (before, looks) = (host.store.counters(), host.store.health().looks);
    assert_eq!(looks, 1, "none has come by chance");
    assert_eq!(host.reply("key").await.granted, 1);
    assert_eq!(host.store.counters().asks, before.asks + 2, "sent again to the new place");
    host.wait_until("the servers are looked for", |health| health.looks > looks).await;
    let before = host.store.counters();
    assert_eq!(host.reply("key").await.granted, 1);
    assert_eq!(host.store.counters().asks, before.asks + 1, "it is known");
}

#[tokio::test]
async fn a_slot_that_nobody_has_and_a_cluster_that_is_down() {
    needs!(valkey());
    let nodes = cluster(2);

    // A mistake of the operator: one node is asked as if it were alone. (The second one has the
    // tag of the first look.)
    let mut host = Host::ready(config(&nodes[1].url())).await;
    let key = (0..).map(|key| key.to_string()).find(|key| owner(&nodes, &host, key).0 == 0);
    assert_eq!(host.ask(&key.unwrap()).await, AskOutcome::Void);
    host.wait_for_fault(|fault| fault.to_string().contains("a node of a cluster")).await;

    let mut host = Host::ready(config(&cluster_url(&nodes))).await;
    let (owner, slot) = owner(&nodes, &host, "key");
    host.reply("key").await;
    // The other node hears of it, too.
    for node in [owner, 1 - owner] {
        nodes[node].say(&["CLUSTER", "DELSLOTS", &slot]);
    }
    while !matches!(host.ask("key").await, AskOutcome::Away) {
        assert!(!nodes.is_empty());
    }
    nodes[owner].say(&["CLUSTER", "ADDSLOTS", &slot]);
    host.reply_again("key").await;

    for node in &nodes {
        node.say(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    // A slot that is none of the tags'.
    for node in &nodes {
        node.say(&["CLUSTER", "DELSLOTS", &slot]);
    }
    host.wait_until("an ask finds out", |_| true).await;
    while !matches!(host.ask("key").await, AskOutcome::Away) {}
    nodes[owner].say(&["CLUSTER", "ADDSLOTS", &slot]);
    host.reply_again("key").await;
}

/// A cluster never gives it up.
#[tokio::test]
async fn a_replica_that_lives_and_does_not_follow_is_named() {
    needs!(valkey());
    let (nodes, replicas) = cluster_with_replicas(1);
    let mut host = Host::open(config(&cluster_url(&nodes)));
    host.wait_until("the replica confirms", |health| {
        health.is_well() && health.servers[0].replicas == 1
    })
    .await;
    replicas[0].say(&["CONFIG", "SET", "masteruser", "nobody"]);
    replicas[0].say(&["CONFIG", "SET", "masterauth", "wrong"]);
    nodes[0].say(&["CLIENT", "KILL", "TYPE", "replica"]);
    let address = replicas[0].address().to_string();
    host.wait_for_fault(|fault| {
        let says = format!("it has 0 replicas, and 1 must confirm: the one at {address} does not");
        fault.to_string().starts_with(&says)
    })
    .await;
    for setting in ["masteruser", "masterauth"] {
        replicas[0].say(&["CONFIG", "SET", setting, ""]);
    }
    wait_until("the replica follows", || follows(&replicas[0], &nodes[0]));
    host.wait_until("it is used again", gcra_store::Health::is_well).await;
}

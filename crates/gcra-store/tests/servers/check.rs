//! What `check` says about stores that are well, and about stores that are not.

use gcra_store::{Config, Kind, PERMISSIONS, Password, check};

use crate::host::config;
use crate::support::{Server, cluster, cluster_url, needs, replica_of, valkey};

/// All findings of one kind, one in a line.
async fn said(config: Config, kind: Kind) -> String {
    let findings = check(config).await.unwrap();
    let texts = findings.iter().filter(|it| it.kind == kind).map(|it| it.text.as_str());
    texts.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_store_that_is_well() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let _replica = replica_of(&server);
    let good = said(config(&server.url()), Kind::Good).await;
    for text in ["is a primary and can be used (", "noeviction", "1 replica has confirmed", "runs"]
    {
        assert!(good.contains(text), "{good}");
    }
    assert_eq!(said(config(&server.url()), Kind::Wrong).await, "");
    assert_eq!(said(config(&server.url()), Kind::Remark).await, "");
}

#[tokio::test]
async fn each_thing_that_is_wrong() {
    needs!(valkey());
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let url = server.url();
    let remarks = said(config(&url), Kind::Remark).await;
    assert!(remarks.contains("which does nothing because maxmemory is 0"), "{remarks}");
    assert!(remarks.contains("there is no replica"), "{remarks}");
    server.say(&["CONFIG", "SET", "maxmemory", "100000000"]);
    let wrong = said(config(&url), Kind::Wrong).await;
    assert!(wrong.contains("allkeys-lru, so the server drops records"), "{wrong}");

    let mut replicated = config(&url);
    replicated.least_replicas = 2;
    let wrong = said(replicated, Kind::Wrong).await;
    assert!(wrong.contains("0 replicas have confirmed, and 2 must"), "{wrong}");

    server.say(&["ACL", "SETUSER", "weak", "on", ">secret", "~*", "+role"]);
    let file = server.directory.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    let mut weak = config(&url.replace("//", "//weak@"));
    weak.password = Password::File(file.clone());
    let wrong = said(weak.clone(), Kind::Wrong).await;
    assert!(wrong.contains("not permitted") && wrong.contains(PERMISSIONS), "{wrong}");
    let permissions: Vec<_> = PERMISSIONS.split(' ').collect();
    server.say(&[&["ACL", "SETUSER", "weak"], &permissions[..]].concat());
    assert_eq!(said(weak.clone(), Kind::Wrong).await, "");
    let remarks = said(weak.clone(), Kind::Remark).await;
    assert!(remarks.contains("the user may not use INFO"), "{remarks}");
    std::fs::write(&file, "wrong\n").unwrap();
    let wrong = said(weak, Kind::Wrong).await;
    assert!(wrong.contains("WRONGPASS") && !wrong.contains("wrong\n"), "{wrong}");

    server.say(&["REPLICAOF", "127.0.0.1", "1"]);
    let wrong = said(config(&url), Kind::Wrong).await;
    assert!(wrong.contains("it is a replica, not a primary; name its primary"), "{wrong}");
    drop(server);
    let wrong = said(config(&url), Kind::Wrong).await;
    assert!(wrong.contains("there is no connection: Connection refused"), "{wrong}");
}

#[tokio::test]
async fn a_cluster_and_what_it_lacks() {
    needs!(valkey());
    let nodes = cluster(2);
    let url = cluster_url(&nodes);
    assert_eq!(said(config(&url), Kind::Wrong).await, "");
    let good = said(config(&url), Kind::Good).await;
    assert_eq!(good.matches("is a primary and can be used").count(), 2, "{good}");
    // Slot 7855 has the tag 007.
    for node in &nodes {
        node.say(&["CLUSTER", "DELSLOTS", "7855"]);
    }
    let wrong = said(config(&url), Kind::Wrong).await;
    assert!(wrong.contains("of 1024 parts of the keys, 1 have no server"), "{wrong}");
    // A server of the cluster, as if it were alone.
    for node in &nodes {
        let wrong = said(config(&node.url()), Kind::Wrong).await;
        assert!(wrong.contains("a node of a cluster; use redis+cluster://"), "{wrong}");
    }
}

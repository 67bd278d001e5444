//! How operators read a bucket, and how they clear it.

use std::time::{Duration, Instant};

use gcra_lease::{Ask, HostId, Micros, Sent, SharedLimit};
use gcra_store::{AskOutcome, Bucket, Config, Names, Standing};

use crate::host::{Host, config, permitted_config};
use crate::support::{Server, needs, programs, valkey};

/// A host that asks for cells of any bucket.
async fn ask(host: &mut Host, bucket: &Bucket, id: u64, want: u32, debt: u32) -> u32 {
    let Sent { ask, at } = host.sent(want);
    let validity = Micros::from_millis(1_000_000);
    let ask = Ask { host: HostId(id), fresh: false, debt, validity, ..ask };
    host.line.submit(vec![(bucket.clone(), Sent { ask, at })]).unwrap();
    match host.answers(1).await[0].outcome {
        AskOutcome::Reply(reply) => reply.granted,
        other => panic!("{other:?}"),
    }
}

/// So slow that nothing drains or expires during a test.
fn slow(burst: u32) -> SharedLimit {
    let limit = SharedLimit::new(Duration::from_secs(100_000), burst).unwrap();
    limit.with_longest_validity(Micros::from_millis(1_000_000))
}

fn bucket(key: &str, limit: SharedLimit) -> Bucket {
    Names::new(b"salt").bucket("p.l", key.as_bytes(), limit)
}

/// Owed, lent, hosts, free.
async fn standing(config: &Config, bucket: &Bucket) -> Option<[u32; 4]> {
    let standing = Standing::read(config.clone(), bucket).await.unwrap()?;
    // The debt drains until the next reading, but not by a whole cell.
    let all = u64::from(standing.owed) * 100_000_000_000;
    assert!(standing.drains_in.get() <= all && standing.drains_in.get() + 100_000_000_000 > all);
    Some([standing.owed, standing.lent, standing.hosts, standing.free])
}

#[tokio::test]
async fn what_is_owed_and_lent_is_read_and_cleared() {
    needs!(valkey());
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        let config = permitted_config(&server);

        let mut host = Host::ready(config.clone()).await;
        let bucket = bucket("key", slow(20));
        assert_eq!(standing(&config, &bucket).await, None, "nothing was asked for");
        assert_eq!(ask(&mut host, &bucket, 1, 4, 0).await, 4);
        assert_eq!(ask(&mut host, &bucket, 2, 3, 5).await, 3);
        assert_eq!(ask(&mut host, &bucket, 3, 0, 0).await, 0);
        // The debt drains a little, but a part of a cell is not free.
        assert_eq!(standing(&config, &bucket).await, Some([5, 7, 3, 8]));

        let before = Standing::clear(config.clone(), &bucket).await.unwrap().unwrap();
        assert_eq!((before.owed, before.lent, before.hosts, before.free), (5, 7, 3, 8));
        assert_eq!(standing(&config, &bucket).await, Some([0, 0, 0, 20]));
        assert_eq!(ask(&mut host, &bucket, 1, 20, 0).await, 20);
        assert!(server.say(&["PTTL", &bucket.name()]).starts_with(':'), "it is not kept for ever");
        assert_eq!(server.say(&["ACL", "LOG"]), "*0\r\n", "nothing else was tried");
    }
}

#[tokio::test]
async fn a_bucket_that_was_cleared_owes_what_shares_may_have_allowed_since_then() {
    needs!(valkey());
    let (server, nodes) = (Server::start(&[]), crate::support::cluster(2));
    let [alone, mut strict] = [(); 2].map(|()| config(&server.url()));
    strict.strict = true;
    let of_cluster = config(&crate::support::cluster_url(&nodes));
    for (config, key) in [(alone, "1"), (strict, "2"), (of_cluster, "3")] {
        let mut host = Host::ready(config.clone()).await;
        let bucket = bucket(key, slow(20));
        let mut free = async |owed_ago| {
            let Sent { ask, at } = host.sent(0);
            let sent = Sent { ask: Ask { owed_ago, ..ask }, at };
            host.line.submit(vec![(bucket.clone(), sent)]).unwrap();
            match host.answers(1).await[0].outcome {
                AskOutcome::Reply(reply) => reply.free,
                other => panic!("{other:?}"),
            }
        };
        let hour = Micros::from_millis(3_600_000);
        assert_eq!(free(hour).await, 0, "nothing was cleared");
        Standing::clear(config.clone(), &bucket).await.unwrap();
        assert_eq!(free(hour).await, 20);
        assert_eq!(free(Ask::NOTHING_OWED).await, 20);
        assert_eq!(free(Micros::ZERO).await, 0, "that is later");
    }
}

/// The debt under earlier numbers must not come back.
#[tokio::test]
async fn a_bucket_with_earlier_numbers_is_read_and_cleared() {
    needs!(valkey());
    let server = Server::start(&[]);
    let config = config(&server.url());
    let mut host = Host::ready(config.clone()).await;
    let before = bucket("key", slow(20));
    ask(&mut host, &before, 1, 4, 5).await;
    let limit = slow(10);
    let after = bucket("key", limit);
    let alone = Some([0, 0, 0, 10]);
    assert_eq!(standing(&config, &after).await, alone, "it is not said that they have changed");
    let after = after.with_change(Instant::now(), limit.cells(limit.burst()));
    assert_eq!(standing(&config, &after).await, Some([9, 0, 0, 1]));
    Standing::clear(config.clone(), &after).await.unwrap();
    assert_eq!(standing(&config, &after).await, Some([0, 0, 0, 10]));
    assert_eq!(standing(&config, &before).await, Some([0, 0, 0, 20]));
    assert_eq!(ask(&mut host, &after, 1, 10, 0).await, 10);
}

#[tokio::test]
async fn a_strict_store_that_lost_its_memory_says_what_it_supposes_until_it_is_cleared() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut config = config(&server.url());
    config.strict = true;
    let mut host = Host::ready(config.clone()).await;
    let bucket = bucket("key", slow(3));
    assert_eq!(standing(&config, &bucket).await, None, "nothing was asked for, no memory began");
    let lost = |standing: Option<[u32; 4]>| standing == Some([4, 0, 0, 0]);
    assert_eq!(ask(&mut host, &bucket, 1, 1, 0).await, 0);
    server.say(&["DEL", &bucket.name()]);
    assert!(lost(standing(&config, &bucket).await), "a burst, and the validity in part");
    Standing::clear(config.clone(), &bucket).await.unwrap();
    assert_eq!(ask(&mut host, &bucket, 1, 3, 0).await, 3);
}

#[tokio::test]
async fn what_is_wrong_is_said_in_words() {
    needs!(valkey());
    let server = Server::start(&[]);
    let config = config(&server.url());
    let bucket = bucket("key", slow(20));
    let error = async |config: &Config| {
        let read = Standing::read(config.clone(), &bucket).await.unwrap_err().to_string();
        let clear = Standing::clear(config.clone(), &bucket).await.unwrap_err().to_string();
        assert_eq!(read, clear);
        read
    };
    let store = format!("the store at 127.0.0.1:{}", server.port);
    server.say(&["LPUSH", &bucket.name(), "x"]);
    let said = error(&config).await;
    assert!(said.starts_with(&format!("{store} cannot be used: it says WRONGTYPE ")), "{said}");
    let mut weak = config.clone();
    weak.least_replicas = 1;
    let said = error(&weak).await;
    let replicas = "it has 0 replicas, and least_replicas is 1; start another one, or set";
    assert!(said.starts_with(&format!("{store} cannot be used: {replicas}")), "{said}");
    server.say(&["SET", &bucket.name(), "short"]);
    let said = error(&config).await;
    assert_eq!(said, format!("what {store} has under {} is not a record", bucket.name()));
    assert_eq!(server.say(&["GET", &bucket.name()]), "$5\r\nshort\r\n", "nothing is changed");
    drop(server);
    let said = error(&config).await;
    let there = "cannot be used: there is no connection: ";
    assert!(said.starts_with(&format!("{store} {there}")), "{said}");
}

#[tokio::test]
async fn in_a_cluster_the_server_that_has_the_bucket_is_asked() {
    needs!(valkey());
    let nodes = crate::support::cluster(2);
    let config = config(&crate::support::cluster_url(&nodes));
    let mut host = Host::ready(config.clone()).await;
    for key in 0..8 {
        let bucket = bucket(&key.to_string(), slow(20));
        assert_eq!(ask(&mut host, &bucket, 1, 4, 3).await, 4);
        assert_eq!(standing(&config, &bucket).await, Some([3, 4, 1, 13]));
        Standing::clear(config.clone(), &bucket).await.unwrap();
        assert_eq!(standing(&config, &bucket).await, Some([0, 0, 0, 20]));
    }
    // Slot 7855 has the tag 007.
    let names = (0..).map(|key: u32| bucket(&key.to_string(), slow(20)));
    let orphan = names.into_iter().find(|it| it.name().starts_with("{gcra:007}")).unwrap();
    for node in &nodes {
        node.say(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        node.say(&["CLUSTER", "DELSLOTS", "7855"]);
    }
    let said = Standing::read(config.clone(), &orphan).await.unwrap_err().to_string();
    assert_eq!(said, format!("no server of the cluster has the key {}", orphan.name()));
}

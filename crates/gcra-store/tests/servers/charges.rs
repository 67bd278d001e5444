//! Charges that are made at once: how they travel, and the outcome if a reply is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use gcra_lease::{Charge, Charged, Micros, SharedLimit, Window};
use gcra_store::{
    AskOutcome, Away, Bucket, Charging, Config, Fault, Health, Names, NotCharged, Standing,
};
use tokio::time::timeout;

use crate::cluster::owner;
use crate::host::{Host, config, config_without_looks, permitted_config};
use crate::single::{answers, answers_with};
use crate::support::{
    PATIENCE, SOON, Server, calls_down_after, cluster, cluster_url, id, needs, programs,
};
use crate::support::{replica_of, sentinel_of, valkey};

/// One cell, now or never.
const ONE: Charge = Charge::Take { cells: 1, needs: 1, max_delay: Micros::ZERO };

fn bucket(key: &str, limit: SharedLimit) -> Bucket {
    Names::new(b"").bucket("p.l", key.as_bytes(), limit)
}

/// So slow that not a cell drains during a test.
fn slow(burst: u32) -> SharedLimit {
    SharedLimit::new(Duration::from_secs(100_000), burst).unwrap()
}

/// A count whose window goes on for as long as a test.
fn count(most: u32) -> SharedLimit {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    SharedLimit::count(most, Window { begin: now - 100_000, end: now + 100_000 }).unwrap()
}

fn begin(host: &Host, bucket: &Bucket, charge: Charge) -> Result<Charging, Away> {
    host.line.asker().charge(bucket.clone(), host.now(), charge)
}

async fn outcome(mut charging: Charging) -> Result<Charged, NotCharged> {
    timeout(PATIENCE, charging.outcome()).await.expect("an outcome")
}

/// Charges, and waits for the outcome.
async fn charge(host: &Host, bucket: &Bucket, charge: Charge) -> Result<Charged, NotCharged> {
    match begin(host, bucket, charge) {
        Ok(charging) => outcome(charging).await,
        Err(_) => Err(NotCharged::Away),
    }
}

/// Charges again and again until there is a reply.
async fn charged_at_last(host: &mut Host, bucket: &Bucket) -> Charged {
    for _ in 0..1_000 {
        if let Ok(charged) = charge(host, bucket, ONE).await {
            return charged;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?}", host.store.health());
}

/// A host that may do what an agent may do, and no more.
async fn permitted(server: &Server) -> (Host, Config) {
    let config = permitted_config(server);
    (Host::ready(config.clone()).await, config)
}

/// Whether it was allowed, and the cells: charged, beyond the burst, and owed after that.
fn parts(charged: Result<Charged, NotCharged>, limit: &SharedLimit) -> (bool, u32, u32, u64) {
    let charged = charged.unwrap();
    let owed = charged.taken.0.div_ceil(limit.cells(1).0);
    (charged.allowed, charged.cells, charged.beyond_burst, owed)
}

#[tokio::test]
async fn requests_and_responses_are_charged() {
    needs!(valkey());
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        let (host, _) = permitted(&server).await;
        let days = Micros::from_millis(2 * 86_400_000);
        for limit in [slow(5).with_most_owed(8).unwrap(), count(5)] {
            let key = bucket("key", limit);
            let take = |cells, max_delay| Charge::Take { cells, needs: 0, max_delay };
            let made = async |what| parts(charge(&host, &key, what).await, &limit);
            assert_eq!(made(take(4, Micros::ZERO)).await, (true, 4, 0, 4));
            assert_eq!(made(take(2, Micros::ZERO)).await, (false, 0, 0, 4));
            assert_eq!(made(ONE).await, (true, 1, 0, 5));
            let last = charge(&host, &key, take(1, days)).await.unwrap();
            assert_eq!(
                (last.allowed, last.delay(&limit)),
                if limit.window().is_some() {
                    (false, Micros::ZERO)
                } else {
                    assert!((86_400_000_000..=100_000_000_000).contains(&last.delay(&limit).0));
                    assert_eq!(
                        made(Charge::Less { cells: 1, taken_at: None }).await,
                        (true, 1, 0, 5)
                    );
                    (true, last.delay(&limit))
                }
            );
            assert_eq!(made(Charge::More { cells: 2 }).await, (true, 2, 2, 7));
            assert_eq!(made(Charge::Less { cells: 4, taken_at: None }).await, (true, 4, 0, 3));
            if limit.window().is_some() {
                let full = (true, u32::MAX - 3, u32::MAX - 5, u64::from(u32::MAX));
                assert_eq!(made(Charge::More { cells: u32::MAX }).await, full);
                assert_eq!(
                    made(Charge::Less { cells: 4, taken_at: None }).await,
                    (true, 0, 0, full.3)
                );
            }
        }
        let charges = host.store.counters().charges;
        assert_eq!(host.store.counters().charges_unknown, 0);

        // NOSCRIPT: it is sent again, with the text.
        server.say(&["SCRIPT", "FLUSH"]);
        let key = bucket("other", slow(5));
        assert_eq!(parts(charge(&host, &key, ONE).await, &slow(5)), (true, 1, 0, 1));
        assert_eq!(host.store.counters().charges, charges + 2);
        assert_eq!(server.say(&["ACL", "LOG"]), "*0\r\n", "nothing else was tried");
    }
}

#[tokio::test]
async fn charges_and_asks_travel_together_and_share_a_record() {
    needs!(valkey());
    let server = Server::start(&[]);
    // A look makes the server learn a script.
    let mut host = Host::ready(config_without_looks(&server.url())).await;
    let key = bucket("key", host.limit);
    // The first ones find out that a script is not known.
    charge(&host, &bucket("other", host.limit), ONE).await.unwrap();
    host.reply("other").await;
    let before = host.store.counters();
    for text in [false, true] {
        host.submit(&["key", "key"]).unwrap();
        let charging = [begin(&host, &key, ONE), begin(&host, &key, ONE)];
        host.submit(&["key"]).unwrap();
        assert!(host.answers(3).await.iter().all(|it| matches!(it.outcome, AskOutcome::Reply(_))));
        for charging in charging {
            assert_eq!(outcome(charging.unwrap()).await.map(|it| it.cells), Ok(1));
        }
        let counters = host.store.counters();
        if !text {
            assert_eq!(counters.calls, before.calls + 1);
            assert_eq!(counters.asks, before.asks + 3);
            assert_eq!(counters.charges, before.charges + 2);
            // Now with the text of both scripts.
            server.say(&["SCRIPT", "FLUSH"]);
        } else {
            assert_eq!(counters.calls, before.calls + 3);
            assert_eq!(counters.asks, before.asks + 9);
            assert_eq!(counters.charges, before.charges + 6);
        }
    }
    // Each ask but the last was fresh, so it had one cell, which then counted as spent.
    let standing = Standing::read(config(&server.url()), &key).await.unwrap().unwrap();
    assert_eq!((standing.owed, standing.lent), (9, 1));
}

/// How many charges a server of our own got, and its address.
fn counted(answer: impl Fn(usize) -> Vec<u8> + Send + 'static) -> (String, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let charges = count.clone();
    let url = answers_with(move |asked| {
        charges.store(asked, Ordering::Relaxed);
        answer(asked)
    });
    (url, count)
}

/// A reply as the script writes it.
fn written(number: usize, allowed: bool, cells: u32, beyond: u32, now: u64) -> Vec<u8> {
    let mut bytes = (number as f64).to_le_bytes().to_vec();
    bytes.push(allowed.into());
    bytes.extend(cells.to_le_bytes());
    bytes.extend(beyond.to_le_bytes());
    bytes.extend(5_f64.to_le_bytes());
    bytes.extend((now as f64).to_le_bytes());
    assert!(gcra_store::script::charged(&bytes).is_ok());
    [format!("${}\r\n", bytes.len()).into_bytes(), bytes, b"\r\n".to_vec()].concat()
}

/// Nobody knows whether the store has made it, so nobody may make it again.
#[tokio::test]
async fn a_charge_whose_reply_is_lost_is_never_sent_again() {
    let now = 1_800_000_000_000_000;
    let (url, sent) =
        counted(
            move |asked| if asked == 1 { Vec::new() } else { written(asked, true, 1, 0, now) },
        );
    let mut config = config(&url);
    config.timeout = Duration::from_secs(6);
    config.most_asks = 1;
    let mut host = Host::ready(config).await;
    let key = bucket("key", slow(5));
    let mut lost = begin(&host, &key, ONE).unwrap();
    assert_eq!(lost.now(), None);
    assert_eq!(begin(&host, &key, ONE).map(drop), Err(Away::Full));
    assert_eq!(outcome(lost).await, Err(NotCharged::Unknown));
    let counters = host.store.counters();
    assert_eq!((counters.charges, counters.charges_unknown), (1, 1));
    assert_eq!((counters.charges_away, counters.late, counters.void), (1, 0, 0));

    let looks = host.store.health().looks;
    host.wait_until("it is used again", |it| it.looks > looks + 1 && it.is_well()).await;
    assert_eq!(sent.load(Ordering::Relaxed), 1);
    // (The permit is here again, too.)
    assert_eq!(charge(&host, &key, ONE).await.map(|it| it.cells), Ok(1));
}

#[tokio::test]
async fn a_reply_that_is_not_of_this_charge_is_not_used() {
    let now = 1_800_000_000_000_000;
    let take = Charge::Take { cells: 2, needs: 0, max_delay: Micros::ZERO };
    let (more, less) = (Charge::More { cells: 2 }, Charge::Less { cells: 2, taken_at: None });
    for (what, answer) in [
        (take, written(2, true, 2, 0, now)),
        (take, written(1, true, 1, 0, now)),
        (take, written(1, true, 3, 0, now)),
        (take, written(1, false, 2, 0, now)),
        (take, written(1, true, 2, 1, now)),
        (more, written(1, false, 1, 0, now)),
        (more, written(1, true, 3, 0, now)),
        (more, written(1, true, 1, 2, now)),
        (less, written(1, false, 1, 0, now)),
        (less, written(1, true, 3, 0, now)),
        (less, written(1, true, 1, 1, now)),
        (less, b"$0\r\n\r\n".to_vec()),
        (less, b"$3\r\nabc\r\n".to_vec()),
        (less, b":1\r\n".to_vec()),
        (less, b"$-1\r\n".to_vec()),
        (less, b"what\r\n".to_vec()),
    ] {
        let said = String::from_utf8_lossy(&answer).into_owned();
        let (url, _) = counted(move |_| answer.clone());
        let mut host = Host::ready(config(&url)).await;
        let key = bucket("key", slow(5));
        assert_eq!(charge(&host, &key, what).await, Err(NotCharged::Unknown), "{said:?}");
        assert_eq!(host.store.counters().charges_unknown, 1);
        host.wait_until("it connects again", |health| health.looks > 1 && health.is_well()).await;
    }
}

#[tokio::test]
async fn a_charge_that_is_dropped_is_made_all_the_same() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut config = config(&server.url());
    config.most_asks = 2;
    let host = Host::ready(config.clone()).await;
    let key = bucket("key", slow(50));
    for _ in 0..20 {
        drop(begin(&host, &key, ONE).unwrap());
        // Its permit comes back.
        outcome(begin(&host, &key, ONE).unwrap()).await.unwrap();
    }
    let standing = Standing::read(config, &key).await.unwrap().unwrap();
    assert_eq!((standing.owed, host.store.counters().charges_unknown), (40, 0));
}

#[tokio::test]
async fn without_a_server_nothing_is_charged() {
    let host = Host::open(config("redis://127.0.0.1:1"));
    let key = bucket("key", slow(5));
    assert_eq!(begin(&host, &key, ONE).map(drop), Err(Away::Unusable));
    assert_eq!(host.store.counters().charges_away, 1);
}

#[tokio::test]
async fn a_clock_that_leaps_is_noticed_by_charges() {
    let began = std::time::Instant::now();
    let (url, _) = counted(move |asked| {
        let now = u64::try_from(began.elapsed().as_micros()).unwrap();
        let more = if asked == 2 { 1_000_000_000 } else { 0 };
        written(asked, true, 1, 0, 1_800_000_000_000_000 + now + more)
    });
    let host = Host::ready(config(&url)).await;
    for _ in 0..3 {
        charge(&host, &bucket("key", slow(5)), ONE).await.unwrap();
    }
    let counters = host.store.counters();
    assert_eq!((counters.leaps_forward, counters.leaps_back), (1, 1));
}

/// A change of the count in the file must not give a client all of it again.
#[tokio::test]
async fn a_count_that_is_changed_keeps_what_is_used() {
    needs!(valkey());
    let server = Server::start(&[]);
    let (host, config) = permitted(&server).await;
    let day = count(10);
    let window = day.window().unwrap();
    let key = bucket("key", day);
    let standing = async |bucket: &Bucket| {
        let standing = Standing::read(config.clone(), bucket).await.unwrap()?;
        assert_eq!((standing.drains_in, standing.lent), (Micros::ZERO, 0));
        Some((standing.owed, standing.free))
    };
    assert_eq!(standing(&key).await, None);
    let seven = Charge::Take { cells: 7, needs: 0, max_delay: Micros::ZERO };
    assert_eq!(parts(charge(&host, &key, seven).await, &day), (true, 7, 0, 7));
    assert_eq!(standing(&key).await, Some((7, 3)));

    let smaller = bucket("key", SharedLimit::count(5, window).unwrap());
    assert_eq!(standing(&smaller).await, Some((7, 0)));
    assert!(!charge(&host, &smaller, ONE).await.unwrap().allowed);
    let larger = bucket("key", SharedLimit::count(20, window).unwrap());
    assert_eq!(standing(&larger).await, Some((7, 13)));

    // Another window begins at 0.
    let next = SharedLimit::count(10, Window { begin: window.end, ..window });
    assert!(next.is_err(), "it ends when it begins");
    let longer = SharedLimit::count(10, Window { end: window.end + 1, ..window }).unwrap();
    assert_eq!(standing(&bucket("key", longer)).await, None);
    let longer = bucket("key", longer);
    assert_eq!(charge(&host, &longer, ONE).await.unwrap().taken.0, 1);

    // It is kept for an hour after its window, also after it was cleared.
    let kept_for = |bucket: &Bucket| -> u64 {
        let said = server.say(&["PTTL", &bucket.name()]);
        said.trim_start_matches(':').trim().parse().unwrap()
    };
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let least = (window.end + 3_600 - now) * 1_000;
    // (A machine that is very busy has lost time between the two readings.)
    assert!((least - 2_000_000..=least + 3_000).contains(&kept_for(&longer)));
    assert_eq!(
        Standing::clear(config.clone(), &longer).await.unwrap().map(|it| (it.owed, it.free)),
        Some((1, 9))
    );
    assert_eq!(standing(&longer).await, Some((0, 10)));
    assert_eq!(standing(&key).await, Some((7, 3)), "another window");
    assert!((least - 2_000_000..=least + 3_000).contains(&kept_for(&longer)));

    // One that is over is kept for an hour.
    let over = bucket("key", SharedLimit::count(10, Window { begin: 1, end: 2 }).unwrap());
    charge(&host, &over, ONE).await.unwrap();
    assert!((1_600_000..=3_600_000).contains(&kept_for(&over)));
    assert_eq!(server.say(&["ACL", "LOG"]), "*0\r\n", "nothing else was tried");
}

/// The queue must be known for as long as somebody waits in it.
#[tokio::test]
async fn a_record_is_kept_for_as_long_as_requests_wait() {
    needs!(valkey());
    let server = Server::start(&[]);
    let host = Host::ready(config(&server.url())).await;
    let limit = SharedLimit::new(Duration::from_secs(1), 2).unwrap();
    let key = bucket("key", limit);
    let hour = Micros::from_millis(3_600_000);
    for _ in 0..80 {
        let charge_it = Charge::Take { cells: 2, needs: 0, max_delay: hour };
        assert!(charge(&host, &key, charge_it).await.unwrap().allowed);
    }
    // A charge that does not wait does not shorten it.
    assert!(!charge(&host, &key, ONE).await.unwrap().allowed);
    let owed = Standing::read(config(&server.url()), &key).await.unwrap().unwrap().drains_in.0;
    let said = server.say(&["PTTL", &key.name()]);
    let kept: u64 = said.trim_start_matches(':').trim().parse().unwrap();
    assert!(owed > limit.keeps_record().0 && kept > limit.keeps_record().0 / 1_000, "{kept}");
}

#[tokio::test]
async fn a_strict_store_that_lost_its_memory_supposes_that_a_count_is_used() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut config = config(&server.url());
    config.strict = true;
    let host = Host::ready(config.clone()).await;
    let key = bucket("key", count(5));
    let begun = charge(&host, &key, ONE).await.unwrap();
    assert_eq!((begun.allowed, begun.taken.0), (false, 5), "its window began before the epoch");
    server.say(&["DEL", &key.name()]);
    let standing = Standing::read(config.clone(), &key).await.unwrap().unwrap();
    assert_eq!((standing.owed, standing.free), (5, 0));
    Standing::clear(config.clone(), &key).await.unwrap();
    assert!(charge(&host, &key, ONE).await.unwrap().allowed);

    // The same tag: its epoch is known.
    let window = count(5).window().unwrap();
    let next = Window { begin: window.end, end: window.end + 100 };
    let next = bucket("key", SharedLimit::count(5, next).unwrap());
    assert_eq!(charge(&host, &next, ONE).await.unwrap().taken.0, 1);
}

#[tokio::test]
async fn in_a_cluster_charges_follow_their_slot() {
    needs!(valkey());
    let mut nodes = cluster(2);
    // A look finds the new place of a slot.
    let mut host = Host::ready(config_without_looks(&cluster_url(&nodes))).await;
    let limit = host.limit;
    for key in 0..20 {
        charge(&host, &bucket(&key.to_string(), limit), ONE).await.unwrap();
    }
    let key = bucket("key", limit);
    let (from, slot) = owner(&nodes, &host, "key");
    let to = 1 - from;
    let (from_id, to_id) = (id(&nodes[from]), id(&nodes[to]));
    let sent = async |host: &Host| {
        let before = host.store.counters().charges;
        let taken = charge(host, &key, ONE).await.unwrap().taken;
        (host.store.counters().charges - before, taken.0.div_ceil(limit.cells(1).0))
    };
    // ASK.
    nodes[to].say(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    nodes[from].say(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    nodes[to].say(&["SCRIPT", "FLUSH"]);
    assert_eq!(sent(&host).await, (3, 1), "ASK, NOSCRIPT, and a reply");
    assert_eq!(sent(&host).await, (2, 2));
    // MOVED.
    for node in [to, from] {
        assert_eq!(nodes[node].say(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "+OK\r\n");
    }
    let looks = host.store.health().looks;
    assert_eq!(looks, 1, "none has come by chance");
    assert_eq!(sent(&host).await, (2, 3));
    host.wait_until("the servers are looked for", |health| health.looks > looks).await;
    assert_eq!(sent(&host).await, (1, 4), "the place is known");

    // The server of the key is gone, and another one is there.
    nodes[to].kill();
    assert!(charge(&host, &key, ONE).await.is_err());
    host.wait_for_fault(|fault| matches!(fault, Fault::Connection(_))).await;
    let before = host.store.counters();
    let charging = begin(&host, &key, ONE).unwrap();
    assert_eq!(outcome(charging).await, Err(NotCharged::Away));
    let counters = host.store.counters();
    assert_eq!(counters.charges_away, before.charges_away + 1);
    assert_eq!(counters.charges, before.charges, "it was not sent");
}

#[tokio::test]
async fn a_charge_is_used_when_the_replicas_have_confirmed_it() {
    for (confirmed, used) in [(2, true), (1, false)] {
        let replicas = "*2\r\n*3\r\n+a\r\n+1\r\n+0\r\n*3\r\n+b\r\n+1\r\n+0\r\n";
        let url = answers(replicas, ":2\r\n", move |asked| {
            let now = 1_800_000_000_000_000;
            let wait = format!(":{confirmed}\r\n").into_bytes();
            [written(asked, true, 1, 0, now), wait].concat()
        });
        let host = Host::ready(config(&url)).await;
        let outcome = charge(&host, &bucket("key", slow(5)), ONE).await;
        assert_eq!(
            outcome.map(|it| it.cells),
            if used { Ok(1) } else { Err(NotCharged::Unknown) }
        );
        let fault = host.store.health().servers[0].fault.clone();
        assert_eq!(fault, (!used).then_some(Fault::Replicas { are: 1, needed: 2 }));
    }
}

/// Charges that a replica has confirmed are there after it was promoted.
#[tokio::test]
async fn after_a_failover_what_was_charged_is_known() {
    needs!(valkey());
    let mut primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let sentinel = sentinel_of(&primary, &replica);
    let mut config = config(&format!("redis+sentinel://{}/store", sentinel.address()));
    config.timeout = Duration::from_secs(2);
    let mut host = Host::open(config);
    let key = bucket("key", slow(50));
    charged_at_last(&mut host, &key).await;
    host.wait_until("the replica is seen", |health: &Health| {
        health.is_well() && health.servers.first().is_some_and(|server| server.replicas == 1)
    })
    .await;
    let before = charged_at_last(&mut host, &key).await;
    calls_down_after(&sentinel, SOON);
    primary.kill();
    let promoted = format!("127.0.0.1:{}", replica.port);
    host.wait_until("the replica is promoted and used", |health| {
        health.is_well() && health.servers[0].address == promoted
    })
    .await;
    let after = charged_at_last(&mut host, &key).await;
    let cells = |charged: Charged| charged.taken.0.div_ceil(slow(50).cells(1).0);
    assert!(cells(after) > cells(before), "{after:?} {before:?}");
}

/// A server that answers a charge with an error has charged nothing. The tests above say which of
/// these charges are sent again.
#[tokio::test]
async fn an_error_is_no_reply() {
    for error in ["-ERR x\r\n", "-OOM x\r\n", "-READONLY x\r\n"] {
        let (url, sent) = counted(move |_| error.as_bytes().to_vec());
        let host = Host::ready(config(&url)).await;
        let outcome = charge(&host, &bucket("key", slow(5)), ONE).await;
        assert_eq!(outcome, Err(NotCharged::Unknown), "{error}");
        assert_eq!(sent.load(Ordering::Relaxed), 1);
    }
    // Its slot is being moved for longer than a charge may take.
    let (url, sent) = counted(|_| b"-TRYAGAIN x\r\n".to_vec());
    let host = Host::ready(config(&url)).await;
    let outcome = charge(&host, &bucket("key", slow(5)), ONE).await;
    assert_eq!(outcome, Err(NotCharged::Away), "it did nothing with it");
    assert!(sent.load(Ordering::Relaxed) <= 3);
    // It never learns the script.
    let (url, sent) = counted(|_| b"-NOSCRIPT x\r\n".to_vec());
    let host = Host::ready(config(&url)).await;
    let outcome = charge(&host, &bucket("key", slow(5)), ONE).await;
    assert_eq!(outcome, Err(NotCharged::Away), "it did nothing with it");
    assert_eq!(sent.load(Ordering::Relaxed), 3);
}

//! A primary with replicas: replies that the replicas confirm, and sentinels that promote one.

use std::time::Duration;

use gcra_store::{AskOutcome, Config, Fault, Health, Password};

use crate::fake::serve;
use crate::host::{Host, checked, config};
use crate::support::{
    PATIENCE, SOON, Server, calls_down_after, needs, replica_of, sentinel_of, sentinels_of,
    valkey, wait_until,
};

fn replicas(health: &Health) -> Option<u32> {
    let server = health.servers.first()?;
    server.fault.is_none().then_some(server.replicas)
}

#[tokio::test]
async fn a_reply_is_used_when_the_replica_has_confirmed_it() {
    needs!(valkey());
    let primary = Server::start(&[]);
    let mut host = Host::ready(config(&primary.url())).await;
    assert_eq!(host.store.health().servers[0].replicas, 0);
    host.reply("key").await;

    // A replica that comes later is waited for from the next look on.
    let mut replica = replica_of(&primary);
    host.wait_until("the replica is seen", |health| replicas(health) == Some(1)).await;
    host.reply("key").await;
    let fell_back = |fault: &Fault| matches!(fault, Fault::Replicas { are: 0, needed: 1 });

    // It no longer confirms. (Its port still accepts connections, and the primary waits for it.)
    let mut hasty = config(&primary.url());
    hasty.timeout = Duration::from_millis(1_000);
    let mut hasty = Host::open(hasty);
    hasty.reply_again("other").await;
    replica.freeze();
    let outcome = hasty.ask("other").await;
    assert_eq!(outcome, AskOutcome::Void, "the primary has granted, but nobody may use it");
    hasty.wait_for_fault(|fault| fell_back(fault) || *fault == Fault::Late).await;
    assert_eq!(hasty.ask("other").await, AskOutcome::Away);
    replica.thaw();
    hasty.reply_again("other").await;

    // Without it the primary goes on alone,
    replica.kill();
    host.wait_until("the replica is gone", |health| replicas(health) == Some(0)).await;
    host.reply_again("key").await;
    // unless there must be one.
    let mut needs_one = config(&primary.url());
    needs_one.least_replicas = 1;
    let mut needs_one = Host::open(needs_one);
    let too_few = Fault::FewReplicas { are: 0, least: 1 };
    needs_one.wait_for_fault(|fault| *fault == too_few).await;
    replica.restart();
    needs_one.reply_again("key").await;
}

#[tokio::test]
async fn without_durable_nothing_waits_for_replicas() {
    needs!(valkey());
    let primary = Server::start(&[]);
    let mut replica = replica_of(&primary);
    replica.freeze();
    let mut config = config(&primary.url());
    config.durable = false;
    let mut host = Host::ready(config).await;
    host.reply("key").await;
}

#[tokio::test]
async fn sentinels_that_have_a_password_are_asked_with_it() {
    needs!(valkey());
    let primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let sentinel = sentinel_of(&primary, &replica);
    let url = format!("redis+sentinel://{}/store", sentinel.address());
    let mut config = config(&url);
    let mut before = Host::ready(config.clone()).await;
    before.reply("key").await;
    let secret = ["ACL", "SETUSER", "default", "resetpass", ">secret"];
    assert_eq!(sentinel.say(&secret), "+OK\r\n");

    let file = primary.directory.path().join("sentinel-password");
    std::fs::write(&file, "wrong\n").unwrap();
    for (password, says) in
        [(Password::None, "NOAUTH"), (Password::File(file.clone()), "WRONGPASS")]
    {
        config.sentinel_password = password;
        let mut host = Host::open(config.clone());
        host.wait_until("the sentinel does not answer", |health| {
            health.fault.as_ref().is_some_and(|fault| fault.to_string().contains(says))
        })
        .await;
    }
    std::fs::write(&file, "secret\n").unwrap();
    let mut host = Host::ready(config).await;
    // Under another key, because both hosts have the same id.
    host.reply("other").await;
    assert!(!format!("{:?}", host.store).contains("secret"));
}

/// Changes that a replica has confirmed are there after it was promoted.
#[tokio::test]
async fn sentinels_tell_which_server_is_the_primary_now() {
    needs!(valkey());
    let mut primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let sentinel = sentinel_of(&primary, &replica);
    let url = format!("redis+sentinel://{}/store", sentinel.address());
    let mut config = config(&url);
    config.timeout = Duration::from_secs(2);
    let mut host = Host::open(config);
    assert_eq!(host.reply_again("key").await.hosts, 1);
    let address = format!("127.0.0.1:{}", primary.port);
    assert_eq!(host.store.health().servers[0].address, address);
    assert_eq!(replicas(&host.store.health()), Some(1));

    calls_down_after(&sentinel, SOON);
    primary.kill();
    let promoted = format!("127.0.0.1:{}", replica.port);
    host.wait_until("the replica is promoted and used", |health| {
        health.is_well() && health.servers[0].address == promoted
    })
    .await;
    let reply = tokio::time::timeout(PATIENCE, host.reply_again("key")).await.unwrap();
    assert_eq!((reply.granted, reply.hosts), (1, 1));
    let record = gcra_store::Names::new(b"").bucket("p.l", b"key", host.limit);
    // The first ask and the second one are fresh, so what the first was granted counts as spent.
    assert!(replica.say(&["GETRANGE", &record.name(), "8", "15"]) != "$8\r\n\0\0\0\0\0\0\0\0\r\n");
}

/// A primary with two replicas, and three sentinels.
struct Group {
    primary: Server,
    replicas: [Server; 2],
    sentinels: Vec<Server>,
}

impl Group {
    /// `prepare` is done to each server before the sentinels begin, which have these lines.
    fn start(prepare: impl Fn(&Server), lines: [&str; 3]) -> Self {
        let primary = Server::start(&[]);
        let replicas = [replica_of(&primary), replica_of(&primary)];
        [&primary, &replicas[0], &replicas[1]].into_iter().for_each(prepare);
        let sentinels = sentinels_of(&primary, &lines);
        for sentinel in &sentinels[1..] {
            wait_until("the sentinel knows the replicas and another sentinel", || {
                let said = sentinel.say(&["SENTINEL", "REPLICAS", "store"]);
                let other = sentinel.say(&["SENTINEL", "SENTINELS", "store"]);
                replicas.iter().all(|it| said.contains(&it.port.to_string()))
                    && other.contains("runid")
            });
        }
        Self { primary, replicas, sentinels }
    }

    fn config(&self) -> Config {
        let addresses: Vec<_> = self.sentinels.iter().map(|it| it.address().to_string()).collect();
        let mut config = config(&format!("redis+sentinel://{}/store", addresses.join(",")));
        config.least_replicas = 1;
        config.timeout = Duration::from_secs(2);
        config
    }
}

/// The order of the sentinels does not matter.
#[tokio::test]
async fn a_sentinel_that_does_not_know_the_password_is_overruled() {
    needs!(valkey());
    let secret = |server: &Server| {
        for setting in ["masterauth", "requirepass"] {
            server.say(&["CONFIG", "SET", setting, "secret"]);
        }
    };
    let knows = "sentinel auth-pass store secret\n";
    let mut group = Group::start(secret, ["", knows, knows]);
    let mut config = group.config();
    let file = group.primary.directory.path().join("password");
    std::fs::write(&file, "secret\n").unwrap();
    config.password = Password::File(file);
    let mut host = Host::open(config.clone());
    host.reply_again("key").await;
    let (first, before) = (group.sentinels[0].address(), group.primary.address().to_string());
    calls_down_after(&group.sentinels[0], SOON);
    wait_until("the first sentinel calls the primary down", || {
        group.sentinels[0].say(&["SENTINEL", "MASTER", "store"]).contains("s_down")
    });
    let found = checked(config.clone()).await;
    let remark = format!("the sentinel at {first} cannot use {before}: ");
    assert!(found.iter().any(|it| it.text.starts_with(&remark)), "{found:?}");
    group.sentinels[1..].iter().for_each(|sentinel| calls_down_after(sentinel, SOON));
    group.primary.kill();
    host.wait_until("another primary is used", |health| {
        health.is_well() && health.servers[0].address != before
    })
    .await;
    host.reply_again("key").await;
    let found = checked(config).await;
    let remark = format!("the sentinel at {first} names {before} as the primary, not 127.0.0.1:");
    assert!(found.iter().any(|it| it.text.starts_with(&remark)), "{found:?}");
}

#[tokio::test]
async fn a_replica_that_lives_and_does_not_follow_is_named_and_given_up() {
    needs!(valkey());
    let group = Group::start(|_| {}, [""; 3]);
    let mut host = Host::open(group.config());
    host.wait_until("both replicas confirm", |health| replicas(health) == Some(2)).await;
    let replica = &group.replicas[1];
    replica.say(&["CONFIG", "SET", "masteruser", "nobody"]);
    replica.say(&["CONFIG", "SET", "masterauth", "wrong"]);
    // So that it is given up soon. The sentinels ask for the state of its link every 10 s.
    for sentinel in &group.sentinels {
        calls_down_after(sentinel, 300);
    }
    let address = replica.address().to_string();
    group.primary.say(&["CLIENT", "KILL", "TYPE", "replica"]);
    host.wait_for_fault(|fault| {
        let says = format!("it has 1 replica, and 2 must confirm: the one at {address} does not");
        fault.to_string().starts_with(&says)
    })
    .await;
    host.wait_until("it is given up", |health| replicas(health) == Some(1)).await;
    host.reply_again("key").await;
    let found = checked(group.config()).await;
    let remark = format!("the replica at {address} was given up by the sentinels: ");
    assert!(found.iter().any(|it| it.text.starts_with(&remark)), "{found:?}");
}

/// One that is alone has no say: it may be on the side of a primary that was cut off.
#[tokio::test]
async fn one_of_three_sentinels_is_not_believed() {
    needs!(valkey());
    let primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let sentinel = sentinel_of(&primary, &replica);
    let (other, _) = serve(|command, port| {
        match command.contains("GET-MASTER-ADDR-BY-NAME") {
            true => format!("*2\r\n$9\r\n127.0.0.1\r\n$5\r\n{port:05}\r\n"),
            false => "*0\r\n".to_owned(),
        }
        .into_bytes()
    });
    let url =
        format!("redis+sentinel://{},127.0.0.1:{other},127.0.0.1:1/store", sentinel.address());
    let mut host = Host::open(config(&url));
    let says = format!(
        "of 3 sentinels, 2 must name the same primary: {} names {}; 127.0.0.1:{other} names \
         127.0.0.1:{other}; 127.0.0.1:1: there is no connection: ",
        sentinel.address(),
        primary.address()
    );
    host.wait_until("the sentinels disagree", |health| {
        health.fault.as_ref().is_some_and(|fault| fault.to_string().starts_with(&says))
    })
    .await;
    assert!(host.store.health().servers.is_empty());
}

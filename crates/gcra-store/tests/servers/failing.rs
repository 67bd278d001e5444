//! Servers that do not do what they are asked: each of their words, and silence. After each of
//! them the store is used again without help.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gcra_store::{AskOutcome, Fault};
use tokio::time::{Instant, sleep};

use crate::fake::serve;
use crate::host::{Host, config, log_length, log_lines};
use crate::support::{Server, needs, valkey};

/// Breaks the store, waits until it is known, mends it, and waits until it is used again.
async fn breaks_and_mends(
    host: &mut Host,
    server: &Server,
    break_it: &[&str],
    is: impl Fn(&Fault) -> bool,
    mend_it: &[&str],
) {
    assert_eq!(host.reply_again("key").await.granted, 1);
    assert!(!server.say(break_it).starts_with('-'), "{break_it:?}");
    // The first asks find out, and the others are not sent at all.
    while !matches!(host.ask("key").await, AskOutcome::Void | AskOutcome::Away) {}
    host.wait_for_fault(is).await;
    assert_eq!(host.ask("key").await, AskOutcome::Away);
    assert!(!server.say(mend_it).starts_with('-'), "{mend_it:?}");
    assert_eq!(host.reply_again("key").await.granted, 1);
}

#[tokio::test]
async fn readonly_and_masterdown() {
    needs!(valkey());
    let server = Server::start(&["--replica-serve-stale-data", "yes"]);
    let mut host = Host::ready(config(&server.url())).await;
    let replicate = ["REPLICAOF", "127.0.0.1", "1"];
    let replica = |fault: &Fault| *fault == Fault::Replica;
    let again = ["REPLICAOF", "NO", "ONE"];
    breaks_and_mends(&mut host, &server, &replicate, replica, &again).await;
    server.say(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    breaks_and_mends(&mut host, &server, &replicate, replica, &again).await;
}

#[tokio::test]
async fn out_of_memory() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut host = Host::ready(config(&server.url())).await;
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    let more = ["CONFIG", "SET", "maxmemory", "0"];
    breaks_and_mends(&mut host, &server, &full, |fault| *fault == Fault::OutOfMemory, &more).await;
}

#[tokio::test]
async fn noperm_and_noauth() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut host = Host::ready(config(&server.url())).await;
    let forbidden = |fault: &Fault| matches!(fault, Fault::NotPermitted(_));
    let forbid = ["ACL", "SETUSER", "default", "-evalsha", "-eval"];
    let permit = ["ACL", "SETUSER", "default", "+evalsha", "+eval"];
    breaks_and_mends(&mut host, &server, &forbid, forbidden, &permit).await;

    // A password that nobody knows; the test itself is on a connection that is logged in.
    let admin = ["ACL", "SETUSER", "admin", "on", ">x", "~*", "+@all"];
    server.say(&admin);
    server.say(&["CONFIG", "SET", "requirepass", "secret"]);
    let mut stranger = Host::open(config(&server.url()));
    stranger
        .wait_for_fault(|fault| matches!(fault, Fault::Login(why) if why.contains("NOAUTH")))
        .await;
}

#[tokio::test]
async fn misconf_and_noreplicas() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut host = Host::ready(config(&server.url())).await;
    let without = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    let with = ["CONFIG", "SET", "min-replicas-to-write", "0"];
    let no_replicas =
        |fault: &Fault| matches!(fault, Fault::Other(why) if why.contains("NOREPLICAS"));
    breaks_and_mends(&mut host, &server, &without, no_replicas, &with).await;
}

#[tokio::test]
async fn busy_with_another_script() {
    needs!(valkey());
    let server = Server::start(&["--busy-reply-threshold", "1"]);
    let mut host = Host::ready(config(&server.url())).await;
    host.reply("key").await;
    let address = server.address();
    let endless = std::thread::spawn(move || {
        let client = redis::Client::open(format!("redis://{address}")).unwrap();
        let mut connection = client.get_connection().unwrap();
        let _ = redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut connection);
    });
    let start = Instant::now();
    while !matches!(host.ask("key").await, AskOutcome::Void | AskOutcome::Away) {
        assert!(start.elapsed() < crate::support::PATIENCE);
    }
    host.wait_for_fault(|fault| matches!(fault, Fault::Other(why) if why.contains("BUSY"))).await;
    server.say(&["SCRIPT", "KILL"]);
    host.reply_again("key").await;
    endless.join().unwrap();
}

#[tokio::test]
async fn loading() {
    needs!(valkey());
    let mut server = Server::start(&[
        "--key-load-delay",
        "0",
        "--loading-process-events-interval-bytes",
        "1024",
        "--rdbcompression",
        "no",
    ]);
    let mut host = Host::ready(config(&server.url())).await;
    let fill = "for i = 1, 3000 do redis.call('SET', 'x' .. i, string.rep('x', 100)) end";
    server.say(&["EVAL", fill, "0"]);
    assert_eq!(server.say(&["SAVE"]), "+OK\r\n");
    host.reply("key").await;
    server.kill();
    // A minute for all keys, or until it is told to make haste.
    server.begin_restart(&["--key-load-delay", "20000"]);
    host.wait_for_fault(|fault| *fault == Fault::Loading).await;
    assert_eq!(host.ask("key").await, AskOutcome::Away);
    assert_eq!(server.say(&["CONFIG", "SET", "key-load-delay", "0"]), "+OK\r\n");
    host.reply_again("key").await;
}

#[tokio::test]
async fn something_else_under_the_name_of_a_record() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut host = Host::ready(config(&server.url())).await;
    let name = gcra_store::Names::new(b"").bucket("p.l", b"key", host.limit);
    server.say(&["LPUSH", &name.name(), "x"]);
    assert_eq!(host.ask("key").await, AskOutcome::Void);
    server.say(&["SET", &name.name(), "short"]);
    assert_eq!(host.ask("key").await, AskOutcome::Void, "an error in the script");
    host.reply("another").await;
    assert!(host.store.health().is_well());
}

#[tokio::test]
async fn a_server_that_dies_and_comes_back() {
    needs!(valkey());
    // Another test may have had the same port.
    let log_before = crate::host::log_length();
    let mut server = Server::start(&[]);
    let mut host = Host::ready(config(&server.url())).await;
    host.reply("key").await;
    assert!(!host.store.is_away());
    assert_eq!(host.store.away_since(), None);
    let opening = host.store.away_total();
    assert!(!opening.is_zero(), "until the first look there was no server");
    assert_eq!(host.store.away_total(), opening);

    let before = std::time::Instant::now();
    server.kill();
    host.wait_for_fault(|fault| matches!(fault, Fault::Connection(_))).await;
    assert_eq!(host.ask("key").await, AskOutcome::Away);
    assert!(host.store.is_away());
    let since = host.store.away_since().unwrap();
    assert!(since >= before);
    assert_eq!(host.store.away_since(), Some(since), "not since the latest look");
    server.restart();
    assert_eq!(host.reply_again("key").await.granted, 1);
    assert!(!host.store.is_away());
    let away = host.store.away_total();
    assert!(away > opening && away - opening <= since.elapsed());
    assert_eq!(host.store.away_total(), away);

    let begins = format!("the store at 127.0.0.1:{} ", server.port);
    let log = crate::host::log_lines(log_before, &begins);
    let kinds = log.iter().map(|line| match line.as_str() {
        line if line.starts_with("cannot be used: ") => "lost",
        "is used, without replicas" => "first",
        line if line.ends_with(" s without it, without replicas") => "found",
        other => panic!("{other}"),
    });
    // While the server starts, it may say something else than that it is not there.
    let mut kinds: Vec<_> = kinds.collect();
    kinds.dedup();
    assert_eq!(kinds, ["first", "lost", "found"], "{log:?}");
}

/// A frozen process accepts connections, and what it is sent stays in its socket.
#[tokio::test]
async fn a_server_that_hangs() {
    needs!(valkey());
    let mut server = Server::start(&[]);
    let mut config = config(&server.url());
    config.timeout = Duration::from_millis(300);
    config.connect_timeout = Duration::from_millis(300);
    // So that the asks find out before a look does.
    config.look_every = Duration::from_secs(1);
    let mut host = Host::open(config);
    host.reply_again("key").await;
    server.freeze();
    let began = Instant::now();
    host.submit(&["key", "other"]).unwrap();
    let answers = host.answers(2).await;
    assert!(answers.iter().all(|answer| answer.outcome == AskOutcome::Void), "{answers:?}");
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(host.ask("key").await, AskOutcome::Away, "known from the first answer on");
    let late = host.store.counters().late;
    assert!(late >= 2);
    // From now on nothing waits, although the server's port still accepts connections.
    host.wait_for_fault(|fault| *fault == Fault::Late).await;
    for _ in 0..100 {
        assert_eq!(host.ask("key").await, AskOutcome::Away);
    }
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(host.store.counters().late, late);

    server.thaw();
    // It now takes what was sent before. Those replies go nowhere.
    let before = host.store.counters().replies;
    let reply = host.reply_again("key").await;
    assert_eq!((reply.granted, host.store.counters().replies), (1, before + 1));
}

#[tokio::test]
async fn a_clock_that_leaps_is_noticed() {
    // The clock of the machine cannot be changed, so a server of our own tells other times.
    let url = crate::single::tells_times(vec![Some(0), Some(1_000_000_000), Some(0)]);
    let mut host = Host::ready(config(&url)).await;
    for _ in 0..3 {
        host.reply("key").await;
    }
    let counters = host.store.counters();
    assert_eq!((counters.leaps_forward, counters.leaps_back), (1, 1));
}

/// A server that is started again may have another clock.
#[tokio::test]
async fn a_clock_that_leaps_while_the_server_is_away_is_noticed() {
    let url = crate::single::tells_times(vec![Some(0), None, Some(1_000_000_000), None, Some(0)]);
    let mut host = Host::ready(config(&url)).await;
    for is_away in [false, true, false, true, false] {
        match is_away {
            false => assert_eq!(host.reply("key").await.granted, 1),
            true => {
                assert_eq!(host.ask("key").await, AskOutcome::Void);
                host.wait_until("the store can be used again", gcra_store::Health::is_well).await;
            }
        }
    }
    let counters = host.store.counters();
    assert_eq!((counters.leaps_forward, counters.leaps_back), (1, 1));
}

/// So may one that takes the place of another: here a sentinel names first one, then the other.
#[tokio::test]
async fn a_server_with_another_clock_that_takes_over_is_noticed() {
    let before = log_length();
    let ahead = 1_000_000_000;
    let urls =
        [vec![Some(0), None], vec![Some(ahead), Some(ahead)]].map(crate::single::tells_times);
    let ports = urls.map(|url| url.rsplit_once(':').unwrap().1.to_owned());
    let names = ports.clone();
    let place = Arc::new(AtomicUsize::new(0));
    let named = place.clone();
    let (sentinel, _) = serve(move |command, _| {
        let port = &names[named.load(Ordering::Relaxed)];
        match command {
            command if command.contains("GET-MASTER-ADDR-BY-NAME") => {
                format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
            }
            _ => "*0\r\n".to_owned(),
        }
        .into_bytes()
    });
    let mut host = Host::ready(config(&format!("redis+sentinel://127.0.0.1:{sentinel}/p"))).await;
    assert_eq!(host.reply("key").await.granted, 1);
    place.store(1, Ordering::Relaxed);
    assert_eq!(host.ask("key").await, AskOutcome::Void);
    // It answers the second ask of the host as its first.
    host.wait_until("the other one is used", |health| {
        health.is_well() && health.servers.iter().any(|it| it.address.ends_with(&ports[1]))
    })
    .await;
    host.number = 0;
    for _ in 0..2 {
        assert_eq!(host.reply("key").await.granted, 1);
    }
    let counters = host.store.counters();
    assert_eq!((counters.leaps_forward, counters.leaps_back), (1, 0));
    let lines = log_lines(before, "the store at ");
    let is_it = |line: &&String| line.contains("has taken over keys") && line.contains(&ports[1]);
    let told: Vec<_> = lines.iter().filter(is_it).collect();
    let [line] = &told[..] else { panic!("{lines:?}") };
    assert!(line.contains(&format!("ms ahead of that of the store at 127.0.0.1:{}", ports[0])));
}

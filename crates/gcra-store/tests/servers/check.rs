//! The findings of `check` about stores that are well, and about stores that are not.

use std::time::Duration;

use gcra_store::{Config, Fault, Finding, Kind, PERMISSIONS, Password};

use crate::fake::serve;
use crate::host::{checked, config};
use crate::support::{Server, cluster, cluster_url, needs, replica_of, sentinel_of, valkey};

/// All findings of one kind, one in a line.
async fn said(config: Config, kind: Kind) -> String {
    let findings = checked(config).await;
    let texts = findings.iter().filter(|it| it.kind == kind).map(|it| it.text.as_str());
    texts.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn how_long_a_call_takes() {
    needs!(valkey());
    let server = Server::start(&[]);
    let findings = checked(config(&server.url())).await;
    let calls: Vec<_> = findings.iter().filter_map(|finding| finding.call).collect();
    let [call] = calls[..] else { panic!("{findings:?}") };
    assert!(call > std::time::Duration::ZERO, "{findings:?}");
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
    let remark = said(config(&server.url()), Kind::Remark).await;
    assert!(remark.starts_with("least_replicas is 0: if a replica is promoted"), "{remark}");
    let mut replicated = config(&server.url());
    replicated.least_replicas = 1;
    let remark = "there is only 1 replica, and least_replicas is 1: after a failover the store \
                  cannot be used until there is another one";
    assert_eq!(said(replicated, Kind::Remark).await, remark);
}

#[tokio::test]
async fn a_server_with_a_password_and_a_sentinel_with_another() {
    needs!(valkey());
    let primary = Server::start(&[]);
    let replica = replica_of(&primary);
    let sentinel = sentinel_of(&primary, &replica);
    let of_sentinels = |name: &str| format!("redis+sentinel://{}/{name}", sentinel.address());
    let wrong = said(config(&of_sentinels("limit")), Kind::Wrong).await;
    let address = sentinel.address();
    assert_eq!(
        wrong,
        format!(
            "it is not known where the servers are: {address}: the sentinel does not know a \
             primary that is called 'limit'"
        )
    );
    let wrong = said(config(&sentinel.url()), Kind::Wrong).await;
    let cure = format!("it is a sentinel, not a primary; write redis+sentinel://{address}/store");
    assert!(wrong.ends_with(&cure), "{wrong}");
    let secret = ["ACL", "SETUSER", "default", "resetpass", ">secret"];
    sentinel.say(&secret);
    let wrong = said(config(&of_sentinels("store")), Kind::Wrong).await;
    assert!(wrong.contains("the user or the password is wrong: NOAUTH "), "{wrong}");
    let cure = "; name the password with sentinel_password_file in [store]";
    assert!(wrong.ends_with(cure), "{wrong}");
    replica.say(&["CONFIG", "SET", "requirepass", "secret"]);
    let wrong = said(config(&replica.url()), Kind::Wrong).await;
    let cure = "; name the password with password_file or --store-password-file";
    assert!(wrong.ends_with(cure), "{wrong}");
}

#[tokio::test]
async fn a_replica_that_hangs() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut replica = replica_of(&server);
    replica.freeze();
    let mut config = config(&server.url());
    (config.timeout, config.connect_timeout) = (Duration::from_secs(3), Duration::from_secs(3));
    let mut wrong = String::new();
    // On a busy machine the server itself may not answer in time, but not each time.
    for _ in 0..10 {
        wrong = said(config.clone(), Kind::Wrong).await;
        if !wrong.contains(&Fault::Late.to_string()) {
            break;
        }
    }
    assert!(wrong.ends_with("cannot be used: 0 replicas have confirmed, and 1 must"), "{wrong}");
    replica.thaw();
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
    assert!(
        wrong.contains("it has 0 replicas, and least_replicas is 2; start another one, or"),
        "{wrong}"
    );

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
    // A command that the script needs; each server has words of its own for that.
    server.say(&["ACL", "SETUSER", "weak", "-time"]);
    let wrong = said(weak.clone(), Kind::Wrong).await;
    assert!(wrong.contains("not permitted") && wrong.contains(PERMISSIONS), "{wrong}");
    server.say(&["ACL", "SETUSER", "weak", "+time"]);
    std::fs::write(&file, "wrong\n").unwrap();
    let wrong = said(weak.clone(), Kind::Wrong).await;
    assert!(wrong.contains("the user or the password is wrong: WRONGPASS"), "{wrong}");
    let source = format!("; the password is from the file {}", file.display());
    assert!(wrong.ends_with(&source) && !wrong.contains("wrong\n"), "{wrong}");
    std::fs::remove_file(&file).unwrap();
    let wrong = said(weak.clone(), Kind::Wrong).await;
    assert!(wrong.contains("the user or the password is wrong: the password file "), "{wrong}");
    weak.password = Password::Variable("GCRA_NO_SUCH_VARIABLE".to_owned());
    let wrong = said(weak, Kind::Wrong).await;
    assert!(wrong.contains("the variable GCRA…(21) has no password"), "{wrong}");

    server.say(&["REPLICAOF", "127.0.0.1", "1"]);
    let wrong = said(config(&url), Kind::Wrong).await;
    assert!(wrong.contains("it is a replica, not a primary; name its primary"), "{wrong}");
    drop(server);
    let wrong = said(config(&url), Kind::Wrong).await;
    assert!(wrong.contains("there is no connection: Connection refused"), "{wrong}");
}

/// The clock of a replica counts when it takes over.
#[tokio::test]
async fn clocks_that_differ() {
    // How much more the clocks of a primary and of its replica say, in seconds.
    for (primary, replica, differ) in [(0, 0, false), (0, 90, true), (90, 0, true)] {
        let time = |ahead: u64| {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            let [seconds, micros] = [now.as_secs() + ahead, u64::from(now.subsec_micros())]
                .map(|number| number.to_string())
                .map(|number| format!("${}\r\n{number}\r\n", number.len()));
            format!("*2\r\n{seconds}{micros}").into_bytes()
        };
        let (follower, _) = serve(move |_, _| time(replica));
        let role = move || {
            let port = follower.to_string();
            format!(
                "*3\r\n$6\r\nmaster\r\n:0\r\n*1\r\n*3\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n\
                 $1\r\n0\r\n",
                port.len()
            )
        };
        let (port, _) = serve(move |command, _| match command {
            "ROLE" => role().into_bytes(),
            "TIME" => time(primary),
            command if command.starts_with("WAIT") => b":1\r\n".to_vec(),
            _ => b"$0\r\n\r\n".to_vec(),
        });
        let url = format!("redis://127.0.0.1:{port}");
        let [ahead, behind] = match primary > replica {
            true => [port, follower],
            false => [follower, port],
        };
        let warning =
            format!("the clock of 127.0.0.1:{ahead} is ahead of that of 127.0.0.1:{behind} by ");
        let remarks = said(config(&url), Kind::Remark).await;
        assert_eq!(remarks.contains(&warning), differ, "{remarks}");
        let good = said(config(&url), Kind::Good).await;
        assert_eq!(good.contains("the clocks of 2 servers agree"), !differ, "{good}");
    }
}

#[tokio::test]
async fn a_server_that_is_something_else() {
    let wrong = |text: &'static str| async move {
        let (port, _) = serve(move |_, _| text.as_bytes().to_vec());
        said(config(&format!("redis://127.0.0.1:{port}")), Kind::Wrong).await
    };
    let http = wrong("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    assert!(
        http.contains("but with 'HTTP/1.1 400 Bad Request'; is this the address of"),
        "{http}"
    );

    // All is well but the answers of the script.
    for nonsense in [":1\r\n", "+OK\r\n", "$3\r\nabc\r\n", "*0\r\n"] {
        let (port, _) = serve(move |command, _| match command {
            "ROLE" => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
            _ => nonsense.as_bytes().to_vec(),
        });
        let wrong = said(config(&format!("redis://127.0.0.1:{port}")), Kind::Wrong).await;
        assert!(wrong.contains("it says something that is no reply to the ask"), "{wrong}");
    }
    needs!(valkey());
    let server = Server::start(&[]);
    let wrong = said(config(&format!("redis+sentinel://{}/a", server.address())), Kind::Wrong);
    let wrong = wrong.await;
    assert!(wrong.contains("; it is not a sentinel; name the sentinels"), "{wrong}");
    server.say(&["CONFIG", "SET", "maxclients", "1"]);
    let _only = std::net::TcpStream::connect(server.address()).unwrap();
    // The server counts a connection once it has accepted it.
    let url = server.url();
    let mut wrong = String::new();
    while !wrong.contains("max number of clients") {
        wrong = said(config(&url), Kind::Wrong).await;
    }
    assert!(wrong.contains("it says ERR max number of clients reached; raise"), "{wrong}");
}

/// A server that answers late as often as `is_late` says, of the times that it is called by the
/// script's hash or text, from 0.
async fn said_of_late(late: Duration, is_late: fn(usize) -> bool) -> Vec<Finding> {
    let mut calls = 0;
    let (port, _) = serve(move |command, _| match command.split(' ').next() {
        Some("ROLE") => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
        Some("EVAL" | "EVALSHA") => {
            if is_late(calls) {
                std::thread::sleep(late);
            }
            calls += 1;
            b"$0\r\n\r\n".to_vec()
        }
        _ => b"-ERR unknown\r\n".to_vec(),
    });
    let mut config = config(&format!("redis://127.0.0.1:{port}"));
    config.slow = Duration::from_millis(800);
    checked(config).await
}

#[tokio::test]
async fn one_late_reply_is_a_remark_and_most_are_wrong() {
    let late = Duration::from_millis(900);
    // The second call is the one by which an agent judges a new connection.
    for place in [|call| call == 1, |call| call == 7] as [fn(usize) -> bool; 2] {
        let findings = said_of_late(late, place).await;
        assert!(findings.iter().all(|it| it.kind != Kind::Wrong), "{findings:?}");
    }
    let findings = said_of_late(late, |call| call == 7).await;
    let remark = findings.iter().find(|it| it.text.starts_with("the script runs")).unwrap();
    assert_eq!(remark.kind, Kind::Remark);
    let end = " ms; at least half took no longer than the 800 ms for which requests wait";
    assert!(remark.text.ends_with(end), "{remark:?}");
    let findings = said_of_late(late, |call| call > 5).await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    let Finding { kind, text, .. } = &findings[0];
    assert_eq!(*kind, Kind::Wrong);
    assert!(text.contains(" cannot be used: its replies take "), "{text}");
    assert!(text.contains(" ms, and may take 800 ms at most"), "{text}");
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

//! One server: ways to reach it, and how asks travel.

use std::process::Command;
use std::thread;
use std::time::Duration;

use gcra_lease::Holding;
use gcra_store::{AskOutcome, Away, Certificate, Config, Fault, Names, Password, script};

use crate::fake::serve;
use crate::host::{
    Host, checked, config, config_without_looks, log_length, log_lines, permitted_user,
};
use crate::support::{Server, needs, programs, tls_program, valkey, valkey_tls};

#[tokio::test]
async fn asks_of_one_round_go_out_together_and_each_is_answered() {
    needs!(valkey());
    for program in programs() {
        let server = Server::start_program(&program, &[]);
        // A look makes the server learn the script.
        let mut host = Host::ready(config_without_looks(&server.url())).await;
        let keys: Vec<_> = (0..100).map(|key| format!("key {}", key % 70)).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        host.submit(&keys).unwrap();
        let answers = host.answers(100).await;
        for (answer, number) in answers.iter().zip(1..) {
            assert_eq!(answer.sent.ask.number.0, number);
            let AskOutcome::Reply(reply) = answer.outcome else { panic!("{answer:?}") };
            assert_eq!((reply.number.0, reply.granted), (number, 1));
        }
        let counters = host.store.counters();
        assert_eq!((counters.asks, counters.replies, counters.granted), (100, 100, 100));
        assert_eq!(counters.calls, 1);
        assert!(counters.micros >= 100);

        // NOSCRIPT: all are sent again, the first one with the text of the script.
        server.say(&["SCRIPT", "FLUSH"]);
        host.submit(&keys).unwrap();
        let answers = host.answers(100).await;
        assert!(answers.iter().all(|answer| matches!(answer.outcome, AskOutcome::Reply(_))));
        let counters = host.store.counters();
        assert_eq!((counters.asks, counters.calls, counters.replies), (300, 3, 200));
    }
}

#[tokio::test]
async fn a_holding_gets_cells_spends_and_reports_them() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut host = Host::ready(config(&server.url())).await;
    let bucket = Names::new(b"salt").bucket("p.l", b"key", host.limit);
    let mut holding = Holding::new();
    let (id, number) = (gcra_lease::HostId(5), gcra_lease::AskNumber);
    let validity = gcra_lease::Micros::from_millis(2_000);
    let wish = gcra_lease::Wish { want: 4, least: 1, validity };
    let now = host.now();
    let sent = holding.ask(&host.limit, now, id, number(1), wish);
    host.line.submit(vec![(bucket.clone(), sent)]).unwrap();
    let answer = host.answers(1).await[0];
    let AskOutcome::Reply(reply) = answer.outcome else { panic!("{answer:?}") };
    assert!(holding.reply(now, &answer.sent, &reply));
    assert!(holding.spend(now, 3));
    let sent = holding.give_back(&host.limit, now, id, number(2), 1);
    assert_eq!((sent.ask.spent, sent.ask.holds), (3, 0));
    host.line.submit(vec![(bucket.clone(), sent), (bucket, sent)]).unwrap();
    let answers = host.answers(2).await;
    let AskOutcome::Reply(reply) = answers[0].outcome else { panic!("{answers:?}") };
    assert_eq!(answers[1].outcome, AskOutcome::Ignored, "a copy");
    assert!(holding.reply(now, &answers[0].sent, &reply));
    assert_eq!((holding.unreported(), holding.held(now)), (0, 0));
}

#[tokio::test]
async fn a_unix_socket_a_database_a_user_and_a_password() {
    needs!(valkey());
    let server = Server::start(&["--unixsocket", "socket"]);
    let socket = server.directory.path().join("socket");
    let file = permitted_user(&server);
    for url in [
        format!("unix://gcra@{}", socket.display()),
        format!("redis://gcra@127.0.0.1:{}/3", server.port),
    ] {
        let mut config = config(&url);
        config.password = Password::File(file.clone());
        let mut host = Host::ready(config).await;
        assert_eq!(host.reply("key").await.granted, 1);
    }
    assert_eq!(server.say(&["ACL", "LOG"]), "*0\r\n", "nothing else was tried");
    assert!(server.say(&["INFO", "keyspace"]).contains("db3:keys=2"), "a record and a probe");

    std::fs::write(&file, "wrong\n").unwrap();
    let mut config = config(&format!("redis://gcra@127.0.0.1:{}", server.port));
    config.password = Password::File(file.clone());
    let mut host = Host::open(config);
    host.wait_for_fault(|fault| matches!(fault, Fault::Login(_))).await;
    assert!(!format!("{:?}", host.store).contains("wrong"));
    std::fs::write(&file, "secret\n").unwrap();
    assert_eq!(host.reply_again("key").await.granted, 1);
}

#[tokio::test]
async fn tls_with_an_authority_of_its_own() {
    needs!(valkey_tls());
    needs!(openssl());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let openssl = |arguments: &str| {
        let arguments = arguments.replace("DIR", directory.path().to_str().unwrap());
        let run = Command::new("openssl").args(arguments.split(' ')).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    };
    std::fs::write(path("ext"), "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        .unwrap();
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout DIR/ca.key -out DIR/ca.pem -subj /CN=ca");
    for name in ["store", "client"] {
        let request = format!("req -newkey rsa:2048 -nodes -keyout DIR/{name}.key -out DIR/csr");
        openssl(&format!("{request} -subj /CN={name}"));
        let sign = "x509 -req -in DIR/csr -CA DIR/ca.pem -CAkey DIR/ca.key -CAcreateserial";
        openssl(&format!("{sign} -extfile DIR/ext -out DIR/{name}.pem"));
    }
    let authority = path("ca.pem");
    let start = |port: u16, clients: &str| {
        let (pem, key, port) = (path("store.pem"), path("store.key"), port.to_string());
        let arguments = ["--tls-port", &port, "--tls-cert-file", &pem, "--tls-key-file", &key];
        let clients = ["--tls-ca-cert-file", &authority, "--tls-auth-clients", clients];
        let arguments = [&arguments[..], &clients].concat();
        Server::start_program(&tls_program().unwrap(), &arguments)
    };

    let port = crate::support::free_port();
    let _server = start(port, "no");
    let mut trusting = config(&format!("rediss://127.0.0.1:{port}"));
    trusting.authorities = Some(path("ca.pem").into());
    let mut host = Host::ready(trusting.clone()).await;
    assert_eq!(host.reply("key").await.granted, 1);

    let mut host = Host::open(config(&format!("rediss://127.0.0.1:{port}")));
    host.wait_for_fault(|fault| fault.to_string().contains("certificate")).await;
    let wrong = async |config: Config| {
        let findings = checked(config).await;
        findings.into_iter().map(|finding| finding.text).collect::<Vec<_>>().join("\n")
    };
    let untrusted = wrong(config(&format!("rediss://127.0.0.1:{port}"))).await;
    assert!(untrusted.contains(" with ca, or --store-ca"), "{untrusted}");
    // TLS at one end only.
    let without = wrong(config(&format!("redis://127.0.0.1:{port}"))).await;
    assert!(without.ends_with("; if this port has TLS, write rediss:// in the address"));
    let plain = Server::start(&[]);
    let mut without = config(&format!("rediss://127.0.0.1:{}", plain.port));
    without.connect_timeout = Duration::from_millis(300);
    let without = wrong(without).await;
    assert!(without.ends_with("; if this port has no TLS, write redis:// in the address"));

    // A server that wants to know who connects.
    let port = crate::support::free_port();
    let _strict = start(port, "yes");
    let mut known = config(&format!("rediss://127.0.0.1:{port}"));
    known.authorities.clone_from(&trusting.authorities);
    let mut host = Host::open(known.clone());
    // (TLS 1.3: it says why only when the connection is open, and the library does not tell.)
    host.wait_for_fault(|fault| *fault == Fault::Closed).await;
    let wrong = wrong(known.clone()).await;
    assert!(wrong.contains("; if the server wants a certificate of its clients, name"), "{wrong}");
    let certificate = |chain: &str, key: &str| {
        Some(Certificate { chain: path(chain).into(), key: path(key).into() })
    };
    known.certificate = certificate("client.pem", "client.key");
    let mut host = Host::ready(known.clone()).await;
    assert_eq!(host.reply("key").await.granted, 1);

    for (chain, key, says) in [
        ("client.pem", "store.key", "client.pem: "),
        ("client.key", "client.key", "client.key: no certificate is in it"),
        ("client.pem", "missing", "missing: "),
    ] {
        known.certificate = certificate(chain, key);
        let error = gcra_store::Store::open(known.clone()).map(drop).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

fn openssl() -> Result<(), String> {
    let run = Command::new("openssl").arg("version").output();
    run.map(drop).map_err(|_| "openssl is not installed".into())
}

#[tokio::test]
async fn more_asks_than_there_is_space_for_are_refused_at_once() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut config = config(&server.url());
    config.most_asks = 3;
    let mut host = Host::ready(config).await;
    assert_eq!(host.submit(&["1", "2", "3", "4"]), Err(Away::Full));
    host.submit(&["1", "2", "3"]).unwrap();
    assert_eq!(host.submit(&["4"]), Err(Away::Full), "even if they are answered");
    host.answers(3).await;
    host.submit(&["1", "2", "3"]).unwrap();
    // A line that is dropped gives back what it did not fetch.
    host.line = host.store.line();
    while host.submit(&["1", "2", "3"]).is_err() {
        tokio::task::yield_now().await;
    }
    host.answers(3).await;
}

#[tokio::test]
async fn answers_come_to_the_line_that_asked() {
    needs!(valkey());
    let server = Server::start(&[]);
    let mut host = Host::ready(config(&server.url())).await;
    let other = host.store.line();
    host.submit(&["1", "2"]).unwrap();
    let first = std::mem::replace(&mut host.line, other);
    host.submit(&["3"]).unwrap();
    let answers = host.answers(1).await;
    assert_eq!(answers[0].sent.ask.number.0, 3);
    host.line = first;
    let answers = host.answers(2).await;
    assert_eq!(answers.iter().map(|it| it.sent.ask.number.0).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn the_task_ends_when_all_is_answered_that_was_asked() {
    needs!(valkey());
    let server = Server::start(&[]);
    let (mut store, task) = gcra_store::Store::open(config(&server.url())).unwrap();
    let task = tokio::spawn(task);
    store.wait_for(gcra_store::Health::is_well).await;
    drop(store);
    tokio::time::timeout(crate::support::PATIENCE, task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reply_is_void_if_fewer_replicas_have_confirmed_it_than_there_are() {
    // (A real server answers to WAIT only when the time is over, and so too late.)
    for (confirmed, used) in [(2, true), (1, false), (0, false)] {
        let replicas = "*2\r\n*3\r\n+a\r\n+1\r\n+0\r\n*3\r\n+b\r\n+1\r\n+0\r\n";
        let url = answers(replicas, ":2\r\n", move |asked| {
            [written(asked as u64, 1), format!(":{confirmed}\r\n").into_bytes()].concat()
        });
        let mut host = Host::ready(config(&url)).await;
        assert_eq!(host.store.health().servers[0].replicas, 2);
        let outcome = host.ask("key").await;
        assert_eq!(matches!(outcome, AskOutcome::Reply(_)), used, "{outcome:?}");
        if !used {
            assert_eq!(outcome, AskOutcome::Void);
            let fault = Fault::Replicas { are: confirmed, needed: 2 };
            assert_eq!(host.store.health().servers[0].fault, Some(fault));
        }
    }
}

/// A server that answers each ask with `answer`. It says that it is a primary without replicas.
pub fn answers_with(answer: impl Fn(usize) -> Vec<u8> + Send + 'static) -> String {
    answers("*0\r\n", "", answer)
}

/// The same with replicas, and what is said behind the answer to the ask of a look.
pub fn answers(
    replicas: &'static str,
    behind: &'static str,
    answer: impl Fn(usize) -> Vec<u8> + Send + 'static,
) -> String {
    let mut asked = 0;
    let (port, _) = serve(move |command, _| {
        if command.starts_with("ROLE") {
            format!("*3\r\n$6\r\nmaster\r\n:0\r\n{replicas}").into_bytes()
        } else if command.contains(":probe:") {
            format!("$0\r\n\r\n{behind}").into_bytes()
        } else if command.starts_with("WAIT") {
            // Its answer is behind that to the command in front of it.
            Vec::new()
        } else {
            asked += 1;
            answer(asked)
        }
    });
    format!("redis://127.0.0.1:{port}")
}

/// A server whose clock says this much more in one reply after the other. Where there is nothing,
/// it does not reply, but says that it was started again.
pub fn tells_times(more: Vec<Option<u64>>) -> String {
    let began = std::time::Instant::now();
    answers_with(move |asked| {
        let now = u64::try_from(began.elapsed().as_micros()).unwrap();
        match more[asked - 1] {
            Some(more) => written_at(asked as u64, 1, 1_800_000_000_000_000 + now + more),
            None => b"-LOADING it is reading its data set\r\n".to_vec(),
        }
    })
}

/// The error of a server of a cluster about a slot that is being moved, if a call needs several
/// records.
const TRYAGAIN: &[u8] = b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n";

/// A slot is being moved: the ask is sent again after a while, and there is one answer to it.
#[tokio::test]
async fn an_ask_about_a_slot_that_is_being_moved_is_sent_again_after_a_while() {
    let before = log_length();
    let url = answers_with(|asked| match asked {
        1 => TRYAGAIN.to_vec(),
        _ => written(1, 1),
    });
    let mut host = Host::ready(config(&url)).await;
    assert_eq!(host.reply("key").await.granted, 1);
    let counters = host.store.counters();
    assert_eq!((counters.asks, counters.replies, counters.void), (2, 1, 0));
    let address = url.trim_start_matches("redis://");
    let lines = log_lines(before, "slot ");
    let ours: Vec<_> = lines.iter().filter(|line| line.contains(address)).collect();
    let [line] = &ours[..] else { panic!("{lines:?}") };
    assert!(line.contains(" is being moved, and the store at "), "{line}");
}

/// A host is not told before the time is over, so it does not ask again and again.
#[tokio::test]
async fn a_slot_that_stays_open_is_asked_about_a_few_times() {
    let url = answers_with(|_| TRYAGAIN.to_vec());
    let mut host = Host::ready(config(&url)).await;
    assert_eq!(host.ask("key").await, AskOutcome::Void);
    let counters = host.store.counters();
    assert!(counters.asks <= 3, "{counters:?}");
    assert_eq!((counters.replies, counters.void), (0, 1));
    assert!(host.store.health().is_well(), "the server can be used for other keys");
}

/// A reply as the script writes it.
fn written(number: u64, granted: u32) -> Vec<u8> {
    written_at(number, granted, 1_800_000_000_000_000)
}

fn written_at(number: u64, granted: u32, now: u64) -> Vec<u8> {
    let mut bytes = (number as f64).to_le_bytes().to_vec();
    for number in [0, granted, 0, 0, 1] {
        bytes.extend(u32::to_le_bytes(number));
    }
    bytes.extend([0, 0]);
    bytes.extend((now as f64).to_le_bytes());
    assert!(script::reply(&bytes).is_ok());
    [format!("${}\r\n", bytes.len()).into_bytes(), bytes, b"\r\n".to_vec()].concat()
}

#[tokio::test]
async fn an_answer_that_belongs_to_another_ask_is_never_used() {
    // The first ask is answered twice.
    let url = answers_with(|asked| match asked {
        1 => [written(1, 1), written(1, 1)].concat(),
        asked => written(asked as u64, 1),
    });
    let mut host = Host::ready(config(&url)).await;
    assert!(matches!(host.ask("key").await, AskOutcome::Reply(_)));
    let second = host.ask("key").await;
    let third = host.ask("key").await;
    // The copy is taken for the answer to the second ask, unless the library drops it.
    if let AskOutcome::Reply(reply) = second {
        assert_eq!(reply.number.0, 2);
    }
    if let AskOutcome::Reply(reply) = third {
        assert_eq!(reply.number.0, 3);
    }
}

#[tokio::test]
async fn a_round_trip_is_what_replies_take() {
    let url = answers_with(|asked| {
        thread::sleep(std::time::Duration::from_millis(9));
        written(asked as u64, 1)
    });
    let mut host = Host::ready(config(&url)).await;
    assert_eq!(host.store.round_trip().get(), 500, "is supposed before the first reply");
    host.reply("key").await;
    let measured = host.store.round_trip().get();
    assert!((9_000..=500_000).contains(&measured), "{measured}");
}

#[tokio::test]
async fn an_answer_that_is_no_reply_closes_the_connection() {
    // It has one cell more than what was held, behind the length and the number.
    let mut keeps = written(1, 1);
    keeps["$37\r\n".len() + 8] = 1;
    for answer in [
        written(17, 1),
        written(1, 2),
        keeps,
        b"$3\r\nabc\r\n".to_vec(),
        b":1\r\n".to_vec(),
        b"$-1\r\n".to_vec(),
        b"what\r\n".to_vec(),
    ] {
        let url = answers_with(move |_| answer.clone());
        let mut host = Host::ready(config(&url)).await;
        assert_eq!(host.ask("key").await, AskOutcome::Void);
        assert_eq!(host.store.counters().void, 1);
        host.wait_until("it connects again", |health| health.looks > 1 && health.is_well()).await;
    }
}

#[tokio::test]
async fn without_a_server_nothing_waits() {
    let mut host = Host::open(config("redis://127.0.0.1:1"));
    let opened = host.store.away_since();
    assert!(host.store.is_away() && opened.is_some());
    assert_eq!(host.submit(&["key"]), Err(Away::Unusable));
    host.wait_for_fault(|fault| matches!(fault, Fault::Connection(_))).await;
    assert_eq!(host.submit(&["key"]), Err(Away::Unusable));
    assert_eq!(host.store.counters().away, 2);
    assert_eq!(host.store.away_since(), opened);
}

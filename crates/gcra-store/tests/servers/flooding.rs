//! A server that sends more than any answer needs, and answers that are as long as they can be.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gcra_store::{AskOutcome, Kind, Names, Standing};

use crate::fake::serve;
use crate::host::{Host, checked, config, config_without_looks};

const MIB: usize = 1 << 20;

/// The bytes that a server floods with: once, and then again and again.
const FLOODS: [(&[u8], &[u8]); 5] = [
    (b"$2147483647\r\n", b"data"),
    (b"+", b"a line without an end "),
    (b"-ERR ", b"an error without an end "),
    (b"*2147483647\r\n", b":1\r\n"),
    (b"", b"+OK\r\n"),
];

fn flood((once, again): (&[u8], &[u8])) -> Vec<u8> {
    [once, &again.repeat(64 * MIB / again.len())].concat()
}

/// The answers of a server that is well, up to the first ask.
fn well(text: &str) -> Option<Vec<u8>> {
    if text.contains("ROLE") {
        Some(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec())
    } else {
        text.contains(":probe:").then(|| b"$0\r\n\r\n".to_vec())
    }
}

fn is_told(what: (&[u8], &[u8]), said: &str) -> bool {
    // An answer that is whole and wrong ends the connection before there are too many.
    said.contains("the connection was closed, because more than ") || what.0.is_empty()
}

#[tokio::test]
async fn a_look_that_is_flooded_ends_soon_and_is_told() {
    for what in FLOODS {
        let (port, sent) = serve(move |_, _| flood(what));
        let url = format!("redis://127.0.0.1:{port}");
        let findings = checked(config(&url)).await;
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!(finding.kind, Kind::Wrong);
        assert!(is_told(what, &finding.text), "{finding:?}");
        assert!(sent.load(Ordering::Relaxed) < 32 * MIB, "{}", sent.load(Ordering::Relaxed));

        // On a busy machine a look may end before it is flooded. Another one comes.
        let mut host = Host::open(config(&url));
        host.wait_for_fault(|fault| is_told(what, &fault.to_string())).await;
        assert_eq!(host.ask("key").await, AskOutcome::Away);
    }
}

#[tokio::test]
async fn asks_and_readings_that_are_flooded_end_soon_and_are_told() {
    for what in FLOODS {
        let (port, sent) = serve(move |text, _| well(text).unwrap_or_else(|| flood(what)));
        let mut config = config_without_looks(&format!("redis://127.0.0.1:{port}"));
        // A busy machine reads a flood for long.
        config.timeout = Duration::from_secs(80);
        config.connect_timeout = config.timeout;
        let mut host = Host::ready(config.clone()).await;
        assert_eq!(host.ask("key").await, AskOutcome::Void);
        let bucket = Names::new(b"").bucket("p.l", b"key", host.limit);
        let fault = host.store.health().servers[0].fault.clone().unwrap().to_string();
        assert!(is_told(what, &fault), "{fault}");
        let error = Standing::read(config, &bucket).await.unwrap_err().to_string();
        assert!(is_told(what, &error), "{error}");
        let sent = sent.load(Ordering::Relaxed);
        assert!(sent < 96 * MIB, "{sent} of 128 MiB");
    }
}

/// Each slot by itself, as a cluster says it that was cut into the smallest parts.
#[tokio::test]
async fn the_longest_map_of_a_cluster_is_read() {
    let (port, _) = serve(|text, port| {
        if !text.contains("SLOTS") {
            return well(text).unwrap_or_default();
        }
        let slots = (0..16_384).map(|slot| {
            let node = format!("*4\r\n$0\r\n\r\n:{port}\r\n$40\r\n{slot:040}\r\n*0\r\n");
            format!("*3\r\n:{slot}\r\n:{slot}\r\n{node}")
        });
        format!("*16384\r\n{}", slots.collect::<String>()).into_bytes()
    });
    let host = Host::ready(config(&format!("redis+cluster://127.0.0.1:{port}"))).await;
    assert_eq!(host.store.health().servers.len(), 1);
}

#[tokio::test]
async fn words_of_a_server_are_short_and_printable() {
    let error = || format!("-ERR \x1b[31m{}\r\n", "e".repeat(40_000)).into_bytes();
    let (port, _) = serve(move |_, _| error());
    let findings = checked(config(&format!("redis://127.0.0.1:{port}"))).await;
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert!(finding.text.contains("it says ERR ?[31meee"), "{finding:?}");
    assert!(finding.text.len() < 300, "{}", finding.text.len());

    // The library shows an answer that is none at all.
    let (port, _) = serve(|_, _| format!("${}\r\n", "\x1b".repeat(40_000)).into_bytes());
    let findings = checked(config(&format!("redis://127.0.0.1:{port}"))).await;
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert!(finding.text.len() < 400, "{}", finding.text.len());
    assert!(!finding.text.contains('\x1b'), "{finding:?}");

    // Versions, and other values of INFO.
    let (port, _) = serve(|text, _| {
        let info =
            format!("valkey_version:\x1b{0}\r\nmaxmemory_policy:\x1b{0}", "v".repeat(9_999));
        let info = format!("${}\r\n{info}\r\n", info.len());
        if text.contains("INFO") {
            return info.into_bytes();
        }
        // The server does not know how to tell the time.
        well(text).unwrap_or_else(|| b"-ERR\r\n".to_vec())
    });
    let findings = checked(config(&format!("redis://127.0.0.1:{port}"))).await;
    assert!(findings.len() > 2, "{findings:?}");
    for finding in findings {
        assert!(finding.text.len() < 500, "{finding:?}");
        assert!(!finding.text.contains('\x1b'), "{finding:?}");
    }
}

/// The names of servers come from other servers, too.
#[tokio::test]
async fn a_host_that_is_not_a_name_is_not_looked_for() {
    for host in ["\x1b[31m".to_owned(), "h".repeat(256), "a b".to_owned()] {
        let (port, _) = serve(move |text, port| {
            let address = format!("${}\r\n{host}\r\n", host.len());
            let port = if text.contains("GET-MASTER") {
                format!("$5\r\n{port:05}\r\n")
            } else {
                format!(":{port}\r\n")
            };
            let answer = if text.contains("SLOTS") {
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{address}{port}")
            } else {
                format!("*2\r\n{address}{port}")
            };
            answer.into_bytes()
        });
        for url in ["redis+cluster://127.0.0.1:PORT", "redis+sentinel://127.0.0.1:PORT/name"] {
            let url = url.replace("PORT", &port.to_string());
            let findings = checked(config(&url)).await;
            let [finding] = &findings[..] else { panic!("{findings:?}") };
            assert!(
                finding.text.contains("it is not known where the servers are: "),
                "{finding:?}"
            );
            assert!(!finding.text.contains('\x1b'), "{finding:?}");
        }
    }
}

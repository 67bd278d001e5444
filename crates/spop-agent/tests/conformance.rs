//! HAProxy's expectations of an agent, which docs/internals/PROTOCOL.md lists.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod peer;

use std::time::Duration;

use peer::{
    PATIENCE, Peer, Sent, ack, disconnect, hello, measure, notify, patient, serve, welcome, within,
};
use spop_agent::{Agent, Limits};
use spop_codec::Status;
use spop_codec::haproxy::{HelloFields, encode_hello};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, timeout};

const FIN: u32 = 1;

/// A frame of any kind.
fn frame(kind: u8, flags: u32, ids: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(7 + payload.len()).unwrap();
    [&length.to_be_bytes()[..], &[kind], &flags.to_be_bytes(), &ids, payload].concat()
}

fn hello_with(
    versions: &str,
    max_frame_size: u32,
    capabilities: &str,
    healthcheck: Option<bool>,
) -> Vec<u8> {
    let mut out = vec![0; 512];
    let fields =
        HelloFields { versions, max_frame_size, capabilities, engine_id: Some("e"), healthcheck };
    let length = encode_hello(&mut out, &fields).unwrap();
    out.truncate(length);
    out
}

fn pair(key: &str, value: &[u8]) -> Vec<u8> {
    [&[u8::try_from(key.len()).unwrap()], key.as_bytes(), value].concat()
}

/// A HELLO of these pairs.
fn hello_of(pairs: &[Vec<u8>]) -> Vec<u8> {
    frame(1, FIN, [0, 0], &pairs.concat())
}

#[tokio::test]
async fn the_first_frame_is_a_good_hello_or_gets_its_status() {
    let served = serve(Agent::new(measure)).await;
    let versions = || pair("supported-versions", b"\x08\x032.0");
    let size = || pair("max-frame-size", b"\x03\xfc\xf0\x06");
    let capabilities = || pair("capabilities", b"\x08\x00");
    let cases = [
        (hello_of(&[size(), capabilities()]), Status::NO_VERSION),
        (hello_of(&[versions(), capabilities()]), Status::NO_MAX_FRAME_SIZE),
        (hello_of(&[versions(), size()]), Status::NO_CAPABILITIES),
        (hello_with("1.0", 16380, "", None), Status::BAD_VERSION),
        (hello_with("3.0, abc", 16380, "", None), Status::BAD_VERSION),
        (hello_with("2.0", 255, "", None), Status::BAD_MAX_FRAME_SIZE),
        (
            frame(1, 0, [0, 0], &[versions(), size(), capabilities()].concat()),
            Status::FRAGMENTATION,
        ),
        (frame(1, FIN, [1, 0], &[versions(), size(), capabilities()].concat()), Status::INVALID),
        (notify(1, b"a"), Status::INVALID),
        (disconnect(Status::NORMAL), Status::INVALID),
        (frame(101, FIN, [0, 0], &[]), Status::INVALID),
        (frame(50, FIN, [0, 0], &[]), Status::INVALID),
    ];
    for (bytes, status) in cases {
        assert_eq!(
            Peer::said_to(&served, &bytes).await,
            [Sent::Disconnect(status)],
            "{bytes:02x?}"
        );
    }
    let second = [hello(16380, None), hello(16380, None)].concat();
    assert_eq!(
        Peer::said_to(&served, &second).await,
        [welcome(16380), Sent::Disconnect(Status::INVALID)]
    );
    served.stop().await;
}

#[tokio::test]
async fn a_hello_is_read_in_any_order_with_anything_unknown_in_it() {
    let served = serve(Agent::new(measure)).await;
    let good = [
        hello_of(&[
            pair("capabilities", b"\x08\x0ffoo, pipelining"),
            pair("later", b"\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01"),
            pair("max-frame-size", b"\x04\xfc\xf0\x06"),
            pair("healthcheck", b"\x01"),
            pair("supported-versions", b"\x08\x0d abc,1.0, 2.5"),
        ]),
        hello_with("2.0", 16380, "async,pipelining", Some(false)),
    ];
    for bytes in good {
        let mut peer = Peer::connect(&served).await;
        peer.send(&bytes).await;
        assert_eq!(peer.next().await, welcome(16380));
        peer.send(&notify(1, b"abc")).await;
        assert_eq!(peer.next().await, ack(1, 3));
    }
    served.stop().await;
}

#[tokio::test]
async fn only_what_haproxy_offers_and_what_fits_is_agreed() {
    let mut limits = Limits::default();
    limits.max_ack_size = 2000;
    let (small, large) =
        (serve(Agent::new(measure)).await, serve(Agent::new(measure).limits(limits)).await);
    let mut smallest = Limits::default();
    smallest.max_ack_size = 40;
    let smallest = serve(Agent::new(measure).limits(smallest)).await;
    for (served, offered, size, pipelining) in [
        (&small, "pipelining", 16380, true),
        (&small, "pipelining,async", 16380, true),
        (&small, "", 16380, false),
        (&small, "async", 16380, false),
        (&small, "pipelining", 16379, true),
        // HAProxy has a smaller buffer, or may have one.
        (&small, "pipelining", 16300, false),
        (&small, "pipelining", 4092, false),
        (&small, "pipelining,async", 4092, true),
        (&smallest, "pipelining", 4092, true),
        (&smallest, "pipelining", 1000, true),
        (&smallest, "pipelining", 800, false),
        (&large, "pipelining", 16380, false),
        (&large, "pipelining,async", 16380, true),
        (&large, "pipelining", 65532, true),
    ] {
        let mut peer = Peer::connect(served).await;
        peer.send(&hello_with("2.0", size, offered, None)).await;
        let agreed = Sent::Hello { max_frame_size: size, pipelining, fragmentation: true };
        assert_eq!(peer.next().await, agreed, "{offered}");
    }
    // The smaller frame size is in force.
    let mut peer = Peer::connect(&small).await;
    peer.send(&hello(1 << 30, None)).await;
    assert_eq!(peer.next().await, welcome(1 << 20));
    for served in [small, large, smallest] {
        served.stop().await;
    }
}

#[tokio::test]
async fn an_agent_hello_is_one_write_and_nothing_follows_it() {
    let served = serve(Agent::new(measure).limits(patient())).await;
    let mut peer = Peer::connect(&served).await;
    peer.send_in_pieces(&hello(16380, None), 1, Duration::from_millis(1)).await;
    let mut first = [0; 1000];
    let filled = peer.stream.read(&mut first).await.unwrap();
    assert_eq!(
        u32::from_be_bytes(*first.first_chunk().unwrap()) as usize + 4,
        filled,
        "whole, in one segment"
    );
    assert!(peer.is_silent(Duration::from_millis(300)).await);
    served.stop().await;
}

#[tokio::test]
async fn ids_are_copied_whatever_they_are_and_repeated_ones_are_answered() {
    let served = serve(Agent::new(measure)).await;
    let mut peer = Peer::greeted(&served).await;
    let ids = [0, 1, 1, 239, 240, 2287, 2288, u64::from(u32::MAX), 1 << 63, u64::MAX, 0];
    let burst: Vec<u8> = ids.iter().flat_map(|stream| notify(*stream, b"a")).collect();
    peer.send(&burst).await;
    for stream in ids {
        assert_eq!(peer.next().await, ack(stream, 1));
    }
    served.stop().await;
}

#[tokio::test]
async fn unknown_messages_and_unknown_flags_are_answered_and_unknown_frames_skipped() {
    let served = serve(Agent::new(measure)).await;
    let mut peer = Peer::greeted(&served).await;
    let unknown_message = frame(3, FIN, [1, 1], b"\x05other\x00");
    let no_message = frame(3, 0x8000_0101, [3, 1], b"");
    let unknown_frame = frame(77, 0, [9, 9], b"whatever");
    peer.send(&[unknown_message, unknown_frame, no_message, notify(5, b"ab")].concat()).await;
    for expected in [Sent::Ack(1, 1, vec![]), Sent::Ack(3, 1, vec![]), ack(5, 2)] {
        assert_eq!(peer.next().await, expected);
    }
    for kind in [101, 102, 103] {
        let mut peer = Peer::greeted(&served).await;
        peer.send(&frame(kind, FIN, [0, 0], b"")).await;
        assert_eq!(peer.next().await, Sent::Disconnect(Status::INVALID), "a frame of agents");
    }
    served.stop().await;
}

#[tokio::test]
async fn a_message_in_pieces_is_put_together_between_others() {
    let served = serve(Agent::new(measure).limits(patient())).await;
    let mut peer = Peer::greeted(&served).await;
    let whole = notify(3, &[b'x'; 3000]);
    let payload = &whole[11..];
    let cut = [
        notify(1, b"a"),
        frame(3, 0, [3, 1], &payload[..1000]),
        frame(0, 0, [3, 1], &payload[1000..2000]),
        frame(0, FIN, [3, 1], &payload[2000..]),
        notify(5, b"abc"),
    ]
    .concat();
    peer.send_in_pieces(&cut, 700, Duration::from_millis(2)).await;
    for expected in [ack(1, 1), ack(3, 3000), ack(5, 3)] {
        assert_eq!(peer.next().await, expected);
    }
    // HAProxy gives it up: no answer, and no error.
    peer.send(&[frame(3, 0, [7, 1], b"\x01m"), frame(0, 3, [7, 1], b""), notify(9, b"")].concat())
        .await;
    assert_eq!(peer.next().await, ack(9, 0));
    peer.send(&[frame(3, 0, [7, 1], b"\x01m"), notify(9, b"")].concat()).await;
    assert_eq!(peer.next().await, Sent::Disconnect(Status::INTERLACED));
    let mut peer = Peer::greeted(&served).await;
    peer.send(
        &[notify(1, b""), frame(3, 0, [3, 1], b"\x01m\x01"), frame(0, FIN, [3, 1], b"\x05")]
            .concat(),
    )
    .await;
    assert_eq!(peer.next().await, ack(1, 0));
    assert_eq!(
        peer.next().await,
        Sent::Disconnect(Status::INVALID),
        "put together it is no NOTIFY"
    );
    assert_eq!(served.counters.snapshot().reassembled, 2);
    served.stop().await;
}

#[tokio::test]
async fn a_notify_of_more_messages_than_an_event_has_is_refused_whole_and_in_pieces() {
    let served = serve(Agent::new(measure)).await;
    let messages = |count| b"\x01m\x00".repeat(count);
    let whole = |count| frame(3, FIN, [1, 1], &messages(count));
    let cut = |count| {
        let messages = messages(count);
        let (first, last) = messages.split_at(100);
        [frame(3, 0, [1, 1], first), frame(0, FIN, [1, 1], last)].concat()
    };
    let mut other = Peer::greeted(&served).await;
    for (most, more) in [(whole(64), whole(65)), (cut(64), cut(65)), (cut(64), cut(40_000 / 3))] {
        let mut peer = Peer::greeted(&served).await;
        peer.send(&most).await;
        assert_eq!(peer.next().await, Sent::Ack(1, 1, vec![]));
        peer.send(&more).await;
        assert_eq!(peer.next().await, Sent::Disconnect(Status::TOO_BIG));
        assert_eq!(peer.next().await, Sent::End);
        other.send(&notify(1, b"abc")).await;
        assert_eq!(other.next().await, ack(1, 3), "others are served");
    }
    let began = Instant::now();
    while served.counters.snapshot().protocol_errors < 3 {
        assert!(began.elapsed() < PATIENCE);
        sleep(Duration::from_millis(10)).await;
    }
    served.stop().await;
}

#[tokio::test]
async fn a_fault_that_haproxy_finds_is_answered_like_any_goodbye() {
    let served = serve(Agent::new(measure)).await;
    for status in [Status::TOO_BIG, Status::INVALID, Status::new(1234)] {
        let mut peer = Peer::greeted(&served).await;
        peer.send(&disconnect(status)).await;
        assert_eq!(peer.next().await, Sent::Disconnect(Status::NORMAL));
        assert_eq!(peer.next().await, Sent::End);
    }
    served.stop().await;
}

#[tokio::test]
async fn a_refusal_comes_late_and_the_socket_stays_open_until_haproxy_closes() {
    let served = serve(Agent::new(measure)).await;
    let began = Instant::now();
    let mut refused = Peer::connect(&served).await;
    refused.send(&hello_with("1.0", 16380, "", None)).await;
    assert_eq!(refused.next().await, Sent::Disconnect(Status::BAD_VERSION));
    // HAProxy up to 3.0 connects again at once, so it must wait.
    assert!(began.elapsed() >= Duration::from_millis(95), "{:?}", began.elapsed());
    assert_eq!(refused.next().await, Sent::End);
    assert!(
        began.elapsed() >= Duration::from_millis(95 + 195),
        "no FIN together with the frame: {:?}",
        began.elapsed()
    );

    // A peer that closes does not have to wait. On a busy machine this may take several attempts.
    let mut took = Vec::new();
    while !took.iter().any(|time| *time < Duration::from_millis(150)) {
        assert!(took.len() < 100, "{took:?}");
        let mut peer = Peer::greeted(&served).await;
        peer.send(&disconnect(Status::NORMAL)).await;
        assert_eq!(peer.next().await, Sent::Disconnect(Status::NORMAL));
        peer.stream.shutdown().await.unwrap();
        let closed = Instant::now();
        assert_eq!(peer.next().await, Sent::End);
        took.push(closed.elapsed());
    }
    served.stop().await;
}

#[tokio::test]
async fn an_end_between_frames_is_ordinary_and_one_inside_is_counted() {
    let served = serve(Agent::new(measure).limits(patient())).await;
    for (half, reset) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut peer = Peer::greeted(&served).await;
        peer.send(&notify(1, b"a")).await;
        assert_eq!(peer.next().await, ack(1, 1));
        if half {
            peer.send(&notify(3, b"abc")[..9]).await;
            sleep(Duration::from_millis(50)).await;
        }
        if reset {
            peer.reset();
        }
    }
    let began = Instant::now();
    while served.counters.snapshot().open > 0 {
        assert!(began.elapsed() < PATIENCE);
        sleep(Duration::from_millis(10)).await;
    }
    let counters = served.counters.snapshot();
    assert_eq!((counters.truncated, counters.protocol_errors, counters.timeouts), (2, 0, 0));
    served.stop().await;
}

/// One byte a second counts as silence.
#[tokio::test]
async fn a_frame_has_a_deadline_however_steadily_it_comes() {
    let mut limits = Limits::default();
    limits.frame_timeout = Duration::from_millis(300);
    let served = serve(Agent::new(measure).limits(limits)).await;
    let mut peer = Peer::greeted(&served).await;
    let mut other = Peer::greeted(&served).await;
    let (mut read, mut write) = peer.stream.split();
    let trickle = async {
        for byte in notify(1, &[b'x'; 100]) {
            if write.write_all(&[byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let mut answer = [0; 1000];
    let ended = async { timeout(PATIENCE, read.read(&mut answer)).await.unwrap() };
    tokio::select! {
        () = trickle => panic!("it was never ended"),
        filled = ended => assert_eq!(answer[4], 102, "AGENT-DISCONNECT in {filled:?} bytes"),
    }
    other.send(&notify(1, b"a")).await;
    assert_eq!(other.next().await, ack(1, 1), "others are served");
    let began = Instant::now();
    while served.counters.snapshot().timeouts == 0 {
        assert!(began.elapsed() < PATIENCE);
        sleep(Duration::from_millis(10)).await;
    }
    served.stop().await;
}

/// Reads a byte now and then, and so never everything that was sent.
#[tokio::test]
async fn a_peer_that_reads_too_slowly_loses_its_connection() {
    let served = serve(Agent::new(measure)).await;
    let mut peer = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..2000).flat_map(|stream| notify(stream, b"")).collect();
    let began = Instant::now();
    let mut byte = [0; 1];
    while served.counters.snapshot().timeouts == 0 {
        assert!(began.elapsed() < 2 * PATIENCE, "{:?}", served.counters.snapshot());
        let _ = timeout(Duration::from_millis(50), peer.stream.write(&burst)).await;
        let _ = timeout(Duration::from_millis(50), peer.stream.read(&mut byte)).await;
    }
    assert_eq!(served.counters.snapshot().open, 0);
    served.stop().await;
}

/// Every connection has one end, every NOTIFY one ACK and one latency.
#[tokio::test]
async fn the_counters_add_up() {
    let served = serve(Agent::new(measure)).await;
    let counters = served.counters.clone();
    let ask = async || {
        let mut peer = Peer::greeted(&served).await;
        peer.send(&notify(1, b"abc")).await;
        assert_eq!(peer.next().await, ack(1, 3));
        peer
    };
    ask().await.reset();
    let mut half = ask().await;
    half.send(&notify(2, b"abc")[..10]).await;
    half.reset();
    let mut polite = ask().await;
    polite.send(&disconnect(Status::NORMAL)).await;
    assert_eq!(polite.next().await, Sent::Disconnect(Status::NORMAL));
    drop(polite);
    let mut rude = ask().await;
    rude.send(b"\0\0\0\x02xx").await;
    assert_eq!(rude.next().await, Sent::Disconnect(Status::INVALID));
    drop(rude);
    // A health check is one, whether it closes or is closed.
    drop(Peer::said_to(&served, &hello(16380, Some(true))).await);
    let mut check = Peer::connect(&served).await;
    check.send(&hello(16380, Some(true))).await;
    assert!(matches!(check.next().await, Sent::Hello { .. }));
    check.reset();
    let _stays = ask().await;
    within(async {
        while counters.snapshot().open > 1 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    served.stop().await;

    let counted = counters.snapshot();
    let ends = [counted.closed, counted.truncated, counted.disconnected, counted.protocol_errors];
    assert_eq!(ends, [1; 4], "{counted:?}");
    assert_eq!((counted.health_checks, counted.stopped, counted.connections), (2, 1, 7));
    assert_eq!(counted.protocol_error_statuses[4], 1);
    assert_eq!(counted.protocol_error_statuses.iter().sum::<u64>(), counted.protocol_errors);
    assert_eq!((counted.notifies, counted.latency.buckets.iter().sum()), (5, 5));
    assert!(counted.latency.sum_ns > 0 && counted.ack_bytes >= 5 * 17, "{counted:?}");
}

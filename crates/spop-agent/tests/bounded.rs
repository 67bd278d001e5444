//! The memory that all connections keep together has one limit, and only connections that need
//! such memory notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod peer;

use std::time::Duration;

use peer::{Peer, Sent, ack, hello, measure, notify, serve, welcome, within};
use spop_agent::{Agent, Handler, Limits, Reply, Request, Scope, Snapshot};
use spop_codec::Status;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

const LIMIT: usize = 1 << 20;

/// An agent that waits for the rest of a frame longer than a test takes.
fn patient() -> Agent<impl Handler> {
    let mut limits = Limits::default();
    limits.frame_timeout = Duration::from_secs(600);
    Agent::new(measure).limits(limits)
}

/// Waits until the agent has read this much. Returns whether it keeps it; if not, it ends the
/// connection.
async fn keeps(served: &peer::Served, before: Snapshot, bytes: u64) -> bool {
    keeps_below(LIMIT, served, before, bytes).await
}

/// The same with another limit for all connections.
async fn keeps_below(limit: usize, served: &peer::Served, before: Snapshot, bytes: u64) -> bool {
    within(async {
        loop {
            let counted = served.counters.snapshot();
            assert!(counted.buffered_bytes <= limit as u64, "{counted:?}");
            if counted.no_memory > before.no_memory {
                return false;
            }
            if counted.buffered_bytes >= before.buffered_bytes + bytes {
                return true;
            }
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
}

/// A frame of the largest size that the agent accepts, without its last byte.
fn half(size: usize) -> Vec<u8> {
    let mut frame = notify(1, &vec![b'x'; size]);
    frame.pop();
    frame
}

#[tokio::test]
async fn half_frames_stay_within_the_bound_together_and_whole_ones_need_none_of_it() {
    let served = serve(patient().max_buffered_bytes(LIMIT)).await;
    let mut good = Peer::greeted(&served).await;
    let (mut halves, mut refused) = (Vec::new(), 0);
    for round in 0..80_u32 {
        let mut peer = Peer::greeted(&served).await;
        let before = served.counters.snapshot();
        peer.send(&half(16_000)).await;
        if !keeps(&served, before, 16_000).await {
            refused += 1;
            assert_eq!(
                peer.next().await,
                Sent::Disconnect(Status::RESOURCE),
                "the newest gives way"
            );
        } else {
            halves.push(peer);
        }
        good.send(&[notify(1, b"abc"), notify(2, b"")].concat()).await;
        assert_eq!((good.next().await, good.next().await), (ack(1, 3), ack(2, 0)), "{round}");
    }
    // A buffer may be twice as large as its content.
    assert!((LIMIT / 40_000..=LIMIT / 16_000).contains(&halves.len()), "{}", halves.len());
    assert_eq!(halves.len() as u64 + refused, 80);
    // Bytes that are kept stay.
    for peer in &mut halves {
        peer.send(b"x").await;
        assert_eq!(peer.next().await, ack(1, 16_000));
    }
    drop(halves);
    gives_all_back(&served).await;
    good.send(&half(16_000)).await;
    good.send(b"x").await;
    assert_eq!(good.next().await, ack(1, 16_000), "there is memory again");
    served.stop().await;
}

#[tokio::test]
async fn half_frames_of_1_mib_stay_within_it_too() {
    let served = serve(patient().max_buffered_bytes(4 * LIMIT)).await;
    let (mut halves, mut refused) = (Vec::new(), 0);
    for _ in 0..8 {
        let mut peer = Peer::connect(&served).await;
        peer.send(&hello(1 << 20, None)).await;
        assert_eq!(peer.next().await, welcome(1 << 20));
        let before = served.counters.snapshot();
        peer.send(&half(1_000_000)).await;
        match keeps_below(4 * LIMIT, &served, before, 1_000_000).await {
            true => halves.push(peer),
            false => refused += 1,
        }
    }
    // A buffer may be twice as large as its content.
    assert!((1..=4).contains(&halves.len()) && halves.len() + refused == 8, "{}", halves.len());
    for peer in &mut halves {
        peer.send(b"x").await;
        assert_eq!(peer.next().await, ack(1, 1_000_000));
    }
    drop(halves);
    gives_all_back(&served).await;
    served.stop().await;
}

#[tokio::test]
async fn a_frame_that_is_only_announced_takes_no_memory() {
    let served = serve(patient()).await;
    let mut peers = Vec::new();
    for _ in 0..100 {
        let mut peer = Peer::connect(&served).await;
        peer.send(&hello(1 << 20, None)).await;
        assert_eq!(peer.next().await, welcome(1 << 20));
        let before = served.counters.snapshot();
        peer.send(&half(1_000_000)[..1000]).await;
        assert!(keeps(&served, before, 1000).await);
        peers.push(peer);
    }
    // A buffer may be twice as large as its content.
    assert!(served.counters.snapshot().buffered_bytes <= 100 * 2000);
    drop(peers);
    gives_all_back(&served).await;
    served.stop().await;
}

async fn gives_all_back(served: &peer::Served) {
    within(async {
        while served.counters.snapshot().buffered_bytes > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// A frame without FIN, and so a piece of a payload.
fn piece(kind: u8, flags: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(7 + payload.len()).unwrap();
    [&length.to_be_bytes()[..], &[kind], &flags.to_be_bytes(), &[1, 1], payload].concat()
}

#[tokio::test]
async fn so_do_payloads_in_pieces() {
    let served = serve(patient().max_buffered_bytes(LIMIT)).await;
    let whole = notify(1, &[b'x'; 100_000]);
    let payload = &whole[11..];
    let mut kept = Vec::new();
    let mut refused = 0;
    for _ in 0..30 {
        let before = served.counters.snapshot();
        let mut peer = Peer::greeted(&served).await;
        for (number, bytes) in payload[..90_000].chunks(15_000).enumerate() {
            peer.send(&piece(if number == 0 { 3 } else { 0 }, 0, bytes)).await;
        }
        if keeps(&served, before, 90_000).await {
            kept.push(peer);
        } else {
            assert_eq!(peer.next().await, Sent::Disconnect(Status::RESOURCE));
            refused += 1;
        }
    }
    assert!(refused > 0 && !kept.is_empty(), "{refused} {}", kept.len());
    let mut first = kept.swap_remove(0);
    drop(kept);
    first.send(&piece(0, 1, &payload[90_000..])).await;
    assert_eq!(first.next().await, ack(1, 100_000));
    assert_eq!(served.counters.snapshot().no_memory, refused);
    drop(first);
    gives_all_back(&served).await;
    served.stop().await;
}

/// Fills the ACK.
fn verbose(_: &Request<'_>, reply: &mut Reply<'_>) {
    reply.set_var(Scope::Session, peer::LENGTH, &[b'x'; 700][..]);
}

#[tokio::test]
async fn so_do_answers_that_are_not_read() {
    // Less than one write's worth.
    let served = serve(Agent::new(verbose).max_buffered_bytes(1000)).await;
    let mut good = Peer::greeted(&served).await;
    let mut rude = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..1000).flat_map(|stream| notify(stream, b"")).collect();
    within(async {
        // Until the agent ends the connection, because the sockets' buffers are full.
        while rude.stream.write_all(&burst).await.is_ok() {}
    })
    .await;
    let counted = served.counters.snapshot();
    assert_eq!((counted.no_memory, counted.timeouts), (1, 0));
    good.send(&notify(7, b"")).await;
    assert!(matches!(good.next().await, Sent::Ack(7, 1, _)), "others are served");
    gives_all_back(&served).await;
    served.stop().await;
}

/// Also while the connection stays open and nothing comes.
#[tokio::test]
async fn answers_that_were_read_after_all_are_kept_no_longer() {
    let served = serve(Agent::new(verbose)).await;
    let mut slow = Peer::greeted(&served).await;
    let burst: Vec<u8> = (0..1000).flat_map(|stream| notify(stream, b"")).collect();
    let mut sent = 0;
    // Until the sockets' buffers are full, and some of the answers are kept.
    while served.counters.snapshot().buffered_bytes == 0 {
        let written =
            timeout(Duration::from_millis(100), slow.stream.write(&burst[sent % burst.len()..]))
                .await;
        sent += written.map_or(0, Result::unwrap);
        tokio::task::yield_now().await;
    }
    let rest = &burst[sent % burst.len()..];
    let (mut read, mut write) = slow.stream.split();
    let receive = async {
        let mut buffer = vec![0; 1 << 16];
        while served.counters.snapshot().buffered_bytes > 0 {
            let _ = timeout(Duration::from_millis(20), read.read(&mut buffer)).await;
        }
    };
    let send = async { within(write.write_all(rest)).await.unwrap() };
    within(async { tokio::join!(receive, send) }).await;
    assert_eq!(served.counters.snapshot().open, 1);
    drop(slow);
    served.stop().await;
}

#[tokio::test]
async fn a_request_without_memory_to_wait_in_is_answered_at_once_with_what_was_set_at_first() {
    let never = |_: &Request<'_>, reply: &mut Reply<'_>| {
        reply.set_var(Scope::Transaction, peer::LENGTH, 7_u32);
        let large = [0_u8; 1000];
        reply.later(async move |reply| {
            std::future::pending::<()>().await;
            assert_eq!(large[0], 0);
            reply
        });
    };
    let agent = Agent::new(never).max_buffered_bytes(5000).deadline(Duration::from_secs(60));
    let served = serve(agent).await;
    let mut peer = Peer::greeted(&served).await;
    let questions: Vec<u8> = (0..20).flat_map(|id| notify(id, b"")).collect();
    peer.send(&questions).await;
    let mut first = 20;
    while first == 20 {
        if let Sent::Ack(id, ..) = peer.next().await {
            first = id;
        }
    }
    assert!((1..5).contains(&first), "{first} wait");
    for id in first + 1..20 {
        assert_eq!(peer.next().await, ack(id, 7));
    }
    let counted = served.counters.snapshot();
    assert_eq!((counted.waiting, counted.overdue), (first, 20 - first));
    peer.reset();
    gives_all_back(&served).await;
    assert_eq!(served.counters.snapshot().waiting, 0);
    served.stop().await;
}

/// The future may have a copy of its request.
#[tokio::test]
async fn a_request_waits_only_if_there_is_memory_for_a_copy_of_it() {
    let never = |request: &Request<'_>, reply: &mut Reply<'_>| {
        reply.set_var(Scope::Transaction, peer::LENGTH, 7_u32);
        let copy = request.to_owned();
        reply.later(async move |reply| {
            std::future::pending::<()>().await;
            assert_eq!(copy.as_request().messages().len(), 1);
            reply
        });
    };
    let agent = Agent::new(never).max_buffered_bytes(20_000).deadline(Duration::from_secs(60));
    let served = serve(agent).await;
    let mut peer = Peer::greeted(&served).await;
    for id in 0..40 {
        peer.send(&notify(id, &[b'x'; 1000])).await;
        within(async {
            // One after another, so that none needs memory because it has come in part.
            while served.counters.snapshot().waiting + served.counters.snapshot().overdue <= id {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
    let counted = served.counters.snapshot();
    assert!((2..20).contains(&counted.waiting), "{counted:?}");
    for id in counted.waiting..40 {
        assert_eq!(peer.next().await, ack(id, 7));
    }
    peer.reset();
    gives_all_back(&served).await;
    served.stop().await;
}

#[tokio::test]
async fn frames_are_as_large_as_haproxy_offers_up_to_1_mib() {
    let mut small = Limits::default();
    small.max_frame_size = 16_380;
    let (usual, small) =
        (serve(Agent::new(measure)).await, serve(Agent::new(measure).limits(small)).await);
    for (served, offered, agreed) in [
        (&small, 1 << 20, 16_380),
        (&usual, 8000, 8000),
        (&usual, 65_532, 65_532),
        (&usual, 1 << 30, 1 << 20),
    ] {
        let mut peer = Peer::connect(served).await;
        peer.send(&hello(offered, None)).await;
        // With less than 16 KiB in HAProxy's buffer there is no pipelining.
        let (pipelining, fragmentation) = (offered >= 16_380, true);
        let agreement = Sent::Hello { max_frame_size: agreed, pipelining, fragmentation };
        assert_eq!(peer.next().await, agreement);
        let most = usize::try_from(agreed).unwrap() - 100;
        peer.send(&notify(1, &vec![b'x'; most])).await;
        assert_eq!(peer.next().await, ack(1, u32::try_from(most).unwrap()));
        peer.send(&notify(1, &vec![b'x'; most + 200])[..100]).await;
        assert_eq!(peer.next().await, Sent::Disconnect(Status::TOO_BIG));
    }
    usual.stop().await;
    small.stop().await;
}

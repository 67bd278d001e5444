//! Connections of one worker have rounds in turn: none waits for more than a bounded number of
//! requests of each other one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod peer;

use std::future::pending;
use std::io;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use peer::{hello, notify, within};
use spop_agent::testing;
use spop_agent::{Agent, Handler, Reply, Request};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::sync::watch;

/// More than a round may read, whatever its size, and far less than there is.
const TURN_BYTES: usize = 64 * 1024;
const READY_BYTES: usize = 4 << 20;

/// How many messages NOTIFYs have at most.
const MESSAGES: usize = 64;

/// The bytes that a flood sends over and over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sends {
    /// NOTIFYs with one message.
    One,
    /// NOTIFYs with as many messages as they may have.
    Many,
    /// The same in two pieces.
    Pieces,
    /// NOTIFYs with one message that is answered later.
    Late,
}

impl Sends {
    fn bytes(self) -> Vec<u8> {
        let messages = b"\x05flood\x00".repeat(MESSAGES);
        let (first, last) = messages.split_at(100);
        match self {
            Self::One => frame(3, 1, b"\x05flood\x00"),
            Self::Many => frame(3, 1, &messages),
            Self::Late => frame(3, 1, b"\x04late\x00"),
            Self::Pieces => [frame(3, 0, first), frame(0, 1, last)].concat(),
        }
    }

    /// The most messages that a round answers: those that it reads, or 256 besides the first of
    /// each NOTIFY, and the rest of the last one.
    fn in_a_round(self) -> usize {
        match self {
            Self::One => TURN_BYTES / self.bytes().len() + 1,
            // Each is like 8 more, and the last batch may begin just before that.
            Self::Late => 256 / 8 + 32,
            Self::Many | Self::Pieces => (256 / (MESSAGES - 1) + 1) * MESSAGES,
        }
    }
}

/// A NOTIFY or a piece of one.
fn frame(kind: u8, flags: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(7 + payload.len()).unwrap();
    [&length.to_be_bytes()[..], &[kind], &flags.to_be_bytes(), &[1, 1], payload].concat()
}

/// A peer that always has NOTIFYs ready, and reads all answers.
struct Flood {
    bytes: Arc<[u8]>,
    at: usize,
    left: usize,
    /// The most that one read returns.
    piece: usize,
}

impl Flood {
    /// A HELLO and then NOTIFYs.
    fn new(sends: Sends, piece: usize) -> Self {
        let bytes = [hello(16380, None), sends.bytes().repeat(1000)].concat();
        Self { bytes: bytes.into(), at: 0, left: READY_BYTES, piece }
    }
}

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        for _ in 0..1000 {
            let piece =
                this.piece.min(this.left).min(into.remaining()).min(this.bytes.len() - this.at);
            if piece == 0 {
                break;
            }
            into.put_slice(&this.bytes[this.at..this.at + piece]);
            (this.at, this.left) = (this.at + piece, this.left - piece);
            if this.at == this.bytes.len() {
                // Only the first piece has a HELLO.
                this.at = hello(16380, None).len();
            }
            if into.filled().len() >= this.piece {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Flood {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn messages_of_floods(request: &Request<'_>) -> usize {
    request.messages().filter(|message| message.name != b"quiet").count()
}

/// Counts the messages of floods.
fn counting(floods: &Arc<AtomicUsize>) -> impl Handler {
    let floods = floods.clone();
    move |request: &Request<'_>, reply: &mut Reply<'_>| {
        floods.fetch_add(messages_of_floods(request), Ordering::Relaxed);
        if request.messages().any(|message| message.name == b"late") {
            reply.later(async |reply| {
                tokio::task::yield_now().await;
                reply
            });
        }
    }
}

/// Both ends of a quiet connection are tasks of the same thread, so the scheduler decides the
/// order, and not a clock.
async fn a_quiet_one_beside(floods: usize, sends: Sends, piece: usize) {
    let answered = Arc::new(AtomicUsize::new(0));
    // More may wait than a round may begin with.
    let many = NonZeroUsize::new(1 << 14).unwrap();
    let agent = Agent::new(counting(&answered)).max_in_flight(many);
    let agent = Arc::new(testing::Streams::new(agent));
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let quiet = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.serve(theirs, pending()).await })
    };
    ours.write_all(&hello(16380, None)).await.unwrap();
    let mut buffer = [0; 1000];
    assert!(ours.read(&mut buffer).await.unwrap() > 0, "an AGENT-HELLO");

    for _ in 0..floods {
        let flood = Flood::new(sends, piece);
        let agent = agent.clone();
        tokio::spawn(async move { agent.serve(flood, pending()).await });
    }
    for id in 0..5 {
        let before = answered.load(Ordering::Relaxed);
        ours.write_all(&notify(id, b"quiet")).await.unwrap();
        // An ACK without actions.
        ours.read_exact(&mut buffer[..11]).await.unwrap();
        let between = answered.load(Ordering::Relaxed) - before;
        // At most one round of each before the agent's end is polled, and one before ours is; and
        // the first of a connection, which begins with its HELLO, is two.
        let most = 3 * floods * sends.in_a_round();
        assert!(
            between <= most,
            "{between} messages of {floods} floods came before it; {most} may"
        );
    }
    assert!(answered.load(Ordering::Relaxed) > 0, "they did flood");
    drop(ours);
    within(quiet).await.unwrap();
}

#[tokio::test]
async fn a_quiet_connection_waits_for_a_turn_of_a_flood_and_no_more() {
    a_quiet_one_beside(1, Sends::One, usize::MAX).await;
}

#[tokio::test]
async fn so_it_does_beside_several_floods() {
    a_quiet_one_beside(8, Sends::One, usize::MAX).await;
}

#[tokio::test]
async fn so_it_does_beside_floods_that_come_in_small_pieces() {
    a_quiet_one_beside(3, Sends::One, 1000).await;
}

#[tokio::test]
async fn so_it_does_beside_floods_with_many_messages_in_a_notify() {
    a_quiet_one_beside(1, Sends::Many, usize::MAX).await;
    a_quiet_one_beside(8, Sends::Many, usize::MAX).await;
}

#[tokio::test]
async fn so_it_does_beside_floods_of_payloads_in_pieces() {
    a_quiet_one_beside(1, Sends::Pieces, usize::MAX).await;
    a_quiet_one_beside(8, Sends::Pieces, usize::MAX).await;
}

#[tokio::test]
async fn so_it_does_beside_floods_that_are_answered_later() {
    a_quiet_one_beside(1, Sends::Late, usize::MAX).await;
    a_quiet_one_beside(8, Sends::Late, usize::MAX).await;
}

/// Requests that have waited are answered as soon as they can be, and all of them at one moment.
#[tokio::test]
async fn so_it_does_when_everything_that_has_waited_can_be_answered() {
    const WAITING: usize = 64;
    let answered = Arc::new(AtomicUsize::new(0));
    let (release, released) = watch::channel(false);
    let counting = answered.clone();
    let handler = move |request: &Request<'_>, reply: &mut Reply<'_>| {
        let (messages, counting) = (messages_of_floods(request), counting.clone());
        let mut released = released.clone();
        if messages > 0 {
            reply.later(async move |reply| {
                let _ = released.wait_for(|released| *released).await;
                counting.fetch_add(messages, Ordering::Relaxed);
                reply
            });
        }
    };
    let agent = Agent::new(handler).deadline(Duration::from_secs(600));
    let counters = agent.counters();
    let agent = Arc::new(testing::Streams::new(agent));
    let connect = || {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let agent = agent.clone();
        (ours, tokio::spawn(async move { agent.serve(theirs, pending()).await }))
    };
    let ((mut quiet, _), (mut flood, _)) = (connect(), connect());
    let mut buffer = [0; 1000];
    for ours in [&mut quiet, &mut flood] {
        ours.write_all(&hello(16380, None)).await.unwrap();
        assert!(ours.read(&mut buffer).await.unwrap() > 0, "an AGENT-HELLO");
    }
    flood.write_all(&Sends::Many.bytes().repeat(WAITING)).await.unwrap();
    within(async {
        while counters.snapshot().waiting < WAITING as u64 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    release.send(true).unwrap();
    let mut rounds = 0;
    while answered.load(Ordering::Relaxed) < WAITING * MESSAGES {
        let before = answered.load(Ordering::Relaxed);
        quiet.write_all(&notify(1, b"quiet")).await.unwrap();
        quiet.read_exact(&mut buffer[..11]).await.unwrap();
        let between = answered.load(Ordering::Relaxed) - before;
        let most = 3 * Sends::Many.in_a_round();
        assert!(between <= most, "{between} messages came before it; {most} may");
        rounds += 1;
    }
    assert!(rounds >= 4, "{rounds}");
}

//! Connections of one worker have rounds in turn: none waits for more than a bounded number of
//! requests of each other one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod peer;

use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use peer::{hello, notify, within};
use spop_agent::testing;
use spop_agent::{Agent, Handler, Reply, Request, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

/// More than a round may read, whatever its size, and far less than there is.
const TURN_BYTES: usize = 64 * 1024;
const READY_BYTES: usize = 4 << 20;

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
    fn new(piece: usize) -> (Self, usize) {
        let (hello, notify) = (hello(16380, None), notify(1, b"flood"));
        let bytes: Vec<u8> =
            [hello].into_iter().chain(vec![notify.clone(); 1000]).flatten().collect();
        (Self { bytes: bytes.into(), at: 0, left: READY_BYTES, piece }, notify.len())
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

/// Counts the requests of floods.
fn counting(floods: &Arc<AtomicUsize>) -> impl Handler {
    let floods = floods.clone();
    move |request: &Request<'_>, _: &mut Reply<'_>| {
        let value = request.message(b"m").and_then(|message| message.arg_at(0));
        if value == Some(Value::String(b"flood")) {
            floods.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Both ends of a quiet connection are tasks of the same thread, so the scheduler decides the
/// order, and not a clock.
async fn a_quiet_one_beside(floods: usize, piece: usize) {
    let answered = Arc::new(AtomicUsize::new(0));
    let agent = Arc::new(testing::Streams::new(Agent::new(counting(&answered))));
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let quiet = {
        let agent = agent.clone();
        tokio::spawn(async move { agent.serve(theirs, pending()).await })
    };
    ours.write_all(&hello(16380, None)).await.unwrap();
    let mut buffer = [0; 1000];
    assert!(ours.read(&mut buffer).await.unwrap() > 0, "an AGENT-HELLO");

    let mut length = 1;
    for _ in 0..floods {
        let (flood, bytes) = Flood::new(piece);
        length = bytes;
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
        let most = 3 * floods * (TURN_BYTES / length + 1);
        assert!(
            between <= most,
            "{between} requests of {floods} floods came before it; {most} may"
        );
    }
    assert!(answered.load(Ordering::Relaxed) > 0, "they did flood");
    drop(ours);
    within(quiet).await.unwrap();
}

#[tokio::test]
async fn a_quiet_connection_waits_for_a_turn_of_a_flood_and_no_more() {
    a_quiet_one_beside(1, usize::MAX).await;
}

#[tokio::test]
async fn so_it_does_beside_several_floods() {
    a_quiet_one_beside(8, usize::MAX).await;
}

#[tokio::test]
async fn so_it_does_beside_floods_that_come_in_small_pieces() {
    a_quiet_one_beside(3, 1000).await;
}

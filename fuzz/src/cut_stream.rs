//! A stream that cuts reads and writes, and a runtime without waiting.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Sleep, sleep};

/// A stream in memory whose reads and writes are cut as a list of numbers says. The bytes from the
/// peer come in pieces of any length. The bytes to the peer are taken in pieces of any length, or
/// not at once.
pub struct CutStream {
    /// The bytes that the peer sends before it closes.
    pub input: Vec<u8>,
    read: usize,
    /// The bytes that were written.
    pub output: Vec<u8>,
    /// How long the next pieces are; 0 and 1 are one byte, but not at once. Used again from the
    /// front; without any, all goes at once.
    cuts: Vec<u8>,
    next: usize,
    /// The peer closes as soon as it has sent everything; else only once it was sent something
    /// that it takes for the end.
    pub closes: bool,
    /// A piece that waits for a moment; how many did; and the last one was not ready, so that
    /// this one is, by one byte.
    pause: Option<Pin<Box<Sleep>>>,
    pauses: u32,
    paused: bool,
    /// How often it was asked to read or write.
    pub polls: usize,
}

impl CutStream {
    pub fn new(input: Vec<u8>, cuts: Vec<u8>, closes: bool) -> Self {
        Self {
            input,
            read: 0,
            output: Vec::new(),
            cuts,
            next: 0,
            closes,
            pause: None,
            pauses: 0,
            paused: false,
            polls: 0,
        }
    }

    /// Whether the peer has sent all that it has to send.
    pub fn is_sent(&self) -> bool {
        self.read == self.input.len()
    }

    /// How long the next piece may be.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        self.polls += 1;
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        if std::mem::take(&mut self.paused) {
            return Poll::Ready(1);
        }
        let cut = match self.cuts.len() {
            0 => return Poll::Ready(usize::MAX),
            length => self.cuts[self.next % length],
        };
        self.next += 1;
        match cut {
            0 => {
                self.paused = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // Only so often that no time limit passes.
            1 if self.pauses < 40 => {
                (self.pauses, self.paused) = (self.pauses + 1, true);
                let mut pause = Box::pin(sleep(Duration::from_millis(1)));
                let done = pause.as_mut().poll(cx).is_ready();
                self.pause = (!done).then_some(pause);
                if done { Poll::Ready(1) } else { Poll::Pending }
            }
            255 => Poll::Ready(usize::MAX),
            200.. => Poll::Ready(usize::from(cut - 199) * 1000),
            _ => Poll::Ready(cut.into()),
        }
    }
}

impl AsyncRead for CutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_sent() && !self.closes {
            self.polls += 1;
            return Poll::Pending;
        }
        let piece =
            ready!(self.poll_piece(cx)).min(buffer.remaining()).min(self.input.len() - self.read);
        let from = self.read;
        buffer.put_slice(&self.input[from..from + piece]);
        self.read += piece;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let piece = ready!(self.poll_piece(cx)).min(bytes.len());
        self.output.extend_from_slice(&bytes[..piece]);
        Poll::Ready(Ok(piece))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A runtime on this thread whose clock goes on by itself when everything waits, so that no time
/// limit takes any time.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

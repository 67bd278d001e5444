//! [`Bounded`]: a stream of which no more is read than the answers to what was sent can need.

use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::task::{Context, Poll, ready};
use std::io;
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes may be read beyond the answers that are to come.
const SPARE: usize = 64 << 10;

/// The stream of a connection. Reading more than its [`Bound`] is an error.
///
/// The library keeps what it reads until an answer is whole, and sets no bound for that.
pub(crate) struct Bounded<S> {
    stream: S,
    bound: Arc<Bound>,
}

#[derive(Debug, Default)]
pub(crate) struct Bound {
    /// How many bytes the answers that are to come may have.
    to_come: AtomicUsize,
    /// How many bytes may be read until something else is sent.
    left: AtomicUsize,
    exceeded: AtomicBool,
    answered: AtomicBool,
    /// The bytes that were read first.
    first: OnceLock<Box<[u8]>>,
}

/// How many of the bytes that are read first are kept, at most.
const FIRST: usize = 128;

impl Bound {
    /// Something is sent whose answers have at most this many bytes. Returns how many bytes may be
    /// read now. It is called by one thread at a time.
    pub(crate) fn sent(&self, most: usize) -> usize {
        let to_come = self.to_come.fetch_add(most, Ordering::Relaxed).saturating_add(most);
        let left = to_come.saturating_add(SPARE);
        self.left.store(left, Ordering::Relaxed);
        left
    }

    /// All answers came to something for which [`sent`](Self::sent) was called with this number.
    pub(crate) fn answered(&self, most: usize) {
        // Less may be read when something else is sent: until then, it is not known how much
        // was read.
        self.to_come.fetch_sub(most, Ordering::Relaxed);
    }

    /// Whether more was sent to us than may be read. The connection is closed then.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    pub(crate) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn first(&self) -> &[u8] {
        self.first.get().map_or(&[], |first| first)
    }

    fn read(&self, count: usize) -> io::Result<()> {
        let less = |left: usize| left.checked_sub(count);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            self.exceeded.store(true, Ordering::Relaxed);
            return Err(io::Error::other("more was sent than the answers can need"));
        }
        Ok(())
    }
}

impl<S> Bounded<S> {
    pub(crate) fn new(stream: S) -> (Self, Arc<Bound>) {
        let bound = Arc::new(Bound { left: AtomicUsize::new(SPARE), ..Bound::default() });
        (Self { stream, bound: bound.clone() }, bound)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let new = &buffer.filled()[before..];
        if !new.is_empty() && self.bound.first.get().is_none() {
            let _ = self.bound.first.set(new[..new.len().min(FIRST)].into());
        }
        let read = self.bound.read(new.len());
        if read.is_err() {
            buffer.set_filled(before);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_may_be_read_and_little_more() {
        let (_, bound) = Bounded::new(());
        assert_eq!(bound.sent(1_000), SPARE + 1_000);
        assert_eq!(bound.sent(500), SPARE + 1_500);
        bound.read(1_400).unwrap();
        bound.answered(1_000);
        bound.read(SPARE + 100).unwrap();
        assert!(!bound.is_exceeded());
        assert_eq!(bound.sent(7), SPARE + 507);
        bound.read(SPARE + 508).unwrap_err();
        assert!(bound.is_exceeded());
    }
}

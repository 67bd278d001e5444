//! An accepted connection's socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// What a connection reads from and writes to. What it has besides these two takes a socket fewer
/// steps, which counts where NOTIFYs come one at a time.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Whether a read may find something. If not, the task is woken when it may.
    fn poll_readable(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Writes what is accepted at once. The task need not be woken when more would be.
    fn write_at_once(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, bytes)
    }
}

/// Streams that need not be sockets.
impl<S: AsyncRead + AsyncWrite + Unpin> Socket for &mut S {}

impl Socket for TcpStream {
    #[inline]
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        // If this fails, a read says why.
        self.poll_read_ready(cx).map(drop)
    }

    #[inline]
    fn write_at_once(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        unless_blocked(self.try_write(bytes))
    }
}

impl Socket for UnixStream {
    #[inline]
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_read_ready(cx).map(drop)
    }

    #[inline]
    fn write_at_once(&mut self, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        unless_blocked(self.try_write(bytes))
    }
}

fn unless_blocked<T>(outcome: io::Result<T>) -> Poll<io::Result<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        outcome => Poll::Ready(outcome),
    }
}

/// An accepted connection's socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket that belongs to no tokio runtime, on its way from one to another.
pub(crate) enum StdStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Stream {
    /// The peer's name in the log.
    pub(crate) fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => stream
                .peer_addr()
                .map_or_else(|_| "an unknown address".to_owned(), |peer| peer.to_string()),
            Self::Unix(_) => "the Unix socket".to_owned(),
        }
    }

    /// Takes the socket out of its runtime.
    pub(crate) fn into_std(self) -> io::Result<StdStream> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(StdStream::Tcp),
            Self::Unix(stream) => stream.into_std().map(StdStream::Unix),
        }
    }
}

impl StdStream {
    /// Registers the socket in the current runtime.
    pub(crate) fn into_tokio(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

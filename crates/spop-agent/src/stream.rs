//! An accepted connection's socket.

use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The stream that a connection reads from and writes to. Its own methods take a socket fewer
/// steps, which counts where NOTIFYs come one at a time.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Whether a read may find something. If not, the task is woken when it may.
    fn poll_readable(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Reads what there is, which is nothing at the end of the stream.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(self).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Writes what is accepted at once. The task need not be woken when more would be.
    fn write_at_once(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, bytes)
    }
}

/// Streams that need not be sockets.
impl<S: AsyncRead + AsyncWrite + Unpin> Socket for &mut S {}

macro_rules! impl_socket {
    ($socket:ty) => {
        impl Socket for $socket {
            #[inline]
            fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
                // If this fails, a read says why.
                self.poll_read_ready(cx).map(drop)
            }

            #[inline]
            fn poll_receive(
                &mut self,
                cx: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let mut received = 0;
                loop {
                    // Mostly the task was woken because there is something.
                    let receive = || receive(self, buffer, &mut received);
                    match self.try_io(Interest::READABLE, receive) {
                        Err(_) if received > 0 => return Poll::Ready(Ok(received)),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            ready!(self.poll_read_ready(cx))?;
                        }
                        read => return Poll::Ready(read.map(|()| received)),
                    }
                }
            }

            #[inline]
            fn write_at_once(
                &mut self,
                _: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                    written => Poll::Ready(written),
                }
            }
        }
    };
}

impl_socket!(TcpStream);
impl_socket!(UnixStream);

/// Reads from a socket that may have something. If that was all of it, the socket would block now:
/// then it is not read again, and to no avail, before there is more.
#[inline]
fn receive(socket: &impl AsFd, buffer: &mut [u8], received: &mut usize) -> io::Result<()> {
    *received = (&*SockRef::from(socket)).read(buffer)?;
    // As tokio's own reads have it.
    match *received {
        0 => Ok(()),
        all if all == buffer.len() => Ok(()),
        _ => Err(io::ErrorKind::WouldBlock.into()),
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

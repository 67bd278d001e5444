//! An accepted connection's socket.

use std::io;

use tokio::net::{TcpStream, UnixStream};

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

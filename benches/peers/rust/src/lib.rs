//! The parts that the agents here share: they listen at the address in their first argument and
//! answer `check` with `blocked`.

use std::io;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

pub trait Stream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

pub type BoxedStream = Pin<Box<dyn Stream>>;
pub type ReadHalf = Pin<Box<dyn AsyncRead + Send>>;
pub type WriteHalf = Pin<Box<dyn AsyncWrite + Send>>;

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// `IP:PORT` or `unix:/PATH`, from the command line. Prints where it is, as the daemon does.
    pub async fn from_args() -> io::Result<Self> {
        let address = std::env::args().nth(1).expect("usage: IP:PORT or unix:/PATH");
        if let Some(path) = address.strip_prefix("unix:") {
            let listener = UnixListener::bind(path)?;
            println!("listening on {address}");
            return Ok(Self::Unix(listener));
        }
        let listener = TcpListener::bind(address).await?;
        println!("listening on {}", listener.local_addr()?);
        Ok(Self::Tcp(listener))
    }

    /// The next connection. Without TCP_NODELAY answers would wait for acknowledgements of earlier
    /// ones.
    pub async fn accept(&self) -> io::Result<BoxedStream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::pin(stream))
            }
            Self::Unix(listener) => Ok(Box::pin(listener.accept().await?.0)),
        }
    }

    /// The next connection, for a task that reads and one that writes.
    pub async fn accept_halves(&self) -> io::Result<(ReadHalf, WriteHalf)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let (reader, writer) = stream.into_split();
                Ok((Box::pin(reader), Box::pin(writer)))
            }
            Self::Unix(listener) => {
                let (reader, writer) = listener.accept().await?.0.into_split();
                Ok((Box::pin(reader), Box::pin(writer)))
            }
        }
    }
}

//! The sockets that an agent listens on: TCP and Unix sockets.

use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use tokio::net::{TcpListener, TcpSocket, UnixListener};

use crate::inherited;
use crate::socket_file::{self, SocketAccess, SocketFile};
use crate::stream::Stream;

/// How many connections may wait to be accepted. After a reload HAProxy opens all of its
/// connections at once.
const BACKLOG: u32 = 4096;

/// The longest name of an abstract socket.
const ABSTRACT_NAME_BYTES: usize = 107;

/// An address to listen on, parsed from text: `127.0.0.1:9000`, `[::1]:9000`, `unix:/path`,
/// `abns:name` or `inherited`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ListenAddress {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// The name of an abstract Unix socket (Linux), which has no file and so no permissions.
    /// HAProxy calls it `abns@name`.
    Abstract(String),
    /// All sockets that systemd has opened for this process (socket activation: `LISTEN_FDS`,
    /// sd_listen_fds(3)).
    Inherited,
}

impl ListenAddress {
    /// Binds the address. Call this inside a tokio runtime. It returns one listener, or as many as
    /// there are for [`Inherited`](Self::Inherited).
    ///
    /// The file of a Unix socket is replaced if no process listens on it, because then an agent
    /// that was killed has left it behind. If several processes bind the same path at once, only
    /// one succeeds. Each locks the file `PATH.lock` for that moment, and waits at most two
    /// seconds for the lock.
    ///
    /// # Errors
    ///
    /// The address is in use, or cannot be bound. No sockets are inherited, or one that is not a
    /// listening stream socket.
    pub fn bind(&self) -> io::Result<Vec<Listener>> {
        self.bind_with(SocketAccess::default())
    }

    /// As [`bind`](Self::bind), with the permissions of a Unix socket that has a path. They are
    /// set before the first connection is possible. They mean nothing for other addresses.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), or the process may not set these permissions.
    pub fn bind_with(&self, access: SocketAccess) -> io::Result<Vec<Listener>> {
        let listener = match self {
            Self::Inherited => return inherited::listeners(),
            Self::Tcp(address) => {
                let socket =
                    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                // An agent must be able to restart while its old connections are in TIME_WAIT.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                Listener::from(socket.listen(BACKLOG)?)
            }
            Self::Unix(path) => {
                let (listener, file) = socket_file::listen(path, access, BACKLOG)?;
                Listener(Kind::Unix { _file: Some(file), listener })
            }
            Self::Abstract(name) => {
                // HAProxy pads the name with zeros, and they are a part of it.
                let mut padded = [0; ABSTRACT_NAME_BYTES];
                padded
                    .get_mut(..name.len())
                    .ok_or(io::ErrorKind::InvalidInput)?
                    .copy_from_slice(name.as_bytes());
                let address = std::os::unix::net::SocketAddr::from_abstract_name(padded)?;
                let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener)?.into()
            }
        };
        Ok(vec![listener])
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.split_once(':') {
            None if text == "inherited" => Ok(Self::Inherited),
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("abns", name)) if (1..=ABSTRACT_NAME_BYTES).contains(&name.len()) => {
                Ok(Self::Abstract(name.to_owned()))
            }
            _ => text.parse().map(Self::Tcp).map_err(|_| AddressError(text.into())),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Abstract(name) => write!(f, "abns:{name}"),
            Self::Inherited => f.write_str("inherited"),
        }
    }
}

/// The string is not an address to listen on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddressError(Box<str>);

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not an address to listen on; write IP:PORT, like 127.0.0.1:9000 or \
             [::1]:9000, unix:/PATH, abns:NAME or inherited",
            self.0
        )
    }
}

impl std::error::Error for AddressError {}

/// With [`InvalidInput`](io::ErrorKind::InvalidInput), for programs whose `main` returns an
/// [`io::Result`].
impl From<AddressError> for io::Error {
    fn from(error: AddressError) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    /// The file is dropped first, because it must be removed while the socket listens.
    Unix {
        _file: Option<SocketFile>,
        listener: UnixListener,
    },
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(Kind::Tcp(listener))
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self(Kind::Unix { _file: None, listener })
    }
}

impl Listener {
    /// The address that the socket is bound to. If port 0 was asked for, it has the real port.
    ///
    /// # Errors
    ///
    /// The system call fails.
    pub fn local_address(&self) -> io::Result<ListenAddress> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Kind::Unix { listener, .. } => {
                let address = listener.local_addr()?;
                if let Some(name) = address.as_abstract_name() {
                    let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
                    return Ok(ListenAddress::Abstract(name));
                }
                Ok(ListenAddress::Unix(
                    address.as_pathname().unwrap_or(Path::new("(unnamed)")).into(),
                ))
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers must leave at once. If this fails the connection is gone, and its first
                // read reports that.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Kind::Unix { listener, .. } => {
                listener.accept().await.map(|(stream, _)| Stream::Unix(stream))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn addresses_are_parsed_or_explained() {
        for text in [
            "127.0.0.1:9000",
            "[::1]:9000",
            "unix:/run/gcra-spoa/agent.sock",
            "abns:gcra",
            "inherited",
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "9000",
            ":9000",
            "localhost:9000",
            "127.0.0.1",
            "::1:9000",
            "unix:",
            "abns:",
            "127.0.0.1:99999",
        ] {
            let error = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("127.0.0.1:9000"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let address = ListenAddress::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a killed agent has left it behind");
        let live = address.bind().unwrap();
        assert_eq!(address.bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(live);
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        assert!(address.bind().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    /// Each finds the socket of a killed agent, and wants to put its own socket there.
    #[test]
    fn of_many_that_replace_a_stale_socket_at_once_one_listens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        for round in 0..200 {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let barrier = std::sync::Barrier::new(4);
            let bind = || {
                let _inside = runtime.enter();
                barrier.wait();
                ListenAddress::Unix(path.clone()).bind()
            };
            let bound: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(
                bound.iter().filter(|bound| bound.is_ok()).count(),
                1,
                "round {round}: {bound:?}"
            );
            for error in bound.iter().filter_map(|bound| bound.as_ref().err()) {
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
            }
            std::os::unix::net::UnixStream::connect(&path)
                .expect("the path leads to the one that listens");
            drop(bound);
            assert!(!path.exists());
        }
    }
}

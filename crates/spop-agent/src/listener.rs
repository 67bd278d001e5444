//! Where HAProxy connects to: TCP and Unix sockets.

use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, io};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::inherited;
use crate::socket_file::{self, SocketAccess, SocketFile};

/// Connections that may wait to be accepted: a reloaded HAProxy opens all of its own at once.
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
    /// The name of an abstract Unix socket (Linux): no file, and so no permissions. HAProxy's
    /// `abns@name`.
    Abstract(String),
    /// The sockets that systemd has opened already (socket activation: `LISTEN_FDS`,
    /// sd_listen_fds(3)), all of them.
    Inherited,
}

impl ListenAddress {
    /// Binds the address. To be called inside a tokio runtime. There is one listener, but with
    /// [`Inherited`](Self::Inherited) as many as there are.
    ///
    /// The file of a Unix socket that a dead agent left behind is replaced; one on which a process
    /// listens is not. Of several processes that do this at once one gets the path. They take
    /// turns by locking the file `PATH.lock`, which is there for that moment only, and wait
    /// for each other for at most two seconds.
    ///
    /// # Errors
    ///
    /// The address is taken or can't be had. Nothing is inherited, or something that is no
    /// listening stream socket.
    pub fn bind(&self) -> io::Result<Vec<Listener>> {
        self.bind_with(SocketAccess::default())
    }

    /// As [`bind`](Self::bind), with a say in who may connect to a Unix socket with a path. The
    /// rights are set before the first connection is possible. They mean nothing for other
    /// addresses.
    ///
    /// # Errors
    ///
    /// As there, or the process may not set these rights.
    pub fn bind_with(&self, access: SocketAccess) -> io::Result<Vec<Listener>> {
        let listener = match self {
            Self::Inherited => return inherited::listeners(),
            Self::Tcp(address) => {
                let socket =
                    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                // So that an agent can come back while its old connections are still in TIME_WAIT.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                Listener::from(socket.listen(BACKLOG)?)
            }
            Self::Unix(path) => {
                let (listener, file) = socket_file::listen(path, access, BACKLOG)?;
                Listener(Kind::Unix { _file: Some(file), listener })
            }
            Self::Abstract(name) => {
                // HAProxy fills the name up with zeros, which belong to it.
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

/// A text that is no address to listen on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AddressError(Box<str>);

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is no address to listen on: write IP:PORT, like 127.0.0.1:9000 or [::1]:9000, unix:/PATH, abns:NAME or inherited",
            self.0
        )
    }
}

impl std::error::Error for AddressError {}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    /// The file comes first, because it is removed while the socket listens.
    Unix {
        _file: Option<SocketFile>,
        listener: UnixListener,
    },
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
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
    /// The address as it was bound: a port 0 has become a real one.
    ///
    /// # Errors
    ///
    /// The system does not tell.
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
                // Answers leave at once. Where it fails the connection is gone, which its first
                // read will tell.
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
        assert!(path.exists(), "left behind by the dead");
        let live = address.bind().unwrap();
        assert_eq!(address.bind().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(live);
        assert!(!path.exists());

        fs::write(&path, "precious").unwrap();
        assert!(address.bind().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    /// Each finds the socket that a dead agent left behind, and wants to put its own there.
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
            std::os::unix::net::UnixStream::connect(&path).expect("the path leads to the one");
            drop(bound);
            assert!(!path.exists());
        }
    }
}

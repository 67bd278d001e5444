//! Where HAProxy connects to: TCP and Unix sockets.

use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs, io};

use listenfd::ListenFd;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

/// Connections that may wait to be accepted: a reloaded HAProxy opens all of its own at once.
const BACKLOG: u32 = 4096;

/// The longest name of an abstract socket.
const ABSTRACT_NAME_BYTES: usize = 107;

/// An address to listen on, parsed from text: `127.0.0.1:9000`, `[::1]:9000`, `unix:/path`, `abns:name` or `inherited`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ListenAddress {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// The name of an abstract Unix socket (Linux): no file, and so no permissions. HAProxy's `abns@name`.
    Abstract(String),
    /// The sockets that systemd has opened already (socket activation: `LISTEN_FDS`, sd_listen_fds(3)), all of them.
    Inherited,
}

impl ListenAddress {
    /// Binds the address. To be called inside a tokio runtime. There is one listener, but with [`Inherited`](Self::Inherited) as many
    /// as there are.
    ///
    /// A Unix socket file that a dead agent left behind is replaced; one that somebody answers is not.
    ///
    /// # Errors
    ///
    /// The address is taken or can't be had. Nothing is inherited, or something that is no listening stream socket.
    pub fn bind(&self) -> io::Result<Vec<Listener>> {
        let listener = match self {
            Self::Inherited => return inherited(),
            Self::Tcp(address) => {
                let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
                // So that an agent can come back while its old connections are still in TIME_WAIT.
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                Listener::from(socket.listen(BACKLOG)?)
            }
            Self::Unix(path) => {
                remove_stale_socket(path)?;
                let listener = UnixListener::bind(path)?;
                let file = fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
                let socket_file = file.map(|id| SocketFile { path: path.clone(), id });
                Listener(Kind::Unix { listener, _socket_file: socket_file })
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

/// The sockets that the process was started with.
fn inherited() -> io::Result<Vec<Listener>> {
    let mut sockets = ListenFd::from_env();
    if sockets.len() == 0 {
        let message =
            "no sockets are inherited: LISTEN_FDS is not set; is the service started by a .socket unit?";
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    (0..sockets.len())
        .map(|index| match sockets.take_tcp_listener(index) {
            Ok(Some(listener)) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Listener::from)
            }
            _ => {
                let taken = || io::Error::from(io::ErrorKind::NotFound);
                let listener = sockets.take_unix_listener(index)?.ok_or_else(taken)?;
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Listener::from)
            }
        })
        .collect()
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
    Unix { listener: UnixListener, _socket_file: Option<SocketFile> },
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
        Self(Kind::Unix { listener, _socket_file: None })
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
                Ok(ListenAddress::Unix(address.as_pathname().unwrap_or(Path::new("(unnamed)")).into()))
            }
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match &self.0 {
            Kind::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers leave at once. Where it fails the connection is gone, which its first read will tell.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Kind::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

/// The file of a Unix socket, removed when the listener goes, unless another agent has put its own there.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.id);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        let message = "there is a file of this name that is not a socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // Somebody is there, or it can't be told: binding will say so.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_or_explained() {
        for text in
            ["127.0.0.1:9000", "[::1]:9000", "unix:/run/gcra-spoa/agent.sock", "abns:gcra", "inherited"]
        {
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
}

//! [`Connection`]: a connection to one server, over which asks are sent.

use core::fmt;
use core::time::Duration;
use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::client::bounded::{Bound, Bounded};
use crate::client::fault::{Fault, Reaction, in_words, reaction};
use crate::config::{Address, Certificate, Config, Password};

/// The most bytes of an answer to one command; the script's reply has 45, and an error some 100.
pub(crate) const ANSWER: usize = 1 << 10;

/// The most bytes of a long answer: the map of a cluster with 10,000 ranges of slots, or a record
/// with the leases of 10,000 hosts and the one under its earlier numbers, or all orders.
pub(crate) const LONG_ANSWER: usize = 4 << 20;

/// A connection. When the last copy of it is dropped, it is closed, and what is under way on it
/// fails at once.
#[derive(Clone)]
pub(crate) struct Connection {
    commands: MultiplexedConnection,
    /// The task that reads and writes, which ends with it.
    driver: Arc<JoinSet<()>>,
    bound: Arc<Bound>,
    opened: Instant,
}

/// The settings that every connection needs.
pub(crate) struct Connector {
    pub(crate) config: Config,
    tls: Option<TlsConnector>,
}

impl Connector {
    pub(crate) fn new(config: Config) -> io::Result<Self> {
        let tls = if config.url.tls { Some(tls(&config)?) } else { None };
        Ok(Self { config, tls })
    }

    pub(crate) async fn connect(&self, address: &Address) -> Result<Connection, Fault> {
        let url = &self.config.url;
        let user = Some(url.user.as_deref().unwrap_or("default"));
        self.connect_as(address, user, &self.config.password, url.database).await
    }

    /// Connects to a sentinel, and logs in if it has a password.
    pub(crate) async fn connect_to_sentinel(
        &self,
        address: &Address,
    ) -> Result<Connection, Fault> {
        self.connect_as(address, None, &self.config.sentinel_password, 0).await
    }

    async fn connect_as(
        &self,
        address: &Address,
        user: Option<&str>,
        password: &Password,
        database: i64,
    ) -> Result<Connection, Fault> {
        let within = self.config.connect_timeout;
        let mut connection = self.stream_and_commands(address, Instant::now() + within).await?;
        let mut commands = Pipeline::new();
        let password = password.read();
        let password = password.map_err(|error| Fault::Login(error.to_string()))?;
        if let Some(password) = password {
            commands.cmd("AUTH").arg(user).arg(password);
        }
        if database != 0 {
            commands.cmd("SELECT").arg(database);
        }
        if !commands.is_empty() {
            connection.send(&commands, within).await?;
        }
        Ok(connection)
    }

    async fn stream_and_commands(
        &self,
        address: &Address,
        until: Instant,
    ) -> Result<Connection, Fault> {
        match address {
            Address::Unix(path) => {
                over(in_time(until, UnixStream::connect(path), Fault::Late).await?).await
            }
            Address::Tcp(host, port) => {
                let stream = in_time(until, tcp(host, *port), Fault::Late).await?;
                let Some(tls) = &self.tls else { return over(stream).await };
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| Fault::Connection(format!("{host} is not a name for TLS")))?;
                over(in_time(until, tls.connect(name, stream), Fault::NoTls).await?).await
            }
        }
    }
}

/// Waits for the connection; `late` is the fault if it takes too long.
async fn in_time<T>(
    until: Instant,
    connecting: impl Future<Output = io::Result<T>>,
    late: Fault,
) -> Result<T, Fault> {
    let connected = timeout_at(until, connecting).await.map_err(|_| late)?;
    connected.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Fault::Closed,
        _ => Fault::connection(error),
    })
}

/// A connection that sends each write at once: asks must not wait until earlier ones are
/// acknowledged.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn over<S>(stream: S) -> Result<Connection, Fault>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // No password and no database: nothing is sent before what `connect` sends, whose errors are
    // the server's own words.
    let login = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP2)
        .set_skip_set_lib_name();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let (stream, bound) = Bounded::new(stream);
    let (commands, driver) = MultiplexedConnection::new_with_config(&login, stream, config)
        .await
        .map_err(Fault::connection)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(driver.map(drop));
    Ok(Connection { commands, driver: tasks.into(), bound, opened: Instant::now() })
}

impl Connection {
    /// Sends commands in one write, and returns their answers, errors included.
    ///
    /// If an answer does not come before `until`, it is dropped when it comes: the library counts
    /// answers, so it is never taken for that of a later command.
    pub(crate) async fn send_until(
        &mut self,
        commands: &Pipeline,
        until: Instant,
    ) -> Result<Vec<Value>, Fault> {
        self.exchange(commands, ANSWER.saturating_mul(commands.len()), until).await
    }

    /// Sends commands whose answers have at most this many bytes together.
    async fn exchange(
        &mut self,
        commands: &Pipeline,
        most: usize,
        until: Instant,
    ) -> Result<Vec<Value>, Fault> {
        let may_read = self.bound.sent(most);
        let answers = self.commands.send_packed_commands(commands, 0, commands.len());
        // Late answers are still to come.
        let answers = timeout_at(until, answers).await.map_err(|_| Fault::Late)?;
        self.bound.answered(most);
        if answers.is_ok() {
            self.bound.note_answer();
        }
        answers.map_err(|error| match self.bound.is_exceeded() {
            true => Fault::Connection(format!(
                "the connection was closed, because more than {} KiB came; answers to what was \
                 asked are shorter",
                may_read >> 10
            )),
            false if !self.bound.has_answered() => said_instead(self.bound.first())
                .unwrap_or_else(|| match error.is_io_error() {
                    true => Fault::Closed,
                    false => Fault::connection(error),
                }),
            false => Fault::connection(error),
        })
    }

    /// Sends commands, and returns their answers if none is an error.
    pub(crate) async fn send(
        &mut self,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, Fault> {
        without_faults(self.send_until(commands, Instant::now() + within).await?)
    }

    /// The same for commands of which one may have a long answer.
    pub(crate) async fn send_for_long(
        &mut self,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, Fault> {
        without_faults(self.answers_for_long(commands, within).await?)
    }

    /// The same with the answers that are errors.
    pub(crate) async fn answers_for_long(
        &mut self,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, Fault> {
        self.exchange(commands, LONG_ANSWER, Instant::now() + within).await
    }

    /// Sends a command of these words, and returns its answer, which has at most this many bytes,
    /// if it is no error.
    pub(crate) async fn send_one(
        &mut self,
        words: &[&str],
        most: usize,
        within: Duration,
    ) -> Result<Value, Fault> {
        let (mut command, mut commands) = (Cmd::new(), Pipeline::new());
        command.arg(words);
        commands.add_command(command);
        let answers = self.exchange(&commands, most, Instant::now() + within).await?;
        Ok(without_faults(answers)?.pop().unwrap_or(Value::Nil))
    }

    pub(crate) fn is_older_than(&self, moment: Instant) -> bool {
        self.opened < moment
    }

    /// Whether the two are copies of one connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }
}

/// The fault of a server that has answered nothing, by the first bytes from it. `None`: it has
/// said nothing, or speaks TLS.
fn said_instead(first: &[u8]) -> Option<Fault> {
    // The records of TLS begin with these: an alert, and a handshake.
    if matches!(first, [] | [0x15 | 0x16, 3, ..]) {
        return None;
    }
    let text = String::from_utf8_lossy(first);
    let line = text.lines().next().unwrap_or_default();
    // As one that has too many clients.
    if let Some(error) = line.strip_prefix('-') {
        let (code, detail) = error.split_once(' ').unwrap_or((error, ""));
        return Some(match reaction(code, detail) {
            Reaction::Close(fault) => fault,
            _ => Fault::Other(in_words(error)),
        });
    }
    Some(Fault::Foreign(in_words(line)))
}

fn without_faults(answers: Vec<Value>) -> Result<Vec<Value>, Fault> {
    if let Some(fault) = answers.iter().find_map(fault_of) { Err(fault) } else { Ok(answers) }
}

/// The elements of a list; none if the answer is something else.
pub(crate) fn parts(answer: &Value) -> &[Value] {
    if let Value::Array(parts) = answer { parts } else { &[] }
}

/// The text of an answer, if it is one.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => core::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The fault of the server that an answer names.
pub(crate) fn fault_of(answer: &Value) -> Option<Fault> {
    let Value::ServerError(error) = answer else { return None };
    let detail = error.details().unwrap_or_default();
    Some(match reaction(error.code(), detail) {
        Reaction::Close(fault) => fault,
        _ => Fault::Other(in_words(&format!("{} {detail}", error.code()))),
    })
}

fn tls(config: &Config) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &config.authorities {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| wrong(path, &error))?;
        }
    } else {
        // A certificate that cannot be read is not trusted. If none can, connecting says so.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let client = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let client = match &config.certificate {
        None => client.with_no_client_auth(),
        Some(Certificate { chain, key: path }) => {
            let key = PrivateKeyDer::from_pem_file(path).map_err(|error| wrong(path, &error))?;
            let client = client.with_client_auth_cert(certificates(chain)?, key);
            client.map_err(|error| wrong(chain, &error))?
        }
    };
    Ok(TlsConnector::from(Arc::new(client)))
}

/// The certificates in a file, at least one.
fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(path, &error))?;
    if all.is_empty() { Err(wrong(path, &"no certificate is in it")) } else { Ok(all) }
}

fn wrong(path: &Path, why: &impl fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_instead_of_an_answer_is_told() {
        let other = |text: &str| Some(Fault::Other(text.to_owned()));
        let foreign = |text: &str| Some(Fault::Foreign(text.to_owned()));
        for (first, expected) in [
            (
                &b"-ERR max number of clients reached\r\n"[..],
                other("ERR max number of clients reached"),
            ),
            (b"-LOADING Redis is loading\r\n", Some(Fault::Loading)),
            (b"-BUSY\r\n", other("BUSY")),
            (b"HTTP/1.1 400 Bad Request\r\nServer: x", foreign("HTTP/1.1 400 Bad Request")),
            (b"\xff\0", foreign("\u{fffd}?")),
            (b"", None),
            (b"\x15\x03\x03\0\x02", None),
        ] {
            assert_eq!(said_instead(first), expected, "{first:?}");
        }
    }

    #[test]
    fn what_is_written_is_sent_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = runtime.block_on(tcp("127.0.0.1", port)).unwrap();
        assert!(stream.nodelay().unwrap());
    }
}

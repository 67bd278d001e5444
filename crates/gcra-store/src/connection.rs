//! [`Connection`]: a connection to one server, over which asks are sent.

use core::time::Duration;
use std::sync::Arc;

use futures_util::FutureExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, ProtocolVersion, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::config::{Address, Config};
use crate::fault::{Fault, Reaction, reaction};

/// A connection. When the last copy of it is dropped, it is closed, and what is under way on it
/// fails at once.
#[derive(Clone)]
pub(crate) struct Connection {
    commands: MultiplexedConnection,
    driver: Arc<Driver>,
    opened: Instant,
}

struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What every connection needs.
pub(crate) struct Connector {
    pub(crate) config: Config,
    tls: Option<TlsConnector>,
}

impl Connector {
    /// Reads the certificates that are trusted.
    pub(crate) fn new(config: Config) -> std::io::Result<Self> {
        let tls = if config.url.tls { Some(tls(&config)?) } else { None };
        Ok(Self { config, tls })
    }

    /// Connects, and logs in unless it is a sentinel.
    pub(crate) async fn connect(
        &self,
        address: &Address,
        log_in: bool,
    ) -> Result<Connection, Fault> {
        let connecting = self.stream_and_commands(address);
        let mut connection = tokio::time::timeout(self.config.connect_timeout, connecting)
            .await
            .map_err(|_| Fault::Late)??;
        if log_in {
            let mut commands = Pipeline::new();
            let password = self.config.password.read();
            let password = password.map_err(|error| Fault::NotPermitted(error.to_string()))?;
            if let Some(password) = password {
                let user = self.config.url.user.as_deref().unwrap_or("default");
                commands.cmd("AUTH").arg(user).arg(password);
            }
            if self.config.url.database != 0 {
                commands.cmd("SELECT").arg(self.config.url.database);
            }
            if !commands.is_empty() {
                connection.send(&commands, self.config.connect_timeout).await?;
            }
        }
        Ok(connection)
    }

    async fn stream_and_commands(&self, address: &Address) -> Result<Connection, Fault> {
        let failed = |error: std::io::Error| Fault::Connection(error.to_string());
        match address {
            Address::Unix(path) => over(UnixStream::connect(path).await.map_err(failed)?).await,
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                let Some(tls) = &self.tls else { return over(stream).await };
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| Fault::Connection(format!("{host} is not a name for TLS")))?;
                over(tls.connect(name, stream).await.map_err(failed)?).await
            }
        }
    }
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
    let (commands, driver) = MultiplexedConnection::new_with_config(&login, stream, config)
        .await
        .map_err(|error| Fault::Connection(error.to_string()))?;
    let driver = tokio::spawn(driver.map(drop));
    Ok(Connection { commands, driver: Arc::new(Driver(driver)), opened: Instant::now() })
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
        let answers = self.commands.send_packed_commands(commands, 0, commands.len());
        match timeout_at(until, answers).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(error)) => Err(Fault::Connection(error.to_string())),
            Err(_) => Err(Fault::Late),
        }
    }

    /// Sends commands, and returns their answers if none is an error.
    pub(crate) async fn send(
        &mut self,
        commands: &Pipeline,
        within: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let answers = self.send_until(commands, Instant::now() + within).await?;
        match answers.iter().find_map(fault_of) {
            Some(fault) => Err(fault),
            None => Ok(answers),
        }
    }

    /// Whether it was opened before this moment.
    pub(crate) fn is_older_than(&self, moment: Instant) -> bool {
        self.opened < moment
    }

    /// Whether the two are copies of one connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }
}

/// What an answer says is wrong with the server.
fn fault_of(answer: &Value) -> Option<Fault> {
    let Value::ServerError(error) = answer else { return None };
    let detail = error.details().unwrap_or_default();
    Some(match reaction(error.code(), detail) {
        Reaction::Close(fault) => fault,
        _ => Fault::Other(format!("{} {detail}", error.code())),
    })
}

fn tls(config: &Config) -> std::io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &config.authorities {
        let wrong = |why: String| std::io::Error::other(format!("{}: {why}", path.display()));
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrong(error.to_string()))?;
        for certificate in certificates {
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
    } else {
        // What cannot be read is not trusted. If that is all, connecting says what is missing.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let client = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(client)))
}

//! HAProxy's end of a connection, for the tests of agents: it asks a question and returns the
//! answer.
//!
//! ```
//! use spop_agent::testing::Client;
//! use spop_agent::{Agent, Reply, Request, Scope, Value, VarName};
//!
//! const LOCAL: VarName<'_> = VarName::from_static("local");
//!
//! fn local(request: &Request<'_>, reply: &mut Reply<'_>) {
//!     let ip = request.message(b"check").and_then(|message| message.arg(b"ip")?.as_ip());
//!     if let Some(ip) = ip {
//!         reply.set_var(Scope::Transaction, LOCAL, ip.is_loopback());
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let mut haproxy = Client::of(Agent::new(local)).await?;
//! let answer = haproxy.ask(&[("check", &[("ip", Value::Ipv4([127, 0, 0, 1].into()))])]).await?;
//! assert_eq!(answer.var(Scope::Transaction, "local"), Some(Value::Bool(true)));
//! # Ok(())
//! # }
//! ```

use std::future::{Future, pending};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_hello};
use spop_codec::{Action, Frame, FrameId, Scope, Value, decode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::connection;
use crate::handler::Handler;
use crate::shared::{HandlerPermit, Shared, Stage};

/// How long an agent may take for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a message, and its args by name, as an spoe-message section lists them.
pub type Question<'a> = (&'a str, &'a [(&'a str, Value<'a>)]);

/// One connection to an agent.
///
/// Every method fails with an [`io::Error`] if the agent takes longer than a minute, closes the
/// connection, or sends something that is not SPOP.
pub struct Client {
    stream: Box<dyn Stream>,
    received: Vec<u8>,
    next_id: u64,
    served: Option<Served>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An agent that serves streams which need not be sockets: for fuzz targets, which cut reads and
/// writes anywhere. It may change or be removed at any time.
#[doc(hidden)]
#[derive(Debug)]
pub struct Streams<H>(Shared<H>);

impl<H: Handler> Streams<H> {
    /// Serves streams with this agent.
    #[must_use]
    pub fn new(agent: Agent<H>) -> Self {
        Self(agent.into_shared())
    }

    /// Serves one stream until it ends, or until the agent stops because the `stop` of any of its
    /// streams has resolved. Returns how it ended, in words.
    pub async fn serve(
        &self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        stop: impl Future<Output = ()>,
    ) -> String {
        let Shared { counters, settings, .. } = &self.0;
        let permits = Arc::new(Semaphore::new(settings.max_connections));
        let mut permit = HandlerPermit::new(permits);
        counters.opened();
        let stop = async {
            stop.await;
            self.0.enter(Stage::Stopping);
            pending().await
        };
        let ended = tokio::select! {
            biased;
            ended = stop => ended,
            ended = connection::serve(&mut stream, &self.0, &mut permit) => ended,
        };
        counters.ended(&ended.end);
        counters.closed();
        ended.end.to_string()
    }
}

/// The engine id of a [`Client`].
pub const ENGINE_ID: &str = "testing";

impl Client {
    /// Serves an agent in the current tokio runtime, on a free port of 127.0.0.1, and connects to
    /// it. The agent ends when the client is dropped.
    ///
    /// # Errors
    ///
    /// No port is free; or the errors of every method, see [`Client`].
    pub async fn of<H: Handler>(agent: Agent<H>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let served = Served(tokio::spawn(agent.serve(listener)));
        let mut client = Self::connect(&address.to_string()).await?;
        client.served = Some(served);
        Ok(client)
    }

    /// Connects to an agent: `127.0.0.1:9000`, or `unix:/path`.
    ///
    /// # Errors
    ///
    /// No agent listens there; or the errors of every method, see [`Client`].
    pub async fn connect(address: &str) -> io::Result<Self> {
        match address.strip_prefix("unix:") {
            Some(path) => Self::greet(UnixStream::connect(path).await?).await,
            None => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Self::greet(stream).await
            }
        }
    }

    async fn greet(stream: impl Stream + 'static) -> io::Result<Self> {
        let mut client =
            Self { stream: Box::new(stream), received: Vec::new(), next_id: 0, served: None };
        let fields = HelloFields { engine_id: Some(ENGINE_ID), ..HelloFields::default() };
        let mut frame = [0; 256];
        let length = encode_hello(&mut frame, &fields).map_err(io::Error::other)?;
        client.write(&frame[..length]).await?;
        client.receive(|frame| matches!(frame, Frame::AgentHello(_)).then_some(())).await?;
        Ok(client)
    }

    /// Sends one NOTIFY with these messages, and waits for its ACK. Use it for one question at a
    /// time: it drops the ACKs of other questions that come earlier.
    ///
    /// # Errors
    ///
    /// The messages are larger than a frame; or the errors of every method, see [`Client`].
    pub async fn ask(&mut self, messages: &[Question<'_>]) -> io::Result<Answer> {
        let id = self.send(messages).await?;
        loop {
            let answer = self.next().await?;
            if answer.id == id {
                return Ok(answer);
            }
        }
    }

    /// Sends one NOTIFY, and does not wait. Returns the id that its [`Answer`] will have.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn send(&mut self, messages: &[Question<'_>]) -> io::Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        let mut frame = vec![0; HelloFields::default().max_frame_size as usize + 4];
        let mut notify =
            NotifyWriter::new(&mut frame, FrameId { stream: id, frame: 1 }).map_err(too_large)?;
        for (name, args) in messages {
            notify.message(name.as_bytes()).map_err(too_large)?;
            for (name, value) in *args {
                notify.arg(name.as_bytes(), *value).map_err(too_large)?;
            }
        }
        let length = notify.finish();
        self.write(&frame[..length]).await?;
        Ok(id)
    }

    /// Waits for the next ACK.
    ///
    /// # Errors
    ///
    /// As [`ask`](Self::ask).
    pub async fn next(&mut self) -> io::Result<Answer> {
        self.receive(|frame| match frame {
            Frame::Ack(ack) => Some(Answer {
                id: ack.id.stream,
                actions: ack.actions().map(Into::into).collect(),
            }),
            _ => None,
        })
        .await
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        in_time(self.stream.write_all(bytes)).await
    }

    /// Reads until a frame has come for which `wanted` returns something.
    async fn receive<T>(&mut self, wanted: impl Fn(&Frame<'_>) -> Option<T>) -> io::Result<T> {
        loop {
            match decode(&self.received, 1 << 20).map_err(io::Error::other)? {
                Some((Frame::AgentDisconnect(disconnect), _)) => {
                    let status = disconnect.status;
                    return Err(io::Error::other(format!(
                        "the agent ended the connection: {status}"
                    )));
                }
                Some((frame, used)) => {
                    let found = wanted(&frame);
                    self.received.drain(..used);
                    if let Some(found) = found {
                        return Ok(found);
                    }
                }
                None => {
                    let mut buffer = [0; 16_384];
                    let filled = in_time(self.stream.read(&mut buffer)).await?;
                    if filled == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.received.extend_from_slice(&buffer[..filled]);
                }
            }
        }
    }
}

/// An agent that is served until this is dropped.
struct Served(JoinHandle<()>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("next_id", &self.next_id).finish_non_exhaustive()
    }
}

async fn in_time<T>(done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(PATIENCE, done).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

fn too_large(error: spop_codec::BufferFull) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// An ACK, as HAProxy reads it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    id: u64,
    actions: Vec<OwnedAction>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct OwnedAction {
    scope: Scope,
    name: Vec<u8>,
    /// `None` if the variable is unset.
    value: Option<OwnedValue>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum OwnedValue {
    String(Vec<u8>),
    Binary(Vec<u8>),
    /// A value that borrows nothing.
    Other(Value<'static>),
}

impl From<Action<'_>> for OwnedAction {
    fn from(action: Action<'_>) -> Self {
        match action {
            Action::SetVar { scope, name, value } => {
                Self { scope, name: name.to_vec(), value: Some(value.into()) }
            }
            Action::UnsetVar { scope, name } => Self { scope, name: name.to_vec(), value: None },
        }
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::String(bytes) => Self::String(bytes.to_vec()),
            Value::Binary(bytes) => Self::Binary(bytes.to_vec()),
            Value::Null => Self::Other(Value::Null),
            Value::Bool(value) => Self::Other(Value::Bool(value)),
            Value::Int32(value) => Self::Other(Value::Int32(value)),
            Value::Uint32(value) => Self::Other(Value::Uint32(value)),
            Value::Int64(value) => Self::Other(Value::Int64(value)),
            Value::Uint64(value) => Self::Other(Value::Uint64(value)),
            Value::Ipv4(value) => Self::Other(Value::Ipv4(value)),
            Value::Ipv6(value) => Self::Other(Value::Ipv6(value)),
        }
    }
}

impl OwnedValue {
    fn borrow(&self) -> Value<'_> {
        match self {
            Self::String(bytes) => Value::String(bytes),
            Self::Binary(bytes) => Value::Binary(bytes),
            Self::Other(value) => *value,
        }
    }
}

impl Answer {
    /// The id of the NOTIFY that it answers, as [`Client::send`] returned it.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// The value of a variable, from the last action with this scope and name. `None` if it is not
    /// set, or is unset.
    #[must_use]
    pub fn var(&self, scope: Scope, name: &str) -> Option<Value<'_>> {
        let mut last = self.actions.iter().rev();
        last.find(|action| action.scope == scope && action.name == name.as_bytes())?
            .value
            .as_ref()
            .map(OwnedValue::borrow)
    }

    /// All actions, in order.
    pub fn actions(&self) -> impl Iterator<Item = Action<'_>> {
        self.actions.iter().map(|OwnedAction { scope, name, value }| match value {
            Some(value) => Action::SetVar { scope: *scope, name, value: value.borrow() },
            None => Action::UnsetVar { scope: *scope, name },
        })
    }

    /// Whether the ACK has no actions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }
}

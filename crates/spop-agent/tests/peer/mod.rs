//! HAProxy's end of a connection, as a script: frames as HAProxy sends them, and as it never does;
//! whole, in pieces, late, or given up.
#![allow(dead_code, unreachable_pub, reason = "every user of this module uses a part of it")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use spop_agent::{Agent, Counters, Handler, Limits, Reply, Request, Scope, Value, VarName};
use spop_codec::haproxy::{HelloFields, NotifyWriter, encode_disconnect, encode_hello};
use spop_codec::{Action, Frame, FrameId, Status, decode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that is being served.
pub struct Served {
    pub address: std::net::SocketAddr,
    pub counters: Arc<Counters>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

/// Formats every log line, also debug lines, and shows none.
struct Log;

impl log::Log for Log {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        assert!(!record.args().to_string().is_empty());
    }

    fn flush(&self) {}
}

pub async fn serve<H: Handler>(agent: Agent<H>) -> Served {
    if log::set_logger(&Log).is_ok() {
        log::set_max_level(log::LevelFilter::Trace);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counters = agent.counters();
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(agent.serve_until([listener.into()], async move {
        let _ = stopped.await;
    }));
    Served { address, counters, stop, serving }
}

impl Served {
    pub async fn stop(self) {
        let began = Instant::now();
        self.stop.send(()).unwrap();
        within(self.serving).await.unwrap();
        // The agent waits for its connections for 5 s. On a slow machine they end after it.
        while began.elapsed() > Duration::from_secs(4) && self.counters.snapshot().open > 0 {
            assert!(began.elapsed() < PATIENCE);
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.counters.snapshot().open, 0);
    }
}

/// Limits for a test that sends a frame in parts: there is time for the rest, also on a slow
/// machine.
pub fn patient() -> Limits {
    let mut limits = Limits::default();
    (limits.hello_timeout, limits.frame_timeout) = (10 * PATIENCE, 10 * PATIENCE);
    limits
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("it takes too long")
}

/// HAProxy's end of a connection.
pub struct Peer {
    pub stream: TcpStream,
    pub received: Vec<u8>,
}

/// A frame that the agent sent, or the end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Sent {
    Hello {
        max_frame_size: u32,
        pipelining: bool,
        fragmentation: bool,
    },
    /// The ids, and the variables that were set, as text.
    Ack(u64, u64, Vec<String>),
    Disconnect(Status),
    End,
}

impl Peer {
    pub async fn connect(served: &Served) -> Self {
        let stream = TcpStream::connect(served.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, received: Vec::new() }
    }

    pub async fn greeted(served: &Served) -> Self {
        let mut peer = Self::connect(served).await;
        peer.send(&hello(16380, None)).await;
        assert_eq!(peer.next().await, welcome(16380));
        peer
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Sends some bytes at a time, with pauses.
    pub async fn send_in_pieces(&mut self, bytes: &[u8], size: usize, pause: Duration) {
        for piece in bytes.chunks(size) {
            self.send(piece).await;
            sleep(pause).await;
        }
    }

    /// Closes as HAProxy from 3.1 on does.
    pub fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    /// Sends bytes on a connection of their own, and returns everything that the agent sends.
    pub async fn said_to(served: &Served, bytes: &[u8]) -> Vec<Sent> {
        let mut peer = Self::connect(served).await;
        peer.send(bytes).await;
        let mut sent = Vec::new();
        loop {
            match peer.next().await {
                Sent::End => return sent,
                next => sent.push(next),
            }
        }
    }

    /// Whether the agent sends nothing for this time.
    pub async fn is_silent(&mut self, time: Duration) -> bool {
        timeout(time, self.next()).await.is_err()
    }

    pub async fn next(&mut self) -> Sent {
        loop {
            if let Some((frame, used)) =
                decode(&self.received, 1 << 20).expect("the agent sends good frames")
            {
                let sent = match frame {
                    Frame::AgentHello(hello) => Sent::Hello {
                        max_frame_size: hello.max_frame_size,
                        pipelining: hello.capabilities.pipelining(),
                        fragmentation: hello.capabilities.fragmentation(),
                    },
                    Frame::Ack(ack) => {
                        let text = |action| match action {
                            Action::SetVar { scope, name, value } => {
                                format!(
                                    "{}.{}={value:?}",
                                    scope.as_str(),
                                    String::from_utf8_lossy(name)
                                )
                            }
                            Action::UnsetVar { name, .. } => {
                                format!("unset {}", String::from_utf8_lossy(name))
                            }
                        };
                        Sent::Ack(ack.id.stream, ack.id.frame, ack.actions().map(text).collect())
                    }
                    Frame::AgentDisconnect(disconnect) => Sent::Disconnect(disconnect.status),
                    other => panic!("an agent does not send {other:?}"),
                };
                self.received.drain(..used);
                return sent;
            }
            let mut buffer = [0; 65_536];
            match within(self.stream.read(&mut buffer)).await {
                Ok(0) => return Sent::End,
                Err(error) => panic!("{error}"),
                Ok(filled) => self.received.extend_from_slice(&buffer[..filled]),
            }
        }
    }
}

/// The agent's answer to a HELLO that offers pipelining.
pub fn welcome(max_frame_size: u32) -> Sent {
    Sent::Hello { max_frame_size, pipelining: true, fragmentation: true }
}

pub fn hello(max_frame_size: u32, healthcheck: Option<bool>) -> Vec<u8> {
    let mut out = vec![0; 256];
    let capabilities = if healthcheck == Some(true) { "" } else { "pipelining" };
    let fields =
        HelloFields { max_frame_size, capabilities, healthcheck, ..HelloFields::default() };
    let length = encode_hello(&mut out, &fields).unwrap();
    out.truncate(length);
    out
}

pub fn notify(stream: u64, value: &[u8]) -> Vec<u8> {
    let mut out = vec![0; value.len() + 64];
    let mut writer = NotifyWriter::new(&mut out, FrameId { stream, frame: 1 }).unwrap();
    writer.message(b"m").unwrap();
    writer.arg(b"arg", Value::String(value)).unwrap();
    let length = writer.finish();
    out.truncate(length);
    out
}

pub fn disconnect(status: Status) -> Vec<u8> {
    let mut out = vec![0; 256];
    let length = encode_disconnect(&mut out, status, status.text()).unwrap();
    out.truncate(length);
    out
}

pub const LENGTH: VarName<'static> = VarName::from_static("length");

/// Answers the length of the arg. Panics if it is `panic`.
pub fn measure(request: &Request<'_>, reply: &mut Reply<'_>) {
    let Some(Value::String(value)) = request.message(b"m").and_then(|message| message.arg(b"arg"))
    else {
        return;
    };
    reply.set_var(Scope::Transaction, LENGTH, u32::try_from(value.len()).unwrap());
    assert_ne!(value, b"panic", "the test asks for it");
}

pub fn ack(stream: u64, length: u32) -> Sent {
    Sent::Ack(stream, 1, vec![format!("txn.length=Uint32({length})")])
}

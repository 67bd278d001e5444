//! An agent: listeners, workers, and the order in which they start and stop.

use std::future::{Future, pending};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use spop_codec::Limits;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::connection::{self, End};
use crate::counters::{Counters, Snapshot};
use crate::handler::Handler;
use crate::listener::{ListenAddress, Listener, Stream};

/// How long to leave `accept` alone after it failed (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a stopping agent waits for its connections. Each ends by itself in less.
const DRAIN: Duration = Duration::from_secs(5);

/// An SPOE agent: a handler, and the limits under which it is served.
#[derive(Debug)]
pub struct Agent<H> {
    shared: Arc<Shared<H>>,
    max_connections: usize,
}

#[derive(Debug)]
struct Shared<H> {
    handler: H,
    limits: Limits,
    counters: Arc<Counters>,
}

impl<H: Handler> Agent<H> {
    /// An agent with default limits: 10 000 connections, frames as large as HAProxy offers up to 1 MiB, ACKs of at most
    /// 815 bytes (which lets HAProxy keep 20 NOTIFYs in flight on a connection).
    #[must_use]
    pub fn new(handler: H) -> Self {
        let shared = Shared { handler, limits: Limits::default(), counters: Arc::default() };
        Self { shared: Arc::new(shared), max_connections: 10_000 }
    }

    /// Serves under other limits for frames and times.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        // Nobody else has it before `serve`.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.limits = limits;
        }
        self
    }

    /// Serves at most so many connections at once. More wait to be accepted: turning them away would make HAProxy up
    /// to 3.0 come back in a tight loop.
    #[must_use]
    pub fn max_connections(mut self, connections: NonZeroUsize) -> Self {
        self.max_connections = connections.get().min(Semaphore::MAX_PERMITS);
        self
    }

    /// The agent's counters, to be read while it serves.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Serves connections in the tokio runtime that this is awaited in, until `stop` resolves.
    ///
    /// Then nothing more is accepted, what has arrived is answered, and each connection is told with AGENT-DISCONNECT.
    pub async fn serve(self, listeners: Vec<Listener>, stop: impl Future<Output = ()>) {
        self.serve_on(vec![Handle::current()], listeners, stop).await;
    }

    /// Brings `threads` worker threads, this one among them, each with a runtime of its own, and serves as
    /// [`serve`](Self::serve) does. Connections are dealt to the workers in turn and stay where they are.
    ///
    /// One thread is best wherever HAProxy runs on the same machine: it answers more than HAProxy can ask, and a second
    /// one would take a core from HAProxy.
    ///
    /// # Errors
    ///
    /// An address can't be bound (then the error is that address's), or no thread or runtime be had.
    pub fn run(
        self,
        threads: NonZeroUsize,
        addresses: &[ListenAddress],
        stop: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(RunError::Runtime)?;
        let listeners = runtime.block_on(async {
            let bind = |address: &ListenAddress| {
                address.bind().map_err(|source| RunError::Listen { address: address.clone(), source })
            };
            addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()
        })?;
        for listener in &listeners {
            if let Ok(address) = listener.local_address() {
                log::info!("listening on {address}");
            }
        }

        let mut handles = vec![runtime.handle().clone()];
        let mut workers = Vec::new();
        for number in 1..threads.get() {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(RunError::Runtime)?;
            handles.push(runtime.handle().clone());
            let (end, ended) = oneshot::channel::<()>();
            let worker = thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || runtime.block_on(ended))
                .map_err(RunError::Runtime)?;
            workers.push((end, worker));
        }
        runtime.block_on(self.serve_on(handles, listeners, stop));
        for (end, worker) in workers {
            drop(end);
            // A worker's own panic has been reported by itself; its connections are closed.
            let _ = worker.join();
        }
        Ok(())
    }

    async fn serve_on(self, workers: Vec<Handle>, listeners: Vec<Listener>, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(false);
        // Closed when the last connection has dropped its end.
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        let accepting = Arc::new(Accepting {
            shared: self.shared,
            workers,
            next_worker: AtomicUsize::new(0),
            room: Arc::new(Semaphore::new(self.max_connections)),
            stopped,
            alive,
        });
        let tasks: Vec<_> = listeners
            .into_iter()
            .map(|listener| tokio::spawn(accepting.clone().accept_from(listener)))
            .collect();
        let counters = accepting.shared.counters.clone();
        drop(accepting);

        stop.await;
        log::info!("stopping: {} connections open", counters.snapshot().open);
        // Nobody listening any more means that all connections have ended.
        let _ = stopping.send(true);
        for task in tasks {
            let _ = task.await;
        }
        if timeout(DRAIN, all_gone.recv()).await.is_err() {
            log::warn!("{} connections did not end in time and are dropped", counters.snapshot().open);
        }
        let Snapshot { notifies, connections, health_checks, .. } = counters.snapshot();
        let others = connections.saturating_sub(health_checks);
        log::info!(
            "stopped after {notifies} NOTIFYs on {others} connections, and {health_checks} health checks"
        );
    }
}

/// What the tasks that accept connections have in common.
struct Accepting<H> {
    shared: Arc<Shared<H>>,
    workers: Vec<Handle>,
    next_worker: AtomicUsize,
    room: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
    alive: mpsc::Sender<()>,
}

impl<H: Handler> Accepting<H> {
    /// Accepts connections until the agent stops. Nothing else ends it.
    async fn accept_from(self: Arc<Self>, listener: Listener) {
        let mut stop = std::pin::pin!(stop_of(self.stopped.clone()));
        loop {
            // Room is waited for with a connection in hand: a listener that waits for one must not hold any.
            let accepted = async {
                let stream = listener.accept().await?;
                let room = self.room.clone().acquire_owned().await.map_err(io::Error::other)?;
                io::Result::Ok((stream, room))
            };
            let accepted = tokio::select! {
                biased;
                () = &mut stop => return,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, room)) => self.start(stream, room),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.shared.counters.accept_error();
                    log::warn!("could not accept a connection, trying again: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Hands the connection to the worker whose turn it is.
    fn start(&self, stream: Stream, room: OwnedSemaphorePermit) {
        let guest = Guest {
            shared: self.shared.clone(),
            stopped: self.stopped.clone(),
            _room: room,
            _alive: self.alive.clone(),
        };
        guest.shared.counters.opened();
        let turn = self.next_worker.fetch_add(1, Ordering::Relaxed);
        match self.workers.get(turn % self.workers.len().max(1)) {
            // A socket belongs to the runtime it was accepted in, and has to be registered anew in another.
            Some(worker) if self.workers.len() > 1 => match stream.into_std() {
                Ok(stream) => drop(worker.spawn(async move {
                    match stream.into_tokio() {
                        Ok(stream) => guest.serve(stream).await,
                        Err(error) => log::warn!("a connection could not be handed to its worker: {error}"),
                    }
                })),
                Err(error) => log::warn!("a connection could not be handed to its worker: {error}"),
            },
            _ => drop(tokio::spawn(guest.serve(stream))),
        }
    }
}

/// A connection's share of the agent: given back when it is dropped, however the connection ends.
struct Guest<H> {
    shared: Arc<Shared<H>>,
    stopped: watch::Receiver<bool>,
    _room: OwnedSemaphorePermit,
    _alive: mpsc::Sender<()>,
}

impl<H> Drop for Guest<H> {
    fn drop(&mut self) {
        self.shared.counters.closed();
    }
}

impl<H: Handler> Guest<H> {
    async fn serve(self, stream: Stream) {
        let Shared { handler, limits, counters } = &*self.shared;
        let stop = stop_of(self.stopped.clone());
        let end = match stream {
            Stream::Tcp(stream) => connection::serve(stream, handler, *limits, counters, stop).await,
            Stream::Unix(stream) => connection::serve(stream, handler, *limits, counters, stop).await,
        };
        match end {
            End::Protocol(_) => counters.protocol_error(),
            End::Late | End::Unread => counters.timeout(),
            _ => {}
        }
        log::debug!("connection ended: {end}");
    }
}

/// Resolves when the agent stops.
async fn stop_of(mut stopped: watch::Receiver<bool>) {
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        // The agent was dropped while serving: its connections end with their runtime.
        pending::<()>().await;
    }
}

enum StdStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Stream {
    fn into_std(self) -> io::Result<StdStream> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(StdStream::Tcp),
            Self::Unix(stream) => stream.into_std().map(StdStream::Unix),
        }
    }
}

impl StdStream {
    fn into_tokio(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Stream::Tcp),
            Self::Unix(stream) => UnixStream::from_std(stream).map(Stream::Unix),
        }
    }
}

/// Why [`Agent::run`] did not begin to serve.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// An address can't be listened on.
    Listen {
        /// Which.
        address: ListenAddress,
        /// Why.
        source: io::Error,
    },
    /// The system gives no thread or no event queue.
    Runtime(io::Error),
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Listen { address, source } => {
                write!(f, "could not listen on {address}: {source}")?;
                match (source.kind(), address) {
                    (io::ErrorKind::AddrInUse, _) => f.write_str("; is another agent running there?"),
                    (io::ErrorKind::NotFound, ListenAddress::Unix(_)) => {
                        f.write_str("; its directory must exist before the agent starts")
                    }
                    (io::ErrorKind::AddrNotAvailable, _) => {
                        f.write_str("; the IP must be one of this machine's")
                    }
                    _ => Ok(()),
                }
            }
            Self::Runtime(error) => write!(f, "could not start a worker: {error}"),
        }
    }
}

impl std::error::Error for RunError {}

//! An agent: its settings, its listeners and workers, and the order in which they start and stop.

// ADR 2: One worker by default.
// ADR 7: Stopping has an order.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use spop_codec::Limits;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::accept::Acceptor;
use crate::counters::{Counters, Snapshot};
use crate::handler::Handler;
use crate::listener::{ListenAddress, Listener};
use crate::log_limit::PERIOD;
use crate::settings::{MOST_CONNECTIONS, Settings};
use crate::shared::{Shared, Stage};
use crate::socket_file::SocketAccess;

/// How long a stopping agent waits for its connections to end. Each ends by itself in less time.
const FAREWELL: Duration = Duration::from_secs(5);

/// An SPOE agent: a handler, and the settings under which it is served.
///
/// The defaults are good for HAProxy 2.6 and later: 10 000 connections, frames of 16 380 bytes,
/// and ACKs of at most 815 bytes. So HAProxy can have 20 NOTIFYs in flight on a connection. All
/// connections together keep at most 256 MiB of memory.
#[derive(Debug)]
pub struct Agent<H> {
    handler: H,
    settings: Settings,
    counters: Arc<Counters>,
}

impl<H: Handler> Agent<H> {
    /// An agent with default settings.
    #[must_use]
    pub fn new(handler: H) -> Self {
        Self { handler, settings: Settings::default(), counters: Arc::default() }
    }

    /// Sets the limits for frames, ACKs and times.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Sets how long a request may wait for a [late reply](crate::Reply::later). After that it is
    /// answered with the variables that were set at first. Choose a little less than HAProxy's
    /// `timeout processing`, because HAProxy ignores an ACK that comes after that. Default: 1 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Sets how many requests of one connection may wait for [late replies](crate::Reply::later).
    /// When this many wait, no more requests of that connection are answered. Default: 64, which
    /// is more than HAProxy has in flight on a connection.
    #[must_use]
    pub fn max_in_flight(mut self, requests: NonZeroUsize) -> Self {
        self.settings.max_in_flight = requests;
        self
    }

    /// Sets how many bytes all connections together may keep between their rounds. These are
    /// incomplete frames, payloads in pieces, and answers that HAProxy has not read yet. They are
    /// also requests that wait for [late replies](crate::Reply::later), with their futures.
    /// Default: 256 MiB.
    ///
    /// Nothing that is kept is dropped to make space. A connection that needs more than
    /// is left is ended with status 13 (resource allocation error), a warning and a
    /// [counter](crate::Snapshot::no_memory). A request that finds no memory to wait in is
    /// answered at once with the variables that were set at first. A connection whose frames
    /// arrive whole and whose answers are read keeps nothing, and is not affected.
    ///
    /// Each worker may need 2 MiB more during a round. The sockets' buffers in the kernel and the
    /// memory of the handler are not counted.
    #[must_use]
    pub fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_buffered_bytes = bytes;
        self
    }

    /// Sets how long a worker stays awake after each read to wait for the next one. This saves the
    /// time that waking up takes, which is most of the latency of a single request, and uses a
    /// whole core while requests arrive. Default: zero, which means that workers sleep.
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.settings.busy_poll = time;
        self
    }

    /// Sets how many connections may use the handler at once. Default: 10 000.
    ///
    /// As many more connections are accepted, but their NOTIFYs are answered at once, without
    /// actions, until a permit is free. So a request does not wait, and HAProxy's rules treat it
    /// like any request without an answer. (If the agent closed such connections, HAProxy up to
    /// 3.0 would connect again at once, in a loop.) Connections beyond that wait to be accepted.
    #[must_use]
    pub fn max_connections(mut self, connections: NonZeroUsize) -> Self {
        self.settings.max_connections = connections.get().min(MOST_CONNECTIONS);
        self
    }

    /// Sets how long a stopping agent continues to serve, so that HAProxy's health checks notice
    /// and HAProxy asks another agent. During the first half the agent fails `option spop-check`
    /// and serves everything else, also on new connections. During the second half it does not
    /// listen, for health checks that only connect. Default: zero.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        self.settings.drain = drain;
        self
    }

    /// Sets which processes may connect to the Unix sockets that [`run`](Self::run) creates.
    /// Default: as the umask allows.
    #[must_use]
    pub fn socket_access(mut self, access: SocketAccess) -> Self {
        self.settings.socket_access = access;
        self
    }

    /// The agent's counters, which can be read while it serves.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Serves connections forever, in the current tokio runtime.
    ///
    /// The listener is a tokio `TcpListener` or `UnixListener`, or what [`ListenAddress::bind`]
    /// returned.
    pub async fn serve(self, listener: impl Into<Listener>) {
        self.serve_until([listener.into()], pending()).await;
    }

    /// Serves connections in the current tokio runtime until `stop` resolves.
    ///
    /// Then the agent [drains](Self::drain), accepts nothing more, answers what has arrived, and
    /// ends each connection with AGENT-DISCONNECT.
    pub async fn serve_until(
        self,
        listeners: impl IntoIterator<Item = Listener>,
        stop: impl Future<Output = ()>,
    ) {
        self.serve_on(vec![Handle::current()], listeners.into_iter().collect(), stop).await;
    }

    /// Starts `threads` worker threads, the calling thread included, each with a runtime of its
    /// own, and serves as [`serve_until`](Self::serve_until) does. Connections are dealt to the
    /// workers in turn, and stay there.
    ///
    /// If HAProxy runs on the same machine, one thread is best: it answers more requests than
    /// HAProxy can send, and a second thread would take a core from HAProxy.
    ///
    /// # Errors
    ///
    /// An address cannot be bound, or a thread or runtime cannot be started.
    pub fn run(
        self,
        threads: NonZeroUsize,
        addresses: &[ListenAddress],
        stop: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let sockets = Sockets::bind(addresses, self.settings.socket_access)?;
        self.run_on(threads, sockets, stop)
    }

    /// The same with sockets that were bound before, for programs that must know that their
    /// addresses are free before they do something else. [`socket_access`](Self::socket_access)
    /// does not matter here.
    ///
    /// # Errors
    ///
    /// A thread or runtime cannot be started.
    pub fn run_on(
        self,
        threads: NonZeroUsize,
        sockets: Sockets,
        stop: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let Sockets { runtime, listeners } = sockets;
        let addresses: Vec<_> =
            listeners.iter().filter_map(|listener| listener.local_address().ok()).collect();
        let stop = async {
            let mut stop = pin!(stop);
            // `stop` may install signal handlers when it is first polled. That must happen before
            // the log says that the agent listens, because a reader of the log may then end it.
            let first = poll_fn(|cx| Poll::Ready(stop.as_mut().poll(cx))).await;
            addresses.iter().for_each(|address| log::info!("listening on {address}"));
            if first.is_pending() {
                stop.await;
            }
        };

        let mut handles = vec![runtime.handle().clone()];
        let mut workers = Vec::new();
        for number in 1..threads.get() {
            let runtime = new_runtime()?;
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
            // If the worker panicked, that was reported then, and its connections are closed.
            let _ = worker.join();
        }
        Ok(())
    }

    /// The state that the connections of this agent share.
    pub(crate) fn into_shared(self) -> Shared<H> {
        Shared::new(self.handler, self.settings, self.counters)
    }

    async fn serve_on(
        self,
        workers: Vec<Handle>,
        listeners: Vec<Listener>,
        stop: impl Future<Output = ()>,
    ) {
        let shared = Arc::new(self.into_shared());
        // Closed when the last connection has dropped its sender.
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        // Tasks of the workers themselves. They end when this function returns.
        let mut own = JoinSet::new();
        shared.counters.beats(workers.len());
        for (number, worker) in workers.iter().enumerate() {
            let (counters, count) = (shared.counters.clone(), workers.len());
            own.spawn_on(async move { counters.beats(count).beat(number).await }, worker);
        }
        if shared.busy.is_some() {
            for worker in &workers {
                let shared = shared.clone();
                let stay_awake = async move {
                    if let Some(busy) = &shared.busy {
                        busy.stay_awake().await;
                    }
                };
                own.spawn_on(stay_awake, worker);
            }
        }
        let acceptor = Arc::new(Acceptor::new(shared.clone(), workers, alive));
        let accepting: Vec<_> = listeners
            .into_iter()
            .map(|listener| tokio::spawn(acceptor.clone().accept_from(listener)))
            .collect();
        drop(acceptor);

        let summaries = async {
            loop {
                sleep(PERIOD).await;
                shared.log.sum_up();
            }
        };
        tokio::select! {
            () = stop => {}
            () = summaries => {}
        }
        let counters = &shared.counters;
        let open = counters.snapshot().open;
        log::info!("stopping: {open} connection{} open", plural(open));
        let drain = shared.settings.drain;
        if open > 0 {
            shared.enter(Stage::Leaving);
            sleep(drain / 2).await;
        }
        shared.enter(Stage::Closing);
        for task in accepting {
            let _ = task.await;
        }
        // The acceptor is gone now, so only connections have senders.
        let _ = timeout(drain / 2, all_gone.recv()).await;
        shared.enter(Stage::Stopping);
        if timeout(FAREWELL, all_gone.recv()).await.is_err() {
            let open = counters.snapshot().open;
            log::warn!("{open} connection{} did not end in time and will be closed", plural(open));
        }
        shared.log.sum_up();
        let Snapshot { notifies, connections, health_checks, .. } = counters.snapshot();
        let others = connections.saturating_sub(health_checks);
        log::info!(
            "stopped after {notifies} NOTIFY{} on {others} connection{}, and {health_checks} \
             health check{}",
            plural(notifies),
            plural(others),
            plural(health_checks)
        );
    }
}

fn new_runtime() -> Result<Runtime, RunError> {
    // tokio would panic without the pair of sockets by which it learns of signals.
    let pair = std::os::unix::net::UnixStream::pair();
    let named = |error: io::Error| io::Error::new(error.kind(), format!("socketpair: {error}"));
    pair.map_err(|error| RunError::Runtime(named(error)))?;
    Builder::new_current_thread().enable_all().build().map_err(RunError::Runtime)
}

/// The ending of a noun behind this number.
pub(crate) const fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Sockets that are bound. HAProxy can connect to them, and is answered once an agent
/// [runs on](Agent::run_on) them.
#[derive(Debug)]
pub struct Sockets {
    runtime: Runtime,
    listeners: Vec<Listener>,
}

impl Sockets {
    /// Binds all addresses, or none. `access` is for the Unix sockets that this creates.
    ///
    /// # Errors
    ///
    /// An address cannot be bound, or a runtime cannot be started.
    pub fn bind(addresses: &[ListenAddress], access: SocketAccess) -> Result<Self, RunError> {
        let runtime = new_runtime()?;
        let listeners = runtime.block_on(async {
            let bind = |address: &ListenAddress| {
                let bound = address.bind_with(access);
                bound.map_err(|source| RunError::Listen { address: address.clone(), source })
            };
            addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()
        })?;
        Ok(Self { runtime, listeners: listeners.into_iter().flatten().collect() })
    }
}

/// Why [`Agent::run`] did not begin to serve.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// An address cannot be bound.
    Listen {
        /// The address.
        address: ListenAddress,
        /// The error of binding it.
        source: io::Error,
    },
    /// A thread or a runtime cannot be started.
    Runtime(io::Error),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, source } => {
                write!(f, "could not listen on {address}: {source}")?;
                match (source.kind(), address) {
                    (io::ErrorKind::AddrInUse, _) => {
                        f.write_str("; is another agent running there?")
                    }
                    (io::ErrorKind::NotFound, ListenAddress::Unix(_)) => {
                        f.write_str("; its directory must exist before the agent starts")
                    }
                    (io::ErrorKind::PermissionDenied, ListenAddress::Tcp(address))
                        if address.port() < 1024 =>
                    {
                        f.write_str("; choose a port from 1024 on, or start the agent as root")
                    }
                    (io::ErrorKind::AddrNotAvailable, _) => {
                        f.write_str("; the IP address must be one of this machine's")
                    }
                    _ => Ok(()),
                }
            }
            Self::Runtime(error) => write!(f, "could not start a worker: {error}"),
        }
    }
}

impl std::error::Error for RunError {}

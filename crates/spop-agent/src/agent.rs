//! An agent: listeners, workers, and the order in which they start and stop.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use spop_codec::Limits;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::busy::Busy;
use crate::connection;
use crate::counters::{Counters, Snapshot};
use crate::handler::Handler;
use crate::listener::{ListenAddress, Listener, Stream};
use crate::report::{self, Report};
use crate::socket_file::SocketAccess;

/// No more descriptors: of this process, and of the machine (Linux).
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// How long to leave `accept` alone after it failed (too many open files, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a stopping agent waits for its connections once they were told. Each ends by itself in
/// less.
const FAREWELL: Duration = Duration::from_secs(5);

/// More than HAProxy sends on one connection before it has had answers, which is 20 unless
/// configured.
const MAX_IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Enough for a largest frame of each of 10 000 connections, nearly, and far more than HAProxy
/// leaves incomplete or unread.
const MAX_BUFFERED_BYTES: usize = 256 << 20;

/// An SPOE agent: a handler, and the limits under which it is served.
#[derive(Debug)]
pub struct Agent<H> {
    shared: Arc<Shared<H>>,
    max_connections: usize,
    access: SocketAccess,
}

/// What all connections have in common.
#[derive(Debug)]
pub(crate) struct Shared<H> {
    pub(crate) handler: H,
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<Counters>,
    pub(crate) report: Report,
    /// The agent is about to stop, and health checks shall find out.
    pub(crate) leaving: AtomicBool,
    /// How long it goes on until then.
    pub(crate) drain: Duration,
    /// How many requests of a connection may be answered later, and how much.
    pub(crate) max_in_flight: NonZeroUsize,
    pub(crate) deadline: Duration,
    /// How much all connections together may keep between their turns.
    pub(crate) max_buffered_bytes: usize,
    pub(crate) busy: Option<Busy>,
}

impl<H: Handler> Agent<H> {
    /// An agent with default limits: 10 000 connections, frames of 16 380 bytes, ACKs of at most
    /// 815 bytes (which lets HAProxy keep 20 NOTIFYs in flight on a connection), 256 MiB for
    /// what all connections keep together.
    #[must_use]
    pub fn new(handler: H) -> Self {
        let shared = Shared {
            handler,
            limits: Limits::default(),
            counters: Arc::default(),
            report: Report::default(),
            leaving: AtomicBool::new(false),
            drain: Duration::ZERO,
            max_in_flight: MAX_IN_FLIGHT,
            deadline: Duration::from_secs(1),
            max_buffered_bytes: MAX_BUFFERED_BYTES,
            busy: None,
        };
        Self { shared: Arc::new(shared), max_connections: 10_000, access: SocketAccess::default() }
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

    /// How long a request may take that is answered [later](crate::Reply::later); then it gets
    /// what was set at first. A little less than HAProxy's `timeout processing` is right: what
    /// comes after that is not heard. Default: 1 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.deadline = deadline;
        }
        self
    }

    /// How many requests of one connection may wait to be answered [later](crate::Reply::later).
    /// While so many do, nothing more is read from it. Default: 64, more than HAProxy has in
    /// flight on a connection.
    #[must_use]
    pub fn max_in_flight(mut self, requests: NonZeroUsize) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.max_in_flight = requests;
        }
        self
    }

    /// How many bytes all connections together may keep between their turns: incomplete frames,
    /// payloads in pieces, answers that HAProxy has not read yet, and requests that wait to be
    /// answered [later](crate::Reply::later) with what they wait for. Default: 256 MiB.
    ///
    /// What is kept stays, and what comes last gives way. A connection that needs more than is
    /// left is ended, with status 13 (resource allocation error), a warning and a
    /// [counter](crate::Snapshot::no_memory); a request that finds no memory to wait in is
    /// answered at once with what was set at first. A connection whose frames come whole and whose
    /// answers are read keeps nothing, and is not concerned.
    ///
    /// Each worker may need 2 MiB more while a connection has its turn. What the table, the
    /// sockets' buffers in the kernel and the handler itself take is not counted.
    #[must_use]
    pub fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.max_buffered_bytes = bytes;
        }
        self
    }

    /// Keeps a worker awake for so long after each read, for the next one. That saves the time of
    /// a wake-up, which is most of the latency of a request that comes alone, and costs a core
    /// while requests come. Default: not at all.
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.busy = (!time.is_zero()).then(|| Busy::new(time));
        }
        self
    }

    /// Shows the handler the requests of at most so many connections at once.
    ///
    /// The NOTIFYs of further ones, as many again, are answered at once and without actions, until
    /// there is room: a request passes or not as HAProxy's rules say for one without an
    /// answer, but it does not wait. (Turning connections away would make HAProxy up to
    /// 3.0 come back in a tight loop.) Still more wait to be accepted.
    #[must_use]
    pub fn max_connections(mut self, connections: NonZeroUsize) -> Self {
        self.max_connections = connections.get().min(Semaphore::MAX_PERMITS / 2);
        self
    }

    /// How long a stopping agent goes on serving before it says goodbye: long enough for HAProxy's
    /// health check to find out, so that HAProxy asks another agent by then. For the first
    /// half it fails `option spop-check` and serves everybody else, new connections too; for
    /// the second half it does not listen any more, for checks that only connect. Default: not at
    /// all.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.drain = drain;
        }
        self
    }

    /// Who may connect to the Unix sockets that [`run`](Self::run) makes. Default: as for any new
    /// file.
    #[must_use]
    pub fn socket_access(mut self, access: SocketAccess) -> Self {
        self.access = access;
        self
    }

    /// The agent's counters, to be read while it serves.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Serves connections in the tokio runtime that this is awaited in, for ever.
    ///
    /// Takes a tokio `TcpListener` or `UnixListener`, or what [`ListenAddress::bind`] returns.
    pub async fn serve(self, listener: impl Into<Listener>) {
        self.serve_until([listener.into()], pending()).await;
    }

    /// Serves connections in the tokio runtime that this is awaited in, until `stop` resolves.
    ///
    /// Then nothing more is accepted, what has arrived is answered, and each connection is told
    /// with AGENT-DISCONNECT.
    pub async fn serve_until(
        self,
        listeners: impl IntoIterator<Item = Listener>,
        stop: impl Future<Output = ()>,
    ) {
        self.serve_on(vec![Handle::current()], listeners.into_iter().collect(), stop).await;
    }

    /// Brings `threads` worker threads, this one among them, each with a runtime of its own, and
    /// serves as [`serve_until`](Self::serve_until) does. Connections are dealt to the workers
    /// in turn and stay where they are.
    ///
    /// One thread is best wherever HAProxy runs on the same machine: it answers more than HAProxy
    /// can ask, and a second one would take a core from HAProxy.
    ///
    /// # Errors
    ///
    /// An address can't be bound (then the error is that address's), or no thread or runtime be
    /// had.
    pub fn run(
        self,
        threads: NonZeroUsize,
        addresses: &[ListenAddress],
        stop: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(RunError::Runtime)?;
        let listeners = runtime.block_on(async {
            let bind = |address: &ListenAddress| {
                let bound = address.bind_with(self.access);
                bound.map_err(|source| RunError::Listen { address: address.clone(), source })
            };
            addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()
        })?;
        let listeners: Vec<_> = listeners.into_iter().flatten().collect();
        let addresses: Vec<_> =
            listeners.iter().filter_map(|listener| listener.local_address().ok()).collect();
        let stop = async {
            let mut stop = pin!(stop);
            // It may set signal handlers as it is polled first. That comes before anybody is told
            // that the agent listens, and may end it.
            let first = poll_fn(|cx| Poll::Ready(stop.as_mut().poll(cx))).await;
            addresses.iter().for_each(|address| log::info!("listening on {address}"));
            if first.is_pending() {
                stop.await;
            }
        };

        let mut handles = vec![runtime.handle().clone()];
        let mut workers = Vec::new();
        for number in 1..threads.get() {
            let runtime =
                Builder::new_current_thread().enable_all().build().map_err(RunError::Runtime)?;
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

    /// Serves one connection that is no socket, and says how it ended: see
    /// [`testing::serve`](crate::testing::serve).
    pub(crate) async fn serve_stream<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        stop: impl Future<Output = ()>,
    ) -> String {
        let room = Room { room: Arc::new(Semaphore::new(self.max_connections)), taken: None };
        self.shared.counters.opened();
        let (end, _) = connection::serve(stream, &self.shared, room, stop).await;
        self.shared.counters.ended(&end);
        self.shared.counters.closed();
        end.to_string()
    }

    async fn serve_on(
        self,
        workers: Vec<Handle>,
        listeners: Vec<Listener>,
        stop: impl Future<Output = ()>,
    ) {
        let (stopping, stage) = watch::channel(Stage::Serving);
        // Closed when the last connection has dropped its end.
        let (alive, mut all_gone) = mpsc::channel::<()>(1);
        let accepting = Arc::new(Accepting {
            shared: self.shared,
            workers,
            next_worker: AtomicUsize::new(0),
            room: Arc::new(Semaphore::new(self.max_connections)),
            doors: Arc::new(Semaphore::new(2 * self.max_connections)),
            stage,
            alive,
        });
        let mut awake = JoinSet::new();
        if accepting.shared.busy.is_some() {
            for worker in &accepting.workers {
                let shared = accepting.shared.clone();
                let stay_awake = async move {
                    if let Some(busy) = &shared.busy {
                        busy.stay_awake().await;
                    }
                };
                awake.spawn_on(stay_awake, worker);
            }
        }
        let tasks: Vec<_> = listeners
            .into_iter()
            .map(|listener| tokio::spawn(accepting.clone().accept_from(listener)))
            .collect();
        let shared = accepting.shared.clone();
        drop(accepting);

        let reports = async {
            loop {
                sleep(report::PERIOD).await;
                shared.report.sum_up();
            }
        };
        tokio::select! {
            () = stop => {}
            () = reports => {}
        }
        log::info!("stopping: {} connections open", shared.counters.snapshot().open);
        if shared.counters.snapshot().open > 0 {
            shared.leaving.store(true, Ordering::Relaxed);
            sleep(shared.drain / 2).await;
        }
        let _ = stopping.send(Stage::Draining);
        for task in tasks {
            let _ = task.await;
        }
        // Nobody listens any more; when all connections have ended, nobody holds the other end.
        let _ = timeout(shared.drain / 2, all_gone.recv()).await;
        let _ = stopping.send(Stage::Stopping);
        if timeout(FAREWELL, all_gone.recv()).await.is_err() {
            let open = shared.counters.snapshot().open;
            log::warn!("{open} connections did not end in time and are dropped");
        }
        shared.report.sum_up();
        let counters = &shared.counters;
        let Snapshot { notifies, connections, health_checks, .. } = counters.snapshot();
        let others = connections.saturating_sub(health_checks);
        log::info!(
            "stopped after {notifies} NOTIFYs on {others} connections, and {health_checks} health checks"
        );
    }
}

/// How far an agent's life has come.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Stage {
    Serving,
    /// Nothing more is accepted.
    Draining,
    /// Every connection is ended.
    Stopping,
}

/// What the tasks that accept connections have in common.
struct Accepting<H> {
    shared: Arc<Shared<H>>,
    workers: Vec<Handle>,
    next_worker: AtomicUsize,
    /// For the connections whose requests the handler sees.
    room: Arc<Semaphore>,
    /// For all connections.
    doors: Arc<Semaphore>,
    stage: watch::Receiver<Stage>,
    alive: mpsc::Sender<()>,
}

/// Whether a connection's requests are shown to the handler.
#[derive(Debug)]
pub(crate) struct Room {
    room: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Takes the room that there may be by now.
    #[inline]
    pub(crate) fn admits(&mut self) -> bool {
        if self.taken.is_none() {
            self.taken = self.room.clone().try_acquire_owned().ok();
        }
        self.taken.is_some()
    }
}

impl<H: Handler> Accepting<H> {
    /// Accepts connections until the agent stops. Nothing else ends it.
    async fn accept_from(self: Arc<Self>, listener: Listener) {
        let mut stop = std::pin::pin!(reaches(self.stage.clone(), Stage::Draining));
        let mut stopping = false;
        loop {
            // Room is waited for with a connection in hand: a listener that waits for one must not
            // hold any.
            let accepted = async {
                let stream = listener.accept().await?;
                let door = self.doors.clone().acquire_owned().await.map_err(io::Error::other)?;
                io::Result::Ok((stream, door))
            };
            let accepted = if stopping {
                // Who is in the queue already would be reset.
                match timeout(Duration::ZERO, accepted).await {
                    Ok(accepted) => accepted,
                    Err(_) => return,
                }
            } else {
                tokio::select! {
                    biased;
                    () = &mut stop => {
                        stopping = true;
                        continue;
                    }
                    accepted = accepted => accepted,
                }
            };
            match accepted {
                Ok((stream, door)) => self.start(stream, door),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.shared.counters.accept_error();
                    let advice = match error.raw_os_error() {
                        Some(EMFILE) => {
                            "; raise the limit of open files (LimitNOFILE=, ulimit -n)"
                        }
                        Some(ENFILE) => "; the machine has no more file handles (fs.file-max)",
                        _ => "",
                    };
                    let report = &self.shared.report;
                    report.warn(format_args!(
                        "could not accept a connection, trying again: {error}{advice}"
                    ));
                    if stopping {
                        return;
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Hands the connection to the worker whose turn it is.
    fn start(&self, stream: Stream, door: OwnedSemaphorePermit) {
        let guest = Guest {
            shared: self.shared.clone(),
            stage: self.stage.clone(),
            room: self.room.clone(),
            _door: door,
            _alive: self.alive.clone(),
        };
        guest.shared.counters.opened();
        let turn = self.next_worker.fetch_add(1, Ordering::Relaxed);
        match self.workers.get(turn % self.workers.len().max(1)) {
            // A socket belongs to the runtime it was accepted in, and has to be registered anew in
            // another.
            Some(worker) if self.workers.len() > 1 => match stream.into_std() {
                Ok(stream) => drop(worker.spawn(async move {
                    match stream.into_tokio() {
                        Ok(stream) => guest.serve(stream).await,
                        Err(error) => {
                            log::warn!("a connection could not be handed to its worker: {error}")
                        }
                    }
                })),
                Err(error) => {
                    log::warn!("a connection could not be handed to its worker: {error}")
                }
            },
            _ => drop(tokio::spawn(guest.serve(stream))),
        }
    }
}

/// A connection's share of the agent: given back when it is dropped, however the connection ends.
struct Guest<H> {
    shared: Arc<Shared<H>>,
    stage: watch::Receiver<Stage>,
    room: Arc<Semaphore>,
    _door: OwnedSemaphorePermit,
    _alive: mpsc::Sender<()>,
}

impl<H> Drop for Guest<H> {
    fn drop(&mut self) {
        self.shared.counters.closed();
    }
}

impl<H: Handler> Guest<H> {
    async fn serve(self, stream: Stream) {
        let shared = &*self.shared;
        let room = Room { room: self.room.clone(), taken: None };
        let stop = reaches(self.stage.clone(), Stage::Stopping);
        let peer = stream.peer();
        let (end, greeted) = match stream {
            Stream::Tcp(stream) => connection::serve(stream, shared, room, stop).await,
            Stream::Unix(stream) => connection::serve(stream, shared, room, stop).await,
        };
        shared.counters.ended(&end);
        shared.report.ended(&peer, &end, greeted);
    }
}

/// Resolves when the agent's life has come so far.
async fn reaches(mut stage: watch::Receiver<Stage>, wanted: Stage) {
    if stage.wait_for(|stage| *stage >= wanted).await.is_err() {
        // The agent was dropped while serving: its connections end with their runtime.
        pending::<()>().await;
    }
}

enum StdStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Stream {
    /// Who is at the other end, for people.
    fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => {
                stream.peer_addr().map_or_else(|_| "somebody".to_owned(), |peer| peer.to_string())
            }
            Self::Unix(_) => "the Unix socket".to_owned(),
        }
    }

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
                    (io::ErrorKind::AddrInUse, _) => {
                        f.write_str("; is another agent running there?")
                    }
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

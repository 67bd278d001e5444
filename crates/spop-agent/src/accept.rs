//! Accepts connections, and deals them to the workers.

// ADR 3: Connections are dealt to workers in turn.
// ADR 6: Connections beyond the bound are still accepted.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use crate::connection;
use crate::handler::Handler;
use crate::listener::Listener;
use crate::shared::{HandlerPermit, Shared, Stage};
use crate::stream::Stream;

/// Too many open files: in this process, and on the machine (Linux).
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// How long to wait after `accept` failed, for instance because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state shared by the tasks that accept connections.
pub(crate) struct Acceptor<H> {
    shared: Arc<Shared<H>>,
    workers: Vec<Handle>,
    next_worker: AtomicUsize,
    /// Permits for the connections that use the handler.
    handler_permits: Arc<Semaphore>,
    /// Permits for all connections: twice as many.
    connection_permits: Arc<Semaphore>,
    /// See [`Acceptor::new`].
    alive: mpsc::Sender<()>,
}

impl<H: Handler> Acceptor<H> {
    /// An acceptor that deals connections to these workers. The acceptor and each of its
    /// connections have a clone of `alive`, so its receiver notices when the last one is gone.
    pub(crate) fn new(
        shared: Arc<Shared<H>>,
        workers: Vec<Handle>,
        alive: mpsc::Sender<()>,
    ) -> Self {
        let connections = shared.settings.max_connections;
        Self {
            shared,
            workers,
            next_worker: AtomicUsize::new(0),
            handler_permits: Arc::new(Semaphore::new(connections)),
            connection_permits: Arc::new(Semaphore::new(2 * connections)),
            alive,
        }
    }

    /// Accepts connections until [`Stage::Closing`]. No error ends this.
    pub(crate) async fn accept_from(self: Arc<Self>, listener: Listener) {
        let mut closing = pin!(self.shared.reaches(Stage::Closing));
        let mut is_closing = false;
        loop {
            // The permit is acquired after the connection is accepted: a listener that waits for a
            // connection must not hold a permit that another listener needs.
            let accepted = async {
                let stream = listener.accept().await?;
                let permits = self.connection_permits.clone();
                let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
                io::Result::Ok((stream, permit))
            };
            let accepted = if is_closing {
                // Connections that are in the queue already are accepted, because closing the
                // listener would reset them.
                match timeout(Duration::ZERO, accepted).await {
                    Ok(accepted) => accepted,
                    Err(_) => return,
                }
            } else {
                tokio::select! {
                    biased;
                    () = &mut closing => {
                        is_closing = true;
                        continue;
                    }
                    accepted = accepted => accepted,
                }
            };
            match accepted {
                Ok((stream, permit)) => self.start(stream, permit),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.report(&error);
                    if is_closing {
                        return;
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Counts and logs that `accept` failed.
    fn report(&self, error: &io::Error) {
        self.shared.counters.accept_error();
        let advice = match error.raw_os_error() {
            Some(EMFILE) => "; raise the limit of open files (LimitNOFILE=, ulimit -n)",
            Some(ENFILE) => "; raise the machine's limit of open files (fs.file-max)",
            _ => "",
        };
        self.shared
            .log
            .warn(format_args!("could not accept a connection, trying again: {error}{advice}"));
    }

    /// Hands a connection to the next worker.
    fn start(&self, stream: Stream, permit: OwnedSemaphorePermit) {
        let accepted = Accepted {
            shared: self.shared.clone(),
            handler_permit: HandlerPermit::new(self.handler_permits.clone()),
            _permit: permit,
            _alive: self.alive.clone(),
        };
        accepted.shared.counters.opened();
        let number = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let worker = match self.workers.get(number % self.workers.len().max(1)) {
            Some(worker) if self.workers.len() > 1 => worker,
            _ => {
                drop(tokio::spawn(accepted.serve(stream)));
                return;
            }
        };
        // A socket belongs to the runtime that accepted it. For another runtime it must be taken
        // out of this one and registered there.
        match stream.into_std() {
            Ok(stream) => drop(worker.spawn(async move {
                match stream.into_tokio() {
                    Ok(stream) => accepted.serve(stream).await,
                    Err(error) => not_handed_over(&error),
                }
            })),
            Err(error) => not_handed_over(&error),
        }
    }
}

fn not_handed_over(error: &io::Error) {
    log::warn!("could not hand a connection to its worker: {error}");
}

/// An accepted connection's part of the counts and limits. It is given back when this is dropped,
/// however the connection ends.
struct Accepted<H> {
    shared: Arc<Shared<H>>,
    handler_permit: HandlerPermit,
    _permit: OwnedSemaphorePermit,
    _alive: mpsc::Sender<()>,
}

impl<H> Drop for Accepted<H> {
    fn drop(&mut self) {
        self.shared.counters.closed();
    }
}

impl<H: Handler> Accepted<H> {
    async fn serve(mut self, stream: Stream) {
        let shared = &*self.shared;
        let permit = &mut self.handler_permit;
        let peer = stream.peer();
        let ended = match stream {
            Stream::Tcp(stream) => connection::serve(stream, shared, permit).await,
            Stream::Unix(stream) => connection::serve(stream, shared, permit).await,
        };
        shared.counters.ended(&ended.end);
        shared.log.ended(&peer, &ended);
    }
}

//! [`Store`]: what a program asks, and [`Line`]: over which the answers come.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use gcra_lease::{Reply, Sent};
use tokio::sync::{mpsc, watch};

use crate::bucket::Bucket;
use crate::config::Config;
use crate::connection::Connector;
use crate::fault::Fault;
use crate::task::Task;

/// A store, as the threads of one process see it. Copies are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
    batches: mpsc::UnboundedSender<Batch>,
    health: watch::Receiver<Health>,
}

impl Store {
    /// Begins to use a store. The future is to be spawned on a runtime of tokio with I/O and time;
    /// it ends when all copies and lines of the store are dropped and what was asked is answered.
    ///
    /// # Errors
    ///
    /// The certificates of the authorities cannot be read.
    pub fn open(config: Config) -> io::Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let connector = Arc::new(Connector::new(config)?);
        let (batches, incoming) = mpsc::unbounded_channel();
        let (tell, health) = watch::channel(Health::default());
        let shared = Arc::new(Shared {
            under_way: AtomicUsize::new(0),
            most_asks: connector.config.most_asks,
            away: AtomicBool::new(true),
            counters: AtomicCounters::default(),
        });
        let task = Task::new(connector, shared.clone(), incoming, tell);
        Ok((Self { shared, batches, health }, task.run()))
    }

    /// A line to ask over. Each worker has one.
    #[must_use]
    pub fn line(&self) -> Line {
        let (to, answers) = mpsc::unbounded_channel();
        Line { store: self.clone(), to, answers }
    }

    /// Which servers there are, and whether they can be used.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Waits until `holds`, or until the future of the store has ended.
    pub async fn wait_for(&mut self, holds: impl FnMut(&Health) -> bool) {
        let _ = self.health.wait_for(holds).await;
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters.read()
    }
}

/// The servers of a store. Before the first look there are none.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// Each primary.
    pub servers: Vec<ServerHealth>,
    /// Why it cannot be found out where the servers are: what the sentinels, or the nodes of the
    /// cluster, say.
    pub fault: Option<Fault>,
    /// How often the servers were looked at.
    pub looks: u64,
}

impl Health {
    /// Whether there are servers, and all of them can be used.
    #[must_use]
    pub fn is_well(&self) -> bool {
        !self.servers.is_empty() && self.servers.iter().all(|server| server.fault.is_none())
    }
}

/// One primary.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerHealth {
    /// Its address.
    pub address: String,
    /// Why it cannot be used, if it cannot.
    pub fault: Option<Fault>,
    /// How many replicas confirm each reply. 0 if it is not durable.
    pub replicas: u32,
    /// Since when it can be used, or cannot.
    pub since: Instant,
}

/// Asks, and gets answers.
#[derive(Debug)]
pub struct Line {
    store: Store,
    to: mpsc::UnboundedSender<Envelope>,
    answers: mpsc::UnboundedReceiver<Envelope>,
}

impl Line {
    /// Sends the asks of one turn. Each of them is answered: when the store has answered, or when
    /// the time for that is over.
    ///
    /// # Errors
    ///
    /// Nothing is sent, because no server can be used, or because too many asks are under way.
    pub fn submit(&self, asks: Vec<(Bucket, Sent)>) -> Result<(), Away> {
        let shared = &self.store.shared;
        let count = asks.len();
        if shared.away.load(Ordering::Relaxed) {
            shared.counters.add(|counters| &counters.away, count);
            return Err(Away::Unusable);
        }
        let Some(permits) = Permit::take(shared, count) else {
            shared.counters.add(|counters| &counters.away, count);
            return Err(Away::Full);
        };
        let asks = asks.into_iter().zip(permits);
        let asks = asks.map(|((bucket, sent), permit)| Asked { bucket, sent, permit }).collect();
        let batch = Batch { asks, to: self.to.clone(), submitted: tokio::time::Instant::now() };
        self.store.batches.send(batch).map_err(|_| Away::Unusable)
    }

    /// Waits for answers, and moves those that are there to `answers`. If the future is dropped,
    /// no answer is lost.
    pub async fn answers(&mut self, answers: &mut Vec<Answer>) {
        // It never ends, because this line keeps a sender; and then all that are there.
        if let Some(envelope) = self.answers.recv().await {
            answers.push(envelope.answer);
        }
        while let Ok(envelope) = self.answers.try_recv() {
            answers.push(envelope.answer);
        }
    }
}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Away {
    /// No server can be used now.
    Unusable,
    /// [`Config::most_asks`] are under way.
    Full,
}

/// The answer to one ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// What was asked. Its number says which ask it is.
    pub sent: Sent,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of an ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The store's reply, confirmed if the store is durable: for `Holding::reply`.
    Reply(Reply),
    /// The store has seen this ask or a later one of this host before: for `Holding::void`.
    Ignored,
    /// There is no reply that may be used; the store may have taken the ask: for `Holding::void`.
    Void,
    /// It was not sent, because the server that has the key cannot be used: for `Holding::void`.
    Away,
}

/// The asks of one turn.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) asks: Vec<Asked>,
    pub(crate) to: mpsc::UnboundedSender<Envelope>,
    pub(crate) submitted: tokio::time::Instant,
}

#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) bucket: Bucket,
    pub(crate) sent: Sent,
    pub(crate) permit: Permit,
}

/// An answer on its way, and its permit, which is returned when the answer is fetched.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) answer: Answer,
    pub(crate) _permit: Permit,
}

/// A place among the asks that may be under way at once.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Shared>);

impl Permit {
    fn take(shared: &Arc<Shared>, count: usize) -> Option<impl Iterator<Item = Self>> {
        let before = shared.under_way.fetch_add(count, Ordering::Relaxed);
        if before.saturating_add(count) > shared.most_asks {
            shared.under_way.fetch_sub(count, Ordering::Relaxed);
            return None;
        }
        Some((0..count).map(|_| Self(shared.clone())).collect::<Vec<_>>().into_iter())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the threads and the task share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Asks that are under way, answers that were not fetched included.
    under_way: AtomicUsize,
    most_asks: usize,
    /// No server can be used.
    pub(crate) away: AtomicBool,
    pub(crate) counters: AtomicCounters,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often something has happened since the store was opened.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct AtomicCounters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl AtomicCounters {
            fn read(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Asks that were sent.
    asks,
    /// Calls: the asks of one turn that go to one server.
    calls,
    /// Replies that may be used.
    replies,
    /// Cells that they granted.
    granted,
    /// Asks that the store has ignored.
    ignored,
    /// Asks without a reply that may be used.
    void,
    /// Of these, those that were not answered in time.
    late,
    /// Asks that were not sent.
    away,
    /// How often the clock of a server went ahead by more than 20 ms.
    leaps_forward,
    /// How often it went back.
    leaps_back,
}

impl AtomicCounters {
    pub(crate) fn add(&self, counter: impl Fn(&Self) -> &AtomicU64, count: usize) {
        counter(self).fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

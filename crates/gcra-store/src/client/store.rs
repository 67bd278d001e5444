//! [`Store`]: what a program asks, and [`Line`]: over which the answers come.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use gcra_lease::{Charge, Charged, HostTime, Micros, Sent};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};

use crate::client::bucket::{Bucket, TAGS};
use crate::client::connection::Connector;
use crate::client::message::{AskAnswer, Batch, Envelope, NotCharged, Pending, What};
use crate::client::script::By;
use crate::client::shared::{Health, Part, Permit, Shared, StoreCounters};
use crate::client::task::Task;
use crate::config::Config;

/// A store, as the threads of one process see it. Copies are the same store.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
    batches: mpsc::UnboundedSender<Batch>,
    health: watch::Receiver<Health>,
}

impl Store {
    /// Begins to use a store. The future is to be spawned on a runtime of tokio with I/O and time.
    /// It ends when all copies and lines of the store are dropped and all asks are answered.
    ///
    /// # Errors
    ///
    /// The certificates of the authorities cannot be read.
    pub fn open(config: Config) -> io::Result<(Self, impl Future<Output = ()> + Send + use<>)> {
        let connector = Arc::new(Connector::new(config)?);
        let (batches, incoming) = mpsc::unbounded_channel();
        let (tell, health) = watch::channel(Health::new(Instant::now()));
        let shared = Arc::new(Shared::new(
            connector.config.most_asks,
            if connector.config.url.is_cluster() { TAGS.into() } else { 1 },
        ));
        let task = Task::new(connector, shared.clone(), incoming, tell);
        Ok((Self { shared, batches, health }, task.run()))
    }

    /// A line to ask over. Each worker has one.
    pub fn line(&self) -> Line {
        let (to, answers) = mpsc::unbounded_channel();
        Line { asker: Asker { store: self.clone(), to }, answers }
    }

    /// Which servers there are, and whether they can be used.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Whether no server can be used. Asks are then answered without being sent.
    ///
    /// It costs one load, so a thread may look before each request.
    pub fn is_away(&self) -> bool {
        self.shared.away.load(Ordering::Relaxed)
    }

    /// How many parts the store has that may be away while others are not: many in a cluster,
    /// else one.
    pub fn parts(&self) -> usize {
        self.shared.parts.len()
    }

    /// The part that a bucket is in.
    pub fn part_of(&self, bucket: &Bucket) -> usize {
        usize::from(bucket.tag()) % self.parts().max(1)
    }

    /// Whether the server of a part cannot be used.
    pub fn is_part_away(&self, part: usize) -> bool {
        // Acquire: with all that was written before.
        !self.shared.parts.get(part).is_some_and(|part| part.usable.load(Ordering::Acquire))
    }

    /// How long ago the server of a part was found to be away, at least: when the last attempt
    /// began that failed.
    pub fn missed_ago(&self, part: usize) -> Duration {
        self.ago(self.of(part, |part| &part.missed))
    }

    /// A number that stands for the server of a part. If it is another one than before, another
    /// server has taken the place of that one. 0: there was none yet.
    pub fn server_of(&self, part: usize) -> u64 {
        self.of(part, |part| &part.server)
    }

    /// How long ago the present or last connection to the server of a part was made. If it is
    /// younger than expected, the server may have been away, and back before that was noticed.
    pub fn connected_ago(&self, part: usize) -> Duration {
        self.ago(self.of(part, |part| &part.connected))
    }

    /// How long ago the server of a part is known to have been there for [`FOUND_WITHIN`], at
    /// most. `None`: never.
    ///
    /// [`FOUND_WITHIN`]: crate::FOUND_WITHIN
    pub fn steady_ago(&self, part: usize) -> Option<Duration> {
        let steady = self.of(part, |part| &part.steady);
        (steady > 0).then(|| self.ago(steady))
    }

    fn of(&self, part: usize, what: impl FnOnce(&Part) -> &AtomicU64) -> u64 {
        self.shared.parts.get(part).map_or(0, |part| what(part).load(Ordering::Relaxed))
    }

    /// How long ago that was: microseconds since the store was opened.
    fn ago(&self, micros: u64) -> Duration {
        self.shared.opened.elapsed().saturating_sub(Duration::from_micros(micros))
    }

    /// When the last server that could be used was lost; when the store was opened, if there was
    /// none yet. `None`: there is one. It may change a moment after [`is_away`].
    ///
    /// [`is_away`]: Self::is_away
    pub fn away_since(&self) -> Option<Instant> {
        self.health.borrow().away_since
    }

    /// For how long no server could be used since the store was opened, all times together.
    pub fn away_total(&self) -> Duration {
        self.health.borrow().away_total()
    }

    /// How long a reply takes, from submitting the ask: a mean in which the latest call counts an
    /// eighth. It is 500 µs before the first reply, and between 100 µs and 500 ms.
    pub fn round_trip(&self) -> Micros {
        self.shared.round_trip.get()
    }

    /// Waits until `holds`, or until the future of the store has ended.
    pub async fn wait_for(&mut self, holds: impl FnMut(&Health) -> bool) {
        let _ = self.health.wait_for(holds).await;
    }

    /// How often each event has happened so far.
    pub fn counters(&self) -> StoreCounters {
        self.shared.counters.read()
    }
}

/// Asks, and gets answers.
#[derive(Debug)]
pub struct Line {
    asker: Asker,
    answers: mpsc::UnboundedReceiver<Envelope>,
}

impl Line {
    /// An asker over this line, for other threads and tasks. The answers come here.
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// As [`Asker::submit`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn submit(&self, asks: Vec<(Bucket, Sent)>) -> Result<(), Away> {
        self.asker.submit(asks)
    }

    /// Waits for answers, and moves those that are there to `answers`. If the future is dropped,
    /// no answer is lost.
    pub async fn answers(&mut self, answers: &mut Vec<AskAnswer>) {
        // It never ends, because this line keeps a sender; and then all that are there.
        if let Some(envelope) = self.answers.recv().await {
            answers.push(envelope.answer);
        }
        while let Ok(envelope) = self.answers.try_recv() {
            answers.push(envelope.answer);
        }
    }
}

/// Asks over a [`Line`]. Copies ask over the same line.
#[derive(Clone, Debug)]
pub struct Asker {
    store: Store,
    to: mpsc::UnboundedSender<Envelope>,
}

impl Asker {
    /// Whether no server can be used now, so that nothing would be sent.
    pub fn is_away(&self) -> bool {
        self.store.is_away()
    }

    /// The store.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Sends the asks of one round. Each of them is answered: when the store has answered, or when
    /// the time for that is over.
    ///
    /// # Errors
    ///
    /// Nothing is sent, because no server can be used, or because too many asks are under way.
    pub fn submit(&self, asks: Vec<(Bucket, Sent)>) -> Result<(), Away> {
        let Self { store, to } = self;
        let shared = &store.shared;
        let count = asks.len();
        if store.is_away() {
            shared.counters.away.add(count);
            return Err(Away::Unusable);
        }
        let Some(permits) = Permit::take(shared, count) else {
            shared.counters.away.add(count);
            return Err(Away::Full);
        };
        let submitted = tokio::time::Instant::now();
        let asks = asks.into_iter().zip(permits).map(|((bucket, sent), permit)| {
            let what = What::Ask { sent, to: to.clone() };
            Pending { bucket, what, permit, submitted, tries: 0, by: By::Hash }
        });
        store.batches.send(Batch::Asks(asks.collect())).map_err(|_| Away::Unusable)
    }

    /// Sends a charge, once. `at` is the host's time now.
    ///
    /// It travels with the asks, but its outcome comes to the [`Charging`] and not to the line.
    ///
    /// # Errors
    ///
    /// Nothing is sent, because no server can be used, or because too many asks and charges are
    /// under way.
    pub fn charge(&self, bucket: Bucket, at: HostTime, charge: Charge) -> Result<Charging, Away> {
        let store = &self.store;
        let shared = &store.shared;
        let refused = |away| {
            shared.counters.charges_away.add(1);
            away
        };
        if store.is_away() {
            return Err(refused(Away::Unusable));
        }
        let permit = Permit::take(shared, 1).and_then(|mut permits| permits.next());
        let permit = permit.ok_or_else(|| refused(Away::Full))?;
        let (to, outcome) = oneshot::channel();
        let number = shared.charges.fetch_add(1, Ordering::Relaxed);
        let what = What::Charge { number, charge, at, to };
        let submitted = tokio::time::Instant::now();
        let pending = Pending { bucket, what, permit, submitted, tries: 0, by: By::Hash };
        store.batches.send(Batch::Charge(pending)).map_err(|_| refused(Away::Unusable))?;
        Ok(Charging(outcome))
    }
}

/// A charge on its way. If it is dropped, the charge is made all the same.
#[derive(Debug)]
pub struct Charging(oneshot::Receiver<Result<Charged, NotCharged>>);

impl Charging {
    /// The outcome, if it is known now.
    pub fn now(&mut self) -> Option<Result<Charged, NotCharged>> {
        match self.0.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(NotCharged::Unknown)),
        }
    }

    /// Waits for the outcome. If the future is dropped, nothing is lost.
    ///
    /// # Errors
    ///
    /// There is no reply that may be used.
    pub async fn outcome(&mut self) -> Result<Charged, NotCharged> {
        (&mut self.0).await.unwrap_or(Err(NotCharged::Unknown))
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

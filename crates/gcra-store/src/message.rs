//! [`Batch`]: asks on their way from a thread to the task; and [`Answer`]: what comes back.

use gcra_lease::{Reply, Sent};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::shared::Permit;

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

/// The asks of one round.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) asks: Vec<Asked>,
    pub(crate) to: mpsc::UnboundedSender<Envelope>,
    pub(crate) submitted: Instant,
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

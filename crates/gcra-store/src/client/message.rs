//! [`Batch`]: asks, or a charge, on their way from a thread to the store; and [`AskAnswer`] and
//! [`NotCharged`]: what comes back.

use gcra_lease::{AskReply, Charge, Charged, HostTime, Sent};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::client::bucket::Bucket;
use crate::client::script::{By, Script};
use crate::client::shared::Permit;

/// The answer to one ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AskAnswer {
    /// The ask. Its number says which one it is.
    pub sent: Sent,
    /// Its outcome.
    pub outcome: AskOutcome,
}

/// The outcome of an ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AskOutcome {
    /// The store's reply, confirmed if the store is durable: for `Holding::reply`.
    Reply(AskReply),
    /// The store has seen this ask, or a later ask of the host, before: for `Holding::void`.
    Ignored,
    /// There is no reply that may be used; the store may have taken the ask: for `Holding::void`.
    Void,
    /// It was not sent, because the server that has the key cannot be used: for `Holding::void`.
    Away,
}

/// Why there is no reply to a charge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotCharged {
    /// The store has not made it: it was not sent, because the server that has the key cannot be
    /// used, or the server that it was sent to did nothing and said so.
    Away,
    /// There is no reply that may be used; the store may have made the charge.
    Unknown,
}

/// The asks, or the charge, that a thread sends at once.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be one more allocation for a charge")]
pub(crate) enum Batch {
    /// The asks of one round.
    Asks(Vec<Pending>),
    Charge(Pending),
}

/// An ask or a charge on its way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) bucket: Bucket,
    pub(crate) what: What,
    pub(crate) permit: Permit,
    pub(crate) submitted: Instant,
    pub(crate) tries: u32,
    pub(crate) by: By,
}

/// The ask or the charge itself, and where its outcome goes.
#[derive(Debug)]
pub(crate) enum What {
    Ask {
        sent: Sent,
        to: mpsc::UnboundedSender<Envelope>,
    },
    Charge {
        /// Tells the reply from those to other charges.
        number: u64,
        charge: Charge,
        /// When it was submitted, by the host's clock.
        at: HostTime,
        to: oneshot::Sender<Result<Charged, NotCharged>>,
    },
}

impl What {
    pub(crate) const fn script(&self) -> Script {
        match self {
            Self::Ask { .. } => Script::Ask,
            Self::Charge { .. } => Script::Charge,
        }
    }

    /// When it was submitted, by the host's clock.
    pub(crate) const fn at(&self) -> HostTime {
        match self {
            Self::Ask { sent, .. } => sent.at,
            Self::Charge { at, .. } => *at,
        }
    }
}

/// An answer on its way, and its permit, which is returned when the answer is fetched.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) answer: AskAnswer,
    pub(crate) _permit: Permit,
}

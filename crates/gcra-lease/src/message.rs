//! The messages between host and store: [`Ask`] and [`AskReply`].

use crate::time::{Micros, StoreTime};

/// A host: one machine with one memory of the cells that it holds.
///
/// It is a random number that is kept in that memory. A host that lost its memory draws another
/// one, and so is another host for the store: what the host held before expires.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HostId(pub u64);

/// The number of an ask. A host gives each of its asks, of all processes and for all keys, a
/// larger number than the ones before, from a counter in the same memory as its [`HostId`].
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AskNumber(pub u64);

/// A host's report to the store about one key, and the cells that it would like to have. Made by
/// [`Holding`](crate::Holding).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ask {
    /// Who asks.
    pub host: HostId,
    /// Above all earlier asks of this host.
    pub number: AskNumber,
    /// The host does not know what it was granted before: nothing was ever granted, or the host
    /// has forgotten this key. Then the store counts all that it lent as spent.
    pub fresh: bool,
    /// Cells that were spent and whose report no reply has confirmed.
    pub spent: u32,
    /// Cells to charge that were not lent: penalties, and costs that are known afterwards. A debt
    /// may be charged twice if a reply is lost, and is lost with the host's memory.
    pub debt: u32,
    /// How long ago the key owed a full burst, because of what hosts may have allowed without the
    /// store; [`NOTHING_OWED`](Self::NOTHING_OWED) if never.
    pub owed_ago: Micros,
    /// Cells that the host holds and keeps.
    pub holds: u32,
    /// Cells that the host would like to hold besides; 0 if it only reports or gives back.
    pub want: u32,
    /// The fewest cells that are of any use: the cost of the first request that waits. 0 if none
    /// waits.
    pub least: u32,
    /// How long the cells are to be valid, counted by the host from when it sent the ask.
    pub validity: Micros,
}

impl Ask {
    /// Hosts have allowed nothing without the store. By now, all of it would have drained.
    pub const NOTHING_OWED: Micros = Micros(1 << 53);
}

/// The store's reply to an [`Ask`]. Made by [`Record`](crate::Record).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AskReply {
    /// The number of the ask.
    pub number: AskNumber,
    /// How many of the cells that the host held are still lent to it. It is less than what the
    /// ask said if their lease has expired, or the store has lost its memory.
    pub kept: u32,
    /// Cells that the host may spend besides.
    pub granted: u32,
    /// Whole cells that are free after that: neither owed nor lent to any host. It is for numbers
    /// in answers ("remaining"). No decision may depend on it, because another host may have got
    /// them by now.
    pub free: u32,
    /// When the host may ask for more; zero if it got all that it wanted.
    pub come_back_after: Micros,
    /// Another host waits for more cells than are free: keep none ahead of need.
    pub scarce: bool,
    /// The [least](Ask::least) cells would have been granted if other hosts held none. So the
    /// client is within its limit.
    pub lent: bool,
    /// How many hosts have a lease of this key, this one included.
    pub hosts: u32,
    /// The store's clock. See [`ClockWatch`](crate::ClockWatch).
    pub now: StoreTime,
}

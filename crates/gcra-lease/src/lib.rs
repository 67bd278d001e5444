//! One exact rate limit for many machines: a store that lends cells to hosts.
//!
//! This crate is the protocol only: two state machines without I/O, clocks or threads. Time and
//! messages are arguments. [`Record`] is the store's end, one for each key; [`Holding`] is the
//! host's end, one for each key on each host; [`Ask`] and [`AskReply`] pass between them.
//!
//! ```
//! use core::time::Duration;
//! use gcra_lease::{AskNumber, Demand, HostId, HostTime, Holding, Look, Micros, Record};
//! use gcra_lease::{SharedLimit, StoreTime, Wish};
//!
//! let limit = SharedLimit::new(Duration::from_millis(10), 20)?;   // 100/s, burst 20
//! let patience = Micros::from_millis(50);
//! let mut record = Record::new(StoreTime(1_000_000));
//! let mut holding = Holding::new();
//!
//! // A request comes, and this host knows nothing about its key.
//! let now = HostTime(7_000);
//! assert_eq!(holding.look(now, 1, patience), Look::Lacking);
//! let wish = Demand::new().wish(&limit, now, 1, 1, Micros(500));
//! let sent = holding.ask(&limit, now, HostId(1), AskNumber(1), wish);
//!
//! // The ask travels to the store, and the reply comes back.
//! let reply = record.ask(&limit, StoreTime(1_000_300), &sent.ask).ok_or("ignored")?;
//! assert_eq!(reply.granted, 1);
//! let now = HostTime(7_500);
//! assert!(holding.reply(now, &sent, &reply));
//! assert!(holding.spend(now, 1), "the request is allowed");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! Over all hosts together, the cells that are spent in any interval of length `t` are at most
//! `burst + rate * t`. The crate's README says under which conditions, why that is so, and how the
//! tests show it.
//!
//! It needs no operating system: only `core` and `alloc`.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod charge;
mod demand;
#[cfg(test)]
mod explore;
mod holding;
mod limit;
mod message;
mod packed_holding;
#[cfg(test)]
mod police;
mod record;
mod records;
mod request;
mod rule;
#[cfg(test)]
mod simulate;
mod time;
mod watch;

pub use charge::{Charge, Charged};
pub use demand::Demand;
pub use holding::{Holding, Look, Sent, Wish};
pub use limit::{LimitError, SharedLimit, Units, Window};
pub use message::{Ask, AskNumber, AskReply, HostId};
pub use packed_holding::{Base, MOST_CELLS, NUMBERS, Packed, RefillHint, Tick, Word};
pub use record::{Lease, Record};
pub use records::{Change, Records};
pub use request::{Step, next_step};
pub use time::{HostTime, Micros, StoreTime};
pub use watch::{ClockWatch, Leap};

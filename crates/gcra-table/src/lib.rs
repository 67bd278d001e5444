//! Exact rate limits in memory that processes share: a lock-free table of GCRA buckets.
//!
//! A [`Quota`] says what is allowed. A [`Table`] keeps, for each key, the one number that GCRA
//! needs: the theoretical arrival time (TAT) of its next cell. The table is a file that any number
//! of processes map. They charge the same buckets, so a limit is one limit, no matter which
//! process decides, dies or is restarted.
//!
//! ```
//! use gcra_table::{Rate, Slots, Table};
//!
//! let rate: Rate = "100/s".parse()?;
//! let quota = rate.quota(Some(20))?;          // 100 per second, up to 20 at once
//! let table = Table::in_memory(Slots::new(1024)?)?;
//!
//! let key = table.hash(b"192.0.2.1");
//! let mut now = table.reading();               // one reading of the clock for many decisions
//! let allowed = (0..30).filter(|_| table.charge(key, quota, 1, &mut now).is_allowed()).count();
//! assert_eq!(allowed, 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! For each key and quota, the cells that are allowed in any interval of length `t` are at most
//! `burst + rate * t`. The interval is measured by the clock readings with which the decisions
//! were made, and the cells of all processes and threads count. Nothing weakens that: neither a
//! process that is killed at any instruction, nor one that is stopped for an hour in the middle of
//! a decision. A key that has been idle for one drain time (`burst / rate`) has its full burst
//! again.
//!
//! Quotas with different numbers never share a bucket: what is charged to a key by one of them is
//! not seen by another, whichever process charges. [`Quota::carry_over`] and
//! [`Table::charge_owing`] keep a debt when the numbers change.
//!
//! # Counts in calendar windows
//!
//! A limit can also be a count in each hour, day or month: see [`Table::count`]. The caller says
//! where a [`Window`] begins and ends, and the count is kept in the same slots, as exactly: in
//! each window at most so many cells of a key are allowed, over all processes.
//!
//! ```
//! use gcra_table::{Slots, Table, Window};
//!
//! let table = Table::in_memory(Slots::new(1024)?)?;
//! let key = table.hash(b"192.0.2.1");
//! let now = table.wall_reading();
//! let second = i64::try_from(now.wall_ns() / 1_000_000_000)?;
//! let (start, end) = (second - second % 86_400, second - second % 86_400 + 86_400);
//! let today = Window::new(86_400, start, now.time_at(end));
//! // Five a day. (An error would mean that the day has ended since.)
//! if let Ok(tally) = table.count(key, today, 5, 3, &mut table.reading()) {
//!     assert!(tally.is_allowed() && tally.used() == 3);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Costs that are known later
//!
//! A request can be charged an estimate, which its response settles ([`Table::charge_up_to_cap`],
//! [`Table::give_back`]). [`Table::add_unsettled`] keeps what it costs if no response settles it.
//! [`Table::take_overdue`] takes these cells, so that a later request of the key is charged for
//! them.
//!
//! # What it gives up
//!
//! * **Keys are hashed, not stored.** Two keys share a bucket, and so a limit, if 60 bits of keyed
//!   SipHash-1-3 agree. With a million live keys one expects 4e-7 such pairs, with 100 million
//!   4e-3. Keys cannot be listed.
//! * **The size is fixed until [`Table::resize`].** If there are more live keys than slots, the
//!   bucket that owes the smallest part of its quota's burst is forgotten, and
//!   [`Table::evictions`] says how much was forgiven. The table must hold the keys that are active
//!   within one drain time, not all keys ever seen.
//! * **One machine.** Processes on other hosts cannot map the file. The crate
//!   [`gcra-lease`](https://docs.rs/gcra-lease) has a protocol by which machines share a limit.
//! * **Linux, and a CPU with a 128-bit compare-exchange** (x86-64 since 2006, 64-bit ARM).
#![cfg_attr(gcra_model, allow(dead_code, reason = "the models use the buckets, not the file"))]

mod bucket;
mod bucket_place;
mod burst_class;
mod clock;
mod counters;
mod cpu;
mod decision;
mod file;
mod hash;
mod inspect;
mod key;
mod leases;
#[cfg(all(test, gcra_model))]
mod model;
mod mutation;
mod processes;
mod quota;
mod rate;
mod resize;
mod sentences;
mod slot;
mod slots;
mod sync;
mod table;
mod time;
mod used;

pub use bucket::unsettled::{MOST_UNSETTLED, Term, UnsettledCells};
pub use bucket::window::{Tally, WallReading, Window, WindowOver};
pub use bucket_place::BucketPlace;
pub use clock::ManualClock;
pub use clock::read_clock_files;
pub use counters::Evictions;
pub use decision::{Decision, Settled};
pub use file::Folder;
pub use file::open::Opened;
pub use file::open_error::{OpenError, OpenErrorKind};
pub use inspect::{FaultKind, Occupancy, TableFault};
pub use key::{KeyHash, KeyHasher, LimitSalt, limit_id};
pub use quota::{Admission, MAX_DRAIN, Quota, QuotaError};
pub use rate::{MAX_BURST, Period, Rate, RateError, RateProblem};
pub use resize::Resized;
pub use slots::{Slots, SlotsError};
pub use table::Table;
pub use table::succession::Name;
pub use time::{Nanos, Reading, Time};
pub use used::KEPT;

/// The notice board in a table's header, and what it holds. Only gcra-spoa uses it, and it may
/// change in any release.
#[doc(hidden)]
pub mod board {
    pub use crate::file::heard::HEARD_KINDS;
    pub use crate::file::orders::{
        LONGEST_NOTE, LONGEST_ORDER, MOST_ORDERS, Order, OrderError, OrderKind, OrderTarget,
        PolicyReset,
    };
    pub use crate::file::profile::Profile;
    pub use crate::processes::{PidNamespace, Process, ReloadAnswer};
    pub use crate::table::board::Board;
}

// Only gcra-spoa uses these, and they may change in any release: the cells that a store has lent
// to this machine, and the path of a file beside the table.
#[doc(hidden)]
pub use file::FilePath;
#[doc(hidden)]
pub use leases::{
    LeaseCounts, LeaseFault, LeaseKey, LeaseNeed, LeaseNumbers, Leases, Replaced, Spent, StoreId,
};

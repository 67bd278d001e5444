//! Exact rate limits in memory that processes share: a lock-free table of GCRA buckets.
//!
//! A [`Quota`] says what is allowed; a [`Table`] remembers, for each key, the one number GCRA
//! needs (the theoretical arrival time of its next cell, the TAT). The table is a file that any
//! number of processes map: they charge the same buckets, so a limit is one limit, whichever of
//! them decides, dies or is restarted.
//!
//! ```
//! use gcra_table::{Rate, Slots, Table};
//!
//! let rate: Rate = "100/s".parse()?;
//! let quota = rate.quota(Some(20))?;          // 100 per second, up to 20 at once
//! let table = Table::in_memory(Slots::new(1024)?)?;
//!
//! let key = table.hash(b"192.0.2.1");
//! let mut now = table.now();                   // read once, decide many
//! let allowed = (0..30).filter(|_| table.charge(key, quota, 1, &mut now).is_allowed()).count();
//! assert_eq!(allowed, 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it promises
//!
//! For each key and quota, the cells allowed in any interval of length `t`, by the clock readings
//! the decisions were made with, counted over all processes and threads, are at most `burst + rate
//! * t`. Nothing weakens that: not a process killed at any instruction, not one stopped for an
//! hour in the middle of a decision. A key that has been idle for one drain time (`burst / rate`)
//! has its full burst again.
//!
//! Quotas with other numbers never share a bucket: what is charged to a key by one of them is not
//! seen by another, whichever process charges. [`Quota::carry_over`] and [`Table::charge_owing`]
//! bring a debt along when numbers change.
//!
//! # What it gives up
//!
//! * **Keys are hashed, not stored.** Two keys share a bucket, and so a limit, when 64 bits of
//!   keyed SipHash-1-3 agree: with a million live keys one expects 3e-8 such pairs, with 100
//!   million 3e-4. Keys can't be listed.
//! * **The size is fixed until [`Table::resize`].** With more live keys than slots the bucket that
//!   owes least is forgotten, and [`Table::evictions`] says how much was forgiven. The table must
//!   hold the keys active within one drain time, not the keys ever seen.
//! * **One machine.** Processes on other hosts can't map the file.
//! * **Linux on hardware with a 128-bit compare-exchange** (x86-64 since 2006, 64-bit ARM).
//!
//! How the buckets live in memory is told in `bucket.rs`; every byte of the file in docs/TABLE.md.
#![cfg_attr(gcra_model, allow(dead_code, reason = "the models use the buckets, not the file"))]

mod attached;
mod bucket;
mod clock;
mod hash;
mod header;
mod inspect;
#[cfg(all(test, gcra_model))]
mod model;
mod open;
mod quota;
mod rate;
mod region;
mod register;
mod resize;
mod room;
mod slot;
mod sync;
mod table;

pub use attached::{PidNamespace, Process, ReloadAnswer};
pub use bucket::{Decision, Evictions};
pub use clock::ManualClock;
pub use inspect::{Fault, Occupancy};
pub use open::{OpenError, Opened};
pub use quota::{Admission, MAX_DRAIN_NS, Quota, QuotaError};
pub use rate::{Rate, RateError};
pub use register::{MAX_REGISTERED, Registered};
pub use resize::Resized;
pub use slot::{Slots, SlotsError};
pub use table::{KeyHash, KeyHasher, Name, Table, limit_id};

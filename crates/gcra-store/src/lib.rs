//! The store's end of limits that several machines share: leases in Valkey or Redis.
//!
//! The protocol is that of the crate [`gcra_lease`]. This crate sends its asks to a store and
//! brings the replies back. The host keeps its [`Holding`](gcra_lease::Holding)s wherever it
//! likes.
//!
//! ```no_run
//! use core::time::Duration;
//! use gcra_lease::{AskNumber, HostId, HostTime, Holding, SharedLimit, Micros, Wish};
//! use gcra_store::{AskOutcome, Config, Names, Store, Url};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let (store, task) = Store::open(Config::new(Url::parse("redis://store.example")?))?;
//! tokio::spawn(task);
//! let mut line = store.line();
//!
//! let limit = SharedLimit::new(Duration::from_millis(10), 20)?; // 100/s, burst 20
//! let bucket = Names::new(b"a salt").bucket("api.second", b"192.0.2.7", limit);
//! let mut holding = Holding::new();
//! let wish = Wish { want: 5, least: 1, validity: Micros::from_millis(500) };
//! let sent = holding.ask(&limit, HostTime(7_000), HostId(1), AskNumber(1), wish);
//! if line.submit(vec![(bucket, sent)]).is_err() {
//!     holding.void(&sent); // The store cannot be used now.
//! }
//!
//! let mut answers = Vec::new();
//! line.answers(&mut answers).await;
//! for answer in answers {
//!     match answer.outcome {
//!         AskOutcome::Reply(reply) => holding.reply(HostTime(7_500), &answer.sent, &reply),
//!         _ => holding.void(&answer.sent),
//!     };
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where the debt of all hosts at this moment counts, cells are [charged](Asker::charge) at once,
//! and not lent:
//!
//! ```no_run
//! use gcra_lease::{Charge, HostTime, SharedLimit, Micros};
//! use gcra_store::{Asker, Away, Bucket};
//!
//! # async fn example(asker: Asker, limit: SharedLimit, bucket: Bucket) -> Result<(), Away> {
//! let max_delay = Micros::from_millis(2_000);
//! let take = Charge::Take { cells: 1, needs: 1, max_delay };
//! let mut charging = asker.charge(bucket, HostTime(7_000), take)?;
//! match charging.outcome().await {
//!     Ok(charged) if charged.allowed => println!("goes on after {:?}", charged.delay(&limit)),
//!     Ok(charged) => println!("blocked for {:?}", charged.wait(&limit, &take)),
//!     Err(why) => println!("{why:?}: decided without the store"),
//! }
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "client")]
mod client;
mod config;

#[cfg(feature = "client")]
pub use client::*;
pub use config::{Address, Certificate, Config, Password, Url, UrlError};

//! Write an agent for HAProxy's SPOE filter (an SPOA): a handler in, a server out.
//!
//! HAProxy asks an agent about a request by sending it a NOTIFY frame with messages; the agent answers with an ACK that
//! sets variables, and HAProxy's rules act on those. This crate does everything in between: sockets, HELLO and
//! negotiation, health checks, deadlines, many frames in one read, one write for all their answers, and an orderly
//! end. What is left is a function from a [`Request`] to a [`Reply`]:
//!
//! ```no_run
//! use spop_agent::{Agent, ListenAddress, Reply, Request, Scope, Value, VarName};
//!
//! const SCORE: VarName<'_> = VarName::from_static("score");
//!
//! fn score(request: &Request<'_>, reply: &mut Reply<'_>) {
//!     let Some(message) = request.message(b"check-ip") else { return };
//!     if let Some(Value::Ipv4(ip)) = message.arg(b"ip") {
//!         let score = if ip.is_loopback() { 100 } else { 20 };
//!         // Refused only where HAProxy would drop it: the ACK would be too large.
//!         let _ = reply.set_var(Scope::Transaction, SCORE, score);
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let address: ListenAddress = "127.0.0.1:9000".parse().map_err(std::io::Error::other)?;
//! let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
//! Agent::new(score).serve_until(address.bind()?, stop).await;
//! # Ok(())
//! # }
//! ```
//!
//! Inside a program without a runtime of its own, [`Agent::run`] brings one (or several: one worker thread each).
//!
//! # What holds
//!
//! * Every NOTIFY gets exactly one ACK, whatever the handler does: a panic in it is caught, counted, and answered
//!   with an ACK without actions. Nothing is answered on behalf of half a frame.
//! * Handlers run in the connection's task, one after another, and must not wait: all connections of a worker wait
//!   with them. (One worker answers millions of NOTIFYs a second; waiting is what costs.)
//! * A peer that sends rubbish, half a frame, or never reads costs one bounded buffer and then its connection.
//! * Nothing is allocated per request, and nothing is handed to another task.
#![forbid(unsafe_code)]

mod agent;
mod connection;
mod counters;
mod handler;
mod late;
mod listener;
mod report;
pub mod testing;

pub use agent::{Agent, RunError};
pub use counters::{Counters, Latency, Snapshot};
pub use handler::{Handler, LateReply, Reply, Request};
pub use listener::{AddressError, ListenAddress, Listener};
pub use spop_codec::{
    Arg, Args, BufferFull, HeaderList, Limits, Message, Messages, NameError, Scope, Value, VarName,
};

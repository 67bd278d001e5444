//! Write an agent for HAProxy's SPOE filter (an SPOA): you write the handler, this crate is the
//! server.
//!
//! HAProxy asks an agent about a request by sending it a NOTIFY frame with messages. The agent
//! answers with an ACK that sets variables, and HAProxy's rules use these. This crate does
//! everything in between: sockets, HELLO and negotiation, health checks, deadlines, many frames in
//! one read, one write for all their answers, and an orderly end. You write a function from a
//! [`Request`] to a [`Reply`]:
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
//!         reply.set_var(Scope::Transaction, SCORE, score);
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let address: ListenAddress = "127.0.0.1:9000".parse()?;
//! let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
//! Agent::new(score).serve_until(address.bind()?, stop).await;
//! # Ok(())
//! # }
//! ```
//!
//! It takes these lines in its `Cargo.toml`. The features of tokio are those that this program
//! uses itself:
//!
//! ```text
//! [dependencies]
//! spop-agent = "0.1"
//! tokio = { version = "1", features = ["macros", "rt", "signal"] }
//! ```
//!
//! A program that has no tokio runtime calls [`Agent::run`], which starts one or several worker
//! threads with a runtime each.
//!
//! # HAProxy's configuration
//!
//! HAProxy needs a filter in the frontend, an `spoe-agent` section in a file of its own, and a
//! backend whose server is the agent. Each example in `examples/` (`hello`, `ip_reputation`,
//! `async_lookup`, `headers`) has both files. There the variable above is called
//! `txn.PREFIX.score`, with the `PREFIX` of `option var-prefix`.
//!
//! # Reading a request
//!
//! A [`Request`] is one NOTIFY. It usually has one [`Message`], and several if an event or a group
//! lists several. Get args by name ([`Message::arg`]), by index ([`Message::arg_at`]) or one after
//! another ([`Message::args`]); nothing is copied. Names are bytes (`b"ip"`), as SPOP has them. A
//! [`Value`] has the type of HAProxy's sample: match on it, or call [`as_str`](Value::as_str),
//! [`as_integer`](Value::as_integer), [`as_ip`](Value::as_ip), [`as_bytes`](Value::as_bytes) or
//! [`headers`](Value::headers). A sample that was not available is [`Value::Null`].
//!
//! ```
//! use spop_agent::{Request, Value};
//!
//! fn describe(request: &Request<'_>) {
//!     for message in request.messages() {
//!         let host = message.arg(b"host").and_then(|host| host.as_str());
//!         // args headers=req.hdrs_bin
//!         let headers = message.arg(b"headers").and_then(|headers| headers.headers());
//!         let headers = headers.into_iter().flatten();
//!         let cookies = headers.filter(|(name, _)| name == b"cookie").count();
//!         println!("{host:?} with {cookies} cookies");
//!         for arg in message.args() {
//!             match arg.value {
//!                 Value::Ipv4(ip) => println!("from {ip}"),
//!                 Value::Null => println!("no {:?}", String::from_utf8_lossy(arg.name)),
//!                 _ => {}
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # Writing a reply
//!
//! [`Reply::set_var`] and [`Reply::unset_var`] accept every type and scope. HAProxy silently drops
//! what it does not accept, so this crate does not send it: a wrong name is an error of
//! [`VarName::new`]. A value that would make the ACK too large is left out, counted in
//! [`Snapshot::left_out`] and logged.
//!
//! # Late replies
//!
//! A handler must not wait, because all connections of its worker would wait with it. For an
//! `async fn` there is [`async_handler`]. Others give a future to [`Reply::later`]. The ACK
//! is sent when the future is ready, or after [`Agent::deadline`] with what was set before. A
//! handler with a cache can reply at once if the cache has the answer. The example `async_lookup`
//! does all of this.
//!
//! # Millions of requests a second
//!
//! For the fastest agents implement [`Handler`] itself: [`round`](Handler::round) is called once
//! for all requests of one read (to read a clock, or to load a configuration), and
//! [`prepare`](Handler::prepare) for up to 32 requests before the first of them is answered (to
//! fetch memory early).
//!
//! # Running it
//!
//! [`Agent::serve_until`] stops when a future resolves. With [`Agent::drain`] it first fails
//! HAProxy's health checks; then it answers what has come, ends the connections, and returns.
//! [`ListenAddress`] names TCP and Unix sockets, and sockets that systemd passes. [`SocketAccess`]
//! says which processes may connect to a Unix socket. [`Agent::counters`] has numbers for your
//! metrics. The crate `log` gets what an operator should know, at most a few lines a minute.
//! [`Limits`] bounds frames, ACKs and times; its defaults are good for HAProxy 2.6 and later.
//!
//! # Testing it
//!
//! [`testing::Client`] is HAProxy's end of a connection.
//!
//! # Guarantees
//!
//! * Every NOTIFY gets exactly one ACK, whatever the handler does. A panic in the handler, or in
//!   the drop of a value that it returned, is caught and counted, and the ACK has no actions.
//!   Nothing is answered before its frame is whole.
//! * Handlers run in the connection's task, one request after another. (One worker answers
//!   millions of NOTIFYs a second, so no other task is needed.)
//! * A peer that sends garbage or half a frame, or that never reads, costs at most one buffer of
//!   limited size, and then its connection ends. All such buffers together have a limit too
//!   ([`Agent::max_buffered_bytes`]).
//! * Connections have their rounds in turn. One that sends as fast as it can delays the others by
//!   two reads of at most 64 KiB each, and by fewer bytes if its requests have many messages. A
//!   NOTIFY has at most 64.
//! * Without late replies, nothing is allocated for a request, and nothing is handed to another
//!   task.
#![doc = include_str!("../MIGRATING.md")]
#![forbid(unsafe_code)]

mod accept;
mod agent;
mod batch;
mod beats;
mod buffers;
mod busy;
mod catch_panic;
mod connection;
mod counters;
mod end;
mod handler;
mod inbox;
mod inherited;
mod late_replies;
mod listener;
mod log_limit;
mod reply;
mod round;
mod settings;
mod shaped;
mod shared;
mod socket_file;
mod stream;
pub mod testing;

pub use agent::{Agent, RunError, Sockets};
pub use counters::{Counters, Latency, Snapshot};
pub use handler::{Handler, OwnedRequest, Request, async_handler};
pub use listener::{AddressError, ListenAddress, Listener};
pub use reply::{LateReply, Reply};
#[doc(hidden)]
pub use shaped::{Answer, ShapedNotifies, ShapedNotify};
pub use socket_file::SocketAccess;
#[doc(hidden)]
pub use spop_codec::Shape;
pub use spop_codec::{
    AckWriter, Actions, Arg, Args, BufferFull, FrameId, HeaderList, HeaderListWriter, Limits,
    Message, Messages, NameError, Scope, SetVar, TextWriter, Value, VarName,
};

#[cfg(any(doc, doctest))]
#[doc = include_str!("../TEN_MINUTES.md")]
pub mod ten_minutes {}

// The examples in README.md are compiled with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

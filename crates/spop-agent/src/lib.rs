//! Write an agent for HAProxy's SPOE filter (an SPOA): a handler in, a server out.
//!
//! HAProxy asks an agent about a request by sending it a NOTIFY frame with messages; the agent
//! answers with an ACK that sets variables, and HAProxy's rules act on those. This crate does
//! everything in between: sockets, HELLO and negotiation, health checks, deadlines, many frames in
//! one read, one write for all their answers, and an orderly end. What is left is a function from
//! a [`Request`] to a [`Reply`]:
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
//! Inside a program without a runtime of its own, [`Agent::run`] brings one (or several: one
//! worker thread each).
//!
//! # What HAProxy has to know
//!
//! A filter in the frontend, an `spoe-agent` section in a file of its own, and a backend with the
//! agent as its server; each example in `examples/` (`hello`, `ip_reputation`, `async_lookup`,
//! `headers`) has both files. The variable above is `txn.PREFIX.score` there, with the `PREFIX` of
//! `option var-prefix`.
//!
//! # Reading a request
//!
//! A [`Request`] is what came in one NOTIFY: one [`Message`] as a rule, several where an event or
//! a group lists several. Args are had by name ([`Message::arg`]), by place ([`Message::arg_at`])
//! or in turn ([`Message::args`]); nothing is copied. A [`Value`] has the type that HAProxy's
//! sample had: match on it, or ask for [`as_str`](Value::as_str),
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
//!         let cookies = headers.into_iter().flatten().filter(|(name, _)| name == b"cookie").count();
//!         println!("{host:?} with {cookies} cookies");
//!         for arg in message.args() {
//!             match arg.value {
//!                 Value::Ipv4(ip) => println!("from {ip}"),
//!                 Value::Null => println!("HAProxy had no {:?}", String::from_utf8_lossy(arg.name)),
//!                 _ => {}
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # Writing a reply
//!
//! [`Reply::set_var`] and [`Reply::unset_var`] take every type and scope. HAProxy drops what it
//! does not like without a word, so it is refused here: names when they are made ([`VarName`]),
//! values that make the ACK too large with [`BufferFull`].
//!
//! # Waiting for something
//!
//! A handler must not wait, for all connections of its worker wait with it. [`Reply::later`] takes
//! a future instead: the ACK is sent when it is ready, in whatever order, or after
//! [`Agent::deadline`] with what was set at first. A cache can be asked before, and its
//! answer given at once. The example `async_lookup` does all that.
//!
//! # What many requests have in common
//!
//! Whoever answers millions of requests a second implements [`Handler`] itself:
//! [`turn`](Handler::turn) is called once for all that came in one read (to read a clock, to load
//! a configuration), and [`prepare`](Handler::prepare) for up to 32 requests before the first of
//! them is answered (to fetch memory early).
//!
//! # Running it
//!
//! [`Agent::serve_until`] stops when a future says so: with [`Agent::drain`] it fails HAProxy's
//! health check first, then answers what has come, says goodbye, and returns. [`ListenAddress`]
//! names TCP and Unix sockets and those that systemd hands over; [`SocketAccess`] says who may
//! connect to a Unix socket. [`Agent::counters`] tells what happened, in numbers, for whatever
//! collects them; what an operator should know is logged with the crate `log`, a few lines a
//! minute at most. [`Limits`] bounds frames, ACKs and times; the defaults are good for every
//! HAProxy from 2.6 on.
//!
//! # Testing it
//!
//! [`testing::Client`] is HAProxy's end of a connection.
//!
//! # What holds
//!
//! * Every NOTIFY gets exactly one ACK, whatever the handler does: a panic in it, or in the drop
//!   of what it gave, is caught, counted, and answered with an ACK without actions. Nothing is
//!   answered on behalf of half a frame.
//! * Handlers run in the connection's task, one after another. (One worker answers millions of
//!   NOTIFYs a second; waiting is what costs.)
//! * A peer that sends rubbish, half a frame, or never reads costs one bounded buffer and then its
//!   connection; and all such buffers together have a bound, too ([`Agent::max_buffered_bytes`]).
//! * Connections take turns: one that sends as fast as it can holds up the others for two reads of
//!   at most 64 KiB each.
//! * Nothing is allocated per request, and nothing is handed to another task, but for what is
//!   answered later.
//!
//! # Coming from another library
//!
//! | | negasus/haproxy-spoe-go | here |
//! |---|---|---|
//! | serve | `agent.New(handler, logger).Serve(listener)` | `Agent::new(handler).serve(listener)` |
//! | a message | `req.Messages.GetByName("m")` | `request.message(b"m")` |
//! | by place | `req.Messages.GetByIndex(0)` | `request.messages().next()` |
//! | an arg | `mes.KV.Get("ip")`, an `interface{}` | `message.arg(b"ip")`, a [`Value`] |
//! | set | `req.Actions.SetVar(action.ScopeSession, "score", 20)` | `reply.set_var(Scope::Session, SCORE, 20_u32)` |
//! | unset | `req.Actions.UnsetVar(action.ScopeSession, "score")` | `reply.unset_var(Scope::Session, SCORE)` |
//! | ids | `req.EngineID`, `req.StreamID`, `req.FrameID` | [`Request::engine_id`], [`Request::id`] |
//! | wait | block: each NOTIFY has its goroutine | [`Reply::later`] |
//! | stop | close the listener | [`Agent::serve_until`] |
//!
//! | | dropmorepackets/haproxy-go | here |
//! |---|---|---|
//! | serve | `agent := spop.Agent{Handler: h}; agent.Serve(listener)` | `Agent::new(handler).serve(listener)` |
//! | handler | `HandleSPOE(ctx, writer, message)`, once for each message | once for each NOTIFY, with all its messages |
//! | an arg | `for message.KV.Next(entry)`, `entry.NameEquals("ip")`, `entry.ValueAddr()` | `message.arg(b"ip")?.as_ip()` |
//! | into a struct | `message.KV.Unmarshal(&args)` | one `arg` and one `as_…` for each field |
//! | set | `writer.SetInt64(encoding.VarScopeSession, "score", 20)` | `reply.set_var(Scope::Session, SCORE, 20_i64)` |
//! | headers | `encoding.AcquireKVScanner` over the bytes | `message.arg(b"headers")?.headers()` |
//! | stop | cancel `BaseContext` | [`Agent::serve_until`] |
//!
//! | | the crate `spop` | here |
//! |---|---|---|
//! | frames | `Framed::new(stream, SpopCodec)`, and a `match` on frame types | [`Agent`] does all but NOTIFY; the crate `spop-codec` has the frames |
//! | messages | `FramePayload::ListOfMessages(messages)` | `request.messages()` |
//! | an arg | `message.get("ip")`, a `TypedData` that owns | `message.arg(b"ip")`, a [`Value`] that borrows |
//! | answer | `Ack::new(stream_id, frame_id).set_var(VarScope::Session, "score", 20)`, then `socket.send` | `reply.set_var(Scope::Session, SCORE, 20_u32)` |
//! | health checks, DISCONNECT, limits | in the agent's code | done |
#![forbid(unsafe_code)]

mod agent;
mod buffers;
mod busy;
mod connection;
mod counters;
mod handler;
mod inherited;
mod late;
mod listener;
mod report;
mod shield;
mod socket_file;
pub mod testing;

pub use agent::{Agent, RunError};
pub use counters::{Counters, Latency, Snapshot};
pub use handler::{Handler, LateReply, Reply, Request};
pub use listener::{AddressError, ListenAddress, Listener};
pub use socket_file::SocketAccess;
pub use spop_codec::{
    AckWriter, Actions, Arg, Args, BufferFull, FrameId, HeaderList, Limits, Message, Messages,
    NameError, Scope, Value, VarName,
};

//! HAProxy's Stream Processing Offload Protocol (SPOP): bytes to frames, and frames to bytes.
//!
//! HAProxy's SPOE filter asks an agent about requests, and the two talk SPOP. This crate has the
//! protocol and nothing else: no I/O, no clock, no allocation, no dependencies. The crate
//! [`spop-agent`](https://docs.rs/spop-agent) is a server that uses it.
//!
//! [`decode`] splits the first whole frame off some bytes and checks it to its last byte. So
//! iterating over the messages, args and actions of a frame needs no error handling.
//! [`Connection`] is the agent's end of one connection: it decides which frames may come,
//! negotiates, and says how long to wait.
//!
//! ```
//! use std::time::Duration;
//!
//! use spop_codec::{AckWriter, Connection, Event, Limits, Scope, Value, VarName};
//!
//! const LOCAL: VarName<'_> = VarName::from_static("local");
//!
//! # type Outcome = Result<(usize, Vec<u8>), Box<dyn std::error::Error>>;
//! /// Answers the frames that arrived by `now`. Returns how many bytes they had, and the bytes to
//! /// send.
//! fn answer(connection: &mut Connection, arrived: &[u8], now: Duration) -> Outcome {
//!     let (mut used, mut send) = (0, Vec::new());
//!     while let Some((event, length)) = connection.receive(&arrived[used..], now)? {
//!         used += length;
//!         let mut out = [0; 1024];
//!         let written = match event {
//!             Event::Hello(welcome) => welcome.encode(&mut out)?,
//!             Event::Notify(notify) => {
//!                 let mut ack = AckWriter::new(&mut out, notify.id, connection.max_ack_size(1))?;
//!                 for message in notify.messages() {
//!                     if let Some(Value::Ipv4(ip)) = message.arg(b"ip") {
//!                         ack.set_var(Scope::Transaction, LOCAL, ip.is_loopback().into())?;
//!                     }
//!                 }
//!                 ack.finish()
//!             }
//!             Event::Disconnect(_) => break,
//!             // Pieces come only if they are offered, and the limits below do not.
//!             Event::Skipped | Event::Fragment(_) => 0,
//!         };
//!         send.extend_from_slice(&out[..written]);
//!     }
//!     Ok((used, send))
//! }
//!
//! let mut limits = Limits::default();
//! limits.max_payload_size = 0;
//! let mut connection = Connection::new(limits, Duration::ZERO);
//! # let mut hello = [0; 256];
//! # let fields = spop_codec::haproxy::HelloFields::default();
//! # let length = spop_codec::haproxy::encode_hello(&mut hello, &fields)?;
//! # let (_, answered) = answer(&mut connection, &hello[..length], Duration::ZERO)?;
//! # assert!(answered.starts_with(b"\0\0\0\x40\x65"));
//! let notify = b"\0\0\0\x12\x03\0\0\0\x01\x01\x01\x01m\x01\x02ip\x06\x7f\0\0\x01";
//! let (_, ack) = answer(&mut connection, notify, Duration::from_secs(1))?;
//! assert_eq!(ack, b"\0\0\0\x11\x67\0\0\0\x01\x01\x01\x01\x03\x02\x05local\x11");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Names and strings are bytes, because HAProxy passes on what clients send. Where SPOE.txt and
//! HAProxy differ, this crate does what HAProxy 2.6 and later do, and its documentation says so.
#![no_std]
#![forbid(unsafe_code)]

mod ack;
mod connection;
mod disconnect;
mod error;
mod frame;
pub mod haproxy;
mod headers;
mod hello;
mod notify;
mod reader;
mod shape;
mod status;
mod value;
mod var;
mod varint;
mod wire;
mod writer;

pub use ack::{Ack, AckWriter, Action, Actions, SetVar, TextWriter};
pub use connection::{Connection, Event, Fragment, Limits, Place, ProtocolError, Welcome};
pub use disconnect::{Disconnect, encode_agent_disconnect};
pub use error::{DecodeError, MAX_MESSAGES};
pub use frame::{Frame, decode};
pub use headers::{HeaderList, HeaderListWriter};
pub use hello::{AgentHello, Capabilities, Hello, encode_agent_hello};
pub use notify::{Arg, Args, Message, Messages, Notify};
#[doc(hidden)]
pub use shape::{RawIds, Shape, ack_space};
pub use status::Status;
pub use value::Value;
pub use var::{NameError, Scope, ScopeError, VarName};
pub use wire::FrameId;
pub use writer::BufferFull;

// The example in README.md is compiled with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

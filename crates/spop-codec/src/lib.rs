//! HAProxy's Stream Processing Offload Protocol (SPOP): frames from bytes, and bytes from frames.
//!
//! HAProxy's SPOE filter asks an agent about requests over SPOP. This crate is the protocol and
//! nothing else: no I/O, no clock, no allocation, no dependency. [`spop-agent`](https://docs.rs/spop-agent) has the sockets.
//!
//! [`decode`] splits the first whole frame off some bytes. It waits for the frame's end and checks
//! it to its last byte, so what it returns is known to be good: messages, args and actions are
//! then iterated without errors. [`Connection`] is the agent's end of one connection: it says what
//! may come, negotiates, and tells how long to wait.
//!
//! ```
//! use spop_codec::{AckWriter, Connection, Event, Limits, Scope, Value, VarName};
//!
//! /// Answers what has arrived. Returns the bytes that were used up, and those to send.
//! fn answer(connection: &mut Connection, arrived: &[u8]) -> Result<(usize, Vec<u8>), Box<dyn std::error::Error>> {
//!     let (mut used, mut send) = (0, Vec::new());
//!     while let Some((event, length)) = connection.receive(&arrived[used..])? {
//!         used += length;
//!         let mut out = [0; 1024];
//!         let written = match event {
//!             Event::Hello(welcome) => welcome.encode(&mut out)?,
//!             Event::Notify(notify) => {
//!                 let mut ack = AckWriter::new(&mut out, notify.id, connection.max_ack_size())?;
//!                 for message in notify.messages() {
//!                     if let Some(Value::Ipv4(ip)) = message.arg(b"ip") {
//!                         ack.set_var(Scope::Transaction, VarName::new("local")?, ip.is_loopback().into())?;
//!                     }
//!                 }
//!                 ack.finish()
//!             }
//!             Event::Disconnect(_) => break,
//!             // No pieces come where they are not offered.
//!             Event::Skipped | Event::Fragment(_) => 0,
//!         };
//!         send.extend_from_slice(&out[..written]);
//!     }
//!     Ok((used, send))
//! }
//!
//! let limits = Limits { max_payload_size: 0, ..Limits::default() };
//! let mut connection = Connection::new(limits, std::time::Duration::ZERO);
//! # let mut hello = [0; 256];
//! # let fields = spop_codec::haproxy::HelloFields {
//! #     versions: "2.0", max_frame_size: 16380, capabilities: "pipelining", engine_id: None, healthcheck: None,
//! # };
//! # let length = spop_codec::haproxy::encode_hello(&mut hello, &fields)?;
//! # let (_, answered) = answer(&mut connection, &hello[..length])?;
//! # assert!(answered.starts_with(b"\0\0\0\x40\x65"));
//! let notify = b"\0\0\0\x12\x03\0\0\0\x01\x01\x01\x01m\x01\x02ip\x06\x7f\0\0\x01";
//! let (_, ack) = answer(&mut connection, notify)?;
//! assert_eq!(ack, b"\0\0\0\x11\x67\0\0\0\x01\x01\x01\x01\x03\x02\x05local\x11");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Names and strings are bytes, because HAProxy passes on what clients send. Where SPOE.txt and
//! HAProxy differ this follows HAProxy 2.6 and later, and says so.
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
mod name;
mod notify;
mod reader;
mod status;
mod value;
mod varint;
mod writer;

pub use ack::{Ack, AckWriter, Action, Actions};
pub use connection::{Connection, Event, Fragment, Limits, Place, ProtocolError, Welcome};
pub use disconnect::{Disconnect, encode_agent_disconnect};
pub use error::DecodeError;
pub use frame::{Frame, FrameId, decode};
pub use headers::HeaderList;
pub use hello::{AgentHello, Capabilities, Hello, encode_agent_hello};
pub use name::{NameError, Scope, ScopeError, VarName};
pub use notify::{Arg, Args, Message, Messages, Notify};
pub use status::Status;
pub use value::Value;
pub use writer::BufferFull;

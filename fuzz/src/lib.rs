//! The fuzz targets, as functions of any bytes: libFuzzer runs them with the feature `libfuzzer`,
//! and `tests/inputs.rs` with the seeds and random bytes.
//!
//! They share some parts. Values and frames are made of the input's bytes, by the code of other
//! tests. A NOTIFY is written again, and a stream cuts reads and writes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    missing_docs,
    unreachable_pub,
    reason = "tests"
)]

use spop_codec::Notify;
use spop_codec::haproxy::NotifyWriter;

#[path = "../../crates/gcra-limiter/tests/both_ways/mod.rs"]
mod both_ways;
#[path = "../../crates/spop-codec/tests/reference/compare.rs"]
mod compare;
mod cut_stream;
#[path = "../../crates/spop-codec/tests/generate/mod.rs"]
mod generate;
#[path = "../../crates/spop-codec/tests/reference/mod.rs"]
mod reference;
#[path = "../../crates/spop-codec/tests/roundtrip/mod.rs"]
mod roundtrip;

/// Each has a function `run` for one input.
pub mod targets {
    pub mod admin;
    pub mod agent;
    pub mod config;
    pub mod connection;
    pub mod decode;
    pub mod logs;
    pub mod reference;
    pub mod roundtrip;
    pub mod shapes;
    pub mod table;
}

pub(crate) use cut_stream::{CutStream, runtime};
pub(crate) use generate::{Messages, bytes, id, messages, text, write_notify};

/// The first byte of each step in an input of `connection`, modulo [`COUNT`](step::COUNT).
pub mod step {
    /// A HAPROXY-HELLO.
    pub const HELLO: u8 = 0;
    /// A NOTIFY.
    pub const NOTIFY: u8 = 1;
    /// A NOTIFY in several frames.
    pub const FRAGMENTS: u8 = 2;
    /// A HAPROXY-DISCONNECT.
    pub const DISCONNECT: u8 = 3;
    /// A frame of any type and any payload.
    pub const FRAME: u8 = 4;
    /// Two bytes of length (little endian), and so many bytes as they are.
    pub const RAW: u8 = 5;
    /// Changes a byte that was written.
    pub const DAMAGE: u8 = 6;
    /// A piece ends here, or up to 255 bytes before; then time passes.
    pub const CUT: u8 = 7;
    /// How many there are.
    pub const COUNT: u8 = 8;
}

/// Writes a NOTIFY that was read from `used` bytes again. No number can be written in two ways, so
/// it takes as many.
pub(crate) fn rewritten(notify: &Notify<'_>, used: usize) -> Vec<u8> {
    let mut out = vec![0; used];
    let mut writer =
        NotifyWriter::new(&mut out, notify.id).expect("the ids were read from so many bytes");
    for message in notify.messages() {
        writer.message(message.name).expect("the message was read from so many bytes");
        for arg in message.args() {
            writer.arg(arg.name, arg.value).expect("the arg was read from so many bytes");
        }
    }
    assert_eq!(writer.finish(), used, "something that was read is not given out");
    out
}

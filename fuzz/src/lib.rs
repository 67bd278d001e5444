//! The parts that the targets share. Values and frames are made of the fuzzer's bytes, by the code
//! of the codec's own tests. A NOTIFY is written again, and a stream cuts reads and writes.

use spop_codec::Notify;
use spop_codec::haproxy::NotifyWriter;

#[cfg(feature = "tokio")]
mod cut_stream;
#[path = "../../crates/spop-codec/tests/generate/mod.rs"]
pub mod generate;

#[cfg(feature = "tokio")]
pub use cut_stream::{CutStream, runtime};
pub use generate::{Messages, bytes, id, messages, text, value, write_notify};

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
pub fn rewritten(notify: &Notify<'_>, used: usize) -> Vec<u8> {
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

//! The frames that HAProxy sends, to be written: for test clients and load generators.

use crate::disconnect;
use crate::frame::{self, FrameId, kind};
use crate::status::Status;
use crate::value::Value;
use crate::writer::{BufferFull, Writer};

pub use crate::hello::HelloFields;

/// Writes a HAPROXY-HELLO.
///
/// # Errors
///
/// `out` is too short.
pub fn encode_hello(out: &mut [u8], hello: &HelloFields<'_>) -> Result<usize, BufferFull> {
    crate::hello::encode_haproxy_hello(out, hello)
}

/// Writes a HAPROXY-DISCONNECT.
///
/// # Errors
///
/// `out` is too short.
pub fn encode_disconnect(
    out: &mut [u8],
    status: Status,
    message: &str,
) -> Result<usize, BufferFull> {
    disconnect::encode(out, kind::HAPROXY_DISCONNECT, status, message)
}

/// Writes one NOTIFY: a message, its args, the next message.
#[derive(Debug)]
pub struct NotifyWriter<'b> {
    writer: Writer<'b>,
    /// Where the number of args of the current message stands, and how many it has so far.
    args_at: Option<(usize, u8)>,
}

impl<'b> NotifyWriter<'b> {
    /// Begins a NOTIFY without messages.
    ///
    /// # Errors
    ///
    /// `out` is too short.
    pub fn new(out: &'b mut [u8], id: FrameId) -> Result<Self, BufferFull> {
        Ok(Self { writer: frame::begin(out, kind::NOTIFY, id)?, args_at: None })
    }

    /// Begins a message.
    ///
    /// # Errors
    ///
    /// `out` is too short. The frame is spoilt then.
    pub fn message(&mut self, name: &[u8]) -> Result<(), BufferFull> {
        self.writer.string(name)?;
        self.args_at = Some((self.writer.used(), 0));
        self.writer.u8(0)
    }

    /// Adds an arg to the message begun last.
    ///
    /// # Errors
    ///
    /// `out` is too short (the frame is spoilt then), no message was begun, or it has 255 args.
    pub fn arg(&mut self, name: &[u8], value: Value<'_>) -> Result<(), BufferFull> {
        let (at, args) = self.args_at.ok_or(BufferFull)?;
        let args = args.checked_add(1).ok_or(BufferFull)?;
        self.writer.string(name)?;
        self.writer.value(value)?;
        self.writer.put(at, args);
        self.args_at = Some((at, args));
        Ok(())
    }

    /// Ends the frame. Returns the bytes it takes in the buffer.
    #[must_use]
    pub fn finish(self) -> usize {
        self.writer.finish()
    }
}

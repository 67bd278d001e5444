//! Writes the frames that HAProxy sends: for test clients and load generators.

use crate::disconnect;
use crate::error::MAX_MESSAGES;
use crate::status::Status;
use crate::value::Value;
use crate::wire::{self, FrameId, kind};
use crate::writer::{BufferFull, Writer};

pub use crate::hello::{HelloFields, encode_hello};

/// Writes a HAPROXY-DISCONNECT. Returns the length of the frame.
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

/// Writes one NOTIFY: a message, its args, the next message, and so on.
#[derive(Debug)]
pub struct NotifyWriter<'b> {
    writer: Writer<'b>,
    /// The place of the current message's number of args in the buffer, and that number so far.
    args_at: Option<(usize, u8)>,
    messages: usize,
}

impl<'b> NotifyWriter<'b> {
    /// Begins a NOTIFY without messages.
    ///
    /// # Errors
    ///
    /// `out` is too short.
    pub fn new(out: &'b mut [u8], id: FrameId) -> Result<Self, BufferFull> {
        Ok(Self { writer: wire::begin(out, kind::NOTIFY, id)?, args_at: None, messages: 0 })
    }

    /// Begins a message.
    ///
    /// # Errors
    ///
    /// `out` is too short (then the frame is unusable), or the NOTIFY already has
    /// [`MAX_MESSAGES`].
    pub fn message(&mut self, name: &[u8]) -> Result<(), BufferFull> {
        if self.messages == MAX_MESSAGES {
            return Err(BufferFull);
        }
        self.messages += 1;
        self.writer.string(name)?;
        self.args_at = Some((self.writer.used(), 0));
        self.writer.u8(0)
    }

    /// Adds an arg to the message that was begun last.
    ///
    /// # Errors
    ///
    /// `out` is too short (then the frame is unusable), no message was begun, or the message
    /// already has 255 args.
    pub fn arg(&mut self, name: &[u8], value: Value<'_>) -> Result<(), BufferFull> {
        let (at, args) = self.args_at.ok_or(BufferFull)?;
        let args = args.checked_add(1).ok_or(BufferFull)?;
        self.writer.string(name)?;
        self.writer.value(value)?;
        self.writer.put(at, args);
        self.args_at = Some((at, args));
        Ok(())
    }

    /// Ends the frame. Returns the bytes that it takes in the buffer.
    #[must_use]
    pub fn finish(self) -> usize {
        self.writer.finish()
    }
}

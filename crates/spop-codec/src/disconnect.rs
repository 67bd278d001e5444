//! DISCONNECT: the last frame that a side sends, with its reason.

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::status::Status;
use crate::value::Value;
use crate::wire::{self, FrameId, kind, pairs};
use crate::writer::BufferFull;

const STATUS_CODE: &str = "status-code";
const MESSAGE: &str = "message";

/// To HAProxy up to 3.0 a longer message is an error.
const MAX_MESSAGE: usize = 255;

/// A DISCONNECT of either side (SPOE.txt sections 3.2.8 and 3.2.9).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Disconnect<'a> {
    /// The reason. [`Status::UNKNOWN`] if the frame has none.
    pub status: Status,
    /// The reason in words.
    pub message: &'a [u8],
}

impl<'a> Disconnect<'a> {
    pub(crate) fn parse(payload: Reader<'a>) -> Result<Self, DecodeError> {
        let mut disconnect = Self { status: Status::UNKNOWN, message: b"" };
        pairs(payload, |key, value| {
            if key == STATUS_CODE.as_bytes() {
                let code = value.as_integer().ok_or(DecodeError::WrongType(STATUS_CODE))?;
                disconnect.status = u32::try_from(code).map_or(Status::UNKNOWN, Status::new);
            } else if key == MESSAGE.as_bytes() {
                let Value::String(message) = value else {
                    return Err(DecodeError::WrongType(MESSAGE));
                };
                disconnect.message = message;
            }
            Ok(())
        })?;
        Ok(disconnect)
    }
}

/// Writes an AGENT-DISCONNECT, after which an agent must send nothing. The message is cut to 255
/// bytes. Returns the length of the frame.
///
/// # Errors
///
/// `out` is shorter than the frame. 320 bytes are always enough.
pub fn encode_agent_disconnect(
    out: &mut [u8],
    status: Status,
    message: &str,
) -> Result<usize, BufferFull> {
    encode(out, kind::AGENT_DISCONNECT, status, message)
}

pub(crate) fn encode(
    out: &mut [u8],
    kind: u8,
    status: Status,
    message: &str,
) -> Result<usize, BufferFull> {
    let mut writer = wire::begin(out, kind, FrameId::default())?;
    writer.string(STATUS_CODE.as_bytes())?;
    writer.value(status.code().into())?;
    writer.string(MESSAGE.as_bytes())?;
    let message = message.get(..message.floor_char_boundary(MAX_MESSAGE)).unwrap_or_default();
    writer.value(message.into())?;
    Ok(writer.finish())
}

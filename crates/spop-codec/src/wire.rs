//! The parts that all frames share: types, flags, ids, and the list of keys and values in a HELLO
//! or a DISCONNECT.

use crate::error::DecodeError;
use crate::reader::Reader;
use crate::value::Value;
use crate::varint;
use crate::writer::{BufferFull, Writer};

/// The bytes of LENGTH, which does not count itself.
pub(crate) const LENGTH_BYTES: usize = 4;

/// The most bytes in front of a payload: LENGTH, the type, the flags and two ids.
pub(crate) const HEADER_MAX: usize = LENGTH_BYTES + 1 + 4 + 2 * varint::MAX_BYTES;

/// The smallest LENGTH: the type, the flags, and two ids of one byte each.
pub(crate) const MIN_FRAME_SIZE: u32 = 7;

/// The frame is the last or only one of its payload. No other flag is ever written.
pub(crate) const FIN: u32 = 1;

/// HAProxy has given up a payload that it sent in pieces.
pub(crate) const ABORT: u32 = 2;

/// Frame types (SPOE.txt section 3.2).
pub(crate) mod kind {
    pub(crate) const UNSET: u8 = 0;
    pub(crate) const HAPROXY_HELLO: u8 = 1;
    pub(crate) const HAPROXY_DISCONNECT: u8 = 2;
    pub(crate) const NOTIFY: u8 = 3;
    pub(crate) const AGENT_HELLO: u8 = 101;
    pub(crate) const AGENT_DISCONNECT: u8 = 102;
    pub(crate) const ACK: u8 = 103;
}

/// The two ids of a NOTIFY, which its ACK repeats. HAProxy chooses both; an agent only copies
/// them.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct FrameId {
    /// STREAM-ID. HAProxy up to 3.0 counts the streams of the process from 0; later versions
    /// count those of a connection: 1, 3, 5.
    pub stream: u64,
    /// FRAME-ID. HAProxy up to 3.0 counts the events of a stream: 1, 2, 3. Later versions always
    /// send 1.
    pub frame: u64,
}

/// Begins a frame: leaves four bytes for LENGTH, and writes the type, the flags and the ids.
#[inline]
pub(crate) fn begin<'b>(
    out: &'b mut [u8],
    kind: u8,
    id: FrameId,
) -> Result<Writer<'b>, BufferFull> {
    let mut writer = Writer::new(out);
    let [a, b, c, d] = FIN.to_be_bytes();
    if let (Some(stream), Some(frame)) = (varint::short(id.stream), varint::short(id.frame)) {
        writer.bytes(&[0, 0, 0, 0, kind, a, b, c, d, stream, frame])?;
    } else {
        writer.bytes(&[0, 0, 0, 0, kind, a, b, c, d])?;
        writer.varint(id.stream)?;
        writer.varint(id.frame)?;
    }
    Ok(writer)
}

/// Calls `each` for every key and value of a list (KV-LIST in SPOE.txt section 3.1). Keys may come
/// in any order, and `each` must ignore unknown ones. An empty key is an error, as it is to
/// HAProxy.
pub(crate) fn pairs<'a>(
    mut reader: Reader<'a>,
    mut each: impl FnMut(&'a [u8], Value<'a>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    while !reader.is_empty() {
        let key = reader.string()?;
        if key.is_empty() {
            return Err(DecodeError::EmptyKey);
        }
        each(key, reader.value()?)?;
    }
    Ok(())
}

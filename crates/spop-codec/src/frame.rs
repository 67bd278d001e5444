//! Frames: the one place that waits for bytes, and what the bytes are then.

use crate::ack::Ack;
use crate::disconnect::Disconnect;
use crate::error::DecodeError;
use crate::hello::{AgentHello, Hello};
use crate::notify::Notify;
use crate::reader::Reader;
use crate::varint;
use crate::writer::{BufferFull, Writer};

/// The smallest LENGTH: type, flags, and two ids of one byte.
const MIN_FRAME_SIZE: u32 = 7;

/// A frame is whole, not a part of a larger payload. The only flag ever written.
const FIN: u32 = 1;

/// A payload in pieces was given up.
const ABORT: u32 = 2;

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

/// Which NOTIFY an ACK answers. Both numbers are HAProxy's and mean nothing to an agent but "copy
/// me".
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct FrameId {
    /// STREAM-ID. HAProxy up to 3.0 counts the streams of the process from 0, later ones those of
    /// a connection: 1, 3, 5.
    pub stream: u64,
    /// FRAME-ID: 1, 2, 3 for the events of a stream up to 3.0, always 1 later.
    pub frame: u64,
}

/// A whole frame, known to be well formed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// HAProxy opens a connection.
    HaproxyHello(Hello<'a>),
    /// HAProxy ends a connection.
    HaproxyDisconnect(Disconnect<'a>),
    /// HAProxy asks.
    Notify(Notify<'a>),
    /// An agent's answer to the HELLO.
    AgentHello(AgentHello<'a>),
    /// An agent ends a connection.
    AgentDisconnect(Disconnect<'a>),
    /// An agent answers a NOTIFY.
    Ack(Ack<'a>),
    /// A piece of a payload that is too large for one frame: a NOTIFY without FIN, or a frame of
    /// type 0. Only HAProxy up to 3.0 sends them.
    Fragment(FrameId),
    /// A type that SPOP does not define, to be skipped.
    Unknown(u8),
}

/// Splits the first whole frame off `input`.
///
/// Returns the frame and the bytes it occupied, or `None` when `input` ends before the frame does:
/// read more and call again with the same bytes in front.
///
/// # Errors
///
/// The frame is larger than `max_frame_size` (LENGTH, without its own four bytes; told from these
/// four bytes alone) or not well formed. [`DecodeError::status`] is the code to put into the
/// DISCONNECT that must follow.
#[inline]
pub fn decode(
    input: &[u8],
    max_frame_size: u32,
) -> Result<Option<(Frame<'_>, usize)>, DecodeError> {
    match RawFrame::split(input, max_frame_size)? {
        None => Ok(None),
        Some((raw, used)) => Ok(Some((raw.decode()?, used))),
    }
}

/// The length field, if there are four bytes and it is in bounds.
#[inline]
fn frame_size(input: &[u8], max_frame_size: u32) -> Result<Option<usize>, DecodeError> {
    let Some(length) = input.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length);
    if length < MIN_FRAME_SIZE {
        return Err(DecodeError::TooShort(length));
    }
    if length > max_frame_size {
        return Err(DecodeError::TooBig { length, max_frame_size });
    }
    usize::try_from(length).map(Some).map_err(|_| DecodeError::TooBig { length, max_frame_size })
}

/// A whole frame of which only the type is known, so that its place in the conversation can be
/// judged first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawFrame<'a> {
    pub(crate) kind: u8,
    flags: u32,
    after_flags: Reader<'a>,
}

impl<'a> RawFrame<'a> {
    #[inline(always)]
    pub(crate) fn split(
        input: &'a [u8],
        max_frame_size: u32,
    ) -> Result<Option<(Self, usize)>, DecodeError> {
        let Some(size) = frame_size(input, max_frame_size)? else {
            return Ok(None);
        };
        let Some(frame) = input.get(4..).and_then(|frame| frame.get(..size)) else {
            return Ok(None);
        };
        let mut reader = Reader::new(frame);
        let kind = reader.u8()?;
        let flags = u32::from_be_bytes(reader.array()?);
        Ok(Some((Self { kind, flags, after_flags: reader }, 4 + size)))
    }

    #[inline]
    pub(crate) fn decode(self) -> Result<Frame<'a>, DecodeError> {
        match self.kind {
            kind::NOTIFY if self.is_whole() => self.notify().map(Frame::Notify),
            kind::NOTIFY | kind::UNSET => self.ids().map(|(id, _)| Frame::Fragment(id)),
            kind::HAPROXY_HELLO => self.haproxy_hello().map(Frame::HaproxyHello),
            kind::HAPROXY_DISCONNECT => {
                Disconnect::parse(self.control()?).map(Frame::HaproxyDisconnect)
            }
            kind::AGENT_HELLO => AgentHello::parse(self.control()?).map(Frame::AgentHello),
            kind::AGENT_DISCONNECT => {
                Disconnect::parse(self.control()?).map(Frame::AgentDisconnect)
            }
            kind::ACK => {
                let (id, payload) = self.ids()?;
                if !self.is_whole() {
                    return Err(DecodeError::Fragmented);
                }
                Ack::parse(id, payload).map(Frame::Ack)
            }
            unknown => Ok(Frame::Unknown(unknown)),
        }
    }

    #[inline]
    pub(crate) const fn is_whole(self) -> bool {
        self.flags & FIN != 0
    }

    pub(crate) const fn is_aborted(self) -> bool {
        self.flags & ABORT != 0
    }

    /// The ids and the bytes of a piece of a payload.
    pub(crate) fn fragment(self) -> Result<(FrameId, &'a [u8]), DecodeError> {
        self.ids().map(|(id, payload)| (id, payload.rest()))
    }

    #[inline(always)]
    pub(crate) fn notify(self) -> Result<Notify<'a>, DecodeError> {
        let (id, payload) = self.ids()?;
        Notify::parse(id, payload)
    }

    pub(crate) fn haproxy_hello(self) -> Result<Hello<'a>, DecodeError> {
        Hello::parse(self.control()?)
    }

    pub(crate) fn haproxy_disconnect(self) -> Result<Disconnect<'a>, DecodeError> {
        Disconnect::parse(self.control()?)
    }

    #[inline(always)]
    fn ids(self) -> Result<(FrameId, Reader<'a>), DecodeError> {
        let mut reader = self.after_flags;
        let id = FrameId { stream: reader.varint()?, frame: reader.varint()? };
        Ok((id, reader))
    }

    /// The payload of a HELLO or a DISCONNECT, which concern the connection: no ids, one frame.
    fn control(self) -> Result<Reader<'a>, DecodeError> {
        if !self.is_whole() {
            return Err(DecodeError::Fragmented);
        }
        match self.ids()? {
            (FrameId { stream: 0, frame: 0 }, payload) => Ok(payload),
            _ => Err(DecodeError::IdsNotZero),
        }
    }
}

/// Begins a frame: room for LENGTH, the type, the flags, the ids.
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

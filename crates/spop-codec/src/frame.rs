//! Frames: [`decode`] splits the first whole frame off some bytes, and parses it.

// ADR 1: A frame is whole or it is nothing.

use crate::ack::Ack;
use crate::disconnect::Disconnect;
use crate::error::DecodeError;
use crate::hello::{AgentHello, Hello};
use crate::notify::Notify;
use crate::reader::Reader;
use crate::wire::{ABORT, FIN, FrameId, LENGTH_BYTES, MIN_FRAME_SIZE, kind};

/// A whole frame that was checked to its end.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// HAProxy begins a connection.
    HaproxyHello(Hello<'a>),
    /// HAProxy ends a connection.
    HaproxyDisconnect(Disconnect<'a>),
    /// HAProxy asks a question.
    Notify(Notify<'a>),
    /// An agent answers HAProxy's HELLO.
    AgentHello(AgentHello<'a>),
    /// An agent ends a connection.
    AgentDisconnect(Disconnect<'a>),
    /// An agent answers a NOTIFY.
    Ack(Ack<'a>),
    /// A piece of a payload that is too large for one frame: a NOTIFY without the FIN flag, or a
    /// frame of type 0. Only HAProxy up to 3.0 sends pieces.
    Fragment(FrameId),
    /// A frame of a type that SPOP does not define. Skip it.
    Unknown(u8),
}

/// Splits the first whole frame off `input`.
///
/// Returns the frame and the number of bytes that it takes in `input`, or `None` if `input` ends
/// before the frame does: read more, and call again with the same bytes in front.
///
/// # Errors
///
/// LENGTH is above `max_frame_size`, or the frame is malformed. LENGTH does not count its own four
/// bytes, and these bytes suffice for the first error. [`DecodeError::status`] is the status of
/// the DISCONNECT that must follow.
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

/// LENGTH, if its four bytes have come and it is within its bounds.
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

/// A whole frame, of which only the type and the flags were read. So a connection can first decide
/// whether such a frame may come now.
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
        let Some(frame) = input.get(LENGTH_BYTES..).and_then(|frame| frame.get(..size)) else {
            return Ok(None);
        };
        let mut reader = Reader::new(frame);
        let kind = reader.u8()?;
        let flags = u32::from_be_bytes(reader.array()?);
        Ok(Some((Self { kind, flags, after_flags: reader }, LENGTH_BYTES + size)))
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

    /// The ids of a piece of a payload, and its bytes.
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
        let id = FrameId { stream: reader.id()?, frame: reader.id()? };
        Ok((id, reader))
    }

    /// The payload of a HELLO or a DISCONNECT: one frame, whose ids are 0 because it belongs to
    /// the connection and not to a stream.
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

//! The shape of a NOTIFY. HAProxy sends many NOTIFYs that differ only in their ids and in one
//! value, and their other bytes need not be read again and again.
//!
//! A shape is what the decoder has found in one NOTIFY. It is compared whole, so a NOTIFY of the
//! same shape is one for which the decoder would find the same. Unusual bytes are left to the
//! decoder: a number of more than eight bytes, a string of 240 bytes or more, and the last bytes
//! of the input.

// ADR 49: Usual requests are answered by their shapes.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::ack::{AckWriter, Actions};
use crate::reader::Reader;
use crate::value::kind;
use crate::varint;
use crate::wire::{self, FIN, LENGTH_BYTES};

/// The bytes in front of the ids of a NOTIFY: LENGTH, the type, and the flags.
const BEFORE_IDS: usize = LENGTH_BYTES + 1 + 4;

/// The type and the flags of a NOTIFY that is whole.
const NOTIFY: [u8; 5] = [wire::kind::NOTIFY, 0, 0, 0, FIN.to_le_bytes()[0]];

/// Those of an ACK.
const ACK: [u8; 5] = [wire::kind::ACK, 0, 0, 0, FIN.to_le_bytes()[0]];

/// The shape of a [`Notify`](crate::Notify) that has one message, with one arg, whose value is an
/// address or a string: all of its bytes but LENGTH, the ids and the value.
///
/// [`Notify::shape`](crate::Notify::shape) finds it, and
/// [`Connection::receive_shaped`](crate::Connection::receive_shaped) uses it. `B` are its bytes: a
/// slice, or what an agent keeps them in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape<B> {
    /// From the name of the message to the type of the value.
    bytes: B,
    value: ValueKind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ValueKind {
    Ipv4,
    Ipv6,
    String,
}

impl<B: AsRef<[u8]>> Shape<B> {
    /// The shape with these [`bytes`](Self::bytes); `None` if they are not those of a shape.
    #[must_use]
    pub fn new(bytes: B) -> Option<Self> {
        let mut reader = Reader::new(bytes.as_ref());
        let _message = reader.string().ok()?;
        let (1, _arg) = (reader.u8().ok()?, reader.string().ok()?) else { return None };
        let [byte] = reader.rest() else { return None };
        let value = match byte & kind::MASK {
            kind::IPV4 => ValueKind::Ipv4,
            kind::IPV6 => ValueKind::Ipv6,
            kind::STRING => ValueKind::String,
            _ => return None,
        };
        Some(Self { bytes, value })
    }

    /// The bytes of the shape, which an agent can keep.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// Reads a NOTIFY of this shape at the beginning of `input`. Returns its ids, what `ipv4`,
    /// `ipv6` or `string` makes of its value, and its length; `None` if there is none, or if it is
    /// not a usual one.
    #[inline(always)]
    pub(crate) fn read<'a, R>(
        &self,
        input: &'a [u8],
        max_frame_size: u32,
        ipv4: impl FnOnce(Ipv4Addr) -> R,
        ipv6: impl FnOnce(Ipv6Addr) -> R,
        string: impl FnOnce(&'a [u8]) -> R,
    ) -> Option<(RawIds, R, usize)> {
        let (head, _) = input.split_first_chunk::<BEFORE_IDS>()?;
        let (length, head) = head.split_first_chunk()?;
        let length = u32::from_be_bytes(*length);
        if *head != NOTIFY || length > max_frame_size {
            return None;
        }
        let frame = input.get(..LENGTH_BYTES + length as usize)?;
        match self.value {
            ValueKind::Ipv4 => {
                let (before, ip) = frame.split_last_chunk::<4>()?;
                let ids = self.ids_before(before.get(BEFORE_IDS..)?)?;
                Some((ids, ipv4((*ip).into()), frame.len()))
            }
            ValueKind::Ipv6 => {
                let (before, ip) = frame.split_last_chunk::<16>()?;
                let ids = self.ids_before(before.get(BEFORE_IDS..)?)?;
                Some((ids, ipv6((*ip).into()), frame.len()))
            }
            ValueKind::String => {
                let ids_at = frame.get(BEFORE_IDS..)?;
                // The ids end where the shape begins, of which nothing but the ids says where.
                let word = u64::from_le_bytes(*ids_at.first_chunk()?);
                let end = usize::from(varint::length_in_word(word)?) + 1;
                let end = end + self.bytes.as_ref().len();
                let (before, text) = ids_at.split_at_checked(end)?;
                let ids = self.ids_before(before)?;
                let (&length, text) = text.split_first()?;
                if !varint::is_whole(length) || usize::from(length) != text.len() {
                    return None;
                }
                Some((ids, string(text), frame.len()))
            }
        }
    }

    /// The ids, if these bytes are ids and then those of the shape.
    #[inline(always)]
    fn ids_before(&self, bytes: &[u8]) -> Option<RawIds> {
        let shape = self.bytes.as_ref();
        let ids = bytes.len().checked_sub(shape.len())?;
        if !is_same(bytes.get(ids..)?, shape) {
            return None;
        }
        RawIds::new(*bytes.first_chunk()?, ids)
    }
}

/// Whether two slices of the same length are equal. Short ones are compared by their first and
/// last words, which may overlap: a call is not worth it for them.
#[inline(always)]
fn is_same(left: &[u8], right: &[u8]) -> bool {
    let words = |bytes: &[u8]| Some((*bytes.first_chunk::<8>()?, *bytes.last_chunk::<8>()?));
    match (words(left), words(right)) {
        (Some(first_last), Some(others)) => {
            first_last == others && (left.len() <= 16 || left == right)
        }
        _ => left == right,
    }
}

/// The two ids of a NOTIFY as it has them, for its ACK. A number has one encoding only, so these
/// are the bytes that [`AckWriter`] writes for the numbers.
#[derive(Clone, Copy, Debug)]
pub struct RawIds {
    /// Both ids, and what stands behind them.
    bytes: [u8; MOST_ID_BYTES],
    /// The number of their bytes less 1.
    last: u8,
}

/// The most bytes that both ids take together here.
const MOST_ID_BYTES: usize = 8;

/// For each number of bytes that two ids take: which bits of these bytes say where an id ends, and
/// what they are if the second id is the last byte. For numbers that two ids never take, nothing
/// is right. Of two bytes, these bits do not say whether the first id is whole.
const ID_ENDS: [(u64, u64); MOST_ID_BYTES + 1] = {
    let mut ends = [(0, 1); MOST_ID_BYTES + 1];
    let mut length = 2;
    while length <= MOST_ID_BYTES {
        // Behind the first byte, those that have their highest bit go on, and the others end.
        let (mut goes_on, mut byte) = (0_u64, 1);
        while byte + 2 < length {
            goes_on |= 0x80 << (8 * byte);
            byte += 1;
        }
        let (first, first_ends) =
            if length > 2 { (0xf0, 0x80 << (8 * (length - 2))) } else { (0, 0) };
        let last = 0x80 << (8 * (length - 1));
        ends[length] = (first | goes_on | first_ends | last, first | goes_on);
        length += 1;
    }
    ends
};

impl RawIds {
    /// The ids in the first `length` bytes, which must be two, and the second of them a byte below
    /// 128. (HAProxy up to 3.0 counts the events of a stream in it, and later versions send 1.)
    #[inline(always)]
    fn new(bytes: [u8; MOST_ID_BYTES], length: usize) -> Option<Self> {
        let (mask, expected) = *ID_ENDS.get(length)?;
        if u64::from_le_bytes(bytes) & mask != expected {
            return None;
        }
        if length == 2 && !varint::is_whole(bytes[0]) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 8")]
        let last = (length - 1) as u8;
        Some(Self { bytes, last })
    }

    /// At most [`MOST_ID_BYTES`].
    #[inline(always)]
    fn length(self) -> usize {
        usize::from(self.last) % MOST_ID_BYTES + 1
    }

    /// Begins an ACK with these ids whose LENGTH is at most `limit`; `None` if `out` is too short,
    /// or `limit`.
    #[inline]
    #[must_use]
    pub fn begin_ack(self, out: &mut [u8], limit: u32) -> Option<AckWriter<'_>> {
        const IDS_END: usize = BEFORE_IDS + MOST_ID_BYTES;
        let window = out.first_chunk_mut::<IDS_END>()?;
        window[LENGTH_BYTES..BEFORE_IDS].copy_from_slice(&ACK);
        window[BEFORE_IDS..].copy_from_slice(&self.bytes);
        AckWriter::behind(out, BEFORE_IDS + self.length(), limit)
    }

    /// Writes an ACK with these ids and these actions. Returns its length; `None` if `out` is
    /// shorter than [`ack_space`].
    #[inline(always)]
    pub fn write_ack(self, out: &mut [u8], actions: &Actions) -> Option<usize> {
        const IDS_END: usize = BEFORE_IDS + MOST_ID_BYTES;
        let actions_at = BEFORE_IDS + self.length();
        let used = actions_at + actions.length();
        // All places are within this window, which is the only one to check.
        let window = out.first_chunk_mut::<SHORT_ACK>()?;
        #[expect(clippy::cast_possible_truncation, reason = "actions have at most 256 bytes")]
        let length = (used - LENGTH_BYTES) as u32;
        window[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        window[LENGTH_BYTES..BEFORE_IDS].copy_from_slice(&ACK);
        // All of it: the actions overwrite what is not an id.
        window[BEFORE_IDS..IDS_END].copy_from_slice(&self.bytes);
        window[actions_at..actions_at + Actions::SHORT].copy_from_slice(actions.short());
        if let Some(long) = actions.long() {
            out.get_mut(actions_at..used)?.copy_from_slice(long);
        }
        Some(used)
    }
}

/// The space that an ACK takes whose actions are [short](Actions::SHORT), with the bytes that are
/// copied beside them.
const SHORT_ACK: usize = BEFORE_IDS + MOST_ID_BYTES + Actions::SHORT;

/// The space that [`RawIds::write_ack`] needs for an ACK with these actions.
#[must_use]
pub fn ack_space(actions: &Actions) -> usize {
    SHORT_ACK + actions.length().saturating_sub(Actions::SHORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::haproxy::NotifyWriter;
    use crate::{AckWriter, FrameId, Scope, Value, VarName};

    /// Ids around each length of an encoding.
    fn ids() -> impl Iterator<Item = u64> {
        let near =
            |power: u32| [-241_i128, -240, -1, 0, 1, 239, 240, 2288].map(|add| (1 << power) + add);
        (0..64).flat_map(near).filter_map(|id| u64::try_from(id).ok())
    }

    #[test]
    fn ids_are_those_that_the_decoder_finds_or_none() {
        for stream in ids() {
            for frame in ids() {
                let mut out = [0; 64];
                let mut notify = NotifyWriter::new(&mut out, FrameId { stream, frame }).unwrap();
                notify.message(b"m").unwrap();
                notify.arg(b"ip", Value::Ipv4([192, 0, 2, 1].into())).unwrap();
                let length = notify.finish();
                let mut whole = [0; 64];
                whole[..length].copy_from_slice(&out[..length]);
                let shape = Shape::new(&b"\x01m\x01\x02ip\x06"[..]).unwrap();
                let bytes = &whole[..length];
                let read = shape.read(bytes, 16_380, Value::Ipv4, Value::Ipv6, Value::String);
                let (stream_bytes, frame_bytes) = (varint::length(stream), varint::length(frame));
                let is_usual = stream_bytes < MOST_ID_BYTES && frame < 128;
                assert_eq!(read.is_some(), is_usual, "{stream} {frame}");
                let Some((ids, value, used)) = read else { continue };
                assert_eq!((value, used), (Value::Ipv4([192, 0, 2, 1].into()), length));
                assert_eq!(ids.length(), stream_bytes + frame_bytes);
                let mut actions = Actions::new();
                let blocked = VarName::from_static("blocked");
                actions.set_var(Scope::Transaction, blocked, true.into()).unwrap();
                let mut raw = [0xaa; SHORT_ACK];
                let raw_length = ids.write_ack(&mut raw, &actions).unwrap();
                let mut written = [0; 64];
                let mut ack =
                    AckWriter::new(&mut written, FrameId { stream, frame }, 815).unwrap();
                ack.append(&actions).unwrap();
                let written_length = ack.finish();
                assert_eq!(raw[..raw_length], written[..written_length], "{stream} {frame}");
                let mut begun = [0xaa; SHORT_ACK];
                let mut ack = ids.begin_ack(&mut begun, 815).unwrap();
                ack.append(&actions).unwrap();
                let begun_length = ack.finish();
                assert_eq!(begun[..begun_length], written[..written_length], "{stream} {frame}");
            }
        }
    }
}

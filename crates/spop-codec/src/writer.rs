//! A cursor over the caller's buffer.

use crate::value::{Value, kind};
use crate::varint;

/// The bytes to write do not fit into the buffer, or into the largest frame allowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BufferFull;

impl core::fmt::Display for BufferFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("it does not fit into the frame")
    }
}

impl core::error::Error for BufferFull {}

/// A buffer of which the first `used` bytes are written.
#[derive(Debug)]
pub(crate) struct Writer<'b> {
    out: &'b mut [u8],
    used: usize,
}

impl<'b> Writer<'b> {
    #[inline]
    pub(crate) const fn new(out: &'b mut [u8]) -> Self {
        Self { out, used: 0 }
    }

    pub(crate) fn into_written(self) -> &'b [u8] {
        self.out.get(..self.used).unwrap_or_default()
    }

    #[inline]
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    /// Drops what was written after the first `used` bytes.
    #[inline]
    pub(crate) fn rewind(&mut self, used: usize) {
        self.used = self.used.min(used);
    }

    /// Skips to the end of the first `used` bytes, which were written earlier.
    pub(crate) fn advance(&mut self, used: usize) {
        self.used = self.used.max(used.min(self.out.len()));
    }

    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), BufferFull> {
        let space = self.out.get_mut(self.used..).and_then(|space| space.get_mut(..bytes.len()));
        space.ok_or(BufferFull)?.copy_from_slice(bytes);
        self.used += bytes.len();
        Ok(())
    }

    /// Writes the first `length` bytes of `bytes`.
    ///
    /// A copy of fixed length is one or two stores, and a copy of any other length is a call. So
    /// where there is space this copies all of `bytes`, and what is written next overwrites the
    /// bytes that were too many.
    #[inline]
    pub(crate) fn prefix<const N: usize>(
        &mut self,
        bytes: &[u8; N],
        length: usize,
    ) -> Result<(), BufferFull> {
        let space = self.out.get_mut(self.used..).and_then(|space| space.first_chunk_mut());
        match space {
            Some(space) if length <= N => {
                *space = *bytes;
                self.used += length;
                Ok(())
            }
            _ => self.any_bytes(bytes.get(..length).ok_or(BufferFull)?),
        }
    }

    /// As [`prefix`](Self::prefix), and behind it the first `end_length` bytes of `end`. Returns
    /// false, and writes nothing, if there is less space than for `N` bytes.
    #[inline]
    pub(crate) fn prefix_and<const N: usize>(
        &mut self,
        bytes: &[u8; N],
        length: usize,
        end: [u8; 2],
        end_length: usize,
    ) -> bool {
        let space = self.out.get_mut(self.used..).and_then(|space| space.first_chunk_mut::<N>());
        let Some(space) = space.filter(|_| length + 2 <= N) else { return false };
        *space = *bytes;
        [space[length], space[length + 1]] = end;
        self.used += length + end_length;
        true
    }

    /// As [`bytes`](Self::bytes), but never inlined: the compiler would merge this copy and those
    /// of fixed length into one call.
    #[cold]
    #[inline(never)]
    pub(crate) fn any_bytes(&mut self, bytes: &[u8]) -> Result<(), BufferFull> {
        self.bytes(bytes)
    }

    /// As [`bytes`](Self::bytes), for a piece of any length. One of 8 to 16 bytes is copied without
    /// a call: as its first and its last word, which may overlap.
    #[inline]
    pub(crate) fn piece(&mut self, piece: &[u8]) -> Result<(), BufferFull> {
        let ends = piece.first_chunk::<8>().zip(piece.last_chunk::<8>());
        let space = self.out.get_mut(self.used..).and_then(|space| space.get_mut(..piece.len()));
        if let (Some((first, last)), Some(space), ..=16) = (ends, space, piece.len())
            && let Some(begin) = space.first_chunk_mut()
        {
            *begin = *first;
            if let Some(end) = space.last_chunk_mut() {
                *end = *last;
            }
            self.used += piece.len();
            return Ok(());
        }
        self.any_bytes(piece)
    }

    /// Writes these bytes, at most seven, and behind them a number in decimal digits.
    #[inline(always)]
    pub(crate) fn with_decimal<const N: usize>(
        &mut self,
        before: [u8; N],
        number: u64,
    ) -> Result<(), BufferFull> {
        const { assert!(N < 8) }
        let mut word = [0; 8];
        word[..N].copy_from_slice(&before);
        if number < 10 {
            let digit = (u64::from(b'0') | number) << (8 * N);
            let word = u64::from_le_bytes(word) | digit;
            return self.prefix(&word.to_le_bytes(), N + 1);
        }
        self.with_decimals(word, N, number)
    }

    /// The same, behind the first `length` bytes of `before`.
    #[inline(never)]
    fn with_decimals(
        &mut self,
        before: [u8; 8],
        length: usize,
        number: u64,
    ) -> Result<(), BufferFull> {
        self.prefix(&before, length)?;
        match u32::try_from(number) {
            Ok(number @ ..EIGHT_DIGITS) => {
                let digits = digits(number);
                // As if the last digit were none: of 0 it is left.
                let zeros = (digits | 1 << 56).trailing_zeros() / 8;
                let word = (digits | ZEROS) >> (8 * zeros);
                self.prefix(&word.to_le_bytes(), 8 - zeros as usize)
            }
            _ => {
                let most = u64::from(EIGHT_DIGITS);
                self.with_decimal([], number / most)?;
                #[expect(clippy::cast_possible_truncation, reason = "of eight digits")]
                let low = digits((number % most) as u32) | ZEROS;
                self.bytes(&low.to_le_bytes())
            }
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, byte: u8) -> Result<(), BufferFull> {
        self.bytes(&[byte])
    }

    #[inline]
    pub(crate) fn varint(&mut self, value: u64) -> Result<(), BufferFull> {
        match varint::encode_in_word(value) {
            Some((bytes, 1)) => self.u8(bytes[0]),
            Some((bytes, length)) => self.prefix(&bytes, length),
            None => {
                let (bytes, length) = varint::encode(value);
                self.any_bytes(bytes.get(..length).ok_or(BufferFull)?)
            }
        }
    }

    #[inline]
    pub(crate) fn string(&mut self, string: &[u8]) -> Result<(), BufferFull> {
        self.varint(string.len() as u64)?;
        self.bytes(string)
    }

    /// Writes the value that is the string that `write` writes, with its type and its length.
    #[inline]
    pub(crate) fn string_of(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), BufferFull>,
    ) -> Result<(), BufferFull> {
        self.bytes(&[kind::STRING, 0])?;
        let begin = self.used;
        write(self)?;
        let length = self.used - begin;
        match varint::short(length as u64) {
            Some(byte) => {
                self.put(begin - 1, byte);
                Ok(())
            }
            None => self.lengthen(begin, length),
        }
    }

    /// Makes room for the length of a string that takes more than the byte in front of it.
    #[cold]
    fn lengthen(&mut self, begin: usize, length: usize) -> Result<(), BufferFull> {
        let (encoded, bytes) = varint::encode(length as u64);
        let end = self.used + bytes - 1;
        if end > self.out.len() {
            return Err(BufferFull);
        }
        self.out.copy_within(begin..self.used, begin + bytes - 1);
        self.rewind(begin - 1);
        self.any_bytes(encoded.get(..bytes).ok_or(BufferFull)?)?;
        self.used = end;
        Ok(())
    }

    /// Writes a value with its type in front (TYPED-DATA in SPOE.txt section 3.1). The only flag
    /// is the value of a boolean.
    #[inline(always)]
    pub(crate) fn value(&mut self, value: Value<'_>) -> Result<(), BufferFull> {
        match value {
            Value::Null => self.u8(kind::NULL),
            Value::Bool(false) => self.u8(kind::BOOL),
            Value::Bool(true) => self.u8(kind::BOOL | kind::TRUE),
            // HAProxy reads every integer as 64 bits, so a negative one is extended to 64.
            Value::Int32(integer) => self.integer(kind::INT32, i64::from(integer).cast_unsigned()),
            Value::Uint32(integer) => self.integer(kind::UINT32, integer.into()),
            Value::Int64(integer) => self.integer(kind::INT64, integer.cast_unsigned()),
            Value::Uint64(integer) => self.integer(kind::UINT64, integer),
            Value::Ipv4(ip) => self.u8(kind::IPV4).and_then(|()| self.bytes(&ip.octets())),
            Value::Ipv6(ip) => self.u8(kind::IPV6).and_then(|()| self.bytes(&ip.octets())),
            Value::String(bytes) => self.u8(kind::STRING).and_then(|()| self.string(bytes)),
            Value::Binary(bytes) => self.u8(kind::BINARY).and_then(|()| self.string(bytes)),
        }
    }

    #[inline]
    fn integer(&mut self, kind: u8, value: u64) -> Result<(), BufferFull> {
        if let Some(byte) = varint::short(value) {
            return self.bytes(&[kind, byte]);
        }
        self.u8(kind)?;
        self.varint(value)
    }

    /// Replaces a byte that was written earlier.
    pub(crate) fn put(&mut self, at: usize, byte: u8) {
        if let Some(written) = self.out.get_mut(at) {
            *written = byte;
        }
    }

    /// Puts LENGTH into the first four bytes, which `begin` left for it. Returns the bytes that
    /// the frame takes in the buffer.
    #[inline]
    pub(crate) fn finish(self) -> usize {
        let length = self.used.saturating_sub(4);
        // A limit is a u32, so no frame is longer; the peer would refuse one that was.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if let Some(field) = self.out.first_chunk_mut() {
            *field = length.to_be_bytes();
        }
        self.used
    }
}

/// The encoding of a value that takes at most two bytes, and how many it takes: of booleans and
/// small numbers. `None` for others.
#[inline(always)]
pub(crate) fn value_in_two(value: Value<'_>) -> Option<([u8; 2], usize)> {
    let integer = |kind, value| Some(([kind, varint::short(value)?], 2));
    match value {
        Value::Bool(value) => Some(([kind::BOOL | (u8::from(value) * kind::TRUE), 0], 1)),
        Value::Uint32(value) => integer(kind::UINT32, value.into()),
        Value::Uint64(value) => integer(kind::UINT64, value),
        _ => None,
    }
}

/// The numbers below this have at most eight digits.
const EIGHT_DIGITS: u32 = 100_000_000;

/// Eight times the digit 0.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The eight decimal digits of a number, each the value of a byte, the highest digit in the lowest
/// byte. All are worked out together: first four digits each, then two, then one.
#[inline]
fn digits(number: u32) -> u64 {
    let (high, low) = (u64::from(number / 10_000), u64::from(number % 10_000));
    let fours = low << 32 | high;
    // A hundredth, exact below 43 699.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | (fours - hundreds * 100) << 16;
    // A tenth, exact below 179.
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (twos - tens * 10) << 8
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn numbers_are_written_as_the_language_writes_them() {
        let powers = (0..=19).map(|power| 10_u64.pow(power));
        let near = |of: u64| [of - 1, of, of + 1, of / 3 * 2, of.saturating_mul(9)];
        for number in powers.flat_map(near).chain(0..20_000).chain([u64::MAX]) {
            let expected = std::format!(";t={number}");
            for space in expected.len()..expected.len() + 10 {
                let mut out = [0xaa; 40];
                let mut writer = Writer::new(&mut out[..space]);
                writer.with_decimal(*b";t=", number).unwrap();
                assert_eq!(writer.into_written(), expected.as_bytes());
            }
            let mut out = [0; 40];
            let mut writer = Writer::new(&mut out[..expected.len() - 1]);
            assert_eq!(writer.with_decimal(*b";t=", number), Err(BufferFull));
        }
    }

    #[test]
    fn pieces_of_any_length_are_copied_whole() {
        let bytes: Vec<u8> = (1..=40).collect();
        for length in 0..bytes.len() {
            let mut out = [0; 48];
            let mut writer = Writer::new(&mut out);
            writer.piece(&bytes[..length]).unwrap();
            assert_eq!(writer.used(), length);
            assert_eq!(out[..length], bytes[..length]);
            assert!(out[length..].iter().all(|byte| *byte == 0), "{length}");
            assert_eq!(
                Writer::new(&mut out[..length]).piece(&bytes[..length + 1]),
                Err(BufferFull)
            );
        }
    }
}

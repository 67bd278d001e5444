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

    /// As [`bytes`](Self::bytes), but never inlined: the compiler would merge this copy and those
    /// of fixed length into one call.
    #[cold]
    #[inline(never)]
    pub(crate) fn any_bytes(&mut self, bytes: &[u8]) -> Result<(), BufferFull> {
        self.bytes(bytes)
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

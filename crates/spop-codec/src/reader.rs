//! A cursor over the bytes of one whole frame: if they run out, the frame is malformed.

// ADR 1: A frame is whole or it is nothing.

use crate::error::DecodeError;
use crate::varint;

/// The bytes that are left to read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All bytes that are left.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next byte; `None` if there is none, which callers report as `Truncated`. Not a
    /// `Result`, because the compiler packs a `Result` of a byte into a word in pieces, and reads
    /// it back whole: store-to-load forwarding fails.
    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.byte().ok_or(DecodeError::Truncated)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        match self.byte() {
            None => Err(DecodeError::Truncated),
            Some(first) if varint::is_whole(first) => Ok(first.into()),
            Some(first) => self.long_varint(first),
        }
    }

    /// Reads an id, which is a varint that is seldom a small one: as [`varint`](Self::varint), but
    /// with one load for up to eight bytes, where the frame has so many left.
    #[inline]
    pub(crate) fn id(&mut self) -> Result<u64, DecodeError> {
        if let Some(bytes) = self.rest.first_chunk()
            && !varint::is_whole(bytes[0])
            && let Some((value, length)) = varint::decode_in_word(u64::from_le_bytes(*bytes))
            && let Some(rest) = self.rest.get(length..)
        {
            self.rest = rest;
            return Ok(value);
        }
        self.varint()
    }

    /// Reads the rest of a varint that has more bytes than its `first`.
    fn long_varint(&mut self, first: u8) -> Result<u64, DecodeError> {
        let mut value = u64::from(first);
        // Nine continuation bytes reach the last bit of a u64; `shift` cannot pass it.
        for shift in (4..64).step_by(7) {
            let byte = u64::from(self.u8()?);
            value = byte
                .checked_mul(1 << shift)
                .and_then(|piece| value.checked_add(piece))
                .ok_or(DecodeError::VarintOverflow)?;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(DecodeError::VarintOverflow)
    }

    /// Reads a length, which is a varint, and as many bytes (STRING in SPOE.txt section 3.1).
    #[inline]
    pub(crate) fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }
}

//! The integers of SPOP: small ones take one byte, the largest ten.
//!
//! The code is a bijection: each length covers a range of its own, so no number can be written in
//! two ways. (HAProxy's "peers" encoding, SPOE.txt section 3.1.)

use crate::error::DecodeError;
use crate::reader::Reader;

/// The longest encoding: `u64::MAX`, and every negative integer.
pub(crate) const MAX_BYTES: usize = 10;

/// The first value that takes a second byte.
const TWO_BYTES: u64 = 240;

/// Whether a varint with this first byte is that byte.
#[inline]
fn is_whole(first: u8) -> bool {
    u64::from(first) < TWO_BYTES
}

/// The varint of a value that takes one byte.
#[inline]
pub(crate) fn short(value: u64) -> Option<u8> {
    u8::try_from(value).ok().filter(|byte| is_whole(*byte))
}

impl Reader<'_> {
    /// Reads one varint.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        match self.byte() {
            None => Err(DecodeError::Truncated),
            Some(first) if is_whole(first) => Ok(first.into()),
            Some(first) => self.long_varint(first),
        }
    }

    /// Reads on, after a `first` byte that is not all.
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
}

/// The bytes of a varint that is not [`short`].
#[inline]
pub(crate) fn encode(value: u64) -> ([u8; MAX_BYTES], usize) {
    let mut bytes = [0; MAX_BYTES];
    bytes[0] = low_byte(value | 0xf0);
    let mut value = value.saturating_sub(TWO_BYTES) >> 4;
    let mut length = 1;
    // Ends: nine shifts by seven bits leave nothing of 64, so `length` stays below the array's.
    while value >= 128 {
        bytes[length] = low_byte(value | 0x80);
        value = (value - 128) >> 7;
        length += 1;
    }
    bytes[length] = low_byte(value);
    (bytes, length + 1)
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest byte is wanted")]
const fn low_byte(value: u64) -> u8 {
    value as u8
}

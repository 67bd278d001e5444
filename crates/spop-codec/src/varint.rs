//! The integers of SPOP: small ones take one byte, the largest take ten.
//!
//! Each length covers a range of its own, so a number has exactly one encoding. (SPOE.txt section
//! 3.1 refers to HAProxy's "peers" protocol for it.)

/// The longest encoding: `u64::MAX`, and every negative integer.
pub(crate) const MAX_BYTES: usize = 10;

/// The first value that takes a second byte.
const TWO_BYTES: u64 = 240;

/// Whether a varint with this first byte has no other byte.
#[inline]
pub(crate) fn is_whole(first: u8) -> bool {
    u64::from(first) < TWO_BYTES
}

/// The encoding of a value that takes one byte; `None` for larger values.
#[inline]
pub(crate) fn short(value: u64) -> Option<u8> {
    u8::try_from(value).ok().filter(|byte| is_whole(*byte))
}

/// The encoding of a value that takes more than one byte.
#[inline]
pub(crate) fn encode(value: u64) -> ([u8; MAX_BYTES], usize) {
    let mut bytes = [0; MAX_BYTES];
    bytes[0] = low_byte(value | 0xf0);
    let mut value = value.saturating_sub(TWO_BYTES) >> 4;
    let mut length = 1;
    // Nine shifts by seven bits leave nothing of 64, so `length` stays below the array's.
    while value >= 128 {
        bytes[length] = low_byte(value | 0x80);
        value = (value - 128) >> 7;
        length += 1;
    }
    bytes[length] = low_byte(value);
    (bytes, length + 1)
}

/// How many bytes the encoding of a value takes.
pub(crate) const fn length(value: u64) -> usize {
    if value < TWO_BYTES {
        return 1;
    }
    let mut value = (value - TWO_BYTES) >> 4;
    let mut length = 2;
    // As in `encode`.
    while value >= 128 {
        value = (value - 128) >> 7;
        length += 1;
    }
    length
}

#[expect(clippy::cast_possible_truncation, reason = "the lowest byte is wanted")]
const fn low_byte(value: u64) -> u8 {
    value as u8
}

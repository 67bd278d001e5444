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

/// The values below this take at most eight bytes.
const NINE_BYTES: u64 = 1 << 53;

/// The encoding of a value that takes at most eight bytes, and its length. The bytes behind it are
/// 0.
///
/// It is made in a register and stored as a whole, because a copy of bytes that were just stored
/// one by one has to wait for them: store-to-load forwarding fails.
#[inline]
pub(crate) fn encode_in_word(value: u64) -> Option<([u8; 8], usize)> {
    if value < TWO_BYTES {
        return Some((value.to_le_bytes(), 1));
    }
    if value >= NINE_BYTES {
        return None;
    }
    let mut word = (value | 0xf0) & 0xff;
    let mut value = (value - TWO_BYTES) >> 4;
    let mut bits = 8;
    // 49 bits are left, so after six shifts by seven `value` is below 128, and `bits` is at most
    // 56.
    while value >= 128 {
        word |= ((value | 0x80) & 0xff) << bits;
        value = (value - 128) >> 7;
        bits += 8;
    }
    word |= value << bits;
    Some((word.to_le_bytes(), bits / 8 + 1))
}

/// The encoding of a value that takes more than one byte.
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

/// Decodes an encoding of two to eight bytes at the beginning of `word`. Returns the value and the
/// number of its bytes; `None` for a longer encoding.
#[inline]
pub(crate) fn decode_in_word(word: u64) -> Option<(u64, usize)> {
    let mut value = word & 0xff;
    let mut rest = word >> 8;
    let mut shift = 4;
    // Seven bytes of eight bits, the last of them moved by 46: nothing can overflow.
    for length in 2..=8 {
        let byte = rest & 0xff;
        value += byte << shift;
        if byte < 128 {
            return Some((value, length));
        }
        rest >>= 8;
        shift += 7;
    }
    None
}

/// How many bytes the encoding at the beginning of `word` takes; `None` if it has more than eight.
#[inline(always)]
pub(crate) fn length_in_word(word: u64) -> Option<u8> {
    if word & 0xff < TWO_BYTES {
        return Some(1);
    }
    // The first byte below 128 behind the first one is the last.
    let last = !word & 0x8080_8080_8080_8000;
    // At most 63 / 8 + 1.
    (last != 0).then(|| low_byte(u64::from(last.trailing_zeros() / 8 + 1)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_the_same_encoding() {
        // Around every power of two, which is where lengths change.
        let near =
            |power: u32| [-241_i128, -240, -1, 0, 1, 239, 240, 2288].map(|add| (1 << power) + add);
        for value in (0..64).flat_map(near).filter_map(|value| u64::try_from(value).ok()) {
            let (long, length) = encode(value);
            match encode_in_word(value) {
                Some((bytes, 1)) => {
                    assert_eq!((u64::from(bytes[0]), value < TWO_BYTES), (value, true));
                }
                Some((bytes, in_word)) => {
                    assert_eq!((&bytes[..in_word], in_word), (&long[..length], length), "{value}");
                    assert_eq!(in_word, super::length(value), "{value}");
                    // Whatever stands behind it.
                    let bits = u32::try_from(8 * in_word).unwrap();
                    for behind in [0, u64::MAX.checked_shl(bits).unwrap_or(0)] {
                        let word = u64::from_le_bytes(bytes) | behind;
                        assert_eq!(decode_in_word(word), Some((value, in_word)), "{value}");
                        let length = length_in_word(word).map(usize::from);
                        assert_eq!(length, Some(in_word), "{value}");
                    }
                }
                None => assert!(length > 8 || value >= NINE_BYTES, "{value}"),
            }
        }
        assert_eq!((decode_in_word(u64::MAX), length_in_word(u64::MAX)), (None, None));
    }
}

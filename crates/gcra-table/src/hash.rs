//! SipHash-1-3 with a 128-bit key and a 64-bit result (Aumasson and Bernstein, "SipHash: a fast
//! short-input PRF").
//!
//! It is written here because the hash is a quarter of a decision. The hasher of a library is
//! larger than the registers, and copying it took as long as the hash itself. A property test
//! compares the two.

// ADR 28: SipHash of our own, with its key in the file.

/// The key of a hash, as the state that each hash begins with. So a hasher begins with constants
/// beside it, and what was not written costs nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SipKey([u64; 4]);

impl SipKey {
    pub(crate) const fn new(key: &[u8; 16]) -> Self {
        let key = u128::from_le_bytes(*key);
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the key")]
        let (k0, k1) = (key as u64, (key >> 64) as u64);
        Self([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    pub(crate) const fn hasher(&self) -> SipHasher {
        SipHasher { v: self.0, tail: 0, tail_bytes: 0, length: 0 }
    }
}

/// A hash in the making, small enough to stay in registers.
///
/// The bytes that wait for a whole word are kept in a word, not in an array. Bytes that are stored
/// one by one and then loaded as a word have to wait until all of the stores are done, because
/// store-to-load forwarding fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SipHasher {
    v: [u64; 4],
    /// Bytes that do not make a word of 8 yet, the first one lowest, and how many they are.
    tail: u64,
    tail_bytes: u32,
    length: u64,
}

impl SipHasher {
    pub(crate) const fn new(key: &[u8; 16]) -> Self {
        SipKey::new(key).hasher()
    }

    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_word(u64::from_le_bytes(*word), 8);
        }
        if !rest.is_empty() {
            #[expect(clippy::cast_possible_truncation, reason = "below 8")]
            self.write_word(short_word(rest), rest.len() as u32);
        }
    }

    /// Writes the lowest `bytes` bytes of `word`, 1 to 8 of them, whose other bytes are 0.
    #[inline(always)]
    pub(crate) fn write_word(&mut self, word: u64, bytes: u32) {
        self.length = self.length.wrapping_add(bytes.into());
        self.tail |= word << (8 * self.tail_bytes);
        let filled = self.tail_bytes + bytes;
        if filled < 8 {
            self.tail_bytes = filled;
            return;
        }
        self.word(self.tail);
        // The bytes that did not fit. (A shift by 64 would overflow.)
        self.tail = if self.tail_bytes == 0 { 0 } else { word >> (64 - 8 * self.tail_bytes) };
        self.tail_bytes = filled - 8;
    }

    #[inline]
    pub(crate) fn finish(mut self) -> u64 {
        self.word(self.length << 56 | self.tail);
        self.v[2] ^= 0xff;
        for _ in 0..3 {
            self.round();
        }
        let [a, b, c, d] = self.v;
        a ^ b ^ c ^ d
    }

    #[inline]
    fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.v[0] ^= word;
    }

    #[inline]
    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.v;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.v = [a, b, c, d];
    }
}

/// Fewer than eight bytes as a word, the first one lowest.
#[inline(always)]
fn short_word(bytes: &[u8]) -> u64 {
    let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // They overlap in the same bytes.
        (Some(first), Some(last)) => half(first) | half(last) << (8 * (bytes.len() - 4)),
        _ => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[cfg(test)]
#[cfg(not(gcra_model))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;
    use std::hash::Hasher as _;

    proptest! {
        #[test]
        fn it_is_siphash_1_3_in_whatever_pieces_the_bytes_come(
            key: [u8; 16],
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
        ) {
            let (mut ours, mut theirs) = (SipHasher::new(&key), SipHasher13::new_with_key(&key));
            for piece in &pieces {
                ours.write(piece);
                theirs.write(piece);
            }
            prop_assert_eq!(ours.finish(), theirs.finish());
        }
    }
}

//! [`Fingerprint`]: 64 bits that stand for a world.

/// Mixes words into 64 bits. Two different worlds have the same fingerprint with a probability of
/// 2^-64, so that in 10^8 worlds one expects 0.0003 that are taken for another one.
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    pub(crate) const fn new() -> Self {
        Self(0x243f_6a88_85a3_08d3)
    }

    pub(crate) fn add(&mut self, word: u64) {
        let mixed = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let (low, high) = (mixed as u64, (mixed >> 64) as u64);
        let other = word.wrapping_mul(0xa076_1d64_78bd_642f);
        self.0 = (low ^ high).rotate_left(23).wrapping_add(other);
    }

    pub(crate) const fn finish(&self) -> u64 {
        let mut word = self.0;
        word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word ^ (word >> 32)
    }
}

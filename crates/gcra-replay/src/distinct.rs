//! Counts different clients in bounded memory.

use ahash::AHashSet;

/// How many clients are remembered. Up to this number the count is exact; beyond it, it is off by
/// about 0.1 % (one part in the square root of this).
const MOST: usize = 1 << 20;

/// A count of different clients, by the hashes of their keys.
///
/// It keeps the hashes that end with a number of zero bits. This number is raised each time that
/// there are too many hashes. Each further bit keeps half of the hashes, and each kept hash stands
/// for twice as many clients.
#[derive(Debug, Default)]
pub(crate) struct Distinct {
    kept: AHashSet<u64>,
    zero_bits: u32,
}

impl Distinct {
    /// Counts a client, once.
    pub(crate) fn add(&mut self, hash: u64) {
        if hash.trailing_zeros() < self.zero_bits {
            return;
        }
        self.kept.insert(hash);
        while self.kept.len() > MOST && self.zero_bits < u64::BITS {
            self.zero_bits += 1;
            self.kept.retain(|hash| hash.trailing_zeros() >= self.zero_bits);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        (self.kept.len() as u64) << self.zero_bits.min(40)
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.zero_bits == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_clients_are_counted_exactly() {
        let mut distinct = Distinct::default();
        for client in (0..1000_u64).chain(500..1500) {
            distinct.add(client.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        assert_eq!((distinct.count(), distinct.is_exact()), (1500, true));
    }

    #[test]
    fn many_clients_are_counted_nearly() {
        let mut distinct = Distinct::default();
        let mut random = fastrand::Rng::with_seed(7);
        let clients = 3_000_000;
        (0..clients).for_each(|_| distinct.add(random.u64(..)));
        assert!(!distinct.is_exact());
        assert!(distinct.kept.len() <= MOST);
        assert!(distinct.count().abs_diff(clients) < clients / 200, "{}", distinct.count());
    }
}

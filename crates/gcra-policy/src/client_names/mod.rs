//! The names of clients: the salt of the digits behind them (`salt_file`), and what clients are
//! known as.

pub(crate) mod known;

use std::fmt;

use gcra_table::{KeyHasher, limit_id};

/// A hash key that is the same on all machines with the same file.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct NameSalt([u64; 2]);

// By hand, because it is a secret.
impl fmt::Debug for NameSalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameSalt")
    }
}

impl NameSalt {
    /// From the bytes of the file. The name keeps it apart from other uses of the same bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self([1, 2].map(|half| limit_id(&[b"gcra-spoa names of clients", &[half], bytes])))
    }

    /// Begins the hash of a key.
    pub fn hasher(self) -> KeyHasher {
        let [low, high] = self.0;
        KeyHasher::with_key(u128::from(high) << 64 | u128::from(low))
    }

    /// A number by which agents tell whether they have the same salt. It does not tell the salt,
    /// and is never 0.
    #[expect(clippy::cast_possible_truncation, reason = "half of the hash is enough")]
    pub(crate) fn digest(self) -> u32 {
        let mut hasher = self.hasher();
        hasher.write(b"gcra-spoa digest of the salt");
        (hasher.finish().get() as u32).max(1)
    }
}

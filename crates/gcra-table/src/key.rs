//! Keys, hashed for a table.

// ADR 15: Each limit of a key has lines of its own.

use core::fmt;

use crate::hash::SipHasher;
use crate::quota::Quota;
use crate::slot::BucketId;

/// A key on its way into a [`KeyHash`]: its bytes, given piece by piece.
#[derive(Clone, Debug)]
pub struct KeyHasher(pub(crate) SipHasher);

impl KeyHasher {
    /// Begins a hash under a secret key that is not a table's own.
    pub const fn with_key(key: u128) -> Self {
        Self(SipHasher::new(&key.to_le_bytes()))
    }

    /// Appends bytes to the key. It makes no difference where one piece ends and the next begins,
    /// so a piece of varying length should have its length in front.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Appends the lowest `bytes` bytes of `word`, 1 to 8 of them; the others must be 0. It is
    /// [`write`](Self::write) in fewer steps.
    #[inline(always)]
    pub fn write_word(&mut self, word: u64, bytes: u32) {
        self.0.write_word(word, bytes);
    }

    /// The hash of all that was written.
    #[inline]
    pub fn finish(&self) -> KeyHash {
        KeyHash(self.0.finish())
    }
}

/// A key, hashed for one table and its successors.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// The hash as a number. It has the secret key of the table in it, so it must not be shown.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The key that stands for this one under a limit, so that several limits with one quota have
    /// buckets of their own.
    #[inline]
    #[must_use]
    pub const fn under(self, limit: LimitSalt) -> Self {
        Self(self.0 ^ limit.0)
    }

    /// The id that tells the key's bucket under a quota from all others.
    #[inline]
    pub(crate) const fn bucket_id(self, quota: Quota) -> BucketId {
        BucketId::new(self.0 ^ quota.salt(), quota.class())
    }

    /// 32 bits that stand for the bucket of this key under a quota. Those of another bucket of the
    /// same table differ, except by a chance of 2^-32.
    pub fn mark(self, quota: Quota) -> u32 {
        mark(self.bucket_id(quota))
    }
}

/// The number that tells the keys of one limit from those of another in a table and its
/// successors: see [`Table::limit_salt`](crate::Table::limit_salt). It is a secret, as the hash
/// key of the table is.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct LimitSalt(pub(crate) u64);

impl LimitSalt {
    /// That of a limit without a name, of which a table has one: keys stand for themselves.
    pub const NONE: Self = Self(0);
}

impl fmt::Debug for LimitSalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimitSalt")
    }
}

/// The upper 32 bits of a fingerprint.
#[expect(clippy::cast_possible_truncation, reason = "a fingerprint has 62 bits")]
pub(crate) const fn mark(id: BucketId) -> u32 {
    (id.fingerprint >> 28) as u32
}

/// A number that stands for the name of a limit, which may have several parts. It is the same in
/// every table and process, and never 0.
pub fn limit_id(name: &[&[u8]]) -> u64 {
    // This is not a secret: a hash of it with the hash key of the table leads to buckets.
    let mut hasher = SipHasher::new(&[0; 16]);
    for part in name {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish().max(1)
}

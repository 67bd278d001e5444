//! Keys, hashed for a table.

use crate::hash::SipHasher;
use crate::quota::Quota;
use crate::slot::BucketId;

/// A key on its way into a [`KeyHash`]: its bytes, given piece by piece.
#[derive(Clone, Debug)]
pub struct KeyHasher(pub(crate) SipHasher);

impl KeyHasher {
    /// Appends bytes to the key. It makes no difference where one piece ends and the next begins,
    /// so a piece of varying length should have its length in front.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash of all that was written.
    #[inline]
    #[must_use]
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
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// What tells the key's bucket under a quota from all others.
    #[inline]
    pub(crate) const fn bucket_id(self, quota: Quota) -> BucketId {
        BucketId::new(self.0 ^ quota.salt(), quota.class())
    }

    /// 32 bits that stand for the bucket of this key under a quota. Those of another bucket of the
    /// same table differ, except by a chance of 2^-32.
    #[must_use]
    pub fn mark(self, quota: Quota) -> u32 {
        mark(self.bucket_id(quota))
    }
}

/// The upper half of a fingerprint.
pub(crate) const fn mark(id: BucketId) -> u32 {
    let [a, b, c, d, ..] = id.fingerprint.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// A number that stands for the name of a limit, which may have several parts. It is the same in
/// every table and process, and never 0.
#[must_use]
pub fn limit_id(name: &[&[u8]]) -> u64 {
    // This is not a secret: the hash of it and the key, with the hash key of the table, leads to a
    // bucket.
    let mut hasher = SipHasher::new(&[0; 16]);
    for part in name {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish().max(1)
}

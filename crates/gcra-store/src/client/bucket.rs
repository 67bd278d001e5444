//! [`Bucket`]: one key under one limit, by the names of what the store keeps for it.

use core::fmt::Write as _;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use gcra_lease::{Ask, AskNumber, Change, HostId, Micros, SharedLimit, Units, Window};
use ring::digest::{Context, SHA256, digest};

/// All that a call needs of a bucket has the same tag, and so lies on the same server of a
/// cluster.
pub(crate) const TAGS: u16 = 1024;

/// Names buckets.
///
/// A name is `{gcra:NNN}:2:POLICY.LIMIT:HASH`. The 2 is the layout of the value: a record for each
/// of the numbers that the limit has had, or that requests say. So hosts with different
/// configurations never meet on one record. The hash has 128 bits, and nothing of the key can be
/// read from it without the salt. NNN is the hash modulo 1024.
///
/// The name of a [count](SharedLimit::count) ends with its window, `:count-BEGIN-END` in hexadecimal
/// seconds since 1970; another count keeps what is used. A name is written when a server is asked,
/// and not before.
#[derive(Clone)]
pub struct Names {
    /// SHA-256 that has read the hash of the salt. Because that is always of the same length, and
    /// only half of the result is used, it is a hash with a key.
    salted: Context,
}

impl Names {
    /// Names with a salt, which may be empty. All hosts that share limits have the same one.
    pub fn new(salt: &[u8]) -> Self {
        let mut salted = Context::new(&SHA256);
        salted.update(digest(&SHA256, salt).as_ref());
        Self { salted }
    }

    /// 32 bytes for a purpose other than a name of a bucket, which depend on the salt.
    pub(crate) fn digest(&self, purpose: &[u8]) -> [u8; 32] {
        let mut hash = self.salted.clone();
        // In the bytes of a bucket, the name of a limit stands before this one.
        hash.update(&[0xff]);
        hash.update(purpose);
        let mut digest = [0; 32];
        digest.copy_from_slice(hash.finish().as_ref());
        digest
    }

    /// The bucket of a key. `limit_name` says of which limit in which policy (`api.second`); it is
    /// written into the name as it is.
    pub fn bucket(
        &self,
        limit_name: impl Into<Arc<str>>,
        key: &[u8],
        limit: SharedLimit,
    ) -> Bucket {
        let limit_name = limit_name.into();
        let mut hash = self.salted.clone();
        hash.update(limit_name.as_bytes());
        // No UTF-8 has this byte, so two different pairs never become the same bytes.
        hash.update(&[0xff]);
        hash.update(key);
        let hash = hash.finish();
        let hash = hash.as_ref().first_chunk().map_or(0, |half| u128::from_be_bytes(*half));
        Bucket { limit_name, hash, limit, changed: None }
    }
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Names")
    }
}

/// One key under one limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Bucket {
    limit_name: Arc<str>,
    hash: u128,
    limit: SharedLimit,
    /// When the limit got its numbers, and what is owed at most because of others.
    changed: Option<(Instant, Units)>,
}

impl Bucket {
    /// The same bucket of a limit that got its numbers at this moment: what the key owes under
    /// other numbers counts, too, up to `most`.
    #[must_use]
    pub fn with_change(self, at: Instant, most: Units) -> Self {
        Self { changed: Some((at, most)), ..self }
    }

    /// A bucket that no request has, and an ask that finds out whether the server does what it is
    /// asked. The ask may be ignored, and that is an answer, too.
    pub(crate) fn probe(tag: u16) -> Option<(Self, Ask)> {
        let limit = SharedLimit::new(Duration::from_secs(1), 1).ok()?;
        let bucket = Names::new(b"").bucket("probe", b"", limit);
        let bucket = Self { hash: tag.into(), ..bucket };
        let ask = Ask {
            host: HostId(0),
            number: AskNumber(0),
            fresh: true,
            spent: 0,
            debt: 0,
            owed_ago: Ask::NOTHING_OWED,
            holds: 0,
            want: 0,
            least: 0,
            validity: Micros::ZERO,
        };
        Some((bucket, ask))
    }

    /// The numbers.
    pub const fn limit(&self) -> &SharedLimit {
        &self.limit
    }

    /// Whether it is a bucket of the limit with this name.
    pub fn is_of(&self, limit_name: &str) -> bool {
        *self.limit_name == *limit_name
    }

    /// The key of its records in the store.
    pub fn name(&self) -> String {
        let Self { limit_name, hash, limit, .. } = self;
        let tag = tag_text(self.tag());
        let mut name = format!("{tag}:2:{limit_name}:{hash:032x}");
        // Writing to a string never fails.
        if let Some(Window { begin, end }) = limit.window() {
            let _ = write!(name, ":count-{begin:x}-{end:x}");
        }
        name
    }

    /// The key under which the store has when its record was last cleared.
    pub(crate) fn reset(&self) -> String {
        format!("{}:reset", self.name())
    }

    /// 32 bits that stand for the record. Those of another one differ, except by a chance of
    /// 2^-32.
    pub fn mark(&self) -> u32 {
        let mut hash = Context::new(&SHA256);
        hash.update(self.name().as_bytes());
        for number in self.limit.numbers() {
            hash.update(&number.to_be_bytes());
        }
        hash.finish().as_ref().first_chunk().map_or(0, |first| u32::from_be_bytes(*first))
    }

    /// NNN.
    pub(crate) fn tag(&self) -> u16 {
        u16::try_from(self.hash % u128::from(TAGS)).unwrap_or(0)
    }

    /// How long ago the limit got its numbers, and what is owed at most because of others.
    pub(crate) fn change(&self) -> Change {
        match self.changed {
            Some((at, most)) => {
                let ago = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
                Change { ago: Micros(ago).min(Change::NONE.ago), most }
            }
            None => Change::NONE,
        }
    }

    pub(crate) fn epoch(&self) -> String {
        format!("{}:epoch", tag_text(self.tag()))
    }
}

/// The beginning of the names of a tag. The text between the braces decides about the slot of a
/// cluster.
pub(crate) fn tag_text(tag: u16) -> String {
    format!("{{gcra:{tag:03}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(burst: u32) -> SharedLimit {
        SharedLimit::new(Duration::from_millis(10), burst).unwrap()
    }

    #[test]
    fn a_name_has_no_key_in_it_and_is_the_same_for_ever() {
        let bucket = Names::new(b"").bucket("api.second", b"192.0.2.7", limit(20));
        // Python: sha256(sha256(b"").digest() + b"api.second\xff192.0.2.7").hexdigest()[:32]
        let hash = "17eb0eb6fd4cceec7de59a1419a62a1e";
        let name = format!("{{gcra:542}}:2:api.second:{hash}");
        assert_eq!(bucket.name(), name);
        assert!(bucket.epoch().starts_with(&tag_text(bucket.tag())));
    }

    #[test]
    fn salt_name_key_and_numbers_each_make_another_bucket() {
        let names = Names::new(b"");
        let bucket = |names: &Names, limit_name: &str, key: &[u8], limit| {
            names.bucket(limit_name, key, limit)
        };
        let other_keys = [
            bucket(&names, "api.second", b"1", limit(20)),
            bucket(&Names::new(b"salt"), "api.second", b"1", limit(20)),
            bucket(&names, "api.minute", b"1", limit(20)),
            bucket(&names, "api.second", b"2", limit(20)),
            bucket(&names, "api", b".second1", limit(20)),
        ];
        let other_numbers = [
            limit(21),
            limit(20).with_longest_validity(Micros(1)),
            limit(20).with_most_owed(21).unwrap(),
        ]
        .map(|limit| bucket(&names, "api.second", b"1", limit));
        let different = |all: &[Bucket], of: fn(&Bucket) -> String| {
            let all: std::collections::HashSet<_> = all.iter().map(of).collect();
            all.len()
        };
        assert_eq!(different(&other_keys, Bucket::name), 5);
        assert_eq!(different(&other_numbers, Bucket::name), 1, "the records lie side by side");
        let all: Vec<_> = other_keys.into_iter().chain(other_numbers).collect();
        assert_eq!(different(&all, |bucket| bucket.mark().to_string()), 8);
    }

    /// A file that changes the count must not forget what was used.
    #[test]
    fn the_name_of_a_count_has_its_window_and_not_the_count() {
        let names = Names::new(b"");
        let count = |most, begin, end| SharedLimit::count(most, Window { begin, end }).unwrap();
        let bucket = |limit| names.bucket("api.second", b"192.0.2.7", limit);
        let day = bucket(count(100, 1_800_057_600, 1_800_144_000));
        let hash = "17eb0eb6fd4cceec7de59a1419a62a1e";
        let name = format!("{{gcra:542}}:2:api.second:{hash}:count-6b4ab300-6b4c0480");
        assert_eq!(day.name(), name);
        assert_eq!(bucket(count(7, 1_800_057_600, 1_800_144_000)).name(), name);
        assert_ne!(bucket(count(100, 1_800_057_600, 1_800_144_001)).name(), name);
        assert_ne!(bucket(count(100, 1_800_057_599, 1_800_144_000)).name(), name);
        assert_eq!(day.tag(), bucket(limit(20)).tag());
    }

    #[test]
    fn tags_are_dealt_evenly() {
        let names = Names::new(b"");
        let mut count = [0_u32; TAGS as usize];
        for key in 0..16 * u32::from(TAGS) {
            let bucket = names.bucket("api", &key.to_le_bytes(), limit(20));
            count[usize::from(bucket.tag())] += 1;
        }
        assert!(count.iter().all(|&count| (1..50).contains(&count)));
    }
}

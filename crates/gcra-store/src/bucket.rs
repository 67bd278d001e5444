//! [`Bucket`]: one key under one limit, by the names of what the store keeps for it.

use core::fmt::Write as _;
use core::time::Duration;
use std::sync::Arc;

use gcra_lease::{Ask, AskNumber, HostId, Limit, Micros, Window};
use sha2::{Digest as _, Sha256};

/// All that a call needs of a bucket has the same tag, and so lies on the same server of a
/// cluster.
pub(crate) const TAGS: u16 = 1024;

/// Names buckets.
///
/// A name is `{gcra:NNN}:1:POLICY.LIMIT:HASH:NUMBERS`. The 1 is the layout of the record. The hash
/// has 128 bits, and nothing of the key can be read from it without the salt. NNN is the hash
/// modulo 1024. The numbers are those of the limit, so hosts with different configurations never
/// meet on one record. Those of a [count](Limit::count) are its window, `count-BEGIN-END` in
/// hexadecimal seconds since 1970; another count keeps what is used. A name is written when a
/// server is asked, and not before.
#[derive(Clone)]
pub struct Names {
    /// SHA-256 that has read the hash of the salt. Because that is always of the same length, and
    /// only half of the result is used, it is a hash with a key.
    salted: Sha256,
}

impl Names {
    /// Names with a salt, which may be empty. All hosts that share limits have the same one.
    #[must_use]
    pub fn new(salt: &[u8]) -> Self {
        Self { salted: Sha256::new_with_prefix(Sha256::digest(salt)) }
    }

    /// The bucket of a key. `limit_name` says of which limit in which policy (`api.second`); it is
    /// written into the name as it is.
    #[must_use]
    pub fn bucket(&self, limit_name: impl Into<Arc<str>>, key: &[u8], limit: Limit) -> Bucket {
        let limit_name = limit_name.into();
        let mut hash = self.salted.clone();
        hash.update(limit_name.as_bytes());
        // No UTF-8 has this byte, so two different pairs never become the same bytes.
        hash.update([0xff]);
        hash.update(key);
        let hash: [u8; 32] = hash.finalize().into();
        let hash = hash.first_chunk().map_or(0, |half| u128::from_be_bytes(*half));
        Bucket { limit_name, hash, limit, earlier: None }
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
    limit: Limit,
    earlier: Option<Limit>,
}

impl Bucket {
    /// The same bucket, after the numbers of its limit were changed. If the store has no record of
    /// it, it begins with what the record under the numbers `before` says.
    #[must_use]
    pub fn changed_from(mut self, before: Limit) -> Self {
        self.earlier = (numbers(&before) != numbers(&self.limit)).then_some(before);
        self
    }

    /// A bucket that no request has, and an ask that finds out whether the server does what it is
    /// asked. The ask may be ignored, and that is an answer, too.
    pub(crate) fn probe(tag: u16) -> Option<(Self, Ask)> {
        let limit = Limit::new(Duration::from_secs(1), 1).ok()?;
        let bucket = Self { limit_name: "probe".into(), hash: tag.into(), limit, earlier: None };
        let ask = Ask {
            host: HostId(0),
            number: AskNumber(0),
            fresh: true,
            spent: 0,
            debt: 0,
            owes: 0,
            holds: 0,
            want: 0,
            least: 0,
            validity: Micros::ZERO,
        };
        Some((bucket, ask))
    }

    /// The numbers.
    #[must_use]
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether it is a bucket of the limit with this name.
    #[must_use]
    pub fn is_of(&self, limit_name: &str) -> bool {
        *self.limit_name == *limit_name
    }

    /// The key of its record in the store.
    #[must_use]
    pub fn name(&self) -> String {
        self.name_under(&self.limit)
    }

    /// 32 bits that stand for the record. Those of another one differ, except by a chance of
    /// 2^-32.
    #[must_use]
    pub fn mark(&self) -> u32 {
        let hash = Sha256::digest(self.name());
        hash.first_chunk().map_or(0, |first| u32::from_be_bytes(*first))
    }

    /// NNN.
    #[must_use]
    pub(crate) fn tag(&self) -> u16 {
        u16::try_from(self.hash % u128::from(TAGS)).unwrap_or(0)
    }

    /// The numbers before the latest change, with the key of the record under these.
    pub(crate) fn earlier(&self) -> Option<(String, &Limit)> {
        self.earlier.as_ref().map(|limit| (self.name_under(limit), limit))
    }

    fn name_under(&self, limit: &Limit) -> String {
        let Self { limit_name, hash, .. } = self;
        let tag = tag_text(self.tag());
        let mut name = format!("{tag}:1:{limit_name}:{hash:032x}:");
        // Writing to a string never fails.
        if let Some(Window { begin, end }) = limit.window() {
            let _ = write!(name, "count-{begin:x}-{end:x}");
            return name;
        }
        let [burst, cell, bits, longest, ceiling] = numbers(limit);
        let _ = write!(name, "{burst}-{cell:x}-{bits}-{longest:x}");
        if ceiling != burst {
            let _ = write!(name, "-{ceiling}");
        }
        name
    }

    pub(crate) fn epoch(&self) -> String {
        format!("{}:epoch", tag_text(self.tag()))
    }
}

/// What the names of a tag begin with. The text between the braces decides about the slot of a
/// cluster.
pub(crate) fn tag_text(tag: u16) -> String {
    format!("{{gcra:{tag:03}}}")
}

/// By what the records of one key under one name differ: two limits have the same numbers if they
/// have the same record.
#[must_use]
pub fn numbers(limit: &Limit) -> [u64; 5] {
    if let Some(Window { begin, end }) = limit.window() {
        // No burst is 0.
        return [0, begin, end, 0, 0];
    }
    let [burst, bits, ceiling] =
        [limit.burst(), limit.fraction_bits(), limit.ceiling()].map(u64::from);
    [burst, limit.cells(1).0, bits, limit.longest_validity().0, ceiling]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(burst: u32) -> Limit {
        Limit::new(Duration::from_millis(10), burst).unwrap()
    }

    #[test]
    fn a_name_has_no_key_in_it_and_is_the_same_for_ever() {
        let bucket = Names::new(b"").bucket("api.second", b"192.0.2.7", limit(20));
        // Python: sha256(sha256(b"").digest() + b"api.second\xff192.0.2.7").hexdigest()[:32]
        let hash = "17eb0eb6fd4cceec7de59a1419a62a1e";
        let name = format!("{{gcra:542}}:1:api.second:{hash}:20-271000000-20-1e8480");
        assert_eq!(bucket.name(), name);
        assert!(bucket.epoch().starts_with(&tag_text(bucket.tag())));
    }

    #[test]
    fn salt_name_key_and_numbers_each_make_another_bucket() {
        let names = Names::new(b"");
        let name = |names: &Names, limit_name: &str, key: &[u8], limit| {
            names.bucket(limit_name, key, limit).name()
        };
        let mut all = vec![
            name(&names, "api.second", b"1", limit(20)),
            name(&Names::new(b"salt"), "api.second", b"1", limit(20)),
            name(&names, "api.minute", b"1", limit(20)),
            name(&names, "api.second", b"2", limit(20)),
            name(&names, "api.second", b"1", limit(21)),
            name(&names, "api.second", b"1", limit(20).with_longest_validity(Micros(1))),
            name(&names, "api.second", b"1", limit(20).with_most_owed(21).unwrap()),
            name(&names, "api", b".second1", limit(20)),
        ];
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 8);
        let hash = |name: &str| name.split(':').nth(4).map(str::to_owned);
        let salted = name(&Names::new(b"salt"), "api.second", b"1", limit(20));
        let plain = name(&names, "api.second", b"1", limit(20));
        assert!(hash(&salted) != hash(&plain) && hash(&plain).is_some());
    }

    #[test]
    fn the_earlier_record_has_the_same_tag() {
        let names = Names::new(b"");
        let bucket = names.bucket("api", b"1", limit(20)).changed_from(limit(10));
        let before = names.bucket("api", b"1", limit(10));
        assert_eq!(bucket.earlier(), Some((before.name(), before.limit())));
        assert_eq!(bucket.changed_from(limit(20)).earlier(), None, "nothing has changed");
    }

    /// A file that changes the count must not forget what was used.
    #[test]
    fn the_name_of_a_count_has_its_window_and_not_the_count() {
        let names = Names::new(b"");
        let count = |most, begin, end| Limit::count(most, Window { begin, end }).unwrap();
        let bucket = |limit| names.bucket("api.second", b"192.0.2.7", limit);
        let day = bucket(count(100, 1_800_057_600, 1_800_144_000));
        let hash = "17eb0eb6fd4cceec7de59a1419a62a1e";
        let name = format!("{{gcra:542}}:1:api.second:{hash}:count-6b4ab300-6b4c0480");
        assert_eq!(day.name(), name);
        assert_eq!(bucket(count(7, 1_800_057_600, 1_800_144_000)).name(), name);
        assert_ne!(bucket(count(100, 1_800_057_600, 1_800_144_001)).name(), name);
        assert_ne!(bucket(count(100, 1_800_057_599, 1_800_144_000)).name(), name);
        assert_eq!(day.tag(), bucket(limit(20)).tag());

        let raised = bucket(count(200, 1_800_057_600, 1_800_144_000));
        let raised = raised.changed_from(*day.limit());
        assert_eq!(raised.earlier(), None, "it is the same record");
        let at_rate = bucket(limit(20)).changed_from(*day.limit());
        assert_eq!(at_rate.earlier(), Some((name, day.limit())));
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

//! The quotas that messages have said for limits. The header keeps them, so that a key can be
//! reset under each of them.
//!
//! They only come: nothing takes the place of another one. When there is no space left, one entry
//! says that quotas are missing.

// ADR 40: A limit may read the message itself.

use core::sync::atomic::AtomicU64;

use crate::file::checked::{Checked, Checksum};
use crate::hash::SipHasher;
use crate::key::limit_id;
use crate::quota::Quota;
use crate::time::Nanos;

/// How many entries the header has space for. The last one says that quotas are missing.
pub(crate) const ENTRIES: usize = 1024;

/// A quota that messages have said for a limit.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    /// Limit; emission interval; burst; how far the cap on the debt is above the drain time.
    words: Checked<4>,
    _reserved: [AtomicU64; 3],
}

const _: () = assert!(cfg!(gcra_model) || size_of::<Entry>() == 64);

/// The entries, for reading and writing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaidQuotas<'a> {
    entries: &'a [Entry],
    missing: &'a Entry,
    checksum: Checksum,
}

impl<'a> SaidQuotas<'a> {
    pub(crate) fn new(all: &'a [Entry; ENTRIES], hasher: SipHasher) -> Self {
        let [entries @ .., missing] = all;
        Self { entries, missing, checksum: Checksum::new(hasher, b"gcra-table said") }
    }

    /// Writes down that messages say this quota for a limit. Returns whether it is written down.
    pub(crate) fn add(self, limit: u64, quota: Quota) -> bool {
        let words = to_words(limit, quota);
        let is_there = |entry: &Entry| entry.words.read(self.checksum) == Some(words);
        if self.entries.iter().any(is_there) {
            return true;
        }
        for entry in self.entries {
            // An entry whose writer was killed stays as it is. Another process may be faster, and
            // what it has written may be the same.
            let seen = entry.words.seen();
            let is_free = entry.words.read(self.checksum).is_none() && !seen.is_being_written();
            if (is_free && entry.words.write(self.checksum, seen, words)) || is_there(entry) {
                return true;
            }
        }
        self.note_missing();
        false
    }

    /// Whether each quota is written down that [`add`](Self::add) was called with.
    pub(crate) fn is_whole(self) -> bool {
        self.missing.words.read(self.checksum).is_none()
    }

    /// The quotas that messages have said for a limit, in no particular order.
    pub(crate) fn of(self, limit: u64) -> Vec<Quota> {
        let all = self.all().filter(|words| words[0] == limit);
        all.filter_map(to_quota).collect()
    }

    /// Writes down what the entries of another table say, and these do not.
    pub(crate) fn take_over(self, other: SaidQuotas<'_>) {
        for words in other.all() {
            if let Some(quota) = to_quota(words) {
                self.add(words[0], quota);
            }
        }
        if !other.is_whole() {
            self.note_missing();
        }
    }

    fn note_missing(self) {
        if let Ok(mark) = Quota::new(Nanos(1), 1) {
            let (seen, words) =
                (self.missing.words.seen(), to_words(limit_id(&[b"missing"]), mark));
            self.missing.words.write(self.checksum, seen, words);
        }
    }

    fn all(self) -> impl Iterator<Item = [u64; 4]> {
        self.entries.iter().filter_map(move |entry| entry.words.read(self.checksum))
    }
}

fn to_words(limit: u64, quota: Quota) -> [u64; 4] {
    let beyond_drain = quota.most_owed().saturating_sub(quota.drain_time());
    [limit, quota.emission_interval().0, quota.burst().into(), beyond_drain.0]
}

/// The quota, without its [longest delay](Quota::with_max_delay), which tells no buckets apart.
fn to_quota([_, interval, burst, beyond_drain]: [u64; 4]) -> Option<Quota> {
    let quota = Quota::new(Nanos(interval), u32::try_from(burst).ok()?).ok()?;
    quota.with_most_owed(quota.drain_time().saturating_add(Nanos(beyond_drain))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Box<[Entry; ENTRIES]> {
        let entry = |_| Entry {
            words: Checked::free(),
            _reserved: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        Box::new(core::array::from_fn(entry))
    }

    fn said(entries: &[Entry; ENTRIES]) -> SaidQuotas<'_> {
        SaidQuotas::new(entries, SipHasher::new(b"0123456789abcdef"))
    }

    fn quota(burst: u32) -> Quota {
        Quota::new(Nanos(1_000), burst).unwrap()
    }

    #[test]
    fn each_quota_is_written_down_once_for_its_limit() {
        let entries = entries();
        let delaying = quota(3).with_max_delay(Nanos(5)).unwrap();
        for _ in 0..2 {
            assert!(
                [quota(1), quota(2), delaying].map(|it| said(&entries).add(7, it)) == [true; 3]
            );
            assert!(said(&entries).add(8, quota(1)));
        }
        let all = said(&entries).of(7);
        assert_eq!(all, [quota(1), quota(2), delaying.without_delay()]);
        assert_eq!(said(&entries).of(8), [quota(1)]);
        assert_eq!(said(&entries).of(9), []);
        assert!(said(&entries).is_whole());
    }

    #[test]
    fn what_has_no_space_is_noted_also_by_a_successor() {
        let (entries, next) = (entries(), self::entries());
        let most = u32::try_from(ENTRIES).unwrap() - 1;
        assert!((1..=most).all(|burst| said(&entries).add(7, quota(burst))));
        assert!(said(&entries).is_whole());
        assert!(!said(&entries).add(8, quota(1)));
        assert!(said(&entries).add(7, quota(most)), "it is known");
        assert!(!said(&entries).is_whole());
        said(&next).take_over(said(&entries));
        assert_eq!(said(&next).of(7).len(), ENTRIES - 1);
        assert!(!said(&next).is_whole());
    }

    #[test]
    fn what_is_damaged_or_half_written_is_left_out() {
        let entries = entries();
        assert!(said(&entries).add(7, quota(1)));
        for word in 0..4 {
            entries[0].words.flip(word);
            assert_eq!(said(&entries).of(7), [], "word {word}");
            entries[0].words.flip(word);
        }
        entries[1].words.break_off();
        assert!(said(&entries).add(7, quota(2)));
        assert_eq!(said(&entries).of(7), [quota(1), quota(2)]);
        assert!(entries[1].words.seen().is_being_written());
    }

    #[test]
    fn processes_that_write_together_lose_nothing() {
        let entries = entries();
        std::thread::scope(|scope| {
            for first in 0..8 {
                let entries = &entries;
                scope.spawn(move || {
                    (0..40)
                        .for_each(|more| assert!(said(entries).add(7, quota(1 + first + more))));
                });
            }
        });
        let mut all: Vec<_> = said(&entries).of(7).iter().map(|quota| quota.burst()).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (1..=47).collect::<Vec<_>>());
    }
}

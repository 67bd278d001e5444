//! Clients that are not limited for a while: an operator wrote them down, and all processes that
//! use the table follow.
//!
//! The table does not look at them when it charges. The processes read them about once a second
//! and let the clients pass without a charge.

use core::sync::atomic::AtomicU64;

use crate::file::checked::{Checked, Checksum, text_in_words, text_to_words};
use crate::hash::SipHasher;
use crate::key::KeyHash;
use crate::sentences::sentences;
use crate::time::{Nanos, Time};

/// How many exemptions a table can hold at a time.
pub(crate) const EXEMPTIONS: usize = 128;

/// The longest exemption.
pub const MAX_EXEMPTION: Nanos = Nanos::from_secs(7 * 24 * 3600);

/// How much later than ours the clock reading of another process may be.
const CLOCK_SLACK: Nanos = Nanos::from_secs(10);

/// The most bytes of a client's name that are kept.
const NAME_WORDS: usize = 10;

/// How often an exemption is written again if another process wrote to the same place.
const ATTEMPTS: usize = 8;

/// A client that is not limited until a certain time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Exemption {
    /// The [id](crate::limit_id) of the policy that does not limit it.
    pub policy: u64,
    /// Its key, as the policy makes it: not that [under](KeyHash::under) a limit.
    pub key: KeyHash,
    /// When it ends.
    pub until: Time,
    /// The name of the client, for people. The table keeps the first 80 bytes, and only printable
    /// characters are read.
    pub client: String,
}

sentences! {
    /// Why an exemption could not be written down.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[non_exhaustive]
    pub enum ExemptError {
        Full => "there are 128 exemptions already";
        /// The exemption could be lost in the move.
        BeingResized => "the table is being resized; try again";
    }
}

impl core::error::Error for ExemptError {}

/// A place for an exemption in the header.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct ExemptionEntry {
    /// Policy; key; until; bytes of the name; the name.
    words: Checked<{ 4 + NAME_WORDS }>,
    _reserved: AtomicU64,
}

const _: () = assert!(size_of::<ExemptionEntry>() == 128);

/// The exemptions in a table's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exemptions<'a> {
    entries: &'a [ExemptionEntry],
    checksum: Checksum,
    now: Time,
}

impl<'a> Exemptions<'a> {
    pub(crate) fn new(entries: &'a [ExemptionEntry], hasher: SipHasher, now: Time) -> Self {
        Self { entries, checksum: Checksum::new(hasher, b"gcra-table exemption"), now }
    }

    /// Those that have not ended, in no particular order. Damaged ones are left out.
    pub(crate) fn all(self) -> impl Iterator<Item = Exemption> {
        self.entries.iter().filter_map(move |entry| self.read(entry))
    }

    /// Writes down an exemption in the place of an earlier one of the same policy and key. One
    /// that ends now, or has ended, only removes the earlier one. False when there is no space.
    pub(crate) fn put(self, exemption: &Exemption) -> bool {
        let latest = self.now.saturating_add(MAX_EXEMPTION);
        let words = exemption.to_words(exemption.until.min(latest));
        for _ in 0..ATTEMPTS {
            // If several processes wrote the same one at the same time, it is there more than
            // once.
            let mut same = self.entries.iter().filter(|entry| {
                let known = self.read(entry);
                known.is_some_and(|known| {
                    (known.policy, known.key) == (exemption.policy, exemption.key)
                })
            });
            let first = same.next();
            same.for_each(|entry| entry.words.clear());
            if exemption.until <= self.now {
                first.inspect(|entry| entry.words.clear());
                return true;
            }
            let Some(entry) = first.or_else(|| self.free_entry()) else { return false };
            if entry.words.write(self.checksum, words) {
                return true;
            }
        }
        false
    }

    /// Writes down what another table says.
    pub(crate) fn take_over(self, other: Exemptions<'_>) {
        for exemption in other.all() {
            // There is space: the other table has no more of them.
            let _ = self.put(&exemption);
        }
    }

    fn read(self, entry: &ExemptionEntry) -> Option<Exemption> {
        let exemption = Exemption::from_words(entry.words.read(self.checksum)?);
        // A time that is too late is damage that the checksum does not show. (Another process may
        // have read its clock after we have read ours.)
        let latest = self.now.saturating_add(MAX_EXEMPTION).saturating_add(CLOCK_SLACK);
        (self.now < exemption.until && exemption.until <= latest).then_some(exemption)
    }

    /// One that holds nothing or has ended; else one whose writer was killed, or is writing now.
    fn free_entry(self) -> Option<&'a ExemptionEntry> {
        let unused = || self.entries.iter().filter(|entry| self.read(entry).is_none());
        unused().find(|entry| !entry.words.is_being_written()).or_else(|| unused().next())
    }
}

impl Exemption {
    fn to_words(&self, until: Time) -> [u64; 4 + NAME_WORDS] {
        let (name, length) = text_to_words::<NAME_WORDS>(&self.client);
        let mut words = [0; 4 + NAME_WORDS];
        words[..4].copy_from_slice(&[self.policy, self.key.0, until.0, length as u64]);
        words[4..].copy_from_slice(&name);
        words
    }

    fn from_words(words: [u64; 4 + NAME_WORDS]) -> Self {
        let [policy, key, until, length, name @ ..] = words;
        let client = text_in_words(&name, usize::try_from(length).unwrap_or(usize::MAX));
        Self { policy, key: KeyHash(key), until: Time(until), client }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize) -> Vec<ExemptionEntry> {
        (0..count)
            .map(|_| ExemptionEntry { words: Checked::free(), _reserved: AtomicU64::new(0) })
            .collect()
    }

    fn at(entries: &[ExemptionEntry], now: Time) -> Exemptions<'_> {
        Exemptions::new(entries, SipHasher::new(b"0123456789abcdef"), now)
    }

    fn s(seconds: u64) -> Time {
        Time(Nanos::from_secs(seconds).0)
    }

    fn exemption(policy: u64, key: u64, until: Time) -> Exemption {
        Exemption { policy, key: KeyHash(key), until, client: format!("client {key}") }
    }

    #[test]
    fn an_exemption_begins_is_extended_and_ends() {
        let entries = entries(4);
        let all = |now| at(&entries, now).all().collect::<Vec<_>>();
        assert_eq!(all(s(1)), []);
        let first = exemption(1, 7, s(10));
        assert!(at(&entries, s(1)).put(&first));
        assert_eq!(all(s(2)), std::slice::from_ref(&first));
        let other_policy = exemption(2, 7, s(10));
        assert!(at(&entries, s(1)).put(&other_policy));
        assert_eq!(all(s(9)), [first, other_policy.clone()]);
        assert_eq!(all(s(10)), [], "both have ended");

        let longer = exemption(1, 7, s(20));
        assert!(at(&entries, s(2)).put(&longer));
        assert_eq!(all(s(3)), [longer, other_policy.clone()]);
        assert!(at(&entries, s(4)).put(&exemption(1, 7, s(4))), "ends now");
        assert_eq!(all(s(4)), [other_policy]);
        assert!(at(&entries, s(4)).put(&exemption(3, 3, s(1))), "there is none to end");
    }

    #[test]
    fn there_is_a_bound_in_number_and_time() {
        let entries = entries(4);
        for key in 0..4 {
            assert!(at(&entries, s(1)).put(&exemption(1, key, s(5))));
        }
        assert!(!at(&entries, s(1)).put(&exemption(1, 4, s(5))), "no space");
        assert!(at(&entries, s(1)).put(&exemption(1, 3, s(6))), "one that is known has its place");
        assert!(at(&entries, s(5)).put(&exemption(1, 4, Time(u64::MAX))), "others have ended");
        let latest = s(5).saturating_add(MAX_EXEMPTION);
        assert!(at(&entries, s(5)).all().any(|found| found.until == latest));
        assert_eq!(at(&entries, latest).all().count(), 0);
    }

    #[test]
    fn what_is_damaged_is_free_and_hostile_names_are_harmless() {
        let entries = entries(2);
        let hostile = Exemption {
            client: format!("\x1b[2J\n{}ä", "x".repeat(74)),
            ..exemption(1, 1, s(10))
        };
        assert!(at(&entries, s(1)).put(&hostile));
        let read = at(&entries, s(1)).all().next().unwrap();
        assert_eq!(read.client, format!("?[2J?{}", "x".repeat(74)));
        entries[0].words.flip(2);
        assert_eq!(at(&entries, s(1)).all().count(), 0);
        entries[1].words.break_off();
        for key in 0..2 {
            assert!(at(&entries, s(1)).put(&exemption(1, key, s(10))));
        }
        assert_eq!(at(&entries, s(1)).all().count(), 2);
    }

    #[test]
    fn a_successor_takes_them_over() {
        let (old, new) = (entries(4), entries(4));
        for key in 0..3 {
            assert!(at(&old, s(1)).put(&exemption(1, key, s(10 + key))));
        }
        at(&new, s(10)).take_over(at(&old, s(10)));
        assert_eq!(at(&new, s(10)).all().count(), 2);
    }
}

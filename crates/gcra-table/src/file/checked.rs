//! A few words in the header that any process may write, and that are read whole or not at all.
//!
//! They have a checksum, which is written last. Words whose writer was killed, or that two
//! processes wrote at the same time, do not fit their checksum, and count as free.

use crate::hash::SipHasher;
use crate::mutation::{Mutation, broken};
use crate::sync::{AtomicU64, Ordering};

/// The checksum of a place that holds no words.
const FREE: u64 = 0;

/// The checksum while the words are being written.
const WRITING: u64 = 1;

/// The checksum of a place when it was looked at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Whether the words were being written, or their writer was killed.
    pub(crate) fn is_being_written(self) -> bool {
        self.0 == WRITING
    }
}

/// Words with their checksum.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Checked<const WORDS: usize> {
    check: AtomicU64,
    words: [AtomicU64; WORDS],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum {
    /// With the hash key of the table.
    hasher: SipHasher,
    /// The kind of the words, so that words of one kind are not taken for another.
    kind: &'static [u8],
}

impl Checksum {
    pub(crate) const fn new(hasher: SipHasher, kind: &'static [u8]) -> Self {
        Self { hasher, kind }
    }

    fn of(self, words: &[u64]) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(self.kind);
        words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        // Neither free nor being written.
        hasher.finish() | 2
    }
}

impl<const WORDS: usize> Checked<WORDS> {
    /// The words; `None` when there are none, or they are damaged or being written.
    pub(crate) fn read(&self, checksum: Checksum) -> Option<[u64; WORDS]> {
        let check = self.check.load(Ordering::Acquire);
        // A checksum takes as long as some decisions, and most places are free.
        if check == FREE {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        (check == checksum.of(&words)).then_some(words)
    }

    /// For [`write`](Self::write), to be asked before the words are [read](Self::read).
    pub(crate) fn seen(&self) -> Seen {
        Seen(self.check.load(Ordering::Acquire))
    }

    /// Writes the words in the place of those that were seen. False when another process has
    /// written since, or wrote at the same time; then there is nothing, or the words of the other
    /// process.
    pub(crate) fn write(&self, checksum: Checksum, seen: Seen, words: [u64; WORDS]) -> bool {
        let seen = if broken(Mutation::WritesOverAnything) { self.seen() } else { seen };
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        if self.check.compare_exchange(seen.0, WRITING, success, failure).is_err() {
            return false;
        }
        self.words
            .iter()
            .zip(words)
            .for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.check.store(checksum.of(&words), Ordering::Release);
        self.read(checksum) == Some(words)
    }

    /// Makes it free if it has such words, and not if another process writes others there.
    pub(crate) fn remove(&self, checksum: Checksum, are_it: impl FnOnce([u64; WORDS]) -> bool) {
        if let Some(words) = self.read(checksum).filter(|words| are_it(*words)) {
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.check.compare_exchange(checksum.of(&words), FREE, success, failure);
        }
    }
}

#[cfg(test)]
impl<const WORDS: usize> Checked<WORDS> {
    pub(crate) fn free() -> Self {
        Self { check: AtomicU64::new(FREE), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Damages a word.
    pub(crate) fn flip(&self, word: usize) {
        self.words[word].fetch_xor(1 << 20, Ordering::Relaxed);
    }

    /// As a writer leaves it that is killed.
    pub(crate) fn break_off(&self) {
        self.check.store(WRITING, Ordering::Relaxed);
    }
}

/// The beginning of a text, as much as there is space for, in words of 8 bytes; and how many bytes
/// that is.
pub(crate) fn text_to_words<const WORDS: usize>(text: &str) -> ([u64; WORDS], usize) {
    let text = &text[..text.floor_char_boundary(8 * WORDS)];
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(text.as_bytes().chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    (words, text.len())
}

/// The text of so many bytes in these words, as [`printable`].
pub(crate) fn text_in_words(words: &[u64], length: usize) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    printable(&bytes[..length.min(bytes.len())])
}

/// Text that another process wrote, with a question mark in the place of each character that a
/// terminal would not show.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_printable = |c: char| "\\'\"".contains(c) || c.escape_debug().len() == 1;
    text.chars().map(|c| if is_printable(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(kind: &'static [u8]) -> Checksum {
        Checksum::new(SipHasher::new(b"0123456789abcdef"), kind)
    }

    #[test]
    fn words_are_read_whole_or_not_at_all() {
        let (checked, sum) = (Checked::<3>::free(), checksum(b"test"));
        assert_eq!(checked.read(sum), None);
        assert!(checked.write(sum, checked.seen(), [1, 2, 3]));
        assert_eq!(checked.read(sum), Some([1, 2, 3]));
        assert_eq!(checked.read(checksum(b"another kind")), None);
        for word in 0..3 {
            checked.flip(word);
            assert_eq!(checked.read(sum), None, "word {word}");
            checked.flip(word);
        }
        checked.break_off();
        assert!(checked.seen().is_being_written());
        assert_eq!(checked.read(sum), None);
        let seen = checked.seen();
        assert!(checked.write(sum, seen, [0; 3]), "a writer that was killed holds nothing up");
        assert!(!checked.write(sum, seen, [1; 3]), "other words are there since");
        assert_eq!(checked.read(sum), Some([0; 3]));
        checked.remove(sum, |words| words == [1; 3]);
        assert_eq!(checked.read(sum), Some([0; 3]), "other words stay");
        checked.remove(sum, |words| words == [0; 3]);
        assert_eq!(checked.read(sum), None);
    }

    #[test]
    fn of_several_writers_one_wins_or_nobody_does() {
        let (checked, sum) = (Checked::<8>::free(), checksum(b"test"));
        std::thread::scope(|scope| {
            for writer in 1..4 {
                let checked = &checked;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        checked.write(sum, checked.seen(), [writer; 8]);
                        if let Some(words) = checked.read(sum) {
                            assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                        }
                    }
                });
            }
        });
    }
}

#[cfg(all(test, gcra_model))]
mod model {
    #[cfg(gcra_loom)]
    use loom::{sync::Arc, thread};
    #[cfg(gcra_shuttle)]
    use shuttle::{sync::Arc, thread};

    use super::*;

    /// Two processes look for a free place at once, and write other words there.
    fn two_take() {
        let place = Arc::new(Checked::<2>::free());
        let sum = Checksum::new(SipHasher::new(b"0123456789abcdef"), b"test");
        let take = |words| {
            let place = place.clone();
            move || {
                let seen = place.seen();
                let is_free = place.read(sum).is_none() && !seen.is_being_written();
                (is_free && place.write(sum, seen, words)).then_some(words)
            }
        };
        let other = thread::spawn(take([3, 4]));
        let (mine, other) = (take([1, 2])(), other.join().unwrap());
        // Without a step, both may take it, or neither, or their words be mixed.
        let is_one = mine.is_some() != other.is_some() && place.read(sum) == mine.or(other);
        assert!(is_one, "one of them takes it: {mine:?}, {other:?}");
    }

    crate::model::models! {
        a_free_place_is_taken_once: two_take {
            taking_what_was_not_seen_is_caught = WritesOverAnything, "one of them takes it";
        }
    }
}

//! The eight slots that may hold a key, as a process has seen them.

// ADR 18: A slot is 128 bits and changes whole.
// ADR 27: Of reclaimable slots the oldest is taken.

use core::cmp;

use crate::bucket::ticket::is_stale;
use crate::quota::MAX_DRAIN;
use crate::slot::{LINE_SLOTS, Word};
use crate::time::Time;

/// The slots that may hold a key.
pub(crate) const CANDIDATES: usize = 2 * LINE_SLOTS;

/// The eight slots as they were seen, one after another, and what there was of the key: a bit for
/// each position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeenSlots {
    words: [Word; CANDIDATES],
    /// The confirmed slot of the key. (Damage can make it more than one.)
    buckets: u8,
    announcements: u8,
    /// Slots of any key that were moved to another table.
    sealed: u8,
}

impl SeenSlots {
    /// A look for the key with this fingerprint, when `load` loads the slot at a position.
    #[inline]
    pub(crate) fn at(fingerprint: u64, load: impl Fn(usize) -> Word) -> Self {
        let mut look =
            Self { words: [Word::EMPTY; CANDIDATES], buckets: 0, announcements: 0, sealed: 0 };
        for position in 0..CANDIDATES {
            let word = load(position);
            look.words[position] = word;
            look.buckets |= u8::from(word.is_bucket_of(fingerprint)) << position;
            look.announcements |= u8::from(word.is_announcement_of(fingerprint)) << position;
            look.sealed |= u8::from(word.sealed_tat().is_some()) << position;
        }
        look
    }

    /// The word that the slot at this position held.
    #[inline]
    pub(crate) fn word(&self, position: usize) -> Word {
        self.words[position]
    }

    /// The position of the key's bucket, and its TAT.
    #[inline]
    pub(crate) fn bucket(&self) -> Option<(usize, Time)> {
        let position = positions(self.buckets).next()?;
        Some((position, self.words[position].value()))
    }

    /// The key's announcements, the lowest position first.
    #[inline]
    pub(crate) fn announcements(&self) -> impl Iterator<Item = (usize, Word)> {
        positions(self.announcements).map(|position| (position, self.words[position]))
    }

    #[inline]
    pub(crate) fn has_seals(&self) -> bool {
        self.sealed != 0
    }

    /// The position of the slot to reclaim, if a slot can be reclaimed. It is in the line that has
    /// more such slots, so that both lines fill evenly. In this line it has the smallest TAT, so
    /// that a key that comes back soon still finds its own slot. If both lines have equally many,
    /// the smallest TAT of both decides.
    #[inline]
    pub(crate) fn reclaimable(&self, now: Time) -> Option<usize> {
        let mut best: [Option<(Time, usize)>; 2] = [None; 2];
        let mut free = [0; 2];
        for (position, word) in self.words.iter().enumerate() {
            if is_reclaimable(*word, now) {
                let line = position / LINE_SLOTS;
                free[line] += 1;
                let used = (word.tat().unwrap_or_default(), position);
                best[line] = Some(best[line].map_or(used, |best| best.min(used)));
            }
        }
        let [first, second] = best;
        match free[0].cmp(&free[1]) {
            cmp::Ordering::Greater => first,
            cmp::Ordering::Less => second,
            cmp::Ordering::Equal => first.into_iter().chain(second).min_by_key(|(tat, _)| *tat),
        }
        .map(|(_, position)| position)
    }

    /// The position of the bucket that owes the smallest part of its own limit, of any key; `None`
    /// if all slots are announcements. Of equal parts the smallest TAT decides.
    ///
    /// A slot knows its limit within the factor of a class (`burst_class.rs`). So the chosen
    /// bucket owes less than one and a half times the part of any other bucket, or less than twice
    /// that if one is a count.
    #[cold]
    pub(crate) fn least_owing(&self, now: Time) -> Option<usize> {
        let owing = self.words.iter().enumerate().filter_map(|(position, word)| {
            let tat = word.tat()?;
            Some((word.class().part_owed(tat, now), tat, position))
        });
        owing.min().map(|(.., position)| position)
    }
}

/// Whether any key may take the slot, because nothing is forgotten with it.
pub(crate) fn is_reclaimable(word: Word, now: Time) -> bool {
    match (word.tat(), word.ticket()) {
        // A sound TAT is at most the longest drain time ahead of the clock; `now` may be an older
        // reading.
        (Some(tat), _) => tat <= now || tat.0 - now.0 > 2 * MAX_DRAIN.0,
        (None, Some(ticket)) => is_stale(ticket, now),
        // Sealed in a table that is not being resized: the slot is damaged.
        (None, None) => true,
    }
}

/// The positions of the bits that are set, the lowest first.
#[inline]
fn positions(mut bits: u8) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let lowest = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (lowest < CANDIDATES).then_some(lowest)
    })
}

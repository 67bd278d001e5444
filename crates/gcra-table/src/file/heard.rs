//! Counts that others keep, as the processes of the table have heard them.
//!
//! A *source* counts events of several kinds, and tells any process of the table how many there
//! were since it began. The table keeps the highest count that any process was told. So each event
//! is new to exactly one process, and the order in which the counts arrive does not matter.
//!
//! When the table is resized, each count is sealed and then carried over. A process that finds a
//! sealed one carries it over itself, before it goes on in the other table.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::time::Time;

/// How many sources a table remembers.
pub(crate) const SOURCES: usize = 64;

/// How many kinds of events a source can count: see [`Board::hear`](crate::board::Board::hear).
pub const HEARD_KINDS: usize = 22;

/// How often a place is looked for again if another process took it.
const ATTEMPTS: usize = 8;

/// How often a count is raised again. A lost attempt means that it was raised by another process.
const RAISES: usize = 64;

const SEALED: u64 = 1 << 63;

/// A count is sealed: with this number, it goes on in the table that takes over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sealed(pub(crate) u32);

/// The counts in a table's header. All zero is none.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Heard {
    /// The sources; 0 is a free place.
    sources: [AtomicU64; SOURCES],
    /// The table's time when a count of the source grew last.
    grown_ns: [AtomicU64; SOURCES],
    /// Bit 63 of each says that it is sealed. Bits 62..32 are of the source's number, so that a
    /// count of the source that had the place before is none of the source that has it now.
    counts: [[AtomicU64; HEARD_KINDS]; SOURCES],
}

const _: () = assert!(size_of::<Heard>() == 0x3000);

impl Heard {
    /// Takes note of a count, and returns by how much it is higher than any before. `source` is
    /// not 0.
    pub(crate) fn hear(
        &self,
        source: u64,
        kind: usize,
        count: u32,
        now: Time,
    ) -> Result<u32, Sealed> {
        // A source that has counted nothing needs no place.
        if count == 0 || kind >= HEARD_KINDS {
            return Ok(0);
        }
        let Some(place) = self.find(source).or_else(|| self.open(source, now)) else {
            return Ok(0);
        };
        let new = raise(&self.counts[place][kind], source, count)?;
        if new > 0 {
            self.grown_ns[place].fetch_max(now.0, Ordering::Relaxed);
        }
        Ok(new)
    }

    /// Seals all counts of another table and carries them over to this one.
    pub(crate) fn take_over(&self, other: &Self) {
        for (place, counts) in other.counts.iter().enumerate() {
            for (kind, count) in counts.iter().enumerate() {
                let word = count.fetch_or(SEALED, Ordering::Relaxed);
                let source = other.sources[place].load(Ordering::Acquire);
                let grown = Time(other.grown_ns[place].load(Ordering::Relaxed));
                if source != 0 {
                    let _ = self.hear(source, kind, count_of(word, source), grown);
                }
            }
        }
    }

    fn find(&self, source: u64) -> Option<usize> {
        self.sources.iter().position(|known| known.load(Ordering::Acquire) == source)
    }

    /// Gives the source the first free place, or else that of the source whose counts have not
    /// grown for the longest time. `None` if other processes took each place first.
    #[cold]
    fn open(&self, source: u64, now: Time) -> Option<usize> {
        for _ in 0..ATTEMPTS {
            let free = self.find(0);
            let oldest =
                || (0..SOURCES).min_by_key(|at| self.grown_ns[*at].load(Ordering::Relaxed));
            let place = free.or_else(oldest)?;
            let known = self.sources[place].load(Ordering::Acquire);
            // All processes choose the same place, so another one may have opened it for the same
            // source.
            if known == source || (free.is_some() && known != 0) {
                match self.find(source) {
                    Some(place) => return Some(place),
                    None => continue,
                }
            }
            let opened = self.sources[place].compare_exchange(
                known,
                source,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if opened.is_ok() {
                self.grown_ns[place].store(now.0, Ordering::Relaxed);
                return Some(place);
            }
            if let Some(place) = self.find(source) {
                return Some(place);
            }
        }
        None
    }
}

/// Raises the count of this source, and returns by how much.
fn raise(place: &AtomicU64, source: u64, count: u32) -> Result<u32, Sealed> {
    let mut word = place.load(Ordering::Relaxed);
    for _ in 0..RAISES {
        let known = count_of(word, source);
        if word & SEALED != 0 {
            return Err(Sealed(known));
        }
        if count <= known {
            return Ok(0);
        }
        let raised = tag(source) << 32 | u64::from(count);
        match place.compare_exchange_weak(word, raised, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Ok(count - known),
            Err(other) => word = other,
        }
    }
    Ok(0)
}

/// The 31 bits of the source's number that its counts have; never 0, which is that of no count.
const fn tag(source: u64) -> u64 {
    source >> 33 | 1
}

/// The count in this word, if the word belongs to this source.
#[expect(clippy::cast_possible_truncation, reason = "the lower half is the count")]
const fn count_of(word: u64, source: u64) -> u32 {
    if (word & !SEALED) >> 32 == tag(source) { word as u32 } else { 0 }
}

#[cfg(all(test, not(gcra_model)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn none() -> Box<Heard> {
        let zeros = || core::array::from_fn(|_| AtomicU64::new(0));
        let counts = core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0)));
        Box::new(Heard { sources: zeros(), grown_ns: zeros(), counts })
    }

    proptest! {
        /// The model is the highest count of each kind.
        #[test]
        fn what_is_new_adds_up_to_the_highest_counts(
            told in prop::collection::vec((1_u64..8, 0_usize..3, 0_u32..50), 0..200),
            moves_after in 0_usize..200,
        ) {
            let (first, second) = (none(), none());
            let (mut highest, mut sum) = (BTreeMap::new(), BTreeMap::new());
            for (number, (source, kind, count)) in (0..).zip(told) {
                if number == moves_after {
                    second.take_over(&first);
                }
                let heard = if number < moves_after { &first } else { &second };
                // Numbers that differ in one half alone are different sources.
                let source = source << 31;
                let new = heard.hear(source, kind, count, Time(number as u64)).unwrap();
                *sum.entry((source, kind)).or_insert(0) += new;
                let highest = highest.entry((source, kind)).or_insert(0);
                *highest = count.max(*highest);
            }
            prop_assert_eq!(sum, highest);
        }
    }

    #[test]
    fn processes_that_hear_the_same_at_the_same_time_count_it_once() {
        const MOST: u32 = 20_000;
        let heard = none();
        let new: u64 = std::thread::scope(|scope| {
            let heard = &heard;
            let hear = move |step| {
                let each = (1..=MOST).flat_map(move |count| (1..=3).map(move |of| (of, count)));
                let told = each.filter(move |(_, count)| count % step == 0 || *count == MOST);
                told.map(|(of, count)| u64::from(heard.hear(of, 1, count, Time(1)).unwrap()))
                    .sum::<u64>()
            };
            let threads = [1, 2, 3].map(|step| scope.spawn(move || hear(step)));
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(new, 3 * u64::from(MOST));
        assert_eq!(heard.sources.iter().filter(|it| it.load(Ordering::Relaxed) != 0).count(), 3);
    }

    #[test]
    fn the_source_that_was_silent_for_the_longest_time_gives_way() {
        let heard = none();
        let hear =
            |source: u64, count, now| heard.hear(source << 40, 0, count, Time(now)).unwrap();
        let many = SOURCES as u64;
        for source in 1..=many {
            assert_eq!(hear(source, 7, source), 7);
        }
        assert_eq!(hear(1, 9, many + 1), 2, "it has grown last");
        assert_eq!(hear(many + 1, 0, many + 2), 0, "nothing was counted");
        assert_eq!(hear(2, 7, many + 2), 0, "so the second one is still known");
        assert_eq!(hear(many + 1, 3, many + 3), 3, "it counts from 0 in the place of another");
        assert_eq!(hear(1, 9, many + 4), 0);
        assert_eq!(hear(3, 7, many + 4), 0);
        assert_eq!(hear(2, 7, many + 5), 7, "this one was forgotten");
    }

    #[test]
    fn a_kind_that_does_not_exist_is_none() {
        assert_eq!(none().hear(1, HEARD_KINDS, 5, Time(1)), Ok(0));
        assert_eq!(none().hear(1, HEARD_KINDS - 1, u32::MAX, Time(1)), Ok(u32::MAX));
    }

    #[test]
    fn a_sealed_count_goes_on_elsewhere() {
        let (first, second) = (none(), none());
        assert_eq!(first.hear(1 << 40, 3, 7, Time(1)), Ok(7));
        second.take_over(&first);
        assert_eq!(first.hear(1 << 40, 3, 9, Time(2)), Err(Sealed(7)));
        assert_eq!(first.hear(1 << 40, 4, 9, Time(2)), Err(Sealed(0)), "nothing was heard of it");
        assert_eq!(first.hear(2 << 40, 3, 9, Time(2)), Err(Sealed(0)), "nor of this one");
        assert_eq!(second.hear(1 << 40, 3, 9, Time(2)), Ok(2));
    }
}

//! One key's bucket among the eight slots that may hold it: charging it, and opening it when there is none.
//!
//! A key has two candidate lines of four slots. Its bucket is the one slot there that carries its fingerprint
//! and is *confirmed*. A slot whose TAT is not in the future is *idle*: it says the same as a slot never used,
//! so whoever needs one takes it, and nothing is lost. That is all the upkeep a table has.
//!
//! # Charging
//!
//! One exchange of the whole slot: {K, tat} becomes {K, tat + n * T}. It fails only when the slot changed
//! meanwhile. Then we look again: either someone else charged the bucket (at most `burst` such losses, and ours
//! is a denial), or the idle slot went to another key and ours must be opened anew. A denial only reads.
//!
//! # Opening a bucket
//!
//! Two processes that meet a new key at once must not each open a bucket for it. So it is done in two steps:
//!
//! 1. *Announce*: exchange a reclaimable slot for {K, pending, ticket}. No ticket is ever used twice.
//! 2. *Confirm*: exchange that very word for {K, now + n * T}. Allowed only after a fence and a look at all eight
//!    slots that came *after the announcement was seen there*, and that showed no confirmed K; and only for the
//!    announcement of K in the lowest position, after every other one of K was removed.
//!
//! An announcement belongs to nobody. Whoever needs K confirms the lowest one, its own or not, for its own cells;
//! its author finds its word gone and starts over, as does anyone whose word was removed. So nobody waits for
//! anybody: a process killed or stopped between the steps leaves an announcement that the next one with
//! that key completes, and that one with another key takes over once it is [`PENDING_MS`] old.
//!
//! **No key is ever confirmed in two slots.** Say P confirms K in x and Q confirms it in y. Each saw its own
//! announcement, fenced, and looked. The two fences have an order; say P's is first. Then Q's look sees x as P saw
//! it before its fence, or later, never earlier. Where can x be by then?
//!
//! * *Still announced.* If y is the lower position Q must remove the announcement in x before it confirms y, and
//!   as the ticket never comes back, P's exchange fails. If x is the lower, Q confirms x or nothing.
//! * *Confirmed.* Q does not confirm.
//! * *Gone.* Either P never confirms it, or it was confirmed, became idle and was reclaimed: then it is no bucket of
//!   K any more.
//!
//! So at any moment there is at most one. The loom models in `model.rs` go through the interleavings, and
//! fail when the fence, the look, the removal or the uniqueness of the tickets is taken away.
//!
//! **A key's TAT never goes back**, although its bucket may be reclaimed and opened again, because the TAT of a new
//! bucket is counted from a reading of the clock taken after the look. A `now` from before would not do: a
//! process may have been stopped since then, while the bucket drained, was reclaimed, and is now missed. And
//! from "each cell moves the TAT on by T, and no cell conforms unless its TAT is within τ of its now" follows the promise:
//! of the cells with clock readings in an interval of length t, at most `burst + t / T` were allowed.
//!
//! # A table too small
//!
//! When all eight slots are live, the confirmed one with the smallest TAT is taken: it owes least, while those being
//! denied owe most. Its key starts over with a full burst: this is the one way to admit too many,
//! and it is counted.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering as MemoryOrdering};

use crate::quota::{Admission, MAX_DRAIN_NS, Quota};
use crate::slot::{LINE_SLOTS, Line, Slot, Word};
use crate::sync::{Ordering, fence};

/// Slots that may hold a key.
const CANDIDATES: usize = 2 * LINE_SLOTS;

/// The age in milliseconds from which an announcement may be taken by another key. It bounds nothing but how
/// long a dead process's announcement occupies a slot: removing a live one only makes its author start over.
const PENDING_MS: u32 = 10;

/// What the table decided about some cells of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a decision that nobody reads limits nobody"]
pub struct Decision {
    admission: Admission,
    owed_ns: u64,
}

impl Decision {
    /// Whether the cells conform. They were charged if so, and nothing was charged if not.
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Conforming { .. })
    }

    /// For denied cells, after how many nanoseconds they would conform; `None` when they are allowed, or are more
    /// than the burst and never will be.
    pub const fn retry_after_ns(&self) -> Option<u64> {
        match self.admission {
            Admission::Early { wait_ns } => Some(wait_ns),
            Admission::Conforming { .. } | Admission::Oversize => None,
        }
    }

    /// What the key owes after the decision: in so many nanoseconds it will have its full burst again.
    pub const fn owed_ns(&self) -> u64 {
        self.owed_ns
    }

    fn new(admission: Admission, tat: u64, now: u64) -> Self {
        let tat = if let Admission::Conforming { tat } = admission { tat } else { tat };
        Self { admission, owed_ns: tat.saturating_sub(now) }
    }
}

/// What a table too small has cost: see [`Table::evictions`](crate::Table::evictions).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Evictions {
    /// Buckets forgotten while their keys still owed something.
    pub evicted_live: u64,
    /// What those keys owed, in nanoseconds. Divided by the emission interval: the cells that may have been
    /// admitted too many.
    pub forgiven_ns: u64,
}

/// The counters behind [`Evictions`]. They lie in the shared file.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct EvictionCounters {
    evicted_live: AtomicU64,
    forgiven_ns: AtomicU64,
}

impl EvictionCounters {
    fn count(&self, owed_ns: u64) {
        self.evicted_live.fetch_add(1, MemoryOrdering::Relaxed);
        self.forgiven_ns.fetch_add(owed_ns, MemoryOrdering::Relaxed);
    }

    pub(crate) fn read(&self) -> Evictions {
        Evictions {
            evicted_live: self.evicted_live.load(MemoryOrdering::Relaxed),
            forgiven_ns: self.forgiven_ns.load(MemoryOrdering::Relaxed),
        }
    }
}

/// Where one attachment to the table gets the tickets of its announcements.
///
/// A ticket is 27 bits of time in milliseconds, 16 bits that name the attachment, and 20 bits that count. For a
/// ticket to come back, one attachment would have to announce a million keys within a millisecond, or two
/// attachments live at once be 65 536 attachments apart *and* agree in millisecond and count.
#[derive(Debug)]
pub(crate) struct Announcer {
    attachment: u16,
    count: AtomicU32,
}

const STAMP_BITS: u32 = 27;
const STAMP_SHIFT: u32 = 36;
const ATTACHMENT_SHIFT: u32 = 20;
const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;

impl Announcer {
    /// For the `attachment`-th attachment to a table.
    pub(crate) const fn new(attachment: u16) -> Self {
        Self { attachment, count: AtomicU32::new(0) }
    }

    #[cfg(not(gcra_loom))]
    fn ticket(&self, now: u64) -> u64 {
        let count = self.count.fetch_add(1, MemoryOrdering::Relaxed) & ((1 << ATTACHMENT_SHIFT) - 1);
        u64::from(stamp_ms(now)) << STAMP_SHIFT
            | u64::from(self.attachment) << ATTACHMENT_SHIFT
            | u64::from(count)
    }

    /// The models have 31 bits: no time (nothing grows old there), 8 bits of attachment, 8 of count.
    #[cfg(gcra_loom)]
    fn ticket(&self, _now: u64) -> u64 {
        if broken(Mutation::TicketsRepeat) {
            return 0;
        }
        let count = self.count.fetch_add(1, MemoryOrdering::Relaxed);
        u64::from(self.attachment) << 8 | u64::from(count)
    }
}

/// The time in milliseconds (of 2^20 ns), as far as a ticket keeps it: it wraps after 39 hours.
#[expect(clippy::cast_possible_truncation, reason = "masked to 27 bits")]
const fn stamp_ms(now: u64) -> u32 {
    (now >> 20) as u32 & STAMP_MASK
}

/// Whether an announcement is so old that its author is dead or stopped. One from the future is a damaged one.
fn is_stale(ticket: u64, now: u64) -> bool {
    if cfg!(gcra_loom) {
        return false;
    }
    let announced_ms = (ticket >> STAMP_SHIFT) as u32;
    // Clock readings of two processes may be a moment apart either way.
    let age_ms = stamp_ms(now).wrapping_sub(announced_ms).wrapping_add(PENDING_MS) & STAMP_MASK;
    age_ms >= 2 * PENDING_MS
}

/// Whether anyone may take the slot without forgetting anything.
fn is_reclaimable(word: Word, now: u64) -> bool {
    match (word.tat(), word.ticket()) {
        (Some(tat), _) => tat <= now || tat - now > MAX_DRAIN_NS,
        (None, Some(ticket)) => is_stale(ticket, now),
        (None, None) => false,
    }
}

/// A key's place in the table: its fingerprint, and the slots where its bucket may be.
///
/// Positions count through the first line and then the second; every process sees the same ones, because they
/// follow from the hash of the key.
#[derive(Debug)]
pub(crate) struct Bucket<'a> {
    lines: [&'a Line; 2],
    fingerprint: u64,
}

impl<'a> Bucket<'a> {
    /// The bucket of the key with this fingerprint (never 0) in these two lines (never the same).
    #[inline]
    pub(crate) const fn new(lines: [&'a Line; 2], fingerprint: u64) -> Self {
        Self { lines, fingerprint }
    }

    /// Decides about `cells` cells at `now`, and charges them if they conform.
    ///
    /// `clock` is read again where `now` may be too old: before a bucket is opened or found damaged. `now` is brought
    /// forward then, so that the cells decided next are not measured with an older time than this bucket.
    #[inline]
    pub(crate) fn charge(
        &self,
        quota: Quota,
        cells: u32,
        now: &mut u64,
        clock: impl Fn() -> u64,
        announcer: &Announcer,
        evictions: &EvictionCounters,
    ) -> Decision {
        // Ends: see "Charging" and "Opening a bucket" above. A round is lost only to someone who got further.
        loop {
            let Some((slot, word, tat)) = self.find() else {
                match quota.admit(0, *now, cells) {
                    Admission::Conforming { .. } if cells > 0 => {}
                    admission => return Decision::new(admission, *now, *now),
                }
                match self.open(quota, cells, now, &clock, announcer, evictions) {
                    Some(decision) => return decision,
                    None => continue,
                }
            };
            if tat > now.saturating_add(quota.drain_ns()) && self.mend(slot, word, tat, quota, now, &clock) {
                continue;
            }
            let admission = quota.admit(tat, *now, cells);
            let Admission::Conforming { tat: charged } = admission else {
                return Decision::new(admission, tat, *now);
            };
            if cells == 0 || self.exchange(slot, word, Word::confirmed(self.fingerprint, charged)) {
                return Decision::new(admission, tat, *now);
            }
        }
    }

    /// The key's confirmed slot.
    #[inline]
    fn find(&self) -> Option<(&'a Slot, Word, u64)> {
        self.slots().find_map(|slot| {
            let word = slot.load();
            match word.tat() {
                Some(tat) if word.fingerprint() == self.fingerprint => Some((slot, word, tat)),
                _ => None,
            }
        })
    }

    /// Brings back a TAT that this quota can't have led to: the limit was lowered, or the slot is damaged. The bucket
    /// is left owing τ: the next cell conforms, and no burst after it.
    ///
    /// Another process may have charged the bucket at a later time than our `now`, so that is read again first.
    /// False when the TAT is in order by the new reading; true when the slot has changed, whoever did it.
    #[cold]
    fn mend(
        &self,
        slot: &Slot,
        word: Word,
        tat: u64,
        quota: Quota,
        now: &mut u64,
        clock: impl Fn() -> u64,
    ) -> bool {
        *now = clock().max(*now);
        let damaged = tat > now.saturating_add(quota.drain_ns());
        if damaged {
            slot.exchange(word, Word::confirmed(self.fingerprint, *now + quota.burst_tolerance_ns()));
        }
        damaged
    }

    /// Opens the bucket and charges it. `None` when there is one by now: charge that.
    #[cold]
    fn open(
        &self,
        quota: Quota,
        cells: u32,
        now: &mut u64,
        clock: impl Fn() -> u64,
        announcer: &Announcer,
        evictions: &EvictionCounters,
    ) -> Option<Decision> {
        // The announcement that was there before the fence.
        let mut known: Option<(usize, Word)> = None;
        loop {
            if known.is_some() && !broken(Mutation::NoFence) {
                fence(Ordering::SeqCst);
            }
            let words = self.look();
            if !broken(Mutation::NoLook)
                && words.iter().any(|word| self.is_mine(*word) && word.tat().is_some())
            {
                self.remove_announcements(&words, None);
                return None;
            }
            let lowest = words
                .iter()
                .enumerate()
                .find(|(_, word)| self.is_mine(**word) && word.ticket().is_some())
                .map(|(position, word)| (position, *word));
            let Some(lowest) = lowest else {
                known = self.announce(&words, *now, announcer, evictions);
                if broken(Mutation::NoLook)
                    && let Some((position, announced)) = known
                {
                    let tat = *now + quota.emission_interval_ns() * u64::from(cells);
                    if self.slot(position).exchange(announced, Word::confirmed(self.fingerprint, tat)) {
                        return Some(Decision::new(Admission::Conforming { tat }, tat, *now));
                    }
                }
                continue;
            };
            if !self.remove_announcements(&words, Some(lowest.0)) {
                continue;
            }
            if known != Some(lowest) {
                known = Some(lowest);
                continue;
            }
            *now = clock().max(*now);
            let admission = quota.admit(0, *now, cells);
            let Admission::Conforming { tat } = admission else {
                return None;
            };
            if self.slot(lowest.0).exchange(lowest.1, Word::confirmed(self.fingerprint, tat)) {
                return Some(Decision::new(admission, tat, *now));
            }
        }
    }

    /// Announces the bucket in the best slot: a reclaimable one, in the line that has more of them; else the
    /// one that owes least. `None` when that slot changed meanwhile.
    fn announce(
        &self,
        words: &[Word; CANDIDATES],
        now: u64,
        announcer: &Announcer,
        evictions: &EvictionCounters,
    ) -> Option<(usize, Word)> {
        let (first, second) = words.split_at(LINE_SLOTS);
        let free = |line: &[Word]| line.iter().filter(|word| is_reclaimable(**word, now)).count();
        let position = match (free(first), free(second)) {
            (0, 0) => least_owing(words),
            (in_first, in_second) => {
                let start = if in_first >= in_second { 0 } else { LINE_SLOTS };
                (start..CANDIDATES).find(|position| is_reclaimable(words[*position], now)).unwrap_or(start)
            }
        };
        let victim = words[position];
        let announced = Word::pending(self.fingerprint, announcer.ticket(now));
        if !self.slot(position).exchange(victim, announced) {
            return None;
        }
        if let Some(tat) = victim.tat()
            && !is_reclaimable(victim, now)
        {
            evictions.count(tat - now);
        }
        Some((position, announced))
    }

    /// Removes this key's announcements in `words`, but for the one to `keep`. False when one of them has
    /// changed since it was seen.
    fn remove_announcements(&self, words: &[Word; CANDIDATES], keep: Option<usize>) -> bool {
        if broken(Mutation::KeepOthers) {
            return true;
        }
        (0..CANDIDATES)
            .filter(|position| Some(*position) != keep)
            .filter(|position| self.is_mine(words[*position]) && words[*position].ticket().is_some())
            .all(|position| self.slot(position).exchange(words[position], Word::EMPTY))
    }

    fn look(&self) -> [Word; CANDIDATES] {
        core::array::from_fn(|position| self.slot(position).load())
    }

    fn is_mine(&self, word: Word) -> bool {
        word.fingerprint() == self.fingerprint
    }

    fn slot(&self, position: usize) -> &'a Slot {
        &self.lines[position / LINE_SLOTS].slots[position % LINE_SLOTS]
    }

    #[inline]
    fn slots(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        let [first, second] = self.lines;
        first.slots.iter().chain(&second.slots)
    }

    /// The charge's exchange. A model breaks it into a load and a store to see that it is missed.
    #[inline]
    #[expect(clippy::unused_self, reason = "reads as an action on this bucket")]
    fn exchange(&self, slot: &Slot, current: Word, new: Word) -> bool {
        #[cfg(gcra_loom)]
        if broken(Mutation::StoreCharge) {
            let unchanged = slot.load() == current;
            if unchanged {
                slot.store(new);
            }
            return unchanged;
        }
        slot.exchange(current, new)
    }
}

/// The position of the bucket with the smallest TAT; where all are fresh announcements, the first.
fn least_owing(words: &[Word; CANDIDATES]) -> usize {
    words
        .iter()
        .enumerate()
        .filter_map(|(position, word)| word.tat().map(|tat| (tat, position)))
        .min()
        .map_or(0, |(_, position)| position)
}

/// One step of the algorithm taken away, for the models that must notice.
#[cfg_attr(not(gcra_loom), expect(dead_code, reason = "only the models break anything"))]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mutation {
    /// Charge by load and store instead of an exchange.
    StoreCharge,
    /// Confirm without a look after the announcement.
    NoLook,
    /// No fence between the announcement and the look.
    NoFence,
    /// Leave the other announcements of the key in place.
    KeepOthers,
    /// Use one ticket again and again.
    TicketsRepeat,
}

#[cfg(not(gcra_loom))]
const fn broken(_: Mutation) -> bool {
    false
}

#[cfg(gcra_loom)]
static BROKEN: std::sync::Mutex<Option<Mutation>> = std::sync::Mutex::new(None);

/// Takes one step of the algorithm away, or puts all back.
#[cfg(gcra_loom)]
pub(crate) fn mutate(mutation: Option<Mutation>) {
    *BROKEN.lock().unwrap() = mutation;
}

#[cfg(gcra_loom)]
fn broken(mutation: Mutation) -> bool {
    *BROKEN.lock().unwrap() == Some(mutation)
}

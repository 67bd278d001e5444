//! Beginning an ask, which includes opening an entry for a key that has none.
//!
//! An ask is one exchange of the word, from the seen word to the same word with a new number. The
//! number is drawn between the load and the exchange. So of two asks for one key, the one whose
//! exchange comes later has the larger number, and the store ignores the other one if it arrives
//! later. (For this, a word must not look again as it did before an ask: it keeps the number of
//! its latest ask when that has ended.)
//!
//! Two processes that meet a new key at once must not each ask from an entry of their own. Each
//! ask says what *this host* holds, so the lent cells must be in one word. A fresh ask makes the
//! store charge the cells that it has lent before, and they must not be spent afterwards. So an
//! entry is opened as a bucket of the table is (`opening.rs` of the table, with the same proof):
//!
//! 1. *Announce*: exchange the word of the best entry for {K, fresh, number}. Nothing can be spent
//!    from it, and no two announcements have the same number.
//! 2. *Look*: a sequentially consistent fence, and then a load of all words of the set.
//! 3. *Ask*: exchange the announcement, that very word, for one with an ask under way. This is
//!    allowed only if the announcement was seen before the fence, and the look after the fence
//!    showed no words of K except announcements. It is allowed only from the announcement of K in
//!    the lowest position, after every other announcement of K was removed.
//!
//! An announcement belongs to no process, and any process that needs K asks from it. An entry that
//! is fresh and whose ask was void becomes an announcement again. Nothing can be spent from it, no
//! reply to its ask is taken, and its number differs from all that were seen in its place before;
//! so nothing in the proof changes.
//!
//! # Which entry is taken
//!
//! The first entry of these kinds is taken:
//!
//! 1. an entry that was never used;
//! 2. an entry with nothing held, nothing to report and no ask under way, whose key the store does
//!    not keep waiting;
//! 3. the same, but the store keeps its key waiting;
//! 4. an entry whose cells are over, that has cells to report, or whose ask was lost;
//! 5. an announcement;
//! 6. an entry in use.
//!
//! Of several entries of one kind, the one that has not asked for longest is taken. Taking an
//! entry loses what the host knows of its key. The next ask for that key is fresh. Until the held
//! cells would have expired, it is too strict by these cells, and it is never too generous.

// ADR 44: What cannot be lent is charged in the store.

use core::sync::atomic::Ordering::Relaxed;

use gcra_lease::{AskNumber, Base, HostTime, Micros, Packed, RefillHint, Sent, Word};

use crate::leases::set::{MAX_ATTEMPTS, Place, SET_ENTRIES};
use crate::mutation::{Mutation, broken};
use crate::sync::{Ordering, fence};

/// The use of an entry, the best to be taken first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Use {
    Never,
    Settled,
    /// The store has said when to come back.
    Blocked,
    /// Cells that are over, cells to report, or an ask that was lost.
    Over,
    Announced,
    /// Cells that may be spent, or an ask under way.
    Busy,
}

impl Use {
    pub(super) fn of(packed: &Packed, base: Base, now: HostTime, patience: Micros) -> Self {
        let word = packed.word;
        if word.fingerprint() == 0 {
            return Self::Never;
        }
        if word.is_announcement() {
            return Self::Announced;
        }
        let holding = packed.holding(base, now);
        if holding.held(now) > 0 || holding.is_asking(now, patience) {
            Self::Busy
        } else if word.is_asking() || holding.unreported() > 0 {
            Self::Over
        } else if now < holding.come_back() {
            Self::Blocked
        } else {
            Self::Settled
        }
    }
}

impl Place<'_> {
    /// Begins an ask with `step`, which gets the entry and a number. An entry is opened if there
    /// is none and `opens` says so. `None`: there is none, an ask is under way, or `step` does not
    /// ask.
    pub(super) fn begin(
        &self,
        now: HostTime,
        patience: Micros,
        opens: bool,
        step: impl Fn(&Packed, AskNumber) -> Option<(Packed, Sent)>,
    ) -> Option<Sent> {
        let shared = self.memory.shared;
        // The announcement that was there before the fence.
        let mut known: Option<(usize, Word)> = None;
        let early = broken(Mutation::NumberBeforeLoad).then(|| shared.draw());
        for _ in 0..MAX_ATTEMPTS {
            let entries = self.entries();
            if let Some((position, word)) = self.place_to_ask(&entries, known) {
                let packed = self.advised(position, word, now);
                if packed.holding(self.memory.base, now).is_asking(now, patience) {
                    return None;
                }
                let number = early.unwrap_or_else(|| shared.draw());
                let (after, sent) = step(&packed, number)?;
                if self.exchange(position, word, after.word) {
                    self.advise(position, &packed, after);
                    return Some(sent);
                }
                // It has changed, and was not looked at with a fence since.
                known = None;
                continue;
            }
            if !opens {
                return None;
            }
            known = match self.announcements(&entries).next() {
                Some(lowest) if self.remove_announcements(&entries, Some(lowest.0)) => {
                    Some(lowest)
                }
                Some(_) => known,
                None => self.announce(&entries, now, patience),
            };
            if known.is_some() && !broken(Mutation::NoFence) {
                fence(Ordering::SeqCst);
            }
        }
        None
    }

    /// The word from which this key may ask, among entries that were seen after `known` was seen
    /// and a fence.
    fn place_to_ask(
        &self,
        entries: &[Packed; SET_ENTRIES],
        known: Option<(usize, Word)>,
    ) -> Option<(usize, Word)> {
        let mine = self.mine(entries).find(|(_, word)| !word.is_announcement());
        if mine.is_some() && !broken(Mutation::NoLook) {
            // Our announcement must not stay: it would be in the way.
            self.remove_announcements(entries, None);
            return mine;
        }
        let lowest = self.announcements(entries).next()?;
        let is_known = known == Some(lowest) || broken(Mutation::NoLook);
        (is_known && self.remove_announcements(entries, Some(lowest.0))).then_some(lowest)
    }

    fn mine(&self, entries: &[Packed; SET_ENTRIES]) -> impl Iterator<Item = (usize, Word)> {
        let words = entries.iter().map(|packed| packed.word).enumerate();
        words.filter(|(_, word)| word.fingerprint() == self.fingerprint)
    }

    /// This key's announcements, the lowest position first.
    fn announcements(
        &self,
        entries: &[Packed; SET_ENTRIES],
    ) -> impl Iterator<Item = (usize, Word)> {
        self.mine(entries).filter(|(_, word)| word.is_announcement())
    }

    /// Removes this key's announcements that were seen, except the one at `keep`. False if such an
    /// announcement has changed since.
    fn remove_announcements(&self, entries: &[Packed; SET_ENTRIES], keep: Option<usize>) -> bool {
        if broken(Mutation::KeepOthers) {
            return true;
        }
        self.announcements(entries)
            .filter(|(position, _)| Some(*position) != keep)
            .all(|(position, word)| self.exchange(position, word, Word::EMPTY))
    }

    /// Announces the key in the best entry. `None` if that has changed meanwhile.
    fn announce(
        &self,
        entries: &[Packed; SET_ENTRIES],
        now: HostTime,
        patience: Micros,
    ) -> Option<(usize, Word)> {
        let base = self.memory.base;
        let (used, _, position) = entries
            .iter()
            .enumerate()
            .map(|(position, packed)| {
                let is_about = packed.hint.is_about(packed.word);
                let since = is_about.then(|| packed.hint.since());
                (Use::of(packed, base, now, patience), since, position)
            })
            .min()?;
        let victim = entries[position];
        let announced = self.announcement(victim.word);
        if !self.exchange(position, victim.word, announced) {
            return None;
        }
        let seen = RefillHint::seen(announced, base.tick(now));
        self.exchange_hint(position, victim.hint, seen);
        if matches!(used, Use::Over | Use::Busy) {
            self.memory.shared.evicted.fetch_add(1, Relaxed);
        }
        Some((position, announced))
    }

    fn announcement(&self, victim: Word) -> Word {
        let announced = Word::announcement(self.fingerprint, self.memory.shared.draw());
        if broken(Mutation::EvictKeepsHeld) {
            let other_key = (victim.bits() ^ announced.bits()) >> 80 << 80;
            return Word::from_bits(victim.bits() ^ other_key);
        }
        announced
    }

    /// Writes the hint of an ask that was begun from `before`. Cells that were charged meanwhile
    /// are added.
    fn advise(&self, position: usize, before: &Packed, after: Packed) {
        let mut seen = before.hint;
        for _ in 0..MAX_ATTEMPTS {
            let new = if seen.is_about(after.word) {
                // Another process has seen the ask before we came here.
                after.hint.charge(seen.debt())
            } else if seen.is_about(before.word) {
                after.hint.with_debt(seen.debt())
            } else {
                // The entry is another key's by now.
                return;
            };
            if self.exchange_hint(position, seen, new) {
                return;
            }
            seen = RefillHint::from_bits(self.set.hint[position].load_bits());
        }
    }
}

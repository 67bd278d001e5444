//! One key's bucket among the eight slots that may hold it: charging it, opening it when there is
//! none, and moving it to another table.
//!
//! A key has two candidate lines of four slots. Its bucket is the one slot there that carries its
//! fingerprint and is *confirmed*. A slot whose TAT is not in the future is *idle*: it says the
//! same as a slot never used, so whoever needs one takes it, and nothing is lost. That is all the
//! upkeep a table has.
//!
//! # Charging
//!
//! One exchange of the whole slot: {K, tat} becomes {K, tat + n * T}. It fails only when the slot
//! changed meanwhile. Then we look again: either someone else charged the bucket (at most `burst`
//! such losses, and ours is a denial), or the idle slot went to another key and ours must be
//! opened anew. A denial only reads.
//!
//! # Opening a bucket
//!
//! Two processes that meet a new key at once must not each open a bucket for it. So it is done in
//! two steps:
//!
//! 1. *Announce*: exchange a reclaimable slot for {K, pending, ticket}. No ticket is ever used
//!    twice.
//! 2. *Confirm*: exchange that very word for {K, now + n * T}. Allowed only after a fence and a
//!    look at all eight slots that came *after the announcement was seen there*, and that showed
//!    no confirmed K; and only for the announcement of K in the lowest position, after every other
//!    one of K was removed.
//!
//! An announcement belongs to nobody. Whoever needs K confirms the lowest one, its own or not, for
//! its own cells; its author finds its word gone and starts over, as does anyone whose word was
//! removed. So nobody waits for anybody: a process killed or stopped between the steps leaves an
//! announcement that the next one with that key completes, and that one with another key takes
//! over once it is [`PENDING_MS`] old.
//!
//! **No key is ever confirmed in two slots.** Say P confirms K in x and Q confirms it in y. Each
//! saw its own announcement, fenced, and looked. The two fences have an order; say P's is first.
//! Then Q's look sees x as P saw it before its fence, or later, never earlier. Where can x be by
//! then?
//!
//! * *Still announced.* If y is the lower position Q must remove the announcement in x before it
//!   confirms y, and as the ticket never comes back, P's exchange fails. If x is the lower, Q
//!   confirms x or nothing.
//! * *Confirmed.* Q does not confirm.
//! * *Gone.* Either P never confirms it, or it was confirmed, became idle and was reclaimed: then
//!   it is no bucket of K any more.
//!
//! So at any moment there is at most one. The models in `model.rs` go through the interleavings,
//! and fail when the fence, the look, the removal or the uniqueness of the tickets is taken away.
//!
//! **A key's TAT never goes back**, although its bucket may be reclaimed and opened again, because
//! the TAT of a new bucket is counted from a reading of the clock taken after the look. A `now`
//! from before would not do: a process may have been stopped since then, while the bucket drained,
//! was reclaimed, and is now missed. And from "each cell moves the TAT on by T, and no cell
//! conforms unless its TAT is within τ of its now" follows the promise: of the cells with clock
//! readings in an interval of length t, at most `burst + t / T` were allowed. Two operations
//! take it back on purpose: a refund, which undoes a charge nobody has built on, and a reset.
//!
//! **Every operation ends.** A round is lost only to someone who got further: a charge to another
//! charge (after `burst` of those it is a denial), an opening to an announcement, a removal or a
//! confirmation of the same slots. No schedule known loses more than a few; should one lose
//! [`ROUNDS`], the cells are denied and that is counted.
//!
//! # Moving to another table
//!
//! A table that is being resized is sealed slot by slot. A sealed slot never changes again and
//! keeps its last TAT, so a late charge on it fails and nothing is lost between reading it and
//! carrying it over. A key's bucket is here as long as its slot is confirmed. When none is, and
//! one of its eight slots is sealed, the bucket is in the successor: whoever opens it there first
//! seals the rest of the eight here, reads the last TAT of the key, and opens the bucket with
//! that, not with an idle one. So a cell charged here counts there, and none counts twice.
//!
//! *Carrying brings no old TAT back.* The resizer may be stopped between the seal and the opening.
//! Meanwhile an agent can open the bucket in the successor, which drains and is reclaimed there;
//! the sealed TAT is then older than what the key has reached. So a bucket is carried only if its
//! sealed TAT is after a reading of the clock that was taken after the look. Say the key had a
//! bucket in the successor before that look. Its TAT was not below the sealed one, so it is live
//! at that reading too, and the look finds it unless it was evicted, which is counted.
//!
//! *After the move nothing is inherited.* Once every bucket was carried, the resizer writes that
//! down (`complete`), and from then on a key without a bucket in the successor is idle, or was
//! evicted or reset there. A process that is still on the old file must not open the bucket with
//! the sealed TAT then: it would undo the reset. So it reads `complete` after its last look, with
//! an acquire fence between them, and a reset has a release fence before its exchange: a look that
//! finds a key reset also finds that the move is complete. A look from before the reset is of no
//! use for the confirmation, because the bucket was there in between ("No key is ever confirmed in
//! two slots").
//!
//! # A table too small
//!
//! When all eight slots are live, the confirmed one with the smallest TAT is taken: it owes least,
//! while those being denied owe most. Its key starts over with a full burst: this is the one way
//! to admit too many, and it is counted.

use core::cmp;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering as MemoryOrdering};

use crate::quota::{Admission, MAX_DRAIN_NS, Quota};
use crate::region::prefetch;
use crate::slot::{LINE_SLOTS, Line, Slot, Word};
use crate::sync::{Ordering, fence};

/// Slots that may hold a key.
const CANDIDATES: usize = 2 * LINE_SLOTS;

/// The age in milliseconds, by the clock reading of its author, from which an announcement may be
/// taken by another key. It bounds nothing but how long a dead process's announcement occupies a
/// slot: removing a live one only makes its author start over.
const PENDING_MS: u32 = 10;

/// Rounds that an operation may lose before it gives up. The models get along with fewer, and fail
/// beyond.
const ROUNDS: u32 = if cfg!(gcra_model) { 24 } else { 10_000 };

/// What a key is to be charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) quota: Quota,
    pub(crate) cells: u32,
    /// The key is taken to have at least this TAT: what it owed under other numbers, brought over
    /// to these.
    pub(crate) least_tat: u64,
}

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

    /// For denied cells, after how many nanoseconds they would conform; `None` when they are
    /// allowed, or are more than the burst and never will be.
    pub const fn retry_after_ns(&self) -> Option<u64> {
        match self.admission {
            Admission::Early { wait_ns } => Some(wait_ns),
            Admission::Conforming { .. } | Admission::Oversize => None,
        }
    }

    /// What the key owes after the decision: in so many nanoseconds it will have its full burst
    /// again.
    pub const fn owed_ns(&self) -> u64 {
        self.owed_ns
    }

    /// The TAT that the charge led to.
    pub(crate) const fn charged_tat(&self) -> Option<u64> {
        match self.admission {
            Admission::Conforming { tat } => Some(tat),
            Admission::Early { .. } | Admission::Oversize => None,
        }
    }

    pub(crate) fn new(admission: Admission, tat: u64, now: u64) -> Self {
        let tat = if let Admission::Conforming { tat } = admission { tat } else { tat };
        Self { admission, owed_ns: tat.saturating_sub(now) }
    }

    /// What can't be decided is denied: too strict, and never too generous.
    pub(crate) const fn undecidable(quota: Quota) -> Self {
        let wait_ns = quota.emission_interval_ns();
        Self { admission: Admission::Early { wait_ns }, owed_ns: quota.drain_ns() }
    }
}

/// What a table too small has cost: see [`Table::evictions`](crate::Table::evictions).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Evictions {
    /// Buckets forgotten while their keys still owed something.
    pub evicted_live: u64,
    /// What those keys owed, in nanoseconds. Divided by the emission interval: the cells that may
    /// have been admitted too many.
    pub forgiven_ns: u64,
}

/// Counted by all who use the table. They lie in the shared file.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Counters {
    evicted_live: AtomicU64,
    forgiven_ns: AtomicU64,
    /// Operations that lost all their [`ROUNDS`].
    gave_up: AtomicU64,
}

/// What [`Counters`] have counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counted {
    pub(crate) evictions: Evictions,
    pub(crate) gave_up: u64,
}

impl Counted {
    /// Both, put together by `combine`, number by number.
    pub(crate) fn with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let (mine, others) = (self.evictions, other.evictions);
        Self {
            evictions: Evictions {
                evicted_live: combine(mine.evicted_live, others.evicted_live),
                forgiven_ns: combine(mine.forgiven_ns, others.forgiven_ns),
            },
            gave_up: combine(self.gave_up, other.gave_up),
        }
    }
}

impl Counters {
    fn evicted(&self, owed_ns: u64) {
        self.evicted_live.fetch_add(1, MemoryOrdering::Relaxed);
        self.forgiven_ns.fetch_add(owed_ns, MemoryOrdering::Relaxed);
    }

    /// An operation has lost all its rounds.
    #[cold]
    fn gave_up(&self) {
        #[cfg(gcra_model)]
        panic!("an operation lost {ROUNDS} rounds");
        #[cfg(not(gcra_model))]
        self.gave_up.fetch_add(1, MemoryOrdering::Relaxed);
    }

    pub(crate) fn counted(&self) -> Counted {
        Counted {
            evictions: Evictions {
                evicted_live: self.evicted_live.load(MemoryOrdering::Relaxed),
                forgiven_ns: self.forgiven_ns.load(MemoryOrdering::Relaxed),
            },
            gave_up: self.gave_up.load(MemoryOrdering::Relaxed),
        }
    }

    /// Brings each number up to what was counted elsewhere. It can be done again, and by several
    /// processes at once.
    pub(crate) fn raise_to(&self, counted: Counted) {
        let Counted { evictions: Evictions { evicted_live, forgiven_ns }, gave_up } = counted;
        self.evicted_live.fetch_max(evicted_live, MemoryOrdering::Relaxed);
        self.forgiven_ns.fetch_max(forgiven_ns, MemoryOrdering::Relaxed);
        self.gave_up.fetch_max(gave_up, MemoryOrdering::Relaxed);
    }
}

/// Where one attachment to the table gets the tickets of its announcements.
///
/// A ticket is 18 bits of time in milliseconds, 16 bits that name the attachment, and 28 bits that
/// count. One that comes back harms only if somebody still holds the first, having stood still
/// between a look and an exchange. Meanwhile the attachment would have to announce a multiple of
/// 268 million keys to the very number, the last one of the same key in the same slot, and in the
/// same millisecond of 275 s (or by a thread of it that stood still as long, between reading the
/// clock and announcing). Or two attachments would have to live at once that are 65 536 apart
/// *and* agree in millisecond and count.
#[derive(Debug)]
pub(crate) struct Announcer {
    attachment: u16,
    count: AtomicU32,
}

const STAMP_BITS: u32 = 18;
const STAMP_SHIFT: u32 = 44;
const ATTACHMENT_SHIFT: u32 = 28;
const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;

impl Announcer {
    /// For the `attachment`-th attachment to a table.
    pub(crate) const fn new(attachment: u16) -> Self {
        Self { attachment, count: AtomicU32::new(0) }
    }

    /// The number of the attachment.
    pub(crate) const fn attachment(&self) -> u16 {
        self.attachment
    }

    #[cfg(not(gcra_model))]
    fn ticket(&self, now: u64) -> u64 {
        let count =
            self.count.fetch_add(1, MemoryOrdering::Relaxed) & ((1 << ATTACHMENT_SHIFT) - 1);
        u64::from(stamp_ms(now)) << STAMP_SHIFT
            | u64::from(self.attachment) << ATTACHMENT_SHIFT
            | u64::from(count)
    }

    /// The models have 31 bits: no time (nothing grows old there), 8 bits of attachment, 8 of
    /// count.
    #[cfg(gcra_model)]
    fn ticket(&self, _now: u64) -> u64 {
        if broken(Mutation::TicketsRepeat) {
            return 0;
        }
        let count = self.count.fetch_add(1, MemoryOrdering::Relaxed);
        u64::from(self.attachment) << 8 | u64::from(count)
    }
}

/// The time in milliseconds (of 2^20 ns), as far as a ticket keeps it: it wraps after four and a
/// half minutes.
#[expect(clippy::cast_possible_truncation, reason = "masked to 18 bits")]
const fn stamp_ms(now: u64) -> u32 {
    (now >> 20) as u32 & STAMP_MASK
}

/// Whether an announcement is so old that its author is dead or stopped, or had read its clock
/// long before. (For 20 ms of each four and a half minutes a dead one looks young once more, and
/// its slot is not free for as long.)
fn is_stale(ticket: u64, now: u64) -> bool {
    #[cfg(gcra_model)]
    if cfg!(gcra_model) {
        return changes().announcements_are_old;
    }
    let announced_ms = (ticket >> STAMP_SHIFT) as u32;
    // Clock readings of two processes may be a moment apart either way.
    let age_ms = stamp_ms(now).wrapping_sub(announced_ms).wrapping_add(PENDING_MS) & STAMP_MASK;
    age_ms >= 2 * PENDING_MS
}

/// Whether anyone may take the slot without forgetting anything.
fn is_reclaimable(word: Word, now: u64) -> bool {
    match (word.tat(), word.ticket()) {
        // A sound TAT is no further ahead than the longest drain time of the clock; `now` may be a
        // reading from before.
        (Some(tat), _) => tat <= now || tat - now > 2 * MAX_DRAIN_NS,
        (None, Some(ticket)) => is_stale(ticket, now),
        // Sealed, and by nobody who is resizing this table: damaged.
        (None, None) => true,
    }
}

/// What the operations on a bucket need beside its slots.
#[derive(Debug)]
pub(crate) struct Context<'a, C> {
    /// Reads the table's clock.
    pub(crate) clock: C,
    pub(crate) announcer: &'a Announcer,
    pub(crate) counters: &'a Counters,
    /// Not zero once the table is being moved to another one. Set before the first slot is
    /// sealed.
    pub(crate) successor: &'a AtomicU32,
    /// Not zero once all buckets of the table before this one were carried over.
    pub(crate) complete: &'a AtomicU32,
    /// The same key in the table that this one is taking over from.
    pub(crate) predecessor: Option<Bucket<'a>>,
}

impl<C: Fn() -> u64> Context<'_, C> {
    /// Brings `now` forward to what the clock says.
    fn refresh(&self, now: &mut u64) {
        *now = (self.clock)().max(*now);
    }

    /// Whether the seal on a slot means something. In a table that nobody moves it is damage.
    fn is_moving(&self) -> bool {
        // With the release in `seal`: whoever sees a seal sees that the table is being moved.
        fence(Ordering::Acquire);
        self.successor.load(MemoryOrdering::Relaxed) != 0
    }

    /// The key in the table before this one, as long as its bucket may still be there. Asked after
    /// a look.
    fn moving_from(&self) -> Option<&Bucket<'_>> {
        let predecessor = self.predecessor.as_ref()?;
        // With the release in `reset`: a look that finds a key reset also finds that the move is
        // complete.
        fence(Ordering::Acquire);
        let complete = self.complete.load(MemoryOrdering::Relaxed) != 0;
        let inherits = !complete || broken(Mutation::InheritsAfterTheMove);
        (inherits && !broken(Mutation::NothingInherited)).then_some(predecessor)
    }
}

/// The bucket is not in this table any more, but in its successor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Moved;

/// What came of opening a bucket.
enum Opening<D> {
    /// It was opened with this TAT.
    Opened(u64),
    /// It was not needed.
    Decided(D),
    /// There is one by now.
    Exists,
    Moved,
    GaveUp,
}

/// A key's place in the table: its fingerprint, and the slots where its bucket may be.
///
/// Positions count through the first line and then the second; every process sees the same ones,
/// because they follow from the hash of the key.
#[derive(Clone, Copy, Debug)]
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

    /// Decides about some cells at `now`, and charges them if they conform: the usual case, in
    /// which the key has a bucket and nobody else changes it now. `None` in any other.
    #[inline]
    pub(crate) fn try_charge(&self, charge: Charge, now: u64) -> Option<Decision> {
        let (slot, word, tat) = self.find()?;
        self.charge_found(slot, word, tat, charge, now)
    }

    #[inline]
    fn charge_found(
        &self,
        slot: &Slot,
        word: Word,
        tat: u64,
        charge: Charge,
        now: u64,
    ) -> Option<Decision> {
        let Charge { quota, cells, least_tat } = charge;
        if is_damaged(tat, now, quota) {
            return None;
        }
        let tat = tat.max(least_tat);
        let admission = quota.admit(tat, now, cells);
        match admission {
            Admission::Conforming { tat: charged } if cells > 0 => {
                let new = Word::confirmed(self.fingerprint, charged);
                self.exchange(slot, word, new).then(|| Decision::new(admission, tat, now))
            }
            _ => Some(Decision::new(admission, tat, now)),
        }
    }

    /// As [`try_charge`](Self::try_charge), whatever is the case.
    ///
    /// The clock is read again where `now` may be too old: before a bucket is opened or found
    /// damaged. `now` is brought forward then, so that the cells decided next are not measured
    /// with an older time than this bucket.
    #[inline]
    pub(crate) fn charge<C: Fn() -> u64>(
        &self,
        charge: Charge,
        now: &mut u64,
        context: &Context<'_, C>,
    ) -> Result<Decision, Moved> {
        for _ in 0..ROUNDS {
            let look = self.look();
            let Some((position, tat)) = look.bucket() else {
                match self.open_and_charge(look, charge, now, context) {
                    Opening::Opened(tat) => {
                        return Ok(Decision::new(Admission::Conforming { tat }, tat, *now));
                    }
                    Opening::Decided(decision) => return Ok(decision),
                    Opening::Exists => continue,
                    Opening::Moved => return Err(Moved),
                    Opening::GaveUp => break,
                }
            };
            let (slot, word) = (self.slot(position), look.words[position]);
            match self.charge_found(slot, word, tat, charge, *now) {
                Some(decision) => return Ok(decision),
                None => self.mend(slot, word, tat, charge.quota, now, context),
            }
        }
        context.counters.gave_up();
        Ok(Decision::undecidable(charge.quota))
    }

    /// Takes back a charge of `cost_ns` that led to `charged_tat`. Only if nobody has changed the
    /// bucket since: whoever charged it after us may have been denied less than it should, had
    /// ours not been there, but never allowed more. False when it was too late, and the cells
    /// stay charged.
    ///
    /// Subtracting `cost_ns` from whatever is there would not do: our cells may have drained
    /// meanwhile, and then it would be somebody else's that are given back.
    pub(crate) fn refund(&self, charged_tat: u64, cost_ns: u64) -> bool {
        let charged = Word::confirmed(self.fingerprint, charged_tat);
        let before = Word::confirmed(self.fingerprint, charged_tat.saturating_sub(cost_ns));
        if broken(Mutation::RefundWithoutLook) {
            if let Some((slot, word, tat)) = self.find() {
                slot.exchange(
                    word,
                    Word::confirmed(self.fingerprint, tat.min(before.tat().unwrap_or(0))),
                );
            }
            return true;
        }
        self.find()
            .is_some_and(|(slot, word, _)| word == charged && slot.exchange(charged, before))
    }

    /// The bucket's TAT, 0 when there is no bucket. Changes nothing.
    pub(crate) fn tat<C: Fn() -> u64>(&self, context: &Context<'_, C>) -> Result<u64, Moved> {
        let look = self.look();
        match look.bucket() {
            Some((_, tat)) => Ok(tat),
            None if look.is_moved(context) => Err(Moved),
            None => Ok(0),
        }
    }

    /// Forgives the key all it owes, and returns the TAT it had (0 when there was no bucket). Only
    /// in a table that nothing is being carried to.
    pub(crate) fn reset<C: Fn() -> u64>(&self, context: &Context<'_, C>) -> Result<u64, Moved> {
        // Who sees the reset must see that the move before it is complete, and inherit nothing.
        fence(Ordering::Release);
        for _ in 0..ROUNDS {
            let look = self.look();
            match look.bucket() {
                Some((position, tat)) => {
                    if broken(Mutation::ResetStores) {
                        #[cfg(gcra_model)]
                        self.slot(position).store(Word::EMPTY);
                        return Ok(tat);
                    }
                    if self.slot(position).exchange(look.words[position], Word::EMPTY) {
                        return Ok(tat);
                    }
                }
                None if look.is_moved(context) => return Err(Moved),
                None => return Ok(0),
            }
        }
        context.counters.gave_up();
        Ok(0)
    }

    /// Opens the bucket with the TAT that it had in another table, if it still owes something by a
    /// clock reading from after the look. Where there is a bucket by now, that one was opened
    /// with this TAT.
    pub(crate) fn carry<C: Fn() -> u64>(&self, tat: u64, now: &mut u64, context: &Context<'_, C>) {
        let owes = |now: u64| tat > now || broken(Mutation::CarriesWhatHasDrained);
        let first_tat = |now: u64| if owes(now) { Ok(tat) } else { Err(()) };
        if let Opening::GaveUp = self.open(self.look(), now, context, first_tat) {
            context.counters.gave_up();
        }
    }

    /// Seals the eight slots, and returns the last TAT of the key here (0 when there was no
    /// bucket).
    pub(crate) fn seal(&self) -> u64 {
        self.slots()
            .map(seal)
            .filter(|word| word.fingerprint() == self.fingerprint)
            .filter_map(Word::sealed_tat)
            .max()
            .unwrap_or(0)
    }

    /// Whether `slot` is one of the eight.
    pub(crate) fn may_be_in(&self, slot: &Slot) -> bool {
        self.slots().any(|candidate| core::ptr::eq(candidate, slot))
    }

    /// The key's confirmed slot.
    #[inline]
    fn find(&self) -> Option<(&'a Slot, Word, u64)> {
        // Otherwise a bucket in the second line costs two fetches from memory, one after the
        // other.
        prefetch(self.lines[1]);
        self.slots().find_map(|slot| {
            let word = slot.load();
            match word.tat() {
                Some(tat) if word.fingerprint() == self.fingerprint => Some((slot, word, tat)),
                _ => None,
            }
        })
    }

    /// Brings back a TAT that this quota can't have led to: the slot is damaged. (No other quota
    /// charges this bucket, because the numbers of a quota are part of the fingerprint.) The
    /// bucket is left owing τ: the next cell conforms, and no burst after it.
    ///
    /// Another process may have charged the bucket at a later time than our `now`, so that is read
    /// again first.
    fn mend<C: Fn() -> u64>(
        &self,
        slot: &Slot,
        word: Word,
        tat: u64,
        quota: Quota,
        now: &mut u64,
        context: &Context<'_, C>,
    ) {
        if !is_damaged(tat, *now, quota) {
            return;
        }
        context.refresh(now);
        if is_damaged(tat, *now, quota) {
            slot.exchange(
                word,
                Word::confirmed(self.fingerprint, *now + quota.burst_tolerance_ns()),
            );
        }
    }

    /// Opens the bucket with `cells` cells charged, unless they don't conform.
    #[inline]
    fn open_and_charge<C: Fn() -> u64>(
        &self,
        look: Look,
        charge: Charge,
        now: &mut u64,
        context: &Context<'_, C>,
    ) -> Opening<Decision> {
        let Charge { quota, cells, least_tat } = charge;
        self.open(look, now, context, |now| {
            // What the key owes to the table before this one, it owes here.
            let tat = context.moving_from().map_or(0, Bucket::seal).max(least_tat);
            match quota.admit(tat, now, cells) {
                Admission::Conforming { tat } if cells > 0 => Ok(tat),
                admission => Err(Decision::new(admission, tat.max(now), now)),
            }
        })
    }

    /// Opens the bucket that a first look did not find, with the TAT that `first_tat` gives for a
    /// reading of the clock from after the last look; or not at all if it decides so.
    #[inline]
    fn open<C: Fn() -> u64, D>(
        &self,
        mut look: Look,
        now: &mut u64,
        context: &Context<'_, C>,
        first_tat: impl Fn(u64) -> Result<u64, D>,
    ) -> Opening<D> {
        // The announcement that was there before the fence.
        let mut known: Option<(usize, Word)> = None;
        for round in 0..ROUNDS {
            if !broken(Mutation::NoLook) && look.bucket().is_some() {
                self.remove_announcements(&look, None);
                return Opening::Exists;
            }
            if look.is_moved(context) {
                return Opening::Moved;
            }
            if let Some(lowest) = look.announcements().next() {
                if self.remove_announcements(&look, Some(lowest.0)) {
                    if known == Some(lowest) {
                        context.refresh(now);
                        match first_tat(*now) {
                            Err(decision) => return Opening::Decided(decision),
                            Ok(tat) => {
                                let bucket = Word::confirmed(self.fingerprint, tat);
                                if self.slot(lowest.0).exchange(lowest.1, bucket) {
                                    return Opening::Opened(tat);
                                }
                            }
                        }
                    }
                    known = Some(lowest);
                }
            } else {
                if round > 0 {
                    // Ours is gone: to others it may look old, and theirs to us as if from the
                    // future.
                    context.refresh(now);
                }
                // Nothing is announced for cells that don't conform.
                if let Err(decision) = first_tat(*now) {
                    return Opening::Decided(decision);
                }
                known = self.announce(&look, now, context);
                if broken(Mutation::NoLook)
                    && let (Some((position, announced)), Ok(tat)) = (known, first_tat(*now))
                    && self
                        .slot(position)
                        .exchange(announced, Word::confirmed(self.fingerprint, tat))
                {
                    return Opening::Opened(tat);
                }
            }
            if known.is_some() && !broken(Mutation::NoFence) {
                fence(Ordering::SeqCst);
            }
            look = self.look();
        }
        Opening::GaveUp
    }

    /// Announces the bucket in the best slot: of the line that has more reclaimable ones, the one
    /// used least recently; else the one that owes least. `None` when that slot changed
    /// meanwhile.
    #[inline]
    fn announce<C: Fn() -> u64>(
        &self,
        look: &Look,
        now: &mut u64,
        context: &Context<'_, C>,
    ) -> Option<(usize, Word)> {
        let position = look.reclaimable(*now).or_else(|| {
            // Something may have become so since the caller read the clock.
            context.refresh(now);
            look.reclaimable(*now)
        });
        let position = position.unwrap_or_else(|| self.least_owing(look));
        let victim = look.words[position];
        let announced = Word::pending(self.fingerprint, context.announcer.ticket(*now));
        if !self.slot(position).exchange(victim, announced) {
            return None;
        }
        if let Some(tat) = victim.tat()
            && !is_reclaimable(victim, *now)
        {
            context.counters.evicted(tat - *now);
        }
        Some((position, announced))
    }

    /// The position of the bucket with the smallest TAT. Where all are fresh announcements, one
    /// that other keys are unlikely to choose as well.
    #[cold]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of candidates")]
    fn least_owing(&self, look: &Look) -> usize {
        let words = look.words.iter().enumerate();
        let owing = words.filter_map(|(position, word)| word.tat().map(|tat| (tat, position)));
        owing
            .min()
            .map_or((self.fingerprint % CANDIDATES as u64) as usize, |(_, position)| position)
    }

    /// Removes this key's announcements that were seen, but for the one to `keep`. False when one
    /// of them has changed since.
    #[inline]
    fn remove_announcements(&self, look: &Look, keep: Option<usize>) -> bool {
        if broken(Mutation::KeepOthers) {
            return true;
        }
        look.announcements()
            .filter(|(position, _)| Some(*position) != keep)
            .all(|(position, announced)| self.slot(position).exchange(announced, Word::EMPTY))
    }

    /// Loads the eight slots, one after another.
    #[inline]
    fn look(&self) -> Look {
        let mut look =
            Look { words: [Word::EMPTY; CANDIDATES], buckets: 0, announcements: 0, sealed: 0 };
        for position in 0..CANDIDATES {
            let word = self.slot(position).load();
            look.words[position] = word;
            let mine = word.fingerprint() == self.fingerprint;
            look.buckets |= u8::from(mine & word.tat().is_some()) << position;
            look.announcements |= u8::from(mine & word.ticket().is_some()) << position;
            look.sealed |= u8::from(word.sealed_tat().is_some()) << position;
        }
        look
    }

    #[inline]
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
        #[cfg(gcra_model)]
        if broken(Mutation::StoreCharge) {
            let unchanged = slot.load() == current;
            if unchanged {
                slot.store(new);
            }
            return unchanged;
        }
        #[cfg(gcra_model)]
        if broken(Mutation::HalfExchange) {
            return slot.exchange_low_half(current, new);
        }
        slot.exchange(current, new)
    }
}

/// The eight slots as they were seen, one after another, and what there is of the key: a bit for
/// each position.
#[derive(Clone, Copy, Debug)]
struct Look {
    words: [Word; CANDIDATES],
    /// Its confirmed slot. (Damage can make it more than one.)
    buckets: u8,
    announcements: u8,
    /// Slots of any key that were moved to another table.
    sealed: u8,
}

impl Look {
    /// Where the key's bucket is, and its TAT.
    #[inline]
    fn bucket(&self) -> Option<(usize, u64)> {
        let position = positions(self.buckets).next()?;
        self.words[position].tat().map(|tat| (position, tat))
    }

    /// The key's announcements, the lowest first.
    #[inline]
    fn announcements(&self) -> impl Iterator<Item = (usize, Word)> {
        positions(self.announcements).map(|position| (position, self.words[position]))
    }

    /// Whether the key's bucket has gone to another table: its slots here are no longer for it.
    #[inline]
    fn is_moved<C: Fn() -> u64>(&self, context: &Context<'_, C>) -> bool {
        self.sealed != 0 && context.is_moving()
    }

    /// The slot to reclaim: in the line that has more of them, so that both fill alike, the one
    /// with the smallest TAT, so that who comes back finds its own. Of two lines that have as
    /// many the one that has such a slot.
    #[inline]
    fn reclaimable(&self, now: u64) -> Option<usize> {
        let mut best: [Option<(u64, usize)>; 2] = [None; 2];
        let mut free = [0; 2];
        for (position, word) in self.words.iter().enumerate() {
            if is_reclaimable(*word, now) {
                let line = position / LINE_SLOTS;
                free[line] += 1;
                let used = (word.tat().unwrap_or(0), position);
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
}

/// The places of the bits that are set, the lowest first.
#[inline]
fn positions(mut bits: u8) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let lowest = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (lowest < CANDIDATES).then_some(lowest)
    })
}

/// Whether a TAT lies further in the future than the quota can have led to.
#[inline]
fn is_damaged(tat: u64, now: u64, quota: Quota) -> bool {
    // Should the clocks of two CPUs not agree to the nanosecond, a sound TAT must not be taken for
    // a damaged one.
    const SLACK_NS: u64 = 1_000_000;
    tat > now.saturating_add(quota.most_owed_ns() + SLACK_NS)
}

/// Seals a slot, and returns what it holds now and for ever.
pub(crate) fn seal(slot: &Slot) -> Word {
    // Whoever sees the seal must see the flag that gives it its meaning.
    fence(Ordering::Release);
    // Ends: a slot is exchanged only by someone whose charge or opening succeeds.
    loop {
        let word = slot.load();
        if word.sealed_tat().is_some() {
            return word;
        }
        if broken(Mutation::SealStores) {
            #[cfg(gcra_model)]
            slot.store(word.sealed());
            return word.sealed();
        }
        if slot.exchange(word, word.sealed()) {
            return word.sealed();
        }
    }
}

/// One step of the algorithm taken away, for the models that must notice.
#[cfg_attr(not(gcra_model), expect(dead_code, reason = "only the models break anything"))]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mutation {
    /// Charge by load and store instead of an exchange.
    StoreCharge,
    /// Charge by an exchange of the TAT alone, as with two words of 64 bits.
    HalfExchange,
    /// Confirm without a look after the announcement.
    NoLook,
    /// No fence between the announcement and the look.
    NoFence,
    /// Leave the other announcements of the key in place.
    KeepOthers,
    /// Use one ticket again and again.
    TicketsRepeat,
    /// Refund whatever the bucket holds by now.
    RefundWithoutLook,
    /// Reset by a store instead of an exchange.
    ResetStores,
    /// Seal by a store instead of an exchange.
    SealStores,
    /// Open a bucket in the successor without asking the predecessor.
    NothingInherited,
    /// Ask the predecessor also when all was carried over.
    InheritsAfterTheMove,
    /// Carry a bucket over that has drained since it was sealed.
    CarriesWhatHasDrained,
}

#[cfg(not(gcra_model))]
const fn broken(_: Mutation) -> bool {
    false
}

#[cfg(gcra_model)]
pub(crate) use modelling::{Changes, changes, model_with};

#[cfg(gcra_model)]
fn broken(mutation: Mutation) -> bool {
    changes().mutation == Some(mutation)
}

/// What the models change in the code. It is one for the process, so they run one at a time.
#[cfg(gcra_model)]
mod modelling {
    use super::Mutation;
    use std::sync::{Mutex, PoisonError};

    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Changes {
        pub(crate) mutation: Option<Mutation>,
        /// Other keys may take an announcement. Time stands still in a model, so it is told.
        pub(crate) announcements_are_old: bool,
        /// Slots are loaded by an exchange that changes nothing.
        pub(crate) loads_are_exchanges: bool,
    }

    static CHANGES: Mutex<Changes> = Mutex::new(Changes {
        mutation: None,
        announcements_are_old: false,
        loads_are_exchanges: false,
    });
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    pub(crate) fn model_with(changes: Changes, model: impl FnOnce()) {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        *CHANGES.lock().unwrap() = changes;
        model();
    }

    pub(crate) fn changes() -> Changes {
        *CHANGES.lock().unwrap()
    }
}

//! Opening a bucket for a key that has none.
//!
//! Two processes that meet a new key at once must not each open a bucket for it. So a bucket is
//! opened in two steps, with a look between them:
//!
//! 1. *Announce*: exchange a reclaimable slot for {K, pending, ticket}. No ticket is ever used
//!    twice.
//! 2. *Look*: a sequentially consistent fence, and then a load of all eight slots.
//! 3. *Confirm*: exchange the announcement, that very word, for {K, now + n * T}. This is allowed
//!    only if the announcement was seen before the fence, and the look after the fence showed no
//!    confirmed K. It is allowed only for the announcement of K in the lowest position, after
//!    every other announcement of K was removed.
//!
//! An announcement belongs to no process. Any process that needs K confirms the lowest one, its
//! own or not, for its own cells. Its author then finds that its word is gone and starts over, as
//! does any process whose word was removed. So no process waits for another.
//!
//! # What a process killed there leaves behind
//!
//! * *Before the announcement*: nothing.
//! * *Between the announcement and the confirmation*: a pending slot, and no cell charged. The
//!   next process that needs K completes it. A process that needs the slot for another key takes
//!   it over once it is [stale](crate::bucket::ticket::is_stale).
//! * *After the confirmation*: a bucket, with the cells charged. At most those cells were charged
//!   and never answered.
//!
//! # No key is ever confirmed in two slots
//!
//! Say P confirms K in x and Q confirms it in y. Each of them saw the announcement that it
//! confirms, fenced, and looked. The two fences have an order; say P's is first. Then Q's look
//! sees x as P saw it before its fence, or later than that, never earlier. What can x be by then?
//!
//! 1. *Still announced.* If y is the lower position, Q must remove the announcement in x before it
//!    confirms y, and as the ticket never comes back, P's exchange fails. If x is the lower
//!    position, Q confirms x or nothing.
//! 2. *Confirmed.* Then Q does not confirm.
//! 3. *Gone.* Either P never confirms it, or it was confirmed, became idle and was reclaimed: then
//!    it is not a bucket of K any more.
//!
//! In all cases there is at most one confirmed slot of K at any moment. The models in `model.rs`
//! go through the interleavings, and fail if the fence, the look, the removal, or the uniqueness
//! of the tickets is taken away.
//!
//! # A key's TAT never goes back
//!
//! A bucket may be reclaimed and opened again. The TAT of a new bucket is counted from a reading
//! of the clock that was taken after the look. An older reading would not do. The process may have
//! been stopped since it took the reading, while the bucket drained and was reclaimed. Then the
//! look misses the bucket. Each cell moves the TAT on by T, and a cell conforms only if the TAT is
//! within τ of its now. So of the cells with clock readings in an interval of length t, at most
//! `burst + t / T` are allowed. Three operations take a TAT back on purpose: a refund, giving
//! cells back later (`give_back.rs`), and a reset. A refund undoes a charge on which no other
//! charge was built.
//!
//! # A table too small
//!
//! If all eight slots are live, the confirmed one that owes the smallest part of its own limit is
//! taken (`burst_class.rs`), because a key that is being denied owes about the whole. Its key
//! starts over with a full burst. This is the one way in which too much is allowed, and it is
//! counted.

// ADR 19: An announcement belongs to no process.
// ADR 20: A bucket is opened at a fresh reading of the clock.
// ADR 26: When the table is full, the smallest part of a limit is evicted.
// ADR 27: Of reclaimable slots the oldest is taken.

use crate::bucket::context::Context;
use crate::bucket::look::{SeenSlots, is_reclaimable};
use crate::bucket::{Bucket, MAX_ATTEMPTS};
use crate::mutation::{Mutation, broken};
use crate::slot::Word;
use crate::sync::{Ordering, fence};
use crate::time::{Reading, Time};

pub(crate) enum Opening<D> {
    /// It was opened with this TAT.
    Opened(Time),
    /// It was not needed.
    Decided(D),
    /// There is one by now.
    Exists,
    /// It is in the successor of the table.
    Moved,
    GaveUp,
}

impl Bucket<'_> {
    /// Opens the bucket that a first look did not find. It gets the TAT that `first_tat` gives for
    /// a reading of the clock from after the last look. If `first_tat` gives a decision instead,
    /// the bucket is not opened.
    #[inline]
    pub(crate) fn open<C: Fn() -> Time, D>(
        &self,
        mut look: SeenSlots,
        now: &mut Reading,
        context: &Context<'_, C>,
        first_tat: impl Fn(Time) -> Result<Time, D>,
    ) -> Opening<D> {
        // The announcement that was there before the fence.
        let mut known: Option<(usize, Word)> = None;
        for attempt in 0..MAX_ATTEMPTS {
            if !broken(Mutation::NoLook) && look.bucket().is_some() {
                // Another process was faster. Our announcement must not stay: it would be in the
                // way until it is stale.
                self.remove_announcements(&look, None);
                return Opening::Exists;
            }
            if context.is_moved(&look) {
                return Opening::Moved;
            }
            if let Some(lowest) = look.announcements().next() {
                // Step 3. Only the lowest may be confirmed, and the others must go first.
                if self.remove_announcements(&look, Some(lowest.0)) {
                    // The fence came after it was seen, and this look after the fence.
                    if known == Some(lowest) {
                        // The TAT is counted from a reading that was taken after the look.
                        context.refresh(now);
                        match first_tat(now.time()) {
                            Err(decision) => return Opening::Decided(decision),
                            Ok(tat) => {
                                let bucket = self.confirmed(tat);
                                if self.slot(lowest.0).exchange(lowest.1, bucket) {
                                    return Opening::Opened(tat);
                                }
                            }
                        }
                    }
                    known = Some(lowest);
                }
            } else {
                if attempt > 0 {
                    // Ours was taken. Perhaps it looked old to the other process, and its own
                    // looks to us as if from the future: our reading is old.
                    context.refresh(now);
                }
                // Nothing is announced for cells that do not conform.
                if let Err(decision) = first_tat(now.time()) {
                    return Opening::Decided(decision);
                }
                // Step 1.
                known = self.announce(&look, now, context);
                if broken(Mutation::NoLook)
                    && let (Some((position, announced)), Ok(tat)) = (known, first_tat(now.time()))
                    && self.slot(position).exchange(announced, self.confirmed(tat))
                {
                    return Opening::Opened(tat);
                }
            }
            // Step 2. An announcement that is not known before the fence is not confirmed in the
            // next attempt, so the fence can be spared.
            if known.is_some() && !broken(Mutation::NoFence) {
                fence(Ordering::SeqCst);
            }
            look = self.look();
        }
        Opening::GaveUp
    }

    /// Announces the bucket in the best slot: one that can be reclaimed, else the one that owes
    /// the smallest part of its limit. `None` if that slot has changed meanwhile.
    #[inline]
    fn announce<C: Fn() -> Time>(
        &self,
        look: &SeenSlots,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) -> Option<(usize, Word)> {
        let position = look.reclaimable(now.time()).or_else(|| {
            // A slot may have become idle since the caller read the clock.
            context.refresh(now);
            look.reclaimable(now.time())
        });
        // If all eight are fresh announcements: one that other keys are unlikely to choose as
        // well.
        let position = position.unwrap_or_else(|| {
            look.least_owing(now.time()).unwrap_or_else(|| self.arbitrary_position())
        });
        let victim = look.word(position);
        let announced = Word::pending(self.fingerprint(), context.announcer.ticket(now.time()));
        if !self.slot(position).exchange(victim, announced) {
            return None;
        }
        // A process killed here has evicted a bucket that is not counted.
        if let Some(tat) = victim.tat()
            && !is_reclaimable(victim, now.time())
        {
            context.counters.evicted(tat.saturating_since(now.time()));
        }
        Some((position, announced))
    }

    /// Removes this key's announcements that were seen, except the one at `keep`. False if such an
    /// announcement has changed since.
    #[inline]
    fn remove_announcements(&self, look: &SeenSlots, keep: Option<usize>) -> bool {
        if broken(Mutation::KeepOthers) {
            return true;
        }
        look.announcements()
            .filter(|(position, _)| Some(*position) != keep)
            .all(|(position, announced)| self.slot(position).exchange(announced, Word::EMPTY))
    }
}

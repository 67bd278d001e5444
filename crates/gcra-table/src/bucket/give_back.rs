//! Giving cells back that were charged some time ago.
//!
//! One exchange: {K, tat} becomes {K, tat - n * T}, but not below now: time alone pays off debts,
//! and a key never has more than its full burst. The exchange fails only if the slot has changed
//! since it was read, and then we look again, as a charge does (`charge.rs`).
//!
//! **Cells that are given back were charged, and count once.** Let the cells that are charged less
//! those that are given back be the *net* cells. Each exchange moves the TAT by the cells that it
//! charges or gives back, and time pays off at most t / T cells in a time t. So in any time t the
//! net cells are the sum of two amounts. One is the debt at the end less the debt at the
//! beginning, and the other is the debt that was paid off. This sum is at most `burst + t / T` if
//! no cell was charged beyond the burst.
//!
//! It is another thing to take back a charge on which no other was built (`Bucket::refund`): that
//! is as if the charge had never been. Cells that are given back later may have kept others away
//! meanwhile, and the time in which they were paid off has passed.
//!
//! **While the table is resized** the bucket may be sealed, and not opened in the successor yet.
//! Then it is opened there with the rest of the sealed TAT. If that bucket drains and its slot is
//! taken before the resize is complete, the sealed TAT may come back. Then nothing was given back:
//! that is too strict, and never too generous.
//!
//! A process killed before the exchange has given nothing back; after it, all.

// ADR 52: A denied request gives back what has not drained.

use core::cell::Cell;

use crate::bucket::context::{Context, Moved};
use crate::bucket::opening::Opening;
use crate::bucket::{Bucket, MAX_ATTEMPTS};
use crate::mutation::{Mutation, broken};
use crate::sync::{Ordering, fence};
use crate::time::{Nanos, Reading, Time};

impl Bucket<'_> {
    /// Gives back what some cells cost, as far as the key owes it. Returns how much that was, and
    /// the TAT after it; zero if the key owes nothing.
    pub(crate) fn give_back<C: Fn() -> Time>(
        &self,
        cost: Nanos,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) -> Result<(Nanos, Time), Moved> {
        for _ in 0..MAX_ATTEMPTS {
            let look = self.look();
            if let Some((position, tat)) = look.bucket() {
                let left = left_of(tat, cost, now.time());
                if broken(Mutation::GivesBackByAStore) {
                    #[cfg(gcra_model)]
                    self.slot(position).store(self.confirmed(left));
                    return Ok((tat.saturating_since(left), left));
                }
                let (word, new) = (look.word(position), self.confirmed(left));
                if left == tat || self.slot(position).exchange(word, new) {
                    return Ok((tat.saturating_since(left), left));
                }
                continue;
            }
            // The debt of the key to the table before this one is owed here.
            let inherited = Cell::new(Time::ZERO);
            let opening = self.open(look, now, context, |now| {
                let tat = context.moving_from().map_or(Time::ZERO, Bucket::seal);
                inherited.set(tat);
                let left = left_of(tat, cost, now);
                // Also if nothing is left: the sealed TAT must not be found any more.
                if tat > now { Ok(left) } else { Err(left) }
            });
            match opening {
                Opening::Opened(left) => {
                    return Ok((inherited.get().saturating_since(left), left));
                }
                Opening::Decided(left) => {
                    // The bucket may have been carried over after the look. Pairs with the release
                    // in which the move is written down as complete, if that was seen.
                    fence(Ordering::Acquire);
                    if self.find().is_none() {
                        return Ok((Nanos::ZERO, left));
                    }
                }
                Opening::Exists => {}
                Opening::Moved => return Err(Moved),
                Opening::GaveUp => break,
            }
        }
        context.counters.gave_up();
        Ok((Nanos::ZERO, Time::ZERO))
    }
}

/// The rest of a TAT when `cost` is given back.
fn left_of(tat: Time, cost: Nanos, now: Time) -> Time {
    tat.saturating_sub(cost).max(now).min(tat)
}

//! Charging a bucket, and taking a charge back.
//!
//! A charge is one exchange of the whole slot: {K, tat} becomes {K, tat + n * T}. A denial only
//! reads. The exchange fails only if the slot has changed since it was read. What can it be then?
//!
//! 1. *Charged by another process.* We look again. After at most `burst` such losses the cells are
//!    denied.
//! 2. *Refunded or reset.* We look again, and find the bucket owing less, or none.
//! 3. *Taken for another key*, because it was idle or was evicted. Our bucket must be opened anew
//!    (`opening.rs`).
//! 4. *Sealed*, because the table is being resized. Our bucket is in the successor (`seal.rs`).
//!
//! A process killed before its exchange has charged nothing. Killed after it, it leaves cells that
//! were charged and perhaps never answered. In all cases the exchange and the decision agree on
//! the TAT: no cell is allowed without being charged.

// ADR 18: A slot is 128 bits and changes whole.

use crate::bucket::context::{Context, Moved};
use crate::bucket::look::SeenSlots;
use crate::bucket::opening::Opening;
use crate::bucket::{Bucket, MAX_ATTEMPTS};
use crate::cpu::Loads;
use crate::decision::Decision;
use crate::mutation::{Mutation, broken};
use crate::quota::{Admission, Quota};
use crate::slot::{Line, Slot, Word};
use crate::time::{Nanos, Reading, Time};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ToCharge<'q> {
    /// By reference, because it is larger than what is needed of it.
    pub(crate) quota: &'q Quota,
    pub(crate) cells: u32,
    /// The key is taken to have at least this TAT: what it owed under another quota, carried over
    /// to this one.
    pub(crate) least_tat: Time,
}

impl Bucket<'_> {
    /// Decides about some cells at `now`, and charges them if they conform to the bucket with this
    /// fingerprint in two lines that were asked for before: the usual case, in which the key has a
    /// bucket and no other process changes it at this moment. `None` in any other case.
    #[inline(always)]
    pub(crate) fn try_charge(
        lines: [&Line; 2],
        fingerprint: u64,
        charge: ToCharge<'_>,
        now: Time,
        cpu: Loads,
    ) -> Option<Decision> {
        let (slot, word, tat) = Bucket::find_fetched(lines, fingerprint, cpu)?;
        Self::charge_found(slot, word, tat, charge, now)
    }

    #[inline]
    fn charge_found(
        slot: &Slot,
        word: Word,
        tat: Time,
        charge: ToCharge<'_>,
        now: Time,
    ) -> Option<Decision> {
        let ToCharge { quota, cells, least_tat } = charge;
        if is_damaged(tat, now, *quota) {
            return None;
        }
        let tat = tat.max(least_tat);
        let admission = quota.admit(tat, now, cells);
        match admission {
            Admission::Conforming { tat: charged } if cells > 0 => {
                Self::exchange(slot, word, word.with_value(charged))
                    .then(|| Decision::new(admission, tat, now))
            }
            _ => Some(Decision::new(admission, tat, now)),
        }
    }

    /// As [`try_charge`](Self::try_charge), in every case. The clock is read again before a bucket
    /// is opened, and before one is taken for damaged.
    #[inline]
    pub(crate) fn charge<C: Fn() -> Time>(
        &self,
        charge: ToCharge<'_>,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) -> Result<Decision, Moved> {
        for _ in 0..MAX_ATTEMPTS {
            let look = self.look();
            let Some((position, tat)) = look.bucket() else {
                match self.open_and_charge(look, charge, now, context) {
                    Opening::Opened(tat) => {
                        let admission = Admission::Conforming { tat };
                        return Ok(Decision::new(admission, tat, now.time()));
                    }
                    Opening::Decided(decision) => return Ok(decision),
                    Opening::Exists => continue,
                    Opening::Moved => return Err(Moved),
                    Opening::GaveUp => break,
                }
            };
            let (slot, word) = (self.slot(position), look.word(position));
            match Self::charge_found(slot, word, tat, charge, now.time()) {
                Some(decision) => return Ok(decision),
                None => self.mend(slot, word, tat, *charge.quota, now, context),
            }
        }
        context.counters.gave_up();
        Ok(Decision::undecidable(*charge.quota))
    }

    /// Opens the bucket with the cells charged, unless they do not conform.
    #[inline]
    fn open_and_charge<C: Fn() -> Time>(
        &self,
        look: SeenSlots,
        charge: ToCharge<'_>,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) -> Opening<Decision> {
        let ToCharge { quota, cells, least_tat } = charge;
        self.open(look, now, context, |now| {
            // The debt of the key to the table before this one is owed here.
            let tat = context.moving_from().map_or(Time::ZERO, Bucket::seal).max(least_tat);
            match quota.admit(tat, now, cells) {
                Admission::Conforming { tat } if cells > 0 => Ok(tat),
                admission => Err(Decision::new(admission, tat.max(now), now)),
            }
        })
    }

    /// Repairs a TAT that this quota cannot have led to: the slot is damaged. (No other quota
    /// charges this bucket, because the numbers of a quota are part of the fingerprint.) The
    /// bucket is left owing τ: the next cell conforms, and no burst after it.
    ///
    /// Another process may have charged the bucket at a time later than our `now`, so the clock is
    /// read again first.
    fn mend<C: Fn() -> Time>(
        &self,
        slot: &Slot,
        word: Word,
        tat: Time,
        quota: Quota,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) {
        if !is_damaged(tat, now.time(), quota) {
            return;
        }
        context.refresh(now);
        if is_damaged(tat, now.time(), quota) {
            let mended = now.time().saturating_add(quota.burst_tolerance());
            slot.exchange(word, self.confirmed(mended));
        }
    }

    /// Takes back a charge of `cost` that led to `charged_tat`, if the bucket has not changed
    /// since. A process that charged it after us may have been denied, because of our charge, what
    /// it could have had; but it was never allowed more than without it. False if it was too late,
    /// and the cells stay charged.
    ///
    /// It would be wrong to subtract `cost` from the TAT that the bucket has by now. Our cells may
    /// have drained meanwhile, and then the cells of another process would be given back.
    pub(crate) fn refund(&self, charged_tat: Time, cost: Nanos) -> bool {
        let charged = self.confirmed(charged_tat);
        let before = self.confirmed(charged_tat.saturating_sub(cost));
        if broken(Mutation::RefundWithoutLook) {
            if let Some((slot, word, tat)) = self.find() {
                slot.exchange(word, self.confirmed(tat.min(before.tat().unwrap_or_default())));
            }
            return true;
        }
        self.find()
            .is_some_and(|(slot, word, _)| word == charged && slot.exchange(charged, before))
    }

    /// The TAT of the bucket, zero if there is no bucket. Changes nothing.
    pub(crate) fn tat<C: Fn() -> Time>(&self, context: &Context<'_, C>) -> Result<Time, Moved> {
        let look = self.look();
        match look.bucket() {
            Some((_, tat)) => Ok(tat),
            None if context.is_moved(&look) => Err(Moved),
            None => Ok(Time::ZERO),
        }
    }
}

/// Whether a TAT is further in the future than the quota can have led to.
#[inline]
fn is_damaged(tat: Time, now: Time, quota: Quota) -> bool {
    // The clocks of two CPUs may differ by some nanoseconds. A sound TAT must not be taken for a
    // damaged one.
    const SLACK: Nanos = Nanos::from_millis(1);
    tat > now.saturating_add(quota.most_owed() + SLACK)
}

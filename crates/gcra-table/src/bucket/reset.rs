//! Forgetting what a key owes.
//!
//! One exchange: the slot of the key's bucket becomes empty. A process killed before it has reset
//! nothing; after it, all.
//!
//! **After a move nothing is inherited.** Once every bucket of the table before this one was
//! carried over, the resizer writes that down (`complete`). From then on a key without a bucket is
//! idle, or was evicted or reset in this table. A process that still uses the old file must not
//! open the bucket with the sealed TAT then: that would undo the reset. So it reads `complete`
//! after its last look, with an acquire fence between them, and a reset has a release fence before
//! its exchange. There are two cases:
//!
//! 1. *Its look came after the reset.* Then it also finds that the move is complete, and inherits
//!    nothing.
//! 2. *Its look came before the reset.* Then it saw the bucket, which was there until the reset. A
//!    look that shows a confirmed bucket is of no use for a confirmation (`opening.rs`), so the
//!    process looks again.
//!
//! In both cases the key stays reset.

// ADR 18: A slot is 128 bits and changes whole.

use crate::bucket::context::{Context, Moved};
use crate::bucket::{Bucket, MAX_ATTEMPTS};
use crate::mutation::{Mutation, broken};
use crate::slot::Word;
use crate::sync::{Ordering, fence};
use crate::time::Time;

impl Bucket<'_> {
    /// Forgives the key all it owes, and returns the TAT it had (zero if there was no bucket).
    /// Only in a table to which nothing is being carried.
    pub(crate) fn reset<C: Fn() -> Time>(&self, context: &Context<'_, C>) -> Result<Time, Moved> {
        // A process that sees the reset must see that the move before it is complete.
        fence(Ordering::Release);
        for _ in 0..MAX_ATTEMPTS {
            let look = self.look();
            match look.bucket() {
                Some((position, tat)) => {
                    if broken(Mutation::ResetStores) {
                        #[cfg(gcra_model)]
                        self.slot(position).store(Word::EMPTY);
                        return Ok(tat);
                    }
                    if self.slot(position).exchange(look.word(position), Word::EMPTY) {
                        return Ok(tat);
                    }
                }
                None if context.is_moved(&look) => return Err(Moved),
                None => return Ok(Time::ZERO),
            }
        }
        context.counters.gave_up();
        Ok(Time::ZERO)
    }
}

//! Carrying a bucket over to the table that takes over from its own.
//!
//! The resizer seals a slot in the old table and opens its bucket in the new one. It may be
//! stopped between the two for any time. What can have happened to the key in the new table
//! meanwhile?
//!
//! 1. *Nothing.* The bucket is opened with the sealed TAT.
//! 2. *Another process opened it*, with the sealed TAT and perhaps charged it since. The look
//!    finds it, and nothing is carried.
//! 3. *It was opened, drained, and its slot was reclaimed.* The sealed TAT is then older than what
//!    the key has reached, and must not come back. So a bucket is carried only if its sealed TAT
//!    is after a reading of the clock that was taken after the look. Say the key had a bucket in
//!    the new table before that look. Its TAT was not below the sealed one, so it would still be
//!    live at that reading, and the look would have found it, unless it was evicted, which is
//!    counted.
//!
//! A process killed at any of these points leaves the debt in the sealed slot, and the next
//! resizer carries it. While the key owes anything by the sealed TAT, its TAT in the new table is
//! never below the sealed one. It also never goes back.

// ADR 22: A resize seals slots.

use crate::bucket::Bucket;
use crate::bucket::context::Context;
use crate::bucket::opening::Opening;
use crate::mutation::{Mutation, broken};
use crate::time::{Reading, Time};

impl Bucket<'_> {
    /// Opens the bucket with the TAT that it had in another table, if it still owes something by a
    /// reading of the clock from after the look. If there is a bucket by now, it was opened with
    /// this TAT.
    pub(crate) fn carry<C: Fn() -> Time>(
        &self,
        tat: Time,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) {
        let owes = |now: Time| tat > now || broken(Mutation::CarriesWhatHasDrained);
        let first_tat = |now: Time| if owes(now) { Ok(tat) } else { Err(()) };
        if let Opening::GaveUp = self.open(self.look(), now, context, first_tat) {
            context.counters.gave_up();
        }
    }
}

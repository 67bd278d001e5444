//! The cells that the requests of a client cost if no response settles them.
//!
//! A client has two buckets for them, one for terms with an even number and one for those with an
//! odd one. In the place of the TAT each has an expiry, a sum of cells, and the term in which the
//! cells were added. Five bits tell the term. So the sum and the term change together, in one
//! exchange:
//!
//! * a request *adds* its cells in the term in which it came;
//! * its response *removes* them, if the bucket still has that term;
//! * a later request *takes* all cells of a term that is over for a whole term, and charges them.
//!
//! **Cells are removed or taken, and once.** Each step exchanges the word that it has read for one
//! with fewer cells. So of two processes that take the same cells, and of a response that comes at
//! that moment, one finds the word changed, and looks again.
//!
//! **Nobody is charged too early.** A term whose number differs by two or more is over for at
//! least a whole term. Five bits tell 32 terms of one bucket apart, and half of these terms count
//! as earlier. So 32 terms after the last request, and for 32 terms more, old cells look as if
//! they were new or from the future. Then they are not taken yet, and a request that adds to them
//! gives them its own term.
//!
//! A process killed between the taking and the charge has forgiven these cells. While the table is
//! resized, a bucket is opened in the successor with the cells of the sealed bucket
//! (`give_back.rs` has the argument). If that bucket is evicted before the resize is complete, the
//! sealed cells come back: too strict, and never too generous.

// ADR 51: What no response settles is charged with a later request.

use core::cell::Cell;
use core::time::Duration;

use crate::bucket::context::{Context, Moved};
use crate::bucket::opening::Opening;
use crate::bucket::{Bucket, MAX_ATTEMPTS};
use crate::burst_class::Class;
use crate::key::KeyHash;
use crate::quota::scramble;
use crate::slot::BucketId;
use crate::sync::{Ordering, fence};
use crate::time::{Reading, Time};
use crate::used::Used;

/// The bits that tell terms apart, below the sum.
pub(crate) const TERM_BITS: u32 = 5;
const TERMS: u64 = 1 << TERM_BITS;

/// The most cells of a client that are kept for one term. Cells above that are forgiven.
pub const MOST_UNSETTLED: u32 = (1 << 28) - 1;

/// A stretch of the wall clock: a multiple of its length after 1970 and what follows. Cells are
/// overdue once the term after theirs is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Term(pub(crate) u64);

impl Term {
    /// The term of this length in which a moment lies, which is given as the time since 1970.
    pub fn at(moment: Duration, length: Duration) -> Self {
        let number = moment.as_nanos() / length.as_nanos().max(1);
        Self(u64::try_from(number).unwrap_or(u64::MAX))
    }

    /// This term, and the one before it.
    pub(crate) fn last_two(self) -> [Self; 2] {
        [self, Self(self.0.wrapping_sub(1))]
    }

    /// The id of the bucket for the cells that a key gets in this term.
    pub(crate) const fn bucket_id(self, key: KeyHash) -> BucketId {
        // The third step tells it from the salt of any quota, and from that of a window.
        let salt = scramble(scramble(scramble(self.0 % 2) ^ 0x756e_7365_7474));
        BucketId::new(key.0 ^ salt, Class::COUNT)
    }

    /// The term as its bucket tells it from others.
    const fn tag(self) -> u64 {
        self.0 / 2 % TERMS
    }
}

/// The cells of a client that no response has settled yet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct UnsettledCells {
    /// Those that responses may still settle.
    pub open: u32,
    /// Those that the next request takes.
    pub overdue: u32,
}

/// The content of a bucket, in the place of a TAT: as a count in a window, with the sum and the
/// term in the place of the count.
#[derive(Clone, Copy)]
pub(crate) struct Content(pub(crate) Used);

impl Content {
    pub(crate) const fn in_bucket(value: Time) -> Self {
        Self(Used::in_bucket(value))
    }

    #[expect(clippy::cast_possible_truncation, reason = "28 bits")]
    pub(crate) const fn cells(self) -> u32 {
        (self.0.cells() >> TERM_BITS) as u32
    }

    /// The same with other cells, of this term.
    pub(crate) const fn with(self, cells: u32, term: Term) -> Time {
        let cells = if cells > MOST_UNSETTLED { MOST_UNSETTLED } else { cells };
        self.0.with_cells((cells as u64) << TERM_BITS | term.tag()).to_value()
    }

    /// How many terms of the bucket lie between its own and this one, 0 if its own is not earlier.
    pub(crate) const fn terms_before(self, term: Term) -> u64 {
        let before = term.tag().wrapping_sub(self.0.cells()) % TERMS;
        if before < TERMS / 2 { before } else { 0 }
    }

    /// Whether its cells were added in this term.
    pub(crate) const fn is_of(self, term: Term) -> bool {
        self.0.cells() % TERMS == term.tag()
    }
}

impl Bucket<'_> {
    /// Puts what `change` gives for the content into its place: [`Time::ZERO`] is a bucket that is
    /// not there. Returns what was there before; `None` if nothing was to be changed, or if it
    /// could not be.
    pub(crate) fn change<C: Fn() -> Time>(
        &self,
        change: impl Fn(Time) -> Option<Time>,
        now: &mut Reading,
        context: &Context<'_, C>,
    ) -> Result<Option<Time>, Moved> {
        for _ in 0..MAX_ATTEMPTS {
            let look = self.look();
            if let Some((position, value)) = look.bucket() {
                let Some(after) = change(value) else { return Ok(None) };
                if Self::exchange(self.slot(position), look.word(position), self.confirmed(after))
                {
                    return Ok(Some(value));
                }
                continue;
            }
            // The content in the table before this one.
            let inherited = Cell::new(Time::ZERO);
            let opening = self.open(look, now, context, |now| {
                let sealed = context.moving_from().map_or(Time::ZERO, Bucket::seal);
                inherited.set(if sealed > now { sealed } else { Time::ZERO });
                change(inherited.get()).ok_or(())
            });
            match opening {
                Opening::Opened(_) => return Ok(Some(inherited.get())),
                Opening::Decided(()) => {
                    // The bucket may have been carried over after the look. Pairs with the release
                    // in which the move is written down as complete, if that was seen.
                    fence(Ordering::Acquire);
                    if self.find().is_none() {
                        return Ok(None);
                    }
                }
                Opening::Exists => {}
                Opening::Moved => return Err(Moved),
                Opening::GaveUp => break,
            }
        }
        context.counters.gave_up();
        Ok(None)
    }
}

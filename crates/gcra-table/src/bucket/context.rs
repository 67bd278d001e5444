//! The context of the operations on a bucket, besides its slots: the clock, the counters, and
//! whether the table is being moved.

// ADR 20: A bucket is opened at a fresh reading of the clock.

use core::sync::atomic::{AtomicU32, Ordering as MemoryOrdering};

use crate::bucket::Bucket;
use crate::bucket::look::SeenSlots;
use crate::bucket::ticket::Announcer;
use crate::counters::Counters;
use crate::mutation::{Mutation, broken};
use crate::sync::{Ordering, fence};
use crate::time::{Reading, Time};

/// The context of the operations on a bucket, besides its slots.
#[derive(Debug)]
pub(crate) struct Context<'a, C> {
    /// Reads the table's clock.
    pub(crate) clock: C,
    pub(crate) announcer: &'a Announcer,
    pub(crate) counters: &'a Counters,
    /// Not zero from when the table is being moved to another one. Set before the first slot is
    /// sealed.
    pub(crate) successor: &'a AtomicU32,
    /// Not zero from when all buckets of the table before this one were carried over.
    pub(crate) complete: &'a AtomicU32,
    /// The same key in the table that this one is taking over from.
    pub(crate) predecessor: Option<Bucket<'a>>,
}

impl<C: Fn() -> Time> Context<'_, C> {
    /// Reads the clock again.
    pub(crate) fn refresh(&self, now: &mut Reading) {
        now.advance_to((self.clock)());
    }

    /// Whether the key's bucket has gone to another table: its slots here no longer serve it. A
    /// seal in a table that is not being moved is damage, and means nothing.
    #[inline]
    pub(crate) fn is_moved(&self, look: &SeenSlots) -> bool {
        look.has_seals() && self.is_moving()
    }

    fn is_moving(&self) -> bool {
        // Pairs with the release in `seal`: a process that sees a seal also sees that the table is
        // being moved.
        fence(Ordering::Acquire);
        self.successor.load(MemoryOrdering::Relaxed) != 0
    }

    /// The key in the table before this one, as long as its bucket may still be there. To be
    /// called after a look.
    pub(crate) fn moving_from(&self) -> Option<&Bucket<'_>> {
        let predecessor = self.predecessor.as_ref()?;
        // Pairs with the release in `reset`: a look that finds a key reset also finds that the
        // move is complete.
        fence(Ordering::Acquire);
        let complete = self.complete.load(MemoryOrdering::Relaxed) != 0;
        let inherits = !complete || broken(Mutation::InheritsAfterTheMove);
        (inherits && !broken(Mutation::NothingInherited)).then_some(predecessor)
    }
}

/// The bucket is not in this table any more, but in its successor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Moved;

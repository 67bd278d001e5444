//! The cost of requests that no response settles: `bucket/unsettled.rs` says how it is kept.

// ADR 51: What no response settles is charged with a later request.

use crate::bucket::Bucket;
use crate::bucket::unsettled::{Content, MOST_UNSETTLED, TERM_BITS, Term, UnsettledCells};
use crate::key::KeyHash;
use crate::slot::BucketId;
use crate::table::Table;
use crate::time::{Reading, Time};
use crate::used::Used;

impl Table {
    /// Adds cells that a request of `key` costs if no response settles it.
    ///
    /// They are kept for an hour after `until`, at least. `most` is about how much the key is
    /// allowed at once: by this number a full table compares these cells with the debts of others.
    /// False if the table could not take them.
    pub fn add_unsettled(
        &self,
        key: KeyHash,
        term: Term,
        cells: u32,
        (until, most): (Time, u32),
        now: &mut Reading,
    ) -> bool {
        // The term takes the lowest bits of the sum.
        let none = Used::none(until, most.saturating_mul(1 << TERM_BITS));
        let add = |value| {
            let before = Content::in_bucket(value);
            let sum = before.cells().saturating_add(cells).min(MOST_UNSETTLED);
            Some(Content(before.0.joined_with(none)).with(sum, term))
        };
        self.change_unsettled(term.bucket_id(key), add, now).is_some()
    }

    /// Removes cells that were added in this term, because a response has settled them. False
    /// if they are not there any more: they were [taken](Self::take_overdue), or forgotten.
    pub fn remove_unsettled(
        &self,
        key: KeyHash,
        term: Term,
        cells: u32,
        now: &mut Reading,
    ) -> bool {
        let remove = |value| {
            let before = Content::in_bucket(value);
            let left = before.cells().checked_sub(cells).filter(|_| before.is_of(term))?;
            Some(before.with(left, term))
        };
        self.change_unsettled(term.bucket_id(key), remove, now).is_some()
    }

    /// Takes the cells that no response has settled by the end of the term after theirs, so
    /// that the caller charges them. Nobody else gets them.
    pub fn take_overdue(&self, key: KeyHash, term: Term, now: &mut Reading) -> u32 {
        let mut taken = 0_u32;
        for term in term.last_two() {
            let take = |value| {
                let before = Content::in_bucket(value);
                let is_overdue = before.cells() > 0 && before.terms_before(term) > 0;
                is_overdue.then(|| before.with(0, term))
            };
            let id = term.bucket_id(key);
            // Mostly there is nothing to be taken.
            if take(self.tat_of(id)).is_some()
                && let Some(before) = self.change_unsettled(id, take, now)
            {
                taken = taken.saturating_add(Content::in_bucket(before).cells());
            }
        }
        taken
    }

    /// The cells of `key` that no response has settled yet. Changes nothing.
    pub fn unsettled(&self, key: KeyHash, term: Term) -> UnsettledCells {
        let mut unsettled = UnsettledCells::default();
        for term in term.last_two() {
            let content = Content::in_bucket(self.tat_of(term.bucket_id(key)));
            match content.terms_before(term) {
                0 => unsettled.open = unsettled.open.saturating_add(content.cells()),
                _ => unsettled.overdue = unsettled.overdue.saturating_add(content.cells()),
            }
        }
        unsettled
    }

    /// Forgets them, and returns how many there were. `None` while the table is being
    /// resized, as for [`reset`](Self::reset).
    #[must_use]
    pub fn reset_unsettled(&self, key: KeyHash) -> Option<u32> {
        let [even, odd] = [0, 1].map(|number| {
            let value = self.reset_bucket(Term(number).bucket_id(key))?;
            Some(Content::in_bucket(value).cells())
        });
        Some(even?.saturating_add(odd?))
    }

    fn change_unsettled(
        &self,
        id: BucketId,
        change: impl Fn(Time) -> Option<Time>,
        now: &mut Reading,
    ) -> Option<Time> {
        let changed = self.follow(id, |table, before| {
            let bucket: Bucket<'_> = table.bucket(id);
            bucket.change(&change, now, &table.context(before))
        });
        changed.flatten()
    }
}

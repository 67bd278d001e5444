//! Where a key's bucket may be, found once for the fetch from memory and for the charge.

// ADR 21: A bucket's place follows from its fingerprint.

use crate::bucket::Bucket;
use crate::bucket::charge::ToCharge;
use crate::cpu::prefetch;
use crate::decision::Decision;
use crate::key::KeyHash;
use crate::quota::Quota;
use crate::slot::{BucketId, Line};
use crate::table::Table;
use crate::time::{Reading, Time};

/// The place of a key's bucket under a quota, from [`Table::place`].
#[derive(Clone, Copy, Debug)]
pub struct BucketPlace<'t> {
    lines: [&'t Line; 2],
    fingerprint: u64,
}

impl Table {
    /// Finds the place of a key's bucket under this quota, and starts to fetch it from memory.
    ///
    /// This and [`charge_at`](Self::charge_at) are [`prefetch`](Self::prefetch) and
    /// [`charge`](Self::charge) in fewer steps.
    #[inline(always)]
    pub fn place(&self, key: KeyHash, quota: &Quota) -> BucketPlace<'_> {
        let bucket = self.bucket(key.bucket_id(*quota));
        let lines @ [first, second] = bucket.lines();
        prefetch(first);
        prefetch(second);
        BucketPlace { lines, fingerprint: bucket.id().fingerprint }
    }

    /// Decides about `cells` cells of the key with this place, and charges them if they are
    /// allowed: see [`charge_owing`](Self::charge_owing).
    ///
    /// The place must belong to this table and this quota. It says nothing about another table or
    /// quota, and other processes would not see a charge there.
    #[inline(always)]
    pub fn charge_at(
        &self,
        place: &BucketPlace<'_>,
        quota: &Quota,
        cells: u32,
        now: &mut Reading,
        least_tat: Time,
    ) -> Decision {
        let BucketPlace { lines, fingerprint } = *place;
        debug_assert!(
            std::ptr::eq(lines[0], self.candidate_lines(fingerprint)[0]),
            "a place of this table, under this quota"
        );
        let charge = ToCharge { quota, cells, least_tat };
        match Bucket::try_charge(lines, fingerprint, charge, now.time(), self.loads) {
            Some(decision) => decision,
            None => {
                let id = BucketId { fingerprint, class: quota.class() };
                // The quota by reference: the usual case need not copy it.
                self.charge_anyhow(id, quota, cells, now, least_tat)
            }
        }
    }

    /// As [`tat`](Self::tat), at this place.
    #[inline(always)]
    pub fn tat_at(&self, place: &BucketPlace<'_>, quota: &Quota) -> Time {
        let BucketPlace { lines, fingerprint } = *place;
        match Bucket::find_fetched(lines, fingerprint, self.loads) {
            Some((_, _, tat)) => tat,
            None => self.tat_of(BucketId { fingerprint, class: quota.class() }),
        }
    }
}

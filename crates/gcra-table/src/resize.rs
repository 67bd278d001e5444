//! A table with another number of slots takes over, while agents decide.
//!
//! The new file is made beside the old one, and a flag in the old header says so. Agents see it
//! with their next beat and open the new file too. Then every slot of the old file is sealed and
//! its bucket carried over; an agent that comes for a key finds it in the one file or the other
//! (`bucket.rs`, "Moving to another table"). At last the new file takes the old one's name.
//!
//! One process does this at a time: it holds a lock on the new file from the first bucket to the
//! rename, and the kernel releases the lock when it dies. The next call finds the file without a
//! lock and finishes it. Carrying a bucket twice does no harm.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::bucket::seal;
use crate::open::{self, OpenError, Who};
use crate::slot::Slots;
use crate::table::Table;

/// What [`Table::resize`] did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resized {
    /// The slots before.
    pub from: Slots,
    /// The slots now.
    pub to: Slots,
    /// Buckets that owed something and were carried over.
    pub carried: u64,
    /// Keys that owed something and were forgotten in the new table until now, for want of room.
    pub evicted: u64,
}

impl Table {
    /// Gives the table at `path` another number of slots. Processes that use it go on deciding,
    /// and move to the new file by themselves ([`successor`](Self::successor)).
    ///
    /// Nothing is forgotten and nothing counts twice, whatever is charged meanwhile and whoever is
    /// killed, unless the new table is too small. `notice` is waited between telling the
    /// others and moving the first bucket: with more than the time between two of their beats,
    /// nobody has to open the new file in the middle of a decision.
    ///
    /// # Errors
    ///
    /// The table can't be opened, has that size already, is being resized by another process, was
    /// begun to be resized to another size, was removed or replaced meanwhile, or there is no
    /// room for a second file.
    pub fn resize(path: &Path, slots: Slots, notice: Duration) -> Result<Resized, OpenError> {
        let mut old_file = open::inspect(path)?;
        let old = Self::attach(path, &old_file, Who::Inspector)?;
        let begins = !old.is_superseded();
        if begins {
            open::create_successor(path, &old_file, slots)?;
            old.shared().successor.store(1, Ordering::Release);
        }
        let next_file = open::hold_successor(path, &old_file)?;
        if next_file.slots != slots {
            return Err(open::other_resize(path, next_file.slots));
        }
        // Others may attach again. They find the flag.
        old_file.unlock();
        let next = Self::attach(path, &next_file, Who::Inspector)?;
        let mut carried = 0;
        // A resize that died just before the rename has left nothing to carry, and what was reset
        // since must not come back.
        if next.shared().complete.load(Ordering::Acquire) == 0 {
            if begins {
                thread::sleep(notice);
            }
            carried = old.carry_all_to(&next);
            next.take_over_register(&old);
            next.shared().inherited.raise_to(old.counted_until_here());
        }
        open::adopt_clock(path, &next_file)?;
        next.beat();
        next.shared().complete.store(1, Ordering::Release);
        open::put_in_place(path, &mut old_file, &next_file)?;
        let evicted = next.shared().counters.0.counted().evictions.evicted_live;
        Ok(Resized { from: old.slots(), to: slots, carried, evicted })
    }

    /// Seals every slot, and carries over what owes something. Returns how many buckets that were.
    pub(crate) fn carry_all_to(&self, next: &Self) -> u64 {
        let mut carried = 0;
        let mut now = self.now();
        for slot in self.each_slot() {
            let word = seal(slot);
            let Some(tat) = word.sealed_tat().filter(|_| word.fingerprint() != 0) else {
                continue;
            };
            if tat > now {
                now = self.now();
            }
            if tat > now {
                next.bucket(word.fingerprint()).carry(tat, &mut now, &next.context(None));
                carried += 1;
            }
        }
        carried
    }
}

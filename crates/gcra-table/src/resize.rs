//! A table with another number of slots takes over, while agents decide.
//!
//! The new file is made beside the old one, and a flag in the old header says so. Agents see it with their next beat and
//! open the new file too. Then every slot of the old file is sealed and its bucket carried over; an agent that comes for a
//! key finds it in the one file or the other (`bucket.rs`, "Moving to another table"). At last the new file takes the old one's name.
//!
//! Every step can be done twice, and by several at once, so a resize that was interrupted is finished by the next call.

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
    /// Those among them for which the new table had no room: they were forgotten, or made others be.
    pub evicted: u64,
}

impl Table {
    /// Gives the table at `path` another number of slots. Processes that use it go on deciding, and move to the new file
    /// by themselves ([`successor`](Self::successor)).
    ///
    /// Nothing is forgotten and nothing counts twice, whatever is charged meanwhile and whoever is killed, unless the new table is
    /// too small. `notice` is waited between telling the others and moving the first bucket: with more than
    /// the time between two of their beats, nobody has to open the new file in the middle of a decision.
    ///
    /// # Errors
    ///
    /// The table can't be opened, has that size already, is being resized to another one, or there is no room for
    /// a second file.
    pub fn resize(path: &Path, slots: Slots, notice: Duration) -> Result<Resized, OpenError> {
        let old_file = open::inspect(path)?;
        let old = Self::attach(path, &old_file, Who::Inspector)?;
        let begins = !old.is_superseded();
        if begins {
            open::create_successor(path, &old_file, slots)?;
            old.shared().successor.store(1, Ordering::Release);
        }
        let mut next_file = open::open_successor(path, &old_file.header, Who::Inspector)?;
        if next_file.slots != slots {
            return Err(open::other_resize(path, next_file.slots));
        }
        // Others may attach again. They find the flag.
        let old_header = old_file.header.clone();
        drop(old_file);
        let next = Self::attach(path, &next_file, Who::Inspector)?;
        if begins {
            next.shared().counters.0.go_on_from(&old.shared().counters.0);
            thread::sleep(notice);
        }
        let before = next.evictions();
        let carried = old.carry_all_to(&next);
        next.take_over_register(&old);
        (next_file.header.base_ns, next_file.header.boot_id) = (old_header.base_ns, old_header.boot_id);
        open::adopt_clock(path, &next_file)?;
        next.beat();
        next.shared().complete.store(1, Ordering::Release);
        open::rename_successor(path)?;
        let evicted = next.evictions().evicted_live.saturating_sub(before.evicted_live);
        Ok(Resized { from: old.slots(), to: slots, carried, evicted })
    }

    /// Seals every slot, and carries over what owes something. Returns how many buckets that were.
    pub(crate) fn carry_all_to(&self, next: &Self) -> u64 {
        let mut carried = 0;
        let mut now = self.now();
        for slot in self.each_slot() {
            let word = seal(slot);
            if let Some(tat) = word.sealed_tat()
                && tat > now
                && word.fingerprint() != 0
            {
                next.bucket(word.fingerprint()).carry(tat, &mut now, &next.context(None));
                carried += 1;
            }
        }
        carried
    }
}

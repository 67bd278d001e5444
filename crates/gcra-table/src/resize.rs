//! Giving a table another number of slots, while processes decide with it.
//!
//! 1. *Make* the new file beside the old one. A process killed here leaves a file that no process
//!    uses, and the next resize replaces it.
//! 2. *Announce* it by a flag in the old header. The other processes see the flag with their next
//!    beat, and open the new file too.
//! 3. *Carry*: seal every slot of the old file (`seal.rs`), and open its bucket in the new file
//!    (`carry.rs`). A process that comes for a key meanwhile finds it in the one file or the
//!    other.
//! 4. *Complete*: write down in the new header that all buckets are there.
//! 5. *Rename* the new file to the name of the old one.
//!
//! One process does this at a time. It holds a lock on the new file from step 3 to step 5, and the
//! kernel releases the lock if the process dies. The next call finds the file without a lock and
//! finishes it. Carrying a bucket twice does no harm.

// ADR 22: A resize seals slots.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::bucket::seal::seal;
use crate::file::Role;
use crate::file::open;
use crate::file::open_error::{OpenError, OpenErrorKind};
use crate::slots::Slots;
use crate::table::Table;

/// The outcome of [`Table::resize`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Resized {
    /// The slots before.
    pub from: Slots,
    /// The slots now.
    pub to: Slots,
    /// Buckets that owed something and were carried over.
    pub carried: u64,
    /// Keys that owed something and were forgotten, because the new table has too few slots.
    pub evicted: u64,
}

impl Table {
    /// Gives the table at `path` another number of slots. Processes that use it go on deciding,
    /// and move to the new file by themselves ([`successor`](Self::successor)).
    ///
    /// Nothing is forgotten and nothing counts twice, whatever is charged meanwhile and whichever
    /// process is killed, unless the new table is too small. The call waits for `notice` before it
    /// moves the first bucket. If that is longer than the time between two beats of the other
    /// processes, none of them has to open the new file in the middle of a decision.
    ///
    /// # Errors
    ///
    /// The table cannot be opened, has that size already, is being resized by another process, was
    /// removed or replaced meanwhile, a resize to another size was interrupted, or there is not
    /// enough memory for a second file.
    pub fn resize(path: &Path, slots: Slots, notice: Duration) -> Result<Resized, OpenError> {
        let path = &path.into();
        let mut old_file = open::inspect(path)?;
        let old = Self::attach(path, &old_file, Role::Inspector)?;
        let begins = !old.is_superseded();
        if begins {
            open::create_successor(path, &old_file, slots)?;
            old.shared().successor.store(1, Ordering::Release);
        }
        let next_file = open::hold_successor(path, &old_file)?;
        if next_file.slots != slots {
            let kind = OpenErrorKind::ResizeInterrupted { to: next_file.slots };
            return Err(OpenError::new(path, kind));
        }
        // Other processes may attach again. They find the flag.
        old_file.unlock();
        let next = Self::attach(path, &next_file, Role::Inspector)?;
        let mut carried = 0;
        // A resize that was killed just before the rename has left nothing to carry, and keys that
        // were reset since must stay reset.
        if next.shared().complete.load(Ordering::Acquire) == 0 {
            if begins {
                thread::sleep(notice);
            }
            carried = old.carry_all_to(&next);
            next.board().take_over(old.board());
            next.shared().inherited.raise_to(old.counted_until_here());
        }
        open::adopt_clock(path, &next_file)?;
        next.beat();
        next.shared().complete.store(1, Ordering::Release);
        open::put_in_place(path, &mut old_file, &next_file)?;
        let evicted = next.shared().counters.counted().evictions.evicted_live;
        Ok(Resized { from: old.slots(), to: slots, carried, evicted })
    }

    /// Seals every slot, and carries over the buckets that owe something. Returns how many they
    /// were.
    pub(crate) fn carry_all_to(&self, next: &Self) -> u64 {
        let mut carried = 0;
        let mut now = self.reading();
        for slot in self.each_slot() {
            let word = seal(slot);
            let Some(tat) = word.sealed_tat().filter(|_| word.fingerprint() != 0) else {
                continue;
            };
            if tat > now.time() {
                now = self.reading();
            }
            if tat > now.time() {
                next.bucket(word.id()).carry(tat, &mut now, &next.context(None));
                carried += 1;
            }
        }
        carried
    }
}

//! Which table takes over from this one, and what its name leads to: a table that is resized is
//! another file, under the same name.

// ADR 22: A resize seals slots.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{io, iter};

use crate::bucket::Bucket;
use crate::bucket::context::Moved;
use crate::file::open;
use crate::file::open_error::OpenError;
use crate::file::{FileId, Role};
use crate::slot::BucketId;
use crate::table::{Origin, Table};
use crate::time::Nanos;

/// How many tables may have taken over from each other, one after another, before the last one is
/// not looked for. A process that beats is never more than two behind; a longer chain was made by
/// hand.
pub(super) const MAX_MOVES: usize = 16;

/// Where the name of a table leads: see [`Table::name`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Name {
    /// To this table, or to the one that takes over from it.
    Ours,
    /// To nothing: the file was removed.
    Nothing,
    /// To another file, which was put in its place.
    AnotherFile,
}

impl Table {
    /// The table to which all buckets of this one have moved because it was resized; `None` if
    /// this is the one to use.
    ///
    /// To be called after each [`beat`](Self::beat). While the buckets are moving, this opens the
    /// other table, and decisions made with this one find each key in the table where it is.
    /// Afterwards, using this one only costs time and memory.
    ///
    /// # Errors
    ///
    /// The other table cannot be opened. Keys that have moved are denied until it can.
    pub fn successor(&self) -> Result<Option<Arc<Self>>, OpenError> {
        if !self.is_superseded() {
            return Ok(None);
        }
        let next = self.open_successor()?;
        if !next.is_complete() {
            return Ok(None);
        }
        // A process that was stopped before it counted an eviction counts it here, after all was
        // carried over.
        next.shared().inherited.raise_to(self.counted_until_here());
        Ok(Some(next.clone()))
    }

    /// Where the table's name leads now. Other processes find the table by its name only, so a
    /// process whose file has lost the name shares no limits with those that start later. A table
    /// in memory has no name to lose.
    ///
    /// If the name leads to another table of this user, a process that decides writes down there
    /// that it does not use it.
    pub fn name(&self) -> Name {
        let Some(Origin { path, file, header, role }) = &self.file else {
            return Name::Ours;
        };
        // In this order: a resize announces the successor before it takes the name away. And
        // processes move to the successor a moment before it gets the name.
        if FileId::at(path).is_ok_and(|found| found == *file)
            || self.is_superseded()
            || open::is_about_to_be_renamed(path, *file, header, *role)
        {
            return Name::Ours;
        }
        match FileId::at(path) {
            // Just renamed.
            Ok(found) if found == *file => Name::Ours,
            Ok(_) => {
                if *role == Role::Decider {
                    open::mark_strangers(path);
                }
                Name::AnotherFile
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Name::Nothing,
            // It is not known, so nothing is claimed.
            Err(_) => Name::Ours,
        }
    }

    /// Whether all buckets of the table before this one are here.
    pub(super) fn is_complete(&self) -> bool {
        self.generation() == 0 || self.shared().complete.load(Ordering::Acquire) != 0
    }

    /// Whether another table is taking over.
    pub(crate) fn is_superseded(&self) -> bool {
        self.shared().successor.load(Ordering::Acquire) != 0
    }

    pub(crate) fn open_successor(&self) -> Result<&Arc<Self>, OpenError> {
        if let Some(next) = self.successor.get() {
            return Ok(next);
        }
        let Some(Origin { path, file, header, role }) = &self.file else {
            return Err(open::no_successor(Path::new("(in memory)")));
        };
        let file = open::open_successor(path, *file, header, *role)?;
        let next = Self::attach(path, &file, *role)?;
        Ok(self.successor.get_or_init(|| Arc::new(next)))
    }

    /// As [`open_successor`](Self::open_successor), for the middle of a decision: it tries at most
    /// ten times a second.
    pub(super) fn opened_successor(&self) -> Option<&Self> {
        if self.successor.get().is_none() {
            let now = self.now();
            if now.0 < self.retry_ns.load(Ordering::Relaxed) {
                return None;
            }
            let retry = now.saturating_add(Nanos::from_millis(100));
            self.retry_ns.store(retry.0, Ordering::Relaxed);
        }
        self.open_successor().ok().map(Arc::as_ref)
    }

    /// The tables that take over from this one, as far as they are open here.
    pub(super) fn later(&self) -> impl Iterator<Item = &Arc<Self>> {
        iter::successors(self.successor.get(), |table| table.successor.get()).take(MAX_MOVES)
    }

    /// Does a step with a bucket in the table where it is: this one, or one that takes over from
    /// it. The step is given that table, and the bucket in the table before it. `None` if the next
    /// table cannot be opened.
    pub(super) fn follow<'a, T>(
        &'a self,
        id: BucketId,
        mut step: impl FnMut(&'a Self, Option<Bucket<'a>>) -> Result<T, Moved>,
    ) -> Option<T> {
        let (mut table, mut before) = (self, None);
        for _ in 0..=MAX_MOVES {
            match step(table, before) {
                Ok(done) => return Some(done),
                Err(Moved) => before = Some(table.bucket(id)),
            }
            table = table.opened_successor()?;
        }
        None
    }
}

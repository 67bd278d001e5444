//! Opening a table file, and making one.

// ADR 29: The table file is linked into place.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, fchown};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::clock;
use crate::file::header::{FIXED_BYTES, HEADER_BYTES, Header, SHARED_AT, Shared};
use crate::file::open_error::{OpenError, OpenErrorKind};
use crate::file::{
    self, FileId, FilePath, LOCK_PAUSE, Role, failed, lock, must_allow_files_of, must_be_of_user,
    must_be_private, open, read_at, try_lock, write_at,
};
use crate::slots::Slots;

/// Whether [`Table::open_or_create`](crate::Table::open_or_create) made the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opened {
    /// It did, because there was none: all buckets are new.
    Created,
    /// There was one, and its buckets are in use.
    Joined,
}

/// An open table file, checked. Others cannot attach to it until this is unlocked or dropped.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(crate) file: File,
    pub(crate) id: FileId,
    pub(crate) header: Header,
    pub(crate) slots: Slots,
}

impl TableFile {
    /// Lets others attach.
    pub(crate) fn unlock(&mut self) {
        // It is not enough to close the file: a mapping keeps it open, and locked. If this fails,
        // the lock is released when the process ends.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }

    /// Refuses a file to which buckets are still being carried: a part of the debts of its keys is
    /// still in the table before it.
    fn must_be_finished(&self) -> Result<(), OpenErrorKind> {
        let mut complete = [0; 4];
        let at = SHARED_AT + offset_of!(Shared, complete);
        self.file.read_exact_at(&mut complete, at as u64).map_err(failed("read its header"))?;
        match self.header.generation > 0 && complete == [0; 4] {
            true => Err(OpenErrorKind::Unfinished),
            false => Ok(()),
        }
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// How often a name is tried again that leads to another file by then. If it changes more often
/// than that, another program keeps replacing the file.
const ATTEMPTS: u32 = 16;

/// How often the lock of the process that resizes is tried. A process that looks whether a resize
/// was interrupted has it for a moment.
const LOCK_ATTEMPTS: u32 = 10;

/// Opens the table at `path`, or makes it with `slots` slots. Without `slots`, a table that exists
/// may have any size.
pub(crate) fn open_or_create(
    path: &FilePath,
    slots: Option<Slots>,
) -> Result<(TableFile, Opened), OpenError> {
    let error = |kind| OpenError::new(path, kind);
    let mut opened = Opened::Joined;
    for _ in 0..ATTEMPTS {
        match attach(path, Role::Decider) {
            Ok(table) if slots.is_none_or(|slots| slots == table.slots) => {
                return Ok((table, opened));
            }
            Ok(table) => {
                let (found, asked) = (table.slots, slots.unwrap_or(table.slots));
                return Err(error(OpenErrorKind::Slots { found, asked }));
            }
            Err(OpenErrorKind::Missing) => {}
            Err(kind) => return Err(error(kind)),
        }
        match create(path, slots.unwrap_or(Slots::DEFAULT), None) {
            Ok(()) => opened = Opened::Created,
            Err(OpenErrorKind::Io { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(kind) => return Err(error(kind)),
        }
    }
    Err(error(OpenErrorKind::Contended))
}

/// Opens a table that exists, to look at it or to change single keys.
pub(crate) fn inspect(path: &FilePath) -> Result<TableFile, OpenError> {
    attach(path, Role::Inspector).map_err(|kind| OpenError::new(path, kind))
}

/// Where the successor of the table at `path` lies until it is complete.
pub(crate) fn successor_path(path: &FilePath) -> FilePath {
    path.with_added_extension("next")
}

/// Opens the table that took over from the one at `path`, which is the file `old_id` with the
/// header `old`.
///
/// Its path is [`successor_path`], or `path` itself once all was carried over. By then it may have
/// a successor of its own at the first path, and that file is not ours. Until the successor is
/// complete it has no clock of its own: its base is that of `old`.
pub(crate) fn open_successor(
    path: &FilePath,
    old_id: FileId,
    old: &Header,
    role: Role,
) -> Result<TableFile, OpenError> {
    let take_over =
        |path: &FilePath, wanted: fn(u64, u64) -> bool| -> Result<TableFile, OpenErrorKind> {
            let mut next = examine(open(path)?, role)?;
            let is_next = wanted(old.generation, next.header.generation) && next.id != old_id;
            if !is_next || next.header.hash_key != old.hash_key {
                return Err(OpenErrorKind::NoSuccessor);
            }
            next.header.take_clock_of(old);
            Ok(next)
        };
    let next_path = successor_path(path);
    // A generation is never the largest number: `examine` refuses it.
    match take_over(&next_path, |old, next| next == old + 1).and_then(reserved) {
        Err(OpenErrorKind::Missing | OpenErrorKind::Unlinked | OpenErrorKind::NoSuccessor) => {}
        outcome => return outcome.map_err(|kind| OpenError::new(&next_path, kind)),
    }
    let renamed = take_over(path, |old, next| next > old).and_then(|next| {
        next.must_be_finished()?;
        reserved(next)
    });
    renamed.map_err(|kind| match kind {
        OpenErrorKind::Missing | OpenErrorKind::Unlinked => no_successor(path),
        kind => OpenError::new(path, kind),
    })
}

/// Makes the file that is to take over from `old`, which the caller keeps locked. A file that an
/// interrupted call has left, and that no process uses yet, is replaced.
pub(crate) fn create_successor(
    path: &FilePath,
    old: &TableFile,
    slots: Slots,
) -> Result<(), OpenError> {
    let next = successor_path(path);
    let error = |kind| OpenError::new(&next, kind);
    if slots == old.slots {
        return Err(OpenError::new(path, OpenErrorKind::SameSlots { slots }));
    }
    match open(&next).and_then(|file| examine(file, Role::Inspector)) {
        Ok(left) if left.header.follows(&old.header) && left.must_be_finished().is_err() => {
            next.remove().map_err(failed("remove it")).map_err(error)?;
        }
        Ok(_) => return Err(error(OpenErrorKind::SuccessorTaken)),
        Err(OpenErrorKind::Missing) => {}
        Err(kind) => return Err(error(kind)),
    }
    create(&next, slots, Some(old)).map_err(error)
}

/// Opens the successor of `old`, which the caller keeps locked, to carry buckets over to it: until
/// the returned value is dropped no other process can do so.
pub(crate) fn hold_successor(path: &FilePath, old: &TableFile) -> Result<TableFile, OpenError> {
    let next_path = successor_path(path);
    let error = |kind| match kind {
        OpenErrorKind::Missing | OpenErrorKind::Unlinked => no_successor(path),
        kind => OpenError::new(&next_path, kind),
    };
    let mut next =
        open(&next_path).and_then(|file| examine(file, Role::Inspector)).map_err(error)?;
    if !next.header.follows(&old.header) || next.id == old.id {
        return Err(no_successor(path));
    }
    if !try_lock(&next.file, LOCK_ATTEMPTS).map_err(error)? {
        return Err(OpenError::new(path, OpenErrorKind::ResizeRuns { to: next.slots }));
    }
    next.header.take_clock_of(&old.header);
    reserved(next).map_err(error)
}

/// The number of slots to which a resize of this table was interrupted: its successor is there,
/// and no process holds it.
pub(crate) fn interrupted_resize(path: &FilePath, old: &Header) -> Option<Slots> {
    let next = open(&successor_path(path)).ok()?;
    let next = examine(next, Role::Inspector).ok().filter(|next| next.header.follows(old))?;
    (is_left(&next) && next.must_be_finished().is_err()).then_some(next.slots)
}

/// Whether the file `id` with this header has taken over from the table at `path`, and the process
/// that should give it the name is gone.
pub(crate) fn is_left_without_name(
    path: &FilePath,
    id: FileId,
    header: &Header,
    role: Role,
) -> bool {
    let next = open(&successor_path(path)).and_then(|file| examine(file, role));
    // In this order: it has the name before its lock is released.
    next.is_ok_and(|next| next.id == id && is_left(&next))
        && is_about_to_be_renamed(path, id, header, role)
}

/// Whether no process resizes a table into this file.
fn is_left(next: &TableFile) -> bool {
    // A resize that has just begun takes the lock a moment after it has announced the file.
    (0..LOCK_ATTEMPTS).all(|attempt| {
        if attempt > 0 {
            thread::sleep(LOCK_PAUSE);
        }
        // Dropping the file unlocks it.
        let locked = rustix::fs::flock(&next.file, FlockOperation::NonBlockingLockShared);
        locked.and_then(|()| rustix::fs::flock(&next.file, FlockOperation::Unlock)).is_ok()
    })
}

/// The error of a table that was being resized, and whose successor is gone.
pub(crate) fn no_successor(path: &Path) -> OpenError {
    OpenError::new(path, OpenErrorKind::NoSuccessor)
}

/// Gives the completed successor, which the caller holds, the name of the table `old`. The old
/// file is freed when the last process that uses it leaves.
///
/// A process that makes or renames a successor holds the lock of the table that has the name. So
/// while both files have their names under that lock, no other resize can replace them.
pub(crate) fn put_in_place(
    path: &FilePath,
    old: &mut TableFile,
    next: &TableFile,
) -> Result<(), OpenError> {
    let error = |kind| OpenError::new(path, kind);
    lock(&old.file).map_err(error)?;
    let next_path = successor_path(path);
    let is_at = |path: &FilePath, id: FileId| FileId::at(path).is_ok_and(|found| found == id);
    if !is_at(path, old.id) || !is_at(&next_path, next.id) {
        return Err(error(OpenErrorKind::Displaced));
    }
    next_path.rename(path).map_err(failed("put its successor in its place")).map_err(error)?;
    old.unlock();
    // A process that takes no locks could have come in between.
    if is_at(path, next.id) { Ok(()) } else { Err(error(OpenErrorKind::Displaced)) }
}

/// Whether the file `id` with this header is the complete successor of the table at `path`, which
/// has not been given its name yet.
pub(crate) fn is_about_to_be_renamed(
    path: &FilePath,
    id: FileId,
    header: &Header,
    role: Role,
) -> bool {
    FileId::at(&successor_path(path)).is_ok_and(|found| found == id)
        && open(path)
            .and_then(|file| examine(file, role))
            .is_ok_and(|table| header.follows(&table.header))
}

/// Writes down in the table at `path`, if it belongs to this user, that a process uses another
/// file which had this name before. It does not matter if that fails: the process knows it as
/// well.
pub(crate) fn mark_strangers(path: &FilePath) {
    let table = open(path).and_then(|file| examine(file, Role::Decider));
    let _ = table.and_then(|table| {
        must_allow_files_of(HEADER_BYTES as u64)?;
        let at = SHARED_AT + offset_of!(Shared, strangers_ns);
        write_at(&table.file, at, clock::boottime_ns().max(1))
    });
}

fn attach(path: &FilePath, role: Role) -> Result<TableFile, OpenErrorKind> {
    for _ in 0..ATTEMPTS {
        let file = open(path)?;
        // Before the lock: a process that resizes holds the lock of a file that is not finished.
        let fd = file.try_clone().map_err(failed("open it"))?;
        match examine(fd, role).and_then(|table| table.must_be_finished()) {
            // A resize has put another file into its place.
            Err(OpenErrorKind::Unlinked) => continue,
            outcome => outcome?,
        }
        path.lock(&file)?;
        let mut table = match examine(file, role) {
            Err(OpenErrorKind::Unlinked) => continue,
            outcome => outcome?,
        };
        table.must_be_finished()?;
        bring_to_this_boot(&mut table)?;
        return reserved(table);
    }
    Err(OpenErrorKind::Contended)
}

/// Makes a table: a new one, or one that takes over from `old`.
fn create(path: &FilePath, slots: Slots, old: Option<&TableFile>) -> Result<(), OpenErrorKind> {
    file::make(path, HEADER_BYTES as u64 + slots.bytes(), |file| fill(file, slots, old))
}

/// Writes the header of a table that has no name yet.
fn fill(file: &File, slots: Slots, old: Option<&TableFile>) -> Result<(), OpenErrorKind> {
    let mut creator = [0; 32];
    let version = concat!("gcra-table ", env!("CARGO_PKG_VERSION")).as_bytes();
    let length = version.len().min(creator.len());
    creator[..length].copy_from_slice(&version[..length]);
    let mut header = Header {
        slots: u64::from(slots.get()),
        hash_key: [0; 16],
        generation: 0,
        created_wall_ns: clock::wall_ns(),
        creator,
        boot_id: clock::boot_id()?,
        base_ns: 0,
        clock_offset_ns: clock::namespace_offset_ns()?,
    };
    if let Some(old) = old {
        header.hash_key = old.header.hash_key;
        // `examine` has checked that there is a next number.
        header.generation = old.header.generation + 1;
        header.take_clock_of(&old.header);
        let owner = old.file.metadata().map_err(failed("examine the table before it"))?;
        fchown(file, Some(owner.uid()), Some(owner.gid()))
            .map_err(failed("give it to the table's user"))?;
    } else {
        getrandom::fill(&mut header.hash_key)
            .map_err(|error| failed("draw its hash key")(io::Error::other(error.to_string())))?;
    }
    file.write_all_at(&header.to_bytes(), 0).map_err(failed("write its header"))?;
    let now = clock::boottime_ns().saturating_add_signed(header.base_ns);
    write_at(file, SHARED_AT, now)?;
    write_at(file, SHARED_AT + 8, clock::wall_ns())
}

/// A table that was copied may have holes.
fn reserved(table: TableFile) -> Result<TableFile, OpenErrorKind> {
    file::reserve(&table.file, HEADER_BYTES as u64 + table.slots.bytes())?;
    Ok(table)
}

/// Refuses a file that is not a table, or not safe to use as one.
fn examine(file: File, role: Role) -> Result<TableFile, OpenErrorKind> {
    let metadata = file.metadata().map_err(failed("examine it"))?;
    must_be_of_user(&metadata, role)?;
    // Before the mode and the links: of a file that is not a table, they mean nothing.
    let mut bytes = [0; FIXED_BYTES];
    let header = match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Header::from_bytes(&bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(OpenErrorKind::Foreign),
        Err(error) => return Err(failed("read its header")(error)),
    };
    if let Err(OpenErrorKind::Foreign) = header {
        return Err(OpenErrorKind::Foreign);
    }
    must_be_private(&metadata)?;
    let header = header?;
    let Some(slots) = Slots::exactly(header.slots) else {
        return Err(damaged("no table can have its number of slots"));
    };
    let bytes = HEADER_BYTES as u64 + slots.bytes();
    if metadata.len() != bytes {
        return Err(OpenErrorKind::Length { found: metadata.len(), expected: bytes });
    }
    if header.generation > MAX_GENERATION {
        return Err(damaged("no table was resized that often"));
    }
    Ok(TableFile { file, id: FileId::of(&metadata), header, slots })
}

/// The largest number of resizes that a header may say.
const MAX_GENERATION: u64 = 1 << 32;

/// After a reboot, when the clock has begun anew, finds the base with which the table's time goes
/// on. No other process can be attached then, and the lock keeps others out until the base is
/// written. In the same boot, refuses a clock that differs from that of the other processes.
fn bring_to_this_boot(table: &mut TableFile) -> Result<(), OpenErrorKind> {
    let TableFile { file, header, .. } = table;
    let boot_id = clock::boot_id()?;
    let offset_ns = clock::namespace_offset_ns()?;
    let (last_ns, last_wall_ns) = (read_at(file, SHARED_AT)?, read_at(file, SHARED_AT + 8)?);
    let out_of_range = damaged("its time is out of range");
    if last_ns > clock::MAX_NS || last_wall_ns > i64::MAX.unsigned_abs() {
        return Err(out_of_range);
    }
    let now = |base_ns| {
        clock::boottime_ns().checked_add_signed(base_ns).filter(|now| *now <= clock::MAX_NS)
    };
    // The time that the processes whose clock it is would read now.
    let theirs = header
        .base_ns
        .checked_add(header.clock_offset_ns)
        .and_then(|sum| sum.checked_sub(offset_ns));
    if header.boot_id != boot_id && !is_alive(file, theirs.and_then(now), last_ns)? {
        must_allow_files_of(HEADER_BYTES as u64)?;
        header.base_ns =
            clock::base_after_boot(last_ns, last_wall_ns, clock::wall_ns(), clock::boottime_ns());
        (header.boot_id, header.clock_offset_ns) = (boot_id, offset_ns);
        now(header.base_ns).ok_or(out_of_range)?;
        return file.write_all_at(&header.to_bytes(), 0).map_err(failed("write its header"));
    }
    if header.clock_offset_ns != offset_ns {
        return Err(OpenErrorKind::Clock {
            theirs_ns: header.clock_offset_ns,
            ours_ns: offset_ns,
        });
    }
    // They have our clock, so they cannot have seen a time that has not come yet.
    match now(header.base_ns) {
        Some(now) if last_ns <= now.saturating_add(1_000_000_000) => Ok(()),
        _ => Err(out_of_range),
    }
}

/// Whether a process writes down that it is alive while we watch. If so, this is the boot that the
/// table is from, although its boot id differs (a container may have one of its own), and `now` is
/// the table's time.
fn is_alive(file: &File, now: Option<u64>, last_ns: u64) -> Result<bool, OpenErrorKind> {
    const RECENT_NS: u64 = 5_000_000_000;
    if now.is_none_or(|now| now.abs_diff(last_ns) > RECENT_NS) {
        return Ok(false);
    }
    // Processes beat once a second.
    for _ in 0..250 {
        if read_at(file, SHARED_AT)? != last_ns {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
}

/// Writes the clock of the table before it into the header of a successor that is complete, so
/// that from now on it has a clock of its own.
pub(crate) fn adopt_clock(path: &FilePath, next: &TableFile) -> Result<(), OpenError> {
    must_allow_files_of(HEADER_BYTES as u64)
        .and_then(|()| {
            next.file.write_all_at(&next.header.to_bytes(), 0).map_err(failed("write its header"))
        })
        .map_err(|kind| OpenError::new(path, kind))
}

fn damaged(how: &'static str) -> OpenErrorKind {
    OpenErrorKind::Damaged { how }
}

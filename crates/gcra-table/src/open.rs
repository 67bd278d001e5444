//! Opening a table file, and making one.
//!
//! A new table is made complete without a name, and then linked to its name. So a file with the
//! name is a whole table, and there is no half-made state to wait for. If many processes start at
//! once, exactly one of them succeeds with the link, and the others open its file.

use std::fs::{self, File, Metadata};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::cgroup;
use crate::clock::{self, Unreadable};
use crate::header::{FIXED_BYTES, HEADER_BYTES, Header, HeaderError, SHARED_AT, Shared};
use crate::open_error::{OpenError, OpenErrorKind};
use crate::slots::Slots;

/// Whether [`Table::open_or_create`](crate::Table::open_or_create) made the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opened {
    /// It did, because there was none: all buckets are new.
    Created,
    /// There was one, and its buckets are in use.
    Joined,
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// The file that has this name now.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        fs::symlink_metadata(path).map(|metadata| Self::of(&metadata))
    }
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

    /// Refuses a file to which buckets are still being carried: part of what its keys owe is still
    /// in the table before it.
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

/// How often the lock of a resize is tried, and the pause after each attempt.
const LOCK_ATTEMPTS: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What a process opens a table for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// To decide with it. Only for the user of the file, because what another user does to the
    /// file is done to all its decisions.
    Decider,
    /// To look at it, to change single keys, or to resize it. Also for root.
    Inspector,
}

/// Opens the table at `path`, or makes it with `slots` slots. Without `slots`, a table that exists
/// may have any size.
pub(crate) fn open_or_create(
    path: &Path,
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
pub(crate) fn inspect(path: &Path) -> Result<TableFile, OpenError> {
    attach(path, Role::Inspector).map_err(|kind| OpenError::new(path, kind))
}

/// Where the successor of the table at `path` lies until it is complete.
pub(crate) fn successor_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    name.into()
}

/// Opens the table that took over from the one at `path`, which is the file `old_id` with the
/// header `old`.
///
/// Its path is [`successor_path`], or `path` itself once all was carried over. (By then it may
/// have a successor of its own at the first path, which is not ours.) Until it is complete it has
/// no clock of its own: its base is that of `old`.
pub(crate) fn open_successor(
    path: &Path,
    old_id: FileId,
    old: &Header,
    role: Role,
) -> Result<TableFile, OpenError> {
    let take_over =
        |path: &Path, wanted: fn(u64, u64) -> bool| -> Result<TableFile, OpenErrorKind> {
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
    path: &Path,
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
            fs::remove_file(&next).map_err(failed("remove it")).map_err(error)?;
        }
        Ok(_) => return Err(error(OpenErrorKind::SuccessorTaken)),
        Err(OpenErrorKind::Missing) => {}
        Err(kind) => return Err(error(kind)),
    }
    create(&next, slots, Some(old)).map_err(error)
}

/// Opens the successor of `old`, which the caller keeps locked, to carry buckets over to it: until
/// the returned value is dropped no other process can do so.
pub(crate) fn hold_successor(path: &Path, old: &TableFile) -> Result<TableFile, OpenError> {
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
    if !is_free(&next.file).map_err(error)? {
        return Err(OpenError::new(path, OpenErrorKind::ResizeRuns { to: next.slots }));
    }
    next.header.take_clock_of(&old.header);
    reserved(next).map_err(error)
}

/// Takes the lock of the process that resizes. False if another process has it.
fn is_free(file: &File) -> Result<bool, OpenErrorKind> {
    // A process that looks whether a resize was interrupted has it for a moment.
    for _ in 0..LOCK_ATTEMPTS {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(LOCK_PAUSE),
            Err(errno) => return Err(failed("lock it")(errno.into())),
        }
    }
    Ok(false)
}

/// The number of slots to which a resize of this table was interrupted: its successor is there,
/// and no process holds it.
pub(crate) fn interrupted_resize(path: &Path, old: &Header) -> Option<Slots> {
    let next = open(&successor_path(path)).ok()?;
    let next = examine(next, Role::Inspector).ok().filter(|next| next.header.follows(old))?;
    // A resize that has just begun takes the lock a moment after it has announced the file.
    for attempt in 0..LOCK_ATTEMPTS {
        if attempt > 0 {
            thread::sleep(LOCK_PAUSE);
        }
        // Dropping `next` unlocks it.
        rustix::fs::flock(&next.file, FlockOperation::NonBlockingLockShared).ok()?;
        let _ = rustix::fs::flock(&next.file, FlockOperation::Unlock);
    }
    next.must_be_finished().is_err().then_some(next.slots)
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
    path: &Path,
    old: &mut TableFile,
    next: &TableFile,
) -> Result<(), OpenError> {
    let error = |kind| OpenError::new(path, kind);
    lock(&old.file).map_err(error)?;
    let next_path = successor_path(path);
    let is_at = |path: &Path, id: FileId| FileId::at(path).is_ok_and(|found| found == id);
    if !is_at(path, old.id) || !is_at(&next_path, next.id) {
        return Err(error(OpenErrorKind::Displaced));
    }
    fs::rename(&next_path, path)
        .map_err(failed("put its successor in its place"))
        .map_err(error)?;
    old.unlock();
    // A process that takes no locks could have come in between.
    match is_at(path, next.id) {
        true => Ok(()),
        false => Err(error(OpenErrorKind::Displaced)),
    }
}

/// Whether the file `id` with this header is the complete successor of the table at `path`, which
/// has not been given its name yet.
pub(crate) fn is_about_to_be_renamed(
    path: &Path,
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
pub(crate) fn mark_strangers(path: &Path) {
    let table = open(path).and_then(|file| examine(file, Role::Decider));
    let _ = table.and_then(|table| {
        must_allow_files_of(HEADER_BYTES as u64)?;
        let at = SHARED_AT + offset_of!(Shared, strangers_ns);
        write_at(&table.file, at, clock::boottime_ns().max(1))
    });
}

fn attach(path: &Path, role: Role) -> Result<TableFile, OpenErrorKind> {
    for _ in 0..ATTEMPTS {
        let file = open(path)?;
        // Before the lock: a process that resizes holds the lock of a file that is not finished.
        let fd = file.try_clone().map_err(failed("open it"))?;
        match examine(fd, role).and_then(|table| table.must_be_finished()) {
            // A resize has put another file into its place.
            Err(OpenErrorKind::Unlinked) => continue,
            outcome => outcome?,
        }
        lock(&file)?;
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

fn open(path: &Path) -> Result<File, OpenErrorKind> {
    // NONBLOCK: opening a FIFO must not wait for its other end. On a regular file it means
    // nothing.
    let flags =
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) => Err(OpenErrorKind::Symlink),
        Err(Errno::ISDIR) => Err(OpenErrorKind::NotAFile { kind: "a directory" }),
        // A socket cannot be opened at all.
        Err(Errno::NXIO) => Err(OpenErrorKind::NotAFile { kind: "a socket or a device" }),
        Err(Errno::NOENT) => Err(OpenErrorKind::Missing),
        Err(errno) => Err(failed("open it")(errno.into())),
    }
}

/// Makes a table: a new one, or one that takes over from `old`.
fn create(path: &Path, slots: Slots, old: Option<&TableFile>) -> Result<(), OpenErrorKind> {
    let bytes = HEADER_BYTES as u64 + slots.bytes();
    must_have_memory_for(bytes, bytes)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => return Err(OpenErrorKind::NoTmpfile),
        Err(Errno::NOENT) => {
            let missing =
                io::Error::other(format!("the directory {} does not exist", directory.display()));
            return Err(failed("create it")(missing));
        }
        Err(errno) => return Err(failed("create it")(errno.into())),
    };
    // Whatever the umask took away.
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| failed("set its mode")(errno.into()))?;
    // All of the space now: if there is too little, that is an error here, and would be the end of
    // the process (SIGBUS) later.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| failed("reserve its space")(errno.into()))?;

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
        boot_id: clock::boot_id().map_err(proc)?,
        base_ns: 0,
        clock_offset_ns: clock::namespace_offset_ns().map_err(proc)?,
    };
    if let Some(old) = old {
        header.hash_key = old.header.hash_key;
        // `examine` has checked that there is a next number.
        header.generation = old.header.generation + 1;
        header.take_clock_of(&old.header);
        let owner = old.file.metadata().map_err(failed("examine the table before it"))?;
        fchown(&file, Some(owner.uid()), Some(owner.gid()))
            .map_err(failed("give it to the table's user"))?;
    } else {
        getrandom::fill(&mut header.hash_key)
            .map_err(|error| failed("draw its hash key")(io::Error::other(error.to_string())))?;
    }
    file.write_all_at(&header.to_bytes(), 0).map_err(failed("write its header"))?;
    let now = clock::boottime_ns().saturating_add_signed(header.base_ns);
    write_at(&file, SHARED_AT, now)?;
    write_at(&file, SHARED_AT + 8, clock::wall_ns())?;

    // The first process that links gets the name, and the others get EEXIST. (A link by descriptor
    // alone would need a capability, so it goes through /proc.)
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, &*descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(|errno| {
        match fs::symlink_metadata(descriptor) {
            Ok(_) => failed("give it its name")(errno.into()),
            Err(source) => OpenErrorKind::Proc { file: "/proc/self/fd", source },
        }
    })
}

/// Refuses a file of `bytes` that needs `more` bytes of memory, if the limit of file sizes or the
/// memory limit is below that. The kernel would kill a process for either.
fn must_have_memory_for(bytes: u64, more: u64) -> Result<(), OpenErrorKind> {
    must_allow_files_of(bytes)?;
    match cgroup::memory_left() {
        Some(left) if left < more => Err(OpenErrorKind::Memory { needed: more, left }),
        _ => Ok(()),
    }
}

fn must_allow_files_of(bytes: u64) -> Result<(), OpenErrorKind> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(OpenErrorKind::FileSize { needed: bytes, limit }),
        _ => Ok(()),
    }
}

/// Reserves the space of the holes in a file that was copied, as [`create`] does for a whole file.
fn reserved(table: TableFile) -> Result<TableFile, OpenErrorKind> {
    let bytes = HEADER_BYTES as u64 + table.slots.bytes();
    let stored = table.file.metadata().map_err(failed("examine it"))?.blocks().saturating_mul(512);
    if stored < bytes {
        must_have_memory_for(bytes, bytes - stored)?;
        rustix::fs::fallocate(&table.file, FallocateFlags::KEEP_SIZE, 0, bytes)
            .map_err(|errno| failed("reserve its space")(errno.into()))?;
    }
    Ok(table)
}

/// Refuses a file that is not a table, or not safe to use as one.
fn examine(file: File, role: Role) -> Result<TableFile, OpenErrorKind> {
    let metadata = file.metadata().map_err(failed("examine it"))?;
    let user = rustix::process::geteuid();
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "not a regular file" };
        return Err(OpenErrorKind::NotAFile { kind });
    }
    if metadata.uid() != user.as_raw() && !(role == Role::Inspector && user.is_root()) {
        return Err(OpenErrorKind::Owner { found: metadata.uid(), expected: user.as_raw() });
    }
    // Before the mode and the links: of a file that is not a table, they mean nothing.
    let mut bytes = [0; FIXED_BYTES];
    let header = match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Header::from_bytes(&bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(HeaderError::Foreign),
        Err(error) => return Err(failed("read its header")(error)),
    };
    if header == Err(HeaderError::Foreign) {
        return Err(OpenErrorKind::Foreign);
    }
    if metadata.mode() & 0o7777 != 0o600 {
        return Err(OpenErrorKind::Mode { found: metadata.mode() & 0o7777 });
    }
    match metadata.nlink() {
        1 => {}
        0 => return Err(OpenErrorKind::Unlinked),
        count => return Err(OpenErrorKind::Links { count }),
    }
    let header = header.map_err(|error| match error {
        HeaderError::Foreign => OpenErrorKind::Foreign,
        HeaderError::Layout { found } => OpenErrorKind::layout(found),
        HeaderError::Hash => OpenErrorKind::Hash,
    })?;
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

/// Takes the lock under which processes attach. Decisions do not need it, so it is held only for
/// moments.
fn lock(file: &File) -> Result<(), OpenErrorKind> {
    for _ in 0..500 {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(Duration::from_millis(10)),
            Err(errno) => return Err(failed("lock it")(errno.into())),
        }
    }
    Err(OpenErrorKind::Locked)
}

/// After a reboot, when the clock has begun anew, finds the base with which the table's time goes
/// on. No other process can be attached then, and the lock keeps others out until the base is
/// written. In the same boot, refuses a clock that differs from that of the other processes.
fn bring_to_this_boot(table: &mut TableFile) -> Result<(), OpenErrorKind> {
    let TableFile { file, header, .. } = table;
    let boot_id = clock::boot_id().map_err(proc)?;
    let offset_ns = clock::namespace_offset_ns().map_err(proc)?;
    let (last_ns, last_wall_ns) = (read_at(file, SHARED_AT)?, read_at(file, SHARED_AT + 8)?);
    let out_of_range = damaged("its time is out of range");
    if last_ns > clock::MAX_NS || last_wall_ns > i64::MAX.unsigned_abs() {
        return Err(out_of_range);
    }
    let now = |base_ns| {
        clock::boottime_ns().checked_add_signed(base_ns).filter(|now| *now <= clock::MAX_NS)
    };
    // What the processes whose clock it is would read now.
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
pub(crate) fn adopt_clock(path: &Path, next: &TableFile) -> Result<(), OpenError> {
    must_allow_files_of(HEADER_BYTES as u64)
        .and_then(|()| {
            next.file.write_all_at(&next.header.to_bytes(), 0).map_err(failed("write its header"))
        })
        .map_err(|kind| OpenError::new(path, kind))
}

fn read_at(file: &File, at: usize) -> Result<u64, OpenErrorKind> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64).map_err(failed("read its header"))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn write_at(file: &File, at: usize, value: u64) -> Result<(), OpenErrorKind> {
    file.write_all_at(&value.to_ne_bytes(), at as u64).map_err(failed("write its header"))
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> OpenErrorKind {
    move |source| OpenErrorKind::Io { doing, source }
}

fn proc(Unreadable { file, source }: Unreadable) -> OpenErrorKind {
    OpenErrorKind::Proc { file, source }
}

fn damaged(how: &'static str) -> OpenErrorKind {
    OpenErrorKind::Damaged { how }
}

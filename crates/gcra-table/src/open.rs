//! Opening a table file, and making one: who wins, and what is refused.
//!
//! A new table is made complete under no name at all and then linked to its name. So a file with
//! the name is a whole table, there is no half-made state to wait for, and of many starters
//! exactly one wins the link; the others open its file.

use std::fs::{self, File, Metadata};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, thread};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::clock::{self, Unreadable};
use crate::header::{FIXED_BYTES, HEADER_BYTES, Header, HeaderError, SHARED_AT, Shared};
use crate::room;
use crate::slot::Slots;

/// Whether [`Table::open_or_create`](crate::Table::open_or_create) made the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opened {
    /// It was not there; all buckets are new.
    Created,
    /// It was; its buckets go on.
    Joined,
}

/// Why a file can't be used as the table. Each says what was found, what was wanted, and how to go
/// on. Nothing was changed.
#[derive(Debug)]
pub struct OpenError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    Io { doing: &'static str, source: io::Error },
    Missing,
    NoTmpfile,
    Proc(Unreadable),
    Memory { wanted: u64, left: u64 },
    FileSize { wanted: u64, limit: u64 },
    Symlink,
    Kind(&'static str),
    Owner { found: u32, wanted: u32 },
    Mode(u32),
    Links(u64),
    Foreign,
    Layout(u32),
    Hash,
    Damaged(&'static str),
    Size { found: u64, wanted: u64 },
    Slots { found: u32, wanted: Slots },
    Clock { theirs_ns: i64, ours_ns: i64 },
    Locked,
    Contended,
    Unlinked,
    Unfinished,
    NoSuccessor,
    SameSlots(u32),
    ResizeRuns(u32),
    OtherResize(u32),
    Displaced,
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

/// An open table file, checked. Others can't attach to it until this is unlocked or dropped.
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
        // Closing the file would not do: a mapping keeps it open, and locked. Should this fail,
        // the end of the process will do it.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }

    /// Refuses a file to which buckets are still being carried: what its keys owe is in the table
    /// before it.
    fn must_be_finished(&self) -> Result<(), Problem> {
        let mut complete = [0; 4];
        let at = SHARED_AT + offset_of!(Shared, complete);
        self.file.read_exact_at(&mut complete, at as u64).map_err(failed("read its header"))?;
        match self.header.generation > 0 && complete == [0; 4] {
            true => Err(Problem::Unfinished),
            false => Ok(()),
        }
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        self.unlock();
    }
}

/// So often a name is tried again that leads to another file by then. One that changes more often
/// is somebody else's doing.
const ATTEMPTS: u32 = 16;

/// Who opens a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Who {
    /// A process that decides with it. Never another user than the file's: their damage would be
    /// its own.
    Agent,
    /// Someone who looks after it, and may be root.
    Inspector,
}

/// Opens the table at `path`, or makes it with `slots` slots. Without `slots`, one that is there
/// may have any size.
pub(crate) fn open_or_create(
    path: &Path,
    slots: Option<Slots>,
) -> Result<(TableFile, Opened), OpenError> {
    let error = |problem| OpenError::new(path, problem);
    let mut opened = Opened::Joined;
    for _ in 0..ATTEMPTS {
        match attach(path, Who::Agent) {
            Ok(table) if slots.is_none_or(|slots| slots == table.slots) => {
                return Ok((table, opened));
            }
            Ok(table) => {
                let (found, wanted) = (table.slots.get(), slots.unwrap_or(table.slots));
                return Err(error(Problem::Slots { found, wanted }));
            }
            Err(Problem::Missing) => {}
            Err(problem) => return Err(error(problem)),
        }
        match create(path, slots.unwrap_or(Slots::DEFAULT), None) {
            Ok(()) => opened = Opened::Created,
            Err(Problem::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(problem) => return Err(error(problem)),
        }
    }
    Err(error(Problem::Contended))
}

/// Opens a table that exists, for someone who looks after it.
pub(crate) fn inspect(path: &Path) -> Result<TableFile, OpenError> {
    attach(path, Who::Inspector).map_err(|problem| OpenError::new(path, problem))
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
/// It lies at [`successor_path`], or at `path` itself once all was carried over. (By then it may
/// have a successor of its own there, which is none of ours.) Until it is complete it has no clock
/// of its own: its base is that of `old`.
pub(crate) fn open_successor(
    path: &Path,
    old_id: FileId,
    old: &Header,
    who: Who,
) -> Result<TableFile, OpenError> {
    let take_over = |path: &Path, wanted: fn(u64, u64) -> bool| -> Result<TableFile, Problem> {
        let mut next = examine(open(path)?, who)?;
        let is_next = wanted(old.generation, next.header.generation) && next.id != old_id;
        if !is_next || next.header.hash_key != old.hash_key {
            return Err(Problem::NoSuccessor);
        }
        next.header.take_clock_of(old);
        Ok(next)
    };
    let next_path = successor_path(path);
    // A generation is never the largest number: `examine` refuses it.
    match take_over(&next_path, |old, next| next == old + 1).and_then(reserved) {
        Err(Problem::Missing | Problem::Unlinked | Problem::NoSuccessor) => {}
        outcome => return outcome.map_err(|problem| OpenError::new(&next_path, problem)),
    }
    let renamed = take_over(path, |old, next| next > old).and_then(|next| {
        next.must_be_finished()?;
        reserved(next)
    });
    renamed.map_err(|problem| match problem {
        Problem::Missing | Problem::Unlinked | Problem::NoSuccessor => {
            OpenError::no_successor(path)
        }
        problem => OpenError::new(path, problem),
    })
}

/// Makes the file that is to take over from `old`, which the caller keeps locked. One that an
/// interrupted call left, and that nobody uses yet, is replaced.
pub(crate) fn create_successor(
    path: &Path,
    old: &TableFile,
    slots: Slots,
) -> Result<(), OpenError> {
    let next = successor_path(path);
    let error = |problem| OpenError::new(&next, problem);
    if slots == old.slots {
        return Err(OpenError::new(path, Problem::SameSlots(slots.get())));
    }
    match open(&next).and_then(|file| examine(file, Who::Inspector)) {
        Ok(left) if left.header.follows(&old.header) && left.must_be_finished().is_err() => {
            fs::remove_file(&next).map_err(failed("remove it")).map_err(error)?;
        }
        Ok(_) => return Err(error(Problem::Kind("another table"))),
        Err(Problem::Missing) => {}
        Err(problem) => return Err(error(problem)),
    }
    create(&next, slots, Some(old)).map_err(error)
}

/// Opens the successor of `old`, which the caller keeps locked, to carry buckets over to it: until
/// the returned value is dropped no other process can do so.
pub(crate) fn hold_successor(path: &Path, old: &TableFile) -> Result<TableFile, OpenError> {
    let next_path = successor_path(path);
    let error = |problem| match problem {
        Problem::Missing | Problem::Unlinked => OpenError::no_successor(path),
        problem => OpenError::new(&next_path, problem),
    };
    let mut next =
        open(&next_path).and_then(|file| examine(file, Who::Inspector)).map_err(error)?;
    if !next.header.follows(&old.header) || next.id == old.id {
        return Err(OpenError::no_successor(path));
    }
    match rustix::fs::flock(&next.file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(OpenError::new(path, Problem::ResizeRuns(next.slots.get())));
        }
        Err(errno) => return Err(error(failed("lock it")(errno.into()))),
    }
    next.header.take_clock_of(&old.header);
    reserved(next).map_err(error)
}

/// The error of a resize that asks for another size than the one that was begun.
pub(crate) fn other_resize(path: &Path, slots: Slots) -> OpenError {
    OpenError::new(path, Problem::OtherResize(slots.get()))
}

/// Gives the completed successor, which the caller holds, the name of the table `old`. The old
/// file goes when its last user leaves.
///
/// Whoever makes or renames a successor holds the lock of the table that has the name. So while
/// both files have their names under that lock, no other resize can put anything into their place.
pub(crate) fn put_in_place(
    path: &Path,
    old: &mut TableFile,
    next: &TableFile,
) -> Result<(), OpenError> {
    let error = |problem| OpenError::new(path, problem);
    lock(&old.file).map_err(error)?;
    let next_path = successor_path(path);
    let is_at = |path: &Path, id: FileId| FileId::at(path).is_ok_and(|found| found == id);
    if !is_at(path, old.id) || !is_at(&next_path, next.id) {
        return Err(error(Problem::Displaced));
    }
    fs::rename(&next_path, path)
        .map_err(failed("put its successor in its place"))
        .map_err(error)?;
    old.unlock();
    // Somebody who takes no locks could have come in between.
    match is_at(path, next.id) {
        true => Ok(()),
        false => Err(error(Problem::Displaced)),
    }
}

/// Whether the file `id` with this header is the complete successor of the table at `path`, and
/// has not got its name yet.
pub(crate) fn is_about_to_be_renamed(path: &Path, id: FileId, header: &Header, who: Who) -> bool {
    FileId::at(&successor_path(path)).is_ok_and(|found| found == id)
        && open(path)
            .and_then(|file| examine(file, who))
            .is_ok_and(|table| header.follows(&table.header))
}

/// Writes down in the table at `path`, if it is one of this user, that an agent uses another file
/// which had this name before. Where that does not work, nobody needs to know: the agent tells it
/// as well.
pub(crate) fn mark_strangers(path: &Path) {
    let table = open(path).and_then(|file| examine(file, Who::Agent));
    let _ = table.and_then(|table| {
        must_allow_files_of(HEADER_BYTES as u64)?;
        let at = SHARED_AT + offset_of!(Shared, strangers_ns);
        write_at(&table.file, at, clock::boottime_ns().max(1))
    });
}

fn attach(path: &Path, who: Who) -> Result<TableFile, Problem> {
    for _ in 0..ATTEMPTS {
        let file = open(path)?;
        // Before the lock: who resizes holds that of a file that is not finished.
        let fd = file.try_clone().map_err(failed("open it"))?;
        match examine(fd, who).and_then(|table| table.must_be_finished()) {
            // A resize has put another file into its place.
            Err(Problem::Unlinked) => continue,
            outcome => outcome?,
        }
        lock(&file)?;
        let mut table = match examine(file, who) {
            Err(Problem::Unlinked) => continue,
            outcome => outcome?,
        };
        table.must_be_finished()?;
        bring_to_this_boot(&mut table)?;
        return reserved(table);
    }
    Err(Problem::Contended)
}

fn open(path: &Path) -> Result<File, Problem> {
    // NONBLOCK: opening a FIFO must not wait for its other end. On a regular file it means
    // nothing.
    let flags =
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) => Err(Problem::Symlink),
        Err(Errno::ISDIR) => Err(Problem::Kind("a directory")),
        // A socket can't be opened at all.
        Err(Errno::NXIO) => Err(Problem::Kind("a socket or a device")),
        Err(Errno::NOENT) => Err(Problem::Missing),
        Err(errno) => Err(failed("open it")(errno.into())),
    }
}

/// Makes a table: one of its own, or one that goes on where `old` is.
fn create(path: &Path, slots: Slots, old: Option<&TableFile>) -> Result<(), Problem> {
    let bytes = HEADER_BYTES as u64 + slots.bytes();
    must_have_room_for(bytes, bytes)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => return Err(Problem::NoTmpfile),
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
    // All of it now: no space is an error here, and would be the end of the process (SIGBUS)
    // later.
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
        boot_id: clock::boot_id().map_err(Problem::Proc)?,
        base_ns: 0,
        clock_offset_ns: clock::namespace_offset_ns().map_err(Problem::Proc)?,
    };
    if let Some(old) = old {
        header.hash_key = old.header.hash_key;
        // `examine` has seen to it that there is a next number.
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

    // The name goes to whoever links first; EEXIST is for the others. (A link by descriptor alone
    // would need a capability, so it goes through /proc.)
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, &*descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(|errno| {
        match fs::symlink_metadata(descriptor) {
            Ok(_) => failed("give it its name")(errno.into()),
            Err(source) => Problem::Proc(Unreadable { file: "/proc/self/fd", source }),
        }
    })
}

/// Refuses what the memory limit or the limit of file sizes has no room for: `more` bytes in a
/// file of `bytes`. The kernel would end a process for either.
fn must_have_room_for(bytes: u64, more: u64) -> Result<(), Problem> {
    must_allow_files_of(bytes)?;
    match room::memory_left() {
        Some(left) if left < more => Err(Problem::Memory { wanted: more, left }),
        _ => Ok(()),
    }
}

fn must_allow_files_of(bytes: u64) -> Result<(), Problem> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(Problem::FileSize { wanted: bytes, limit }),
        _ => Ok(()),
    }
}

/// Reserves the space of holes in a file that was copied, as [`create`] does for all of it.
fn reserved(table: TableFile) -> Result<TableFile, Problem> {
    let bytes = HEADER_BYTES as u64 + table.slots.bytes();
    let stored = table.file.metadata().map_err(failed("examine it"))?.blocks().saturating_mul(512);
    if stored < bytes {
        must_have_room_for(bytes, bytes - stored)?;
        rustix::fs::fallocate(&table.file, FallocateFlags::KEEP_SIZE, 0, bytes)
            .map_err(|errno| failed("reserve its space")(errno.into()))?;
    }
    Ok(table)
}

/// Refuses what is no table, or not safe to use as one.
fn examine(file: File, who: Who) -> Result<TableFile, Problem> {
    let metadata = file.metadata().map_err(failed("examine it"))?;
    let wanted = rustix::process::geteuid();
    if !metadata.is_file() {
        return Err(Problem::Kind(if metadata.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        }));
    }
    if metadata.uid() != wanted.as_raw() && !(who == Who::Inspector && wanted.is_root()) {
        return Err(Problem::Owner { found: metadata.uid(), wanted: wanted.as_raw() });
    }
    if metadata.mode() & 0o7777 != 0o600 {
        return Err(Problem::Mode(metadata.mode() & 0o7777));
    }
    match metadata.nlink() {
        1 => {}
        0 => return Err(Problem::Unlinked),
        links => return Err(Problem::Links(links)),
    }

    let mut bytes = [0; FIXED_BYTES];
    let header = match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Header::from_bytes(&bytes).map_err(|error| match error {
            HeaderError::Foreign => Problem::Foreign,
            HeaderError::Layout { found } => Problem::Layout(found),
            HeaderError::Hash => Problem::Hash,
        })?,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Problem::Foreign);
        }
        Err(error) => return Err(failed("read its header")(error)),
    };
    let Some(slots) = Slots::exactly(header.slots) else {
        return Err(Problem::Damaged("its number of slots is none that a table can have"));
    };
    let bytes = HEADER_BYTES as u64 + slots.bytes();
    if metadata.len() != bytes {
        return Err(Problem::Size { found: metadata.len(), wanted: bytes });
    }
    if header.generation > MAX_GENERATION {
        return Err(Problem::Damaged("no table was resized that often"));
    }
    Ok(TableFile { file, id: FileId::of(&metadata), header, slots })
}

/// The largest number of resizes that is believed.
const MAX_GENERATION: u64 = 1 << 32;

/// Takes the lock under which processes attach. Decisions never take it, so it is only ever held
/// for a moment.
fn lock(file: &File) -> Result<(), Problem> {
    for _ in 0..500 {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(Duration::from_millis(10)),
            Err(errno) => return Err(failed("lock it")(errno.into())),
        }
    }
    Err(Problem::Locked)
}

/// After a reboot the clock began anew: finds the base with which the table's time goes on. Nobody
/// else can be attached then, and the lock keeps others out until it is written. In the same boot,
/// refuses a clock that is not the others'.
fn bring_to_this_boot(table: &mut TableFile) -> Result<(), Problem> {
    let TableFile { file, header, .. } = table;
    let boot_id = clock::boot_id().map_err(Problem::Proc)?;
    let offset_ns = clock::namespace_offset_ns().map_err(Problem::Proc)?;
    let (last_ns, last_wall_ns) = (read_at(file, SHARED_AT)?, read_at(file, SHARED_AT + 8)?);
    let out_of_range = Problem::Damaged("its time is out of range");
    if last_ns > clock::MAX_NS || last_wall_ns > i64::MAX.unsigned_abs() {
        return Err(out_of_range);
    }
    let now = |base_ns| {
        clock::boottime_ns().checked_add_signed(base_ns).filter(|now| *now <= clock::MAX_NS)
    };
    // What those whose clock it is would read now.
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
        return Err(Problem::Clock { theirs_ns: header.clock_offset_ns, ours_ns: offset_ns });
    }
    // They have our clock, so they can't have seen a time that has not come.
    match now(header.base_ns) {
        Some(now) if last_ns <= now.saturating_add(1_000_000_000) => Ok(()),
        _ => Err(out_of_range),
    }
}

/// Whether a process writes down that it is alive while we look: then this is the boot that the
/// table is from, though its boot id differs. (A container may have one of its own.) `now` is the
/// table's time if so.
fn is_alive(file: &File, now: Option<u64>, last_ns: u64) -> Result<bool, Problem> {
    const RECENT_NS: u64 = 5_000_000_000;
    if now.is_none_or(|now| now.abs_diff(last_ns) > RECENT_NS) {
        return Ok(false);
    }
    // They beat once a second.
    for _ in 0..250 {
        if read_at(file, SHARED_AT)? != last_ns {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
}

/// The successor of the table `old` is complete: from now on it has a clock of its own, which is
/// that of `old`.
pub(crate) fn adopt_clock(path: &Path, next: &TableFile) -> Result<(), OpenError> {
    must_allow_files_of(HEADER_BYTES as u64)
        .and_then(|()| {
            next.file.write_all_at(&next.header.to_bytes(), 0).map_err(failed("write its header"))
        })
        .map_err(|problem| OpenError::new(path, problem))
}

fn read_at(file: &File, at: usize) -> Result<u64, Problem> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64).map_err(failed("read its header"))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn write_at(file: &File, at: usize, value: u64) -> Result<(), Problem> {
    file.write_all_at(&value.to_ne_bytes(), at as u64).map_err(failed("write its header"))
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> Problem {
    move |source| Problem::Io { doing, source }
}

impl OpenError {
    fn new(path: &Path, problem: Problem) -> Self {
        Self { path: path.to_owned(), problem }
    }

    /// Whether the file that takes over is not there, and not merely unusable.
    pub(crate) fn is_no_successor(&self) -> bool {
        matches!(self.problem, Problem::NoSuccessor)
    }

    /// Nothing takes over from a table that was being resized.
    pub(crate) fn no_successor(path: &Path) -> Self {
        Self::new(path, Problem::NoSuccessor)
    }

    /// The mapping failed.
    pub(crate) fn mapping(path: &Path, source: io::Error) -> Self {
        Self::new(path, Problem::Io { doing: "map it", source })
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let begin_anew = "stop every agent that uses it and remove it, and a new one is made";
        match &self.problem {
            Problem::Io { doing, source } => {
                write!(f, "table {path}: could not {doing}: {source}")?;
                match source.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::NOSPC) => f.write_str("; ask for fewer --slots (16 bytes each) or make room"),
                    Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                        f.write_str("; choose with --table a file in a directory that this user may write to")
                    }
                    Some(Errno::NOMEM) => f.write_str(
                        "; its slots take 16 bytes of address space each: raise the limit (LimitAS=, ulimit -v) or \
                         ask for fewer --slots",
                    ),
                    _ => Ok(()),
                }
            }
            Problem::Missing => {
                write!(f, "there is no table {path}; agents make it when they start")
            }
            Problem::Proc(Unreadable { file, source }) => {
                write!(
                    f,
                    "table {path}: could not read {file}, without which no clock is shared: {source}"
                )?;
                match source.kind() {
                    io::ErrorKind::NotFound => {
                        f.write_str("; mount /proc, and all of it (ProcSubset=all)")
                    }
                    _ => Ok(()),
                }
            }
            Problem::FileSize { wanted, limit } => write!(
                f,
                "table {path} takes a file of {wanted} bytes, and the limit for a file is {limit}: raise it \
                 (LimitFSIZE=, ulimit -f) or ask for fewer --slots (16 bytes each)"
            ),
            Problem::Memory { wanted, left } => write!(
                f,
                "table {path} takes {wanted} bytes of memory, and the cgroup's limit leaves {left}: raise it \
                 (MemoryMax=) or ask for fewer --slots (16 bytes each)"
            ),
            Problem::NoTmpfile => write!(
                f,
                "table {path}: its file system has no unnamed files (O_TMPFILE); put it on a tmpfs such as /dev/shm"
            ),
            Problem::Symlink => {
                write!(
                    f,
                    "table {path} is a symbolic link, which could lead anywhere; name the file itself"
                )
            }
            Problem::Kind(kind) => {
                write!(
                    f,
                    "table {path} is {kind}; name a regular file, or one that does not exist yet"
                )
            }
            Problem::Owner { found, wanted } => write!(
                f,
                "table {path} belongs to user {found}, and this is user {wanted}; run all agents of a table as one \
                 user, or choose another file with --table"
            ),
            Problem::Mode(mode) => write!(
                f,
                "table {path} has mode {mode:04o}, so others could read the hash key or change the buckets; if nobody \
                 did, 'chmod 600 {path}'"
            ),
            Problem::Links(links) => {
                write!(
                    f,
                    "table {path} has {links} names (hard links), so another could be opened by mistake; remove the others"
                )
            }
            Problem::Foreign => {
                write!(f, "{path} is no table of gcra-spoa; choose another file with --table")
            }
            Problem::Layout(found) => write!(
                f,
                "table {path} has layout {found}, and this version reads layout {}; {begin_anew}",
                crate::header::LAYOUT
            ),
            Problem::Hash => write!(
                f,
                "table {path} was made by a build that hashes keys differently, or its header is damaged; {begin_anew}"
            ),
            Problem::Size { found, wanted } => write!(
                f,
                "table {path} is {found} bytes long and its header says {wanted}: it was cut or grown; {begin_anew}"
            ),
            Problem::Damaged(how) => {
                write!(f, "table {path} has a damaged header: {how}; {begin_anew}")
            }
            Problem::Slots { found, wanted } => write!(
                f,
                "table {path} has {found} slots, and --slots asks for {}; leave --slots out to take what it has, or \
                 change it with 'gcra-spoa table resize --table {path} --slots {}'",
                wanted.get(),
                wanted.get()
            ),
            Problem::Clock { theirs_ns, ours_ns } => write!(
                f,
                "table {path} is used with the clock of another time namespace: there CLOCK_BOOTTIME is {} s ahead of \
                 the machine's, and here {} s; run all agents of a table in one time namespace, or {begin_anew}",
                Seconds(*theirs_ns),
                Seconds(*ours_ns)
            ),
            Problem::Unlinked => write!(f, "table {path} was removed just now; try again"),
            Problem::Unfinished => write!(
                f,
                "table {path} is the successor of a table whose resize is not finished, so it lacks buckets; name that \
                 table, and finish its resize with 'gcra-spoa table resize', or {begin_anew}"
            ),
            Problem::NoSuccessor => write!(
                f,
                "table {path} was being resized, and the file that takes over from it is gone; {begin_anew}"
            ),
            Problem::SameSlots(slots) => write!(f, "table {path} has {slots} slots already"),
            Problem::ResizeRuns(slots) => write!(
                f,
                "table {path} is being resized to {slots} slots by another process; wait until that has ended, and if it \
                 was stopped, continue or end it (fuser {path}.next names it)"
            ),
            Problem::OtherResize(slots) => write!(
                f,
                "table {path}: a resize to {slots} slots was interrupted; finish it first: 'gcra-spoa table resize \
                 --table {path} --slots {slots}'"
            ),
            Problem::Displaced => write!(
                f,
                "table {path}: while it was resized, somebody removed or replaced it or {path}.next, so the new file did \
                 not get its name; stop every agent that uses it, remove both, and a new one is made"
            ),
            Problem::Locked => write!(
                f,
                "table {path} has been locked for 5 s by a process that is attaching to it or has resized it; if that \
                 one is stopped, continue or end it (fuser {path} names it)"
            ),
            Problem::Contended => {
                write!(
                    f,
                    "table {path} keeps coming and going; something removes it as agents start"
                )
            }
        }
    }
}

/// Nanoseconds, written as seconds with as many digits as it takes.
struct Seconds(i64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, ns) =
            (self.0.unsigned_abs() / 1_000_000_000, self.0.unsigned_abs() % 1_000_000_000);
        let fraction = format!(".{ns:09}");
        write!(f, "{sign}{whole}{}", fraction.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None // the sentence has it all
    }
}

//! Opening a table file, and making one: who wins, and what is refused.
//!
//! A new table is made complete under no name at all and then linked to its name. So a file with the name is a
//! whole table, there is no half-made state to wait for, and of many starters exactly one wins the link; the
//! others open its file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, thread};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::clock;
use crate::header::{FIXED_BYTES, HEADER_BYTES, Header, HeaderError};
use crate::slot::Slots;

/// Whether [`Table::open_or_create`](crate::Table::open_or_create) made the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Opened {
    /// It was not there; all buckets are new.
    Created,
    /// It was; its buckets go on.
    Joined,
}

/// Why a file can't be used as the table. Each says what was found, what was wanted, and how to go on. Nothing was
/// changed.
#[derive(Debug)]
pub struct OpenError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    Io { doing: &'static str, source: io::Error },
    NoTmpfile,
    Symlink,
    Kind(&'static str),
    Owner { found: u32, wanted: u32 },
    Mode(u32),
    Links(u64),
    Foreign,
    Layout(u32),
    Hash,
    Size { found: u64, wanted: u64 },
    Slots { found: u64, wanted: u32 },
    Locked,
    Contended,
}

/// An open table file, checked, its header brought to this boot.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(crate) file: File,
    pub(crate) header: Header,
}

/// Opens the table at `path`, or makes it.
pub(crate) fn open_or_create(path: &Path, slots: Slots) -> Result<(TableFile, Opened), OpenError> {
    let error = |problem| OpenError { path: path.to_owned(), problem };
    let mut opened = Opened::Joined;
    // Ends: a file that comes and goes this often is somebody else's doing.
    for _ in 0..16 {
        match open(path) {
            Ok(file) => return check(file, slots).map(|file| (file, opened)).map_err(error),
            Err(Problem::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(problem) => return Err(error(problem)),
        }
        match create(path, slots) {
            Ok(()) => opened = Opened::Created,
            Err(Problem::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(problem) => return Err(error(problem)),
        }
    }
    Err(error(Problem::Contended))
}

fn open(path: &Path) -> Result<File, Problem> {
    // NONBLOCK: opening a FIFO must not wait for its other end. On a regular file it means nothing.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) => Err(Problem::Symlink),
        Err(Errno::ISDIR) => Err(Problem::Kind("a directory")),
        // A socket can't be opened at all.
        Err(Errno::NXIO) => Err(Problem::Kind("a socket or a device")),
        Err(errno) => Err(failed("open it")(errno.into())),
    }
}

fn create(path: &Path, slots: Slots) -> Result<(), Problem> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => return Err(Problem::NoTmpfile),
        Err(Errno::NOENT) => {
            let missing = io::Error::other(format!("the directory {} does not exist", directory.display()));
            return Err(failed("create it")(missing));
        }
        Err(errno) => return Err(failed("create it")(errno.into())),
    };
    // All of it now: no space is an error here, and would be the end of the process (SIGBUS) later.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, HEADER_BYTES as u64 + slots.bytes())
        .map_err(|errno| failed("reserve its space")(errno.into()))?;

    let mut hash_key = [0; 16];
    getrandom::fill(&mut hash_key)
        .map_err(|error| failed("draw its hash key")(io::Error::other(error.to_string())))?;
    let mut creator = [0; 32];
    let version = concat!("gcra-table ", env!("CARGO_PKG_VERSION")).as_bytes();
    let length = version.len().min(creator.len());
    creator[..length].copy_from_slice(&version[..length]);
    let header = Header {
        slots: u64::from(slots.get()),
        hash_key,
        created_wall_ns: clock::wall_ns(),
        creator,
        boot_id: clock::boot_id().map_err(failed("read the boot id"))?,
        base_ns: 0,
    };
    file.write_all_at(&header.to_bytes(), 0).map_err(failed("write its header"))?;

    // The name goes to whoever links first; EEXIST is for the others. (A link by descriptor alone would need
    // a capability, so it goes through /proc.)
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW)
        .map_err(|errno| failed("give it its name")(errno.into()))
}

fn check(file: File, slots: Slots) -> Result<TableFile, Problem> {
    let metadata = file.metadata().map_err(failed("examine it"))?;
    let wanted = rustix::process::geteuid().as_raw();
    if !metadata.is_file() {
        return Err(Problem::Kind(if metadata.is_dir() { "a directory" } else { "not a regular file" }));
    }
    if metadata.uid() != wanted {
        return Err(Problem::Owner { found: metadata.uid(), wanted });
    }
    if metadata.mode() & 0o7777 != 0o600 {
        return Err(Problem::Mode(metadata.mode() & 0o7777));
    }
    if metadata.nlink() != 1 {
        return Err(Problem::Links(metadata.nlink()));
    }

    lock(&file)?;
    let mut bytes = [0; FIXED_BYTES];
    let mut header = match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Header::from_bytes(&bytes).map_err(|error| match error {
            HeaderError::Foreign => Problem::Foreign,
            HeaderError::Layout { found } => Problem::Layout(found),
            HeaderError::Hash => Problem::Hash,
        })?,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Problem::Foreign),
        Err(error) => return Err(failed("read its header")(error)),
    };
    let bytes = header.slots.saturating_mul(16).saturating_add(HEADER_BYTES as u64);
    if metadata.len() != bytes {
        return Err(Problem::Size { found: metadata.len(), wanted: bytes });
    }
    if header.slots != u64::from(slots.get()) {
        return Err(Problem::Slots { found: header.slots, wanted: slots.get() });
    }
    bring_to_this_boot(&file, &mut header)?;
    rustix::fs::flock(&file, FlockOperation::Unlock).map_err(|errno| failed("unlock it")(errno.into()))?;
    Ok(TableFile { file, header })
}

/// Takes the lock under which processes attach. Decisions never take it, so it is only ever held for a moment.
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

/// After a reboot the clock began anew: finds the base with which the table's time goes on. Nobody else can be
/// attached then, and the lock keeps others out until it is written.
fn bring_to_this_boot(file: &File, header: &mut Header) -> Result<(), Problem> {
    let boot_id = clock::boot_id().map_err(failed("read the boot id"))?;
    if header.boot_id == boot_id {
        return Ok(());
    }
    let read = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at)
            .map(|()| u64::from_ne_bytes(bytes))
            .map_err(failed("read its header"))
    };
    let (last_ns, last_wall_ns) =
        (read(crate::header::SHARED_AT as u64)?, read(crate::header::SHARED_AT as u64 + 8)?);
    header.base_ns = clock::base_after_boot(last_ns, last_wall_ns, clock::wall_ns(), clock::boottime_ns());
    header.boot_id = boot_id;
    file.write_all_at(&header.to_bytes(), 0).map_err(failed("write its header"))
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> Problem {
    move |source| Problem::Io { doing, source }
}

impl OpenError {
    /// The mapping failed.
    pub(crate) fn mapping(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), problem: Problem::Io { doing: "map it", source } }
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
                    _ => Ok(()),
                }
            }
            Problem::NoTmpfile => write!(
                f,
                "table {path}: its file system has no unnamed files (O_TMPFILE); put it on a tmpfs such as /dev/shm"
            ),
            Problem::Symlink => {
                write!(f, "table {path} is a symbolic link, which could lead anywhere; name the file itself")
            }
            Problem::Kind(kind) => {
                write!(f, "table {path} is {kind}; name a regular file, or one that does not exist yet")
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
            Problem::Slots { found, wanted } => write!(
                f,
                "table {path} has {found} slots, and --slots asks for {wanted}; start with --slots {found}, or {begin_anew}"
            ),
            Problem::Locked => write!(
                f,
                "table {path} has been locked for 5 s by a process that is attaching to it; if that one is stopped, \
                 continue or end it (fuser {path} names it)"
            ),
            Problem::Contended => {
                write!(f, "table {path} keeps coming and going; something removes it as agents start")
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        None // the sentence has it all
    }
}

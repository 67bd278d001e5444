//! A file that the processes of one user map: a table, or leases.
//!
//! It is made complete without a name, and then linked to its name. So a file with the name is
//! whole, and there is no half-made state to wait for. If many processes start at once, exactly
//! one of them succeeds with the link, and the others open its file.

pub(crate) mod cgroup;
pub(crate) mod checked;
pub(crate) mod exemptions;
pub(crate) mod header;
pub(crate) mod heard;
pub(crate) mod open;
pub(crate) mod open_error;
pub(crate) mod profile;
pub(crate) mod region;
pub(crate) mod register;

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::file::open_error::OpenErrorKind;

/// The pause after each attempt to take a lock.
pub(crate) const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileId {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// The file that has this name now.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        fs::symlink_metadata(path).map(|metadata| Self::of(&metadata))
    }
}

/// The purpose for which a process opens a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    /// To decide with it. Only for the user of the file, because what another user does to the
    /// file is done to all its decisions.
    Decider,
    /// To look at it, to change single keys, or to resize it. Also for root.
    Inspector,
}

/// Opens a file that exists.
pub(crate) fn open(path: &Path) -> Result<File, OpenErrorKind> {
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

/// Makes a file of `bytes` with this name, which `fill` has written before. The error has the kind
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if another process was faster.
pub(crate) fn make(
    path: &Path,
    bytes: u64,
    fill: impl FnOnce(&File) -> Result<(), OpenErrorKind>,
) -> Result<(), OpenErrorKind> {
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

    fill(&file)?;

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
pub(crate) fn must_have_memory_for(bytes: u64, more: u64) -> Result<(), OpenErrorKind> {
    must_allow_files_of(bytes)?;
    match cgroup::memory_left() {
        Some(left) if left < more => Err(OpenErrorKind::Memory { needed: more, left }),
        _ => Ok(()),
    }
}

pub(crate) fn must_allow_files_of(bytes: u64) -> Result<(), OpenErrorKind> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(OpenErrorKind::FileSize { needed: bytes, limit }),
        _ => Ok(()),
    }
}

/// Reserves the space of the holes in a file that was copied, as [`make`] does for a whole file.
pub(crate) fn reserve(file: &File, bytes: u64) -> Result<(), OpenErrorKind> {
    let stored = file.metadata().map_err(failed("examine it"))?.blocks().saturating_mul(512);
    if stored < bytes {
        must_have_memory_for(bytes, bytes - stored)?;
        rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes)
            .map_err(|errno| failed("reserve its space")(errno.into()))?;
    }
    Ok(())
}

/// Refuses what is not a file of this user.
pub(crate) fn must_be_of_user(metadata: &Metadata, role: Role) -> Result<(), OpenErrorKind> {
    let user = rustix::process::geteuid();
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "not a regular file" };
        return Err(OpenErrorKind::NotAFile { kind });
    }
    if metadata.uid() != user.as_raw() && !(role == Role::Inspector && user.is_root()) {
        return Err(OpenErrorKind::Owner { found: metadata.uid(), expected: user.as_raw() });
    }
    Ok(())
}

/// Refuses a file that others could open, and one whose name is not its only one.
pub(crate) fn must_be_private(metadata: &Metadata) -> Result<(), OpenErrorKind> {
    if metadata.mode() & 0o7777 != 0o600 {
        return Err(OpenErrorKind::Mode { found: metadata.mode() & 0o7777 });
    }
    match metadata.nlink() {
        1 => Ok(()),
        0 => Err(OpenErrorKind::Unlinked),
        count => Err(OpenErrorKind::Links { count }),
    }
}

/// Takes the lock under which processes attach. Decisions do not need it, so it is held only for
/// moments.
pub(crate) fn lock(file: &File) -> Result<(), OpenErrorKind> {
    if try_lock(file, 500)? { Ok(()) } else { Err(OpenErrorKind::Locked) }
}

/// Tries so often to take the lock. False if another process has it.
pub(crate) fn try_lock(file: &File, attempts: u32) -> Result<bool, OpenErrorKind> {
    for _ in 0..attempts {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => thread::sleep(LOCK_PAUSE),
            Err(errno) => return Err(failed("lock it")(errno.into())),
        }
    }
    Ok(false)
}

pub(crate) fn read_at(file: &File, at: usize) -> Result<u64, OpenErrorKind> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64).map_err(failed("read its header"))?;
    Ok(u64::from_ne_bytes(bytes))
}

pub(crate) fn write_at(file: &File, at: usize, value: u64) -> Result<(), OpenErrorKind> {
    file.write_all_at(&value.to_ne_bytes(), at as u64).map_err(failed("write its header"))
}

pub(crate) fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> OpenErrorKind {
    move |source| OpenErrorKind::Io { doing, source }
}

//! A file that the processes of one user map: a table, or leases.
//!
//! It is made complete without a name, and then linked to its name. So a file with the name is
//! whole, and there is no half-made state to wait for. If many processes start at once, exactly
//! one of them succeeds with the link, and the others open its file.

pub(crate) mod cgroup;
pub(crate) mod checked;
pub(crate) mod header;
pub(crate) mod heard;
pub(crate) mod open;
pub(crate) mod open_error;
pub(crate) mod orders;
pub(crate) mod profile;
pub(crate) mod region;
pub(crate) mod said;

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::file::open_error::OpenErrorKind;

/// The pause after each attempt to take a lock.
pub(crate) const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A folder that is kept open, so that the files in it are found by a process that has another
/// root by now, or another user.
#[derive(Clone, Debug)]
pub struct Folder(Arc<OwnedFd>);

impl Folder {
    /// The folder of the file at `path`. The file need not exist.
    ///
    /// # Errors
    ///
    /// There is no such folder, or it cannot be used by this user.
    pub fn of(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(Arc::new(rustix::fs::open(parent(path), flags, Mode::empty())?)))
    }
}

/// Where a file is: its path, and its folder if that is kept open. It is a table, or a file beside
/// one.
#[derive(Clone, Debug)]
pub struct FilePath {
    path: PathBuf,
    folder: Option<Folder>,
}

impl FilePath {
    /// The file at `path`; with a folder, the one of that name in it.
    #[must_use]
    pub fn new(path: &Path, folder: Option<&Folder>) -> Self {
        Self { path: path.to_owned(), folder: folder.cloned() }
    }

    /// The same with a dot and this behind the name.
    #[must_use]
    pub fn with_added_extension(&self, extension: &str) -> Self {
        Self { path: self.path.with_added_extension(extension), folder: self.folder.clone() }
    }

    /// The folder, and the name in it, for `openat` and the like; without an open folder, the one
    /// in which the process works, and the path.
    #[must_use]
    pub fn at(&self) -> (BorrowedFd<'_>, &Path) {
        match (&self.folder, self.path.file_name()) {
            (Some(Folder(folder)), Some(name)) => (folder.as_fd(), Path::new(name)),
            _ => (CWD, &self.path),
        }
    }

    /// Takes the lock of the file under which processes attach. A process that has kept a folder
    /// open may have no time to wait, and tries again later.
    pub(crate) fn lock(&self, file: &File) -> Result<(), OpenErrorKind> {
        match &self.folder {
            None => lock(file),
            Some(_) => match try_lock(file, 10)? {
                true => Ok(()),
                false => Err(OpenErrorKind::Locked),
            },
        }
    }

    /// Removes the file.
    ///
    /// # Errors
    ///
    /// Those of `unlinkat`.
    pub fn remove(&self) -> io::Result<()> {
        let (folder, name) = self.at();
        Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?)
    }

    /// Gives the file this name, whatever has it.
    ///
    /// # Errors
    ///
    /// Those of `renameat`.
    pub fn rename(&self, to: &Self) -> io::Result<()> {
        let ((folder, name), (to_folder, to_name)) = (self.at(), to.at());
        Ok(rustix::fs::renameat(folder, name, to_folder, to_name)?)
    }
}

impl From<&Path> for FilePath {
    fn from(path: &Path) -> Self {
        Self::new(path, None)
    }
}

impl Deref for FilePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

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
    pub(crate) fn at(path: &FilePath) -> io::Result<Self> {
        let (folder, name) = path.at();
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
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
pub(crate) fn open(path: &FilePath) -> Result<File, OpenErrorKind> {
    // NONBLOCK: opening a FIFO must not wait for its other end. On a regular file it means
    // nothing.
    let flags =
        OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let (folder, name) = path.at();
    match rustix::fs::openat(folder, name, flags, Mode::empty()) {
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
    path: &FilePath,
    bytes: u64,
    fill: impl FnOnce(&File) -> Result<(), OpenErrorKind>,
) -> Result<(), OpenErrorKind> {
    must_have_memory_for(bytes, bytes)?;
    let unnamed = match path.folder {
        None => without_name(parent(path))?,
        // There may be no /proc, through which a file without a name gets one.
        Some(_) => return make_by_rename(path, bytes, fill),
    };
    prepare(&unnamed, bytes, fill)?;

    // The first process that links gets the name, and the others get EEXIST. (A link by descriptor
    // alone would need a capability, so it goes through /proc.)
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
    let (folder, name) = path.at();
    let linked = rustix::fs::linkat(CWD, &*descriptor, folder, name, AtFlags::SYMLINK_FOLLOW);
    linked.map_err(|errno| match fs::symlink_metadata(descriptor) {
        Ok(_) => failed("give it its name")(errno.into()),
        Err(source) => OpenErrorKind::Proc { file: "/proc/self/fd", source },
    })
}

fn without_name(directory: &Path) -> Result<File, OpenErrorKind> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => Err(OpenErrorKind::NoTmpfile),
        Err(Errno::NOENT) => {
            let missing =
                io::Error::other(format!("the directory {} does not exist", directory.display()));
            Err(failed("create it")(missing))
        }
        Err(errno) => Err(failed("create it")(errno.into())),
    }
}

/// As [`make`], by a file with another name that is renamed: `.NAME.new`.
///
/// A process that makes a table has the lock of that file. One that was killed has left the file
/// without a lock, and the next one writes all of it anew. When a process gets the lock, another
/// one may have renamed the file meanwhile.
fn make_by_rename(
    path: &FilePath,
    bytes: u64,
    fill: impl FnOnce(&File) -> Result<(), OpenErrorKind>,
) -> Result<(), OpenErrorKind> {
    let (folder, name) = path.at();
    let mut new = OsString::from(".");
    new.push(name);
    new.push(".new");
    let new = FilePath::new(&path.with_file_name(new), path.folder.as_ref());
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(folder, new.at().1, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| failed("create it")(errno.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(failed("examine it"))?;
    must_be_of_user(&metadata, Role::Decider)?;
    path.lock(&file)?;
    if !FileId::at(&new).is_ok_and(|found| found == FileId::of(&metadata)) {
        // The table is there, or another process will make it.
        return Err(failed("create it")(io::ErrorKind::AlreadyExists.into()));
    }
    // What a process has left that was killed.
    file.set_len(0).map_err(failed("create it"))?;
    let made = prepare(&file, bytes, fill).and_then(|()| {
        rustix::fs::renameat_with(folder, new.at().1, folder, name, RenameFlags::NOREPLACE)
            .map_err(|errno| failed("give it its name")(errno.into()))
    });
    if made.is_err() {
        let _ = new.remove();
    }
    // A mapping would keep it.
    let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
    made
}

/// Gives a new file its mode and its space, and what `fill` writes.
fn prepare(
    file: &File,
    bytes: u64,
    fill: impl FnOnce(&File) -> Result<(), OpenErrorKind>,
) -> Result<(), OpenErrorKind> {
    // Whatever the umask took away.
    rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| failed("set its mode")(errno.into()))?;
    // All of the space now: if there is too little, that is an error here, and would be the end of
    // the process (SIGBUS) later.
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| failed("reserve its space")(errno.into()))?;
    fill(file)
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

//! The file of a Unix socket, which one agent at a time may have.
//!
//! # Taking the path
//!
//! A file that a killed agent left behind is replaced, in three steps: find out that no process
//! listens on it, remove it, bind. If a process removed the file that another process has just
//! bound, the other would listen on a file that is gone. So each process locks `PATH.lock` before
//! the first step, and unlocks it when it listens. The kernel unlocks the file when a process
//! dies, and the next process locks a lock file that was left behind.
//!
//! # Giving it back
//!
//! The file is removed while the listener is still open. While the listener is open, connections
//! to the file are not refused. So no other process replaces the file, and the file that is
//! removed is our own.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown,
};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, thread};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixSocket};

/// A process holds the lock for well under a millisecond, unless it is stopped meanwhile.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Which processes may connect to a Unix socket that
/// [`bind_with`](crate::ListenAddress::bind_with) creates. To connect, a process must be allowed
/// to write to the socket.
///
/// The default is mode 0777 without the bits of the umask, and the group of a new file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SocketAccess {
    mode: Option<u32>,
    group: Option<u32>,
}

impl SocketAccess {
    /// Sets the file's permissions, `0o660` for instance. Bits beyond `0o777` are ignored.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode: Some(mode & 0o777), ..self }
    }

    /// Sets the file's group, by its number. The process must be a member of it, or have
    /// `CAP_CHOWN`.
    #[must_use]
    pub fn group(self, group: u32) -> Self {
        Self { group: Some(group), ..self }
    }

    fn apply(self, path: &Path) -> io::Result<()> {
        if let Some(group) = self.group {
            lchown(path, None, Some(group)).map_err(|error| {
                let what = format!(
                    "could not give it to the group {group}: {error}; the agent's user must be a \
                     member of the group, or root"
                );
                io::Error::new(error.kind(), what)
            })?;
        }
        if let Some(mode) = self.mode {
            fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("could not give it the mode {mode:04o}: {error}"),
                )
            })?;
        }
        Ok(())
    }
}

/// The file of a Unix socket that listens. It is removed when this is dropped, unless another
/// process has put its own file there.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id(&fs::symlink_metadata(path)?) })
    }

    fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| id(&metadata) == self.id)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The file's device and inode number.
fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Listens at a path where no other process listens.
pub(crate) fn listen(
    path: &Path,
    access: SocketAccess,
    backlog: u32,
) -> io::Result<(UnixListener, SocketFile)> {
    let _lock = Lock::take(path)?;
    remove_stale(path)?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile::new(path)?;
    // Until the socket listens, connections are refused. So none comes before the permissions are
    // set.
    access.apply(path)?;
    let listener = socket.listen(backlog)?;
    if !file.is_there() {
        let what =
            "another process removed or replaced the socket's file when it was just created";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    }
    Ok((listener, file))
}

/// Removes the file of a socket that no process listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if metadata.is_dir() {
        let what = "it is a directory; name a file in it, such as agent.sock";
        return Err(io::Error::new(io::ErrorKind::IsADirectory, what));
    }
    if !metadata.file_type().is_socket() {
        let what = "there is a file with this name that is not a socket; remove it, or choose \
                    another path";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // If a process listens and its backlog is full, a blocking connect would wait for it.
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let what = "there is a socket that this user may not write to, so the agent cannot \
                        find out whether a process listens on it; remove it if none does";
            Err(io::Error::new(error.kind(), what))
        }
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
    }
}

/// The lock on a path. It is given back when this is dropped.
struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    fn take(socket: &Path) -> io::Result<Self> {
        let path = PathBuf::from(
            [socket.as_os_str(), ".lock".as_ref()].into_iter().collect::<OsString>(),
        );
        let failed = |error: io::Error| {
            let what = format!(
                "could not lock {}, the file that keeps two agents from using one path: {error}",
                path.display()
            );
            io::Error::new(error.kind(), what)
        };
        for _ in 0..LOCK_ATTEMPTS {
            let file = open_lock(&path).map_err(failed)?;
            match file.try_lock() {
                // The process that had the lock may have removed the file. Then this lock is on a
                // file that no other process sees.
                Ok(()) if is_at(&file, &path) => return Ok(Self { path, file }),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        let what =
            format!("another process is about to listen there: it has locked {}", path.display());
        Err(io::Error::new(io::ErrorKind::AddrInUse, what))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file with this name that is not a lock file is left alone.
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the lock file, or creates it. Another user must not be able to choose which file that is.
fn open_lock(path: &Path) -> io::Result<File> {
    let refused = |what: &str| io::Error::new(io::ErrorKind::PermissionDenied, what);
    // Opened for reading and writing, because opening a FIFO for reading or writing alone waits.
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path);
    let file = match open {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return Err(refused("it is a symbolic link, which could lead anywhere; remove it"));
        }
        open => open?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file; remove it"));
    }
    if ![Uid::ROOT, geteuid()].map(Uid::as_raw).contains(&metadata.uid()) {
        let what =
            format!("it belongs to the user {}, who could hold it; remove it", metadata.uid());
        return Err(refused(&what));
    }
    Ok(file)
}

/// Whether the path still leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let named = fs::symlink_metadata(path).map(|metadata| id(&metadata));
    file.metadata().is_ok_and(|metadata| named.is_ok_and(|named| named == id(&metadata)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let error = listen(directory.path(), SocketAccess::default(), 1).unwrap_err();
        assert!(error.to_string().starts_with("it is a directory; name a file in it"), "{error}");
    }

    #[tokio::test]
    async fn a_lock_that_was_left_behind_is_taken_and_one_that_is_held_is_respected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let lock = directory.path().join("agent.sock.lock");
        fs::write(&lock, "").unwrap();
        let listen = || listen(&path, SocketAccess::default(), 1);
        drop(listen().unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);

        let held = Lock::take(&path).unwrap();
        let error = listen().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains("agent.sock.lock"), "{error}");
        drop(held);
        drop(listen().unwrap());

        // Another file with this name.
        fs::write(&lock, "precious").unwrap();
        drop(listen().unwrap());
        assert_eq!(fs::read_to_string(&lock).unwrap(), "precious");
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        let error = listen().unwrap_err().to_string();
        assert!(
            error.starts_with("could not lock ") && error.contains("agent.sock.lock, "),
            "{error}"
        );
    }

    /// In a directory that others can write to, the lock may be anything.
    #[tokio::test]
    async fn a_lock_that_another_user_may_have_made_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let lock = path("agent.sock.lock");
        let refused = || {
            let listening = listen(&path("agent.sock"), SocketAccess::default(), 1);
            listening.map(drop).unwrap_err().to_string()
        };
        std::os::unix::fs::symlink(path("victim"), &lock).unwrap();
        let error = refused();
        assert!(error.contains("symbolic link") && error.contains("agent.sock.lock"), "{error}");
        assert!(!path("victim").exists());
        fs::remove_file(&lock).unwrap();
        let fifo = rustix::fs::mknodat(
            rustix::fs::CWD,
            &lock,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        );
        fifo.unwrap();
        assert!(refused().contains("it is not a regular file"));
        fs::remove_file(&lock).unwrap();
        // Only root can give a file away.
        if geteuid().is_root() {
            fs::write(&lock, "").unwrap();
            std::os::unix::fs::chown(&lock, Some(12_345), None).unwrap();
            let error = refused();
            assert!(error.contains("it belongs to the user 12345"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_listener_takes_only_its_own_file_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let first = listen(&path, SocketAccess::default(), 1).unwrap();
        fs::rename(&path, directory.path().join("moved")).unwrap();
        let second = listen(&path, SocketAccess::default(), 1).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}

//! Why a file cannot be used as a table.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::file::header::LAYOUT;
use crate::slots::Slots;
use crate::time::Nanos;

/// Why a file cannot be opened, made or resized as a table. Nothing was changed, unless the
/// [kind](Self::kind) says so.
///
/// The text says what was found and what was expected. What to do about it depends on the program:
/// it is for the program to match on the kind and say so.
#[derive(Debug)]
pub struct OpenError {
    path: PathBuf,
    kind: OpenErrorKind,
}

/// What is wrong with a file that was to be a table: see [`OpenError`].
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// A system call failed. The error of the system is the [source](std::error::Error::source).
    Io {
        /// What could not be done, such as "open it" or "reserve its space".
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// There is no file.
    Missing,
    /// Its file system cannot make a file that has no name yet (O_TMPFILE).
    NoTmpfile,
    /// A file of /proc on which the clock of the table depends could not be read.
    Proc {
        /// The file of /proc.
        file: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The memory limit of the cgroup leaves less than the table takes.
    Memory {
        /// The bytes that are needed.
        needed: u64,
        /// The bytes that are left.
        left: u64,
    },
    /// The limit of file sizes (RLIMIT_FSIZE) is below the size of the table.
    FileSize {
        /// The bytes that are needed.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// It is a symbolic link, which could lead anywhere.
    Symlink,
    /// It is not a regular file.
    NotAFile {
        /// What it is, such as "a directory".
        kind: &'static str,
    },
    /// It belongs to another user.
    Owner {
        /// The owner's user id.
        found: u32,
        /// The user id of this process.
        expected: u32,
    },
    /// Its mode is not 0600, so that others could read the hash key or change the buckets.
    Mode {
        /// The mode, without the type of the file.
        found: u32,
    },
    /// It has several names (hard links).
    Links {
        /// How many names it has.
        count: u64,
    },
    /// It is not a table.
    Foreign,
    /// It is not a file of leases.
    NotLeases,
    /// It has the layout of another version.
    Layout {
        /// Its layout.
        found: u32,
        /// The layout of this version.
        expected: u32,
    },
    /// It was made by a build that hashes keys differently, or its header is damaged.
    Hash,
    /// Its header is damaged.
    Damaged {
        /// How it can be seen, as a sentence without an end.
        how: &'static str,
    },
    /// It was cut or has grown: its length does not fit its header.
    Length {
        /// Its length in bytes.
        found: u64,
        /// The length that its header says.
        expected: u64,
    },
    /// It has another number of slots than was asked for.
    Slots {
        /// The number of its slots.
        found: Slots,
        /// The number that was asked for.
        asked: Slots,
    },
    /// The processes that use it read CLOCK_BOOTTIME in another time namespace.
    Clock {
        /// How many nanoseconds that clock is ahead of the machine's.
        theirs_ns: i64,
        /// How many nanoseconds the clock of this process is ahead of the machine's.
        ours_ns: i64,
    },
    /// Another process has held its lock for 5 seconds: one that is attaching to it or has resized
    /// it, and is perhaps stopped.
    Locked,
    /// Each time it was opened it had been removed or replaced meanwhile.
    Contended,
    /// It was removed just now.
    Unlinked,
    /// It is the successor of a table whose resize is not finished, so that it lacks buckets.
    Unfinished,
    /// It was being resized, and the file that takes over from it is gone.
    NoSuccessor,
    /// A resize would make the new file at this path, and another table is there.
    SuccessorTaken,
    /// It has the number of slots already that a resize was to give it.
    SameSlots {
        /// That number.
        slots: Slots,
    },
    /// Another process is resizing it.
    ResizeRuns {
        /// The number of slots it will have.
        to: Slots,
    },
    /// A resize to another number of slots was interrupted, and must be finished first.
    ResizeInterrupted {
        /// The number of slots it was to get.
        to: Slots,
    },
    /// While it was resized, it or its successor was removed or replaced, so that the new file did
    /// not get its name. Buckets have moved to the new file.
    Displaced,
}

impl OpenError {
    /// The error of this kind for the table at `path`.
    #[must_use]
    pub fn new(path: &Path, kind: OpenErrorKind) -> Self {
        Self { path: path.to_owned(), kind }
    }

    /// The path of the table that the error is about. For a resize it may be the successor's.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong.
    #[must_use]
    pub const fn kind(&self) -> &OpenErrorKind {
        &self.kind
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}: {}", self.path.display(), self.kind)
    }
}

impl fmt::Display for OpenErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, .. } => write!(f, "could not {doing}"),
            Self::Missing => f.write_str("there is no such file"),
            Self::NoTmpfile => f.write_str("its file system has no unnamed files (O_TMPFILE)"),
            Self::Proc { file, .. } => write!(f, "could not read {file}, which its clock needs"),
            Self::Memory { needed, left } => {
                write!(
                    f,
                    "it takes {needed} bytes of memory, and the cgroup's limit leaves {left}"
                )
            }
            Self::FileSize { needed, limit } => {
                write!(f, "it takes a file of {needed} bytes, and the limit for a file is {limit}")
            }
            Self::Symlink => f.write_str("it is a symbolic link"),
            Self::NotAFile { kind } => write!(f, "it is {kind}"),
            Self::Owner { found, expected } => {
                write!(f, "it belongs to user {found}, and this is user {expected}")
            }
            Self::Mode { found } => write!(f, "it has mode {found:04o} instead of 0600"),
            Self::Links { count } => write!(f, "it has {count} names (hard links)"),
            Self::Foreign => f.write_str("it is not a table"),
            Self::NotLeases => f.write_str("it is not a file of leases"),
            Self::Layout { found, expected } => {
                write!(f, "it has layout {found}, and this version reads layout {expected}")
            }
            Self::Hash => f.write_str(
                "it was made by a build that hashes keys differently, or its header is damaged",
            ),
            Self::Damaged { how } => write!(f, "its header is damaged: {how}"),
            Self::Length { found, expected } => {
                write!(f, "it is {found} bytes long, and its header says {expected}")
            }
            Self::Slots { found, asked } => {
                write!(f, "it has {} slots, and {} were asked for", found.get(), asked.get())
            }
            Self::Clock { theirs_ns, ours_ns } => write!(
                f,
                "it is used with the clock of another time namespace, where CLOCK_BOOTTIME is {} \
                 s ahead of the machine's; here it is {} s",
                Seconds(*theirs_ns),
                Seconds(*ours_ns)
            ),
            Self::Locked => f.write_str("another process has held its lock for 5 s"),
            Self::Contended => f.write_str("it was removed or replaced each time it was opened"),
            Self::Unlinked => f.write_str("it was removed just now"),
            Self::Unfinished => f.write_str(
                "it is the successor of a table whose resize is not finished, so it lacks buckets",
            ),
            Self::NoSuccessor => {
                f.write_str("it was being resized, and the file that takes over from it is gone")
            }
            Self::SuccessorTaken => {
                f.write_str("it is another table, at the place of the new file")
            }
            Self::SameSlots { slots } => write!(f, "it has {} slots already", slots.get()),
            Self::ResizeRuns { to } => {
                write!(f, "another process is resizing it to {} slots", to.get())
            }
            Self::ResizeInterrupted { to } => {
                write!(f, "a resize to {} slots was interrupted", to.get())
            }
            Self::Displaced => f.write_str(
                "while it was resized, it or its successor was removed or replaced, so the new \
                 file did not get its name",
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            OpenErrorKind::Io { source, .. } | OpenErrorKind::Proc { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl OpenErrorKind {
    pub(crate) const fn layout(found: u32) -> Self {
        Self::Layout { found, expected: LAYOUT }
    }
}

/// Nanoseconds, written as seconds with as many digits as needed.
struct Seconds(i64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let second = Nanos::from_secs(1).0;
        let (whole, ns) = (self.0.unsigned_abs() / second, self.0.unsigned_abs() % second);
        let fraction = format!(".{ns:09}");
        write!(f, "{sign}{whole}{}", fraction.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_has_facts_and_a_source() {
        let source = io::Error::from_raw_os_error(28);
        let kind = OpenErrorKind::Io { doing: "reserve its space", source };
        let error = OpenError::new(Path::new("/t"), kind);
        assert_eq!(error.to_string(), "table /t: could not reserve its space");
        assert_eq!(error.source().unwrap().to_string(), "No space left on device (os error 28)");
        let error = OpenError::new(Path::new("/t"), OpenErrorKind::Mode { found: 0o644 });
        assert_eq!(error.to_string(), "table /t: it has mode 0644 instead of 0600");
        assert!(error.source().is_none());
        assert!(matches!(error.kind(), OpenErrorKind::Mode { found: 0o644 }));
    }

    #[test]
    fn an_offset_is_written_to_the_nanosecond() {
        for (ns, text) in [
            (0, "0"),
            (1_000_000_000, "1"),
            (-500_000_000, "-0.5"),
            (3_600_000_000_001, "3600.000000001"),
            (i64::MIN, "-9223372036.854775808"),
        ] {
            assert_eq!(Seconds(ns).to_string(), text);
        }
    }
}

//! Why a file cannot be used as a table.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::sentences::sentences;
use crate::slots::Slots;
use crate::time::Nanos;

/// Why a file cannot be opened, made or resized as a table. Nothing was changed, unless the
/// [kind](Self::kind) says so.
///
/// The text says what was found and what was expected. The remedy depends on the program: it is
/// for the program to match on the kind and say so.
#[derive(Debug)]
pub struct OpenError {
    path: PathBuf,
    kind: OpenErrorKind,
}

sentences! {
    /// The fault of a file that was to be a table: see [`OpenError`].
    #[derive(Debug)]
    #[non_exhaustive]
    pub enum OpenErrorKind {
        /// The error of the system is the [source](std::error::Error::source).
        Io { doing: &'static str, source: io::Error } => "could not {doing}";
        Missing => "there is no such file";
        NoTmpfile => "its file system has no unnamed files (O_TMPFILE)";
        Proc { file: &'static str, source: io::Error }
            => "could not read {file}, which its clock needs";
        Memory { needed: u64, left: u64 }
            => "it takes {needed} bytes of memory, and the cgroup's limit leaves {left}";
        /// That is RLIMIT_FSIZE.
        FileSize { needed: u64, limit: u64 }
            => "it takes a file of {needed} bytes, and the limit for a file is {limit}";
        /// That could lead anywhere.
        Symlink => "it is a symbolic link";
        /// Such as "a directory".
        NotAFile { kind: &'static str } => "it is {kind}";
        Owner { found: u32, expected: u32 }
            => "it belongs to user {found}, and this is user {expected}";
        /// Others could read the hash key or change the buckets.
        Mode { found: u32 } => "it has mode {found:04o} instead of 0600";
        Links { count: u64 } => "it has {count} names (hard links)";
        Foreign => "it is not a table";
        NotLeases => "it is not a file of leases";
        Layout { found: u32, expected: u32 }
            => "it has layout {found}, and this version reads layout {expected}";
        Hash => "it was made by a build that hashes keys differently, or its header is damaged";
        Damaged { how: &'static str } => "its header is damaged: {how}";
        /// It was cut or has grown.
        Length { found: u64, expected: u64 }
            => "it is {found} bytes long, and its header says {expected}";
        Slots { found: Slots, asked: Slots }
            => "it has {} slots, and {} were asked for", found.get(), asked.get();
        Clock { theirs_ns: i64, ours_ns: i64 }
            => "it is used with the clock of another time namespace, where CLOCK_BOOTTIME is {} \
                s ahead of the machine's; here it is {} s", Seconds(*theirs_ns), Seconds(*ours_ns);
        /// It is attaching to it or has resized it, and is perhaps stopped.
        Locked => "another process has held its lock for 5 s";
        Contended => "it was removed or replaced each time it was opened";
        Unlinked => "it was removed just now";
        Unfinished
            => "it is the successor of a table whose resize is not finished, so it lacks buckets";
        NoSuccessor => "it was being resized, and the file that takes over from it is gone";
        SuccessorTaken => "it is another table, at the place of the new file";
        SameSlots { slots: Slots } => "it has {} slots already", slots.get();
        ResizeRuns { to: Slots } => "another process is resizing it to {} slots", to.get();
        /// That must be finished first.
        ResizeInterrupted { to: Slots } => "a resize to {} slots was interrupted", to.get();
        /// Buckets have moved to the new file.
        Displaced
            => "while it was resized, it or its successor was removed or replaced, so the new \
                file did not get its name";
    }
}

impl OpenError {
    /// The error of this kind for the table at `path`.
    pub fn new(path: &Path, kind: OpenErrorKind) -> Self {
        Self { path: path.to_owned(), kind }
    }

    /// The path of the table that the error is about. For a resize it may be the successor's.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of the fault.
    pub const fn kind(&self) -> &OpenErrorKind {
        &self.kind
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}: {}", self.path.display(), self.kind)
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

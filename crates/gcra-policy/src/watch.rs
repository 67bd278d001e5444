//! Notices that files have changed, by their metadata.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The files that are watched: those that were looked at when the configuration was last read,
/// whether it was refused or not.
pub struct Watch {
    /// Their state when they were read, or when a change was last reported.
    taken: Vec<SeenFile>,
    /// Their state at the last look.
    last: Vec<SeenFile>,
}

/// A file, and its state; `None` if it does not exist.
pub type SeenFile = (PathBuf, Option<FileState>);

/// The properties of a file that change when it is replaced or written, or when another user may
/// read it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FileState {
    /// Device and inode.
    pub place: (u64, u64),
    pub size: u64,
    pub mode: u32,
    /// When it was last written, and when anything else about it last changed, such as who may
    /// read it: in seconds and nanoseconds.
    pub times: [(i64, i64); 2],
}

impl Watch {
    /// Watches files that were in this state when they were read.
    pub fn new(taken: Vec<SeenFile>) -> Self {
        Self { taken, last: Vec::new() }
    }

    /// Notes that the configuration was read once more, from files in this state. They are
    /// watched from now on.
    pub fn read_again(&mut self, files: Vec<SeenFile>) {
        self.taken = files;
    }

    pub fn files(&self) -> Vec<PathBuf> {
        self.taken.iter().map(|(file, _)| file.clone()).collect()
    }

    /// Takes a new look at the files. Returns whether they have changed since they were read (or
    /// since a change was last reported), and not since the last look: until then an editor may
    /// still be writing.
    pub fn take(&mut self, seen: Vec<SeenFile>) -> bool {
        let is_settled = seen == self.last;
        self.last = seen;
        let has_changed = is_settled && self.taken != self.last;
        if has_changed {
            self.taken.clone_from(&self.last);
        }
        has_changed
    }
}

/// Looks at files. This blocks for as long as the file system takes.
pub fn see_all(files: Vec<PathBuf>) -> Vec<SeenFile> {
    files.into_iter().map(|file| (see(&file), file)).map(|(seen, file)| (file, seen)).collect()
}

/// Looks at a file. This blocks for as long as the file system takes.
pub fn see(file: &Path) -> Option<FileState> {
    // Follows links, because Kubernetes replaces a mounted configuration by changing a link.
    let found = fs::metadata(file).ok()?;
    Some(FileState {
        place: (found.dev(), found.ino()),
        size: found.size(),
        mode: found.mode(),
        times: [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())],
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn seen(changed: &[i64]) -> Vec<SeenFile> {
        let state =
            |ns| FileState { place: (1, 1), size: 1, mode: 0o644, times: [(1, ns), (1, 1)] };
        changed.iter().map(|ns| (PathBuf::from("list"), Some(state(*ns)))).collect()
    }

    #[test]
    fn a_change_is_reported_once_and_when_it_is_over() {
        let mut watch = Watch::new(seen(&[1]));
        let reported: Vec<_> =
            [1, 1, 2, 3, 3, 3, 1, 1].iter().map(|ns| watch.take(seen(&[*ns]))).collect();
        assert_eq!(reported, [false, false, false, false, true, false, false, true]);
    }

    #[test]
    fn a_change_between_reading_and_the_first_look_is_reported() {
        let mut watch = Watch::new(seen(&[1]));
        assert_eq!([2, 2, 2].map(|ns| watch.take(seen(&[ns]))), [false, true, false]);
        // Read because of a signal, and changed again after that.
        watch.read_again(seen(&[3]));
        assert_eq!([3, 3, 4, 4].map(|ns| watch.take(seen(&[ns]))), [false, false, false, true]);
    }

    #[test]
    fn who_may_read_a_file_is_a_part_of_its_state() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let state = || {
            let seen = see(file.path()).unwrap();
            // A clock of the file system may be coarse.
            (seen.place, seen.size, seen.mode, seen.times[0])
        };
        let before = state();
        fs::set_permissions(file.path(), Permissions::from_mode(0o644)).unwrap();
        let after = state();
        assert_ne!(before, after);
        assert_eq!((before.0, before.1, before.3), (after.0, after.1, after.3));
    }

    #[test]
    fn a_new_file_and_a_removed_one_are_changes() {
        let mut watch = Watch::new(seen(&[1]));
        assert!(!watch.take(seen(&[1])));
        assert!(!watch.take(seen(&[1, 2])));
        assert!(watch.take(seen(&[1, 2])));
        let gone = vec![(PathBuf::from("list"), None), seen(&[2])[0].clone()];
        assert!(!watch.take(gone.clone()));
        assert!(watch.take(gone));
    }
}

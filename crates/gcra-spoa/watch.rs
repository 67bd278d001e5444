//! Notices that files have changed, by their metadata.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The files that are watched.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Their state when they were read, or when a change was last reported.
    taken: Vec<Seen>,
    /// Their state at the last look.
    last: Vec<Seen>,
}

/// A file, and its state; `None` if it does not exist.
pub(crate) type Seen = (PathBuf, Option<State>);

/// A file's device, inode, length, and the time of its last change in seconds and nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct State(u64, u64, u64, i64, i64);

impl From<&Metadata> for State {
    fn from(found: &Metadata) -> Self {
        Self(found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec())
    }
}

impl Watch {
    /// Watches files that were in this state when they were read.
    pub(crate) fn new(taken: Vec<Seen>) -> Self {
        Self { taken, last: Vec::new() }
    }

    /// Notes that the files were read once more, in this state.
    pub(crate) fn read_again(&mut self, files: &[Seen]) {
        self.taken = files.to_vec();
    }

    /// Takes a new look at the files. Returns whether they have changed since they were read (or
    /// since a change was last reported), and not since the last look: until then an editor may
    /// still be writing.
    pub(crate) fn take(&mut self, seen: Vec<Seen>) -> bool {
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
pub(crate) fn see_all(files: Vec<PathBuf>) -> Vec<Seen> {
    files.into_iter().map(|file| (see(&file), file)).map(|(seen, file)| (file, seen)).collect()
}

fn see(file: &Path) -> Option<State> {
    // Follows links, because Kubernetes replaces a mounted configuration by changing a link.
    fs::metadata(file).ok().as_ref().map(State::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(changed: &[i64]) -> Vec<Seen> {
        changed.iter().map(|ns| (PathBuf::from("list"), Some(State(1, 1, 1, 1, *ns)))).collect()
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
        watch.read_again(&seen(&[3]));
        assert_eq!([3, 3, 4, 4].map(|ns| watch.take(seen(&[ns]))), [false, false, false, true]);
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

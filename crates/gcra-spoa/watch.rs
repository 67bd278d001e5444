//! Whether files have changed, by looking at them.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What was seen of some files.
#[derive(Debug)]
pub(crate) struct Watch {
    /// As they were when they were read, or when they were last said to have changed.
    taken: Vec<Seen>,
    last: Vec<Seen>,
}

/// A file, and its state; `None` when it is not there.
pub(crate) type Seen = (PathBuf, Option<State>);

/// A file's device, number, length, and when it was changed last, to the nanosecond.
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

    /// They were read once more, in this state.
    pub(crate) fn read_again(&mut self, files: &[Seen]) {
        self.taken = files.to_vec();
    }

    /// Takes what was seen of the files, and says whether they have changed since they were read
    /// (or it last said so), and no more since the look before: somebody may still be writing.
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

/// Looks at files. The file system may take its time.
pub(crate) fn see_all(files: Vec<PathBuf>) -> Vec<Seen> {
    files.into_iter().map(|file| (see(&file), file)).map(|(seen, file)| (file, seen)).collect()
}

fn see(file: &Path) -> Option<State> {
    // What a link leads to: a mounted directory may be exchanged by its link.
    fs::metadata(file).ok().as_ref().map(State::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(changed: &[i64]) -> Vec<Seen> {
        changed.iter().map(|ns| (PathBuf::from("list"), Some(State(1, 1, 1, 1, *ns)))).collect()
    }

    #[test]
    fn a_change_is_told_once_and_when_it_is_over() {
        let mut watch = Watch::new(seen(&[1]));
        let told: Vec<_> =
            [1, 1, 2, 3, 3, 3, 1, 1].iter().map(|ns| watch.take(seen(&[*ns]))).collect();
        assert_eq!(told, [false, false, false, false, true, false, false, true]);
    }

    #[test]
    fn a_change_between_reading_and_the_first_look_is_told() {
        let mut watch = Watch::new(seen(&[1]));
        assert_eq!([2, 2, 2].map(|ns| watch.take(seen(&[ns]))), [false, true, false]);
        // Read because of a signal, in a state in which it does not stay.
        watch.read_again(&seen(&[3]));
        assert_eq!([3, 3, 4, 4].map(|ns| watch.take(seen(&[ns]))), [false, false, false, true]);
    }

    #[test]
    fn another_file_and_one_that_is_gone_are_changes() {
        let mut watch = Watch::new(seen(&[1]));
        assert!(!watch.take(seen(&[1])));
        assert!(!watch.take(seen(&[1, 2])));
        assert!(watch.take(seen(&[1, 2])));
        let gone = vec![(PathBuf::from("list"), None), seen(&[2])[0].clone()];
        assert!(!watch.take(gone.clone()));
        assert!(watch.take(gone));
    }
}

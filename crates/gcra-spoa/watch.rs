//! Whether files have changed, by looking at them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What was seen of some files.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// When they were taken to be as they are; `None` before the first look.
    taken: Option<Vec<Seen>>,
    last: Vec<Seen>,
}

/// A file: its device, number, length, and when it was changed last, to the nanosecond. `None` when it is not there.
pub(crate) type Seen = (PathBuf, Option<(u64, u64, u64, i64, i64)>);

impl Watch {
    /// Takes what was seen of the files, and says whether they have changed since it last said so
    /// (or was asked first) and no more since the look before: somebody may still be writing.
    pub(crate) fn take(&mut self, seen: Vec<Seen>) -> bool {
        let is_settled = seen == self.last;
        self.last = seen;
        let taken = self.taken.get_or_insert_with(|| self.last.clone());
        let has_changed = is_settled && *taken != self.last;
        if has_changed {
            taken.clone_from(&self.last);
        }
        has_changed
    }
}

/// Looks at files. The file system may take its time.
pub(crate) fn see_all(files: Vec<PathBuf>) -> Vec<Seen> {
    files.into_iter().map(|file| (see(&file), file)).map(|(seen, file)| (file, seen)).collect()
}

fn see(file: &Path) -> Option<(u64, u64, u64, i64, i64)> {
    // What a link leads to: a mounted directory may be exchanged by its link.
    let found = fs::metadata(file).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(changed: &[i64]) -> Vec<Seen> {
        changed.iter().map(|ns| (PathBuf::from("list"), Some((1, 1, 1, 1, *ns)))).collect()
    }

    #[test]
    fn a_change_is_told_once_and_when_it_is_over() {
        let mut watch = Watch::default();
        let told: Vec<_> = [1, 1, 2, 3, 3, 3, 1, 1].iter().map(|ns| watch.take(seen(&[*ns]))).collect();
        assert_eq!(told, [false, false, false, false, true, false, false, true]);
    }

    #[test]
    fn another_file_and_one_that_is_gone_are_changes() {
        let mut watch = Watch::default();
        assert!(!watch.take(seen(&[1])));
        assert!(!watch.take(seen(&[1, 2])));
        assert!(watch.take(seen(&[1, 2])));
        let gone = vec![(PathBuf::from("list"), None), seen(&[2])[0].clone()];
        assert!(!watch.take(gone.clone()));
        assert!(watch.take(gone));
    }
}

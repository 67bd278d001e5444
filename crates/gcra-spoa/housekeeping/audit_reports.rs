//! The file of `--audit`: opened again when it was moved away, and whether it has gaps.

use std::sync::Arc;

use gcra_limiter::audit_lines::AuditFile;
use gcra_text::count::Count;

use super::once_per_minute::{News, OncePerMinute};

/// The lines of the log about the file.
pub(super) struct AuditReports {
    file: Option<Arc<AuditFile>>,
    /// That the file cannot be opened again.
    lost: OncePerMinute,
    /// The decisions that were missing when the log last said so.
    missing: u64,
    news: News,
}

impl AuditReports {
    pub(super) fn new(file: Option<Arc<AuditFile>>) -> Self {
        let (lost, missing, news) = Default::default();
        Self { file, lost, missing, news }
    }

    /// To be called at each beat.
    pub(super) fn follow(&mut self) {
        let Some(audit) = &self.file else { return };
        let followed = audit.follow();
        if self.lost.due(followed.is_err())
            && let Err(error) = followed
        {
            log::error!(
                "could not open the audit file {} again: {error:#}; decisions are still \
                 written to the file that was there before",
                audit.path().display()
            );
        }
        let missing = audit.lost();
        if self.news.due(missing > self.missing) {
            log::warn!(
                "up to {} could not be written to the audit file, which has a gap; is its disk \
                 full?",
                Count(missing - self.missing, "decision", "decisions")
            );
            self.missing = missing;
        }
    }
}

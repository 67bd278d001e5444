//! How often the log says something: at once, and then at most once a minute.

/// How many beats, of a second each, are between two lines of one kind, at least.
pub(super) const BEATS_BETWEEN: u32 = 60;

/// Something that may be wrong for a while. The log says so when it begins, and each minute until
/// it has ended.
#[derive(Debug, Default)]
pub(super) struct OncePerMinute {
    beats: u32,
}

impl OncePerMinute {
    /// Whether the log says it now; to be called at each beat.
    pub(super) fn due(&mut self, is_wrong: bool) -> bool {
        self.due_after(1, is_wrong).is_some()
    }

    /// The same for something that is wrong only if it lasts for this many beats, fewer than a
    /// minute has. Returns for how many it has lasted.
    pub(super) fn due_after(&mut self, patience: u32, is_wrong: bool) -> Option<u32> {
        self.beats = if is_wrong { self.beats.wrapping_add(1) } else { 0 };
        let is_due = is_wrong && self.beats % BEATS_BETWEEN == patience;
        is_due.then_some(self.beats)
    }
}

/// Something that happens again and again, of which the log says how often it has since the last
/// line.
#[derive(Debug, Default)]
pub(super) struct News {
    beats_left: u32,
}

impl News {
    /// Whether the log says it now; to be called at each beat.
    pub(super) fn due(&mut self, has_happened: bool) -> bool {
        self.beats_left = self.beats_left.saturating_sub(1);
        let is_due = has_happened && self.beats_left == 0;
        if is_due {
            self.beats_left = BEATS_BETWEEN;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beats, counted from 0, at which something is said.
    fn said(beats: u32, mut due: impl FnMut(u32) -> bool) -> Vec<u32> {
        (0..beats).filter(|beat| due(*beat)).collect()
    }

    #[test]
    fn a_complaint_is_made_at_once_each_minute_and_when_it_begins_again() {
        let mut complaint = OncePerMinute::default();
        assert_eq!(said(130, |_| complaint.due(true)), [0, 60, 120]);
        assert!(said(3, |_| complaint.due(false)).is_empty());
        assert_eq!(said(3, |_| complaint.due(true)), [0]);
    }

    #[test]
    fn a_complaint_can_wait_whether_it_lasts() {
        let mut complaint = OncePerMinute::default();
        let lasted: Vec<_> = (0..80).filter_map(|_| complaint.due_after(10, true)).collect();
        assert_eq!(lasted, [10, 70]);
        assert_eq!(complaint.due_after(10, false), None);
        assert!(said(9, |_| complaint.due_after(10, true).is_some()).is_empty());
    }

    #[test]
    fn news_are_told_at_once_and_then_once_a_minute() {
        let mut news = News::default();
        assert_eq!(said(130, |_| news.due(true)), [0, 60, 120]);
        // After a minute of silence the next one is told at once.
        let mut news = News::default();
        assert_eq!(said(100, |beat| news.due(beat % 7 == 0)), [0, 63]);
    }
}

//! [`Lines`]: which lines of the log a server gets that is lost and found again and again.

use core::time::Duration;

use tokio::time::Instant;

use crate::client::fault::Fault;

/// Warnings that may follow each other at once; after that, there is one in each interval.
const BURST: u32 = 5;
const INTERVAL: Duration = Duration::from_secs(20);

/// Which lines the log gets about one thing that is well or has a fault.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The fault that the log says it has.
    told: Option<Fault>,
    /// How often it was lost since the last warning, without a line.
    silent: u32,
    /// When no warning is owed any more.
    free_at: Option<Instant>,
}

impl Lines {
    /// It has this fault, and `lost` if it had none before. Some: a warning is to be written; so
    /// often it was lost since the last one.
    ///
    /// A fault that lasts is given again and again, so that it is told once there may be a line.
    pub(crate) fn fault(&mut self, now: Instant, fault: &Fault, lost: bool) -> Option<u32> {
        self.silent += u32::from(lost);
        let free_at = self.free_at.map_or(now, |free_at| free_at.max(now));
        if self.told.as_ref() == Some(fault) || free_at > now + INTERVAL * (BURST - 1) {
            return None;
        }
        self.free_at = Some(free_at + INTERVAL);
        self.told = Some(fault.clone());
        Some(core::mem::take(&mut self.silent))
    }

    /// It is well. True: the log says that it is not, so a line is to be written.
    pub(crate) fn well(&mut self) -> bool {
        self.told.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_flaps_gets_few_lines_and_each_that_stays_away_one() {
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut lines = Lines::default();
        assert!(!lines.well(), "nothing was wrong");
        let mut pairs = 0;
        for second in 0..60 {
            pairs += u32::from(lines.fault(at(second), &Fault::Late, true).is_some());
            lines.well();
        }
        assert_eq!(pairs, 5 + 2, "at once, and one every 20 s");

        // It was lost at 41 s, and silently 19 times since. Now it stays away.
        assert_eq!(lines.fault(at(60), &Fault::Late, true), Some(20));
        assert_eq!(lines.fault(at(61), &Fault::Late, false), None, "told once");
        assert_eq!(lines.fault(at(62), &Fault::Loading, false), None, "another reason can wait");
        assert_eq!(lines.fault(at(80), &Fault::Loading, false), Some(0));
        assert!(lines.well());
        assert!(!lines.well(), "told once");
    }

    #[test]
    fn a_fault_that_could_not_be_told_is_told_if_it_lasts() {
        let began = Instant::now();
        let mut lines = Lines::default();
        for _ in 0..6 {
            lines.fault(began, &Fault::Late, true);
            lines.well();
        }
        assert_eq!(lines.fault(began, &Fault::Late, true), None);
        assert_eq!(lines.fault(began + Duration::from_secs(19), &Fault::Late, false), None);
        assert_eq!(lines.fault(began + INTERVAL, &Fault::Late, false), Some(2));
    }
}

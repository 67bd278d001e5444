//! The clocks of the machine, and which boot it is in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use rustix::time::{ClockId, clock_gettime};

/// What a table measures time with.
#[derive(Debug)]
pub(crate) enum Clock {
    /// The machine's, and what to add to it.
    Boot {
        base_ns: i64,
    },
    Manual(ManualClock),
}

impl Clock {
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Self::Boot { base_ns } => boottime_ns().saturating_add_signed(*base_ns),
            Self::Manual(clock) => clock.now_ns(),
        }
    }
}

/// The time of a [`Table::with_manual_clock`](crate::Table::with_manual_clock). It begins after one second.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl Default for ManualClock {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(1_000_000_000)))
    }
}

impl ManualClock {
    /// Lets so many nanoseconds pass.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }

    /// The time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Nanoseconds since the machine booted, suspend included: the same for all processes, and never backwards.
#[inline]
pub(crate) fn boottime_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Nanoseconds of the wall clock since 1970. Only ever used to guess how long a machine was off.
pub(crate) fn wall_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

/// The random name that the kernel gives each boot.
pub(crate) fn boot_id() -> io::Result<[u8; 16]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("'{}' is no boot id", text.trim())))
}

/// The base that turns this boot's clock into the table's: the table's time goes on from where it was last
/// seen, plus the time the machine was away by the wall clock.
///
/// A wall clock set back counts as no time away, one set far forward as a week: limits may be too strict for
/// a while after a boot, or a week's debt forgiven, and no more.
pub(crate) fn base_after_boot(last_ns: u64, last_wall_ns: u64, wall_ns: u64, boottime_ns: u64) -> i64 {
    const WEEK_NS: u64 = 7 * 86_400 * 1_000_000_000;
    let away_ns = wall_ns.saturating_sub(last_wall_ns).min(WEEK_NS);
    let now = last_ns.saturating_add(away_ns).min(i64::MAX.unsigned_abs() / 2);
    i64::try_from(now).unwrap_or(0) - i64::try_from(boottime_ns).unwrap_or(0)
}

/// The largest time a table can have, with room below 2^62 for what its keys owe: 73 years.
pub(crate) const MAX_NS: u64 = 1 << 61;

/// Whether our clock and that of the process which last wrote down that it was alive, in this boot, are one.
///
/// In another time namespace CLOCK_BOOTTIME has an offset. Behind theirs: their last sign of life lies in our
/// future. Ahead of theirs: by the wall clock it was a moment ago, by ours long ago.
pub(crate) fn is_one_clock(now_ns: u64, wall_ns: u64, last_ns: u64, last_wall_ns: u64) -> bool {
    const SECOND_NS: u64 = 1_000_000_000;
    let behind = last_ns > now_ns.saturating_add(SECOND_NS);
    let ahead =
        now_ns.saturating_sub(last_ns) > 5 * SECOND_NS && wall_ns.abs_diff(last_wall_ns) < 3 * SECOND_NS;
    !behind && !ahead
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boottime_goes_forward() {
        let first = boottime_ns();
        assert!(first > 0);
        assert!(boottime_ns() >= first);
    }

    #[test]
    fn after_a_boot_the_tables_time_goes_on() {
        let second = 1_000_000_000;
        let week = 7 * 86_400 * second;
        let now = |wall_then: u64, wall_now: u64| {
            let base = base_after_boot(500 * second, wall_then, wall_now, 20 * second);
            (20 * second).saturating_add_signed(base)
        };
        assert_eq!(now(1_000 * second, 1_060 * second), 560 * second, "a minute away");
        assert_eq!(now(1_000 * second, 10 * second), 500 * second, "the wall clock was set back");
        assert_eq!(now(0, 50 * week), 500 * second + week, "or years forward");
    }

    #[test]
    fn a_clock_of_another_namespace_is_noticed() {
        let second = 1_000_000_000;
        let one =
            |now: u64, wall: u64| is_one_clock(now * second, wall * second, 1_000 * second, 500_000 * second);
        assert!(one(1_000, 500_000), "another agent is alive");
        assert!(one(4_600, 503_600), "the agents were down for an hour");
        assert!(one(4_600, 400_000), "... and the wall clock was set back meanwhile");
        assert!(one(1_001, 900_000), "the wall clock was set forward a moment ago");
        assert!(!one(900, 500_000), "behind");
        assert!(!one(4_600, 500_001), "ahead");
    }
}

//! The clocks of the machine, and which boot it is in.

use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use rustix::time::{ClockId, clock_gettime};

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
}

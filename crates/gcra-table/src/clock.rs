//! The clocks of the machine, and which boot of it this is.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, io};

use rustix::time::{ClockId, clock_gettime};

use crate::file::open_error::OpenErrorKind;
use crate::processes::our_pid_namespace;
use crate::time::{Nanos, Time};

/// The clock that a table measures time with.
#[derive(Debug)]
pub(crate) enum Clock {
    /// CLOCK_BOOTTIME, and what to add to it.
    Boot {
        base_ns: i64,
    },
    Manual(ManualClock),
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Boot { base_ns } => Time(boottime_ns().saturating_add_signed(*base_ns)),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// The wall clock: nanoseconds since 1970.
    #[inline]
    pub(crate) fn wall_ns(&self) -> u64 {
        match self {
            Self::Boot { .. } => wall_ns(),
            Self::Manual(clock) => clock.wall_ns(),
        }
    }

    /// The reading of CLOCK_BOOTTIME at this moment.
    pub(crate) fn since_boot(&self, time: Time) -> Nanos {
        match self {
            Self::Boot { base_ns } => {
                Nanos(time.0.saturating_add_signed(base_ns.saturating_neg()))
            }
            Self::Manual(_) => Nanos(time.0),
        }
    }
}

/// The clock of a [`Table::with_manual_clock`](crate::Table::with_manual_clock), which stands
/// still until it is advanced. It starts at one second.
///
/// Its wall clock starts at one second after 1970, and advances with it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Hands>);

#[derive(Debug)]
struct Hands {
    ns: AtomicU64,
    /// The nanoseconds to add to get the wall clock.
    wall_ahead_ns: AtomicI64,
}

impl Default for ManualClock {
    fn default() -> Self {
        let (ns, wall_ahead_ns) = (AtomicU64::new(1_000_000_000), AtomicI64::new(0));
        Self(Arc::new(Hands { ns, wall_ahead_ns }))
    }
}

impl ManualClock {
    /// Lets this much time pass.
    pub fn advance(&self, by: Nanos) {
        self.0.ns.fetch_add(by.0, Ordering::Relaxed);
    }

    /// Sets the wall clock to this many nanoseconds after 1970. The table's time does not change.
    pub fn set_wall(&self, wall_ns: u64) {
        let ahead = i128::from(wall_ns) - i128::from(self.now().0);
        let ahead = i64::try_from(ahead).unwrap_or(i64::MAX);
        self.0.wall_ahead_ns.store(ahead, Ordering::Relaxed);
    }

    fn wall_ns(&self) -> u64 {
        self.now().0.saturating_add_signed(self.0.wall_ahead_ns.load(Ordering::Relaxed))
    }

    /// The time.
    pub fn now(&self) -> Time {
        Time(self.0.ns.load(Ordering::Relaxed))
    }
}

/// Nanoseconds since the machine booted, including the time it was suspended. All processes read
/// the same, and it never goes back.
#[inline]
pub(crate) fn boottime_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    // Both numbers are at least zero.
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Nanoseconds since 1970 by the wall clock.
pub(crate) fn wall_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

/// A file of /proc on which the clock depends could not be read.
fn unreadable(file: &'static str) -> impl FnOnce(io::Error) -> OpenErrorKind {
    move |source| OpenErrorKind::Proc { file, source }
}

/// The value that `read` gives, which is read once. An error is not kept.
fn once<T: Copy, E>(known: &OnceLock<T>, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    match known.get() {
        Some(known) => Ok(*known),
        None => read().map(|found| *known.get_or_init(|| found)),
    }
}

/// The name of this boot, and the offset of the time namespace. Neither changes while a process
/// lives, so each is read once.
static BOOT_ID: OnceLock<[u8; 16]> = OnceLock::new();
static OFFSET_NS: OnceLock<i64> = OnceLock::new();

/// Reads the files of /proc that say which boot of the machine this is, how its clock runs, and in
/// which pid namespace this process is. It is for a process that will change its root, and open a
/// table [in a folder](crate::Table::open_or_create_in) then.
///
/// # Errors
///
/// A file cannot be read: the error has its name and the reason.
pub fn read_clock_files() -> Result<(), OpenErrorKind> {
    our_pid_namespace();
    boot_id()?;
    namespace_offset_ns().map(drop)
}

/// The random name that the kernel gives each boot.
pub(crate) fn boot_id() -> Result<[u8; 16], OpenErrorKind> {
    once(&BOOT_ID, read_boot_id)
}

fn read_boot_id() -> Result<[u8; 16], OpenErrorKind> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = fs::read_to_string(FILE).map_err(unreadable(FILE))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| unreadable(FILE)(invalid(format!("'{}' is not a boot id", text.trim()))))
}

/// By how many nanoseconds CLOCK_BOOTTIME of the time namespace of this process is ahead of the
/// machine's.
///
/// The kernel says it, so it is exact. It cannot be measured: CLOCK_MONOTONIC has an offset of its
/// own in a time namespace, the difference of the two changes with each suspend, and the wall
/// clock can be set.
pub(crate) fn namespace_offset_ns() -> Result<i64, OpenErrorKind> {
    once(&OFFSET_NS, read_namespace_offset_ns)
}

fn read_namespace_offset_ns() -> Result<i64, OpenErrorKind> {
    const OURS: &str = "/proc/self/ns/time";
    const CHILDRENS: &str = "/proc/self/ns/time_for_children";
    const OFFSETS: &str = "/proc/self/timens_offsets";
    let ours = match fs::read_link(OURS) {
        Ok(ours) => ours,
        // A kernel without time namespaces still has other namespaces; without /proc none is seen.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && fs::read_link("/proc/self/ns/mnt").is_ok() =>
        {
            return Ok(0);
        }
        Err(error) => return Err(unreadable(OURS)(error)),
    };
    // The offsets that the kernel shows are those of the children's namespace.
    if fs::read_link(CHILDRENS).map_err(unreadable(CHILDRENS))? != ours {
        let message = "it is not the time namespace of this process itself; start it by a fork \
                       (unshare --fork)";
        return Err(unreadable(CHILDRENS)(io::Error::other(message)));
    }
    let text = fs::read_to_string(OFFSETS).map_err(unreadable(OFFSETS))?;
    boottime_offset_ns(&text)
        .ok_or_else(|| unreadable(OFFSETS)(invalid("it has no offset for boottime".to_owned())))
}

/// The offset in a line such as "boottime 3600 0": seconds, and nanoseconds to add to them.
fn boottime_offset_ns(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("boottime"))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<i64>);
    let (seconds, ns) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// The nanoseconds to add to this boot's clock to get the table's time. The table's time goes on
/// from where it was last seen, plus the time that the machine was off, by the wall clock.
///
/// If the wall clock was set back, that time counts as none; if it was set far forward, as a week.
/// So limits may be too strict for a while after a boot, or a week's debt may be forgiven, and no
/// more.
pub(crate) fn base_after_boot(
    last_ns: u64,
    last_wall_ns: u64,
    wall_ns: u64,
    boottime_ns: u64,
) -> i64 {
    const WEEK_NS: u64 = 7 * 86_400 * 1_000_000_000;
    let away_ns = wall_ns.saturating_sub(last_wall_ns).min(WEEK_NS);
    let now = last_ns.saturating_add(away_ns).min(i64::MAX.unsigned_abs() / 2);
    i64::try_from(now).unwrap_or(0) - i64::try_from(boottime_ns).unwrap_or(0)
}

/// The largest time that a table can have: 18 years. The debts of its keys stay below 2^60 then.
pub(crate) const MAX_NS: u64 = 1 << 59;

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
        assert_eq!(now(1_000 * second, 1_060 * second), 560 * second, "off for a minute");
        assert_eq!(now(1_000 * second, 10 * second), 500 * second, "the wall clock was set back");
        assert_eq!(now(0, 50 * week), 500 * second + week, "it was set forward by years");
    }

    #[test]
    fn the_offset_of_a_time_namespace_is_read_to_the_nanosecond() {
        let offset = |boottime: &str| {
            boottime_offset_ns(&format!("monotonic  7  0\nboottime {boottime}\n"))
        };
        assert_eq!(offset("          0         0"), Some(0));
        assert_eq!(offset("       3600         1"), Some(3_600_000_000_001));
        // Half a second back, as the kernel writes it.
        assert_eq!(offset("         -1 500000000"), Some(-500_000_000));
        for text in ["", "1", "a 0", "99999999999999999 0"] {
            assert_eq!(offset(text), None, "{text}");
        }
        assert_eq!(boottime_offset_ns(""), None);
        assert!(namespace_offset_ns().is_ok(), "{:?}", namespace_offset_ns());
    }
}

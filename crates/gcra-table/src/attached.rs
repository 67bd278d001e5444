//! Who uses the table: each process has an entry in the header and writes there, once a second, that it is alive.
//!
//! For people to look at. No decision depends on it.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::header::Attached;

/// An entry that was not written for so long belongs to a process that died, or to one that is stopped.
const ALIVE_NS: u64 = 5_000_000_000;

/// A process's place among the [`Attached`].
#[derive(Debug)]
pub(crate) struct Attachment {
    number: u32,
    /// The index of its entry, changed when somebody else took it while this process was stopped.
    entry: AtomicU32,
}

/// A process that uses the table: see [`Table::processes`](crate::Table::processes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Process {
    /// Its process id in its own namespace.
    pub pid: u32,
    /// Nanoseconds since it was last alive.
    pub silent_ns: u64,
}

impl Attachment {
    /// Takes a free entry. `None` when there is none: the process works all the same, and is not listed.
    pub(crate) fn new(entries: &[Attached], number: u16, now: u64) -> Option<Self> {
        let number = u32::from(number);
        let entry = claim(entries, number, now)?;
        Some(Self { number, entry: AtomicU32::new(entry) })
    }

    pub(crate) fn beat(&self, entries: &[Attached], now: u64) {
        if let Some(mine) = self.entry(entries) {
            mine.beat_ns.store(now.max(1), Ordering::Relaxed);
        } else if let Some(entry) = claim(entries, self.number, now) {
            self.entry.store(entry, Ordering::Relaxed);
        }
    }

    pub(crate) fn leave(&self, entries: &[Attached]) {
        if let Some(mine) = self.entry(entries) {
            mine.beat_ns.store(0, Ordering::Relaxed);
        }
    }

    fn entry<'a>(&self, entries: &'a [Attached]) -> Option<&'a Attached> {
        let entry = entries.get(self.entry.load(Ordering::Relaxed) as usize)?;
        (entry.number.load(Ordering::Relaxed) == self.number).then_some(entry)
    }
}

/// The processes that were alive within the last seconds.
pub(crate) fn alive(entries: &[Attached], now: u64) -> Vec<Process> {
    entries
        .iter()
        .filter(|entry| is_alive(entry.beat_ns.load(Ordering::Relaxed), now))
        .map(|entry| Process {
            pid: entry.pid.load(Ordering::Relaxed),
            silent_ns: now.saturating_sub(entry.beat_ns.load(Ordering::Relaxed)),
        })
        .collect()
}

fn is_alive(beat_ns: u64, now: u64) -> bool {
    // Its reading may be a moment after ours.
    beat_ns != 0 && beat_ns.abs_diff(now) < ALIVE_NS
}

fn claim(entries: &[Attached], number: u32, now: u64) -> Option<u32> {
    let claimed = entries.iter().position(|entry| {
        let beat_ns = entry.beat_ns.load(Ordering::Relaxed);
        !is_alive(beat_ns, now)
            && entry
                .beat_ns
                .compare_exchange(beat_ns, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    })?;
    entries[claimed].number.store(number, Ordering::Relaxed);
    entries[claimed].pid.store(std::process::id(), Ordering::Relaxed);
    u32::try_from(claimed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    fn entries<const N: usize>() -> [Attached; N] {
        core::array::from_fn(|_| Attached {
            beat_ns: AtomicU64::new(0),
            pid: AtomicU32::new(0),
            number: AtomicU32::new(0),
        })
    }

    #[test]
    fn processes_come_beat_leave_and_fall_silent() {
        let entries = entries::<2>();
        let second = 1_000_000_000;
        let first = Attachment::new(&entries, 1, 100 * second).unwrap();
        let second_one = Attachment::new(&entries, 2, 100 * second).unwrap();
        assert!(Attachment::new(&entries, 3, 101 * second).is_none(), "no room");
        assert_eq!(alive(&entries, 102 * second).len(), 2);
        assert_eq!(
            alive(&entries, 102 * second)[0],
            Process { pid: std::process::id(), silent_ns: 2 * second }
        );

        second_one.leave(&entries);
        assert_eq!(alive(&entries, 102 * second).len(), 1);
        let third = Attachment::new(&entries, 3, 102 * second).unwrap();

        // The first was stopped, and its entry went to a fourth; when it goes on it finds another one.
        assert_eq!(alive(&entries, 106 * second).len(), 1);
        let fourth = Attachment::new(&entries, 4, 106 * second).unwrap();
        third.leave(&entries);
        first.beat(&entries, 107 * second);
        fourth.beat(&entries, 107 * second);
        assert_eq!(alive(&entries, 107 * second).len(), 2);
        first.leave(&entries);
        fourth.leave(&entries);
        assert_eq!(alive(&entries, 107 * second), []);
    }
}

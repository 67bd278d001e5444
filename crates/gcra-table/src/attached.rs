//! Who uses the table: each process has an entry in the header and writes there, once a second, that it is alive.
//!
//! For people to look at. No decision depends on it, and nothing is done to a process because of what an entry says:
//! every process of the user can write there what it likes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use crate::header::ProcessEntry;

/// An entry that was not written for so long belongs to a process that died, or to one that is stopped.
const ALIVE_NS: u64 = 5_000_000_000;

/// No place among the entries.
const UNLISTED: u32 = u32::MAX;

/// A process's place among the [`ProcessEntry`]s.
#[derive(Debug)]
pub(crate) struct Attachment {
    number: u32,
    pid_namespace: u64,
    /// The index of its entry, or [`UNLISTED`]. It changes when another process took the entry while this one was
    /// stopped.
    entry: AtomicU32,
}

/// A process that uses the table: see [`Table::processes`](crate::Table::processes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Process {
    /// Its process id in its own namespace.
    pub pid: u32,
    /// Whether its process id means the same process to the caller.
    pub pid_namespace: PidNamespace,
    /// Nanoseconds since it was last alive.
    pub silent_ns: u64,
}

/// Whether a process has its id from the caller's pid namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PidNamespace {
    /// Its id names the same process to the caller.
    Ours,
    /// It is in another one, such as another container's.
    Another,
    /// One of the two has no /proc to tell.
    Unknown,
}

impl Attachment {
    /// Takes no entry yet: the first beat does.
    pub(crate) fn new(number: u16) -> Self {
        Self {
            number: u32::from(number),
            pid_namespace: our_pid_namespace(),
            entry: AtomicU32::new(UNLISTED),
        }
    }

    /// Writes down that the process is alive. One that has no entry takes a free one; where there is none, the process
    /// works all the same and its beat is counted in `unlisted`.
    pub(crate) fn beat(&self, entries: &[ProcessEntry], unlisted: &AtomicU64, now: u64) {
        if let Some(mine) = self.entry(entries) {
            mine.beat_ns.store(now.max(1), Ordering::Relaxed);
            return;
        }
        let entry = self.claim(entries, now);
        self.entry.store(entry.unwrap_or(UNLISTED), Ordering::Relaxed);
        if entry.is_none() {
            unlisted.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn leave(&self, entries: &[ProcessEntry]) {
        if let Some(mine) = self.entry(entries) {
            mine.beat_ns.store(0, Ordering::Relaxed);
        }
    }

    fn entry<'a>(&self, entries: &'a [ProcessEntry]) -> Option<&'a ProcessEntry> {
        let entry = entries.get(self.entry.load(Ordering::Relaxed) as usize)?;
        (entry.number.load(Ordering::Relaxed) == self.number).then_some(entry)
    }

    fn claim(&self, entries: &[ProcessEntry], now: u64) -> Option<u32> {
        let claimed = entries.iter().position(|entry| {
            let beat_ns = entry.beat_ns.load(Ordering::Relaxed);
            !is_alive(beat_ns, now)
                && entry
                    .beat_ns
                    .compare_exchange(beat_ns, now.max(1), Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        })?;
        let entry = &entries[claimed];
        entry.number.store(self.number, Ordering::Relaxed);
        entry.pid.store(std::process::id(), Ordering::Relaxed);
        entry.pid_namespace.store(self.pid_namespace, Ordering::Relaxed);
        u32::try_from(claimed).ok()
    }
}

/// The processes that were alive within the last seconds.
pub(crate) fn alive(entries: &[ProcessEntry], now: u64) -> Vec<Process> {
    let ours = our_pid_namespace();
    entries
        .iter()
        .filter(|entry| is_alive(entry.beat_ns.load(Ordering::Relaxed), now))
        .map(|entry| Process {
            pid: entry.pid.load(Ordering::Relaxed),
            pid_namespace: match entry.pid_namespace.load(Ordering::Relaxed) {
                theirs if theirs == 0 || ours == 0 => PidNamespace::Unknown,
                theirs if theirs == ours => PidNamespace::Ours,
                _ => PidNamespace::Another,
            },
            silent_ns: now.saturating_sub(entry.beat_ns.load(Ordering::Relaxed)),
        })
        .collect()
}

fn is_alive(beat_ns: u64, now: u64) -> bool {
    // Its reading may be a moment after ours.
    beat_ns != 0 && beat_ns.abs_diff(now) < ALIVE_NS
}

/// The inode number of the pid namespace that this process has its id from; 0 when there is no /proc to tell.
fn our_pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn processes_come_beat_leave_and_fall_silent() {
        let entries: [ProcessEntry; 2] = core::array::from_fn(|_| ProcessEntry::default());
        let unlisted = AtomicU64::new(0);
        let attach = |number, now| {
            let attachment = Attachment::new(number);
            attachment.beat(&entries, &unlisted, now);
            attachment
        };
        let first = attach(1, 100 * SECOND);
        let second = attach(2, 100 * SECOND);
        assert_eq!(alive(&entries, 102 * SECOND).len(), 2);
        let pid_namespace = PidNamespace::Ours;
        assert_eq!(
            alive(&entries, 102 * SECOND)[0],
            Process { pid: std::process::id(), pid_namespace, silent_ns: 2 * SECOND }
        );
        assert_eq!(unlisted.load(Ordering::Relaxed), 0);

        let third = attach(3, 101 * SECOND);
        assert_eq!(unlisted.load(Ordering::Relaxed), 1, "no room");
        third.leave(&entries);
        assert_eq!(alive(&entries, 102 * SECOND).len(), 2, "one without an entry leaves those of others");
        second.leave(&entries);
        assert_eq!(alive(&entries, 102 * SECOND).len(), 1);
        third.beat(&entries, &unlisted, 102 * SECOND);
        assert_eq!(alive(&entries, 102 * SECOND).len(), 2, "there is room now");
        assert_eq!(unlisted.load(Ordering::Relaxed), 1);

        // The first was stopped, and its entry went to a fourth; when it goes on it finds another one.
        assert_eq!(alive(&entries, 106 * SECOND).len(), 1);
        let fourth = attach(4, 106 * SECOND);
        third.leave(&entries);
        first.beat(&entries, &unlisted, 107 * SECOND);
        fourth.beat(&entries, &unlisted, 107 * SECOND);
        assert_eq!(alive(&entries, 107 * SECOND).len(), 2);
        first.leave(&entries);
        fourth.leave(&entries);
        assert_eq!(alive(&entries, 107 * SECOND), []);
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_told_apart() {
        let entries = [ProcessEntry::default()];
        Attachment::new(1).beat(&entries, &AtomicU64::new(0), SECOND);
        let seen = |namespace| {
            entries[0].pid_namespace.store(namespace, Ordering::Relaxed);
            alive(&entries, SECOND)[0].pid_namespace
        };
        assert_eq!(seen(our_pid_namespace()), PidNamespace::Ours);
        assert_eq!(seen(our_pid_namespace() + 1), PidNamespace::Another);
        assert_eq!(seen(0), PidNamespace::Unknown);
    }
}

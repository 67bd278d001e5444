//! The processes that use the table. Each has an entry in the header, and writes there once a
//! second that it is alive.
//!
//! The entries are for people to look at. No decision depends on them. An entry causes no action
//! on a process, because every process of the user can write anything there.

// ADR 23: Processes write signs of life into the header.
// ADR 24: Reload sends no signals.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::OnceLock;

use crate::file::checked::{text_in_words, text_to_words};
use crate::file::header::{ProcessEntry, TEXT_WORDS};
use crate::file::profile::{Profile, ProfileEntry};
use crate::hash::SipHasher;
use crate::time::{Nanos, Time};

/// A process that has not written its entry for this long is dead or stopped.
const ALIVE: Nanos = Nanos::from_secs(5);

/// Not a place among the entries.
const UNLISTED: u32 = u32::MAX;

/// A process's place among the [`ProcessEntry`]s.
#[derive(Debug)]
pub(crate) struct Attachment {
    number: u32,
    pid_namespace: u64,
    /// The index of its entry, or [`UNLISTED`]. It changes if another process took the entry
    /// while this one was stopped.
    entry: AtomicU32,
    /// The last request to reload that this process has answered.
    answered: AtomicU64,
}

/// A process that uses the table: see [`Board::processes`](crate::board::Board::processes).
///
/// All of this is what the process wrote itself, or what another process of the same user wrote in
/// its place.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Process {
    /// Its place in the list.
    pub place: usize,
    /// The number of its attachment. Another process that takes the place later has another
    /// number.
    pub attachment: u32,
    /// Its process id in its own namespace.
    pub pid: u32,
    /// Whether its process id names the same process to the caller.
    pub pid_namespace: PidNamespace,
    /// How long ago it was last alive; `None` if it has left.
    pub silent: Option<Nanos>,
    /// Its profile; `None` for a process that has not [introduced](crate::board::Board::introduce)
    /// itself, such as one of an older version.
    pub profile: Option<Profile>,
    answered: u64,
    answer: Option<ReloadAnswer>,
}

impl Process {
    /// Whether it was alive within the last 5 seconds.
    pub fn is_alive(&self) -> bool {
        self.silent.is_some_and(|silent| silent < ALIVE)
    }

    /// Its answer to this request to reload, or to a later one.
    pub fn answer_to(&self, asked: u64) -> Option<&ReloadAnswer> {
        let is_later = self.answered.wrapping_sub(asked) <= u64::MAX / 2;
        self.answer.as_ref().filter(|_| is_later)
    }
}

/// The answer of a process that was [asked to reload](crate::board::Board::ask_to_reload).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReloadAnswer {
    /// Its configuration, read again, is in force.
    InForce,
    /// As [`InForce`](Self::InForce), with a warning about the change. The table keeps the first
    /// 192 bytes, and only printable characters are read from it.
    Warned(String),
    /// Its configuration was refused for this reason, and the one before stays in force. The table
    /// keeps the first 192 bytes of the reason, and only printable characters are read from it.
    Refused(String),
    /// It has no configuration that can be read again.
    NothingToReload,
}

/// Whether a process is in the pid namespace of the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PidNamespace {
    /// It is: its id names the same process to the caller.
    Ours,
    /// It is in another one, such as another container's.
    Another,
    /// Unknown, because one of the two has no /proc.
    Unknown,
}

impl Attachment {
    /// Takes no entry yet; the first beat does.
    pub(crate) fn new(number: u16) -> Self {
        Self {
            number: u32::from(number),
            pid_namespace: our_pid_namespace(),
            entry: AtomicU32::new(UNLISTED),
            answered: AtomicU64::new(0),
        }
    }

    /// Writes down that the process is alive. A process that has no entry takes a free one. If
    /// there is none, the process still works, and its beat is counted in `unlisted`.
    pub(crate) fn beat(&self, entries: &[ProcessEntry], unlisted: &AtomicU64, now: Time) {
        if let Some(mine) = self.entry(entries) {
            mine.beat_ns.store(now.0.max(1), Ordering::Relaxed);
            return;
        }
        let entry = self.claim(entries, now);
        self.entry.store(entry.unwrap_or(UNLISTED), Ordering::Relaxed);
        if entry.is_some() {
            // The new entry has no answer yet, so that the request must be answered again.
            self.answered.store(0, Ordering::Relaxed);
        } else {
            unlisted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether this process has to answer this request to reload.
    pub(crate) fn has_to_answer(&self, asked: u64) -> bool {
        asked != 0 && asked != self.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn answer(&self, entries: &[ProcessEntry], asked: u64, answer: &ReloadAnswer) {
        self.answered.store(asked, Ordering::Relaxed);
        let Some(mine) = self.entry(entries) else { return };
        let (outcome, text) = match answer {
            ReloadAnswer::InForce => (IN_FORCE, ""),
            ReloadAnswer::Warned(warning) => (WARNED, &**warning),
            ReloadAnswer::Refused(why) => (REFUSED, &**why),
            ReloadAnswer::NothingToReload => (NOTHING_TO_RELOAD, ""),
        };
        let (words, length) = text_to_words::<TEXT_WORDS>(text);
        // A reader that finds the same number before and after reading has a whole answer.
        mine.answered.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        mine.outcome.store(outcome, Ordering::Relaxed);
        for (word, bytes) in mine.text.iter().zip(words).take(length.div_ceil(8)) {
            word.store(bytes, Ordering::Relaxed);
        }
        // This is at most 192.
        mine.length.store(u32::try_from(length).unwrap_or(0), Ordering::Relaxed);
        mine.answered.store(asked, Ordering::Release);
    }

    /// Writes down what this process says about itself, unless it is there already.
    pub(crate) fn introduce(
        &self,
        entries: &[ProcessEntry],
        profiles: &[ProfileEntry],
        hasher: SipHasher,
        profile: &Profile,
    ) {
        if self.entry(entries).is_some()
            && let Some(mine) = profiles.get(self.entry.load(Ordering::Relaxed) as usize)
        {
            mine.put(hasher, self.number, profile);
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

    fn claim(&self, entries: &[ProcessEntry], now: Time) -> Option<u32> {
        let claim_if = |is_free: &dyn Fn(u64) -> bool| {
            entries.iter().position(|entry| {
                let beat_ns = entry.beat_ns.load(Ordering::Relaxed);
                is_free(beat_ns)
                    && entry
                        .beat_ns
                        .compare_exchange(
                            beat_ns,
                            now.0.max(1),
                            Ordering::Relaxed,
                            Ordering::Relaxed,
                        )
                        .is_ok()
            })
        };
        // The entry of a process that has not left is taken last: the process may be stopped, and
        // is better kept in the list.
        let claimed = claim_if(&|beat_ns| beat_ns == 0)
            .or_else(|| claim_if(&|beat_ns| !is_recent(beat_ns, now)))?;
        let entry = &entries[claimed];
        entry.answered.store(0, Ordering::Relaxed);
        entry.number.store(self.number, Ordering::Relaxed);
        entry.pid.store(std::process::id(), Ordering::Relaxed);
        entry.pid_namespace.store(self.pid_namespace, Ordering::Relaxed);
        u32::try_from(claimed).ok()
    }
}

/// The values of `outcome`; 0 means that there is no answer.
const IN_FORCE: u32 = 1;
const REFUSED: u32 = 2;
const NOTHING_TO_RELOAD: u32 = 3;
const WARNED: u32 = 4;

/// All processes whose entries were not taken by others, including those that have left.
pub(crate) fn listed(entries: &[ProcessEntry], now: Time) -> Vec<Process> {
    let ours = our_pid_namespace();
    let used = |entry: &&ProcessEntry| entry.pid.load(Ordering::Relaxed) != 0;
    let with_places = entries.iter().enumerate().filter(|(_, entry)| used(entry));
    with_places.map(|(place, entry)| look_at(entry, place, now, ours)).collect()
}

fn look_at(entry: &ProcessEntry, place: usize, now: Time, ours: u64) -> Process {
    let beat_ns = entry.beat_ns.load(Ordering::Relaxed);
    let attachment = entry.number.load(Ordering::Relaxed);
    let answered = entry.answered.load(Ordering::Acquire);
    let answer = match entry.outcome.load(Ordering::Relaxed) {
        IN_FORCE => Some(ReloadAnswer::InForce),
        outcome @ (REFUSED | WARNED) => {
            let words = entry.text.each_ref().map(|word| word.load(Ordering::Relaxed));
            let text = text_in_words(&words, entry.length.load(Ordering::Relaxed) as usize);
            Some(match outcome {
                WARNED => ReloadAnswer::Warned(text),
                _ => ReloadAnswer::Refused(text),
            })
        }
        NOTHING_TO_RELOAD => Some(ReloadAnswer::NothingToReload),
        _ => None,
    };
    fence(Ordering::Acquire);
    let is_whole = answered != 0 && entry.answered.load(Ordering::Relaxed) == answered;
    Process {
        place,
        attachment,
        pid: entry.pid.load(Ordering::Relaxed),
        pid_namespace: match entry.pid_namespace.load(Ordering::Relaxed) {
            theirs if theirs == 0 || ours == 0 => PidNamespace::Unknown,
            theirs if theirs == ours => PidNamespace::Ours,
            _ => PidNamespace::Another,
        },
        // Its reading may be a moment after ours.
        silent: (beat_ns != 0).then(|| Nanos(now.0.abs_diff(beat_ns))),
        profile: None,
        answered,
        answer: answer.filter(|_| is_whole),
    }
}

fn is_recent(beat_ns: u64, now: Time) -> bool {
    // Its reading may be a moment after ours.
    beat_ns != 0 && beat_ns.abs_diff(now.0) < ALIVE.0
}

/// The inode number of the pid namespace of this process; 0 if there is no /proc. It is read once:
/// a process stays in its namespace, and may change its root.
pub(crate) fn our_pid_namespace() -> u64 {
    static OURS: OnceLock<u64> = OnceLock::new();
    *OURS.get_or_init(|| fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at_s(number: u64) -> Time {
        Time(Nanos::from_secs(number).0)
    }

    fn alive(entries: &[ProcessEntry], now: Time) -> Vec<Process> {
        listed(entries, now).into_iter().filter(Process::is_alive).collect()
    }

    #[test]
    fn processes_come_beat_leave_and_fall_silent() {
        let entries: [ProcessEntry; 2] = core::array::from_fn(|_| ProcessEntry::default());
        let unlisted = AtomicU64::new(0);
        let attach = |number, now| {
            let attachment = Attachment::new(number);
            attachment.beat(&entries, &unlisted, now);
            attachment
        };
        let first = attach(1, at_s(100));
        let second = attach(2, at_s(100));
        assert_eq!(alive(&entries, at_s(102)).len(), 2);
        let seen = &alive(&entries, at_s(102))[0];
        assert_eq!((seen.place, seen.attachment, seen.pid), (0, 1, std::process::id()));
        assert_eq!(seen.silent, Some(Nanos::from_secs(2)));
        assert_eq!(unlisted.load(Ordering::Relaxed), 0);

        let third = attach(3, at_s(101));
        assert_eq!(unlisted.load(Ordering::Relaxed), 1, "no entry is free");
        third.leave(&entries);
        assert_eq!(
            alive(&entries, at_s(102)).len(),
            2,
            "a process without an entry does not clear another's"
        );
        second.leave(&entries);
        assert_eq!(alive(&entries, at_s(102)).len(), 1);
        third.beat(&entries, &unlisted, at_s(102));
        assert_eq!(alive(&entries, at_s(102)).len(), 2, "an entry is free now");
        assert_eq!(unlisted.load(Ordering::Relaxed), 1);

        // The first was stopped, and a fourth took its entry. When it continues it takes another.
        assert_eq!(alive(&entries, at_s(106)).len(), 1);
        let fourth = attach(4, at_s(106));
        third.leave(&entries);
        first.beat(&entries, &unlisted, at_s(107));
        fourth.beat(&entries, &unlisted, at_s(107));
        assert_eq!(alive(&entries, at_s(107)).len(), 2);
        first.leave(&entries);
        fourth.leave(&entries);
        assert_eq!(alive(&entries, at_s(107)), []);
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_told_apart() {
        let entries = [ProcessEntry::default()];
        Attachment::new(1).beat(&entries, &AtomicU64::new(0), at_s(1));
        let seen = |namespace| {
            entries[0].pid_namespace.store(namespace, Ordering::Relaxed);
            alive(&entries, at_s(1))[0].pid_namespace
        };
        assert_eq!(seen(our_pid_namespace()), PidNamespace::Ours);
        assert_eq!(seen(our_pid_namespace() + 1), PidNamespace::Another);
        assert_eq!(seen(0), PidNamespace::Unknown);
    }

    #[test]
    fn an_answer_is_read_whole_and_has_printable_characters_only() {
        let entries = [ProcessEntry::default()];
        let attachment = Attachment::new(1);
        attachment.beat(&entries, &AtomicU64::new(0), at_s(1));
        let answer = |asked| listed(&entries, at_s(1))[0].answer_to(asked).cloned();
        assert!(!attachment.has_to_answer(0), "there was no request yet");
        assert!(attachment.has_to_answer(1));
        assert_eq!(answer(1), None);

        attachment.answer(&entries, 1, &ReloadAnswer::InForce);
        assert!(!attachment.has_to_answer(1));
        assert_eq!((answer(1), answer(2)), (Some(ReloadAnswer::InForce), None));
        attachment.answer(&entries, 3, &ReloadAnswer::NothingToReload);
        assert_eq!(answer(2), Some(ReloadAnswer::NothingToReload), "a later one counts");

        // The limit is in the middle of a character, so the text is cut before it.
        let long = format!("{}ä and more", "x".repeat(191));
        attachment.answer(&entries, 4, &ReloadAnswer::Refused(long));
        assert_eq!(answer(4), Some(ReloadAnswer::Refused("x".repeat(191))));
        let hostile = "\x1b[2J 'ä' \u{202e}\n\"\\";
        attachment.answer(&entries, 5, &ReloadAnswer::Warned("a policy".to_owned()));
        assert_eq!(answer(5), Some(ReloadAnswer::Warned("a policy".to_owned())));
        attachment.answer(&entries, 5, &ReloadAnswer::Refused(hostile.to_owned()));
        assert_eq!(answer(5), Some(ReloadAnswer::Refused("?[2J 'ä' ??\"\\".to_owned())));

        // Values that other processes may write.
        entries[0].length.store(u32::MAX, Ordering::Relaxed);
        entries[0].text.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(answer(5), Some(ReloadAnswer::Refused("\u{fffd}".repeat(192))));
        entries[0].outcome.store(77, Ordering::Relaxed);
        assert_eq!(answer(5), None);
        entries[0].answered.store(0, Ordering::Relaxed);
        assert_eq!(answer(u64::MAX), None);
    }

    #[test]
    fn a_process_that_gets_another_entry_answers_again() {
        let entries = [ProcessEntry::default()];
        let unlisted = AtomicU64::new(0);
        let (stopped, other) = (Attachment::new(1), Attachment::new(2));
        stopped.beat(&entries, &unlisted, at_s(1));
        stopped.answer(&entries, 7, &ReloadAnswer::InForce);
        other.beat(&entries, &unlisted, at_s(10));
        assert_eq!(
            listed(&entries, at_s(10))[0].answer_to(7),
            None,
            "the answer of another process"
        );
        stopped.answer(&entries, 8, &ReloadAnswer::InForce);
        assert_eq!(listed(&entries, at_s(10))[0].answer_to(7), None, "it has no entry now");
        assert!(!stopped.has_to_answer(8));
        other.leave(&entries);
        stopped.beat(&entries, &unlisted, at_s(11));
        assert!(stopped.has_to_answer(8));
    }
}

//! Who uses the table: each process has an entry in the header and writes there, once a second,
//! that it is alive.
//!
//! For people to look at. No decision depends on it, and nothing is done to a process because of
//! what an entry says: every process of the user can write there what it likes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use crate::header::{ProcessEntry, TEXT_WORDS};

/// An entry that was not written for so long belongs to a process that died, or to one that is
/// stopped.
const ALIVE_NS: u64 = 5_000_000_000;

/// No place among the entries.
const UNLISTED: u32 = u32::MAX;

/// A process's place among the [`ProcessEntry`]s.
#[derive(Debug)]
pub(crate) struct Attachment {
    number: u32,
    pid_namespace: u64,
    /// The index of its entry, or [`UNLISTED`]. It changes when another process took the entry
    /// while this one was stopped.
    entry: AtomicU32,
    /// The last request to reload that this process has answered.
    answered: AtomicU64,
}

/// A process that uses the table: see [`Table::processes`](crate::Table::processes).
///
/// All of it is what the process wrote itself, or what any other process of the same user wrote
/// there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Process {
    /// Its place in the list.
    pub place: usize,
    /// The number of its attachment. Another process that takes the place later has another
    /// number.
    pub attachment: u32,
    /// Its process id in its own namespace.
    pub pid: u32,
    /// Whether its process id means the same process to the caller.
    pub pid_namespace: PidNamespace,
    /// Nanoseconds since it was last alive; `None` when it has left.
    pub silent_ns: Option<u64>,
    answered: u64,
    answer: Option<ReloadAnswer>,
}

impl Process {
    /// Whether it was alive within the last 5 seconds.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.silent_ns.is_some_and(|silent_ns| silent_ns < ALIVE_NS)
    }

    /// What it answered to this request to reload, or to a later one.
    #[must_use]
    pub fn answer_to(&self, asked: u64) -> Option<&ReloadAnswer> {
        let is_later = self.answered.wrapping_sub(asked) <= u64::MAX / 2;
        self.answer.as_ref().filter(|_| is_later)
    }
}

/// What a process says when it was [asked to reload](crate::Table::ask_to_reload).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReloadAnswer {
    /// What its configuration says is in force.
    InForce,
    /// Its configuration was refused, for this reason; what was in force before stays. In the
    /// table the reason is cut after 192 bytes, and what comes from there has printable characters
    /// only.
    Refused(String),
    /// It has no configuration that it could read again.
    NothingToReload,
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
            answered: AtomicU64::new(0),
        }
    }

    /// Writes down that the process is alive. One that has no entry takes a free one; where there
    /// is none, the process works all the same and its beat is counted in `unlisted`.
    pub(crate) fn beat(&self, entries: &[ProcessEntry], unlisted: &AtomicU64, now: u64) {
        if let Some(mine) = self.entry(entries) {
            mine.beat_ns.store(now.max(1), Ordering::Relaxed);
            return;
        }
        let entry = self.claim(entries, now);
        self.entry.store(entry.unwrap_or(UNLISTED), Ordering::Relaxed);
        if entry.is_some() {
            // The new entry has no answer yet, so the request is answered again.
            self.answered.store(0, Ordering::Relaxed);
        } else {
            unlisted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a request to reload waits for an answer of this process.
    pub(crate) fn has_to_answer(&self, asked: u64) -> bool {
        asked != 0 && asked != self.answered.load(Ordering::Relaxed)
    }

    pub(crate) fn answer(&self, entries: &[ProcessEntry], asked: u64, answer: &ReloadAnswer) {
        self.answered.store(asked, Ordering::Relaxed);
        let Some(mine) = self.entry(entries) else { return };
        let (outcome, text) = match answer {
            ReloadAnswer::InForce => (IN_FORCE, ""),
            ReloadAnswer::Refused(why) => {
                (REFUSED, &why[..why.floor_char_boundary(8 * TEXT_WORDS)])
            }
            ReloadAnswer::NothingToReload => (NOTHING_TO_RELOAD, ""),
        };
        // A reader that finds the same number before and after its look has seen a whole answer.
        mine.answered.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        mine.outcome.store(outcome, Ordering::Relaxed);
        let words = text.as_bytes().chunks(8).zip(&mine.text);
        for (bytes, word) in words {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        // At most 192.
        mine.length.store(u32::try_from(text.len()).unwrap_or(0), Ordering::Relaxed);
        mine.answered.store(asked, Ordering::Release);
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
        let claim_if = |is_free: &dyn Fn(u64) -> bool| {
            entries.iter().position(|entry| {
                let beat_ns = entry.beat_ns.load(Ordering::Relaxed);
                is_free(beat_ns)
                    && entry
                        .beat_ns
                        .compare_exchange(
                            beat_ns,
                            now.max(1),
                            Ordering::Relaxed,
                            Ordering::Relaxed,
                        )
                        .is_ok()
            })
        };
        // The process of an entry that was not left may be stopped, and is better kept in the
        // list.
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

/// The values of `outcome`; 0 is none.
const IN_FORCE: u32 = 1;
const REFUSED: u32 = 2;
const NOTHING_TO_RELOAD: u32 = 3;

/// All processes whose entries were not taken by others, also those that have left.
pub(crate) fn listed(entries: &[ProcessEntry], now: u64) -> Vec<Process> {
    let ours = our_pid_namespace();
    let used = |entry: &&ProcessEntry| entry.pid.load(Ordering::Relaxed) != 0;
    let with_places = entries.iter().enumerate().filter(|(_, entry)| used(entry));
    with_places.map(|(place, entry)| look_at(entry, place, now, ours)).collect()
}

fn look_at(entry: &ProcessEntry, place: usize, now: u64, ours: u64) -> Process {
    let beat_ns = entry.beat_ns.load(Ordering::Relaxed);
    let attachment = entry.number.load(Ordering::Relaxed);
    let answered = entry.answered.load(Ordering::Acquire);
    let answer = match entry.outcome.load(Ordering::Relaxed) {
        IN_FORCE => Some(ReloadAnswer::InForce),
        REFUSED => {
            let text: [u64; TEXT_WORDS] =
                core::array::from_fn(|at| entry.text[at].load(Ordering::Relaxed));
            let bytes: Vec<u8> = text.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let length = entry.length.load(Ordering::Relaxed) as usize;
            Some(ReloadAnswer::Refused(printable(&bytes[..length.min(bytes.len())])))
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
        silent_ns: (beat_ns != 0).then(|| now.abs_diff(beat_ns)),
        answered,
        answer: answer.filter(|_| is_whole),
    }
}

/// What can be shown on a terminal; a question mark stands for anything else.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let is_printable = |c: char| "\\'\"".contains(c) || c.escape_debug().len() == 1;
    text.chars().map(|c| if is_printable(c) { c } else { '?' }).collect()
}

fn is_recent(beat_ns: u64, now: u64) -> bool {
    // Its reading may be a moment after ours.
    beat_ns != 0 && beat_ns.abs_diff(now) < ALIVE_NS
}

/// The inode number of the pid namespace that this process has its id from; 0 when there is no
/// /proc to tell.
fn our_pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn alive(entries: &[ProcessEntry], now: u64) -> Vec<Process> {
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
        let first = attach(1, 100 * SECOND);
        let second = attach(2, 100 * SECOND);
        assert_eq!(alive(&entries, 102 * SECOND).len(), 2);
        let seen = &alive(&entries, 102 * SECOND)[0];
        assert_eq!((seen.place, seen.attachment, seen.pid), (0, 1, std::process::id()));
        assert_eq!(seen.silent_ns, Some(2 * SECOND));
        assert_eq!(unlisted.load(Ordering::Relaxed), 0);

        let third = attach(3, 101 * SECOND);
        assert_eq!(unlisted.load(Ordering::Relaxed), 1, "no room");
        third.leave(&entries);
        assert_eq!(
            alive(&entries, 102 * SECOND).len(),
            2,
            "one without an entry leaves those of others"
        );
        second.leave(&entries);
        assert_eq!(alive(&entries, 102 * SECOND).len(), 1);
        third.beat(&entries, &unlisted, 102 * SECOND);
        assert_eq!(alive(&entries, 102 * SECOND).len(), 2, "there is room now");
        assert_eq!(unlisted.load(Ordering::Relaxed), 1);

        // The first was stopped, and its entry went to a fourth; when it goes on it finds another
        // one.
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

    #[test]
    fn an_answer_is_read_whole_and_has_printable_characters_only() {
        let entries = [ProcessEntry::default()];
        let attachment = Attachment::new(1);
        attachment.beat(&entries, &AtomicU64::new(0), SECOND);
        let answer = |asked| listed(&entries, SECOND)[0].answer_to(asked).cloned();
        assert!(!attachment.has_to_answer(0), "nobody has ever asked");
        assert!(attachment.has_to_answer(1));
        assert_eq!(answer(1), None);

        attachment.answer(&entries, 1, &ReloadAnswer::InForce);
        assert!(!attachment.has_to_answer(1));
        assert_eq!((answer(1), answer(2)), (Some(ReloadAnswer::InForce), None));
        attachment.answer(&entries, 3, &ReloadAnswer::NothingToReload);
        assert_eq!(answer(2), Some(ReloadAnswer::NothingToReload), "a later one counts");

        // Cut in the middle of a character, so before it.
        let long = format!("{}ä and more", "x".repeat(191));
        attachment.answer(&entries, 4, &ReloadAnswer::Refused(long));
        assert_eq!(answer(4), Some(ReloadAnswer::Refused("x".repeat(191))));
        let hostile = "\x1b[2J 'ä' \u{202e}\n\"\\";
        attachment.answer(&entries, 5, &ReloadAnswer::Refused(hostile.to_owned()));
        assert_eq!(answer(5), Some(ReloadAnswer::Refused("?[2J 'ä' ??\"\\".to_owned())));

        // What others may write.
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
        stopped.beat(&entries, &unlisted, SECOND);
        stopped.answer(&entries, 7, &ReloadAnswer::InForce);
        other.beat(&entries, &unlisted, 10 * SECOND);
        assert_eq!(listed(&entries, 10 * SECOND)[0].answer_to(7), None, "that was another's");
        stopped.answer(&entries, 8, &ReloadAnswer::InForce);
        assert_eq!(listed(&entries, 10 * SECOND)[0].answer_to(7), None, "it has no entry now");
        assert!(!stopped.has_to_answer(8));
        other.leave(&entries);
        stopped.beat(&entries, &unlisted, 11 * SECOND);
        assert!(stopped.has_to_answer(8));
    }
}

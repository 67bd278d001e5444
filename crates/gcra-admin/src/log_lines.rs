//! The last lines of this process's log, for `/events` and the live page.
//!
//! It keeps the lines of the log at the levels info, warn and error, in the same words, also if
//! `RUST_LOG` does not show them. The log names clients without their secrets, also where it
//! repeats text of a file (`policy/secrets.rs`), so these lines are as harmless. The log has a
//! limited number of kinds of lines, so a bounded number of lines is enough.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use gcra_limiter::stats::lock;
use gcra_text::visible::visible_lines;
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::{Deserialize, Serialize};

const LINES: usize = 200;

/// How many bytes of a line are kept.
const LONGEST: usize = 500;

/// How many lines are in an answer about several agents.
const LINES_OF_ALL: usize = 400;

pub const LEVEL: LevelFilter = LevelFilter::Info;

#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Event {
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The process id of the agent.
    pub pid: u32,
    /// The first line of a process has the number 0.
    pub number: u64,
    /// "info", "warn" or "error".
    pub level: String,
    pub text: String,
}

pub(crate) struct Events(Mutex<VecDeque<Event>>);

/// The lines of this process.
pub(crate) static EVENTS: Events = Events::new();

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    ms(SystemTime::now())
}

fn ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Events {
    const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    fn add(&self, at: SystemTime, level: Level, text: String) {
        let mut lines = lock(&self.0);
        let number = lines.back().map_or(0, |last| last.number + 1);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(Event {
            at_ms: ms(at),
            pid: std::process::id(),
            number,
            level: level.as_str().to_ascii_lowercase(),
            text: cut(text),
        });
    }

    /// Those that are kept, the oldest first.
    pub(crate) fn all(&self) -> Vec<Event> {
        lock(&self.0).iter().cloned().collect()
    }
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The lines of several agents, the oldest first. Other processes may say anything, so their lines
/// are bounded.
pub fn merged(agents: impl Iterator<Item = Vec<Event>>) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for events in agents {
        all.extend(events.into_iter().take(LINES).map(|event| Event {
            level: cut(event.level),
            text: cut(event.text),
            ..event
        }));
        // By time, and the lines of one agent in their order.
        all.sort_by_key(|event| (event.at_ms, event.pid, event.number));
        let surplus = all.len().saturating_sub(LINES_OF_ALL);
        all.drain(..surplus);
    }
    all
}

/// A log that keeps what it writes.
pub struct KeptLines<L>(pub L);

impl<L: Log> Log for KeptLines<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= LEVEL || self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        // A path of a file, for example, can have characters that change the direction of text.
        let text = visible_lines(&record.args().to_string());
        // It leaves out by itself what it does not write.
        self.0.log(
            &Record::builder()
                .metadata(record.metadata().clone())
                .module_path(record.module_path())
                .file(record.file())
                .line(record.line())
                .args(format_args!("{text}"))
                .build(),
        );
        if record.level() <= LEVEL {
            EVENTS.add(SystemTime::now(), record.level(), text);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_lines_are_kept_in_order_and_cut() {
        let events = Events::new();
        for number in 0..=LINES as u64 {
            let at = UNIX_EPOCH + Duration::from_millis(number);
            events.add(at, Level::Warn, format!("line {number}"));
        }
        let all = events.all();
        assert_eq!((all.len(), all[0].number, &*all[0].text), (LINES, 1, "line 1"));
        assert_eq!((all[0].at_ms, &*all[0].level), (1, "warn"));
        events.add(UNIX_EPOCH, Level::Info, "ä".repeat(LONGEST));
        assert_eq!(events.all().last().unwrap().text.len(), LONGEST + '…'.len_utf8());
    }

    #[test]
    fn the_lines_of_agents_are_in_the_order_of_time() {
        let of = |pid, times: &[u64]| -> Vec<Event> {
            let event = |(number, at_ms): (usize, &u64)| Event {
                at_ms: *at_ms,
                pid,
                number: number as u64,
                ..Event::default()
            };
            times.iter().enumerate().map(event).collect()
        };
        let all = merged([of(7, &[1, 5, 5]), of(8, &[2, 5, 9])].into_iter());
        let order: Vec<_> = all.iter().map(|event| (event.pid, event.number)).collect();
        assert_eq!(order, [(7, 0), (8, 0), (7, 1), (7, 2), (8, 1), (8, 2)]);
        let many = (0..50).map(|pid| of(pid, &(0..1_000).collect::<Vec<_>>()));
        assert_eq!(merged(many).len(), LINES_OF_ALL);
    }
}

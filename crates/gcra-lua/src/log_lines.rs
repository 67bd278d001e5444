//! The lines of the log, until HAProxy takes them. The hook of panics writes here, too.

use std::collections::VecDeque;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// How many lines wait at most. Of more, the newest are lost.
const MOST_LINES: usize = 256;

/// The lines with their levels.
static LINES: Mutex<VecDeque<(Level, String)>> = Mutex::new(VecDeque::new());

/// Whether our code has panicked.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

struct HaproxyLog;

impl Log for HaproxyLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = (record.level(), record.args().to_string());
            let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() < MOST_LINES {
                lines.push_back(line);
            }
        }
    }

    fn flush(&self) {}
}

/// Takes over the log and the hook of panics. Once in a process; HAProxy's other modules have
/// their own.
pub(crate) fn start() {
    if log::set_logger(&HaproxyLog).is_ok() {
        log::set_max_level(LevelFilter::Info);
        panic::set_hook(Box::new(note_panic));
    }
}

/// The default hook would write to standard error, for each request.
fn note_panic(panic: &PanicHookInfo<'_>) {
    // One line tells enough, and the count of panics in the metrics tells the rest.
    if !HAS_PANICKED.swap(true, Ordering::Relaxed) {
        let line = format!(
            "gcra.lua has a bug, and requests that meet it get no decision; please report this: \
             {panic}"
        );
        match LINES.try_lock() {
            Ok(mut lines) => lines.push_back((Level::Error, line)),
            // The panic came while a line was added.
            Err(TryLockError::Poisoned(lines)) => {
                lines.into_inner().push_back((Level::Error, line));
            }
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// The oldest line that HAProxy has not taken.
pub(crate) fn next() -> Option<(Level, String)> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

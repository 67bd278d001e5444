//! The processes that a table lists, as commands show them.

use std::thread;
use std::time::{Duration, Instant};

use gcra_table::Table;
use gcra_table::board::{Board, PidNamespace, Process};

/// A process by its id, for people.
pub fn name(process: &Process) -> String {
    match process.pid_namespace {
        PidNamespace::Another => format!("{} in another pid namespace", process.pid),
        PidNamespace::Ours | PidNamespace::Unknown => process.pid.to_string(),
    }
}

/// Agents by their names, with the verb that follows: "agent 7", "has"; "agents 7, 8 and 9",
/// "have".
pub fn agents<'p>(agents: impl IntoIterator<Item = &'p Process>) -> (String, &'static str) {
    match &agents.into_iter().map(name).collect::<Vec<_>>()[..] {
        [one] => (format!("agent {one}"), "has"),
        [rest @ .., last] => (format!("agents {} and {last}", rest.join(", ")), "have"),
        [] => ("no agent".to_owned(), "has"),
    }
}

/// Whether a process id means something to the reader, for programs.
pub fn pid_namespace(process: &Process) -> &'static str {
    match process.pid_namespace {
        PidNamespace::Ours => "ours",
        PidNamespace::Another => "another",
        PidNamespace::Unknown => "unknown",
    }
}

pub fn is_this_process(process: &Process) -> bool {
    // The namespace is unknown where there is no /proc.
    process.pid == std::process::id() && process.pid_namespace != PidNamespace::Another
}

/// Counts the processes for which the list has no space, by their beats.
pub(crate) struct Unlisted {
    beats: u64,
    since: Instant,
}

impl Unlisted {
    pub(crate) fn begin(table: &Table) -> Self {
        Self { beats: table.board().unlisted_beats(), since: Instant::now() }
    }

    /// About how many there are. If there can be any, this waits until two seconds have passed
    /// since [`begin`](Self::begin).
    pub(crate) fn about(&self, table: &Table) -> u64 {
        if table.board().processes().len() < Board::MOST_PROCESSES {
            return 0;
        }
        thread::sleep(Duration::from_secs(2).saturating_sub(self.since.elapsed()));
        let beats = table.board().unlisted_beats().wrapping_sub(self.beats);
        // Each process beats once a second. The result is rounded to the nearest number.
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        beats.saturating_mul(1000).saturating_add(ms / 2) / ms.max(1)
    }
}

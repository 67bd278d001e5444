//! Whether all agents of a table have the same limits, and name clients by the same salt.
//!
//! Agents with different limits charge different buckets, so a client can get the sum of the cells
//! that each agent allows. That is normal for a moment, while limits change; it is a mistake when
//! it lasts.

use gcra_inspect::process_list::agents;
use gcra_table::Table;
use gcra_table::board::{Process, Profile};

/// For how many beats agents have to differ before the log says so. A change of limits takes a
/// second or two to arrive everywhere.
const PATIENCE: u32 = 5;

/// The agents that use the table now and differ. Agents of older versions do not say which limits
/// they have, and are left out.
pub fn differing(table: &Table, differs: impl Fn(Profile) -> bool) -> Vec<Process> {
    let mut processes = table.board().processes();
    processes.retain(|process| process.profile.is_some_and(&differs));
    processes
}

/// In which the agents should agree.
#[derive(Clone, Copy, Debug)]
pub enum Matter {
    Limits,
    Salt,
}

impl Matter {
    /// What other agents have, and what follows from that.
    const fn in_words(self) -> &'static str {
        match self {
            Self::Limits => {
                "other limits than this agent on the same table, so a client can get what each of \
                 them allows; start all agents of a table with the same limits, or give each \
                 group a --table of its own"
            }
            Self::Salt => {
                "another salt than this agent on the same table, so each names a client \
                 differently; write the same salt_file for all agents of a table, and reload them"
            }
        }
    }
}

/// The state of the comparison with the other agents.
#[derive(Debug)]
pub struct Agreement {
    matter: Matter,
    /// The agents that the log has named.
    reported: Vec<(usize, u32)>,
    /// The agents that differed at the last beat, and for how many beats they were the same ones.
    differing: Vec<(usize, u32)>,
    beats: u32,
    is_started: bool,
}

/// A report about the other agents.
#[derive(Debug, Eq, PartialEq)]
pub enum Report {
    /// They differ from this one.
    Differ(String),
    /// All agree again.
    Agree,
}

impl Agreement {
    pub const fn about(matter: Matter) -> Self {
        Self { matter, reported: Vec::new(), differing: Vec::new(), beats: 0, is_started: false }
    }

    /// Takes note of the agents that differ now. This is called with every beat.
    pub fn beat(&mut self, differing: &[Process]) -> Option<Report> {
        let now: Vec<_> =
            differing.iter().map(|process| (process.place, process.attachment)).collect();
        // At the start nothing is changing, and the operator still looks.
        let is_first = !std::mem::replace(&mut self.is_started, true);
        self.beats = if now == self.differing { self.beats.saturating_add(1) } else { 0 };
        self.differing = now;
        let lasts = is_first || self.beats >= PATIENCE;
        if !lasts || self.differing == self.reported {
            return None;
        }
        self.reported.clone_from(&self.differing);
        if differing.is_empty() {
            return Some(Report::Agree);
        }
        let (who, have) = agents(differing);
        Some(Report::Differ(format!("{who} {have} {}", self.matter.in_words())))
    }
}

#[cfg(test)]
mod tests {
    use gcra_table::board::PidNamespace;

    use super::*;

    fn process(pid: u32) -> Process {
        let directory = tempfile::tempdir().unwrap();
        let (table, _) = Table::open_or_create(&directory.path().join("table"), None).unwrap();
        let mut process = table.board().listed_processes().remove(0);
        process.place = pid as usize;
        process.pid = pid;
        process.pid_namespace = PidNamespace::Ours;
        process
    }

    /// The report with each of several beats.
    fn beats(agreement: &mut Agreement, count: u32, differing: &[Process]) -> Vec<Option<Report>> {
        (0..count).map(|_| agreement.beat(differing)).collect()
    }

    #[test]
    fn at_the_start_a_difference_is_reported_at_once() {
        let mut agreement = Agreement::about(Matter::Limits);
        let Some(Report::Differ(said)) = agreement.beat(&[process(7)]) else { panic!() };
        assert!(said.starts_with("agent 7 has other limits than this agent"), "{said}");
        assert!(beats(&mut agreement, 20, &[process(7)]).iter().all(Option::is_none), "once");
    }

    #[test]
    fn later_only_a_difference_that_lasts_is_reported() {
        let mut agreement = Agreement::about(Matter::Limits);
        assert_eq!(agreement.beat(&[]), None);
        let both = [process(7), process(8)];
        assert!(beats(&mut agreement, PATIENCE, &both).iter().all(Option::is_none), "a reload");
        assert_eq!(agreement.beat(&[]), None);
        let said = beats(&mut agreement, PATIENCE + 1, &both);
        let Some(Some(Report::Differ(said))) = said.last() else { panic!("{said:?}") };
        assert!(said.starts_with("agents 7 and 8 have other limits"), "{said}");
        let said = beats(&mut agreement, PATIENCE + 1, &[]);
        assert_eq!(said.last(), Some(&Some(Report::Agree)));
        assert!(beats(&mut agreement, 20, &[]).iter().all(Option::is_none));
    }
}

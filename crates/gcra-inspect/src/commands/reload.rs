//! `gcra-spoa reload`: asks the agents of a table to read their configuration again, and reports
//! their answers.
//!
//! The question is a number in the table, and the answers are in the agents' entries (the
//! housekeeping of the program is the other side). No process gets a signal, because any process
//! of the table's user can write an entry, and its process id may belong to another pid namespace.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use gcra_policy::begin_anew::begin_anew;
use gcra_policy::file::document;
use gcra_policy::secrets::Readers;
use gcra_policy::table_error::TableError;
use gcra_table::Table;
use gcra_table::board::{Board, PidNamespace, Process, ReloadAnswer};
use gcra_text::count::Count;
use gcra_text::output::{Output, complain, print, print_mistakes, print_note, print_warnings};
use serde_json::json;

use crate::flags::At;
use crate::policies_file::Kept;
use crate::process_list::{Unlisted, name, pid_namespace};
use crate::process_state::{Halt, halt_of, stopped_long_ago};

/// How long the command waits for answers. An agent that is alive and can read its file answers
/// within a second.
const PATIENCE: Duration = Duration::from_secs(15);

const LOOK: Duration = Duration::from_millis(50);

/// The fate of an agent that was asked.
enum Fate {
    /// It may still answer.
    Waiting,
    Answered(ReloadAnswer),
    /// It has read its file, which has other limits than the file of the command.
    OtherLimits,
    /// It ended in order, or moved to the table that a resize has created.
    Left,
    Dead,
    Stopped,
    /// It gives no sign of life, for an unknown reason.
    Silent,
}

/// Asks the agents and prints what they answer. Returns the exit status.
///
/// # Errors
///
/// There is no such table, no agent uses it, a resize came in between, or standard output cannot
/// be written to.
pub fn run(config: &Path, at: &At) -> anyhow::Result<ExitCode> {
    let policies = match document::read(config, Readers::OfFile) {
        Ok(policies) => policies,
        Err(mistakes) => {
            let exit = print_mistakes(&mistakes);
            complain("no agent was asked to reload");
            return Ok(exit);
        }
    };
    print_warnings(&policies.warnings);
    let table = Table::inspect(&at.path()).map_err(TableError)?;
    // Before they are asked, because it cannot be taken back.
    if let Some(old) = Kept::in_force(&table, &at.path()) {
        begin_anew(&old, &policies).iter().for_each(|anew| print_note(anew));
    }
    let unlisted = Unlisted::begin(&table);
    let agents = ask(&table, &at.path());
    if agents.iter().any(|(_, fate)| matches!(fate, Fate::Left)) && table.is_being_resized() {
        bail!(
            "table {} was resized in the meantime, so some answers are missing; reload again",
            at.path().display()
        );
    }
    if agents.iter().all(|(_, fate)| matches!(fate, Fate::Left | Fate::Dead)) {
        bail!(
            "no agent uses the table {}; name the table of the agents with --table",
            at.path().display()
        );
    }
    let limits = policies.limits_digest;
    let (output, exit) = summary(config, limits, &agents, unlisted.about(&table));
    print(at.json, [output])?;
    Ok(exit)
}

fn ask(table: &Table, path: &Path) -> Vec<(Process, Fate)> {
    let asked = table.board().ask_to_reload();
    // Looked up once: an agent that falls silent later is among those that are alive now.
    let mut stopped = stopped_long_ago(table, path);
    let deadline = Instant::now() + PATIENCE;
    // By the place in the list and the number of the attachment. Agents that start later are asked
    // as well.
    let mut agents: BTreeMap<(usize, u32), (Process, Fate)> = BTreeMap::new();
    loop {
        let listed = table.board().listed_processes().into_iter();
        let mut listed: BTreeMap<_, _> =
            listed.map(|process| ((process.place, process.attachment), process)).collect();
        for (entry, (process, fate)) in &mut agents {
            match listed.remove(entry) {
                Some(now) => {
                    *fate = fate_of(&now, asked);
                    *process = now;
                }
                // Another process has its place now.
                None if matches!(fate, Fate::Answered(_)) => {}
                None => *fate = Fate::Left,
            }
        }
        for (entry, process) in listed.into_iter().filter(|(_, process)| process.is_alive()) {
            let fate = fate_of(&process, asked);
            agents.insert(entry, (process, fate));
        }
        for process in stopped.drain(..) {
            // Another agent may have the id of an agent that was killed.
            let is_known = agents.values().any(|(known, _)| {
                known.pid_namespace == PidNamespace::Ours && known.pid == process.pid
            });
            if !is_known {
                agents.insert((process.place, process.attachment), (process, Fate::Stopped));
            }
        }
        let is_over = agents.values().all(|(_, fate)| !matches!(fate, Fate::Waiting));
        if is_over || Instant::now() > deadline {
            return agents.into_values().collect();
        }
        thread::sleep(LOOK);
    }
}

fn fate_of(process: &Process, asked: u64) -> Fate {
    if let Some(answer) = process.answer_to(asked) {
        return Fate::Answered(answer.clone());
    }
    if process.silent.is_none() {
        return Fate::Left;
    }
    match halt_of(process) {
        Some(Halt::Dead) => Fate::Dead,
        // An agent that continues will answer.
        _ if process.is_alive() => Fate::Waiting,
        Some(Halt::Stopped) => Fate::Stopped,
        None => Fate::Silent,
    }
}

/// The outcome: one line, and one more for each kind of agent that does not have it in force.
fn summary(
    config: &Path,
    limits: u64,
    agents: &[(Process, Fate)],
    unlisted: u64,
) -> (Output, ExitCode) {
    let (mut alive, mut in_force) = (0_usize, 0_usize);
    // The agents, by the sentence about them.
    let mut others: BTreeMap<[String; 2], Vec<String>> = BTreeMap::new();
    let mut warnings: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut json = Vec::new();
    for (process, fate) in agents {
        let has_limits = process.profile.is_none_or(|profile| profile.limits == limits);
        let fate = match fate {
            Fate::Answered(ReloadAnswer::InForce | ReloadAnswer::Warned(_)) if !has_limits => {
                &Fate::OtherLimits
            }
            fate => fate,
        };
        alive += usize::from(!matches!(fate, Fate::Dead | Fate::Left));
        if let Fate::Answered(ReloadAnswer::Warned(warning)) = fate {
            warnings.entry(warning).or_default().push(name(process));
        }
        let is_in_force =
            matches!(fate, Fate::Answered(ReloadAnswer::InForce | ReloadAnswer::Warned(_)));
        in_force += usize::from(is_in_force);
        let Some((outcome, clauses)) = not_in_force(fate) else { continue };
        let why = match fate {
            Fate::Answered(ReloadAnswer::Refused(why)) => Some(why),
            _ => None,
        };
        json.push(json!({
            "pid": process.pid,
            "pid_namespace": pid_namespace(process),
            "outcome": outcome,
            "why": why,
        }));
        others.entry(clauses).or_default().push(name(process));
    }
    let share = match (in_force, alive) {
        (1, 1) => "1 agent".to_owned(),
        (_, alive) if in_force == alive => format!("all {alive} agents"),
        (_, alive) => format!("{in_force} of {}", Count(alive, "agent", "agents")),
    };
    let mut lines =
        vec![format!("{} is valid; its limits are in force in {share}", config.display())];
    for (warning, names) in &warnings {
        // Almost always all agents say the same.
        let by = if names.len() == in_force { "" } else { &*format!(" ({})", names.join(", ")) };
        lines.push(format!("warning{by}: {warning}"));
    }
    for ([of_one, of_several], names) in others {
        lines.push(match &names[..] {
            [one] => format!("agent {one} {of_one}"),
            several => format!("agents {} {of_several}", several.join(", ")),
        });
    }
    if unlisted > 0 {
        lines.push(format!(
            "about {} also asked, and cannot answer: the table's list has space for {}",
            Count(unlisted, "more agent was", "more agents were"),
            Board::MOST_PROCESSES
        ));
    }
    let json = json!({
        "config": config.display().to_string(),
        "agents": alive,
        "in_force": in_force,
        "unlisted": unlisted,
        "warnings": warnings.keys().collect::<Vec<_>>(),
        "others": json,
    });
    let exit = if in_force == alive { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    (Output { words: lines.join("\n"), json }, exit)
}

/// The words about an agent that does not have the configuration in force: in one word for
/// programs, and in a clause about one agent and about several.
fn not_in_force(fate: &Fate) -> Option<(&'static str, [String; 2])> {
    let both = |of_one: &str, of_several: &str| [of_one.to_owned(), of_several.to_owned()];
    Some(match fate {
        Fate::Left | Fate::Answered(ReloadAnswer::InForce | ReloadAnswer::Warned(_)) => {
            return None;
        }
        Fate::OtherLimits => (
            "other limits",
            both(
                "has read its own file, which has other limits: it was started with another \
                 --config, or the file has changed in the meantime",
                "have read their own files, which have other limits: they were started with \
                 another --config, or the file has changed in the meantime",
            ),
        ),
        Fate::Dead => {
            ("dead", both("was killed less than 5 s ago", "were killed less than 5 s ago"))
        }
        Fate::Stopped => (
            "stopped",
            both(
                "is stopped (SIGSTOP); it reads its file when it continues",
                "are stopped (SIGSTOP); they read their files when they continue",
            ),
        ),
        Fate::Silent => (
            "silent",
            both(
                "has been silent for 5 s: it is dead, stopped, or gets no CPU time",
                "have been silent for 5 s: they are dead, stopped, or get no CPU time",
            ),
        ),
        Fate::Waiting => {
            let patience = PATIENCE.as_secs();
            (
                "waiting",
                [
                    format!("has not answered within {patience} s; its log may say why"),
                    format!("have not answered within {patience} s; their logs may say why"),
                ],
            )
        }
        Fate::Answered(ReloadAnswer::Refused(why)) => (
            "refused",
            [
                format!("refused its file and keeps the policies in force: {why}"),
                format!("refused their files and keep the policies in force: {why}"),
            ],
        ),
        Fate::Answered(ReloadAnswer::NothingToReload) => (
            "nothing to reload",
            both(
                "has its limit from the command line, so it has nothing to reload",
                "have their limits from the command line, so they have nothing to reload",
            ),
        ),
    })
}

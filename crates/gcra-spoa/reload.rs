//! `gcra-spoa reload`: asks the agents of a table to read their configuration again, and says what
//! they answer.
//!
//! The request is a number in the table, and the answers are in the entries of the agents
//! (`housekeeping.rs` has the other side). No process gets a signal: an entry may have been
//! written by any process of the table's user, and its process id may be from another pid
//! namespace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use gcra_table::{PidNamespace, Process, ReloadAnswer, Table};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use crate::commands::{Answer, Unlisted, name, pid_namespace, print, tell};
use crate::config::At;
use crate::policy;

/// The longest that answers are waited for. An agent that is alive answers within a second, if it
/// can read its file.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often the answers are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How much is read of the list of a process's mappings. An agent's takes a few KiB.
const MOST_MAPPINGS: u64 = 1 << 20;

/// What has become of an agent that was asked.
#[derive(Debug)]
enum Fate {
    /// It may still answer.
    Waiting,
    Answered(ReloadAnswer),
    /// It ended in order, or moved to the table that a resize has made.
    Left,
    /// It was killed.
    Dead,
    Stopped,
    /// It gives no more sign of life, and why is not known.
    Silent,
}

/// Asks, and returns the exit status.
pub(crate) fn run(config: &Path, at: &At) -> anyhow::Result<ExitCode> {
    if let Err(mistakes) = policy::file::read(config) {
        let exit = tell(&mistakes);
        eprintln!("nothing was reloaded");
        return Ok(exit);
    }
    let table = Table::inspect(&at.path())?;
    let unlisted = Unlisted::begin(&table);
    let agents = ask(&table, &at.path());
    if agents.iter().any(|(_, fate)| matches!(fate, Fate::Left)) && table.is_being_resized() {
        bail!(
            "table {} was resized meanwhile, so some answers are missing; reload once more",
            at.path().display()
        );
    }
    if agents.iter().all(|(_, fate)| matches!(fate, Fate::Left | Fate::Dead)) {
        bail!("no agent uses {}; name the table with --table", at.path().display());
    }
    let (answer, exit) = summary(config, &agents, unlisted.about(&table));
    print(at, [answer])?;
    Ok(exit)
}

/// Asks all agents, and waits for what they answer.
fn ask(table: &Table, path: &Path) -> Vec<(Process, Fate)> {
    let asked = table.ask_to_reload();
    // One that falls silent later is among those that are alive now.
    let mut stopped = stopped_long_ago(table, path);
    let deadline = Instant::now() + PATIENCE;
    // By the place in the list and the number of the attachment. Agents that come later are asked
    // as well.
    let mut agents: BTreeMap<(usize, u32), (Process, Fate)> = BTreeMap::new();
    loop {
        let listed = table.listed_processes().into_iter();
        let mut listed: BTreeMap<_, _> =
            listed.map(|process| ((process.place, process.attachment), process)).collect();
        for (who, (process, fate)) in &mut agents {
            match listed.remove(who) {
                Some(now) => {
                    *fate = fate_of(&now, asked);
                    *process = now;
                }
                // Another process has its place.
                None if matches!(fate, Fate::Answered(_)) => {}
                None => *fate = Fate::Left,
            }
        }
        for (who, process) in listed.into_iter().filter(|(_, process)| process.is_alive()) {
            let fate = fate_of(&process, asked);
            agents.insert(who, (process, fate));
        }
        for process in stopped.drain(..) {
            // An agent that was killed may have had the id that another agent has now.
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

/// The agents that were silent for 5 s because they are stopped, the latest first: when they go
/// on, they go on deciding. At most [`Table::MOST_PROCESSES`].
fn stopped_long_ago(table: &Table, path: &Path) -> Vec<Process> {
    let mut stopped = table.listed_processes();
    stopped.retain(|process| {
        process.silent_ns.is_some()
            && !process.is_alive()
            && process.pid_namespace == PidNamespace::Ours
            && matches!(state(process.pid), Some(Fate::Stopped))
            && maps(process.pid, path).unwrap_or(true)
    });
    stopped.sort_by_key(|process| process.silent_ns);
    stopped
}

/// Whether a process maps the table. Another process may have the id of an agent that was killed.
fn maps(pid: u32, table: &Path) -> io::Result<bool> {
    // Either is enough: an agent in another mount namespace may have another path for the table.
    // The device is not compared: on Btrfs the one of a mapping differs from the one of the file.
    let path = fs::canonicalize(table)?;
    let inode = fs::metadata(&path)?.ino().to_string();
    let mut mappings =
        BufReader::new(File::open(format!("/proc/{pid}/maps"))?.take(MOST_MAPPINGS));
    let mut line = Vec::new();
    // "ADDRESSES PERMISSIONS OFFSET DEVICE INODE   PATH"
    while mappings.read_until(b'\n', &mut line)? > 0 {
        let mut fields = line.trim_ascii_end().splitn(6, |byte| *byte == b' ').skip(4);
        if fields.next() == Some(inode.as_bytes())
            || fields.next().map(<[u8]>::trim_ascii_start) == Some(path.as_os_str().as_bytes())
        {
            return Ok(true);
        }
        line.clear();
    }
    // What was not read may have it.
    Ok(mappings.into_inner().limit() == 0)
}

fn fate_of(process: &Process, asked: u64) -> Fate {
    if let Some(answer) = process.answer_to(asked) {
        return Fate::Answered(answer.clone());
    }
    if process.silent_ns.is_none() {
        return Fate::Left;
    }
    // What the kernel says of a process id is asked of it where that means the same process to us.
    let known = match process.pid_namespace {
        PidNamespace::Ours => state(process.pid),
        PidNamespace::Another | PidNamespace::Unknown => None,
    };
    match known {
        Some(dead @ Fate::Dead) => dead,
        // One that goes on answers.
        _ if process.is_alive() => Fate::Waiting,
        Some(stopped) => stopped,
        None => Fate::Silent,
    }
}

/// Whether a process is dead or stopped. Nothing is done to it.
fn state(pid: u32) -> Option<Fate> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    if let Err(Errno::SRCH) = pidfd_open(pid, PidfdFlags::empty()) {
        return Some(Fate::Dead);
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // "PID (name) STATE ...", where the name may have anything in it.
    match stat.rsplit_once(") ")?.1.as_bytes().first()? {
        b'Z' | b'X' => Some(Fate::Dead),
        b'T' | b't' => Some(Fate::Stopped),
        _ => None,
    }
}

/// What has come of it: a line, and one more for each kind of agent in which it is not in force.
fn summary(config: &Path, agents: &[(Process, Fate)], unlisted: u64) -> (Answer, ExitCode) {
    let (mut alive, mut in_force) = (0_usize, 0_usize);
    let mut others: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut json = Vec::new();
    for (process, fate) in agents {
        let (outcome, what) = match fate {
            Fate::Left => continue,
            Fate::Answered(ReloadAnswer::InForce) => {
                alive += 1;
                in_force += 1;
                continue;
            }
            Fate::Dead => ("dead", "dead: it was killed less than 5 s ago".to_owned()),
            Fate::Stopped => {
                ("stopped", "stopped (SIGSTOP); it reads its file when it goes on".to_owned())
            }
            Fate::Silent => {
                ("silent", "silent for 5 s: dead, stopped, or without a CPU".to_owned())
            }
            Fate::Waiting => (
                "waiting",
                format!(
                    "alive, and has not answered within {} s; its log may say more",
                    PATIENCE.as_secs()
                ),
            ),
            Fate::Answered(ReloadAnswer::Refused(why)) => {
                ("refused", format!("not content with its file, and goes on as before: {why}"))
            }
            Fate::Answered(ReloadAnswer::NothingToReload) => (
                "nothing to reload",
                "limited by its command line, so there is nothing to reload".to_owned(),
            ),
        };
        alive += usize::from(!matches!(fate, Fate::Dead));
        let why = match fate {
            Fate::Answered(ReloadAnswer::Refused(why)) => Some(why),
            _ => None,
        };
        json.push(json!({
            "pid": process.pid, "pid_namespace": pid_namespace(process), "outcome": outcome, "why": why,
        }));
        others.entry(what).or_default().push(name(process));
    }
    let mut lines =
        vec![format!("{}: in force in {in_force} of {alive} agents", config.display())];
    for (what, names) in others {
        lines.push(match &names[..] {
            [one] => format!("agent {one} is {what}"),
            several => format!("each of the agents {} is {what}", several.join(", ")),
        });
    }
    if unlisted > 0 {
        lines.push(format!(
            "about {unlisted} more agents read their files too, and can't answer: there is room to list {}",
            Table::MOST_PROCESSES
        ));
    }
    let json = json!({
        "config": config.display().to_string(),
        "agents": alive,
        "in_force": in_force,
        "unlisted": unlisted,
        "others": json,
    });
    let exit = if in_force == alive { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    (Answer { words: lines.join("\n"), json }, exit)
}

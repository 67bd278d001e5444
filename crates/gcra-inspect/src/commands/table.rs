//! `gcra-spoa table …`: what an operator can ask of a table and do to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Subcommand;
use gcra_lease::{HostTime, Micros};
use gcra_policy::flags::parse_slots;
use gcra_policy::table_error::{self, TableError};
use gcra_policy::{Policies, policy_id};
use gcra_table::board::{Board, PolicyReset, Process};
use gcra_table::{LeaseCounts, Leases, Nanos, Occupancy, Slots, Table};
use gcra_text::count::Count;
use gcra_text::duration::Short;
use gcra_text::output::{Output, print, print_note};
use gcra_text::visible::Visible;
use serde_json::{Value, json};

use crate::commands::get::{self, GET_HELP, Get};
use crate::commands::reset::{self, RESET_HELP, Reset, reset_in_words};
use crate::flags::At;
use crate::inspected_table::note_about_no_users;
use crate::policies_file::Kept;
use crate::process_list::{Unlisted, agents, name, pid_namespace};
use crate::process_state::{Halt, halt_of, living, stopped_long_ago};

/// The commands on a table.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Show how full the table is, which agents use it, and what was evicted when it was full
    Info(At),
    /// Show what clients owe, how many requests they have left, and whether they are blocked
    #[command(after_help = GET_HELP)]
    Get(Get),
    /// Clear what clients owe, so that they have their full burst at once
    #[command(after_help = RESET_HELP)]
    Reset(Box<Reset>),
    /// Change the number of slots
    ///
    /// Running agents move by themselves and keep their buckets. The file of leases beside the
    /// table, of limits that machines share, stays as it is: remove it afterwards, and the agents
    /// make one for the new size.
    Resize {
        #[command(flatten)]
        at: At,
        /// The new number of slots, rounded up to a power of two
        #[arg(long, value_name = "N", value_parser = parse_slots)]
        #[arg(allow_negative_numbers = true)]
        slots: Slots,
        /// Resize even if what some clients owe has to be forgotten
        #[arg(long)]
        force: bool,
    },
    /// Verify that the table is consistent
    ///
    /// The exit status is 1 if it has faults.
    Check(At),
}

/// How long a resize waits for the agents to notice it: they look for a successor of their table
/// once a second.
const NOTICE: Duration = Duration::from_millis(1500);

/// How long a resize waits afterwards until all agents are seen to use the new file.
const PATIENCE: Duration = Duration::from_secs(4);

/// The longest that requests wait for the store: an ask that is as old is lost.
const LONGEST_WAIT: Micros = Micros::from_millis(10_000);

/// How often it looks for them.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the command, and returns the exit status.
///
/// # Errors
///
/// There is no such table, the command cannot be done to it, or standard output is not writable.
pub fn run(command: TableCommand) -> anyhow::Result<ExitCode> {
    match command {
        TableCommand::Info(at) => {
            let table = Table::inspect(&at.path()).map_err(TableError)?;
            print(at.json, [info(&at.path(), &table)])?;
            Ok(ExitCode::SUCCESS)
        }
        TableCommand::Get(get) => get::get(&get),
        TableCommand::Reset(reset) => reset::reset(&reset),
        TableCommand::Resize { at, slots, force } => {
            print(at.json, [resize(&at.path(), slots, force)?])?;
            Ok(ExitCode::SUCCESS)
        }
        TableCommand::Check(at) => check(&at),
    }
}

fn info(path: &Path, table: &Table) -> Output {
    // Begins first, because it takes two seconds if the list is full.
    let unlisted = Unlisted::begin(table);
    let (occupancy, mut processes) = (table.occupancy(), living(table));
    let is_known = |pid| processes.iter().any(|process| process.pid == pid);
    let stopped = stopped_long_ago(table, path).into_iter();
    let stopped: Vec<_> = stopped.filter(|process| !is_known(process.pid)).collect();
    processes.extend(stopped);
    let unlisted = unlisted.about(table);
    // Looked up once, because it takes a tenth of a second.
    let interrupted = table.interrupted_resize();
    let (about_leases, leases) = leases(table);
    // The flags that agents without a file were started with.
    let flags = Kept::flags(table, path);
    let (about_resets, resets) = resets(table, path);
    let words = [
        occupancy_in_words(path, table, occupancy),
        trouble_in_words(path, table, interrupted),
        users_in_words(table, &processes, unlisted, flags.as_deref()),
        about_resets,
        about_leases,
    ];
    let evictions = table.evictions();
    let json = json!({
        "table": path.display().to_string(),
        "slots": table.slots().get(),
        "bytes": table.bytes(),
        "generation": table.generation(),
        "creator": table.creator(),
        "age_ms": table.age().unwrap_or_default().0 / 1_000_000,
        "live": occupancy.live,
        "idle": occupancy.idle,
        "pending": occupancy.pending,
        "sealed": occupancy.sealed,
        "being_resized": table.is_being_resized(),
        "resize_interrupted": interrupted.is_some(),
        "successor_fault": table.successor_fault().map(|fault| table_error::fault(&fault)),
        "evicted_live": evictions.evicted_live,
        "evicted_live_before_resize": table.evictions_before_resize().evicted_live,
        "forgiven_ms": evictions.forgiven.0 / 1_000_000,
        "gave_up": table.gave_up(),
        "attachments": table.board().attachments(),
        "others_use_a_former_file": table.board().has_strangers(),
        "processes": processes.iter().map(process_as_json).collect::<Vec<_>>(),
        "unlisted": unlisted,
        "flags": flags,
        "resets": resets,
        "leases": leases,
    });
    Output { words: words.concat().join("\n"), json }
}

fn process_as_json(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "pid_namespace": pid_namespace(process),
        "stopped": halt_of(process) == Some(Halt::Stopped),
        "silent_ms": process.silent.unwrap_or_default().0 / 1_000_000,
        // Equal where the limits are. Not a number: JavaScript would round it.
        "limits": process.profile.map(|profile| format!("{:016x}", profile.limits)),
        "has_file": process.profile.map(|profile| profile.has_file),
        "admin": process.profile.and_then(|profile| profile.admin),
    })
}

/// The size of the table, and what its slots hold.
fn occupancy_in_words(path: &Path, table: &Table, occupancy: Occupancy) -> Vec<String> {
    let Occupancy { live, idle, pending, sealed, .. } = occupancy;
    let slots = table.slots().get();
    let row = |state: &str, count: u64, reading: &str| {
        let per_mille = count * 1000 / u64::from(slots);
        let (percent, tenth) = (per_mille / 10, per_mille % 10);
        format!("  {state:<8} {count:>10}  {percent:>3}.{tenth} %   {reading}")
    };
    let mut lines = vec![
        format!(
            "table {}: {slots} slots, {} KiB; {} {} ago by {}",
            path.display(),
            table.bytes() / 1024,
            if table.generation() == 0 { "created" } else { "resized" },
            short(table.age().unwrap_or_default()),
            table.creator()
        ),
        row("live", live, "buckets that owe something"),
        row("idle", idle, "free for any key"),
        row("pending", pending, "announced, not yet confirmed"),
    ];
    if sealed > 0 || table.is_being_resized() {
        lines.push(row("sealed", sealed, "moving to another file: the table is being resized"));
    }
    lines
}

/// The losses and faults of the table, a line each.
fn trouble_in_words(path: &Path, table: &Table, interrupted: Option<Slots>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(fault) = table.successor_fault() {
        lines.push(format!("fault: {}", table_error::fault(&fault)));
    } else if let Some(to) = interrupted {
        lines.push(table_error::interrupted(path, to));
    }
    let (all, before) = (table.evictions(), table.evictions_before_resize());
    let since = all.evicted_live.saturating_sub(before.evicted_live);
    let count = |evicted| Count(evicted, "bucket", "buckets");
    lines.push(match (since, before.evicted_live) {
        (0, 0) => "evictions: none; the table was never too small".to_owned(),
        (0, before) => {
            format!("evictions: none since it was resized; {} before that", count(before))
        }
        (since, _) => format!(
            "evictions: {}{}, which owed {} in all; the table is too small, see 'gcra-spoa table \
             resize --help'",
            count(since),
            if table.generation() == 0 { "" } else { " since it was resized" },
            short(all.forgiven.saturating_sub(before.forgiven))
        ),
    });
    if table.gave_up() > 0 {
        lines.push(format!(
            "gave up: {} denied, because other decisions changed the bucket at every try",
            Count(table.gave_up(), "request was", "requests were")
        ));
    }
    lines
}

fn users_in_words(
    table: &Table,
    processes: &[Process],
    unlisted: u64,
    flags: Option<&str>,
) -> Vec<String> {
    let listed: Vec<_> = processes
        .iter()
        .map(|process| {
            let is_stopped = halt_of(process) == Some(Halt::Stopped);
            let stopped = if is_stopped { "stopped, " } else { "" };
            let silent = short(process.silent.unwrap_or_default());
            format!("{} ({stopped}alive {silent} ago)", name(process))
        })
        .collect();
    let mut lines = vec![match &listed[..] {
        [] => "used by no process".to_owned(),
        [one] => format!("used by process {one}"),
        several => format!("used by {} processes: {}", several.len(), several.join(", ")),
    }];
    lines.extend(flags.map(|flags| format!("limit: {flags}, by the flags of the agents")));
    lines.extend(disagreement_in_words(processes));
    if unlisted > 0 {
        lines.push(format!(
            "used by about {unlisted} more; the list has space for {}",
            Board::MOST_PROCESSES
        ));
    }
    if table.board().has_strangers() {
        lines.push(
            "not shared by all: agents that were started earlier use a file that had this name \
             before; restart them one after the other"
                .to_owned(),
        );
    }
    lines
}

/// Which processes have other limits than others, if that is so.
fn disagreement_in_words(processes: &[Process]) -> Vec<String> {
    let mut groups: BTreeMap<u64, Vec<&Process>> = BTreeMap::new();
    for process in processes {
        if let Some(profile) = process.profile {
            groups.entry(profile.limits).or_default().push(process);
        }
    }
    if groups.len() < 2 {
        return Vec::new();
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    let mut lines = vec![
        "limits: not all agents have the same, so a client can get what each of them allows; \
         start all agents of a table with the same limits, or give each group a table of its own"
            .to_owned(),
    ];
    let line = |group| format!("  one set of limits in {}", agents(group).0);
    lines.extend(groups.into_iter().map(line));
    lines
}

/// The policies that were reset, in words and in JSON.
fn resets(table: &Table, path: &Path) -> (Vec<String>, Vec<Value>) {
    let resets = table.board().resets();
    // Without resets, nothing is read.
    let known = resets.first().and_then(|_| Kept::in_force(table, path));
    let about = |reset: &PolicyReset| {
        let mut policies = known.iter().flat_map(Policies::without_trials);
        let name = policies.find(|it| policy_id(&it.name) == reset.policy).map(|it| &*it.name);
        let (at, giver) = (reset_in_words(reset), &reset.giver);
        let of = name.map_or("a policy that no agent has".into(), |name| format!("'{name}'"));
        let words = format!("reset: all clients of {of}, at {at}, by {}", Visible(giver));
        (words, json!({ "policy": name, "at": at, "giver": giver }))
    };
    resets.iter().map(about).unzip()
}

/// The file of leases, if the limits of the table's agents are shared with other machines: in
/// words and in JSON.
fn leases(table: &Table) -> (Vec<String>, Value) {
    let leases = match Leases::inspect(table).map_err(TableError) {
        Ok(Some(leases)) => leases,
        Ok(None) => return (Vec::new(), Value::Null),
        Err(error) => return (vec![format!("fault: {error}")], Value::Null),
    };
    let counts = leases.counts(HostTime::from(table.now()), LONGEST_WAIT);
    let LeaseCounts { in_use, blocked, free, over, announced, held, unreported, .. } = counts;
    let machines = match leases.hosts() {
        0 => "the store has not answered yet".to_owned(),
        machines => format!("{} seen", Count(machines, "machine was", "machines were")),
    };
    let mut lines = vec![
        format!(
            "leases {}: {} entries, {} KiB; {machines}",
            leases.path().display(),
            leases.entries(),
            leases.bytes() / 1024
        ),
        format!(
            "  {in_use} in use, {blocked} blocked by what the store said, {over} with cells to \
             report"
        ),
        format!(
            "  {} held, {} not reported yet; {} begun",
            Count(held, "cell", "cells"),
            Count(unreported, "spent cell", "spent cells"),
            Count(leases.asks(), "ask", "asks")
        ),
    ];
    if leases.evictions() > 0 {
        lines.push(format!(
            "  {} evicted: the file of leases is too small, see 'gcra-spoa table resize --help'",
            Count(leases.evictions(), "entry was", "entries were")
        ));
    }
    let json = json!({
        "file": leases.path().display().to_string(),
        "bytes": leases.bytes(),
        "entries": leases.entries(),
        "in_use": in_use,
        "blocked": blocked,
        "free": free,
        "over": over,
        "announced": announced,
        "held_cells": held,
        "unreported_cells": unreported,
        "machines": leases.hosts(),
        "asks": leases.asks(),
        "evicted": leases.evictions(),
    });
    (lines, json)
}

fn resize(path: &Path, slots: Slots, force: bool) -> anyhow::Result<Output> {
    let table = Table::inspect(path).map_err(TableError)?;
    let (before, live) = (table.board().processes(), table.occupancy().live);
    let most = u64::from(slots.get()) / 10 * 6;
    // A resize that was interrupted can only be finished.
    ensure!(
        live <= most || force || table.is_being_resized() || table.interrupted_resize().is_some(),
        "table {}: {} slots are too few for its {}: some would be forgotten, and their clients \
         would get their burst once more; take {} or more, or add --force",
        path.display(),
        slots.get(),
        Count(live, "live bucket", "live buckets"),
        (live * 2).next_power_of_two()
    );
    note_about_no_users(&table, path).iter().for_each(|note| print_note(note));
    let leases = Leases::inspect(&table).ok().flatten();
    drop(table);
    let resized = Table::resize(path, slots, NOTICE).map_err(TableError)?;
    let (from, to) = (resized.from.get(), resized.to.get());
    let absent = absent(path, before.clone());
    let carried = resized.carried.saturating_sub(resized.evicted);
    let lost = match resized.evicted {
        0 => String::new(),
        evicted => format!(
            "; {} did not fit and {} forgotten",
            Count(evicted, "live bucket", "live buckets"),
            if evicted == 1 { "was" } else { "were" }
        ),
    };
    let words = format!(
        "table {}: resized from {from} to {to} slots; {} carried over{lost}\n{}\nan agent that is \
         started with --slots now needs --slots {to}",
        path.display(),
        Count(carried, "live bucket was", "live buckets were"),
        moved_in_words(before.len(), &absent),
    ) + &leases.map(|leases| stays_in_words(&leases)).unwrap_or_default();
    let json = json!({
        "from": from,
        "slots": to,
        "carried": carried,
        "evicted": resized.evicted,
        "agents": before.len(),
        "not_moved": absent.iter().map(|process| process.pid).collect::<Vec<_>>(),
    });
    Ok(Output { words, json })
}

/// Says that a resize does not change the file of leases, and what does.
fn stays_in_words(leases: &Leases) -> String {
    format!(
        "\nthe leases in {0} stay, with {1} entries; for others, remove {0}: the agents make \
         another one for the size of the table, and the store does without the cells that this \
         machine holds for 2 s",
        leases.path().display(),
        leases.entries()
    )
}

/// Those of the processes that do not use the table, after some time to move to it.
fn absent(path: &Path, mut processes: Vec<Process>) -> Vec<Process> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // If the table cannot be opened, that none has moved is true.
        let present =
            Table::inspect(path).map(|table| table.board().processes()).unwrap_or_default();
        processes.retain(|process| {
            let is_same = |other: &Process| {
                (other.pid, other.pid_namespace) == (process.pid, process.pid_namespace)
            };
            !present.iter().any(is_same) && halt_of(process) != Some(Halt::Dead)
        });
        if processes.is_empty() || Instant::now() > deadline {
            return processes;
        }
        thread::sleep(LOOK);
    }
}

fn moved_in_words(all: usize, absent: &[Process]) -> String {
    let moved = match all - absent.len() {
        0 if all == 0 => "no agent uses it now".to_owned(),
        1 if all == 1 => "the agent that uses it has moved".to_owned(),
        moved if moved == all => format!("all {all} agents have moved"),
        moved => format!("{moved} of {} moved", Count(all as u64, "agent has", "agents have")),
    };
    let lines = absent.iter().map(|process| {
        let why = match halt_of(process) {
            Some(Halt::Stopped) => "is stopped (SIGSTOP), and moves when it continues",
            _ => "has not moved yet; see its log",
        };
        format!("\nagent {} {why}", name(process))
    });
    lines.fold(moved, |moved, line| moved + &line)
}

fn check(at: &At) -> anyhow::Result<ExitCode> {
    let table = Table::inspect(&at.path()).map_err(TableError)?;
    let faults = table.check();
    let mut words: Vec<_> = faults.iter().map(table_error::fault).collect();
    let (in_leases, about_leases) = check_leases(&table);
    words.extend(in_leases.iter().cloned().chain(about_leases));
    let verdict = match faults.len() {
        0 => format!("no fault in {} slots", table.slots().get()),
        count if faults.iter().any(|fault| !fault.heals()) => format!(
            "{}, and the first does not heal: keys whose slots have moved are denied",
            Count(count, "fault", "faults")
        ),
        1 => "1 fault; the table keeps working, and the fault heals when its bucket is idle"
            .to_owned(),
        count => format!(
            "{count} faults; the table keeps working, and each fault heals when its bucket is idle"
        ),
    };
    words.push(format!("table {}: {verdict}", at.path().display()));
    let interrupted = table.interrupted_resize();
    words.extend(interrupted.map(|to| table_error::interrupted(&at.path(), to)));
    let json = json!({
        "resize_interrupted": interrupted.is_some(),
        "slots": table.slots().get(),
        "faults": faults.iter().map(table_error::fault).collect::<Vec<_>>(),
        "leases_faults": in_leases,
    });
    print(at.json, [Output { words: words.join("\n"), json }])?;
    let is_well = faults.is_empty() && interrupted.is_none() && in_leases.is_empty();
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The faults of the leases, and what to say after them, if there are leases.
fn check_leases(table: &Table) -> (Vec<String>, Option<String>) {
    let leases = match Leases::inspect(table).map_err(TableError) {
        Ok(Some(leases)) => leases,
        Ok(None) => return (Vec::new(), None),
        Err(error) => return (vec![error.to_string()], None),
    };
    let faults = leases.check(HostTime::from(table.now()));
    let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
    let verdict = match faults.len() {
        0 => format!("no fault in {} entries", leases.entries()),
        count => format!(
            "{}; too much may be allowed until the cells in them are over; remove the file, and \
             the agents make another one",
            Count(count as u64, "fault", "faults")
        ),
    };
    (faults, Some(format!("leases {}: {verdict}", leases.path().display())))
}

fn short(nanos: Nanos) -> Short {
    Short(nanos.into())
}

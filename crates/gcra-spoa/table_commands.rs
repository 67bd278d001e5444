//! `gcra-spoa table …`: what an operator can ask of a table and do to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use gcra_table::{Evictions, Nanos, Occupancy, Process, Slots, Table};
use serde_json::{Value, json};

use crate::cli::{At, TableCommand};
use crate::duration::Short;
use crate::listed::{Unlisted, agents, name, pid_namespace};
use crate::output::{Output, print};
use crate::plural::Count;
use crate::table_error::{self, TableError};
use crate::table_keys;

/// How long a resize waits for the agents to notice it: they look for a successor of their table
/// once a second.
const NOTICE: Duration = Duration::from_millis(1500);

/// Runs the command, and returns the exit status.
///
/// # Errors
///
/// There is no such table, the command cannot be done to it, or standard output is not writable.
pub(crate) fn run(command: TableCommand) -> anyhow::Result<ExitCode> {
    match command {
        TableCommand::Info(at) => {
            let table = Table::inspect(&at.path()).map_err(TableError)?;
            print(at.json, [info(&at.path(), &table)])?;
            Ok(ExitCode::SUCCESS)
        }
        TableCommand::Get(get) => table_keys::get(&get),
        TableCommand::Reset(reset) => table_keys::reset(&reset),
        TableCommand::Resize { at, slots } => {
            print(at.json, [resize(&at.path(), slots)?])?;
            Ok(ExitCode::SUCCESS)
        }
        TableCommand::Check(at) => check(&at),
    }
}

fn info(path: &Path, table: &Table) -> Output {
    // Begins first, because it takes two seconds if the list is full.
    let unlisted = Unlisted::begin(table);
    let (occupancy, processes) = (table.occupancy(), table.processes());
    let unlisted = unlisted.about(table);
    let words = [
        occupancy_in_words(path, table, occupancy),
        trouble_in_words(table),
        users_in_words(table, &processes, unlisted),
    ];
    let json = info_as_json(path, table, occupancy, &processes, unlisted);
    Output { words: words.concat().join("\n"), json }
}

/// The size of the table, and what its slots hold.
fn occupancy_in_words(path: &Path, table: &Table, occupancy: Occupancy) -> Vec<String> {
    let Occupancy { live, idle, pending, sealed } = occupancy;
    let slots = table.slots().get();
    let row = |state: &str, count: u64, meaning: &str| {
        let per_mille = count * 1000 / u64::from(slots);
        let (percent, tenth) = (per_mille / 10, per_mille % 10);
        format!("  {state:<8} {count:>10}  {percent:>3}.{tenth} %   {meaning}")
    };
    let mut lines = vec![
        format!(
            "table {}: {slots} slots, {} KiB; created {} ago by {}",
            path.display(),
            table.bytes() / 1024,
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

/// What was lost, and what is wrong.
fn trouble_in_words(table: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(fault) = table.successor_fault() {
        lines.push(format!("fault: {}", table_error::fault(&fault)));
    }
    let Evictions { evicted_live, forgiven } = table.evictions();
    lines.push(match evicted_live {
        0 => "evictions: none; the table was never too small".to_owned(),
        _ => format!(
            "evictions: {}, which owed {} in all; the table is too small, see 'gcra-spoa table \
             resize --help'",
            Count(evicted_live, "bucket", "buckets"),
            short(forgiven)
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

/// The processes that use the table.
fn users_in_words(table: &Table, processes: &[Process], unlisted: u64) -> Vec<String> {
    let listed: Vec<_> = processes
        .iter()
        .map(|process| {
            format!("{} (alive {} ago)", name(process), short(process.silent.unwrap_or_default()))
        })
        .collect();
    let mut lines = vec![match &listed[..] {
        [] => "used by no process".to_owned(),
        [one] => format!("used by process {one}"),
        several => format!("used by {} processes: {}", several.len(), several.join(", ")),
    }];
    lines.extend(disagreement_in_words(processes));
    if unlisted > 0 {
        lines.push(format!(
            "used by about {unlisted} more; the list has space for {}",
            Table::MOST_PROCESSES
        ));
    }
    if table.has_strangers() {
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
    let mut groups: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for process in processes {
        if let Some(profile) = process.profile {
            groups.entry(profile.limits).or_default().push(name(process));
        }
    }
    if groups.len() < 2 {
        return Vec::new();
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|names| std::cmp::Reverse(names.len()));
    let mut lines = vec![
        "limits: not all agents have the same, so a client can get what each of them allows; \
         start all agents of a table with the same limits, or give each group a table of its own"
            .to_owned(),
    ];
    lines.extend(groups.iter().map(|names| format!("  one set of limits in {}", agents(names).0)));
    lines
}

fn info_as_json(
    path: &Path,
    table: &Table,
    occupancy: Occupancy,
    processes: &[Process],
    unlisted: u64,
) -> Value {
    let Occupancy { live, idle, pending, sealed } = occupancy;
    let Evictions { evicted_live, forgiven } = table.evictions();
    let process = |process: &Process| {
        json!({
            "pid": process.pid,
            "pid_namespace": pid_namespace(process),
            "silent_ms": process.silent.unwrap_or_default().0 / 1_000_000,
            // Equal where the limits are. Not a number: JavaScript would round it.
            "limits": process.profile.map(|profile| format!("{:016x}", profile.limits)),
            "has_file": process.profile.map(|profile| profile.has_file),
            "admin": process.profile.and_then(|profile| profile.admin),
        })
    };
    json!({
        "table": path.display().to_string(),
        "slots": table.slots().get(),
        "bytes": table.bytes(),
        "generation": table.generation(),
        "creator": table.creator(),
        "age_ms": table.age().unwrap_or_default().0 / 1_000_000,
        "live": live,
        "idle": idle,
        "pending": pending,
        "sealed": sealed,
        "being_resized": table.is_being_resized(),
        "successor_fault": table.successor_fault().map(|fault| table_error::fault(&fault)),
        "evicted_live": evicted_live,
        "forgiven_ms": forgiven.0 / 1_000_000,
        "gave_up": table.gave_up(),
        "attachments": table.attachments(),
        "others_use_a_former_file": table.has_strangers(),
        "processes": processes.iter().map(process).collect::<Vec<_>>(),
        "unlisted": unlisted,
    })
}

fn resize(path: &Path, slots: Slots) -> anyhow::Result<Output> {
    let resized = Table::resize(path, slots, NOTICE).map_err(TableError)?;
    let (from, to) = (resized.from.get(), resized.to.get());
    let lost = match resized.evicted {
        0 => String::new(),
        evicted => format!(
            "; {} did not fit and {} forgotten",
            Count(evicted, "live bucket", "live buckets"),
            if evicted == 1 { "was" } else { "were" }
        ),
    };
    let words = format!(
        "table {}: resized from {from} to {to} slots; {} carried over{lost}\nrunning agents move \
         by themselves; an agent that is started with --slots now needs --slots {to}",
        path.display(),
        Count(resized.carried, "live bucket was", "live buckets were"),
    );
    let json = json!({
        "from": from, "slots": to, "carried": resized.carried, "evicted": resized.evicted,
    });
    Ok(Output { words, json })
}

fn check(at: &At) -> anyhow::Result<ExitCode> {
    let table = Table::inspect(&at.path()).map_err(TableError)?;
    let faults = table.check();
    let mut words: Vec<_> = faults.iter().map(table_error::fault).collect();
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
    let json = json!({
        "slots": table.slots().get(),
        "faults": faults.iter().map(table_error::fault).collect::<Vec<_>>(),
    });
    print(at.json, [Output { words: words.join("\n"), json }])?;
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn short(nanos: Nanos) -> Short {
    Short(nanos.into())
}

//! What an operator does to a table from the command line: `gcra-spoa table …`. (`gcra-spoa
//! reload` is in `reload.rs`.)

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use gcra_table::{Evictions, Occupancy, PidNamespace, Process, Quota, Registered, Table};
use serde_json::{Value, json};

use crate::config::{At, TableCommand, usage_error};
use crate::key::Key;
use crate::policy;

/// Agents look for a successor of their table once a second.
const NOTICE: Duration = Duration::from_millis(1500);

/// Does it, and returns the exit status.
pub(crate) fn run(command: TableCommand) -> anyhow::Result<ExitCode> {
    match command {
        TableCommand::Info(at) => {
            let table = Table::inspect(&at.path())?;
            print(&at, [info(&at, &table)])?;
        }
        TableCommand::Get { at, rate, burst, keys } => {
            let quota = match rate.quota(burst) {
                Ok(quota) => quota,
                Err(error) => return Ok(usage_error(&error.to_string())),
            };
            let table = Table::inspect(&at.path())?;
            was_used_with(
                &at,
                &table,
                quota,
                &format!("{rate}, up to {} at once", quota.burst()),
            )?;
            print(&at, keys.iter().map(|key| get(&table, quota, key)))?;
        }
        TableCommand::Reset { at, keys } => {
            let table = Table::inspect(&at.path())?;
            for key in &keys {
                print(&at, [reset(&at, &table, key)?])?;
            }
        }
        TableCommand::Resize { at, slots } => {
            let resized = Table::resize(&at.path(), slots, NOTICE)?;
            let (from, to) = (resized.from.get(), resized.to.get());
            let words = format!(
                "table {}: {from} slots became {to}; {} live buckets were carried over{}\n\
                 agents move by themselves; those that are started with --slots need --slots {to} from now on",
                at.path().display(),
                resized.carried,
                match resized.evicted {
                    0 => String::new(),
                    evicted => format!(
                        ", and {evicted} of all were forgotten, because it has too few slots"
                    ),
                }
            );
            let json = json!({
                "from": from, "slots": to, "carried": resized.carried, "evicted": resized.evicted,
            });
            print(&at, [Answer { words, json }])?;
        }
        TableCommand::Check(at) => return check(&at),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what is wrong with a configuration, a line for each mistake.
pub(crate) fn tell(mistakes: &[String]) -> ExitCode {
    mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
    ExitCode::FAILURE
}

/// Says what a configuration means, or what is wrong with it.
pub(crate) fn check_config(config: &Path, print_haproxy: bool) -> anyhow::Result<ExitCode> {
    let policies = match policy::file::read(config) {
        Ok(policies) => policies,
        Err(mistakes) => return Ok(tell(&mistakes)),
    };
    let text = if print_haproxy { policies.for_haproxy() } else { policies.in_words() };
    writeln!(io::stdout().lock(), "{}", text.trim_end()).context("could not write the answer")?;
    Ok(ExitCode::SUCCESS)
}

/// An answer in both forms.
pub(crate) struct Answer {
    pub(crate) words: String,
    pub(crate) json: Value,
}

/// Prints each answer on lines of its own.
pub(crate) fn print(at: &At, answers: impl IntoIterator<Item = Answer>) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    for Answer { words, json } in answers {
        let written =
            if at.json { writeln!(output, "{json}") } else { writeln!(output, "{words}") };
        match written {
            // Whoever reads has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            outcome => outcome.context("could not write the answer")?,
        }
    }
    Ok(())
}

fn info(at: &At, table: &Table) -> Answer {
    let Occupancy { live, idle, pending, sealed } = table.occupancy();
    let Evictions { evicted_live, forgiven_ns } = table.evictions();
    let (path, slots, processes) = (at.path(), table.slots(), table.processes());
    let age_ns = table.age_ns().unwrap_or(0);
    let unlisted = Unlisted::begin(table).about(table);

    let mut lines = vec![format!(
        "table {}: {} slots, {} KiB; made {} ago by {}",
        path.display(),
        slots.get(),
        table.bytes() / 1024,
        Span(age_ns),
        table.creator()
    )];
    let share = |count: u64| {
        let per_mille = count * 1000 / u64::from(slots.get());
        format!("{:>3}.{} %", per_mille / 10, per_mille % 10)
    };
    lines.push(format!("  live     {live:>10}  {}   keys that owe something", share(live)));
    lines.push(format!("  idle     {idle:>10}  {}   free for any key", share(idle)));
    lines.push(format!("  pending  {pending:>10}  {}   about to be opened", share(pending)));
    if sealed > 0 || table.is_being_resized() {
        lines.push(format!(
            "  sealed   {sealed:>10}  {}   moving: it is being resized",
            share(sealed)
        ));
    }
    let successor_fault = table.successor_fault().map(|fault| fault.to_string());
    if let Some(fault) = &successor_fault {
        lines.push(format!("fault: {fault}"));
    }
    lines.push(match evicted_live {
        0 => "evictions: none, it was never too small".to_owned(),
        _ => format!(
            "evictions: {evicted_live} keys were forgotten that owed {} in all: it is too small, see 'table resize'",
            Span(forgiven_ns)
        ),
    });
    if table.gave_up() > 0 {
        lines.push(format!("undecided: {} decisions were given up and denied", table.gave_up()));
    }
    let listed: Vec<_> = processes
        .iter()
        .map(|process| {
            format!("{} (alive {} ago)", name(process), Span(process.silent_ns.unwrap_or(0)))
        })
        .collect();
    lines.push(match &listed[..] {
        [] => "used by no process".to_owned(),
        [one] => format!("used by process {one}"),
        several => format!("used by {} processes: {}", several.len(), several.join(", ")),
    });
    if unlisted > 0 {
        lines.push(format!(
            "and by about {unlisted} more: there is room to list {}",
            Table::MOST_PROCESSES
        ));
    }
    let has_strangers = table.has_strangers();
    if has_strangers {
        lines.push(
            "not shared by all: agents that were started earlier use a file that had this name before; restart them one \
             after the other"
                .to_owned(),
        );
    }
    let json = json!({
        "table": path.display().to_string(),
        "slots": slots.get(),
        "bytes": table.bytes(),
        "generation": table.generation(),
        "creator": table.creator(),
        "age_ms": age_ns / 1_000_000,
        "live": live,
        "idle": idle,
        "pending": pending,
        "sealed": sealed,
        "being_resized": table.is_being_resized(),
        "successor_fault": successor_fault,
        "evicted_live": evicted_live,
        "forgiven_ms": forgiven_ns / 1_000_000,
        "gave_up": table.gave_up(),
        "attachments": table.attachments(),
        "others_use_a_former_file": has_strangers,
        "processes": processes
            .iter()
            .map(|process| {
                json!({
                    "pid": process.pid,
                    "pid_namespace": pid_namespace(process),
                    "silent_ms": process.silent_ns.unwrap_or(0) / 1_000_000,
                })
            })
            .collect::<Vec<_>>(),
        "unlisted": unlisted,
    });
    Answer { words: lines.join("\n"), json }
}

/// Refuses numbers that no agent has been started with: their buckets are none, and would look as
/// if nothing was owed.
fn was_used_with(at: &At, table: &Table, quota: Quota, words: &str) -> anyhow::Result<()> {
    let by_flags = || table.registered().into_iter().filter(|registered| registered.limit == 0);
    if by_flags().any(|registered| registered.quota == quota) {
        return Ok(());
    }
    let mut known: Vec<_> = by_flags()
        .map(|Registered { quota, .. }| {
            format!(
                "one every {}, up to {} at once",
                Span(quota.emission_interval_ns()),
                quota.burst()
            )
        })
        .collect();
    known.sort();
    known.dedup();
    let known = match &known[..] {
        [] => "it was not used by --rate and --burst at all".to_owned(),
        _ => format!("by --rate and --burst it was used with {}", known.join("; ")),
    };
    bail!("table {}: no agent has used it with {words}; {known}", at.path().display());
}

/// Counts the processes that are not listed for want of room, by their beats.
pub(crate) struct Unlisted {
    beats: u64,
    since: Instant,
}

impl Unlisted {
    pub(crate) fn begin(table: &Table) -> Self {
        Self { beats: table.unlisted_beats(), since: Instant::now() }
    }

    /// About how many there are. Waits until two seconds have passed since the beginning, if there
    /// can be any.
    pub(crate) fn about(&self, table: &Table) -> u64 {
        if table.processes().len() < Table::MOST_PROCESSES {
            return 0;
        }
        thread::sleep(Duration::from_secs(2).saturating_sub(self.since.elapsed()));
        let beats = table.unlisted_beats().wrapping_sub(self.beats);
        // Each has one a second. Half a process is one.
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        beats.saturating_mul(1000).saturating_add(ms / 2) / ms.max(1)
    }
}

/// A process as people know it.
pub(crate) fn name(process: &Process) -> String {
    match process.pid_namespace {
        PidNamespace::Another => format!("{} in another pid namespace", process.pid),
        PidNamespace::Ours | PidNamespace::Unknown => process.pid.to_string(),
    }
}

/// The same for programs: what its process id means to the caller.
pub(crate) fn pid_namespace(process: &Process) -> &'static str {
    match process.pid_namespace {
        PidNamespace::Ours => "ours",
        PidNamespace::Another => "another",
        PidNamespace::Unknown => "unknown",
    }
}

fn get(table: &Table, quota: Quota, key: &Key) -> Answer {
    let owed_ns = table.owed_ns(key.hash(table), quota, table.now());
    let (remaining, burst) = (quota.remaining(owed_ns), quota.burst());
    let wait_ns = owed_ns.saturating_sub(quota.burst_tolerance_ns());
    let name = &key.text;
    let words = match (owed_ns, wait_ns) {
        (0, _) => format!("{name}: {burst} of {burst} left"),
        (_, 0) => format!("{name}: {remaining} of {burst} left, all again in {}", Span(owed_ns)),
        _ => format!(
            "{name}: blocked, the next may come in {}, and all {burst} in {}",
            Span(wait_ns),
            Span(owed_ns)
        ),
    };
    let json = json!({
        "key": name,
        "blocked": wait_ns > 0,
        "remaining": remaining,
        "burst": burst,
        "retry_after_ms": wait_ns.div_ceil(1_000_000),
        "full_after_ms": owed_ns.div_ceil(1_000_000),
    });
    Answer { words, json }
}

/// Forgives what a key owes under all numbers that the table's limits have or have had.
fn reset(at: &At, table: &Table, key: &Key) -> anyhow::Result<Answer> {
    let parts = key.hash(table);
    let mut forgiven_ns = 0;
    for Registered { limit, quota, .. } in table.registered() {
        let Some(owed_ns) = table.reset(policy::key_for(limit, table, parts), quota, table.now())
        else {
            bail!(
                "table {} is being resized; reset the key again when that is done",
                at.path().display()
            );
        };
        forgiven_ns = forgiven_ns.max(owed_ns);
    }
    let name = &key.text;
    let words = match forgiven_ns {
        0 => format!("{name}: owed nothing"),
        _ => format!("{name}: forgiven {}", Span(forgiven_ns)),
    };
    Ok(Answer {
        words,
        json: json!({ "key": name, "forgiven_ms": forgiven_ns.div_ceil(1_000_000) }),
    })
}

fn check(at: &At) -> anyhow::Result<ExitCode> {
    let table = Table::inspect(&at.path())?;
    let faults = table.check();
    let mut words: Vec<_> = faults.iter().map(ToString::to_string).collect();
    words.push(match faults.len() {
        0 => format!("table {}: no fault in {} slots", at.path().display(), table.slots().get()),
        count if faults.iter().any(|fault| !fault.heals()) => format!(
            "table {}: {count} faults, and the first does not heal: keys whose slots have moved are denied",
            at.path().display()
        ),
        count => format!(
            "table {}: {count} faults; it goes on working, and each heals once what it owes has drained",
            at.path().display()
        ),
    });
    let json = json!({
        "slots": table.slots().get(),
        "faults": faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    print(at, [Answer { words: words.join("\n"), json }])?;
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A length of time in nanoseconds, for people: three digits and a unit.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "min"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];
        // From two of a unit on, so that nothing is rounded by more than a quarter.
        let unit = UNITS.iter().find(|(size, _)| self.0 >= 2 * size);
        let Some((size, name)) = unit else {
            return write!(f, "{} ns", self.0);
        };
        match self.0 / size {
            whole @ 0..10 => write!(f, "{whole}.{} {name}", self.0 % size * 10 / size),
            whole => write!(f, "{whole} {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        for (ns, words) in [
            (0, "0 ns"),
            (1_999, "1999 ns"),
            (12_345, "12 us"),
            (1_999_999, "1999 us"),
            (2_000_000, "2.0 ms"),
            (199_000_000, "199 ms"),
            (9_960_000_000, "9.9 s"),
            (90_000_000_000, "90 s"),
            (5_400_000_000_000, "90 min"),
            (400_000_000_000_000, "4.6 d"),
        ] {
            assert_eq!(Span(ns).to_string(), words);
        }
    }
}

//! `gcra-spoa audit`: holds the audit files of all agents against a limit.
//!
//! It knows nothing of the table: it reads times, keys and cells, sorts them, and computes for
//! each key what an exact bucket would have owed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gcra_limiter::audit_lines::{AuditOutcome, BY_STORE, END, GAP, MAGIC};
use gcra_policy::flags::{parse_burst, parse_rate};
use gcra_policy::table_error;
use gcra_table::{Quota, Rate};
use gcra_text::count::Count;
use gcra_text::duration::Left;
use gcra_text::output::{Output, WrongUsage, print};
use serde_json::json;

/// Which files to hold against which limit.
#[derive(Debug, clap::Args)]
pub struct Audit {
    /// The files of all agents that share the limit
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The rate of the limit
    #[arg(long, value_parser = parse_rate, value_name = "COUNT/PERIOD")]
    #[arg(allow_hyphen_values = true)]
    pub rate: Rate,
    /// The burst of the limit, if it has one
    #[arg(long, value_name = "COUNT", value_parser = parse_burst)]
    #[arg(allow_negative_numbers = true)]
    pub burst: Option<u64>,
    /// Only the decisions of this policy [default: those of each policy, by themselves]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
}

pub const AUDIT_HELP: &str = "\
A line of an audit file has the time in nanoseconds since the machine booted
(with an @, since 1970 by the clock of a store), the policy, the key, the cells,
and the outcome: allowed, blocked, would-block or exempt. Lines that begin with
# are about the clock, the end and what is missing. To check only some clients,
choose their lines with grep, and keep the lines with #.

Examples:
  gcra-spoa audit /var/log/gcra-spoa/*.audit --rate 100/s --burst 20
  gcra-spoa audit one.audit two.audit --policy check --rate 100/s --burst 20

What an exempt client was allowed does not count. After 'table reset', a client
may have its burst once more, and that is reported.

Exit status: 0 if no more was allowed than the limit, 1 if more was, decisions
are missing, or a line is damaged, 2 if a file cannot be read or there are no
decisions, and for wrong usage.";

/// The longest line that is read, in bytes. A key has at most 255 values.
const LONGEST_LINE: u64 = 1 << 20;

#[derive(Debug, Default)]
struct Record {
    /// The numbers of the keys, each key with its policy.
    keys: HashMap<String, u32>,
    allowed: Vec<Allowed>,
    blocked: u64,
    would_block: u64,
    exempt: u64,
    /// Cells that responses have charged, and given back.
    charged: u64,
    given_back: u64,
    /// Lines that are no decision: cut off by a full disk, for example.
    unreadable: u64,
    /// Decisions that could not be written, according to the files.
    missing: u64,
    /// How often agents have begun to write, and how often of these they have written their end.
    begun: u64,
    ended: u64,
    /// Of those allowed and given back, the ones whose time is not by the clock of a store.
    by_wall_clock: u64,
    /// For each policy, whether it has times by the clock of a machine, and by that of a store.
    clocks: BTreeMap<String, [bool; 2]>,
    /// The boots of machines, each with the time when it was, by the wall clock.
    boots: HashMap<String, i128>,
}

/// Cells that were allowed, or given back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Allowed {
    key: u32,
    /// Nanoseconds since 1970, by the wall clock or by the clock of the store.
    at: i64,
    /// Below zero if they were given back.
    cells: i64,
}

/// The result of all decisions together, compared with a limit.
#[derive(Debug, Default)]
struct Finding {
    cells: u64,
    /// Cells that exact buckets would not have allowed.
    too_many: u64,
    clients_over: u64,
    worst: Option<Worst>,
}

/// Where a client was furthest ahead of the limit.
#[derive(Debug, serde::Serialize)]
struct Worst {
    cells: u128,
    key: String,
    at_ns: i128,
}

/// A limit, in the times of a bucket.
#[derive(Clone, Copy, Debug)]
struct Police {
    interval_ns: i128,
    tolerance_ns: i128,
}

/// How far the decisions about one key go beyond the limit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Excess {
    /// Cells that an exact bucket would not have allowed.
    too_many: u64,
    /// By how much the key was at most ahead of the limit.
    ahead_ns: i128,
    at: i64,
}

impl Police {
    fn new(quota: Quota) -> Self {
        Self {
            interval_ns: quota.emission_interval().0.into(),
            tolerance_ns: quota.burst_tolerance().0.into(),
        }
    }

    /// Looks at what was allowed to one key, in the order of time.
    fn look(self, allowed: &[Allowed]) -> Excess {
        let mut excess = Excess::default();
        // With all cells that were allowed, and with those that the limit allows.
        let (mut all, mut conforming) = (i128::MIN, i128::MIN);
        for Allowed { at, cells, .. } in allowed {
            let now = i128::from(*at);
            let cost = self.interval_ns * i128::from(*cells);
            // A bucket allows cells if afterwards it owes one burst at most.
            let most = now + self.tolerance_ns + self.interval_ns;
            if cost < 0 {
                // At most the debt is given back.
                let less = |owed: i128| (owed.max(now) + cost).max(now);
                (all, conforming) = (less(all), less(conforming));
                continue;
            }
            all = all.max(now) + cost;
            if all - most > excess.ahead_ns {
                (excess.ahead_ns, excess.at) = (all - most, *at);
            }
            let next = conforming.max(now) + cost;
            if next > most {
                excess.too_many += cells.unsigned_abs();
            } else {
                conforming = next;
            }
        }
        excess
    }
}

impl Record {
    /// Reads a file. Only what is about `policy` counts, if one is named.
    fn read(&mut self, path: &Path, policy: Option<&str>) -> anyhow::Result<()> {
        let shown = path.display();
        let failed = || format!("could not read {shown}");
        let mut file = BufReader::new(File::open(path).with_context(failed)?);
        let mut line = Vec::new();
        // The time to add to those that follow; `None` before the first line about the clock.
        let mut booted: Option<i128> = None;
        loop {
            line.clear();
            let read = std::io::Read::take(&mut file, LONGEST_LINE)
                .read_until(b'\n', &mut line)
                .with_context(failed)?;
            if read == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&line);
            if text.starts_with(MAGIC) {
                let (boot, at) = clock(&text)
                    .with_context(|| format!("{shown}: the line about the clock is damaged"))?;
                // The clock of a boot is the same in all files of one machine, and was read
                // several times.
                booted = Some(*self.boots.entry(boot).or_insert(at));
                self.begun += 1;
                continue;
            }
            if text == "\n" {
                continue;
            }
            let Some(booted) = booted else {
                bail!(WrongUsage(format!(
                    "{shown} is not an audit file; name files that agents with --audit have \
                     written"
                )));
            };
            if let Some(gap) = text.strip_prefix(GAP) {
                self.missing += gap.trim().parse().unwrap_or(1);
                continue;
            }
            // A full disk can cut it off. Then it does not say that nothing is missing.
            if text.starts_with(END) && text.ends_with('\n') {
                self.ended += 1;
                continue;
            }
            self.add(&text, booted, policy);
        }
        Ok(())
    }

    fn add(&mut self, line: &str, booted: i128, policy: Option<&str>) {
        let stripped = line.strip_prefix(BY_STORE);
        let (line, by_store) = (stripped.unwrap_or(line), stripped.is_some());
        let Some((at, decided, key, cells, outcome)) = fields(line) else {
            self.unreadable += 1;
            return;
        };
        if policy.is_some_and(|policy| policy != decided) {
            return;
        }
        match outcome {
            AuditOutcome::Allowed => {}
            AuditOutcome::GivenBack => self.given_back += u64::from(cells),
            // More than a limit has is never too much of it: the response does not ask.
            AuditOutcome::Charged => return self.charged += u64::from(cells),
            AuditOutcome::Blocked => return self.blocked += 1,
            AuditOutcome::WouldBlock => return self.would_block += 1,
            AuditOutcome::Exempt => return self.exempt += 1,
        }
        let next = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let key = *self.keys.entry(format!("{decided} {key}")).or_insert(next);
        // The clock of the store is the same for all machines.
        let since = if by_store { 0 } else { booted };
        self.by_wall_clock += u64::from(!by_store);
        match self.clocks.get_mut(decided) {
            Some(clocks) => clocks[usize::from(by_store)] = true,
            None => drop(self.clocks.insert(decided.to_owned(), [!by_store, by_store])),
        }
        let at = i64::try_from(since.saturating_add(at.into())).unwrap_or(i64::MAX);
        let cells = i64::from(cells) * if outcome == AuditOutcome::GivenBack { -1 } else { 1 };
        self.allowed.push(Allowed { key, at, cells });
    }
}

/// The id of the boot in a line about the clock, and when it was.
fn clock(line: &str) -> Option<(String, i128)> {
    let value = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
    Some((value("boot=")?.to_owned(), value("booted=")?.parse().ok()?))
}

/// The parts of a line about a decision. A line that was cut off has none.
fn fields(line: &str) -> Option<(u64, &str, &str, u32, AuditOutcome)> {
    let mut words = line.strip_suffix('\n')?.split(' ');
    let at = words.next()?.parse().ok()?;
    let (policy, key) = (words.next()?, words.next()?);
    let (cells, outcome) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some((at, policy, key, cells, outcome))
}

/// Reads the files, and prints the worst excess. Returns the exit status, which is 1 if there is
/// one, or if decisions are missing.
///
/// # Errors
///
/// A file cannot be read or is not an audit file, or there are no decisions.
pub fn run(command: &Audit) -> anyhow::Result<ExitCode> {
    let Audit { files, rate, burst, policy, json } = command;
    let quota = rate.quota(*burst).map_err(|error| WrongUsage(table_error::rate(&error)))?;
    let mut record = Record::default();
    let mut seen = HashSet::new();
    for file in files {
        let id = std::fs::metadata(file).map(|found| (found.dev(), found.ino())).ok();
        // The same file by two names counts once.
        if id.is_none_or(|id| seen.insert(id)) {
            // Status 1 is for the facts in the files.
            let read = record.read(file, policy.as_deref());
            read.map_err(|error| WrongUsage(format!("{error:#}")))?;
        }
    }
    if record.is_empty() {
        let which = policy.as_ref().map_or_else(
            || "decisions".to_owned(),
            |policy| format!("decision of the policy '{policy}'"),
        );
        bail!(WrongUsage(format!("these files have no {which}, so there is nothing to check")));
    }
    let finding = record.held_against(quota);
    let limit = format!("{} at once and {rate}", quota.burst());
    let output = Output {
        words: record.in_words(&finding, &limit).join("\n"),
        json: record.in_json(&finding),
    };
    print(*json, [output])?;
    // An agent writes whole lines. Only a write that failed leaves a damaged one.
    let is_proof = finding.worst.is_none() && record.missing + record.unreadable == 0;
    Ok(if is_proof { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Record {
    fn is_empty(&self) -> bool {
        let others = self.blocked + self.would_block + self.exempt + self.missing;
        self.allowed.is_empty() && others == 0
    }

    fn held_against(&mut self, quota: Quota) -> Finding {
        // With one boot, the times are those of the lines.
        let is_since_boot = self.boots.len() == 1 && self.by_wall_clock > 0;
        let booted = self.boots.values().copied().max().filter(|_| is_since_boot);
        // The decisions of one agent at one moment stay in their order.
        self.allowed.sort_by_key(|allowed| (allowed.key, allowed.at));
        let police = Police::new(quota);
        let mut finding = Finding::default();
        let (mut worst, mut worst_key) = (Excess::default(), None);
        for of_key in self.allowed.chunk_by(|one, other| one.key == other.key) {
            let excess = police.look(of_key);
            finding.too_many += excess.too_many;
            finding.clients_over += u64::from(excess.ahead_ns > 0);
            if excess.ahead_ns > worst.ahead_ns {
                (worst, worst_key) = (excess, Some(of_key[0].key));
            }
        }
        let mut keys = self.keys.iter();
        let key = worst_key.and_then(|worst| keys.find(|(_, number)| **number == worst));
        finding.worst = key.map(|(key, _)| Worst {
            cells: worst.ahead_ns.unsigned_abs().div_ceil(police.interval_ns.unsigned_abs()),
            key: key.clone(),
            at_ns: i128::from(worst.at) - booted.unwrap_or_default(),
        });
        let cells = self.allowed.iter().map(|allowed| allowed.cells.max(0).unsigned_abs());
        finding.cells = cells.sum();
        finding
    }

    /// From the first to the last time.
    fn span(&self) -> Duration {
        let times = || self.allowed.iter().map(|allowed| allowed.at);
        let span = times().max().unwrap_or_default() - times().min().unwrap_or_default();
        Duration::from_nanos(span.unsigned_abs())
    }

    /// How many agents have not written their end.
    fn unended(&self) -> u64 {
        self.begun.saturating_sub(self.ended)
    }

    fn with_two_clocks(&self) -> Vec<&str> {
        let mixed = self.clocks.iter().filter(|(_, clocks)| **clocks == [true; 2]);
        mixed.map(|(policy, _)| &**policy).collect()
    }

    fn in_words(&self, finding: &Finding, limit: &str) -> Vec<String> {
        let Self { would_block, exempt, boots, missing, unreadable, .. } = self;
        let mut lines = vec![format!(
            "{} of {} in {} allowed ({} blocked, {would_block} would be blocked, {exempt} exempt)",
            Count(finding.cells, "cell", "cells"),
            Count(self.keys.len() as u64, "client", "clients"),
            Left(self.span()),
            Count(self.blocked, "request", "requests"),
        )];
        if self.charged + self.given_back > 0 {
            lines.push(format!(
                "responses have charged {} more, and given back {}",
                Count(self.charged, "cell", "cells"),
                Count(self.given_back, "cell", "cells"),
            ));
        }
        lines.push(match &finding.worst {
            None => format!("none too many: no client got more than {limit}"),
            Some(Worst { cells, key, at_ns }) => format!(
                "TOO MANY: {} for {} beyond {limit}; at worst {} for {key}, at {at_ns} ns",
                Count(finding.too_many, "cell", "cells"),
                Count(finding.clients_over, "client", "clients"),
                Count(*cells, "cell", "cells")
            ),
        });
        if *missing > 0 {
            lines.push(format!(
                "up to {} could not be written, so this proves nothing for the time of the gap",
                Count(*missing, "decision", "decisions")
            ));
        }
        if *unreadable > 0 {
            lines.push(format!(
                "left out: {}, so decisions may be missing, and this proves nothing",
                Count(*unreadable, "damaged line", "damaged lines")
            ));
        }
        if self.unended() > 0 {
            lines.push(format!(
                "{} of an agent without its end: the agent runs still, or was killed; decisions \
                 that it could not write may be missing",
                Count(self.unended(), "part", "parts")
            ));
        }
        if boots.len() > 1 && self.by_wall_clock > 0 {
            lines.push(format!(
                "the files are of {} machines or boots: as far as their wall clocks differ, this \
                 can be wrong",
                boots.len()
            ));
        }
        let mixed: Vec<_> =
            self.with_two_clocks().iter().map(|policy| format!("'{policy}'")).collect();
        if !mixed.is_empty() {
            lines.push(format!(
                "times of {} are by two clocks, that of the store (lines with {BY_STORE}) and \
                 that of a machine, which decided without the store: as far as these differ, this \
                 can be wrong",
                mixed.join(" and ")
            ));
        }
        lines
    }

    fn in_json(&self, finding: &Finding) -> serde_json::Value {
        let Finding { cells, too_many, clients_over, worst } = finding;
        json!({
            "cells": cells,
            "clients": self.keys.len(),
            "blocked": self.blocked,
            "would_block": self.would_block,
            "exempt": self.exempt,
            "charged": self.charged,
            "given_back": self.given_back,
            "unreadable": self.unreadable,
            "missing": self.missing,
            "unended": self.unended(),
            "too_many": too_many,
            "clients_over": clients_over,
            "worst": worst,
            "boots": self.boots.len(),
            "two_clocks": self.with_two_clocks(),
        })
    }
}

#[cfg(test)]
mod tests {
    use gcra_table::{Admission, Nanos, Time};
    use proptest::prelude::*;

    use super::*;

    fn allowed(times: &[i64]) -> Vec<Allowed> {
        times.iter().map(|at| Allowed { key: 0, at: *at, cells: 1 }).collect()
    }

    fn police(interval: u64, burst: u32) -> (Police, Quota) {
        let quota = Quota::new(Nanos(interval), burst).unwrap();
        (Police::new(quota), quota)
    }

    #[test]
    fn one_too_many_is_found() {
        let (police, _) = police(10, 3);
        assert_eq!(police.look(&allowed(&[0, 0, 0, 10, 20])), Excess::default());
        let excess = police.look(&allowed(&[0, 0, 0, 9, 20]));
        assert_eq!(excess, Excess { too_many: 1, ahead_ns: 1, at: 9 });
        let excess = police.look(&allowed(&[0, 0, 0, 0, 0]));
        assert_eq!(excess, Excess { too_many: 2, ahead_ns: 20, at: 0 });
        assert_eq!(police.look(&allowed(&[-5, 0])), Excess::default(), "before 1970");
    }

    #[test]
    fn lines_that_are_no_decisions_are_counted() {
        let mut record = Record::default();
        for line in [
            "5 api 192.0.2.1 1 allowed\n",
            "6 api 192.0.2.1 1 blocked\n",
            "7 api.observe 192.0.2.1 1 would-block\n",
            "8 api - 3 exempt\n",
            "9 api 192.0.2.1 1 al",
            "9 api 192.0.2.1 1 allowed more\n",
            "x\n",
        ] {
            record.add(line, 100, None);
        }
        assert_eq!(record.allowed, [Allowed { key: 0, at: 105, cells: 1 }]);
        assert_eq!(
            (record.blocked, record.would_block, record.exempt, record.unreadable),
            (1, 1, 1, 3)
        );
        record.add("5 other 192.0.2.1 1 allowed\n", 100, Some("api"));
        assert_eq!(record.allowed.len(), 1);
    }

    #[test]
    fn what_is_given_back_can_be_allowed_again() {
        let mut record = Record::default();
        for line in [
            "5 api a 3 allowed\n",
            "6 api a 2 given-back\n",
            "6 api a 2 allowed\n",
            "7 api a 9 charged\n",
        ] {
            record.add(line, 0, None);
        }
        assert_eq!((record.charged, record.given_back, record.unreadable), (9, 2, 0));
        let (police, _) = police(1_000, 3);
        assert_eq!(police.look(&record.allowed), Excess::default());
        let too_much = Allowed { cells: -1, ..record.allowed[1] };
        let [first, _, last] = record.allowed[..] else { panic!("{:?}", record.allowed) };
        assert_eq!(police.look(&[first, too_much, last]).too_many, 2);
        // Cells that are not owed any more are not given back.
        let late = [Allowed { at: 10_000, ..record.allowed[1] }, Allowed { at: 10_000, ..first }];
        let one_more = Allowed { at: 10_000, cells: 1, ..first };
        assert_eq!(police.look(&[late[0], late[1], one_more]).too_many, 1);
        assert_eq!(police.look(&late), Excess::default());
    }

    proptest! {
        /// The cells that a bucket allows conform, and each cell that it denies is too many.
        #[test]
        fn the_police_agrees_with_the_bucket(
            interval in 1_u64..50,
            burst in 1_u32..6,
            requests in proptest::collection::vec((0_u64..60, 1_u32..4), 1..60),
        ) {
            let (police, quota) = police(interval, burst);
            let (mut now, mut tat) = (Time(1_000), Time::ZERO);
            let mut conforming = Vec::new();
            for (pause, cells) in requests {
                now = Time(now.0 + pause);
                let one = Allowed { key: 0, at: now.0.cast_signed(), cells: cells.into() };
                match quota.admit(tat, now, cells) {
                    Admission::Conforming { tat: next } => {
                        tat = next;
                        conforming.push(one);
                    }
                    Admission::Early { .. } | Admission::Oversize => {
                        let mut with = conforming.clone();
                        with.push(one);
                        prop_assert_eq!(police.look(&with).too_many, u64::from(cells));
                        prop_assert!(police.look(&with).ahead_ns > 0);
                    }
                }
            }
            prop_assert_eq!(police.look(&conforming), Excess::default());
        }
    }
}

//! Holds the audit files of all hosts together against one exact bucket for each client.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;

use crate::support::agent_binary;

/// A limit per second.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
}

impl Limit {
    /// The time in which one cell comes due, in ns.
    fn interval(self) -> u64 {
        1_000_000_000 / self.per_second
    }

    /// As arguments of an agent, and of `gcra-spoa audit`.
    pub(crate) fn args(self) -> [String; 4] {
        let Self { per_second, burst } = self;
        ["--rate".into(), format!("{per_second}/s"), "--burst".into(), burst.to_string()]
    }
}

/// The findings in the files.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub(crate) allowed: u64,
    pub(crate) blocked: u64,
    /// How many of the same requests one exact bucket for each client would have allowed.
    pub(crate) exact: u64,
    /// Cells that the limit does not allow.
    pub(crate) too_many: u64,
    /// How many cells a client was ahead of its limit, at worst.
    pub(crate) worst: u64,
}

impl Judgement {
    /// The allowed requests in percent of those that one exact bucket would have allowed.
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52 requests")]
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.allowed as f64 / self.exact as f64
    }
}

/// The findings of `gcra-spoa audit` about the files, and how many requests an exact bucket would
/// have allowed.
pub(crate) fn judge(files: &[PathBuf], limit: Limit) -> Judgement {
    let mut audit = Command::new(agent_binary());
    let output = audit.arg("audit").args(files).args(limit.args()).arg("--json").output().unwrap();
    let said: Json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    assert_eq!(said["missing"], 0, "{said}");
    let number = |value: &Json| value.as_u64().unwrap_or(0);
    Judgement {
        allowed: number(&said["cells"]),
        blocked: number(&said["blocked"]),
        exact: exact(files, limit),
        too_many: number(&said["too_many"]),
        worst: number(&said["worst"]["cells"]),
    }
}

/// How many of the requests in the files an exact bucket for each client would have allowed.
fn exact(files: &[PathBuf], limit: Limit) -> u64 {
    decide(&read(files), limit, 0)
}

/// The same for the requests of some time, if a full burst was owed when it began.
pub(crate) fn exact_in(files: &[PathBuf], limit: Limit, times: &Range<u64>) -> u64 {
    let mut decisions = read(files);
    decisions.retain(|decision| times.contains(&decision.at));
    decide(&decisions, limit, times.start + limit.burst * limit.interval())
}

/// Copies of the files without what was decided from some time on.
pub(crate) fn until(files: &[PathBuf], time: u64, directory: &Path) -> Vec<PathBuf> {
    let copies = files.iter().enumerate().map(|(number, file)| {
        let text = fs::read_to_string(file).unwrap();
        let is_before = |line: &&str| {
            let at = line.split(' ').next().and_then(|word| word.parse::<u64>().ok());
            at.is_none_or(|at| at < time)
        };
        let lines: Vec<_> =
            text.lines().filter(is_before).map(|line| format!("{line}\n")).collect();
        let copy = directory.join(number.to_string());
        fs::write(&copy, lines.concat()).unwrap();
        copy
    });
    copies.collect()
}

/// How many requests of some time were allowed.
pub(crate) fn allowed_in(files: &[PathBuf], times: &Range<u64>) -> u64 {
    let decisions = read(files);
    let allowed = |decision: &&Decision| times.contains(&decision.at) && decision.is_allowed;
    decisions.iter().filter(allowed).count() as u64
}

/// A line of an audit file.
struct Decision {
    /// As all files of one machine count it.
    at: u64,
    key: String,
    is_allowed: bool,
}

/// All decisions in the order of time.
fn read(files: &[PathBuf]) -> Vec<Decision> {
    let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let decisions = texts.iter().flat_map(|text| text.lines()).filter_map(|line| {
        // "TIME POLICY KEY CELLS OUTCOME"
        let words: Vec<_> = line.split(' ').collect();
        let [at, _, key, _, outcome] = words[..] else { return None };
        let at = at.parse().ok()?;
        Some(Decision { at, key: key.to_owned(), is_allowed: outcome == "allowed" })
    });
    let mut decisions: Vec<_> = decisions.collect();
    decisions.sort_by_key(|decision| decision.at);
    decisions
}

/// How many of these an exact bucket for each client allows whose TAT is this one at first.
fn decide(decisions: &[Decision], limit: Limit, tat: u64) -> u64 {
    let interval = limit.interval();
    let mut tats = HashMap::new();
    let mut allowed = 0;
    for Decision { at, key, .. } in decisions {
        let tat = tats.entry(key).or_insert(tat);
        let next = (*at).max(*tat) + interval;
        if next <= at + interval * limit.burst {
            *tat = next;
            allowed += 1;
        }
    }
    allowed
}

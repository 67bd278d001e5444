//! The table of the costs of a decision.

use std::fmt::Write as _;

use crate::host;
use crate::limiters::LIMITERS;

/// The medians of one load.
pub(crate) struct Row {
    pub name: String,
    /// Nanoseconds per decision, of each limiter.
    pub ns: [f64; LIMITERS.len()],
}

/// Places in [`LIMITERS`] of those that the page shows, and of the two that it compares.
const SHOWN: [usize; 4] = [1, BATCHES, GOVERNOR, 6];
const BATCHES: usize = 3;
const GOVERNOR: usize = 4;

const LEGEND: &str = "
The key that is denied has 100 cells per second and a burst of 20. All others are allowed, so that
each decision writes. Hashing is included. \"One reading\" leaves out the clock, which the agent
reads once per batch; \"batches\" is how the agent decides; governor is `RateLimiter::keyed` with
its defaults; Mutex is GCRA in a `Mutex<HashMap>`.

";

/// The section of the page.
pub(crate) fn section(rows: &[Row], rounds: usize) -> String {
    format!(
        "## The table beside governor\n\n\
         Nanoseconds per decision and thread, medians of {rounds} interleaved rounds\n\
         ({}):\n\n{}{LEGEND}",
        host::description(),
        table(rows, &SHOWN),
    )
}

/// A row for each load, with the limiters at some places.
pub(crate) fn table(rows: &[Row], limiters: &[usize]) -> String {
    let mut out = format!("| {:<34} |", "load");
    let names = || limiters.iter().map(|at| LIMITERS[*at]).chain(["ratio"]);
    names().for_each(|name| write!(out, " {name} |").unwrap());
    write!(out, "\n| {:-<34} |", "").unwrap();
    names().for_each(|name| write!(out, " {:->1$}: |", "", name.len() - 1).unwrap());
    for row in rows {
        write!(out, "\n| {:<34} |", row.name).unwrap();
        let ratio = row.ns[GOVERNOR] / row.ns[BATCHES];
        let figures = limiters.iter().map(|at| row.ns[*at]).chain([ratio]);
        figures
            .zip(names())
            .for_each(|(figure, name)| write!(out, " {figure:>0$.1} |", name.len()).unwrap());
    }
    out + "\n\nThe ratio is governor's time to ours in batches.\n"
}

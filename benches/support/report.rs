//! The table of results, and its plot.

use std::fmt::Write as _;

use crate::bars::{Chart, Panel};
use crate::limiters::{LEGEND, LIMITERS};
use crate::page::{field, machine};

/// The medians of one load.
pub(crate) struct Row {
    pub name: String,
    pub load: String,
    pub threads: usize,
    /// Nanoseconds per decision, of each limiter.
    pub ns: [f64; LIMITERS.len()],
}

/// The section "The table" of the page. It is as legible on a terminal.
pub(crate) fn section(
    rows: &[Row],
    left_out: &[String],
    rounds: usize,
    args: &[String],
) -> String {
    let mut section = String::from("## The table\n\n");
    let out = &mut section;
    writeln!(out, "Nanoseconds per decision and thread, medians of {rounds} interleaved rounds after one that warmed up.")
        .unwrap();
    writeln!(out, "{}. The command was\n", machine()).unwrap();
    writeln!(out, "    {}\n", command(args)).unwrap();
    writeln!(out, "![The same as bars](bench-table.svg)\n").unwrap();

    write!(out, "| {:<36} |", "load").unwrap();
    let columns = LIMITERS.iter().chain(&["governor / ours", "governor / batched"]);
    columns.clone().for_each(|column| write!(out, " {column} |").unwrap());
    write!(out, "\n| {:-<36} |", "").unwrap();
    columns.clone().for_each(|column| write!(out, " {:->1$}: |", "", column.len() - 1).unwrap());
    for row in rows {
        write!(out, "\n| {:<36} |", row.name).unwrap();
        let [_, _, ours, batched, governor, ..] = row.ns;
        let figures = row.ns.into_iter().chain([governor / ours, governor / batched]);
        figures.zip(columns.clone()).for_each(|(figure, column)| {
            write!(out, " {figure:>0$.1} |", column.len()).unwrap();
        });
    }
    writeln!(out, "\n\nBoth ratios are to figures of ours that include the clock.\n\n{LEGEND}")
        .unwrap();
    if !left_out.is_empty() {
        writeln!(out, "Left out: {}.\n", left_out.join("; ")).unwrap();
    }
    section
}

/// The same as bars: ours in blue, the others in grey; a panel for each number of threads.
pub(crate) fn plot(rows: &[Row]) -> String {
    const SHOWN: [(usize, &str); 5] =
        [(2, "#1f6fb4"), (3, "#7dbcea"), (4, "#4d4d4d"), (5, "#8c8c8c"), (6, "#c4c4c4")];
    let panels = [(1, "1 thread"), (2, "2 threads")].map(|(threads, title)| Panel {
        title,
        axis: "ns per decision and thread (logarithmic)",
        from: 1.0,
        groups: rows
            .iter()
            .filter(|row| row.threads == threads)
            .map(|row| {
                (
                    row.load.clone(),
                    SHOWN.iter().map(|(limiter, _)| Some(row.ns[*limiter])).collect(),
                )
            })
            .collect(),
    });
    let series = SHOWN.map(|(limiter, colour)| (LIMITERS[limiter], colour));
    Chart { series: &series, panels: &panels }.svg()
}

/// As the kernel guesses it.
pub(crate) fn free_memory_kib() -> u64 {
    let words = field("/proc/meminfo", "MemAvailable");
    words.split(' ').next().unwrap().parse().unwrap()
}

fn command(args: &[String]) -> String {
    let mut command = String::from("cargo bench --bench table");
    if !args.is_empty() {
        write!(command, " -- {}", args.join(" ")).unwrap();
    }
    command
}

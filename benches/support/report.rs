//! The table of results, and its place in docs/BENCHMARKS.md.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::thread;

use crate::limiters::{LEGEND, LIMITERS};

pub(crate) const PLOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/bench-table.svg");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/BENCHMARKS.md");
const BEGIN: &str = "<!-- table: begin -->";
const END: &str = "<!-- table: end -->";

const INTRODUCTION: &str = "\
# Benchmarks

All figures are medians, measured on one machine. Yours has others, and a shared one has others each hour: read ratios, not
nanoseconds. Each section names the command that wrote it; run it to see your own.
";

/// The medians of one load.
pub(crate) struct Row {
    pub name: String,
    pub load: String,
    pub threads: usize,
    /// Nanoseconds per decision, of each limiter.
    pub ns: [f64; LIMITERS.len()],
}

/// The section "The table" of the page. It is as legible on a terminal.
pub(crate) fn section(rows: &[Row], left_out: &[String], rounds: usize, args: &[String]) -> String {
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
    writeln!(out, "\n\nBoth ratios are to figures of ours that include the clock.\n\n{LEGEND}").unwrap();
    if !left_out.is_empty() {
        writeln!(out, "Left out: {}.\n", left_out.join("; ")).unwrap();
    }
    section
}

/// Puts the section into the page, between its marks.
pub(crate) fn write(section: &str) {
    let page = fs::read_to_string(PAGE).unwrap_or_else(|_| format!("{INTRODUCTION}\n{BEGIN}\n{END}\n"));
    let (before, rest) = page.split_once(BEGIN).expect("the page has a mark where the section begins");
    let (_, after) = rest.split_once(END).expect("the page has a mark where the section ends");
    fs::write(PAGE, format!("{before}{BEGIN}\n{section}{END}{after}")).unwrap();
}

/// As the kernel guesses it.
pub(crate) fn free_memory_kib() -> u64 {
    let words = field("/proc/meminfo", "MemAvailable");
    words.split(' ').next().unwrap().parse().unwrap()
}

fn machine() -> String {
    let cores = thread::available_parallelism().unwrap();
    let cpu = field("/proc/cpuinfo", "model name");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    // "6.18" of "6.18.44-some-build".
    let kernel = kernel.split(['.', '-']).take(2).collect::<Vec<_>>().join(".");
    let rustc = Command::new("rustc").arg("--version").output().unwrap().stdout;
    format!("{cpu}, {cores} cores, Linux {kernel}, {}", String::from_utf8(rustc).unwrap().trim())
}

fn command(args: &[String]) -> String {
    let mut command = String::from("cargo bench --bench table");
    if !args.is_empty() {
        write!(command, " -- {}", args.join(" ")).unwrap();
    }
    command
}

/// The first `name: value` in a file of /proc.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

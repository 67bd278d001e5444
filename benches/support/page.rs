//! docs/BENCHMARKS.md: each bench writes its own section, between two marks.

use std::fs;
use std::process::Command;
use std::thread;

/// The folder of the page, for its plots.
pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs");

const INTRODUCTION: &str = "\
# Benchmarks

All times are medians, measured on one machine. Yours has others, and a shared one has others each hour: read ratios, not
nanoseconds. Instructions are counted, and differ by one or two from run to run. Each section names the command that wrote it; run it to see your own.
";

/// Puts a section between its marks, or at the end of the page.
pub(crate) fn write(name: &str, section: &str) {
    let path = format!("{FOLDER}/BENCHMARKS.md");
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let mut page = fs::read_to_string(&path).unwrap_or_else(|_| INTRODUCTION.to_owned());
    if !page.contains(&begin) {
        page = format!("{page}\n{begin}\n{end}\n");
    }
    let (before, rest) = page.split_once(&begin).expect("it was put there");
    let (_, after) = rest.split_once(&end).expect("the page has a mark where the section ends");
    fs::write(path, format!("{before}{begin}\n{section}{end}{after}")).unwrap();
}

/// What the figures were measured on.
pub(crate) fn machine() -> String {
    let cores = thread::available_parallelism().unwrap();
    let cpu = field("/proc/cpuinfo", "model name");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    // "6.18" of "6.18.44-some-build".
    let kernel = kernel.split(['.', '-']).take(2).collect::<Vec<_>>().join(".");
    let rustc = Command::new("rustc").arg("--version").output().unwrap().stdout;
    format!("{cpu}, {cores} cores, Linux {kernel}, {}", String::from_utf8(rustc).unwrap().trim())
}

/// The first `name: value` in a file of /proc.
pub(crate) fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

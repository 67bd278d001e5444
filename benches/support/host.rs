//! The machine that figures are measured on.

use std::fs;
use std::process::Command;
use std::thread;

/// CPU, cores, kernel and compiler, as half a sentence.
pub(crate) fn description() -> String {
    let cores = thread::available_parallelism().unwrap();
    let cpu = field("/proc/cpuinfo", "model name");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    // "6.18" of "6.18.44-some-build".
    let kernel = kernel.split(['.', '-']).take(2).collect::<Vec<_>>().join(".");
    let rustc = Command::new("rustc").arg("--version").output().unwrap().stdout;
    let rustc = String::from_utf8(rustc).unwrap();
    // "rustc 1.95.0" of "rustc 1.95.0 (HASH DATE)".
    let rustc = rustc.split(" (").next().unwrap().trim();
    format!("{cpu}, {cores} cores, Linux {kernel}, {rustc}")
}

/// The value of the first `name: value` in a file of /proc.
pub(crate) fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_once(':').unwrap().1.trim().to_owned()
}

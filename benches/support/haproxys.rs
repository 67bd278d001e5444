//! The HAProxys that `make` has fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::asked;
use crate::program::target;
use crate::support;

/// Those to measure: those that `--haproxy` names, else with `--quick` the installed one, else all
/// that are fetched. None if there are none.
pub(crate) fn asked(quick: bool) -> Vec<PathBuf> {
    let named: Vec<_> = asked::values("--haproxy").into_iter().map(PathBuf::from).collect();
    match (named.is_empty(), quick) {
        (false, _) => named,
        (true, true) => vec![support::haproxy_binary()],
        (true, false) => fetched(),
    }
}

/// Their programs, the oldest version first. None if there are none.
fn fetched() -> Vec<PathBuf> {
    let folders = fs::read_dir(target().join("haproxy")).into_iter().flatten().flatten();
    let programs = folders.map(|folder| folder.path().join("haproxy"));
    let mut programs: Vec<_> = programs.filter(|path| path.is_file()).collect();
    programs.sort();
    programs
}

/// The version of an HAProxy, such as "2.6.12".
pub(crate) fn version(binary: &Path) -> String {
    let output = Command::new(binary).arg("-v").output().expect("HAProxy runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = said.split(' ').nth(2).unwrap_or_default();
    version.split('-').next().unwrap_or_default().to_owned()
}

//! The HAProxys that `make` has fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::target;

/// Their programs, the oldest version first. None if there are none.
pub(crate) fn fetched() -> Vec<PathBuf> {
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

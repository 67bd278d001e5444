//! Files in `tests/interfaces` that record what others build on. A test compares them with the
//! program as it is.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// If this variable is set, the files are written anew.
pub const WRITE: &str = "GCRA_WRITE_INTERFACES";

/// The beginning of a title.
pub const TITLE: &str = "==== ";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interfaces").join(name)
}

/// Whether the files are written anew.
pub fn is_writing() -> bool {
    env::var_os(WRITE).is_some()
}

/// The record without the comments at its top.
pub fn recorded(name: &str) -> String {
    let text = fs::read_to_string(path(name)).unwrap_or_default();
    let (_, content) = text.split_once("\n\n").unwrap_or_default();
    content.to_owned()
}

/// The lines of a text, each behind those that it belongs to: the ones above it that are less
/// indented, up to its title.
fn in_context(text: &str) -> Vec<String> {
    let mut above: Vec<(usize, &str)> = Vec::new();
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let indent = match line.starts_with(TITLE) {
            true => 0,
            false => 1 + line.len() - line.trim_start().len(),
        };
        above.retain(|(other, _)| *other < indent);
        above.push((indent, line.trim_start_matches(TITLE).trim().trim_end_matches(':')));
        lines.push(above.iter().map(|(_, line)| *line).collect::<Vec<_>>().join(": "));
    }
    lines
}

/// Compares the record in the file with this name with the content that the program has. Each line
/// of `about` becomes a comment at the top of the file.
///
/// Panics if the two differ, with the changes and the advice.
#[track_caller]
pub fn compare(name: &str, about: &str, content: &str) {
    let content = content.trim_end().to_owned() + "\n";
    if is_writing() {
        let about: String = about.lines().map(|line| format!("# {line}\n")).collect();
        fs::write(path(name), format!("{about}\n{content}")).unwrap();
        return;
    }
    let recorded = recorded(name);
    if recorded == content {
        return;
    }
    let (before, now) = (in_context(&recorded), in_context(&content));
    let only = |these: &[String], sign: char, others: &[String]| {
        let others: BTreeSet<_> = others.iter().collect();
        let these = these.iter().filter(|line| !others.contains(line));
        these.map(|line| format!("  {sign} {line}\n")).collect::<String>()
    };
    let mut changes = only(&before, '-', &now) + &only(&now, '+', &before);
    if changes.is_empty() {
        changes = "  the same lines, in another order, number or indentation\n".to_owned();
    }
    panic!(
        "what others build on has changed. tests/interfaces/{name} (-) and the program (+) \
         differ:\n\n{changes}\n\
         If that is not meant, undo it. If it is meant, read in docs/STABILITY.md when such a \
         change is allowed, write the file anew with\n\n    \
         {WRITE}=1 cargo test --test interfaces\n\n\
         read its diff, and commit it together with the change and an entry in CHANGELOG.md.\n"
    );
}

//! The folder into which `gcra-spoa check --print-haproxy DIR` writes HAProxy's files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use gcra_policy::haproxy::config::{EDIT, HaproxyFile, MAPS};

/// Writes the files, readable for every user, and returns their paths. A map that is there stays,
/// because it has an operator's lines.
///
/// # Errors
///
/// HAProxy cannot name the folder, a file is there and `force` is not given, or cannot be written.
pub(crate) fn write(
    folder: &Path,
    files: &[HaproxyFile],
    force: bool,
) -> anyhow::Result<Vec<PathBuf>> {
    let whole = std::path::absolute(folder)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let Some(name) = whole.to_str().filter(|name| name.chars().all(is_plain)) else {
        bail!(
            "HAProxy's files cannot name the folder {}; use one whose path has only letters, \
             digits, '/', '.', '_' and '-'",
            whole.display()
        );
    };
    let is_kept = |file: &HaproxyFile| file.is_map() && whole.join(&file.name).exists();
    let files: Vec<_> = files.iter().filter(|file| !is_kept(file)).collect();
    let mut there = files.iter().map(|file| whole.join(&file.name)).filter(|path| path.exists());
    if !force && let Some(path) = there.next() {
        bail!(
            "{} exists, and nothing was written; name another folder, or write over it with \
             --force",
            path.display()
        );
    }
    let missing: Vec<_> = whole.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev() {
        let made = fs::create_dir_all(path).and_then(|()| set_mode(path, 0o755));
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
    }
    let mut written = Vec::new();
    for HaproxyFile { name: file, text } in files {
        let path = whole.join(file);
        let text = text.replace(MAPS, &format!("{name}/"));
        put(&path, &text, force).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

/// Puts a file in its place when it is complete, so that HAProxy never reads half of one.
fn put(path: &Path, text: &str, force: bool) -> std::io::Result<()> {
    let new = path.with_file_name(".gcra-spoa-new");
    fs::write(&new, text)?;
    set_mode(&new, 0o644)?;
    if force {
        return fs::rename(&new, path);
    }
    // Unlike renaming, this fails if the file has come into being meanwhile.
    let linked = fs::hard_link(&new, path);
    fs::remove_file(&new)?;
    linked
}

fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The places in written files that an operator has to edit, with their lines from 1. Nothing
/// about a file that cannot be read again.
pub(crate) fn places_to_edit(written: &[PathBuf]) -> Vec<(&Path, usize)> {
    let mut places = Vec::new();
    for path in written {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = (1..).zip(text.lines()).filter(|(_, line)| line.contains(EDIT));
        places.extend(lines.map(|(number, _)| (&**path, number)));
    }
    places
}

//! `gcra-spoa check`: what a configuration file means, or what is wrong with it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::bail;
use gcra_policy::Policies;
use gcra_policy::begin_anew::begin_anew;
use gcra_policy::file::document;
use gcra_policy::haproxy::config::{EDIT, HaproxyFile};
use gcra_policy::secrets::Readers;
use gcra_text::config_note::ConfigNote;
use gcra_text::count::Count;
use gcra_text::output::{
    Mistakes, Output, WrongUsage, print, print_note, print_warnings, write_stdout,
};
use gcra_text::visible::{Visible, visible_lines};
use serde_json::{Value, json};

use crate::flags::ConfigFile;
use crate::haproxy_folder;

/// The name of standard input.
const STDIN: &str = "-";

/// Which file to check, and what to print of it.
#[derive(Debug, clap::Args)]
pub struct Check {
    #[command(flatten)]
    pub config: ConfigFile,
    /// The folder of files that the configuration names by relative paths [default: that of the
    /// file; of standard input, which '-' means, the current one]
    #[arg(long, value_name = "DIR")]
    pub relative_to: Option<PathBuf>,
    /// Print the mistakes and warnings in JSON, one a line with its file, line and setting, and at
    /// the end how many there are
    #[arg(long, conflicts_with = "print_haproxy")]
    pub json: bool,
    /// Say which clients begin with no debts when the file takes the place of this one
    #[arg(long, value_name = "OLD", conflicts_with = "print_haproxy")]
    pub against: Option<PathBuf>,
    /// Print HAProxy's files, or write them into DIR. FILE stands in front of this flag. Replace
    /// each EDIT-THIS in the files
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    pub print_haproxy: Option<Option<PathBuf>>,
    /// With --print-haproxy: a HAProxy that decides itself, by the module for its Lua
    #[arg(long, requires = "print_haproxy")]
    pub in_process: bool,
    /// With --print-haproxy DIR: write over haproxy.cfg and spoe-gcra.conf in DIR. A map that is
    /// there stays
    #[arg(long, requires = "print_haproxy")]
    pub force: bool,
}

/// Reads the file and prints what is wanted of it.
///
/// # Errors
///
/// The mistakes in the file, a policy about which HAProxy cannot decide itself, or standard output
/// cannot be written to.
pub fn run(check: Check) -> anyhow::Result<ExitCode> {
    let Check { config, relative_to, json, against, print_haproxy, in_process, force } = check;
    let config = config.path();
    if let Some(folder) = relative_to.as_ref().filter(|folder| !folder.is_dir()) {
        bail!(WrongUsage(format!(
            "--relative-to names {}, which is not a folder; name the one that the files are \
             relative to",
            folder.display()
        )));
    }
    let read = read(&config, relative_to.as_deref());
    if json {
        return in_json(read, against.as_deref());
    }
    let policies = read.map_err(Mistakes)?;
    print_warnings(&policies.warnings);
    if let Some(old) = against {
        let anew = begin_anew(&old_file(&old).map_err(Mistakes)?, &policies);
        anew.iter().for_each(|anew| print_note(anew));
        if anew.is_empty() {
            print_note("every client goes on owing what it owes");
        }
    }
    let of_store = match &policies.store {
        None => String::new(),
        Some(_) => format!(
            "the store was not asked: 'gcra-spoa store check --config {}' does that\n",
            config.display()
        ),
    };
    if let Some(folder) = print_haproxy {
        let files = if in_process {
            // HAProxy may be started elsewhere.
            let file = std::path::absolute(&config).unwrap_or(config);
            policies.for_haproxy_in_process(&file).map_err(|why| Mistakes(vec![why.into()]))?
        } else {
            policies.for_haproxy()
        };
        return for_haproxy(folder.as_deref(), &files, force);
    }
    let text = visible_lines(&format!(
        "{}\n{of_store}{} is valid: {}, {}\n",
        policies.in_words(SystemTime::now()),
        config.display(),
        Count(policies.without_trials().count() as u64, "policy", "policies"),
        Count(policies.warning_count as u64, "warning", "warnings")
    ));
    write_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the files for HAProxy, or writes them into a folder and prints which.
fn for_haproxy(
    folder: Option<&Path>,
    files: &[HaproxyFile],
    force: bool,
) -> anyhow::Result<ExitCode> {
    let Some(folder) = folder else {
        if force {
            bail!(WrongUsage("--force needs a folder: --print-haproxy DIR".to_owned()));
        }
        for HaproxyFile { name, text } in files.iter().filter(|file| !file.is_map()) {
            write_stdout(&format!("# ---- {name}\n{text}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let written = haproxy_folder::write(folder, files, force)?;
    for path in &written {
        write_stdout(&format!("{}\n", Visible(&path.display().to_string())))?;
    }
    for (path, line) in haproxy_folder::places_to_edit(&written) {
        print_note(&format!(
            "{}:{line}: write what belongs in the place of {EDIT}; until then 'haproxy -c' \
             refuses the file",
            path.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the file, or standard input. The error has a sentence for each mistake.
fn read(config: &Path, folder: Option<&Path>) -> Result<Policies, Vec<ConfigNote>> {
    let is_stdin = config == Path::new(STDIN);
    let Some(folder) = folder.or(is_stdin.then_some(Path::new(""))) else {
        return document::read(config, Readers::OfFile);
    };
    let text = match is_stdin {
        true => document::read_text_from(io::stdin()),
        false => document::read_text_of(config),
    };
    let cannot = |error| vec![document::cannot_read(config, &error)];
    document::parse_in(folder, config, &text.map_err(cannot)?)
}

fn old_file(old: &Path) -> Result<Policies, Vec<ConfigNote>> {
    document::read(old, Readers::OfFile)
}

/// Prints what is wrong with a file in JSON.
fn in_json(
    read: Result<Policies, Vec<ConfigNote>>,
    against: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let (mut notes, mut mistakes, mut policies) = (Vec::new(), Vec::new(), None);
    match read {
        Ok(read) => policies = Some(read),
        Err(found) => mistakes.extend(found),
    }
    // The old file has many of the mistakes of the new one, and is of use only beside a valid one.
    if let (Some(new), Some(old)) = (&policies, against) {
        match old_file(old) {
            Ok(old) => notes = begin_anew(&old, new).into_iter().map(ConfigNote::from).collect(),
            Err(found) => mistakes.extend(found),
        }
    }
    let warnings = policies.as_ref().map(|it| &*it.warnings).unwrap_or_default();
    let all = [("mistake", &mistakes[..]), ("warning", warnings), ("note", &notes)];
    let each = all.iter().flat_map(|(kind, list)| list.iter().map(move |it| (*kind, it)));
    let mut outputs: Vec<_> = each.map(|(kind, note)| finding(kind, note)).collect();
    outputs.push(json!({
        "valid": mistakes.is_empty(),
        "policies": policies.as_ref().map(|policies| policies.without_trials().count()),
        "mistakes": mistakes.len(),
        "warnings": policies.as_ref().map_or(0, |policies| policies.warning_count),
    }));
    print(true, outputs.into_iter().map(|json| Output { words: String::new(), json }))?;
    Ok(if mistakes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn finding(kind: &str, note: &ConfigNote) -> Value {
    json!({
        "kind": kind,
        "file": note.file.as_ref().map(|file| file.to_string_lossy()),
        "line": note.line,
        "setting": note.setting,
        "text": note.text(),
        "right": note.right,
    })
}

//! The output of a command: an answer in words or in JSON on standard output, mistakes on standard
//! error.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::Value;

use crate::config_note::ConfigNote;
use crate::sentence::Sentence;
use crate::visible::{Visible, escaped_json, visible_lines};

/// One answer in both forms.
pub struct Output {
    pub words: String,
    pub json: Value,
}

/// A command line asks for something that cannot be done, and another one can: the sentence says
/// which. The exit status is 2.
#[derive(Debug)]
pub struct WrongUsage(pub String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for WrongUsage {}

impl From<Sentence> for WrongUsage {
    fn from(sentence: Sentence) -> Self {
        Self(sentence.into())
    }
}

/// The mistakes in a configuration, one a line. The exit status is 1.
#[derive(Debug)]
pub struct Mistakes(pub Vec<ConfigNote>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&lines(&self.0))
    }
}

impl Error for Mistakes {}

/// The sentences, one a line.
pub fn lines(notes: &[ConfigNote]) -> String {
    notes.iter().map(|note| &**note).collect::<Vec<_>>().join("\n")
}

/// Prints why a command failed on standard error. Returns the exit status for it.
pub fn print_error(error: &anyhow::Error) -> ExitCode {
    if let Some(Mistakes(mistakes)) = error.downcast_ref() {
        return print_mistakes(mistakes);
    }
    complain(&format!("{error:#}"));
    match error.downcast_ref() {
        Some(WrongUsage(_)) => ExitCode::from(2),
        None => ExitCode::FAILURE,
    }
}

/// Prints each answer on lines of its own. The errors are those of [`write_stdout`].
pub fn print(as_json: bool, outputs: impl IntoIterator<Item = Output>) -> anyhow::Result<()> {
    for Output { words, json } in outputs {
        let text = if as_json { escaped_json(&json.to_string()) } else { visible_lines(&words) };
        write_stdout(&format!("{text}\n"))?;
    }
    Ok(())
}

/// Writes text to standard output. A reader that has closed its end is not an error.
pub fn write_stdout(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // 'gcra-spoa table info | head -1' has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("could not write to standard output"),
    }
}

/// Prints the mistakes of a configuration on standard error, one a line. Returns the exit status
/// for it.
pub fn print_mistakes(mistakes: &[ConfigNote]) -> ExitCode {
    mistakes.iter().for_each(|mistake| complain(mistake));
    ExitCode::FAILURE
}

/// Prints the warnings about a configuration on standard error, one a line.
pub fn print_warnings(warnings: &[ConfigNote]) {
    warnings.iter().for_each(|warning| complain(warning));
}

/// Prints what is to be known beside an answer on standard error.
pub fn print_note(note: &str) {
    complain(&format!("note: {note}"));
}

/// Prints a sentence on standard error.
pub fn complain(sentence: &str) {
    eprintln!("gcra-spoa: {}", Visible(sentence));
}

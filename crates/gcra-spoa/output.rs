//! What a command prints: an answer in words or in JSON on standard output, mistakes on standard
//! error.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::Value;

/// One answer in both forms.
pub(crate) struct Output {
    pub(crate) words: String,
    pub(crate) json: Value,
}

/// What a command line asks for cannot be done, and another command line can: the sentence says
/// which. The exit status is 2.
#[derive(Debug)]
pub(crate) struct WrongUsage(pub(crate) String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for WrongUsage {}

/// The mistakes in a configuration, one a line. The exit status is 1.
#[derive(Debug)]
pub(crate) struct Mistakes(pub(crate) Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Error for Mistakes {}

/// Prints why a command failed on standard error. Returns the exit status for it.
pub(crate) fn print_error(error: &anyhow::Error) -> ExitCode {
    if let Some(Mistakes(mistakes)) = error.downcast_ref() {
        return print_mistakes(mistakes);
    }
    eprintln!("gcra-spoa: {error:#}");
    match error.downcast_ref() {
        Some(WrongUsage(_)) => ExitCode::from(2),
        None => ExitCode::FAILURE,
    }
}

/// A word for a shell. Control characters, which would not be seen, are escaped as bash reads
/// them.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:/,@%+=-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if !text.contains(char::is_control) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let escaped = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("$'{}'", text.chars().map(escaped).collect::<String>())
}

/// Prints each answer on lines of its own.
///
/// # Errors
///
/// Standard output cannot be written to. A reader that has closed its end is not an error.
pub(crate) fn print(
    as_json: bool,
    outputs: impl IntoIterator<Item = Output>,
) -> anyhow::Result<()> {
    for Output { words, json } in outputs {
        if as_json {
            write_stdout(&format!("{json}\n"))?;
        } else {
            write_stdout(&format!("{words}\n"))?;
        }
    }
    Ok(())
}

/// Writes text to standard output.
///
/// # Errors
///
/// As for [`print()`].
pub(crate) fn write_stdout(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // 'gcra-spoa table info | head -1' has read enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("could not write to standard output"),
    }
}

/// Prints the mistakes of a configuration on standard error, one a line. Returns the exit status
/// for it.
pub(crate) fn print_mistakes(mistakes: &[String]) -> ExitCode {
    mistakes.iter().for_each(|mistake| eprintln!("gcra-spoa: {mistake}"));
    ExitCode::FAILURE
}

/// Prints the warnings about a configuration on standard error, one a line.
pub(crate) fn print_warnings(warnings: &[String]) {
    warnings.iter().for_each(|warning| eprintln!("gcra-spoa: {warning}"));
}

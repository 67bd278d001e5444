//! `gcra-spoa check`: what a configuration file means, or what is wrong with it.

use std::path::Path;
use std::process::ExitCode;

use gcra_policy::file::document;
use gcra_policy::secrets::Readers;
use gcra_text::count::Count;
use gcra_text::output::{print_mistakes, print_warnings, write_stdout};
use gcra_text::visible::visible_lines;

/// Reads the file and prints what it means, or a HAProxy configuration that fits it.
///
/// # Errors
///
/// Standard output cannot be written to. A mistake in the file is not an error here, but the exit
/// status.
pub fn run(config: &Path, print_haproxy: bool) -> anyhow::Result<ExitCode> {
    let policies = match document::read(config, Readers::OfFile) {
        Ok(policies) => policies,
        Err(mistakes) => return Ok(print_mistakes(&mistakes)),
    };
    print_warnings(&policies.warnings);
    let of_store = match &policies.store {
        None => String::new(),
        Some(_) => format!(
            "the store was not asked: 'gcra-spoa store check --config {}' does that\n",
            config.display()
        ),
    };
    let text = if print_haproxy {
        policies.for_haproxy()
    } else {
        visible_lines(&format!(
            "{}\n{of_store}{} is valid: {}, {}\n",
            policies.in_words(),
            config.display(),
            Count(policies.without_trials().count() as u64, "policy", "policies"),
            Count(policies.warning_count as u64, "warning", "warnings")
        ))
    };
    write_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

//! `gcra-spoa check`: what a configuration file means, or what is wrong with it.

use std::path::Path;
use std::process::ExitCode;

use gcra_policy::file::document;
use gcra_policy::secrets::Readers;
use gcra_text::count::Count;
use gcra_text::output::{Mistakes, print_warnings, write_stdout};
use gcra_text::visible::visible_lines;

/// What is printed of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Printed {
    /// What it means.
    Meaning,
    /// A HAProxy configuration that fits it.
    Haproxy,
    /// One with which HAProxy asks less often.
    HaproxyThatAsksLess,
}

/// Reads the file and prints what is wanted of it.
///
/// # Errors
///
/// The mistakes in the file, a policy about which HAProxy cannot ask less, or standard output
/// cannot be written to.
pub fn run(config: &Path, printed: Printed) -> anyhow::Result<ExitCode> {
    let policies = document::read(config, Readers::OfFile).map_err(Mistakes)?;
    print_warnings(&policies.warnings);
    let of_store = match &policies.store {
        None => String::new(),
        Some(_) => format!(
            "the store was not asked: 'gcra-spoa store check --config {}' does that\n",
            config.display()
        ),
    };
    let text = match printed {
        Printed::Haproxy => policies.for_haproxy(),
        Printed::HaproxyThatAsksLess => {
            policies.for_haproxy_that_asks_less().map_err(|why| Mistakes(vec![why]))?
        }
        Printed::Meaning => visible_lines(&format!(
            "{}\n{of_store}{} is valid: {}, {}\n",
            policies.in_words(),
            config.display(),
            Count(policies.without_trials().count() as u64, "policy", "policies"),
            Count(policies.warning_count as u64, "warning", "warnings")
        )),
    };
    write_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

//! `gcra-spoa check`: what a configuration file means, or what is wrong with it.

use std::process::ExitCode;
use std::time::SystemTime;

use gcra_policy::file::document;
use gcra_policy::secrets::Readers;
use gcra_text::count::Count;
use gcra_text::output::{Mistakes, print_warnings, write_stdout};
use gcra_text::visible::visible_lines;

use crate::flags::ConfigFile;

/// Which file to check, and what to print of it.
#[derive(Debug, clap::Args)]
pub struct Check {
    #[command(flatten)]
    pub config: ConfigFile,
    /// Print a HAProxy configuration that fits the file, instead of what it means. What you have
    /// to replace in it is EDIT-THIS
    #[arg(long)]
    pub print_haproxy: bool,
    /// With --print-haproxy: whole files with which HAProxy asks about few requests, and still no
    /// request too many passes. They say what that costs
    #[arg(long, requires = "print_haproxy")]
    pub ask_less: bool,
}

/// Reads the file and prints what is wanted of it.
///
/// # Errors
///
/// The mistakes in the file, a policy about which HAProxy cannot ask less, or standard output
/// cannot be written to.
pub fn run(check: Check) -> anyhow::Result<ExitCode> {
    let Check { config, print_haproxy, ask_less } = check;
    let config = config.path();
    let policies = document::read(&config, Readers::OfFile).map_err(Mistakes)?;
    print_warnings(&policies.warnings);
    let of_store = match &policies.store {
        None => String::new(),
        Some(_) => format!(
            "the store was not asked: 'gcra-spoa store check --config {}' does that\n",
            config.display()
        ),
    };
    let text = if ask_less {
        policies.for_haproxy_that_asks_less().map_err(|why| Mistakes(vec![why]))?
    } else if print_haproxy {
        policies.for_haproxy()
    } else {
        visible_lines(&format!(
            "{}\n{of_store}{} is valid: {}, {}\n",
            policies.in_words(SystemTime::now()),
            config.display(),
            Count(policies.without_trials().count() as u64, "policy", "policies"),
            Count(policies.warning_count as u64, "warning", "warnings")
        ))
    };
    write_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

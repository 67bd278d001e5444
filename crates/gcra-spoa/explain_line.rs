//! `gcra-spoa explain -`: explains a line of HAProxy's log.

use std::io::{self, Read as _};
use std::process::ExitCode;

use anyhow::Context as _;
use gcra_inspect::commands::explain::{self, Explain};
use gcra_inspect::inspected_table::Inspected;
use gcra_replay::log_line::LogLine;
use gcra_text::output::{Output, WrongUsage, print};

/// The longest text that is read from standard input.
const LONGEST: u64 = 1 << 20;

/// Says what the line on standard input says about its request, and explains what would be decided
/// about the same now.
///
/// # Errors
///
/// The line cannot be read, or the table cannot be used.
pub(crate) fn run(mut explain: Explain) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    let read = io::stdin().take(LONGEST).read_to_end(&mut text);
    read.context("could not read standard input")?;
    let line = LogLine::read(&text).map_err(WrongUsage)?;
    let LogLine { words, json, .. } = &line;
    print(explain.at.json, [Output { words: words.clone(), json: json.clone() }])?;
    let config = explain.config.as_deref();
    let inspected = Inspected::open(explain.at.path(), config, "gcra-spoa explain")?;
    let policies = &inspected.in_force.policies;
    let messages = line.messages(policies, explain.message.as_deref()).map_err(WrongUsage)?;
    let mut status = ExitCode::FAILURE;
    for message in messages {
        (explain.message, explain.args) = (message.name, message.args);
        let explained = explain::run(&explain)?;
        if explained == ExitCode::SUCCESS {
            status = explained;
        }
    }
    Ok(status)
}

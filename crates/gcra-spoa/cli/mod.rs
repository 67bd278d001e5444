//! The command line: every flag and command, checked and turned into values.

mod args;
mod config;
mod mistakes;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use gcra_text::output::complain;

pub(crate) use self::args::Command;
use self::args::CommandLine;
pub(crate) use self::config::AgentConfig;
use self::mistakes::in_one_sentence;

/// The task that the command line asks for.
pub(crate) enum Task {
    Serve(Box<AgentConfig>),
    Run(Box<Command>),
}

/// The command line, with its help.
pub(crate) fn command() -> clap::Command {
    CommandLine::command()
}

/// Parses the command line. Prints the help that was asked for, or what is wrong, and then returns
/// the exit status as the error.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Task, ExitCode> {
    let args = with_flags_for_words(args.into_iter().collect());
    let parse =
        || CommandLine::from_arg_matches(&CommandLine::command().try_get_matches_from(&args)?);
    let parsed = parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // If standard output is closed, no one reads the help.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => usage_error(&in_one_sentence(&error, &CommandLine::command(), &args)),
    })?;
    match parsed.command {
        Some(command) => Ok(Task::Run(command.into())),
        None => AgentConfig::from_args(parsed)
            .map(|config| Task::Serve(config.into()))
            .map_err(|error| usage_error(&error)),
    }
}

/// The arguments with `--help` for the word `help` where a command can stand, and `--version` for
/// `version`.
fn with_flags_for_words(mut args: Vec<OsString>) -> Vec<OsString> {
    let mut command = &CommandLine::command();
    let is_command = |arg: &&OsString| match command.find_subcommand(arg) {
        Some(inner) => {
            command = inner;
            true
        }
        None => false,
    };
    let place = 1 + args.iter().skip(1).take_while(is_command).count();
    let has_commands = command.has_subcommands();
    match args.get(place) {
        Some(word) if word == "help" && has_commands => {
            args.remove(place);
            args.push("--help".into());
        }
        Some(word) if word == "version" && args.len() == 2 => args[1] = "--version".into(),
        _ => {}
    }
    args
}

fn usage_error(sentence: &str) -> ExitCode {
    complain(sentence);
    ExitCode::from(2)
}

//! The command line: every flag and command, checked and turned into values.

mod args;
mod config;
mod mistakes;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use gcra_admin::top::command::Top;
use gcra_inspect::commands::audit::Audit;
use gcra_inspect::commands::check::Printed;
use gcra_inspect::commands::exempt::Exempt;
use gcra_inspect::commands::explain::Explain;
use gcra_inspect::commands::name::NameArgs;
use gcra_inspect::commands::store::{SettingsFrom, StoreCommand};
use gcra_inspect::commands::table::TableCommand;
use gcra_inspect::flags::At;
use gcra_replay::args::Replay;
use gcra_text::output::complain;

use self::args::{Command, CommandLine};
pub(crate) use self::config::AgentConfig;
use self::mistakes::in_one_sentence;

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Task {
    /// To run an agent.
    Serve(Box<AgentConfig>),
    /// To inspect or change a table.
    Table(TableCommand),
    /// To check a configuration file, or print one for HAProxy.
    Check { config: PathBuf, printed: Printed },
    /// To ask agents to read their configuration again.
    Reload { config: PathBuf, at: At },
    /// To watch agents.
    Top(Top),
    /// To say what is decided about a client.
    Explain(Explain),
    /// To allow a client everything for a while.
    Exempt(Exempt),
    /// To name a client as logs do.
    Name(NameArgs),
    /// To look at a store.
    StoreCheck { store: SettingsFrom, json: bool },
    /// To check what agents have allowed.
    Audit(Audit),
    /// To say what limits would have done.
    Replay(Box<Replay>),
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
        Some(Command::Table(command)) => Ok(Task::Table(command)),
        Some(Command::Check { config, print_haproxy, ask_less }) => {
            let printed = match (print_haproxy, ask_less) {
                (false, _) => Printed::Meaning,
                (true, false) => Printed::Haproxy,
                (true, true) => Printed::HaproxyThatAsksLess,
            };
            Ok(Task::Check { config: config.path(), printed })
        }
        Some(Command::Reload { config, at }) => Ok(Task::Reload { config: config.path(), at }),
        Some(Command::Top(top)) => Ok(Task::Top(top)),
        Some(Command::Explain(explain)) => Ok(Task::Explain(explain)),
        Some(Command::Exempt(exempt)) => Ok(Task::Exempt(exempt)),
        Some(Command::Name(name)) => Ok(Task::Name(name)),
        Some(Command::Store(StoreCommand::Check(check))) => {
            let json = check.json;
            let store = check.source().map_err(|error| usage_error(&error))?;
            Ok(Task::StoreCheck { store, json })
        }
        Some(Command::Audit(audit)) => Ok(Task::Audit(audit)),
        Some(Command::Replay(replay)) => Ok(Task::Replay(Box::new(replay))),
        None => AgentConfig::from_args(parsed)
            .map(|config| Task::Serve(Box::new(config)))
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

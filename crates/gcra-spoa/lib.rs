//! The daemon as a library, for the program, and for the tests, benches and fuzz targets of this
//! repository. It is not published: authors of other agents use `spop-agent`.
//!
//! `README.md` beside this file says where to look.

mod cli;
mod explain_line;
mod housekeeping;
mod logging;
mod serve;
mod service_manager;
mod sighup;
#[doc(hidden)]
pub mod testing;

use std::process::ExitCode;

use gcra_inspect::commands::store::StoreCommand;
use gcra_inspect::commands::{audit, check, explain, name, order, reload, store, table};
use gcra_table::board::OrderKind;
use gcra_text::output;

use crate::cli::{Command, Task};
use crate::serve::serve;

/// Runs the program: reads the command line, does what it asks for, and returns the exit status.
pub fn run() -> ExitCode {
    sighup::hold();
    logging::start();
    let task = cli::parse(std::env::args_os());
    // An agent does this as soon as it can handle the signal.
    if !matches!(task, Ok(Task::Serve(_))) {
        sighup::release();
    }
    let outcome = match task {
        Ok(Task::Serve(config)) => serve(*config),
        Ok(Task::Run(command)) => match *command {
            Command::Table(command) => table::run(command),
            Command::Check(check) => check::run(check),
            Command::Reload { config, at } => reload::run(&config.path(), &at),
            Command::Explain(explain) if explain.is_of_line() => explain_line::run(explain),
            Command::Explain(explain) => explain::run(&explain),
            Command::Exempt(args) => order::run(OrderKind::Exempt, &args),
            Command::Block(args) => order::run(OrderKind::Block, &args),
            Command::Name(name) => name::run(&name),
            Command::Store(StoreCommand::Check(check)) => store::run(check),
            Command::Audit(audit) => audit::run(&audit),
            Command::Replay(replay) => gcra_replay::command::run(&replay),
            Command::Blocked(blocked) => gcra_replay::blocked::command::run(&blocked),
            Command::Top(top) => gcra_admin::top::command::run(&top).map(|()| ExitCode::SUCCESS),
        },
        Err(exit) => return exit,
    };
    outcome.unwrap_or_else(|error| output::print_error(&error))
}

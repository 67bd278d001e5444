//! The daemon as a library, for the program, and for the tests, benches and fuzz targets of this
//! repository. It is not published: authors of other agents use `spop-agent`.
//!
//! `README.md` beside this file lists the modules in reading order.

mod cli;
mod hangup;
mod housekeeping;
mod logging;
mod serve;
mod service_manager;
#[doc(hidden)]
pub mod testing;

use std::process::ExitCode;

use gcra_inspect::commands::{audit, check, exempt, explain, name, reload, store, table};
use gcra_text::output;

use crate::cli::Task;
use crate::serve::serve;

/// Runs the program: reads the command line, does what it asks for, and returns the exit status.
pub fn run() -> ExitCode {
    hangup::hold();
    logging::start();
    let task = cli::parse(std::env::args_os());
    // An agent does this as soon as it can handle the signal.
    if !matches!(task, Ok(Task::Serve(_))) {
        hangup::release();
    }
    let outcome = match task {
        Ok(Task::Serve(config)) => serve(*config),
        Ok(Task::Table(command)) => table::run(command),
        Ok(Task::Check { config, printed }) => check::run(&config, printed),
        Ok(Task::Reload { config, at }) => reload::run(&config, &at),
        Ok(Task::Explain(explain)) => explain::run(&explain),
        Ok(Task::Exempt(exempt)) => exempt::run(&exempt),
        Ok(Task::Name(name)) => name::run(&name),
        Ok(Task::StoreCheck { store, json }) => store::run(store, json),
        Ok(Task::Audit(audit)) => audit::run(&audit),
        Ok(Task::Replay(command)) => gcra_replay::command::run(&command),
        Ok(Task::Top(what)) => gcra_admin::top::command::run(&what).map(|()| ExitCode::SUCCESS),
        Err(exit) => return exit,
    };
    match outcome {
        Ok(exit) => exit,
        Err(error) => output::print_error(&error),
    }
}

//! The parts of the daemon's inside that the tests, benches and fuzz targets of this repository
//! use. They may change or go at any time.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
pub use gcra_admin::testing::Admin;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::decide::in_process::InProcess;
use gcra_limiter::limiter::Limiter;
use gcra_limiter::stats;
pub use gcra_limiter::testing::{RequestCounts, WorkerLane};
use gcra_policy::file::document;
use gcra_policy::secrets::Readers;
use gcra_table::{Slots, Table};
use gcra_text::config_note::ConfigNote;
use spop_agent::{Agent, Handler, Limits};

use crate::cli::{self, Task};

/// Reads a configuration, as if it stood in the file at `path`. Returns what `check` prints about
/// it: what it means, and a HAProxy configuration that fits.
///
/// # Errors
///
/// Each mistake, as `FILE:LINE: what is wrong`.
pub fn read_config(path: &Path, text: &str) -> Result<[String; 2], Vec<String>> {
    let sentences = |mistakes: Vec<ConfigNote>| mistakes.iter().map(ToString::to_string).collect();
    let policies = document::parse(path, text).map_err::<Vec<_>, _>(sentences)?;
    let haproxy = policies.for_haproxy().into_iter().map(|file| file.text).collect();
    Ok([policies.in_words(SystemTime::now()), haproxy])
}

/// The command line, for the documents about it.
#[must_use]
pub fn command() -> clap::Command {
    cli::command()
}

/// An agent with the daemon's limiter, by the flags of a command line, on a table in memory.
///
/// `None` when the flags are not those of an agent, or there is no memory for the table.
#[must_use]
pub fn limiter(flags: &[&str], table: Slots) -> Option<Agent<impl Handler>> {
    let args = ["gcra-spoa"].iter().chain(flags).map(Into::into);
    let Ok(Task::Serve(config)) = cli::parse(args) else { return None };
    let table = Table::in_memory(table).ok()?;
    let (policies, _) = config.policies.read(Readers::OfFile).ok()?;
    let limits = match policies.answers.others[..] {
        [] => Limiter::limits_for_blocked_only(&policies.answers),
        _ => Limits::default(),
    };
    let stats = stats::Stats::new(config.flags.threads);
    let policies =
        Arc::new(ArcSwap::from_pointee(ActivePolicies::at_start(policies, &stats, &table)));
    let limiter = Limiter::new(Arc::new(ArcSwap::from_pointee(table)), policies);
    Some(limiter.into_agent().limits(limits))
}

/// As [`limiter`], for requests of the calling process.
#[must_use]
pub fn in_process(flags: &[&str], table: Slots) -> Option<InProcess> {
    let args = ["gcra-spoa"].iter().chain(flags).map(Into::into);
    let Ok(Task::Serve(config)) = cli::parse(args) else { return None };
    let table = Table::in_memory(table).ok()?;
    let (policies, _) = config.policies.read(Readers::OfFile).ok()?;
    let stats = stats::Stats::new(config.flags.threads);
    let in_force = ActivePolicies::at_start(policies, &stats, &table);
    Some(InProcess {
        table: Arc::new(ArcSwap::from_pointee(table)),
        in_force: Arc::new(ArcSwap::from_pointee(in_force)),
        undecided: Arc::default(),
    })
}

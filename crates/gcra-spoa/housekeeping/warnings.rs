//! The lines of the log about the table and the workers, when something is wrong with them.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use gcra_admin::agent_view::MAX_SILENCE;
use gcra_admin::agreement::{Agreement, Matter, Report, differing};
use gcra_policy::Policy;
use gcra_table::{Evictions, Name, Table};
use gcra_text::count::Count;

use super::once_per_minute::OncePerMinute;
use super::running::Running;

/// For how many beats a table is in the middle of a resize before the log says so. A resize takes
/// seconds.
const BEATS_OF_RESIZE: u32 = 10;

/// The lines of the log so far.
pub(super) struct Warnings {
    path: PathBuf,
    evictions: Evictions,
    limits: Agreement,
    salts: Agreement,
    /// That the table's name does not lead to it.
    detached: OncePerMinute,
    /// That a resize does not end.
    resizing: OncePerMinute,
    stuck: OncePerMinute,
}

impl Warnings {
    pub(super) fn new(running: &Running, path: PathBuf) -> Self {
        let evictions = running.table.load().evictions();
        let [limits, salts] = [Matter::Limits, Matter::Salt].map(Agreement::about);
        let (detached, resizing, stuck) = Default::default();
        Self { path, evictions, limits, salts, detached, resizing, stuck }
    }

    /// To be called at each beat.
    pub(super) fn beat(&mut self, running: &Running) {
        let table = running.table.load();
        self.check_name(&table);
        self.check_resize(&table);
        self.check_workers(running);
    }

    /// Compares limits and salt with those of the other agents.
    pub(super) fn compare(&mut self, running: &Running) {
        let (in_force, table) = (running.policies.load(), running.table.load());
        let (limits, salt) = (in_force.policies.limits_digest, in_force.policies.salt_digest());
        let others = differing(&table, |profile| profile.limits != limits);
        match self.limits.beat(&others) {
            None => {}
            Some(Report::Differ(said)) => log::warn!("{said}"),
            Some(Report::Agree) => {
                log::info!("all agents of the table have the same limits again");
            }
        }
        running.stats.differing.store(others.len() as u64, Ordering::Relaxed);
        match self.salts.beat(&differing(&table, |profile| profile.salt != salt)) {
            None => {}
            Some(Report::Differ(said)) => log::warn!("{said}"),
            Some(Report::Agree) => log::info!("all agents of the table have the same salt again"),
        }
    }

    /// Warns when the table's file was removed or replaced: agents that start from then on do not
    /// find it.
    fn check_name(&mut self, table: &Table) {
        let what = match table.name() {
            Name::Ours => None,
            Name::Nothing => Some("was removed"),
            Name::AnotherFile => Some("was replaced by another file"),
        };
        if self.detached.due(what.is_some())
            && let Some(what) = what
        {
            log::error!(
                "table {} {what} while it is in use: agents that are started from now on use \
                 another table, and the running ones keep the old one; restart them one after \
                 the other, so that all share one table again",
                self.path.display()
            );
        }
    }

    fn check_resize(&mut self, table: &Table) {
        let beats = self.resizing.due_after(BEATS_OF_RESIZE, table.is_being_resized());
        if let Some(beats) = beats {
            log::warn!(
                "the table has been in the middle of a resize for {} s; if the command was \
                 interrupted, 'gcra-spoa table info --table {}' says how to finish it",
                beats,
                self.path.display()
            );
        }
    }

    /// Warns when another worker than that of the housekeeping is stuck.
    fn check_workers(&mut self, running: &Running) {
        let silent = running.counters.silent();
        if self.stuck.due(silent >= MAX_SILENCE) {
            log::error!(
                "a worker has been stuck for {} s, with all its connections; restart the agent, \
                 unless a service manager does so because of its watchdog",
                silent.as_secs()
            );
        }
    }

    /// Logs which clients were blocked, and whether the table was too small, in the last minute.
    pub(super) fn report(&mut self, running: &Running) {
        let known = running.policies.load().policies.known.clone();
        running.stats.end_minute(&known).iter().for_each(|said| log::info!("{said}"));
        let evictions = running.table.load().evictions();
        let evicted = evictions.evicted_live.saturating_sub(self.evictions.evicted_live);
        if evicted > 0 {
            let forgiven = evictions.forgiven.saturating_sub(self.evictions.forgiven);
            // By the limit that gives the highest possible number.
            let policies = running.policies.load();
            let limits = policies.policies.without_trials().flat_map(Policy::limits);
            let cells = limits.map(|limit| match limit.rate() {
                Some(rate) => forgiven.div_ceil(rate.emission_interval()),
                None => evicted.saturating_mul(limit.burst().into()),
            });
            let cells = cells.max().unwrap_or(0);
            log::warn!(
                "the table is too small: {} that owed something {} evicted, so up to {} too many \
                 may be allowed; give the table more slots with 'gcra-spoa table resize'",
                Count(evicted, "bucket", "buckets"),
                if evicted == 1 { "was" } else { "were" },
                Count(cells, "request", "requests")
            );
        }
        self.evictions = evictions;
    }
}

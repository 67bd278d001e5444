//! What happens beside the requests: the table's heartbeat, warnings, and the signals that end the agent.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use gcra_table::{Evictions, Table};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::limiter::{InForce, Unclear};
use crate::policy::{self, Policy};
use crate::stats::Stats;
use crate::watch::Watch;

/// What the housekeeping watches.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) table: Arc<ArcSwap<Table>>,
    pub(crate) policies: Arc<ArcSwap<InForce>>,
    /// Where the policies are from, if not from the command line.
    pub(crate) file: Option<PathBuf>,
    /// Whether it is read again when it changes.
    pub(crate) watches: bool,
    pub(crate) unclear: Arc<Unclear>,
    pub(crate) stats: Arc<Stats>,
}

/// Warnings of one kind come at most this often.
const BEATS_PER_REPORT: u32 = 60;

impl Housekeeping {
    /// Keeps the house until SIGTERM, SIGINT or SIGUSR1. From then on the agent drains.
    pub(crate) async fn until_stopped(self) {
        self.keep().await;
        self.stats.drain();
    }

    async fn keep(&self) {
        let mut stop = std::pin::pin!(stop_signal());
        let mut reload = match signal(SignalKind::hangup()) {
            Ok(signal) => signal,
            Err(error) => return log::error!("could not wait for signals, so stopping: {error}"),
        };
        let mut beat = interval(Duration::from_secs(1));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported =
            Reported { evictions: self.table.load().evictions(), undecided: 0, unmatched: 0, lost_beats: 0 };
        let mut beats = 0_u32;
        let mut watch = Watch::default();
        loop {
            tokio::select! {
                stopped = &mut stop => match stopped {
                    Ok(name) => return log::info!("{name} received"),
                    Err(error) => return log::error!("could not wait for signals, so stopping: {error}"),
                },
                _ = reload.recv() => self.reload().await,
                _ = beat.tick() => {
                    self.table.load().beat();
                    self.stats.beat();
                    self.follow(&mut reported);
                    self.forget_old_past();
                    if self.watches && watch.has_changed(self.files()).await {
                        self.reload().await;
                    }
                    if beats.is_multiple_of(BEATS_PER_REPORT) {
                        self.report(&mut reported);
                    }
                    beats = beats.wrapping_add(1);
                }
            }
        }
    }

    /// What the policies in force were read from.
    fn files(&self) -> Vec<PathBuf> {
        let in_force = self.policies.load();
        self.file.iter().chain(&in_force.policies.lists).cloned().collect()
    }

    /// Goes on with the table that a resize has put in the place of ours.
    fn follow(&self, reported: &mut Reported) {
        match self.table.load().successor() {
            Ok(next) => {
                reported.lost_beats = 0;
                if let Some(next) = next {
                    log::info!("the table was resized; it has {} slots now", next.slots().get());
                    self.table.store(next);
                }
            }
            Err(error) => {
                if reported.lost_beats.is_multiple_of(BEATS_PER_REPORT) {
                    log::error!("{error}; keys that have moved to it are denied");
                }
                reported.lost_beats = reported.lost_beats.wrapping_add(1);
            }
        }
    }

    /// Forgets the policies by which no client can owe anything any more.
    fn forget_old_past(&self) {
        let now = self.table.load().now();
        if let Some(shorter) = self.policies.load().without_old_past(&self.stats, now) {
            self.policies.store(Arc::new(shorter));
        }
    }

    /// Says who was blocked and what went wrong since the last report.
    fn report(&self, reported: &mut Reported) {
        if let Some(said) = self.stats.end_minute() {
            log::info!("{said}");
        }
        let Evictions { evicted_live, forgiven_ns } = self.table.load().evictions();
        let evicted = evicted_live.saturating_sub(reported.evictions.evicted_live);
        if evicted > 0 {
            let forgiven_ns = forgiven_ns.saturating_sub(reported.evictions.forgiven_ns);
            // By the fastest of the limits, which is the most that it can be.
            let policies = self.policies.load();
            let limits = policies.policies.list.iter().flat_map(Policy::limits);
            let fastest = limits.map(|limit| limit.quota.emission_interval_ns()).min();
            let cells = fastest.map_or(0, |interval_ns| forgiven_ns.div_ceil(interval_ns));
            log::warn!(
                "the table is too small: {evicted} keys that owed something were forgotten, and up to {cells} requests \
                 may be admitted too many; give it more slots with 'gcra-spoa table resize'"
            );
        }
        reported.evictions = Evictions { evicted_live, forgiven_ns };

        let undecided = self.unclear.undecided.load(Ordering::Relaxed);
        if undecided > reported.undecided {
            let has_cost = self.policies.load().policies.list.iter().any(|policy| policy.cost.is_some());
            let or_cost = if has_cost { ", or the arg with the cost is no integer of 0 or more" } else { "" };
            log::warn!(
                "{} messages got no decision, because they lack an arg of the key{or_cost}; compare it with the 'args' line \
                 of the spoe-message",
                undecided - reported.undecided
            );
        }
        reported.undecided = undecided;
        let unmatched = self.unclear.unmatched.load(Ordering::Relaxed);
        if unmatched > reported.unmatched {
            log::warn!(
                "{} messages got no decision, because no policy is for them; compare the names of the spoe-messages with the \
                 policies",
                unmatched - reported.unmatched
            );
        }
        reported.unmatched = unmatched;
    }

    /// Puts what the file says now in force, if there is nothing wrong with it.
    async fn reload(&self) {
        let Some(file) = self.file.clone() else {
            log::warn!("SIGHUP received, and nothing to reload: the limit is from the command line");
            return;
        };
        let name = file.display().to_string();
        // Long lists take a while, and this thread serves connections.
        match tokio::task::spawn_blocking(move || policy::file::read(&file)).await {
            Ok(Ok(policies)) => {
                log::info!("{name} was read again");
                policies.in_words().lines().for_each(|line| log::info!("{line}"));
                let next = self.policies.load().replaced_by(policies, &self.stats, &self.table.load());
                self.policies.store(Arc::new(next));
                self.stats.reloads.ok.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Err(mistakes)) => {
                self.stats.reloads.refused.fetch_add(1, Ordering::Relaxed);
                mistakes.iter().for_each(|mistake| log::error!("{mistake}"));
                log::error!("{name} is not taken; what was in force stays");
            }
            Err(error) => {
                self.stats.reloads.refused.fetch_add(1, Ordering::Relaxed);
                log::error!("{name} could not be read: {error}; what was in force stays");
            }
        }
    }
}

/// What the last report has told.
struct Reported {
    evictions: Evictions,
    undecided: u64,
    unmatched: u64,
    /// Beats since the table's successor could be opened.
    lost_beats: u32,
}

/// Resolves with the name of the signal that asks the agent to stop.
async fn stop_signal() -> io::Result<&'static str> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // HAProxy's signal for a soft stop, which operators know.
    let mut soft_stop = signal(SignalKind::user_defined1())?;
    // Nothing is meant by it, and without a handler it would kill.
    let mut ignored = signal(SignalKind::user_defined2())?;
    let ignore = async {
        ignored.recv().await;
        log::warn!("SIGUSR2 is ignored, now and from now on; SIGTERM stops the agent, SIGHUP reloads");
        std::future::pending::<Infallible>().await
    };
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        _ = soft_stop.recv() => "SIGUSR1",
        never = ignore => match never {},
    })
}

//! What happens beside the requests: the table's heartbeat, warnings, and the signals that end the agent.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use gcra_table::{Evictions, Quota, Table};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::stats::Stats;

/// What the housekeeping watches.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) table: Arc<ArcSwap<Table>>,
    pub(crate) quota: Option<Quota>,
    pub(crate) undecided: Arc<AtomicU64>,
    pub(crate) stats: Arc<Stats>,
    /// Whether messages carry a cost.
    pub(crate) has_cost: bool,
}

/// Warnings of one kind come at most this often.
const BEATS_PER_REPORT: u32 = 60;

impl Housekeeping {
    /// Keeps the house until SIGTERM or SIGINT. From then on the agent drains.
    pub(crate) async fn until_stopped(self) {
        self.keep().await;
        self.stats.drain();
    }

    async fn keep(&self) {
        let mut stop = std::pin::pin!(stop_signal());
        let mut beat = interval(Duration::from_secs(1));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = Reported { evictions: self.table.load().evictions(), undecided: 0, lost_beats: 0 };
        let mut beats = 0_u32;
        loop {
            tokio::select! {
                stopped = &mut stop => match stopped {
                    Ok(name) => return log::info!("{name} received"),
                    Err(error) => return log::error!("could not wait for signals, so stopping: {error}"),
                },
                _ = beat.tick() => {
                    self.table.load().beat();
                    self.stats.beat();
                    self.follow(&mut reported);
                    if beats.is_multiple_of(BEATS_PER_REPORT) {
                        self.report(&mut reported);
                    }
                    beats = beats.wrapping_add(1);
                }
            }
        }
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

    /// Says who was blocked and what went wrong since the last report.
    fn report(&self, reported: &mut Reported) {
        if let Some(said) = self.stats.end_minute() {
            log::info!("{said}");
        }
        let Evictions { evicted_live, forgiven_ns } = self.table.load().evictions();
        let evicted = evicted_live.saturating_sub(reported.evictions.evicted_live);
        if evicted > 0 {
            let forgiven_ns = forgiven_ns.saturating_sub(reported.evictions.forgiven_ns);
            let cells = self.quota.map_or(0, |quota| forgiven_ns.div_ceil(quota.emission_interval_ns()));
            log::warn!(
                "the table is too small: {evicted} keys that owed something were forgotten, and up to {cells} requests \
                 may be admitted too many; give it more slots with 'gcra-spoa table resize'"
            );
        }
        reported.evictions = Evictions { evicted_live, forgiven_ns };

        let undecided = self.undecided.load(Ordering::Relaxed);
        if undecided > reported.undecided {
            let or_cost =
                if self.has_cost { ", or the arg of --cost is no integer of 0 or more" } else { "" };
            log::warn!(
                "{} messages got no decision, because they lack an arg that --key names{or_cost}; compare it with the \
                 'args' line of the spoe-message",
                undecided - reported.undecided
            );
        }
        reported.undecided = undecided;
    }
}

/// What the last report has told.
struct Reported {
    evictions: Evictions,
    undecided: u64,
    /// Beats since the table's successor could be opened.
    lost_beats: u32,
}

/// Resolves with the name of the signal that asks the agent to stop.
async fn stop_signal() -> io::Result<&'static str> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

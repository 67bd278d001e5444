//! What happens beside the requests: the table's heartbeat, warnings, reloads, and the signals
//! that end the agent.
//!
//! Nothing here waits for a file: a thread reads, at most one at a time, and the loop goes on
//! meanwhile.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{io, thread};

use arc_swap::ArcSwap;
use gcra_table::{Evictions, Name, ReloadAnswer, Table};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

use crate::in_force::InForce;
use crate::limiter::Undecided;
use crate::policy::{self, Policy};
use crate::stats::Stats;
use crate::watch::{Seen, Watch, see_all};

/// What the housekeeping watches.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) table: Arc<ArcSwap<Table>>,
    /// The table's name.
    pub(crate) path: PathBuf,
    pub(crate) policies: Arc<ArcSwap<InForce>>,
    /// Where the policies are from, if not from the command line.
    pub(crate) file: Option<PathBuf>,
    /// Whether it is read again when it changes.
    pub(crate) watches: bool,
    pub(crate) undecided: Arc<Undecided>,
    pub(crate) stats: Arc<Stats>,
}

/// How often the table is asked whether a reload is wanted. A beat comes with every fourth look.
const LOOK: Duration = Duration::from_millis(250);
const LOOKS_PER_BEAT: u32 = 4;

/// Warnings of one kind come at most this often.
const BEATS_PER_REPORT: u32 = 60;

/// After so many looks at the table it is said that reading takes long.
const LOOKS_UNTIL_SLOW: u32 = 20;

impl Housekeeping {
    /// Keeps the house until SIGTERM, SIGINT or SIGUSR1. From then on the agent drains, and the
    /// house is still kept, until the runtime ends.
    pub(crate) async fn until_stopped(self) {
        let stats = self.stats.clone();
        let hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return log::error!("could not wait for signals, so stopping: {error}"),
        };
        let house = tokio::spawn(self.keep(hangup));
        tokio::select! {
            stopped = stop_signal() => match stopped {
                Ok(name) => log::info!("{name} received"),
                Err(error) => log::error!("could not wait for signals, so stopping: {error}"),
            },
            // Only a panic ends it.
            _ = house => log::error!("the housekeeping ended, so stopping"),
        }
        stats.drain();
    }

    async fn keep(self, mut hangup: Signal) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported =
            Reported { evictions: self.table.load().evictions(), ..Reported::default() };
        let mut looks = 0_u32;
        let mut watch = Watch::new(self.policies.load().policies.files.clone());
        // What was wrong when the file was read last.
        let mut mistakes = Vec::new();
        let mut work: Option<Work> = None;
        // Whether the file is to be read because of a signal, or because it has changed.
        let mut wanted = false;
        loop {
            tokio::select! {
                _ = hangup.recv() => wanted = true,
                found = finished(&mut work) => {
                    let asked = work.take().and_then(|work| work.asked);
                    let outcome = match found {
                        Ok(Found::Looked(seen)) => {
                            wanted |= watch.take(seen);
                            continue;
                        }
                        Ok(Found::Read(outcome)) => outcome,
                        Err(_) => Err(vec!["no thread could be had to read the configuration".to_owned()]),
                    };
                    let answer = self.take(outcome, &mut mistakes);
                    if answer == ReloadAnswer::InForce {
                        watch.read_again(&self.policies.load().policies.files);
                    }
                    if let Some((table, number)) = asked {
                        table.answer_reload(number, &answer);
                    }
                }
                _ = look.tick() => {
                    // Only here, so that a flood of signals makes no flood of readings.
                    if work.is_none() {
                        let table = self.table.load_full();
                        let asked = table.reload_asked().map(|number| (table, number));
                        if wanted || asked.is_some() {
                            wanted = false;
                            work = self.read(asked);
                        } else if self.watches && looks.is_multiple_of(LOOKS_PER_BEAT) {
                            let files = self.files();
                            work = Some(Work::new(None, move || Found::Looked(see_all(files))));
                        }
                    }
                    if let Some(work) = &mut work {
                        work.looks += 1;
                        if work.looks == LOOKS_UNTIL_SLOW {
                            log::warn!("the configuration has not been read within 5 s; until it is, what was in force stays");
                        }
                    }
                    if looks.is_multiple_of(LOOKS_PER_BEAT) {
                        self.table.load().beat();
                        self.stats.beat();
                        self.follow(&mut reported);
                        self.forget_old_past();
                        self.look_for_the_name(&mut reported);
                    }
                    if looks.is_multiple_of(LOOKS_PER_BEAT * BEATS_PER_REPORT) {
                        self.report(&mut reported);
                    }
                    looks = looks.wrapping_add(1);
                }
            }
        }
    }

    /// Begins to read the configuration, for a process that has asked through the table, if one
    /// has.
    fn read(&self, asked: Option<(Arc<Table>, u64)>) -> Option<Work> {
        let Some(file) = self.file.clone() else {
            log::warn!(
                "a reload was asked for, and there is nothing to reload: the limit is from the command line"
            );
            if let Some((table, number)) = asked {
                table.answer_reload(number, &ReloadAnswer::NothingToReload);
            }
            return None;
        };
        let (in_force, stats, table) =
            (self.policies.clone(), self.stats.clone(), self.table.load_full());
        Some(Work::new(asked, move || {
            Found::Read(policy::file::read(&file).map(|policies| {
                let in_force = in_force.load();
                // Comparing long lists takes a while as well.
                let has_changed = policies.digest != in_force.policies.digest;
                has_changed.then(|| Box::new(in_force.replaced_by(policies, &stats, &table)))
            }))
        }))
    }

    /// What the policies in force were read from.
    fn files(&self) -> Vec<PathBuf> {
        self.policies.load().policies.files.iter().map(|(file, _)| file.clone()).collect()
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
        if let Some(shorter) = self.policies.load().without_old(&self.stats, now) {
            self.policies.store(Arc::new(shorter));
        }
    }

    /// Tells when the table's file was removed or replaced: agents that are started from now on
    /// don't find it.
    fn look_for_the_name(&self, reported: &mut Reported) {
        let what = match self.table.load().name() {
            Name::Ours => {
                reported.detached_beats = 0;
                return;
            }
            Name::Nothing => "was removed",
            Name::AnotherFile => "was replaced by another file",
        };
        if reported.detached_beats.is_multiple_of(BEATS_PER_REPORT) {
            log::error!(
                "table {} {what} while it is in use: agents that are started from now on share another table, and those \
                 that run go on with the old one; restart them one after the other to bring them together",
                self.path.display()
            );
        }
        reported.detached_beats = reported.detached_beats.wrapping_add(1);
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

        let undecided = self.undecided.undecided.load(Ordering::Relaxed);
        if undecided > reported.undecided {
            let has_cost =
                self.policies.load().policies.list.iter().any(|policy| policy.cost.is_some());
            let or_cost = if has_cost {
                ", or the arg with the cost is no integer of 0 or more"
            } else {
                ""
            };
            log::warn!(
                "{} messages got no decision, because they lack an arg of the key{or_cost}; compare it with the 'args' line \
                 of the spoe-message",
                undecided - reported.undecided
            );
        }
        reported.undecided = undecided;
        let unmatched = self.undecided.unmatched.load(Ordering::Relaxed);
        if unmatched > reported.unmatched {
            log::warn!(
                "{} messages got no decision, because no policy is for them; compare the names of the spoe-messages with the \
                 policies",
                unmatched - reported.unmatched
            );
        }
        reported.unmatched = unmatched;
    }

    /// Puts what the file says now in force, if there is nothing wrong with it. What was said
    /// before is not said again.
    fn take(&self, outcome: Outcome, known: &mut Vec<String>) -> ReloadAnswer {
        let name = self.file.as_deref().unwrap_or(Path::new("")).display();
        match outcome {
            Ok(next) => {
                match next {
                    None => log::info!("{name} was read again; it has not changed"),
                    Some(next) => {
                        log::info!("{name} was read again");
                        next.policies.in_words().lines().for_each(|line| log::info!("{line}"));
                        self.policies.store(next.into());
                    }
                }
                known.clear();
                self.stats.reloads.ok.fetch_add(1, Ordering::Relaxed);
                ReloadAnswer::InForce
            }
            Err(mistakes) => {
                self.stats.reloads.refused.fetch_add(1, Ordering::Relaxed);
                let first = mistakes.first().cloned().unwrap_or_default();
                if mistakes == *known {
                    log::error!("{name} has the same mistakes as before; what was in force stays");
                } else {
                    mistakes.iter().for_each(|mistake| log::error!("{mistake}"));
                    log::error!("{name} is not taken; what was in force stays");
                    *known = mistakes;
                }
                ReloadAnswer::Refused(first)
            }
        }
    }
}

/// What a thread does beside the loop, because a file system may take its time.
struct Work {
    found: oneshot::Receiver<Found>,
    /// The table through which it was asked for, and the number of that request.
    asked: Option<(Arc<Table>, u64)>,
    /// How often the table was looked at since it began.
    looks: u32,
}

enum Found {
    Looked(Vec<Seen>),
    Read(Outcome),
}

/// What is to be in force, unless nothing has changed; or the mistakes in the file.
type Outcome = Result<Option<Box<InForce>>, Vec<String>>;

impl Work {
    /// Begins it, on a thread that the end of the process does not wait for.
    fn new(
        asked: Option<(Arc<Table>, u64)>,
        work: impl FnOnce() -> Found + Send + 'static,
    ) -> Self {
        let (done, found) = oneshot::channel();
        // Where there can be no thread, `done` is dropped with the closure, and the loop finds
        // that out. The loop may also have ended before the work is done.
        let begun = thread::Builder::new().name("reader".to_owned()).spawn(move || {
            let _ = done.send(work());
        });
        drop(begun);
        Self { found, asked, looks: 0 }
    }
}

/// Waits for the work that goes on; for ever where there is none.
async fn finished(work: &mut Option<Work>) -> Result<Found, oneshot::error::RecvError> {
    match work {
        Some(work) => (&mut work.found).await,
        None => std::future::pending().await,
    }
}

/// What the last report has told.
#[derive(Default)]
struct Reported {
    evictions: Evictions,
    undecided: u64,
    unmatched: u64,
    /// Beats since the table's successor could be opened.
    lost_beats: u32,
    /// Beats since the table's name led to it.
    detached_beats: u32,
}

/// Resolves with the name of the signal that asks the agent to stop.
async fn stop_signal() -> io::Result<&'static str> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // HAProxy's signal for a soft stop, which operators know.
    let mut soft_stop = signal(SignalKind::user_defined1())?;
    // Nothing is meant by it, and without a handler it would kill.
    let mut ignored = signal(SignalKind::user_defined2())?;
    let ignore = async {
        ignored.recv().await;
        log::warn!(
            "SIGUSR2 is ignored, now and from now on; SIGTERM stops the agent, SIGHUP reloads"
        );
        std::future::pending::<Infallible>().await
    };
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        _ = soft_stop.recv() => "SIGUSR1",
        never = ignore => match never {},
    })
}

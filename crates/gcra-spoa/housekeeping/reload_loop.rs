//! Reads the configuration again: on SIGHUP, when the table asks for it, or when the file has
//! changed.
//!
//! The loop never waits for a file: another thread reads, at most one at a time, while the loop
//! continues.

use std::sync::Arc;
use std::thread;

use gcra_policy::file::document;
use gcra_policy::secrets::Readers;
use gcra_policy::watch::{SeenFile, Watch, see_all};
use gcra_table::Table;
use gcra_table::board::ReloadAnswer;
use gcra_text::config_note::ConfigNote;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::apply_reload::{ReadOutcome, Replacement, Startup, adopt};
use super::running::Running;
use crate::service_manager::ServiceManager;

/// After this many looks, or 5 s, the log says that reading takes long.
const LOOKS_UNTIL_SLOW: u32 = 20;

/// The line of the log when the file cannot be read for want of a thread.
const NO_THREAD: &str = "no thread could be started to read the configuration";

/// When the file is read, and the outcome.
pub(super) struct Reloads {
    manager: Arc<ServiceManager>,
    startup: Arc<Startup>,
    /// The files to watch, if the file is read again when it changes.
    watch: Watch,
    /// The mistakes of the file when it was last read.
    mistakes: Vec<ConfigNote>,
    work: Option<Work>,
    /// Whether the file must be read, because of a signal or because it has changed.
    wanted: bool,
    is_reading: bool,
    /// When the file was last read, in nanoseconds after the start of the machine.
    reloaded_at: u64,
}

impl Reloads {
    pub(super) fn new(running: &Running, manager: Arc<ServiceManager>, startup: Startup) -> Self {
        let watch = Watch::new(running.policies.load().policies.files.clone());
        let (mistakes, work, wanted, is_reading, reloaded_at) = Default::default();
        let startup = Arc::new(startup);
        Self { manager, startup, watch, mistakes, work, wanted, is_reading, reloaded_at }
    }

    /// Has the file read at the next look.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether a thread reads the configuration.
    pub(super) fn is_reading(&self) -> bool {
        self.is_reading
    }

    pub(super) fn reloaded_at(&self) -> u64 {
        self.reloaded_at
    }

    /// Starts what there is to do. Only here, so that a flood of signals does not cause a flood of
    /// readings. `is_beat` says whether a second has passed.
    pub(super) fn look(&mut self, running: &Running, is_beat: bool) {
        if self.work.is_none() {
            let table = running.table.load_full();
            let asked = table.board().reload_asked().map(|number| (table, number));
            if self.wanted || asked.is_some() {
                self.wanted = false;
                self.work = self.read(running, asked);
                self.is_reading = self.work.is_some();
            } else if self.startup.watches && is_beat {
                let files = self.watch.files();
                self.work = Some(Work::new(None, move || Found::Looked(see_all(files))));
            }
        }
        if let Some(work) = &mut self.work {
            work.looks += 1;
            if work.looks == LOOKS_UNTIL_SLOW {
                log::warn!(
                    "reading the configuration takes longer than 5 s; the policies in force stay \
                     until it has been read"
                );
            }
        }
    }

    /// Tells the service manager how the agent is, unless the file is being read.
    pub(super) fn renew_status(&self, running: &Running) {
        if !self.is_reading {
            self.manager.ready(&running.status(!self.mistakes.is_empty()));
        }
    }

    /// Waits for the work to end; without work, for ever.
    pub(super) async fn found(&mut self) -> Result<Found, RecvError> {
        match &mut self.work {
            Some(work) => (&mut work.found).await,
            None => std::future::pending().await,
        }
    }

    /// Takes what the work has found: puts a file that was read in force, or refuses it.
    pub(super) fn take(&mut self, running: &Running, found: Result<Found, RecvError>) {
        let asked = self.work.take().and_then(|work| work.asked);
        let outcome = match found {
            Ok(Found::Looked(seen)) => {
                self.wanted |= self.watch.take(seen);
                return;
            }
            Ok(Found::Read(outcome, looked_at)) => {
                // Also those of a refused configuration, because a file with a mistake will be
                // mended.
                self.watch.read_again(looked_at);
                outcome
            }
            Err(_) => Err(vec![ConfigNote::from(NO_THREAD.to_owned())]),
        };
        let answer = adopt(running, &self.startup, outcome, &mut self.mistakes);
        self.reloaded_at = running.since_boot().0;
        // Before the answer: it says which limits were meant.
        running.introduce();
        self.is_reading = false;
        self.renew_status(running);
        if let Some((table, number)) = asked {
            table.board().answer_reload(number, &answer);
        }
    }

    /// Starts to read the configuration. `asked` is the request that came through the table, if
    /// one did.
    fn read(&self, running: &Running, asked: Option<(Arc<Table>, u64)>) -> Option<Work> {
        let Some(file) = self.startup.file.clone() else {
            log::warn!(
                "asked to reload, but the limit comes from the command line, so there is no file \
                 to read"
            );
            self.manager.reloading("there is no file to read");
            self.renew_status(running);
            if let Some((table, number)) = asked {
                table.board().answer_reload(number, &ReloadAnswer::NothingToReload);
            }
            return None;
        };
        self.manager.reloading(&format!("reading {}", file.display()));
        let (in_force, stats, table) =
            (running.policies.clone(), running.stats.clone(), running.table.load_full());
        let (startup, keeper) = (self.startup.clone(), running.keeper.clone());
        Some(Work::new(asked, move || {
            let mut looked_at = Vec::new();
            let read = document::read_noting(&file, Readers::OfLog, &mut looked_at);
            let outcome = read.and_then(|policies| {
                if startup.store.is_none()
                    && let Some(policy) = policies.first_shared()
                {
                    let what = format!(
                        "policy '{}' is shared, and this agent was started without a store; \
                         restart the agent",
                        policy.name
                    );
                    return Err(vec![what.into()]);
                }
                let in_force = in_force.load();
                // Here and not in the loop, because comparing long lists takes a while as well.
                if policies.text_digest == in_force.policies.text_digest {
                    return Ok(None);
                }
                let mut next = Box::new(in_force.replaced_by(policies, &stats, &table));
                // Commands find it as soon as the reload has an answer. If this fails, the next
                // beat tries it again.
                if let Ok(Some(history)) = keeper.keep(&table, &next) {
                    next = Box::new(next.with_history(history, &stats, table.now()));
                }
                Ok(Some(Replacement::new(&in_force.policies, next, &startup)))
            });
            Found::Read(outcome, looked_at)
        }))
    }
}

/// Work on a thread of its own, because a file system can be slow.
struct Work {
    found: oneshot::Receiver<Found>,
    /// The table through which the work was asked for, and the number of that request.
    asked: Option<(Arc<Table>, u64)>,
    looks: u32,
}

pub(super) enum Found {
    Looked(Vec<SeenFile>),
    /// And the files that were looked at for it.
    Read(ReadOutcome, Vec<SeenFile>),
}

impl Work {
    /// Starts the work, on a thread that the end of the process does not wait for.
    fn new(
        asked: Option<(Arc<Table>, u64)>,
        work: impl FnOnce() -> Found + Send + 'static,
    ) -> Self {
        let (done, found) = oneshot::channel();
        // If no thread can be started, `done` is dropped with the closure, and the loop sees that.
        // The loop may also end before the work is done.
        let begun = thread::Builder::new().name("reader".to_owned()).spawn(move || {
            let _ = done.send(work());
        });
        drop(begun);
        Self { found, asked, looks: 0 }
    }
}

//! [`Worker`]: the limiter in a process of HAProxy, from its settings to the table that it opens.

use std::iter;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use gcra_admin::agent_view::AgentView;
use gcra_inspect::policies_file::Keeper;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::decide::in_process::InProcess;
use gcra_limiter::limit_bucket::write_down_said;
use gcra_limiter::stats::Stats;
use gcra_limiter::undecided::Undecided;
use gcra_policy::table_error::TableError;
use gcra_table::board::{Profile, ReloadAnswer};
use gcra_table::{
    FilePath, Folder, Name, OpenError, OpenErrorKind, Opened, Table, read_clock_files,
};
use gcra_text::version;
use spop_agent::Counters;

use crate::asked_panics::may_panic;
use crate::settings::Settings;

/// What decides about requests, once the table is open.
static RUNNING: OnceLock<Running> = OnceLock::new();

/// The limiter of this process, and what it tells about itself.
pub(crate) struct Running {
    pub(crate) limiter: InProcess,
    pub(crate) view: AgentView,
    pub(crate) counters: Arc<Counters>,
    stats: Arc<Stats>,
    keeper: Keeper,
}

/// Beats in a minute.
const MINUTE: u64 = 60;

#[derive(Debug)]
pub(crate) struct Worker {
    settings: Settings,
    folder: Folder,
    /// How many states of Lua have loaded the module: as many as there are threads.
    states: usize,
    beats: u64,
    /// The sentence that the log has about the table, which cannot be opened.
    said: Option<String>,
    /// For how many requests the log has said that they got no decision, and that there is no
    /// policy for them.
    said_undecided: [u64; 2],
}

impl Worker {
    /// Keeps what a worker will need when it has another root, and refuses a table that it could
    /// not use. The error is a sentence.
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let table = &settings.table;
        let folder = Folder::of(table).map_err(|error| {
            let folder = table.parent().unwrap_or(table);
            format!(
                "cannot use the folder of the table, {}: {error}; name one that is there, such as \
                 /dev/shm",
                folder.display()
            )
        })?;
        read_clock_files().map_err(|kind| match kind {
            OpenErrorKind::Proc { file, source } => format!("could not read {file}: {source}"),
            kind => format!("could not read the clock: {kind:?}"),
        })?;
        match Table::inspect_in(&folder, table) {
            // As when it is opened.
            Ok(found) => match settings.slots.filter(|asked| *asked != found.slots()) {
                None => {}
                Some(asked) => {
                    let kind = OpenErrorKind::Slots { found: found.slots(), asked };
                    return Err(TableError(OpenError::new(table, kind)).to_string());
                }
            },
            Err(error) if matches!(error.kind(), OpenErrorKind::Missing) => {}
            Err(error) => return Err(TableError(error).to_string()),
        }
        Ok(Self { settings, folder, states: 1, beats: 0, said: None, said_undecided: [0; 2] })
    }

    /// One more state of Lua has loaded the module.
    pub(crate) fn add_state(&mut self) {
        self.states += 1;
    }

    /// What decides, once the table is open.
    #[inline]
    pub(crate) fn running() -> Option<&'static Running> {
        RUNNING.get()
    }

    /// The work of once a second.
    pub(crate) fn tend(&mut self) {
        match Self::running() {
            None => self.open(),
            Some(running) => self.beat(running),
        }
    }

    /// Opens the table, or makes it.
    fn open(&mut self) {
        let Settings { table: path, slots, .. } = &self.settings;
        match Table::open_or_create_in(&self.folder, path, *slots) {
            Ok((table, opened)) => self.start(table, opened),
            Err(error) => {
                if let Some(error) = self.not_said(error) {
                    log::error!("{error}; until then no request is limited");
                }
            }
        }
    }

    /// Why a table cannot be used, unless the log has just said it.
    fn not_said(&mut self, error: OpenError) -> Option<String> {
        let sentence = TableError(error).to_string();
        (self.said.as_ref() != Some(&sentence)).then(|| self.said.insert(sentence).clone())
    }

    fn start(&mut self, table: Table, opened: Opened) {
        let lanes = thread::available_parallelism().map_or(1, NonZeroUsize::get).max(self.states);
        let stats = Arc::new(Stats::new(NonZeroUsize::new(lanes).unwrap_or(NonZeroUsize::MIN)));
        self.announce(&table, opened);
        let policies = self.settings.policies.clone();
        let keeper = Keeper::new(FilePath::new(&self.settings.table, Some(&self.folder)));
        let (history, why) = keeper.begin(&table, &policies);
        why.iter().for_each(|why| log::warn!("{why}"));
        let in_force = ActivePolicies::after(history, policies, &stats, &table);
        let table = Arc::new(ArcSwap::from_pointee(table));
        let in_force = Arc::new(ArcSwap::from_pointee(in_force));
        let (counters, undecided) = <(Arc<Counters>, Arc<Undecided>)>::default();
        let view = AgentView::new(
            table.clone(),
            counters.clone(),
            undecided.clone(),
            stats.clone(),
            in_force.clone(),
            None,
        );
        let limiter = InProcess { table, in_force, undecided };
        self.beat(RUNNING.get_or_init(|| Running { limiter, view, counters, stats, keeper }));
    }

    /// Logs what is in force.
    fn announce(&self, table: &Table, opened: Opened) {
        let (version, policies) = (version::WORDS, &self.settings.policies);
        match &self.settings.file {
            None => {
                let policy = policies.list.first().map(|policy| policy.in_words());
                log::info!("gcra.lua {version}: {}", policy.unwrap_or_default());
            }
            Some(file) => {
                log::info!("gcra.lua {version}, configured by {}", file.display());
                policies.in_words(SystemTime::now()).lines().for_each(|line| log::info!("{line}"));
            }
        }
        policies.warnings.iter().for_each(|warning| log::warn!("{warning}"));
        log::info!(
            "table {}: {} slots, {}",
            self.settings.table.display(),
            table.slots().get(),
            match opened {
                Opened::Created => "created",
                Opened::Joined => "opened with the buckets in it",
            }
        );
    }

    /// Tells the others of the table that this process lives, and follows what they have changed.
    fn beat(&mut self, running: &Running) {
        let Running { limiter: InProcess { table, in_force, undecided }, stats, .. } = running;
        may_panic(b"beat");
        self.beats += 1;
        let is_minute = self.beats.is_multiple_of(MINUTE);
        table.load().beat();
        stats.beat();
        let unmatched = undecided.unmatched.load(Ordering::Relaxed);
        let since_boot = table.load().since_boot(table.load().now());
        stats.remember(since_boot.into(), &running.counters.snapshot(), unmatched);
        write_down_said(&in_force.load().policies, &table.load());
        match table.load().successor() {
            Ok(None) => self.said = None,
            Ok(Some(next)) => {
                log::info!("the table was resized; it now has {} slots", next.slots().get());
                write_down_said(&in_force.load().policies, &next);
                table.store(next);
            }
            Err(error) => {
                if let Some(error) = self.not_said(error) {
                    log::error!("{error}; requests with keys that have moved there are denied");
                }
            }
        }
        let (table, now) = (table.load(), table.load().now());
        let current = in_force.load();
        table.board().introduce(&Profile {
            limits: current.policies.limits_digest,
            has_file: self.settings.file.is_some(),
            salt: current.policies.salt_digest(),
            admin: self.settings.admin,
        });
        let mut next = current.without_old(stats, now);
        if !running.keeper.has(&current.policies) {
            match running.keeper.keep(&table, &current) {
                Ok(Some(history)) => next = Some(current.with_history(history, stats, now)),
                Ok(None) => {}
                Err(error) if is_minute => log::warn!("{error}; commands need --config FILE"),
                Err(_) => {}
            }
        }
        let obeyed = next.as_ref().unwrap_or(&current).with_orders(&table, stats);
        if let Some(next) = obeyed.or(next) {
            in_force.store(Arc::new(next));
        }
        if is_minute {
            stats.end_minute(&current.policies.known).iter().for_each(|line| log::info!("{line}"));
            self.check_name(&table);
        }
        self.report_undecided(undecided, is_minute);
        if let Some(asked) = table.board().reload_asked() {
            table.board().answer_reload(asked, &self.answer_to_reload());
        }
    }

    /// Logs what was wrong with requests that got no decision: the first time at once, for an
    /// operator who tries a configuration, and then once a minute.
    fn report_undecided(&mut self, all: &Undecided, is_minute: bool) {
        let counts = [&all.undecided, &all.unmatched].map(|count| count.load(Ordering::Relaxed));
        let about = [Undecided::about_undecided, Undecided::about_unmatched];
        for ((count, said), about) in iter::zip(counts, &mut self.said_undecided).zip(about) {
            if count > *said && (is_minute || *said == 0) {
                log::warn!("{}", about(all, count - *said));
                *said = count;
            }
        }
    }

    /// Without its name, the table is not that of agents and HAProxys which start from now on.
    fn check_name(&self, table: &Table) {
        let what = match table.name() {
            Name::Ours => return,
            Name::Nothing => "was removed",
            Name::AnotherFile => "was replaced by another file",
        };
        log::error!(
            "table {} {what} while HAProxy uses it, and HAProxy keeps the old one; reload \
             HAProxy, so that all share one table again",
            self.settings.table.display()
        );
    }

    /// The policies of HAProxy are read again by a new process of it.
    fn answer_to_reload(&self) -> ReloadAnswer {
        match &self.settings.file {
            None => ReloadAnswer::NothingToReload,
            Some(_) => ReloadAnswer::Refused(
                "HAProxy decides there itself, and reads its policies when it is reloaded; reload \
                 HAProxy, too"
                    .to_owned(),
            ),
        }
    }
}

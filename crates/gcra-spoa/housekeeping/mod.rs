//! What happens besides the requests: the beats in the table, warnings, reloads, the signals that
//! stop the agent, and what the service manager learns about all that.
//!
//! The loop never waits for a file: another thread reads, at most one at a time, while the loop
//! continues.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{io, thread};

use arc_swap::ArcSwap;
use gcra_admin::actions::Order;
use gcra_admin::agreement;
use gcra_admin::agreement::Agreement;
use gcra_admin::watched::MAX_SILENCE;
use gcra_limiter::audit_lines::AuditFile;
use gcra_limiter::borrower::{Background, Borrower};
use gcra_limiter::earlier_policies;
use gcra_limiter::policies_in_force::InForce;
use gcra_limiter::stats::{PolicyStats, Stats};
use gcra_limiter::undecided;
use gcra_limiter::undecided::Undecided;
use gcra_limiter::verdict;
use gcra_policy::file::document;
use gcra_policy::secrets::Readers;
use gcra_policy::sharing::{Sharing, WithoutStore};
use gcra_policy::store::StoreSettings;
use gcra_policy::watch::Seen;
use gcra_policy::words::{blocked_without_store, without_store_in_words};
use gcra_policy::{Policies, Policy};
use gcra_table::{Evictions, Exemption, Name, Profile, ReloadAnswer, Table, Time};
use gcra_text::count::Count;
use gcra_text::duration::{Left, Utc};
use gcra_text::table_error::TableError;
use spop_agent::Counters;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

mod store_reports;

use self::store_reports::{Counted, StoreReports};
use crate::hangup;
use crate::service_manager::ServiceManager;
use gcra_policy::watch::{Watch, see_all};

/// What the housekeeping looks after.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) table: Arc<ArcSwap<Table>>,
    /// The table's path.
    pub(crate) path: PathBuf,
    pub(crate) policies: Arc<ArcSwap<InForce>>,
    pub(crate) audit: Option<Arc<AuditFile>>,
    /// The file that the policies come from; `None` if they come from the command line.
    pub(crate) file: Option<PathBuf>,
    /// The store that the agent was started with. No reload replaces it.
    pub(crate) store: Option<StoreSettings>,
    /// Whether the file is read again when it changes.
    pub(crate) watches: bool,
    /// Where the agent serves its status.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) undecided: Arc<Undecided>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) manager: Arc<ServiceManager>,
    /// The limits that are shared with other hosts.
    pub(crate) borrower: Option<Arc<Borrower>>,
    /// What actions of `--admin` order.
    pub(crate) orders: mpsc::Receiver<Order>,
    /// That of `--max-frame-size`.
    pub(crate) max_frame_size: u32,
}

/// How often the loop looks whether the table asks for a reload.
const LOOK: Duration = Duration::from_millis(250);

/// A beat, once a second, comes with every fourth look.
const LOOKS_PER_BEAT: u32 = 4;

/// How many beats are between two warnings of one kind, at least.
const BEATS_PER_REPORT: u32 = 60;

/// For how many beats a table is in the middle of a resize before the log says so. A resize takes
/// seconds.
const BEATS_OF_RESIZE: u32 = 10;

/// How often the line in `systemctl status` is renewed.
const BEATS_PER_STATUS: u32 = 10;

/// After this many looks, or 5 s, the log says that reading takes long.
const LOOKS_UNTIL_SLOW: u32 = 20;

impl Housekeeping {
    /// Runs until SIGTERM, SIGINT or SIGUSR1. From then on the agent is leaving, and the
    /// housekeeping continues until the runtime ends.
    ///
    /// `background` is what the borrower does.
    pub(crate) async fn until_stopped(self, background: Option<Background>) {
        let (stats, manager) = (self.stats.clone(), self.manager.clone());
        let background = async {
            match background {
                // It has no end but a panic.
                Some(background) => drop(tokio::spawn(background).await),
                None => std::future::pending().await,
            }
        };
        let hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => {
                return log::error!("stopping, because signals cannot be received: {error}");
            }
        };
        hangup::release();
        let housekeeping = tokio::spawn(self.keep(hangup));
        tokio::select! {
            stopped = stop_signal() => match stopped {
                Ok(name) => log::info!("{name} received"),
                Err(error) => log::error!("stopping, because signals cannot be received: {error}"),
            },
            // It has no end but a panic.
            _ = housekeeping => log::error!("stopping, because the housekeeping has panicked"),
            () = background => log::error!("stopping, because the store's task has panicked"),
        }
        stats.leave();
        manager.stopping();
    }

    async fn keep(mut self, mut hangup: Signal) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported =
            Reported { evictions: self.table.load().evictions(), ..Reported::default() };
        let mut looks = 0_u32;
        let mut watch = Watch::new(self.policies.load().policies.files.clone());
        // The mistakes of the file when it was last read.
        let mut mistakes = Vec::new();
        let mut followed = Followed::default();
        let mut work: Option<Work> = None;
        // Whether the file must be read, because of a signal or because it has changed.
        let mut wanted = false;
        let mut is_reading = false;
        let watchdog_looks = self.watchdog_looks();
        loop {
            tokio::select! {
                _ = hangup.recv() => wanted = true,
                // Without --admin no order ever comes.
                Some(order) = self.orders.recv() => match order {
                    Order::Observe { policy, observe, at_ns, done } => {
                        // The client may be gone.
                        let _ = done.send(self.observe(&policy, observe, at_ns, &mut followed));
                    }
                    Order::Exemptions { done } => {
                        self.follow_exemptions(&mut reported);
                        let _ = done.send(());
                    }
                },
                found = finished(&mut work) => {
                    let asked = work.take().and_then(|work| work.asked);
                    let outcome = match found {
                        Ok(Found::Looked(seen)) => {
                            wanted |= watch.take(seen);
                            continue;
                        }
                        Ok(Found::Read(outcome, looked_at)) => {
                            // Also those of a file that was refused: one of them will be mended.
                            watch.read_again(looked_at);
                            outcome
                        }
                        Err(_) => Err(vec![
                            "no thread could be started to read the configuration".to_owned(),
                        ]),
                    };
                    let answer = self.adopt(outcome, &mut mistakes);
                    let table = self.table.load();
                    followed.reloaded_at = table.since_boot(table.now()).0;
                    // Before the answer: it says which limits were meant.
                    self.introduce();
                    is_reading = false;
                    self.manager.ready(&self.status(&mistakes));
                    if let Some((table, number)) = asked {
                        table.answer_reload(number, &answer);
                    }
                }
                _ = look.tick() => {
                    // Only here, so that a flood of signals does not cause a flood of readings.
                    if work.is_none() {
                        let table = self.table.load_full();
                        let asked = table.reload_asked().map(|number| (table, number));
                        if wanted || asked.is_some() {
                            wanted = false;
                            work = self.read(asked);
                            is_reading = work.is_some();
                        } else if self.watches && looks.is_multiple_of(LOOKS_PER_BEAT) {
                            let files = watch.files();
                            work = Some(Work::new(None, move || Found::Looked(see_all(files))));
                        }
                    }
                    if let Some(work) = &mut work {
                        work.looks += 1;
                        if work.looks == LOOKS_UNTIL_SLOW {
                            log::warn!(
                                "reading the configuration takes longer than 5 s; the policies \
                                 in force stay until it has been read"
                            );
                        }
                    }
                    if looks.is_multiple_of(LOOKS_PER_BEAT) {
                        self.beat(&mut reported);
                    }
                    // A stuck worker is what the watchdog is for. If it is this one, nothing
                    // happens here.
                    if looks.is_multiple_of(watchdog_looks) && self.counters.silent() < MAX_SILENCE
                    {
                        self.manager.beat();
                    }
                    if looks.is_multiple_of(LOOKS_PER_BEAT * BEATS_PER_REPORT) {
                        self.report(&mut reported);
                    }
                    // At the first look the sockets are bound, and no signal can kill the agent
                    // any more. Later this renews the status.
                    if looks.is_multiple_of(LOOKS_PER_BEAT * BEATS_PER_STATUS) && !is_reading {
                        self.manager.ready(&self.status(&mistakes));
                    }
                    looks = looks.wrapping_add(1);
                }
            }
        }
    }

    /// What is done once a second.
    fn beat(&self, reported: &mut Reported) {
        self.table.load().beat();
        self.stats.beat();
        earlier_policies::register_said(&self.policies.load().policies, &self.table.load());
        self.remember();
        self.follow(reported);
        self.introduce();
        self.compare_limits(reported);
        self.forget_earlier();
        self.follow_exemptions(reported);
        self.check_name(reported);
        self.check_resize(reported);
        self.check_workers(reported);
        self.follow_audit(reported);
        self.follow_leases(reported);
        // The first one is logged at once, for an operator who tries a configuration.
        if self.has_first_mistake(reported) {
            self.report_mistakes(reported);
        }
        self.manager.retry();
    }

    /// Takes note of what was counted in the last second.
    fn remember(&self) {
        let table = self.table.load();
        let since_boot = table.since_boot(table.now()).into();
        let unmatched = self.undecided.unmatched.load(Ordering::Relaxed);
        self.stats.remember(since_boot, &self.counters.snapshot(), unmatched);
    }

    /// Warns when another worker than that of the housekeeping is stuck.
    fn check_workers(&self, reported: &mut Reported) {
        let silent = self.counters.silent();
        if silent < MAX_SILENCE {
            reported.stuck_beats = 0;
            return;
        }
        if reported.stuck_beats.is_multiple_of(BEATS_PER_REPORT) {
            log::error!(
                "a worker has been stuck for {} s, with all its connections; restart the agent, \
                 unless a service manager does so because of its watchdog",
                silent.as_secs()
            );
        }
        reported.stuck_beats = reported.stuck_beats.wrapping_add(1);
    }

    /// Looks after what this host holds of shared limits.
    fn follow_leases(&self, reported: &mut Reported) {
        let Some(borrower) = &self.borrower else { return };
        self.report_store(borrower, reported);
        let Err(error) = borrower.follow(&self.table.load()) else {
            reported.lost_leases_beats = 0;
            return;
        };
        if reported.lost_leases_beats.is_multiple_of(BEATS_PER_REPORT) {
            let error = TableError(error);
            log::error!("{error}; the agent goes on with the file that it had");
        }
        reported.lost_leases_beats = reported.lost_leases_beats.wrapping_add(1);
    }

    /// Logs that requests are decided without the store, and what else is wrong with it.
    fn report_store(&self, borrower: &Borrower, reported: &mut Reported) {
        let (store, counts) = (borrower.store(), &borrower.counts);
        let without_store = |(_, policy): &(String, Arc<PolicyStats>)| -> u64 {
            policy.without_store().iter().map(|(_, count)| count).sum()
        };
        let counted = Counted {
            at: self.stats.uptime(),
            is_away: !borrower.can_ask(self.table.load().now()),
            away: store.away_total(),
            without_store: self.stats.policies().iter().map(without_store).sum(),
            open: counts.open.load(Ordering::Relaxed),
            timed_out: counts.timed_out.load(Ordering::Relaxed),
            evicted: borrower.leases().evictions(),
        };
        let machines = borrower.hosts(self.table.load().now());
        if machines > reported.machines {
            self.warn_about_bursts(machines);
            reported.machines = machines;
        }
        let what_happens = || {
            let in_force = self.policies.load();
            all_without_store(&in_force.policies, machines)
        };
        for (level, line) in reported.store.beat(counted, borrower.wait().into(), what_happens) {
            log::log!(level, "{line}");
        }
    }

    /// Warns about the policies that would block without the store, because this many machines
    /// cannot share a burst.
    fn warn_about_bursts(&self, machines: u32) {
        let in_force = self.policies.load();
        for policy in in_force.policies.without_trials() {
            let has_no_share = |sharing: Sharing| {
                sharing.at_once || sharing.without_store == WithoutStore::Closed
            };
            if policy.shared.is_none_or(has_no_share) {
                continue;
            }
            if let Some(requests) = blocked_without_store(policy, machines) {
                log::warn!(
                    "policy '{}': without the store, all requests {requests} would be blocked, \
                     because {machines} machines cannot share a burst of less than {machines}; \
                     raise the burst",
                    policy.name
                );
            }
        }
    }

    /// Looks after the audit file, and warns if decisions could not be written to it.
    fn follow_audit(&self, reported: &mut Reported) {
        let Some(audit) = &self.audit else { return };
        match audit.follow() {
            Ok(()) => reported.lost_audit_beats = 0,
            Err(error) => {
                if reported.lost_audit_beats.is_multiple_of(BEATS_PER_REPORT) {
                    log::error!(
                        "could not open the audit file {} again: {error:#}; decisions are still \
                         written to the file that was there before",
                        audit.path().display()
                    );
                }
                reported.lost_audit_beats = reported.lost_audit_beats.wrapping_add(1);
            }
        }
        let lost = audit.lost();
        if lost > reported.audit_lost && reported.audit_beats == 0 {
            log::warn!(
                "up to {} could not be written to the audit file, which has a gap; is its disk \
                 full?",
                Count(lost - reported.audit_lost, "decision", "decisions")
            );
            reported.audit_lost = lost;
            reported.audit_beats = BEATS_PER_REPORT;
        }
        reported.audit_beats = reported.audit_beats.saturating_sub(1);
    }

    /// How many looks lie between two beats for the watchdog: half of its time, as systemd asks.
    fn watchdog_looks(&self) -> u32 {
        let half = self.manager.watchdog().unwrap_or_default() / 2;
        u32::try_from(half.as_nanos() / LOOK.as_nanos()).unwrap_or(u32::MAX).max(1)
    }

    /// One line for `systemctl status`. It names no clients, because any user may read it.
    fn status(&self, mistakes: &[String]) -> String {
        let policies = self.policies.load().policies.list.len() as u64;
        let now = self.counters.snapshot();
        let refused = if mistakes.is_empty() {
            ""
        } else {
            "; the file was REFUSED when it was last read, see the log"
        };
        format!(
            "serving {} to {}, {} answered{refused}",
            Count(policies, "policy", "policies"),
            Count(now.open, "connection", "connections"),
            Count(now.notifies, "NOTIFY", "NOTIFYs")
        )
    }

    /// Makes a policy only observe, or no longer, as an action has ordered. Returns whether this
    /// has changed anything.
    ///
    /// # Errors
    ///
    /// Why this cannot be done, as a sentence.
    fn observe(
        &self,
        policy: &str,
        observe: bool,
        at_ns: u64,
        followed: &mut Followed,
    ) -> Result<bool, String> {
        followed.check(policy, at_ns)?;
        let in_force = self.policies.load();
        let next = in_force.policies.observing(policy, observe)?;
        followed.orders.insert(policy.to_owned(), at_ns);
        let Some(next) = next else { return Ok(false) };
        let next = in_force.replaced_by(next, &self.stats, &self.table.load());
        self.policies.store(Arc::new(next));
        self.introduce();
        Ok(true)
    }

    /// Tells the other agents of the table about this one.
    fn introduce(&self) {
        let in_force = self.policies.load();
        self.table.load().introduce(&Profile {
            limits: in_force.policies.limits_digest,
            has_file: self.file.is_some(),
            admin: self.admin,
            remembers_until: in_force.earlier.remembered_until(),
        });
    }

    /// Warns when other agents of the table have other limits.
    fn compare_limits(&self, reported: &mut Reported) {
        let limits = self.policies.load().policies.limits_digest;
        let differing = agreement::differing(&self.table.load(), limits);
        match reported.agreement.beat(&differing) {
            None => {}
            Some(agreement::Report::Differ(said)) => log::warn!("{said}"),
            Some(agreement::Report::Agree) => {
                log::info!("all agents of the table have the same limits again");
            }
        }
        self.stats.differing.store(differing.len() as u64, Ordering::Relaxed);
    }

    /// Starts to read the configuration. `asked` is the request that came through the table, if
    /// one did.
    fn read(&self, asked: Option<(Arc<Table>, u64)>) -> Option<Work> {
        let Some(file) = self.file.clone() else {
            log::warn!(
                "asked to reload, but the limit comes from the command line, so there is no file \
                 to read"
            );
            self.manager.reloading("there is no file to read");
            self.manager.ready(&self.status(&[]));
            if let Some((table, number)) = asked {
                table.answer_reload(number, &ReloadAnswer::NothingToReload);
            }
            return None;
        };
        self.manager.reloading(&format!("reading {}", file.display()));
        let (in_force, stats, table) =
            (self.policies.clone(), self.stats.clone(), self.table.load_full());
        let has_store = self.store.is_some();
        Some(Work::new(asked, move || {
            let mut looked_at = Vec::new();
            let read = document::read_noting(&file, Readers::OfLog, &mut looked_at);
            let outcome = read.and_then(|policies| {
                if !has_store && let Some(policy) = policies.first_shared() {
                    return Err(vec![needs_store(&policy.name)]);
                }
                let in_force = in_force.load();
                // Here and not in the loop, because comparing long lists takes a while as well.
                let has_changed = policies.text_digest != in_force.policies.text_digest;
                Ok(has_changed.then(|| Box::new(in_force.replaced_by(policies, &stats, &table))))
            });
            Found::Read(outcome, looked_at)
        }))
    }

    /// Moves to the table that a resize has put in the place of ours.
    fn follow(&self, reported: &mut Reported) {
        match self.table.load().successor() {
            Ok(next) => {
                reported.lost_beats = 0;
                if let Some(next) = next {
                    log::info!("the table was resized; it now has {} slots", next.slots().get());
                    earlier_policies::register_said(&self.policies.load().policies, &next);
                    self.table.store(next);
                }
            }
            Err(error) => {
                if reported.lost_beats.is_multiple_of(BEATS_PER_REPORT) {
                    let error = TableError(error);
                    log::error!("{error}; requests with keys that have moved there are denied");
                }
                reported.lost_beats = reported.lost_beats.wrapping_add(1);
            }
        }
    }

    /// Forgets the earlier policies under which no key can owe anything any more.
    fn forget_earlier(&self) {
        let now = self.table.load().now();
        if let Some(shorter) = self.policies.load().without_old(&self.stats, now) {
            self.policies.store(Arc::new(shorter));
        }
    }

    /// Puts the exemptions of the table in force, and logs which have begun or ended.
    fn follow_exemptions(&self, reported: &mut Reported) {
        let table = self.table.load();
        let (exemptions, now) = (table.exemptions(), table.now());
        let in_force = self.policies.load();
        if let Some(next) = in_force.with_exemptions(&exemptions, &self.stats, now) {
            self.policies.store(Arc::new(next));
        }
        if exemptions == reported.exemptions {
            return;
        }
        let policy_of = |exemption: &Exemption| {
            in_force.policies.list.iter().find(|policy| policy.is_meant_by(exemption))
        };
        for exemption in exemptions.iter().filter(|one| !reported.exemptions.contains(one)) {
            if let Some(policy) = policy_of(exemption) {
                log::info!("{}", begins(exemption, &policy.name, now, SystemTime::now()));
            }
        }
        let is_of = |one: &Exemption, other: &Exemption| {
            (one.policy, one.key) == (other.policy, other.key)
        };
        let has_ended = |old: &&Exemption| !exemptions.iter().any(|one| is_of(one, old));
        for exemption in reported.exemptions.iter().filter(has_ended) {
            if let Some(policy) = policy_of(exemption) {
                let (client, policy) = (&exemption.client, &policy.name);
                log::info!("{client} is no longer exempt from the policy '{policy}'");
            }
        }
        reported.exemptions = exemptions;
    }

    /// Warns when the table's file was removed or replaced: agents that start from then on do not
    /// find it.
    fn check_name(&self, reported: &mut Reported) {
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
                "table {} {what} while it is in use: agents that are started from now on use \
                 another table, and the running ones keep the old one; restart them one after \
                 the other, so that all share one table again",
                self.path.display()
            );
        }
        reported.detached_beats = reported.detached_beats.wrapping_add(1);
    }

    /// Warns when a resize does not end.
    fn check_resize(&self, reported: &mut Reported) {
        if !self.table.load().is_being_resized() {
            reported.resizing_beats = 0;
            return;
        }
        reported.resizing_beats = reported.resizing_beats.wrapping_add(1);
        if reported.resizing_beats % BEATS_PER_REPORT == BEATS_OF_RESIZE {
            log::warn!(
                "the table has been in the middle of a resize for {} s; if the command was \
                 interrupted, 'gcra-spoa table info --table {}' says how to finish it",
                reported.resizing_beats,
                self.path.display()
            );
        }
    }

    /// Logs which clients were blocked and what went wrong since the last report.
    fn report(&self, reported: &mut Reported) {
        self.stats.end_minute().iter().for_each(|said| log::info!("{said}"));
        let evictions = self.table.load().evictions();
        let evicted = evictions.evicted_live.saturating_sub(reported.evictions.evicted_live);
        if evicted > 0 {
            let forgiven = evictions.forgiven.saturating_sub(reported.evictions.forgiven);
            // By the limit that gives the highest possible number.
            let policies = self.policies.load();
            let limits = policies.policies.without_trials().flat_map(Policy::limits);
            let cells = limits.map(|limit| match limit.calendar {
                None => forgiven.div_ceil(limit.quota.emission_interval()),
                Some(_) => evicted.saturating_mul(limit.quota.burst().into()),
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
        reported.evictions = evictions;
        for policy in &self.policies.load().policies.list {
            if let Some(never) = self.never_settled(policy, reported) {
                log::warn!("{never}");
            }
            if let Some(arg) = self.stats.policy(&policy.name).text_address()
                && reported.text_addresses.insert(policy.name.clone())
            {
                log::warn!("{}", about_text_address(policy, arg));
            }
        }
        self.report_mistakes(reported);
    }

    /// Whether messages could not be decided or settled, for the first time.
    fn has_first_mistake(&self, reported: &Reported) -> bool {
        let Undecided { undecided, unmatched, unsettled, .. } = &*self.undecided;
        let is_first = |count: &AtomicU64, said| said == 0 && count.load(Ordering::Relaxed) > 0;
        is_first(undecided, reported.undecided)
            || is_first(unmatched, reported.unmatched)
            || is_first(unsettled, reported.unsettled)
    }

    /// Logs what was wrong with messages since this was last done.
    fn report_mistakes(&self, reported: &mut Reported) {
        let undecided = self.undecided.undecided.load(Ordering::Relaxed);
        if undecided > reported.undecided {
            log::warn!("{}", self.undecided.about_undecided(undecided - reported.undecided));
        }
        reported.undecided = undecided;
        let unsettled = self.undecided.unsettled.load(Ordering::Relaxed);
        if unsettled > reported.unsettled {
            log::warn!("{}", self.undecided.about_unsettled(unsettled - reported.unsettled));
        }
        reported.unsettled = unsettled;
        let unmatched = self.undecided.unmatched.load(Ordering::Relaxed);
        if unmatched > reported.unmatched {
            log::warn!("{}", self.undecided.about_unmatched(unmatched - reported.unmatched));
        }
        reported.unmatched = unmatched;
    }

    /// Says once that many requests of a policy were allowed, and that none was settled. It may be
    /// right, where only a failure is charged.
    fn never_settled(&self, policy: &Policy, reported: &mut Reported) -> Option<String> {
        const MANY: u64 = 1000;
        let message = String::from_utf8_lossy(&policy.settle.as_ref()?.message).into_owned();
        let stats = self.stats.policy(&policy.name);
        let allowed = stats.counts()[verdict::Outcome::Allowed.index()];
        let is_settled = stats.settled().iter().any(|(_, count)| *count > 0);
        let is_new =
            allowed >= MANY && !is_settled && reported.never_settled.insert(message.clone());
        is_new.then(|| {
            format!(
                "policy '{}' has allowed {allowed} requests, and no message '{message}' has \
                 settled one; if responses should have, compare the spoe-message '{message}', \
                 its event and the 'messages' line with 'gcra-spoa check --print-haproxy'",
                policy.name
            )
        })
    }

    /// Puts the policies that were read in force, or logs what is wrong with them. Mistakes that
    /// were logged before are not logged again.
    fn adopt(&self, outcome: Outcome, known: &mut Vec<String>) -> ReloadAnswer {
        let name = self.file.as_deref().unwrap_or(Path::new("")).display();
        match outcome {
            Ok(next) => {
                let mut warnings = Vec::new();
                match next {
                    None => log::info!("{name} was read again: nothing has changed"),
                    Some(next) => {
                        let policies = next.policies.clone();
                        let before = self.policies.load().policies.clone();
                        let rekeyed = rekeyed(&before, &next);
                        self.policies.store(next.into());
                        log::info!("{name} was read again, and is in force:");
                        policies.in_words().lines().for_each(|line| log::info!("{line}"));
                        policies.warnings.iter().for_each(|warning| log::warn!("{warning}"));
                        if let Some(warning) = policies.about_frames(self.max_frame_size) {
                            log::warn!("{warning}");
                        }
                        let abandoned = abandoned(&before, &policies);
                        if !abandoned.is_empty() {
                            warnings.push(about_abandoned(&abandoned));
                        }
                        warnings.extend(no_longer_settled(&before, &policies));
                        if policies.store != self.store {
                            warnings.push(KEEPS_STORE.to_owned());
                        }
                        warnings.iter().for_each(|warning| log::warn!("{warning}"));
                        for (policy, exempt) in rekeyed {
                            log::warn!(
                                "policy '{policy}' makes other keys than before, and {} of it {} \
                                 a former key; 'gcra-spoa exempt --list --config {name}' says \
                                 which, and --end ends it",
                                Count(exempt, "exemption", "exemptions"),
                                if exempt == 1 { "is for" } else { "are for" }
                            );
                        }
                    }
                }
                known.clear();
                self.stats.reloads.ok.fetch_add(1, Ordering::Relaxed);
                match warnings.is_empty() {
                    true => ReloadAnswer::InForce,
                    false => ReloadAnswer::Warned(warnings.join("; also: ")),
                }
            }
            Err(mistakes) => {
                self.stats.reloads.refused.fetch_add(1, Ordering::Relaxed);
                let first = mistakes.first().cloned().unwrap_or_default();
                if mistakes == *known {
                    log::error!(
                        "{name} still has the same mistakes; the policies in force have not \
                         changed"
                    );
                } else {
                    mistakes.iter().for_each(|mistake| log::error!("{mistake}"));
                    log::error!("{name} was refused; the policies in force have not changed");
                    *known = mistakes;
                }
                ReloadAnswer::Refused(first)
            }
        }
    }
}

/// When the agent last followed an order about each policy, and when it last read its file, in
/// nanoseconds after the start of the machine. An order is followed once, and orders are followed
/// in the order of time: a listener cannot repeat one.
#[derive(Debug, Default)]
struct Followed {
    /// By policy. Only policies that there were at the time are in it.
    orders: BTreeMap<String, u64>,
    reloaded_at: u64,
}

impl Followed {
    fn check(&self, policy: &str, at_ns: u64) -> Result<(), String> {
        if at_ns <= self.reloaded_at {
            return Err("this agent has reloaded its configuration after the order".to_owned());
        }
        match self.orders.get(policy) {
            Some(last) if at_ns <= *last => Err(format!(
                "this agent has followed this or a later order about policy '{policy}'"
            )),
            _ => Ok(()),
        }
    }
}

/// Work on a thread of its own, because a file system can be slow.
struct Work {
    found: oneshot::Receiver<Found>,
    /// The table through which the work was asked for, and the number of that request.
    asked: Option<(Arc<Table>, u64)>,
    /// How many looks there were since it began.
    looks: u32,
}

enum Found {
    Looked(Vec<Seen>),
    /// And the files that were looked at for it.
    Read(Outcome, Vec<Seen>),
}

/// The policies that were read, `None` if nothing has changed, or the mistakes in the file.
type Outcome = Result<Option<Box<InForce>>, Vec<String>>;

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

/// Waits for the work to end; without work, for ever.
async fn finished(work: &mut Option<Work>) -> Result<Found, oneshot::error::RecvError> {
    match work {
        Some(work) => (&mut work.found).await,
        None => std::future::pending().await,
    }
}

/// What the log has reported so far.
#[derive(Default)]
struct Reported {
    evictions: Evictions,
    undecided: u64,
    unsettled: u64,
    /// The policies of which the log said that they get addresses as texts.
    text_addresses: BTreeSet<Box<str>>,
    /// The messages of which the log said that none has come.
    never_settled: BTreeSet<String>,
    unmatched: u64,
    /// The exemptions that the table had.
    exemptions: Vec<Exemption>,
    /// Beats since the table's successor could last be opened.
    lost_beats: u32,
    /// Beats since the table's name last led to it.
    detached_beats: u32,
    /// Beats since the file of leases could last be opened.
    lost_leases_beats: u32,
    /// Beats since the audit file could last be opened.
    lost_audit_beats: u32,
    /// Beats since all workers ran.
    stuck_beats: u32,
    /// For how many beats the table has been in the middle of a resize.
    resizing_beats: u32,
    /// The decisions that were missing in the audit file when the log last said so.
    audit_lost: u64,
    /// Beats until the log says so again.
    audit_beats: u32,
    agreement: Agreement,
    store: StoreReports,
    /// The most machines that were seen to share limits.
    machines: u32,
}

/// What the policies that are shared do without the store. `machines` is how many share the
/// limits.
fn all_without_store(policies: &Policies, machines: u32) -> String {
    let shared = policies.without_trials();
    let shared = shared.filter_map(|policy| {
        let words = without_store_in_words(policy, policy.shared?, machines);
        Some(format!("policy '{}': {words}", policy.name))
    });
    let has_share = |policy: &Policy| {
        policy.shared.is_some_and(|it| !it.at_once && it.without_store != WithoutStore::Closed)
    };
    let machines = match machines {
        0 if !policies.without_trials().any(has_share) => None,
        0 => Some(
            "it is not known for sure how many machines there are, so the share is nothing"
                .to_owned(),
        ),
        machines => Some(format!("{} seen", Count(machines, "machine was", "machines were"))),
    };
    shared.chain(machines).collect::<Vec<_>>().join("; ")
}

/// The policies that make other keys than before, of those that some clients are exempt from; and
/// how many clients are.
fn rekeyed(before: &Policies, now: &InForce) -> Vec<(Box<str>, u64)> {
    let exempt = |policy: &Policy| {
        now.exemptions.iter().filter(|exemption| policy.is_meant_by(exemption)).count() as u64
    };
    let has_other_keys = |policy: &&Policy| {
        let old = before.list.iter().find(|old| old.name == policy.name);
        old.is_some_and(|old| !policy.makes_keys_of(old))
    };
    let rekeyed = now.policies.without_trials().filter(|policy| exempt(policy) > 0);
    let rekeyed = rekeyed.filter(has_other_keys);
    rekeyed.map(|policy| (policy.name.clone(), exempt(policy))).collect()
}

/// The messages for which there was a policy and is none now, each with the first policy that was
/// for it.
fn abandoned(before: &Policies, now: &Policies) -> Vec<(String, String)> {
    let mut abandoned: Vec<(String, String)> = Vec::new();
    for policy in before.without_trials() {
        let Some(message) = policy.message.as_deref() else { continue };
        let has_policy = now.list.iter().any(|new| new.message.as_deref() == Some(message));
        let message = String::from_utf8_lossy(message).into_owned();
        if !has_policy && !abandoned.iter().any(|(known, _)| *known == message) {
            abandoned.push((message, policy.name.to_string()));
        }
    }
    abandoned
}

/// Says that an arg of the key should be an address, and is a text.
fn about_text_address(policy: &Policy, arg: undecided::PrintableName) -> String {
    format!(
        "policy '{}' got an address as a text in the arg '{arg}', so no prefix and no override of \
         an address applies to it; let HAProxy send an address, such as src or \
         req.hdr_ip(x-forwarded-for), and not req.hdr or req.fhdr",
        policy.name
    )
}

/// A sentence about the first policy whose requests other messages settle than before, or none.
fn no_longer_settled(before: &Policies, now: &Policies) -> Option<String> {
    before.without_trials().find_map(|old| {
        let message = &old.settle.as_ref()?.message;
        let new = now.without_trials().find(|new| new.name == old.name)?;
        let is_known = now.without_trials().any(|new| new.is_settled_by(message));
        (!is_known && new.message == old.message).then(|| {
            format!(
                "responses in messages '{}' settle nothing any more; they settled policy '{}'; is \
                 a name misspelled?",
                String::from_utf8_lossy(message),
                old.name
            )
        })
    })
}

/// The answer in the table is cut off after 192 bytes, so what matters comes first.
fn about_abandoned(abandoned: &[(String, String)]) -> String {
    let [(message, policy), more @ ..] = abandoned else { return String::new() };
    let more = match more.len() {
        0 => String::new(),
        more => format!(" (and those of {})", Count(more, "other message", "other messages")),
    };
    format!(
        "no policy is for the messages '{message}'{more} any more, so they get no decision; \
         policy '{policy}' was in force for them; is a name misspelled?"
    )
}

/// What the log says when a reload has read another `[store]`.
const KEEPS_STORE: &str = "[store] of the file has changed since this agent was started, and the \
                           agent keeps the old one; restart the agent";

/// Why a file is refused that shares this policy.
fn needs_store(policy: &str) -> String {
    format!(
        "policy '{policy}' is shared, and this agent was started without a store; restart the \
         agent"
    )
}

/// A sentence about an exemption that has begun, or that ends at another time than before.
fn begins(exemption: &Exemption, policy: &str, now: Time, wall: SystemTime) -> String {
    let rest = Duration::from(exemption.until.saturating_since(now));
    let end = (wall + rest).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!(
        "{} is exempt from the policy '{policy}' for {}, until {}",
        exemption.client,
        Left(rest),
        Utc(end)
    )
}

/// Resolves with the name of the signal that asks the agent to stop.
async fn stop_signal() -> io::Result<&'static str> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // HAProxy's signal for a soft stop, which operators know.
    let mut soft_stop = signal(SignalKind::user_defined1())?;
    // It has no meaning here, and without a handler it would kill the process.
    let mut ignored = signal(SignalKind::user_defined2())?;
    let ignore = async {
        ignored.recv().await;
        log::warn!(
            "SIGUSR2 is ignored, now and later; SIGTERM stops the agent, and SIGHUP makes it \
             read its configuration again"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_followed_once_and_not_after_a_later_one_or_a_reload() {
        let mut followed = Followed::default();
        followed.check("api", 10).unwrap();
        followed.orders.insert("api".to_owned(), 10);
        assert!(followed.check("api", 10).unwrap_err().contains("or a later order"), "repeated");
        assert!(followed.check("api", 9).unwrap_err().contains("or a later order"), "older");
        followed.check("api", 11).unwrap();
        followed.check("login", 9).unwrap();
        followed.reloaded_at = 20;
        for policy in ["api", "login"] {
            assert!(followed.check(policy, 20).unwrap_err().contains("has reloaded"), "{policy}");
            followed.check(policy, 21).unwrap();
        }
    }
}

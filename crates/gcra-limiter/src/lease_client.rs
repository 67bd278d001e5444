//! [`LeaseClient`]: the limits that this host shares with others, as this process takes part.
//!
//! The cells that the host holds are in [`Leases`], which all its agents share. The state here
//! belongs to one process: the asks that it has sent, the requests that wait for them, and what it
//! has to do later about keys that it asked for. A process that is killed loses nothing else.

// ADR 44: What cannot be lent is charged in the store.

pub(crate) mod agenda;
mod denials;
mod outage;
pub(crate) mod waiting;

use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ahash::{AHashMap, RandomState};
use anyhow::Context as _;
use arc_swap::{ArcSwap, Guard};
use gcra_lease::{AskNumber, Charge, Demand, HostTime, Micros, Sent, SharedLimit, Wish};
use gcra_policy::store::StoreSettings;
use gcra_policy::table_error::TableError;
use gcra_store::{AskAnswer, AskOutcome, Asker, Charging, Line, Names, Store};
use gcra_table::{
    LeaseCounts, LeaseKey, LeaseNumbers, Leases, Nanos, Quota, Replaced, StoreId, Table, Time,
};
use gcra_text::duration::nanoseconds;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::lease_client::agenda::{Agenda, LeaseTarget, Task};
use crate::lease_client::denials::Denials;
use crate::lease_client::outage::{Connected, HOST_USES_IT_FOR, Outage};
use crate::lease_client::waiting::{News, Waiting, Waits};

/// For how long the store counts as about to be reached after the start of the agent.
const STARTING: Duration = Duration::from_secs(1);

/// Penalties are reported this long after the first of them, several together.
const REPORT_AFTER: Micros = Micros::from_millis(50);

/// The name under which hosts ask to be counted. No name of a limit begins with a dot.
const HOSTS: &str = ".hosts";

/// How often to look whether the store is away.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// For how long the store remembers that this host shares limits.
const HOST_COUNTS_FOR: Micros = Micros::from_millis(60_000);

/// How often this host says that it shares limits, at least.
const SIGN_EVERY: Duration = Duration::from_secs(2);

/// The number of hosts is known if the store has said so this short a time ago,
const COUNT_IS_KNOWN_FOR: Micros = Micros::from_millis(4_000);

/// and if this host was counted that long ago: the others have asked since.
const COUNTED_AFTER: Micros = Micros::from_millis(7_000);

/// A process that is started so short a time after the host has used the store for the last time
/// takes it for one that was away.
const HOST_MAY_BE_CUT_OFF_FOR: Nanos = Nanos::from_millis(30_000);

/// An agent that starts while the store is away goes on with a number of hosts from another
/// process of this host. That process must have known the number this short a time ago.
const RESTARTED_WITHIN: Micros = Micros::from_millis(10_000);

/// The other processes of the host learn that much earlier that this one will ask the store.
const SAID_EARLIER: Nanos = Nanos::from_millis(300);

/// Cells that nobody waits for and that last no longer than this go back at once.
const SHORT_LEASE: Micros = Micros::from_millis(200);

#[derive(Debug)]
pub struct LeaseClient {
    /// The leases of the host. A file that was replaced gives way to another one.
    leases: ArcSwap<Leases>,
    asker: Asker,
    pub names: Names,
    opened: Instant,
    /// How long a request waits for the store at most (`--store-wait`).
    wait: Micros,
    /// An ask that is as old as this counts as lost: no reply to it is used.
    pub(crate) patience: Micros,
    /// The asks that this process has sent, and that have no answer.
    asked: Mutex<AHashMap<AskNumber, LeaseTarget>>,
    waiting: Arc<Waiting>,
    due: Agenda,
    /// The keys that the store has denied not long ago, where it is asked about each request.
    pub(crate) denials: Denials,
    /// When each part of the store was last away.
    outages: Box<[Outage]>,
    /// When this host was counted for the first time, and the last: when that was asked for, as a
    /// [`HostTime`].
    counted: [AtomicU64; 2],
    pub counts: WaitCounters,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Asking {
    /// The ask is on its way, or another one for the key is.
    UnderWay,
    /// The store cannot be asked.
    Away,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct WaitCounters {
    /// Requests that waited for the store.
    pub waited: AtomicU64,
    /// Requests that stopped waiting because `--store-wait` was over.
    pub timed_out: AtomicU64,
    /// Requests that were allowed without a limit, because the store was away and the policy is
    /// open then.
    pub open: AtomicU64,
}

/// The work of a [`LeaseClient`] in the background, for ever.
pub type Background = Pin<Box<dyn Future<Output = ()> + Send>>;

impl LeaseClient {
    /// Opens what this host holds, beside the table, and begins to use the store. The second value
    /// is to be spawned.
    ///
    /// # Errors
    ///
    /// The file beside the table, or a file that the settings name, cannot be used.
    pub fn open(
        settings: &StoreSettings,
        table: &Arc<ArcSwap<Table>>,
    ) -> anyhow::Result<(Arc<Self>, Background)> {
        let now = table.load();
        let store = StoreId(settings.base.url.digest(&settings.salt));
        let (leases, _) = Leases::open_or_create(&now, store, now.slots()).map_err(TableError)?;
        tell_replaced(&leases);
        let (store, task) = Store::open(settings.config())
            .with_context(|| format!("could not use the store {}", settings.url_text))?;
        let line = store.line();
        let names = Names::new(&settings.salt);
        let lease_client = Arc::new(Self::new(leases, &line, names, settings, now.now()));
        let run = lease_client.clone().run(line, table.clone());
        let background = async {
            tokio::join!(task, run);
        };
        Ok((lease_client, Box::pin(background)))
    }

    fn new(
        leases: Leases,
        line: &Line,
        names: Names,
        settings: &StoreSettings,
        now: Time,
    ) -> Self {
        let micros = |time: Duration| Micros(nanoseconds(time) / 1_000);
        let parts = line.asker().store().parts();
        // If the host used the store not long ago, and then no more, the store may be on its way
        // back from an outage.
        let host_time = HostTime::from(now);
        let hosts = leases.hosts_before(RESTARTED_WITHIN, host_time);
        let outage = |part| {
            let outage = Outage::new(now);
            let used = Nanos::from(leases.part_used_ago(part, host_time));
            if used >= HOST_USES_IT_FOR {
                match hosts {
                    Some(hosts) => outage.goes_on(hosts, now),
                    None if used < HOST_MAY_BE_CUT_OFF_FOR => outage.note_failure(),
                    None => {}
                }
            }
            outage
        };
        let outages = (0..parts).map(outage).collect();
        Self {
            leases: ArcSwap::from_pointee(leases),
            asker: line.asker(),
            names,
            opened: Instant::now(),
            wait: micros(settings.wait),
            patience: micros(settings.config().timeout),
            asked: Mutex::default(),
            waiting: Arc::default(),
            due: Agenda::default(),
            denials: Denials::default(),
            outages,
            counted: Default::default(),
            counts: WaitCounters::default(),
        }
    }

    #[inline]
    pub fn leases(&self) -> Guard<Arc<Leases>> {
        self.leases.load()
    }

    /// How long a request waits for the store at most.
    #[inline]
    pub fn wait(&self) -> Micros {
        self.wait
    }

    /// Whether the store cannot be asked about a key: no server can be used, or it is too early
    /// after an outage.
    pub fn is_away(&self, table: &Table, target: &LeaseTarget) -> bool {
        let part = self.part(target);
        match target.shares_after {
            Some(after) => !self.is_usable(table.now(), part, after),
            None => self.store().is_part_away(part),
        }
    }

    fn part(&self, target: &LeaseTarget) -> usize {
        self.store().part_of(&target.bucket)
    }

    /// The latest outage of a key's part of the store.
    fn outage(&self, target: &LeaseTarget) -> Option<&Outage> {
        self.outages.get(self.part(target))
    }

    /// Whether a part of the store can be asked about limits that have shares in an outage that
    /// takes as long as `after`.
    fn is_usable(&self, now: Time, part: usize, after: Nanos) -> bool {
        let is_over = self.outages.get(part).is_some_and(|outage| outage.is_over(now, after));
        is_over && !self.store().is_part_away(part)
    }

    /// Whether all parts of the store can be asked.
    pub fn can_ask(&self, now: Time) -> bool {
        (0..self.outages.len()).all(|part| self.is_usable(now, part, Nanos::ZERO))
    }

    /// Whether no part of the store can be asked, and the agent was not started just now.
    pub fn is_wholly_away(&self, now: Time) -> bool {
        let is_starting =
            self.outages.iter().any(Outage::is_starting) && self.opened.elapsed() < STARTING;
        let usable = |part| self.is_usable(now, part, Nanos::ZERO);
        !is_starting && !(0..self.outages.len()).any(usable)
    }

    /// Whether it still cannot be used, because the agent has just been started. Then requests
    /// wait for it, too.
    pub(crate) fn is_starting(&self, target: &LeaseTarget) -> bool {
        self.outage(target).is_some_and(Outage::is_starting) && self.opened.elapsed() < STARTING
    }

    /// Counts what the host holds, one entry after the other.
    pub fn count_leases(&self, table: &Table) -> LeaseCounts {
        self.leases().counts(HostTime::from(table.now()), self.patience)
    }

    /// The store, for its counters and its health.
    pub fn store(&self) -> &gcra_store::Store {
        self.asker.store()
    }

    /// How many requests wait now.
    pub fn waiting(&self) -> u64 {
        self.waiting.requests()
    }

    /// Since when the store is away of a key. `None` if it can be asked.
    pub fn away_since(&self, table: &Table, target: &LeaseTarget) -> Option<Time> {
        let (now, part) = (table.now(), self.part(target));
        let outage = self.outage(target)?;
        // It may have been lost just now.
        self.note(part, outage, now);
        self.is_away(table, target).then(|| outage.since().min(now))
    }

    /// Notes whether a part of the store is away now.
    fn note(&self, part: usize, outage: &Outage, now: Time) {
        let store = self.store();
        let at = |ago| Time(now.0.saturating_sub(nanoseconds(ago)));
        let connected = (!store.is_part_away(part)).then(|| Connected {
            since: at(store.connected_ago(part)),
            server: store.server_of(part),
        });
        let steady = store.steady_ago(part).map(at);
        outage.note(connected, steady, now, || self.known_hosts(now));
    }

    /// The hosts that a share is for: those that share limits with this one, itself included. 0 if
    /// not all of them know of each other.
    pub fn hosts(&self, now: Time) -> u32 {
        match self.outages.first() {
            Some(outage) if !outage.is_over(now, Nanos::ZERO) => outage.hosts(),
            _ => self.known_hosts(now),
        }
    }

    /// Notes that this host was counted, for which it asked then.
    fn note_count(&self, asked_at: HostTime, now: HostTime) {
        let [first, last] = &self.counted;
        let _ = first.compare_exchange(0, now.0, Ordering::Relaxed, Ordering::Relaxed);
        last.fetch_max(asked_at.0, Ordering::Relaxed);
    }

    /// How many hosts share limits, if all of them know of each other; else 0.
    fn known_hosts(&self, now: Time) -> u32 {
        let now = HostTime::from(now);
        let [first, last] = self.counted.each_ref().map(|at| HostTime(at.load(Ordering::Relaxed)));
        let is_known = first > HostTime(0)
            && now.saturating_since(first) >= COUNTED_AFTER
            && now.saturating_since(last) <= COUNT_IS_KNOWN_FOR;
        if is_known { self.leases().hosts() } else { 0 }
    }

    fn round_trip(&self) -> Micros {
        self.store().round_trip()
    }

    /// Lets a request of this cost wait for a key.
    pub fn join(&self, key: LeaseKey, cells: u32) -> Waits {
        self.waiting.join(key, cells)
    }

    /// Asks the store for the cells that the waiting requests of a key need, and for those that
    /// this host expects to need. `least` is how many cells the first request lacks.
    pub fn ask(&self, table: &Table, target: LeaseTarget, least: u32) -> Asking {
        let (leases, now) = (self.leases(), HostTime::from(table.now()));
        let waiting = self.waiting.cells(target.key).max(least);
        let (limit, round_trip) = (target.bucket.limit(), self.round_trip());
        let wish = leases.wish(target.key, limit, now, waiting, least, round_trip);
        self.send(table, &leases, now, target, wish)
    }

    /// After cells of a key were spent: asks for more if what is left will not last, and reports
    /// what was spent if that cannot wait.
    pub fn spent(
        &self,
        table: &Table,
        key: LeaseKey,
        target: impl FnOnce() -> Option<LeaseTarget>,
    ) {
        if self.asker.is_away() {
            return;
        }
        let (leases, now) = (self.leases(), HostTime::from(table.now()));
        let (demand, round_trip) = (leases.demand(key, now), self.round_trip());
        let holding = leases.holding(key, now);
        if holding.is_asking(now, self.patience) {
            return;
        }
        let left = holding.held(now);
        let needs_more = demand.needs_more(left, round_trip) && now >= holding.come_back();
        if !needs_more && left > 0 {
            return;
        }
        let Some(target) = target() else { return };
        let limit = target.bucket.limit();
        let wish = match needs_more {
            true => leases.wish(key, limit, now, 0, 0, round_trip),
            false => Wish { want: 0, least: 0, validity: limit.longest_validity() },
        };
        if wish.want > 0 || (left == 0 && demand.reports_at_once(limit, round_trip)) {
            self.send(table, &leases, now, target, wish);
        }
    }

    /// Gives back cells that a request got and could not use.
    pub(crate) fn give_back(&self, table: &Table, target: LeaseTarget, cells: u32) {
        if self.is_away(table, &target) {
            return;
        }
        let (leases, now) = (self.leases(), HostTime::from(table.now()));
        let given = leases.give_back(target.key, target.bucket.limit(), now, self.patience, cells);
        if let Some(mut sent) = given {
            self.mind_shares(table, &target, &mut sent);
            self.submit(&leases, now, target, sent);
        }
    }

    /// Sends a charge to the store, once.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub fn charge(
        &self,
        table: &Table,
        target: &LeaseTarget,
        charge: Charge,
    ) -> Result<Charging, gcra_store::Away> {
        self.asker.charge(target.bucket.clone(), HostTime::from(table.now()), charge)
    }

    /// Notes a penalty, which is reported soon. False if nothing is known about the key, and the
    /// penalty is lost.
    pub(crate) fn punish(&self, table: &Table, target: LeaseTarget, cells: u32) -> bool {
        let (leases, now) = (self.leases(), HostTime::from(table.now()));
        let is_noted = leases.charge(target.key, now, cells);
        if is_noted {
            self.due.note(now.saturating_add(REPORT_AFTER), Task::Report, target);
        }
        is_noted
    }

    /// Whether the store has denied cells of a key only because other hosts hold some.
    pub(crate) fn waits_for_others(&self, table: &Table, key: LeaseKey) -> bool {
        self.leases().holding(key, HostTime::from(table.now())).waits_for_others()
    }

    /// The cells of penalties that are noted and not reported.
    pub fn noted(&self, table: &Table, key: LeaseKey) -> u32 {
        self.leases().holding(key, HostTime::from(table.now())).debt()
    }

    /// Sends an ask, unless another one for the key is under way.
    fn send(
        &self,
        table: &Table,
        leases: &Leases,
        now: HostTime,
        target: LeaseTarget,
        wish: Wish,
    ) -> Asking {
        if self.is_away(table, &target) {
            let is_starting = self.is_starting(&target);
            return if is_starting { Asking::UnderWay } else { Asking::Away };
        }
        let asked = leases.ask(target.key, target.bucket.limit(), now, self.patience, wish);
        let Some(mut sent) = asked else { return Asking::UnderWay };
        self.mind_shares(table, &target, &mut sent);
        self.submit(leases, now, target, sent)
    }

    /// Adds to an ask what shares may have allowed, and sees to it that the cells are over before
    /// shares can begin.
    fn mind_shares(&self, table: &Table, target: &LeaseTarget, sent: &mut Sent) {
        if let Some((outage, after)) = self.outage(target).zip(target.shares_after) {
            let (now, wall_ns) = (table.now(), table.wall_reading().wall_ns());
            // If the clock of the machine that gave the reset is ahead, nobody knows whether
            // shares were used after it.
            let reset = wall_ns.checked_sub(target.reset_at);
            let reset = reset.map_or(Time::ZERO, |ago| Time(now.0.saturating_sub(ago)));
            sent.ask.owed_ago = outage.owed_ago(now, after, reset);
            let validity = outage.validity(now, after).0 / 1_000;
            sent.ask.validity = sent.ask.validity.min(Micros(validity));
        }
    }

    fn submit(&self, leases: &Leases, now: HostTime, target: LeaseTarget, sent: Sent) -> Asking {
        let (key, bucket) = (target.key, target.bucket.clone());
        self.asked().insert(sent.ask.number, target);
        if self.asker.submit(vec![(bucket, sent)]).is_ok() {
            return Asking::UnderWay;
        }
        self.asked().remove(&sent.ask.number);
        leases.void(key, now, &sent);
        Asking::Away
    }

    /// The share of this host in a limit, while the store is away: as many hosts as there were
    /// stay within the limit together. With it, the TAT that a key has at least. `None` if it is
    /// not known how many hosts these are, if the burst has fewer cells, or if the store may be
    /// back.
    pub fn share(
        &self,
        table: &Table,
        target: &LeaseTarget,
        quota: Quota,
    ) -> Option<(Quota, Time)> {
        let (now, outage) = (table.now(), self.outage(target)?);
        let part = self.part(target);
        let missed = Nanos(nanoseconds(self.store().missed_ago(part)));
        let used = self.leases().part_used_ago(part, HostTime::from(now)).into();
        // At that moment a full burst may be owed.
        let from = outage.shares_from(now, target.shares_after?, missed, used)?;
        let hosts = outage.hosts();
        let interval = quota.emission_interval().0.checked_mul(hosts.into())?;
        let share = Quota::new(Nanos(interval), quota.burst().checked_div(hosts)?).ok()?;
        Some((share, from.saturating_add(quota.drain_time())))
    }

    fn asked(&self) -> MutexGuard<'_, AHashMap<AskNumber, LeaseTarget>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the answers of the store, and does what is due, for ever.
    pub async fn run(self: Arc<Self>, mut line: Line, table: Arc<ArcSwap<Table>>) {
        let (mut answers, mut done) = (Vec::new(), Vec::new());
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_sign = None;
        loop {
            let now = HostTime::from(table.load().now());
            let next = self.due.take(now, &mut done);
            for (what, target) in mem::take(&mut done) {
                self.do_now(&table.load(), what, target);
            }
            let sleeps = async {
                match next {
                    Some(at) => sleep(at.saturating_since(now).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = line.answers(&mut answers) => {
                    let (table, leases) = (table.load(), self.leases());
                    for answer in answers.drain(..) {
                        self.answered(&table, &leases, answer);
                    }
                }
                () = sleeps => {}
                () = self.due.changed() => {}
                _ = look.tick() => {
                    let table = table.load();
                    self.look(&table);
                    let now = Instant::now();
                    if next_sign.is_none_or(|at| now >= at) && self.sign(&table) {
                        // Not always at the same time as another agent of this host.
                        let early = RandomState::new().hash_one(0) % 500;
                        next_sign = Some(now + SIGN_EVERY - Duration::from_millis(early));
                    }
                }
            }
        }
    }

    fn answered(&self, table: &Table, leases: &Leases, answer: AskAnswer) {
        let AskAnswer { sent, outcome } = answer;
        let Some(target) = self.asked().remove(&sent.ask.number) else { return };
        let now = HostTime::from(table.now());
        let AskOutcome::Reply(reply) = outcome else {
            leases.void(target.key, now, &sent);
            // After a reply that is void, a request that waits looks by itself and asks again. At
            // once, it could do so thousands of times a second.
            if outcome == AskOutcome::Away {
                self.waiting.wake(target.key, News::Away, self.patience);
            }
            return;
        };
        if target.bucket.is_of(HOSTS) {
            leases.see_hosts(reply.hosts, now);
            self.note_count(sent.at, now);
        }
        if !leases.reply(target.key, now, &sent, &reply) {
            self.waiting.wake(target.key, News::Late, self.patience);
            return;
        }
        let holding = leases.holding(target.key, now);
        let news = News::Answered { holding, now, free: reply.free };
        let is_waited_for = self.waiting.wake(target.key, news, self.patience);
        if holding.held(now) == 0 {
            return;
        }
        let is_short = sent.ask.want > 0 && sent.ask.validity <= SHORT_LEASE;
        if (reply.scarce || is_short) && !is_waited_for {
            self.give_back(table, target, u32::MAX);
        } else if let Some(at) = Demand::gives_back_at(&holding, sent.at) {
            self.due.note(at, Task::GiveBack, target);
        }
    }

    /// Does what was noted for this moment.
    fn do_now(&self, table: &Table, what: Task, target: LeaseTarget) {
        let (leases, now) = (self.leases(), HostTime::from(table.now()));
        let holding = leases.holding(target.key, now);
        match what {
            Task::GiveBack if holding.held(now) > 0 => self.give_back(table, target, u32::MAX),
            Task::Report if holding.debt() > 0 => {
                // With a wish for one cell the answer says when to come back.
                let validity = Micros(2 * self.round_trip().0 + 1_000);
                let wish = Wish { want: 1, least: 1, validity };
                self.send(table, &leases, now, target, wish);
            }
            Task::GiveBack | Task::Report => {}
        }
    }

    /// Follows the file of leases. To be called about once a second.
    ///
    /// # Errors
    ///
    /// A file that took its place cannot be opened. The one before goes on.
    pub fn follow(&self, table: &Table) -> Result<(), gcra_table::OpenError> {
        let leases = self.leases();
        let was_displaced = leases.is_displaced();
        if let Some(next) = leases.successor(table, table.slots())? {
            tell_replaced(&next);
            self.leases.store(Arc::new(next));
        } else if leases.is_displaced() && !was_displaced {
            log::warn!(
                "another agent of this table uses another store (another address, database or \
                 salt), and has replaced the file of leases {}; this agent goes on with the file \
                 that it had, and each store lends the whole limit until all agents of this table \
                 have been restarted with the same store",
                leases.path().display()
            );
        }
        Ok(())
    }

    /// Notes which parts of the store are away, and says to the other processes of the host which
    /// this one uses.
    fn look(&self, table: &Table) {
        let (now, leases, mut hosts) = (table.now(), self.leases(), 0);
        for (part, outage) in self.outages.iter().enumerate() {
            self.note(part, outage, now);
            if outage.is_over(now.saturating_add(SAID_EARLIER), Nanos::ZERO) {
                leases.use_part(part, HostTime::from(now));
            } else {
                hosts = hosts.max(outage.hosts());
            }
        }
        if hosts > 0 {
            leases.see_away(hosts, HostTime::from(now));
        }
        if self.asker.is_away() && self.store().health().has_failed() {
            self.outages.iter().for_each(Outage::note_failure);
        }
    }

    /// Says to the store that this host shares limits. Its answer says how many hosts do. Returns
    /// false if the store cannot be asked.
    fn sign(&self, table: &Table) -> bool {
        let Ok(limit) = SharedLimit::new(Duration::from_millis(1), 1) else { return false };
        let limit = limit.with_longest_validity(HOST_COUNTS_FOR);
        let target = LeaseTarget {
            key: LeaseKey::new(table.hash(HOSTS.as_bytes()), LeaseNumbers::new(&limit.numbers())),
            bucket: self.names.bucket(HOSTS, b"", limit),
            shares_after: None,
            reset_at: 0,
        };
        let (leases, now) = (self.leases(), HostTime::from(table.now()));
        let wish = Wish { want: 0, least: 0, validity: HOST_COUNTS_FOR };
        !self.is_away(table, &target)
            && self.send(table, &leases, now, target, wish) == Asking::UnderWay
    }
}

/// Logs why the file of leases was replaced, if an operator should know.
fn tell_replaced(leases: &Leases) {
    let path = leases.path().display();
    match leases.replaced() {
        Some(Replaced::OtherStore) => log::warn!(
            "the file of leases {path} was of another store (another address, database or salt), \
             and was replaced; if agents of this table still use the other store, each store \
             lends the whole limit until they are restarted"
        ),
        Some(Replaced::Copied) => log::warn!(
            "the file of leases {path} was a copy of another one, and was replaced; what the \
             machine held counts as spent"
        ),
        None => {}
    }
}

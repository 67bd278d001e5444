//! The work besides the requests: the beats in the table, warnings, reloads, the signals that stop
//! the agent, and what the service manager learns about all that.

mod apply_reload;
mod audit_reports;
mod beat;
mod followed;
mod kept_policies;
mod message_reports;
mod once_per_minute;
mod orders;
mod reload_loop;
mod running;
mod shared_limits;
mod shared_orders;
mod store_reports;
mod warnings;

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gcra_admin::actions::Errand;
use gcra_admin::agent_view::MAX_SILENCE;
use gcra_limiter::audit_lines::AuditFile;
use gcra_limiter::lease_client::{Background, LeaseClient};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use self::apply_reload::Startup;
use self::audit_reports::AuditReports;
use self::beat::Beat;
use self::followed::Followed;
use self::kept_policies::KeptPolicies;
use self::message_reports::MessageReports;
use self::once_per_minute::BEATS_BETWEEN;
use self::orders::Orders;
use self::reload_loop::Reloads;
pub(crate) use self::running::Running;
use self::shared_limits::SharedLimits;
pub(crate) use self::shared_orders::exchange_orders;
use self::warnings::Warnings;
use crate::service_manager::ServiceManager;
use crate::sighup;

/// A part for each of the topics, and what the loop needs itself.
pub(crate) struct Housekeeping {
    running: Running,
    manager: Arc<ServiceManager>,
    /// The errands from actions of `--admin`.
    errands: mpsc::Receiver<Errand>,
    followed: Followed,
    reloads: Reloads,
    beat: Beat,
    kept: KeptPolicies,
    orders: Orders,
    warnings: Warnings,
    messages: MessageReports,
    audit: AuditReports,
    shared: SharedLimits,
}

/// How often the loop looks whether the table asks for a reload.
const LOOK: Duration = Duration::from_millis(250);

/// A beat, once a second, comes with every fourth look.
const LOOKS_PER_BEAT: u32 = 4;

const BEATS_PER_STATUS: u32 = 10;

impl Housekeeping {
    /// `path` is that of the table.
    pub(crate) fn new(
        running: Running,
        startup: Startup,
        path: PathBuf,
        audit: Option<Arc<AuditFile>>,
        lease_client: Option<Arc<LeaseClient>>,
        errands: mpsc::Receiver<Errand>,
    ) -> Self {
        let manager = Arc::new(ServiceManager::from_environment());
        Self {
            errands,
            followed: Followed::default(),
            reloads: Reloads::new(&running, manager.clone(), startup),
            beat: Beat::default(),
            kept: KeptPolicies::begin(&running),
            orders: Orders::new(&running),
            warnings: Warnings::new(&running, path),
            messages: MessageReports::default(),
            audit: AuditReports::new(audit),
            shared: SharedLimits::new(lease_client),
            running,
            manager,
        }
    }

    /// Runs until SIGTERM, SIGINT or SIGUSR1. From then on the agent is leaving, and the
    /// housekeeping continues until the runtime ends.
    ///
    /// `background` is what the lease client does.
    pub(crate) async fn until_stopped(self, background: Option<Background>) {
        let (stats, manager) = (self.running.stats.clone(), self.manager.clone());
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
        sighup::release();
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
        let mut looks = 0_u32;
        let watchdog_looks = self.watchdog_looks();
        loop {
            tokio::select! {
                _ = hangup.recv() => self.reloads.want(),
                // Without --admin no errand ever comes.
                Some(errand) = self.errands.recv() => self.do_errand(errand),
                found = self.reloads.found() => self.reloads.take(&self.running, found),
                _ = look.tick() => {
                    self.look(looks, watchdog_looks);
                    looks = looks.wrapping_add(1);
                }
            }
        }
    }

    fn do_errand(&mut self, errand: Errand) {
        match errand {
            Errand::Observe { policy, observe, at_ns, done } => {
                let reloaded_at = self.reloads.reloaded_at();
                let what = (&*policy, observe);
                let outcome = self.followed.observe(&self.running, what, at_ns, reloaded_at);
                if outcome == Ok(true) {
                    self.kept.follow(&self.running);
                }
                // The client may be gone.
                let _ = done.send(outcome);
            }
            Errand::Orders { done } => {
                self.orders.follow(&self.running);
                let _ = done.send(());
            }
        }
    }

    /// The work of each look, four times a second; `looks` is the number of this one.
    fn look(&mut self, looks: u32, watchdog_looks: u32) {
        let is_beat = looks.is_multiple_of(LOOKS_PER_BEAT);
        self.reloads.look(&self.running, is_beat);
        if is_beat {
            self.beat();
        }
        // A stuck worker is what the watchdog is for. If it is this one, nothing happens here.
        if looks.is_multiple_of(watchdog_looks) && self.running.counters.silent() < MAX_SILENCE {
            self.manager.beat();
        }
        if looks.is_multiple_of(LOOKS_PER_BEAT * BEATS_BETWEEN) {
            self.warnings.report(&self.running);
            self.messages.report(&self.running);
        }
        // At the first look the sockets are bound, and no signal can kill the agent any more.
        // Later this renews the status.
        if looks.is_multiple_of(LOOKS_PER_BEAT * BEATS_PER_STATUS) {
            self.reloads.renew_status(&self.running);
        }
    }

    fn beat(&mut self) {
        let running = &self.running;
        self.beat.begin(running);
        // The policies that a reload reads may be written already, and come into force soon.
        if !self.reloads.is_reading() {
            self.kept.follow(running);
        }
        self.warnings.compare(running);
        beat::forget_earlier(running);
        beat::forget_shapes(running);
        self.orders.follow(running);
        self.warnings.beat(running);
        self.audit.follow();
        self.shared.follow(running);
        self.messages.beat(running);
        self.manager.retry();
    }

    /// How many looks lie between two beats for the watchdog: half of its time, as systemd asks.
    fn watchdog_looks(&self) -> u32 {
        let half = self.manager.watchdog().unwrap_or_default() / 2;
        u32::try_from(half.as_nanos() / LOOK.as_nanos()).unwrap_or(u32::MAX).max(1)
    }
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

//! The state that all connections of an agent share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::busy::Busy;
use crate::counters::Counters;
use crate::log_limit::LogLimit;
use crate::settings::Settings;

#[derive(Debug)]
pub(crate) struct Shared<H> {
    pub(crate) handler: H,
    pub(crate) settings: Settings,
    pub(crate) counters: Arc<Counters>,
    pub(crate) log: LogLimit,
    pub(crate) busy: Option<Busy>,
    stage: AtomicU8,
    /// For each stage, the tasks that wait for it.
    reached: [Notify; Stage::COUNT],
}

/// The stages of an agent, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Serving,
    /// Health checks fail, and everything else is served.
    Leaving,
    /// No connections are accepted.
    Closing,
    /// All connections are ended.
    Stopping,
}

impl Stage {
    const COUNT: usize = Self::Stopping as usize + 1;
}

impl<H> Shared<H> {
    pub(crate) fn new(handler: H, settings: Settings, counters: Arc<Counters>) -> Self {
        let busy = (!settings.busy_poll.is_zero()).then(|| Busy::new(settings.busy_poll));
        let stage = AtomicU8::new(Stage::Serving as u8);
        let (log, reached) = Default::default();
        Self { handler, settings, counters, log, busy, stage, reached }
    }

    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
        self.reached[..=stage as usize].iter().for_each(Notify::notify_waiters);
    }

    /// Whether the agent is in this stage or a later one.
    #[inline]
    pub(crate) fn has_reached(&self, wanted: Stage) -> bool {
        self.stage.load(Ordering::Acquire) >= wanted as u8
    }

    /// Waits until the agent is in this stage or a later one, and is not woken before.
    pub(crate) async fn reaches(&self, wanted: Stage) {
        // It is woken by changes from here on, so a change between this line and the next is not
        // missed.
        let reached = self.reached[wanted as usize].notified();
        if !self.has_reached(wanted) {
            reached.await;
        }
    }
}

/// A connection's permit to use the handler, once it has one.
#[derive(Debug)]
pub(crate) struct HandlerPermit {
    permits: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl HandlerPermit {
    /// No permit yet.
    pub(crate) const fn new(permits: Arc<Semaphore>) -> Self {
        Self { permits, permit: None }
    }

    /// Whether the connection has a permit.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.permit.is_some()
    }

    /// Takes a permit if there is a free one. Returns whether the connection has one now. It keeps
    /// it to its end.
    #[inline]
    pub(crate) fn acquire(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.permits.clone().try_acquire_owned().ok();
        }
        self.permit.is_some()
    }
}

//! What all connections of an agent share.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::busy::Busy;
use crate::counters::Counters;
use crate::log_limit::LogLimit;
use crate::settings::Settings;

/// What all connections of an agent share.
#[derive(Debug)]
pub(crate) struct Shared<H> {
    pub(crate) handler: H,
    pub(crate) settings: Settings,
    pub(crate) counters: Arc<Counters>,
    pub(crate) log: LogLimit,
    pub(crate) busy: Option<Busy>,
    stage: watch::Sender<Stage>,
}

/// The stages of an agent, in order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Stage {
    Serving,
    /// Health checks fail, and everything else is served.
    Leaving,
    /// No connections are accepted.
    Closing,
    /// All connections are ended.
    Stopping,
}

impl<H> Shared<H> {
    pub(crate) fn new(handler: H, settings: Settings, counters: Arc<Counters>) -> Self {
        let busy = (!settings.busy_poll.is_zero()).then(|| Busy::new(settings.busy_poll));
        let (stage, _) = watch::channel(Stage::Serving);
        Self { handler, settings, counters, log: LogLimit::default(), busy, stage }
    }

    /// Enters a stage.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }

    /// Whether health checks must fail, because the agent is about to stop.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.stage.borrow() >= Stage::Leaving
    }

    /// Waits until the agent is in this stage or a later one.
    pub(crate) async fn reaches(&self, wanted: Stage) {
        // It fails only when the sender is dropped, and `self` has that.
        let _ = self.stage.subscribe().wait_for(|stage| *stage >= wanted).await;
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

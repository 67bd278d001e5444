//! What an agent has done so far, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// Counters of one agent, written by all its connections. Read them with [`snapshot`](Self::snapshot).
#[derive(Debug, Default)]
pub struct Counters {
    // Written once per read of a connection: kept apart from the rare ones.
    notifies: CachePadded<AtomicU64>,
    connections: AtomicU64,
    open: AtomicU64,
    health_checks: AtomicU64,
    handler_panics: AtomicU64,
    protocol_errors: AtomicU64,
    timeouts: AtomicU64,
    accept_errors: AtomicU64,
    shed: AtomicU64,
    reassembled: AtomicU64,
    truncated: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// NOTIFYs answered. Each got one ACK.
    pub notifies: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections that were health checks (`option spop-check`).
    pub health_checks: u64,
    /// Requests whose handler panicked. They were answered with an ACK without actions.
    pub handler_panics: u64,
    /// Connections ended because of something that is not SPOP, or not in its place.
    pub protocol_errors: u64,
    /// Connections ended because a HELLO, the rest of a frame, or the reading of answers took too long.
    pub timeouts: u64,
    /// Failures to accept a connection, such as too many open files.
    pub accept_errors: u64,
    /// NOTIFYs that were answered without actions because their connection was one too many.
    pub shed: u64,
    /// NOTIFYs that came in pieces.
    pub reassembled: u64,
    /// Connections that the peer closed inside a frame.
    pub truncated: u64,
}

impl Counters {
    /// The numbers now. Each is exact; together they may be a moment apart.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            notifies: read(&self.notifies),
            connections: read(&self.connections),
            open: read(&self.open),
            health_checks: read(&self.health_checks),
            handler_panics: read(&self.handler_panics),
            protocol_errors: read(&self.protocol_errors),
            timeouts: read(&self.timeouts),
            accept_errors: read(&self.accept_errors),
            shed: read(&self.shed),
            reassembled: read(&self.reassembled),
            truncated: read(&self.truncated),
        }
    }

    pub(crate) fn opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, notifies: usize) {
        self.notifies.fetch_add(notifies as u64, Ordering::Relaxed);
    }

    pub(crate) fn health_check(&self) {
        self.health_checks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn handler_panic(&self) {
        self.handler_panics.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn protocol_error(&self) {
        self.protocol_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn timeout(&self) {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn accept_error(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shed(&self, notifies: usize) {
        self.shed.fetch_add(notifies as u64, Ordering::Relaxed);
    }

    pub(crate) fn reassembled(&self) {
        self.reassembled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn truncated(&self) {
        self.truncated.fetch_add(1, Ordering::Relaxed);
    }
}

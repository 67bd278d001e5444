//! Limits how much is logged, so that the log stays readable whatever connects.
//!
//! Ordinary ends of connections are debug lines; HAProxy from 3.1 on resets all its connections.
//! Connections without a HELLO are debug lines, too: port scans, browsers, health checks that only
//! connect. Ends that an operator should know about are warnings, a few times a minute. The rest
//! is counted, and summed up once a minute.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::end::Ended;

/// How often there is a summary.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);

/// How many warnings are logged in one period.
const WARNINGS: u32 = 5;

/// Counts what was logged in the current period.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    warnings: AtomicU32,
    /// Connections that ended without a HELLO, and the last of them.
    strangers: AtomicU64,
    last_stranger: Mutex<String>,
}

impl LogLimit {
    pub(crate) fn ended(&self, peer: &dyn fmt::Display, Ended { end, greeted }: &Ended) {
        if end.is_ordinary() {
            log::debug!("connection from {peer} ended: {end}");
        } else if *greeted {
            self.warn(format_args!("connection from {peer} ended: {end}"));
        } else {
            log::debug!("connection from {peer} ended before a HELLO: {end}");
            self.strangers.fetch_add(1, Ordering::Relaxed);
            *self.last_stranger.lock().unwrap_or_else(PoisonError::into_inner) =
                format!("{peer}: {end}");
        }
    }

    /// Logs a warning, or a debug line if there were enough warnings in this period.
    pub(crate) fn warn(&self, what: fmt::Arguments<'_>) {
        if self.warnings.fetch_add(1, Ordering::Relaxed) < WARNINGS {
            log::warn!("{what}");
        } else {
            log::debug!("{what}");
        }
    }

    /// Sums up the last period, and begins a new one.
    pub(crate) fn sum_up(&self) {
        match self.warnings.swap(0, Ordering::Relaxed).saturating_sub(WARNINGS) {
            0 => {}
            1 => log::warn!("1 more warning was left out; RUST_LOG=debug shows all of them"),
            more => log::warn!(
                "{more} more warnings like these were left out; RUST_LOG=debug shows all of them"
            ),
        }
        let strangers = self.strangers.swap(0, Ordering::Relaxed);
        if strangers > 0 {
            let last = self.last_stranger.lock().unwrap_or_else(PoisonError::into_inner);
            let (connections, were) =
                if strangers == 1 { ("connection", "was") } else { ("connections", "were") };
            log::info!(
                "{strangers} {connections} sent no HELLO and {were} ended; the last came from \
                 {last}. Only HAProxy should be able to connect here"
            );
        }
    }
}

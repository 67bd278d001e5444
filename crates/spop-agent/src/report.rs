//! What is said about connections that end, so that a log stays readable whatever connects.
//!
//! The ordinary ends (of which HAProxy from 3.1 on has resets only) and strangers (port scans,
//! browsers, plain TCP checks) are debug lines. What an operator should know is a warning, a few a
//! minute; the rest is counted and summed up.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::connection::End;

/// How often there is a summary.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);

/// Warnings in one period.
const WARNINGS: u32 = 5;

#[derive(Debug, Default)]
pub(crate) struct Report {
    warnings: AtomicU32,
    strangers: AtomicU64,
    last_stranger: Mutex<String>,
}

impl Report {
    /// A connection has ended. `greeted` says whether it sent a HELLO.
    pub(crate) fn ended(&self, peer: &dyn fmt::Display, end: &End, greeted: bool) {
        if end.is_ordinary() {
            log::debug!("connection from {peer} ended: {end}");
        } else if greeted {
            self.warn(format_args!("connection from {peer} ended: {end}"));
        } else {
            log::debug!("connection from {peer} ended before a HELLO: {end}");
            self.strangers.fetch_add(1, Ordering::Relaxed);
            *self.last_stranger.lock().unwrap_or_else(PoisonError::into_inner) =
                format!("{peer}: {end}");
        }
    }

    /// Says something, unless much was said already.
    pub(crate) fn warn(&self, what: fmt::Arguments<'_>) {
        if self.warnings.fetch_add(1, Ordering::Relaxed) < WARNINGS {
            log::warn!("{what}");
        } else {
            log::debug!("{what}");
        }
    }

    /// Sums up the last period and begins a new one.
    pub(crate) fn sum_up(&self) {
        let unsaid = self.warnings.swap(0, Ordering::Relaxed).saturating_sub(WARNINGS);
        if unsaid > 0 {
            log::warn!(
                "{unsaid} more warnings like these were left out; RUST_LOG=debug shows them all"
            );
        }
        let strangers = self.strangers.swap(0, Ordering::Relaxed);
        if strangers > 0 {
            let last = self.last_stranger.lock().unwrap_or_else(PoisonError::into_inner);
            log::info!(
                "{strangers} connections sent no HELLO and were ended; the last came from {last}. Only HAProxy should be able \
                 to connect here"
            );
        }
    }
}

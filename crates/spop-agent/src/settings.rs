//! The settings of an agent, which its author can change.

use std::num::NonZeroUsize;
use std::time::Duration;

use spop_codec::Limits;
use tokio::sync::Semaphore;

use crate::socket_file::SocketAccess;

/// The most connections that can be allowed: there are permits for twice as many.
pub(crate) const MOST_CONNECTIONS: usize = Semaphore::MAX_PERMITS / 2;

/// The settings of an [`Agent`](crate::Agent), which describes each at its method.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) deadline: Duration,
    pub(crate) max_in_flight: NonZeroUsize,
    pub(crate) max_buffered_bytes: usize,
    pub(crate) max_connections: usize,
    pub(crate) drain: Duration,
    pub(crate) busy_poll: Duration,
    pub(crate) socket_access: SocketAccess,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            deadline: Duration::from_secs(1),
            // HAProxy sends 20 NOTIFYs on a connection before it needs an answer, unless it is
            // configured to send more.
            max_in_flight: const { NonZeroUsize::new(64).unwrap() },
            // This is far more than HAProxy leaves incomplete or unread: almost one of the largest
            // frames of each of 10 000 connections.
            max_buffered_bytes: 256 << 20,
            max_connections: 10_000,
            drain: Duration::ZERO,
            busy_poll: Duration::ZERO,
            socket_access: SocketAccess::default(),
        }
    }
}

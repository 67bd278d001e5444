//! From a request to its answer: which bucket its messages belong to, and whether they conform.
//!
//! No socket, no task: an ordinary function of a request and a reading of the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use gcra_table::{KeyHash, Table};
use spop_agent::{Handler, Limits, Message, Reply, Request, Scope, VarName};

use crate::config::{Config, Limit};
use crate::key::write_part;

/// Decides about requests by one limit.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The table in use. A resize puts another one in its place.
    table: Arc<ArcSwap<Table>>,
    limit: Limit,
    key: Box<[Box<[u8]>]>,
    var: VarName<'static>,
    scope: Scope,
    undecided: Arc<AtomicU64>,
}

impl Limiter {
    pub(crate) fn new(table: Arc<ArcSwap<Table>>, config: &Config) -> Self {
        Self {
            table,
            limit: config.limit,
            key: config.key.iter().map(|name| name.as_bytes().into()).collect(),
            var: config.var,
            scope: config.scope,
            undecided: Arc::default(),
        }
    }

    /// The largest ACK is known, and small: so HAProxy may keep 20 NOTIFYs in flight even where its frames are
    /// small.
    pub(crate) fn limits(config: &Config) -> Limits {
        // Type, flags and two ids of ten bytes; then action, count, scope, length, name and value.
        const HEADER: usize = 1 + 4 + 10 + 10;
        let action = 4 + config.var.as_str().len() + 1;
        let max_ack_size = u32::try_from(HEADER + action).unwrap_or(u32::MAX);
        Limits { max_ack_size, ..Limits::default() }
    }

    /// How many messages could not be decided, because an arg that makes the key was not there.
    pub(crate) fn undecided(&self) -> Arc<AtomicU64> {
        self.undecided.clone()
    }

    /// The key of a message; `None` when it lacks an arg of the key.
    #[inline(always)]
    fn key_of(&self, table: &Table, message: &Message<'_>) -> Option<KeyHash> {
        let mut hasher = table.hasher();
        if self.key.is_empty() {
            for arg in message.args() {
                write_part(&mut hasher, arg.value);
            }
        } else {
            for name in &self.key {
                write_part(&mut hasher, message.arg(name)?);
            }
        }
        Some(hasher.finish())
    }

    /// Whether a message is blocked; `None` when that can't be decided.
    #[inline]
    fn is_blocked(&self, turn: &mut Turn, key: Option<KeyHash>) -> Option<bool> {
        let Some(key) = key else {
            self.undecided.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        match self.limit {
            Limit::Quota(quota) => Some(!turn.table.charge(key, quota, 1, &mut turn.now).is_allowed()),
            Limit::Deny => Some(true),
            Limit::Unlimited => Some(false),
        }
    }
}

/// What is read once for everything that came in one read.
#[derive(Debug)]
pub(crate) struct Turn {
    table: Guard<Arc<Table>>,
    now: u64,
}

impl Handler for Limiter {
    type Turn = Turn;

    /// The key of the first message. Its bucket is on its way from memory.
    type Prepared = Option<KeyHash>;

    #[inline]
    fn turn(&self) -> Turn {
        let table = self.table.load();
        let now = table.now();
        Turn { table, now }
    }

    #[inline(always)]
    fn prepare(&self, turn: &mut Turn, request: &Request<'_>) -> Option<KeyHash> {
        let key = self.key_of(&turn.table, &request.messages().next()?)?;
        turn.table.prefetch(key);
        Some(key)
    }

    /// Every message is charged; the request is blocked when one of them is. Where no message could be decided nothing
    /// is set, and HAProxy's rules see that the variable is missing.
    #[inline(always)]
    fn answer(&self, turn: &mut Turn, first: Option<KeyHash>, request: &Request<'_>, reply: &mut Reply<'_>) {
        let mut messages = request.messages();
        if messages.next().is_none() {
            return;
        }
        let mut blocked = self.is_blocked(turn, first);
        for message in messages {
            let key = self.key_of(&turn.table, &message);
            let next = self.is_blocked(turn, key);
            blocked = match (blocked, next) {
                (Some(one), Some(other)) => Some(one || other),
                (one, other) => one.or(other),
            };
        }
        if let Some(blocked) = blocked {
            // It fits: `limits` counted it.
            let _ = reply.set_var(self.scope, self.var, blocked);
        }
    }
}

//! From a request to its answer: which bucket its messages belong to, and whether they conform.
//!
//! No socket, no task: an ordinary function of a request and a reading of the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gcra_table::{KeyHash, KeyHasher, Table};
use spop_agent::{Handler, Limits, Message, Reply, Request, Scope, Value, VarName};

use crate::config::{Config, Limit};

/// Decides about requests by one limit.
#[derive(Debug)]
pub(crate) struct Limiter {
    table: Arc<Table>,
    limit: Limit,
    key: Box<[Box<[u8]>]>,
    var: VarName<'static>,
    scope: Scope,
    undecided: Arc<AtomicU64>,
}

impl Limiter {
    pub(crate) fn new(table: Arc<Table>, config: &Config) -> Self {
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
    ///
    /// Each part begins with its type and, where lengths vary, its length, so that no two lists of parts are alike.
    /// An IPv4 address counts as the same in either of its forms.
    #[inline(always)]
    fn key_of(&self, message: &Message<'_>) -> Option<KeyHash> {
        let mut hasher = self.table.hasher();
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
    fn is_blocked(&self, key: Option<KeyHash>, now: &mut u64) -> Option<bool> {
        let Some(key) = key else {
            self.undecided.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        match self.limit {
            Limit::Quota(quota) => Some(!self.table.charge(key, quota, 1, now).is_allowed()),
            Limit::Deny => Some(true),
            Limit::Unlimited => Some(false),
        }
    }
}

impl Handler for Limiter {
    /// The clock, read once for everything that came in one read.
    type Turn = u64;

    /// The key of the first message. Its bucket is on its way from memory.
    type Prepared = Option<KeyHash>;

    #[inline]
    fn turn(&self) -> u64 {
        self.table.now()
    }

    #[inline(always)]
    fn prepare(&self, request: &Request<'_>) -> Option<KeyHash> {
        let key = self.key_of(&request.messages().next()?)?;
        self.table.prefetch(key);
        Some(key)
    }

    /// Every message is charged; the request is blocked when one of them is. Where no message could be decided nothing
    /// is set, and HAProxy's rules see that the variable is missing.
    #[inline(always)]
    fn answer(&self, now: &mut u64, first: Option<KeyHash>, request: &Request<'_>, reply: &mut Reply<'_>) {
        let mut messages = request.messages();
        if messages.next().is_none() {
            return;
        }
        let mut blocked = self.is_blocked(first, now);
        for message in messages {
            let next = self.is_blocked(self.key_of(&message), now);
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

/// Writes one part of a key: its type, its length where that varies, its value.
#[inline(always)]
fn write_part(hasher: &mut KeyHasher, value: Value<'_>) {
    match value {
        Value::Null => hasher.write(&[0]),
        Value::Bool(bool) => hasher.write(&[1, u8::from(bool)]),
        Value::Int32(integer) => hasher.write(&fixed::<4, 5>(2, integer.to_le_bytes())),
        Value::Uint32(integer) => hasher.write(&fixed::<4, 5>(3, integer.to_le_bytes())),
        Value::Int64(integer) => hasher.write(&fixed::<8, 9>(4, integer.to_le_bytes())),
        Value::Uint64(integer) => hasher.write(&fixed::<8, 9>(5, integer.to_le_bytes())),
        Value::Ipv4(ip) => hasher.write(&fixed::<4, 5>(6, ip.octets())),
        Value::Ipv6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => hasher.write(&fixed::<4, 5>(6, ip.octets())),
            None => hasher.write(&fixed::<16, 17>(7, ip.octets())),
        },
        Value::String(bytes) => {
            hasher.write(&fixed::<8, 9>(8, (bytes.len() as u64).to_le_bytes()));
            hasher.write(bytes);
        }
        Value::Binary(bytes) => {
            hasher.write(&fixed::<8, 9>(9, (bytes.len() as u64).to_le_bytes()));
            hasher.write(bytes);
        }
    }
}

/// A type and its value in one piece, because each write to the hasher costs more than its bytes.
#[inline]
fn fixed<const VALUE: usize, const PART: usize>(tag: u8, value: [u8; VALUE]) -> [u8; PART] {
    const { assert!(PART == VALUE + 1) };
    let mut part = [tag; PART];
    part[1..].copy_from_slice(&value);
    part
}

//! From a request to its answer: which bucket its messages belong to, and whether they conform.
//!
//! No socket, no task: an ordinary function of a request and a reading of the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use gcra_table::{KeyHash, Table};
use spop_agent::{Handler, Limits, Message, Reply, Request, Scope, Value, VarName};

use crate::config::{Config, Limit};
use crate::key::write_part;
use crate::name::write_name;
use crate::stats::{Lane, Outcome, PolicyStats};

/// Decides about requests by one limit.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The table in use. A resize puts another one in its place.
    table: Arc<ArcSwap<Table>>,
    limit: Limit,
    key: Box<[Box<[u8]>]>,
    cost: Option<Box<[u8]>>,
    var: VarName<'static>,
    scope: Scope,
    undecided: Arc<AtomicU64>,
    stats: Arc<PolicyStats>,
}

impl Limiter {
    pub(crate) fn new(table: Arc<ArcSwap<Table>>, config: &Config, stats: Arc<PolicyStats>) -> Self {
        Self {
            table,
            limit: config.limit,
            key: config.key.iter().map(|name| name.as_bytes().into()).collect(),
            cost: config.cost.as_ref().map(|name| name.as_bytes().into()),
            var: config.var,
            scope: config.scope,
            undecided: Arc::default(),
            stats,
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

    /// How many messages could not be decided, because an arg that makes the key was not there, or the cost was none.
    pub(crate) fn undecided(&self) -> Arc<AtomicU64> {
        self.undecided.clone()
    }

    /// What is asked about a message; `None` when it lacks an arg of the key, or its cost is none.
    #[inline(always)]
    fn question(&self, table: &Table, message: &Message<'_>) -> Option<Question> {
        let mut hasher = table.hasher();
        if self.key.is_empty() {
            for arg in message.args().filter(|arg| self.cost.as_deref() != Some(arg.name)) {
                write_part(&mut hasher, arg.value);
            }
        } else {
            for name in &self.key {
                write_part(&mut hasher, message.arg(name)?);
            }
        }
        let cells = match &self.cost {
            None => 1,
            Some(name) => cells(message.arg(name).unwrap_or(Value::Null))?,
        };
        Some(Question { key: hasher.finish(), cells })
    }

    /// Whether a message is blocked; `None` when that can't be decided.
    #[inline]
    fn is_blocked(&self, turn: &mut Turn, question: Option<Question>, message: &Message<'_>) -> Option<bool> {
        let Some(Question { key, cells }) = question else {
            self.undecided.fetch_add(1, Ordering::Relaxed);
            self.stats.count_undecided(turn.lane);
            return None;
        };
        let blocked = match self.limit {
            Limit::Quota(quota) => !turn.table.charge(key, quota, cells, &mut turn.now).is_allowed(),
            Limit::Deny => true,
            Limit::Unlimited => false,
        };
        let outcome = if blocked { Outcome::Blocked } else { Outcome::Allowed };
        self.stats.count(turn.lane, outcome, key, |name| self.write_name(name, key, message));
        Some(blocked)
    }

    /// Writes what the client of a message is called.
    #[cold]
    fn write_name(&self, name: &mut String, key: KeyHash, message: &Message<'_>) {
        if self.key.is_empty() {
            let args = message.args().filter(|arg| self.cost.as_deref() != Some(arg.name));
            write_name(name, key, args.map(|arg| arg.value));
        } else {
            write_name(name, key, self.key.iter().filter_map(|name| message.arg(name)));
        }
    }
}

/// Whose bucket a message is charged to, and how many cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    key: KeyHash,
    cells: u32,
}

/// The cells that a cost stands for. Null, which HAProxy sends for what it could not find, is one cell as it would be without
/// a cost; what is negative or no integer is no cost.
fn cells(cost: Value<'_>) -> Option<u32> {
    let cells = match cost {
        Value::Null => 1,
        Value::Int32(integer) => integer.try_into().ok()?,
        Value::Int64(integer) => integer.try_into().ok()?,
        Value::Uint32(integer) => integer.into(),
        Value::Uint64(integer) => integer,
        Value::Bool(_) | Value::Ipv4(_) | Value::Ipv6(_) | Value::String(_) | Value::Binary(_) => {
            return None;
        }
    };
    // Still more than any burst but the largest there can be.
    Some(u32::try_from(cells).unwrap_or(u32::MAX))
}

/// What is read once for everything that came in one read.
#[derive(Debug)]
pub(crate) struct Turn {
    table: Guard<Arc<Table>>,
    now: u64,
    lane: Lane,
}

impl Handler for Limiter {
    type Turn = Turn;

    /// What is asked about the first message. Its bucket is on its way from memory.
    type Prepared = Option<Question>;

    #[inline]
    fn turn(&self) -> Turn {
        let table = self.table.load();
        let now = table.now();
        Turn { table, now, lane: Lane::of_this_thread() }
    }

    #[inline(always)]
    fn prepare(&self, turn: &mut Turn, request: &Request<'_>) -> Option<Question> {
        let question = self.question(&turn.table, &request.messages().next()?)?;
        turn.table.prefetch(question.key);
        Some(question)
    }

    /// Every message is charged; the request is blocked when one of them is. Where no message could be decided nothing
    /// is set, and HAProxy's rules see that the variable is missing.
    #[inline(always)]
    fn answer(&self, turn: &mut Turn, first: Option<Question>, request: &Request<'_>, reply: &mut Reply<'_>) {
        let mut messages = request.messages();
        let Some(message) = messages.next() else {
            return;
        };
        let mut blocked = self.is_blocked(turn, first, &message);
        for message in messages {
            let question = self.question(&turn.table, &message);
            let next = self.is_blocked(turn, question, &message);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_whole_number_of_any_type() {
        let costs = [3_i32.into(), 3_u32.into(), 3_i64.into(), 3_u64.into()];
        assert_eq!(costs.map(cells), [Some(3); 4]);
        assert_eq!([cells(0_i32.into()), cells(0_u64.into())], [Some(0); 2], "a peek");
        assert_eq!(cells(Value::Null), Some(1));
    }

    #[test]
    fn a_cost_beyond_the_tables_largest_is_the_largest() {
        assert_eq!(cells(u64::from(u32::MAX).into()), Some(u32::MAX));
        assert_eq!(cells((1_i64 << 32).into()), Some(u32::MAX));
        assert_eq!(cells(u64::MAX.into()), Some(u32::MAX));
    }

    #[test]
    fn what_is_negative_or_no_integer_is_no_cost() {
        for value in [(-1_i32).into(), i64::MIN.into(), true.into(), "3".into(), b"3"[..].into()] {
            assert_eq!(cells(value), None, "{value:?}");
        }
    }
}

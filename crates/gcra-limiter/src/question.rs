//! The decision that a message asks for: by which rule, for which key, for how many cells.

// ADR 13: A message without an arg of the key has no decision.
// ADR 40: A limit may read the message itself.

use gcra_policy::limit_from_arg::ArgValue;
use gcra_policy::{LimitPlace, Policies, Policy, Price, RuleAt};
use gcra_table::{KeyHash, Table};
use spop_agent::{Message, Value};

use crate::active_policies::{ActivePolicies, ActivePolicy, Hashing};
use crate::limit_bucket::{LimitBucket, lacks_a_key, note_said};
use crate::message_key::{hash_exact, hash_key};

/// The decision that a message asks for.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The index of the policy.
    pub policy: usize,
    pub rule: RuleAt,
    pub cells: u32,
    /// The hash of the key. Each limit makes a hash of its own from it.
    pub key: KeyHash,
}

/// Why nothing can be decided about a message.
#[derive(Clone, Copy, Debug)]
pub enum Unanswerable {
    NoMessage,
    /// No policy is for the message.
    Unmatched,
    /// The policy with this index is for the message, but an arg of its key has no value or the
    /// cost is not a valid one.
    Undecided(usize),
}

impl Unanswerable {
    /// The index of the policy whose requests the message settles, if that is why nothing can be
    /// decided about it.
    pub fn settles(self, policies: &Policies, message: &Message<'_>) -> Option<usize> {
        matches!(self, Self::Unmatched).then(|| policies.settled_by(message)).flatten()
    }
}

/// Which question about a message this is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Occasion {
    /// The first one. The numbers that the message says are counted and written down.
    First,
    /// One more about a request that has waited. The numbers that the message says are written
    /// down, because the table may be another one by now, and were counted before.
    Again,
    /// No client has sent the message.
    IfSent,
}

impl Question {
    /// The question to the trial of its policy. An override has no trial.
    pub fn of_trial(self, policy: &Policy) -> Option<Self> {
        let trial = policy.trial.filter(|_| !self.rule.is_override())?;
        Some(Self { policy: trial, ..self })
    }

    /// Where the limit with this place in the rule is.
    pub(crate) const fn place(self, limit: u32) -> LimitPlace {
        LimitPlace { policy: self.policy, rule: self.rule, limit }
    }

    /// Finds the policy for a message that is decided, and its key and its cost. Counts and writes
    /// down what the message says about numbers.
    #[inline(always)]
    pub fn new(
        in_force: &ActivePolicies,
        table: &Table,
        message: &Message<'_>,
    ) -> Result<Self, Unanswerable> {
        Self::find(in_force, table, message, Occasion::First)
    }

    /// As [`new`](Self::new), for a message that was asked about before its request had to wait.
    /// It was counted then.
    pub fn again(
        in_force: &ActivePolicies,
        table: &Table,
        message: &Message<'_>,
    ) -> Result<Self, Unanswerable> {
        Self::find(in_force, table, message, Occasion::Again)
    }

    /// The question about a message that no client has sent.
    pub fn if_sent(
        in_force: &ActivePolicies,
        table: &Table,
        message: &Message<'_>,
    ) -> Result<Self, Unanswerable> {
        Self::find(in_force, table, message, Occasion::IfSent)
    }

    #[inline(always)]
    fn find(
        in_force: &ActivePolicies,
        table: &Table,
        message: &Message<'_>,
        asked: Occasion,
    ) -> Result<Self, Unanswerable> {
        let args = message.args();
        let policies = &in_force.policies;
        let index = policies.of(&message.clone()).ok_or(Unanswerable::Unmatched)?;
        let row = in_force.row(index);
        let policy = &row.policy;
        let without = policy.price.cells_without_value();
        let cells = match policy.price.arg() {
            None => without,
            Some(name) => cells(message.arg(name).unwrap_or(Value::Null), without)
                .ok_or(Unanswerable::Undecided(index))?,
        };
        let (key, overridden) = match row.hashing {
            Hashing::Exact => hash_exact(table.hasher(), policy, args).map(|key| (key, None)),
            // A copy is lent, so that the other branch keeps the message in registers.
            Hashing::Mapped => mapped(row, table, &message.clone(), asked),
        }
        .ok_or(Unanswerable::Undecided(index))?;
        Ok(Self { policy: index, rule: RuleAt::new(overridden), cells, key })
    }

    /// The question about one cell of a message's key, under the policy with this index, whether
    /// that is the one for the message or not. `None` when an arg of the key is missing.
    pub fn under(
        in_force: &ActivePolicies,
        table: &Table,
        index: usize,
        message: &Message<'_>,
    ) -> Option<Self> {
        let (key, overridden) = hash_key(table.hasher(), &in_force.row(index).policy, message)?;
        Some(Self { policy: index, rule: RuleAt::new(overridden), cells: 1, key })
    }
}

/// Starts to fetch the buckets of all limits that a message is asked about by this policy, whose
/// rule for the key is `rule`. `message` is called for policies that read messages.
#[inline(never)]
pub(crate) fn prefetch_limits<'m>(
    table: &Table,
    in_force: &ActivePolicies,
    row: &ActivePolicy,
    rule: RuleAt,
    key: KeyHash,
    message: impl FnOnce() -> Option<Message<'m>>,
) {
    let trial = row.policy.trial.map(|trial| in_force.row(trial));
    let reads_messages = row.reads_messages || trial.is_some_and(|trial| trial.reads_messages);
    let message = if reads_messages { message() } else { None };
    for limit in row.policy.rule(rule).limits() {
        LimitBucket::prefetch_of(table, limit, key, message.as_ref());
    }
    if let Some(trial) = trial {
        for limit in trial.policy.rule.limits() {
            LimitBucket::prefetch_of(table, limit, key, message.as_ref());
        }
    }
}

/// The hash of a message's key, and the index of the rule that overrides the policy's for it.
/// `None` when an arg has no value, of the policy's key or of one that a limit has of its own.
#[inline(never)]
fn mapped(
    row: &ActivePolicy,
    table: &Table,
    message: &Message<'_>,
    asked: Occasion,
) -> Option<(KeyHash, Option<u32>)> {
    let (key, overridden) = hash_key(table.hasher(), &row.policy, message)?;
    if row.reads_messages {
        let limits = row.policy.rule(RuleAt::new(overridden)).limits();
        if lacks_a_key(limits, message) {
            // Nothing is asked of the limits of a client that there is an order about.
            let order = row.order(key, message, table.now());
            return order.is_some().then_some((key, overridden));
        }
        if asked != Occasion::IfSent {
            for (by_arg, said) in note_said(table, limits, message) {
                if asked == Occasion::First {
                    row.stats.seldom.limit_args.add(said as usize, 1);
                    if said == ArgValue::Invalid {
                        row.mistaken.note_no_limit(by_arg, message);
                    }
                }
            }
        }
    }
    Some((key, overridden))
}

/// The number of cells that the value of a cost arg stands for; `None` when it is negative or not
/// a number.
///
/// Null, which HAProxy sends when it has no value, is as without a cost.
fn cells(cost: Value<'_>, without: u32) -> Option<u32> {
    match cost {
        Value::Null => Some(without),
        // A larger one is still more than the largest burst of a rate (`gcra_table::MAX_BURST`).
        cost => Price::cells_of(cost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_whole_number_of_any_type() {
        let costs = [3_i32.into(), 3_u32.into(), 3_i64.into(), 3_u64.into()];
        assert_eq!(costs.map(|cost| cells(cost, 1)), [Some(3); 4]);
        let nothing = [0_i32.into(), 0_u64.into()];
        assert_eq!(nothing.map(|cost| cells(cost, 1)), [Some(0); 2], "a peek");
        assert_eq!([1, 0].map(|without| cells(Value::Null, without)), [Some(1), Some(0)]);
    }

    #[test]
    fn a_cost_above_the_largest_burst_is_the_largest_number() {
        assert_eq!(cells(u64::from(u32::MAX).into(), 1), Some(u32::MAX));
        assert_eq!(cells((1_i64 << 32).into(), 1), Some(u32::MAX));
        assert_eq!(cells(u64::MAX.into(), 1), Some(u32::MAX));
    }

    #[test]
    fn a_negative_cost_and_one_that_is_not_an_integer_are_not_valid() {
        for value in [(-1_i32).into(), i64::MIN.into(), true.into(), "-3".into(), "3 s".into()] {
            assert_eq!(cells(value, 1), None, "{value:?}");
        }
    }
}

//! The bucket that a limit has for a message. Usually that follows from the policy's key, which is
//! hashed once. But a limit can have a key of its own, and numbers that the message says.

// ADR 15: Each limit of a key has lines of its own.
// ADR 40: A limit may read the message itself.

use gcra_policy::key_bytes::{
    KeyWriter, write_any_case, write_fallback, write_narrowed, write_part,
};
use gcra_policy::limit_from_arg::{ArgValue, ByArg};
use gcra_policy::sharing::lent;
use gcra_policy::{KeyParts, Limit, LimitNumbers, Policies, SaltInForce};
use gcra_table::{KeyHash, LeaseKey, LeaseNumbers, Quota, Table};
use spop_agent::{Message, Value};

use crate::message_key::write;

/// The bucket of a limit, as the table knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LimitBucket {
    pub key: KeyHash,
    pub quota: Quota,
}

impl LimitBucket {
    /// Whether both are the same bucket of the table. The longest delay tells none apart.
    pub(crate) fn is_same(self, other: Self) -> bool {
        let of = |it: Self| (it.key, it.quota.without_delay());
        of(self) == of(other)
    }

    /// The bucket of a limit for a message whose key by the policy has the hash `key`. Without the
    /// message, the one that a limit has by the policy's key, and by its own numbers.
    #[inline(always)]
    pub fn of(table: &Table, limit: &Limit, key: KeyHash, message: Option<&Message<'_>>) -> Self {
        let key = match (&limit.key, message) {
            // `Question` has seen that it has a value, or that there is an order.
            (Some(parts), Some(message)) => own_key(table, parts, message).unwrap_or(key),
            _ => key,
        };
        Self { key: key.under(limit.salt(table)), quota: limit.quota(message) }
    }

    /// A number that stands for this bucket of a limit; of a limit that counts in windows, for
    /// that of the window of this moment.
    pub fn mark(self, table: &Table, limit: &Limit) -> u32 {
        match limit.calendar() {
            None => self.key.mark(self.quota),
            Some(calendar) => calendar.window(table.wall_reading()).mark(self.key),
        }
    }

    /// By which this machine finds what the store has lent it of this bucket. One record in the
    /// store has one lease: both follow from the key, the identity of the limit, and the numbers
    /// of the record.
    pub fn lease_key(self, limit: &Limit) -> LeaseKey {
        LeaseKey::new(self.key, lease_numbers(limit, self.quota))
    }

    /// Starts to fetch the memory that a charge under this limit will need, as [`of`](Self::of).
    #[inline(always)]
    pub(crate) fn prefetch_of(
        table: &Table,
        limit: &Limit,
        key: KeyHash,
        message: Option<&Message<'_>>,
    ) {
        match limit {
            // The usual case. A copy of the quota would take longer than the rest.
            Limit {
                numbers: LimitNumbers::Fixed(quota),
                key: None,
                salt: SaltInForce(Some(salt)),
                ..
            } => {
                table.place(key.under(*salt), quota);
            }
            _ => Self::of(table, limit, key, message).prefetch(table, limit),
        }
    }

    /// Starts to fetch the memory that a charge of the bucket of this limit will need.
    #[inline(never)]
    pub fn prefetch(self, table: &Table, limit: &Limit) {
        match limit.calendar() {
            None => table.prefetch(self.key, self.quota),
            Some(calendar) => {
                table.prefetch_count(self.key, calendar.window(table.wall_reading()));
            }
        }
    }
}

/// By what the leases of a limit differ that has these numbers.
pub(crate) fn lease_numbers(limit: &Limit, quota: Quota) -> LeaseNumbers {
    match limit.calendar() {
        // Counts are not lent.
        Some(_) => LeaseNumbers::new(&[]),
        // A limit that the store cannot compute is not lent.
        None => LeaseNumbers::new(&lent(quota).map_or([0; 5], |limit| limit.numbers())),
    }
}

/// Writes the numbers that a message says for these limits into the table, so that its client can
/// be reset under them, and returns what it says about each. Before anything is charged
/// by these numbers, this is called for a message that an agent decides.
pub(crate) fn note_said<'l>(
    table: &Table,
    limits: &'l [Limit],
    message: &Message<'_>,
) -> impl Iterator<Item = (&'l ByArg, ArgValue)> {
    limits.iter().filter_map(move |limit| {
        let write_down = |quota| table.board().add_said(limit.id, quota);
        let by_arg = limit.by_arg()?;
        Some((by_arg, by_arg.note(message, write_down).said))
    })
}

/// The hash of the key that a limit has of its own. `None` when one of its args has no value.
#[cold]
fn own_key(table: &Table, parts: &KeyParts, message: &Message<'_>) -> Option<KeyHash> {
    let mut hasher = table.hasher();
    write_own_key(&mut hasher, parts, message)?;
    Some(hasher.finish())
}

/// The bytes of such a key, the same on all hosts.
pub(crate) fn own_key_bytes(parts: &KeyParts, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = write_own_key(&mut bytes, parts, message);
    bytes
}

/// Writes each value behind the name of its arg, with the prefix length of a network, and with
/// what `lowercase` says of strings. So two limits with one name that count by other args, or
/// group values in another way, share no bucket where their values are equal.
fn write_own_key(
    writer: &mut impl KeyWriter,
    parts: &KeyParts,
    message: &Message<'_>,
) -> Option<()> {
    for arg in &parts.args {
        let (name, value) = match message.arg(&arg.name) {
            None | Some(Value::Null) => {
                let (value, number) = arg.fallback(message)?;
                if number > 0 {
                    write_fallback(writer, number);
                }
                let place = usize::from(number).checked_sub(1);
                (place.and_then(|place| arg.fallbacks.get(place)).unwrap_or(&arg.name), value)
            }
            Some(value) => (&arg.name, value),
        };
        write_part(writer, Value::String(name));
        let part = parts.group(value, 0);
        write(writer, parts, part);
        if let Some(prefix) = parts.prefix_of(part) {
            write_narrowed(writer, prefix);
        }
        if parts.lowercase && matches!(value, Value::String(_)) {
            write_any_case(writer);
        }
    }
    Some(())
}

/// Whether one of the limits has a key of its own for which the message has no value.
pub fn lacks_a_key(limits: &[Limit], message: &Message<'_>) -> bool {
    let keys = limits.iter().filter_map(|limit| limit.key.as_ref());
    keys.flat_map(|parts| &parts.args).any(|arg| arg.lacks(message).is_some())
}

/// Writes down the numbers that messages have said to this process, where the table does not have
/// them: it is another table since.
pub fn write_down_said(policies: &Policies, table: &Table) {
    for limit in policies.list.iter().flat_map(|policy| policy.limits()) {
        let Some(by_arg) = limit.by_arg() else { continue };
        let known = table.board().said_of(limit.id);
        for quota in by_arg.quotas() {
            if !known.contains(&quota.without_delay()) {
                table.board().add_said(limit.id, quota);
            }
        }
    }
}

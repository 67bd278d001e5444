//! What is limited, and how: policies, each with limits that a request must all meet.
//!
//! The command line's flags are one policy for every message; a file (`file`) has as many as
//! wanted. Nothing here is text any more: what an operator wrote was checked when it was read.

pub(crate) mod answer;
mod exception;
pub(crate) mod file;
#[cfg(test)]
mod tests;
mod words;

use std::net::{Ipv4Addr, Ipv6Addr};

use ahash::AHashMap;
use arrayvec::ArrayVec;
use gcra_table::{KeyHash, Quota, Table, limit_id};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use spop_agent::{Message, Value};

use crate::policy::answer::Answers;
use crate::watch::Seen;

/// Limits that one request is charged for at most.
pub(crate) const MAX_LIMITS: usize = 4;

/// All policies, in the order of the file: the first that fits a message is taken.
#[derive(Debug)]
pub(crate) struct Policies {
    pub(crate) list: Vec<Policy>,
    pub(crate) answers: Answers,
    /// The files that were read for them, in the state in which they were.
    pub(crate) files: Vec<Seen>,
    /// Of all text that was read for them: equal where nothing has changed.
    pub(crate) digest: u64,
}

/// Which of a policy's rules holds: that of an exception, or the default.
// No enum: one in what is kept for each request would have it copied in pieces that don't fit how
// they are read again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RuleAt(u32);

impl RuleAt {
    /// The place of an exception, if there is one for the key.
    pub(crate) fn new(exception: Option<u32>) -> Self {
        Self(exception.unwrap_or(u32::MAX))
    }

    /// Whether it is that of an override.
    pub(crate) fn is_override(self) -> bool {
        self.0 != u32::MAX
    }
}

/// Who is limited, and how.
#[derive(Debug, PartialEq)]
pub(crate) struct Policy {
    pub(crate) name: Box<str>,
    /// The message it is for; `None` for all of them.
    pub(crate) message: Option<Box<[u8]>>,
    pub(crate) when: Option<When>,
    pub(crate) key: KeyParts,
    /// The arg that carries the cost.
    pub(crate) cost: Option<Box<[u8]>>,
    pub(crate) rule: Rule,
    pub(crate) overrides: Overrides,
    /// Nobody is blocked; it is only said who would be.
    pub(crate) observes: bool,
    pub(crate) penalty: Option<Penalty>,
    pub(crate) hashing: Hashing,
}

/// How the key of a policy's messages is hashed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Hashing {
    /// The values as they are, which takes the fewest steps.
    Exact,
    /// Addresses are grouped, strings are in lower case, some args are left out, or some values
    /// have overrides. This is right for every policy.
    Mapped,
}

impl Hashing {
    /// Of a policy with these parts.
    pub(crate) fn of(
        key: &KeyParts,
        cost: Option<&[u8]>,
        when: Option<&When>,
        overrides: &Overrides,
    ) -> Self {
        let KeyParts { args, ipv4_prefix, ipv6_prefix, lowercase } = key;
        let groups = *ipv4_prefix < 32 || *ipv6_prefix < 128 || *lowercase;
        let leaves_out = args.is_empty() && (cost.is_some() || when.is_some());
        if groups || leaves_out || !overrides.is_empty() { Self::Mapped } else { Self::Exact }
    }
}

/// An arg, and the values with which the policy holds.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct When {
    pub(crate) arg: Box<[u8]>,
    pub(crate) values: Vec<Box<[u8]>>,
}

/// What makes the key of a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyParts {
    /// Names of args; none for all args, but that of the cost and that of `when`.
    pub(crate) args: Vec<Box<[u8]>>,
    pub(crate) ipv4_prefix: u8,
    pub(crate) ipv6_prefix: u8,
    pub(crate) lowercase: bool,
}

impl KeyParts {
    /// Every value by itself.
    pub(crate) fn exact(args: Vec<Box<[u8]>>) -> Self {
        Self { args, ipv4_prefix: 32, ipv6_prefix: 128, lowercase: false }
    }

    /// A value as it is part of a key: of an address the network, which has at least so many bits.
    #[inline]
    fn group<'a>(&self, value: Value<'a>, least_prefix: u8) -> Part<'a> {
        let v4 = |ip| {
            let prefix = self.ipv4_prefix.max(least_prefix);
            Part {
                value: Value::Ipv4(network_v4(ip, prefix)),
                narrowed: (prefix > self.ipv4_prefix).then_some(prefix),
            }
        };
        match value {
            Value::Ipv4(ip) => v4(ip),
            Value::Ipv6(ip) => match ip.to_ipv4_mapped() {
                Some(ip) => v4(ip),
                None => {
                    let prefix = self.ipv6_prefix.max(least_prefix);
                    Part {
                        value: Value::Ipv6(network_v6(ip, prefix)),
                        narrowed: (prefix > self.ipv6_prefix).then_some(prefix),
                    }
                }
            },
            value => Part { value, narrowed: None },
        }
    }
}

/// A part of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) value: Value<'a>,
    /// The length of an address's network, where that is an exception's and not the policy's.
    pub(crate) narrowed: Option<u8>,
}

fn network_v4(ip: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    (u32::from(ip) & mask).into()
}

fn network_v6(ip: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    (u128::from(ip) & mask).into()
}

/// What holds for a key.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Rule {
    /// All of them have to be met. There is at least one.
    Limits(Vec<Limit>),
    Deny,
    Unlimited,
}

impl Rule {
    pub(crate) fn limits(&self) -> &[Limit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Deny | Self::Unlimited => &[],
        }
    }

    fn limits_mut(&mut self) -> &mut [Limit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Deny | Self::Unlimited => &mut [],
        }
    }
}

/// A quota, and what it is called.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Limit {
    /// For people and headers.
    pub(crate) label: Box<str>,
    /// What tells this limit's buckets from those of other limits on the same key: it follows
    /// from the names of the policy and the limit. 0 for the only limit that the flags can
    /// give. (The table tells apart the buckets of quotas with other numbers.)
    pub(crate) id: u64,
    pub(crate) quota: Quota,
    /// As it was written: "10/s burst 20".
    pub(crate) text: Box<str>,
}

impl Limit {
    pub(crate) fn new(
        policy: &str,
        name: &str,
        label: String,
        quota: Quota,
        text: String,
    ) -> Self {
        let id = limit_id(&[policy.as_bytes(), name.as_bytes()]);
        Self { label: label.into(), id, quota, text: text.into() }
    }

    /// The key by which this limit counts, for a key of its policy.
    #[inline]
    pub(crate) fn key(&self, table: &Table, key: KeyHash) -> KeyHash {
        key_for(self.id, table, key)
    }
}

/// The key by which the limit with this id counts, for a key of its policy.
#[inline]
pub(crate) fn key_for(limit_id: u64, table: &Table, key: KeyHash) -> KeyHash {
    if limit_id == 0 { key } else { table.derive(key, limit_id) }
}

/// What a client is charged who goes on asking while it is blocked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Penalty {
    pub(crate) cells: u32,
    /// However it goes on, it gets back in after so long a silence, beyond what the limit itself
    /// takes to drain.
    pub(crate) ceiling_ns: u64,
}

/// Exceptions by address and by value: places in a list of rules.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Overrides {
    pub(crate) rules: Vec<Rule>,
    pub(crate) v4: PrefixMap<Ipv4Net, u32>,
    pub(crate) v6: PrefixMap<Ipv6Net, u32>,
    pub(crate) values: AHashMap<Box<[u8]>, u32>,
}

impl Overrides {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many IPv4 networks, IPv6 networks and values one of the rules is for.
    pub(crate) fn counts(&self, rule: usize) -> (usize, usize, usize) {
        let ours = |index: &u32| *index as usize == rule;
        let (v4, v6) = (
            self.v4.values().filter(|index| ours(index)),
            self.v6.values().filter(|index| ours(index)),
        );
        (v4.count(), v6.count(), self.values.values().filter(|index| ours(index)).count())
    }

    pub(crate) fn insert(&mut self, key: OverrideKey, rule: u32) -> Option<u32> {
        match key {
            OverrideKey::Net(IpNet::V4(net)) => self.v4.insert(net, rule),
            OverrideKey::Net(IpNet::V6(net)) => self.v6.insert(net, rule),
            OverrideKey::Value(value) => self.values.insert(value, rule),
        }
    }

    /// The exception for a value of the key, if there is one. Of networks the smallest counts.
    #[inline]
    fn find(&self, value: Value<'_>, lowercase: bool) -> Option<Exception> {
        let v4 = |ip: Ipv4Addr| {
            let (network, rule) = self.v4.get_lpm(&Ipv4Net::from(ip))?;
            Some(Exception { rule: *rule, prefix: network.prefix_len() })
        };
        let rule = match value {
            Value::Ipv4(ip) => return v4(ip),
            Value::Ipv6(ip) => {
                return match ip.to_ipv4_mapped() {
                    Some(ip) => v4(ip),
                    None => {
                        let (network, rule) = self.v6.get_lpm(&Ipv6Net::from(ip))?;
                        Some(Exception { rule: *rule, prefix: network.prefix_len() })
                    }
                };
            }
            Value::String(bytes) if lowercase => {
                // Longer ones are no exceptions.
                let mut lower = ArrayVec::<u8, MAX_VALUE>::new();
                lower.try_extend_from_slice(bytes).ok()?;
                lower.make_ascii_lowercase();
                self.values.get(&*lower)?
            }
            Value::String(bytes) | Value::Binary(bytes) => self.values.get(bytes)?,
            Value::Null
            | Value::Bool(_)
            | Value::Int32(_)
            | Value::Uint32(_)
            | Value::Int64(_)
            | Value::Uint64(_) => return None,
        };
        Some(Exception { rule: *rule, prefix: 0 })
    }
}

/// What holds for a value that is an exception.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exception {
    /// Its place in the list of rules.
    rule: u32,
    /// For an address, how many bits it has in common with the exception's network; else 0.
    prefix: u8,
}

/// The longest value that can be an exception, in bytes.
pub(crate) const MAX_VALUE: usize = 256;

/// Whom an exception is for.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum OverrideKey {
    Net(IpNet),
    Value(Box<[u8]>),
}

impl Policies {
    /// The same with other policies.
    pub(crate) fn with_list(&self, list: Vec<Policy>) -> Self {
        Self {
            list,
            answers: self.answers.clone(),
            files: Vec::new(),
            // Of no text that was read.
            digest: 0,
        }
    }

    /// The first policy that is for this message.
    #[inline]
    pub(crate) fn of(&self, message: &Message<'_>) -> Option<usize> {
        self.list.iter().position(|policy| policy.is_for(message))
    }
}

impl Policy {
    #[inline]
    fn is_for(&self, message: &Message<'_>) -> bool {
        let named = self.message.as_ref().is_none_or(|name| **name == *message.name);
        named
            && self.when.as_ref().is_none_or(|When { arg, values }| {
                let value = message.arg(arg).and_then(|value| value.as_bytes());
                value.is_some_and(|value| values.iter().any(|wanted| **wanted == *value))
            })
    }

    /// The parts of a message's key as they make its buckets, in order: addresses are grouped.
    /// Returns the place of the rule of the first part that is an exception, if there is one.
    /// `None` when a part is not there.
    ///
    /// An address for which there is an exception is grouped by its exception's network where that
    /// is narrower than the policy's groups, so that an exception never shares a bucket with
    /// the rest of its group.
    #[inline(always)]
    pub(crate) fn for_each_part<'a>(
        &self,
        message: &Message<'a>,
        mut part: impl FnMut(Part<'a>),
    ) -> Option<Option<u32>> {
        let mut exception = None;
        self.for_each_value(message, |value| {
            let found = if exception.is_none() { self.exception(value) } else { None };
            exception = exception.or(found.map(|found| found.rule));
            part(self.key.group(value, found.map_or(0, |found| found.prefix)));
        })?;
        Some(exception)
    }

    /// The values that make a message's key, in order. `None` when one is not there.
    #[inline(always)]
    fn for_each_value<'a>(
        &self,
        message: &Message<'a>,
        mut value: impl FnMut(Value<'a>),
    ) -> Option<()> {
        if self.key.args.is_empty() {
            for arg in message.args() {
                // Asked for each arg of each message: a test for `None` costs next to nothing, a
                // comparison of names does not.
                if self.cost.as_deref().is_some_and(|cost| *cost == *arg.name)
                    || self.when.as_ref().is_some_and(|when| *when.arg == *arg.name)
                {
                    continue;
                }
                value(arg.value);
            }
        } else {
            for name in &self.key.args {
                value(message.arg(name)?);
            }
        }
        Some(())
    }

    /// The exception that a part of a key is, if it is one.
    #[inline]
    fn exception(&self, part: Value<'_>) -> Option<Exception> {
        if self.overrides.is_empty() {
            None
        } else {
            self.overrides.find(part, self.key.lowercase)
        }
    }

    #[inline]
    pub(crate) fn rule(&self, at: RuleAt) -> &Rule {
        self.overrides.rules.get(at.0 as usize).unwrap_or(&self.rule)
    }

    /// The same keys under another rule, without exceptions.
    pub(crate) fn with_rule(&self, rule: Rule) -> Self {
        Self {
            name: self.name.clone(),
            message: self.message.clone(),
            when: self.when.clone(),
            key: self.key.clone(),
            cost: self.cost.clone(),
            rule,
            overrides: Overrides::default(),
            ..*self
        }
    }

    /// All rules, those of exceptions too.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        std::iter::once(&self.rule).chain(&self.overrides.rules)
    }

    /// The limits of all rules.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules().flat_map(Rule::limits)
    }
}

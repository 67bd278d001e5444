//! What is limited, and how: policies, each with limits that a request must all meet.
//!
//! The command line's flags are one policy for every message; a file (`file`) has as many as wanted. Nothing here is text any more:
//! what an operator wrote was checked when it was read.

pub(crate) mod answer;
pub(crate) mod file;
#[cfg(test)]
mod tests;
mod words;

use std::net::IpAddr;
use std::path::PathBuf;

use ahash::AHashMap;
use arrayvec::ArrayVec;
use gcra_table::Quota;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use spop_agent::{Message, Value};

use crate::policy::answer::Answers;

/// Limits that one request is charged for at most.
pub(crate) const MAX_LIMITS: usize = 4;

/// All policies, in the order of the file: the first that fits a message is taken.
#[derive(Debug)]
pub(crate) struct Policies {
    pub(crate) list: Vec<Policy>,
    pub(crate) answers: Answers,
    /// They are those of the command line, and never change.
    pub(crate) is_fixed: bool,
    /// The lists that were read for them.
    pub(crate) lists: Vec<PathBuf>,
}

/// Which of a policy's rules holds: that of an exception, or the default.
// No enum: one in what is kept for each request would have it copied in pieces that don't fit how they are read again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RuleAt(u32);

impl RuleAt {
    /// The place of an exception, if there is one for the key.
    pub(crate) fn new(exception: Option<u32>) -> Self {
        Self(exception.unwrap_or(u32::MAX))
    }
}

/// Who is limited, and how.
#[derive(Debug)]
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
    /// The parts of a key are written as they are: nothing is grouped or left out, and there are no exceptions.
    pub(crate) is_plain: bool,
}

/// An arg, and the values with which the policy holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct When {
    pub(crate) arg: Box<[u8]>,
    pub(crate) values: Vec<Box<[u8]>>,
}

/// What makes the key of a message.
#[derive(Debug)]
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
}

/// What holds for a key.
#[derive(Clone, Debug, Eq, PartialEq)]
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
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Limit {
    /// For people and headers.
    pub(crate) label: Box<str>,
    /// What tells this limit's bucket of a key from those of others. Empty for the flags' only one, so that its keys are what they
    /// always were; else made of the names of policy and limit, never of numbers, so that a new number meets the old debt.
    pub(crate) suffix: Box<[u8]>,
    pub(crate) quota: Quota,
    /// As it was written: "10/s burst 20".
    pub(crate) text: Box<str>,
}

impl Limit {
    pub(crate) fn new(policy: &str, name: &str, label: String, quota: Quota, text: String) -> Self {
        /// No type of a part of a key, so that no list of parts goes on like this.
        const TAG: u8 = 10;
        let mut suffix = vec![TAG];
        for name in [policy, name] {
            // Names have at most 64 bytes.
            suffix.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            suffix.extend_from_slice(name.as_bytes());
        }
        Self { label: label.into(), suffix: suffix.into(), quota, text: text.into() }
    }
}

/// What a client is charged who goes on asking while it is blocked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Penalty {
    pub(crate) cells: u32,
    /// However it goes on, it gets back in after so long a silence, beyond what the limit itself takes to drain.
    pub(crate) ceiling_ns: u64,
}

/// Exceptions by address and by value: places in a list of rules.
#[derive(Debug, Default)]
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
        let (v4, v6) =
            (self.v4.values().filter(|index| ours(index)), self.v6.values().filter(|index| ours(index)));
        (v4.count(), v6.count(), self.values.values().filter(|index| ours(index)).count())
    }

    pub(crate) fn insert(&mut self, key: OverrideKey, rule: u32) -> Option<u32> {
        match key {
            OverrideKey::Net(IpNet::V4(net)) => self.v4.insert(net, rule),
            OverrideKey::Net(IpNet::V6(net)) => self.v6.insert(net, rule),
            OverrideKey::Value(value) => self.values.insert(value, rule),
        }
    }

    /// The rule for a value of the key, if there is an exception for it. Of networks the smallest counts.
    #[inline]
    fn find(&self, value: Value<'_>, lowercase: bool) -> Option<u32> {
        let index = match value {
            Value::Ipv4(ip) => self.v4.get_lpm(&Ipv4Net::from(ip))?.1,
            Value::Ipv6(ip) => match ip.to_ipv4_mapped() {
                Some(ip) => self.v4.get_lpm(&Ipv4Net::from(ip))?.1,
                None => self.v6.get_lpm(&Ipv6Net::from(ip))?.1,
            },
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
        Some(*index)
    }
}

/// The longest value that can be an exception, in bytes.
pub(crate) const MAX_VALUE: usize = 256;

/// Whom an exception is for.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) enum OverrideKey {
    Net(IpNet),
    Value(Box<[u8]>),
}

impl From<&str> for OverrideKey {
    /// An address or a network where it is one, else a value.
    fn from(text: &str) -> Self {
        match (text.parse::<IpNet>(), text.parse::<IpAddr>()) {
            (Ok(net), _) => Self::Net(net.trunc()),
            (_, Ok(ip)) => Self::Net(ip.into()),
            _ => Self::Value(text.as_bytes().into()),
        }
    }
}

impl Policies {
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

    /// The parts of a message's key, in order. `None` when one is not there.
    #[inline(always)]
    pub(crate) fn for_each_part<'a>(
        &self,
        message: &Message<'a>,
        mut part: impl FnMut(Value<'a>),
    ) -> Option<()> {
        if self.key.args.is_empty() {
            for arg in message.args() {
                // Asked for each arg of each message: a test for `None` costs next to nothing, a comparison of names does not.
                if self.cost.as_deref().is_some_and(|cost| *cost == *arg.name)
                    || self.when.as_ref().is_some_and(|when| *when.arg == *arg.name)
                {
                    continue;
                }
                part(arg.value);
            }
        } else {
            for name in &self.key.args {
                part(message.arg(name)?);
            }
        }
        Some(())
    }

    /// The rule for a key with this part, if it is an exception.
    #[inline]
    pub(crate) fn exception(&self, part: Value<'_>) -> Option<u32> {
        if self.overrides.is_empty() { None } else { self.overrides.find(part, self.key.lowercase) }
    }

    #[inline]
    pub(crate) fn rule(&self, at: RuleAt) -> &Rule {
        self.overrides.rules.get(at.0 as usize).unwrap_or(&self.rule)
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

//! Overrides: other rules for some values of the key, by address and by value.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use ahash::AHashMap;
use arrayvec::ArrayVec;
use gcra_text::network::{VALUE, written_net};
use gcra_text::sentence::Sentence;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use spop_codec::Value;

use crate::key::Shown;
use crate::key_parts::KeyParts;
use crate::limit::Rule;
use crate::texts::{EntryKinds, ValueKinds, find_text};

/// The name of the table of overrides, beside the names of lists.
pub(crate) const OVERRIDES: &str = "overrides";

/// The longest value that can have an override, in bytes.
pub(crate) const MAX_VALUE: usize = 256;

/// Rules for some values of the key, by address and by value: places in a list of rules.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub rules: Vec<Rule>,
    /// The source of each rule, for sentences: the files of lists, and "overrides".
    pub lists: Vec<Vec<Box<str>>>,
    pub v4: PrefixMap<Ipv4Net, u32>,
    pub v6: PrefixMap<Ipv6Net, u32>,
    pub values: AHashMap<Box<[u8]>, u32>,
    /// For which kinds of values the entries can stand.
    pub(crate) kinds: EntryKinds,
    /// The files of the lists, in the order in which they were read.
    pub files: Vec<PathBuf>,
}

/// Equal overrides decide in the same way, from whatever lists they are.
impl PartialEq for Overrides {
    fn eq(&self, other: &Self) -> bool {
        let Self { rules, lists: _, files: _, kinds: _, v4, v6, values } = self;
        (rules, v4, v6, values) == (&other.rules, &other.v4, &other.v6, &other.values)
    }
}

impl Overrides {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many values each of the rules is for. One pass, as a file may have a rule for each
    /// value.
    pub fn counts(&self) -> Vec<OverrideCounts> {
        let mut counts = vec![OverrideCounts::default(); self.rules.len()];
        for (net, rule) in self.networks() {
            let counts = &mut counts[rule as usize];
            let counts = if net.addr().is_ipv4() { &mut counts.v4 } else { &mut counts.v6 };
            counts[usize::from(net.prefix_len() < net.max_prefix_len())] += 1;
        }
        for rule in self.values.values() {
            counts[*rule as usize].values += 1;
        }
        counts
    }

    /// The addresses and networks that have one, with the places of their rules.
    pub(crate) fn networks(&self) -> impl Iterator<Item = (IpNet, u32)> {
        let v4 = self.v4.iter().map(|(net, rule)| (IpNet::V4(net), *rule));
        v4.chain(self.v6.iter().map(|(net, rule)| (IpNet::V6(net), *rule)))
    }

    pub(crate) fn has_networks(&self) -> bool {
        self.networks().next().is_some()
    }

    /// The networks that are less than a group of addresses of these keys.
    pub(crate) fn narrower_than(&self, key: &KeyParts) -> impl Iterator<Item = IpNet> {
        let (v4, v6) = (key.ipv4_prefix, key.ipv6_prefix);
        let group = move |net: &IpNet| if net.addr().is_ipv4() { v4 } else { v6 };
        self.networks().map(|(net, _)| net).filter(move |net| net.prefix_len() > group(net))
    }

    /// Adds an override for the rule at this place. Returns the place that it had before.
    pub fn insert(&mut self, key: OverrideKey, rule: u32) -> Option<u32> {
        self.kinds.add(match &key {
            OverrideKey::Net(_) => ValueKinds::of_net(),
            OverrideKey::Value(text) => ValueKinds::of_text(text),
        });
        match key {
            OverrideKey::Net(IpNet::V4(net)) => self.v4.insert(net, rule),
            OverrideKey::Net(IpNet::V6(net)) => self.v6.insert(net, rule),
            OverrideKey::Value(value) => self.values.insert(value, rule),
        }
    }

    /// The override for a value of the key, if there is one. The smallest network counts.
    #[inline]
    pub(crate) fn find(&self, value: Value<'_>, key: &KeyParts) -> Option<Override> {
        self.find_around(value, [32, 128], key)
    }

    /// The override for all addresses that agree with this one in so many bits (IPv4 and IPv6), or
    /// for another value of the key.
    #[inline]
    pub(crate) fn find_around(
        &self,
        value: Value<'_>,
        bits: [u8; 2],
        key: &KeyParts,
    ) -> Option<Override> {
        let (entry, rule) = self.look_up(value, bits, key)?;
        let prefix = match entry {
            Entry::V4(net) => net.prefix_len(),
            Entry::V6(net) => net.prefix_len(),
            Entry::Around(_) | Entry::Value(_) => 0,
        };
        Some(Override { rule, prefix })
    }

    /// The entry for a value of the key, and the place of its rule.
    #[inline]
    fn look_up(
        &self,
        value: Value<'_>,
        [v4_bits, v6_bits]: [u8; 2],
        key: &KeyParts,
    ) -> Option<(Entry<'_>, u32)> {
        let v4 = |ip: Ipv4Addr| {
            let (net, rule) = self.v4.get_lpm(&Ipv4Net::new(ip, v4_bits).ok()?.trunc())?;
            Some((Entry::V4(net), *rule))
        };
        let v6 = |ip: Ipv6Addr| {
            let (net, rule) = self.v6.get_lpm(&Ipv6Net::new(ip, v6_bits).ok()?.trunc())?;
            Some((net, *rule))
        };
        let text = |text: &[u8]| {
            let (value, rule) = self.values.get_key_value(text)?;
            Some((Entry::Value(value), *rule))
        };
        match value {
            Value::Ipv4(ip) => v4(ip),
            Value::Ipv6(ip) => match key.nat64.ipv4_in(ip) {
                None => v6(ip).map(|(net, rule)| (Entry::V6(net), rule)),
                Some(client) if ip.to_ipv4_mapped().is_some() => v4(client),
                Some(client) => {
                    v4(client).or_else(|| v6(ip).map(|(net, rule)| (Entry::Around(net), rule)))
                }
            },
            Value::String(bytes) if key.lowercase => {
                // A longer value can't have an override.
                let mut lower = ArrayVec::<u8, MAX_VALUE>::new();
                lower.try_extend_from_slice(bytes).ok()?;
                lower.make_ascii_lowercase();
                text(&lower)
            }
            value => find_text(value, text),
        }
    }

    /// The entry for a value of the key.
    pub(crate) fn entry(&self, value: Value<'_>, key: &KeyParts) -> Option<OverrideKey> {
        Some(match self.look_up(value, [32, 128], key)?.0 {
            Entry::V4(net) => OverrideKey::Net(IpNet::V4(net)),
            Entry::V6(net) | Entry::Around(net) => OverrideKey::Net(IpNet::V6(net)),
            Entry::Value(value) => OverrideKey::Value(value.into()),
        })
    }
}

/// An entry that holds for a value.
enum Entry<'o> {
    V4(Ipv4Net),
    V6(Ipv6Net),
    /// A network in which an IPv6 address lies that is counted as an IPv4 address. It is for each
    /// IPv4 client in it.
    Around(Ipv6Net),
    Value(&'o [u8]),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct OverrideCounts {
    /// Single addresses, and networks.
    pub v4: [usize; 2],
    pub v6: [usize; 2],
    pub values: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Override {
    pub(crate) rule: u32,
    /// The prefix length of the network, if the override is for one; else 0.
    pub(crate) prefix: u8,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum OverrideKey {
    Net(IpNet),
    Value(Box<[u8]>),
}

impl FromStr for OverrideKey {
    type Err = Sentence;

    fn from_str(text: &str) -> Result<Self, Sentence> {
        if let Some(value) = text.strip_prefix(VALUE) {
            return Ok(Self::Value(value.as_bytes().into()));
        }
        let net = written_net(text)?;
        Ok(net.map_or_else(|| Self::Value(text.as_bytes().into()), Self::Net))
    }
}

/// As an operator may write it.
impl fmt::Display for OverrideKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
            Self::Value(bytes) => Shown(Value::String(bytes)).fmt(f),
        }
    }
}

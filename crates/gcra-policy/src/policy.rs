//! A policy: which messages, which key, which limits.
//!
//! Nothing here is text any more: each value was checked when the file was read.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::{iter, mem};

use gcra_table::board::{Order, OrderTarget};
use gcra_table::{Nanos, Quota, Table, limit_id};
use ipnet::IpNet;
use spop_codec::{Message, Value};

use crate::bandwidth::Bandwidth;
use crate::client_names::NameSalt;
use crate::haproxy::report::is_report;
use crate::key_parts::{GroupedValue, KeyParts, Nat64, is_address};
use crate::limit::{Limit, Rule, SaltInForce, id_since};
use crate::orders::ClientAddress;
use crate::overrides::{Override, OverrideKey, Overrides};
use crate::settle::Settle;
use crate::sharing::Sharing;
use crate::texts::{Misfit, ValueKind, ValueKinds, find_text, lies_in, net_of};

/// Which messages are limited, by which key, to what.
///
/// The compiler names every place where a new field has to be considered: they take a policy
/// apart, and name all fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: Box<str>,
    /// The name of the message that it is for; `None` for all messages.
    pub message: Option<Box<[u8]>>,
    pub when: Option<When>,
    pub key: KeyParts,
    pub price: Price,
    pub rule: Rule,
    pub overrides: Overrides,
    /// Whether requests are charged and counted, and never blocked (`mode = "observe"`).
    pub observes: bool,
    pub penalty: Option<Penalty>,
    /// The bandwidth of allowed requests, by the debt of the client.
    pub bandwidth: Option<Bandwidth>,
    /// How it is shared with other machines, if it is. Its trial is shared in the same way.
    pub shared: Option<Sharing>,
    /// The place of its trial, which has its limits of `observe`.
    pub trial: Option<usize>,
    /// Whether this is the trial of another policy: it has the keys of that policy, limits of its
    /// own, and observes.
    pub is_trial: bool,
    /// What makes the digits behind the names of its clients; the table if it is `None`.
    pub name_salt: Option<NameSalt>,
    /// When all its clients were last reset, in nanoseconds since 1970; 0 if they never were. It
    /// is a part of the keys of its buckets.
    pub reset_at: u64,
}

/// An arg, and its values for which the policy is.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct When {
    pub arg: Box<[u8]>,
    pub values: Vec<Box<[u8]>>,
    /// Those of the values that are addresses or networks.
    nets: Vec<IpNet>,
}

impl When {
    pub(crate) fn new(arg: &str, values: Vec<Box<[u8]>>) -> Self {
        let nets = values.iter().filter_map(|text| net_of(text)).collect();
        Self { arg: arg.as_bytes().into(), values, nets }
    }

    /// Whether one of the values stands for the arg of a message.
    #[inline]
    fn fits(&self, message: &Message<'_>, nat64: &Nat64) -> bool {
        let Some(value) = message.arg(&self.arg) else { return false };
        match value {
            Value::Ipv4(ip) => lies_in(ip, &self.nets),
            Value::Ipv6(ip) => {
                let client = nat64.ipv4_in(ip).is_some_and(|ip| lies_in(ip, &self.nets));
                client || ip.to_ipv4_mapped().is_none() && lies_in(ip, &self.nets)
            }
            value => {
                let is_ours = |text: &[u8]| self.values.iter().any(|wanted| **wanted == *text);
                find_text(value, |text| is_ours(text).then_some(())).is_some()
            }
        }
    }

    /// The kind of the arg of a message, if one of the values can never stand for it.
    fn misses(&self, message: &Message<'_>) -> Option<ValueKind> {
        let kind = ValueKind::of(message.arg(&self.arg)?)?;
        let can_be = match kind {
            ValueKind::Text => return None,
            ValueKind::Address => self.nets.len() == self.values.len(),
            kind => self.values.iter().all(|text| ValueKinds::of_text(text).has(kind)),
        };
        (!can_be).then_some(kind)
    }
}

/// The cost of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Price {
    Cell,
    /// As many cells as this arg says; 1 if it has no value.
    Cost(Box<[u8]>),
    /// The cells that it reserves, until its response says what it has cost. In a box, because few
    /// policies have it.
    Settled(Box<Settle>),
}

impl Price {
    /// The arg that says how many cells a request asks for, if one does.
    #[inline]
    pub fn arg(&self) -> Option<&[u8]> {
        match self {
            Self::Cell => None,
            Self::Cost(arg) => Some(arg),
            Self::Settled(settle) => settle.reserve.as_deref(),
        }
    }

    /// How many it asks for without a value of that arg.
    #[inline]
    pub fn cells_without_value(&self) -> u32 {
        match self {
            Self::Cell | Self::Cost(_) => 1,
            Self::Settled(settle) => settle.cells,
        }
    }

    /// The number of cells that the value of an arg stands for: an integer, or a string of digits
    /// such as the value of a header field. `None` if it is neither, or negative.
    pub fn cells_of(cost: Value<'_>) -> Option<u32> {
        let cells = match cost {
            Value::Int32(integer) => integer.try_into().ok()?,
            Value::Int64(integer) => integer.try_into().ok()?,
            Value::Uint32(integer) => integer.into(),
            Value::Uint64(integer) => integer,
            Value::String(text) | Value::Binary(text) => {
                let text = text.trim_ascii();
                // A number can have a sign for `parse`.
                let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
                let text = std::str::from_utf8(text).ok().filter(|_| is_number)?;
                // A longer one is more than any limit has.
                text.parse().unwrap_or(u64::MAX)
            }
            Value::Null | Value::Bool(_) | Value::Ipv4(_) | Value::Ipv6(_) => return None,
        };
        Some(u32::try_from(cells).unwrap_or(u32::MAX))
    }
}

/// The cells that a client is charged for each request that is blocked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Penalty {
    pub cells: u32,
    /// The most that penalties can add to a debt, in nanoseconds. After this time and the drain
    /// time of the limit without a request, the client has its full burst.
    pub(crate) ceiling_ns: u64,
}

impl Penalty {
    /// The debt of a client after it, under a limit with this quota, if it owes so much before.
    /// `None`: that is beyond the ceiling, where nothing more is charged.
    #[inline]
    pub fn after(self, owed: Nanos, quota: Quota) -> Option<Nanos> {
        let cost = quota.emission_interval().saturating_mul(self.cells.into());
        Some(owed.saturating_add(cost)).filter(|owed| *owed <= quota.most_owed())
    }
}

impl Policy {
    /// A policy for all messages, whose requests cost a cell each.
    pub fn new(name: &str, key: KeyParts, rule: Rule) -> Self {
        Self {
            name: name.into(),
            message: None,
            when: None,
            key,
            price: Price::Cell,
            rule,
            overrides: Overrides::default(),
            observes: false,
            penalty: None,
            bandwidth: None,
            shared: None,
            trial: None,
            is_trial: false,
            name_salt: None,
            reset_at: 0,
        }
    }

    /// The penalty for a request that this limit denies. A limit with a key of its own has none:
    /// other clients count by its key, too, and would have to wait for longer. In a window only
    /// what was allowed is counted.
    #[inline]
    pub fn penalty_under(&self, limit: &Limit) -> Option<Penalty> {
        let penalty = self.penalty?;
        let has_none = self.observes || limit.key.is_some() || limit.calendar().is_some();
        (!has_none).then_some(penalty)
    }

    /// Whether the policy shows that it counts addresses, and not strings: it groups them, or all
    /// its overrides are for addresses.
    pub fn is_for_addresses(&self) -> bool {
        let has_networks_only = self.overrides.has_networks() && self.overrides.values.is_empty();
        self.key.ipv4_prefix < 32 || has_networks_only
    }

    /// Whether the policy suggests that it counts addresses: it shows that, or an arg of its key
    /// has the name of one.
    pub fn may_count_addresses(&self) -> bool {
        self.is_for_addresses() || self.key.names().any(is_address)
    }

    #[inline]
    pub(crate) fn is_for(&self, message: &Message<'_>) -> bool {
        let named = match &self.message {
            Some(name) => **name == *message.name,
            // A file never has a policy for the report: see `file/policy.rs`.
            None => !is_report(message.name),
        };
        named && self.fits(message)
    }

    /// Whether the values of a message fit `when`.
    #[inline]
    pub(crate) fn fits(&self, message: &Message<'_>) -> bool {
        self.when.as_ref().is_none_or(|when| when.fits(message, &self.key.nat64))
    }

    /// Calls `part` with `state` for each part of a message's key, in order, and before it
    /// `fallback` with a number if the value came from that fallback of an arg. Returns the place
    /// of the rule of the first part that has an override, if one has. `None` when an arg of the
    /// key has no value.
    ///
    /// An address with an override is grouped by the network of the override where that is
    /// narrower than the policy's groups, so that an override never shares a bucket with the rest
    /// of its group.
    #[inline(always)]
    pub fn for_each_part<'a, S>(
        &self,
        message: &Message<'a>,
        state: &mut S,
        part: impl Fn(&mut S, GroupedValue<'a>),
        fallback: impl Fn(&mut S, u8),
    ) -> Option<Option<u32>> {
        let mut overridden = None;
        let each = |state: &mut S, value| {
            let (grouped, rule) = match overridden {
                None => self.first_part(value),
                Some(_) => (self.key.group(value, 0), None),
            };
            overridden = overridden.or(rule);
            part(state, grouped);
        };
        self.values(message, state, each, fallback)?;
        Some(overridden)
    }

    /// The part of a key that this value makes, and the place of the rule that overrides the
    /// policy's for it, if there is one and no part before it has an override.
    #[inline]
    pub fn first_part<'a>(&self, value: Value<'a>) -> (GroupedValue<'a>, Option<u32>) {
        let found = self.override_for(value);
        let grouped = self.key.group(value, found.map_or(0, |found| found.prefix));
        (grouped, found.map(|found| found.rule))
    }

    /// The rule that this former policy had for the key of a message as the policy `now`, which
    /// has the same settings of the key, makes it. `None` if it never made this key: an override
    /// grouped the address in another way.
    pub fn rule_for_key_of(&self, now: &Self, message: &Message<'_>) -> Option<RuleAt> {
        let (mut overridden, mut overridden_now) = (None, None);
        let mut is_same = true;
        now.for_each_value(message, |value, _| {
            let (part, rule) = match overridden_now {
                None => now.first_part(value),
                Some(_) => (now.key.group(value, 0), None),
            };
            overridden_now = overridden_now.or(rule);
            // All addresses that have the key now, and not only that of the message.
            let groups = [self.key.ipv4_prefix, self.key.ipv6_prefix];
            let bits = groups.map(|group| part.narrowed.unwrap_or(group));
            let found = match overridden {
                None if !self.overrides.is_empty() => {
                    self.overrides.find_around(value, bits, &self.key)
                }
                _ => None,
            };
            let before = self.key.group(value, found.map_or(0, |found| found.prefix));
            is_same &= before.narrowed == part.narrowed;
            overridden = overridden.or(found.map(|found| found.rule));
        })?;
        is_same.then(|| RuleAt::new(overridden))
    }

    /// Calls `value` for each value that makes a message's key, as HAProxy sent it, with 0 or the
    /// number of the fallback that it came from. `None` when an arg of the key has no value.
    pub fn for_each_value<'a>(
        &self,
        message: &Message<'a>,
        mut value: impl FnMut(Value<'a>, u8),
    ) -> Option<()> {
        let each = |fallback: &mut u8, next| value(next, mem::take(fallback));
        self.values(message, &mut 0, each, |fallback, number| *fallback = number)
    }

    /// As [`for_each_part`](Self::for_each_part), for the values as HAProxy sent them.
    #[inline(always)]
    fn values<'a, S>(
        &self,
        message: &Message<'a>,
        state: &mut S,
        mut value: impl FnMut(&mut S, Value<'a>),
        fallback: impl Fn(&mut S, u8),
    ) -> Option<()> {
        if self.key.args.is_empty() {
            let cells = self.price.arg();
            for arg in message.args() {
                // This is done for each arg of each message: a test for `None` costs almost
                // nothing, a comparison of names does.
                if cells.is_some_and(|cells| *cells == *arg.name)
                    || self.when.as_ref().is_some_and(|when| *when.arg == *arg.name)
                {
                    continue;
                }
                value(state, arg.value);
            }
        } else {
            for arg in &self.key.args {
                match message.arg(&arg.name) {
                    None | Some(Value::Null) => {
                        let (used, number) = arg.fallback(message)?;
                        if number > 0 {
                            fallback(state, number);
                        }
                        value(state, used);
                    }
                    Some(used) => value(state, used),
                }
            }
        }
        Some(())
    }

    #[inline]
    pub(crate) fn override_for(&self, part: Value<'_>) -> Option<Override> {
        if self.overrides.is_empty() { None } else { self.overrides.find(part, &self.key) }
    }

    /// Whether an order is about clients of this policy.
    pub fn is_meant_by(&self, order: &Order) -> bool {
        order.policy == policy_id(&self.name)
    }

    /// Whether its clients follow an order: it is about clients of this policy, grouped as now.
    pub fn follows(&self, order: &Order) -> bool {
        self.is_meant_by(order) && self.groups_as(&order.target)
    }

    /// Whether the addresses of the client of an order are grouped as this policy groups them. If
    /// not, its key is that of other clients.
    pub fn groups_as(&self, target: &OrderTarget) -> bool {
        let OrderTarget::Client { groups, .. } = target else { return true };
        let own = [self.key.ipv4_prefix, self.key.ipv6_prefix];
        groups.iter().zip(own).all(|(group, own)| group.is_none_or(|group| group == own))
    }

    /// How many bits the groups of addresses in the key of a message have in common, of IPv4 and
    /// of IPv6. `None` where it has no such group. (The key itself says the bits of an override.)
    pub fn groups_of_client(&self, message: &Message<'_>) -> [Option<u8>; 2] {
        let mut groups = [None; 2];
        let part = |[v4, v6]: &mut [Option<u8>; 2], part: GroupedValue<'_>| match part {
            GroupedValue { narrowed: Some(_), .. } => {}
            GroupedValue { value: Value::Ipv4(_), .. } => *v4 = Some(self.key.ipv4_prefix),
            GroupedValue { value: Value::Ipv6(_), .. } => *v6 = Some(self.key.ipv6_prefix),
            GroupedValue { .. } => {}
        };
        let _ = self.for_each_part(message, &mut groups, part, |_, _| {});
        groups
    }

    /// The address of the client of a message, if its key is one address and nothing else.
    pub fn client_address(&self, message: &Message<'_>) -> Option<ClientAddress> {
        let (mut only, mut values) = (Value::Null, 0_usize);
        self.for_each_value(message, |value, _| {
            only = value;
            values += 1;
        })?;
        let sent = match only {
            Value::Ipv4(ip) if values == 1 => IpAddr::V4(ip),
            Value::Ipv6(ip) if values == 1 => IpAddr::V6(ip),
            _ => return None,
        };
        let ip = match sent {
            IpAddr::V6(ip) => self.key.nat64.ipv4_in(ip).map_or(sent, IpAddr::V4),
            IpAddr::V4(_) => sent,
        };
        let whole = if ip.is_ipv4() { 32 } else { 128 };
        let (part, _) = self.first_part(only);
        Some(ClientAddress { ip, sent, prefix: self.key.prefix_of(part).unwrap_or(whole) })
    }

    /// The network as its clients are counted, for an order about a network: an IPv4 network if it
    /// lies behind NAT64. The error is the group of the policy that it is less than.
    pub fn network_of_clients(&self, net: IpNet) -> Result<IpNet, IpNet> {
        let net = self.key.nat64.canonical_net(net);
        let group = self.group_around(net);
        if net.prefix_len() <= group {
            return Ok(net.trunc());
        }
        // The prefix is one of the family.
        Err(IpNet::new(net.addr(), group).map_or(net, |group| group.trunc()))
    }

    /// How many bits the groups of the policy have in common, of the family of a network.
    const fn group_around(&self, net: IpNet) -> u8 {
        match net {
            IpNet::V4(_) => self.key.ipv4_prefix,
            IpNet::V6(_) => self.key.ipv6_prefix,
        }
    }

    /// An address of the client that a network is, if the network is one group of the policy, and
    /// no address in it has an override of its own.
    pub fn client_in_group(&self, net: IpNet) -> Option<IpAddr> {
        let net = self.network_of_clients(net).ok()?;
        let group = self.group_around(net);
        let is_divided = || self.narrow_nets().iter().any(|it| net.contains(it));
        (net.prefix_len() == group && !is_divided()).then(|| net.network())
    }

    /// A text of the file that can never stand for the arg of this message with which it is
    /// compared, if the policy is for the message. There is none for a key with a null or missing
    /// value, because that value could be of any kind.
    pub fn misfit(&self, message: &Message<'_>) -> Option<Misfit> {
        let is_asked = self.message.as_ref().is_none_or(|name| **name == *message.name);
        if self.is_trial || !(is_asked || self.is_settled_by(message.name)) {
            return None;
        }
        if let Some(when) = &self.when
            && let Some(kind) = when.misses(message)
        {
            return Some(Misfit { args: vec![(when.arg.clone(), kind)], is_in_when: true });
        }
        if self.overrides.is_empty() || !self.fits(message) {
            return None;
        }
        let kind = |name: &[u8]| Some((name.into(), ValueKind::of(message.arg(name)?)?));
        let left_out = self.left_out_of_key();
        let all =
            message.args().map(|arg| arg.name).filter(|name| !left_out.contains(&Some(name)));
        let args: Option<Vec<_>> = match self.key.args.is_empty() {
            true => all.map(kind).collect(),
            false => self.key.names().map(kind).collect(),
        };
        let args = args?;
        let kinds = args.iter().fold(ValueKinds::default(), |kinds, (_, kind)| kinds.with(*kind));
        // Of addresses that come as strings, the log says more.
        let misses = !kinds.has(ValueKind::Text) && self.overrides.kinds.miss(kinds);
        misses.then_some(Misfit { args, is_in_when: false })
    }

    /// Which part of a message's key has the override that counts, and the entry for it.
    pub fn override_entry(&self, message: &Message<'_>) -> Option<(usize, OverrideKey)> {
        let (mut part, mut entry) = (0, None);
        self.for_each_value(message, |value, _| {
            if entry.is_none() {
                entry = self.overrides.entry(value, &self.key).map(|found| (part, found));
            }
            part += 1;
        })?;
        entry
    }

    #[inline]
    pub fn rule(&self, at: RuleAt) -> &Rule {
        self.overrides.rules.get(at.0 as usize).unwrap_or(&self.rule)
    }

    pub(crate) fn limit_at(&self, LimitPlace { rule, limit, .. }: LimitPlace) -> Option<&Limit> {
        self.rule(rule).limits().get(limit as usize)
    }

    /// The same keys under another rule, without overrides.
    pub fn with_rule(&self, rule: Rule) -> Self {
        Self {
            name: self.name.clone(),
            message: self.message.clone(),
            when: self.when.clone(),
            key: self.key.clone(),
            price: self.price.clone(),
            rule,
            overrides: Overrides::default(),
            observes: self.observes,
            penalty: self.penalty,
            bandwidth: self.bandwidth,
            shared: self.shared,
            trial: None,
            is_trial: self.is_trial,
            name_salt: self.name_salt,
            reset_at: self.reset_at,
        }
    }

    /// A trial of these limits, for the keys of this policy.
    pub fn trial(&self, limits: Vec<Limit>) -> Self {
        Self {
            name: trial_name(&self.name).into(),
            observes: true,
            penalty: None,
            bandwidth: None,
            is_trial: true,
            ..self.with_rule(Rule::Limits(limits))
        }
    }

    /// Whether the buckets of this policy are those of `other`, with the same debts in them.
    pub fn has_buckets_of(&self, other: &Self) -> bool {
        let Self {
            // A policy is found by its name, and decides about the messages that it is for.
            name: _,
            message: _,
            when: _,
            // It is part of the ids of the limits, also where args of the price or of `when` are
            // left out.
            key: _,
            // The largest debt is part of the quotas.
            price: _,
            rule,
            overrides,
            observes: _,
            // It is part of the quotas of the limits.
            penalty: _,
            bandwidth: _,
            // Debts lie in the table or in the store.
            shared,
            // It is compared by itself.
            trial: _,
            is_trial: _,
            name_salt: _,
            // It is the same for all policies with this name.
            reset_at: _,
        } = self;
        (rule, overrides, shared.is_some())
            == (&other.rule, &other.overrides, other.shared.is_some())
    }

    /// Whether this policy makes the same key of a message as `other`.
    pub fn makes_keys_of(&self, other: &Self) -> bool {
        self.key_digest() == other.key_digest() && self.narrow_nets() == other.narrow_nets()
    }

    /// The networks of overrides that are groups of their own.
    pub(crate) fn narrow_nets(&self) -> BTreeSet<IpNet> {
        self.overrides.narrower_than(&self.key).collect()
    }

    /// The args that are no part of a key of all args.
    pub(crate) fn left_out_of_key(&self) -> [Option<&[u8]>; 2] {
        [self.price.arg(), self.when.as_ref().map(|when| &*when.arg)]
    }

    /// Tells its buckets apart from those that it had with another key, by the ids of its limits.
    /// A limit with a key of its own has that in the bytes of its key.
    pub(crate) fn put_key_into_ids(&mut self) {
        let digest = self.key_digest().to_le_bytes();
        let with_key = |id: u64| limit_id(&[&id.to_le_bytes(), &digest]);
        for limit in self.limits_mut().filter(|limit| limit.key.is_none()) {
            limit.id = with_key(limit.id);
        }
        if let Price::Settled(settle) = &mut self.price
            && let Some(unsettled) = &mut settle.unsettled
        {
            unsettled.id = with_key(unsettled.id);
        }
    }

    /// Works out the salts of its limits in this table since a reset at this moment; 0 if there
    /// was none.
    pub(crate) fn put_salts(&mut self, table: &Table, reset_at: u64) {
        self.reset_at = reset_at;
        for limit in self.limits_mut() {
            limit.salt = SaltInForce(Some(table.limit_salt(id_since(limit.id, reset_at))));
        }
    }

    /// All rules, including those of overrides.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        iter::once(&self.rule).chain(&self.overrides.rules)
    }

    /// The args that limits read themselves, each as often as one does.
    pub fn args_of_limits(&self) -> impl Iterator<Item = &[u8]> {
        self.limits().flat_map(Limit::own_args)
    }

    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules().flat_map(Rule::limits)
    }

    pub(crate) fn limits_mut(&mut self) -> impl Iterator<Item = &mut Limit> {
        let rules = iter::once(&mut self.rule).chain(&mut self.overrides.rules);
        rules.flat_map(Rule::limits_mut)
    }

    /// How long the policy holds back a request that is over a limit, at most; 0 if it blocks each
    /// of them.
    pub fn max_delay(&self) -> Nanos {
        self.limits().filter_map(Limit::rate).map(Quota::max_delay).max().unwrap_or_default()
    }

    #[inline]
    pub fn settle(&self) -> Option<&Settle> {
        let Price::Settled(settle) = &self.price else { return None };
        Some(settle)
    }

    pub fn is_settled_by(&self, message: &[u8]) -> bool {
        self.settle().is_some_and(|settle| *settle.message == *message)
    }

    pub fn reserves(&self) -> bool {
        self.settle().is_some_and(Settle::reserves)
    }
}

/// Which of a policy's rules is the one for a key: that of an override, or the policy's own.
// Not an enum, because of store-to-load forwarding: an enum in what is kept for each request is
// written in pieces and read as a whole (docs/internals/ARCHITECTURE.md, "Performance notes").
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct RuleAt(u32);

impl RuleAt {
    /// The rule at this place in the list of overrides, or the policy's own.
    pub fn new(overridden: Option<u32>) -> Self {
        Self(overridden.unwrap_or(u32::MAX))
    }

    pub fn is_override(self) -> bool {
        self.0 != u32::MAX
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LimitPlace {
    pub policy: usize,
    pub rule: RuleAt,
    pub limit: u32,
}

/// The number by which an order names a policy.
pub fn policy_id(name: &str) -> u64 {
    limit_id(&[name.as_bytes()])
}

/// The name of a policy's trial. No policy of a file can have it, because of its dot.
pub(crate) fn trial_name(policy: &str) -> String {
    format!("{policy}{TRIAL}")
}

/// Whether a policy with this name is the trial of another one.
pub fn is_trial_name(name: &str) -> bool {
    name.ends_with(TRIAL)
}

const TRIAL: &str = ".observe";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::file::document;

    #[test]
    fn a_limit_by_another_key_or_in_windows_has_no_penalty() {
        let text = "[policy.api]\nkey = [\"ip\"]\npenalty = { cells = 2, ceiling = \"1m\" }\n\
                    limits = [\"6/m burst 1\", { rate = \"9/m\", key = [\"host\"] }, \
                    { count = 30, window = \"day\" }]\n";
        let policies = |more| document::parse(Path::new("f"), &format!("{text}{more}")).unwrap();
        let in_force = policies("");
        let policy = &in_force.list[0];
        let has_one = policy.limits().map(|limit| policy.penalty_under(limit).is_some());
        assert_eq!(has_one.collect::<Vec<_>>(), [true, false, false]);
        let observing = policies("mode = \"observe\"\n");
        let policy = &observing.list[0];
        assert!(policy.limits().all(|limit| policy.penalty_under(limit).is_none()));
    }

    #[test]
    fn a_penalty_comes_on_top_of_a_debt_up_to_its_ceiling() {
        let penalty = Penalty { cells: 2, ceiling_ns: 60 };
        let quota = Quota::new(Nanos(10), 1).and_then(|quota| quota.with_most_owed(Nanos(70)));
        let owed = |before| penalty.after(Nanos(before), quota.unwrap());
        assert_eq!([10, 50, 51].map(owed), [Some(Nanos(30)), Some(Nanos(70)), None]);
    }

    #[test]
    fn a_cost_is_an_integer_or_a_string_of_digits() {
        for value in [3_i32.into(), 3_u64.into(), "3".into(), " 03 ".into(), b"3"[..].into()] {
            assert_eq!(Price::cells_of(value), Some(3), "{value:?}");
        }
        assert_eq!(Price::cells_of("99999999999999999999".into()), Some(u32::MAX));
        let wrong: [Value<'_>; 8] = [
            Value::Null,
            (-1_i32).into(),
            true.into(),
            "".into(),
            "+3".into(),
            "-3".into(),
            "3.5".into(),
            "3 tokens".into(),
        ];
        for value in wrong {
            assert_eq!(Price::cells_of(value), None, "{value:?}");
        }
    }
}

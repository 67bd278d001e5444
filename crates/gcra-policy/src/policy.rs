//! Policies: which messages, which key, which limits.
//!
//! The flags of the command line make one policy for every message. A configuration file (`file`)
//! makes any number of them. Nothing here is text any more: what the operator wrote was checked
//! when it was read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::{iter, mem};

use crate::watch::Seen;
use ahash::AHashMap;
use arrayvec::ArrayVec;
use gcra_table::{Exemption, LimitSalt, Nanos, Quota, Rate, Table, limit_id};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use spop_agent::{Message, Value};

use crate::answers::Answers;
pub use crate::bandwidth::Bandwidth;
use crate::calendar::Calendar;
use crate::key_parts::KeyArg;
use crate::limit_from_arg::{ArgValue, ByArg, Read};
use crate::rate_flags::numbers_in_words;
pub use crate::settle::Settle;
pub use crate::sharing::{Sharing, WithoutStore};
use crate::store::StoreSettings;

/// The most limits that a policy can have.
pub const MAX_LIMITS: usize = 4;

/// All policies, in the order of the file. The first one that is for a message decides about it.
#[derive(Debug)]
pub struct Policies {
    /// Trials come last. Each is for the messages of a policy before it, so a message is never
    /// matched to one.
    pub list: Vec<Policy>,
    pub answers: Answers,
    /// The store of the policies that are shared.
    pub store: Option<StoreSettings>,
    /// What is allowed in the file, and probably not meant; a line each, up to a number of lines.
    pub warnings: Vec<String>,
    /// How many warnings there are, of which some may have no line.
    pub warning_count: usize,
    /// The files that they were read from, in their state before that.
    pub files: Vec<Seen>,
    /// A digest of all text that they were read from. It is equal where nothing has changed.
    pub text_digest: u64,
    /// A digest of their limits, which other agents can compare with their own. Never 0.
    pub limits_digest: u64,
    /// The names of the policies that only observe because an action of `--admin` said so.
    pub switched: Vec<Box<str>>,
}

impl Policies {
    /// Works out what would be worked out for each request otherwise. They are in force on this
    /// table from now on, or on its successors.
    pub fn come_into_force(&mut self, table: &Table) {
        for Policy { rule, overrides, .. } in &mut self.list {
            let rules = iter::once(rule).chain(&mut overrides.rules);
            for limit in rules.flat_map(Rule::limits_mut) {
                limit.salt = Some(table.limit_salt(limit.id));
            }
        }
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

    /// Whether it is the rule of an override.
    pub fn is_override(self) -> bool {
        self.0 != u32::MAX
    }
}

/// Which messages are limited, by which key, to what.
///
/// The compiler names every place where a new field has to be considered: they build a policy or
/// take it apart, and name all fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: Box<str>,
    /// The name of the message that it is for; `None` for all messages.
    pub message: Option<Box<[u8]>>,
    pub when: Option<When>,
    pub key: KeyParts,
    /// The name of the arg with the cost; of a policy with `settle`, with the cells to reserve.
    pub cost: Option<Box<[u8]>>,
    /// What a request costs, or reserves, without a value of that arg.
    pub cells: u32,
    pub rule: Rule,
    pub overrides: Overrides,
    /// Whether requests are charged and counted, and never blocked (`mode = "observe"`).
    pub observes: bool,
    pub penalty: Option<Penalty>,
    /// What allowed requests get, by what the client owes.
    pub bandwidth: Option<Bandwidth>,
    /// How it is shared with other machines, if it is. Its trial is shared in the same way.
    pub shared: Option<Sharing>,
    /// How responses settle what requests have reserved, if they do. In a box, because few
    /// policies have it.
    pub settle: Option<Box<Settle>>,
    /// The place of its trial, which has its limits of `observe`.
    pub trial: Option<usize>,
    /// Whether this is the trial of another policy: it has the keys of that policy, limits of its
    /// own, and observes.
    pub is_trial: bool,
}

/// The number by which an exemption names a policy.
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

/// An arg, and its values for which the policy is.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct When {
    pub arg: Box<[u8]>,
    pub values: Vec<Box<[u8]>>,
}

/// Which values make the key of a message, and how.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct KeyParts {
    /// If there are none, all args make the key except those of the cost and of `when`.
    pub args: Vec<KeyArg>,
    pub ipv4_prefix: u8,
    pub ipv6_prefix: u8,
    pub lowercase: bool,
}

impl KeyParts {
    /// Each value as it is.
    pub fn exact(args: Vec<KeyArg>) -> Self {
        Self { args, ipv4_prefix: 32, ipv6_prefix: 128, lowercase: false }
    }

    /// The names of all args that may be read, those of fallbacks too.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.args.iter().flat_map(KeyArg::names)
    }

    /// The part of a key that a value makes. An address makes its network, with the policy's
    /// prefix length or `least_prefix`, whichever is longer.
    #[inline]
    pub fn group<'a>(&self, value: Value<'a>, least_prefix: u8) -> Part<'a> {
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

    /// The prefix length of the network that a part of a key stands for, if it stands for several
    /// addresses.
    pub fn prefix_of(&self, Part { value, narrowed }: Part<'_>) -> Option<u8> {
        let (prefix, whole) = match value {
            Value::Ipv4(_) => (self.ipv4_prefix, 32),
            Value::Ipv6(_) => (self.ipv6_prefix, 128),
            _ => return None,
        };
        Some(narrowed.unwrap_or(prefix)).filter(|prefix| *prefix < whole)
    }
}

/// A part of a key.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub value: Value<'a>,
    /// The prefix length of an address's network, where it is an override's and not the policy's.
    pub narrowed: Option<u8>,
}

fn network_v4(ip: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    (u32::from(ip) & mask).into()
}

fn network_v6(ip: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    (u128::from(ip) & mask).into()
}

/// What a policy does with a key.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Rule {
    /// A request must satisfy all of them. There is at least one.
    Limits(Vec<Limit>),
    Deny,
    Unlimited,
}

impl Rule {
    pub fn limits(&self) -> &[Limit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Deny | Self::Unlimited => &[],
        }
    }

    pub(crate) fn limits_mut(&mut self) -> &mut [Limit] {
        match self {
            Self::Limits(limits) => limits,
            Self::Deny | Self::Unlimited => &mut [],
        }
    }
}

/// Where a limit is in the policies.
#[derive(Clone, Copy, Debug)]
pub struct LimitPlace {
    policy: usize,
    /// The rule of an override, or the policy's own.
    rule: Option<usize>,
    limit: usize,
}

/// A quota with a name in a policy.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Limit {
    /// The name in header fields and in logs.
    pub label: Arc<str>,
    /// Separates its buckets in the table from those of other limits with the same key.
    pub id: u64,
    /// What follows from the id in the table, once the limit is in force: see
    /// [`Policies::come_into_force`].
    pub salt: Option<LimitSalt>,
    /// The same for its records in the store.
    pub record_name: Arc<str>,
    /// If each message says the numbers, the highest that count. If it counts in windows of a
    /// calendar, a burst of the count, and nothing else.
    pub quota: Quota,
    /// The windows in which it counts, if it does, from 0 again in each.
    pub calendar: Option<Arc<Calendar>>,
    /// The key that it counts by, if that is not the policy's. Without args, all clients share it.
    pub key: Option<Box<KeyParts>>,
    /// The arg with the numbers, if each message says them.
    pub by_arg: Option<Arc<ByArg>>,
    /// In a box, because no request needs them.
    pub words: Box<LimitWords>,
}

/// What makes a limit the same one: for the table, for what is lent, and for the store. (All three
/// separate limits with different numbers or keys besides.)
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LimitIdentity {
    id: u64,
    /// The name of the policy, and its own or its position, as in `api.hourly` and `api.1`. It is
    /// no matter whether it is alone in its list.
    record_name: Arc<str>,
}

impl LimitIdentity {
    /// That of a limit of a policy, by the limit's own name or position.
    pub(crate) fn new(policy: &str, own: &str) -> Self {
        let id = limit_id(&[policy.as_bytes(), own.as_bytes()]);
        Self { id, record_name: format!("{policy}.{own}").into() }
    }

    /// That of the limit of the flags.
    pub fn of_flags() -> Self {
        Self { id: 0, record_name: "default".into() }
    }
}

/// A limit in words.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct LimitWords {
    /// "10 per second, up to 20 at once".
    pub text: Box<str>,
    /// What follows from it: "at most 30 in any second".
    pub bound: Box<str>,
}

impl Limit {
    /// The limit with this label, `quota` being that of the rate and a burst.
    pub fn new(label: String, identity: LimitIdentity, rate: &Rate, quota: Quota) -> Self {
        let (burst, period) = (quota.burst(), rate.period());
        let words = LimitWords {
            text: format!("{rate}, up to {burst} at once").into(),
            bound: format!("at most {} in any {period}", rate.most_in_a_period(burst)).into(),
        };
        let LimitIdentity { id, record_name } = identity;
        Self {
            label: label.into(),
            id,
            salt: None,
            record_name,
            quota,
            calendar: None,
            key: None,
            by_arg: None,
            words: words.into(),
        }
    }

    /// The limit of so many cells in each window of a calendar; `None` if the count is 0.
    pub(crate) fn counting(
        label: String,
        identity: LimitIdentity,
        count: u32,
        calendar: Calendar,
    ) -> Option<Self> {
        // A debt stands for what is counted: a nanosecond for a cell.
        let quota = Quota::new(Nanos(1), count).ok()?;
        let words = LimitWords {
            text: calendar.count_in_words(count).into(),
            bound: calendar.bound_in_words(count).into(),
        };
        let calendar = Some(Arc::new(calendar));
        let (key, by_arg) = (None, None);
        let LimitIdentity { id, record_name } = identity;
        let (label, words) = (label.into(), words.into());
        Some(Self { label, id, salt: None, record_name, quota, calendar, key, by_arg, words })
    }

    /// The same with a key of its own, if there is one.
    pub(crate) fn by_key(self, key: Option<KeyParts>) -> Self {
        let Some(key) = key else { return self };
        let LimitWords { text, bound } = *self.words.clone();
        let limit = Self { key: Some(key.into()), ..self };
        let words = LimitWords { text: limit.with_clients(&text).into(), bound };
        Self { words: words.into(), ..limit }
    }

    /// Adds to its numbers what it counts by, if it has a key of its own.
    fn with_clients(&self, numbers: &str) -> String {
        match &self.key {
            None => numbers.to_owned(),
            Some(key) if key.args.is_empty() => format!("{numbers}, for all clients together"),
            Some(key) => format!("{numbers}, {}", key.in_words(false)),
        }
    }

    /// The limit in words, with the numbers that count for a message and where they are from.
    pub fn in_words_for(&self, message: &Message<'_>) -> String {
        let Some(by_arg) = &self.by_arg else { return self.words.text.to_string() };
        let Read { quota, said } = by_arg.read(self.quota, message);
        let arg = String::from_utf8_lossy(&by_arg.arg);
        let from = match said {
            ArgValue::Valid => format!("from the arg '{arg}'"),
            ArgValue::Lowered => format!("because the arg '{arg}' says more than 'most'"),
            ArgValue::Invalid => format!("the default, because the arg '{arg}' is no limit"),
            ArgValue::Missing => {
                format!("the default, because the arg '{arg}' is missing or null")
            }
        };
        self.with_clients(&format!("{} ({from})", numbers_in_words(quota)))
    }

    /// What tells its keys from those of other limits. This is worked out once for a limit that is
    /// in force.
    #[inline]
    pub fn salt(&self, table: &Table) -> LimitSalt {
        self.salt.unwrap_or_else(|| table.limit_salt(self.id))
    }

    /// Whether it depends on the message, and not only on the policy's key, in which bucket it
    /// counts.
    pub fn reads_messages(&self) -> bool {
        self.key.is_some() || self.by_arg.is_some()
    }

    /// The args that it reads itself: those of its own key, and the one with its numbers.
    pub(crate) fn own_args(&self) -> impl Iterator<Item = &[u8]> {
        let key = self.key.iter().flat_map(|key| key.names());
        key.chain(self.by_arg.as_ref().map(|by_arg| &*by_arg.arg))
    }
}

/// What a client is charged for each request that is blocked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Penalty {
    pub cells: u32,
    /// The most that penalties can add to a debt, in nanoseconds. After this time and the drain
    /// time of the limit without a request, the client has its full burst.
    pub(crate) ceiling_ns: u64,
}

/// Rules for some values of the key, by address and by value: places in a list of rules.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub rules: Vec<Rule>,
    /// What each rule is from, for sentences: the files of lists, and "overrides".
    pub lists: Vec<Vec<Box<str>>>,
    pub v4: PrefixMap<Ipv4Net, u32>,
    pub v6: PrefixMap<Ipv6Net, u32>,
    pub values: AHashMap<Box<[u8]>, u32>,
    /// The files of the lists, in the order in which they were read.
    pub files: Vec<PathBuf>,
}

/// Equal overrides decide in the same way, from whatever lists they are.
impl PartialEq for Overrides {
    fn eq(&self, other: &Self) -> bool {
        let Self { rules, lists: _, files: _, v4, v6, values } = self;
        (rules, v4, v6, values) == (&other.rules, &other.v4, &other.v6, &other.values)
    }
}

impl Overrides {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many values one of the rules is for.
    pub fn counts(&self, rule: usize) -> OverrideCounts {
        let ours = |index: &u32| *index as usize == rule;
        let mut counts = OverrideCounts::default();
        for (net, _) in self.v4.iter().filter(|(_, index)| ours(index)) {
            counts.v4[usize::from(net.prefix_len() < net.max_prefix_len())] += 1;
        }
        for (net, _) in self.v6.iter().filter(|(_, index)| ours(index)) {
            counts.v6[usize::from(net.prefix_len() < net.max_prefix_len())] += 1;
        }
        counts.values = self.values.values().filter(|index| ours(index)).count();
        counts
    }

    /// Whether one of them is for an address or a network.
    pub(crate) fn has_networks(&self) -> bool {
        self.v4.iter().next().is_some() || self.v6.iter().next().is_some()
    }

    pub fn insert(&mut self, key: OverrideKey, rule: u32) -> Option<u32> {
        match key {
            OverrideKey::Net(IpNet::V4(net)) => self.v4.insert(net, rule),
            OverrideKey::Net(IpNet::V6(net)) => self.v6.insert(net, rule),
            OverrideKey::Value(value) => self.values.insert(value, rule),
        }
    }

    /// The override for a value of the key, if there is one. The smallest network counts.
    #[inline]
    fn find(&self, value: Value<'_>, lowercase: bool) -> Option<Override> {
        let v4 = |ip: Ipv4Addr| {
            let (network, rule) = self.v4.get_lpm(&Ipv4Net::from(ip))?;
            Some(Override { rule: *rule, prefix: network.prefix_len() })
        };
        let rule = match value {
            Value::Ipv4(ip) => return v4(ip),
            Value::Ipv6(ip) => {
                return match ip.to_ipv4_mapped() {
                    Some(ip) => v4(ip),
                    None => {
                        let (network, rule) = self.v6.get_lpm(&Ipv6Net::from(ip))?;
                        Some(Override { rule: *rule, prefix: network.prefix_len() })
                    }
                };
            }
            Value::String(bytes) if lowercase => {
                // A longer value can't have an override.
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
        Some(Override { rule: *rule, prefix: 0 })
    }
}

/// How many values a rule is for.
#[derive(Debug, Default)]
pub struct OverrideCounts {
    /// Single addresses, and networks.
    pub v4: [usize; 2],
    pub v6: [usize; 2],
    pub values: usize,
}

/// The override that was found for a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Override {
    /// The place of its rule.
    pub(crate) rule: u32,
    /// The prefix length of the network, if the override is for one; else 0.
    prefix: u8,
}

impl Override {
    /// The entry that was found for this value.
    fn entry(self, value: Value<'_>, lowercase: bool) -> Option<OverrideKey> {
        let net = |ip: IpAddr| {
            let net = IpNet::new(ip.to_canonical(), self.prefix).ok()?;
            Some(OverrideKey::Net(net.trunc()))
        };
        match value {
            Value::Ipv4(ip) => net(ip.into()),
            Value::Ipv6(ip) => net(ip.into()),
            Value::String(bytes) if lowercase => {
                Some(OverrideKey::Value(bytes.to_ascii_lowercase().into()))
            }
            value => value.as_bytes().map(|bytes| OverrideKey::Value(bytes.into())),
        }
    }
}

/// The longest value that can have an override, in bytes.
pub(crate) const MAX_VALUE: usize = 256;

/// What an override is for.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum OverrideKey {
    Net(IpNet),
    Value(Box<[u8]>),
}

impl Policies {
    pub fn new(list: Vec<Policy>, answers: Answers, files: Vec<Seen>, text_digest: u64) -> Self {
        let limits_digest = Self::digest_of_limits(&list);
        Self {
            list,
            answers,
            store: None,
            warnings: Vec::new(),
            warning_count: 0,
            files,
            text_digest,
            limits_digest,
            switched: Vec::new(),
        }
    }

    /// The same policies, of which the one with this name only observes until the next reload, or
    /// no longer does because of an earlier call. `None` if that changes nothing.
    ///
    /// # Errors
    ///
    /// There is no such policy, or it is not because of a call that it observes. The error is a
    /// sentence.
    pub fn observing(&self, name: &str, observes: bool) -> Result<Option<Self>, String> {
        let mut list = self.list.clone();
        let Some(policy) = list.iter_mut().find(|it| *it.name == *name && !it.is_trial) else {
            let names: Vec<_> = self.without_trials().map(|policy| &*policy.name).collect();
            return Err(format!("there is no policy '{name}'; there are {}", names.join(", ")));
        };
        let is_switched = self.switched.iter().any(|switched| **switched == *name);
        if policy.observes == observes {
            return Ok(None);
        }
        if !observes && !is_switched {
            return Err(format!(
                "policy '{name}' observes because its file says so; change its mode there, and \
                 reload"
            ));
        }
        policy.observes = observes;
        let mut switched = self.switched.clone();
        match observes {
            true => switched.push(name.into()),
            false => switched.retain(|switched| **switched != *name),
        }
        // No text says this, so the next reload puts the file in force even if it is the same.
        let changed = Self::new(list, self.answers.clone(), self.files.clone(), 0);
        let (store, warnings) = (self.store.clone(), self.warnings.clone());
        Ok(Some(Self { store, warnings, warning_count: self.warning_count, switched, ..changed }))
    }

    /// The same answers with other policies, which were not read from any text.
    pub fn with_list(&self, list: Vec<Policy>) -> Self {
        let store = self.store.clone();
        Self { store, ..Self::new(list, self.answers.clone(), Vec::new(), 0) }
    }

    /// The same policies, of which all are shared in this way, or none.
    pub fn shared_as(&self, shared: Option<Sharing>) -> Self {
        let each = self.list.iter();
        let list = each.map(|policy| Policy { shared, ..policy.with_rule(policy.rule.clone()) });
        self.with_list(list.collect())
    }

    /// The policies without their trials.
    pub fn without_trials(&self) -> impl Iterator<Item = &Policy> {
        self.list.iter().filter(|policy| !policy.is_trial)
    }

    /// Where a limit of these policies is; `None` if it is not one of them.
    pub fn place_of(&self, limit: &Limit) -> Option<LimitPlace> {
        self.list.iter().enumerate().find_map(|(policy, found)| {
            let overrides = found.overrides.rules.iter().enumerate();
            let overrides = overrides.map(|(rule, found)| (Some(rule), found));
            [(None, &found.rule)].into_iter().chain(overrides).find_map(|(rule, found)| {
                let limits = found.limits();
                let limit = limits.iter().position(|found| std::ptr::eq(found, limit))?;
                Some(LimitPlace { policy, rule, limit })
            })
        })
    }

    /// The limit at a place.
    pub fn limit_at(&self, place: LimitPlace) -> Option<&Limit> {
        let policy = self.list.get(place.policy)?;
        let rule = match place.rule {
            None => &policy.rule,
            Some(rule) => policy.overrides.rules.get(rule)?,
        };
        rule.limits().get(place.limit)
    }

    /// The first policy that is shared, if one is.
    pub fn first_shared(&self) -> Option<&Policy> {
        self.list.iter().find(|policy| policy.shared.is_some())
    }

    /// The place of the first policy that is for this message.
    #[inline]
    pub fn of(&self, message: &Message<'_>) -> Option<usize> {
        self.list.iter().position(|policy| policy.is_for(message))
    }
}

impl Policy {
    /// Whether the policy shows that it counts addresses, and not strings: it groups them, or all
    /// its overrides are for addresses.
    pub fn is_for_addresses(&self) -> bool {
        let Overrides { v4, v6, values, .. } = &self.overrides;
        let has_networks = v4.len() + v6.len() > 0;
        self.key.ipv4_prefix < 32 || (has_networks && values.is_empty())
    }

    #[inline]
    fn is_for(&self, message: &Message<'_>) -> bool {
        let named = self.message.as_ref().is_none_or(|name| **name == *message.name);
        named && self.fits(message)
    }

    /// Whether the values of a message fit `when`.
    #[inline]
    pub(crate) fn fits(&self, message: &Message<'_>) -> bool {
        self.when.as_ref().is_none_or(|When { arg, values }| {
            let value = message.arg(arg).and_then(|value| value.as_bytes());
            value.is_some_and(|value| values.iter().any(|wanted| **wanted == *value))
        })
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
        part: impl Fn(&mut S, Part<'a>),
        fallback: impl Fn(&mut S, u8),
    ) -> Option<Option<u32>> {
        let mut overridden = None;
        let each = |state: &mut S, value| {
            let found = if overridden.is_none() { self.override_for(value) } else { None };
            overridden = overridden.or(found.map(|found| found.rule));
            part(state, self.key.group(value, found.map_or(0, |found| found.prefix)));
        };
        self.values(message, state, each, fallback)?;
        Some(overridden)
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
            for arg in message.args() {
                // This is done for each arg of each message: a test for `None` costs almost
                // nothing, a comparison of names does.
                if self.cost.as_deref().is_some_and(|cost| *cost == *arg.name)
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

    /// The override for a value of the key, if there is one.
    #[inline]
    pub(crate) fn override_for(&self, part: Value<'_>) -> Option<Override> {
        if self.overrides.is_empty() {
            None
        } else {
            self.overrides.find(part, self.key.lowercase)
        }
    }

    /// Whether a client of this policy is the one that is exempt.
    pub fn is_meant_by(&self, exemption: &Exemption) -> bool {
        exemption.policy == policy_id(&self.name)
    }

    /// Which part of a message's key has the override that counts, and the entry for it.
    pub fn override_entry(&self, message: &Message<'_>) -> Option<(usize, OverrideKey)> {
        let (mut part, mut entry) = (0, None);
        self.for_each_value(message, |value, _| {
            if entry.is_none() {
                let found = self.override_for(value);
                let found = found.and_then(|found| found.entry(value, self.key.lowercase));
                entry = found.map(|found| (part, found));
            }
            part += 1;
        })?;
        entry
    }

    #[inline]
    pub fn rule(&self, at: RuleAt) -> &Rule {
        self.overrides.rules.get(at.0 as usize).unwrap_or(&self.rule)
    }

    /// The same keys under another rule, without overrides.
    pub fn with_rule(&self, rule: Rule) -> Self {
        Self {
            name: self.name.clone(),
            message: self.message.clone(),
            when: self.when.clone(),
            key: self.key.clone(),
            cost: self.cost.clone(),
            cells: self.cells,
            rule,
            overrides: Overrides::default(),
            observes: self.observes,
            penalty: self.penalty,
            bandwidth: self.bandwidth,
            shared: self.shared,
            settle: self.settle.clone(),
            trial: None,
            is_trial: self.is_trial,
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
            key,
            // The args of the cost and of `when` are no part of a key of all args, but a policy
            // that gets or loses one gets other keys with it.
            cost: _,
            cells: _,
            rule,
            overrides,
            observes: _,
            // It is part of the quotas of the limits.
            penalty: _,
            bandwidth: _,
            // What is owed lies in the table or in the store.
            shared,
            // The largest debt is part of the quotas.
            settle: _,
            // It is compared by itself.
            trial: _,
            is_trial: _,
        } = self;
        (key, rule, overrides, shared.is_some())
            == (&other.key, &other.rule, &other.overrides, other.shared.is_some())
    }

    /// Whether this policy makes the same key of a message as `other`.
    pub fn makes_keys_of(&self, other: &Self) -> bool {
        // The args that are not part of a key of all args, and the networks of overrides that are
        // groups of their own.
        let left_out = |policy: &Self| {
            let when = policy.when.as_ref().map(|when| when.arg.clone());
            policy.key.args.is_empty().then(|| (policy.cost.clone(), when))
        };
        let narrow = |policy: &Self| {
            let Overrides { v4, v6, .. } = &policy.overrides;
            let KeyParts { ipv4_prefix, ipv6_prefix, .. } = policy.key;
            let v4 = v4.iter().map(|(net, _)| net).filter(|net| net.prefix_len() > ipv4_prefix);
            let v6 = v6.iter().map(|(net, _)| net).filter(|net| net.prefix_len() > ipv6_prefix);
            let mut nets: Vec<IpNet> = v4.map(IpNet::V4).chain(v6.map(IpNet::V6)).collect();
            nets.sort();
            nets
        };
        self.key == other.key && left_out(self) == left_out(other) && narrow(self) == narrow(other)
    }

    /// Whether the limits of this policy have the same keys of their own as those of `other`, as
    /// far as it has them, too: of an earlier policy only those that were changed may be known.
    pub fn has_keys_of_limits(&self, other: &Self) -> bool {
        self.limits().all(|limit| {
            let mut same = other.limits().filter(|other| other.id == limit.id).peekable();
            same.peek().is_none() || same.any(|other| other.key == limit.key)
        })
    }

    /// All rules, including those of overrides.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        std::iter::once(&self.rule).chain(&self.overrides.rules)
    }

    /// The args that limits read themselves, each as often as one does.
    pub fn args_of_limits(&self) -> impl Iterator<Item = &[u8]> {
        self.limits().flat_map(Limit::own_args)
    }

    /// The limits of all rules.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules().flat_map(Rule::limits)
    }
}

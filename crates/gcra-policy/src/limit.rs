//! Limits: a quota with a name in a policy, and the rules that are made of them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use gcra_table::{LimitSalt, Nanos, Quota, Rate, Table, limit_id};
use spop_codec::Message;

use crate::calendar::Calendar;
use crate::key_parts::KeyParts;
use crate::limit_from_arg::{ArgValue, ByArg, MessageNumbers};
use crate::rate_words::numbers_in_words;

pub const MAX_LIMITS: usize = 4;

/// How a policy decides about a key.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Rule {
    /// A request must satisfy all of them. There is at least one.
    Limits(Vec<Limit>),
    Deny,
    Unlimited,
}

impl Rule {
    /// None where every request is blocked, or none is.
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

/// A quota with a name in a policy.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Limit {
    /// The name in header fields and in logs.
    pub label: Arc<str>,
    /// The beginning of its member in a list of limits, as in `, "api";`. An answer copies it in
    /// one piece.
    pub member: Box<str>,
    /// Separates its buckets in the table from those of other limits with the same key.
    pub id: u64,
    pub salt: SaltInForce,
    /// The same for its records in the store.
    pub record_name: Arc<str>,
    pub numbers: LimitNumbers,
    /// The key that it counts by, if that is not the policy's. Without args, all clients share it.
    pub key: Option<Box<KeyParts>>,
    /// In a box, because no request needs them.
    pub words: Box<LimitWords>,
}

fn member(label: &str) -> Box<str> {
    format!(", \"{label}\";").into()
}

/// The salt of a limit in the table, once the limit is in force: see `Policies::come_into_force`.
///
/// Limits are compared without it, because no file says it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaltInForce(pub Option<LimitSalt>);

impl PartialEq for SaltInForce {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SaltInForce {}

impl Hash for SaltInForce {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The id that takes the place of this one since the last reset of its policy, in nanoseconds
/// since 1970. The same id if that is 0, because there was no reset.
pub fn id_since(id: u64, reset_at: u64) -> u64 {
    match reset_at {
        0 => id,
        at => limit_id(&[&id.to_le_bytes(), b"reset", &at.to_le_bytes()]),
    }
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum LimitNumbers {
    /// A rate and a burst.
    Fixed(Quota),
    /// A rate and a burst that each message says.
    ByArg(Arc<ByArg>),
    PerWindow(Arc<WindowCount>),
}

/// So many cells in each window of a calendar, from 0 again in each.
#[derive(Debug, Eq, Hash, PartialEq)]
pub struct WindowCount {
    pub calendar: Calendar,
    /// The count as a burst. A debt stands for the counted cells: a nanosecond for a cell.
    quota: Quota,
}

/// The identity of a limit: for the table, for leases, and for the store. (All three separate
/// limits with different numbers or keys besides.)
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

    pub fn of_flags() -> Self {
        Self { id: 0, record_name: "default".into() }
    }
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct LimitWords {
    /// "10 per second, up to 20 at once".
    pub text: Box<str>,
    /// The bound that follows from it: "at most 30 in any second".
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
            member: member(&label),
            label: label.into(),
            id,
            salt: SaltInForce::default(),
            record_name,
            numbers: LimitNumbers::Fixed(quota),
            key: None,
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
        let quota = Quota::new(Nanos(1), count).ok()?;
        let words = LimitWords {
            text: calendar.count_in_words(count).into(),
            bound: calendar.bound_in_words(count).into(),
        };
        let numbers = LimitNumbers::PerWindow(WindowCount { calendar, quota }.into());
        let LimitIdentity { id, record_name } = identity;
        let (member, label, words) = (member(&label), label.into(), words.into());
        let (salt, key) = (SaltInForce::default(), None);
        Some(Self { label, member, id, salt, record_name, numbers, key, words })
    }

    /// The same with a key of its own, if there is one.
    pub(crate) fn by_key(mut self, key: Option<KeyParts>) -> Self {
        self.key = key.map(Box::new);
        self.words.text = self.with_clients(&self.words.text).into();
        self
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
        let Some(by_arg) = self.by_arg() else { return self.words.text.to_string() };
        let MessageNumbers { quota, said } = by_arg.read(message);
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

    /// Its rate and burst, if they are the same for all messages.
    pub fn fixed(&self) -> Option<Quota> {
        let LimitNumbers::Fixed(quota) = self.numbers else { return None };
        Some(quota)
    }

    /// Its rate and burst, the highest if messages say them; `None` if it counts in windows.
    pub fn rate(&self) -> Option<Quota> {
        self.calendar().is_none().then(|| self.quota(None))
    }

    /// The same, to put into it what follows from its policy.
    pub(crate) fn rate_mut(&mut self) -> Option<&mut Quota> {
        match &mut self.numbers {
            LimitNumbers::Fixed(quota) => Some(quota),
            // It was made for this limit just now, so that nothing else has it.
            LimitNumbers::ByArg(by_arg) => Some(&mut Arc::get_mut(by_arg)?.most),
            LimitNumbers::PerWindow(_) => None,
        }
    }

    /// Its rate and burst with their words, the default if messages say them; `None` if it counts
    /// in windows.
    pub(crate) fn default_rate(&self) -> Option<(Quota, String)> {
        match &self.numbers {
            LimitNumbers::Fixed(quota) => Some((*quota, self.words.text.to_string())),
            LimitNumbers::ByArg(by_arg) => {
                let words = format!("{} (the default)", numbers_in_words(by_arg.default));
                Some((by_arg.default, words))
            }
            LimitNumbers::PerWindow(_) => None,
        }
    }

    /// The arg that says its numbers, if messages say them.
    pub fn by_arg(&self) -> Option<&ByArg> {
        let LimitNumbers::ByArg(by_arg) = &self.numbers else { return None };
        Some(by_arg)
    }

    pub(crate) fn by_arg_mut(&mut self) -> Option<&mut ByArg> {
        let LimitNumbers::ByArg(by_arg) = &mut self.numbers else { return None };
        Arc::get_mut(by_arg)
    }

    /// The windows in which it counts, if it does.
    #[inline]
    pub fn calendar(&self) -> Option<&Calendar> {
        let LimitNumbers::PerWindow(counts) = &self.numbers else { return None };
        Some(&counts.calendar)
    }

    /// The quota of its bucket for a message; without the message, the highest. If it counts in
    /// windows, a burst of the count.
    #[inline]
    pub fn quota(&self, message: Option<&Message<'_>>) -> Quota {
        match (&self.numbers, message) {
            (LimitNumbers::Fixed(quota), _) => *quota,
            (LimitNumbers::ByArg(by_arg), Some(message)) => by_arg.read(message).quota,
            (LimitNumbers::ByArg(by_arg), None) => by_arg.most,
            (LimitNumbers::PerWindow(counts), _) => counts.quota,
        }
    }

    /// The most cells that it allows at once, or in a window.
    pub fn burst(&self) -> u32 {
        self.quota(None).burst()
    }

    /// Distinguishes its keys from those of other limits. This is worked out once for a limit that
    /// is in force.
    #[inline]
    pub fn salt(&self, table: &Table) -> LimitSalt {
        self.salt.0.unwrap_or_else(|| table.limit_salt(self.id))
    }

    /// Whether it depends on the message, and not only on the policy's key, in which bucket it
    /// counts.
    pub fn reads_messages(&self) -> bool {
        self.key.is_some() || self.by_arg().is_some()
    }

    /// The args that it reads itself: those of its own key, and the one with its numbers.
    pub(crate) fn own_args(&self) -> impl Iterator<Item = &[u8]> {
        let key = self.key.iter().flat_map(|key| key.names());
        key.chain(self.by_arg().map(|by_arg| &*by_arg.arg))
    }
}

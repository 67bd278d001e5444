//! Limits whose numbers each message says: `{ arg = "plan", default = "10/s", most = "1000/s" }`.

use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use gcra_table::{Nanos, Quota, Rate};
use spop_agent::{Message, Value};

use crate::policy::limits::rate_and_burst;
use crate::policy::settle::with_max_debt;
use crate::policy::sharing::in_whole_cells;

/// How many values are remembered with the quotas that they stand for. They are as many as there
/// are plans; of more than that, each is parsed again for each message.
const REMEMBERED: usize = 32;

/// The longest value that can be a limit, in bytes: longer than any that means something.
const LONGEST: usize = 64;

/// An arg that says the numbers of a limit.
#[derive(Debug)]
pub(crate) struct ByArg {
    pub(crate) arg: Box<[u8]>,
    /// What counts where the value is missing or no limit.
    pub(crate) default: Quota,
    /// How long a debt beyond the burst may take to be paid off, in a policy that is settled.
    pub(crate) max_debt: Nanos,
    /// Whether the policy is shared.
    pub(crate) is_shared: bool,
    /// Values that were parsed, in the order in which they came. Only the first places are filled.
    parsed: [OnceLock<(Box<[u8]>, Read)>; REMEMBERED],
}

/// What a message says about the numbers of a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ArgValue {
    /// A limit within the highest.
    Valid,
    /// A limit above the highest, which counts in its place.
    Lowered,
    /// Something that is no limit, so the default counts.
    Invalid,
    /// Nothing: the arg is missing or null, so the default counts.
    Missing,
}

impl ArgValue {
    pub(crate) const ALL: [Self; 4] = [Self::Valid, Self::Lowered, Self::Invalid, Self::Missing];

    /// The word in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Lowered => "lowered",
            Self::Invalid => "invalid",
            Self::Missing => "missing",
        }
    }
}

/// The numbers that count for a message, and what it said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) quota: Quota,
    pub(crate) said: ArgValue,
}

impl ByArg {
    pub(crate) fn new(arg: &str, default: Quota) -> Self {
        Self {
            arg: arg.as_bytes().into(),
            default,
            max_debt: Nanos::ZERO,
            is_shared: false,
            parsed: [const { OnceLock::new() }; REMEMBERED],
        }
    }

    /// The numbers for a message, if they are `most` at most.
    pub(crate) fn read(&self, most: Quota, message: &Message<'_>) -> Read {
        let default = |said| Read { quota: self.like(self.default, most), said };
        let value = match message.arg(&self.arg) {
            None | Some(Value::Null) => return default(ArgValue::Missing),
            Some(value) => value.as_bytes().filter(|value| value.len() <= LONGEST),
        };
        let Some(value) = value else { return default(ArgValue::Invalid) };
        for place in &self.parsed {
            match place.get() {
                Some((known, read)) if **known == *value => return *read,
                Some(_) => {}
                None => {
                    let Some(read) = self.parse(value, most) else {
                        return default(ArgValue::Invalid);
                    };
                    // Another thread may have been faster, perhaps with another value.
                    let _ = place.set((value.into(), read));
                    return read;
                }
            }
        }
        self.parse(value, most).unwrap_or_else(|| default(ArgValue::Invalid))
    }

    /// The quotas that messages have said so far, as far as they are remembered, and the default.
    pub(crate) fn quotas(&self, most: Quota) -> impl Iterator<Item = Quota> {
        let read = self.parsed.iter().filter_map(OnceLock::get).map(|(_, read)| read.quota);
        std::iter::once(self.like(self.default, most)).chain(read)
    }

    /// The quota that a value stands for, if it is a limit.
    fn parse(&self, value: &[u8], most: Quota) -> Option<Read> {
        let (rate, burst) = rate_and_burst(str::from_utf8(value).ok()?)?;
        let rate = Rate::parse(rate).ok()?;
        let wanted = rate.quota(burst).ok()?;
        let lowered = lowered(wanted, most)?;
        let said = if lowered == wanted { ArgValue::Valid } else { ArgValue::Lowered };
        Some(Read { quota: self.like(lowered, most), said })
    }

    /// The same quota, with the longest delay of the highest, and as much that may be owed beyond.
    fn like(&self, quota: Quota, most: Quota) -> Quota {
        let like = self.owing_as(quota, most);
        if self.is_shared { in_whole_cells(like) } else { like }
    }

    fn owing_as(&self, quota: Quota, most: Quota) -> Quota {
        if self.max_debt > Nanos::ZERO {
            return with_max_debt(quota, self.max_debt).unwrap_or(quota);
        }
        let beyond = most.most_owed().saturating_sub(most.drain_time());
        if beyond == Nanos::ZERO {
            return quota;
        }
        let delaying = quota.with_max_delay(most.max_delay());
        let owing = delaying
            .and_then(|quota| quota.with_most_owed(quota.drain_time().saturating_add(beyond)));
        // Four years are too long to be owed. Then nothing is owed beyond the burst.
        owing.unwrap_or(quota)
    }
}

/// The same quota, with no larger burst and no higher rate than the highest has.
pub(super) fn lowered(quota: Quota, most: Quota) -> Option<Quota> {
    let interval = quota.emission_interval().max(most.emission_interval());
    let burst = quota.burst().min(most.burst());
    if (interval, burst) == (quota.emission_interval(), quota.burst()) {
        return Some(quota);
    }
    Quota::new(interval, burst).ok()
}

/// What was parsed is no part of it.
impl PartialEq for ByArg {
    fn eq(&self, other: &Self) -> bool {
        let Self { arg, default, max_debt, is_shared, parsed: _ } = self;
        let others = (&other.arg, &other.default, &other.max_debt, &other.is_shared);
        (arg, default, max_debt, is_shared) == others
    }
}

impl Eq for ByArg {}

impl Hash for ByArg {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { arg, default, max_debt, is_shared, parsed: _ } = self;
        (arg, default, max_debt, is_shared).hash(state);
    }
}

//! Limits whose numbers each message says: `{ arg = "plan", default = "10/s", most = "1000/s" }`.

// ADR 40: A limit may read the message itself.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use gcra_table::{Nanos, Quota, Rate};
use gcra_text::visible::Visible;
use spop_codec::{Message, Value};

use crate::rate_guess::Meant;
use crate::settle::with_max_debt;
use crate::sharing::in_whole_cells;

/// How many values are remembered with the quotas that they stand for. They are as many as there
/// are plans; of more than that, each is parsed again for each message.
const REMEMBERED: usize = 32;

/// How many quotas are remembered as written down: more than the table's register has space for.
const MOST_NOTED: usize = 1024;

/// The longest value that can be a limit, in bytes: longer than any that means something.
const LONGEST: usize = 64;

/// An arg that says the numbers of a limit.
#[derive(Debug)]
pub struct ByArg {
    pub arg: Box<[u8]>,
    /// The quota where the value is missing or no limit.
    pub default: Quota,
    /// The highest numbers that count.
    pub most: Quota,
    /// How long a debt beyond the burst may take to be paid off, in a policy that is settled.
    pub(crate) max_debt: Nanos,
    pub is_shared: bool,
    /// Values that were parsed, in the order in which they came. Only the first places are filled.
    parsed: [OnceLock<(Box<[u8]>, MessageNumbers)>; REMEMBERED],
    noted: ArcSwap<Noted>,
}

/// The quotas that messages have said, and that were written down.
#[derive(Clone, Debug, Default)]
struct Noted {
    quotas: HashSet<Quota>,
    /// Whether there was no space for more.
    is_full: bool,
}

gcra_text::words! {
    /// The content of an arg with the numbers of a limit, with the word in metrics.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum ArgValue {
        /// A limit within the highest.
        Valid = "valid",
        /// A limit above the highest, which counts in its place.
        Lowered = "lowered",
        /// Something that is no limit, so the default counts.
        Invalid = "invalid",
        /// Nothing: the arg is missing or null, so the default counts.
        Missing = "missing",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct MessageNumbers {
    pub quota: Quota,
    pub said: ArgValue,
}

impl ByArg {
    pub(crate) fn new(arg: &str, default: Quota, most: Quota) -> Self {
        Self {
            arg: arg.as_bytes().into(),
            default,
            most,
            max_debt: Nanos::ZERO,
            is_shared: false,
            parsed: [const { OnceLock::new() }; REMEMBERED],
            noted: ArcSwap::default(),
        }
    }

    pub fn read(&self, message: &Message<'_>) -> MessageNumbers {
        let read = |value| self.known(value).or_else(|| self.parse(value));
        self.value(message)
            .and_then(|value| read(value).ok_or(ArgValue::Invalid))
            .unwrap_or_else(|said| self.read_default(said))
    }

    /// As [`read`](Self::read), for a message that is to be decided. Before anything is charged by
    /// numbers that come for the first time, `write_down` gets them, and returns whether they are
    /// written down.
    pub fn note(
        &self,
        message: &Message<'_>,
        write_down: impl FnOnce(Quota) -> bool,
    ) -> MessageNumbers {
        let value = match self.value(message) {
            Ok(value) => value,
            Err(said) => return self.read_default(said),
        };
        if let Some(read) = self.known(value) {
            return read;
        }
        let Some(read) = self.parse(value) else {
            return self.read_default(ArgValue::Invalid);
        };
        self.note_quota(read.quota, write_down);
        // If another thread is faster, its value is remembered.
        if let Some(place) = self.parsed.iter().find(|place| place.get().is_none()) {
            let _ = place.set((value.into(), read));
        }
        read
    }

    /// Once the register is full, nothing is written to it, so that no message costs the time for
    /// looking through it.
    fn note_quota(&self, quota: Quota, write_down: impl FnOnce(Quota) -> bool) {
        let noted = self.noted.load();
        if noted.is_full || noted.quotas.contains(&quota) {
            return;
        }
        let is_written = write_down(quota);
        self.noted.rcu(|noted| {
            let mut noted = Noted::clone(noted);
            match is_written && noted.quotas.len() < MOST_NOTED {
                true => drop(noted.quotas.insert(quota)),
                false => noted.is_full |= !is_written,
            }
            noted
        });
    }

    /// The value in a message that may be a limit.
    fn value<'m>(&self, message: &Message<'m>) -> Result<&'m [u8], ArgValue> {
        match message.arg(&self.arg) {
            None | Some(Value::Null) => Err(ArgValue::Missing),
            Some(value) => {
                let text = value.as_bytes().filter(|value| value.len() <= LONGEST);
                text.ok_or(ArgValue::Invalid)
            }
        }
    }

    /// The numbers of a value, if they are remembered.
    fn known(&self, value: &[u8]) -> Option<MessageNumbers> {
        let mut known = self.parsed.iter().map_while(OnceLock::get);
        known.find(|(text, _)| **text == *value).map(|(_, read)| *read)
    }

    fn read_default(&self, said: ArgValue) -> MessageNumbers {
        MessageNumbers { quota: self.like_most(self.default), said }
    }

    /// The default, and the quotas that messages have said to this process.
    pub fn quotas(&self) -> Vec<Quota> {
        let noted = self.noted.load();
        let default = self.like_most(self.default);
        std::iter::once(default).chain(noted.quotas.iter().copied()).collect()
    }

    /// The quota that a value stands for, if it is a limit.
    fn parse(&self, value: &[u8]) -> Option<MessageNumbers> {
        let (rate, burst) = rate_and_burst(str::from_utf8(value).ok()?)?;
        let rate = Rate::parse(rate).ok()?;
        let wanted = rate.quota(burst).ok()?;
        let lowered = lowered(wanted, self.most)?;
        let said = if lowered == wanted { ArgValue::Valid } else { ArgValue::Lowered };
        Some(MessageNumbers { quota: self.like_most(lowered), said })
    }

    /// The same quota, with the longest delay of the highest, and as much that may be owed beyond.
    fn like_most(&self, quota: Quota) -> Quota {
        let like = self.owing_as_most(quota);
        if self.is_shared { in_whole_cells(like) } else { like }
    }

    fn owing_as_most(&self, quota: Quota) -> Quota {
        if self.max_debt > Nanos::ZERO {
            return with_max_debt(quota, self.max_debt).unwrap_or(quota);
        }
        let most = self.most;
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

/// A value that should be a limit, and is none.
#[derive(Clone, Debug)]
pub enum NoLimit {
    /// The first bytes of a string, and how many it has.
    Text(ArrayVec<u8, LONGEST>, usize),
    Integer(i128),
    Other,
}

impl NoLimit {
    pub fn of(value: Value<'_>) -> Self {
        match (value.as_bytes(), value.as_integer()) {
            (Some(text), _) => {
                Self::Text(text.iter().copied().take(LONGEST).collect(), text.len())
            }
            (None, Some(integer)) => Self::Integer(integer),
            (None, None) => Self::Other,
        }
    }
}

/// "'20', which has no period; write 20/10s".
impl fmt::Display for NoLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, bytes) = match self {
            Self::Text(text, bytes) => (String::from_utf8_lossy(text), *bytes),
            Self::Integer(integer) => {
                return write!(
                    f,
                    "the integer {integer}; let HAProxy send a string such as 20/10s"
                );
            }
            Self::Other => return f.write_str("no string; let HAProxy send one such as 20/10s"),
        };
        if bytes > LONGEST {
            return write!(f, "a string of {bytes} bytes, and a limit has at most {LONGEST}");
        }
        let (shown, plain) = (Visible(&text), text.trim());
        if plain.is_empty() {
            return f.write_str("an empty string; let HAProxy send null, or a limit as 20/10s");
        }
        if plain.bytes().all(|byte| byte.is_ascii_digit()) {
            return write!(
                f,
                "'{shown}', which has no period; write {plain}/10s, or the period that is meant"
            );
        }
        if matches!(plain, "deny" | "unlimited") {
            return write!(f, "'{shown}', which no message can say; write an override");
        }
        match Meant::by(plain) {
            Some(Meant { rate, burst: Some(burst) }) => {
                write!(f, "'{shown}'; write {rate} burst {burst}")
            }
            Some(Meant { rate, burst: None }) => write!(f, "'{shown}'; write {rate}"),
            None => write!(f, "'{shown}'; write a limit such as 20/10s or 100/s burst 200"),
        }
    }
}

/// The numbers of a limit that is written as a string: `10/s` or `10/s burst 20`.
fn rate_and_burst(text: &str) -> Option<(&str, Option<u64>)> {
    let mut words = text.split_ascii_whitespace();
    match (words.next()?, words.next(), words.next(), words.next()) {
        (rate, None, ..) => Some((rate, None)),
        (rate, Some("burst"), Some(burst), None) => Some((rate, Some(burst.parse().ok()?))),
        _ => None,
    }
}

/// The same quota, with no larger burst and no higher rate than the highest has.
pub fn lowered(quota: Quota, most: Quota) -> Option<Quota> {
    let interval = quota.emission_interval().max(most.emission_interval());
    let burst = quota.burst().min(most.burst());
    if (interval, burst) == (quota.emission_interval(), quota.burst()) {
        return Some(quota);
    }
    Quota::new(interval, burst).ok()
}

/// The numbers that messages have said are no part of it.
impl PartialEq for ByArg {
    fn eq(&self, other: &Self) -> bool {
        let Self { arg, default, most, max_debt, is_shared, parsed: _, noted: _ } = self;
        let others = (&other.arg, &other.default, &other.most, &other.max_debt, &other.is_shared);
        (arg, default, most, max_debt, is_shared) == others
    }
}

impl Eq for ByArg {}

impl Hash for ByArg {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { arg, default, most, max_debt, is_shared, parsed: _, noted: _ } = self;
        (arg, default, most, max_debt, is_shared).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_limit_says_what_to_write() {
        let said = |value: &[u8]| NoLimit::of(Value::String(value)).to_string();
        for (text, right) in [
            ("20", "'20', which has no period; write 20/10s, or the period that is meant"),
            (" 20\n", "' 20\\n', which has no period; write 20/10s, or the period that is meant"),
            ("", "an empty string; let HAProxy send null, or a limit as 20/10s"),
            ("deny", "'deny', which no message can say; write an override"),
            ("100 per second", "'100 per second'; write 100/second"),
            ("100/s, burst=20", "'100/s, burst=20'; write 100/s burst 20"),
            ("gold", "'gold'; write a limit such as 20/10s or 100/s burst 200"),
            ("\u{1b}[2J", "'\\u{1b}[2J'; write a limit such as 20/10s or 100/s burst 200"),
        ] {
            assert_eq!(said(text.as_bytes()), right);
        }
        assert_eq!(said(&[b'x'; 300]), "a string of 300 bytes, and a limit has at most 64");
        assert!(said(b"\xff").starts_with("'\u{fffd}'; write"));
        let integer = NoLimit::of(Value::Int64(20)).to_string();
        assert_eq!(integer, "the integer 20; let HAProxy send a string such as 20/10s");
        assert!(NoLimit::of(Value::Bool(true)).to_string().starts_with("no string; "));
    }
}

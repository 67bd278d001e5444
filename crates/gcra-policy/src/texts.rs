//! The texts of a file that stand for a value. HAProxy sends values with types, and in a file all
//! of them are text: `when`, overrides and lists ask here which text a value has.
//!
//! A string or a binary value has its own bytes. An integer has its digits, as HAProxy writes
//! them: 443, and neither 0443 nor +443. A boolean has `true` or `false`, and `1` or `0`, because
//! that is what HAProxy makes of one in a string. An address is compared as an address, so a text
//! can be one of several that stand for it.

use std::fmt::Write as _;
use std::net::IpAddr;

use arrayvec::ArrayString;
use gcra_text::network::written_net;
use ipnet::IpNet;
use spop_codec::Value;

/// As many characters as the longest integer has.
const LONGEST_INTEGER: usize = 20;

/// Calls `look_up` with the texts that a value has, until it finds something. An address has none.
#[inline]
pub(crate) fn find_text<T>(
    value: Value<'_>,
    mut look_up: impl FnMut(&[u8]) -> Option<T>,
) -> Option<T> {
    match value {
        Value::String(bytes) | Value::Binary(bytes) => look_up(bytes),
        Value::Bool(boolean) => {
            let texts: [&str; 2] = if boolean { ["true", "1"] } else { ["false", "0"] };
            texts.iter().find_map(|text| look_up(text.as_bytes()))
        }
        Value::Null | Value::Ipv4(_) | Value::Ipv6(_) => None,
        integer => look_up(digits(integer)?.as_bytes()),
    }
}

fn digits(value: Value<'_>) -> Option<ArrayString<LONGEST_INTEGER>> {
    let mut digits = ArrayString::new();
    write!(digits, "{}", value.as_integer()?).ok()?;
    Some(digits)
}

/// The network that a text stands for beside the string.
pub(crate) fn net_of(text: &[u8]) -> Option<IpNet> {
    written_net(str::from_utf8(text).ok()?).ok().flatten()
}

/// The kinds of values, as a text of a file can stand for them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValueKind {
    Text,
    Integer,
    Boolean,
    Address,
}

impl ValueKind {
    /// The kind of a value; null has none.
    pub(crate) fn of(value: Value<'_>) -> Option<Self> {
        Some(match value {
            Value::Null => return None,
            Value::Bool(_) => Self::Boolean,
            Value::Int32(_) | Value::Uint32(_) | Value::Int64(_) | Value::Uint64(_) => {
                Self::Integer
            }
            Value::Ipv4(_) | Value::Ipv6(_) => Self::Address,
            Value::String(_) | Value::Binary(_) => Self::Text,
        })
    }

    pub fn in_words(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Integer => "an integer",
            Self::Boolean => "a boolean",
            Self::Address => "an address",
        }
    }

    /// How a file has a value of this kind.
    pub fn as_written(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Integer => "an integer as its digits, \"443\"",
            Self::Boolean => "a boolean as \"true\" or \"false\"",
            Self::Address => "an address or a network",
        }
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct ValueKinds(u8);

impl ValueKinds {
    const ALL: u8 = 4;

    pub(crate) fn with(self, kind: ValueKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    pub(crate) fn has(self, kind: ValueKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    /// Those of the values for which a text can stand that is no address.
    pub(crate) fn of_text(text: &[u8]) -> Self {
        let mut kinds = Self::default().with(ValueKind::Text);
        if is_integer(text) {
            kinds = kinds.with(ValueKind::Integer);
        }
        if [&b"true"[..], b"false", b"1", b"0"].contains(&text) {
            kinds = kinds.with(ValueKind::Boolean);
        }
        kinds
    }

    pub(crate) fn of_net() -> Self {
        Self::default().with(ValueKind::Address)
    }
}

/// For which kinds the entries of a table can stand: one bit for each set of kinds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct EntryKinds(u16);

impl EntryKinds {
    pub(crate) fn add(&mut self, kinds: ValueKinds) {
        self.0 |= 1 << kinds.0;
    }

    /// Whether there is an entry that can stand for no value of these kinds.
    pub(crate) fn miss(self, kinds: ValueKinds) -> bool {
        (0..1 << ValueKinds::ALL).any(|set| self.0 & 1 << set != 0 && set & kinds.0 == 0)
    }
}

/// Says that a text of a file can never stand for the args with which it is compared.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Misfit {
    /// The args with which it is compared, and what they are.
    pub args: Vec<(Box<[u8]>, ValueKind)>,
    /// Whether it is a value of `when`, and not an override.
    pub is_in_when: bool,
}

/// Whether an integer of HAProxy can have this text.
fn is_integer(text: &[u8]) -> bool {
    let number = str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST_INTEGER);
    let Some(number) = number.and_then(|text| text.parse::<i128>().ok()) else { return false };
    let fits = i64::try_from(number).is_ok() || u64::try_from(number).is_ok();
    fits && number.to_string().as_bytes() == text
}

/// Whether an address lies in one of these networks.
pub(crate) fn lies_in(ip: impl Into<IpAddr>, nets: &[IpNet]) -> bool {
    let ip = ip.into();
    nets.iter().any(|net| net.contains(&ip))
}

/// Whether a text was probably meant to stand for others, too: a wildcard or a regular expression.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains('*') || text.starts_with('^') || text.ends_with('$')
}

/// The kind and the value in a text with a type in front, as a KEY of a command has it: 443 in
/// `int64:443`.
pub(crate) fn without_type(text: &str) -> Option<(ValueKind, &str)> {
    let (kind, value) = text.split_once(':')?;
    let kind = match kind {
        "int32" | "uint32" | "int64" | "uint64" => ValueKind::Integer,
        "bool" => ValueKind::Boolean,
        _ => return None,
    };
    ValueKinds::of_text(value.as_bytes()).has(kind).then_some((kind, value))
}

/// Whether a text was probably meant as the name of a host.
pub(crate) fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit_once('.').map(|(_, last)| last);
    name.split('.').all(is_label)
        && last.is_some_and(|last| last.bytes().any(|c| c.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    /// The texts of a value, as the page for operators says it: the slow way.
    fn naive(text: &str, value: Value<'_>) -> bool {
        match value {
            Value::Null | Value::Ipv4(_) | Value::Ipv6(_) => false,
            Value::Bool(true) => text == "true" || text == "1",
            Value::Bool(false) => text == "false" || text == "0",
            Value::Int32(number) => text == format!("{number}"),
            Value::Uint32(number) => text == format!("{number}"),
            Value::Int64(number) => text == format!("{number}"),
            Value::Uint64(number) => text == format!("{number}"),
            Value::String(bytes) | Value::Binary(bytes) => text.as_bytes() == bytes,
        }
    }

    fn stands_for(text: &str, value: Value<'_>) -> bool {
        find_text(value, |found| (found == text.as_bytes()).then_some(())).is_some()
    }

    fn texts() -> impl Strategy<Value = String> {
        prop_oneof![
            prop::sample::select(vec![
                "true",
                "false",
                "TRUE",
                "1",
                "0",
                "-1",
                "-0",
                "+1",
                "01",
                "443",
                "0443",
                "",
                " 1",
                "9223372036854775807",
                "-9223372036854775808",
                "18446744073709551615",
                "1.0",
            ])
            .prop_map(str::to_owned),
            (-300_i64..300).prop_map(|number| number.to_string()),
            "[-+0-9a-z]{0,4}",
        ]
    }

    fn values() -> impl Strategy<Value = Value<'static>> {
        let bytes: [&[u8]; 5] = [b"true", b"1", b"443", b"0443", b"\xff"];
        prop_oneof![
            any::<bool>().prop_map(Value::Bool),
            (-300_i32..300).prop_map(Value::Int32),
            (0_u32..300).prop_map(Value::Uint32),
            prop_oneof![-300_i64..500, any::<i64>(), Just(i64::MIN)].prop_map(Value::Int64),
            prop_oneof![0_u64..500, any::<u64>(), Just(u64::MAX)].prop_map(Value::Uint64),
            prop::sample::select(bytes.to_vec()).prop_map(Value::String),
            prop::sample::select(bytes.to_vec()).prop_map(Value::Binary),
            Just(Value::Null),
            Just(Value::Ipv4(Ipv4Addr::LOCALHOST)),
            Just(Value::Ipv6(Ipv6Addr::LOCALHOST)),
        ]
    }

    proptest! {
        #[test]
        fn a_text_stands_for_what_it_says(text in texts(), value in values()) {
            prop_assert_eq!(stands_for(&text, value), naive(&text, value));
            // The kinds of a text are those of the values that it stands for.
            if naive(&text, value) {
                let kinds = ValueKinds::of_text(text.as_bytes());
                prop_assert!(kinds.has(ValueKind::of(value).unwrap()));
            }
        }

        #[test]
        fn a_text_has_the_kind_of_integers_if_one_has_it(text in texts()) {
            let is_one = text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
                || text.parse::<u64>().is_ok_and(|number| number.to_string() == text);
            prop_assert_eq!(ValueKinds::of_text(text.as_bytes()).has(ValueKind::Integer), is_one);
        }
    }

    #[test]
    fn an_entry_misses_values_for_which_it_cannot_stand() {
        let kinds = |kinds: &[ValueKind]| {
            kinds.iter().fold(ValueKinds::default(), |set, it| set.with(*it))
        };
        let misses = |texts: &[&str], of: &[ValueKind]| {
            let mut entries = EntryKinds::default();
            texts.iter().for_each(|text| match net_of(text.as_bytes()) {
                Some(_) => entries.add(ValueKinds::of_net()),
                None => entries.add(ValueKinds::of_text(text.as_bytes())),
            });
            entries.miss(kinds(of))
        };
        use ValueKind::{Address, Boolean, Integer, Text};
        assert!(!misses(&[], &[Integer]));
        assert!(!misses(&["443", "0"], &[Integer]));
        assert!(misses(&["443", "https"], &[Integer]));
        assert!(misses(&["0443"], &[Integer]));
        assert!(misses(&["443"], &[Boolean]) && !misses(&["0", "true"], &[Boolean]));
        assert!(misses(&["10.0.0.0/8", "office.example.com"], &[Address]));
        assert!(!misses(&["10.0.0.0/8", "office.example.com"], &[Address, Text]));
        assert!(misses(&["10.0.0.0/8"], &[Integer]) && !misses(&["a"], &[Text]));
    }

    #[test]
    fn what_was_probably_meant_otherwise_is_known() {
        for text in ["/api/*", "*.example.com", "^/api/", "^a$", ".php$"] {
            assert!(is_pattern(text), "{text}");
        }
        assert!(!is_pattern("/api/") && !is_pattern("a.b?c=$d"));
        assert_eq!(without_type("int64:443"), Some((ValueKind::Integer, "443")));
        assert_eq!(without_type("bool:true"), Some((ValueKind::Boolean, "true")));
        assert_eq!(without_type("app:1"), None);
        assert_eq!(without_type("int64:x"), None);
        for text in ["office.example.com", "a.b.", "x-1.example", "index.html"] {
            assert!(is_host_name(text), "{text}");
        }
        for text in ["office", "192.0.2.1", "/a.b", "a..b", ".a", "a.1", "a b.c", ""] {
            assert!(!is_host_name(text), "{text}");
        }
    }
}

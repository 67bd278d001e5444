//! The key of a message: the args whose values make it, and how those are grouped.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use gcra_text::embedded::{embedded_v4, translated_v4};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use spop_codec::{Message, Value};

/// How addresses are grouped unless the file says otherwise, IPv4 and IPv6.
pub(crate) const DEFAULT_PREFIXES: (u8, u8) = (32, 64);

/// Which values make the key of a message, and how.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct KeyParts {
    /// If there are none, all args make the key except those of the cost and of `when`.
    pub args: Vec<KeyArg>,
    pub ipv4_prefix: u8,
    pub ipv6_prefix: u8,
    pub lowercase: bool,
    pub nat64: Nat64,
}

/// The prefixes of the file's `nat64`: behind each of them is an IPv4 address. They have 96 bits.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Nat64(pub Vec<Ipv6Net>);

impl Nat64 {
    /// The IPv4 address of the client with this IPv6 address, if it has one in it.
    #[inline]
    pub(crate) fn ipv4_in(&self, ip: Ipv6Addr) -> Option<Ipv4Addr> {
        if let Some(ip) = embedded_v4(ip) {
            return Some(ip);
        }
        let is_ours = self.0.iter().any(|prefix| prefix.contains(&ip));
        translated_v4(ip).filter(|_| is_ours)
    }

    /// The IPv4 network that an IPv6 network stands for, if it lies behind one of the prefixes;
    /// else the same network.
    pub(crate) fn canonical_net(&self, net: IpNet) -> IpNet {
        let IpNet::V6(v6) = net else { return net };
        let before = self.0.iter().find(|prefix| prefix.contains(&v6));
        let bits = before.and_then(|prefix| v6.prefix_len().checked_sub(prefix.prefix_len()));
        let ip = translated_v4(v6.addr());
        let v4 = ip.zip(bits.filter(|bits| *bits > 0)).map(|(ip, bits)| Ipv4Net::new(ip, bits));
        v4.and_then(Result::ok).map_or(net, IpNet::V4)
    }
}

impl KeyParts {
    /// Each value as it is.
    pub fn exact(args: Vec<KeyArg>) -> Self {
        let nat64 = Nat64::default();
        Self { args, ipv4_prefix: 32, ipv6_prefix: 128, lowercase: false, nat64 }
    }

    /// The names of all args that may be read, those of fallbacks too.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.args.iter().flat_map(KeyArg::names)
    }

    /// Whether it may read this arg.
    pub(crate) fn reads(&self, arg: &[u8]) -> bool {
        self.names().any(|name| name == arg)
    }

    /// The part of a key that a value makes. An address makes its network, with the policy's
    /// prefix length or `least_prefix`, whichever is longer.
    #[inline]
    pub fn group<'a>(&self, value: Value<'a>, least_prefix: u8) -> GroupedValue<'a> {
        let v4 = |ip| {
            let prefix = self.ipv4_prefix.max(least_prefix);
            GroupedValue {
                value: Value::Ipv4(network_v4(ip, prefix)),
                narrowed: (prefix > self.ipv4_prefix).then_some(prefix),
            }
        };
        match value {
            Value::Ipv4(ip) => v4(ip),
            Value::Ipv6(ip) => match self.nat64.ipv4_in(ip) {
                Some(ip) => v4(ip),
                None => {
                    let prefix = self.ipv6_prefix.max(least_prefix);
                    GroupedValue {
                        value: Value::Ipv6(network_v6(ip, prefix)),
                        narrowed: (prefix > self.ipv6_prefix).then_some(prefix),
                    }
                }
            },
            value => GroupedValue { value, narrowed: None },
        }
    }

    /// The prefix length of the network that a part of a key stands for, if it stands for several
    /// addresses.
    pub fn prefix_of(&self, GroupedValue { value, narrowed }: GroupedValue<'_>) -> Option<u8> {
        let (prefix, whole) = match value {
            Value::Ipv4(_) => (self.ipv4_prefix, 32),
            Value::Ipv6(_) => (self.ipv6_prefix, 128),
            _ => return None,
        };
        Some(narrowed.unwrap_or(prefix)).filter(|prefix| *prefix < whole)
    }

    /// "for each ip and path (IPv6 by /64), ignoring case". Of addresses it says nothing where the
    /// key has none, as far as that is known: they are certain only if overrides have some.
    pub fn in_words(&self, has_networks: bool) -> String {
        let mut words = match self.args[..] {
            [] => "for each value of the message's args".to_owned(),
            _ => "for each ".to_owned(),
        };
        for (place, arg) in self.args.iter().enumerate() {
            let and = match place.checked_sub(1).map(|before| self.args[before].has_fallback()) {
                None => "",
                Some(false) => " and ",
                Some(true) => ", and ",
            };
            let _ = write!(words, "{and}{arg}");
        }
        let groups = [("IPv4", self.ipv4_prefix, 32), ("IPv6", self.ipv6_prefix, 128)];
        let groups = groups.iter().filter(|(_, prefix, whole)| prefix < whole);
        let groups = groups.map(|(family, prefix, _)| format!("{family} by /{prefix}"));
        let behind = self.nat64.0.iter().map(|prefix| format!("IPv4 behind {prefix}"));
        let groups: Vec<_> = groups.chain(behind).collect();
        let has_addresses = has_networks
            || self.args.is_empty()
            || (self.ipv4_prefix, self.ipv6_prefix) != DEFAULT_PREFIXES
            || self.names().any(is_address);
        if !groups.is_empty() && has_addresses {
            let _ = write!(words, " ({})", groups.join(", "));
        }
        if self.lowercase {
            words.push_str(", ignoring case");
        }
        words
    }
}

/// Whether an arg with this name is usually an address.
pub(crate) fn is_address(name: &[u8]) -> bool {
    const WORDS: [&str; 11] =
        ["ip", "ip4", "ip6", "ipv4", "ipv6", "src", "client", "addr", "address", "peer", "remote"];
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| WORDS.contains(&word))
}

#[derive(Clone, Copy, Debug)]
pub struct GroupedValue<'a> {
    pub value: Value<'a>,
    /// The prefix length of an address's network, where it is an override's and not the policy's.
    pub narrowed: Option<u8>,
}

pub fn network_v4(ip: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    (u32::from(ip) & mask).into()
}

pub fn network_v6(ip: Ipv6Addr, prefix: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    (u128::from(ip) & mask).into()
}

/// An arg whose value is a part of the key.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct KeyArg {
    pub name: Box<[u8]>,
    /// The args that stand for it when it is null or missing: the first of them that is neither.
    pub fallbacks: Vec<Box<[u8]>>,
    /// Whether the part is null when no such arg has a value. If not, there is no key then.
    pub or_null: bool,
}

/// Why a message has no key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoValue {
    Missing,
    /// HAProxy had no value for the arg, as for a header that the request does not have.
    Null,
}

impl KeyArg {
    /// The arg alone: a message in which it is null or missing has no key.
    pub fn new(name: &str) -> Self {
        Self { name: name.as_bytes().into(), fallbacks: Vec::new(), or_null: false }
    }

    /// Whether something stands for the arg when it is null or missing.
    pub fn has_fallback(&self) -> bool {
        self.or_null || !self.fallbacks.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.name).chain(&self.fallbacks).map(|name| &**name)
    }

    /// The value that stands for the arg in a message where it is null or missing, and the number
    /// of the fallback that it came from; 0 for null itself. `None` when the message has no key.
    #[inline(never)]
    pub fn fallback<'a>(&self, message: &Message<'a>) -> Option<(Value<'a>, u8)> {
        for (number, name) in (1..).zip(&self.fallbacks) {
            match message.arg(name) {
                None | Some(Value::Null) => {}
                Some(value) => return Some((value, number)),
            }
        }
        self.or_null.then_some((Value::Null, 0))
    }

    /// Why a message has no value for this part of its key, if that is so.
    pub fn lacks(&self, message: &Message<'_>) -> Option<NoValue> {
        let no_value = match message.arg(&self.name) {
            None => NoValue::Missing,
            Some(Value::Null) => NoValue::Null,
            Some(_) => return None,
        };
        self.fallback(message).is_none().then_some(no_value)
    }
}

/// "key, or ip where there is none".
impl fmt::Display for KeyArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.name))?;
        for name in &self.fallbacks {
            write!(f, ", or {}", String::from_utf8_lossy(name))?;
        }
        if self.or_null {
            f.write_str(", or null")?;
        }
        if self.has_fallback() { f.write_str(" where there is none") } else { Ok(()) }
    }
}

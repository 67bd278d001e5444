//! The grammar of the settings that make a key: `key`, `ipv4_prefix`, `ipv6_prefix` and
//! `lowercase`.

use ipnet::Ipv6Net;

use crate::file::entries::Entries;
use crate::file::names::{key_args, translator};
use crate::file::reader::Reader;
use crate::file::settings::of_file::NAT64;
use crate::file::settings::{Number, Setting, of_limit, of_policy as of};
use crate::key_parts::{DEFAULT_PREFIXES, KeyParts, Nat64};

/// Reads the settings that make a key: `key`, `ipv4_prefix`, `ipv6_prefix` and `lowercase`.
/// `nat64` is that of the file. For a limit with a key of its own, `policy` is the key of its
/// policy, which stands for the settings that are left out.
pub(crate) fn key_parts<'t>(
    reader: &mut Reader<'t>,
    entries: &Entries<'_, 't>,
    nat64: &Nat64,
    policy: Option<&KeyParts>,
) -> KeyParts {
    let (key, ipv4, ipv6, lowercase) = match policy {
        None => (&of::KEY, &of::IPV4_PREFIX, &of::IPV6_PREFIX, &of::LOWERCASE),
        Some(_) => {
            (&of_limit::KEY, &of_limit::IPV4_PREFIX, &of_limit::IPV6_PREFIX, &of_limit::LOWERCASE)
        }
    };
    let (ipv4_prefix, ipv6_prefix) = DEFAULT_PREFIXES;
    let of_file = KeyParts { ipv4_prefix, ipv6_prefix, ..KeyParts::exact(Vec::new()) };
    let usual = policy.unwrap_or(&of_file);
    let args = match entries.get(key) {
        None => usual.args.clone(),
        Some(value) => {
            let is_empty = value.get_ref().as_array().is_some_and(|array| array.is_empty());
            if is_empty && policy.is_none() {
                let what = "key is empty; leave it out if all args make the key, or write the \
                            names of args, such as [\"ip\"]";
                reader.on(value).wrong(what);
            }
            let args = key.read(reader, value).unwrap_or_default();
            let (args, places): (Vec<_>, Vec<_>) = args.into_iter().unzip();
            key_args(&args, "key", "[\"ip\", \"path\"]", |place, what| {
                reader.at(places[place]).wrong(&what);
            })
        }
    };
    let mut prefix = |setting: &Setting<Number>, family: &str, usual: u8| {
        let bits = entries.read(reader, setting);
        if let (Some(0), Some(at)) = (bits, entries.at(setting)) {
            let (name, most) = (setting.about.name, setting.kind.0.end());
            reader.at(at).warn(format!(
                "with {name} = 0 all {family} addresses share one bucket; write up to {most}"
            ));
        }
        bits.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(usual)
    };
    KeyParts {
        args,
        ipv4_prefix: prefix(ipv4, "IPv4", usual.ipv4_prefix),
        ipv6_prefix: prefix(ipv6, "IPv6", usual.ipv6_prefix),
        lowercase: entries.read(reader, lowercase).unwrap_or(usual.lowercase),
        nat64: nat64.clone(),
    }
}

/// The prefixes of NAT64 translators: `["2001:db8:64::/96"]`.
pub(crate) fn nat64<'t>(reader: &mut Reader<'t>, entries: &Entries<'_, 't>) -> Nat64 {
    let mut prefixes: Vec<Ipv6Net> = Vec::new();
    for (text, at) in entries.read(reader, &NAT64).unwrap_or_default() {
        match translator(&text) {
            None => reader.at(at).wrong(format!(
                "'{text}' in nat64 is not the prefix of a translator; write an IPv6 network with \
                 a length of 96, such as 2001:db8:64::/96"
            )),
            Some(prefix) if prefixes.contains(&prefix) => {
                reader.at(at).wrong(format!("nat64 names '{text}' twice; once is enough"));
            }
            Some(prefix) => prefixes.push(prefix),
        }
    }
    Nat64(prefixes)
}

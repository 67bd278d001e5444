//! The grammar of what makes a key: `key`, `ipv4_prefix`, `ipv6_prefix` and `lowercase`.

use ipnet::Ipv6Net;

use crate::file::reader::{Entries, Node, Reader};
use crate::key_parts::{DEFAULT_PREFIXES, KeyArg, KeyParts, Nat64};
use crate::words::text;

/// The most args that can stand for another one.
const MAX_FALLBACKS: usize = 8;

/// Reads the entries of `key` in a file or of `--key`: the names of args, and behind each what
/// stands for it. `setting` is how mistakes name it, and `like` an example of it. Each mistake is
/// given to `wrong`, with the place of its entry.
pub fn key_args(
    entries: &[impl AsRef<str>],
    setting: &str,
    like: &str,
    mut wrong: impl FnMut(usize, String),
) -> Vec<KeyArg> {
    let mut args: Vec<KeyArg> = Vec::new();
    for (place, entry) in entries.iter().map(AsRef::as_ref).enumerate() {
        let (word, fallback) = match entry.split_once(char::is_whitespace) {
            Some(("else", name)) => (name.trim(), true),
            None if entry == "else" => ("", true),
            _ => (entry, false),
        };
        let mistake = match (word, fallback, args.last()) {
            ("", false, _) => Some(format!(
                "{setting} has an empty name; write the names of args, such as {like}"
            )),
            ("", true, _) => Some(format!(
                "'{entry}' in {setting} names no arg; write 'else ARG', or 'else null' if null \
                 counts as a value"
            )),
            (_, true, None) => Some(format!(
                "'{entry}' is the first entry of {setting}, so there is no arg that it could \
                 stand for; write that arg before it"
            )),
            (_, true, Some(arg)) if arg.or_null => Some(format!(
                "'{entry}' in {setting} is never used, because 'else null' before it always \
                 applies; put 'else null' last"
            )),
            (_, true, Some(arg)) if arg.fallbacks.len() == MAX_FALLBACKS => Some(format!(
                "'{}' in {setting} has more than {MAX_FALLBACKS} fallbacks; leave some out",
                text(&arg.name)
            )),
            (word, ..) if word.contains(char::is_whitespace) => Some(format!(
                "'{entry}' in {setting} is not the name of an arg, because it has white space; \
                 write each arg as an entry of its own, and 'else ARG' for a fallback"
            )),
            ("null", true, _) => None,
            (word, ..)
                if args.iter().flat_map(KeyArg::names).any(|arg| *arg == *word.as_bytes()) =>
            {
                Some(format!("{setting} names '{word}' twice; once is enough"))
            }
            _ => not_an_arg(word, setting),
        };
        match (mistake, fallback, args.last_mut()) {
            (Some(mistake), ..) => wrong(place, mistake),
            (None, true, Some(arg)) if word == "null" => arg.or_null = true,
            (None, true, Some(arg)) => arg.fallbacks.push(word.as_bytes().into()),
            (None, ..) => args.push(KeyArg::new(word)),
        }
    }
    args
}

/// Takes what makes a key: `key`, `ipv4_prefix`, `ipv6_prefix` and `lowercase`. `nat64` is that of
/// the file. Of a limit with a key of its own, `policy` is the key of its policy, which stands for
/// what is left out.
pub fn key_parts<'t>(
    reader: &mut Reader<'t>,
    entries: &mut Entries<'_, 't>,
    nat64: &Nat64,
    policy: Option<&KeyParts>,
) -> KeyParts {
    let written = entries.take("key");
    let args = written.map(|value| {
        let is_empty = value.get_ref().as_array().is_some_and(|array| array.is_empty());
        if is_empty && policy.is_none() {
            let what = "key is empty; leave it out if all args make the key, or write the names \
                        of args, such as [\"ip\"]";
            reader.on(value).wrong(what);
        }
        reader.strings(value, "key", "such as [\"ip\"]")
    });
    let (args, places): (Vec<_>, Vec<_>) = args.unwrap_or_default().into_iter().unzip();
    let mut args = key_args(&args, "key", "[\"ip\", \"path\"]", |place, what| {
        reader.at(places[place]).wrong(&what);
    });
    if let (Some(policy), None) = (policy, written) {
        args.clone_from(&policy.args);
    }
    let mut prefix = |name: &'static str, family: &str, most: u8, default: u8| {
        let Some(value) = entries.take(name) else { return default };
        let bits = reader.number(value, name, 0..=most.into());
        if bits == Some(0) {
            reader.on(value).warn(format!(
                "with {name} = 0 all {family} addresses share one bucket; write up to {most}"
            ));
        }
        bits.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(default)
    };
    let (ipv4, ipv6) =
        policy.map_or(DEFAULT_PREFIXES, |policy| (policy.ipv4_prefix, policy.ipv6_prefix));
    let ipv4_prefix = prefix("ipv4_prefix", "IPv4", 32, ipv4);
    let ipv6_prefix = prefix("ipv6_prefix", "IPv6", 128, ipv6);
    let lowercase = entries.take("lowercase").and_then(|value| reader.boolean(value, "lowercase"));
    let lowercase = lowercase.unwrap_or(policy.is_some_and(|policy| policy.lowercase));
    KeyParts { args, ipv4_prefix, ipv6_prefix, lowercase, nat64: nat64.clone() }
}

/// The prefixes of NAT64 translators: `["2001:db8:64::/96"]`.
pub(crate) fn nat64<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Nat64 {
    let mut prefixes: Vec<Ipv6Net> = Vec::new();
    for (text, at) in reader.strings(value, "nat64", "such as [\"2001:db8:64::/96\"]") {
        let prefix = text.parse().ok().filter(|prefix: &Ipv6Net| {
            prefix.prefix_len() == 96
                && *prefix == prefix.trunc()
                && !prefix.addr().is_unspecified()
        });
        match prefix {
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

/// Why a name is not that of an arg of a spoe-message, if that is so. HAProxy takes the text up to
/// the first `=`; and marks that it understands itself were hardly meant.
pub(crate) fn not_an_arg(name: &str, setting: &str) -> Option<String> {
    if let Some((arg, _)) = name.split_once('=') {
        return Some(format!(
            "'{name}' in {setting} is an arg with its sample; write only its name, '{arg}'"
        ));
    }
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "\"'\\#,$()".contains(c);
    let odd = name.chars().find(|c| is_odd(*c))?;
    Some(format!(
        "'{name}' in {setting} is not the name of an arg, because it has a '{odd}'; write the \
         name that the spoe-message has in its args"
    ))
}

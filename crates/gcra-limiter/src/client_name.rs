//! The name of a client in logs, in `top` and on the admin address: its key as an operator writes
//! it, but no string in full, because it may be a secret.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::mem;

use arrayvec::ArrayVec;
use gcra_policy::key::{Shown, write_mark};
use gcra_policy::{GroupedValue, NameSalt, Policy};
use gcra_table::KeyHash;
use spop_agent::{Message, Value};

use crate::message_key::hash_key;

/// A name ends with the part that reaches this length, in bytes.
const LONG: usize = 64;

/// The parts of a key that are written when a client is named. The others still make the key.
const MAX_NAMED_PARTS: usize = 8;

/// Writes the name of a message's client, for logs.
#[cold]
pub fn write_client<'m>(
    name: &mut String,
    policy: &Policy,
    key: KeyHash,
    message: Option<Message<'m>>,
) {
    /// The number of the fallback that the next part comes from, and the parts before it.
    type Parts<'m> = (u8, ArrayVec<NamedPart<'m>, MAX_NAMED_PARTS>);
    let mut parts = Parts::default();
    if let Some(message) = &message {
        let part = |(fallback, parts): &mut Parts<'m>, part: GroupedValue<'m>| {
            let (fallback, prefix) = (mem::take(fallback), policy.key.prefix_of(part));
            let _ = parts.try_push(NamedPart { fallback, value: part.value, prefix });
        };
        let fallback = |parts: &mut Parts<'m>, number| parts.0 = number;
        let _ = policy.for_each_part(message, &mut parts, part, fallback);
    }
    if write_name(name, policy.key.lowercase, parts.1) {
        let _ = write!(name, "#{:06x}", digits(policy, key, message.as_ref()));
    }
}

/// A few digits of the whole key's hash, which tell clients apart that look alike. The hash has a
/// secret key, so nobody can use them to check a guess.
fn digits(policy: &Policy, key: KeyHash, message: Option<&Message<'_>>) -> u64 {
    let salted = |salt: NameSalt| hash_key(salt.hasher(), policy, message?);
    let hash = match policy.name_salt.and_then(salted) {
        Some((hash, _)) => hash.get(),
        None => BuildHasherDefault::<DefaultHasher>::default().hash_one(key),
    };
    hash >> 40
}

/// A part of a key, for the name of a client.
#[derive(Clone, Copy, Debug)]
struct NamedPart<'a> {
    /// The number of the fallback that the value came from; 0: from the arg itself.
    fallback: u8,
    value: Value<'a>,
    /// The prefix length of an address, if it stands for a network of several.
    prefix: Option<u8>,
}

/// Writes the name of the client whose key has these parts, as in `gcra_policy::key::Key`. A
/// string is cut to a quarter of its bytes, at most four, and its length. With `lowercase` a
/// client has one name, however its strings are spelled. Returns whether anything was cut.
fn write_name<'a>(
    name: &mut String,
    lowercase: bool,
    parts: impl IntoIterator<Item = NamedPart<'a>>,
) -> bool {
    let mut is_cut = false;
    for (number, NamedPart { fallback, value, prefix }) in parts.into_iter().enumerate() {
        if number > 0 {
            name.push(',');
        }
        if name.len() >= LONG {
            name.push('…');
            is_cut = true;
            break;
        }
        // Writing to a string does not fail.
        let _ = write_mark(name, fallback);
        let _ = match value {
            Value::String(bytes) => {
                is_cut = true;
                let spelled =
                    |byte: &u8| if lowercase { byte.to_ascii_lowercase() } else { *byte };
                name.extend(beginning(bytes).iter().map(|byte| printable(spelled(byte))));
                write!(name, "…({})", bytes.len())
            }
            Value::Binary(bytes) => {
                is_cut = true;
                name.push_str("hex:");
                for byte in beginning(bytes) {
                    let _ = write!(name, "{byte:02x}");
                }
                write!(name, "…({})", bytes.len())
            }
            value => write!(name, "{}", Shown(value)),
        };
        if let Some(prefix) = prefix {
            let _ = write!(name, "/{prefix}");
        }
    }
    is_cut
}

fn beginning(bytes: &[u8]) -> &[u8] {
    &bytes[..(bytes.len() / 4).min(4)]
}

/// A harmless character, because clients choose these bytes, and they go to logs and terminals.
pub fn printable(byte: u8) -> char {
    match byte {
        b',' | b'\\' => '?',
        _ if byte.is_ascii_graphic() => char::from(byte),
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use gcra_policy::Policies;
    use gcra_policy::file::document;
    use gcra_policy::secrets::Readers;
    use gcra_table::{Slots, Table};

    use super::*;
    use crate::written_message::WrittenMessage;

    fn name(parts: &[Value<'_>]) -> String {
        let mut name = String::new();
        let parts =
            parts.iter().map(|value| NamedPart { fallback: 0, value: *value, prefix: None });
        let _ = write_name(&mut name, false, parts);
        name
    }

    fn ip(text: &str) -> Value<'static> {
        text.parse::<std::net::IpAddr>().unwrap().into()
    }

    #[test]
    fn addresses_and_numbers_are_written_as_an_operator_does() {
        assert_eq!(name(&[ip("192.0.2.1")]), "192.0.2.1");
        assert_eq!(name(&[ip("::ffff:192.0.2.1")]), "192.0.2.1");
        assert_eq!(name(&[ip("2001:db8::"), 7_i64.into()]), "2001:db8::,int64:7");
        assert_eq!(name(&[Value::Null, true.into()]), "null:,bool:true");
        assert_eq!(name(&[]), "");
    }

    #[test]
    fn a_value_that_stands_for_another_arg_is_marked() {
        let mut name = String::new();
        let part = |fallback, value| NamedPart { fallback, value, prefix: None };
        let parts = [part(0, 7_i64.into()), part(1, ip("192.0.2.1")), part(3, Value::Null)];
        let _ = write_name(&mut name, false, parts);
        assert_eq!(name, "int64:7,else:192.0.2.1,else3:null:");
    }

    #[test]
    fn a_network_has_its_prefix_length() {
        let mut name = String::new();
        let part = |value, prefix| NamedPart { fallback: 0, value, prefix: Some(prefix) };
        let parts = [part(ip("2001:db8::"), 64), part(ip("192.0.2.0"), 24)];
        let _ = write_name(&mut name, false, parts);
        assert_eq!(name, "2001:db8::/64,192.0.2.0/24");
    }

    #[test]
    fn no_string_is_shown_in_full() {
        let shown = |text: &str| name(&[text.into()]);
        assert_eq!(shown("sk_live_0123456789abcdef"), "sk_l…(24)");
        assert_eq!(shown("/login"), "/…(6)");
        assert_eq!(shown("abc"), "…(3)");
        assert_eq!(shown(""), "…(0)");
        assert_eq!(name(&[ip("192.0.2.1"), "/login".into()]), "192.0.2.1,/…(6)");
        assert_eq!(name(&[b"\x00\xff0123456789abcdef"[..].into()]), "hex:00ff3031…(18)");
    }

    /// The name of the client of a message with these args, under the file's first policy.
    fn name_by(policies: &Policies, args: &[&str]) -> String {
        let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
        let args: Vec<_> = args.iter().map(|arg| arg.parse().unwrap()).collect();
        let written = WrittenMessage::new(b"api", &args).unwrap();
        let (policy, message) = (&policies.list[0], written.message().unwrap());
        let (key, _) = hash_key(table.hasher(), policy, &message).unwrap();
        let mut name = String::new();
        write_client(&mut name, policy, key, Some(message));
        name
    }

    fn read(file: &Path, salt: &str, text: &str) -> Policies {
        fs::write(file.with_file_name("salt"), salt).unwrap();
        fs::write(file, format!("{text}[policy.api]\nlimits = \"1/s\"\nlowercase = true\n"))
            .unwrap();
        document::read(file, Readers::OfFile).unwrap()
    }

    #[test]
    fn with_a_salt_a_client_has_one_name_on_all_machines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gcra.toml");
        let salted = "salt_file = \"salt\"\n";
        let one = read(&file, "0123456789abcdef", salted);
        let name = name_by(&one, &["key=sk_live_0123"]);
        assert!(name.starts_with("sk_…(12)#"), "{name}");
        for (same, args) in [
            (true, &["key=sk_live_0123"]),
            (true, &["key=SK_live_0123"]),
            (false, &["key=sk_live_0124"]),
        ] {
            let other = read(&file, "0123456789abcdef\n", salted);
            assert_eq!(name_by(&other, args) == name, same, "{args:?}");
        }
        let other = read(&file, "0123456789abcdeF", salted);
        assert_ne!(name_by(&other, &["key=sk_live_0123"]), name);
        assert_ne!(one.salt_digest(), other.salt_digest());
        let none = read(&file, "0123456789abcdef", "");
        assert_ne!(name_by(&none, &["key=sk_live_0123"]), name_by(&none, &["key=sk_live_0123"]));
        assert_eq!(none.salt_digest(), 0);
    }

    #[test]
    fn no_name_moves_a_cursor_or_ends_a_line() {
        let hostile = b"\x1b[2\n\xff,\\0000000000000000000000000000000";
        let name = name(&[Value::String(hostile)]);
        assert!(name.starts_with("?[2?…("), "{name}");
    }

    #[test]
    fn the_length_of_a_name_is_bounded() {
        let name = name(&[ip("2001:db8:1111:2222:3333:4444:5555:6666"); 100]);
        assert!(name.len() < 140, "{name}");
    }
}

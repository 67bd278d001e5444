//! The parts of a KEY with the names of their args, as a message has them.

use std::net::IpAddr;

use crate::key::{Key, NamedValue};
use crate::plural::Count;
use crate::policy::key_args::KeyArg;

/// The args of a message that has this key in a policy of a file, whose key is `args`; if there
/// are none, its key is all args of the message. The error is a sentence.
pub(crate) fn named(key: &Key, args: &[KeyArg]) -> Result<Vec<NamedValue>, String> {
    let text = &key.text;
    // HAProxy's args have no names with a space.
    let nameless = nameless(key);
    let names: Vec<Option<(&str, &str)>> =
        key.parts.iter().map(|written| written.text.split_once('=')).collect();
    let is_known =
        |name: &str| args.iter().flat_map(KeyArg::names).any(|known| *known == *name.as_bytes());
    if let Some((name, _)) = stray_name(&names, is_known) {
        return Err(format!(
            "the key has no arg '{name}', which '{text}' names; it is {}",
            in_words(args)
        ));
    }
    if names.iter().flatten().any(|(name, _)| is_known(name)) {
        let mut named = Vec::new();
        for part in &names {
            match part.filter(|(name, _)| is_known(name)) {
                Some((name, value))
                    if named.iter().all(|known: &NamedValue| known.name != name) =>
                {
                    named.push(NamedValue { name: name.to_owned(), value: value.parse()? });
                }
                _ => {
                    return Err(format!(
                        "'{text}' must name each arg of the key once, or none of them; it is {}",
                        in_words(args)
                    ));
                }
            }
        }
        return Ok(named);
    }
    let args = if args.is_empty() { &nameless[..] } else { args };
    if args.len() != key.parts.len() {
        return Err(format!(
            "'{text}' has {}, and the key has {}: {}",
            Count(key.parts.len() as u64, "part", "parts"),
            args.len(),
            in_words(args)
        ));
    }
    positional(key, args)
}

/// The same for an agent without a file, of whose key only the shape is known: see [`nameless`].
pub(crate) fn unnamed(key: &Key) -> Result<Vec<NamedValue>, String> {
    let names: Vec<Option<(&str, &str)>> =
        key.parts.iter().map(|written| written.text.split_once('=')).collect();
    match stray_name(&names, |_| false) {
        Some((name, value)) => Err(format!(
            "'{}': without --config the parts of a key have no names; write {value}, or \
             str:{name}={value} for the text itself",
            key.text
        )),
        None => positional(key, &nameless(key)),
    }
}

/// Args that a policy can have whose key has the shape of this one: as many parts, of which some
/// come from fallbacks.
pub(crate) fn nameless(key: &Key) -> Vec<KeyArg> {
    let arg = |(number, written): (usize, &crate::key::Written)| KeyArg {
        name: format!("part {number}").into_bytes().into(),
        fallbacks: (1..=written.fallback)
            .map(|fallback| format!("part {number} else {fallback}").into_bytes().into())
            .collect(),
        or_null: true,
    };
    (1..).zip(&key.parts).map(arg).collect()
}

fn positional(key: &Key, args: &[KeyArg]) -> Result<Vec<NamedValue>, String> {
    let named = args.iter().zip(&key.parts).map(|(arg, written)| {
        let name = arg.names().nth(written.fallback.into()).ok_or_else(|| {
            let name = String::from_utf8_lossy(&arg.name);
            format!("'{}': the arg '{name}' has no such fallback as '{written}'", key.text)
        })?;
        let name = String::from_utf8_lossy(name).into_owned();
        Ok(NamedValue { name, value: written.part.clone() })
    });
    named.collect()
}

/// A name that is not known, in front of an address: that is hardly meant as a string.
fn stray_name<'k>(
    names: &[Option<(&'k str, &'k str)>],
    is_known: impl Fn(&str) -> bool,
) -> Option<(&'k str, &'k str)> {
    names.iter().flatten().copied().find(|(name, value)| {
        !is_known(name) && !name.contains(':') && value.parse::<IpAddr>().is_ok()
    })
}

/// What a KEY consists of: "ip,path".
pub(crate) fn in_words(args: &[KeyArg]) -> String {
    if args.is_empty() {
        return "all args of the message, in their order".to_owned();
    }
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let arg = |arg: &KeyArg| match &arg.fallbacks[..] {
        [] => text(&arg.name),
        fallbacks => {
            let fallbacks: Vec<_> = fallbacks.iter().map(|name| text(name)).collect();
            format!("{} (or {})", text(&arg.name), fallbacks.join(" or "))
        }
    };
    args.iter().map(arg).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::key_args::key_args;

    fn args_of(key: &str) -> impl Fn(&str) -> Result<Vec<NamedValue>, String> {
        let entries: Vec<_> = key.split(',').collect();
        let args = key_args(&entries, "key", "", |_, mistake| panic!("{mistake}"));
        move |text| named(&text.parse().unwrap(), &args)
    }

    fn pair(name: &str, value: &str) -> NamedValue {
        NamedValue { name: name.to_owned(), value: value.parse().unwrap() }
    }

    #[test]
    fn parts_may_have_the_names_of_their_args() {
        let args = args_of("ip,path");
        let (ip, path) = (pair("ip", "192.0.2.1"), pair("path", "/a=b"));
        assert_eq!(args("192.0.2.1,/a=b").unwrap(), [ip.clone(), path.clone()]);
        assert_eq!(args("path=/a=b,ip=192.0.2.1").unwrap(), [path.clone(), ip.clone()]);
        assert_eq!(args("ip=192.0.2.1,path=str:/a=b").unwrap(), [ip, path]);
        for (text, said) in [
            ("192.0.2.1", "'192.0.2.1' has 1 part, and the key has 2: ip,path"),
            ("ip=192.0.2.1,/x", "must name each arg of the key once, or none of them"),
            ("ip=192.0.2.1,ip=192.0.2.2", "must name each arg of the key once, or none of them"),
            ("src=192.0.2.1,path=/x", "the key has no arg 'src', which"),
            ("ip=int32:x,path=/x", "'x' is not a value of the type int32"),
            ("else:192.0.2.1,/x", "the arg 'ip' has no such fallback as 'else:192.0.2.1'"),
        ] {
            let sentence = args(text).unwrap_err();
            assert!(sentence.contains(said), "{text}: {sentence}");
        }
    }

    #[test]
    fn a_value_of_a_fallback_is_named_or_marked() {
        let args = args_of("key,else ip,path");
        let (ip, path) = (pair("ip", "192.0.2.1"), pair("path", "/"));
        assert_eq!(args("else:192.0.2.1,/").unwrap(), [ip.clone(), path.clone()]);
        assert_eq!(args("ip=192.0.2.1,path=/").unwrap(), [ip, path]);
        assert_eq!(args("a,/").unwrap(), [pair("key", "a"), pair("path", "/")]);
        assert!(args("a").unwrap_err().ends_with("the key has 2: key (or ip),path"));
    }

    #[test]
    fn without_a_file_parts_have_no_names() {
        let unnamed = |text: &str| unnamed(&text.parse().unwrap());
        let values = unnamed("else2:192.0.2.1,null:,/x?a=b").unwrap();
        let expected = [
            pair("part 1 else 2", "192.0.2.1"),
            pair("part 2", "null:"),
            pair("part 3", "/x?a=b"),
        ];
        assert_eq!(values, expected);
        let sentence = unnamed("ip=192.0.2.1").unwrap_err();
        assert!(sentence.contains("write 192.0.2.1, or str:ip=192.0.2.1"), "{sentence}");
    }
}

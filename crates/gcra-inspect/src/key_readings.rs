//! The meaning of a KEY: the args of a message whose key it is.

use std::iter;
use std::net::IpAddr;

use gcra_policy::describe;
use gcra_policy::key::{Key, NamedValue, WrittenValue};
use gcra_policy::key_parts::KeyArg;
use gcra_text::count::Count;

/// The key that a KEY means, as the args of a message.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyReading {
    pub args: Vec<NamedValue>,
    /// The args, where the KEY leaves it open that it could have named others: "as key=a".
    pub(crate) note: String,
}

/// The meaning of a KEY for a policy of a file, whose key is `args`; if there are none, its key is
/// all args of the message. The error is a sentence.
///
/// A name or a mark (`else:`) in front of a value says its arg. Without them the value is that of
/// the arg itself, and not of a fallback. It has the type that is in front, and otherwise it is an
/// address or a string.
pub fn named(key: &Key, args: &[KeyArg]) -> Result<KeyReading, String> {
    let text = &key.text;
    let names: Vec<Option<(&str, &str)>> =
        key.parts.iter().map(|written| written.text.split_once('=')).collect();
    let is_known =
        |name: &str| args.iter().flat_map(KeyArg::names).any(|known| *known == *name.as_bytes());
    // A name that is not known, in front of an address, is hardly meant as a string.
    let is_stray = |(name, value): &(&str, &str)| {
        !is_known(name) && !name.contains(':') && value.parse::<IpAddr>().is_ok()
    };
    if let Some((name, _)) = names.iter().flatten().copied().find(is_stray) {
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
        return Ok(KeyReading { args: named, note: String::new() });
    }
    // HAProxy's args have no names with a space.
    let nameless: Vec<_> =
        (1..=key.parts.len()).map(|number| KeyArg::new(&format!("part {number}"))).collect();
    let shape = if args.is_empty() { &nameless[..] } else { args };
    if shape.len() != key.parts.len() {
        return Err(format!(
            "'{text}' has {}, and the key has {}: {}",
            Count(key.parts.len() as u64, "part", "parts"),
            shape.len(),
            in_words(shape)
        ));
    }
    let (mut meant, mut is_open) = (Vec::new(), false);
    for (arg, written) in shape.iter().zip(&key.parts) {
        let name = arg.names().nth(written.fallback.into()).ok_or_else(|| {
            let name = describe::text(&arg.name);
            format!("'{text}': the arg '{name}' has no such fallback as '{written}'")
        })?;
        is_open |= written.fallback == 0 && !arg.fallbacks.is_empty();
        meant.push(NamedValue { name: describe::text(name), value: written.text.parse()? });
    }
    let values = meant.iter().zip(&key.parts);
    let values = values.map(|(arg, written)| (written.fallback, arg.value.in_key()));
    let note = if is_open { format!("as {}", exact_key(shape, values)) } else { String::new() };
    Ok(KeyReading { args: meant, note })
}

/// Another form in which HAProxy may send an arg.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct OtherForm {
    pub arg: NamedValue,
    /// When it does: "HAProxy sends 192.0.2.7 as a string".
    pub when: String,
    /// Whether many configurations do that.
    pub is_usual: bool,
}

/// The forms in which HAProxy may send an arg instead, also in the place of another arg of `key`.
pub(crate) fn other_forms(arg: &NamedValue, key: &[KeyArg]) -> Vec<OtherForm> {
    let NamedValue { name, value } = arg;
    let form = |name: &str, value: WrittenValue, when: String, is_usual: bool| OtherForm {
        arg: NamedValue { name: name.to_owned(), value },
        when,
        is_usual,
    };
    let masked = value.masked().map(|masked| {
        let when = "HAProxy cuts addresses to their /64 network with ipmask(32,64), as \
                    haproxy/haproxy.cfg does";
        form(name, masked, when.to_owned(), true)
    });
    let typed = value.in_other_types().into_iter().map(|typed| {
        let (kind, is_usual) = match typed {
            WrittenValue::Bool(_) => ("a boolean", true),
            WrittenValue::Int64(_) => ("an integer", true),
            _ => ("a string", false),
        };
        form(name, typed, format!("HAProxy sends {value} as {kind}"), is_usual)
    });
    let is_it = |known: &[u8]| *known == *name.as_bytes();
    let is_address = matches!(value, WrittenValue::Ip(_) | WrittenValue::Net(_));
    let named = key.iter().filter(|known| known.names().any(is_it)).flat_map(|known| {
        let others = known.names().filter(|other| !is_it(other)).map(describe::text);
        others.map(|other| {
            let when = format!("HAProxy sends {value} in the arg '{other}'");
            form(&other, value.clone(), when, is_address && is_it(&known.name))
        })
    });
    masked.into_iter().chain(typed).chain(named).collect()
}

/// The KEY of these values, each with the number of the fallback that it came from. Where values
/// can come from fallbacks, it has the names of their args.
pub(crate) fn exact_key(
    args: &[KeyArg],
    values: impl IntoIterator<Item = (u8, String)>,
) -> String {
    let with_names = args.iter().any(|arg| !arg.fallbacks.is_empty());
    let args = args.iter().map(Some).chain(iter::repeat(None));
    let part = |(arg, (number, value)): (Option<&KeyArg>, (u8, String))| {
        let name = arg.and_then(|arg| arg.names().nth(number.into())).map(describe::text);
        name.filter(|_| with_names).map_or(value.clone(), |name| format!("{name}={value}"))
    };
    args.zip(values).map(part).collect::<Vec<_>>().join(",")
}

/// The parts of a KEY: "ip,path".
pub fn in_words(args: &[KeyArg]) -> String {
    if args.is_empty() {
        return "all args of the message, in their order".to_owned();
    }
    let arg = |arg: &KeyArg| match &arg.fallbacks[..] {
        [] => describe::text(&arg.name),
        fallbacks => {
            let fallbacks: Vec<_> = fallbacks.iter().map(|name| describe::text(name)).collect();
            format!("{} (or {})", describe::text(&arg.name), fallbacks.join(" or "))
        }
    };
    args.iter().map(arg).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcra_policy::file::names::key_args;

    fn meaning_of(key: &str) -> impl Fn(&str) -> Result<KeyReading, String> {
        let entries: Vec<_> = key.split(',').collect();
        let args = key_args(&entries, "key", "", |_, mistake| panic!("{mistake}"));
        move |text| named(&text.parse().unwrap(), &args)
    }

    fn args_of(key: &str) -> impl Fn(&str) -> Result<Vec<NamedValue>, String> {
        let reading = meaning_of(key);
        move |text| Ok(reading(text)?.args)
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
    fn a_value_without_a_name_is_that_of_the_arg() {
        let reading = meaning_of("key,else ip");
        let meant = |name: &str, value: &str, note: &str| KeyReading {
            args: vec![pair(name, value)],
            note: note.to_owned(),
        };
        for (text, right) in [
            ("192.0.2.1", meant("key", "192.0.2.1", "as key=192.0.2.1")),
            ("a", meant("key", "a", "as key=a")),
            ("str:192.0.2.1", meant("key", "str:192.0.2.1", "as key=str:192.0.2.1")),
            ("ip=192.0.2.1", meant("ip", "192.0.2.1", "")),
            ("else:192.0.2.1", meant("ip", "192.0.2.1", "")),
        ] {
            assert_eq!(reading(text).unwrap(), right, "{text}");
        }
        assert_eq!(meaning_of("port")("80").unwrap(), meant("port", "str:80", ""));
    }

    #[test]
    fn haproxy_may_send_another_form() {
        let args =
            key_args(&["key", "else ip", "port"], "key", "", |_, mistake| panic!("{mistake}"));
        let others = |name: &str, value: &str| {
            let others = other_forms(&pair(name, value), &args).into_iter();
            let in_words = |OtherForm { arg: NamedValue { name, value }, is_usual, .. }| {
                format!("{name}={value} {is_usual}")
            };
            others.map(in_words).collect::<Vec<_>>()
        };
        assert_eq!(others("key", "192.0.2.1"), ["key=str:192.0.2.1 false", "ip=192.0.2.1 true"]);
        assert_eq!(others("key", "a"), ["ip=a false"]);
        assert_eq!(others("ip", "192.0.2.0/24"), ["key=192.0.2.0/24 false"]);
        assert_eq!(
            others("port", "2001:db8::7"),
            ["port=2001:db8:: true", "port=str:2001:db8::7 false"]
        );
        assert_eq!(others("port", "80"), ["port=int64:80 true"]);
        assert_eq!(others("port", "0"), ["port=int64:0 true", "port=bool:false true"]);
        assert_eq!(others("port", "true"), ["port=bool:true true"]);
        assert_eq!(others("port", "080"), [""; 0]);
    }

    #[test]
    fn what_is_nearly_an_address_is_not_a_key() {
        for text in ["10.0.0.777", "", "sk_l…(24)#2dd53f"] {
            assert!(text.parse::<Key>().is_err(), "{text}");
            assert!(args_of("ip")(&format!("ip={text}")).is_err(), "{text}");
        }
    }
}

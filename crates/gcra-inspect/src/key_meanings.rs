//! The parts of a KEY with the names of their args, as a message has them.

use std::net::IpAddr;
use std::slice;

use gcra_policy::key::{Key, NamedValue, OwnedValue, write_mark};
use gcra_policy::key_parts::KeyArg;
use gcra_text::count::Count;

/// The most keys that a KEY can mean.
const MOST_MEANINGS: usize = 64;

/// One of the keys that a KEY can mean, as the args of a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Meaning {
    pub args: Vec<NamedValue>,
    /// Whether it is meant in any case. If not, it is meant only where the table knows it.
    pub(crate) is_likely: bool,
    /// How this one is written, where the KEY does not say it: "as ip=192.0.2.1".
    pub note: String,
}

/// What a part of a KEY can mean: the number of the fallback that the value came from (0: from the
/// arg itself), and the value.
type Choice = (u8, OwnedValue);

/// What a KEY can mean for a policy of a file, whose key is `args`; if there are none, its key is
/// all args of the message. The error is a sentence.
///
/// A value without the name of its arg can be the value of the arg or of one of its fallbacks, and
/// HAProxy can send an address as a string or cut to its network, or a number as an integer.
pub fn named(key: &Key, args: &[KeyArg]) -> Result<Vec<Meaning>, String> {
    let text = &key.text;
    // HAProxy's args have no names with a space.
    let nameless: Vec<_> =
        (1..=key.parts.len()).map(|number| KeyArg::new(&format!("part {number}"))).collect();
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
        let mut meanings =
            vec![Meaning { args: named.clone(), is_likely: true, note: String::new() }];
        for (place, (_, text)) in names.iter().flatten().enumerate() {
            let value = &named[place].value;
            for other in value.as_other_type(text).into_iter().chain(value.masked()) {
                let note = format!("as {}={}", named[place].name, other.in_key());
                let mut args = named.clone();
                args[place].value = other;
                meanings.push(Meaning { args, is_likely: false, note });
            }
        }
        return Ok(meanings);
    }
    let shape = if args.is_empty() { &nameless[..] } else { args };
    if shape.len() != key.parts.len() {
        return Err(format!(
            "'{text}' has {}, and the key has {}: {}",
            Count(key.parts.len() as u64, "part", "parts"),
            shape.len(),
            in_words(shape)
        ));
    }
    let mut choices = Choices::default();
    for (arg, written) in shape.iter().zip(&key.parts) {
        let part: OwnedValue = written.text.parse()?;
        let (other_type, masked) = (part.as_other_type(&written.text), part.masked());
        if usize::from(written.fallback) > arg.fallbacks.len() {
            let name = String::from_utf8_lossy(&arg.name);
            return Err(format!("'{text}': the arg '{name}' has no such fallback as '{written}'"));
        }
        if written.fallback > 0 || arg.fallbacks.is_empty() || part == OwnedValue::Null {
            let fallback = written.fallback;
            let others = other_type.into_iter().chain(masked);
            choices.push([(fallback, part)], others.map(|other| (fallback, other)));
            continue;
        }
        let of_fallbacks = (1..).zip(&arg.fallbacks).map(|(number, _)| (number, part.clone()));
        let own = (0, part.clone());
        if matches!(part, OwnedValue::Ip(_) | OwnedValue::Net(_)) {
            let other_type = other_type.map(|other| (0, other));
            let all = (0..).zip(arg.names());
            let masked = all.filter_map(|(number, _)| Some((number, masked.clone()?)));
            choices.push([own].into_iter().chain(other_type).chain(of_fallbacks), masked);
        } else {
            let other_type = other_type.map(|other| (0, other));
            choices.push([own], other_type.into_iter().chain(of_fallbacks));
        }
    }
    let with_names = !args.is_empty();
    choices.meanings(key, shape, with_names)
}

/// What each part of a KEY can mean.
#[derive(Debug, Default)]
struct Choices {
    likely: Vec<Vec<Choice>>,
    /// What else a part can mean, each with the place of the part.
    others: Vec<(usize, Choice)>,
}

impl Choices {
    fn push(
        &mut self,
        likely: impl IntoIterator<Item = Choice>,
        others: impl IntoIterator<Item = Choice>,
    ) {
        let place = self.likely.len();
        self.likely.push(likely.into_iter().collect());
        self.others.extend(others.into_iter().map(|other| (place, other)));
    }

    fn first(&self) -> Vec<Choice> {
        self.likely.iter().filter_map(|choices| choices.first()).cloned().collect()
    }

    /// Every combination of what is likely, and the first of them with one part that is not.
    fn meanings(
        &self,
        key: &Key,
        shape: &[KeyArg],
        with_names: bool,
    ) -> Result<Vec<Meaning>, String> {
        let count = self.likely.iter().try_fold(1_usize, |all, choices| {
            Some(all.saturating_mul(choices.len())).filter(|all| *all <= MOST_MEANINGS)
        });
        if count.is_none() {
            return Err(format!(
                "'{}' can mean more than {MOST_MEANINGS} keys; write the name of its arg in front \
                 of each value, such as ip=192.0.2.7",
                key.text
            ));
        }
        let mut all = vec![Vec::new()];
        for choices in &self.likely {
            let with_each = |begin: Vec<Choice>| {
                let with = move |choice: &Choice| [&begin[..], slice::from_ref(choice)].concat();
                choices.iter().map(with).collect::<Vec<_>>()
            };
            all = all.into_iter().flat_map(with_each).collect();
        }
        let likely = all.len();
        for (place, other) in &self.others {
            let mut choices = self.first();
            choices[*place] = other.clone();
            all.push(choices);
        }
        let meaning = |(number, choices): (usize, Vec<Choice>)| {
            let is_likely = number < likely;
            let note = if is_likely && likely == 1 {
                String::new()
            } else {
                let texts = choices.iter().map(|(number, part)| (*number, part.in_key()));
                format!("as {}", exact_key(shape, with_names, texts))
            };
            let named = shape.iter().zip(choices).map(|(arg, (number, value))| {
                let name = arg.names().nth(number.into()).unwrap_or_default();
                NamedValue { name: text(name), value }
            });
            Meaning { args: named.collect(), is_likely, note }
        };
        Ok(all.into_iter().enumerate().map(meaning).collect())
    }
}

/// The KEY of these values, each with the number of the fallback that it came from. Where values
/// can come from fallbacks, it has the names of their args, unless `with_names` is false.
pub(crate) fn exact_key(
    args: &[KeyArg],
    with_names: bool,
    values: impl IntoIterator<Item = (u8, String)>,
) -> String {
    let with_names = with_names && args.iter().any(|arg| !arg.fallbacks.is_empty());
    let args = args.iter().map(Some).chain(std::iter::repeat(None));
    let part = |(arg, (number, value)): (Option<&KeyArg>, (u8, String))| {
        let name = arg.and_then(|arg| arg.names().nth(number.into())).map(text);
        match name.filter(|_| with_names) {
            Some(name) => format!("{name}={value}"),
            None => {
                let mut part = String::new();
                // Writing to a string does not fail.
                let _ = write_mark(&mut part, number);
                part + &value
            }
        }
    };
    args.zip(values).map(part).collect::<Vec<_>>().join(",")
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
pub fn in_words(args: &[KeyArg]) -> String {
    if args.is_empty() {
        return "all args of the message, in their order".to_owned();
    }
    let arg = |arg: &KeyArg| match &arg.fallbacks[..] {
        [] => text(&arg.name),
        fallbacks => {
            let fallbacks: Vec<_> = fallbacks.iter().map(|name| text(name)).collect();
            format!("{} (or {})", text(&arg.name), fallbacks.join(" or "))
        }
    };
    args.iter().map(arg).collect::<Vec<_>>().join(",")
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcra_policy::file::key::key_args;

    fn meanings_of(key: &str) -> impl Fn(&str) -> Result<Vec<Meaning>, String> {
        let entries: Vec<_> = key.split(',').collect();
        let args = key_args(&entries, "key", "", |_, mistake| panic!("{mistake}"));
        move |text| named(&text.parse().unwrap(), &args)
    }

    /// The args of the first meaning.
    fn args_of(key: &str) -> impl Fn(&str) -> Result<Vec<NamedValue>, String> {
        let meanings = meanings_of(key);
        move |text| Ok(meanings(text)?.remove(0).args)
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

    fn in_words(meanings: Vec<Meaning>) -> Vec<(String, bool, String)> {
        let arg = |NamedValue { name, value }: &NamedValue| format!("{name}={value}");
        let args = |meaning: &Meaning| meaning.args.iter().map(arg).collect::<Vec<_>>().join(" ");
        let words = meanings.into_iter().map(|it| (args(&it), it.is_likely, it.note));
        words.collect()
    }

    #[test]
    fn a_value_without_a_name_means_the_arg_and_its_fallbacks() {
        let meaning = |args: &str, is_likely: bool, note: &str| {
            (args.to_owned(), is_likely, note.to_owned())
        };
        let meanings = meanings_of("key,else ip");
        assert_eq!(
            in_words(meanings("192.0.2.1").unwrap()),
            [
                meaning("key=192.0.2.1", true, "as key=192.0.2.1"),
                meaning("key=str:192.0.2.1", true, "as key=str:192.0.2.1"),
                meaning("ip=192.0.2.1", true, "as ip=192.0.2.1"),
            ]
        );
        assert_eq!(
            in_words(meanings("a").unwrap()),
            [meaning("key=a", true, ""), meaning("ip=a", false, "as ip=a"),]
        );
        assert_eq!(
            in_words(meanings("ip=192.0.2.1").unwrap()),
            [
                meaning("ip=192.0.2.1", true, ""),
                meaning("ip=str:192.0.2.1", false, "as ip=str:192.0.2.1"),
            ]
        );
        assert_eq!(
            in_words(meanings_of("ip")("192.0.2.1").unwrap()),
            [
                meaning("ip=192.0.2.1", true, ""),
                meaning("ip=str:192.0.2.1", false, "as str:192.0.2.1"),
            ]
        );
        assert_eq!(
            in_words(meanings_of("port")("80").unwrap()),
            [meaning("port=80", true, ""), meaning("port=int64:80", false, "as int64:80")]
        );
        assert_eq!(meanings_of("port")("str:80").unwrap().len(), 1);
        let many = meanings_of("a,else b,c,else d,e,else f,g,else h");
        let sentence = many("192.0.2.1,192.0.2.1,192.0.2.1,192.0.2.1").unwrap_err();
        assert!(sentence.contains("can mean more than 64 keys; write the name"), "{sentence}");
    }

    #[test]
    fn what_is_nearly_an_address_is_not_a_key() {
        for text in ["10.0.0.777", "", "sk_l…(24)#2dd53f"] {
            assert!(text.parse::<Key>().is_err(), "{text}");
            assert!(args_of("ip")(&format!("ip={text}")).is_err(), "{text}");
        }
    }
}

//! The names in a file: of policies and limits, of args, of spoe-messages and of variables.

use ipnet::Ipv6Net;

use crate::answers::Var;
use crate::haproxy::report::{REPORT, is_report};
use crate::key_parts::KeyArg;

/// The longest name of a policy or a limit, in bytes: it is part of header fields.
const MAX_NAME: usize = 64;

pub(crate) const NAME_RULE: &str = "use letters, digits, '-' and '_', at most 64 of them";

/// Whether a name is one for a policy or a limit. It will be part of header fields and metrics.
pub(crate) fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(good)
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

/// Why a name is not that of a spoe-message that a policy can be for, if that is so.
pub(crate) fn not_a_message(name: &str, _setting: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if let Some(c) = name.chars().find(|c| !is_allowed(*c)) {
        return Some(format!(
            "'{name}' is not the name of a spoe-message, because HAProxy allows no '{c}' in \
             it; use letters, digits, '-', '_', '.' and ':'"
        ));
    }
    is_report(name.as_bytes()).then(|| {
        format!(
            "in messages whose names begin with '{REPORT}' HAProxy says how many requests had no \
             decision, so no policy can be for one; give the spoe-message another name"
        )
    })
}

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
                String::from_utf8_lossy(&arg.name)
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

pub(crate) fn are_key_args(entries: &[String]) -> bool {
    let mut are_right = true;
    key_args(entries, "key", "", |_, _| are_right = false);
    are_right
}

/// The prefix of a NAT64 translator.
pub(crate) fn translator(text: &str) -> Option<Ipv6Net> {
    text.parse().ok().filter(|prefix: &Ipv6Net| {
        prefix.prefix_len() == 96 && *prefix == prefix.trunc() && !prefix.addr().is_unspecified()
    })
}

pub(crate) fn are_translators(texts: &[String]) -> bool {
    texts.iter().all(|text| translator(text).is_some())
}

pub(crate) fn are_variables(names: &[String]) -> bool {
    names.iter().all(|name| Var::from_word(name).is_some() || name == "blocked")
}

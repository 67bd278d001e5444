//! Words of a configuration that may be secrets, such as API keys with overrides. A sentence about
//! a mistake repeats what is in the file, and the log is read by more people than the file is.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::file::names::is_name;
use crate::file::settings::{FILE_TABLE, POLICY_TABLE, is_setting};
use crate::overrides::OVERRIDES;

/// Who reads the sentences about a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readers {
    /// Who runs a command with the file, and can read it as well.
    OfFile,
    /// Who reads the log.
    OfLog,
}

/// The longest word that is shown in any case, in characters.
const SHORT: usize = 4;

/// Words of values and of limits that are no settings.
const KNOWN: &[&str] = &[
    "burst",
    "count",
    "default",
    "false",
    "limit",
    "month",
    "null",
    "rate",
    "unlimited",
    "window",
];

/// The words of these lines of a file that may be secrets. Lines are counted from 1.
pub(crate) fn in_lines(
    text: &str,
    wanted: impl Fn(usize) -> bool,
    readers: Readers,
) -> HashSet<&str> {
    let (mut secrets, mut header) = (HashSet::new(), None);
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with('[') {
            header = Some(line);
            // A header has no secrets where it belongs.
            let has_secrets = || match below(line) {
                Below::Values => true,
                Below::Policy => !has_name_of_policy(line),
                Below::Others => false,
            };
            if readers == Readers::OfLog && wanted(number) && has_secrets() {
                secrets.extend(in_value(line));
            }
        } else if wanted(number) && may_have_secrets(line, header, readers) {
            secrets.extend(in_value(without_comment(line)));
        }
    }
    secrets
}

/// The words of a value that may be a secret, and their parts: a sentence may join these in
/// another way.
pub(crate) fn in_value(value: &str) -> impl Iterator<Item = &str> {
    let words = words(value).filter(|word| !is_harmless(word));
    words.flat_map(|word| parts(word).filter(|part| !is_harmless(part)).chain([word]))
}

/// The sentence with only the beginning of each word that is a secret or has one as a part, and
/// the length of the word.
pub fn cut(sentence: &str, secrets: &HashSet<&str>) -> String {
    let mut shown = String::with_capacity(sentence.len());
    for piece in sentence.split_inclusive(is_mark) {
        let word = piece.trim_end_matches(is_mark);
        if secrets.contains(word) || parts(word).any(|part| secrets.contains(part)) {
            let length = word.chars().count();
            shown.extend(word.chars().take((length / 4).min(SHORT)));
            // Writing to a string does not fail.
            let _ = write!(shown, "…({length})");
        } else {
            shown.push_str(word);
        }
        shown.push_str(&piece[word.len()..]);
    }
    shown
}

/// Whether a line below this header may have secrets that these readers must not see.
fn may_have_secrets(line: &str, header: Option<&str>, readers: Readers) -> bool {
    let key = line.split_once('=').map(|(key, _)| key.trim());
    let is_name = |key: &str| key.bytes().all(|c| matches!(c, b'a'..=b'z' | b'_' | b'-'));
    match (readers, header) {
        // It seems to be another file, and a user who may run this command for a file may not be
        // allowed to read all of them.
        (Readers::OfFile, None) => {
            let is_ours = |key: &str| is_name(key) || key.contains('.');
            !key.is_some_and(is_ours) && !line.trim_start().starts_with("policy")
        }
        (Readers::OfFile, Some(_)) => false,
        (Readers::OfLog, header) => match header.map_or(Below::Policy, below) {
            Below::Policy => {
                let has_values = |key: &str| strsim::damerau_levenshtein(OVERRIDES, key) <= 3;
                line.contains(OVERRIDES)
                    || key.is_none_or(|key| !is_nearly_a_setting(key) || has_values(key))
            }
            Below::Others => !key.is_some_and(is_name),
            Below::Values => true,
        },
    }
}

enum Below {
    /// Settings of a policy, or of the file.
    Policy,
    Others,
    /// Values of a key, or what may be such.
    Values,
}

fn below(header: &str) -> Below {
    let name = header.trim().trim_start_matches('[').split(']').next().unwrap_or_default();
    let mut parts = name.split('.').map(str::trim);
    match (parts.next(), parts.next(), parts.next()) {
        (Some("policy"), Some(_), None) => Below::Policy,
        (Some("store"), None, None) => Below::Others,
        (Some("policy"), Some(_), Some(of)) if of != OVERRIDES && POLICY_TABLE.has(of) => {
            Below::Others
        }
        _ => Below::Values,
    }
}

/// Whether the name in a policy's header can be one.
fn has_name_of_policy(header: &str) -> bool {
    let name = header.trim().strip_prefix("[policy.").and_then(|rest| rest.split_once(']'));
    name.is_some_and(|(name, _)| is_name(name.trim()))
}

/// Whether a key is a setting, or was probably meant to be one.
fn is_nearly_a_setting(key: &str) -> bool {
    /// More bytes than any setting has, also with mistakes. To compare a long text takes long.
    const LONGEST: usize = 24;
    let mut known = POLICY_TABLE.names().chain(FILE_TABLE.names());
    key.len() <= LONGEST
        && known.any(|known| strsim::damerau_levenshtein(known, key) <= 1 + known.len() / 4)
}

/// Whether a word says no more than an address or a number does, or has a meaning in every file.
fn is_harmless(word: &str) -> bool {
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_count = word.len() <= 6 && are_digits(word);
    let is_rate = || {
        word.split_once('/').is_some_and(|(count, period)| {
            let unit = period.trim_start_matches(|c: char| c.is_ascii_digit());
            are_digits(count) && unit.len() <= 6 && unit.bytes().all(|c| c.is_ascii_lowercase())
        })
    };
    // "10.0.0.777" is nearly an address.
    let is_dotted = || word.contains('.') && word.split(['.', '/']).all(are_digits);
    word.chars().count() <= SHORT
        || is_count
        || is_rate()
        || is_dotted()
        || is_setting(word)
        || KNOWN.contains(&word)
        || word.parse::<IpAddr>().is_ok()
        || word.parse::<IpNet>().is_ok()
}

fn parts(word: &str) -> impl Iterator<Item = &str> {
    word.split(['.', '-', '/'])
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_mark).filter(|word| !word.is_empty())
}

/// Whether a character is around words, and is no part of them.
fn is_mark(c: char) -> bool {
    // A sentence has the last one in the place of a control character.
    c.is_whitespace()
        || c.is_control()
        || "'\"`,;:=#[](){}\u{2018}\u{2019}\u{201c}\u{201d}\u{fffd}".contains(c)
}

fn without_comment(line: &str) -> &str {
    let mut marks = line.match_indices('#').map(|(at, _)| &line[..at]);
    let ends = |before: &&str| {
        before.ends_with(char::is_whitespace) && before.matches('"').count().is_multiple_of(2)
    };
    marks.find(ends).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "sk_live_0123456789abcdef";

    fn shown(text: &str, sentence: &str, readers: Readers) -> String {
        let last = text.lines().count();
        let secrets = in_lines(text, |line| line == last, readers);
        cut(sentence, &secrets)
    }

    #[test]
    fn a_secret_is_cut_in_the_log_wherever_it_stands() {
        for line in [
            "[policy.p.overrides]\n\"sk_live_0123456789abcdef\" = \"deny\"",
            "[policy.p.overrides]\nsk_live_0123456789abcdef = deny # why",
            "[policy.p.overrides]\nsk_live_0123456789abcdef: deny",
            "[policy.p.exceptions]\nsk_live_0123456789abcdef = \"deny\"",
            "[policy.p.overrides]\n\"deny\" = \"sk_live_0123456789abcdef\"",
            "[policy.p]\nsk_live_0123456789abcdef = \"deny\"",
            "[policy.p]\noverrides = { sk_live_0123456789abcdef = \"deny\" }",
            "[policy.p]\nover_rides = { sk_live_0123456789abcdef = \"deny\" }",
            "[policy.p]\n  \"sk_live_0123456789abcdef\" = 1, }",
            "policy.p.overrides.sk_live_0123456789abcdef = 1\nsk_live_0123456789abcdef = 1",
            "[policy.p]\nsk_live_0123456789abcdef",
            "[policy.p]\n\"sk_live_0123456789abcdef\t\" = \"deny\"",
            "[policy.p.sk_live_0123456789abcdef]",
            "sk_live_0123456789abcdef",
            "[policy.sk_live_0123456789abcdef p]",
            "[policy.sk_live_0123456789abcdef",
        ] {
            let sentence = format!("'{SECRET}' needs quotes; write \"{SECRET}\" or {SECRET}");
            let said = shown(line, &sentence, Readers::OfLog);
            let cut = "sk_l…(24)";
            let expected = format!("'{cut}' needs quotes; write \"{cut}\" or {cut}");
            assert_eq!(said, expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for line in [
            "[policy.p]\nlimit = \"10/s burst 20\"",
            "[policy.p]\nkey = [\"address\"]",
            "[policy.p.overrides]\n\"192.0.2.0/24\" = \"12345\" # write it",
            "[policy.p.overrides]\n\"2001:db8:85a3::8a2e:370:7348\" = \"1000/10s burst 20\"",
            "[policy.p.overrides]\n\"10.0.0.777\" = \"deny\"",
            "[policy.p.settle]\nmessage = \"response\"",
            "[policy.customers-of-2024] # policy 'customers-of-2024' has no limits",
        ] {
            assert_eq!(shown(line, line, Readers::OfLog), line);
        }
    }

    #[test]
    fn who_can_read_the_file_sees_it_whole_unless_it_is_another_file() {
        let line = "[policy.p.overrides]\n\"sk_live_0123456789abcdef\" = \"deny\"";
        assert_eq!(shown(line, SECRET, Readers::OfFile), SECRET);
        let line = "setting = \"10/s\"";
        assert_eq!(shown(line, line, Readers::OfFile), line);
        let line = "root:$6$saltsalt$hashhashhash.:19000:0:99999:7:::";
        let said = shown(line, line, Readers::OfFile);
        assert_eq!(said, "root:$6$s…(25):19000:0:99999:7:::");
        for line in ["API_TOKEN=hunter2hunter2", "export TOKEN=hunter2hunter2"] {
            assert!(!shown(line, line, Readers::OfFile).contains("hunter2"), "{line}");
        }
    }
}

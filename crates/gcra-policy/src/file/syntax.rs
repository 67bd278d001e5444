//! Mistakes in the syntax of a TOML file, in words that tell an operator what to write.

use std::ops::Range;

use crate::rate_guess::Meant;

pub(crate) struct Mistake {
    pub sentence: String,
    /// Whether everything around it was understood. If not, other mistakes may only be its
    /// consequences, both in the same line and in what the file seems to mean.
    pub(crate) is_understood: bool,
}

/// Says what is wrong at a place of `text`, of which the TOML library says `message`. `None` if it
/// is a consequence of a mistake in another line. To find such lines takes time in proportion to
/// the text, and is left out unless `looks_back`.
pub(crate) fn in_words(
    text: &str,
    message: &str,
    span: Range<usize>,
    looks_back: bool,
) -> Option<Mistake> {
    let understood = |sentence| Some(Mistake { sentence, is_understood: true });
    let message = message.replace('\n', "; ");
    let at = text.get(..span.start).map_or(0, str::len);
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let line = text[begin..].lines().next().unwrap_or("");
    if let Some(sentence) = odd_line(line) {
        return Some(Mistake { sentence, is_understood: false });
    }
    let line = line.trim();
    match message.split(',').next().unwrap_or("") {
        "duplicate key" if looks_back => understood(defined_twice(text, span)?),
        "duplicate key" => {
            understood("this is defined twice; keep only one of the two".to_owned())
        }
        "string values must be quoted"
        | "invalid float"
        | "invalid boolean"
        | "invalid integer" => understood(bare_value(value(text, at))),
        of => Some(Mistake {
            sentence: not_understood(of, &message, line, text, at),
            is_understood: false,
        }),
    }
}

/// Says what is wrong in a line of which not everything was understood. `of` is the first part of
/// the library's message.
fn not_understood(of: &str, message: &str, line: &str, text: &str, at: usize) -> String {
    match of {
        "invalid unquoted key" if line.starts_with('[') => header(line),
        "invalid unquoted key" => bare_key(key(text, at)),
        "key with no value" if line.ends_with(']') && !line.contains(['[', '=']) => {
            format!("the header has no opening [; write [{line}")
        }
        "key with no value" | "missing value for key" => {
            "this is not KEY = VALUE; write # in front if it is a comment".to_owned()
        }
        "invalid basic string" | "invalid literal string" => {
            "a string has no closing quote; write it before the end of the line".to_owned()
        }
        "unexpected key or value" | "unexpected content" if line.starts_with('[') => {
            "something stands behind the header; write it on a line of its own".to_owned()
        }
        "unexpected key or value" => {
            "something stands behind the value; write one KEY = VALUE a line, and only a # \
             comment behind it"
                .to_owned()
        }
        "extra comma in array" | "extra comma in inline table" => {
            "there is one comma too many".to_owned()
        }
        "`_` may only go between digits" => {
            let word = value(text, at);
            format!("'{word}' is not a number; write digits alone, such as 24")
        }
        "carriage return must be followed by newline" => {
            "a line ends in a carriage return alone; save the file with line feeds".to_owned()
        }
        "extra assignment between key-value pairs" | "extra `=`" => {
            "there is one = too many; write KEY = VALUE".to_owned()
        }
        "unquoted keys cannot be empty" => "a name is empty; write one".to_owned(),
        "unclosed array" => "the list has no closing ]".to_owned(),
        "unclosed inline table" => "the table has no closing }".to_owned(),
        "unclosed table" | "unclosed array table" => header(line),
        "missing comma between array elements" | "missing comma between key-value pairs" => {
            "a comma is missing between two entries".to_owned()
        }
        "unexpected leading zero" => "a number must not begin with 0; leave it out".to_owned(),
        "missing escaped value" => {
            r#"a backslash in "…" begins an escape; write \\, or '…' for text as it is"#.to_owned()
        }
        _ if message.contains("dotted key") => {
            let name = line.split(['.', '=']).next().unwrap_or(line).trim();
            format!("'{name}' is defined twice; keep only one of the two")
        }
        of => format!("this is not valid TOML: {of}"),
    }
}

const HAPROXY_SECTIONS: [&str; 8] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "spoe-agent",
    "spoe-message",
    "spoe-group",
];

/// The mistake in a file that is certainly not TOML, and its line.
pub(crate) fn not_toml(text: &str) -> Option<(String, usize)> {
    let begin = text.trim_start();
    let languages =
        [("{", "JSON"), ("---", "YAML"), ("%YAML", "YAML"), ("<?", "XML"), ("</", "XML")];
    let language = languages.into_iter().find(|(mark, _)| begin.starts_with(mark));
    let is_tag = begin.starts_with('<') && begin[1..].starts_with(|c: char| c.is_alphabetic());
    let language = language.map(|(_, name)| name).or(is_tag.then_some("XML"));
    if let Some(language) = language.filter(|_| !begin.starts_with("{{")) {
        let what = format!(
            "this is {language}, and the file must be TOML; begin it with a line such as \
             [policy.api], and write limits = \"10/s burst 20\" below that"
        );
        return Some((what, text.len() - begin.len()));
    }
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if ["<<<<<<< ", "=======", ">>>>>>> "].iter().any(|mark| line.starts_with(mark)) {
            let what = "this is a mark of a merge conflict; keep one of the two versions, and \
                        remove the marks";
            return Some((what.to_owned(), at));
        }
        let is_section = HAPROXY_SECTIONS.contains(&line.split_whitespace().next().unwrap_or(""));
        if is_section && !line.contains('=') && !line.starts_with(char::is_whitespace) {
            let what = "this is a HAProxy configuration; name the agents' file, such as \
                        /etc/gcra-spoa/gcra-spoa.toml";
            return Some((what.to_owned(), at));
        }
        at += line.len();
    }
    None
}

/// A key or a header that stands in the file twice. `None` if it is a key below a header that
/// does, too.
fn defined_twice(text: &str, span: Range<usize>) -> Option<String> {
    let before = text.get(..span.start)?;
    let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
    let header_of = |line: &'_ str| {
        let line = line.trim_start();
        let end = line.starts_with('[').then(|| line.rfind(']'))??;
        line.get(..=end).map(str::to_owned)
    };
    let earlier = || text[..line_begin].lines().enumerate();
    let name = text.get(span.clone())?.trim_matches(['"', '\'']);
    let (name, first) = match header_of(text[line_begin..].lines().next()?) {
        Some(header) => {
            let first = earlier().find(|(_, line)| header_of(line).as_ref() == Some(&header));
            (header, first)
        }
        None => {
            let table = earlier().filter(|(_, line)| header_of(line).is_some()).last();
            if let Some((table, line)) = table
                && earlier().take(table).any(|(_, other)| header_of(other) == header_of(line))
            {
                return None;
            }
            let has_key = |line: &str| {
                let key = line.split_once('=').map(|(key, _)| key.trim());
                key.is_some_and(|key| key.trim_matches(['"', '\'']) == name)
            };
            let first = earlier()
                .skip(table.map_or(0, |(table, _)| table))
                .find(|(_, line)| has_key(line));
            (format!("'{name}'"), first)
        }
    };
    let first = first.map(|(line, _)| format!(", first in line {}", line + 1));
    Some(format!("{name} is defined twice{}; keep only one of the two", first.unwrap_or_default()))
}

/// The value around a place, up to the marks that separate values.
fn value(text: &str, at: usize) -> &str {
    around(text, at, ['=', '[', ',', '{', '\n'], [',', ']', '}', '#', '\n'])
}

/// The key around a place, up to its `=`.
fn key(text: &str, at: usize) -> &str {
    around(text, at, [',', '{', '\n', '\n', '\n'], ['=', '\n', '\n', '\n', '\n'])
}

fn around(text: &str, at: usize, before: [char; 5], behind: [char; 5]) -> &str {
    let (left, right) = text.split_at_checked(at).unwrap_or((text, ""));
    let begin = left.rfind(before).map_or(0, |mark| mark + 1);
    let end = right.find(behind).map_or(text.len(), |mark| at + mark);
    text.get(begin..end).unwrap_or("").trim()
}

/// A header that the library did not understand up to its `]`.
fn header(line: &str) -> String {
    let Some((name, _)) = line.split_once(']') else {
        return "the header has no closing ]".to_owned();
    };
    let is_odd = |c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c));
    let mut parts = name.trim_matches('[').split('.').map(str::trim);
    let odd = parts.find_map(|part| Some((part, part.chars().find(|c| is_odd(*c))?)));
    match odd {
        Some((part, odd)) => {
            let odd =
                if odd.is_whitespace() { "white space".to_owned() } else { format!("a '{odd}'") };
            format!("'{part}' in the header has {odd}; names have letters, digits, '-' and '_'")
        }
        None => "the header is not valid; write [policy.NAME]".to_owned(),
    }
}

/// A sentence about a line that is odd, whatever is wrong in it besides.
fn odd_line(line: &str) -> Option<String> {
    if line.contains("{{") || line.contains("{%") {
        return Some("this is a template; fill it in before an agent reads it".to_owned());
    }
    let is_unseen = |c: char| {
        c != ' ' && (c.is_whitespace() || c.is_control()) && !"\t\r".contains(c)
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
    };
    let unseen = line.chars().find(|c| is_unseen(*c))?;
    Some(format!(
        "there is an invisible character, U+{:04X}; write a space in its place, or nothing",
        u32::from(unseen)
    ))
}

fn bare_value(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let plain = word.trim_matches(['"', '\'', '\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}']);
    match &*lower {
        "" => "there is no value; write one after the =".to_owned(),
        _ if Meant::by(word).is_some() && word.contains(['=', ',']) => {
            let Meant { rate, burst } = Meant::by(word).unwrap_or_default();
            let burst = burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
            format!("'{word}' needs quotes; write \"{rate}{burst}\"")
        }
        _ if word.contains('=') => format!(
            "{word} is not a value; close the list or table above it with ] or }}, or write {{ \
             {word} }} for a table"
        ),
        _ if word.starts_with('/') && word[1..].bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("'{word}' is not a number; write {}", &word[1..])
        }
        "null" | "nil" | "none" | "undefined" => {
            format!("TOML has no '{word}'; leave the line out for the default")
        }
        "true" | "false" => format!("'{word}' is not a value; write {lower}"),
        "yes" | "on" => format!("'{word}' is not a value; write true, or \"{word}\" as a string"),
        "no" | "off" => format!("'{word}' is not a value; write false, or \"{word}\" as a string"),
        _ if plain.len() < word.len() => {
            format!("{word} is not in straight quotes; write \"{plain}\"")
        }
        _ => format!("'{word}' is a string, which needs quotes; write \"{word}\""),
    }
}

fn bare_key(word: &str) -> String {
    if let Some(mark) = [";", "//"].into_iter().find(|mark| word.starts_with(mark)) {
        return format!("a comment begins with #, not with {mark}");
    }
    if let Some((key, _)) = word.split_once(": ").or_else(|| word.rsplit_once(':')) {
        return format!("'{key}:' is not a key; write {key} = VALUE, or [{key}] for a table");
    }
    format!(
        "the key '{word}' needs quotes, because it has characters other than letters, digits, \
         '-' and '_'; write \"{word}\""
    )
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    fn sentences(text: &str) -> Vec<String> {
        let (_, errors) = DeTable::parse_recoverable(text);
        errors
            .iter()
            .filter_map(|error| in_words(text, error.message(), error.span().unwrap(), true))
            .map(|mistake| mistake.sentence)
            .collect()
    }

    #[test]
    fn each_says_what_to_write() {
        for (text, sentence) in [
            ("key = ip", "'ip' is a string, which needs quotes; write \"ip\""),
            ("key = [\"path\", ip]", "'ip' is a string, which needs quotes; write \"ip\""),
            ("when = { plan = gold }", "'gold' is a string, which needs quotes; write \"gold\""),
            ("limits = 10/s burst 5 # a", "'10/s burst 5' is a string, which needs quotes; "),
            (
                "key = \u{201c}ip\u{201d}",
                "\u{201c}ip\u{201d} is not in straight quotes; write \"ip\"",
            ),
            ("lowercase = True", "'True' is not a value; write true"),
            ("lowercase = yes", "write true, or \"yes\" as a string"),
            ("key =\n", "there is no value; write one after the ="),
            ("a = 1\na = 2", "'a' is defined twice, first in line 1; keep only one of the two"),
            ("[b]\na = 1\n\"a\" = 2", "'a' is defined twice, first in line 2; keep only"),
            ("a = { b = 1, b = 2 }", "'b' is defined twice; keep only one of the two"),
            (
                "[p.a]\nx = 1\n[p.b]\n[p.a] # again\nx = 2",
                "[p.a] is defined twice, first in line 1; keep only one of the two",
            ),
            ("192.0.2.0/24 = 1", "write \"192.0.2.0/24\""),
            ("// comment", "a comment begins with #, not with //"),
            ("key: [\"ip\"]", "'key:' is not a key; write key = VALUE"),
            ("policy:\n  api:", "'policy:' is not a key; write policy = VALUE, or [policy] for"),
            ("a = 1, ", "write one KEY = VALUE a line, and only a # comment behind it"),
            ("a = \"1\"; b = 2", "write one KEY = VALUE a line, and only a # comment behind it"),
            ("a = { b == 1 }", "there is one = too many"),
            ("a = [1\nb = x", "close the list or table above it with ] or }"),
            ("when = plan = \"x\"", "write { plan = \"x\" } for a table"),
            ("bits = /64", "'/64' is not a number; write 64"),
            ("key ip", "this is not KEY = VALUE"),
            ("key = \"ip", "a string has no closing quote"),
            ("key = [\"ip\"", "the list has no closing ]"),
            ("key = { a = 1", "the table has no closing }"),
            ("[policy", "the header has no closing ]"),
            (
                "[policy.che ck]",
                "'che ck' in the header has white space; names have letters, digits, '-' and '_'",
            ),
            ("[policy.a b", "the header has no closing ]"),
            ("[[policy.a b.lists]]", "'a b' in the header has white space"),
            ("key = [\"ip\" \"path\"]", "a comma is missing between two entries"),
            ("bits = 024", "a number must not begin with 0"),
            ("key = \"a\\q\"", "a backslash in"),
        ] {
            let found = sentences(text);
            assert!(found.iter().any(|found| found.contains(sentence)), "{text}: {found:?}");
        }
    }

    /// Every place of every text is one that the library could name.
    #[test]
    fn no_place_is_too_far() {
        let text = "ä = [ü,\nö";
        for start in 0..=text.len() + 1 {
            for message in ["invalid float", "invalid unquoted key", "duplicate key", "other"] {
                let _ = in_words(text, message, start..start + 1, true);
            }
        }
    }
}

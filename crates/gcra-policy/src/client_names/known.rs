//! What clients are known as, by their names in logs (`names_file`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gcra_text::sentence::Sentence;
use gcra_text::visible::Visible;

use crate::file::sources::read_text_within;
use crate::key::WrittenValue;

/// The most bytes of the file.
pub(crate) const MOST_BYTES: u64 = 4 << 20;

/// The most characters that are shown for a client. The rest of longer words is cut off.
const LONGEST: usize = 60;

type Words = HashMap<Box<str>, Box<str>>;

/// The words of a file. A command reads it when it needs them for the first time.
#[derive(Default)]
pub struct KnownClients {
    path: Option<PathBuf>,
    words: OnceLock<Words>,
}

// By hand, because it is long, and tells who the customers are.
impl fmt::Debug for KnownClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KnownClients").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A line that is left out, and why.
pub(crate) type LeftOut = (usize, &'static str);

impl KnownClients {
    /// Reads the file, with the lines of it that are wrong.
    ///
    /// # Errors
    ///
    /// It cannot be read; a sentence without its name.
    pub fn read(path: &Path) -> Result<(Self, Vec<LeftOut>), Sentence> {
        let (words, left_out) = parse(&read_text_within(path, MOST_BYTES)?);
        Ok((Self { path: Some(path.to_owned()), words: words.into() }, left_out))
    }

    /// Those of a file that is read later, if it can be read then.
    pub(crate) fn later(path: PathBuf) -> Self {
        Self { path: Some(path), words: OnceLock::new() }
    }

    /// What the client with this name is known as.
    pub fn get(&self, name: &str) -> Option<&str> {
        let path = self.path.as_deref()?;
        let read = || read_text_within(path, MOST_BYTES).map(|text| parse(&text).0);
        let words = self.words.get_or_init(|| read().unwrap_or_default());
        words.get(name).map(|words| &**words)
    }

    /// Whether the client with this name is known as these words.
    pub fn is_known_as(&self, name: &str, words: &str) -> bool {
        self.get(name).is_some_and(|known| *known == *shown(words))
    }

    /// Whether a name ends with digits of a hash.
    pub(crate) fn has_digits(&self) -> bool {
        self.words.get().is_some_and(|words| words.keys().any(|name| name.contains('#')))
    }

    /// A name with what the client is known as: `192.0.2.7 (customer 4711)`.
    pub fn with_words(&self, name: &str) -> String {
        match self.get(name) {
            Some(words) => format!("{name} ({words})"),
            None => name.to_owned(),
        }
    }
}

fn parse(text: &str) -> (Words, Vec<LeftOut>) {
    let (mut all, mut left_out) = (Words::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = match line.split_once(" = ").map(|(name, words)| (name.trim(), words.trim())) {
            None => Some("is not NAME = WORDS, such as 192.0.2.7 = customer 4711"),
            Some((name, _)) if !is_name(name) => Some(
                "does not begin with the name of a client alone; 'gcra-spoa name --json KEY' \
                     prints it as \"name\"",
            ),
            Some((name, words)) => match all.entry(name.into()) {
                Entry::Occupied(_) => Some("names a client again, and the first line counts"),
                Entry::Vacant(free) => {
                    free.insert(shown(words).into());
                    None
                }
            },
        };
        left_out.extend(wrong.map(|why| (number, why)));
    }
    (all, left_out)
}

/// Whether logs can name a client so: no string is shown in full, and digits are behind a name
/// that has one.
fn is_name(name: &str) -> bool {
    let has_digits = |digits: &str| {
        digits.len() == 6 && digits.bytes().all(|digit| b"0123456789abcdef".contains(&digit))
    };
    let name = match name.rsplit_once('#') {
        Some((begin, digits)) if begin.contains('…') && has_digits(digits) => begin,
        _ if name.contains('…') => return false,
        _ => name,
    };
    let is_whole = |part: &str| !matches!(part.parse(), Err(_) | Ok(WrittenValue::String(_)));
    let value = |part: &str| match part.split_once(':') {
        Some((mark, value)) if mark.starts_with("else") => is_whole(value),
        _ => is_whole(part),
    };
    name.split(',').all(|part| part == "…" || is_cut(part) || value(part))
}

/// Whether a part of a name is the beginning of a string and its length: `sk_l…(24)`.
fn is_cut(part: &str) -> bool {
    let Some((begin, length)) = part.split_once('…') else { return false };
    let length = length.strip_prefix('(').and_then(|length| length.strip_suffix(')'));
    let begin = match begin.split_once(':') {
        Some((mark, begin)) if mark.starts_with("else") => begin,
        _ => begin,
    };
    let most = if begin.starts_with("hex:") { 12 } else { 4 };
    begin.len() <= most
        && begin.bytes().all(|byte| byte.is_ascii_graphic())
        && length.is_some_and(|length| length.parse::<u64>().is_ok())
}

/// The words without what a terminal would obey, and not longer than a line has space for.
fn shown(words: &str) -> String {
    let words = Visible(words).to_string();
    match words.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_logs_and_wrong_lines_are_told() {
        let text = "# our customers\n\n192.0.2.7 = customer 4711\r\n\
                    sk_l…(24)#a1b2c3 = ACME = old\n2001:db8::/64,/…(6)#00ff00=x\n\
                    else:192.0.2.1,int64:7 = two parts\nsk_live_0123456789 = secret\n\
                    192.0.2.7 = another\n10.0.0.777 = wrong\n\
                    policy 'by-key': sk_l…(24)#a1b2c3 = pasted\nsk_l…(24) = no digits\n\
                    sk_live…(24)#a1b2c3 = long\nelse2:hex:00ff…(9),…#00ff00 = bytes\n";
        let (words, left_out) = parse(text);
        let get = |name: &str| words.get(name).map(|words| &**words);
        assert_eq!(get("192.0.2.7"), Some("customer 4711"));
        assert_eq!(get("sk_l…(24)#a1b2c3"), Some("ACME = old"));
        assert_eq!(get("else:192.0.2.1,int64:7"), Some("two parts"));
        let lines: Vec<_> = left_out.iter().map(|(line, _)| *line).collect();
        assert_eq!((words.len(), lines), (4, vec![5, 7, 8, 9, 10, 11, 12]));
    }

    #[test]
    fn words_are_short_and_move_no_cursor() {
        let (words, _) =
            parse(&format!("192.0.2.7 = a\u{1b}[2J\u{202e}b\n192.0.2.8 = {}", "ä".repeat(99)));
        assert_eq!(&*words["192.0.2.7"], "a\\u{1b}[2J\\u{202e}b");
        assert_eq!(&*words["192.0.2.8"], "ä".repeat(60) + "…");
    }
}

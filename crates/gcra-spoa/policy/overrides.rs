//! The grammar of `overrides` and `lists`: which values of the key have other limits.

use std::fmt::Display;
use std::path::Path;

use ahash::AHashMap;
use toml::de::DeValue;

use crate::plural::Count;
use crate::policy::limits;
use crate::policy::override_key::VALUE;
use crate::policy::reader::{Entries, Node, Reader};
use crate::policy::sources::{MAX_BYTES, Sources, read_text};
use crate::policy::{KeyParts, OverrideKey, Overrides, Policy, Rule};

/// The name of the table of overrides, beside the names of lists.
pub(super) const OVERRIDES: &str = "overrides";

/// The most mistakes of one list that are reported one by one.
const MAX_REPORTED: usize = 10;

/// Collects the overrides of one policy.
pub(super) struct Collector<'p> {
    policy: &'p str,
    parts: &'p KeyParts,
    overrides: Overrides,
    /// The place of each rule. Overrides with equal limits share one.
    places: AHashMap<Rule, u32>,
    /// How many entries are addresses or networks, and how many are texts without `str:`.
    addresses: usize,
    texts: usize,
    /// The first texts, with the list that they are in, and where each stands in the file.
    first_texts: Vec<(usize, String)>,
}

impl<'p> Collector<'p> {
    pub(super) fn new(policy: &'p str, parts: &'p KeyParts) -> Self {
        Self {
            policy,
            parts,
            overrides: Overrides::default(),
            places: AHashMap::new(),
            addresses: 0,
            texts: 0,
            first_texts: Vec::new(),
        }
    }

    /// All overrides. Warns of texts among addresses, unless the key has several args, of which
    /// one can be an address and another one a text.
    pub(super) fn finish(self, reader: &mut Reader<'_>) -> Overrides {
        if self.parts.names().count() <= 1 && self.texts < self.addresses {
            for (at, text) in &self.first_texts {
                let what = format!(
                    "{text} is a text among addresses, so no address will ever match it; write \
                     an address, or str: in front of it if it is meant"
                );
                reader.warn(*at, &what);
            }
            if let (more @ 1.., Some((at, _))) =
                (self.texts - self.first_texts.len(), self.first_texts.last())
            {
                let more = Count(more, "more text is", "more texts are");
                reader.warn(*at, &format!("{more} among the addresses of '{}'", self.policy));
            }
        }
        self.overrides
    }

    /// Remembers whether an entry is an address or a text. `list` says in which list it is.
    fn note(&mut self, at: usize, list: impl Display, text: &str, key: &OverrideKey) {
        match key {
            OverrideKey::Net(_) => self.addresses += 1,
            OverrideKey::Value(_) if text.starts_with(VALUE) => {}
            OverrideKey::Value(_) => {
                self.texts += 1;
                if self.texts <= MAX_REPORTED {
                    self.first_texts.push((at, format!("{list}'{text}'")));
                }
            }
        }
    }

    /// `"192.0.2.0/24" = "unlimited"`.
    pub(super) fn overrides<'t>(&mut self, reader: &mut Reader<'t>, value: &Node<'t>) {
        let what = "overrides must be a table, such as \"192.0.2.0/24\" = \"unlimited\"";
        let Some(table) = reader.table(value, what) else { return };
        for (key, value) in table {
            let (at, text) = (key.span().start, &**key.get_ref());
            // The span of a key has its quotes in it.
            let is_bare = key.span().len() == text.len();
            if let Some(dotted) = dotted(text, value).filter(|_| is_bare) {
                let what = format!("the key '{dotted}' needs quotes; write \"{dotted}\"");
                reader.wrong(at, &what);
                continue;
            }
            let key = self.key(text).map_err(|what| reader.wrong(at, &what));
            if let (Some(rule), Ok(key)) = (limits::rule(reader, self.policy, value), key) {
                self.note(at, "", text, &key);
                let place = self.place(rule, None);
                if self.overrides.insert(key, place).is_some() {
                    let what = format!("'{text}' is the same as another override; leave one out");
                    reader.wrong(at, &what);
                }
            }
        }
    }

    /// `[[policy.api.lists]]` with `file` and `limits`.
    pub(super) fn lists<'t>(
        &mut self,
        reader: &mut Reader<'t>,
        sources: &mut Sources,
        value: &Node<'t>,
    ) {
        let DeValue::Array(array) = value.get_ref() else {
            let what = "lists must be a list of tables: write [[policy.NAME.lists]], and below \
                        it file and limits";
            return reader.wrong(value.span().start, what);
        };
        for list in array.iter() {
            let at = list.span().start;
            let Some(table) = reader.table(list, "a list must be a table with file and limits")
            else {
                continue;
            };
            let mut entries = Entries::new("a list".to_owned(), &["file", "limits"], table);
            let (file, rule) = (entries.take("file"), entries.take("limits"));
            let file =
                file.and_then(|value| reader.string(value, "file", "such as \"partners.txt\""));
            let rule = rule.map(|value| limits::rule(reader, self.policy, value));
            match (file, rule) {
                (Some(file), Some(Some(rule))) => {
                    let place = self.place(rule, Some(&file));
                    let (path, text) = sources.read_list(&file);
                    match text {
                        Ok(text) => {
                            self.list(reader, at, &path, &text, place);
                            self.overrides.files.push(path);
                        }
                        Err(error) => {
                            let path = path.display();
                            reader.wrong(at, &format!("cannot read the list {path}: {error}"));
                        }
                    }
                }
                (_, Some(None)) => {}
                _ => reader.wrong(
                    at,
                    "a list needs file and limits, such as file = \"partners.txt\" and limits = \
                     \"unlimited\"",
                ),
            }
            reader.no_more(entries);
        }
    }

    /// The text of a list: one entry a line.
    fn list(&mut self, reader: &mut Reader<'_>, at: usize, path: &Path, text: &str, place: u32) {
        let (path, mut wrong, mut odd) = (path.display(), 0_usize, 0_usize);
        for (number, entry) in entries(text) {
            let list = format_args!("the list {path}, line {number}: ");
            match self.list_key(entry) {
                Ok(key) => {
                    match not_as_meant(entry) {
                        None => self.note(at, list, entry, &key),
                        Some(what) => {
                            odd += 1;
                            if odd <= MAX_REPORTED {
                                reader.warn(at, &format!("{list}{what}"));
                            }
                        }
                    }
                    // An entry that stands in several lists, or several times in one, has the
                    // limits of the last.
                    self.overrides.insert(key, place);
                }
                Err(what) => {
                    wrong += 1;
                    if wrong <= MAX_REPORTED {
                        reader.wrong(at, &format!("{list}{what}"));
                    }
                }
            }
        }
        if let Some(more @ 1..) = wrong.checked_sub(MAX_REPORTED) {
            let more = Count(more, "more mistake", "more mistakes");
            reader.wrong(at, &format!("the list {path} has {more}"));
        }
        if let Some(more @ 1..) = odd.checked_sub(MAX_REPORTED) {
            let more = Count(more, "more entry", "more entries");
            reader.warn(at, &format!("the list {path} has {more} with quotes or a '#'"));
        }
    }

    fn list_key(&self, entry: &str) -> Result<OverrideKey, String> {
        // These begin a comment in other kinds of files. Here the line would be a value that no
        // client sends.
        if let Some(mark) = [";", "//"].into_iter().find(|mark| entry.starts_with(mark)) {
            return Err(format!(
                "'{entry}' begins with '{mark}'; write # before a comment, or str:{entry} for the \
                 text itself"
            ));
        }
        if let Some((address, _)) = entry.split_once('#')
            && let Ok(OverrideKey::Net(_)) = address.parse()
        {
            return Err(format!(
                "'{entry}' is not an address or network; write white space before the comment, \
                 {address} #..., or str:{entry} for the text itself"
            ));
        }
        self.key(entry)
    }

    fn key(&self, text: &str) -> Result<OverrideKey, String> {
        key(text, self.parts.lowercase)
    }

    /// The place of a rule, which is from this list or from the table of overrides.
    fn place(&mut self, rule: Rule, list: Option<&str>) -> u32 {
        let Overrides { rules, lists, .. } = &mut self.overrides;
        // A file is too small for more rules than that.
        let next = u32::try_from(rules.len()).unwrap_or(u32::MAX);
        let place = *self.places.entry(rule).or_insert_with_key(|rule| {
            rules.push(rule.clone());
            lists.push(Vec::new());
            next
        });
        if let Some(lists) = lists.get_mut(place as usize) {
            let list = list.unwrap_or(OVERRIDES);
            if !lists.iter().any(|known| **known == *list) {
                lists.push(list.into());
            }
        }
        place
    }
}

/// A line of a list without its comment, which begins with a `#` at the start of the line or after
/// white space.
fn without_comment(line: &str) -> &str {
    let mut marks = line.match_indices('#').map(|(at, _)| at);
    let begin = marks.find(|at| line[..*at].ends_with(char::is_whitespace) || *at == 0);
    begin.map_or(line, |at| &line[..at])
}

/// What is odd about an entry that is a text, if something is.
fn not_as_meant(entry: &str) -> Option<String> {
    if entry.starts_with(VALUE) {
        return None;
    }
    let quotes = [('"', '"'), ('\'', '\''), ('\u{2018}', '\u{2019}'), ('\u{201c}', '\u{201d}')];
    let plain = quotes.into_iter().find_map(|(left, right)| {
        entry.strip_prefix(left)?.strip_suffix(right).filter(|plain| !plain.is_empty())
    });
    if let Some(plain) = plain {
        return Some(format!(
            "the quotes are part of the value {entry}, because a list needs none; write {plain}, \
             or str:{entry} if they are meant"
        ));
    }
    entry.contains('#').then(|| {
        format!(
            "the # is part of the value '{entry}', because a comment begins after white space; \
             write white space before the #, or str:{entry} if it is meant"
        )
    })
}

/// The entries of a list, one a line and without comments, each with the number of its line.
fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let entries = text.lines().map(|line| without_comment(line).trim());
    (1..).zip(entries).filter(|(_, entry)| !entry.is_empty())
}

fn key(text: &str, lowercase: bool) -> Result<OverrideKey, String> {
    Ok(match text.parse()? {
        OverrideKey::Value(value) if lowercase => {
            OverrideKey::Value(value.to_ascii_lowercase().into())
        }
        key => key,
    })
}

impl Policy {
    /// The list that this override comes from, and its line there; `None` if it is one of
    /// `overrides`, or the list cannot be read any more.
    ///
    /// This reads the lists again, because a list may have a million entries, and their lines are
    /// needed here only.
    pub(crate) fn line_of(&self, wanted: &OverrideKey) -> Option<(&Path, usize)> {
        // A later entry replaces an earlier one.
        self.overrides.files.iter().rev().find_map(|path| {
            let (text, _) = read_text(path, MAX_BYTES).ok()?;
            let line_of = |(line, entry)| {
                key(entry, self.key.lowercase).is_ok_and(|key| key == *wanted).then_some(line)
            };
            Some((&**path, entries(&text).filter_map(line_of).last()?))
        })
    }
}

/// The key that was probably meant where `192.0.2.1 = "deny"` has no quotes: to TOML that is a
/// table in a table.
fn dotted(key: &str, value: &Node<'_>) -> Option<String> {
    let (mut whole, mut value) = (key.to_owned(), value);
    // Each round goes one table deeper, and the TOML library bounds the depth.
    while let Some(table) = value.get_ref().as_table()
        && let Some((key, inner)) = table.iter().next()
        && !["name", "rate", "burst"].contains(&&**key.get_ref())
    {
        whole = format!("{whole}.{}", key.get_ref());
        value = inner;
    }
    (whole.len() > key.len()).then_some(whole)
}

//! A reader of TOML entries: it takes typed values out of tables and notes every mistake with its
//! line. It knows nothing about policies.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::plural::Count;

/// The most mistakes that are reported. Of further ones only the number is.
const MAX_REPORTED: usize = 100;

/// A value, and where it stands.
pub(super) type Node<'t> = Spanned<DeValue<'t>>;

/// The name of a value, and where it stands.
pub(super) type Name<'t> = Spanned<Cow<'t, str>>;

/// The mistakes in one file.
pub(super) struct Reader<'t> {
    path: &'t Path,
    /// Where the lines of the text begin.
    lines: Vec<usize>,
    /// Mistakes with their lines: at least those of the first lines.
    mistakes: Vec<(usize, String)>,
    /// The number of all mistakes.
    found: usize,
}

/// The entries of a table, which are taken out one after another. What is left at the end has no
/// meaning.
pub(super) struct Entries<'d, 't> {
    what: String,
    known: &'static [&'static str],
    left: Vec<(&'d Name<'t>, &'d Node<'t>)>,
}

impl<'d, 't> Entries<'d, 't> {
    /// The entries of `table`, which is `what` in messages and may have the `known` keys.
    pub(super) fn new(
        what: String,
        known: &'static [&'static str],
        table: &'d DeTable<'t>,
    ) -> Self {
        Self { what, known, left: table.iter().collect() }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<&'d Node<'t>> {
        debug_assert!(self.known.contains(&name));
        let at = self.left.iter().position(|(key, _)| key.get_ref() == name)?;
        Some(self.left.swap_remove(at).1)
    }
}

impl<'t> Reader<'t> {
    pub(super) fn new(path: &'t Path, text: &str) -> Self {
        let lines = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            path,
            lines: [0].into_iter().chain(lines).collect(),
            mistakes: Vec::new(),
            found: 0,
        }
    }

    /// Whether there was no mistake so far.
    pub(super) fn is_content(&self) -> bool {
        self.found == 0
    }

    /// The number of the line in which the byte at `at` stands, from 1.
    pub(super) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|begin| *begin <= at)
    }

    /// Notes a mistake.
    pub(super) fn wrong(&mut self, at: usize, what: &str) {
        // A mistake repeats text of the file, which must not move a terminal's cursor.
        let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        self.mistakes.push((self.line(at), what.chars().map(shown).collect()));
        self.found += 1;
        // Mistakes come in no order, and not all are kept.
        if self.mistakes.len() >= 2 * MAX_REPORTED {
            self.mistakes.sort();
            self.mistakes.truncate(MAX_REPORTED);
        }
    }

    /// All mistakes, by line: `FILE:LINE: what is wrong`.
    pub(super) fn finish(mut self) -> Vec<String> {
        self.mistakes.sort();
        self.mistakes.truncate(MAX_REPORTED);
        let more = self.found - self.mistakes.len();
        let path = self.path.display();
        let reported = self.mistakes.iter().map(|(line, what)| format!("{path}:{line}: {what}"));
        let rest = format!("{path}: and {}", Count(more, "more mistake", "more mistakes"));
        reported.chain((more > 0).then_some(rest)).collect()
    }

    /// A table. If the value is something else, `what` is the mistake.
    pub(super) fn table<'v>(
        &mut self,
        value: &'v Node<'t>,
        what: &str,
    ) -> Option<&'v DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong(value.span().start, what);
        }
        table
    }

    /// A string; `like` says which.
    pub(super) fn string(&mut self, value: &Node<'t>, name: &str, like: &str) -> Option<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong(value.span().start, &format!("{name} must be a string, {like}"));
        }
        text
    }

    /// A string that is not empty: `what`.
    pub(super) fn name(&mut self, value: &Node<'t>, name: &str, what: &str) -> Option<String> {
        let text = self.string(value, name, what)?;
        if text.is_empty() {
            self.wrong(
                value.span().start,
                &format!("{name} is empty; write {what}, or leave it out"),
            );
        }
        Some(text)
    }

    pub(super) fn boolean(&mut self, value: &Node<'t>, name: &str) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.wrong(value.span().start, &format!("{name} must be true or false"));
        }
        boolean
    }

    /// A whole number from 0 to `most`.
    pub(super) fn number(&mut self, value: &Node<'t>, name: &str, most: u64) -> Option<u64> {
        let number = value
            .get_ref()
            .as_integer()
            .and_then(|integer| u64::from_str_radix(integer.as_str(), integer.radix()).ok());
        let number = number.filter(|number| *number <= most);
        if number.is_none() {
            self.wrong(
                value.span().start,
                &format!("{name} must be a whole number from 0 to {most}"),
            );
        }
        number
    }

    /// The strings of a list, and where each stands.
    pub(super) fn strings(
        &mut self,
        value: &Node<'t>,
        name: &str,
        like: &str,
    ) -> Vec<(String, usize)> {
        let texts = value.get_ref().as_array().and_then(|array| {
            array
                .iter()
                .map(|text| Some((text.get_ref().as_str()?.to_owned(), text.span().start)))
                .collect()
        });
        if texts.is_none() {
            self.wrong(value.span().start, &format!("{name} must be a list of strings, {like}"));
        }
        texts.unwrap_or_default()
    }

    /// Each entry that was not taken out is a mistake.
    pub(super) fn no_more(&mut self, entries: Entries<'_, 't>) {
        for (key, _) in &entries.left {
            let kind = format!("a setting of {}", entries.what);
            self.unknown(key.span().start, &kind, key.get_ref(), entries.known);
        }
    }

    /// A name without a meaning, and the known name that was probably meant.
    pub(super) fn unknown(&mut self, at: usize, kind: &str, name: &str, known: &[&str]) {
        let nearest =
            known.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
        let mut what = format!("'{name}' is not {kind}; ");
        // Writing to a string does not fail.
        let _ = match nearest {
            Some((distance, nearest)) if distance <= 1 + name.len() / 4 => {
                write!(what, "did you mean '{nearest}'?")
            }
            _ => write!(what, "use one of {}", known.join(", ")),
        };
        self.wrong(at, &what);
    }
}

//! A reader of TOML entries: it takes typed values out of tables and notes every mistake and every
//! warning with its line. It knows nothing about policies.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use gcra_text::count::Count;
use gcra_text::duration::{self, Exact};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::file::secrets::{self, Readers};

/// The most mistakes that are reported, and the most warnings. Of further ones only the number is.
pub(crate) const MAX_REPORTED: usize = 100;

/// A value, and where it stands.
pub(crate) type Node<'t> = Spanned<DeValue<'t>>;

/// The name of a value, and where it stands.
pub(crate) type EntryName<'t> = Spanned<Cow<'t, str>>;

/// A file, and what of it may be told to whom.
struct SourceText<'t> {
    path: &'t Path,
    text: &'t str,
    readers: Readers,
    /// Words that the log must not have, beside those of the lines that it is about.
    hidden: HashSet<String>,
}

/// The mistakes and warnings in one file.
pub struct Reader<'t> {
    of: SourceText<'t>,
    /// Where the lines of the text begin.
    lines: Vec<usize>,
    /// Lines whose mistakes are known.
    left_out: BTreeSet<usize>,
    mistakes: Notes,
    warnings: Notes,
}

/// Sentences about the file.
#[derive(Default)]
struct Notes {
    /// With their lines: at least those of the first lines.
    kept: Vec<(usize, String)>,
    /// The number of all sentences.
    found: usize,
    /// How many mistakes or warnings there are beyond the sentences: some sentences are about
    /// several.
    beyond: usize,
}

impl Notes {
    fn add(&mut self, line: usize, what: &str) {
        // A sentence repeats text of the file, which must not move a terminal's cursor.
        let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        self.kept.push((line, what.chars().map(shown).collect()));
        self.found += 1;
        // They come in no order, and not all are kept.
        if self.kept.len() >= 2 * MAX_REPORTED {
            self.cut();
        }
    }

    /// Those of the first lines, and in each line in the order in which they were found.
    fn cut(&mut self) {
        self.kept.sort_by_key(|(line, _)| *line);
        self.kept.truncate(MAX_REPORTED);
    }

    /// By line: `FILE:LINE: what is wrong`. `kind` stands before each sentence, and the nouns are
    /// for those that are only counted.
    fn finish(
        mut self,
        of: &SourceText<'_>,
        kind: &str,
        one: &'static str,
        several: &'static str,
    ) -> Vec<String> {
        self.cut();
        let more = self.found - self.kept.len();
        let path = of.path.display();
        let about: BTreeSet<_> = self.kept.iter().map(|(line, _)| *line).collect();
        let mut secrets = match about.is_empty() {
            true => HashSet::new(),
            false => secrets::in_lines(of.text, |line| about.contains(&line), of.readers),
        };
        if of.readers == Readers::OfLog {
            secrets.extend(of.hidden.iter().map(String::as_str));
        }
        let reported = self
            .kept
            .iter()
            .map(|(line, what)| format!("{path}:{line}: {kind}{}", secrets::cut(what, &secrets)));
        let rest = format!("{path}: and {}", Count(more, one, several));
        reported.chain((more > 0).then_some(rest)).collect()
    }
}

/// The entries of a table, which are taken out one after another. What is left at the end has no
/// meaning.
pub struct Entries<'d, 't> {
    what: String,
    known: &'static [&'static str],
    left: Vec<(&'d EntryName<'t>, &'d Node<'t>)>,
}

impl<'d, 't> Entries<'d, 't> {
    /// The entries of `table`, which is `what` in messages and may have the `known` keys.
    pub fn new(what: String, known: &'static [&'static str], table: &'d DeTable<'t>) -> Self {
        Self { what, known, left: table.iter().collect() }
    }

    /// An entry, which stays.
    pub fn get(&self, name: &str) -> Option<&'d Node<'t>> {
        self.left.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| *value)
    }

    /// Takes an entry out. Those that are never taken out are mistakes.
    pub fn take(&mut self, name: &str) -> Option<&'d Node<'t>> {
        debug_assert!(self.known.contains(&name));
        let at = self.left.iter().position(|(key, _)| key.get_ref() == name)?;
        Some(self.left.swap_remove(at).1)
    }
}

impl<'t> Reader<'t> {
    pub(crate) fn new(path: &'t Path, text: &'t str, readers: Readers) -> Self {
        let lines = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            of: SourceText { path, text, readers, hidden: HashSet::new() },
            lines: [0].into_iter().chain(lines).collect(),
            left_out: BTreeSet::new(),
            mistakes: Notes::default(),
            warnings: Notes::default(),
        }
    }

    /// Whether there was no mistake so far.
    pub(crate) fn is_content(&self) -> bool {
        self.mistakes.found == 0
    }

    /// The number of the line in which the byte at `at` stands, from 1.
    pub(crate) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|begin| *begin <= at)
    }

    /// From now on, mistakes in these lines are not noted.
    pub(crate) fn leave_out(&mut self, lines: BTreeSet<usize>) {
        self.left_out = lines;
    }

    /// The number of all mistakes and warnings so far.
    pub(crate) fn noted(&self) -> usize {
        self.mistakes.found + self.warnings.found
    }

    /// A value is in a sentence, and may be a secret, such as a value of a key. Called for the few
    /// of which there are sentences.
    pub(crate) fn hide(&mut self, value: &str) {
        self.of.hidden.extend(secrets::in_value(value).map(str::to_owned));
    }

    /// The path of a file is in a sentence. If there is no such file, its `name` may be a secret
    /// that was written in the wrong place.
    pub(crate) fn hide_unless_there(&mut self, name: &str, path: &Path) {
        if path.symlink_metadata().is_err() {
            self.hide(name);
        }
    }

    /// Notes a mistake in a string that may be a secret. One that begins as a rate does is none.
    pub(crate) fn wrong_text(&mut self, at: usize, text: &str, what: &str) {
        let is_number = |text: &str| text.parse::<f64>().is_ok();
        if !text.split_once('/').is_some_and(|(count, _)| is_number(count.trim())) {
            self.hide(text);
        }
        self.wrong(at, what);
    }

    /// Notes a mistake.
    pub(crate) fn wrong(&mut self, at: usize, what: &str) {
        let line = self.line(at);
        if !self.left_out.contains(&line) {
            self.mistakes.add(line, what);
        }
    }

    /// Notes something that is allowed, and probably not meant.
    pub(crate) fn warn(&mut self, at: usize, what: &str) {
        self.warnings.add(self.line(at), what);
    }

    /// Notes in one sentence `count` warnings, of which there is at least one.
    pub(crate) fn warn_of_several(&mut self, at: usize, what: &str, count: usize) {
        self.warn(at, what);
        self.warnings.beyond += count.saturating_sub(1);
    }

    pub(crate) fn warning_count(&self) -> usize {
        self.warnings.found + self.warnings.beyond
    }

    /// The warnings, by line: `FILE:LINE: warning: what is probably not meant`. If there are
    /// mistakes, they are the error, without the `warning: `.
    pub(crate) fn finish(self) -> Result<Vec<String>, Vec<String>> {
        if self.is_content() {
            Ok(self.warnings.finish(&self.of, "warning: ", "more warning", "more warnings"))
        } else {
            Err(self.mistakes.finish(&self.of, "", "more mistake", "more mistakes"))
        }
    }

    /// A table. If the value is something else, `what` is the mistake.
    pub(crate) fn table<'v>(
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
    pub(crate) fn string(&mut self, value: &Node<'t>, name: &str, like: &str) -> Option<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong(value.span().start, &format!("{name} must be a string, {like}"));
        }
        text
    }

    /// A string that is not empty: `what`.
    pub(crate) fn name(&mut self, value: &Node<'t>, name: &str, what: &str) -> Option<String> {
        let text = self.string(value, name, what)?;
        if text.is_empty() {
            self.wrong(
                value.span().start,
                &format!("{name} is empty; write {what}, or leave it out"),
            );
        }
        Some(text)
    }

    pub(crate) fn boolean(&mut self, value: &Node<'t>, name: &str) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            let what = format!("{name} must be true or false, without quotes");
            self.wrong(value.span().start, &what);
        }
        boolean
    }

    pub(crate) fn number(
        &mut self,
        value: &Node<'t>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let number = value
            .get_ref()
            .as_integer()
            .and_then(|integer| u64::from_str_radix(integer.as_str(), integer.radix()).ok());
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.wrong(
                value.span().start,
                &format!(
                    "{name} must be a whole number from {} to {}, without quotes",
                    range.start(),
                    range.end()
                ),
            );
        }
        number
    }

    /// A time in this range, such as `like`.
    pub(crate) fn time(
        &mut self,
        value: &Node<'t>,
        name: &str,
        range: RangeInclusive<Duration>,
        like: &str,
    ) -> Option<Duration> {
        let text = self.string(value, name, &format!("such as \"{like}\""))?;
        let time = duration::parse(&text).filter(|time| range.contains(time));
        if time.is_none() {
            let (least, most) = (Exact(*range.start()), Exact(*range.end()));
            let what = format!(
                "'{text}' in {name} is not a time from {least} to {most}; write a whole number \
                 and a unit ({}), such as \"{like}\"",
                duration::UNITS_IN_WORDS
            );
            self.wrong(value.span().start, &what);
        }
        time
    }

    /// The strings of a list, and where each stands. `like` says what to write.
    pub(crate) fn strings(
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
            let right = match meant_strings(value.get_ref()) {
                Some(right) => format!("; write {name} = {right}"),
                None => format!(", {like}"),
            };
            self.wrong(value.span().start, &format!("{name} must be a list of strings{right}"));
        }
        texts.unwrap_or_default()
    }

    /// Each entry that was not taken out is a mistake.
    pub(crate) fn no_more(&mut self, entries: Entries<'_, 't>) {
        self.no_more_but(entries, |_, _| None);
    }

    /// As [`no_more`](Self::no_more), with a sentence of its own for some entries.
    pub(crate) fn no_more_but(
        &mut self,
        entries: Entries<'_, 't>,
        sentence: impl Fn(&str, &Node<'t>) -> Option<String>,
    ) {
        for (key, value) in &entries.left {
            if let Some(what) = sentence(key.get_ref(), value) {
                self.wrong(key.span().start, &what);
                continue;
            }
            let kind = format!("a setting of {}", entries.what);
            self.unknown(key.span().start, &kind, key.get_ref(), entries.known);
        }
    }

    /// A name without a meaning, and the known name that was probably meant.
    pub(crate) fn unknown(&mut self, at: usize, kind: &str, name: &str, known: &[&str]) {
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

/// Words in a sentence: "rate", "rate or burst", "rate, burst or count".
pub(crate) fn list(words: &[&str], or: &str) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} {or} {last}", first.join(", ")),
        words => words.concat(),
    }
}

/// The list of strings that a value was probably meant to be.
fn meant_strings(value: &DeValue<'_>) -> Option<String> {
    let texts = match value {
        DeValue::Array(array) => array.iter().map(|value| scalar(value.get_ref())).collect(),
        value => scalar(value).map(|text| vec![text]),
    };
    let texts: Vec<String> = texts?;
    let are_words = !texts.is_empty() && texts.iter().all(|text| !text.is_empty());
    let texts: Vec<_> = texts.iter().map(|text| format!("\"{text}\"")).collect();
    are_words.then(|| format!("[{}]", texts.join(", ")))
}

/// A value that could have been meant as a string, as it is written.
pub(crate) fn scalar(value: &DeValue<'_>) -> Option<String> {
    Some(match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(boolean) => boolean.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) | DeValue::Table(_) => return None,
    })
}

//! A reader of TOML entries: it takes typed values out of tables and notes every mistake and every
//! warning with its line. It knows nothing about policies.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
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

#[derive(Default)]
struct Notes {
    /// With their lines: at least those of the first lines.
    kept: Vec<(usize, String)>,
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

/// The entries of a table, which are taken out one after another. Entries that are left at the end
/// have no meaning.
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

    /// A sentence is about the line in which the byte at `at` stands, and may repeat its value,
    /// which may be a password.
    pub(crate) fn hide_value_at(&mut self, at: usize) {
        let line = self.of.text.lines().nth(self.line(at).saturating_sub(1)).unwrap_or_default();
        self.hide(line.split_once('=').map_or(line, |(_, value)| value));
    }

    /// The path of a file is in a sentence. If there is no such file, its `name` may be a secret
    /// that was written in the wrong place.
    pub(crate) fn hide_unless_there(&mut self, name: &str, path: &Path) {
        if path.symlink_metadata().is_err() {
            self.hide(name);
        }
    }

    /// For what is said about the byte at `at`.
    pub(crate) fn at(&mut self, at: usize) -> Spot<'_, 't> {
        Spot { reader: self, at }
    }

    /// For what is said about a value or the name of one.
    pub(crate) fn on<T>(&mut self, node: &Spanned<T>) -> Spot<'_, 't> {
        self.at(node.span().start)
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
        value.get_ref().as_table().or_else(|| self.on(value).refuse(what))
    }

    /// A string; `like` says which.
    pub(crate) fn string(&mut self, value: &Node<'t>, name: &str, like: &str) -> Option<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        text.or_else(|| self.on(value).refuse(format!("{name} must be a string, {like}")))
    }

    /// A string that is not empty: `what`.
    pub(crate) fn name(&mut self, value: &Node<'t>, name: &str, what: &str) -> Option<String> {
        let text = self.string(value, name, what)?;
        if text.is_empty() {
            self.on(value).wrong(format!("{name} is empty; write {what}, or leave it out"));
        }
        Some(text)
    }

    pub(crate) fn boolean(&mut self, value: &Node<'t>, name: &str) -> Option<bool> {
        let what = || format!("{name} must be true or false, without quotes");
        value.get_ref().as_bool().or_else(|| self.on(value).refuse(what()))
    }

    pub(crate) fn number(
        &mut self,
        value: &Node<'t>,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let integer = value.get_ref().as_integer();
        let number = integer.and_then(|it| u64::from_str_radix(it.as_str(), it.radix()).ok());
        number.filter(|number| range.contains(number)).or_else(|| {
            self.on(value).refuse(format!(
                "{name} must be a whole number from {} to {}, without quotes",
                range.start(),
                range.end()
            ))
        })
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
        duration::parse(&text).filter(|time| range.contains(time)).or_else(|| {
            let (least, most) = (Exact(*range.start()), Exact(*range.end()));
            self.on(value).refuse(format!(
                "'{text}' in {name} is not a time from {least} to {most}; write a whole number \
                 and a unit ({}), such as \"{like}\"",
                duration::UNITS_IN_WORDS
            ))
        })
    }

    /// The strings of a list, and where each stands. `like` says what to write.
    pub(crate) fn strings(
        &mut self,
        value: &Node<'t>,
        name: &str,
        like: &str,
    ) -> Vec<(String, usize)> {
        let placed =
            |text: &Node<'t>| Some((text.get_ref().as_str()?.to_owned(), text.span().start));
        let array = value.get_ref().as_array();
        let texts = array.and_then(|array| array.iter().map(placed).collect());
        texts.unwrap_or_else(|| {
            let right = match meant_strings(value.get_ref()) {
                Some(right) => format!("; write {name} = {right}"),
                None => format!(", {like}"),
            };
            self.on(value).wrong(format!("{name} must be a list of strings{right}"));
            Vec::new()
        })
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
            let kind = format!("a setting of {}", entries.what);
            match sentence(key.get_ref(), value) {
                Some(what) => self.on(key).wrong(what),
                None => self.on(key).unknown(&kind, key.get_ref(), entries.known),
            }
        }
    }
}

/// A place in the file, about which one thing is said.
pub(crate) struct Spot<'r, 't> {
    reader: &'r mut Reader<'t>,
    at: usize,
}

impl Spot<'_, '_> {
    pub(crate) fn wrong(self, what: impl AsRef<str>) {
        let line = self.reader.line(self.at);
        if !self.reader.left_out.contains(&line) {
            self.reader.mistakes.add(line, what.as_ref());
        }
    }

    /// Notes a mistake because of which there is no value.
    pub(crate) fn refuse<T>(self, what: impl AsRef<str>) -> Option<T> {
        self.wrong(what);
        None
    }

    /// Notes a mistake in a string that may be a secret. One that begins as a rate does is none.
    pub(crate) fn wrong_text(self, text: &str, what: &str) {
        let is_number = |text: &str| text.parse::<f64>().is_ok();
        if !text.split_once('/').is_some_and(|(count, _)| is_number(count.trim())) {
            self.reader.hide(text);
        }
        self.wrong(what);
    }

    /// As [`wrong_text`](Self::wrong_text), because of which there is no value.
    pub(crate) fn refuse_text<T>(self, text: &str, what: &str) -> Option<T> {
        self.wrong_text(text, what);
        None
    }

    /// Notes a name without a meaning, and the known name that was probably meant.
    pub(crate) fn unknown(self, kind: &str, name: &str, known: &[&str]) {
        let nearest =
            known.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
        let right = match nearest {
            Some((distance, nearest)) if distance <= 1 + name.len() / 4 => {
                format!("did you mean '{nearest}'?")
            }
            _ => format!("use one of {}", known.join(", ")),
        };
        self.wrong(format!("'{name}' is not {kind}; {right}"));
    }

    /// Notes something that is allowed, and probably not meant.
    pub(crate) fn warn(self, what: impl AsRef<str>) {
        self.reader.warnings.add(self.reader.line(self.at), what.as_ref());
    }

    /// Notes in one sentence `count` warnings, of which there is at least one.
    pub(crate) fn warn_of_several(self, what: &str, count: usize) {
        self.reader.warnings.beyond += count.saturating_sub(1);
        self.warn(what);
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

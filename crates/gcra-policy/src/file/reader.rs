//! A reader of a TOML file: it notes every mistake and every warning with its line. It knows no
//! setting.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gcra_text::config_note::ConfigNote;
use gcra_text::count::Count;
use gcra_text::duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::file::secrets::{self, Readers};
use crate::overrides::OVERRIDES;

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
pub(crate) struct Reader<'t> {
    of: SourceText<'t>,
    /// Where the lines of the text begin.
    lines: Vec<usize>,
    /// Lines whose mistakes are known.
    left_out: BTreeSet<usize>,
    mistakes: Notes,
    warnings: Notes,
}

/// A mistake or a warning.
struct Note {
    line: usize,
    /// The byte that it is about.
    at: usize,
    what: String,
    right: Option<String>,
    elsewhere: Option<(PathBuf, usize)>,
}

#[derive(Default)]
struct Notes {
    /// At least those of the first lines.
    kept: Vec<Note>,
    found: usize,
    /// How many mistakes or warnings there are beyond the sentences: some sentences are about
    /// several.
    beyond: usize,
}

impl Notes {
    fn add(&mut self, note: Note) {
        self.kept.push(note);
        self.found += 1;
        // They come in no order, and not all are kept.
        if self.kept.len() >= 2 * MAX_REPORTED {
            self.cut();
        }
    }

    /// Those of the first lines, and in each line in the order in which they were found.
    fn cut(&mut self) {
        self.kept.sort_by_key(|note| note.line);
        self.kept.truncate(MAX_REPORTED);
    }

    /// By line: `FILE:LINE: what is wrong`. `kind` stands before each sentence, and the nouns are
    /// for those that are only counted.
    fn finish(
        mut self,
        of: &SourceText<'_>,
        document: Option<&DeTable<'_>>,
        kind: &str,
        [one, several]: [&'static str; 2],
    ) -> Vec<ConfigNote> {
        self.cut();
        let more = self.found - self.kept.len();
        let about: BTreeSet<_> = self.kept.iter().map(|note| note.line).collect();
        let mut secrets = match about.is_empty() {
            true => HashSet::new(),
            false => secrets::in_lines(of.text, |line| about.contains(&line), of.readers),
        };
        if of.readers == Readers::OfLog {
            secrets.extend(of.hidden.iter().map(String::as_str));
        }
        // It repeats text of the file, which must not move a terminal's cursor.
        let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let told = |text: &str| {
            let text: String = text.chars().map(shown).collect();
            secrets::cut(&text, &secrets)
        };
        let reported = self.kept.into_iter().map(|Note { line, at, what, right, elsewhere }| {
            let mut note = ConfigNote::new(of.path, Some(line), kind, &told(&what));
            let setting = document.and_then(|document| setting_at(document, at));
            note.setting = setting.as_deref().map(told);
            note.right = right.filter(|right| told(right) == *right);
            if let Some((file, line)) = elsewhere {
                (note.file, note.line) = (Some(file), Some(line));
            }
            note
        });
        let rest = format!("and {}", Count(more, one, several));
        let rest = (more > 0).then(|| ConfigNote::new(of.path, None, "", &rest));
        reported.chain(rest).collect()
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

    /// For sentences about the byte at `at`.
    pub(crate) fn at(&mut self, at: usize) -> Spot<'_, 't> {
        Spot { reader: self, at, right: None, elsewhere: None }
    }

    /// For sentences about a value, or about its name.
    pub(crate) fn on<T>(&mut self, node: &Spanned<T>) -> Spot<'_, 't> {
        self.at(node.span().start)
    }

    pub(crate) fn warning_count(&self) -> usize {
        self.warnings.found + self.warnings.beyond
    }

    /// The warnings, by line: `FILE:LINE: warning: what is probably not meant`. If there are
    /// mistakes, they are the error, without the `warning: `.
    /// `document` is there if the file is TOML: the names of the settings are in it.
    pub(crate) fn finish(
        self,
        document: Option<&DeTable<'_>>,
    ) -> Result<Vec<ConfigNote>, Vec<ConfigNote>> {
        if self.is_content() {
            let nouns = ["more warning", "more warnings"];
            Ok(self.warnings.finish(&self.of, document, "warning: ", nouns))
        } else {
            let nouns = ["more mistake", "more mistakes"];
            Err(self.mistakes.finish(&self.of, document, "", nouns))
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
}

/// A place in the file, about which one thing is said.
pub(crate) struct Spot<'r, 't> {
    reader: &'r mut Reader<'t>,
    at: usize,
    right: Option<String>,
    elsewhere: Option<(PathBuf, usize)>,
}

impl Spot<'_, '_> {
    /// What was meant and is right there, for programs: a name or a value, as TOML text. `None` if
    /// that is not known: an example is no answer.
    pub(crate) fn right(self, right: Option<String>) -> Self {
        Self { right, ..self }
    }

    /// The mistake is in this line of another file, which the sentence names, too.
    pub(crate) fn in_file(self, file: &Path, line: usize) -> Self {
        Self { elsewhere: Some((file.to_owned(), line)), ..self }
    }

    pub(crate) fn wrong(self, what: impl AsRef<str>) {
        if !self.reader.left_out.contains(&self.reader.line(self.at)) {
            self.reader.mistakes.add(self.note(what));
        }
    }

    fn note(&self, what: impl AsRef<str>) -> Note {
        let (line, what) = (self.reader.line(self.at), what.as_ref().to_owned());
        let (right, elsewhere) = (self.right.clone(), self.elsewhere.clone());
        Note { line, at: self.at, what, right, elsewhere }
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

    /// Notes a name without a meaning, and the known name that was probably meant, which `in_toml`
    /// writes.
    pub(crate) fn unknown(
        mut self,
        kind: &str,
        name: &str,
        known: &[&str],
        in_toml: fn(&str) -> String,
    ) {
        let nearest =
            known.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
        let right = match nearest {
            Some((distance, nearest)) if distance <= 1 + name.len() / 4 => {
                self = self.right(Some(in_toml(nearest)));
                format!("did you mean '{nearest}'?")
            }
            _ => format!("use one of {}", known.join(", ")),
        };
        self.wrong(format!("'{name}' is not {kind}; {right}"));
    }

    /// Notes something that is allowed, and probably not meant.
    pub(crate) fn warn(self, what: impl AsRef<str>) {
        self.reader.warnings.add(self.note(what));
    }

    /// Notes in one sentence `count` warnings, of which there is at least one.
    pub(crate) fn warn_of_several(self, what: &str, count: usize) {
        self.reader.warnings.beyond += count.saturating_sub(1);
        self.warn(what);
    }
}

/// The setting that the byte at `at` belongs to, behind the names of its tables.
fn setting_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let inner = match value.get_ref() {
            DeValue::Table(table) => setting_at(table, at),
            DeValue::Array(array) => array.iter().find_map(|value| match value.get_ref() {
                DeValue::Table(table) => setting_at(table, at),
                _ => None,
            }),
            _ => None,
        };
        let is_here = || name.span().contains(&at) || value.span().contains(&at);
        match inner {
            // Names of overrides are values of a key.
            Some(inner) if name.get_ref() != OVERRIDES => {
                Some(format!("{}.{inner}", name.get_ref()))
            }
            _ => (inner.is_some() || is_here()).then(|| name.get_ref().to_string()),
        }
    })
}

/// Words in a sentence: "rate", "rate or burst", "rate, burst or count".
pub(crate) fn list(words: &[&str], or: &str) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} {or} {last}", first.join(", ")),
        words => words.concat(),
    }
}

/// A word as a string of TOML.
pub(crate) fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The time in this range that was probably meant, as TOML has it: `"10m"` by `10 M`.
pub(crate) fn meant_time(text: &str, range: &RangeInclusive<Duration>) -> Option<String> {
    let meant = text.split_whitespace().collect::<String>().to_ascii_lowercase();
    let time = duration::parse(&meant).filter(|time| range.contains(time));
    time.map(|_| quoted(&meant))
}

/// The list of strings that a value was probably meant to be.
pub(crate) fn meant_strings(value: &DeValue<'_>) -> Option<Vec<String>> {
    let texts = match value {
        DeValue::Array(array) => array.iter().map(|value| scalar(value.get_ref())).collect(),
        value => scalar(value).map(|text| vec![text]),
    };
    texts.filter(|texts: &Vec<_>| !texts.is_empty())
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

//! A mistake, a warning or a note about a configuration, with its place in the file.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::sentence::Sentence;

/// A mistake in a configuration, or a warning about one. As a text it is a whole sentence, with
/// the file and the line in front if there are some.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigNote {
    /// The file with the mistake: the configuration, or one that it names.
    pub file: Option<PathBuf>,
    /// The line of the mistake in that file, from 1.
    pub line: Option<usize>,
    /// The name of the setting, behind those of its tables: `policy.api.limits`. Values with
    /// overrides are no settings.
    pub setting: Option<String>,
    /// What was meant and is right there, as it is written in TOML: a name or a value.
    pub right: Option<String>,
    sentence: String,
    /// Where the text begins in the sentence.
    begin: usize,
}

impl ConfigNote {
    /// `kind` stands between the place and the text.
    pub fn new(file: &Path, line: Option<usize>, kind: &str, text: &str) -> Self {
        let line_words = line.map(|line| format!("{line}:")).unwrap_or_default();
        let mut sentence = format!("{}:{line_words} {kind}", file.display());
        let begin = sentence.len();
        sentence.push_str(text);
        Self { file: Some(file.to_owned()), line, begin, ..sentence.into() }
    }

    /// The sentence without the place.
    pub fn text(&self) -> &str {
        &self.sentence[self.begin..]
    }
}

impl From<String> for ConfigNote {
    /// A sentence that has its place in its own words, or none.
    fn from(sentence: String) -> Self {
        Self { file: None, line: None, setting: None, right: None, sentence, begin: 0 }
    }
}

impl From<Sentence> for ConfigNote {
    fn from(sentence: Sentence) -> Self {
        String::from(sentence).into()
    }
}

impl Deref for ConfigNote {
    type Target = str;

    fn deref(&self) -> &str {
        &self.sentence
    }
}

impl fmt::Display for ConfigNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

//! The origin of policies: the flags of a command line, or the text of a file. Others can make the
//! same policies from it.
//!
//! No password and no salt is in it, only the names of their files.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::sharing::WithoutStore;

/// The most bytes that the kept texts of a configuration and of its lists have together.
pub const MOST_TEXT: usize = 4 << 20;

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyText {
    Flags(FlagsOrigin),
    File(FileOrigin),
}

/// The flags of an agent without a file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FlagsOrigin {
    pub(crate) rate: String,
    /// Also where it was not written. `None` without a rate.
    pub(crate) burst: Option<u64>,
    pub(crate) key: Vec<String>,
    pub(crate) cost: Option<String>,
    pub(crate) store: Option<StoreOrigin>,
}

/// How these agents share their limit.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct StoreOrigin {
    pub(crate) url: String,
    pub(crate) password_file: Option<String>,
    pub(crate) password_env: Option<String>,
    pub(crate) ca: Option<String>,
    pub(crate) wait_ms: u64,
    pub(crate) without_store: String,
}

#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct FileOrigin {
    /// Its path, which begins with '/'.
    path: String,
    /// Its text, and then those of its lists, each with its path. `None`: they are too large.
    texts: Option<Vec<(String, String)>>,
}

// By hand, because overrides may be for secrets.
impl fmt::Debug for FileOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileOrigin").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PolicyText {
    /// The text of a list, if it is kept.
    pub(crate) fn list(&self, path: &Path) -> Option<&str> {
        let Self::File(file) = self else { return None };
        file.list(path)
    }

    /// Leaves only the path of a file. Returns whether that changes anything.
    pub fn drop_texts(&mut self) -> bool {
        let Self::File(file) = self else { return false };
        file.texts.take().is_some()
    }

    pub fn file(&self) -> Option<&Path> {
        let Self::File(file) = self else { return None };
        Some(file.path())
    }

    /// Whether the policies can be made again from it.
    pub fn has_texts(&self) -> bool {
        match self {
            Self::Flags(_) => true,
            Self::File(file) => file.has_texts(),
        }
    }
}

impl FileOrigin {
    /// Notes the text of the configuration at this path.
    pub(crate) fn new(path: &Path, text: &str) -> Self {
        let mut file = Self { path: text_of(path), texts: Some(Vec::new()) };
        file.add(path, text);
        file
    }

    /// Notes a text that was read for it. If all texts are too large together, none is kept.
    pub(crate) fn add(&mut self, path: &Path, text: &str) {
        let Some(texts) = &mut self.texts else { return };
        let bytes: usize = texts.iter().map(|(_, text)| text.len()).sum();
        if bytes + text.len() > MOST_TEXT {
            self.texts = None;
        } else {
            texts.push((text_of(path), text.to_owned()));
        }
    }

    /// Whether the texts are kept, so that the policies can be made again.
    pub(crate) fn has_texts(&self) -> bool {
        self.texts.is_some()
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    pub(crate) fn text(&self) -> &str {
        let first = self.texts.iter().flatten().next();
        first.map_or("", |(_, text)| text)
    }

    pub(crate) fn list(&self, path: &Path) -> Option<&str> {
        let path = std::path::absolute(path).ok()?;
        let mut texts = self.texts.iter().flatten().skip(1);
        texts.find(|(known, _)| Path::new(known) == path).map(|(_, text)| &**text)
    }
}

/// The flags, as they can be typed. The address of the store is left out.
impl fmt::Display for FlagsOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, burst, key, cost, store } = self;
        write!(f, "--rate {rate}")?;
        if let Some(burst) = burst {
            write!(f, " --burst {burst}")?;
        }
        if !key.is_empty() {
            write!(f, " --key {}", key.join(","))?;
        }
        if let Some(cost) = cost {
            write!(f, " --cost {cost}")?;
        }
        match store.as_ref().map(|store| &*store.without_store) {
            None => Ok(()),
            Some(word) if word == WithoutStore::Share.word() => f.write_str(" --store URL"),
            Some(word) => write!(f, " --store URL --without-store {word}"),
        }
    }
}

/// An absolute path as a string. In one that is not UTF-8, the names of files are not found again.
pub(crate) fn text_of(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.to_string_lossy().into_owned()
}

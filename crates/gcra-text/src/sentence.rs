//! A sentence for an operator: what was wrong, where, and what would be right.

use std::error::Error;
use std::fmt;
use std::ops::Deref;

/// An error that is no more than its sentence.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sentence(Box<str>);

/// Makes a [`Sentence`] as `format!` makes a string.
#[macro_export]
macro_rules! sentence {
    ($($text:tt)*) => { $crate::sentence::Sentence::from(format!($($text)*)) };
}

impl From<String> for Sentence {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for Sentence {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<Sentence> for String {
    fn from(Sentence(text): Sentence) -> Self {
        text.into()
    }
}

impl Deref for Sentence {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Sentence {
    fn as_ref(&self) -> &str {
        self
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Error for Sentence {}

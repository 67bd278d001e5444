//! A log-format string that cannot be used.

use std::fmt;

/// Why a log-format string cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatError {
    message: String,
}

impl FormatError {
    pub(crate) fn new(message: String) -> Self {
        Self { message }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log-format cannot be used: {}", self.message)
    }
}

impl std::error::Error for FormatError {}

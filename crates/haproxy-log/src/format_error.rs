//! A log-format string that cannot be used.

use std::fmt;

/// Why a log-format string cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatError {
    message: String,
    /// It names a variable that is not known.
    pub(crate) is_of_variable: bool,
}

impl FormatError {
    pub(crate) fn new(message: String) -> Self {
        Self { message, is_of_variable: false }
    }

    pub(crate) fn unknown_variable(name: &str) -> Self {
        let message = format!(
            "the environment variable '{name}' is not known here: write its value in its place"
        );
        Self { message, is_of_variable: true }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log-format cannot be used: {}", self.message)
    }
}

impl std::error::Error for FormatError {}

//! Variables: their scopes and their names.

use core::fmt;
use core::str::FromStr;

use crate::error::DecodeError;

/// How long a variable lives (SPOE.txt section 3.4).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Scope {
    /// `proc`: the whole process. Only variables that HAProxy's configuration names can be set.
    Process = 0,
    /// `sess`: the client's connection to HAProxy.
    Session = 1,
    /// `txn`: one request and its response.
    Transaction = 2,
    /// `req`: while the request is processed.
    Request = 3,
    /// `res`: while the response is processed.
    Response = 4,
}

impl Scope {
    const ALL: [Self; 5] =
        [Self::Process, Self::Session, Self::Transaction, Self::Request, Self::Response];

    /// The scope as HAProxy's configuration writes it: `proc`, `sess`, `txn`, `req`, `res`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Process => "proc",
            Self::Session => "sess",
            Self::Transaction => "txn",
            Self::Request => "req",
            Self::Response => "res",
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Result<Self, DecodeError> {
        Self::ALL.get(usize::from(byte)).copied().ok_or(DecodeError::BadScope(byte))
    }
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text).ok_or(ScopeError)
    }
}

/// The string is not the name of a scope.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ScopeError;

impl fmt::Display for ScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scope is one of proc, sess, txn, req, res")
    }
}

impl core::error::Error for ScopeError {}

/// A name that HAProxy accepts for a variable: 1 to 56 letters, digits, underscores and dots.
///
/// HAProxy puts the scope and the prefix (`option var-prefix`) in front of it. If that makes more
/// than 63 characters, the two dots included, HAProxy silently drops the variable. An agent does
/// not know the prefix, so this type cannot check that.
///
/// ```
/// use spop_codec::VarName;
///
/// // This name is checked when the program is compiled.
/// const BLOCKED: VarName<'_> = VarName::from_static("blocked");
/// assert_eq!(BLOCKED.as_str(), "blocked");
/// assert!(VarName::new("no-dashes").is_err());
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct VarName<'a>(&'a str);

/// With the longest scope (`proc` or `sess`), a prefix of one letter and two dots, this makes
/// HAProxy's 63 characters.
const MAX_NAME: usize = 56;

impl<'a> VarName<'a> {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// The name is empty, is longer than 56 characters, or has a character that HAProxy does not
    /// accept.
    pub const fn new(name: &'a str) -> Result<Self, NameError> {
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.len() > MAX_NAME {
            return Err(NameError::Length(bytes.len()));
        }
        let mut at = 0;
        while at < bytes.len() {
            if !(bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_' || bytes[at] == b'.') {
                return Err(NameError::Character);
            }
            at += 1;
        }
        Ok(Self(name))
    }

    /// Checks a name that is known when the program is compiled. In a `const`, a wrong name is a
    /// compiler error.
    ///
    /// # Panics
    ///
    /// [`new`](VarName::new) does not accept the name.
    #[must_use]
    #[expect(
        clippy::panic,
        reason = "meant for constants, where it stops the compiler and not a program"
    )]
    pub const fn from_static(name: &'static str) -> VarName<'static> {
        match VarName::new(name) {
            Ok(name) => name,
            Err(NameError::Length(_)) => panic!("a variable's name must have 1 to 56 characters"),
            Err(NameError::Character) => {
                panic!("a variable's name must have only letters, digits, underscores and dots")
            }
        }
    }

    /// The name.
    #[inline]
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

/// Why HAProxy does not accept a name for a variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum NameError {
    /// It has this many bytes; 1 to 56 are allowed.
    Length(usize),
    /// It has a character other than letters, digits, underscores and dots.
    Character,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => {
                write!(f, "a variable's name must have 1 to {MAX_NAME} characters, not {length}")
            }
            Self::Character => f.write_str(
                "a variable's name must have only letters, digits, underscores and dots",
            ),
        }
    }
}

impl core::error::Error for NameError {}

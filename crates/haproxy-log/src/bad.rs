//! Lines that are not requests.

use std::fmt;
use std::sync::LazyLock;

use memchr::memmem;

use crate::compile::compile;
use crate::scan::{DATED, Mismatch, Scanner};

/// Why a line is not a request that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BadKind {
    /// A message of HAProxy or of another program, or an error of a connection.
    NotARequest,
    /// A connection that brought no whole request (`<BADREQ>`). HAProxy asked no agent about it.
    NoRequest,
    /// A line of another format that this crate knows.
    OtherFormat,
    /// The date cannot be read.
    Date,
    /// Longer than [`Options::max_line`](crate::Options::max_line).
    TooLong,
    /// The line ends before its fields do.
    Truncated,
    /// It does not have the format.
    Unknown,
    /// The compressed data is damaged or ends early. Counted once for each file.
    Damaged,
}

impl fmt::Display for BadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotARequest => "not a request",
            Self::NoRequest => "a connection without a whole request",
            Self::OtherFormat => "another log format",
            Self::Date => "a date that cannot be read",
            Self::TooLong => "too long",
            Self::Truncated => "ends early",
            Self::Unknown => "does not have the format",
            Self::Damaged => "damaged compressed data",
        })
    }
}

/// The bad lines of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadLine {
    /// The kind of mistake.
    pub kind: BadKind,
    /// How many lines.
    pub count: u64,
    /// The name of the input of the first.
    pub file: String,
    /// The number of the first in its input, counted from 1.
    pub line: u64,
    /// The beginning of the first, as text without control characters.
    pub excerpt: String,
}

/// How many characters an excerpt has at most.
const EXCERPT: usize = 160;

/// The beginning of a line, as one can show it on a terminal.
pub(crate) fn excerpt(line: &[u8]) -> String {
    let start = &line[..line.len().min(4 * EXCERPT)];
    let text = String::from_utf8_lossy(start);
    let mut out: String = text
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .take(EXCERPT)
        .collect();
    if line.len() > start.len() || text.chars().count() > EXCERPT {
        out.push('…');
    }
    out
}

/// Messages of HAProxy that are not about one request.
const MESSAGES: [&str; 17] = [
    "SSL handshake",
    "Connection closed",
    "Connection error",
    "Timeout during",
    "PROXY protocol",
    "Connect from ",
    "Proxy ",
    "Server ",
    "Backup Server ",
    "Health check for ",
    "SPOE: [",
    "backend ",
    "[NOTICE]",
    "[WARNING]",
    "[ALERT]",
    "Loading success",
    "New worker",
];

static FINDERS: LazyLock<[memmem::Finder<'static>; 17]> =
    LazyLock::new(|| MESSAGES.map(memmem::Finder::new));

/// The start of each format that has a name, and of a line of the error log.
static KNOWN: LazyLock<[(Option<Scanner>, BadKind); 4]> = LazyLock::new(|| {
    [
        ("%ci:%cp [%t] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %[rest]", BadKind::OtherFormat),
        ("%ci:%cp [%t] %ft %b/%s %Tw/%Tc/%Tt %B %ts %[rest]", BadKind::OtherFormat),
        ("%{+Q}o %{-Q}ci - - [%T] %r %ST %B %[rest]", BadKind::OtherFormat),
        ("%ci:%cp [%t] %[frontend]: %[message]", BadKind::NotARequest),
    ]
    .map(|(text, kind)| (compile(text).and_then(|it| Scanner::new(&it.nodes)).ok(), kind))
});

/// The kind of a line that does not have the format.
pub(crate) fn classify(line: &[u8], mismatch: Mismatch) -> BadKind {
    let start = &line[..line.len().min(1024)];
    if memmem::find(start, b"<BADREQ>").is_some() {
        return BadKind::NoRequest;
    }
    if mismatch.ended && mismatch.parts >= DATED {
        return BadKind::Truncated;
    }
    let mut from = 0;
    for _ in 0..8 {
        let fits = |scanner: &Scanner| scanner.scan(line, from, &mut []).is_ok();
        if let Some((_, kind)) = KNOWN.iter().find(|(it, _)| it.as_ref().is_some_and(fits)) {
            return *kind;
        }
        match memchr::memchr(b' ', &line[from..]) {
            Some(space) => from += space + 1,
            None => break,
        }
    }
    if is_of_other_program(start) || FINDERS.iter().any(|text| text.find(start).is_some()) {
        return BadKind::NotARequest;
    }
    if mismatch.ended && mismatch.parts >= 2 { BadKind::Truncated } else { BadKind::Unknown }
}

/// Whether a syslog line names another program: `sshd[12]: `.
fn is_of_other_program(line: &[u8]) -> bool {
    let Some(end) = memmem::find(line, b"]: ") else { return false };
    let tag = line[..end].rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    let Some(open) = memchr::memchr(b'[', tag) else { return false };
    let (name, pid) = (&tag[..open], &tag[open + 1..]);
    !name.is_empty()
        && !pid.is_empty()
        && pid.iter().all(u8::is_ascii_digit)
        && memmem::find(name, b"haproxy").is_none()
}

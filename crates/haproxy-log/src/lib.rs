//! Reads HAProxy's logs: lines of any log-format become requests in the order of time.
//!
//! A [`Format`] describes the lines of a log. It is a format that HAProxy has a name for, a
//! `log-format` string, JSON, or the format that [`Format::guess`] finds in a sample.
//! [`Format::select`] says which fields are wanted. [`read()`] gives these fields for each request
//! of some [`Input`]s, and counts the lines that are no requests.
//!
//! ```
//! use haproxy_log::{Format, Input, Options, Progress, read};
//!
//! let format = Format::compile("%ci [%tr] %{+Q}r")?;
//! let fields = format.select(&["ci", "method"])?;
//! let log = "10.0.0.2 [22/Nov/2026:21:39:33.123] \"GET / HTTP/1.1\"\n\
//!            10.0.0.1 [22/Nov/2026:21:39:33.100] \"POST /slow HTTP/1.1\"\n";
//! let mut requests = Vec::new();
//! let counts = read(
//!     &[Input::stream("a log", log.as_bytes())],
//!     &fields,
//!     &Options::default(),
//!     &Progress::new(),
//!     &mut |entry| requests.push((entry.at, entry.fields[1].map(<[u8]>::to_vec))),
//! )?;
//! // The slow request came first.
//! assert_eq!(requests[0], (1_795_383_573_100_000, Some(b"POST".to_vec())));
//! assert_eq!(requests[1], (1_795_383_573_123_000, Some(b"GET".to_vec())));
//! assert_eq!(counts.entries, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Values are bytes, because HAProxy passes on what clients send. Which fields HAProxy writes, and
//! how it encodes them, is in its manual (configuration.txt, chapter 8) and its source
//! (src/log.c).
#![forbid(unsafe_code)]

mod bad;
mod block;
mod compile;
mod date;
mod entry;
mod format;
mod format_error;
mod input;
mod json;
mod json_list;
mod line;
mod merge;
mod options;
mod part;
mod pool;
mod prefix;
mod read;
mod scan;
mod selection;
mod time;
mod word;

pub use bad::{BadKind, BadLine};
pub use entry::{Entry, ReadCounts};
pub use format::{Field, Format, Unknown, UnknownField};
pub use format_error::FormatError;
pub use input::Input;
pub use options::{Options, Progress};
pub use read::{ReadError, read};
pub use selection::Selection;

/// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

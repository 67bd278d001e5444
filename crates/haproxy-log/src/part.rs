//! A part of a value: the path of a request line, one of the captured headers.

use memchr::{memchr, memrchr};

use crate::compile::{Source, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// The name of a frontend without the '~' of TLS.
    Frontend,
    /// Of `a|b`, counted from 0.
    Header(usize),
    /// Of `"a" "b"`.
    Listed(usize),
    /// Of a request line.
    Method,
    Uri,
    UriPath,
    Path,
    MarkedQuery,
    Query,
    Version,
    Host,
    /// Of a URI.
    PathOfUri,
    PathOnlyOfUri,
    MarkedQueryOfUri,
    QueryOfUri,
    HostOfUri,
    /// Of a host with the path behind it.
    PathOfBase,
    HostOfBase,
}

impl Part {
    /// The part of a value. It may be empty.
    pub(crate) fn of(self, value: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Whole => Some(value),
            Self::Frontend => Some(value.strip_suffix(b"~").unwrap_or(value)),
            Self::Header(number) => value.split(|&byte| byte == b'|').nth(number),
            Self::Listed(number) => listed(value, number),
            Self::Method => value.split(|&byte| byte == b' ').next(),
            Self::Version => {
                let (uri, last) = (memchr(b' ', value)?, memrchr(b' ', value)?);
                (last > uri).then(|| &value[last + 1..])
            }
            Self::Uri => uri(value),
            Self::UriPath => Self::PathOfUri.of(uri(value)?),
            Self::Path => Self::PathOnlyOfUri.of(uri(value)?),
            Self::MarkedQuery => Self::MarkedQueryOfUri.of(uri(value)?),
            Self::Query => Self::QueryOfUri.of(uri(value)?),
            Self::Host => Self::HostOfUri.of(uri(value)?),
            Self::PathOfUri => Some(&value[..memchr(b'?', value).unwrap_or(value.len())]),
            Self::PathOnlyOfUri => path(&value[..memchr(b'?', value).unwrap_or(value.len())]),
            Self::MarkedQueryOfUri => value.get(memchr(b'?', value)?..),
            Self::QueryOfUri => value.get(memchr(b'?', value)? + 1..),
            Self::HostOfUri => host(value),
            Self::PathOfBase => value.get(memchr(b'/', value)?..),
            Self::HostOfBase => Some(&value[..memchr(b'/', value).unwrap_or(value.len())]),
        }
    }
}

/// Whether a text can be a request line: its URI has a path or a scheme, is `*`, or is what
/// CONNECT asks for.
pub(crate) fn is_request(text: &[u8]) -> bool {
    let uri = uri(text).unwrap_or_default();
    matches!(uri, [b'/', ..] | b"*" | b"")
        || after_scheme(uri).is_some()
        || text.starts_with(b"CONNECT ")
}

/// The URI of `GET /path HTTP/1.1`. A request line that is cut off has no version.
fn uri(request: &[u8]) -> Option<&[u8]> {
    let start = memchr(b' ', request)? + 1;
    let rest = &request[start..];
    Some(&rest[..memchr(b' ', rest).unwrap_or(rest.len())])
}

/// The path of a URI, as HAProxy's sample fetch `path` gives it.
fn path(uri: &[u8]) -> Option<&[u8]> {
    if uri.first() == Some(&b'/') {
        return Some(uri);
    }
    let after = after_scheme(uri)?;
    after.get(memchr(b'/', after)?..)
}

/// The host of an absolute URI, with its port.
fn host(uri: &[u8]) -> Option<&[u8]> {
    let after = after_scheme(uri)?;
    let end = after.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(after.len());
    Some(&after[..end])
}

/// The rest of an absolute URI after `https://`.
fn after_scheme(uri: &[u8]) -> Option<&[u8]> {
    let colon = memchr(b':', uri)?;
    let scheme = &uri[..colon];
    let fits = !scheme.is_empty() && scheme.iter().all(u8::is_ascii_alphanumeric);
    uri[colon..].strip_prefix(b"://").filter(|_| fits)
}

/// One of `"a" "b"` or of `a b`.
fn listed(list: &[u8], number: usize) -> Option<&[u8]> {
    let mut rest = list;
    for at in 0..=number {
        let (item, after) = match rest.strip_prefix(b"\"") {
            Some(inside) => {
                let end = memchr(b'"', inside)?;
                (&inside[..end], inside.get(end + 2..))
            }
            None => {
                let end = memchr(b' ', rest).unwrap_or(rest.len());
                (&rest[..end], rest.get(end + 1..))
            }
        };
        if at == number {
            return Some(item);
        }
        rest = after?;
    }
    None
}

/// How HAProxy has encoded a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Decode {
    /// A byte may be written as `#22`.
    hash: bool,
    /// A character may have a backslash before it.
    backslash: bool,
}

impl Decode {
    pub(crate) fn of(value: &Value) -> Self {
        let hash = matches!(
            value.source,
            Source::Alias(
                "r" | "HM" | "HP" | "HPO" | "HQ" | "HU" | "HV" | "hr" | "hs" | "hrl" | "hsl"
            )
        );
        Self { hash, backslash: value.flags.escape }
    }

    pub(crate) fn append(self, value: &[u8], out: &mut Vec<u8>) {
        if self.backslash || (self.hash && memchr(b'#', value).is_some()) {
            self.append_slowly(value, out);
        } else {
            out.extend_from_slice(value);
        }
    }

    fn append_slowly(self, value: &[u8], out: &mut Vec<u8>) {
        let mut rest = value;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'#' if self.hash => {
                    let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
                    match (digit(0), digit(1)) {
                        (Some(high), Some(low)) => {
                            out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                            rest = &after[2..];
                        }
                        _ => out.push(byte),
                    }
                }
                b'\\' if self.backslash && !after.is_empty() => {
                    out.push(after[0]);
                    rest = &after[1..];
                }
                _ => out.push(byte),
            }
        }
    }
}

//! Finds the values of a log-format string in a line.
//!
//! A line is matched from the left. Most values say themselves where they end: a number, an
//! address, a word without spaces, a string whose quotes HAProxy encodes. A *free* string can
//! hold anything, so it ends at the first place from where the rest of the line matches up to the
//! next free string. Each byte is looked at a bounded number of times: see [`FUEL`].

use memchr::memchr;

use crate::compile::{Flags, Node, Source, Value};
use crate::date::{WITH_MILLISECONDS, WITH_ZONE};
use crate::format_error::FormatError;

/// Where a value is in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) const NONE: Self = Self { start: u32::MAX, end: 0 };

    /// Lines are shorter than 4 GiB.
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(crate) fn of(self, line: &[u8]) -> Option<&[u8]> {
        line.get(self.start as usize..self.end as usize)
    }
}

/// How a value ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Address,
    /// Perhaps with a sign.
    Integer,
    Hex,
    /// A date of that many bytes.
    Date(usize),
    /// That many bytes.
    Fixed(usize),
    /// No spaces.
    Word,
    /// No spaces and no question mark.
    Path,
    /// Nothing, or a word that begins with a question mark.
    Query,
    /// Nothing, or `{a|b}`.
    Braced,
    /// Nothing, or `"a" "b"`.
    List,
    /// Anything but a quotation mark, if it stands in quotes.
    Encoded,
    /// Anything.
    Free,
}

#[derive(Debug, Clone)]
enum Op {
    Space,
    Text(Box<[u8]>),
    /// That many numbers with slashes between them, none of which is wanted, and the next part, as
    /// for a value.
    Numbers(usize, Option<u8>),
    Value {
        kind: Kind,
        /// It may stand in quotes.
        quote: bool,
        /// In quotes, a backslash protects the next character.
        escape: bool,
        /// The byte that follows it. `None`: the line ends.
        stop: Option<u8>,
        /// The index of its span, or [`DROPPED`].
        keep: u8,
        /// The next part, if it is one byte: mostly the value and that are found in one step.
        then: Option<u8>,
    },
}

/// In place of an index: the span is not wanted.
const DROPPED: u8 = u8::MAX;

/// How many spans one selection can have.
pub(crate) const SPANS: usize = DROPPED as usize;

/// The date is before that part of a format, in those that have a name.
pub(crate) const DATED: usize = 5;

/// How often the bytes of a line may be looked at again, each time that a free text does not end
/// where it seemed to. A line that needs more does not match.
const FUEL: usize = 16;

/// A compiled log-format: what a line must have.
#[derive(Debug, Clone)]
pub(crate) struct Scanner {
    ops: Vec<Op>,
    /// Whether the first value can begin anywhere, so that a syslog prefix would fit it.
    pub(crate) weak: bool,
}

/// Where a line stops to match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// The line ended while values were missing. Otherwise something else stands there.
    pub(crate) ended: bool,
    /// How many parts of the format matched.
    pub(crate) parts: usize,
}

impl Scanner {
    /// The scanner of these nodes. Their values are numbered in their order.
    pub(crate) fn new(nodes: &[Node]) -> Result<Self, FormatError> {
        let nodes = nodes.strip_prefix(&[Node::Space]).unwrap_or(nodes);
        let nodes = nodes.strip_suffix(&[Node::Space]).unwrap_or(nodes);
        let mut ops = Vec::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            ops.push(match node {
                Node::Space => Op::Space,
                Node::Text(text) => Op::Text(text.as_slice().into()),
                Node::Value(value) => {
                    let kind = kind(&value.source, value.flags);
                    let (stop, then) = match nodes.get(i + 1) {
                        None => (None, None),
                        Some(Node::Space) => (Some(b' '), Some(b' ')),
                        Some(Node::Text(text)) => {
                            let stop = text.first().copied();
                            (stop, stop.filter(|_| text.len() == 1))
                        }
                        Some(Node::Value(next)) => (Some(adjacent(kind, value, next)?), None),
                    };
                    let Flags { quote, escape, .. } = value.flags;
                    Op::Value { kind, quote, escape, stop, keep: DROPPED, then }
                }
            });
        }
        let weak = match ops.first() {
            // "-", which stands for no address, is a part of some prefixes, too.
            Some(Op::Value { kind: Kind::Address, stop, .. }) => *stop != Some(b':'),
            Some(Op::Value { kind, .. }) => !matches!(kind, Kind::Date(_)),
            _ => false,
        };
        Ok(Self { ops, weak })
    }

    /// Keeps the span of a value: `value` counts values from 0, `span` is below [`SPANS`].
    pub(crate) fn keep(&mut self, value: usize, span: u8) {
        let mut values = self.ops.iter_mut().filter(|op| matches!(op, Op::Value { .. }));
        if let Some(Op::Value { keep, .. }) = values.nth(value) {
            *keep = span;
        }
    }

    /// The same, for values that are kept by now: numbers that are not become one part.
    pub(crate) fn fused(self) -> Self {
        let mut ops: Vec<Op> = Vec::with_capacity(self.ops.len());
        for op in self.ops {
            let number = match op {
                Op::Value { kind: Kind::Integer, quote: false, keep: DROPPED, then, .. } => then,
                _ => {
                    ops.push(op);
                    continue;
                }
            };
            match ops.as_slice() {
                [.., Op::Numbers(count, Some(b'/')), Op::Text(slash)] if **slash == *b"/" => {
                    let count = count + 1;
                    ops.truncate(ops.len() - 2);
                    ops.push(Op::Numbers(count, number));
                }
                _ => ops.push(Op::Numbers(1, number)),
            }
        }
        Self { ops, ..self }
    }

    /// Finds the kept values of a line, whose message begins at `from`. Returns whether the line
    /// is whole: otherwise it ends within a string or behind one in quotes, and the values after
    /// that have no span.
    pub(crate) fn scan(
        &self,
        line: &[u8],
        from: usize,
        spans: &mut [Span],
    ) -> Result<bool, Mismatch> {
        let mut at = from;
        let mut op = 0;
        // The last free text: its op, where it begins, and where it seems to end.
        let mut free: Option<(usize, usize, usize)> = None;
        // The last text in quotes that is whole: mostly the request.
        let mut closed = None;
        let mut fuel = line.len().saturating_mul(FUEL);
        loop {
            let step = match self.ops.get(op) {
                None if line[at..].iter().all(u8::is_ascii_whitespace) => return Ok(true),
                None => Step::Differs,
                Some(Op::Space) => space(line, from, at),
                Some(Op::Text(text)) => match starts_with(&line[at..], text) {
                    true => Step::To(at + text.len()),
                    false if text.starts_with(&line[at..]) => Step::Ended,
                    false => Step::Differs,
                },
                Some(&Op::Numbers(count, then)) => match numbers_end(line, at, count) {
                    Some(end) if is_next(line, end, then) => {
                        at = end + 1;
                        op += 2;
                        continue;
                    }
                    Some(end) => Step::To(end),
                    None if memchr(b' ', &line[at..]).is_none() => Step::Ended,
                    None => Step::Differs,
                },
                Some(&Op::Value { kind, quote, escape, stop, keep, then }) => {
                    let quoted = quote && line.get(at) == Some(&b'"');
                    let start = at + usize::from(quoted);
                    let (start, end, after) = match kind {
                        Kind::List if quoted => (at, list_end(line, at), 0),
                        // No headers are captured.
                        Kind::List if quote || at == line.len() => (at, Some(at), 0),
                        // HAProxy writes the quotes of a string in any case, and "-" for none.
                        Kind::Free | Kind::Encoded
                            if (quote && !quoted) || start == line.len() =>
                        {
                            (start, None, usize::from(quoted))
                        }
                        Kind::Free | Kind::Encoded | Kind::List
                            if kind != Kind::Encoded || !quoted =>
                        {
                            let stop = if quoted { Some(b'"') } else { stop };
                            let end = free_end(line, start, stop, quoted && escape);
                            free = end.map(|end| (op, start, end));
                            (start, end, usize::from(quoted))
                        }
                        Kind::Braced if line.get(start) == Some(&b'{') => {
                            let end = memchr(b'}', &line[start..]).map(|n| start + n);
                            (start + 1, end, 1 + usize::from(quoted))
                        }
                        // Not `quoted`: the quote may belong to the next value.
                        Kind::Braced => (at, Some(at), 0),
                        _ if quoted => {
                            let end = memchr(b'"', &line[start..]).map(|n| start + n);
                            (start, end, 1)
                        }
                        _ => (start, typed_end(line, start, kind, stop), 0),
                    };
                    match end {
                        Some(end) => {
                            set(spans, keep, Span::new(start, end));
                            if quoted && after > 0 {
                                closed = Some(op);
                            }
                            let end = end + after;
                            if is_next(line, end, then) {
                                at = end + 1;
                                op += 2;
                                continue;
                            }
                            Step::To(end)
                        }
                        None if after > 0 => {
                            // A string that does not end: the line does.
                            self.forget_after(op, spans);
                            set(spans, keep, Span::new(start, line.len()));
                            return Ok(false);
                        }
                        None if memchr(b' ', &line[at..]).is_none() => Step::Ended,
                        None => Step::Differs,
                    }
                }
            };
            match step {
                Step::To(next) => {
                    at = next;
                    op += 1;
                }
                Step::Ended | Step::Differs => {
                    let ended = matches!(step, Step::Ended) || at >= line.len();
                    let mismatch = Mismatch { ended, parts: op };
                    match self.retry(line, &mut free, at, &mut fuel, spans) {
                        Some(next) => (op, at) = next,
                        // The text behind the request is cut off.
                        None => match closed.filter(|_| ended && op >= DATED) {
                            Some(closed) => {
                                self.forget_after(closed + 1, spans);
                                return Ok(false);
                            }
                            None => return Err(mismatch),
                        },
                    }
                }
            }
        }
    }

    /// The last free text ends later than was thought: where to go on.
    fn retry(
        &self,
        line: &[u8],
        free: &mut Option<(usize, usize, usize)>,
        at: usize,
        fuel: &mut usize,
        spans: &mut [Span],
    ) -> Option<(usize, usize)> {
        let (op, start, thought) = free.take()?;
        *fuel = fuel.checked_sub(at.saturating_sub(thought) + 1)?;
        let Some(&Op::Value { quote, escape, stop, keep, .. }) = self.ops.get(op) else {
            return None;
        };
        let quoted = quote && start > 0 && line[start - 1] == b'"';
        let stop = if quoted { b'"' } else { stop? };
        let end = free_end(line, thought + 1, Some(stop), quoted && escape)?;
        *free = Some((op, start, end));
        set(spans, keep, Span::new(start, end));
        Some((op + 1, end + usize::from(quoted)))
    }

    fn forget_after(&self, op: usize, spans: &mut [Span]) {
        for op in &self.ops[op..] {
            if let Op::Value { keep, .. } = op {
                set(spans, *keep, Span::NONE);
            }
        }
    }
}

/// Whether the next part stands at `at` and is that one byte.
fn is_next(line: &[u8], at: usize, then: Option<u8>) -> bool {
    then.is_some() && line.get(at).copied() == then && line.get(at + 1) != Some(&b' ')
}

/// Where numbers with slashes between them end.
fn numbers_end(line: &[u8], start: usize, count: usize) -> Option<usize> {
    let mut at = start;
    for number in 0..count {
        if number > 0 {
            (line.get(at) == Some(&b'/')).then_some(())?;
            at += 1;
        }
        at += number_length(line.get(at..)?)?;
    }
    Some(at)
}

/// The length of a number, perhaps with a sign.
fn number_length(rest: &[u8]) -> Option<usize> {
    let mut length = 0;
    while let Some(b'+' | b'-') = rest.get(length) {
        length += 1;
    }
    let signs = length;
    while let Some(b'0'..=b'9') = rest.get(length) {
        length += 1;
    }
    // A sign alone is how HAProxy writes that there is no number.
    (length > signs || rest.first() == Some(&b'-') && signs == 1).then_some(length)
}

/// Literals are short: mostly a byte or two.
fn starts_with(line: &[u8], text: &[u8]) -> bool {
    match text {
        &[byte] => line.first() == Some(&byte),
        _ => line.starts_with(text),
    }
}

enum Step {
    To(usize),
    Ended,
    Differs,
}

fn set(spans: &mut [Span], keep: u8, span: Span) {
    if let Some(kept) = spans.get_mut(usize::from(keep)) {
        *kept = span;
    }
}

fn space(line: &[u8], from: usize, at: usize) -> Step {
    if line.get(at) == Some(&b' ') {
        let mut at = at + 1;
        while line.get(at) == Some(&b' ') {
            at += 1;
        }
        return Step::To(at);
    }
    // HAProxy writes no space after a space, where a value between them is empty, and the line's
    // last one may be trimmed.
    if at == line.len() || (at > from && line[at - 1] == b' ') {
        return Step::To(at);
    }
    Step::Differs
}

/// `memchr` for a byte that is mostly near.
fn find(byte: u8, text: &[u8]) -> Option<usize> {
    const NEAR: usize = 8;
    match text.iter().take(NEAR).position(|&b| b == byte) {
        None if text.len() > NEAR => memchr(byte, &text[NEAR..]).map(|at| at + NEAR),
        found => found,
    }
}

/// The next place at or after `from` where a free text can end.
fn free_end(line: &[u8], from: usize, stop: Option<u8>, escape: bool) -> Option<usize> {
    let Some(stop) = stop else { return Some(line.len().max(from)) };
    let mut from = from;
    loop {
        let end = from + find(stop, line.get(from..)?)?;
        let backslashes = || line[..end].iter().rev().take_while(|&&b| b == b'\\').count();
        if !escape || backslashes() % 2 == 0 {
            return Some(end);
        }
        from = end + 1;
    }
}

/// Where strings in quotes with spaces between them end.
fn list_end(line: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += 2 + memchr(b'"', line.get(at + 1..)?)?;
        if !line[at..].starts_with(b" \"") {
            return Some(at);
        }
        at += 1;
    }
}

/// Bytes of addresses.
const ADDRESS: [bool; 256] = {
    let mut table = [false; 256];
    let mut bytes: &[u8] = b"0123456789abcdefABCDEF.:";
    while let [byte, rest @ ..] = bytes {
        table[*byte as usize] = true;
        bytes = rest;
    }
    table
};

/// Whether bytes of addresses are one: a day or a time of a syslog prefix is not.
fn is_address(text: &[u8]) -> bool {
    let count = |byte| text.iter().filter(|&&b| b == byte).count();
    match (count(b'.'), count(b':')) {
        (3, 0) | (0, 7) | (3, 6) => true,
        (0 | 3, 2..) => text.windows(2).any(|pair| pair == b"::"),
        _ => false,
    }
}

/// Where a value ends that says so itself.
fn typed_end(line: &[u8], start: usize, kind: Kind, stop: Option<u8>) -> Option<usize> {
    let rest = line.get(start..)?;
    let stop = stop.unwrap_or(b' ');
    let length = match kind {
        Kind::Integer => number_length(rest)?,
        Kind::Query if rest.first() != Some(&b'?') => return Some(start),
        Kind::Word | Kind::Query => length_until(rest, |b| b == b' ' || b == stop),
        Kind::Path => length_until(rest, |b| b == b' ' || b == b'?' || b == stop),
        Kind::Date(length) => {
            let date = rest.get(..length)?;
            let fits = date[2] == b'/' && date[6] == b'/' && date[11] == b':' && date[14] == b':';
            fits.then_some(length)?
        }
        Kind::Fixed(length) => (rest.len() >= length).then_some(length)?,
        Kind::Hex => length_until(rest, |b| !b.is_ascii_hexdigit() && b != b'-'),
        // Not addresses: a Unix socket, and nothing.
        Kind::Address if rest.starts_with(b"unix") => 4,
        Kind::Address if rest.starts_with(b"-") => 1,
        Kind::Address => {
            let length = length_until(rest, |b| !ADDRESS[usize::from(b)]);
            match stop {
                // The port's colon is the last one. An address stands before it.
                b':' => rest[..length].iter().rposition(|&b| b == b':')?,
                _ => is_address(&rest[..length]).then_some(length)?,
            }
        }
        Kind::Braced | Kind::List | Kind::Encoded | Kind::Free => return None,
    };
    (length > 0).then_some(start + length)
}

fn length_until(text: &[u8], ends: impl Fn(u8) -> bool) -> usize {
    text.iter().position(|&b| ends(b)).unwrap_or(text.len())
}

/// The byte that ends a value that another one follows immediately.
fn adjacent(kind: Kind, value: &Value, next: &Value) -> Result<u8, FormatError> {
    let itself = value.flags.quote
        || matches!(kind, Kind::Date(_) | Kind::Fixed(_) | Kind::Braced | Kind::Integer);
    match next.source {
        _ if itself || next.flags.quote => Ok(b'"'),
        Source::Alias("hr" | "hs") => Ok(b'{'),
        Source::Alias("HQ") if kind == Kind::Path => Ok(b'?'),
        _ => Err(FormatError::new(format!(
            "nothing between '{}' and '{}' says where the first ends",
            value.source.name(),
            next.source.name()
        ))),
    }
}

fn kind(source: &Source, flags: Flags) -> Kind {
    let name = match source {
        Source::Alias(name) => *name,
        Source::Expression(expression) => return expression_kind(expression),
    };
    match name {
        "ci" | "fi" | "bi" | "si" if flags.hex => Kind::Hex,
        "ci" | "fi" | "bi" | "si" => Kind::Address,
        "cp" | "fp" | "bp" | "sp" | "rt" | "lc" | "pid" | "Ts" if flags.hex => Kind::Hex,
        "B" | "ST" | "TR" | "Ta" | "Tc" | "Td" | "Th" | "Ti" | "Tq" | "Tr" | "Ts" | "Tt"
        | "Tu" | "Tw" | "U" | "ac" | "bc" | "bp" | "bq" | "cp" | "fc" | "fp" | "lc" | "ms"
        | "pid" | "rc" | "rt" | "sc" | "sp" | "sq" => Kind::Integer,
        "t" | "tr" => Kind::Date(WITH_MILLISECONDS),
        "T" | "Tl" | "trg" | "trl" => Kind::Date(WITH_ZONE),
        "ts" => Kind::Fixed(2),
        "tsc" => Kind::Fixed(4),
        "hr" | "hs" => Kind::Braced,
        "r" => Kind::Encoded,
        "HP" | "HPO" => Kind::Path,
        "HQ" => Kind::Query,
        "hrl" | "hsl" => Kind::List,
        "CC" | "CS" | "ID" => Kind::Free,
        // Names of proxies and servers, methods, URIs, TLS versions and ciphers.
        _ => Kind::Word,
    }
}

/// The form of the value of a sample expression.
fn expression_kind(expression: &str) -> Kind {
    let end = expression.find(['(', ',']).unwrap_or(expression.len());
    let (fetch, rest) = expression.split_at(end);
    match fetch.trim() {
        "src" | "dst" | "fc_src" | "fc_dst" if rest.is_empty() || rest.starts_with(",ipmask(") => {
            // Further converters may follow.
            let converters = rest.matches('(').count();
            if converters <= 1 { Kind::Address } else { Kind::Free }
        }
        "src_port" | "dst_port" | "status" if rest.is_empty() => Kind::Integer,
        _ => Kind::Free,
    }
}

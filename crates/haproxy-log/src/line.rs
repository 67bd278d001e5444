//! One line of a log: its time and its selected fields, or why it has none.

use memchr::memchr;

use crate::bad::{BadKind, classify};
use crate::date::{Dates, SECOND};
use crate::json::{self, NotJson};
use crate::part::Decode;
use crate::prefix;
use crate::scan::{Mismatch, Span};
use crate::selection::{Reader, Selection, TextReader};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A request at this time. If it is not whole, the line ends within a string.
    Entry {
        at: i64,
        whole: bool,
    },
    Bad(BadKind),
    Empty,
}

/// The values of many lines: all bytes one after the other, and where each ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values {
    pub(crate) bytes: Vec<u8>,
    ends: Vec<u32>,
}

/// The bit of an end that says that there is no value.
const ABSENT: u32 = 1 << 31;

impl Values {
    /// Appends a value. A block of lines has less than 2 GiB.
    fn push(&mut self, value: Option<&[u8]>, decode: Decode) {
        let flag = match value {
            Some(value) if !is_absent(value) => {
                decode.append(value, &mut self.bytes);
                0
            }
            _ => ABSENT,
        };
        self.end(flag);
    }

    /// Gives back the memory that is not used.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Appends a value of other values.
    pub(crate) fn copy(&mut self, value: Option<&[u8]>) {
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.end(if value.is_some() { 0 } else { ABSENT });
    }

    fn end(&mut self, flag: u32) {
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(0) | flag);
    }

    pub(crate) fn get(&self, number: usize) -> Option<&[u8]> {
        let end = *self.ends.get(number)?;
        if end & ABSENT != 0 {
            return None;
        }
        let start = match number.checked_sub(1) {
            Some(before) => self.ends.get(before)? & !ABSENT,
            None => 0,
        };
        self.bytes.get(start as usize..end as usize)
    }

    /// The bytes that this takes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.ends.len() * 4
    }
}

/// Whether HAProxy writes this where it has no value.
fn is_absent(value: &[u8]) -> bool {
    match value {
        b"" | b"-" => true,
        [b'<', ..] => matches!(value, b"<NOSRV>" | b"<BADREQ>" | b"<none>"),
        _ => false,
    }
}

/// Where messages can begin: after at most that many words.
const PREFIX_WORDS: usize = 24;

/// How many strings of a JSON object may be the line.
const STRINGS: usize = 32;

/// The shortest line of a request: an address, a date, and the spaces between them.
const SHORTEST: usize = 20;

#[derive(Debug)]
pub(crate) struct Lines<'a> {
    selection: &'a Selection,
    dates: Dates,
    spans: Vec<Span>,
    /// Where the last message began.
    from: usize,
    path: Vec<u8>,
    /// A line that was the string of a JSON object.
    inner: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(selection: &'a Selection, utc_offset: i32) -> Self {
        let spans = match &selection.reader {
            Reader::Text(text) => text.spans,
            Reader::Json(_) => selection.names.len(),
        };
        Self {
            selection,
            dates: Dates::new(utc_offset),
            spans: vec![Span::NONE; spans],
            from: 0,
            path: Vec::new(),
            inner: Vec::new(),
        }
    }

    /// Reads a line, and appends the values of its selected fields if it is a request.
    pub(crate) fn parse(&mut self, line: &[u8], values: &mut Values) -> Parsed {
        let mut line = line;
        while let [rest @ .., b'\r' | b'\n' | b' '] = line {
            line = rest;
        }
        if line.first() == Some(&0) {
            // A file that was cut to nothing under its writer begins with NULs.
            line = &line[line.iter().position(|&byte| byte != 0).unwrap_or(line.len())..];
        }
        line = line.strip_prefix(prefix::MARK).unwrap_or(line);
        if line.is_empty() {
            return Parsed::Empty;
        }
        let Selection { names, reader } = self.selection;
        match reader {
            Reader::Text(text) => self.text(text, line, values),
            Reader::Json(times) => self.json(names, times, line, values),
        }
    }

    fn text(&mut self, reader: &TextReader, line: &[u8], values: &mut Values) -> Parsed {
        if line[0] == b'{'
            && let Some(parsed) = self.wrapped(reader, line, values)
        {
            return parsed;
        }
        // Mostly the prefix is as long as the last one.
        if reader.scanner.weak {
            self.from = prefix::length(line);
        }
        let from = self.from;
        // The last byte of a byte order mark is one of the two.
        if (from == 0 || matches!(line.get(from - 1), Some(b' ' | 0xbf)) || reader.scanner.weak)
            && from <= line.len()
            && let Ok(whole) = reader.scanner.scan(line, from, &mut self.spans)
        {
            return self.entry(reader, line, whole, values);
        }
        self.text_slowly(reader, line, values)
    }

    fn text_slowly(&mut self, reader: &TextReader, line: &[u8], values: &mut Values) -> Parsed {
        let mut furthest = Mismatch::default();
        let base = prefix::priority(line);
        for from in word_starts(line) {
            let from = from.max(base);
            match reader.scanner.scan(line, from, &mut self.spans) {
                Ok(whole) => {
                    self.from = from;
                    return self.entry(reader, line, whole, values);
                }
                Err(mismatch) if mismatch.parts > furthest.parts => furthest = mismatch,
                Err(_) => {}
            }
        }
        if let Some(parsed) = self.wrapped(reader, line, values) {
            return parsed;
        }
        Parsed::Bad(classify(line, furthest))
    }

    /// A line that is a string of a JSON object, as Docker, journald and others export it.
    fn wrapped(
        &mut self,
        reader: &TextReader,
        line: &[u8],
        values: &mut Values,
    ) -> Option<Parsed> {
        let brace = memchr(b'{', &line[..line.len().min(512)])?;
        if line[brace + 1..].trim_ascii_start().first() != Some(&b'"') {
            return None;
        }
        let mut path = std::mem::take(&mut self.path);
        // The strings that are as long as a request, those with a usual name first.
        let (mut strings, mut usual) = ([Span::NONE; STRINGS], 0);
        let mut count = 0;
        let mut take = |name: &[u8], found: json::Found| {
            let text = found.span.of(line).unwrap_or_default();
            if count < STRINGS && text.len() >= SHORTEST && memchr(b' ', text).is_some() {
                strings[count] = found.span;
                count += 1;
                if matches!(name, b"log" | b"MESSAGE" | b"message" | b"msg") {
                    strings.swap(usual, count - 1);
                    usual += 1;
                }
            }
        };
        let is_json = json::walk(line, brace, &mut path, &mut take).is_ok();
        self.path = path;
        if !is_json {
            return None;
        }
        let mut inner = std::mem::take(&mut self.inner);
        let mut parsed = None;
        for span in &strings[..count] {
            inner.clear();
            json::unescape(span.of(line).unwrap_or_default(), &mut inner);
            let message = inner.trim_ascii();
            let mut is_it = |from| reader.scanner.scan(message, from, &mut self.spans).ok();
            if let Some(whole) = word_starts(message).find_map(&mut is_it) {
                let found = self.entry(reader, message, whole, values);
                parsed = Some(found);
                if matches!(found, Parsed::Entry { .. }) {
                    break;
                }
            }
        }
        self.inner = inner;
        let of_usual = strings[..usual].first().and_then(|span| span.of(line));
        parsed.or_else(|| of_usual.map(bad))
    }

    /// The request whose spans were found.
    fn entry(
        &mut self,
        reader: &TextReader,
        line: &[u8],
        whole: bool,
        values: &mut Values,
    ) -> Parsed {
        let spans = &self.spans;
        let value = |place: usize| spans.get(place).and_then(|span| span.of(line));
        let Some(at) = reader.time.of(&mut self.dates, value) else {
            let cut = !whole && value(reader.time.date).is_none();
            return Parsed::Bad(if cut { BadKind::Truncated } else { BadKind::Date });
        };
        if reader.request.and_then(value) == Some(b"<BADREQ>") {
            return Parsed::Bad(BadKind::NoRequest);
        }
        for slot in &reader.slots {
            let part = value(slot.span).and_then(|value| slot.part.of(value));
            values.push(part, slot.decode);
        }
        Parsed::Entry { at, whole }
    }

    fn json(
        &mut self,
        names: &[String],
        times: &[String],
        line: &[u8],
        values: &mut Values,
    ) -> Parsed {
        let Some(start) = memchr(b'{', &line[..line.len().min(512)]) else { return bad(line) };
        self.spans.fill(Span::NONE);
        let mut escaped = [false; 256];
        let mut best: Option<(usize, i64)> = None;
        let mut has_date = false;
        let mut bad_request = false;
        let (spans, dates) = (&mut self.spans, &mut self.dates);
        let mut each = |name: &[u8], found: json::Found| {
            for (at, wanted) in names.iter().enumerate() {
                if wanted.as_bytes() == name {
                    spans[at] = found.span;
                    escaped[at & 255] = found.escaped;
                }
            }
            let text = found.span.of(line).unwrap_or_default();
            // `%HM %HU` of one has it twice.
            bad_request |= text == b"<BADREQ>" || text.starts_with(b"<BADREQ> ");
            if let Some(rank) = times.iter().position(|time| time.as_bytes() == name)
                && best.is_none_or(|(known, _)| rank <= known)
            {
                has_date = true;
                if let Some(at) = json_date(dates, text, found.escaped) {
                    best = Some((rank, at));
                }
            }
        };
        match json::walk(line, start, &mut self.path, &mut each) {
            Ok(()) => {}
            Err(NotJson::Ended) => return Parsed::Bad(BadKind::Truncated),
            Err(NotJson::Differs) => return bad(line),
        }
        let Some((_, at)) = best else {
            return Parsed::Bad(if has_date { BadKind::Date } else { BadKind::Unknown });
        };
        if bad_request {
            return Parsed::Bad(BadKind::NoRequest);
        }
        for (number, span) in self.spans.iter().enumerate() {
            match span.of(line) {
                Some(value) if escaped[number & 255] => {
                    json::unescape(value, &mut values.bytes);
                    values.end(0);
                }
                value => values.push(value, Decode::default()),
            }
        }
        Parsed::Entry { at, whole: true }
    }
}

/// A line of which nothing matches.
fn bad(line: &[u8]) -> Parsed {
    Parsed::Bad(classify(line, Mismatch::default()))
}

/// A date in a JSON object. Numbers that would be a moment of other centuries are something else:
/// a duration, a port.
fn json_date(dates: &mut Dates, text: &[u8], escaped: bool) -> Option<i64> {
    const SINCE_2000: std::ops::Range<i64> = 946_684_800 * SECOND..4_102_444_800 * SECOND;
    let at = if escaped {
        // HAProxy writes '/' with a backslash.
        let mut plain = Vec::with_capacity(text.len());
        json::unescape(text, &mut plain);
        dates.any(&plain)
    } else {
        dates.any(text)
    };
    at.filter(|at| SINCE_2000.contains(at))
}

/// The names whose values are dates in most of these JSON objects, in the order in which they come
/// first. If some of them have more than whole seconds, only these.
pub(crate) fn json_dates<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let (mut dates, mut path) = (Dates::new(0), Vec::new());
    // How often each name is there, and whether a date under it had a fraction.
    let mut counts: Vec<(String, usize, bool)> = Vec::new();
    let mut objects = 0;
    for line in lines {
        let line = line.trim_ascii();
        let Some(start) = memchr(b'{', &line[..line.len().min(512)]) else { continue };
        let mut each = |name: &[u8], found: json::Found| {
            let text = found.span.of(line).unwrap_or_default();
            // A number of seconds has ten digits.
            let date = Some(text).filter(|text| text.len() >= 10);
            let date = date.and_then(|text| json_date(&mut dates, text, found.escaped));
            let Some(date) = date else { return };
            let is_whole = date % SECOND == 0;
            let name = String::from_utf8_lossy(name);
            match counts.iter().position(|(known, ..)| *known == name) {
                Some(at) => {
                    counts[at].1 += 1;
                    counts[at].2 |= !is_whole;
                }
                None if counts.len() < 100 => counts.push((name.into_owned(), 1, !is_whole)),
                None => {}
            }
        };
        objects += usize::from(json::walk(line, start, &mut path, &mut each).is_ok());
    }
    counts.retain(|&(_, count, _)| count * 2 > objects);
    let is_exact = counts.iter().any(|&(_, _, has_fraction)| has_fraction);
    counts.retain(|&(_, _, has_fraction)| has_fraction == is_exact);
    counts.into_iter().map(|(name, ..)| name).collect()
}

/// How many of these lines are JSON objects with a value.
pub(crate) fn json_objects<'a>(lines: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut path = Vec::new();
    let is_object = |line: &&[u8]| {
        let line = line.trim_ascii();
        let start = memchr(b'{', &line[..line.len().min(512)]);
        let mut has_value = false;
        let mut each = |_: &[u8], _| has_value = true;
        let walked = start.map(|start| json::walk(line, start, &mut path, &mut each));
        matches!(walked, Some(Ok(()))) && has_value
    };
    lines.filter(is_object).count()
}

/// Where a message can begin: at the first words of a line. A byte order mark in front of one is
/// not a part of it: in RFC 5424 it is how a message says that it is UTF-8.
fn word_starts(line: &[u8]) -> impl Iterator<Item = usize> {
    let mut next = Some(0);
    let starts = std::iter::from_fn(move || {
        let start = next.filter(|&start| start < line.len())?;
        next = memchr(b' ', &line[start..]).map(|space| {
            let spaces = line[start + space..].iter().take_while(|&&byte| byte == b' ');
            start + space + spaces.count()
        });
        Some(if line[start..].starts_with(prefix::MARK) {
            start + prefix::MARK.len()
        } else {
            start
        })
    });
    starts.take(PREFIX_WORDS + 1)
}

/// The names in JSON objects, in the order in which they come first.
pub(crate) fn json_names<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut path = Vec::new();
    for line in lines {
        let line = line.trim_ascii();
        let Some(start) = memchr(b'{', &line[..line.len().min(512)]) else { continue };
        let mut found = Vec::new();
        let mut each = |name: &[u8], _| found.push(String::from_utf8_lossy(name).into_owned());
        if json::walk(line, start, &mut path, &mut each).is_ok() {
            for name in found {
                if names.len() < 1000 && !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    names
}

//! Finds the values of some names in a line that is a JSON object.
//!
//! A line is read once from the left. Nothing is built: values are spans of the line. A reader
//! that is strict about all of JSON is not needed; one that never reads a value under a wrong
//! name is.

use memchr::memchr2;

use crate::scan::Span;

/// How deep objects and lists may be nested.
const DEEPEST: usize = 64;

/// Why a line is not a JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotJson {
    Ended,
    Differs,
}

/// The value of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) span: Span,
    /// It is a string with escapes, which have to be decoded.
    pub(crate) escaped: bool,
}

/// Calls `each` with each name and its value: strings without their quotes, other scalars and
/// lists as they are written. `null` is not reported. `name` is the path from the outermost
/// object, with dots.
pub(crate) fn walk(
    line: &[u8],
    from: usize,
    path: &mut Vec<u8>,
    each: &mut dyn FnMut(&[u8], Found),
) -> Result<(), NotJson> {
    path.clear();
    let mut at = blank(line, from);
    if line.get(at) != Some(&b'{') {
        return Err(NotJson::Differs);
    }
    // Where the path of each open object ends.
    let mut open = [0_usize; DEEPEST];
    let mut depth = 0;
    at = blank(line, at + 1);
    let mut first = true;
    loop {
        match line.get(at) {
            Some(b'}') => {
                at = blank(line, at + 1);
                if depth == 0 {
                    let rest = line.get(at..).unwrap_or_default();
                    return if rest.is_empty() { Ok(()) } else { Err(NotJson::Differs) };
                }
                depth -= 1;
                path.truncate(open[depth]);
                first = false;
                continue;
            }
            Some(b',') if !first => at = blank(line, at + 1),
            Some(b'"') if first => {}
            Some(_) => return Err(NotJson::Differs),
            None => return Err(NotJson::Ended),
        }
        first = false;
        let (name, _) = string(line, at)?;
        at = blank(line, name.end as usize + 1);
        if line.get(at) != Some(&b':') {
            return Err(if at >= line.len() { NotJson::Ended } else { NotJson::Differs });
        }
        at = blank(line, at + 1);
        let name = name.of(line).unwrap_or_default();
        if line.get(at) == Some(&b'{') {
            if depth == DEEPEST {
                return Err(NotJson::Differs);
            }
            open[depth] = path.len();
            depth += 1;
            path.extend_from_slice(name);
            path.push(b'.');
            at = blank(line, at + 1);
            first = true;
            continue;
        }
        let (found, after) = value(line, at)?;
        if found.span.of(line) != Some(b"null") || line[at] == b'"' {
            if depth == 0 {
                each(name, found);
            } else {
                let outer = path.len();
                path.extend_from_slice(name);
                each(path, found);
                path.truncate(outer);
            }
        }
        at = blank(line, after);
    }
}

fn blank(line: &[u8], from: usize) -> usize {
    let mut at = from;
    while matches!(line.get(at), Some(b' ' | b'\t')) {
        at += 1;
    }
    at
}

/// A string whose quotation mark stands at `at`: what is between the marks, and whether it has
/// escapes.
fn string(line: &[u8], at: usize) -> Result<(Span, bool), NotJson> {
    match line.get(at) {
        Some(b'"') => {}
        Some(_) => return Err(NotJson::Differs),
        None => return Err(NotJson::Ended),
    }
    let start = at + 1;
    let mut end = start;
    let mut escaped = false;
    loop {
        let rest = line.get(end..).ok_or(NotJson::Ended)?;
        end += memchr2(b'"', b'\\', rest).ok_or(NotJson::Ended)?;
        if line[end] == b'"' {
            return Ok((Span::new(start, end), escaped));
        }
        escaped = true;
        end += 2;
    }
}

/// A value that is not an object, and where it ends.
fn value(line: &[u8], at: usize) -> Result<(Found, usize), NotJson> {
    match line.get(at) {
        Some(b'"') => {
            let (span, escaped) = string(line, at)?;
            Ok((Found { span, escaped }, span.end as usize + 1))
        }
        Some(b'[') => {
            let end = list_end(line, at)?;
            Ok((Found { span: Span::new(at, end), escaped: false }, end))
        }
        Some(_) => {
            let rest = &line[at..];
            let end = rest
                .iter()
                .position(|b| matches!(b, b',' | b'}' | b' ' | b'\t'))
                .ok_or(NotJson::Ended)?;
            if end == 0 || rest[..end].iter().any(|b| matches!(b, b'"' | b'{' | b'[' | b':')) {
                return Err(NotJson::Differs);
            }
            Ok((Found { span: Span::new(at, at + end), escaped: false }, at + end))
        }
        None => Err(NotJson::Ended),
    }
}

/// Where a list ends. It is only looked through for brackets and strings.
fn list_end(line: &[u8], at: usize) -> Result<usize, NotJson> {
    let (mut depth, mut at) = (0_usize, at);
    loop {
        match line.get(at) {
            Some(b'"') => at = string(line, at)?.0.end as usize,
            Some(b'[' | b'{') => depth += 1,
            Some(b']' | b'}') => depth = depth.saturating_sub(1),
            Some(_) => {}
            None => return Err(NotJson::Ended),
        }
        at += 1;
        if depth == 0 {
            return Ok(at);
        }
    }
}

/// Appends a string without its escapes. All other bytes stay as they are.
pub(crate) fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let Some(&kind) = rest.get(at + 1) else { break };
        rest = &rest[at + 2..];
        match kind {
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b'r' => out.push(b'\r'),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'u' => rest = unicode(rest, out),
            other => out.push(other),
        }
    }
    out.extend_from_slice(rest);
}

/// Appends the character of `\uXXXX`, whose digits `rest` begins with. Returns what follows.
fn unicode<'a>(rest: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    fn unit(text: &[u8]) -> Option<u32> {
        let digits = str::from_utf8(text.get(..4)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    }
    let Some(high) = unit(rest) else { return rest };
    let mut after = &rest[4..];
    let mut code = high;
    if (0xD800..0xDC00).contains(&high)
        && let Some(low) = after.strip_prefix(b"\\u").and_then(unit)
        && (0xDC00..0xE000).contains(&low)
    {
        code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
        after = &after[6..];
    }
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    after
}

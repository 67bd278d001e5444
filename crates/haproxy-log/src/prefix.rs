//! The bytes before HAProxy's message in a line: syslog, journald, Docker, Kubernetes.

use memchr::memchr;

/// The byte order mark, with which a message begins that says that it is UTF-8 (RFC 5424, 6.4).
pub(crate) const MARK: &[u8] = "\u{feff}".as_bytes();

/// The length of a syslog priority, `<134>`.
pub(crate) fn priority(line: &[u8]) -> usize {
    let Some(rest) = line.strip_prefix(b"<") else { return 0 };
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    match rest.get(digits) {
        Some(b'>') if (1..=3).contains(&digits) => digits + 2,
        _ => 0,
    }
}

/// The length of the prefix of a line, for formats whose first value would take it for its own.
/// The forms that are known: RFC 3164 and RFC 5424 with and without a priority, journald's `short`
/// and `short-iso`, the container runtime interface, `docker compose logs`, `kubectl logs
/// --prefix`, and `--timestamps` of both.
pub(crate) fn length(line: &[u8]) -> usize {
    let start = priority(line);
    let mut at = start;
    // `name-1  | ` and `[pod/name/container] `
    if let Some(bar) = memchr(b'|', &line[at..line.len().min(at + 64)]) {
        let name = line[at..at + bar].trim_ascii_end();
        let fits = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if !name.is_empty() && name.iter().all(fits) && line.get(at + bar + 1) == Some(&b' ') {
            at += bar + 2;
        }
    } else if line[at..].starts_with(b"[pod/")
        && let Some(end) = memchr(b']', &line[at..])
    {
        at = skip_spaces(line, at + end + 1);
    }
    let version = start > 0 && line[at..].starts_with(b"1 ");
    if version {
        at += 2;
    }
    let after_date = match (iso(line, at), bsd(line, at)) {
        (Some(end), _) | (_, Some(end)) => end,
        _ => return at,
    };
    at = skip_spaces(line, after_date);
    if version {
        return rfc5424(line, at).unwrap_or(at);
    }
    // `stdout F ` of a container runtime.
    for stream in [&b"stdout F "[..], b"stderr F ", b"stdout P ", b"stderr P "] {
        if line[at..].starts_with(stream) {
            return at + stream.len();
        }
    }
    // `host name[123]: ` or `name[123]: `
    let mut word = at;
    for _ in 0..2 {
        let Some(end) = memchr(b' ', &line[word..]).map(|n| word + n) else { break };
        if line[word..end].ends_with(b":") {
            return skip_spaces(line, end);
        }
        word = skip_spaces(line, end);
    }
    at
}

fn skip_spaces(line: &[u8], from: usize) -> usize {
    let rest = line.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|&&byte| byte == b' ').count()
}

/// `2026-11-22T21:39:33.123+01:00`: where it ends.
fn iso(line: &[u8], at: usize) -> Option<usize> {
    let date = line.get(at..at + 19)?;
    let fits = date[4] == b'-' && date[7] == b'-' && date[10] == b'T' && date[13] == b':';
    let end = memchr(b' ', &line[at..])? + at;
    (fits && date[..4].iter().all(u8::is_ascii_digit)).then_some(end)
}

/// `Nov 22 21:39:33`: where it ends.
fn bsd(line: &[u8], at: usize) -> Option<usize> {
    let date = line.get(at..at + 15)?;
    let fits = date[3] == b' ' && date[6] == b' ' && date[9] == b':' && date[12] == b':';
    let letters = date[0].is_ascii_uppercase() && date[1..3].iter().all(u8::is_ascii_lowercase);
    (fits && letters).then_some(at + 15)
}

/// `host app pid id [data]` or `host app pid id -`: where the message begins.
fn rfc5424(line: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    for _ in 0..4 {
        at += memchr(b' ', line.get(at..)?)? + 1;
    }
    if line.get(at) == Some(&b'-') {
        at += 1;
    }
    while line.get(at) == Some(&b'[') {
        let mut quoted = false;
        loop {
            match line.get(at)? {
                b'"' => quoted = !quoted,
                b'\\' if quoted => at += 1,
                b']' if !quoted => break,
                _ => {}
            }
            at += 1;
        }
        at += 1;
    }
    at = skip_spaces(line, at);
    let has_mark = line.get(at..).is_some_and(|message| message.starts_with(MARK));
    Some(if has_mark { at + MARK.len() } else { at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_found_behind_every_prefix() {
        for prefix in [
            "",
            "<134>",
            "<134>Nov 22 21:39:33 host haproxy[12]: ",
            "<134>Nov  2 21:39:33 haproxy[12]: ",
            "Nov 22 21:39:33 host haproxy[12]: ",
            "2026-11-22T21:39:33+0100 host haproxy[12]: ",
            "2026-11-22T21:39:33.123456+01:00 host haproxy[12]: ",
            "<134>1 2026-11-22T21:39:33.123Z host haproxy 12 - - ",
            "<134>1 2026-11-22T21:39:33.123Z host haproxy 12 - [a b=\"c\\\"] d\"][e f=\"\"] ",
            "<134>1 2026-11-22T21:39:33.123Z host haproxy 12 - - \u{feff}",
            "<134>1 2026-11-22T21:39:33.123Z host haproxy 12 - [a b=\"c\"] \u{feff}",
            "2026-11-22T21:39:33.123456789Z stdout F ",
            "2026-11-22T21:39:33.123456789Z ",
            "[pod/haproxy-7/haproxy] ",
            "[pod/haproxy-7/haproxy] 2026-11-22T21:39:33.123456789Z ",
            "haproxy-1  | ",
            "haproxy-1  | 2026-11-22T21:39:33.123456789Z ",
        ] {
            let line = format!("{prefix}GET /path 200");
            assert_eq!(length(line.as_bytes()), prefix.len(), "{line}");
        }
    }
}

//! A log-format (the first line of the input) and a log (the rest). Neither makes the reader
//! panic, or hold more than it was given. Each line is a request, a bad line, or empty.

use std::io::Cursor;

use haproxy_log::{BadKind, Format, Input, Options, Progress, read};

/// One input.
pub fn run(input: &[u8]) {
    let first = input.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let log = input.get(first.len() + 1..).unwrap_or_default();
    let text = std::str::from_utf8(first).ok();
    let given = text.and_then(|text| Format::compile_for(text, log).ok());
    for format in given.into_iter().chain(Format::guess(log)).chain([Format::json()]) {
        let names: Vec<&str> = format.fields().iter().map(|field| field.name()).collect();
        // A format of more fields than a selection can have is refused.
        let Ok(selection) = format.select(&names) else { continue };
        let mut options = Options::default();
        (options.threads, options.max_line) = (1, 4096);
        let (mut bytes, mut last) = (0, i64::MIN);
        let log = log.to_vec();
        let size = log.len();
        // As a stream, it may be compressed, too.
        let is_plain = !matches!(log.first(), Some(0x1F | 0x28 | 0x50..=0x5F));
        let input = Input::stream("log", Cursor::new(log));
        let outcome = read(&[input], &selection, &options, &Progress::new(), &mut |entry| {
            assert_eq!(entry.fields.len(), names.len());
            assert!(last <= entry.at);
            last = entry.at;
            bytes += entry.fields.iter().flatten().map(|field| field.len()).sum::<usize>();
        });
        // Only for compressions that are not known.
        let Ok(outcome) = outcome else { continue };
        let damaged = |kind| kind == BadKind::Damaged;
        let bad: u64 =
            outcome.bad.iter().filter(|bad| !damaged(bad.kind)).map(|bad| bad.count).sum();
        assert!(outcome.entries + outcome.late + bad <= outcome.lines);
        // Some fields are parts of others, and each field is at most as long as its line.
        assert!(!is_plain || bytes <= size.saturating_mul(names.len()) * 3);
    }
}

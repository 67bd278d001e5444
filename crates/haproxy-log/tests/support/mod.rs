//! Reads logs that are in memory.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    missing_docs,
    reason = "each test uses a part of it"
)]

use std::io::Cursor;

use haproxy_log::{Format, Input, Options, Progress, ReadCounts, read};

pub type Values = Vec<Option<String>>;

/// The requests of a log and the values of some fields.
pub fn all(format: &Format, log: &[u8], names: &[&str]) -> (Vec<(i64, Values)>, ReadCounts) {
    let mut options = Options::default();
    options.threads = 2;
    with(format, log, names, &options)
}

pub fn with(
    format: &Format,
    log: &[u8],
    names: &[&str],
    options: &Options,
) -> (Vec<(i64, Values)>, ReadCounts) {
    let mut requests = Vec::new();
    let selection = format.select(names).unwrap();
    let input = Input::stream("the log", Cursor::new(log.to_vec()));
    let counts = read(&[input], &selection, options, &Progress::new(), &mut |entry| {
        let text =
            |value: &Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
        requests.push((entry.at, entry.fields.iter().map(text).collect()));
    })
    .unwrap();
    (requests, counts)
}

/// The request of a single line.
pub fn one(format: &Format, line: &str, names: &[&str]) -> (i64, Values) {
    let (mut requests, counts) = all(format, line.as_bytes(), names);
    assert_eq!(requests.len(), 1, "{line:?} {counts:#?}");
    requests.remove(0)
}

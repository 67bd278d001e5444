//! The logs of a command line: which they are, their format, and the page that is made of them.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gcra_text::count::Count;
use gcra_text::duration::Left;
use gcra_text::output::WrongUsage;
use gcra_text::visible::{Visible, visible_lines};
use haproxy_log::{Entry, Format, Input, Options, Progress, ReadCounts, Selection, Unknown};

use crate::progress;

/// Opens the file of the page. It keeps its content until the page is written. `logs` are the real
/// paths of the logs that have one.
pub(crate) fn open_page(file: &Path, logs: &[Option<PathBuf>]) -> anyhow::Result<File> {
    if file.as_os_str() == "-" {
        let sentence =
            "--html writes a file, and '-' is none; write its name, such as report.html";
        bail!(WrongUsage(sentence.to_owned()));
    }
    let real = fs::canonicalize(file).ok();
    if real.is_some() && logs.contains(&real) {
        let file = file.display();
        bail!(WrongUsage(format!("--html {file} is one of the logs; write another file")));
    }
    let opened = File::options().write(true).create(true).truncate(false).open(file);
    opened.with_context(|| format!("could not create {}", file.display()))
}

/// Writes a page to the file that was opened for it.
pub(crate) fn write_page(mut page: File, file: &Path, html: &str) -> anyhow::Result<()> {
    // A pipe, for example, is no file and has no length.
    let written = match page.metadata().is_ok_and(|about| about.is_file()) {
        true => page.set_len(0),
        false => Ok(()),
    };
    let written = written.and_then(|()| page.write_all(html.as_bytes()));
    written.with_context(|| format!("could not write {}", file.display()))
}

/// The columns of the terminal, if standard output is one.
pub(crate) fn width() -> Option<usize> {
    let size = crossterm::terminal::size().ok();
    size.filter(|_| io::stdout().is_terminal()).map(|(width, _)| width.into())
}

/// The logs of the command line, with the real path of each that has one.
pub(crate) fn inputs(files: &[PathBuf], real: &[Option<PathBuf>]) -> anyhow::Result<Vec<Input>> {
    let is_stdin = |file: &&PathBuf| file.as_os_str() == "-";
    if files.iter().filter(is_stdin).count() > 1 {
        bail!(WrongUsage("'-' is given twice, and standard input can be read once".into()));
    }
    let mut seen = HashSet::new();
    let mut is_known = |real| !seen.insert(real);
    if let Some(place) = real.iter().position(|real| real.as_ref().is_some_and(&mut is_known)) {
        let file = files[place].display();
        let sentence = format!("{file} is given twice, and its requests would count twice");
        bail!(WrongUsage(sentence));
    }
    let input = |file: &PathBuf| if is_stdin(&file) { Input::stdin() } else { Input::file(file) };
    Ok(files.iter().map(input).collect())
}

/// The advice for a log with lines such as "Connect from 192.0.2.7:1 to 192.0.2.1:80".
const HTTPLOG: &str = "write 'option httplog' (or, with mode tcp, 'option tcplog') in \
                       haproxy.cfg, so that HAProxy logs each request";

/// The format of the logs: the one that the command line names, or the one that the first log with
/// lines has.
pub(crate) fn format(written: Option<&str>, inputs: &[Input]) -> anyhow::Result<Format> {
    match written.unwrap_or_default().to_ascii_lowercase().as_str() {
        "" if written.is_some() => {
            let sentence = "--log-format is empty; write the log-format of haproxy.cfg, or http, \
                            https, tcp, clf or json";
            bail!(WrongUsage(sentence.to_owned()));
        }
        "http" => return Ok(Format::http()),
        "https" => return Ok(Format::https()),
        "tcp" => return Ok(Format::tcp()),
        "clf" => return Ok(Format::clf()),
        "json" => return Ok(Format::json()),
        _ => {}
    }
    let Some((name, sample)) = first_sample(inputs)? else {
        let names: Vec<_> = inputs.iter().map(Input::name).collect();
        bail!("{} has no lines", names.join(", "));
    };
    if let Some(text) = written {
        let format = Format::compile_for(text, &sample);
        return Ok(format.map_err(|error| WrongUsage(format!("--log-format: {error}")))?);
    }
    Format::guess(&sample).ok_or_else(|| {
        let line = sample.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
        let line = excerpt(line.unwrap_or_default());
        WrongUsage(match Format::why_unknown(&sample) {
            Unknown::Connections => {
                format!("{name} has connections and no requests, such as '{line}'; {HTTPLOG}")
            }
            Unknown::JsonWithoutDate => format!(
                "no value in the JSON lines of {name} is a date that is known here, such as \
                 2026-11-22T21:39:33.123Z or %tr of HAProxy: the first is '{line}'; add the date \
                 of the request to what writes these lines"
            ),
            _ => format!(
                "the lines of {name} have none of the formats that are known here (HAProxy's \
                 HTTP, HTTPS, TCP and CLF formats, those of its ingress controller and of the \
                 shipped \
                 configurations, and JSON): the first is '{line}'; write the log-format of \
                 haproxy.cfg with --log-format"
            ),
        })
        .into()
    })
}

/// The beginning of the first log that has a line, with its name.
fn first_sample(inputs: &[Input]) -> anyhow::Result<Option<(&str, Vec<u8>)>> {
    let mut damaged = None;
    for input in inputs {
        let (name, sample) = (input.name(), input.sample());
        let is_damaged = matches!(&sample, Err(error) if error.kind() == ErrorKind::InvalidData);
        match sample.with_context(|| format!("cannot read {}", Visible(name))) {
            Ok(sample) if !sample.trim_ascii().is_empty() => return Ok(Some((name, sample))),
            Ok(_) => {}
            // Another log may be whole. This one is counted as damaged then.
            Err(error) if is_damaged => damaged = damaged.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    damaged.map_or(Ok(None), Err)
}

/// The beginning of a line, for a sentence.
fn excerpt(line: &[u8]) -> String {
    const MOST: usize = 100;
    // Of a file without lines it may be all NULs.
    let start = line.iter().position(|byte| *byte != 0).unwrap_or(line.len());
    let text = String::from_utf8_lossy(&line[start..]);
    let cut: String = text.trim_end().chars().take(MOST).collect();
    let more = if cut.len() < text.trim_end().len() { "…" } else { "" };
    format!("{}{more}", visible_lines(&cut))
}

/// Why nothing was found. `written` is the format that the command line names.
pub(crate) fn no_requests(
    written: Option<&str>,
    counts: &ReadCounts,
    format: &Format,
    inputs: &[Input],
) -> anyhow::Error {
    let names: Vec<_> = inputs.iter().map(Input::name).collect();
    let names = names.join(", ");
    match counts.bad.iter().max_by_key(|bad| bad.count) {
        None => anyhow::anyhow!("{names} has no lines"),
        Some(bad) => WrongUsage(format!(
            "no line of {names} is a request in {}: {}:{} is '{}' ({}); {}",
            format.name(),
            bad.file,
            bad.line,
            excerpt(bad.excerpt.as_bytes()),
            bad.kind,
            match (Format::why_unknown(bad.excerpt.as_bytes()), written) {
                (Unknown::Connections, _) => HTTPLOG,
                (_, Some(_)) => "compare it with the log-format of haproxy.cfg",
                (_, None) => "write the log-format of haproxy.cfg with --log-format",
            }
        ))
        .into(),
    }
}

/// How logs are read, by the flags of the command line.
pub(crate) fn options(utc_offset: i32, window: Option<Duration>) -> Options {
    let mut options = Options::default();
    options.utc_offset = utc_offset;
    options.window = window.unwrap_or(options.window);
    options
}

/// Calls `each` for every request in order of time, and shows on a terminal how far it has come.
pub(crate) fn read(
    inputs: &[Input],
    selection: &Selection,
    options: &Options,
    mut each: impl FnMut(&Entry<'_>),
) -> anyhow::Result<ReadCounts> {
    let progress = Progress::new();
    let counts = shown_while(&progress, || {
        haproxy_log::read(inputs, selection, options, &progress, &mut each)
    });
    counts.map_err(|error| anyhow::anyhow!("{error}"))
}

/// The note on requests that came too late to be counted, if there are any.
pub(crate) fn note_on_late(counts: &ReadCounts) -> Option<String> {
    (counts.late > 0).then(|| {
        format!(
            "{} left out, because they began too long before others that were already counted, \
             up to {}; write a longer --window than that",
            Count(counts.late, "request was", "requests were"),
            Left(counts.behind.unwrap_or_default())
        )
    })
}

/// Does the work, and shows on a terminal how far it has come.
fn shown_while<T>(progress: &Progress, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let shown = scope.spawn(|| progress::show(progress, &is_done));
        let done = work();
        is_done.store(true, Ordering::Relaxed);
        shown.thread().unpark();
        done
    })
}

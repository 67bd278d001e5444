//! `gcra-spoa replay`: what limits would have done to the requests of HAProxy's logs.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, bail};
use gcra_text::output::{Output, WrongUsage, print};
use gcra_text::visible::{Visible, visible_lines};
use haproxy_log::{Format, Input, Options, Progress, ReadCounts, Unknown};

use crate::args::Replay;
use crate::findings::Findings;
use crate::log_answers::AnswersOfLog;
use crate::mapping::{Described, Fields, Mapping};
use crate::side::{Configured, Replaying, Side};
use crate::suggesting::{self, Suggesting};
use crate::{html, progress};

/// Replays the logs, prints what was found, and returns the exit status.
///
/// # Errors
///
/// A file cannot be read, or the command line does not fit the log.
pub fn run(command: &Replay) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let new = Configured::new(command)?;
    if let (None, Some(_)) = (&new, &command.against) {
        let sentence =
            "--against has no effect without other limits; write --config or --rate, too";
        bail!(WrongUsage(sentence.to_owned()));
    }
    let old = command.against.as_deref().map(Configured::by_file).transpose()?;
    let suggested = command.suggest.as_deref().map(suggesting::policies_of).transpose();
    let suggested = suggested.map_err(WrongUsage)?;
    check_captures(&command.captures).map_err(WrongUsage)?;
    let real_files: Vec<_> =
        command.files.iter().map(|file| fs::canonicalize(file).ok()).collect();
    let inputs = inputs(&command.files, &real_files)?;
    let format = format(command, &inputs)?;
    let mut fields = Fields::new(&format, &command.captures);
    let mut described = Described::default();
    let mut mapping = |policies: &_, messages: &[_]| {
        Mapping::new(policies, messages, &command.map, &mut fields, &mut described)
            .map_err(WrongUsage)
    };
    let mut mapped = |side: Option<Configured>| {
        let mapped = side.map(|it| anyhow::Ok((mapping(&it.policies, &command.message)?, it)));
        mapped.transpose()
    };
    let (new, old) = (mapped(new)?, mapped(old)?);
    let suggested = suggested.map(|it| anyhow::Ok((mapping(&it, &[])?, it))).transpose()?;
    let side = |(mapping, it)| anyhow::Ok((Side::new(it, command.slots)?, mapping));
    let (new, old) = (new.map(side).transpose()?, old.map(side).transpose()?);
    let mut replaying = new.map(|new| Replaying::new(new, old));
    let suggesting = command.suggest.as_deref().zip(suggested);
    let suggesting = suggesting
        .map(|(key, (mapping, policies))| Suggesting::new(key, command.target, policies, mapping));
    let mut suggesting = suggesting.transpose()?;
    described.messages.retain(|message| message != suggesting::MESSAGE);
    described.note_unused(&command.map);
    let mut answers = AnswersOfLog::new(&mut fields);
    let names: Vec<_> = fields.selected.iter().map(String::as_str).collect();
    let selection = format
        .select(&names)
        .map_err(|error| WrongUsage(format!("{} has no field '{}'", format.name(), error.name)))?;

    // Before the work, so that a wrong path costs no time.
    let page = command.html.as_deref().map(|file| open_page(file, &real_files)).transpose()?;
    let progress = Progress::new();
    let mut options = Options::default();
    options.utc_offset = command.utc_offset;
    options.window = command.window.unwrap_or(options.window);
    let mut has_fractions = false;
    let counts = shown_while(&progress, || {
        haproxy_log::read(&inputs, &selection, &options, &progress, &mut |entry| {
            has_fractions |= entry.at % 1_000_000 != 0;
            answers.count(entry.fields);
            if let Some(suggesting) = &mut suggesting {
                suggesting.add(entry.at, entry.fields);
            }
            if let Some(replaying) = &mut replaying {
                replaying.add(entry.at, entry.fields);
            }
        })
    });
    let counts = counts.map_err(|error| anyhow::anyhow!("{error}"))?;
    if let Some(replaying) = &mut replaying {
        replaying.decide_all();
    }
    if counts.entries == 0 {
        return Err(no_requests(command, &counts, &format, &inputs));
    }
    for mapping in replaying.iter_mut().flat_map(Replaying::mappings) {
        mapping.describe(&fields, &mut described);
    }
    if replaying.is_some() && !has_fractions && counts.entries > 1 {
        described.note(
            "the times of the log are whole seconds: the requests of a second are decided as if \
             they came at once, so more are blocked than really would be"
                .to_owned(),
        );
    }
    if answers.has_only_errors() {
        described.note(
            "no request of the log has a status of 2xx or 3xx: if it has only a part of the \
             requests (option dontlog-normal, set-log-level silent), a limit that it suggests or \
             tries is too low for all of them"
                .to_owned(),
        );
    }
    let log_answers = answers.found(counts.truncated);
    let findings = Findings {
        files: inputs.iter().map(|input| input.name().to_owned()).collect(),
        format: &format,
        counts,
        replaying: replaying.as_ref(),
        described,
        log_answers,
        suggestions: suggesting.map(Suggesting::finish),
        seconds: started.elapsed().as_secs_f64(),
    };
    let report = findings.report();
    let json = serde_json::to_value(&report).context("could not write the report")?;
    if let (Some(mut page), Some(file)) = (page, &command.html) {
        let html = html::page(&json);
        // A pipe, for example, is no file and has no length.
        let written = match page.metadata().is_ok_and(|about| about.is_file()) {
            true => page.set_len(0),
            false => Ok(()),
        };
        let written = written.and_then(|()| page.write_all(html.as_bytes()));
        written.with_context(|| format!("could not write {}", file.display()))?;
    }
    print(command.json, [Output { words: report.in_words(width()), json }])?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses names of captured headers that cannot be meant. The error is a sentence.
fn check_captures(names: &[String]) -> Result<(), String> {
    let mut seen = HashSet::new();
    match names.iter().find(|name| name.is_empty() || !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(format!(
            "--captures has '{name}' {}; write the names of the captured headers in the order of \
             haproxy.cfg, such as host,x-api-key",
            if name.is_empty() { "for a name" } else { "twice" }
        )),
    }
}

/// Opens the file of the page. It keeps its content until the page is written. `logs` are the real
/// paths of the logs that have one.
fn open_page(file: &Path, logs: &[Option<PathBuf>]) -> anyhow::Result<File> {
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

/// The columns of the terminal, or those of a file.
fn width() -> usize {
    let size = crossterm::terminal::size().ok();
    size.filter(|_| io::stdout().is_terminal()).map_or(80, |(width, _)| width.into())
}

/// The logs of the command line, with the real path of each that has one.
fn inputs(files: &[PathBuf], real: &[Option<PathBuf>]) -> anyhow::Result<Vec<Input>> {
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

/// What to do about a log with lines such as "Connect from 192.0.2.7:1 to 192.0.2.1:80".
const HTTPLOG: &str = "write 'option httplog' (or, with mode tcp, 'option tcplog') in \
                       haproxy.cfg, so that HAProxy logs each request";

/// The format of the logs: the one that is written, or the one that the first log with lines has.
fn format(command: &Replay, inputs: &[Input]) -> anyhow::Result<Format> {
    let written = command.log_format.as_deref();
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
                "no value in the JSON lines of {name} is a date that replay knows, such as \
                 2026-11-22T21:39:33.123Z or %tr of HAProxy: the first is '{line}'; add the date \
                 of the request to what writes these lines"
            ),
            _ => format!(
                "the lines of {name} have none of the formats that replay knows (HAProxy's HTTP, \
                 HTTPS, TCP and CLF formats, those of its ingress controller and of the shipped \
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

/// Why nothing could be replayed.
fn no_requests(
    command: &Replay,
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
            match (Format::why_unknown(bad.excerpt.as_bytes()), &command.log_format) {
                (Unknown::Connections, _) => HTTPLOG,
                (_, Some(_)) => "compare it with the log-format of haproxy.cfg",
                (_, None) => "write the log-format of haproxy.cfg with --log-format",
            }
        ))
        .into(),
    }
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

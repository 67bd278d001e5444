//! `gcra-spoa replay`: what limits would have done to the requests of HAProxy's logs.

use std::collections::HashSet;
use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail};
use gcra_text::output::{Output, WrongUsage, print};

use crate::args::Replay;
use crate::findings::Findings;
use crate::html;
use crate::log_answers::AnswersOfLog;
use crate::logs::{self, inputs, no_requests, open_page, width};
use crate::mapping::{Described, Fields, Mapping};
use crate::replayed_config::{Configured, ReplayedConfig, Replaying};
use crate::suggesting::{self, Suggesting};

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
    let format = logs::format(command.log_format.as_deref(), &inputs)?;
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
    let side = |(mapping, it)| anyhow::Ok((ReplayedConfig::new(it, command.slots)?, mapping));
    let (new, old) = (new.map(side).transpose()?, old.map(side).transpose()?);
    let mut replaying = new.map(|new| Replaying::new(new, old));
    let suggesting = command.suggest.as_deref().zip(suggested);
    let suggesting = suggesting
        .map(|(key, (mapping, policies))| Suggesting::new(key, command.target, policies, mapping));
    let mut suggesting = suggesting.transpose()?;
    described.messages.retain(|message| message != suggesting::MESSAGE);
    described.note_unused(&command.map);
    let mut answers = AnswersOfLog::new(&mut fields);
    let selection = fields.selection().map_err(WrongUsage)?;

    // Before the work, so that a wrong path costs no time.
    let page = command.html.as_deref().map(|file| open_page(file, &real_files)).transpose()?;
    let mut has_fractions = false;
    let options = logs::options(command.utc_offset, command.window);
    let counts = logs::read(&inputs, &selection, &options, |entry| {
        has_fractions |= entry.at % 1_000_000 != 0;
        answers.count(entry.fields);
        if let Some(suggesting) = &mut suggesting {
            suggesting.add(entry.at, entry.fields);
        }
        if let Some(replaying) = &mut replaying {
            replaying.add(entry.at, entry.fields);
        }
    })?;
    if let Some(replaying) = &mut replaying {
        replaying.decide_all();
    }
    if counts.entries == 0 {
        return Err(no_requests(command.log_format.as_deref(), &counts, &format, &inputs));
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
    if let (Some(page), Some(file)) = (page, &command.html) {
        logs::write_page(page, file, &html::page(&html::OF_REPLAY, &json))?;
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

//! `gcra-spoa blocked`: who was blocked, as the lines of HAProxy's logs say.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use gcra_policy::KnownClients;
use gcra_text::output::{Output, WrongUsage, print, print_note};

use super::args::BlockedArgs;
use super::findings::{About, Found};
use super::period::LogPeriod;
use super::tally::BlockedLine;
use super::who::{Asked, ClientFields};
use crate::html;
use crate::logs::{self, inputs, no_requests, open_page, width};
use crate::mapping::Fields;
use crate::said::{SaidFields, WhatIsSaid};

/// Reads the logs, prints who was blocked, and returns the exit status.
///
/// # Errors
///
/// A file cannot be read, or the command line does not fit the log.
pub fn run(command: &BlockedArgs) -> anyhow::Result<ExitCode> {
    let (files, key) = command.logs_and_key();
    let real_files: Vec<_> = files.iter().map(|file| fs::canonicalize(file).ok()).collect();
    let inputs = inputs(&files, &real_files)?;
    let known = command.names.as_deref().map(known).transpose()?.unwrap_or_default();
    // The checks of the period that need no log.
    LogPeriod::new(command.from, command.to, 0).map_err(WrongUsage)?;
    let format = logs::format(command.log_format.as_deref(), &inputs)?;
    let mut fields = Fields::new(&format, &[]);
    let said = SaidFields::new(&mut fields);
    let names: Vec<_> = inputs.iter().map(|input| input.name().to_owned()).collect();
    if said.blocked.is_none() {
        bail!(WrongUsage(format!(
            "the lines of {} do not say what was blocked: {} has no field with the variable \
             'blocked'; add to the log-format of haproxy.cfg what haproxy/haproxy.cfg has behind \
             %r, or write --log-format",
            names.join(", "),
            format.name()
        )));
    }
    let variables = ["policy", "limit_name", "reason", "retry_after"];
    let [policy, limit, reason, retry_after] = variables.map(|name| fields.select_variable(name));
    let clients = ClientFields::new(command.client.as_deref(), &mut fields).map_err(WrongUsage)?;
    let asked = key.map(|key| Asked::new(key, &known));
    let selection = fields.selection().map_err(WrongUsage)?;

    // Before the work, so that a wrong path costs no time.
    let page = command.html.as_deref().map(|file| open_page(file, &real_files)).transpose()?;
    let mut found = Found::default();
    let mut period: Option<Result<LogPeriod, String>> = None;
    let local = |at: i64| at.div_euclid(1_000_000) + i64::from(command.utc_offset);
    let options = logs::options(command.utc_offset, command.window);
    let counts = logs::read(&inputs, &selection, &options, |entry| {
        let (second, values) = (entry.at.div_euclid(1_000_000), entry.fields);
        let of_log = || LogPeriod::new(command.from, command.to, local(entry.at));
        let is_in = match period.get_or_insert_with(of_log) {
            Ok(period) => period.has(local(entry.at)),
            Err(_) => false,
        };
        let is_asked = |asked: &Asked<'_>| clients.of(values).any(|client| asked.is(client));
        if !is_in || !asked.as_ref().is_none_or(is_asked) {
            return;
        }
        if found.requests == 0 {
            found.first = second;
        }
        found.last = second;
        found.requests += 1;
        let value = |place: Option<usize>| place.and_then(|place| *values.get(place)?);
        match said.decision(values) {
            WhatIsSaid::Allowed => {
                found.allowed += 1;
                found.series.add(second, 0);
            }
            WhatIsSaid::Blocked => {
                found.blocked += 1;
                found.series.add(second, 1);
                let wait = value(retry_after).and_then(|it| str::from_utf8(it).ok());
                let line = BlockedLine {
                    client: clients.of(values).next().unwrap_or_default(),
                    cause: [policy, limit, reason].map(value),
                    wait: wait.and_then(|wait| wait.parse().ok()),
                };
                found.tally.add(second, line);
            }
            WhatIsSaid::None { err } => {
                found.undecided.add(err);
                found.series.add(second, 2);
            }
            WhatIsSaid::NotReadable => found.not_readable += 1,
            WhatIsSaid::Silent => found.not_asked += 1,
        }
    })?;
    let (Some(first), Some(last)) = (counts.first, counts.last) else {
        return Err(no_requests(command.log_format.as_deref(), &counts, &format, &inputs));
    };
    let period = period.unwrap_or_else(|| Ok(LogPeriod::default())).map_err(WrongUsage)?;
    period.check(local(first), local(last)).map_err(WrongUsage)?;
    let about = About {
        files: names,
        format: &format,
        client_field: clients.in_words(&fields),
        known,
        utc_offset: command.utc_offset,
        period,
        client: key,
        missing: {
            let places = [policy, limit, reason, retry_after, said.err];
            let names = variables.into_iter().chain(["err"]);
            names.zip(places).filter(|(_, place)| place.is_none()).map(|(name, _)| name).collect()
        },
    };
    if found.requests == 0 {
        bail!("{}", about.nothing(local(first), local(last)));
    }
    let report = found.report(about, &counts);
    let json = serde_json::to_value(&report).context("could not write the report")?;
    if let (Some(page), Some(file)) = (page, &command.html) {
        logs::write_page(page, file, &html::page(&html::OF_BLOCKED, &json))?;
    }
    print(command.json, [Output { words: report.in_words(width()), json }])?;
    Ok(ExitCode::SUCCESS)
}

/// What clients are known as by the file at this path.
fn known(path: &Path) -> anyhow::Result<KnownClients> {
    let shown = path.display();
    let (known, left_out) = KnownClients::read(path)
        .map_err(|why| WrongUsage(format!("cannot read the names file {shown}: {why}")))?;
    for (line, why) in left_out.iter().take(10) {
        print_note(&format!("{shown}:{line} {why}; it is left out"));
    }
    Ok(known)
}

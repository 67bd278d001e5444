//! `gcra-spoa exempt`: allows a client everything for a while, in all agents of a table.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use gcra_table::{ExemptError, Exemption, Nanos, Table};
use serde_json::json;

use crate::cli::{self, Exempt};
use crate::duration::{Exact, Left};
use crate::inspected::{self, Client, Inspected, Wanted};
use crate::key::Key;
use crate::output::{Output, print, print_note};
use crate::policy::{Policy, policy_id};
use crate::table_error::{self, TableError};
use crate::table_keys::has_bucket;
use crate::visible::quoted;

/// Begins, ends or lists exemptions, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub(crate) fn run(exempt: &Exempt) -> anyhow::Result<ExitCode> {
    if exempt.list {
        return list(exempt);
    }
    let Exempt { of, at, time, keys, .. } = exempt;
    let inspected = Inspected::open(
        at.path(),
        of.config.as_deref(),
        cli::policies_without_limit,
        keys,
        "gcra-spoa exempt",
    )?;
    let mut done = false;
    for key in keys {
        let wanted = if time.is_some() { Wanted::All } else { Wanted::Known };
        let is_known = |client: &Client| {
            is_exempt(&inspected, client) || (time.is_some() && has_bucket(&inspected, client))
        };
        let clients = inspected.clients(of.policy.as_deref(), key, wanted, is_known)?;
        if inspected.file.is_none() && time.is_some() && !clients.iter().any(is_known) {
            print_note(&format!(
                "the table does not know {} yet; if the agents' --key has a fallback ('else'), \
                 exempt the KEY with else: before the value as well",
                key.text
            ));
        }
        for client in clients {
            let shown = inspected.shown(&client, key);
            let policy = inspected.policy(&client);
            let was_exempt = is_exempt(&inspected, &client);
            done |= time.is_some() || was_exempt;
            write(&inspected, &client, time.unwrap_or_default())?;
            let said = match time {
                Some(time) => format!(
                    "exempt for {}, in all agents within about two seconds; to end it: {}",
                    Exact(*time),
                    command_to_end(exempt, &inspected, policy, key)
                ),
                None if was_exempt => {
                    "the exemption has ended, in all agents within about two seconds".to_owned()
                }
                None => "there was no exemption".to_owned(),
            };
            let place = match inspected.policy_in_words(&client) {
                place if place.is_empty() => place,
                place => format!(" {place}:"),
            };
            let words = format!("{shown}:{place} {said}");
            let json = json!({
                "key": key.text,
                "policy": &*policy.name,
                "client": inspected.name(&client),
                "was_exempt": was_exempt,
                "exempt_ms": time.unwrap_or_default().as_millis(),
            });
            print(at.json, [Output { words, json }])?;
        }
    }
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_exempt(inspected: &Inspected, client: &Client) -> bool {
    let policy = inspected.policy(client);
    let is_ours = |exemption: &Exemption| {
        policy.is_meant_by(exemption) && exemption.key == client.question.key
    };
    inspected.table.exemptions().iter().any(is_ours)
}

/// Exempts a client for this time from now on, instead of what was said about it before.
fn write(inspected: &Inspected, client: &Client, time: Duration) -> anyhow::Result<()> {
    let table = &inspected.table;
    let time = Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let exemption = Exemption {
        policy: policy_id(&inspected.policy(client).name),
        key: client.question.key,
        until: table.now().saturating_add(time),
        client: inspected.name(client),
    };
    let path = inspected.path.display();
    match table.exempt(&exemption) {
        Ok(()) => Ok(()),
        Err(ExemptError::Full) => bail!(
            "table {path} has no space for one more exemption; end one of those that 'gcra-spoa \
             exempt --list' shows"
        ),
        Err(ExemptError::BeingResized) => {
            bail!(table_error::being_resized(&inspected.path, table))
        }
    }
}

/// The command that ends the exemption of a client.
fn command_to_end(exempt: &Exempt, inspected: &Inspected, policy: &Policy, key: &Key) -> String {
    let mut words = vec!["gcra-spoa exempt --end".to_owned()];
    let path = |path: &Path| quoted(&path.display().to_string());
    if let Some(file) = &inspected.file {
        words.push(format!("--config {} --policy {}", path(file), policy.name));
    }
    if exempt.at.names_table() {
        words.push(format!("--table {}", path(&inspected.path)));
    }
    if key.text.starts_with('-') {
        words.push("--".to_owned());
    }
    words.push(quoted(&key.text));
    words.join(" ")
}

/// Prints the exemptions in force, those that end first in front.
fn list(exempt: &Exempt) -> anyhow::Result<ExitCode> {
    let Exempt { of, at, .. } = exempt;
    let mut policies = cli::policies_without_limit().map(|flags| flags.list).unwrap_or_default();
    if let Some(file) = &of.config {
        policies.extend(inspected::read(file)?.list);
    }
    let table = Table::inspect(&at.path()).map_err(TableError)?;
    let mut exemptions = table.exemptions();
    exemptions.sort_by_key(|exemption| exemption.until);
    let outputs = exemptions.into_iter().map(|exemption| {
        let known = policies.iter().find(|policy| policy.is_meant_by(&exemption));
        let Exemption { until, client, .. } = exemption;
        let name = known.map(|policy| &*policy.name);
        let place = match (name, &of.config) {
            (Some(name), _) => format!("policy '{name}'"),
            (None, Some(file)) => format!("a policy that {} does not have", file.display()),
            (None, None) => {
                "a policy of a configuration file, which --config FILE names".to_owned()
            }
        };
        let left = until.saturating_since(table.now());
        Output {
            words: format!("{client}: {place}, for another {}", Left(left.into())),
            json: json!({ "policy": name, "client": client, "exempt_ms": left.millis_ceil() }),
        }
    });
    let outputs: Vec<_> = outputs.collect();
    if outputs.is_empty() && !at.json {
        let words = format!("table {}: no client is exempt", at.path().display());
        print(false, [Output { words, json: json!({}) }])?;
    }
    print(at.json, outputs)?;
    Ok(ExitCode::SUCCESS)
}

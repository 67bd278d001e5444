//! `gcra-spoa exempt`: allows a client everything for a while, in all agents of a table.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use gcra_limiter::message_key::hash_key;
use gcra_limiter::written_message::WrittenMessage;
use gcra_policy::key::{Key, NamedValue, WrittenValue};
use gcra_policy::{Policy, policy_id};
use gcra_table::{ExemptError, Exemption, KeyHash, MAX_EXEMPTION, Nanos, Table, Time};
use gcra_text::count::Count;
use gcra_text::duration::{Exact, Left, nanoseconds};
use gcra_text::network::VALUE;
use gcra_text::output::{Output, WrongUsage, print, print_note};
use gcra_text::table_error::TableError;
use gcra_text::visible::{Visible, quoted};
use gcra_text::{duration, table_error};
use serde_json::{Value, json};

use crate::client_buckets::{has_bucket, is_known, notes};
use crate::explanation::of_a_group;
use crate::flags::{At, PolicyFlags, key_help, key_parser, values_help};
use crate::inspected_table::{Inspected, InspectedClient, LimitsFrom, PolicySource};
use crate::process_state::is_used;
use crate::{inspected_table, key_meanings};

/// Which clients to exempt, and for how long.
#[derive(Debug, clap::Args)]
pub struct Exempt {
    #[command(flatten)]
    pub of: PolicyFlags,
    #[command(flatten)]
    pub at: At,
    /// How long, from now on: a whole number and a unit (s, m, h or d), from 10s to 7d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_exemption)]
    #[arg(required_unless_present_any = ["end", "list"], allow_hyphen_values = true)]
    pub time: Option<Duration>,
    /// End the exemptions of these clients now
    #[arg(long, conflicts_with = "time")]
    pub end: bool,
    /// List the exemptions in force
    #[arg(long, conflicts_with_all = ["time", "end", "keys"])]
    pub list: bool,
    /// The keys of the clients; see below
    #[arg(value_name = "KEY", required_unless_present = "list", value_parser = key_parser())]
    pub keys: Vec<Key>,
}

/// Agents follow within about two seconds, so a much shorter exemption would hold nowhere.
pub const LEAST_EXEMPTION: Duration = Duration::from_secs(10);

pub const EXEMPT_HELP: &str = concat!(
    key_help!(),
    "
Examples:
  gcra-spoa exempt --for 1h 192.0.2.7
  gcra-spoa exempt --policy login --for 1h 192.0.2.7,alice
  gcra-spoa exempt --end 192.0.2.7
  gcra-spoa exempt --list

All agents of the table follow within about two seconds. Requests of an exempt
client are allowed and charged nothing. An exemption survives restarts of agents
and resizes of the table, and ends by itself. It holds on this machine only,
also for limits that machines share."
);

pub(crate) fn parse_exemption(text: &str) -> Result<Duration, String> {
    let most = Duration::from(MAX_EXEMPTION);
    let time = duration::parse(text).filter(|time| *time >= LEAST_EXEMPTION && *time <= most);
    time.ok_or_else(|| {
        let right = match duration::sum(text).filter(|sum| (LEAST_EXEMPTION..=most).contains(sum))
        {
            Some(sum) => format!("one unit: {}", Exact(sum)),
            None => "a whole number and a unit, such as 30m or 1h".to_owned(),
        };
        let (least, most) = (Exact(LEAST_EXEMPTION), Exact(most));
        format!("'{text}' is not a time from {least} to {most}; write {right}")
    })
}

/// Begins, ends or lists exemptions, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub fn run(exempt: &Exempt) -> anyhow::Result<ExitCode> {
    if exempt.list {
        return list(exempt);
    }
    let Exempt { of, at, time, keys, .. } = exempt;
    let limits = LimitsFrom::of(of.config.as_deref());
    let inspected = Inspected::open(at.path(), limits, "gcra-spoa exempt")?;
    let mut done = false;
    for key in keys {
        done |= match time {
            Some(time) => begin(exempt, *time, &inspected, key)?,
            None => end(exempt, &inspected, key)?,
        };
    }
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Exempts the clients that a key means. Returns whether an agent follows now.
fn begin(
    exempt: &Exempt,
    time: Duration,
    inspected: &Inspected,
    key: &Key,
) -> anyhow::Result<bool> {
    let Exempt { of, at, .. } = exempt;
    let is_in_table =
        |client: &InspectedClient| is_exempt(inspected, client) || has_bucket(inspected, client);
    let clients =
        inspected.clients(of.policy.as_deref(), key).map_err(|error| about_network(key, error))?;
    if let Some(note) = check(inspected, key, &clients)? {
        print_note(&note);
    }
    if of.policy.is_none()
        && let Some(note) = about_policies(inspected, key, &clients, is_in_table)
    {
        print_note(&note);
    }
    let is_used = is_used(&inspected.table);
    for client in clients {
        notes(inspected, &client).iter().for_each(|note| print_note(note));
        let policy = inspected.policy(&client);
        let was_exempt = is_exempt(inspected, &client);
        let exemption = Exemption {
            policy: policy_id(&policy.name),
            key: client.question.key,
            until: inspected.table.now().saturating_add(Nanos(nanoseconds(time))),
            client: inspected.name(&client),
        };
        write(inspected, &exemption)?;
        let followed = match is_used {
            true if policy.shared.is_some() => {
                "in all agents of this machine within about two seconds; the policy is shared, so \
                 run this on each machine"
            }
            true => "in all agents within about two seconds",
            false => "but no agent uses the table now; agents that start on it will follow",
        };
        let said = format!(
            "exempt for {}, {followed}; to end it: {}",
            Exact(time),
            command_to_end(exempt, inspected, &client)
        );
        let words = inspected.about(&client, "", &said);
        let json = in_json(key, Some(&policy.name), &exemption.client, was_exempt, time);
        print(at.json, [Output { words, json }])?;
    }
    Ok(is_used)
}

/// Says from which policies a key is exempt, if these are several.
fn about_policies(
    inspected: &Inspected,
    key: &Key,
    clients: &[InspectedClient],
    is_in_table: impl Fn(&InspectedClient) -> bool,
) -> Option<String> {
    let names = |clients: &mut dyn Iterator<Item = &InspectedClient>| {
        let mut names: Vec<_> = clients.map(|client| &*inspected.policy(client).name).collect();
        names.dedup();
        names
    };
    let all = names(&mut clients.iter());
    let known = names(&mut clients.iter().filter(|client| is_in_table(client)));
    if all.len() < 2 {
        return None;
    }
    let one = match &known[..] {
        [only] => format!(
            "the table knows this key under '{only}' only, for which --policy {only} is enough"
        ),
        _ => "for only one of these, add --policy NAME".to_owned(),
    };
    Some(format!(
        "without --policy, {} is exempt from each policy whose key it can be: {}, which takes {}; \
         {one}",
        Visible(&key.text),
        all.join(", "),
        Count(clients.len(), "entry", "entries")
    ))
}

/// The value of a key with one part, without the name of its arg.
fn only_value(key: &Key) -> Option<(&str, WrittenValue)> {
    let [written] = &key.parts[..] else { return None };
    let text = written.text.split_once('=').map_or(&*written.text, |(_, value)| value);
    Some((text, text.parse().ok()?))
}

/// An error about a KEY, with what to do instead if it is a network.
pub fn about_network(key: &Key, error: anyhow::Error) -> anyhow::Error {
    match only_value(key) {
        Some((net, WrittenValue::Net(_))) => anyhow!(WrongUsage(format!(
            "{error}; an exemption is for one client: for the network {net}, write an override \
             into the file of the agents and reload it"
        ))),
        _ => error,
    }
}

/// Fails if the exemption can help no client: no agent has the policy, or the policy counts
/// addresses and the key is a string. The note says that it may be so.
pub fn check(
    inspected: &Inspected,
    key: &Key,
    clients: &[InspectedClient],
) -> anyhow::Result<Option<String>> {
    let source = &inspected.source;
    if !source.has_names() {
        return Ok(None);
    }
    if let Some(client) = clients.first()
        && clients.iter().all(|client| inspected.is_unknown_policy(client))
    {
        bail!(
            "no agent of table {} has used the policy '{}' of {source}; name the file of the \
             agents with --config, or reload this one first",
            inspected.path.display(),
            inspected.policy(client).name
        );
    }
    let Some((text, WrittenValue::String(_))) = only_value(key) else { return Ok(None) };
    if text.starts_with(VALUE) || text.starts_with("strhex:") {
        return Ok(None);
    }
    let is_for_addresses = |client: &&InspectedClient| inspected.policy(client).is_for_addresses();
    let has_fallback = |client: &InspectedClient| inspected.policy(client).key.names().count() > 1;
    if let Some(client) = clients.first()
        && clients.iter().all(|it| is_for_addresses(&it) && !has_fallback(it))
        && !clients.iter().any(|it| is_known(inspected, it))
    {
        bail!(WrongUsage(format!(
            "'{text}' is a string, and policy '{}' has groups or overrides of addresses; write an \
             address, such as 192.0.2.7, or {VALUE}{text} if HAProxy sends this string",
            inspected.policy(client).name
        )));
    }
    // Cells that the store counts are not in the table.
    let may_have_bucket = |client: &InspectedClient| {
        let shared = inspected.policy(client).shared;
        has_bucket(inspected, client) || shared.is_some_and(|shared| shared.at_once)
    };
    let is_unknown = !clients.iter().any(may_have_bucket);
    Ok(is_unknown.then(|| {
        format!(
            "the table does not know '{text}', which is a string; if the policy counts addresses, \
             write an address"
        )
    }))
}

/// Ends the exemptions of the clients that a key means. Where there is none, it ends those that
/// were made with this key while the policies made other keys, and those that are listed under
/// this name. Returns whether there was one.
fn end(exempt: &Exempt, inspected: &Inspected, key: &Key) -> anyhow::Result<bool> {
    let Exempt { of, at, .. } = exempt;
    let listed = inspected.table.exemptions();
    let meant = listed.iter().filter(|exemption| match &of.policy {
        Some(name) => exemption.policy == policy_id(name),
        None => true,
    });
    let found = inspected.clients(of.policy.as_deref(), key);
    let clients = found.as_deref().unwrap_or_default();
    let is_of = |exemption: &Exemption, client: &InspectedClient| {
        inspected.policy(client).is_meant_by(exemption) && exemption.key == client.question.key
    };
    let (exact, others): (Vec<_>, Vec<_>) =
        meant.partition(|exemption| clients.iter().any(|client| is_of(exemption, client)));
    let former_keys = match others.is_empty() {
        true => Vec::new(),
        false => {
            let others = inspected.others().iter().flat_map(|others| &others.list);
            others.filter_map(|policy| hash_of(&inspected.table, policy, key)).collect()
        }
    };
    let is_former = |other: &&&Exemption| {
        let has_exact = exact.iter().any(|exact| exact.policy == other.policy);
        other.client == key.text || (!has_exact && former_keys.contains(&other.key))
    };
    let former: Vec<_> = others.iter().filter(is_former).collect();
    for client in clients {
        let policy = inspected.policy(client);
        let was_exempt = exact.iter().any(|exemption| is_of(exemption, client));
        let said = match was_exempt {
            true => ENDED,
            false if former.iter().any(|exemption| policy.is_meant_by(exemption)) => continue,
            false => "there was no exemption",
        };
        let words = inspected.about(client, "", said);
        let name = inspected.name(client);
        let json = in_json(key, Some(&policy.name), &name, was_exempt, Duration::ZERO);
        print(at.json, [Output { words, json }])?;
    }
    for exemption in exact.iter().chain(former.iter().copied()) {
        write(inspected, &Exemption { until: Time::ZERO, ..(*exemption).clone() })?;
    }
    for exemption in &former {
        let policies = &inspected.in_force.policies.list;
        let policy = policies.iter().find(|policy| policy.is_meant_by(exemption));
        let policy = policy.map(|policy| &*policy.name);
        let of = policy.map(|name| format!(" policy '{name}':")).unwrap_or_default();
        let Exemption { client, .. } = exemption;
        let words = format!(
            "{}:{of} the exemption of {client}, from before the key was changed, has ended, in \
             all agents within about two seconds",
            Visible(&key.text)
        );
        let json = in_json(key, policy, client, true, Duration::ZERO);
        print(at.json, [Output { words, json }])?;
    }
    if !(exact.is_empty() && former.is_empty()) {
        return Ok(true);
    }
    let notes = found?.into_iter().flat_map(|client| notes_to_end(inspected, &client));
    notes.for_each(|note| print_note(&note));
    Ok(false)
}

const ENDED: &str = "the exemption has ended, in all agents within about two seconds";

/// Notes on a client that is not exempt.
pub fn notes_to_end(inspected: &Inspected, client: &InspectedClient) -> Vec<String> {
    let is_exempt = |client: &InspectedClient| is_exempt(inspected, client);
    inspected.notes_about_others(client, "an exemption", is_exempt)
}

/// The hash of the key that a KEY means in a policy.
fn hash_of(table: &Table, policy: &Policy, key: &Key) -> Option<KeyHash> {
    let args = key_meanings::named(key, &policy.key.args).ok()?.args;
    let name = policy.message.as_deref().unwrap_or_default();
    let written = |args: &[NamedValue]| {
        let message = WrittenMessage::new(name, args).map_err(|_| String::new())?;
        Ok((message, ()))
    };
    let (message, ()) = of_a_group(policy, &args, written).ok()?;
    Some(hash_key(table.hasher(), policy, &message.message()?)?.0)
}

fn in_json(
    key: &Key,
    policy: Option<&str>,
    client: &str,
    was_exempt: bool,
    time: Duration,
) -> Value {
    json!({
        "key": key.text,
        "policy": policy,
        "client": client,
        "was_exempt": was_exempt,
        "exempt_ms": time.as_millis(),
    })
}

pub fn is_exempt(inspected: &Inspected, client: &InspectedClient) -> bool {
    let policy = inspected.policy(client);
    let is_ours = |exemption: &Exemption| {
        policy.is_meant_by(exemption) && exemption.key == client.question.key
    };
    inspected.table.exemptions().iter().any(is_ours)
}

/// Writes an exemption in the place of what was said about its client before.
pub fn write(inspected: &Inspected, exemption: &Exemption) -> anyhow::Result<()> {
    let table = &inspected.table;
    let path = inspected.path.display();
    match table.exempt(exemption) {
        Ok(()) => Ok(()),
        Err(ExemptError::Full) => bail!(
            "table {path} has no space for one more exemption; end one of those that 'gcra-spoa \
             exempt --list' shows"
        ),
        Err(ExemptError::BeingResized) => {
            bail!(table_error::being_resized(&inspected.path, table))
        }
        Err(other) => bail!("table {path}: {other}"),
    }
}

fn command_to_end(exempt: &Exempt, inspected: &Inspected, client: &InspectedClient) -> String {
    let mut words = vec!["gcra-spoa exempt --end".to_owned()];
    let path = |path: &Path| quoted(&path.display().to_string());
    words.extend(exempt.of.config.iter().map(|file| format!("--config {}", path(file))));
    if inspected.source.has_names() {
        words.push(format!("--policy {}", inspected.policy(client).name));
    }
    if exempt.at.table.is_some() {
        words.push(format!("--table {}", path(&inspected.path)));
    }
    if client.written.starts_with('-') {
        words.push("--".to_owned());
    }
    words.push(quoted(&client.written));
    words.join(" ")
}

/// Prints the exemptions in force, those that end first in front.
fn list(exempt: &Exempt) -> anyhow::Result<ExitCode> {
    let Exempt { of, at, .. } = exempt;
    let path = at.path();
    let table = Table::inspect(&path).map_err(TableError)?;
    let mut exemptions = table.exemptions();
    exemptions.sort_by_key(|exemption| exemption.until);
    let now = table.now();
    let known = match &of.config {
        Some(file) => Some((inspected_table::read(file)?, PolicySource::File(file.clone()))),
        None => inspected_table::policies_of_agents(&table, &path)?,
    };
    let source = known.as_ref().map(|(_, source)| source.to_string()).unwrap_or_default();
    let mut is_any_unknown = false;
    let outputs = exemptions.into_iter().map(|exemption| {
        let mut policies = known.iter().flat_map(|(policies, _)| &policies.list);
        let policy = policies.find(|policy| policy.is_meant_by(&exemption));
        let name = policy.map(|policy| &*policy.name);
        let place = match (name, &known) {
            (Some(name), _) => format!("policy '{name}'"),
            (None, Some(_)) => format!("a policy that {source} does not have"),
            (None, None) => {
                "a policy of a configuration file, which --config FILE names".to_owned()
            }
        };
        let fit = policy.and_then(|policy| fit_of(&table, policy, &exemption));
        is_any_unknown |= policy.is_some() && fit.is_none();
        let misfit = match &fit {
            Some(Fit::First(client)) => {
                format!("; only {client} has this key by {source} as it is now")
            }
            Some(Fit::Nobody) => format!("; no client has this key by {source} as it is now"),
            Some(Fit::Same) | None => String::new(),
        };
        let Exemption { until, client, .. } = &exemption;
        let left = until.saturating_since(now);
        Output {
            words: format!("{client}: {place}, for another {}{misfit}", Left(left.into())),
            json: json!({
                "policy": name,
                "client": client,
                "exempt_ms": left.millis_ceil(),
                "fits": fit.map(|fit| fit == Fit::Same),
            }),
        }
    });
    let outputs: Vec<_> = outputs.collect();
    if is_any_unknown {
        print_note(&format!(
            "names with a '…' are not whole keys, so it is not known whether a client has such a \
             key by {source} as it is now"
        ));
    }
    if outputs.is_empty() && !at.json {
        let words = format!("table {}: no client is exempt", at.path().display());
        print(false, [Output { words, json: json!({}) }])?;
    }
    print(at.json, outputs)?;
    Ok(ExitCode::SUCCESS)
}

/// Which clients of a policy have the key of an exemption.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Fit {
    /// Those that its name says.
    Same,
    /// Of the networks in its name, only the first addresses.
    First(String),
    Nobody,
}

/// `None` if the name of the exemption does not say the whole key.
fn fit_of(table: &Table, policy: &Policy, exemption: &Exemption) -> Option<Fit> {
    let key: Key = exemption.client.parse().ok()?;
    // Without its overrides, too: a group may have overrides for the addresses by which its key
    // would be found.
    let plain = policy.with_rule(policy.rule.clone());
    let is_of = |key: &Key| {
        [policy, &plain].iter().any(|it| hash_of(table, it, key) == Some(exemption.key))
    };
    if is_of(&key) {
        return Some(Fit::Same);
    }
    let first = key.with_first_addresses();
    Some(if is_of(&first) { Fit::First(first.text) } else { Fit::Nobody })
}

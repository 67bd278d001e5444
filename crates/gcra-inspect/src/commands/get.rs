//! `gcra-spoa table get`: what clients owe.

use std::collections::BTreeSet;
use std::process::ExitCode;

use gcra_policy::key::Key;
use gcra_text::output::{Output, print, print_note};
use serde_json::{Value, json};

use crate::client_buckets::{decide, notes};
use crate::explanation::{Decided, LimitState, RuleKind};
use crate::explanation_words::NO_BUCKET;
use crate::flags::{At, PolicyFlags, key_help, key_parser, values_help};
use crate::inspected_table::{Inspected, InspectedClient};
use crate::lease_state::Held;

/// What to show of which clients.
#[derive(Debug, clap::Args)]
pub struct Get {
    #[command(flatten)]
    pub at: At,
    #[command(flatten)]
    pub of: PolicyFlags,
    /// The keys of the clients; see below
    #[arg(value_name = "KEY", required = true, value_parser = key_parser())]
    pub keys: Vec<Key>,
}

pub(crate) const GET_HELP: &str = concat!(
    key_help!(),
    "
Examples:
  gcra-spoa table get 192.0.2.7
  gcra-spoa table get --policy login 192.0.2.7,alice

Exit status: 0 if a bucket was found, 1 if there is none for any of the keys or
something failed, 2 for wrong usage."
);

/// Prints what clients owe, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub fn get(get: &Get) -> anyhow::Result<ExitCode> {
    let Get { at, of, keys } = get;
    let inspected = Inspected::open(at.path(), of.config.as_deref(), "gcra-spoa table get")?;
    let (mut found, mut names) = (false, BTreeSet::new());
    for key in keys {
        for client in inspected.clients(of.policy.as_deref(), key)? {
            let Some(decided) = decide(&inspected, &client) else { continue };
            names.insert(&*inspected.policy(&client).name);
            found |= decided.has_bucket() || decided.rule != RuleKind::Limits;
            let notes = notes(&inspected, &client);
            notes.iter().for_each(|note| print_note(note));
            print(at.json, outputs(&inspected, &client, &decided))?;
        }
    }
    inspected.print_which_are_shared(names.into_iter());
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The output of `get` about one client of a policy: a line for each limit.
fn outputs(inspected: &Inspected, client: &InspectedClient, decided: &Decided) -> Vec<Output> {
    let policy = inspected.policy(client);
    let entry = decided.applied_override.as_ref();
    let entry = entry.map(|entry| format!(" (override {})", entry.entry)).unwrap_or_default();
    let order = decided.order.as_ref();
    let order = order.map(|order| format!("; {}", order.in_words_for(&decided.client)));
    let order = order.unwrap_or_default();
    let output = |limit: &str, said: String, more: Value| {
        let mut json = json!({
            "key": client.written,
            "policy": &*policy.name,
            "override": decided.applied_override.as_ref().map(|applied| &applied.entry),
            "bucket": false,
            "order": decided.order,
        });
        if let (Value::Object(json), Value::Object(mut more)) = (&mut json, more) {
            json.append(&mut more);
        }
        Output { words: inspected.about(client, limit, &said), json }
    };
    let rule = match decided.rule {
        RuleKind::Deny => Some("every request is blocked, because the limit is \"deny\""),
        RuleKind::Unlimited => {
            Some("every request is allowed, because the limit is \"unlimited\"")
        }
        RuleKind::Limits => None,
    };
    if let Some(rule) = rule {
        let said = format!("{rule}{entry}{order}");
        return vec![output("", said, json!({ "rule": decided.rule }))];
    }
    if !decided.held.is_empty() {
        let of_held = |held: &Held| {
            let said = format!("{}{order}", held.in_words());
            let json = serde_json::to_value(held).unwrap_or_default();
            output(&format!("{}{entry}", held.text), said, json)
        };
        return decided.held.iter().map(of_held).collect();
    }
    let limits = policy.rule(client.question.rule).limits();
    // Of these the numbers are said, because there may be buckets of other numbers.
    if !decided.has_bucket() && limits.iter().all(|limit| limit.by_arg().is_none()) {
        return vec![output("", format!("{NO_BUCKET}{order}"), json!({}))];
    }
    let others = |state: &LimitState| {
        let limit = limits.iter().find(|limit| *limit.label == *state.limit);
        let by_arg = limit.and_then(|limit| limit.by_arg());
        by_arg.map_or_else(String::new, |by_arg| {
            let arg = String::from_utf8_lossy(&by_arg.arg);
            format!(
                "; under the numbers that messages say it may owe more, which 'gcra-spoa explain' \
                 shows with {arg}=..."
            )
        })
    };
    let state_in_words =
        |state: &LimitState| state.in_words(decided.observes, decided.order.is_some());
    let of_limit = |state: &LimitState| {
        let said = format!("{}{order}{}", state_in_words(state), others(state));
        let mut json = serde_json::to_value(state).unwrap_or_default();
        if let Some(order) = &decided.order {
            json["blocked"] = decided.blocked.into();
            json["retry_after_ms"] = order.wait_ms().into();
        }
        output(&format!("{}{entry}", state.text), said, json)
    };
    let unsettled = decided.unsettled.and_then(|unsettled| {
        let json = serde_json::json!({ "unsettled": unsettled });
        Some(output("", unsettled.in_words()?, json))
    });
    decided.limits.iter().map(of_limit).chain(unsettled).collect()
}

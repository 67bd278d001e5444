//! `gcra-spoa table get`: what clients owe.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::ensure;
use gcra_policy::flags::{self, RateArg, parse_burst};
use gcra_policy::key::Key;
use gcra_policy::{Limit, Policy};
use gcra_text::output::{Output, WrongUsage, print, print_note};
use serde_json::{Value, json};

use crate::client_buckets::{decide, notes};
use crate::explanation::{Decided, LimitState, RuleKind};
use crate::explanation_words::NO_BUCKET;
use crate::flags::{At, PolicyFlags, key_help, key_parser, values_help};
use crate::inspected_table::{Inspected, InspectedClient, LimitsFrom};
use crate::lease_state::{Held, left};
use crate::unseen_debts::{self, NO_SEEN_BUCKET};

/// What to show of which clients.
#[derive(Debug, clap::Args)]
pub struct Get {
    #[command(flatten)]
    pub at: At,
    #[command(flatten)]
    pub of: PolicyFlags,
    /// The --rate of agents that do not say what they have: those of older versions
    #[arg(long, value_name = "COUNT/PERIOD", allow_hyphen_values = true)]
    #[arg(conflicts_with = "config")]
    pub rate: Option<RateArg>,
    /// The --burst of these agents, if they have one
    #[arg(long, value_name = "COUNT", value_parser = parse_burst)]
    #[arg(conflicts_with = "config", requires = "rate", allow_negative_numbers = true)]
    pub burst: Option<u64>,
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
    let Get { at, of, rate, burst, keys } = get;
    let limits = match rate {
        None => LimitsFrom::of(of.config.as_deref()),
        Some(rate) => {
            let policies = flags::policies_of_rate(rate.clone(), *burst).map_err(WrongUsage)?;
            LimitsFrom::Flags(policies.into())
        }
    };
    let inspected = Inspected::open(at.path(), limits, "gcra-spoa table get")?;
    if let Some(rate) = rate {
        check_known(&inspected, rate)?;
    }
    let wanted = |it: &&Policy| of.policy.as_deref().is_none_or(|wanted| *it.name == *wanted);
    let policies = || inspected.in_force.policies.list.iter().filter(wanted);
    let unseen = unseen_debts::note(&inspected.table, inspected.misses_history(), policies());
    unseen.iter().for_each(|note| print_note(note));
    let (mut found, mut names) = (false, BTreeSet::new());
    for key in keys {
        for client in inspected.clients(of.policy.as_deref(), key)? {
            let Some(decided) = decide(&inspected, &client) else { continue };
            names.insert(&*inspected.policy(&client).name);
            found |= decided.has_bucket() || decided.rule != RuleKind::Limits;
            let notes = notes(&inspected, &client);
            let former = inspected.note_about_former_args(&client);
            notes.iter().chain(&former).for_each(|note| print_note(note));
            let is_unseen = unseen.is_some() || former.is_some();
            let no_bucket = if is_unseen { NO_SEEN_BUCKET } else { NO_BUCKET };
            let mut outputs = outputs(&inspected, &client, &decided);
            outputs.iter_mut().for_each(|it| it.words = it.words.replace(NO_BUCKET, no_bucket));
            print(at.json, outputs)?;
        }
    }
    inspected.print_which_are_shared(names.into_iter());
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fails if no agent was started with this quota: there are no buckets for it, and it would look
/// as if the keys owed nothing.
fn check_known(inspected: &Inspected, rate: &RateArg) -> anyhow::Result<()> {
    let quotas = inspected.in_force.policies.list.iter().flat_map(Policy::limits);
    let Some(quota) = quotas.filter_map(Limit::rate).next() else { return Ok(()) };
    let registered = inspected.table.registered();
    ensure!(
        registered.iter().any(|known| known.limit == 0 && known.quota == quota),
        "table {}: no agent has used it with --rate {rate} and a burst of {}; leave them out, \
         because agents say what they have",
        inspected.path.display(),
        quota.burst()
    );
    Ok(())
}

/// The output of `get` about one client of a policy: a line for each limit.
fn outputs(inspected: &Inspected, client: &InspectedClient, decided: &Decided) -> Vec<Output> {
    let policy = inspected.policy(client);
    let entry = decided.applied_override.as_ref();
    let entry = entry.map(|entry| format!(" (override {})", entry.entry)).unwrap_or_default();
    let exempt = decided.exempt_ms.map(|ms| format!("; exempt for another {}", left(ms)));
    let exempt = exempt.unwrap_or_default();
    let output = |limit: &str, said: String, more: Value| {
        let mut json = json!({
            "key": client.written,
            "policy": &*policy.name,
            "override": decided.applied_override.as_ref().map(|applied| &applied.entry),
            "bucket": false,
            "exempt_ms": decided.exempt_ms,
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
        let said = format!("{rule}{entry}{exempt}");
        return vec![output("", said, json!({ "rule": decided.rule }))];
    }
    if !decided.held.is_empty() {
        let of_held = |held: &Held| {
            let said = format!("{}{exempt}", held.in_words());
            let json = serde_json::to_value(held).unwrap_or_default();
            output(&format!("{}{entry}", held.text), said, json)
        };
        return decided.held.iter().map(of_held).collect();
    }
    let limits = policy.rule(client.question.rule).limits();
    // Of these the numbers are said, because there may be buckets of other numbers.
    if !decided.has_bucket() && limits.iter().all(|limit| limit.by_arg().is_none()) {
        return vec![output("", format!("{NO_BUCKET}{exempt}"), json!({}))];
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
    let of_limit = |state: &LimitState| {
        let said = format!("{}{exempt}{}", state.in_words(decided.observes), others(state));
        let json = serde_json::to_value(state).unwrap_or_default();
        output(&format!("{}{entry}", state.text), said, json)
    };
    let unsettled = decided.unsettled.and_then(|unsettled| {
        let json = serde_json::json!({ "unsettled": unsettled });
        Some(output("", unsettled.in_words()?, json))
    });
    decided.limits.iter().map(of_limit).chain(unsettled).collect()
}

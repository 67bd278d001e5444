//! `gcra-spoa explain`: what is decided about a message, and why.

use std::process::ExitCode;

use crate::cli::Explain;
use crate::explain::{Explanation, LimitState, explain_all};
use crate::inspected::Inspected;
use crate::key::NamedValue;
use crate::output::{Output, WrongUsage, print};
use crate::policy::Policy;
use crate::remembering::Remembering;

/// Explains each message of the policies, or the one that is named, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub(crate) fn run(command: &Explain) -> anyhow::Result<ExitCode> {
    let Explain { config, message, at, args, .. } = command;
    let inspected = Inspected::open(
        at.path(),
        config.as_deref(),
        || command.flags(),
        &[],
        "gcra-spoa explain",
    )?;
    let Inspected { table, in_force, .. } = &inspected;
    let explain_with =
        |args| explain_all(in_force, table, message.as_deref(), args).map_err(WrongUsage);
    let mut explanations = explain_with(args)?;
    if config.is_none()
        && !explanations.iter().any(is_known)
        && let Some(masked) = masked(args)
    {
        // HAProxy may cut addresses, as for `table get`.
        let of_network = explain_with(&masked)?;
        explanations = if of_network.iter().any(is_known) { of_network } else { explanations };
    }
    for explanation in &mut explanations {
        add_list(explanation, &in_force.policies.list);
    }
    if let Some(remembering) = Remembering::of(table) {
        match remembering.explain(message.as_deref(), args) {
            Ok(answers) => answers.into_iter().flatten().for_each(|answer| {
                explanations.iter_mut().for_each(|explanation| explanation.or_stricter(&answer));
            }),
            Err(why) => eprintln!("gcra-spoa: note: {}", remembering.note(Some(&why))),
        }
    }
    let is_decided = |explanation: &Explanation| explanation.decided.is_some();
    let any_is_decided = explanations.iter().any(is_decided);
    explanations.sort_by_key(|explanation| !is_decided(explanation));
    for note in unused_args(command, &inspected) {
        eprintln!("gcra-spoa: note: {note}");
    }
    let output = |explanation: &Explanation| Output {
        words: explanation.in_words(),
        json: serde_json::to_value(explanation).unwrap_or_default(),
    };
    print(at.json, explanations.iter().map(output))?;
    Ok(if any_is_decided { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the table knows anything about the client.
fn is_known(explanation: &Explanation) -> bool {
    let decided = explanation.decided.as_ref();
    decided.is_some_and(|decided| decided.limits.iter().any(LimitState::is_known))
}

/// The args with each IPv6 address replaced by its /64 network; `None` if that is the same.
fn masked(args: &[NamedValue]) -> Option<Vec<NamedValue>> {
    args.iter().find_map(|arg| arg.value.masked())?;
    let mask = |arg: &NamedValue| NamedValue {
        name: arg.name.clone(),
        value: arg.value.masked().unwrap_or_else(|| arg.value.clone()),
    };
    Some(args.iter().map(mask).collect())
}

/// Adds the list that the override comes from.
fn add_list(explanation: &mut Explanation, policies: &[Policy]) {
    let Explanation { policy: Some(name), decided: Some(decided), .. } = explanation else {
        return;
    };
    let policy = policies.iter().find(|policy| *policy.name == **name);
    if let (Some(policy), Some(applied)) = (policy, &mut decided.applied_override) {
        let line = applied.key.as_ref().and_then(|key| policy.line_of(key));
        applied.list = line.map(|(path, line)| format!("{}:{line}", path.display()));
    }
}

/// Says which args are not used, because that is most likely a typing error.
fn unused_args(command: &Explain, inspected: &Inspected) -> Vec<String> {
    let policies = &inspected.in_force.policies.list;
    let mut notes = Vec::new();
    let mut names: Vec<&[u8]> = Vec::new();
    for policy in policies {
        names.extend(policy.key.names());
        names.extend(policy.cost.as_deref());
        names.extend(policy.when.as_ref().map(|when| &*when.arg));
    }
    names.sort_unstable();
    names.dedup();
    let takes_all = policies.iter().any(|policy| policy.key.args.is_empty());
    for arg in &command.args {
        if !takes_all && !names.contains(&arg.name.as_bytes()) {
            let known: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
            notes.push(format!(
                "no policy uses the arg '{}'; the policies use {}",
                arg.name,
                known.join(", ")
            ));
        }
    }
    notes
}

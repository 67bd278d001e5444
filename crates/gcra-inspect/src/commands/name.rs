//! `gcra-spoa name`: the name of a client in logs, in `top` and in /status.

use std::process::ExitCode;

use serde_json::json;

use crate::cli::{self, Name};
use crate::inspected::{Client, Inspected, Wanted};
use crate::output::{Output, print};
use crate::table_keys::has_bucket;

/// Prints the name of each client in each policy whose key it can be, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub(crate) fn run(name: &Name) -> anyhow::Result<ExitCode> {
    let Name { of, at, keys } = name;
    let inspected = Inspected::open(
        at.path(),
        of.config.as_deref(),
        cli::policies_without_limit,
        keys,
        "gcra-spoa name",
    )?;
    for key in keys {
        let is_known = |client: &Client| has_bucket(&inspected, client);
        for client in inspected.clients(of.policy.as_deref(), key, Wanted::All, is_known)? {
            let name = inspected.name(&client);
            let words = match inspected.policy_in_words(&client) {
                policy if policy.is_empty() => name.clone(),
                policy => format!("{policy}: {name}"),
            };
            let policy = &*inspected.policy(&client).name;
            let json = json!({ "key": key.text, "policy": policy, "name": name });
            print(at.json, [Output { words, json }])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

//! `gcra-spoa name`: the name of a client in logs, in `top` and in /status.

use std::process::ExitCode;

use gcra_policy::key::Key;
use gcra_text::output::{Output, print};
use serde_json::json;

use crate::flags::{At, PolicyFlags, key_help, key_parser, values_help};
use crate::inspected_table::{Inspected, LimitsFrom};

/// Which clients to name.
#[derive(Debug, clap::Args)]
pub struct NameArgs {
    #[command(flatten)]
    pub of: PolicyFlags,
    #[command(flatten)]
    pub at: At,
    /// The keys of the clients; see below
    #[arg(value_name = "KEY", required = true, value_parser = key_parser())]
    pub keys: Vec<Key>,
}

pub const NAME_HELP: &str = concat!(
    key_help!(),
    "
Logs, 'gcra-spoa top' and /status show addresses and numbers as they are. Of a
string they show at most the first 4 characters (a quarter of it, if that is
less), its length in bytes, and, behind the whole name, 6 hexadecimal digits of
a hash of the whole key: sk_l…(24)#2dd53f. The hash has the secret key of the
table in it, so that nobody can use the digits to guess the string. Therefore
the same key has other digits in another table.

Example:
  gcra-spoa name --policy api sk_live_0123456789abcdef"
);

/// Prints the name of each client in each policy whose key it can be, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub fn run(name: &NameArgs) -> anyhow::Result<ExitCode> {
    let NameArgs { of, at, keys } = name;
    let limits = LimitsFrom::of(of.config.as_deref());
    let inspected = Inspected::open(at.path(), limits, "gcra-spoa name")?;
    for key in keys {
        for client in inspected.clients(of.policy.as_deref(), key)? {
            let name = inspected.name(&client);
            let words = match inspected.policy_in_words(&client) {
                policy if policy.is_empty() => name.clone(),
                policy => format!("{policy}: {name}"),
            };
            let policy = &*inspected.policy(&client).name;
            let json = json!({ "key": client.written, "policy": policy, "name": name });
            print(at.json, [Output { words, json }])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

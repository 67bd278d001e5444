//! `gcra-spoa name`: the name of a client in logs, in `top` and in /status.

use std::process::ExitCode;

use gcra_policy::key::Key;
use gcra_text::output::{Output, print};
use serde_json::json;

use crate::flags::{At, PolicyFlags, key_help, key_parser, values_help};
use crate::inspected_table::Inspected;

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
the same key has other digits in another table. If the file of the agents has a
salt_file, its bytes take the place of the table's key: where they are the same,
the digits are. With --config and such a file no table is needed.

With several KEYs, each name stands behind its KEY.

Examples:
  gcra-spoa name --policy api sk_live_0123456789abcdef
  gcra-spoa name --policy api $(cat keys.txt) | grep 90c157"
);

/// Prints the name of each client in each policy whose key it can be, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub fn run(name: &NameArgs) -> anyhow::Result<ExitCode> {
    let NameArgs { of, at, keys } = name;
    let path = at.path();
    let salted = match of.config.as_deref().filter(|_| !path.exists()) {
        Some(config) => Inspected::with_salt(config)?,
        None => None,
    };
    let inspected = match salted {
        Some(inspected) => inspected,
        None => Inspected::open(path, of.config.as_deref(), "gcra-spoa name")?,
    };
    for key in keys {
        for client in inspected.clients(of.policy.as_deref(), key)? {
            let name = inspected.name(&client);
            let words = match inspected.policy_in_words(&client) {
                policy if policy.is_empty() => name.clone(),
                policy => format!("{policy}: {name}"),
            };
            let policy = &*inspected.policy(&client).name;
            // Of several, each is told by its KEY.
            let words = match keys.len() {
                1 => words,
                _ => format!("{}: {words}", client.written),
            };
            let json = json!({ "key": client.written, "policy": policy, "name": name });
            print(at.json, [Output { words, json }])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

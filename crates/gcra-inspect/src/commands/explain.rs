//! `gcra-spoa explain`: what is decided about a message, and why.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::{OsStringValueParser, TypedValueParser};
use gcra_policy::describe::text;
use gcra_policy::flags::StoreFlags;
use gcra_policy::key::{NamedValue, WrittenValue};
use gcra_policy::{Policies, Policy};
use gcra_text::output::{Output, WrongUsage, print, print_note};

use crate::explanation::{Decided, Explanation, RuleKind, SharedSources, explain_all};
use crate::flags::{At, values_help};
use crate::inspected_table::Inspected;
use crate::key_readings::{OtherForm, other_forms};
use crate::store_reader::InStore;

/// Which message to explain.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// A configuration file [default: what the agents have in force]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The spoe-message to explain [default: all messages of the policies]
    #[arg(long, value_name = "NAME")]
    pub message: Option<String>,
    /// Ask the store of the agents, or of --store, what it has about the client
    #[arg(long)]
    pub(crate) ask_store: bool,
    #[command(flatten)]
    pub store: StoreFlags,
    #[command(flatten)]
    pub at: At,
    /// The args of the message; see below. Or '-': those of a line of HAProxy's log on standard
    /// input
    #[arg(value_name = "ARG=VALUE", required = true, value_parser = arg_parser())]
    pub args: Vec<NamedValue>,
}

/// The name of the arg that `-` is read as.
const LINE: &str = "-";

/// Reads an arg, or `-`.
fn arg_parser() -> impl TypedValueParser<Value = NamedValue> {
    OsStringValueParser::new().try_map(|text| match text.as_bytes() {
        b"-" => Ok(NamedValue { name: LINE.to_owned(), value: WrittenValue::Null }),
        text => NamedValue::from_bytes(text),
    })
}

impl Explain {
    /// Whether a line of HAProxy's log says the args.
    pub fn is_of_line(&self) -> bool {
        matches!(&self.args[..], [arg] if arg.name == LINE)
    }
}

pub const EXPLAIN_HELP: &str = concat!(
    "\
ARG is the name of an arg, as in the spoe-message. Args that no policy uses
change nothing, except for a policy whose key is all args: it needs them all, in
the order of the spoe-message. VALUE is
",
    values_help!(),
    "

Examples:
  gcra-spoa explain ip=192.0.2.7
  gcra-spoa explain --message api key=alice plan=gold
  gcra-spoa explain --ask-store ip=192.0.2.7
  grep 203.0.113.7: haproxy.log | tail -1 | gcra-spoa explain -
      What the line says, and what would be decided about the same now.
  gcra-spoa explain --config new.toml ip=192.0.2.7
      As if the agents had this file, and the buckets that they have.

What is said about limits that machines share is what this machine knows; with
--ask-store, the store is asked, too.

Nothing is charged. Exit status: 0 if a policy decides about a message, 1 if
none does or something failed, 2 for wrong usage."
);

/// Explains each message of the policies, or the one that is named, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub fn run(command: &Explain) -> anyhow::Result<ExitCode> {
    let Explain { message, at, args, .. } = command;
    if args.iter().any(|arg| arg.name == LINE) {
        let sentence = "'-' is a line with all args; leave the others out, or leave '-' out";
        bail!(WrongUsage(sentence.to_owned()));
    }
    let inspected = Inspected::open(at.path(), command.config.as_deref(), "gcra-spoa explain")?;
    let Inspected { table, in_force, leases, .. } = &inspected;
    inspected.check_store(&command.store)?;
    let settings = match command.store.settings().map_err(WrongUsage::from)? {
        None if command.ask_store => Some(in_force.policies.store.clone().ok_or_else(|| {
            let what = match inspected.source.has_names() {
                true => "the file has no store, so --ask-store has no effect; leave it out",
                false => "the agents have no store, so --ask-store has no effect; leave it out",
            };
            WrongUsage(what.into())
        })?),
        store => store,
    };
    let store = settings.map(InStore::new).transpose()?;
    let shared =
        SharedSources { leases: leases.as_deref(), store: store.as_ref(), lease_client: None };
    let explain_with = |args: &[NamedValue]| {
        explain_all(in_force, table, shared, message.as_deref(), args).map_err(WrongUsage)
    };
    let mut explanations = explain_with(args)?;
    let mut notes = unused_args(command, &inspected);
    notes.extend(strings_for_addresses(command, &inspected));
    notes.extend(notes_about_others(args, &in_force.policies, &explanations, explain_with));
    notes.extend(unknown_strings(args, &explanations));
    explanations.iter_mut().for_each(|explained| add_list(explained, &in_force.policies));
    let is_decided = |explanation: &Explanation| explanation.decided.is_some();
    let any_is_decided = explanations.iter().any(is_decided);
    explanations.sort_by_key(|explanation| !is_decided(explanation));
    notes.iter().for_each(|note| print_note(note));
    let decided = explanations.iter().filter(|it| is_decided(it));
    if store.is_none() {
        inspected.print_which_are_shared(decided.filter_map(|it| it.policy.as_deref()));
    }
    let output = |explanation: &Explanation| Output {
        words: explanation.in_words(),
        json: serde_json::to_value(explanation).unwrap_or_default(),
    };
    print(at.json, explanations.iter().map(output))?;
    Ok(if any_is_decided { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn add_list(explanation: &mut Explanation, policies: &Policies) {
    let Explanation { policy: Some(name), decided: Some(decided), .. } = explanation else {
        return;
    };
    let policy = policies.list.iter().find(|policy| *policy.name == **name);
    if let (Some(policy), Some(applied)) = (policy, &mut decided.applied_override) {
        let line =
            applied.key.as_ref().and_then(|key| policy.line_of(key, policies.origin.as_deref()));
        applied.list = line.map(|(path, line)| format!("{}:{line}", path.display()));
    }
}

/// Suggests another type for an arg if the table has no bucket for the one given. If it has none
/// for either, names the form that many configurations of HAProxy send.
fn notes_about_others(
    args: &[NamedValue],
    policies: &Policies,
    explanations: &[Explanation],
    explain_with: impl Fn(&[NamedValue]) -> Result<Vec<Explanation>, WrongUsage>,
) -> Vec<String> {
    let (mut known, mut usual) = (Vec::new(), Vec::new());
    let forms = args.iter().enumerate().flat_map(|(place, arg)| {
        other_forms(arg, &[]).into_iter().map(move |form| (place, arg, form))
    });
    for (place, NamedValue { name, value }, OtherForm { arg, when, is_usual }) in forms {
        let (written, right) = (format!("{name}={value}"), format!("{name}={}", arg.value));
        let mut args = args.to_vec();
        args[place] = arg;
        let others = explain_with(&args).unwrap_or_default();
        for (own, other) in explanations.iter().zip(&others) {
            let Some((policy, [own, other])) = told_apart(policies, own, other) else { continue };
            if own.is_known() {
                continue;
            }
            let policy_name = &policy.name;
            if other.is_known_by(|label| counts_by(policy, label, name.as_bytes())) {
                known.push(format!(
                    "the table has a bucket for {right} in policy '{policy_name}', and none for \
                     {written}; if {when}, write {right}"
                ));
            } else if is_usual {
                usual.push(format!(
                    "this is about {written} in policy '{policy_name}'; if {when}, write {right}"
                ));
            }
        }
    }
    if known.is_empty() { usual } else { known }
}

/// The policy that decides about both messages, if it counts them as two clients, and what it says
/// about each.
fn told_apart<'e>(
    policies: &'e Policies,
    own: &'e Explanation,
    other: &'e Explanation,
) -> Option<(&'e Policy, [&'e Decided; 2])> {
    let name = own.policy.as_deref()?;
    let policy = policies.list.iter().find(|policy| *policy.name == *name)?;
    let both = [own.decided.as_ref()?, other.decided.as_ref()?];
    let counted = |decided: &Decided| {
        decided.key.iter().map(|part| part.counted_as.clone()).collect::<Vec<_>>()
    };
    let is_apart = own.policy == other.policy && counted(both[0]) != counted(both[1]);
    is_apart.then_some((policy, both))
}

/// Names key strings that the table does not know; HAProxy may send them hashed.
fn unknown_strings(args: &[NamedValue], explanations: &[Explanation]) -> Vec<String> {
    let decided = || explanations.iter().filter_map(|it| it.decided.as_ref());
    if decided().any(Decided::is_known) {
        return Vec::new();
    }
    let is_in_key = |name: &str| {
        let mut parts = decided().filter(|it| it.rule == RuleKind::Limits).flat_map(|it| &it.key);
        parts.any(|part| part.arg.as_deref() == Some(name))
    };
    let is_meant =
        |arg: &&NamedValue| matches!(arg.value, WrittenValue::String(_)) && is_in_key(&arg.name);
    let note = |NamedValue { name, value }: &NamedValue| {
        format!(
            "nothing is known about {name}={value}; if HAProxy sends a hash of this value, as \
             haproxy/api-key.cfg does, write the hash, as haproxy/README.md says"
        )
    };
    args.iter().filter(is_meant).map(note).collect()
}

/// Whether the limit with this label counts by an arg. If not, its bucket says nothing about what
/// HAProxy sends in the arg.
fn counts_by(policy: &Policy, label: &str, arg: &[u8]) -> bool {
    let limit = policy.limits().find(|limit| *limit.label == *label);
    let own = limit.and_then(|limit| limit.key.as_ref());
    match own {
        Some(key) => key.names().any(|name| *name == *arg),
        // Without names, the key has all args.
        None => policy.key.args.is_empty() || policy.key.names().any(|name| *name == *arg),
    }
}

/// The policies that a command is about.
fn meant<'i>(command: &Explain, inspected: &'i Inspected) -> impl Iterator<Item = &'i Policy> {
    let message = command.message.as_ref().map(|message| message.as_bytes().to_vec());
    let is_meant = move |policy: &&Policy| {
        message.is_none() || policy.message.as_deref() == message.as_deref()
    };
    inspected.in_force.policies.without_trials().filter(is_meant)
}

/// Says which args are not used, because that is most likely a typing error.
fn unused_args(command: &Explain, inspected: &Inspected) -> Vec<String> {
    let mut names: BTreeSet<&[u8]> = BTreeSet::new();
    for policy in meant(command, inspected) {
        names.extend(policy.key.names());
        names.extend(policy.price.arg());
        names.extend(policy.when.as_ref().map(|when| &*when.arg));
        names.extend(policy.args_of_limits());
        let trial = policy.trial.and_then(|trial| inspected.in_force.policies.list.get(trial));
        names.extend(trial.into_iter().flat_map(|policy| policy.args_of_limits()));
    }
    let takes_all = meant(command, inspected).any(|policy| policy.key.args.is_empty());
    let known = names.iter().map(|name| text(name)).collect::<Vec<_>>().join(", ");
    let is_unused = |name: &[u8]| !takes_all && !names.contains(name);
    let unused = command.args.iter().filter(|arg| is_unused(arg.name.as_bytes()));
    let note = |NamedValue { name, .. }: &NamedValue| {
        format!("no policy uses the arg '{name}'; the policies use {known}")
    };
    unused.map(note).collect()
}

/// Says which args are strings where the policies are for addresses.
fn strings_for_addresses(command: &Explain, inspected: &Inspected) -> Vec<String> {
    let note = |arg: &NamedValue| {
        let WrittenValue::String(_) = arg.value else { return None };
        let policy = meant(command, inspected).find(|policy| {
            policy.is_for_addresses()
                && policy.key.args.len() == 1
                && policy.key.names().any(|name| *name == *arg.name.as_bytes())
        })?;
        Some(format!(
            "{}={} is a string, and policy '{}' has groups or overrides of addresses; if HAProxy \
             sends this arg as an address, write one, such as {}=192.0.2.7",
            arg.name, arg.value, policy.name, arg.name
        ))
    };
    command.args.iter().filter_map(note).collect()
}

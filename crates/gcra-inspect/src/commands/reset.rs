//! `gcra-spoa table reset`: clears what clients owe.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::bail;
use gcra_limiter::decide::claim::SharedClient;
use gcra_limiter::question::Question;
use gcra_policy::flags::StoreFlags;
use gcra_policy::key::Key;
use gcra_policy::sharing::lent;
use gcra_policy::{Policy, Rule, RuleAt, policy_id};
use gcra_store::Standing;
use gcra_table::Nanos;
use gcra_table::board::PolicyReset;
use gcra_text::count::Count;
use gcra_text::duration::{Short, Utc};
use gcra_text::output::{Output, WrongUsage, print, print_note};
use serde_json::{Value, json};

use crate::client_buckets::{Buckets, Forgiven, known_quotas, notes};
use crate::explanation_words::NO_BUCKET;
use crate::flags::{At, PolicyFlags, key_help, key_parser, values_help};
use crate::inspected_table::{Inspected, InspectedClient, no_policy};
use crate::machines::MachineFlags;
use crate::orders::{not_used, obeyed, on_this_machine, this_user};
use crate::process_state::is_used;
use crate::store_orders::{GivesToStore, where_it_holds_if};
use crate::store_reader::InStore;

/// Which clients' debts to clear.
#[derive(Debug, clap::Args)]
pub struct Reset {
    #[command(flatten)]
    pub at: At,
    #[command(flatten)]
    pub of: PolicyFlags,
    #[command(flatten)]
    pub store: StoreFlags,
    #[command(flatten)]
    pub on: MachineFlags,
    /// The keys of the clients [default: all clients of the policy]; see below
    #[arg(value_name = "KEY", required_unless_present = "policy", value_parser = key_parser())]
    pub keys: Vec<Key>,
}

pub(crate) const RESET_HELP: &str = concat!(
    key_help!(),
    "
Examples:
  gcra-spoa table reset 192.0.2.7
  gcra-spoa table reset --policy login 192.0.2.7,alice
  gcra-spoa table reset --policy login

With a KEY, the buckets under all limits of the policies are cleared, also those
of the policies that agents had before. What clients owe under limits that
machines share is cleared in the store: that of the agents, or the one that
--store names.

Without a KEY, all clients of the policy begin with no debts. The policy of
agents with --rate is 'default'. All agents follow within about two seconds, and
if they have a store, all machines that use it within about five. Until then a
client can get the rest of its limit and a whole one.

Exit status: 0 if a bucket was found or a policy was reset, 1 if there is none
for any of the keys or something failed, 2 for wrong usage."
);

/// Clears what clients owe, and returns the exit status.
///
/// # Errors
///
/// The table cannot be used, or the command line does not fit its agents.
pub fn reset(reset: &Reset) -> anyhow::Result<ExitCode> {
    let Reset { at, of, store, on, keys } = reset;
    let settings = store.settings().map_err(WrongUsage::from)?;
    if let Some(machines) = on.machines(true)? {
        if settings.is_some() {
            bail!(WrongUsage("leave out --store: each machine uses its own store".to_owned()));
        }
        let with_policy = |mut body: Value| {
            if let Some(policy) = &of.policy {
                body["policy"] = (&**policy).into();
            }
            body
        };
        let bodies: Vec<_> = match &keys[..] {
            [] => vec![with_policy(json!({}))],
            keys => keys.iter().map(|key| with_policy(json!({ "key": key.text }))).collect(),
        };
        return machines.act("/actions/forgive", &bodies, "reset it there again", at.json);
    }
    let inspected = Inspected::open(at.path(), of.config.as_deref(), "gcra-spoa table reset")?;
    if let (Some(policy), []) = (&of.policy, &keys[..]) {
        if settings.is_some() {
            bail!(WrongUsage(
                "leave out --store: the store of the agents has the reset".to_owned()
            ));
        }
        let giver = on_this_machine(&this_user());
        let (output, is_whole) = clear_policy(&inspected, policy, &giver)?;
        print(at.json, [output])?;
        return Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    inspected.check_store(store)?;
    let settings = settings.or_else(|| inspected.in_force.policies.store.clone());
    let store = settings.map(InStore::new).transpose()?;
    let (mut found, mut after, mut has_failed, mut misses) = (false, None, false, false);
    for key in keys {
        let cleared = clear(&inspected, of.policy.as_deref(), key, store.as_ref(), |said| {
            match said {
                ResetOutput::Note(note) => print_note(&note),
                ResetOutput::Outputs(outputs) => print(at.json, outputs)?,
            }
            Ok(())
        })?;
        found |= !cleared.clients.is_empty();
        after = after.max(cleared.after);
        has_failed |= cleared.has_failed;
        misses |= cleared.misses;
    }
    if let Some(after) = after.filter(|_| !has_failed) {
        print_note(after.in_words());
    }
    let is_whole = found && !has_failed && !misses;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Resets all clients of the policy with this name, on all machines if there is a store. Returns
/// what there is to say, and whether the store has the reset, if there is one.
///
/// # Errors
///
/// There is no such policy, no agent has it, or it has no limits. Or the table has no space for
/// the reset, or is being resized.
pub fn clear_policy(
    inspected: &Inspected,
    name: &str,
    giver: &str,
) -> anyhow::Result<(Output, bool)> {
    let policies = &inspected.in_force.policies;
    let Some(policy) = policies.named(name) else {
        bail!(no_policy(name, policies, &inspected.source));
    };
    if inspected.is_unknown_policy(policy) {
        bail!(not_used(inspected, policy));
    }
    let limits: BTreeSet<_> = policy.limits().map(|limit| limit.id).collect();
    if limits.is_empty() {
        bail!(WrongUsage(format!("policy '{name}' has no limit, so its clients owe nothing")));
    }
    let (reset, in_store) = match GivesToStore::of(inspected)? {
        Some(mut store) => {
            let (reset, in_store) = store.reset(inspected, name, giver)?;
            (reset, Some(in_store))
        }
        None => {
            let reset = inspected.table.board().reset_policy(policy_id(name), giver);
            (obeyed(inspected, reset)?, None)
        }
    };
    let (followed, note) = where_it_holds_if(is_used(&inspected.table), in_store.as_ref());
    let limits = limits.len() as u64;
    let words = format!(
        "policy '{name}': all clients begin with no debts under {}, {followed}",
        Count(limits, "limit", "limits")
    );
    let json =
        json!({ "policy": name, "limits": limits, "at": reset_in_words(&reset), "note": note });
    Ok((Output { words, json }, in_store.is_none_or(|it| it.is_ok())))
}

/// When a policy was reset: "2026-11-29 09:00:00 UTC".
pub(crate) fn reset_in_words(reset: &PolicyReset) -> String {
    Utc(reset.at / 1_000_000_000).to_string()
}

/// How machines may decide after a client's debt under a shared limit was cleared. A greater value
/// takes longer.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum After {
    /// The store is asked about each request, and a denial is remembered for a second.
    Second,
    /// Machines hold cells.
    Minute,
}

impl After {
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Second => {
                "a machine that has just blocked the client does so for up to 1 s more"
            }
            Self::Minute => {
                "machines may still spend cells that they hold, and one that the store told to \
                 come back later blocks for up to 60 s more; an exemption ('gcra-spoa exempt') \
                 has an effect on all machines within seconds"
            }
        }
    }
}

/// The output while the debts of a key's clients are cleared.
pub enum ResetOutput {
    Note(String),
    Outputs(Vec<Output>),
}

/// The outcome of clearing the debts of a key's clients.
#[derive(Debug, Default)]
pub struct Cleared {
    /// If the store was asked: what can happen after that.
    pub after: Option<After>,
    /// Whether the store could not be asked about some of it.
    pub has_failed: bool,
    /// Whether a client may owe something under numbers that are not known.
    pub misses: bool,
    /// The clients of which there was anything, each by its name in logs and its policy.
    pub clients: Vec<(String, String)>,
}

/// Clears what the clients owe that a key means. `say` gets each sentence at once.
///
/// # Errors
///
/// The key is not one of the policies, there is no store for a shared limit, or the table is being
/// resized.
pub fn clear(
    inspected: &Inspected,
    policy: Option<&str>,
    key: &Key,
    store: Option<&InStore>,
    mut say: impl FnMut(ResetOutput) -> anyhow::Result<()>,
) -> anyhow::Result<Cleared> {
    let mut all = Cleared::default();
    for client in inspected.clients(policy, key)? {
        let (policy, shown) = (inspected.policy(&client), inspected.shown(&client));
        let cleared_one = || (inspected.name(&client), policy.name.to_string());
        let missing = note_about_missing(inspected, &client, &shown);
        all.misses |= missing.is_some() || inspected.misses_history;
        let others = [note_about_others(policy), missing].into_iter().flatten();
        let notes = notes(inspected, &client).into_iter().chain(others);
        notes.map(ResetOutput::Note).try_for_each(&mut say)?;
        if is_shared(inspected, &client) {
            let store = store.ok_or_else(no_store)?;
            let at_once = policy.shared.is_some_and(|shared| shared.at_once);
            all.after = all.after.max(Some(if at_once { After::Second } else { After::Minute }));
            match clear_in_store(inspected, store, &client) {
                Ok((outputs, was_there)) => {
                    all.clients.extend(was_there.then(cleared_one));
                    say(ResetOutput::Outputs(outputs))?;
                }
                // Debts under other policies on this machine are cleared all the same.
                Err(error) => {
                    say(ResetOutput::Note(format!(
                        "{error}; what {shown} owes under policy '{}' was not cleared",
                        policy.name
                    )))?;
                    all.has_failed = true;
                }
            }
            continue;
        }
        let cleared = Buckets::of(inspected, &client).clear(inspected)?;
        all.clients.extend((!cleared.is_empty()).then(cleared_one));
        say(ResetOutput::Outputs(cleared_in_words(inspected, &client, &cleared)))?;
    }
    Ok(all)
}

/// The note on the limits that the clients of a policy share with others, if there are any.
fn note_about_others(policy: &Policy) -> Option<String> {
    let labels = policy.limits().filter(|limit| limit.key.is_some());
    let mut labels: Vec<_> = labels.map(|limit| format!("'{}'", limit.label)).collect();
    labels.sort();
    labels.dedup();
    let are = if labels.len() == 1 { "has a key of its own" } else { "have keys of their own" };
    (!labels.is_empty()).then(|| {
        format!(
            "{} {are}, by which other clients count, too; what is owed there is not cleared",
            labels.join(" and ")
        )
    })
}

/// The note if messages have said more limits than the table could keep, so that a client may owe
/// something under some that are not known.
fn note_about_missing(
    inspected: &Inspected,
    client: &InspectedClient,
    shown: &str,
) -> Option<String> {
    let policy = inspected.policy(client);
    let own = policy.rule(client.question.rule).limits().iter();
    let on_trial = policy.trial.map(|trial| inspected.in_force.policies.list[trial].rule.limits());
    let mut limits = own.chain(on_trial.into_iter().flatten()).filter(|it| it.key.is_none());
    let (label, arg) = limits.find_map(|limit| Some((&limit.label, &limit.by_arg()?.arg)))?;
    let arg = String::from_utf8_lossy(arg);
    (!inspected.table.board().has_all_said()).then(|| {
        format!(
            "the table has had no space for all limits that messages have said, so under limit \
             '{label}' {shown} may still owe something that is not cleared; 'gcra-spoa explain' \
             with {arg}=... shows it, and 'gcra-spoa exempt' lets the client pass for a while"
        )
    })
}

/// Whether what a client owes is in the store.
fn is_shared(inspected: &Inspected, client: &InspectedClient) -> bool {
    let policy = inspected.policy(client);
    let rule = policy.rule(client.question.rule);
    policy.shared.is_some() && matches!(rule, Rule::Limits(_))
}

fn no_store() -> WrongUsage {
    WrongUsage(
        "the agents share their limit, and what clients owe is in the store; add the --store URL \
         of the agents, or exempt the client on each machine with 'gcra-spoa exempt'"
            .to_owned(),
    )
}

/// Makes the store forget what a client owes under the limits of a policy and of its trial.
/// Returns what there is to say, and whether the store had anything.
fn clear_in_store(
    inspected: &Inspected,
    store: &InStore,
    client: &InspectedClient,
) -> anyhow::Result<(Vec<Output>, bool)> {
    let Inspected { in_force, table, .. } = inspected;
    let own = client.question;
    let trial = inspected.policy(client).trial;
    let trial = trial.map(|policy| Question { policy, rule: RuleAt::new(None), ..own });
    let all = [own].into_iter().chain(trial).flat_map(|question| {
        let policy = &in_force.policies.list[question.policy];
        policy.rule(question.rule).limits().iter().map(move |limit| (question, policy, limit))
    });
    let (mut outputs, mut found) = (Vec::new(), false);
    let Some(message) = client.message() else { return Ok((outputs, found)) };
    // A debt that a client shares with others is not its own to be cleared.
    for (question, policy, limit) in all.filter(|(.., limit)| limit.key.is_none()) {
        let shared = SharedClient { in_force, table, question, message: &message };
        // One key of the store has the records of all numbers, and they go together. So what they
        // have is read before.
        let mut cleared: Option<Standing> = None;
        let quotas = known_quotas(table, limit).into_iter().filter(|quota| {
            // Numbers in windows are always shareable.
            limit.calendar().is_some() || lent(*quota).is_ok()
        });
        for quota in quotas {
            let bucket = store.bucket(shared, limit, quota)?;
            let Some(usage) = store.read(&bucket)? else { continue };
            cleared = Some(match cleared {
                None => usage,
                Some(mut all) => {
                    all.owed = all.owed.saturating_add(usage.owed);
                    all.lent = all.lent.saturating_add(usage.lent);
                    all.drains_in = all.drains_in.max(usage.drains_in);
                    all
                }
            });
        }
        store.clear(&store.bucket(shared, limit, limit.quota(None))?)?;
        found |= cleared.is_some();
        let said = match &cleared {
            None => "the store had nothing".to_owned(),
            Some(usage) => format!(
                "the store has forgotten {} owed, and {lent} lent",
                Count(usage.owed, "cell", "cells"),
                lent = usage.lent
            ),
        };
        outputs.push(Output {
            words: inspected.about(client, &format!("limit '{}'", limit.label), &said),
            json: json!({
                "key": client.written,
                "policy": &*policy.name,
                "limit": &*limit.label,
                "bucket": cleared.is_some(),
                "forgiven_ms": cleared.map_or(0, |usage| usage.drains_in.0.div_ceil(1_000)),
                "forgiven_lent_cells": cleared.map_or(0, |usage| usage.lent),
            }),
        });
    }
    Ok((outputs, found))
}

fn cleared_in_words(
    inspected: &Inspected,
    client: &InspectedClient,
    cleared: &BTreeMap<String, Forgiven>,
) -> Vec<Output> {
    let (policy, key) = (inspected.policy(client), &client.written);
    // The debt that agents add to it after a reload is not in the bucket.
    let changes = &inspected.in_force.row(client.question.policy).changes;
    let is_remembered = changes.may_owe(inspected.table.now());
    let output = |(limit, Forgiven { owed, counted, unsettled }): (&String, &Forgiven)| {
        let said = match *owed {
            _ if counted.is_some() => {
                let cells = Count(counted.unwrap_or(0), "cell was", "cells were");
                format!("{cells} counted in this window, and the count is 0 again")
            }
            _ if is_remembered => {
                "all that it owed was cleared, also what it owed before the limits were changed"
                    .to_owned()
            }
            Nanos::ZERO => "owed nothing".to_owned(),
            forgiven => format!("a debt of {} was forgiven", Short(forgiven.into())),
        };
        let said = match *unsettled {
            0 => said,
            cells => {
                let are = Count(
                    cells,
                    "cell of unsettled requests is",
                    "cells of unsettled requests are",
                );
                format!("{said}; {are} not charged any more")
            }
        };
        let mut json = json!({
            "key": key,
            "policy": &*policy.name,
            "limit": limit,
            "bucket": true,
            "forgiven_ms": owed.millis_ceil(),
            "forgiven_count": counted,
        });
        if *unsettled > 0 {
            json["forgiven_unsettled"] = (*unsettled).into();
        }
        Output { words: inspected.about(client, &format!("limit '{limit}'"), &said), json }
    };
    let mut outputs: Vec<_> = cleared.iter().map(output).collect();
    let is_denied = matches!(policy.rule(client.question.rule), Rule::Deny);
    if is_denied {
        let said = "every request is blocked, because the limit is \"deny\"; a reset does not \
                    change that";
        outputs.push(Output {
            words: inspected.about(client, "", said),
            json: json!({ "key": key, "policy": &*policy.name, "rule": "deny" }),
        });
    }
    if outputs.is_empty() {
        outputs.push(Output {
            words: inspected.about(client, "", NO_BUCKET),
            json: json!({ "key": key, "policy": &*policy.name, "bucket": false }),
        });
    }
    outputs
}

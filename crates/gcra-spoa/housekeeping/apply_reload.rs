//! Puts the policies that were read in force, or logs what is wrong with them.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use gcra_limiter::active_policies::ActivePolicies;
use gcra_policy::begin_anew::begin_anew;
use gcra_policy::store::StoreSettings;
use gcra_policy::{Policies, Policy};
use gcra_table::board::{Order, OrderTarget, ReloadAnswer};
use gcra_text::config_note::ConfigNote;
use gcra_text::count::Count;

use super::running::Running;

/// Policies that were read, `None` if nothing has changed, or the mistakes in the file.
pub(super) type ReadOutcome = Result<Option<Replacement>, Vec<ConfigNote>>;

/// Policies that were read, and what the log says about them. The thread that reads makes it,
/// because all this takes the longer the more a file has.
pub(super) struct Replacement {
    pub(super) next: Box<ActivePolicies>,
    words: String,
    /// What has changed, a line each.
    changes: Vec<String>,
    /// About the file alone.
    of_file: Vec<String>,
    /// Which clients begin with no debts. The command has said so before it asked.
    anew: Vec<String>,
    /// About the change. The answer to a command has these, too.
    of_change: Vec<String>,
    /// The policies that make other keys, and how many orders are for former ones.
    rekeyed: Vec<(Box<str>, u64)>,
}

/// The settings that the agent was started with, and that no reload replaces.
pub(crate) struct Startup {
    /// The file that the policies come from; `None` if they come from the command line.
    pub(crate) file: Option<PathBuf>,
    /// Whether the file is read again when it changes.
    pub(crate) watches: bool,
    pub(crate) store: Option<StoreSettings>,
    pub(crate) max_frame_size: u32,
}

/// Puts the policies that were read in force, or logs what is wrong with them. Mistakes that were
/// logged before are not logged again.
pub(super) fn adopt(
    running: &Running,
    startup: &Startup,
    outcome: ReadOutcome,
    known: &mut Vec<ConfigNote>,
) -> ReloadAnswer {
    let name = startup.file.as_deref().unwrap_or(Path::new("")).display();
    match outcome {
        Ok(next) => {
            let mut warnings = Vec::new();
            match next {
                None => log::info!("{name} was read again: nothing has changed"),
                Some(read) => {
                    // A policy may have been reset while the file was read.
                    let reset = read.next.with_orders(&running.table.load(), &running.stats);
                    running.policies.store(reset.map_or_else(|| read.next.into(), Arc::new));
                    log::info!("{name} was read again, and is in force:");
                    read.words.lines().for_each(|line| log::info!("{line}"));
                    read.changes.iter().for_each(|change| log::info!("changed: {change}"));
                    let all = read.of_file.iter().chain(&read.anew).chain(&read.of_change);
                    all.for_each(|warning| log::warn!("{warning}"));
                    for (policy, orders) in &read.rekeyed {
                        log::warn!(
                            "policy '{policy}' makes other keys than before, and {} of it {} \
                             a former key; 'gcra-spoa block --list' and 'gcra-spoa exempt --list' \
                             with --config {name} say which, and --end ends it",
                            Count(*orders, "order", "orders"),
                            if *orders == 1 { "is for" } else { "are for" }
                        );
                    }
                    warnings = read.of_change;
                }
            }
            known.clear();
            running.stats.reloads.ok.fetch_add(1, Ordering::Relaxed);
            match warnings.is_empty() {
                true => ReloadAnswer::InForce,
                false => ReloadAnswer::Warned(warnings.join("; also: ")),
            }
        }
        Err(mistakes) => {
            running.stats.reloads.refused.fetch_add(1, Ordering::Relaxed);
            let first = mistakes.first().map(ToString::to_string).unwrap_or_default();
            if mistakes == *known {
                log::error!(
                    "{name} still has the same mistakes; the policies in force have not \
                     changed"
                );
            } else {
                mistakes.iter().for_each(|mistake| log::error!("{mistake}"));
                log::error!("{name} was refused; the policies in force have not changed");
                *known = mistakes;
            }
            ReloadAnswer::Refused(first)
        }
    }
}

impl Replacement {
    pub(super) fn new(before: &Policies, next: Box<ActivePolicies>, startup: &Startup) -> Self {
        let policies = &next.policies;
        let about_frames = policies.about_frames(startup.max_frame_size);
        let mut of_change: Vec<_> = about_abandoned(before, policies).into_iter().collect();
        of_change.extend(no_longer_settled(before, policies));
        if policies.store != startup.store {
            of_change.push(KEEPS_STORE.to_owned());
        }
        let now = SystemTime::now();
        Self {
            words: policies.in_words(now),
            changes: policies.changes_since(before, now),
            of_file: policies
                .warnings
                .iter()
                .map(ToString::to_string)
                .chain(about_frames)
                .collect(),
            of_change,
            anew: begin_anew(before, policies),
            rekeyed: rekeyed(before, &next),
            next,
        }
    }
}

/// The policies that make other keys than before, of those that have orders about single clients;
/// and how many.
fn rekeyed(before: &Policies, now: &ActivePolicies) -> Vec<(Box<str>, u64)> {
    let is_of_client = |order: &&Order| matches!(order.target, OrderTarget::Client { .. });
    let orders = |policy: &Policy| {
        let of_clients = now.orders.iter().filter(is_of_client);
        of_clients.filter(|order| policy.is_meant_by(order)).count() as u64
    };
    let has_other_keys = |policy: &&Policy| {
        let old = before.list.iter().find(|old| old.name == policy.name);
        old.is_some_and(|old| !policy.makes_keys_of(old))
    };
    let rekeyed = now.policies.without_trials().filter(|policy| orders(policy) > 0);
    let rekeyed = rekeyed.filter(has_other_keys);
    rekeyed.map(|policy| (policy.name.clone(), orders(policy))).collect()
}

/// A sentence about the messages for which there was a policy and is none now, if there are any.
/// The answer in the table is cut off after 192 bytes, so what matters comes first.
fn about_abandoned(before: &Policies, now: &Policies) -> Option<String> {
    let known: HashSet<_> = now.list.iter().map(|new| &new.message).collect();
    let is_abandoned = |old: &&Policy| old.message.is_some() && !known.contains(&old.message);
    let abandoned: Vec<_> = before.without_trials().filter(is_abandoned).collect();
    let first = abandoned.first()?;
    let messages: BTreeSet<_> = abandoned.iter().map(|old| &old.message).collect();
    let more = match messages.len() - 1 {
        0 => String::new(),
        more => format!(" (and those of {})", Count(more, "other message", "other messages")),
    };
    Some(format!(
        "no policy is for the messages '{}'{more} any more, so they get no decision; policy '{}' \
         was in force for them; is a name misspelled?",
        String::from_utf8_lossy(first.message.as_deref()?),
        first.name
    ))
}

/// A sentence about the first policy whose requests other messages settle than before, or none.
fn no_longer_settled(before: &Policies, now: &Policies) -> Option<String> {
    before.without_trials().find_map(|old| {
        let message = &old.settle()?.message;
        let new = now.named(&old.name)?;
        let is_known = now.without_trials().any(|new| new.is_settled_by(message));
        (!is_known && new.message == old.message).then(|| {
            format!(
                "responses in messages '{}' settle nothing any more; they settled policy '{}'; is \
                 a name misspelled?",
                String::from_utf8_lossy(message),
                old.name
            )
        })
    })
}

/// The line of the log when a reload has read another `[store]`.
const KEEPS_STORE: &str = "[store] of the file has changed since this agent was started, and the \
                           agent keeps the old one; restart the agent";

//! The grammar of `shared`, `without_store` and `open_for`, and whether limits can be shared.

use std::ops::RangeInclusive;
use std::time::Duration;

use gcra_lease::MOST_CELLS;
use gcra_table::Nanos;

use crate::file::reader::{Entries, Node, Reader};
use crate::limit::Limit;
use crate::policy::Policy;
use crate::sharing::{Sharing, WORDS, WithoutStore, in_whole_cells, lent};

/// How long a policy may be open without the store.
const OPEN_FOR: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

pub(crate) const SETTINGS: [&str; 3] = ["shared", "without_store", "open_for"];

/// Takes the settings of the policy with this name. Returns how it is shared, if it is, and where
/// that stands.
pub(crate) fn sharing<'t>(
    reader: &mut Reader<'t>,
    entries: &mut Entries<'_, 't>,
    policy: &str,
    has_store: bool,
) -> Option<(usize, Sharing)> {
    let [shared, without, open_for] = SETTINGS.map(|name| entries.take(name));
    let is_shared = shared.map(|value| (value.span().start, reader.boolean(value, "shared")));
    let at = match is_shared {
        Some((at, Some(true))) => at,
        Some((_, Some(false))) | None => {
            let needs = [("without_store", without), ("open_for", open_for)];
            for (name, value) in needs.into_iter().filter_map(|(name, it)| Some((name, it?))) {
                let what = format!("{name} has no effect without shared = true; leave it out");
                reader.on(value).wrong(what);
            }
            return None;
        }
        Some((_, None)) => {
            // It is wrong, and may have been meant.
            let _ = without.map(|value| word(reader, value));
            let _ = open_for.map(|value| reader.time(value, "open_for", OPEN_FOR, "10s"));
            return None;
        }
    };
    if !has_store {
        reader.at(at).wrong(format!(
            "policy '{policy}' is shared, and the file has no store; write [store], and below it \
             url = \"redis://HOST:PORT\""
        ));
    }
    let written = without.map(|value| word(reader, value));
    let mut without_store = written.flatten().unwrap_or_default();
    match (&mut without_store, open_for) {
        (WithoutStore::Open { for_ }, Some(value)) => {
            *for_ = reader.time(value, "open_for", OPEN_FOR, "10s").unwrap_or(*for_);
        }
        // If the word is wrong, "open" may have been meant.
        (_, Some(value)) if written != Some(None) => {
            let what = "open_for has no effect without without_store = \"open\"; leave it out";
            reader.on(value).wrong(what);
        }
        _ => {}
    }
    Some((at, Sharing { without_store, at_once: false }))
}

fn word<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<WithoutStore> {
    let like = "\"share\", \"closed\" or \"open\"";
    let word = reader.string(value, "without_store", like)?;
    let found = WithoutStore::of_word(&word);
    if found.is_none() {
        let at = value.span().start;
        reader.at(at).unknown("a way to do without the store", &word, &WORDS);
    }
    found
}

/// Lets the limits of a shared policy, its overrides and its trial owe whole cells.
pub(crate) fn apply<'l>(limits: impl Iterator<Item = &'l mut Limit>) {
    for limit in limits {
        if let Some(rate) = limit.rate_mut() {
            *rate = in_whole_cells(*rate);
        }
        if let Some(by_arg) = limit.by_arg_mut() {
            by_arg.is_shared = true;
        }
    }
}

/// Why a limit cannot be shared, if it cannot: a sentence that begins with the limit. `has_cost`
/// is whether requests can cost more than a cell that is lent.
pub(crate) fn not_shareable(limit: &Limit, has_cost: bool) -> Option<String> {
    let (quota, text) = (limit.rate()?, &limit.words.text);
    if has_cost && quota.burst() > MOST_CELLS {
        return Some(format!(
            "the limit '{text}' cannot be shared, because a request with a 'cost' can have at \
             most {MOST_CELLS} cells then; give it a burst of at most {MOST_CELLS}, or do not \
             share it"
        ));
    }
    let error = lent(quota).err()?;
    Some(format!("the limit '{text}' cannot be shared: {error}; lower its burst"))
}

/// Notes what makes it impossible to share a policy, or its trial with these limits.
pub(crate) fn check(reader: &mut Reader<'_>, at: usize, policy: &Policy, trial: &[Limit]) {
    let limits = || policy.limits().chain(trial);
    let Some(Sharing { without_store, at_once }) = policy.shared else { return };
    if limits().next().is_none() {
        reader.at(at).wrong(format!(
            "policy '{}' has no limit that could be shared; leave shared out",
            policy.name
        ));
    } else if at_once && without_store == WithoutStore::Share {
        let has = match policy {
            _ if policy.settle().is_some() => "settle",
            _ if policy.max_delay() > Nanos::ZERO => "max_delay",
            _ if policy.bandwidth.is_some() => "bandwidth",
            _ => "a limit with a window",
        };
        reader.at(at).wrong(format!(
            "policy '{}' is shared and has {has}, so no machine can have a share of its \
             limits while the store is away; write without_store = \"closed\" to block requests \
             then, or \"open\" to allow them for a time",
            policy.name
        ));
    }
    let mut said = Vec::new();
    let not_shareable = |limit| not_shareable(limit, policy.price.arg().is_some() && !at_once);
    for what in limits().filter_map(not_shareable) {
        // The same limit may stand in several overrides.
        if !said.contains(&what) {
            reader.at(at).wrong(format!("policy '{}': {what}", policy.name));
            said.push(what);
        }
    }
}

//! The grammar of `shared`, `without_store` and `open_for`, and whether limits can be shared.

use gcra_lease::MOST_CELLS;
use gcra_table::Nanos;

use crate::file::entries::Entries;
use crate::file::reader::Reader;
use crate::file::settings::of_policy::{OPEN_FOR, SHARED, WITHOUT_STORE};
use crate::limit::Limit;
use crate::policy::Policy;
use crate::sharing::{Sharing, WithoutStore, in_whole_cells, lent};

/// Reads the settings of the policy with this name: how it is shared, if it is.
pub(crate) fn sharing<'t>(
    reader: &mut Reader<'t>,
    entries: &Entries<'_, 't>,
    policy: &str,
    has_store: bool,
) -> Option<Sharing> {
    let is_shared = entries.read(reader, &SHARED);
    let at = entries.at(&SHARED);
    if is_shared == Some(false) || at.is_none() {
        for name in ["without_store", "open_for"] {
            let Some(at) = entries.place(name) else { continue };
            let what = format!("{name} has no effect without shared = true; leave it out");
            reader.at(at).wrong(what);
        }
        return None;
    }
    let word = entries.read(reader, &WITHOUT_STORE);
    if is_shared.is_none() {
        // It is wrong, and may have been meant.
        let _ = entries.read(reader, &OPEN_FOR);
        return None;
    }
    if let Some(at) = at.filter(|_| !has_store) {
        reader.at(at).wrong(format!(
            "policy '{policy}' is shared, and the file has no store; write [store], and below it \
             url = \"redis://HOST:PORT\""
        ));
    }
    let mut without_store = word.and_then(WithoutStore::of_word).unwrap_or_default();
    match (&mut without_store, entries.at(&OPEN_FOR)) {
        (WithoutStore::Open { for_ }, Some(_)) => {
            *for_ = entries.read(reader, &OPEN_FOR).unwrap_or(*for_);
        }
        // If the word is wrong, "open" may have been meant.
        (_, Some(at)) if word.is_some() || entries.get(&WITHOUT_STORE).is_none() => {
            let what = "open_for has no effect without without_store = \"open\"; leave it out";
            reader.at(at).wrong(what);
        }
        _ => {}
    }
    Some(Sharing { without_store, at_once: false })
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

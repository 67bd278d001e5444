//! The lists of the heaviest clients.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gcra_policy::policy::is_trial_name;
use gcra_text::columns::{Column, cut};

use crate::client_waits::WaitReason;
use crate::status::{ClientRow, PolicyStatus, TOP};
use crate::status_sum::Together;
use crate::top::describe::{number, plain, rate, short, text};

gcra_text::words! {
    /// The lists, each with its title.
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub(crate) enum Which {
        #[default]
        Blocked = "BLOCKED",
        WouldBlock = "WOULD BLOCK",
        Allowed = "ALLOWED",
    }
}

/// A client under a policy.
pub(super) struct Row<'a> {
    pub(super) client: &'a str,
    pub(super) known_as: Option<&'a str>,
    pub(super) policy: &'a str,
    /// The limit that it waits for, if it is blocked now, or that an order has blocked it.
    pub(super) limit: Option<&'a str>,
    /// By [`Which`]: requests in the window, and a second; `None` if that is unknown.
    pub(super) counts: [Option<(u64, f64)>; 3],
}

pub(super) fn client_rows(together: &Together) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for policy in &together.policies {
        let PolicyStatus { top_blocked, top_would_block, top_allowed, .. } = policy;
        let lists = [top_blocked, top_would_block, top_allowed];
        // A client that is not in a list has no such requests if the list has all clients.
        let is_exact = policy.top_is_exact.each();
        let absent = std::array::from_fn(|which| {
            let has_all = is_exact[which] && lists[which].len() < TOP;
            has_all.then_some((0, 0.0))
        });
        let mut limits: BTreeMap<&str, &str> = BTreeMap::new();
        let mut known: BTreeMap<&str, &str> = BTreeMap::new();
        let mut clients: BTreeMap<&str, [Option<(u64, f64)>; 3]> = BTreeMap::new();
        for (which, list) in lists.into_iter().enumerate() {
            for ClientRow { client, known_as, requests, per_second, limit, reason, .. } in list {
                known.extend(known_as.as_deref().map(|words| (&**client, words)));
                let is_ordered = reason.as_deref() == Some(WaitReason::Blocked.as_str());
                let limit = if is_ordered { Some("(order)") } else { limit.as_deref() };
                limits.extend(limit.map(|limit| (&**client, limit)));
                clients.entry(client).or_insert(absent)[which] = Some((*requests, per_second.0));
            }
        }
        let row = |(client, counts)| {
            let limit = limits.get(client).copied();
            let known_as = known.get(client).copied();
            Row { client, known_as, policy: &policy.name, limit, counts }
        };
        rows.extend(clients.into_iter().map(row));
    }
    rows
}

/// A list, with the clients that have the most such requests first.
pub(super) fn list(
    which: Which,
    window: f64,
    together: &Together,
    rows: &[Row<'_>],
) -> Vec<Column> {
    let count = |row: &Row<'_>, which: Which| row.counts[which as usize];
    let requests = |row: &Row<'_>, which| count(row, which).map(|(requests, _)| requests);
    let mut rows: Vec<_> = rows
        .iter()
        .filter(|row| requests(row, which) > Some(0))
        // The requests that a trial allows are among those of its policy.
        .filter(|row| which != Which::Allowed || !is_trial_name(row.policy))
        .collect();
    rows.sort_by_key(|row| (Reverse(requests(row, which)), row.client, row.policy));
    let is_exact =
        together.policies.iter().all(|policy| policy.top_is_exact.each()[which as usize]);
    let mut title = format!("{}, last {}", which.as_str(), short(window));
    if !is_exact {
        title.push_str(", about");
    }
    let name = |row: &&Row<'_>| match row.known_as {
        Some(words) => format!("{} ({words})", row.client),
        None => row.client.to_owned(),
    };
    let mut names: Vec<_> = rows.iter().map(|row| plain(name(row))).collect();
    if rows.is_empty() {
        // If not all requests were counted, there may be many clients with a few each.
        let none = if is_exact { "none" } else { "no client with many requests" };
        names.push(plain(none.to_owned()));
    }
    let is_empty = rows.is_empty();
    let mut columns = vec![Column { is_flexible: true, ..text(&title, names, 0) }];
    if is_empty {
        return columns;
    }
    if together.policies.len() > 1 {
        let policies = rows.iter().map(|row| plain(cut(row.policy, 24))).collect();
        columns.push(text("POLICY", policies, 1));
    }
    // Of a policy with one limit, its name says nothing more.
    let has_several = |row: &&Row<'_>| row.limit.is_some_and(|limit| limit != row.policy);
    if which != Which::Allowed && rows.iter().any(has_several) {
        let limits = rows.iter().map(|row| plain(cut(row.limit.unwrap_or("-"), 24))).collect();
        columns.push(text("LIMIT", limits, 2));
    }
    let other = if matches!(which, Which::Allowed) { Which::Blocked } else { Which::Allowed };
    let rates = |which| -> Vec<_> {
        rows.iter().map(|row| plain(rate(count(row, which).map(|(_, rate)| rate)))).collect()
    };
    let totals = |which| -> Vec<_> {
        let total = |row| requests(row, which).map_or("-".to_owned(), |n| n.to_string());
        rows.iter().map(|row| plain(total(row))).collect()
    };
    for (which, ranks) in [(which, [0, 3]), (other, [2, 4])] {
        let word = which.as_str();
        columns.push(number(&format!("{word}/S"), rates(which), ranks[0]));
        columns.push(number(word, totals(which), ranks[1]));
    }
    columns
}

//! The lists of the heaviest clients.

use std::collections::BTreeMap;

use gcra_policy::policy::is_trial_name;
use gcra_text::columns::{Column, cut};

use crate::status::{ClientRow, PolicyStatus, TOP};
use crate::status_sum::Together;
use crate::top::words::{number, plain, rate, short, text};

/// Lists show only the beginning of a string.
pub(super) const HOW_TO_FIND_A_STRING: &str =
    "strings are shortened; 'gcra-spoa name KEY' prints the name";

gcra_text::words! {
    #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
    pub(crate) enum SortBy {
        #[default]
        Blocked = "blocked",
        Allowed = "allowed",
        Name = "name",
    }
}

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
    pub(super) policy: &'a str,
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
        let mut clients: BTreeMap<&str, [Option<(u64, f64)>; 3]> = BTreeMap::new();
        for (which, list) in lists.into_iter().enumerate() {
            for ClientRow { client, requests, per_second, .. } in list {
                clients.entry(client).or_insert(absent)[which] = Some((*requests, per_second.0));
            }
        }
        let row = |(client, counts)| Row { client, policy: &policy.name, counts };
        rows.extend(clients.into_iter().map(row));
    }
    rows
}

/// A list, with the clients whose name contains the text that is searched for.
pub(super) fn list(
    which: Which,
    (order, search): (SortBy, &str),
    window: f64,
    together: &Together,
    rows: &[Row<'_>],
) -> Vec<Column> {
    let count = |row: &Row<'_>, which: Which| row.counts[which as usize];
    let requests = |row: &Row<'_>, which| count(row, which).map(|(requests, _)| requests);
    let search = search.to_lowercase();
    let mut rows: Vec<_> = rows
        .iter()
        .filter(|row| requests(row, which) > Some(0))
        // The requests that a trial allows are among those of its policy.
        .filter(|row| which != Which::Allowed || !is_trial_name(row.policy))
        .filter(|row| row.client.to_lowercase().contains(&search))
        .collect();
    rows.sort_by(|a, b| {
        let by_count = |which| requests(b, which).cmp(&requests(a, which));
        let first = match (order, which) {
            (SortBy::Name, _) => std::cmp::Ordering::Equal,
            (SortBy::Allowed, _) => by_count(Which::Allowed),
            // The most blocked client may not be the one with the most allowed requests.
            (SortBy::Blocked, which) => by_count(which),
        };
        first.then_with(|| (a.client, a.policy).cmp(&(b.client, b.policy)))
    });
    let is_exact =
        together.policies.iter().all(|policy| policy.top_is_exact.each()[which as usize]);
    let mut title = format!("{}, last {}", which.as_str(), short(window));
    if order != SortBy::Blocked {
        title = format!("{title}, by {}", order.as_str());
    }
    if !is_exact {
        title.push_str(", about");
    }
    let mut names: Vec<_> = rows.iter().map(|row| plain(row.client.to_owned())).collect();
    if rows.is_empty() {
        // If not all requests were counted, there may be many clients with a few each.
        let none = match (&*search, is_exact) {
            ("", true) => "none",
            ("", false) => "no client with many requests",
            _ => "no client in this list matches",
        };
        names.push(plain(none.to_owned()));
        if !search.is_empty() && matches!(which, Which::Blocked) {
            names.push(plain(HOW_TO_FIND_A_STRING.to_owned()));
        }
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
    let other = if matches!(which, Which::Allowed) { Which::Blocked } else { Which::Allowed };
    let rates = |which| -> Vec<_> {
        rows.iter().map(|row| plain(rate(count(row, which).map(|(_, rate)| rate)))).collect()
    };
    let totals = |which| -> Vec<_> {
        let total = |row| requests(row, which).map_or("-".to_owned(), |n| n.to_string());
        rows.iter().map(|row| plain(total(row))).collect()
    };
    // The column that the list is sorted by is always shown.
    let sorts = order == SortBy::Allowed && matches!(other, Which::Allowed);
    for (which, ranks) in [(which, [0, 3]), (other, [if sorts { 0 } else { 2 }, 4])] {
        let word = which.as_str();
        columns.push(number(&format!("{word}/S"), rates(which), ranks[0]));
        columns.push(number(word, totals(which), ranks[1]));
    }
    columns
}

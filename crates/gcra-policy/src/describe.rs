//! Policies in words, for the log and for `gcra-spoa check`.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use gcra_table::Nanos;
use gcra_text::count::Count;
use gcra_text::duration::Exact;

use crate::answers::Answers;
use crate::bandwidth::Bandwidth;
use crate::limit::{Limit, LimitWords, Rule};
use crate::overrides::{OVERRIDES, OverrideCounts};
use crate::policies::Policies;
use crate::policy::{Policy, Price, When};
use crate::settle::Settle;
use crate::sharing::{Sharing, WithoutStore};

/// How many limits a message names.
const MOST_NAMED: usize = 3;

/// How many different limits of overrides have a line each. A file may have 100,000, and the log
/// has these lines at each reload.
const MOST_OVERRIDES: usize = 100;

impl Policies {
    /// All policies, a paragraph each, and the variables.
    pub fn in_words(&self, now: SystemTime) -> String {
        let mut lines: Vec<_> =
            self.without_trials().flat_map(|policy| policy.lines(self, now)).collect();
        lines.extend(self.rest_in_words());
        lines.join("\n")
    }

    /// The changes since these policies were in force that their words show: a line for each
    /// policy. "policy 'read': 20 per second -> 10 per second".
    pub fn changes_since(&self, before: &Self, now: SystemTime) -> Vec<String> {
        let lines_of = |all: &Self, name: &str| -> Vec<String> {
            let policy = all.named(name);
            policy.map(|policy| policy.lines(all, now)).unwrap_or_default()
        };
        let mut names: Vec<&str> = Vec::new();
        for policy in before.without_trials().chain(self.without_trials()) {
            if !names.contains(&&*policy.name) {
                names.push(&policy.name);
            }
        }
        let of_policies = names.into_iter().filter_map(|name| {
            let (old, new) = (lines_of(before, name), lines_of(self, name));
            Some(match (old.is_empty(), new.is_empty()) {
                (true, _) => format!("policy '{name}' is new"),
                (_, true) => format!("policy '{name}' is gone"),
                _ => format!("policy '{name}': {}", change(&old, &new)?),
            })
        });
        let rest = change(&before.rest_in_words(), &self.rest_in_words());
        of_policies.chain(rest).collect()
    }

    /// The store and the variables, a line each.
    pub fn rest_in_words(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let Answers { scope, blocked, others } = &self.answers;
        let names = [*blocked].into_iter().chain(others.iter().map(|var| var.name()));
        let names: Vec<_> = names.map(|name| name.as_str().to_owned()).collect();
        lines.extend(self.store.iter().map(|store| format!("store: {}", store.in_words())));
        lines.push(format!("variables, in the scope {}: {}", scope.as_str(), names.join(", ")));
        lines
    }
}

/// The lines that are gone, and those that are new: "20 per second -> 10 per second".
fn change(old: &[String], new: &[String]) -> Option<String> {
    let only_in = |of: &[String], other: &[String]| {
        let only: Vec<_> =
            of.iter().filter(|line| !other.contains(line)).map(|line| line.trim()).collect();
        if only.is_empty() { "nothing".to_owned() } else { only.join("; ") }
    };
    let (gone, added) = (only_in(old, new), only_in(new, old));
    (gone != added).then(|| format!("{gone} -> {added}"))
}

impl Policy {
    /// "100 per second, up to 20 at once, for each ip".
    pub fn in_words(&self) -> String {
        format!("{}, {}", self.rule.in_words(), self.clients())
    }

    /// "for each ip, with the cost in n".
    fn clients(&self) -> String {
        let mut words = self.key.in_words(self.overrides.has_networks());
        if let Price::Cost(cost) = &self.price {
            let _ = write!(words, ", with the cost in {}", text(cost));
        }
        words
    }

    /// Everything about the policy: what it is for, and below that a line for each fact.
    pub fn lines(&self, all: &Policies, now: SystemTime) -> Vec<String> {
        let mut words = format!("policy '{}'", self.name);
        if let Some(message) = &self.message {
            let _ = write!(words, ", for the message '{}'", text(message));
        }
        if let Some(When { arg, values, .. }) = &self.when {
            let values: Vec<_> = values.iter().map(|value| format!("'{}'", text(value))).collect();
            let _ = write!(words, " when {} is {}", text(arg), values.join(" or "));
        }
        let mut facts = self.rule.facts(now);
        facts.push(self.clients());
        facts.extend(self.settle().into_iter().flat_map(|settle| settle.in_words(self)));
        if self.observes {
            facts.push("only observes, and blocks no request".to_owned());
        }
        let max_delay = self.max_delay();
        if max_delay > Nanos::ZERO {
            let up_to = Exact(max_delay.into());
            if self.observes {
                facts.push(format!(
                    "a request over the limit would be delayed if it had to wait for at most \
                     {up_to}"
                ));
            } else {
                facts.push(format!(
                    "a request over the limit is delayed if it has to wait for at most {up_to}, \
                     else blocked"
                ));
                let needs = "HAProxy must hold what is delayed: this needs HAProxy 3.2 or later, \
                             and its rule 'pause'";
                facts.push(needs.to_owned());
            }
        }
        // A policy that only observes charges none.
        if let Some(penalty) = self.penalty.filter(|_| !self.observes) {
            facts.push(format!(
                "the limit that denies a request is charged {}, which adds at most {} to the wait",
                Count(penalty.cells, "cell", "cells"),
                Exact(Duration::from_nanos(penalty.ceiling_ns))
            ));
        }
        facts.extend(self.bandwidth.map(Bandwidth::in_words));
        facts.extend(self.shared.map(Sharing::in_words));
        if let Some(trial) = self.trial {
            let limits = all.list[trial].rule.in_words();
            facts.push(format!("observe, which blocks no request: {limits}"));
        }
        let counts = self.overrides.counts();
        for (place, rule) in self.overrides.rules.iter().enumerate().take(MOST_OVERRIDES) {
            let limits = match rule {
                Rule::Deny => "deny".to_owned(),
                Rule::Unlimited => "unlimited".to_owned(),
                Rule::Limits(_) => rule.in_words(),
            };
            facts.push(format!("overrides, {limits}: {}", self.overridden(place, counts[place])));
        }
        if let more @ 1.. = self.overrides.rules.len().saturating_sub(MOST_OVERRIDES) {
            let more = Count(more, "other limit", "other limits");
            facts.push(format!("overrides, {more}; 'gcra-spoa explain' says which a client has"));
        }
        let facts = facts.into_iter().map(|fact| format!("    {fact}"));
        [words].into_iter().chain(facts).collect()
    }

    /// The values that the override rule at this place is for: "2 IPv4 networks, 1 value
    /// (partners.txt)".
    fn overridden(&self, place: usize, counts: OverrideCounts) -> String {
        let OverrideCounts { v4, v6, values } = counts;
        let counts = [
            Count(v4[0], "IPv4 address", "IPv4 addresses"),
            Count(v4[1], "IPv4 network", "IPv4 networks"),
            Count(v6[0], "IPv6 address", "IPv6 addresses"),
            Count(v6[1], "IPv6 network", "IPv6 networks"),
            Count(values, "value", "values"),
        ];
        let counts: Vec<_> =
            counts.iter().filter(|count| count.0 > 0).map(ToString::to_string).collect();
        let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
        match self.overrides.lists.get(place).map(Vec::as_slice) {
            None => counts,
            // The table of overrides is not named where it is the only source.
            Some([only]) if **only == *OVERRIDES => counts,
            Some(lists) => format!("{counts} ({})", lists.join(", ")),
        }
    }
}

impl Rule {
    /// A sentence for each limit. If there are several, each has its name.
    fn facts(&self, now: SystemTime) -> Vec<String> {
        match self {
            Self::Deny | Self::Unlimited => vec![self.in_words()],
            Self::Limits(limits) => {
                let in_words = |limit: &Limit| {
                    let (label, LimitWords { text, bound }) = (&limit.label, &*limit.words);
                    let next = limit.calendar().map(|calendar| calendar.next_in_words(now));
                    let next = next.map(|next| format!("; {next}")).unwrap_or_default();
                    match limits.len() {
                        1 => format!("{text}: {bound}{next}"),
                        _ => format!("{label}: {text}: {bound}{next}"),
                    }
                };
                limits.iter().map(in_words).collect()
            }
        }
    }

    /// "10 per second, up to 20 at once; and 100 per hour, up to 100 at once".
    pub fn in_words(&self) -> String {
        match self {
            Self::Deny => "every request is blocked".to_owned(),
            Self::Unlimited => "no request is blocked".to_owned(),
            Self::Limits(limits) => {
                limits.iter().map(|limit| &*limit.words.text).collect::<Vec<_>>().join("; and ")
            }
        }
    }
}

impl Settle {
    /// "each request reserves 5 cells; the message 'usage' settles the cost in tokens".
    pub fn in_words(&self, policy: &Policy) -> Vec<String> {
        let reserves = match (&self.reserve, self.cells) {
            (Some(arg), _) => format!("each request reserves the cells in {}", text(arg)),
            (None, 0) => "a request is blocked if no cell is left, and reserves none".to_owned(),
            (None, cells) => {
                format!("each request reserves {}", Count(cells, "cell", "cells"))
            }
        };
        let cost = match &self.cost {
            None => "one cell".to_owned(),
            Some(cost) => format!("the cells in {}", text(cost)),
        };
        let message = text(&self.message);
        let mut lines = vec![format!("{reserves}; the message '{message}' charges {cost}")];
        if policy.limits().any(|limit| limit.calendar().is_none()) {
            let debt = Exact(self.max_debt);
            lines.push(format!("responses charge beyond the burst, up to {debt} of debt"));
        }
        if policy.limits().any(|limit| limit.calendar().is_some()) {
            lines.push("responses charge beyond the count, until the window ends".to_owned());
        }
        let within = Exact(self.within);
        if self.cells > 0 || self.reserve.is_some() {
            lines.push(format!("what was reserved too much is given back within {within}"));
        }
        if let Some(unsettled) = self.unsettled {
            let cells = Count(unsettled.cells, "cell", "cells");
            lines
                .push(format!("a request that no response settles within {within} costs {cells}"));
        }
        lines
    }
}

/// The words for a shared policy without the store if this many machines share it; 0 if that is
/// not known.
pub fn without_store_in_words(policy: &Policy, sharing: Sharing, machines: u32) -> String {
    if sharing.at_once {
        return sharing.without_store_in_words();
    }
    let first = match sharing.without_store {
        WithoutStore::Closed => return sharing.without_store_in_words(),
        WithoutStore::Share => String::new(),
        WithoutStore::Open { for_ } => {
            format!("requests are allowed for {}, and then ", Exact(for_))
        }
    };
    let Some(blocked) = blocked_without_store(policy, machines) else {
        return sharing.without_store_in_words();
    };
    let has_share = policy
        .rules()
        .map(Rule::limits)
        .any(|limits| !limits.is_empty() && limits.iter().all(|limit| has_share(limit, machines)));
    let others = match has_share {
        true => "; under other limits, each machine allows its share",
        false => "",
    };
    format!(
        "{first}all requests {blocked} are blocked, because {machines} machines cannot share a \
         burst of less than {machines}{others}"
    )
}

/// The requests that a policy blocks without the store because no machine has a share: "under '1
/// per second, up to 2 at once'". `None` if there are none.
pub fn blocked_without_store(policy: &Policy, machines: u32) -> Option<String> {
    let mut texts: Vec<_> = policy
        .limits()
        .filter(|limit| !has_share(limit, machines))
        .map(|limit| format!("'{}'", limit.words.text))
        .collect();
    texts.sort_unstable();
    texts.dedup();
    // A file may have many overrides.
    if let more @ 1.. = texts.len().saturating_sub(MOST_NAMED) {
        texts.truncate(MOST_NAMED);
        texts.push(Count(more, "other limit", "other limits").to_string());
    }
    (!texts.is_empty()).then(|| format!("under {}", texts.join(" and ")))
}

fn has_share(limit: &Limit, machines: u32) -> bool {
    limit.burst() >= machines
}

/// The name of an arg or a message, for people.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

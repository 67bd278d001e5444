//! Policies in words, for the log and for `gcra-spoa check`.

use std::fmt::Write as _;
use std::time::Duration;

use crate::duration::Exact;
use crate::plural::Count;
use crate::policy::{KeyParts, Policies, Policy, Rule, When};

impl Policies {
    /// All policies, a paragraph each.
    pub(crate) fn in_words(&self) -> String {
        let mut words: Vec<_> =
            self.without_trials().map(|policy| policy.in_a_list(self)).collect();
        let others: Vec<_> = self.answers.others.iter().map(|var| var.name().as_str()).collect();
        if !others.is_empty() {
            words.push(format!("variables besides 'blocked': {}", others.join(", ")));
        }
        words.join("\n")
    }
}

impl Policy {
    /// "100 per second, up to 20 at once, for each ip".
    pub(crate) fn in_words(&self) -> String {
        let mut words = format!("{}, {}", self.rule.in_words(), self.key.in_words());
        if let Some(cost) = &self.cost {
            let _ = write!(words, ", with the cost in {}", text(cost));
        }
        words
    }

    /// The same with its name, what it is for, and its overrides.
    fn in_a_list(&self, all: &Policies) -> String {
        let mut words = format!("policy '{}'", self.name);
        if let Some(message) = &self.message {
            let _ = write!(words, ", for the message '{}'", text(message));
        }
        if let Some(When { arg, values }) = &self.when {
            let values: Vec<_> = values.iter().map(|value| format!("'{}'", text(value))).collect();
            let _ = write!(words, " when {} is {}", text(arg), values.join(" or "));
        }
        let _ = write!(words, ": {}", self.in_words());
        if self.observes {
            words.push_str("; it only observes, and blocks no request");
        }
        // A policy that only observes charges none.
        if let Some(penalty) = self.penalty.filter(|_| !self.observes) {
            let _ = write!(
                words,
                "; each blocked request is charged {}, which adds at most {} to the wait",
                Count(penalty.cells, "cell", "cells"),
                Exact(Duration::from_nanos(penalty.ceiling_ns))
            );
        }
        if let Some(trial) = self.trial {
            let limits = all.list[trial].rule.in_words();
            let _ = write!(words, "\n    observe, which blocks no request: {limits}");
        }
        for (place, rule) in self.overrides.rules.iter().enumerate() {
            let limits = match rule {
                Rule::Deny => "deny".to_owned(),
                Rule::Unlimited => "unlimited".to_owned(),
                Rule::Limits(_) => rule.in_words(),
            };
            let _ = write!(words, "\n    overrides, {limits}: {}", self.overridden(place));
        }
        words
    }

    /// For how much the override rule at this place is: "2 IPv4 networks, 1 value".
    fn overridden(&self, place: usize) -> String {
        let (v4, v6, values) = self.overrides.counts(place);
        let counts = [
            Count(v4, "IPv4 network", "IPv4 networks"),
            Count(v6, "IPv6 network", "IPv6 networks"),
            Count(values, "value", "values"),
        ];
        let counts: Vec<_> =
            counts.iter().filter(|count| count.0 > 0).map(ToString::to_string).collect();
        if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
    }
}

impl Rule {
    fn in_words(&self) -> String {
        match self {
            Self::Deny => "every request is blocked".to_owned(),
            Self::Unlimited => "no request is blocked".to_owned(),
            Self::Limits(limits) => {
                limits.iter().map(|limit| &*limit.text).collect::<Vec<_>>().join("; and ")
            }
        }
    }
}

impl KeyParts {
    /// "for each ip and path (IPv6 by /64), ignoring case".
    fn in_words(&self) -> String {
        let mut words = match self.args[..] {
            [] => "for each value of the message's args".to_owned(),
            _ => "for each ".to_owned(),
        };
        for (place, arg) in self.args.iter().enumerate() {
            let and = match place.checked_sub(1).map(|before| self.args[before].has_fallback()) {
                None => "",
                Some(false) => " and ",
                Some(true) => ", and ",
            };
            let _ = write!(words, "{and}{arg}");
        }
        let groups: Vec<_> = [("IPv4", self.ipv4_prefix, 32), ("IPv6", self.ipv6_prefix, 128)]
            .iter()
            .filter(|(_, prefix, whole)| prefix < whole)
            .map(|(family, prefix, _)| format!("{family} by /{prefix}"))
            .collect();
        if !groups.is_empty() {
            let _ = write!(words, " ({})", groups.join(", "));
        }
        if self.lowercase {
            words.push_str(", ignoring case");
        }
        words
    }
}

/// The name of an arg or a message, for people.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

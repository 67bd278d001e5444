//! The policies of a file, with their places in it, and whether a policy takes the messages of
//! another.

use std::collections::hash_map::Entry;
use std::fmt;

use ahash::AHashMap;

use crate::describe::text;
use crate::file::reader::Reader;
use crate::policy::{Policy, When};

/// Policies, and where each of them stands.
#[derive(Default)]
pub(crate) struct PlacedPolicies {
    pub list: Vec<Policy>,
    pub places: Vec<usize>,
}

impl PlacedPolicies {
    pub(crate) fn add(&mut self, policy: Policy, at: usize) {
        self.list.push(policy);
        self.places.push(at);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Policy)> {
        self.places.iter().copied().zip(&self.list)
    }

    /// The first policy that is for a message applies, so one without `when` must be the last, and
    /// a value of an arg belongs to the first policy that names it.
    pub(crate) fn none_hides_another(&self, reader: &mut Reader<'_>) {
        // The first policy for each message, and for each message and value of an arg.
        let mut every: AHashMap<_, &Policy> = AHashMap::new();
        let mut some: AHashMap<_, &Policy> = AHashMap::new();
        for (at, policy) in self.iter() {
            let name = &policy.name;
            if let Some(hiding) = every.get(&policy.message) {
                let and_when = if policy.when.is_some() { "" } else { ", and give it a 'when'" };
                reader.at(at).wrong(format!(
                    "policy '{name}' never applies, because policy '{}' above it is for the same \
                     message; put '{name}' first{and_when}",
                    hiding.name
                ));
                continue;
            }
            let Some(When { arg, values, .. }) = &policy.when else {
                every.insert(&policy.message, policy);
                continue;
            };
            // The policies that have some of the values already.
            let (mut hiding, mut hidden) = (Vec::new(), Vec::new());
            for value in values {
                match some.entry((&policy.message, arg, value)) {
                    Entry::Occupied(entry) => {
                        let name = &entry.get().name;
                        if !hiding.contains(&name) {
                            hiding.push(name);
                        }
                        hidden.push(value);
                    }
                    Entry::Vacant(entry) => drop(entry.insert(policy)),
                }
            }
            if hidden.is_empty() {
                continue;
            }
            let above = match &hiding[..] {
                [one] => format!("policy '{one}' above it has"),
                several => format!("policies {} above it have", quoted(several)),
            };
            if hidden.len() == values.len() {
                reader.at(at).wrong(format!(
                    "policy '{name}' never applies, because {above} all values of its 'when', for \
                     the same message; leave the policy or those values out"
                ));
            } else {
                let is_one = hidden.len() == 1;
                let (noun, them) = if is_one { ("value", "it") } else { ("values", "them") };
                reader.at(at).warn(format!(
                    "policy '{name}' never gets the {noun} {} of '{}', because {above} {them}, \
                     for the same message; leave {them} out of one of the two",
                    quoted(&hidden.iter().map(|value| text(value)).collect::<Vec<_>>()),
                    text(arg)
                ));
            }
        }
    }

    /// Notes messages that settle and are also those of requests, and those that settle for
    /// several policies that their `when` does not tell apart.
    pub(crate) fn none_settles_for_another(&self, reader: &mut Reader<'_>) {
        for (place, (at, policy)) in self.iter().enumerate() {
            let Some(settle) = policy.settle() else { continue };
            let (name, message) = (&policy.name, text(&settle.message));
            let of_request = |other: &&Policy| other.message.as_deref() == Some(&*settle.message);
            let is_own = policy.message.as_deref() == Some(&*settle.message);
            if let Some(other) = self.list.iter().find(of_request).filter(|_| !is_own) {
                reader.at(at).wrong(format!(
                    "policy '{name}' is settled by the message '{message}', and policy '{}' is \
                     for it; give the response a spoe-message of its own",
                    other.name
                ));
            }
            let hides = |other: &&Policy| {
                let is_same = other.settle().is_some_and(|it| it.message == settle.message);
                is_same
                    && match (&other.when, &policy.when) {
                        (None, _) => true,
                        (Some(first), Some(then)) => {
                            first.arg == then.arg
                                && then.values.iter().any(|value| first.values.contains(value))
                        }
                        (Some(_), None) => false,
                    }
            };
            if let Some(other) = self.list.iter().take(place).find(hides) {
                reader.at(at).wrong(format!(
                    "the message '{message}' settles policy '{}', so it cannot settle policy \
                     '{name}' for the same requests; give each a spoe-message of its own, or a \
                     'when' that tells them apart",
                    other.name
                ));
            }
        }
    }
}

/// Names in quotes: "'a', 'b' and 2 more".
fn quoted<T: fmt::Display>(names: &[T]) -> String {
    const MOST: usize = 3;
    let shown: Vec<_> = names.iter().take(MOST).map(|name| format!("'{name}'")).collect();
    match (names.len().saturating_sub(MOST), &shown[..]) {
        (0, [first @ .., last]) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        (0, _) => shown.concat(),
        (more, _) => format!("{} and {more} more", shown.join(", ")),
    }
}

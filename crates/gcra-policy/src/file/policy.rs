//! The grammar of a policy: all its entries are read, and then checked together.

use std::time::Duration;

use gcra_table::Nanos;
use gcra_text::duration::Short;
use toml::Spanned;
use toml::de::DeValue;

use crate::client_names::NameSalt;
use crate::describe;
use crate::file::entries::Entries;
use crate::file::key::key_parts;
use crate::file::limits::WrittenFor;
use crate::file::max_delay::{self, max_delay};
use crate::file::names::{NAME_RULE, is_name, not_a_message, not_an_arg};
use crate::file::overrides::{not_as_text, overrides};
use crate::file::reader::{EntryName, Node, Reader, quoted, scalar};
use crate::file::settings::{
    APART, BANDWIDTH_TABLE, FILE_TABLE, LIST_TABLE, PENALTY_TABLE, POLICY_TABLE, Setting, flag,
    is_nearly_a_setting, of_policy as of,
};
use crate::file::settle::{self, OfPolicy};
use crate::file::sources::Sources;
use crate::file::{bandwidth, limits, penalty, sharing};
use crate::key_parts::{KeyParts, Nat64};
use crate::limit::{Limit, Rule};
use crate::policy::{Policy, Price, When, trial_name};

/// The settings of a file for all its policies.
pub(crate) struct ForAll {
    /// Whether the file has a `[store]`, which may be wrong.
    pub has_store: bool,
    pub nat64: Nat64,
    pub name_salt: Option<NameSalt>,
}

/// A policy, and the limits of its trial if it has one.
pub(crate) fn policy<'t>(
    reader: &mut Reader<'t>,
    sources: &mut Sources,
    for_all: &ForAll,
    name: &EntryName<'t>,
    value: &Node<'t>,
) -> Option<(Policy, Option<Vec<Limit>>)> {
    let at = name.span().start;
    let name = &**name.get_ref();
    if !is_name(name) {
        let what = format!("'{name}' is not a valid name for a policy: {NAME_RULE}");
        reader.at(at).wrong_text(name, &what);
    }
    let table = reader.table(value, &not_a_table(name, value))?;
    let entries = &Entries::new(format!("policy '{name}'"), &POLICY_TABLE, table);
    let mut draft = Draft::read(reader, entries, for_all, name, at);
    draft.policy.overrides = overrides(reader, sources, draft.written_for(), entries);
    are_apart(reader, entries, name);
    entries.no_others(reader, |entry, value| misplaced(name, entry, value));
    draft.complete_quotas(reader);
    draft.finish(reader)
}

/// A policy whose entries were read. An entry that is wrong is missing, and was noted.
struct Draft<'e, 'd, 't> {
    entries: &'e Entries<'d, 't>,
    /// Where the name of the policy stands.
    at: usize,
    policy: Policy,
    /// Whether the policy has its own rule, and not one in place of a wrong one.
    rule_is_known: bool,
    trial: Option<Vec<Limit>>,
    cost: Option<String>,
    max_delay: Option<Nanos>,
}

impl<'e, 'd, 't> Draft<'e, 'd, 't> {
    fn read(
        reader: &mut Reader<'t>,
        entries: &'e Entries<'d, 't>,
        for_all: &ForAll,
        name: &str,
        at: usize,
    ) -> Self {
        let message = message(reader, entries, name, at);
        let when = entries.get(&of::WHEN).and_then(|value| when(reader, value));
        let key = key_parts(reader, entries, &for_all.nat64, None);
        let rule = match entries.get(&of::LIMITS) {
            Some(value) => limits::rule(reader, WrittenFor { name, key: &key }, "limits", value),
            None => reader.at(at).refuse(format!(
                "policy '{name}' has no limits; write limits = [\"100/s burst 20\"], or \"deny\" \
                 or \"unlimited\""
            )),
        };
        if let (Some(at), Some(when)) = (entries.at(&of::WHEN), &when) {
            key_tells_clients_apart(reader, name, &key, when, at);
        }
        let cost = cost(reader, entries, &key);
        let of_policy = OfPolicy { name, message: &message, key: &key, cost: cost.as_deref() };
        // The cost of a policy with `settle` is in the message of the response.
        let price = match (settle::settle(reader, entries, of_policy), &cost) {
            (Some(settle), _) => Price::Settled(settle.into()),
            (None, Some(arg)) => Price::Cost(arg.as_bytes().into()),
            (None, None) => Price::Cell,
        };
        let observes = entries.get(&of::MODE).is_some_and(|value| observes(reader, value));
        let trial = entries.get(&of::OBSERVE).and_then(|value| {
            if observes {
                reader.on(value).warn(format!(
                    "policy '{name}' blocks no request by its limits either, because of mode = \
                     \"observe\"; leave out mode when they are to block again"
                ));
            }
            limits::trial(reader, WrittenFor { name, key: &key }, value)
        });
        let max_delay = entries.get(&of::MAX_DELAY).and_then(|it| max_delay(reader, it));
        let rule_is_known = rule.is_some();
        let policy = Policy {
            message: Some(message.into_bytes().into()),
            when,
            price,
            observes,
            penalty: entries.get(&of::PENALTY).and_then(|it| penalty::penalty(reader, it)),
            bandwidth: entries.get(&of::BANDWIDTH).and_then(|it| bandwidth::bandwidth(reader, it)),
            shared: sharing::sharing(reader, entries, name, for_all.has_store),
            name_salt: for_all.name_salt,
            ..Policy::new(name, key, rule.unwrap_or(Rule::Unlimited))
        };
        Self { entries, at, policy, rule_is_known, trial, cost, max_delay }
    }

    fn written_for(&self) -> WrittenFor<'_> {
        WrittenFor { name: &self.policy.name, key: &self.policy.key }
    }

    /// Where a setting stands.
    fn place<K>(&self, setting: &Setting<K>) -> usize {
        self.entries.at(setting).unwrap_or(self.at)
    }

    /// Puts into the quotas the debts that other settings let clients have. The delay comes first,
    /// because a penalty comes on top of the cells that can be delayed.
    fn complete_quotas(&mut self, reader: &mut Reader<'_>) {
        let (name, rule_is_known) = (self.policy.name.clone(), self.rule_is_known);
        if let Some(max_delay) = self.max_delay {
            let at = self.place(&of::MAX_DELAY);
            max_delay::apply(reader, at, &name, max_delay, rule_is_known, self.limits_mut());
        }
        if let Some(penalty) = self.policy.penalty {
            let at = self.place(&of::PENALTY);
            penalty::apply(reader, at, &name, penalty, rule_is_known, self.policy.limits_mut());
        }
        if let Price::Settled(settle) = &self.policy.price {
            if let Some(at) =
                self.entries.at(&of::UNSETTLED).filter(|_| self.policy.shared.is_some())
            {
                reader.at(at).wrong(format!(
                    "policy '{name}' cannot have unsettled and shared, because the store does not \
                     know which requests are still unsettled; reserve more instead, or do not \
                     share it"
                ));
            }
            let settle = settle.clone();
            let limits = self.policy.limits_mut();
            settle::apply(reader, self.entries, &name, &settle, rule_is_known, limits);
        }
        if self.policy.shared.is_some() {
            sharing::apply(self.limits_mut().map(|(limit, _)| limit));
        }
    }

    /// All limits, each with the words that tell whose it is.
    fn limits_mut(&mut self) -> impl Iterator<Item = (&mut Limit, &'static str)> {
        let Policy { rule, overrides, .. } = &mut self.policy;
        let own = rule.limits_mut().iter_mut().map(|limit| (limit, ""));
        let overrides = overrides.rules.iter_mut().flat_map(Rule::limits_mut);
        let overrides = overrides.map(|limit| (limit, " of its overrides"));
        let trial = self.trial.iter_mut().flatten().map(|limit| (limit, " of its observe"));
        own.chain(overrides).chain(trial)
    }

    /// Notes what does not fit together.
    fn finish(mut self, reader: &mut Reader<'_>) -> Option<(Policy, Option<Vec<Limit>>)> {
        let (at, trial) = (self.at, self.trial.as_deref().unwrap_or_default());
        let all: Vec<_> = self.policy.limits().chain(trial).collect();
        let settle = self.policy.settle();
        let reserve = settle.and_then(|settle| settle.reserve.as_deref());
        let costs = [
            ("cost", self.cost.as_deref().map(str::as_bytes), self.place(&of::COST)),
            ("reserve", reserve, self.place(&of::RESERVE)),
        ];
        limits::args_are_apart(reader, at, &self.policy.key, &all, costs);
        let at_once = self.max_delay.is_some()
            || settle.is_some()
            || self.policy.bandwidth.is_some()
            || all.iter().any(|limit| limit.calendar().is_some());
        if let Some(shared) = &mut self.policy.shared {
            shared.at_once = at_once;
        }
        if !self.rule_is_known {
            return None;
        }
        let policy = &self.policy;
        if policy.bandwidth.is_some() {
            bandwidth::check(reader, self.place(&of::BANDWIDTH), policy);
        }
        slots_are_enough(reader, at, policy);
        sharing::check(reader, self.place(&of::SHARED), policy, trial);
        let (name, of_trial) = (&policy.name, trial_name(&policy.name));
        if policy.limits().any(|limit| *limit.record_name == of_trial) {
            reader.at(self.place(&of::OBSERVE)).wrong(format!(
                "a limit of policy '{name}' is called 'observe', and '{of_trial}' is the name \
                 of the trial; give the limit another name"
            ));
        }
        Some((self.policy, self.trial))
    }
}

/// The message that a policy is for: by default that of its name.
fn message<'t>(
    reader: &mut Reader<'t>,
    entries: &Entries<'_, 't>,
    name: &str,
    at: usize,
) -> String {
    if let Some(what) = not_a_message(name, "message").filter(|_| is_name(name))
        && entries.get(&of::MESSAGE).is_none()
    {
        reader.at(at).wrong(what);
    }
    entries.read(reader, &of::MESSAGE).unwrap_or_else(|| name.to_owned())
}

fn not_a_table(name: &str, value: &Node<'_>) -> String {
    if POLICY_TABLE.has(name) {
        return format!(
            "'{name}' belongs to a policy, which has a name; write [policy.NAME] above it"
        );
    }
    let is = if value.get_ref().is_array() { "is a list" } else { "must be a table" };
    format!("policy.{name} {is}; write [policy.{name}], and below it limits = \"10/s burst 20\"")
}

/// Notes each two settings that a policy cannot have beside each other.
fn are_apart(reader: &mut Reader<'_>, entries: &Entries<'_, '_>, policy: &str) {
    for (setting, other, why) in APART {
        if let (Some(at), Some(_)) = (entries.place(setting), entries.place(other)) {
            reader.at(at).wrong(format!(
                "policy '{policy}' cannot have {other} and {setting}, because {why}; leave one of \
                 them out"
            ));
        }
    }
}

/// Where an entry belongs that is no setting of a policy, if that is known.
fn misplaced(policy: &str, name: &str, value: &Node<'_>) -> Option<String> {
    Some(match name {
        _ if value.get_ref().is_table() && !is_nearly_a_setting(name) => {
            format!("the name of a policy has no dots; write [policy.{policy}-{name}]")
        }
        "rate" | "burst" => {
            format!("'{name}' belongs to a limit; write limits = \"10/s burst 20\"")
        }
        "name" => "a policy has its name in its header; leave 'name' out".to_owned(),
        _ if FILE_TABLE.has(name) => {
            format!("'{name}' is for the whole file; write it above the first [policy.NAME]")
        }
        _ if PENALTY_TABLE.has(name) => {
            format!("'{name}' belongs to a penalty; write penalty = {}", of::PENALTY.about.example)
        }
        _ if BANDWIDTH_TABLE.has(name) => format!(
            "'{name}' belongs to a bandwidth; write bandwidth = {}",
            of::BANDWIDTH.about.example
        ),
        _ if LIST_TABLE.has(name) => {
            format!("'{name}' belongs to a list; write [[policy.{policy}.lists]] above it")
        }
        _ => return flag(name),
    })
}

/// Warns of a policy whose clients keep their slots of the table for so long that the usual
/// number of slots may be used up.
fn slots_are_enough(reader: &mut Reader<'_>, at: usize, policy: &Policy) {
    const LONG: Duration = Duration::from_secs(7 * 86_400);
    let kept_for = |limit: &Limit| match limit.calendar() {
        Some(calendar) => Duration::from_secs(calendar.unit().nominal_s().into()),
        None => limit.quota(None).drain_time().into(),
    };
    // Shared limits are in the store.
    let local = policy.limits().filter(|_| policy.shared.is_none());
    let longest = local.map(kept_for).max().unwrap_or_default();
    if longest >= LONG {
        reader.at(at).warn(format!(
            "each client of policy '{}' can keep a slot of the table for {}; start the agents \
             with --slots of at least twice the clients of that time (the usual table has \
             1048576), or some are forgotten",
            policy.name,
            Short(longest)
        ));
    }
}

/// `{ plan = "gold" }` or `{ plan = ["gold", "silver"] }`.
fn when<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<When> {
    const HOW: &str = "when must name one arg and its values, such as { plan = \"gold\" } or \
                       { plan = [\"gold\", \"silver\"] }";
    let at = value.span().start;
    let mut entries = reader.table(value, HOW)?.iter();
    let (Some((arg, values)), None) = (entries.next(), entries.next()) else {
        return reader.at(at).refuse(HOW);
    };
    if arg.get_ref().is_empty() {
        let what = "when names no arg; write the name of an arg of the message, such as \
                    { plan = \"gold\" }";
        reader.at(at).wrong(what);
    }
    let values = match values.get_ref() {
        DeValue::Array(array) => array.iter().map(Spanned::get_ref).collect(),
        value => vec![value],
    };
    let texts = values.iter().map(|value| scalar(value)).collect::<Option<Vec<_>>>();
    let Some(texts) = texts.filter(|texts| !texts.is_empty()) else {
        return reader.at(at).refuse(HOW);
    };
    if !values.iter().all(|value| value.is_str()) {
        let each: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
        let right = match &each[..] {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let arg = arg.get_ref();
        let right = format!("{{ {arg} = {right} }}");
        let what = format!("the values of '{arg}' in when must be strings; write {right}");
        reader.at(at).right(Some(right)).wrong(what);
    }
    if let Some(what) = not_an_arg(arg.get_ref(), "when") {
        reader.at(at).wrong(&what);
    }
    let mut distinct: Vec<Box<[u8]>> = Vec::new();
    for value in texts {
        if let Some(what) = not_as_text(&value, false) {
            reader.hide(&value);
            reader.at(at).warn(format!("in when, {what}"));
        }
        if distinct.iter().any(|known| **known == *value.as_bytes()) {
            reader.at(at).wrong(format!("when names '{value}' twice; once is enough"));
        } else {
            distinct.push(value.into_bytes().into());
        }
    }
    Some(When::new(arg.get_ref(), distinct))
}

/// Warns if the only arg of the key is that of `when`.
fn key_tells_clients_apart(
    reader: &mut Reader<'_>,
    policy: &str,
    key: &KeyParts,
    when: &When,
    at: usize,
) {
    if let [only] = &key.args[..]
        && only.names().eq([&*when.arg])
    {
        let arg = describe::text(&when.arg);
        reader.at(at).warn(format!(
            "the key of policy '{policy}' has only the arg '{arg}', so all requests with the \
             same {arg} share one bucket; add the arg that tells clients apart, such as \"ip\""
        ));
    }
}

/// The arg with the cost, which must not be part of the key.
fn cost<'t>(reader: &mut Reader<'t>, entries: &Entries<'_, 't>, key: &KeyParts) -> Option<String> {
    let (at, cost) = (entries.at(&of::COST)?, entries.read(reader, &of::COST)?);
    if key.reads(cost.as_bytes()) {
        reader.at(at).wrong(format!(
            "key and cost both name '{cost}', so each cost would have a bucket of its own; \
             leave it out of key"
        ));
    }
    Some(cost)
}

fn observes<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> bool {
    const MEANT: [&str; 7] =
        ["dryrun", "dry-run", "dry_run", "shadow", "monitor", "log", "report"];
    if value.get_ref().as_str().is_some_and(|mode| MEANT.contains(&mode)) {
        let what = "to block no request, and only count those that would be blocked, write mode = \
                    \"observe\"";
        reader.on(value).wrong(what);
        return false;
    }
    of::MODE.read(reader, value) == Some("observe")
}

//! The grammar of a policy: all its entries are read, and then checked together.

use std::time::Duration;

use gcra_table::Nanos;
use gcra_text::duration::Short;
use toml::Spanned;
use toml::de::DeValue;

use crate::bandwidth::Bandwidth;
use crate::file::key::{key_parts, not_an_arg};
use crate::file::limits::WrittenFor;
use crate::file::overrides::{not_as_text, overrides};
use crate::file::reader::{Entries, EntryName, Node, Reader, scalar};
use crate::file::settings::{NAME_RULE, SETTINGS, flag, is_name, is_nearly_a_setting};
use crate::file::settle::SettleEntries;
use crate::file::sources::Sources;
use crate::file::{bandwidth, limits, max_delay, penalty, settle, sharing, unasked};
use crate::haproxy_report::{REPORT, is_report};
use crate::key_parts::{KeyParts, Nat64};
use crate::limit::{Limit, Rule};
use crate::overrides::Overrides;
use crate::policy::{Penalty, Policy, Price, When, trial_name};
use crate::sharing::Sharing;
use crate::unasked::Unasked;
use crate::words;

/// A policy, and the limits of its trial if it has one.
pub(crate) fn policy<'t>(
    reader: &mut Reader<'t>,
    sources: &mut Sources,
    has_store: bool,
    nat64: &Nat64,
    name: &EntryName<'t>,
    value: &Node<'t>,
) -> Option<(Policy, Option<Vec<Limit>>)> {
    let mut draft = Draft::read(reader, sources, has_store, nat64, name, value)?;
    draft.complete_quotas(reader);
    draft.finish(reader)
}

/// A policy whose entries were read. An entry that is wrong is missing, and was noted. A place is
/// where the entry beside it stands.
struct Draft<'n> {
    name: &'n str,
    at: usize,
    message: String,
    when: Option<When>,
    key: KeyParts,
    rule: Option<Rule>,
    cost: Option<(usize, Box<[u8]>)>,
    unasked: Option<(usize, Unasked)>,
    settle: Option<SettleEntries>,
    observes: bool,
    /// Where `observe` stands, which may be wrong.
    observe_at: Option<usize>,
    trial: Option<Vec<Limit>>,
    max_delay: Option<(usize, Nanos)>,
    penalty: Option<(usize, Penalty)>,
    bandwidth: Option<(usize, Bandwidth)>,
    shared: Option<(usize, Sharing)>,
    overrides: Overrides,
}

impl<'n> Draft<'n> {
    fn read<'t>(
        reader: &mut Reader<'t>,
        sources: &mut Sources,
        has_store: bool,
        nat64: &Nat64,
        name: &'n EntryName<'t>,
        value: &Node<'t>,
    ) -> Option<Self> {
        let at = name.span().start;
        let name = &**name.get_ref();
        if !is_name(name) {
            let what = format!("'{name}' is not a valid name for a policy: {NAME_RULE}");
            reader.at(at).wrong_text(name, &what);
        }
        let table = reader.table(value, &not_a_table(name, value))?;
        let mut entries = Entries::new(format!("policy '{name}'"), SETTINGS, table);
        let of_message = match entries.take("message") {
            Some(value) => message(reader, value, "message").unwrap_or_else(|| name.to_owned()),
            None => {
                if is_report(name.as_bytes()) {
                    reader.at(at).wrong(reserved());
                }
                name.to_owned()
            }
        };
        let when = placed(entries.take("when"), |value| when(reader, value));
        let key = key_parts(reader, &mut entries, nat64, None);
        let of = WrittenFor { name, key: &key };
        let rule = match entries.take("limits") {
            Some(value) => limits::rule(reader, of, "limits", value),
            None => reader.at(at).refuse(format!(
                "policy '{name}' has no limits; write limits = [\"100/s burst 20\"], or \"deny\" \
                 or \"unlimited\""
            )),
        };
        if let Some((at, when)) = &when {
            key_tells_clients_apart(reader, name, &key, when, *at);
        }
        let cost = placed(entries.take("cost"), |value| cost(reader, value, &key));
        let unasked = unasked::unasked(reader, &mut entries);
        let settling = entries.take("settle");
        let settling = settling.map(|value| (value, message(reader, value, "settle")));
        let arg = cost.as_ref().map(|(_, arg)| words::text(arg));
        let of_request = (&key, &*of_message);
        let settle =
            settle::settle(reader, &mut entries, name, of_request, arg.as_deref(), settling);
        let observes = entries.take("mode").is_some_and(|value| observes(reader, value));
        let observe = entries.take("observe");
        let trial = observe.and_then(|value| {
            if observes {
                reader.on(value).warn(format!(
                    "policy '{name}' blocks no request by its limits either, because of mode = \
                     \"observe\"; leave out mode when they are to block again"
                ));
            }
            limits::trial(reader, of, value)
        });
        let draft = Self {
            name,
            at,
            message: of_message,
            when: when.map(|(_, when)| when),
            rule,
            cost,
            unasked,
            settle,
            observes,
            observe_at: observe.map(|value| value.span().start),
            trial,
            max_delay: placed(entries.take("max_delay"), |it| max_delay::max_delay(reader, it)),
            penalty: placed(entries.take("penalty"), |it| penalty::penalty(reader, it)),
            bandwidth: placed(entries.take("bandwidth"), |it| bandwidth::bandwidth(reader, it)),
            shared: sharing::sharing(reader, &mut entries, name, has_store),
            overrides: overrides(reader, sources, of, &mut entries),
            key,
        };
        reader.no_more_but(entries, |entry, value| misplaced(name, entry, value));
        Some(draft)
    }

    /// Takes out of the quotas what is kept in reserve, and puts into them what other settings let
    /// clients owe. The delay comes first of these, because a penalty comes on top of what can be
    /// delayed.
    fn complete_quotas(&mut self, reader: &mut Reader<'_>) {
        let (name, rule_is_known) = (self.name, self.rule.is_some());
        if let Some((at, unasked)) = self.unasked {
            let others = [
                ("when", self.when.is_some()),
                ("settle", self.settle.is_some()),
                ("max_delay", self.max_delay.is_some()),
                ("bandwidth", self.bandwidth.is_some()),
            ];
            let of = WrittenFor { name, key: &self.key };
            unasked::goes_with(reader, at, of, self.cost.is_some(), others, &self.overrides);
            let denies = self.rule.iter().chain(&self.overrides.rules).any(|it| *it == Rule::Deny);
            unasked::apply(reader, at, name, unasked, rule_is_known, denies, self.limits_mut());
        }
        if let Some((at, max_delay)) = self.max_delay {
            max_delay::apply(reader, at, name, max_delay, rule_is_known, self.limits_mut());
        }
        if let Some((at, penalty)) = self.penalty {
            let rules = self.rule.iter_mut().chain(&mut self.overrides.rules);
            let limits = rules.flat_map(Rule::limits_mut);
            penalty::apply(reader, at, name, penalty, rule_is_known, limits);
        }
        if let Some(settle) = &self.settle {
            let others = [
                ("penalty", self.penalty.is_some()),
                ("max_delay", self.max_delay.is_some()),
                ("observe", self.observe_at.is_some()),
            ];
            settle::goes_alone(reader, settle.at, name, others);
            if let Some(at) = settle.unsettled_at.filter(|_| self.shared.is_some()) {
                reader.at(at).wrong(format!(
                    "policy '{name}' cannot have unsettled and shared, because the store does not \
                     know which requests are still unsettled; reserve more instead, or do not \
                     share it"
                ));
            }
            let rules = self.rule.iter_mut().chain(&mut self.overrides.rules);
            settle::apply(reader, name, settle, rule_is_known, rules.flat_map(Rule::limits_mut));
        }
        if self.shared.is_some() {
            sharing::apply(self.limits_mut().map(|(limit, _)| limit));
        }
    }

    /// All limits, each with the words that tell whose it is.
    fn limits_mut(&mut self) -> impl Iterator<Item = (&mut Limit, &'static str)> {
        let own = self.rule.iter_mut().flat_map(Rule::limits_mut).map(|limit| (limit, ""));
        let overrides = self.overrides.rules.iter_mut().flat_map(Rule::limits_mut);
        let overrides = overrides.map(|limit| (limit, " of its overrides"));
        let trial = self.trial.iter_mut().flatten().map(|limit| (limit, " of its observe"));
        own.chain(overrides).chain(trial)
    }

    /// Notes what does not fit together, and makes the policy.
    fn finish(self, reader: &mut Reader<'_>) -> Option<(Policy, Option<Vec<Limit>>)> {
        let (name, at) = (self.name, self.at);
        let costs = self.cost.iter().map(|(at, arg)| ("cost", &**arg, *at));
        let reserve = self.settle.as_ref();
        let reserve = reserve
            .and_then(|it| Some(("reserve", it.settle.reserve.as_deref()?, it.reserve_at?)));
        let costs: Vec<_> = costs.chain(reserve).collect();
        let rules = self.rule.iter().chain(&self.overrides.rules).flat_map(Rule::limits);
        let all: Vec<_> = rules.chain(self.trial.iter().flatten()).collect();
        limits::args_are_apart(reader, at, &self.key, &all, &costs);
        let at_once = self.max_delay.is_some()
            || self.settle.is_some()
            || self.bandwidth.is_some()
            || all.iter().any(|limit| limit.calendar().is_some());
        let shared = self.shared.map(|(at, shared)| (at, Sharing { at_once, ..shared }));
        // The cost of a policy with `settle` is in the message of the response.
        let price = match (self.settle, self.cost) {
            (Some(SettleEntries { settle, .. }), _) => Price::Settled(settle.into()),
            (None, Some((_, arg))) => Price::Cost(arg),
            (None, None) => Price::Cell,
        };
        let policy = Policy {
            name: name.into(),
            message: Some(self.message.into_bytes().into()),
            when: self.when,
            key: self.key,
            price,
            rule: self.rule?,
            overrides: self.overrides,
            observes: self.observes,
            penalty: self.penalty.map(|(_, penalty)| penalty),
            bandwidth: self.bandwidth.map(|(_, bandwidth)| bandwidth),
            shared: shared.map(|(_, shared)| shared),
            trial: None,
            is_trial: false,
        };
        if let Some((at, _)) = self.bandwidth {
            bandwidth::check(reader, at, &policy);
        }
        slots_are_enough(reader, at, &policy);
        if let Some((at, _)) = shared {
            sharing::check(reader, at, &policy, self.trial.as_deref().unwrap_or_default());
        }
        let of_trial = trial_name(name);
        if policy.limits().any(|limit| *limit.record_name == of_trial) {
            reader.at(self.observe_at.unwrap_or(at)).wrong(format!(
                "a limit of policy '{name}' is called 'observe', and '{of_trial}' is the name \
                 of the trial; give the limit another name"
            ));
        }
        Some((policy, self.trial))
    }
}

/// An entry, if it is there and right, and where it stands.
fn placed<'v, 't, T>(
    value: Option<&'v Node<'t>>,
    read: impl FnOnce(&'v Node<'t>) -> Option<T>,
) -> Option<(usize, T)> {
    value.and_then(|value| Some((value.span().start, read(value)?)))
}

fn not_a_table(name: &str, value: &Node<'_>) -> String {
    if SETTINGS.contains(&name) {
        return format!(
            "'{name}' belongs to a policy, which has a name; write [policy.NAME] above it"
        );
    }
    let is = if value.get_ref().is_array() { "is a list" } else { "must be a table" };
    format!("policy.{name} {is}; write [policy.{name}], and below it limits = \"10/s burst 20\"")
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
        "answer" | "scope" | "nat64" => {
            format!("'{name}' is for the whole file; write it above the first [policy.NAME]")
        }
        "cells" | "ceiling" => format!(
            "'{name}' belongs to a penalty; write penalty = {{ cells = 1, ceiling = \"10m\" }}"
        ),
        "full" | "least" => format!(
            "'{name}' belongs to a bandwidth; write bandwidth = {{ full = \"10m\", least = \
             \"50k\" }}"
        ),
        "file" => {
            format!("'file' belongs to a list; write [[policy.{policy}.lists]] above it")
        }
        "name" => "a policy has its name in its header; leave 'name' out".to_owned(),
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

/// The name of a spoe-message, in the characters that HAProxy allows.
fn message<'t>(reader: &mut Reader<'t>, value: &Node<'t>, setting: &str) -> Option<String> {
    let name = reader.name(value, setting, "the name of a spoe-message")?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    if let Some(c) = name.chars().find(|c| !is_allowed(*c)) {
        reader.on(value).wrong(format!(
            "'{name}' is not the name of a spoe-message, because HAProxy allows no '{c}' in \
             it; use letters, digits, '-', '_', '.' and ':'"
        ));
    }
    if is_report(name.as_bytes()) {
        reader.on(value).wrong(reserved());
    }
    Some(name)
}

/// Says that the name of a message is taken.
fn reserved() -> String {
    format!(
        "in messages whose names begin with '{REPORT}' HAProxy says how many requests had no \
         decision, so no policy can be for one; give the spoe-message another name"
    )
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
        let quoted: Vec<_> = texts.iter().map(|text| format!("\"{text}\"")).collect();
        let right = match &quoted[..] {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let arg = arg.get_ref();
        reader.at(at).wrong(format!(
            "the values of '{arg}' in when must be strings; write {{ {arg} = {right} }}"
        ));
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
        let arg = words::text(&when.arg);
        reader.at(at).warn(format!(
            "the key of policy '{policy}' has only the arg '{arg}', so all requests with the \
             same {arg} share one bucket; add the arg that tells clients apart, such as \"ip\""
        ));
    }
}

/// The name of the arg with the cost, which must not be part of the key.
fn cost<'t>(reader: &mut Reader<'t>, value: &Node<'t>, key: &KeyParts) -> Option<Box<[u8]>> {
    let cost = reader.name(value, "cost", "the name of an arg")?;
    if let Some(what) = not_an_arg(&cost, "cost") {
        reader.on(value).wrong(&what);
    }
    if key.reads(cost.as_bytes()) {
        reader.on(value).wrong(format!(
            "key and cost both name '{cost}', so each cost would have a bucket of its own; \
             leave it out of key"
        ));
    }
    Some(cost.into_bytes().into())
}

fn observes<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> bool {
    let mode = reader.string(value, "mode", "\"enforce\" or \"observe\"");
    match mode.as_deref() {
        None | Some("enforce" | "observe") => {}
        Some("dryrun" | "dry-run" | "dry_run" | "shadow" | "monitor" | "log" | "report") => {
            let what = "to block no request, and only count those that would be blocked, \
                        write mode = \"observe\"";
            reader.on(value).wrong(what);
        }
        Some(other) => reader.on(value).unknown("a mode", other, &["enforce", "observe"]),
    }
    mode.is_some_and(|mode| mode == "observe")
}

//! The configuration file: policies are read from it as a whole, and all its mistakes are reported
//! together, each with its line.

use ahash::AHashMap;
use gcra_table::Nanos;
use gcra_text::duration::Short;
use spop_agent::{Limits, Scope};
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::answers::{Answers, Var};
use crate::file::key::{key_parts, not_an_arg};
use crate::file::limits::OfPolicy;
use crate::file::overrides::Collector;
use crate::file::reader::{Entries, MAX_REPORTED, Name, Node, Reader, scalar};
use crate::file::secrets::Readers;
use crate::file::settings::{
    FILE_SETTINGS, NAME_RULE, SETTINGS, flag, is_name, is_nearly_a_setting,
};
use crate::file::sources::{MAX_TOML_BYTES, Sources, read_text};
use crate::file::{bandwidth, limits, max_delay, penalty, settle, sharing, store, syntax};
use crate::key_parts::KeyParts;
use crate::limit::{Limit, Rule};
use crate::overrides::Overrides;
use crate::policies::Policies;
use crate::policy::{Policy, When, trial_name};
use crate::sharing::Sharing;
use crate::store::StoreSettings;
use crate::watch::{Seen, see};
use crate::{answer_size, words};

const NO_POLICY: &str =
    "there is no policy; write one, such as [policy.api] with limits = [\"100/s burst 20\"]";

/// Reads the policies in a file. The error has one line for each mistake: `FILE:LINE: what is
/// wrong; what would be right`.
///
/// This blocks for as long as the file system takes. A path that is not a regular file is refused
/// before anything is read from it.
///
/// What the sentences repeat of the file depends on who reads them.
pub fn read(path: &Path, readers: Readers) -> Result<Policies, Vec<String>> {
    let mut looked_at = Vec::new();
    read_noting(path, readers, &mut looked_at)
}

/// As [`read`]. Adds the files that were looked at to `looked_at`, each in its state before it was
/// read: also those that are missing, cannot be read, or have mistakes.
pub fn read_noting(
    path: &Path,
    readers: Readers,
    looked_at: &mut Vec<Seen>,
) -> Result<Policies, Vec<String>> {
    looked_at.push((path.to_owned(), see(path)));
    let text = read_text(path, MAX_TOML_BYTES)
        .map_err(|error| vec![format!("cannot read {}: {error}", path.display())])?;
    parse_for(readers, path, &text, looked_at)
}

/// As [`read`], for a text that was read from `path`. Lists are looked for beside it.
pub fn parse(path: &Path, text: &str) -> Result<Policies, Vec<String>> {
    parse_for(Readers::OfFile, path, text, &mut Vec::new())
}

fn parse_for(
    readers: Readers,
    path: &Path,
    text: &str,
    looked_at: &mut Vec<Seen>,
) -> Result<Policies, Vec<String>> {
    let mut reader = Reader::new(path, text, readers);
    if let Some((what, at)) = syntax::not_toml(text) {
        reader.wrong(at, &what);
        return Err(reader.finish().err().unwrap_or_default());
    }
    let (document, mut errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mut reported = BTreeSet::new();
        let mut are_understood = true;
        // The first sentence about a line is the one that is kept, and this one says least.
        errors.sort_by_key(|error| error.message().starts_with("key with no value"));
        for error in errors {
            let span = error.span().unwrap_or(0..0);
            let (line, at) = (reader.line(span.start), span.start);
            let looks_back = reported.len() < MAX_REPORTED;
            let what = syntax::in_words(text, error.message(), span, looks_back);
            let Some(mistake) = what else { continue };
            are_understood &= mistake.is_understood;
            // The rest of the line may be right once its first mistake is mended.
            if reported.insert(line) || mistake.is_understood {
                reader.wrong(at, &mistake.sentence);
            }
        }
        if !are_understood {
            return Err(reader.finish().err().unwrap_or_default());
        }
        // What else is wrong is reported, too, except in the same lines.
        reader.leave_out(reported);
    }
    let mut file = File {
        reader,
        sources: Sources::new(path, text),
        has_store: false,
        bandwidths: Vec::new(),
    };
    let (list, answers, store) = file.document(document.get_ref());
    let warning_count = file.reader.warning_count();
    let (files, digest) = file.sources.finish();
    looked_at.extend(files);
    let warnings = file.reader.finish()?;
    let policies = Policies::new(list, answers, looked_at.clone(), digest);
    Ok(Policies { store, warnings, warning_count, ..policies })
}

/// A file while it is read.
struct File<'t> {
    reader: Reader<'t>,
    sources: Sources,
    /// Whether there is a `[store]`, which may be wrong.
    has_store: bool,
    /// Where policies have a bandwidth, which may be wrong.
    bandwidths: Vec<usize>,
}

impl<'t> File<'t> {
    fn document(&mut self, table: &DeTable<'t>) -> (Vec<Policy>, Answers, Option<StoreSettings>) {
        let mut entries = Entries::new("the file".to_owned(), FILE_SETTINGS, table);
        let scope_at = entries.take("scope");
        let scope = scope_at.and_then(|value| self.scope(value));
        let answer = entries.take("answer");
        let others = answer.map(|value| self.variables(value));
        let mut answers = Answers {
            scope: scope.unwrap_or(Scope::Transaction),
            others: others.unwrap_or_default(),
            ..Answers::blocked_only()
        };
        let store_at = entries.take("store");
        self.has_store = store_at.is_some();
        let store =
            store_at.and_then(|value| store::store(&mut self.reader, &mut self.sources, value));
        let policies = entries.take("policy");
        self.reader.no_more_but(entries, |name, value| match name {
            _ if ["policy", "policies"].iter().any(|meant| {
                strsim::damerau_levenshtein(meant, &name.to_ascii_lowercase()) <= 1
            }) =>
            {
                None
            }
            _ if SETTINGS.contains(&name) => Some(format!(
                "'{name}' belongs to a policy; write it below a header such as [policy.api]"
            )),
            "rate" | "burst" => Some(format!(
                "'{name}' belongs to a limit; write [policy.api], and below it limits = \"10/s \
                 burst 20\""
            )),
            _ if value.get_ref().is_table() => Some(format!(
                "'{name}' is not a setting of the file; for a policy write [policy.{name}]"
            )),
            _ => flag(name),
        });
        let (list, places) = self.policies(policies);
        self.answer_delays(&mut answers, answer, &list);
        if let Some(at) = scope_at
            && can_delay(&list)
        {
            max_delay::check_scope(&mut self.reader, at.span().start, answers.scope);
        }
        self.answer_reservations(&mut answers, answer, &list, &places);
        self.answers_fit(&answers, &list, &places);
        let has_bandwidth = answers.others.contains(&Var::Bandwidth);
        let answer_at = answer.filter(|_| has_bandwidth).map(|value| value.span().start);
        bandwidth::is_answered(&mut self.reader, answer_at, &self.bandwidths);
        if let Some(value) = store_at
            && list.iter().all(|policy| policy.shared.is_none())
        {
            let what = "no policy uses the store; write shared = true in those that are to count \
                        over all machines";
            self.reader.warn(value.span().start, what);
        }
        let counts = |policy: &&Policy| {
            policy.shared.is_some() && policy.limits().any(|limit| limit.calendar.is_some())
        };
        if let Some(value) = store_at
            && store.as_ref().is_some_and(|store| store.strict)
            && let Some(policy) = list.iter().find(counts)
        {
            let what = format!(
                "the store is strict, and policy '{}' counts in windows: when the store is used \
                 for the first time, and when it has lost its memory, all clients are blocked \
                 until the window ends; leave strict out if it does less harm that counts begin \
                 at 0 again then",
                policy.name
            );
            self.reader.warn(value.span().start, &what);
        }
        (list, answers, store)
    }

    fn scope(&mut self, value: &Node<'t>) -> Option<Scope> {
        let name = self.reader.string(value, "scope", "such as \"txn\"")?;
        let scope = name.parse().ok();
        if scope.is_none() {
            let known = ["proc", "sess", "txn", "req", "res"];
            self.reader.unknown(value.span().start, "a scope", &name, &known);
        }
        scope
    }

    /// The variables that are set beside `blocked`.
    fn variables(&mut self, value: &Node<'t>) -> Vec<Var> {
        let mut vars = Vec::new();
        let like = "such as [\"remaining\", \"retry_after\"]";
        for (name, at) in self.reader.strings(value, "answer", like) {
            match Var::ALL.into_iter().find(|var| var.name().as_str() == name) {
                _ if name == "blocked" => {}
                Some(var) if !vars.contains(&var) => vars.push(var),
                Some(_) => {
                    let what = format!("answer names '{name}' twice; once is enough");
                    self.reader.wrong(at, &what);
                }
                None => {
                    let names: Vec<_> = Var::ALL.iter().map(|var| var.name().as_str()).collect();
                    self.reader.unknown(at, "a variable", &name, &names);
                }
            }
        }
        vars
    }

    /// Adds the variable `delay_ms` if a policy can delay requests: without it HAProxy would let
    /// them pass at once, and no limit would be kept. It comes first, because the first variables
    /// fit into every ACK.
    fn answer_delays(&mut self, answers: &mut Answers, at: Option<&Node<'t>>, list: &[Policy]) {
        let is_named = answers.others.contains(&Var::DelayMs);
        match (can_delay(list), is_named) {
            (true, _) => {
                answers.others.retain(|var| *var != Var::DelayMs);
                answers.others.insert(0, Var::DelayMs);
            }
            // If a policy is wrong, it may be the one with max_delay.
            (false, true) if self.reader.is_content() => {
                let what = "answer names 'delay_ms', and no policy has max_delay; write max_delay \
                            in a policy, or leave delay_ms out";
                self.reader.wrong(at.map_or(0, |at| at.span().start), what);
            }
            _ => {}
        }
    }

    /// Adds the variable `reserved` if a policy reserves cells: without it, no response could give
    /// them back. It comes early, because the first variables fit into every usual ACK.
    fn answer_reservations(
        &mut self,
        answers: &mut Answers,
        at: Option<&Node<'t>>,
        list: &[Policy],
        places: &[usize],
    ) {
        let reserving = list.iter().position(Policy::reserves);
        if let Some((name, at)) =
            reserving.and_then(|at| Some((&list.get(at)?.name, *places.get(at)?)))
            && answers.scope != Scope::Transaction
        {
            let what = format!(
                "policy '{name}' has reserve, and the variables of the scope {} are not those of \
                 one request and its response; write scope = \"txn\"",
                answers.scope.as_str()
            );
            self.reader.wrong(at, &what);
        }
        let is_named = answers.others.contains(&Var::Reserved);
        match (reserving, is_named) {
            (Some(_), _) => {
                answers.others.retain(|var| *var != Var::Reserved);
                // Before all that a response can do without.
                let delays = answers.others.iter().take_while(|var| **var == Var::DelayMs).count();
                answers.others.insert(delays, Var::Reserved);
            }
            // If a policy is wrong, it may be the one with reserve.
            (None, true) if self.reader.is_content() => {
                let what = "answer names 'reserved', and no policy has reserve; write reserve in \
                            a policy with settle, or leave reserved out";
                self.reader.wrong(at.map_or(0, |at| at.span().start), what);
            }
            _ => {}
        }
    }

    /// The policies with their trials, and where each of them stands.
    fn policies(&mut self, value: Option<&Node<'t>>) -> (Vec<Policy>, Vec<usize>) {
        let at = value.map_or(0, |value| value.span().start);
        let table = value.and_then(|value| {
            let what = "policy must be a table of policies; write a header such as [policy.api] \
                        for each";
            self.reader.table(value, what)
        });
        let is_empty = table.is_some_and(DeTable::is_empty);
        if value.is_none() || is_empty {
            self.reader.wrong(at, NO_POLICY);
        }
        // In the order of the file, which a table does not keep.
        let mut policies: Vec<_> = table.into_iter().flatten().collect();
        policies.sort_by_key(|(name, _)| name.span().start);
        let (mut list, mut places, mut trials) = (Vec::new(), Vec::new(), Vec::new());
        for (name, policy) in policies {
            let Some((policy, trial)) = self.policy(name, policy) else {
                debug_assert!(!self.reader.is_content(), "a policy is lost without a mistake");
                continue;
            };
            trials.extend(trial.map(|limits| (list.len(), limits)));
            list.push(policy);
            places.push(name.span().start);
        }
        self.no_policy_hides_another(&list, &places);
        settle::are_clear(&mut self.reader, &list, &places);
        for (place, limits) in trials {
            list[place].trial = Some(list.len());
            list.push(list[place].trial(limits));
            places.push(places[place]);
        }
        (list, places)
    }

    /// A policy, and the limits of its trial if it has one.
    fn policy(
        &mut self,
        name: &Name<'t>,
        value: &Node<'t>,
    ) -> Option<(Policy, Option<Vec<Limit>>)> {
        let at = name.span().start;
        let name = &**name.get_ref();
        let reader = &mut self.reader;
        if !is_name(name) {
            let what = format!("'{name}' is not a valid name for a policy: {NAME_RULE}");
            reader.wrong_text(at, name, &what);
        }
        let what = if SETTINGS.contains(&name) {
            format!("'{name}' belongs to a policy, which has a name; write [policy.NAME] above it")
        } else {
            let is = if value.get_ref().is_array() { "is a list" } else { "must be a table" };
            format!(
                "policy.{name} {is}; write [policy.{name}], and below it limits = \"10/s burst \
                 20\""
            )
        };
        let table = reader.table(value, &what)?;
        let mut entries = Entries::new(format!("policy '{name}'"), SETTINGS, table);
        let message = match entries.take("message") {
            Some(value) => self.message(value, "message").unwrap_or_else(|| name.to_owned()),
            None => name.to_owned(),
        };
        let when = entries.take("when");
        let when = when.and_then(|value| Some((self.when(value)?, value.span().start)));
        let key = key_parts(&mut self.reader, &mut entries, None);
        let of = OfPolicy { name, key: &key };
        let mut rule = self.rule(of, at, entries.take("limits"));
        if let Some((when, at)) = &when {
            self.key_tells_clients_apart(name, &key, when, *at);
        }
        let cost_at = entries.take("cost");
        let cost = cost_at.and_then(|value| self.cost(value, &key));
        let settling = entries.take("settle");
        let settling = settling.map(|value| (value, self.message(value, "settle")));
        let arg = cost.as_deref().map(|cost| String::from_utf8_lossy(cost).into_owned());
        let of_request = (&key, &*message);
        let reader = &mut self.reader;
        let settle =
            settle::settle(reader, &mut entries, name, of_request, arg.as_deref(), settling);
        let observes = entries.take("mode").is_some_and(|value| self.observes(value));
        let observe = entries.take("observe");
        let mut trial = observe.and_then(|value| self.trial(of, value, observes));
        let max_delay = entries
            .take("max_delay")
            .and_then(|value| Some((value, max_delay::max_delay(&mut self.reader, value)?)));
        let penalty = entries
            .take("penalty")
            .and_then(|value| Some((value, penalty::penalty(&mut self.reader, value)?)));
        let bandwidth = entries.take("bandwidth");
        self.bandwidths.extend(bandwidth.map(|value| value.span().start));
        let bandwidth = bandwidth.and_then(|value| {
            Some((value.span().start, bandwidth::bandwidth(&mut self.reader, value)?))
        });
        let reader = &mut self.reader;
        let shared = sharing::sharing(reader, &mut entries, name, self.has_store);
        let mut overrides = self.overrides(name, &key, &mut entries);
        let policy = name;
        self.reader.no_more_but(entries, |name, value| match name {
            _ if value.get_ref().is_table() && !is_nearly_a_setting(name) => {
                Some(format!("the name of a policy has no dots; write [policy.{policy}-{name}]"))
            }
            "rate" | "burst" => {
                Some(format!("'{name}' belongs to a limit; write limits = \"10/s burst 20\""))
            }
            "answer" | "scope" => Some(format!(
                "'{name}' is for the whole file; write it above the first [policy.NAME]"
            )),
            "cells" | "ceiling" => Some(format!(
                "'{name}' belongs to a penalty; write penalty = {{ cells = 1, ceiling = \"10m\" }}"
            )),
            "full" | "least" => Some(format!(
                "'{name}' belongs to a bandwidth; write bandwidth = {{ full = \"10m\", least = \
                 \"50k\" }}"
            )),
            "file" => {
                Some(format!("'file' belongs to a list; write [[policy.{policy}.lists]] above it"))
            }
            "name" => Some("a policy has its name in its header; leave 'name' out".to_owned()),
            _ => flag(name),
        });
        // First, because a penalty comes on top of what can be delayed.
        if let Some((value, max_delay)) = max_delay {
            let (at, rules) = (value.span().start, &mut overrides.rules);
            let trial = trial.as_deref_mut().unwrap_or_default();
            max_delay::apply(&mut self.reader, at, name, max_delay, rule.as_mut(), rules, trial);
        }
        if let Some((value, penalty)) = penalty {
            let (at, rules) = (value.span().start, &mut overrides.rules);
            penalty::apply(&mut self.reader, at, name, penalty, rule.as_mut(), rules);
        }
        if let Some(written) = &settle {
            let others = [
                ("penalty", penalty.is_some()),
                ("max_delay", max_delay.is_some()),
                ("observe", observe.is_some()),
            ];
            settle::goes_alone(&mut self.reader, written.at, name, others);
            let rules = &mut overrides.rules;
            settle::apply(&mut self.reader, name, written, rule.as_mut(), rules);
        }
        if shared.is_some() {
            let rules = rule.iter_mut().chain(&mut overrides.rules).flat_map(Rule::limits_mut);
            sharing::apply(rules.chain(trial.iter_mut().flatten()));
        }
        let costs = cost.as_deref().zip(cost_at);
        let costs = costs.map(|(arg, value)| ("cost", arg, value.span().start));
        let reserve = settle.as_ref();
        let reserve =
            reserve.and_then(|it| Some(("reserve", it.reserve.as_deref()?, it.reserve_at?)));
        let costs: Vec<_> = costs.into_iter().chain(reserve).collect();
        let rules = rule.iter().chain(&overrides.rules).flat_map(Rule::limits);
        let all: Vec<_> = rules.chain(trial.iter().flatten()).collect();
        limits::args_are_apart(&mut self.reader, at, &key, &all, &costs);
        let at_once = max_delay.is_some()
            || settle.is_some()
            || bandwidth.is_some()
            || all.iter().any(|limit| limit.calendar.is_some());
        let shared = shared.map(|(at, shared)| (at, Sharing { at_once, ..shared }));
        // The cost of a policy with `settle` is in the message of the response.
        let (cost, cells, settle) = match settle {
            None => (cost, 1, None),
            Some(settle::Written { settle, reserve, cells, .. }) => {
                (reserve, cells, Some(settle.into()))
            }
        };
        let policy = Policy {
            name: name.into(),
            message: Some(message.into_bytes().into()),
            when: when.map(|(when, _)| when),
            key,
            cost,
            cells,
            rule: rule?,
            overrides,
            observes,
            penalty: penalty.map(|(_, penalty)| penalty),
            bandwidth: bandwidth.map(|(_, bandwidth)| bandwidth),
            shared: shared.map(|(_, shared)| shared),
            settle,
            trial: None,
            is_trial: false,
        };
        if let Some((at, _)) = bandwidth {
            bandwidth::check(&mut self.reader, at, &policy);
        }
        self.slots_are_enough(at, &policy);
        if let Some((at, _)) = shared {
            let trial = trial.as_deref().unwrap_or_default();
            sharing::check(&mut self.reader, at, &policy, trial);
        }
        let of_trial = trial_name(name);
        if policy.limits().any(|limit| *limit.record_name == of_trial) {
            let what = format!(
                "a limit of policy '{name}' is called 'observe', and '{of_trial}' is the name \
                 of the trial; give the limit another name"
            );
            self.reader.wrong(observe.map_or(at, |value| value.span().start), &what);
        }
        Some((policy, trial))
    }

    /// Warns of a policy whose clients keep their slots of the table for so long that the usual
    /// number of slots may be used up.
    fn slots_are_enough(&mut self, at: usize, policy: &Policy) {
        const LONG: Duration = Duration::from_secs(7 * 86_400);
        let kept_for = |limit: &Limit| match &limit.calendar {
            Some(calendar) => Duration::from_secs(calendar.unit().nominal_s().into()),
            None => limit.quota.drain_time().into(),
        };
        // What machines share is in the store.
        let local = policy.limits().filter(|_| policy.shared.is_none());
        let longest = local.map(kept_for).max().unwrap_or_default();
        if longest >= LONG {
            let what = format!(
                "each client of policy '{}' can keep a slot of the table for {}; start the agents \
                 with --slots of at least twice the clients of that time (the usual table has \
                 1048576), or some are forgotten",
                policy.name,
                Short(longest)
            );
            self.reader.warn(at, &what);
        }
    }

    /// The limits of a policy's trial.
    fn trial(
        &mut self,
        policy: OfPolicy<'_>,
        value: &Node<'t>,
        observes: bool,
    ) -> Option<Vec<Limit>> {
        if observes {
            let what = format!(
                "policy '{}' blocks no request by its limits either, because of mode = \
                 \"observe\"; leave out mode when they are to block again",
                policy.name
            );
            self.reader.warn(value.span().start, &what);
        }
        limits::trial(&mut self.reader, policy, value)
    }

    /// The name of a spoe-message, in the characters that HAProxy allows.
    fn message(&mut self, value: &Node<'t>, setting: &str) -> Option<String> {
        let name = self.reader.name(value, setting, "the name of a spoe-message")?;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if let Some(c) = name.chars().find(|c| !is_allowed(*c)) {
            let what = format!(
                "'{name}' is not the name of a spoe-message, because HAProxy allows no '{c}' in \
                 it; use letters, digits, '-', '_', '.' and ':'"
            );
            self.reader.wrong(value.span().start, &what);
        }
        Some(name)
    }

    /// `{ plan = "gold" }` or `{ plan = ["gold", "silver"] }`.
    fn when(&mut self, value: &Node<'t>) -> Option<When> {
        const HOW: &str = "when must name one arg and its values, such as { plan = \"gold\" } or \
                           { plan = [\"gold\", \"silver\"] }";
        let at = value.span().start;
        let mut entries = self.reader.table(value, HOW)?.iter();
        let (Some((arg, values)), None) = (entries.next(), entries.next()) else {
            self.reader.wrong(at, HOW);
            return None;
        };
        if arg.get_ref().is_empty() {
            let what = "when names no arg; write the name of an arg of the message, such as \
                        { plan = \"gold\" }";
            self.reader.wrong(at, what);
        }
        let values = match values.get_ref() {
            DeValue::Array(array) if array.is_empty() => {
                self.reader.wrong(at, HOW);
                return None;
            }
            DeValue::Array(array) => array.iter().map(Spanned::get_ref).collect(),
            value => vec![value],
        };
        let Some(texts) = values.iter().map(|value| scalar(value)).collect::<Option<Vec<_>>>()
        else {
            self.reader.wrong(at, HOW);
            return None;
        };
        if !values.iter().all(|value| value.is_str()) {
            let quoted: Vec<_> = texts.iter().map(|text| format!("\"{text}\"")).collect();
            let right = match &quoted[..] {
                [one] => one.clone(),
                several => format!("[{}]", several.join(", ")),
            };
            let arg = arg.get_ref();
            let what = format!(
                "the values of '{arg}' in when must be strings; write {{ {arg} = {right} }}"
            );
            self.reader.wrong(at, &what);
        }
        if let Some(what) = not_an_arg(arg.get_ref(), "when") {
            self.reader.wrong(at, &what);
        }
        let mut distinct: Vec<Box<[u8]>> = Vec::new();
        for value in texts {
            if distinct.iter().any(|known| **known == *value.as_bytes()) {
                let what = format!("when names '{value}' twice; once is enough");
                self.reader.wrong(at, &what);
            } else {
                distinct.push(value.into_bytes().into());
            }
        }
        Some(When { arg: arg.get_ref().as_bytes().into(), values: distinct })
    }

    /// Warns if the only arg of the key is that of `when`.
    fn key_tells_clients_apart(&mut self, policy: &str, key: &KeyParts, when: &When, at: usize) {
        if let [only] = &key.args[..]
            && only.names().eq([&*when.arg])
        {
            let arg = words::text(&when.arg);
            let what = format!(
                "the key of policy '{policy}' has only the arg '{arg}', so all requests with the \
                 same {arg} share one bucket; add the arg that tells clients apart, such as \"ip\""
            );
            self.reader.warn(at, &what);
        }
    }

    fn rule(&mut self, policy: OfPolicy<'_>, at: usize, value: Option<&Node<'t>>) -> Option<Rule> {
        let Some(value) = value else {
            let what = format!(
                "policy '{}' has no limits; write limits = [\"100/s burst 20\"], or \"deny\" or \
                 \"unlimited\"",
                policy.name
            );
            self.reader.wrong(at, &what);
            return None;
        };
        limits::rule(&mut self.reader, policy, "limits", value)
    }

    /// The name of the arg with the cost, which must not be part of the key.
    fn cost(&mut self, value: &Node<'t>, key: &KeyParts) -> Option<Box<[u8]>> {
        let cost = self.reader.name(value, "cost", "the name of an arg")?;
        if let Some(what) = not_an_arg(&cost, "cost") {
            self.reader.wrong(value.span().start, &what);
        }
        if key.names().any(|arg| *arg == *cost.as_bytes()) {
            let what = format!(
                "key and cost both name '{cost}', so each cost would have a bucket of its own; \
                 leave it out of key"
            );
            self.reader.wrong(value.span().start, &what);
        }
        Some(cost.into_bytes().into())
    }

    /// Whether the mode is `observe`.
    fn observes(&mut self, value: &Node<'t>) -> bool {
        let mode = self.reader.string(value, "mode", "\"enforce\" or \"observe\"");
        match mode.as_deref() {
            Some("observe") => true,
            None | Some("enforce") => false,
            Some("dryrun" | "dry-run" | "dry_run" | "shadow" | "monitor" | "log" | "report") => {
                let what = "to block no request, and only count those that would be blocked, \
                            write mode = \"observe\"";
                self.reader.wrong(value.span().start, what);
                false
            }
            Some(other) => {
                let known = ["enforce", "observe"];
                self.reader.unknown(value.span().start, "a mode", other, &known);
                false
            }
        }
    }

    fn overrides(
        &mut self,
        policy: &str,
        key: &KeyParts,
        entries: &mut Entries<'_, 't>,
    ) -> Overrides {
        let mut collector = Collector::new(policy, key);
        if let Some(value) = entries.take("overrides") {
            collector.overrides(&mut self.reader, value);
        }
        if let Some(value) = entries.take("lists") {
            collector.lists(&mut self.reader, &mut self.sources, value);
        }
        collector.finish(&mut self.reader)
    }

    /// The first policy that is for a message applies, so one without `when` must be the last, and
    /// a value of an arg belongs to the first policy that names it.
    fn no_policy_hides_another(&mut self, list: &[Policy], places: &[usize]) {
        // The first policy for each message, and for each message and value of an arg.
        let mut every: AHashMap<_, &Policy> = AHashMap::new();
        let mut some: AHashMap<_, &Policy> = AHashMap::new();
        for (policy, at) in list.iter().zip(places) {
            let name = &policy.name;
            if let Some(hiding) = every.get(&policy.message) {
                let and_when = if policy.when.is_some() { "" } else { ", and give it a 'when'" };
                let what = format!(
                    "policy '{name}' never applies, because policy '{}' above it is for the same \
                     message; put '{name}' first{and_when}",
                    hiding.name
                );
                self.reader.wrong(*at, &what);
                continue;
            }
            let Some(When { arg, values }) = &policy.when else {
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
                let what = format!(
                    "policy '{name}' never applies, because {above} all values of its 'when', for \
                     the same message; leave the policy or those values out"
                );
                self.reader.wrong(*at, &what);
            } else {
                let (noun, them) = match hidden.len() {
                    1 => ("value", "it"),
                    _ => ("values", "them"),
                };
                let what = format!(
                    "policy '{name}' never gets the {noun} {} of '{}', because {above} {them}, \
                     for the same message; leave {them} out of one of the two",
                    quoted(&hidden.iter().map(|value| words::text(value)).collect::<Vec<_>>()),
                    words::text(arg)
                );
                self.reader.warn(*at, &what);
            }
        }
    }

    /// An ACK may have 815 bytes, so that it fits HAProxy's smallest buffers, and header fields
    /// grow with the names in them.
    fn answers_fit(&mut self, answers: &Answers, list: &[Policy], places: &[usize]) {
        let has = |wanted: Var| answers.others.contains(&wanted);
        let fields = has(Var::RateLimit) || has(Var::RateLimitPolicy);
        let most = Limits::default().max_ack_size as usize;
        for (policy, at) in list.iter().zip(places) {
            let bytes = answer_size::longest(answers, list, policy);
            if (fields || has(Var::Headers)) && bytes > most {
                let leave_out = match (has(Var::Headers), fields) {
                    (false, _) => "ratelimit or ratelimit_policy",
                    (true, false) => "headers",
                    (true, true) => "ratelimit, ratelimit_policy or headers",
                };
                let what = format!(
                    "with the header fields of policy '{}' an answer may have {bytes} bytes, and \
                     at most {most} are certain to fit into HAProxy's buffers; use shorter names \
                     or fewer limits, or leave {leave_out} out of answer",
                    policy.name
                );
                self.reader.wrong(*at, &what);
            }
        }
    }
}

/// Whether requests can be delayed, so that the answer says for how long.
fn can_delay(list: &[Policy]) -> bool {
    list.iter().any(|policy| policy.max_delay() > Nanos::ZERO)
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

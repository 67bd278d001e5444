//! The configuration file: policies are read from it as a whole, and all its mistakes are reported
//! together, each with its line.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ahash::AHashMap;
use gcra_table::Nanos;
use spop_codec::{Limits, Scope};
use toml::de::DeTable;

use crate::answer_size::AnswerSizes;
use crate::answers::{Answers, Var};
use crate::calendar;
use crate::file::policy::policy;
use crate::file::reader::{Entries, MAX_REPORTED, Node, Reader};
use crate::file::secrets::Readers;
use crate::file::settings::{FILE_SETTINGS, SETTINGS, flag};
use crate::file::sources::{MAX_TOML_BYTES, Sources, read_text};
use crate::file::{bandwidth, key, max_delay, settle, store, syntax};
use crate::key_parts::Nat64;
use crate::limit::Limit;
use crate::origin::{FileOrigin, Origin};
use crate::policies::Policies;
use crate::policy::{Policy, When};
use crate::store::StoreSettings;
use crate::watch::{SeenFile, see};
use crate::words;

const NO_POLICY: &str =
    "there is no policy; write one, such as [policy.api] with limits = [\"100/s burst 20\"]";

/// Reads the policies in a file. The error has one line for each mistake: `FILE:LINE: what is
/// wrong; what would be right`.
///
/// This blocks for as long as the file system takes. A path that is not a regular file is refused
/// before anything is read from it.
///
/// Who reads the sentences decides how much of the file they repeat.
pub fn read(path: &Path, readers: Readers) -> Result<Policies, Vec<String>> {
    let mut looked_at = Vec::new();
    read_noting(path, readers, &mut looked_at)
}

/// As [`read`]. Adds the files that were looked at to `looked_at`, each in its state before it was
/// read: also those that are missing, cannot be read, or have mistakes.
pub fn read_noting(
    path: &Path,
    readers: Readers,
    looked_at: &mut Vec<SeenFile>,
) -> Result<Policies, Vec<String>> {
    looked_at.push((path.to_owned(), see(path)));
    calendar::look_again();
    let text = read_text(path, MAX_TOML_BYTES)
        .map_err(|error| vec![format!("cannot read {}: {error}", path.display())])?;
    parse_for(readers, None, path, &text, looked_at)
}

/// The policies of texts that were read before. Of the files, only that of the salt is read.
pub(crate) fn read_again(file: &FileOrigin, readers: Readers) -> Result<Policies, Vec<String>> {
    parse_for(readers, Some(file), file.path(), file.text(), &mut Vec::new())
}

/// As [`read`], with the contents of `path`. Lists are looked for beside it.
pub fn parse(path: &Path, text: &str) -> Result<Policies, Vec<String>> {
    parse_for(Readers::OfFile, None, path, text, &mut Vec::new())
}

fn parse_for(
    readers: Readers,
    again: Option<&FileOrigin>,
    path: &Path,
    text: &str,
    looked_at: &mut Vec<SeenFile>,
) -> Result<Policies, Vec<String>> {
    let mut reader = Reader::new(path, text, readers);
    if let Some((what, at)) = syntax::not_toml(text) {
        reader.at(at).wrong(&what);
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
                reader.hide_value_at(at);
                reader.at(at).wrong(&mistake.sentence);
            }
        }
        if !are_understood {
            return Err(reader.finish().err().unwrap_or_default());
        }
        // Other mistakes are reported, too, except in the same lines.
        reader.leave_out(reported);
    }
    let mut file = File { reader, sources: Sources::new(path, text, again) };
    let (list, answers, store) = file.document(document.get_ref());
    let warning_count = file.reader.warning_count();
    let (files, origin, digest) = file.sources.finish();
    looked_at.extend(files);
    let warnings = file.reader.finish()?;
    // The rules of time zones are read from files, too.
    let zones = list.iter().flat_map(Policy::limits).filter_map(Limit::calendar);
    let digest = zones.fold(digest, |digest, zone| digest.rotate_left(1) ^ zone.rules());
    let policies = Policies::new(list, answers, looked_at.clone(), digest);
    let origin = Some(Arc::new(Origin::File(origin)));
    Ok(Policies { store, origin, warnings, warning_count, ..policies })
}

/// A file while it is read.
struct File<'t> {
    reader: Reader<'t>,
    sources: Sources,
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
        let store =
            store_at.and_then(|value| store::store(&mut self.reader, &mut self.sources, value));
        let nat64 = entries.take("nat64");
        let nat64 = nat64.map(|value| key::nat64(&mut self.reader, value)).unwrap_or_default();
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
        let (list, places) = self.policies(policies, store_at.is_some(), &nat64);
        let can_delay = list.iter().any(|policy| policy.max_delay() > Nanos::ZERO);
        // Without it HAProxy would let requests pass at once, and no limit would be kept.
        let what = "answer names 'delay_ms', and no policy has max_delay; write max_delay in a \
                    policy, or leave delay_ms out";
        self.answer_early(&mut answers, answer, Var::DelayMs, can_delay, what);
        if let Some(at) = scope_at.filter(|_| can_delay) {
            max_delay::check_scope(&mut self.reader, at.span().start, answers.scope);
        }
        self.answer_reservations(&mut answers, answer, &list, &places);
        self.answers_fit(&answers, &list, &places);
        let has_bandwidth = answers.others.contains(&Var::Bandwidth);
        let answer_at = answer.filter(|_| has_bandwidth).map(|value| value.span().start);
        bandwidth::is_answered(&mut self.reader, answer_at, &bandwidths(policies));
        if let Some(value) = store_at
            && list.iter().all(|policy| policy.shared.is_none())
        {
            let what = "no policy uses the store; write shared = true in those that are to count \
                        over all machines";
            self.reader.on(value).warn(what);
        }
        let counts = |policy: &&Policy| {
            policy.shared.is_some() && policy.limits().any(|limit| limit.calendar().is_some())
        };
        if let Some(value) = store_at
            && store.as_ref().is_some_and(|store| store.base.strict)
            && let Some(policy) = list.iter().find(counts)
        {
            self.reader.on(value).warn(format!(
                "the store is strict, and policy '{}' counts in windows: when the store is used \
                 for the first time, and when it has lost its memory, all clients are blocked \
                 until the window ends; leave strict out if it does less harm that counts begin \
                 at 0 again then",
                policy.name
            ));
        }
        (list, answers, store)
    }

    fn scope(&mut self, value: &Node<'t>) -> Option<Scope> {
        let name = self.reader.string(value, "scope", "such as \"txn\"")?;
        let scope = name.parse().ok();
        if scope.is_none() {
            let known = ["proc", "sess", "txn", "req", "res"];
            self.reader.on(value).unknown("a scope", &name, &known);
        }
        scope
    }

    /// The variables that are set beside `blocked`.
    fn variables(&mut self, value: &Node<'t>) -> Vec<Var> {
        let mut vars = Vec::new();
        let like = "such as [\"remaining\", \"retry_after\"]";
        for (name, at) in self.reader.strings(value, "answer", like) {
            match Var::from_word(&name) {
                _ if name == "blocked" => {}
                Some(var) if !vars.contains(&var) => vars.push(var),
                Some(_) => {
                    let what = format!("answer names '{name}' twice; once is enough");
                    self.reader.at(at).wrong(what);
                }
                None => {
                    let names: Vec<_> = Var::ALL.iter().map(|var| var.name().as_str()).collect();
                    self.reader.at(at).unknown("a variable", &name, &names);
                }
            }
        }
        vars
    }

    /// Adds the variable `reserved` if a policy reserves cells: without it, no response could give
    /// them back.
    fn answer_reservations(
        &mut self,
        answers: &mut Answers,
        at: Option<&Node<'t>>,
        list: &[Policy],
        places: &[usize],
    ) {
        let reserving = list.iter().zip(places).find(|(policy, _)| policy.reserves());
        if let Some((policy, at)) = reserving.filter(|_| answers.scope != Scope::Transaction) {
            let reserves = policy.settle().is_some_and(|it| it.cells > 0 || it.reserve.is_some());
            let reserve = if reserves { "reserve" } else { "unsettled" };
            self.reader.at(*at).wrong(format!(
                "policy '{}' has {reserve}, and the variables of the scope {} are not those of \
                 one request and its response; write scope = \"txn\"",
                policy.name,
                answers.scope.as_str()
            ));
        }
        let what = "answer names 'reserved', and no policy has reserve; write reserve in a policy \
                    with settle, or leave reserved out";
        self.answer_early(answers, at, Var::Reserved, reserving.is_some(), what);
    }

    /// Adds a variable if it is needed, before all that a client can do without: the first
    /// variables fit into every usual ACK. `what` is the mistake if it is named and not needed.
    fn answer_early(
        &mut self,
        answers: &mut Answers,
        at: Option<&Node<'t>>,
        var: Var,
        is_needed: bool,
        what: &str,
    ) {
        let others = &mut answers.others;
        if is_needed {
            others.retain(|other| *other != var);
            let delays = others.iter().take_while(|other| **other == Var::DelayMs).count();
            others.insert(delays, var);
        } else if others.contains(&var) && self.reader.is_content() {
            // If a policy is wrong, it may be the one that needs it.
            self.reader.at(at.map_or(0, |at| at.span().start)).wrong(what);
        }
    }

    /// The policies with their trials, and where each of them stands. `has_store` is whether the
    /// file has a `[store]`, which may be wrong.
    fn policies(
        &mut self,
        value: Option<&Node<'t>>,
        has_store: bool,
        nat64: &Nat64,
    ) -> (Vec<Policy>, Vec<usize>) {
        let at = value.map_or(0, |value| value.span().start);
        let table = value.and_then(|value| {
            let what = "policy must be a table of policies; write a header such as [policy.api] \
                        for each";
            self.reader.table(value, what)
        });
        let is_empty = table.is_some_and(DeTable::is_empty);
        if value.is_none() || is_empty {
            self.reader.at(at).wrong(NO_POLICY);
        }
        // In the order of the file, which a table does not keep.
        let mut policies: Vec<_> = table.into_iter().flatten().collect();
        policies.sort_by_key(|(name, _)| name.span().start);
        let (mut list, mut places, mut trials) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in policies {
            let (reader, sources) = (&mut self.reader, &mut self.sources);
            let Some((policy, trial)) = policy(reader, sources, has_store, nat64, name, value)
            else {
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
                self.reader.at(*at).wrong(format!(
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
                self.reader.at(*at).wrong(format!(
                    "policy '{name}' never applies, because {above} all values of its 'when', for \
                     the same message; leave the policy or those values out"
                ));
            } else {
                let is_one = hidden.len() == 1;
                let (noun, them) = if is_one { ("value", "it") } else { ("values", "them") };
                self.reader.at(*at).warn(format!(
                    "policy '{name}' never gets the {noun} {} of '{}', because {above} {them}, \
                     for the same message; leave {them} out of one of the two",
                    quoted(&hidden.iter().map(|value| words::text(value)).collect::<Vec<_>>()),
                    words::text(arg)
                ));
            }
        }
    }

    /// An ACK may have 815 bytes, so that it fits HAProxy's smallest buffers, and header fields
    /// grow with the names in them.
    fn answers_fit(&mut self, answers: &Answers, list: &[Policy], places: &[usize]) {
        let has = |wanted: Var| answers.others.contains(&wanted);
        let fields = has(Var::RateLimit) || has(Var::RateLimitPolicy);
        let most = Limits::default().max_ack_size as usize;
        let sizes = AnswerSizes::new(answers, list);
        for (policy, at) in list.iter().zip(places) {
            let bytes = sizes.longest(policy);
            if (fields || has(Var::Headers)) && bytes > most {
                let leave_out = match (has(Var::Headers), fields) {
                    (false, _) => "ratelimit or ratelimit_policy",
                    (true, false) => "headers",
                    (true, true) => "ratelimit, ratelimit_policy or headers",
                };
                self.reader.at(*at).wrong(format!(
                    "with the header fields of policy '{}' an answer may have {bytes} bytes, and \
                     at most {most} are certain to fit into HAProxy's buffers; use shorter names \
                     or fewer limits, or leave {leave_out} out of answer",
                    policy.name
                ));
            }
        }
    }
}

/// Where policies have a bandwidth, which may be wrong.
fn bandwidths(policies: Option<&Node<'_>>) -> Vec<usize> {
    let policies = policies.and_then(|value| value.get_ref().as_table()).into_iter().flatten();
    let settings = policies.filter_map(|(_, policy)| policy.get_ref().as_table()).flatten();
    let bandwidths = settings.filter(|(name, _)| name.get_ref() == "bandwidth");
    bandwidths.map(|(_, value)| value.span().start).collect()
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

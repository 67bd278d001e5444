//! The configuration file: read whole, every mistake in it told at once, with its line.

use std::fmt::Write as _;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::num::NonZeroU32;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use ahash::AHashMap;
use gcra_table::Rate;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use spop_agent::{Limits, Scope};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::policy::answer::{Answers, Var};
use crate::policy::{
    Hashing, KeyParts, Limit, MAX_LIMITS, OverrideKey, Overrides, Penalty, Policies, Policy, Rule,
    When,
};
use crate::watch::{Seen, State};

/// The longest name of a policy or a limit: it is part of header fields.
const MAX_NAME: usize = 64;

/// A configuration and the lists that it names have at most so many bytes, all together.
const MAX_BYTES: u64 = 256 << 20;

/// The configuration itself has at most so many: reading TOML takes thirty times its size.
const MAX_TOML_BYTES: u64 = 32 << 20;

/// So many mistakes are told, and of further ones the number.
const MAX_TOLD: usize = 100;

/// Reads the policies in a file. An error is one line for each mistake: `FILE:LINE: what is wrong;
/// what would be right`.
///
/// A file system may take its time. What is no regular file is refused before it is read.
pub(crate) fn read(path: &Path) -> Result<Policies, Vec<String>> {
    let (text, state) = read_text(path, MAX_TOML_BYTES)
        .map_err(|error| vec![format!("{}: {error}", path.display())])?;
    let mut policies = parse(path, &text)?;
    policies.files.insert(0, (path.to_owned(), Some(state)));
    Ok(policies)
}

/// As [`read`], for a text that was read from `path`; other files are looked for beside it.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Policies, Vec<String>> {
    let mut reader = Reader::new(path, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            reader.wrong(at, &error.message().replace('\n', "; "));
        }
        return Err(reader.finish());
    }
    let policies = reader.document(document.get_ref());
    if reader.found == 0 { Ok(policies) } else { Err(reader.finish()) }
}

/// The text of a regular file of at most so many bytes, and the file's state before it was read.
/// The error is a sentence without the file's name.
fn read_text(path: &Path, most: u64) -> Result<(String, State), String> {
    const REGULAR: &str = "a configuration or a list has to be a regular file";
    // NONBLOCK: opening a FIFO must not wait for its other end. On a regular file it means
    // nothing.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A socket can't be opened at all.
        Err(Errno::NXIO) => return Err(format!("it is a socket or a device; {REGULAR}")),
        Err(errno) => return Err(io::Error::from(errno).to_string()),
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let kind = metadata.file_type();
    if !kind.is_file() {
        let found = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a FIFO",
            () => "a device",
        };
        return Err(format!("it is {found}; {REGULAR}"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(most)).unwrap_or(0));
    // Its length may be wrong: it can grow meanwhile, and is 0 in /proc.
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!(
            "it is too long: a configuration may have {} MiB, and it and its lists {} MiB in all; put \
             exceptions into lists",
            MAX_TOML_BYTES >> 20,
            MAX_BYTES >> 20
        ));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .split(|byte| *byte == b'\n')
            .count();
        format!("line {line} is not UTF-8; save the file as UTF-8")
    })?;
    Ok((text, State::from(&metadata)))
}

struct Reader<'t> {
    path: &'t Path,
    /// Where the lines of its text begin.
    lines: Vec<usize>,
    /// The line of each mistake, and what it is: those of the first lines, and some more.
    mistakes: Vec<(usize, String)>,
    /// How many there were in all.
    found: usize,
    /// Other files that were read.
    lists: Vec<Seen>,
    /// How many bytes those that follow may have.
    bytes_left: u64,
    digest: DefaultHasher,
}

/// The entries of a table, taken out one after another. What is left has no meaning.
struct Entries<'d, 't> {
    what: String,
    known: &'static [&'static str],
    left: Vec<(&'d Spanned<std::borrow::Cow<'t, str>>, &'d Spanned<DeValue<'t>>)>,
}

impl<'d, 't> Entries<'d, 't> {
    fn new(what: String, known: &'static [&'static str], table: &'d DeTable<'t>) -> Self {
        Self { what, known, left: table.iter().collect() }
    }

    fn take(&mut self, name: &str) -> Option<&'d Spanned<DeValue<'t>>> {
        debug_assert!(self.known.contains(&name));
        let at = self.left.iter().position(|(key, _)| key.get_ref() == name)?;
        Some(self.left.swap_remove(at).1)
    }
}

impl<'t> Reader<'t> {
    fn new(path: &'t Path, text: &'t str) -> Self {
        let lines = text.match_indices('\n').map(|(at, _)| at + 1);
        let mut digest = DefaultHasher::new();
        text.hash(&mut digest);
        Self {
            path,
            lines: [0].into_iter().chain(lines).collect(),
            mistakes: Vec::new(),
            found: 0,
            lists: Vec::new(),
            bytes_left: MAX_BYTES.saturating_sub(text.len() as u64),
            digest,
        }
    }

    fn wrong(&mut self, at: usize, what: &str) {
        let line = self.lines.partition_point(|begin| *begin <= at);
        self.mistakes.push((line, what.to_owned()));
        self.found += 1;
        // They come in no order, and all are not kept.
        if self.mistakes.len() >= 2 * MAX_TOLD {
            self.mistakes.sort();
            self.mistakes.truncate(MAX_TOLD);
        }
    }

    fn finish(mut self) -> Vec<String> {
        self.mistakes.sort();
        self.mistakes.truncate(MAX_TOLD);
        let more = self.found - self.mistakes.len();
        let path = self.path.display();
        let told = self.mistakes.iter().map(|(line, what)| format!("{path}:{line}: {what}"));
        let mistakes = if more == 1 { "mistake" } else { "mistakes" };
        told.chain((more > 0).then(|| format!("{path}: and {more} more {mistakes}"))).collect()
    }

    fn document(&mut self, table: &DeTable<'t>) -> Policies {
        let mut entries =
            Entries::new("the file".to_owned(), &["scope", "answer", "policy"], table);
        let scope = entries.take("scope").and_then(|value| {
            let scope = self.string(value, "scope", "like \"txn\"")?.parse::<Scope>();
            scope.map_err(|error| self.wrong(value.span().start, &error.to_string())).ok()
        });
        let mut others = Vec::new();
        if let Some(value) = entries.take("answer") {
            for (name, at) in
                self.strings(value, "answer", "like [\"remaining\", \"retry_after\"]")
            {
                match Var::ALL.into_iter().find(|var| var.name().as_str() == name) {
                    _ if name == "blocked" => {}
                    Some(var) if !others.contains(&var) => others.push(var),
                    Some(_) => {
                        self.wrong(at, &format!("answer names '{name}' twice; once is enough"))
                    }
                    None => {
                        let names: Vec<_> =
                            Var::ALL.iter().map(|var| var.name().as_str()).collect();
                        self.unknown(at, "a variable", &name, &names);
                    }
                }
            }
        }
        let answers = Answers {
            scope: scope.unwrap_or(Scope::Transaction),
            others,
            ..Answers::blocked_only()
        };
        // The policies, and where each of them stands.
        let (mut list, mut places) = (Vec::new(), Vec::new());
        match entries.take("policy") {
            None => self.wrong(0, NO_POLICY),
            Some(value) if value.get_ref().as_table().is_some_and(DeTable::is_empty) => {
                self.wrong(value.span().start, NO_POLICY);
            }
            Some(value) => {
                let policies =
                    self.table(value, "policy is a table of policies, like [policy.api]");
                // In the order of the file, which a table does not keep.
                let mut policies: Vec<_> = policies.into_iter().flatten().collect();
                policies.sort_by_key(|(name, _)| name.span().start);
                for (name, policy) in policies {
                    if let Some(policy) = self.policy(name, policy) {
                        list.push(policy);
                        places.push(name.span().start);
                    }
                }
            }
        }
        self.no_more(entries);
        self.no_policy_hides_another(&list, &places);
        self.answers_fit(&answers, &list, &places);
        let files = std::mem::take(&mut self.lists);
        Policies { list, answers, files, digest: self.digest.finish() }
    }

    fn policy(
        &mut self,
        name: &Spanned<std::borrow::Cow<'t, str>>,
        value: &Spanned<DeValue<'t>>,
    ) -> Option<Policy> {
        const KNOWN: &[&str] = &[
            "message",
            "when",
            "limits",
            "key",
            "ipv4_prefix",
            "ipv6_prefix",
            "lowercase",
            "cost",
            "mode",
            "penalty",
            "overrides",
            "lists",
        ];
        let at = name.span().start;
        let name = &**name.get_ref();
        if !is_name(name) {
            self.wrong(at, &format!("'{name}' is no name for a policy: {NAME_RULE}"));
        }
        let table =
            self.table(value, &format!("policy.{name} is a table, like [policy.{name}]"))?;
        let mut entries = Entries::new(format!("policy '{name}'"), KNOWN, table);
        let message = match entries.take("message") {
            Some(value) => self.name(value, "message", "the name of a spoe-message")?,
            None => name.to_owned(),
        };
        let when = entries.take("when").and_then(|value| self.when(value));
        let rule = match entries.take("limits") {
            Some(value) => self.rule(name, value),
            None => {
                self.wrong(at, &format!("policy '{name}' has no limits; write limits = [\"100/s burst 20\"], \"deny\" or \"unlimited\""));
                None
            }
        };
        let args = entries
            .take("key")
            .map(|value| self.strings(value, "key", "like [\"ip\"]"))
            .unwrap_or_default();
        for (place, (arg, at)) in args.iter().enumerate() {
            if arg.is_empty() {
                self.wrong(
                    *at,
                    "key has an empty name; write the names of args, like [\"ip\", \"path\"]",
                );
            } else if args[..place].iter().any(|(other, _)| other == arg) {
                self.wrong(*at, &format!("key names '{arg}' twice; once is enough"));
            }
        }
        let cost = entries.take("cost").and_then(|value| {
            let cost = self.name(value, "cost", "the name of an arg")?;
            if args.iter().any(|(arg, _)| *arg == cost) {
                let what = format!(
                    "key and cost both name '{cost}', so that each cost would have a bucket of its own; leave it out of key"
                );
                self.wrong(value.span().start, &what);
            }
            Some(cost.into_bytes().into())
        });
        let mut prefix = |entries: &mut Entries<'_, 't>,
                          name: &'static str,
                          most: u8,
                          default: u8| match entries.take(name) {
            None => default,
            Some(value) => self
                .number(value, name, u64::from(most))
                .and_then(|bits| u8::try_from(bits).ok())
                .unwrap_or(default),
        };
        let key = KeyParts {
            ipv4_prefix: prefix(&mut entries, "ipv4_prefix", 32, 32),
            ipv6_prefix: prefix(&mut entries, "ipv6_prefix", 128, 64),
            lowercase: entries
                .take("lowercase")
                .and_then(|value| self.boolean(value, "lowercase"))
                .unwrap_or(false),
            args: args.into_iter().map(|(arg, _)| arg.into_bytes().into()).collect(),
        };
        let observes = entries.take("mode").is_some_and(|value| {
            let mode = self.string(value, "mode", "\"enforce\" or \"observe\"");
            match mode.as_deref() {
                Some("observe") => true,
                None | Some("enforce") => false,
                Some(other) => {
                    self.unknown(value.span().start, "a mode", other, &["enforce", "observe"]);
                    false
                }
            }
        });
        let penalty_at = entries.left.iter().find(|(key, _)| key.get_ref() == "penalty");
        let penalty_at = penalty_at.map_or(at, |(_, value)| value.span().start);
        let penalty = entries.take("penalty").and_then(|value| self.penalty(value));
        let (mut overrides, mut places) = (Overrides::default(), Places::default());
        if let Some(value) = entries.take("overrides") {
            self.overrides(name, value, &key, &mut overrides, &mut places);
        }
        if let Some(value) = entries.take("lists") {
            self.lists(name, value, &key, &mut overrides, &mut places);
        }
        self.no_more(entries);
        let mut rule = rule;
        if let Some(penalty) = penalty {
            let Penalty { ceiling_ns, .. } = penalty;
            let mut rules = rule.iter().chain(&overrides.rules);
            if rule.is_some() && rules.all(|rule| rule.limits().is_empty()) {
                let what = format!(
                    "the penalty of policy '{name}' is never charged, because the policy has no limit; leave it out"
                );
                self.wrong(penalty_at, &what);
            }
            let rules = rule.iter_mut().chain(&mut overrides.rules);
            for limit in rules.flat_map(Rule::limits_mut) {
                if let Some(what) = never_charged(penalty, limit, name) {
                    self.wrong(penalty_at, &what);
                }
                match limit.quota.with_penalty(ceiling_ns) {
                    Ok(quota) => limit.quota = quota,
                    Err(error) => self.wrong(at, &format!("with its penalty, {error}")),
                }
            }
        }
        let hashing = Hashing::of(&key, cost.as_deref(), when.as_ref(), &overrides);
        Some(Policy {
            name: name.into(),
            message: Some(message.into_bytes().into()),
            when,
            key,
            cost,
            rule: rule?,
            overrides,
            observes,
            penalty,
            hashing,
        })
    }

    /// `{ plan = "gold" }` or `{ plan = ["gold", "silver"] }`.
    fn when(&mut self, value: &Spanned<DeValue<'t>>) -> Option<When> {
        const HOW: &str = "when names one arg and its values, like { plan = \"gold\" } or { plan = [\"gold\", \"silver\"] }";
        let mut entries = self.table(value, HOW)?.iter();
        let (Some((arg, values)), None) = (entries.next(), entries.next()) else {
            self.wrong(value.span().start, HOW);
            return None;
        };
        let at = value.span().start;
        let values = match values.get_ref() {
            DeValue::String(text) => vec![text.to_string()],
            _ => self
                .strings(values, "when", "like { plan = \"gold\" }")
                .into_iter()
                .map(|(value, _)| value)
                .collect(),
        };
        if values.is_empty() {
            self.wrong(at, HOW);
        }
        let bytes = |text: &str| Box::from(text.as_bytes());
        Some(When {
            arg: bytes(arg.get_ref()),
            values: values.iter().map(|value| bytes(value)).collect(),
        })
    }

    /// `"deny"`, `"unlimited"`, one limit, or a list of them.
    fn rule(&mut self, policy: &str, value: &Spanned<DeValue<'t>>) -> Option<Rule> {
        let at = value.span().start;
        match value.get_ref() {
            DeValue::String(text) if text == "deny" => Some(Rule::Deny),
            DeValue::String(text) if text == "unlimited" => Some(Rule::Unlimited),
            DeValue::String(_) | DeValue::Table(_) => {
                Some(Rule::Limits(vec![self.limit(policy, value, None)?]))
            }
            DeValue::Array(array) if array.is_empty() => {
                self.wrong(at, "limits is empty; write \"unlimited\" to let everything through");
                None
            }
            DeValue::Array(array) if array.len() > MAX_LIMITS => {
                self.wrong(
                    at,
                    &format!(
                        "there are {} limits; at most {MAX_LIMITS} can be met at once",
                        array.len()
                    ),
                );
                None
            }
            DeValue::Array(array) => {
                let position = |number| (array.len() > 1).then_some(number);
                let limits: Vec<_> = (1..)
                    .zip(array.iter())
                    .map(|(number, limit)| self.limit(policy, limit, position(number)))
                    .collect();
                let limits: Vec<_> = limits.into_iter().collect::<Option<_>>()?;
                let mut labels: Vec<_> = limits.iter().map(|limit: &Limit| &limit.label).collect();
                labels.sort();
                if let Some(pair) = labels.windows(2).find(|pair| pair[0] == pair[1]) {
                    self.wrong(
                        at,
                        &format!(
                            "two limits are called '{}'; give each a name of its own",
                            pair[0]
                        ),
                    );
                }
                Some(Rule::Limits(limits))
            }
            _ => {
                self.wrong(
                    at,
                    "limits is a list, like [\"10/s burst 20\", \"1000/h\"], \"deny\" or \"unlimited\"",
                );
                None
            }
        }
    }

    /// `"10/s burst 20"` or `{ name = "hourly", rate = "1000/h", burst = 100 }`.
    fn limit(
        &mut self,
        policy: &str,
        value: &Spanned<DeValue<'t>>,
        position: Option<usize>,
    ) -> Option<Limit> {
        let at = value.span().start;
        let rate;
        let (mut burst, mut name) = (None, None);
        match value.get_ref() {
            DeValue::String(text) => {
                let mut words = text.split_whitespace();
                rate = words.next().map(str::to_owned);
                match (words.next(), words.next(), words.next()) {
                    (None, ..) => {}
                    (Some("burst"), Some(count), None) if count.parse::<u64>().is_ok() => {
                        burst = count.parse().ok();
                    }
                    _ => {
                        self.wrong(
                            at,
                            &format!(
                                "'{text}' is no limit; write RATE or RATE burst COUNT, like \"10/s burst 20\""
                            ),
                        );
                        return None;
                    }
                }
                if matches!(rate.as_deref(), Some("deny" | "unlimited")) {
                    self.wrong(
                        at,
                        &format!(
                            "'{text}' stands for itself: write limits = \"{text}\", not in a list"
                        ),
                    );
                    return None;
                }
            }
            DeValue::Table(table) => {
                let mut entries =
                    Entries::new("a limit".to_owned(), &["name", "rate", "burst"], table);
                rate = entries
                    .take("rate")
                    .and_then(|value| self.string(value, "rate", "like \"10/s\""));
                burst = entries
                    .take("burst")
                    .and_then(|value| self.number(value, "burst", u64::from(u32::MAX)));
                name = entries.take("name").and_then(|value| {
                    let name = self.string(value, "name", "like \"hourly\"")?;
                    if !is_name(&name) {
                        self.wrong(
                            value.span().start,
                            &format!("'{name}' is no name for a limit: {NAME_RULE}"),
                        );
                    }
                    Some(name)
                });
                self.no_more(entries);
            }
            _ => {
                self.wrong(at, "a limit is a text like \"10/s burst 20\", or a table like { name = \"hourly\", rate = \"1000/h\", burst = 100 }");
                return None;
            }
        }
        let Some(rate) = rate else {
            self.wrong(at, "the limit has no rate; write rate = \"10/s\"");
            return None;
        };
        let parsed = rate.parse::<Rate>().and_then(|rate| Ok((rate, rate.quota(burst)?)));
        let (rate, quota) = parsed.map_err(|error| self.wrong(at, &error.to_string())).ok()?;
        let text = format!("{rate}, up to {} at once", quota.burst());
        // Its identity in the table: its own name, or its place.
        let identity = name.clone().unwrap_or_else(|| position.unwrap_or(1).to_string());
        let label = match (name, position) {
            (Some(name), _) => format!("{policy}.{name}"),
            (None, Some(position)) => format!("{policy}.{position}"),
            (None, None) => policy.to_owned(),
        };
        Some(Limit::new(policy, &identity, label, quota, text))
    }

    /// `{ cells = 1, ceiling = "10m" }`.
    fn penalty(&mut self, value: &Spanned<DeValue<'t>>) -> Option<Penalty> {
        let at = value.span().start;
        let table =
            self.table(value, "penalty is a table, like { cells = 1, ceiling = \"10m\" }")?;
        let mut entries = Entries::new("penalty".to_owned(), &["cells", "ceiling"], table);
        let cells = entries
            .take("cells")
            .map_or(Some(1), |value| self.number(value, "cells", u64::from(u32::MAX)));
        let ceiling_ns = match entries.take("ceiling") {
            Some(value) => {
                let text = self.string(value, "ceiling", "like \"10m\"")?;
                let ceiling = duration_ns(&text);
                if ceiling.is_none() {
                    let what = format!(
                        "'{text}' is no time; write a number and ms, s, m, h or d, up to 30d, like \"10m\""
                    );
                    self.wrong(value.span().start, &what);
                }
                ceiling
            }
            None => {
                self.wrong(at, "penalty has no ceiling, so that nobody could know when a client gets back in; write ceiling = \"10m\"");
                None
            }
        };
        self.no_more(entries);
        if cells == Some(0) {
            self.wrong(
                at,
                "a penalty of 0 cells charges nothing; write cells = 1, or leave the penalty out",
            );
            return None;
        }
        Some(Penalty { cells: u32::try_from(cells?).unwrap_or(u32::MAX), ceiling_ns: ceiling_ns? })
    }

    /// `"192.0.2.0/24" = "unlimited"`.
    fn overrides(
        &mut self,
        policy: &str,
        value: &Spanned<DeValue<'t>>,
        parts: &KeyParts,
        overrides: &mut Overrides,
        places: &mut Places,
    ) {
        let what = "overrides is a table, like \"192.0.2.0/24\" = \"unlimited\"";
        let Some(table) = self.table(value, what) else { return };
        for (key, rule) in table {
            let text = &**key.get_ref();
            let override_key =
                override_key(text, parts).map_err(|what| self.wrong(key.span().start, &what));
            if let (Some(rule), Ok(override_key)) = (self.rule(policy, rule), override_key) {
                let index = places.of(rule, overrides);
                if overrides.insert(override_key, index).is_some() {
                    self.wrong(
                        key.span().start,
                        &format!("'{text}' is the same as another override; one is enough"),
                    );
                }
            }
        }
    }

    /// `[[policy.api.lists]]` with `file` and `limits`.
    fn lists(
        &mut self,
        policy: &str,
        value: &Spanned<DeValue<'t>>,
        key: &KeyParts,
        overrides: &mut Overrides,
        places: &mut Places,
    ) {
        let DeValue::Array(array) = value.get_ref() else {
            self.wrong(
                value.span().start,
                "lists is a list of tables, like [[policy.NAME.lists]] with file and limits",
            );
            return;
        };
        for list in array.iter() {
            let at = list.span().start;
            let Some(table) = self.table(list, "a list is a table with file and limits") else {
                continue;
            };
            let mut entries = Entries::new("a list".to_owned(), &["file", "limits"], table);
            let file = entries.take("file").and_then(|value| self.string(value, "file", "a path"));
            let rule = entries.take("limits").map(|value| self.rule(policy, value));
            match (file, rule) {
                (Some(file), Some(Some(rule))) => {
                    let index = places.of(rule, overrides);
                    self.list_file(at, &file, index, key, overrides);
                }
                (_, Some(None)) => {}
                _ => self.wrong(
                    at,
                    "a list needs file and limits, like file = \"partners.txt\" and limits = \"unlimited\"",
                ),
            }
            self.no_more(entries);
        }
    }

    /// One entry a line, comments behind `#`.
    fn list_file(
        &mut self,
        at: usize,
        file: &str,
        rule: u32,
        key: &KeyParts,
        overrides: &mut Overrides,
    ) {
        let path: PathBuf = self.path.parent().unwrap_or(Path::new("")).join(file);
        let (text, state) = match read_text(&path, self.bytes_left) {
            Ok(read) => read,
            Err(error) => {
                return self
                    .wrong(at, &format!("the list {} can't be read: {error}", path.display()));
            }
        };
        self.lists.push((path.clone(), Some(state)));
        self.bytes_left -= text.len() as u64;
        text.hash(&mut self.digest);
        let (mut wrong, mut more) = (Vec::new(), 0_usize);
        for (number, line) in (1..).zip(text.lines()) {
            let entry = line.split('#').next().unwrap_or_default().trim();
            if entry.is_empty() {
                continue;
            }
            // In other files these begin a comment. Here the line would be a value that no client
            // sends.
            let mark = [";", "//"].into_iter().find(|mark| entry.starts_with(mark));
            let read = match mark {
                Some(mark) => Err(format!(
                    "'{entry}' begins with {mark}; write # before a comment, or \"str:{entry}\" for the text itself"
                )),
                None => override_key(entry, key),
            };
            match read {
                // Of several lists with an entry the last one counts, as of several lines.
                Ok(key) => drop(overrides.insert(key, rule)),
                Err(what) if wrong.len() < 10 => wrong.push(format!("line {number}: {what}")),
                Err(_) => more += 1,
            }
        }
        for what in wrong {
            self.wrong(at, &format!("the list {}, {what}", path.display()));
        }
        if more > 0 {
            self.wrong(
                at,
                &format!("the list {} has {more} more lines like that", path.display()),
            );
        }
    }

    /// Of two policies for one message the first is taken, so one without `when` must be the last.
    fn no_policy_hides_another(&mut self, list: &[Policy], places: &[usize]) {
        // The first policy for each message and `when`.
        let mut first: AHashMap<_, &Policy> = AHashMap::new();
        for (policy, at) in list.iter().zip(places) {
            let (every, same) = ((&policy.message, None), (&policy.message, policy.when.as_ref()));
            if let Some(hiding) = first.get(&every).or_else(|| first.get(&same)) {
                let what = format!(
                    "policy '{}' is never taken: '{}' above it is for the same message; put it first, and give it a 'when'",
                    policy.name, hiding.name
                );
                self.wrong(*at, &what);
            } else {
                first.insert(same, policy);
            }
        }
    }

    /// An ACK has 815 bytes at most, as HAProxy's buffers want it, and the header fields grow with
    /// the names in them.
    fn answers_fit(&mut self, answers: &Answers, list: &[Policy], places: &[usize]) {
        // The ids; then for each variable what is around its value, and a value that is no header
        // field.
        const HEADER: usize = 25;
        const VARIABLE: usize = 4 + 16 + 12;
        // `"";r=4294967295;t=4294967295, `
        const MEMBER: usize = 30;
        let fields = answers
            .others
            .iter()
            .filter(|var| matches!(var, Var::RateLimit | Var::RateLimitPolicy))
            .count();
        let names = list.iter().map(|policy| policy.name.len()).max().unwrap_or(0);
        let messages: std::collections::BTreeSet<_> =
            list.iter().map(|policy| &policy.message).collect();
        for (policy, at) in list.iter().zip(places) {
            let members = policy.rules().map(|rule| {
                rule.limits().iter().map(|limit| limit.label.len() + MEMBER).sum::<usize>()
            });
            // One NOTIFY may have messages for two policies.
            let longest = members.max().unwrap_or(0) * messages.len().min(2);
            let bytes = HEADER + (answers.others.len() + 1) * VARIABLE + names + fields * longest;
            let most = Limits::default().max_ack_size as usize;
            if fields > 0 && bytes > most {
                let what = format!(
                    "with the header fields of policy '{}' an answer may have {bytes} bytes, and {most} fit; give it shorter \
                     names or fewer limits, or leave ratelimit or ratelimit_policy out of answer",
                    policy.name
                );
                self.wrong(*at, &what);
            }
        }
    }

    /// A table; where it is none, `what` is wrong.
    fn table<'v>(
        &mut self,
        value: &'v Spanned<DeValue<'t>>,
        what: &str,
    ) -> Option<&'v DeTable<'t>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong(value.span().start, what);
        }
        table
    }

    fn string(&mut self, value: &Spanned<DeValue<'t>>, name: &str, like: &str) -> Option<String> {
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.wrong(value.span().start, &format!("{name} is a text, {like}"));
        }
        text
    }

    /// A text that is not empty.
    fn name(&mut self, value: &Spanned<DeValue<'t>>, name: &str, what: &str) -> Option<String> {
        let text = self.string(value, name, what)?;
        if text.is_empty() {
            self.wrong(
                value.span().start,
                &format!("{name} is empty; write {what}, or leave it out"),
            );
        }
        Some(text)
    }

    fn boolean(&mut self, value: &Spanned<DeValue<'t>>, name: &str) -> Option<bool> {
        let boolean = value.get_ref().as_bool();
        if boolean.is_none() {
            self.wrong(value.span().start, &format!("{name} is true or false"));
        }
        boolean
    }

    fn number(&mut self, value: &Spanned<DeValue<'t>>, name: &str, most: u64) -> Option<u64> {
        let number = value
            .get_ref()
            .as_integer()
            .and_then(|integer| u64::from_str_radix(integer.as_str(), integer.radix()).ok());
        let number = number.filter(|number| *number <= most);
        if number.is_none() {
            self.wrong(value.span().start, &format!("{name} is a whole number from 0 to {most}"));
        }
        number
    }

    /// The texts of a list, and where each stands.
    fn strings(
        &mut self,
        value: &Spanned<DeValue<'t>>,
        name: &str,
        like: &str,
    ) -> Vec<(String, usize)> {
        let texts = value.get_ref().as_array().and_then(|array| {
            array
                .iter()
                .map(|text| Some((text.get_ref().as_str()?.to_owned(), text.span().start)))
                .collect()
        });
        if texts.is_none() {
            self.wrong(value.span().start, &format!("{name} is a list of texts, {like}"));
        }
        texts.unwrap_or_default()
    }

    /// Every entry that was not taken out is a mistake.
    fn no_more(&mut self, entries: Entries<'_, 't>) {
        for (key, _) in &entries.left {
            let kind = format!("a key of {}", entries.what);
            self.unknown(key.span().start, &kind, key.get_ref(), entries.known);
        }
    }

    /// A name that means nothing, and the one that may have been meant.
    fn unknown(&mut self, at: usize, kind: &str, name: &str, known: &[&str]) {
        let nearest =
            known.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
        let mut what = format!("'{name}' is not {kind}; ");
        match nearest {
            Some((distance, nearest)) if distance <= 1 + name.len() / 4 => {
                let _ = write!(what, "is it '{nearest}'?");
            }
            _ => {
                let _ = write!(what, "there are {}", known.join(", "));
            }
        }
        self.wrong(at, &what);
    }
}

const NO_POLICY: &str =
    "there is no policy; write one, like [policy.api] with limits = [\"100/s burst 20\"]";

const NAME_RULE: &str = "letters, digits, '-' and '_', at most 64 of them";

/// A name is part of header fields and metrics.
fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(good)
}

fn override_key(text: &str, parts: &KeyParts) -> Result<OverrideKey, String> {
    Ok(match text.parse()? {
        OverrideKey::Value(value) if parts.lowercase => {
            OverrideKey::Value(value.to_ascii_lowercase().into())
        }
        key => key,
    })
}

/// The rules of a policy's overrides, and the place of each. Overrides that say the same share
/// one.
#[derive(Default)]
struct Places(AHashMap<Rule, u32>);

impl Places {
    fn of(&mut self, rule: Rule, overrides: &mut Overrides) -> u32 {
        // A file has fewer.
        let next = u32::try_from(overrides.rules.len()).unwrap_or(u32::MAX);
        *self.0.entry(rule).or_insert_with_key(|rule| {
            overrides.rules.push(rule.clone());
            next
        })
    }
}

/// Why a penalty is never charged to a limit, if so. A client that is blocked owes more than all
/// but one of the burst's cells, so what is charged to it fits below the ceiling only if it is no
/// longer than that.
fn never_charged(penalty: Penalty, limit: &Limit, policy: &str) -> Option<String> {
    let interval_ns = limit.quota.emission_interval_ns();
    let takes_ns = interval_ns.saturating_mul(penalty.cells.into());
    if takes_ns <= penalty.ceiling_ns {
        return None;
    }
    let cells = if penalty.cells == 1 {
        "1 cell takes".to_owned()
    } else {
        format!("{} cells take", penalty.cells)
    };
    let (more, remedy) = match MAX_DURATION_NS / interval_ns {
        _ if takes_ns <= MAX_DURATION_NS => (
            "more than the ceiling",
            format!("write ceiling = \"{}\" at least", duration(takes_ns)),
        ),
        0 => (
            "more than any ceiling",
            "leave the penalty out, because one cell takes longer than 30d".to_owned(),
        ),
        most => ("more than any ceiling", format!("write fewer cells, {most} at most")),
    };
    Some(format!(
        "the penalty is never charged to the limit '{}' of policy '{policy}': {cells} it {}, {more}; {remedy}",
        limit.text,
        duration(takes_ns)
    ))
}

/// The longest time that can be written.
const MAX_DURATION_NS: u64 = 30 * 86_400 * 1_000_000_000;

/// As it would be written: in days or seconds where that is exact, else in milliseconds, rounded
/// up.
fn duration(ns: u64) -> String {
    match ns.div_ceil(1_000_000) {
        ms if ms.is_multiple_of(86_400_000) => format!("{}d", ms / 86_400_000),
        ms if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

/// `10m` in nanoseconds, up to 30 days.
fn duration_ns(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(unit_at);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let ms = count.parse::<NonZeroU32>().ok()?.get();
    let ms = u64::from(ms).checked_mul(unit_ms)?;
    (ms <= MAX_DURATION_NS / 1_000_000).then_some(ms * 1_000_000)
}

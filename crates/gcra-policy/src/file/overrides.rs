//! The grammar of `overrides` and `lists`: which values of the key have other limits.

use std::borrow::Cow;
use std::fmt::Display;
use std::path::Path;

use ahash::AHashMap;
use gcra_text::count::Count;
use gcra_text::network::VALUE;
use gcra_text::sentence;
use gcra_text::sentence::Sentence;
use ipnet::IpNet;
use toml::de::DeValue;

use crate::file::entries::Entries;
use crate::file::limits::{self, WrittenFor};
use crate::file::reader::{EntryName, Node, Reader, quoted};
use crate::file::settings::of_policy::{LISTS, OVERRIDES as SETTING};
use crate::file::settings::{LIST_TABLE, is_setting, of_list};
use crate::file::sources::{MAX_BYTES, Sources, read_text};
use crate::key_parts::{KeyParts, is_address};
use crate::limit::Rule;
use crate::overrides::{OVERRIDES, OverrideKey, Overrides};
use crate::policy::Policy;
use crate::policy_text::PolicyText;
use crate::texts::{is_host_name, is_pattern, without_type};

/// The most mistakes of one list that are reported one by one.
const MAX_REPORTED: usize = 10;

/// The IPv6 prefix that is left of addresses with `ipmask(32,64)`.
const MASKED_PREFIX: u8 = 64;

/// Takes the overrides of a policy, and those of its lists.
pub(crate) fn overrides<'t>(
    reader: &mut Reader<'t>,
    sources: &mut Sources,
    policy: WrittenFor<'_>,
    entries: &Entries<'_, 't>,
) -> Overrides {
    let mut collector = Collector {
        policy,
        overrides: Overrides::default(),
        places: AHashMap::new(),
        addresses: 0,
        texts: Several::default(),
        hosts: Several::default(),
        odd: Several::default(),
        narrow: 0,
        first_narrow: None,
    };
    if let Some(value) = entries.get(&SETTING) {
        collector.overrides(reader, value);
    }
    if let Some(value) = entries.get(&LISTS) {
        collector.lists(reader, sources, value);
    }
    collector.finish(reader)
}

/// Collects the overrides of one policy.
struct Collector<'p> {
    policy: WrittenFor<'p>,
    overrides: Overrides,
    /// The place of each rule. Overrides with equal limits share one.
    places: AHashMap<Rule, u32>,
    /// How many entries are addresses or networks.
    addresses: usize,
    /// The strings without `str:`, and of these the names of hosts. A sentence begins with each.
    texts: Several,
    hosts: Several,
    /// Sentences about strings that probably mean something else.
    odd: Several,
    /// How many entries are for less than a group of the policy and a /64 of IPv6; and the first.
    narrow: usize,
    first_narrow: Option<(usize, String)>,
}

/// Entries with the same fault: how many there are, and the first. Each of these has its place in
/// the file, and the list that it is in.
#[derive(Default)]
struct Several {
    first: Vec<(usize, String)>,
    count: usize,
}

impl Several {
    fn add(&mut self, at: usize, what: impl FnOnce() -> String) {
        self.count += 1;
        if self.count <= MAX_REPORTED {
            self.first.push((at, what()));
        }
    }

    /// Warns of each of the first, with `end` behind it, and of the number of the others: `more`
    /// are `what`.
    fn warn(&self, reader: &mut Reader<'_>, end: &str, what: [&'static str; 2], of: &str) {
        for (at, text) in &self.first {
            reader.at(*at).warn(format!("{text}{end}"));
        }
        if let (more @ 1.., Some((at, _))) = (self.count - self.first.len(), self.first.last()) {
            let [one, several] = what;
            let what = format!("{} {of}", Count(more as u64, one, several));
            reader.at(*at).warn_of_several(&what, more);
        }
    }
}

impl Collector<'_> {
    /// All overrides. Warns of strings among addresses, unless the key has several args, of which
    /// one can be an address and another one a string.
    fn finish(self, reader: &mut Reader<'_>) -> Overrides {
        let name = self.policy.name;
        let args: Vec<_> = self.policy.key.names().collect();
        let are_addresses = args.len() <= 1 && self.addresses > 0;
        if are_addresses && self.texts.count < self.addresses {
            let end = " is a string among addresses, so no address will ever match it; write an \
                       address, or str: in front of it if it is meant";
            let more = ["more string is", "more strings are"];
            let of = format!("among the addresses of policy '{name}'");
            self.texts.warn(reader, end, more, &of);
        } else if are_addresses || matches!(args[..], [arg] if is_address(arg)) {
            let end = " is the name of a host, and nobody looks its addresses up, so no address \
                       will ever match it; write its addresses, or str: in front of it if it is \
                       meant";
            let more = ["more name of a host is", "more names of hosts are"];
            self.hosts.warn(reader, end, more, &format!("in the overrides of policy '{name}'"));
        }
        let more = ["more override", "more overrides"];
        self.odd.warn(reader, "", more, &format!("of policy '{name}' like these"));
        self.warn_of_narrow_ones(reader);
        self.overrides
    }

    /// Warns once of the overrides that never apply if HAProxy cuts addresses to their /64. A
    /// policy with longer groups needs longer addresses in any case.
    fn warn_of_narrow_ones(&self, reader: &mut Reader<'_>) {
        let Some((at, first)) = &self.first_narrow else { return };
        let are = match self.narrow - 1 {
            0 => format!("of policy '{}' is for less than a /64; it applies", self.policy.name),
            more => format!(
                "and {} of policy '{}' are for less than a /64; they apply",
                Count(more, "more override", "more overrides"),
                self.policy.name
            ),
        };
        let what = format!(
            "{first} {are} only if HAProxy sends whole addresses (args ip=src), and never with \
             ip=src,ipmask(32,64), as in some files of haproxy/"
        );
        reader.at(*at).warn_of_several(&what, self.narrow);
    }

    /// Remembers whether an entry is an address or a string. `list` says in which list it is.
    fn note(
        &mut self,
        reader: &mut Reader<'_>,
        at: usize,
        list: impl Display,
        text: &str,
        key: &OverrideKey,
    ) {
        match key {
            OverrideKey::Net(net) => {
                self.addresses += 1;
                let least = self.policy.key.ipv6_prefix.max(MASKED_PREFIX);
                if matches!(net, IpNet::V6(_)) && net.prefix_len() > least {
                    self.narrow += 1;
                    self.first_narrow
                        .get_or_insert_with(|| (at, format!("{list}the override '{text}'")));
                }
            }
            OverrideKey::Value(_) if text.starts_with(VALUE) => {}
            OverrideKey::Value(_) => {
                if self.texts.count < MAX_REPORTED {
                    reader.hide(text);
                }
                self.texts.add(at, || format!("{list}'{text}'"));
                if is_host_name(text) {
                    self.hosts.add(at, || format!("{list}'{text}'"));
                }
                if let Some(what) = not_as_text(text, true) {
                    self.odd.add(at, || {
                        reader.hide(text);
                        format!("{list}{what}")
                    });
                }
            }
        }
    }

    /// `"192.0.2.0/24" = "unlimited"`.
    fn overrides<'t>(&mut self, reader: &mut Reader<'t>, value: &Node<'t>) {
        let what = format!(
            "overrides must be a table; write [policy.{}.overrides], and below it lines such as \
             \"192.0.2.0/24\" = \"unlimited\"",
            self.policy.name
        );
        let Some(table) = reader.table(value, &what) else { return };
        // In the order of the file, which a table does not keep.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut seen: AHashMap<OverrideKey, &EntryName<'_>> = AHashMap::new();
        for (name, value) in entries {
            let (at, text) = (name.span().start, &**name.get_ref());
            // The span of a key has its quotes in it.
            let is_bare = name.span().len() == text.len();
            if let Some(dotted) = dotted(text, value).filter(|_| is_bare) {
                let what = format!("the key '{dotted}' needs quotes; write \"{dotted}\"");
                reader.at(at).right(Some(quoted(&dotted))).wrong(what);
                continue;
            }
            if is_bare && is_setting(text) {
                reader.at(at).wrong(format!(
                    "'{text}' below [policy.{}.overrides] is an override for the value '{text}'; \
                     write it above that header, or \"{text}\" in quotes if the value is meant",
                    self.policy.name
                ));
                continue;
            }
            let key = self.key(text).map_err(|what| reader.at(at).wrong(&what));
            let noted = reader.noted();
            let rule = limits::rule(reader, self.policy, &format!("the override '{text}'"), value);
            if reader.noted() > noted || key.is_err() {
                reader.hide(text);
            }
            if let (Some(rule), Ok(key)) = (rule, key) {
                self.note(reader, at, "", text, &key);
                if let Some(first) = seen.insert(key.clone(), name) {
                    reader.hide(first.get_ref());
                    let line = reader.line(first.span().start);
                    let first = first.get_ref();
                    reader.at(at).wrong(format!(
                        "'{text}' is the same as '{first}' in line {line}; leave one of the two \
                         out"
                    ));
                }
                let place = self.place(rule, None);
                self.overrides.insert(key, place);
            }
        }
    }

    /// `[[policy.api.lists]]` with `file` and `limits`.
    fn lists<'t>(&mut self, reader: &mut Reader<'t>, sources: &mut Sources, value: &Node<'t>) {
        let DeValue::Array(array) = value.get_ref() else {
            let what = "lists must be a list of tables: write [[policy.NAME.lists]], and below \
                        it file and limits";
            return reader.on(value).wrong(what);
        };
        for value in array.iter() {
            let at = value.span().start;
            let Some(table) = reader.table(value, "a list must be a table with file and limits")
            else {
                continue;
            };
            let entries = Entries::new("a list", &LIST_TABLE, table);
            let file = entries.read(reader, &of_list::FILE);
            if let Some("") = file.as_deref() {
                let what = "file is empty; write the path of the list";
                reader.at(entries.at(&of_list::FILE).unwrap_or(at)).wrong(what);
            }
            let file = file.filter(|file| !file.is_empty());
            let rule = entries.get(&of_list::LIMITS);
            let rule = rule.and_then(|value| limits::rule(reader, self.policy, "limits", value));
            if let Some(file) = file {
                // The mistakes of the file are named beside that of its limits.
                let place = self.place(rule.unwrap_or(Rule::Unlimited), Some(&file));
                let (path, text) = sources.read_list(&file);
                match text {
                    Ok(text) => {
                        self.list(reader, at, &path, &text, place);
                        self.overrides.files.push(path);
                    }
                    Err(error) => {
                        reader.hide_unless_there(&file, &path);
                        let path = path.display();
                        reader.at(at).wrong(format!("cannot read the list {path}: {error}"));
                    }
                }
            }
            if entries.get(&of_list::FILE).is_none() || entries.get(&of_list::LIMITS).is_none() {
                reader.at(at).wrong(
                    "a list needs file and limits, such as file = \"partners.txt\" and limits = \
                     \"unlimited\"",
                );
            }
            entries.no_others(reader, |name, _| {
                is_setting(name).then(|| {
                    format!(
                        "'{name}' below [[policy.{}.lists]] is not a setting of a list; write it \
                         above that header",
                        self.policy.name
                    )
                })
            });
        }
    }

    /// The text of a list: one entry a line.
    fn list(&mut self, reader: &mut Reader<'_>, at: usize, path: &Path, text: &str, place: u32) {
        let (file, path, mut wrong, mut odd) = (path, path.display(), 0_usize, 0_usize);
        for (number, entry) in entries(text) {
            let list = format_args!("the list {path}, line {number}: ");
            match self.list_key(entry) {
                Ok(key) => {
                    match not_as_meant(entry) {
                        None => self.note(reader, at, list, entry, &key),
                        Some(what) => {
                            odd += 1;
                            if odd <= MAX_REPORTED {
                                reader.hide(entry);
                                reader.at(at).in_file(file, number).warn(format!("{list}{what}"));
                            }
                        }
                    }
                    // An entry that stands in several lists, or several times in one, has the
                    // limits of the last.
                    self.overrides.insert(key, place);
                }
                Err(what) => {
                    wrong += 1;
                    if wrong <= MAX_REPORTED {
                        reader.hide(entry);
                        reader.at(at).in_file(file, number).wrong(format!("{list}{what}"));
                    }
                }
            }
        }
        if let Some(more @ 1..) = wrong.checked_sub(MAX_REPORTED) {
            let more = Count(more, "more mistake", "more mistakes");
            reader.at(at).wrong(format!("the list {path} has {more}"));
        }
        if let Some(more @ 1..) = odd.checked_sub(MAX_REPORTED) {
            let entries = Count(more, "more entry", "more entries");
            let what = format!("the list {path} has {entries} with quotes or a '#'");
            reader.at(at).warn_of_several(&what, more);
        }
    }

    fn list_key(&self, entry: &str) -> Result<OverrideKey, Sentence> {
        // These begin a comment in other kinds of files. Here the line would be a value that no
        // client sends.
        if let Some(mark) = [";", "//"].into_iter().find(|mark| entry.starts_with(mark)) {
            return Err(sentence!(
                "'{entry}' begins with '{mark}'; write # before a comment, or str:{entry} for the \
                 text itself"
            ));
        }
        if let Some((address, _)) = entry.split_once('#')
            && let Ok(OverrideKey::Net(_)) = address.parse()
        {
            return Err(sentence!(
                "'{entry}' is not an address or network; write white space before the comment, \
                 {address} #..., or str:{entry} for the text itself"
            ));
        }
        self.key(entry)
    }

    fn key(&self, text: &str) -> Result<OverrideKey, Sentence> {
        key(text, self.policy.key)
    }

    /// The place of a rule, which is from this list or from the table of overrides.
    fn place(&mut self, rule: Rule, list: Option<&str>) -> u32 {
        let Overrides { rules, lists, .. } = &mut self.overrides;
        // A file is too small for more rules than that.
        let next = u32::try_from(rules.len()).unwrap_or(u32::MAX);
        let place = *self.places.entry(rule).or_insert_with_key(|rule| {
            rules.push(rule.clone());
            lists.push(Vec::new());
            next
        });
        if let Some(lists) = lists.get_mut(place as usize) {
            let list = list.unwrap_or(OVERRIDES);
            if !lists.iter().any(|known| **known == *list) {
                lists.push(list.into());
            }
        }
        place
    }
}

/// A line of a list without its comment, which begins with a `#` at the start of the line or after
/// white space.
fn without_comment(line: &str) -> &str {
    let mut marks = line.match_indices('#').map(|(at, _)| at);
    let begin = marks.find(|at| line[..*at].ends_with(char::is_whitespace) || *at == 0);
    begin.map_or(line, |at| &line[..at])
}

/// A sentence about an entry that is a string, if something about it is odd.
fn not_as_meant(entry: &str) -> Option<String> {
    if entry.starts_with(VALUE) {
        return None;
    }
    let quotes = [('"', '"'), ('\'', '\''), ('\u{2018}', '\u{2019}'), ('\u{201c}', '\u{201d}')];
    let plain = quotes.into_iter().find_map(|(left, right)| {
        entry.strip_prefix(left)?.strip_suffix(right).filter(|plain| !plain.is_empty())
    });
    if let Some(plain) = plain {
        return Some(format!(
            "the quotes are part of the value {entry}, because a list needs none; write {plain}, \
             or str:{entry} if they are meant"
        ));
    }
    entry.contains('#').then(|| {
        format!(
            "the # is part of the value '{entry}', because a comment begins after white space; \
             write white space before the #, or str:{entry} if it is meant"
        )
    })
}

/// The entries of a list, one a line and without comments, each with the number of its line.
fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    // Editors on Windows begin a file with this mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let entries = text.lines().map(|line| without_comment(line).trim());
    (1..).zip(entries).filter(|(_, entry)| !entry.is_empty())
}

/// A sentence about a text that probably means something else than itself. An override can have
/// [`VALUE`] before it.
pub(crate) fn not_as_text(text: &str, is_override: bool) -> Option<String> {
    let if_meant = match is_override {
        true => format!(", or write {VALUE}{text} if it is meant"),
        false => String::new(),
    };
    if let Some((kind, value)) = without_type(text) {
        return Some(format!(
            "'{text}' is only that string, because a file names no types; write {value}, which \
             also stands for {}{if_meant}",
            kind.in_words()
        ));
    }
    // An override can have it.
    if let Some(value) = text.strip_prefix(VALUE).filter(|_| !is_override) {
        return Some(format!(
            "'{text}' is only that string, because 'when' names no types; write {value}"
        ));
    }
    is_pattern(text).then(|| {
        format!(
            "'{text}' is compared as a whole, and no character in it stands for others; let \
             HAProxy match, such as by path,map_beg(FILE), and send what it finds{if_meant}"
        )
    })
}

fn key(text: &str, KeyParts { lowercase, nat64, .. }: &KeyParts) -> Result<OverrideKey, Sentence> {
    Ok(match text.parse()? {
        OverrideKey::Value(value) if *lowercase => {
            OverrideKey::Value(value.to_ascii_lowercase().into())
        }
        OverrideKey::Net(net) => OverrideKey::Net(nat64.canonical_net(net)),
        key => key,
    })
}

impl Policy {
    /// The list that this override comes from, and its line there; `None` if it is one of
    /// `overrides`, or the list is neither kept nor can be read any more.
    ///
    /// This reads the lists again, because a list may have a million entries, and their lines are
    /// needed here only.
    pub fn line_of(
        &self,
        wanted: &OverrideKey,
        origin: Option<&PolicyText>,
    ) -> Option<(&Path, usize)> {
        // A later entry replaces an earlier one.
        self.overrides.files.iter().rev().find_map(|path| {
            let text = match origin.and_then(|origin| origin.list(path)) {
                Some(kept) => Cow::Borrowed(kept),
                None => Cow::Owned(read_text(path, MAX_BYTES).ok()?),
            };
            let line_of = |(line, entry)| {
                key(entry, &self.key).is_ok_and(|key| key == *wanted).then_some(line)
            };
            Some((&**path, entries(&text).filter_map(line_of).last()?))
        })
    }
}

/// The key that was probably meant where `192.0.2.1 = "deny"` has no quotes: to TOML that is a
/// table in a table.
fn dotted(key: &str, value: &Node<'_>) -> Option<String> {
    let (mut whole, mut value) = (key.to_owned(), value);
    // Each round goes one table deeper, and the TOML library bounds the depth.
    while let Some(table) = value.get_ref().as_table()
        && let Some((key, inner)) = table.iter().next()
        && !["name", "rate", "burst"].contains(&&**key.get_ref())
    {
        whole = format!("{whole}.{}", key.get_ref());
        value = inner;
    }
    (whole.len() > key.len()).then_some(whole)
}

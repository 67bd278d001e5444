//! From the fields of a log line to the messages that HAProxy has sent about the request.

use std::borrow::Cow;
use std::iter;
use std::net::IpAddr;
use std::ops::Range;

use gcra_policy::key::WrittenValue;
use gcra_policy::key_parts::{network_v4, network_v6};
use gcra_policy::{Policies, Policy};
use gcra_text::visible::quoted;
use haproxy_log::{Field, Format, Selection};
use spop_agent::{BufferFull, Message, Value};
use spop_codec::haproxy::NotifyWriter;
use spop_codec::{Frame, FrameId, decode};

use crate::addresses::address_at;
use crate::report::Mapped;
use crate::wanted::{WantedArg, WantedCondition, WantedMessage, WantedOnly};

/// The message of an agent without a file, whose policy is for all messages.
const ANY_MESSAGE: &str = "check";

/// The most bytes of frames that are written at a time. Lines are never that long.
const LONGEST: usize = 1 << 24;

/// Fields that mean the same, HAProxy's own name first. JSON logs have names of all kinds.
const SAME: [&[&str]; 11] = [
    &["ci", "src", "ip", "client_ip", "clientip", "remote_addr", "src_ip", "client_addr"],
    &["cp", "src_port", "client_port", "port"],
    &["HM", "method", "http_method", "request_method"],
    &["path", "HPO", "HP", "http_path", "request_path"],
    &["HU", "url", "uri", "pathq", "http_uri", "request_uri"],
    &["ST", "status", "status_code", "http_status", "http_status_code"],
    &["ft", "f", "frontend", "fe_name", "frontend_name"],
    &["b", "backend", "be_name", "backend_name"],
    &["s", "server", "srv_name", "server_name"],
    &["fi", "dst", "frontend_ip"],
    &["fp", "dst_port", "frontend_port"],
];

/// Args of messages that are most likely the client's address.
const ADDRESSES: [&str; 8] = ["ip", "src", "addr", "address", "client", "source", "net", "ip6"];

/// Fields that are addresses, and those that are integers.
const ADDRESS_FIELDS: [&str; 6] = ["ci", "fi", "bi", "si", "src", "dst"];
const INTEGER_FIELDS: [&str; 12] =
    ["cp", "fp", "bp", "sp", "ST", "B", "U", "rt", "src_port", "dst_port", "bytes", "status"];

/// An arg of a message, and where its value comes from.
#[derive(Debug)]
struct Arg {
    name: String,
    source: Source,
    has_value: bool,
    /// Whether a request had a string in the field that is not of the type. And whether such a
    /// string could be an address, or a list of addresses.
    has_other_text: bool,
    has_list: bool,
}

impl Arg {
    fn new(name: &str, source: Source) -> Self {
        let (has_value, has_other_text, has_list) = (false, false, false);
        Self { name: name.to_owned(), source, has_value, has_other_text, has_list }
    }

    /// Its name, and its value for a request with these values of fields.
    fn value<'a>(&'a mut self, values: &[Option<&'a [u8]>]) -> (&'a [u8], Value<'a>) {
        let value = self.source.value(values);
        if value == Value::Null {
            // Once is enough to know it.
            if let Some(text) = self.source.text(values).filter(|_| !self.has_list) {
                self.has_other_text = true;
                self.has_list = text.iter().any(|byte| b".:,".contains(byte));
            }
        } else {
            self.has_value = true;
        }
        (self.name.as_bytes(), value)
    }
}

impl PartialEq for Arg {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.source) == (&other.name, &other.source)
    }
}

#[derive(Debug, PartialEq)]
enum Source {
    /// The field at this place in the selection.
    Field {
        place: usize,
        kind: Kind,
        mask: Option<(u8, u8)>,
    },
    Constant(WrittenValue),
}

/// The type that HAProxy gives to a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// That at this place of a list: 1 is the first, -1 the last one.
    Address(i8),
    AddressOrString,
    Integer,
    String,
}

/// The address of a field that has one. HAProxy, too, takes the last one of a list.
const ADDRESS: Kind = Kind::Address(-1);

/// One of the messages about each request.
#[derive(Debug, PartialEq)]
struct Asked {
    name: String,
    /// The message is sent if all of these hold, or unless they do.
    conditions: Vec<Condition>,
    is_unless: bool,
    args: Vec<Arg>,
}

/// An arg has a value, or this one. A `*` at its end stands for any text.
#[derive(Debug, PartialEq)]
struct Condition {
    arg: Arg,
    value: Option<String>,
}

impl Condition {
    fn holds(&mut self, values: &[Option<&[u8]>]) -> bool {
        let has_value = self.arg.value(values).1 != Value::Null;
        let Some(wanted) = &self.value else { return has_value };
        let text = match &self.arg.source {
            Source::Constant(part) => Some(Cow::from(part.to_string().into_bytes())),
            Source::Field { .. } => self.arg.source.text(values).map(Cow::from),
        };
        text.is_some_and(|text| match wanted.strip_suffix('*') {
            Some(begin) => text.starts_with(begin.as_bytes()),
            None => *text == *wanted.as_bytes(),
        })
    }
}

/// The fields of a log's format, and the fields that are wanted.
pub(crate) struct Fields<'f> {
    format: &'f Format,
    known: Vec<&'f str>,
    /// The names of the captured request headers, in the order in which they are captured.
    captures: &'f [String],
    /// The names of the fields that are wanted, in the order of the values of a line.
    pub(crate) selected: Vec<String>,
}

impl<'f> Fields<'f> {
    pub(crate) fn new(format: &'f Format, captures: &'f [String]) -> Self {
        let known = format.fields().iter().map(Field::name).collect();
        Self { format, known, captures, selected: Vec::new() }
    }

    /// The field with this name, or with another name for the same.
    fn find(&self, name: &str) -> Option<String> {
        let exact = |name: &str| self.known.iter().find(|known| **known == name);
        let by_name = |name: &str| {
            exact(name)
                .or_else(|| self.known.iter().find(|known| known.eq_ignore_ascii_case(name)))
        };
        let same = || SAME.iter().find(|names| names.contains(&name));
        let same = || same()?.iter().find_map(|name| by_name(name));
        let found = || exact(name).or_else(same).or_else(|| by_name(name));
        self.captured(name).or_else(|| Some((*found()?).to_owned()))
    }

    /// The field of the captured header with this name, or with the name in `req.hdr(NAME)`.
    fn captured(&self, name: &str) -> Option<String> {
        let header = fetched(name).map_or(name, |(_, header, _)| header);
        let is_it = |capture: &String| is_same_header(capture, header);
        let field = format!("hr.{}", self.captures.iter().position(is_it)?);
        self.format.select(&[&field]).is_ok().then_some(field)
    }

    /// The place of a field among the selected ones.
    pub(crate) fn select(&mut self, field: &str) -> usize {
        let place = self.selected.iter().position(|selected| selected == field);
        place.unwrap_or_else(|| {
            self.selected.push(field.to_owned());
            self.selected.len() - 1
        })
    }

    /// The format with the selected fields. The error is a sentence.
    pub(crate) fn selection(&self) -> Result<Selection, String> {
        let names: Vec<_> = self.selected.iter().map(String::as_str).collect();
        let selection = self.format.select(&names);
        selection.map_err(|error| format!("{} has no field '{}'", self.format.name(), error.name))
    }

    /// The field that an operator has named. Of some formats more can be selected than they list.
    pub(crate) fn find_written(&self, name: &str) -> Option<String> {
        let is_there = || self.format.select(&[name]).is_ok();
        self.find(name).or_else(|| is_there().then(|| name.to_owned()))
    }

    /// Selects a field that is there under one of its names.
    pub(crate) fn select_if_known(&mut self, name: &str) -> Option<usize> {
        let field = self.find(name)?;
        Some(self.select(&field))
    }

    /// Selects the field of a variable that an agent sets, by the name that it has in `answer`.
    pub(crate) fn select_variable(&mut self, name: &str) -> Option<usize> {
        let usual = [format!("var(txn.gcra.{name})"), format!("var(sess.gcra.{name})")];
        usual.iter().map(String::as_str).chain([name]).find_map(|it| self.select_if_known(it))
    }

    /// The names of all fields, for sentences.
    pub(crate) fn in_words(&self) -> String {
        match self.known.is_empty() {
            true => "the names in its lines".to_owned(),
            false => self.known.join(", "),
        }
    }
}

/// From the values of a line to the messages about its request.
pub(crate) struct Mapping {
    messages: Vec<Asked>,
    /// The frames with the messages of some requests, and where each ends.
    frames: Vec<u8>,
    ends: Vec<usize>,
}

/// Messages about some requests.
#[derive(Default)]
pub(crate) struct Written<'m> {
    pub messages: Vec<Message<'m>>,
    /// Where those of each request stand.
    pub(crate) places: Vec<Range<usize>>,
}

/// The words about a mapping.
#[derive(Debug, Default)]
pub(crate) struct Described {
    pub mapped: Vec<Mapped>,
    pub messages: Vec<String>,
    /// A sentence without which the numbers must not be read.
    pub(crate) caution: Option<String>,
    pub notes: Vec<String>,
}

impl Mapping {
    /// Finds for each arg that the policies need the field that gives it. The error is a sentence.
    pub(crate) fn new(
        policies: &Policies,
        messages: &[WantedMessage],
        args: &[WantedArg],
        fields: &mut Fields<'_>,
        described: &mut Described,
    ) -> Result<Self, String> {
        for (place, WantedArg { name, source }) in args.iter().enumerate() {
            if let Some(first) = args[..place].iter().find(|arg| arg.name == *name) {
                return Err(format!(
                    "--map gives the arg '{name}' twice, by {} and by {source}; write it once",
                    first.source
                ));
            }
        }
        let known = known_messages(policies);
        let is_for_all = policies.list.iter().any(|policy| policy.message.is_none());
        for WantedMessage { name, .. } in messages {
            if !is_for_all && !known.contains(name) {
                return Err(format!(
                    "no policy is for the message '{name}'; there are policies for {}",
                    known.join(", ")
                ));
            }
        }
        let wanted: Vec<_> = match messages {
            [] => known
                .into_iter()
                .map(|name| WantedMessage { name, only: WantedOnly::default() })
                .collect(),
            messages => messages.to_vec(),
        };
        let mut asked = Vec::new();
        let mut first_error = None;
        for message in &wanted {
            match Asked::new(message, policies, args, fields, described) {
                Ok(message) => asked.push(message),
                Err(sentence) if wanted.len() == 1 || !messages.is_empty() => {
                    return Err(sentence);
                }
                Err(sentence) => {
                    described.note(format!(
                        "no request is asked about as the message '{}': {sentence}",
                        message.name
                    ));
                    first_error = first_error.or(Some(sentence));
                }
            }
        }
        if let (true, Some(sentence)) = (asked.is_empty(), first_error) {
            return Err(sentence);
        }
        if messages.is_empty() && asked.len() > 1 {
            let names: Vec<_> = asked.iter().map(|asked| asked.name.as_str()).collect();
            described.caution = Some(format!(
                "each request counts as each of the messages {}; if HAProxy sends one of them \
                 only for some requests, write --message 'NAME if path=/login method=POST' for \
                 that one, and --message NAME for the others",
                names.join(", ")
            ));
        }
        for message in &asked {
            if !described.messages.contains(&message.name) {
                described.messages.push(message.name.clone());
            }
        }
        Ok(Self { messages: asked, frames: vec![0; 16_384], ends: Vec::new() })
    }

    /// Writes the messages about a request with these values, behind those that are written.
    pub(crate) fn write(&mut self, values: &[Option<&[u8]>]) {
        let start = self.ends.last().copied().unwrap_or(0);
        let end = loop {
            match write_messages(&mut self.messages, values, &mut self.frames[start..]) {
                Ok(length) => break start + length,
                // More than lines can have.
                Err(BufferFull) if self.frames.len() >= LONGEST => break start,
                Err(BufferFull) => self.frames.resize(self.frames.len() * 2, 0),
            }
        };
        self.ends.push(end);
    }

    /// The messages that are written, by request.
    pub(crate) fn written(&self) -> Written<'_> {
        let mut written = Written::default();
        let mut start = 0;
        for end in &self.ends {
            let first = written.messages.len();
            written.messages.extend(self.read(start..*end));
            written.places.push(first..written.messages.len());
            start = *end;
        }
        written
    }

    /// The messages of the frame that is there.
    fn read(&self, frame: Range<usize>) -> impl Iterator<Item = Message<'_>> {
        let frame = self.frames.get(frame).unwrap_or_default();
        let notify = match decode(frame, u32::MAX) {
            Ok(Some((Frame::Notify(notify), _))) => Some(notify),
            _ => None,
        };
        notify.into_iter().flat_map(|notify| notify.messages())
    }

    /// Notes which args had no value in any request, after all were written.
    pub(crate) fn describe(&self, fields: &Fields<'_>, described: &mut Described) {
        let args = self.messages.iter().flat_map(Asked::all_args);
        let has_none = |arg: &&Arg| matches!(arg.source, Source::Field { .. }) && !arg.has_value;
        for Arg { name, source, has_other_text, has_list, .. } in args.filter(has_none) {
            let field = source.in_words(fields);
            let (why, or) = match (has_other_text, source) {
                (true, Source::Field { kind: Kind::Address(_), .. }) if *has_list => (
                    format!(
                        "the texts in '{field}' are no addresses, and no lists with one at the end"
                    ),
                    String::new(),
                ),
                (true, Source::Field { kind: Kind::Address(_), .. }) => (
                    format!("the texts in '{field}' are no addresses"),
                    match ADDRESS_FIELDS.contains(&field.as_str()) {
                        true => String::new(),
                        false => format!(", or --map {name}={field},str"),
                    },
                ),
                (true, _) => (format!("the texts in '{field}' are no integers"), String::new()),
                (false, _) => (format!("no line has a value in '{field}'"), String::new()),
            };
            described.note(format!(
                "the arg '{name}' had no value in any request, because {why}; write --map \
                 {name}=FIELD with another field{or}"
            ));
        }
    }

    /// Forgets the messages that are written.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
    }

    /// Whether the same messages are written for each line.
    pub(crate) fn writes_as(&self, other: &Self) -> bool {
        self.messages == other.messages
    }
}

fn write_messages(
    messages: &mut [Asked],
    values: &[Option<&[u8]>],
    frame: &mut [u8],
) -> Result<usize, BufferFull> {
    let mut writer = NotifyWriter::new(frame, FrameId { stream: 1, frame: 1 })?;
    for Asked { name, conditions, is_unless, args } in messages {
        let mut hold = true;
        conditions.iter_mut().for_each(|condition| hold &= condition.holds(values));
        if !conditions.is_empty() && hold == *is_unless {
            continue;
        }
        writer.message(name.as_bytes())?;
        for arg in args {
            let (name, value) = arg.value(values);
            writer.arg(name, value)?;
        }
    }
    Ok(writer.finish())
}

impl Source {
    fn value<'a>(&'a self, values: &[Option<&'a [u8]>]) -> Value<'a> {
        match self {
            Self::Constant(part) => part.value(),
            Self::Field { kind, mask, .. } => {
                self.text(values).map_or(Value::Null, |bytes| kind.value(bytes, *mask))
            }
        }
    }

    fn text<'a>(&self, values: &[Option<&'a [u8]>]) -> Option<&'a [u8]> {
        match self {
            Self::Constant(_) => None,
            Self::Field { place, .. } => values.get(*place).copied().flatten(),
        }
    }

    fn in_words(&self, fields: &Fields<'_>) -> String {
        match self {
            Self::Constant(part) => part.to_string(),
            Self::Field { place, kind: _, mask } => {
                let field = fields.selected.get(*place).map(String::as_str).unwrap_or_default();
                match mask {
                    None => field.to_owned(),
                    Some((v4, v6)) => format!("{field},ipmask({v4},{v6})"),
                }
            }
        }
    }
}

impl Kind {
    fn value(self, bytes: &[u8], mask: Option<(u8, u8)>) -> Value<'_> {
        match self {
            Self::String => Value::String(bytes),
            Self::Integer => {
                let text = str::from_utf8(bytes).ok();
                let integer = text.and_then(|text| text.trim_start_matches('+').parse().ok());
                integer.map_or(Value::Null, Value::Int64)
            }
            // A list is a string: it may be a key, too.
            Self::AddressOrString if bytes.contains(&b',') => Value::String(bytes),
            Self::AddressOrString => match ADDRESS.value(bytes, mask) {
                Value::Null => Value::String(bytes),
                address => address,
            },
            // HAProxy has no address where the string is none, as for a client on a Unix socket.
            Self::Address(place) => match (address_at(bytes, place), mask) {
                // ipmask() makes an IPv4 address of one that is mapped into IPv6.
                (Some(ip), Some((v4, v6))) => match ip.to_canonical() {
                    IpAddr::V4(ip) => Value::Ipv4(network_v4(ip, v4)),
                    IpAddr::V6(ip) => Value::Ipv6(network_v6(ip, v6)),
                },
                (Some(ip), None) => ip.into(),
                (None, _) => Value::Null,
            },
        }
    }
}

/// The messages that the policies are for, each once, in the order of the file.
pub(crate) fn known_messages(policies: &Policies) -> Vec<String> {
    let mut names = Vec::new();
    for policy in policies.without_trials() {
        let name = policy.message.as_deref().unwrap_or(ANY_MESSAGE.as_bytes());
        let name = String::from_utf8_lossy(name).into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// An arg that policies read.
struct Needed<'p> {
    name: &'p str,
    policy: &'p Policy,
    /// Whether nothing can be decided without it.
    is_required: bool,
    is_cost: bool,
}

fn policies_for<'p>(policies: &'p Policies, message: &str) -> impl Iterator<Item = &'p Policy> {
    policies.without_trials().filter(move |policy| {
        policy.message.as_deref().is_none_or(|name| *name == *message.as_bytes())
    })
}

/// The args that the policies for a message read, each once.
fn needed<'p>(policies: &'p Policies, message: &str) -> Vec<Needed<'p>> {
    let mut needed: Vec<Needed<'p>> = Vec::new();
    for policy in policies_for(policies, message) {
        let mut add = |name: &'p [u8], is_required: bool, is_cost: bool| {
            let Ok(name) = str::from_utf8(name) else { return };
            match needed.iter_mut().find(|needed| needed.name == name) {
                Some(known) => known.is_required |= is_required,
                None => needed.push(Needed { name, policy, is_required, is_cost }),
            }
        };
        let of_limits = policy.limits().filter_map(|limit| limit.key.as_deref());
        for arg in iter::once(&policy.key).chain(of_limits).flat_map(|key| &key.args) {
            add(&arg.name, !arg.has_fallback(), false);
            arg.fallbacks.iter().for_each(|name| add(name, false, false));
        }
        let by_args = policy.limits().filter_map(|limit| limit.by_arg());
        by_args.for_each(|by_arg| add(&by_arg.arg, true, false));
        // Without these only the trial says nothing.
        let trial = policy.trial.and_then(|trial| policies.list.get(trial));
        let of_trial = trial.into_iter().flat_map(|policy| policy.args_of_limits());
        of_trial.for_each(|name| add(name, false, false));
        policy.when.iter().for_each(|when| add(&when.arg, true, false));
        policy.price.arg().into_iter().for_each(|cells| add(cells, false, true));
    }
    needed
}

impl Asked {
    fn new(
        message: &WantedMessage,
        policies: &Policies,
        wanted: &[WantedArg],
        fields: &mut Fields<'_>,
        described: &mut Described,
    ) -> Result<Self, String> {
        let WantedMessage { name, only } = message;
        let (format, known) = (fields.format.name(), fields.in_words());
        let is_by_file = policies.list.iter().any(|policy| policy.message.is_some());
        let needed = needed(policies, name);
        let of_needed = |name: &str| needed.iter().find(|needed| needed.name == name);
        // The one that is written, or else the one that is most likely.
        let source = |name: &str, fields: &mut Fields<'_>| {
            let needed = of_needed(name);
            match wanted.iter().find(|arg| arg.name == name) {
                Some(arg) => written(name, &arg.source, needed, fields).map(Some),
                None => Ok(guessed(name, needed, is_by_file, fields)),
            }
        };
        let mut args = Vec::new();
        if policies_for(policies, name).any(|policy| policy.key.args.is_empty()) {
            // The key is all args of the message, in their order: those that are written.
            for WantedArg { name, .. } in wanted {
                args.extend(source(name, fields)?.map(|source| Arg::new(name, source)));
            }
            // A cost is no part of the key.
            let is_cost = |name: &String| of_needed(name).is_some_and(|needed| needed.is_cost);
            if wanted.iter().all(|arg| is_cost(&arg.name)) {
                let source = guessed("ip", None, is_by_file, fields).ok_or_else(|| {
                    format!(
                        "no field of {format} is known to be the client's address; write --map \
                         ip=FIELD, where FIELD is one of {known}"
                    )
                })?;
                args.push(Arg::new("ip", source));
            }
        }
        for &Needed { name, policy, is_required, is_cost } in &needed {
            if args.iter().any(|arg: &Arg| arg.name == name) {
                continue;
            }
            match source(name, fields)? {
                Some(source) => args.push(Arg::new(name, source)),
                None if is_required => {
                    let arg = quoted(name);
                    return Err(format!(
                        "no field of {format} gives the arg '{name}', which policy '{}' needs; \
                         write --map {arg}=FIELD, where FIELD is one of {known}, or --map \
                         {arg}=null: if the requests have none",
                        policy.name
                    ));
                }
                None => {
                    let (what, so) = match is_cost {
                        true => ("cost", "each request costs 1"),
                        false => ("arg", "it has no value"),
                    };
                    described.note(format!(
                        "no field of {format} gives the {what} '{name}' of policy '{}', so {so}; \
                         --map {name}=FIELD names a field",
                        policy.name
                    ));
                }
            }
        }
        let mut conditions = Vec::with_capacity(only.conditions.len());
        for WantedCondition { arg, value } in &only.conditions {
            let source = source(arg, fields)?.ok_or_else(|| {
                format!(
                    "no field of {format} gives the arg '{arg}' of --message; write --map \
                     {arg}=FIELD, where FIELD is one of {known}"
                )
            })?;
            conditions.push(Condition { arg: Arg::new(arg, source), value: value.clone() });
        }
        let asked = Self { name: name.clone(), conditions, is_unless: only.is_unless, args };
        for arg in asked.all_args() {
            let mapped = Mapped { arg: arg.name.clone(), field: arg.source.in_words(fields) };
            if !described.mapped.contains(&mapped) {
                described.mapped.push(mapped);
            }
        }
        Ok(asked)
    }

    fn all_args(&self) -> impl Iterator<Item = &Arg> {
        self.args.iter().chain(self.conditions.iter().map(|condition| &condition.arg))
    }
}

impl Described {
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Says which args of `--map` no message has.
    pub(crate) fn note_unused(&mut self, args: &[WantedArg]) {
        for WantedArg { name, .. } in args {
            if !self.mapped.iter().any(|mapped| mapped.arg == *name) {
                self.note(format!("no policy uses the arg '{name}' of --map"));
            }
        }
    }
}

/// Whether two names are the same header: case does not matter, and args are often written with
/// underscores.
fn is_same_header(one: &str, other: &str) -> bool {
    let plain = |name: &str| name.to_ascii_lowercase().replace('_', "-");
    plain(one) == plain(other)
}

/// The source of an arg for which none is written, if there is a field that is most likely it.
fn guessed(
    arg: &str,
    needed: Option<&Needed<'_>>,
    is_by_file: bool,
    fields: &mut Fields<'_>,
) -> Option<Source> {
    let exact = || fields.known.contains(&arg).then(|| arg.to_owned());
    // Behind a proxy, the shipped configuration and those like it log the client beside %ci.
    let client = || fields.find("var(txn.client)").or_else(|| fields.find("ci"));
    let address = || ADDRESSES.contains(&arg).then(client).flatten();
    let found = fields.captured(arg).or_else(exact).or_else(address);
    let field = found.or_else(|| fields.find(arg))?;
    let kind = kind_of(arg, &field, needed);
    let place = fields.select(&field);
    // The shipped configurations for agents without a file cut addresses, because the agent does
    // not group them then.
    let mask = (kind == ADDRESS && !is_by_file).then_some((32, 64));
    Some(Source::Field { place, kind, mask })
}

/// The source that is written for an arg. The error is a sentence.
fn written(
    arg: &str,
    text: &str,
    needed: Option<&Needed<'_>>,
    fields: &mut Fields<'_>,
) -> Result<Source, String> {
    const TYPES: [&str; 9] =
        ["str:", "strhex:", "int32:", "uint32:", "int64:", "uint64:", "bool:", "hex:", "null:"];
    if TYPES.iter().any(|kind| text.starts_with(kind)) {
        return Ok(Source::Constant(text.parse()?));
    }
    let parts = split_outside_brackets(text);
    let name = bare_name(parts[0]);
    // A name may have commas itself.
    let (found, converters) = match fields.find(bare_name(text)) {
        Some(field) => (Some(field), &[][..]),
        None => (fields.find_written(name), &parts[1..]),
    };
    let field = found.ok_or_else(|| {
        format!(
            "{} has no field '{name}' for --map {arg}={text}; write one of {}, or a constant such \
             as str:gold",
            fields.format.name(),
            fields.in_words()
        )
    })?;
    let place = fields.select(&field);
    let (mut kind, mut mask) = (kind_of(arg, &field, needed), None);
    let is_of_header = field.starts_with("hr.");
    if let Some(("hdr_ip", _, place)) = fetched(bare_name(parts[0])).filter(|_| is_of_header) {
        kind = place.and_then(is_place).map_or(ADDRESS, Kind::Address);
    }
    for converter in converters {
        match *converter {
            "ip" | "addr" => kind = ADDRESS,
            "int" => kind = Kind::Integer,
            "str" => kind = Kind::String,
            place if matches!(kind, Kind::Address(_)) && is_place(place).is_some() => {
                kind = is_place(place).map_or(kind, Kind::Address);
            }
            other => {
                let inner = other.strip_prefix("ipmask(").and_then(|it| it.strip_suffix(')'));
                let numbers = inner.map(|inner| inner.split_once(',').unwrap_or((inner, "128")));
                let prefix = |text: &str, most: u8| {
                    text.trim().parse().ok().filter(|bits: &u8| *bits <= most)
                };
                let prefixes = numbers.and_then(|(v4, v6)| prefix(v4, 32).zip(prefix(v6, 128)));
                let Some(prefixes) = prefixes else {
                    return Err(format!(
                        "'{other}' in --map {arg}={text} is not a converter that replay knows; \
                         write ipmask(32,64), ip, int or str, or behind ip the place in a list, \
                         such as ip,1 for the first address and ip,-1 for the last one"
                    ));
                };
                if !matches!(kind, Kind::Address(_)) {
                    kind = ADDRESS;
                }
                mask = Some(prefixes);
            }
        }
    }
    Ok(Source::Field { place, kind, mask })
}

/// The parts of `req.hdr_ip(x-forwarded-for,-1)`: fetch, header and place.
fn fetched(name: &str) -> Option<(&str, &str, Option<&str>)> {
    let (fetch, inside) = name.strip_prefix("req.")?.strip_suffix(')')?.split_once('(')?;
    let (header, place) = match inside.split_once(',') {
        Some((header, place)) => (header, Some(place)),
        None => (inside, None),
    };
    let is_known = ["hdr", "fhdr", "hdr_ip"].contains(&fetch) && !inside.contains('(');
    is_known.then_some((fetch, header, place))
}

/// The place of an address in a list, as HAProxy knows it: from -10 to -1, and from 1 on.
fn is_place(text: &str) -> Option<i8> {
    text.trim().parse().ok().filter(|place| *place >= -10 && *place != 0)
}

/// `ci` of `%ci`, `%{+Q}ci` and `ci`, and `src` of `%[src]`.
pub(crate) fn bare_name(text: &str) -> &str {
    let Some(rest) = text.strip_prefix('%') else { return text };
    let flags = rest.strip_prefix('{').and_then(|flags| flags.split_once('}'));
    let rest = flags.map_or(rest, |(_, rest)| rest);
    rest.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(rest)
}

/// The parts of a string between commas that are outside of brackets, one at least.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let splits = |c: char| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(splits).collect()
}

/// The type that HAProxy most likely gives to an arg with the value of this field.
fn kind_of(arg: &str, field: &str, needed: Option<&Needed<'_>>) -> Kind {
    let own = SAME.iter().find(|names| names.contains(&field)).map_or(field, |names| names[0]);
    let is_of = |fields: &[&str]| fields.contains(&field) || fields.contains(&own);
    let for_addresses = needed.is_some_and(|needed| {
        needed.policy.is_for_addresses() && needed.policy.key.args.len() <= 1 && !needed.is_cost
    });
    match () {
        () if is_of(&ADDRESS_FIELDS) => ADDRESS,
        () if needed.is_some_and(|needed| needed.is_cost) => Kind::Integer,
        () if is_of(&INTEGER_FIELDS) => Kind::Integer,
        () if ADDRESSES.contains(&arg) => ADDRESS,
        // A captured header may be an API key, although the policy has a prefix for addresses.
        () if for_addresses => Kind::AddressOrString,
        () => Kind::String,
    }
}

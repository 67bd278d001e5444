//! A format of log lines, and a choice of its fields.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::compile::{Node, Source, Value, compile};
use crate::format_error::FormatError;
use crate::line::{Lines, Parsed, Values};
use crate::part::{Decode, Part, is_request};
use crate::scan::{SPANS, Scanner};
use crate::selection::{Reader, Selection, Slot, TextReader};
use crate::time::Time;
use crate::word::readings;

/// A format of log lines, compiled once.
#[derive(Debug, Clone)]
pub struct Format {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    fields: Vec<Field>,
    kind: Kind,
    time: String,
}

#[derive(Debug)]
enum Kind {
    Text {
        scanner: Scanner,
        values: Vec<Value>,
        time: Time,
    },
    Json {
        /// The names whose values can be the date, the best first.
        times: Vec<String>,
    },
}

/// A field that a format has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    name: String,
}

impl Field {
    /// The name for [`Format::select`]: HAProxy's name without the '%' ("ci"), a sample expression
    /// ("req.hdr(host)"), a name in parentheses of the log-format, or the name in a JSON object.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The log-formats that HAProxy has names for, and the formats of this project.
const HTTP: &str = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc \
                    %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r";
const HTTPS: &str = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc \
                     %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r %[fc_err]/%[ssl_fc_err,hex]/\
                     %[ssl_c_err]/%[ssl_c_ca_err]/%[ssl_fc_is_resumed] \
                     %[ssl_fc_sni]/%sslv/%sslc";
/// The default of HAProxy's ingress controller for Kubernetes. `txn.base` is the sample `base`.
const INGRESS: &str = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc \
                       %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs \"%HM %[var(txn.base)] %HV\"";
const TCP: &str = "%ci:%cp [%t] %ft %b/%s %Tw/%Tc/%Tt %B %ts %ac/%fc/%bc/%sc/%rc %sq/%bq";
const CLF: &str = "%{+Q}o %{-Q}ci - - [%trg] %r %ST %B \"\" \"\" %cp %ms %ft %b %s %TR %Tw %Tc \
                   %Tr %Ta %tsc %ac %fc %bc %sc %rc %sq %bq %CC %CS %hrl %hsl";
const TCP_CLF: &str = "%{+Q}o %{-Q}ci - - [%T] \"TCP \" 000 %B \"\" \"\" %cp %ms %ft %b %s %Th \
                       %Tw %Tc %Tt %U %ts-- %ac %fc %bc %sc %rc %sq %bq \"\" \"\" ";
/// The beginning of the log-format of gcra-spoa's configurations for HTTP.
const SHIPPED_BEGIN: &str = "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %tsc \
                             %ac/%fc/%bc/%sc/%rc %sq/%bq %{+Q}r ";
/// The fields that some of them have behind that, and the names of these formats.
const SHIPPED_MORE: [(&str, &str); 4] = [
    ("", ""),
    (" with estimates", "estimate=%[var(txn.estimate)] "),
    (" with delays", "delay_ms=%[var(txn.gcra.delay_ms)] "),
    (" behind a proxy", "client=%[var(txn.client)] "),
];
/// The fields that all of them have behind that; and others that some have, between these.
const SHIPPED_END: [&str; 3] = [
    "blocked=%[var(txn.gcra.blocked)] policy=%[var(txn.gcra.policy)] ",
    "reason=%[var(txn.gcra.reason)] retry_after=%[var(txn.gcra.retry_after)] ",
    "err=%[var(txn.gcra.err)]",
];
const SHIPPED_BETWEEN: [(&str, [&str; 2]); 3] = [
    (
        " with names",
        ["limit_name=%[var(txn.gcra.limit_name)] client=%[var(txn.gcra.client)] ", ""],
    ),
    (" with bandwidths", ["", "bandwidth=%[var(txn.gcra.bandwidth)] "]),
    ("", ["", ""]),
];
/// The fields of gcra-spoa's configuration for TCP behind those of TCP.
const SHIPPED_TCP_END: &str = "blocked=%[var(sess.gcra.blocked)] policy=%[var(sess.gcra.policy)] \
                               reason=%[var(sess.gcra.reason)] \
                               retry_after=%[var(sess.gcra.retry_after)] \
                               err=%[var(txn.gcra.err)]";

/// Where JSON logs have their date, the most exact first.
const JSON_TIMES: &[&str] = &[
    "request_date",
    "tr",
    "@timestamp",
    "timestamp",
    "time",
    "ts",
    "date",
    "datetime",
    "accept_date",
    "t",
    "time_iso8601",
    "time_local",
    "trg",
    "trl",
    "T",
    "Tl",
    "Ts",
    "start_time",
    "timestamp_ms",
    "time_ms",
    "epoch",
];

/// Names of sample fetches for fields that a log has under another name.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("src", "ci"),
    ("src_port", "cp"),
    ("dst", "fi"),
    ("dst_port", "fp"),
    ("method", "HM"),
    ("path", "HPO"),
    ("url", "HU"),
    ("status", "ST"),
    ("fe_name", "f"),
    ("be_name", "b"),
    ("srv_name", "s"),
    ("unique-id", "ID"),
];

/// The variables of HAProxy 2.8 and later that have its formats.
const VARIABLES: [(&str, &str); 5] = [
    ("HAPROXY_HTTP_LOG_FMT", HTTP),
    ("HAPROXY_HTTPS_LOG_FMT", HTTPS),
    ("HAPROXY_TCP_LOG_FMT", TCP),
    ("HAPROXY_HTTP_CLF_LOG_FMT", CLF),
    ("HAPROXY_TCP_CLF_LOG_FMT", TCP_CLF),
];

/// How much of a sample is looked at.
const SAMPLE_LINES: usize = 2000;

impl Format {
    /// Compiles a log-format string of HAProxy 2.6 to 3.4, with quotes and backslashes of the
    /// configuration file already taken away. A whole `log-format "..."` line is fine, too, and so
    /// are the variables in which HAProxy has its own formats (`$HAPROXY_HTTP_LOG_FMT`).
    ///
    /// `%{+json}o` makes it a format of JSON objects, whose fields have the names in parentheses.
    ///
    /// # Errors
    /// The string is not a log-format, it has no date, two of its values have nothing between
    /// them, it has a variable that is not known, or its lines are CBOR.
    pub fn compile(log_format: &str) -> Result<Self, FormatError> {
        Self::compile_for(log_format, b"")
    }

    /// The same, where `sample` is the beginning of a log (see
    /// [`Input::sample`](crate::Input::sample)). It says what the string means if it can be read
    /// in two ways: as HAProxy reads its configuration, and with all quotes and backslashes.
    ///
    /// # Errors
    /// See [`Format::compile`].
    pub fn compile_for(log_format: &str, sample: &[u8]) -> Result<Self, FormatError> {
        let mut tried: Vec<Result<Self, FormatError>> = Vec::new();
        let mut best: Option<(usize, Self)> = None;
        for reading in readings(log_format, &VARIABLES) {
            let compiled = reading.and_then(|text| Self::named("the given log-format", &text));
            if let Ok(format) = &compiled {
                let fitting = format.fitting(sample);
                if fitting > best.as_ref().map_or(0, |(most, _)| *most) {
                    best = Some((fitting, format.clone()));
                }
            }
            tried.push(compiled);
        }
        if let Some((_, format)) = best {
            return Ok(format);
        }
        // A reading with a variable that is not known might have been the right one.
        let of_variable =
            |tried: &Result<_, FormatError>| matches!(tried, Err(error) if error.is_of_variable);
        let place = tried.iter().position(of_variable).unwrap_or(0);
        tried.swap_remove(place)
    }

    fn named(name: &str, string: &str) -> Result<Self, FormatError> {
        let compiled = compile(string)?;
        let values: Vec<Value> = compiled
            .nodes
            .iter()
            .filter_map(|node| match node {
                Node::Value(value) => Some(value.clone()),
                _ => None,
            })
            .collect();
        let time = Time::choose(&values).ok_or_else(|| {
            FormatError::new(
                "it has no date: add %tr (or, for TCP, %t) to the log-format".to_owned(),
            )
        })?;
        let words = time.words(&values);
        if compiled.json {
            let date = values.get(time.date).and_then(|value| value.given.clone());
            let names = values.iter().filter_map(|value| value.given.clone()).collect();
            let times = date.into_iter().chain(JSON_TIMES.iter().map(|&time| time.to_owned()));
            let kind = Kind::Json { times: times.collect() };
            return Ok(Self::new(name, names, kind, words));
        }
        let written = values.iter().map(|it| it.given.as_deref().unwrap_or(it.source.name()));
        let derived = values.iter().flat_map(derived).map(|(name, _)| *name);
        let names = written.chain(derived).map(str::to_owned).collect();
        let scanner = Scanner::new(&compiled.nodes)?;
        Ok(Self::new(name, names, Kind::Text { scanner, values, time }, words))
    }

    fn new(name: &str, names: Vec<String>, kind: Kind, time: String) -> Self {
        let mut fields: Vec<Field> = Vec::with_capacity(names.len());
        for name in names {
            if !fields.iter().any(|field| field.name == name) {
                fields.push(Field { name });
            }
        }
        Self { inner: Arc::new(Inner { name: name.to_owned(), fields, kind, time }) }
    }

    /// A format of the constants above, which compile (a test compiles them).
    fn constant(name: &str, string: &str) -> Self {
        Self::named(name, string).unwrap_or_else(|_| Self::json())
    }

    /// The default HTTP format, of `option httplog`.
    pub fn http() -> Self {
        Self::constant("the HTTP format", HTTP)
    }

    /// The HTTPS format, of `option httpslog`.
    pub fn https() -> Self {
        Self::constant("the HTTPS format", HTTPS)
    }

    /// The default TCP format, of `option tcplog`.
    pub fn tcp() -> Self {
        Self::constant("the TCP format", TCP)
    }

    /// The format of `option httplog clf`. Where request and response headers are captured, `hrl`
    /// has both: their lists cannot be told apart.
    pub fn clf() -> Self {
        Self::constant("the CLF format", CLF)
    }

    /// Lines that are JSON objects. A name in a nested object is written as `outer.inner`, and any
    /// name can be selected. The date is looked for under the usual names ("timestamp", "time",
    /// "tr", ...).
    pub fn json() -> Self {
        let times = JSON_TIMES.iter().map(|&name| name.to_owned()).collect();
        let words = "the first date of the usual names".to_owned();
        Self::new("JSON", Vec::new(), Kind::Json { times }, words)
    }

    /// The formats that `guess` knows, the most particular first. The last one is JSON.
    fn known() -> &'static [Self] {
        static KNOWN: OnceLock<Vec<Format>> = OnceLock::new();
        KNOWN.get_or_init(|| {
            // Those with more fields come first: a field could have the rest of a line for its
            // value.
            let shipped = SHIPPED_BETWEEN.iter().flat_map(|(between_with, [first, second])| {
                SHIPPED_MORE.iter().map(move |(with, more)| {
                    let [blocked, reason, err] = SHIPPED_END;
                    let format =
                        format!("{SHIPPED_BEGIN}{more}{blocked}{first}{reason}{second}{err}");
                    let name = format!("the log-format of gcra-spoa{with}{between_with}");
                    Self::constant(&name, &format)
                })
            });
            let shipped_tcp = format!("{TCP} {SHIPPED_TCP_END}");
            // Fields that people add to the HTTP and TCP formats, at their ends or before the
            // request.
            let [more, more_tcp] = [HTTP, TCP].map(|format| format!("{format} %[more]"));
            let others = [
                Self::https(),
                Self::constant("the format of HAProxy's ingress controller", INGRESS),
                Self::tcp(),
                Self::constant("the log-format of gcra-spoa for TCP", &shipped_tcp),
                Self::clf(),
                Self::constant("the CLF format for TCP", TCP_CLF),
                Self::constant("the HTTP format with more at its end", &more),
                Self::constant("the TCP format with more at its end", &more_tcp),
                Self::json(),
            ];
            [Self::http()].into_iter().chain(shipped).chain(others).collect()
        })
    }

    /// The known format that the most of these lines have, if there is one. `sample` is the
    /// beginning of a log, see [`Input::sample`](crate::Input::sample).
    pub fn guess(sample: &[u8]) -> Option<Self> {
        let mut best: Option<(usize, Self)> = None;
        for format in Self::known() {
            let count = format.fitting(sample);
            if count > best.as_ref().map_or(0, |(most, _)| *most) {
                best = Some((count, format.clone()));
            }
        }
        match best {
            Some((_, format)) if matches!(format.inner.kind, Kind::Text { .. }) => Some(format),
            _ => Self::guess_json(sample),
        }
    }

    /// How many lines of a sample have this format as a whole.
    fn fitting(&self, sample: &[u8]) -> usize {
        // Where a line has a request, what stands in its place must be one.
        let request = self.select(&["r"]).or_else(|_| self.select(&[]));
        let Ok(selection) = request else { return 0 };
        let is_text = matches!(self.inner.kind, Kind::Text { .. });
        let has_request = is_text && !selection.names.is_empty();
        let mut lines = Lines::new(&selection, 0);
        let mut count = 0;
        for line in sample_lines(sample) {
            let mut values = Values::default();
            let parsed = lines.parse(line, &mut values);
            let is_entry = matches!(parsed, Parsed::Entry { whole: true, .. });
            let is_request = !has_request || values.get(0).is_none_or(is_request);
            count += usize::from(is_entry && is_request);
        }
        count
    }

    /// JSON, whose date has a usual name or is the first.
    fn guess_json(sample: &[u8]) -> Option<Self> {
        let dates = crate::line::json_dates(sample_lines(sample));
        let rank = |name: &String| {
            let last = name.rsplit('.').next().unwrap_or_default();
            JSON_TIMES.iter().position(|&time| time == last).unwrap_or(JSON_TIMES.len())
        };
        let time = dates.iter().min_by_key(|&name| rank(name))?;
        let names = crate::line::json_names(sample_lines(sample));
        let kind = Kind::Json { times: vec![time.to_owned()] };
        Some(Self::new("JSON", names, kind, format!("the date \"{time}\"")))
    }

    /// Why [`Format::guess`] knows no format for a sample.
    pub fn why_unknown(sample: &[u8]) -> Unknown {
        let lines = || sample_lines(sample).filter(|line| !line.trim_ascii().is_empty());
        let is_most = |count: usize| count > 0 && count * 2 > lines().count();
        let is_connection = |line: &&[u8]| {
            let connect = memchr::memmem::find(line, b"Connect from ");
            connect.is_some_and(|at| memchr::memmem::find(&line[at..], b" to ").is_some())
        };
        if is_most(lines().filter(is_connection).count()) {
            Unknown::Connections
        } else if is_most(crate::line::json_objects(lines())) {
            Unknown::JsonWithoutDate
        } else {
            Unknown::Other
        }
    }

    /// The name of this format in a sentence: "the HTTP format".
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The fields that a line has, and those that can be taken from them. Of captured headers, the
    /// first is listed ("hr.0"), and the others can be selected as well. For JSON, they are known
    /// if the format was guessed.
    pub fn fields(&self) -> &[Field] {
        &self.inner.fields
    }

    /// Which date of a line [`Entry::at`](crate::Entry::at) is: "the request date (%tr)".
    pub fn time(&self) -> &str {
        &self.inner.time
    }

    /// Selects the fields that [`read`](crate::read()) gives for each request: by a name of
    /// [`Format::fields`], with or without '%', or by that of a sample fetch with the same value
    /// ("src", "path", "query", "host").
    ///
    /// # Errors
    /// The format does not have one of the fields, or there are more than 200.
    pub fn select(&self, names: &[&str]) -> Result<Selection, UnknownField> {
        let unknown = |name: &str| UnknownField { name: name.to_owned() };
        if names.len() > 200 {
            return Err(unknown(names[200]));
        }
        let reader = match &self.inner.kind {
            Kind::Json { times } => Reader::Json(times.clone()),
            Kind::Text { scanner, values, time } => {
                // The values whose spans are wanted, each once.
                let (mut scanner, mut kept) = (scanner.clone(), Vec::new());
                let mut keep = |value: usize| {
                    let known = kept.iter().position(|&known| known == value);
                    let at = known.unwrap_or(kept.len());
                    if known.is_none() {
                        kept.push(value);
                    }
                    scanner.keep(value, u8::try_from(at).unwrap_or(u8::MAX));
                    at
                };
                let time = time.map(&mut keep);
                let request = values
                    .iter()
                    .position(|value| matches!(value.source, Source::Alias("r" | "HM" | "HU")))
                    .map(&mut keep);
                let mut slots = Vec::new();
                for name in names {
                    let (value, part) = find(values, name).ok_or_else(|| unknown(name))?;
                    let decode = Decode::of(&values[value]);
                    slots.push(Slot { span: keep(value), part, decode });
                }
                if kept.len() > SPANS {
                    return Err(unknown(names.last().copied().unwrap_or_default()));
                }
                let (scanner, spans) = (scanner.fused(), kept.len());
                Reader::Text(TextReader { scanner, spans, time, request, slots })
            }
        };
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Ok(Selection { names, reader })
    }
}

/// The value and the part of it that a name means.
fn find(values: &[Value], name: &str) -> Option<(usize, Part)> {
    let given = |value: &Value| value.given.as_deref() == Some(name);
    if let Some(value) = values.iter().position(given) {
        return Some((value, Part::Whole));
    }
    let name = name.strip_prefix('%').unwrap_or(name);
    let expression = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let plain = expression.unwrap_or(name);
    if let Some(value) = values.iter().position(|value| value.source.name() == plain) {
        return Some((value, Part::Whole));
    }
    if let Some((outer, number)) = name.split_once('.')
        && let Ok(number) = number.parse()
        && let Some(value) = values.iter().position(|value| value.source.name() == outer)
    {
        match outer {
            "hr" | "hs" => return Some((value, Part::Header(number))),
            "hrl" | "hsl" => return Some((value, Part::Listed(number))),
            _ => {}
        }
    }
    for (at, value) in values.iter().enumerate() {
        for &(derived, part) in derived(value) {
            if derived == name {
                return Some((at, part));
            }
        }
    }
    let (_, other) = OTHER_NAMES.iter().find(|(other, _)| *other == name)?;
    find(values, other)
}

/// The fields that can be taken from a value.
fn derived(value: &Value) -> &'static [(&'static str, Part)] {
    match &value.source {
        Source::Expression(base) if ["base", "var(txn.base)"].contains(&base.as_str()) => {
            &[("HPO", Part::PathOfBase), ("host", Part::HostOfBase)]
        }
        Source::Alias("r") => &[
            ("HM", Part::Method),
            ("HU", Part::Uri),
            ("HP", Part::UriPath),
            ("HPO", Part::Path),
            ("HQ", Part::MarkedQuery),
            ("HV", Part::Version),
            ("query", Part::Query),
            ("host", Part::Host),
        ],
        Source::Alias("HU") => &[
            ("HP", Part::PathOfUri),
            ("HPO", Part::PathOnlyOfUri),
            ("HQ", Part::MarkedQueryOfUri),
            ("query", Part::QueryOfUri),
            ("host", Part::HostOfUri),
        ],
        Source::Alias("HP") => &[("HPO", Part::PathOnlyOfUri), ("host", Part::HostOfUri)],
        Source::Alias("HQ") => &[("query", Part::QueryOfUri)],
        Source::Alias("ft") => &[("f", Part::Frontend)],
        Source::Alias("hr") => &[("hr.0", Part::Header(0))],
        Source::Alias("hs") => &[("hs.0", Part::Header(0))],
        Source::Alias("hrl") => &[("hrl.0", Part::Listed(0))],
        Source::Alias("hsl") => &[("hsl.0", Part::Listed(0))],
        _ => &[],
    }
}

/// The lines of a sample, without the last if it may not be whole.
fn sample_lines(sample: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = memchr::memrchr(b'\n', sample).map_or(sample, |end| &sample[..end]);
    whole.split(|&byte| byte == b'\n').take(SAMPLE_LINES)
}

/// Why no known format fits a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// Its lines are JSON objects, and no value in them is a date.
    JsonWithoutDate,
    /// It has connections and no requests ("Connect from ..."): what HAProxy logs without `option
    /// httplog` and `log-format`.
    Connections,
    /// Anything else.
    Other,
}

/// A format does not have a field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownField {
    /// The name that was asked for.
    pub name: String,
}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log has no field '{}'", self.name)
    }
}

impl std::error::Error for UnknownField {}

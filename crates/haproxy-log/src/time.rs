//! When a request came, from the dates and times of its line.

use crate::compile::{Source, Value};
use crate::date::Dates;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    Milliseconds,
    Zone,
    Any,
}

/// Which values make the time of a request, by their places.
#[derive(Debug, Clone)]
pub(crate) struct Time {
    pub(crate) date: usize,
    notation: Notation,
    /// The milliseconds of a date that has whole seconds.
    milliseconds: Option<usize>,
    /// Milliseconds from that date to the request.
    after: Vec<usize>,
    /// Milliseconds to take away again.
    before: Option<usize>,
}

/// HAProxy asks its SPOE agents when it has a request, so the date of the request is the best. All
/// later ones need what is between the accept date and the request.
const REQUEST: [&str; 3] = ["tr", "trl", "trg"];
const ACCEPT: [&str; 4] = ["t", "Tl", "T", "Ts"];

impl Time {
    /// The best that these values have.
    pub(crate) fn choose(values: &[Value]) -> Option<Self> {
        let alias = |name: &str| {
            values.iter().position(|value| {
                matches!(value.source, Source::Alias(alias) if alias == name) && !value.flags.hex
            })
        };
        let fetch = |name: &str| {
            values.iter().position(|value| match &value.source {
                Source::Expression(text) => {
                    text.split(['(', ',']).next().is_some_and(|fetch| fetch.trim() == name)
                }
                Source::Alias(_) => false,
            })
        };
        let plain = |date, notation| Self {
            date,
            notation,
            milliseconds: None,
            after: Vec::new(),
            before: None,
        };
        let with = |date: usize, name: &str| {
            let notation = match name {
                "t" | "tr" => Notation::Milliseconds,
                "Ts" => Notation::Any,
                _ => Notation::Zone,
            };
            let whole = notation != Notation::Milliseconds;
            Self { milliseconds: if whole { alias("ms") } else { None }, ..plain(date, notation) }
        };
        if let Some(date) = alias("tr") {
            return Some(with(date, "tr"));
        }
        if let Some(date) = fetch("request_date") {
            return Some(plain(date, Notation::Any));
        }
        if let Some((date, name)) = REQUEST.iter().find_map(|name| Some((alias(name)?, name))) {
            return Some(with(date, name));
        }
        let accepted = ACCEPT.iter().find_map(|name| Some(with(alias(name)?, name)));
        let accepted = accepted.or_else(|| Some(plain(fetch("accept_date")?, Notation::Any)));
        if let Some(mut time) = accepted {
            match (alias("Th"), alias("Ti"), alias("Tq")) {
                (Some(handshake), Some(idle), _) => time.after = vec![handshake, idle],
                (_, _, Some(until)) => {
                    time.after = vec![until];
                    time.before = alias("TR");
                }
                _ => {}
            }
            return Some(time);
        }
        fetch("date").map(|date| plain(date, Notation::Any))
    }

    /// For people.
    pub(crate) fn words(&self, values: &[Value]) -> String {
        let name = |at: usize| match values.get(at).map(|value| &value.source) {
            Some(Source::Alias(name)) => format!("%{name}"),
            Some(Source::Expression(expression)) => format!("%[{expression}]"),
            None => String::new(),
        };
        let date = name(self.date);
        let request = date.starts_with("%tr") || date.starts_with("%[request");
        let kind = match (request, date.starts_with("%[date")) {
            (true, _) => "the request date",
            (_, true) => "the date of the line",
            _ => "the accept date",
        };
        let mut words = format!("{kind} ({date}");
        for &other in self.milliseconds.iter().chain(&self.after) {
            words.extend([" + ", &name(other)]);
        }
        if let Some(before) = self.before {
            words.extend([" - ", &name(before)]);
        }
        words + ")"
    }

    /// The same with other places.
    pub(crate) fn map(&self, place: &mut dyn FnMut(usize) -> usize) -> Self {
        Self {
            date: place(self.date),
            notation: self.notation,
            milliseconds: self.milliseconds.map(&mut *place),
            after: self.after.iter().map(|&value| place(value)).collect(),
            before: self.before.map(place),
        }
    }

    /// Microseconds since 1970. `value` has the bytes of a value.
    pub(crate) fn of<'a>(
        &self,
        dates: &mut Dates,
        value: impl Fn(usize) -> Option<&'a [u8]>,
    ) -> Option<i64> {
        let date = value(self.date)?;
        let at = match self.notation {
            Notation::Milliseconds => dates.with_milliseconds(date)?,
            Notation::Zone => dates.with_zone(date)?,
            Notation::Any => dates.any(date)?,
        };
        if self.milliseconds.is_none() && self.after.is_empty() {
            return Some(at);
        }
        // HAProxy writes -1 for an event that did not happen.
        let milliseconds = |place: usize| {
            let text = str::from_utf8(value(place)?).ok()?;
            text.parse::<i64>().ok().filter(|number| (0..i64::from(u32::MAX)).contains(number))
        };
        let mut sum = self.milliseconds.and_then(milliseconds).unwrap_or(0);
        let mut after = 0;
        for &place in &self.after {
            // As HAProxy does for %tr: if such a time is missing, the date is the accept date.
            match milliseconds(place) {
                Some(time) => after += time,
                None => return Some(at + sum * 1000),
            }
        }
        sum += after - self.before.and_then(milliseconds).unwrap_or(0).min(after);
        Some(at + sum * 1000)
    }
}

//! The grammar of `limits`, the same for policies, overrides and lists.

use gcra_table::{MAX_BURST, Rate, RateError, limit_id};
use toml::de::DeValue;

use crate::policy::meant::Meant;
use crate::policy::reader::{Entries, Node, Reader};
use crate::policy::{Limit, MAX_LIMITS, Rule, trial_name};
use crate::table_error;

/// The longest name of a policy or a limit, in bytes: it is part of header fields.
const MAX_NAME: usize = 64;

pub(super) const NAME_RULE: &str = "use letters, digits, '-' and '_', at most 64 of them";

/// Whether a name is one for a policy or a limit. It will be part of header fields and metrics.
pub(super) fn is_name(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(good)
}

/// `"deny"`, `"unlimited"`, one limit, or a list of limits; `setting` is their name in messages.
pub(super) fn rule<'t>(
    reader: &mut Reader<'t>,
    policy: &str,
    setting: &str,
    value: &Node<'t>,
) -> Option<Rule> {
    let at = value.span().start;
    match value.get_ref() {
        DeValue::String(text) if text == "deny" => Some(Rule::Deny),
        DeValue::String(text) if text == "unlimited" => Some(Rule::Unlimited),
        // A word, as in other programs' files.
        DeValue::String(text) if !text.contains(|c: char| c.is_ascii_digit()) => {
            reader.wrong(at, &not_a_limit(text));
            None
        }
        DeValue::String(_) | DeValue::Table(_) => {
            Some(Rule::Limits(vec![limit(reader, policy, value, None)?]))
        }
        DeValue::Array(array) => match array.len() {
            0 => {
                let what = format!("{setting} is empty; write \"unlimited\" to block no request");
                reader.wrong(at, &what);
                None
            }
            1..=MAX_LIMITS => several(reader, policy, at, &array.iter().collect::<Vec<_>>()),
            count => {
                let what = format!("{setting} has {count} entries; use at most {MAX_LIMITS}");
                reader.wrong(at, &what);
                None
            }
        },
        _ => {
            let what = format!(
                "{setting} must be a limit, such as \"10/s burst 20\", a list of limits, \"deny\" \
                 or \"unlimited\""
            );
            reader.wrong(at, &what);
            None
        }
    }
}

/// The limits of `observe`: as those of `limits`, but without `"deny"` and `"unlimited"`.
pub(super) fn trial<'t>(
    reader: &mut Reader<'t>,
    policy: &str,
    value: &Node<'t>,
) -> Option<Vec<Limit>> {
    let mut wrong = |what: &str| {
        let what = format!("{what}; write observe = [\"50/s burst 100\"], or leave it out");
        reader.wrong(value.span().start, &what);
        None
    };
    match value.get_ref() {
        DeValue::String(text) if text == "deny" || text == "unlimited" => {
            wrong(&format!("'{text}' cannot be observed"))
        }
        DeValue::Array(array) if array.is_empty() => wrong("observe is empty"),
        DeValue::Array(array) if array.len() > MAX_LIMITS => {
            let count = array.len();
            wrong(&format!("observe has {count} entries, and at most {MAX_LIMITS} are possible"))
        }
        DeValue::String(_) | DeValue::Table(_) | DeValue::Array(_) => {
            match rule(reader, &trial_name(policy), "observe", value)? {
                Rule::Limits(limits) => Some(limits),
                // These are above.
                Rule::Deny | Rule::Unlimited => None,
            }
        }
        _ => wrong("observe must be a limit or a list of limits"),
    }
}

fn not_a_limit(text: &str) -> String {
    format!(
        "'{text}' is not a limit; write one, such as \"10/s burst 20\", or \"deny\" or \
         \"unlimited\""
    )
}

fn several<'t>(
    reader: &mut Reader<'t>,
    policy: &str,
    at: usize,
    values: &[&Node<'t>],
) -> Option<Rule> {
    // All are read before the first wrong one ends this, so that each mistake is noted.
    let limits: Vec<_> = (1..)
        .zip(values)
        .map(|(number, value)| limit(reader, policy, value, (values.len() > 1).then_some(number)))
        .collect();
    let limits: Vec<_> = limits.into_iter().collect::<Option<_>>()?;
    let mut labels: Vec<_> = limits.iter().map(|limit: &Limit| &limit.label).collect();
    labels.sort();
    if let Some(pair) = labels.windows(2).find(|pair| pair[0] == pair[1]) {
        let what = format!("two limits are called '{}'; give each a name of its own", pair[0]);
        reader.wrong(at, &what);
    }
    for (place, (limit, value)) in limits.iter().zip(values).enumerate() {
        // Of two equal limits the first one counts.
        let stricter = limits.iter().enumerate().find(|(other, stricter)| {
            let is_stricter = never_matters(limit, stricter);
            is_stricter && (place > *other || !never_matters(stricter, limit))
        });
        if let Some((_, stricter)) = stricter {
            let what = format!(
                "the limit '{}' never matters, because '{}' allows no more at once and no more in \
                 the long run; leave it out",
                limit.words.text, stricter.words.text
            );
            reader.warn(value.span().start, &what);
        }
    }
    Some(Rule::Limits(limits))
}

/// Whether `other` denies every request that `limit` would deny: both are charged the same, so it
/// is enough that its burst is not larger and its cells do not come back faster.
fn never_matters(limit: &Limit, other: &Limit) -> bool {
    other.quota.burst() <= limit.quota.burst()
        && other.quota.emission_interval() >= limit.quota.emission_interval()
}

/// A limit as it is written, before its numbers are checked.
#[derive(Default)]
struct Written {
    name: Option<String>,
    rate: Option<String>,
    burst: Option<u64>,
}

/// `"10/s burst 20"` or `{ name = "hourly", rate = "1000/h", burst = 100 }`. The position is the
/// one in a list of several.
fn limit<'t>(
    reader: &mut Reader<'t>,
    policy: &str,
    value: &Node<'t>,
    position: Option<usize>,
) -> Option<Limit> {
    let at = value.span().start;
    let written = match value.get_ref() {
        DeValue::String(text) => in_a_string(text).map_err(|what| reader.wrong(at, &what)).ok()?,
        DeValue::Table(table) => {
            let mut entries =
                Entries::new("a limit".to_owned(), &["name", "rate", "burst"], table);
            let rate = entries.take("rate");
            let burst = entries.take("burst");
            let name = entries.take("name");
            if rate.is_none() {
                reader.wrong(at, "the limit has no rate; write rate = \"10/s\"");
            }
            let written = Written {
                rate: rate.and_then(|value| reader.string(value, "rate", "such as \"10/s\"")),
                burst: burst.and_then(|value| reader.number(value, "burst", 1..=MAX_BURST.into())),
                name: name.and_then(|value| limit_name(reader, value)),
            };
            reader.no_more(entries);
            written
        }
        _ => {
            reader.wrong(
                at,
                "a limit must be a string, such as \"10/s burst 20\", or a table, such as { name \
                 = \"hourly\", rate = \"1000/h\", burst = 100 }",
            );
            return None;
        }
    };
    let rate = written.rate?;
    let parsed = rate.parse::<Rate>().and_then(|rate| Ok((rate, rate.quota(written.burst)?)));
    let (rate, quota) = parsed
        .map_err(|error| {
            let what = match (&error, Meant::by(&rate)) {
                (RateError::Text { .. }, Some(Meant { rate: right, burst })) => {
                    let burst = burst.map(|burst| format!(", burst = {burst}"));
                    let burst = burst.unwrap_or_default();
                    format!("'{rate}' is not a rate; write rate = \"{right}\"{burst}")
                }
                _ if ["deny", "unlimited"].contains(&&*rate) => must_stand_alone(&rate),
                _ => table_error::rate(&error),
            };
            reader.wrong(at, &what);
        })
        .ok()?;
    // Its identity in the table: its own name, or its position.
    let identity = written.name.clone().unwrap_or_else(|| position.unwrap_or(1).to_string());
    let label = match (written.name, position) {
        (Some(name), _) => format!("{policy}.{name}"),
        (None, Some(position)) => format!("{policy}.{position}"),
        (None, None) => policy.to_owned(),
    };
    let id = limit_id(&[policy.as_bytes(), identity.as_bytes()]);
    let mut limit = Limit::new(label, id, &rate, quota);
    if written.burst.is_none() {
        let (bound, burst) = (&mut limit.words.bound, quota.burst());
        *bound = format!("{bound} (no burst given: {burst}, the count)").into();
    }
    Some(limit)
}

fn must_stand_alone(word: &str) -> String {
    format!("'{word}' must stand alone; write limits = \"{word}\"")
}

/// `10/s` or `10/s burst 20`. The error is a sentence.
fn in_a_string(text: &str) -> Result<Written, String> {
    let mut words = text.split_whitespace();
    let Some(rate) = words.next() else { return Err(not_a_limit(text)) };
    if let word @ ("deny" | "unlimited") = rate {
        return Err(must_stand_alone(word));
    }
    let is_rate = rate.parse::<Rate>().is_ok();
    let rate = Some(rate.to_owned());
    let (word, count, more) = (words.next(), words.next(), words.next());
    match (word, count.map(str::parse), more) {
        (None, ..) if is_rate => return Ok(Written { rate, ..Written::default() }),
        (Some("burst"), Some(Ok(count)), None) if is_rate => {
            return Ok(Written { rate, burst: Some(count), ..Written::default() });
        }
        _ => {}
    }
    let what = if let Some(Meant { rate, burst }) = Meant::by(text) {
        let burst = burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
        format!("'{text}' is not a valid limit; write \"{rate}{burst}\"")
    } else if text.contains(',') {
        format!(
            "'{text}' is not one limit; write a list with a string for each, such as [\"10/s \
             burst 20\", \"1000/h\"]"
        )
    } else {
        match (word, more) {
            // Why it is not a rate is said by the parser of rates.
            (None, _) => return Ok(Written { rate, ..Written::default() }),
            (Some("burst"), None) if is_rate => format!(
                "'{text}' is not a valid limit; a burst is a whole number from 1 to {MAX_BURST}, \
                 such as \"10/s burst 20\""
            ),
            _ => format!(
                "'{text}' is not a valid limit; write COUNT/PERIOD or COUNT/PERIOD burst COUNT, \
                 such as \"10/s burst 20\""
            ),
        }
    };
    Err(what)
}

fn limit_name<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<String> {
    let name = reader.string(value, "name", "such as \"hourly\"")?;
    if !is_name(&name) {
        let what = format!("'{name}' is not a valid name for a limit: {NAME_RULE}");
        reader.wrong(value.span().start, &what);
    }
    Some(name)
}

//! The grammar of `limits`, the same for policies, overrides and lists.

use crate::table_error;
use gcra_table::{MAX_BURST, Quota, Rate, RateError};
use toml::de::{DeArray, DeValue};

use crate::calendar::Calendar;
use crate::file::entries::Entries;
use crate::file::key::key_parts;
use crate::file::names::{NAME_RULE, is_name};
use crate::file::reader::{Node, Reader, list, quoted};
use crate::file::settings::{LIMIT_TABLE, Own, POLICY_TABLE, Setting, of_limit as of};
use crate::key_parts::KeyParts;
use crate::limit::{Limit, LimitIdentity, LimitNumbers, LimitWords, MAX_LIMITS, Rule};
use crate::limit_from_arg::{self, ByArg};
use crate::policy::trial_name;
use crate::rate_guess::Meant;

#[derive(Clone, Copy)]
pub(crate) struct WrittenFor<'p> {
    pub name: &'p str,
    pub key: &'p KeyParts,
}

/// `"deny"`, `"unlimited"`, one limit, or a list of limits; `setting` is their name in messages.
pub(crate) fn rule<'t>(
    reader: &mut Reader<'t>,
    policy: WrittenFor<'_>,
    setting: &str,
    value: &Node<'t>,
) -> Option<Rule> {
    let at = value.span().start;
    match value.get_ref() {
        DeValue::String(text) if text == "deny" => Some(Rule::Deny),
        DeValue::String(text) if text == "unlimited" => Some(Rule::Unlimited),
        // A word, as in other programs' files.
        DeValue::String(text) if !text.contains(|c: char| c.is_ascii_digit()) => {
            reader.at(at).refuse_text(text, &not_a_limit(text))
        }
        DeValue::String(_) | DeValue::Table(_) => {
            limit(reader, policy, value, None).map(Rule::Limits)
        }
        DeValue::Array(array) => match array.len() {
            0 => reader
                .at(at)
                .refuse(format!("{setting} is empty; write \"unlimited\" to block no request")),
            1..=MAX_LIMITS => several(reader, policy, at, array),
            count => reader
                .at(at)
                .refuse(format!("{setting} has {count} entries; use at most {MAX_LIMITS}")),
        },
        _ => reader.at(at).refuse(format!(
            "{setting} must be a limit, such as \"10/s burst 20\", a list of limits, \"deny\" \
             or \"unlimited\""
        )),
    }
}

/// The limits of `observe`: as those of `limits`, but without `"deny"` and `"unlimited"`.
pub(crate) fn trial<'t>(
    reader: &mut Reader<'t>,
    policy: WrittenFor<'_>,
    value: &Node<'t>,
) -> Option<Vec<Limit>> {
    let what = match value.get_ref() {
        DeValue::String(text) if text == "deny" || text == "unlimited" => {
            format!("'{text}' cannot be observed")
        }
        DeValue::Array(array) if array.is_empty() => "observe is empty".to_owned(),
        DeValue::Array(array) if array.len() > MAX_LIMITS => {
            let count = array.len();
            format!("observe has {count} entries, and at most {MAX_LIMITS} are possible")
        }
        DeValue::String(_) | DeValue::Table(_) | DeValue::Array(_) => {
            let policy = WrittenFor { name: &trial_name(policy.name), ..policy };
            return match rule(reader, policy, "observe", value)? {
                Rule::Limits(limits) => Some(limits),
                // These are above.
                Rule::Deny | Rule::Unlimited => None,
            };
        }
        _ => "observe must be a limit or a list of limits".to_owned(),
    };
    let right = "write observe = [\"50/s burst 100\"], or leave it out";
    reader.on(value).refuse(format!("{what}; {right}"))
}

fn not_a_limit(text: &str) -> String {
    format!(
        "'{text}' is not a limit; write one, such as \"10/s burst 20\", or \"deny\" or \
         \"unlimited\""
    )
}

fn several<'t>(
    reader: &mut Reader<'t>,
    policy: WrittenFor<'_>,
    at: usize,
    values: &DeArray<'t>,
) -> Option<Rule> {
    let each = (1..).zip(values.iter()).map(|(number, value)| {
        let limits = limit(reader, policy, value, (values.len() > 1).then_some(number))?;
        Some(limits.into_iter().map(|limit| (limit, value.span().start)))
    });
    // All are read before the first wrong one ends this, so that each mistake is noted.
    let each: Vec<_> = each.collect();
    let each = each.into_iter().collect::<Option<Vec<_>>>()?;
    let (limits, places): (Vec<_>, Vec<_>) = each.into_iter().flatten().unzip();
    if limits.len() > MAX_LIMITS {
        reader.at(at).wrong(format!(
            "these are {} limits, because one whose numbers are in an arg counts twice: it has \
             its highest limit beside it; use at most {MAX_LIMITS}",
            limits.len()
        ));
    }
    let mut labels: Vec<_> = limits.iter().map(|limit: &Limit| &limit.label).collect();
    labels.sort();
    if let Some(pair) = labels.windows(2).find(|pair| pair[0] == pair[1]) {
        let what = format!("two limits are called '{}'; give each a name of its own", pair[0]);
        reader.at(at).wrong(what);
    }
    for (place, (limit, at)) in limits.iter().zip(places).enumerate() {
        // Of two equal limits the first one counts.
        let stricter = limits.iter().enumerate().find(|(other, stricter)| {
            // The highest limit beside one whose numbers messages say is no limit that anybody
            // could leave out.
            let is_most = |place: usize| {
                place.checked_sub(1).is_some_and(|before| limits[before].by_arg().is_some())
            };
            let is_stricter =
                !is_most(place) && !is_most(*other) && never_matters(limit, stricter);
            is_stricter && (place > *other || !never_matters(stricter, limit))
        });
        if let Some((_, stricter)) = stricter {
            reader.at(at).warn(format!(
                "the limit '{}' never matters, because '{}' allows no more at once and no more in \
                 the long run; leave it out",
                limit.words.text, stricter.words.text
            ));
        }
    }
    Some(Rule::Limits(limits))
}

/// Whether `other` denies every request that `limit` would deny: both are charged the same, so it
/// is enough that its burst is not larger and its cells do not come back faster. Of counts, only
/// those in the same windows are compared.
fn never_matters(limit: &Limit, other: &Limit) -> bool {
    // Where messages say the numbers, the other one may be the stricter.
    limit.key == other.key
        && limit.by_arg().is_none()
        && other.by_arg().is_none()
        && limit.calendar() == other.calendar()
        && other.burst() <= limit.burst()
        && other.quota(None).emission_interval() >= limit.quota(None).emission_interval()
}

/// The settings of a limit that has its numbers itself, and of one whose numbers messages say.
const OWN_NUMBERS: [&str; 4] = ["rate", "burst", "count", "window"];
const BY_ARG: [&str; 3] = ["arg", "default", "most"];

/// `"10/s burst 20"`, `{ name = "hourly", rate = "1000/h", burst = 100 }` or `{ count = 10000,
/// window = "day Europe/Berlin" }`. The position is the one in a list of several. These are two
/// limits where messages say the numbers.
fn limit<'t>(
    reader: &mut Reader<'t>,
    policy: WrittenFor<'_>,
    value: &Node<'t>,
    position: Option<usize>,
) -> Option<Vec<Limit>> {
    let at = value.span().start;
    match value.get_ref() {
        DeValue::String(text) => {
            let numbers = in_a_string(reader, at, text)?;
            Some(vec![Names::new(policy.name, None, position).limit("", &numbers).by_key(None)])
        }
        DeValue::Table(table) => {
            let entries = Entries::new("a limit", &LIMIT_TABLE, table);
            let key = own_key(reader, policy, at, &entries);
            let name = entries.get(&of::NAME).and_then(|value| limit_name(reader, value));
            let names = Names::new(policy.name, name.as_deref(), position);
            let limits = if BY_ARG.iter().any(|it| entries.place(it).is_some()) {
                limit_by_arg(reader, policy, at, &entries, &names, key.as_ref())
            } else if entries.get(&of::COUNT).or(entries.get(&of::WINDOW)).is_some() {
                limit_in_windows(reader, at, &entries, &names).map(|limit| vec![limit])
            } else {
                limit_of_rate(reader, at, &entries, &names).map(|limit| vec![limit])
            };
            entries.no_others(reader, of_the_policy);
            Some(limits?.into_iter().map(|limit| limit.by_key(key.clone())).collect())
        }
        _ => reader.at(at).refuse(
            "a limit must be a string, such as \"10/s burst 20\", or a table, such as { name \
             = \"hourly\", rate = \"1000/h\", burst = 100 }",
        ),
    }
}

/// The names of a limit.
struct Names<'p> {
    policy: &'p str,
    /// In header fields and logs.
    label: String,
    /// Without the policy: its own name or its position.
    own: String,
}

impl<'p> Names<'p> {
    fn new(policy: &'p str, name: Option<&str>, position: Option<usize>) -> Self {
        let position = position.map(|position| position.to_string());
        let own = name.map(str::to_owned).or(position);
        let label =
            own.as_ref().map_or_else(|| policy.to_owned(), |own| format!("{policy}.{own}"));
        Self { policy, label, own: own.unwrap_or_else(|| "1".to_owned()) }
    }

    fn identity(&self, part: &str) -> LimitIdentity {
        LimitIdentity::new(self.policy, &format!("{}{part}", self.own))
    }

    /// The limit with these names, `part` behind each.
    fn limit(&self, part: &str, (rate, quota, no_burst): &WrittenRate) -> Limit {
        let label = format!("{}{part}", self.label);
        let mut limit = Limit::new(label, self.identity(part), rate, *quota);
        limit.words.bound = format!("{}{no_burst}", limit.words.bound).into();
        limit
    }
}

/// `{ rate = "1000/h", burst = 100 }`.
fn limit_of_rate<'t>(
    reader: &mut Reader<'t>,
    at: usize,
    entries: &Entries<'_, 't>,
    names: &Names<'_>,
) -> Option<Limit> {
    if entries.get(&of::RATE).is_none() {
        let what = "the limit has no rate; write rate = \"10/s\", or count = 10000 and window = \
                    \"day Europe/Berlin\"";
        reader.at(at).wrong(what);
    }
    let rate = entries.read(reader, &of::RATE);
    let burst = entries.read(reader, &of::BURST);
    let at = entries.at(&of::RATE).unwrap_or(at);
    Some(names.limit("", &numbers(reader, at, &rate?, burst.map(u64::from))?))
}

/// `{ count = 10000, window = "day Europe/Berlin" }`, of which one is there.
fn limit_in_windows<'t>(
    reader: &mut Reader<'t>,
    at: usize,
    entries: &Entries<'_, 't>,
    names: &Names<'_>,
) -> Option<Limit> {
    let (rate, burst) = (entries.at(&of::RATE), entries.at(&of::BURST));
    if let Some(at) = rate.or(burst) {
        let (given, it, its) = match (rate, burst) {
            (Some(_), Some(_)) => ("rate and burst", "them", "their"),
            (Some(_), None) => ("rate", "it", "its"),
            (None, _) => ("burst", "it", "its"),
        };
        return reader.at(at).refuse(format!(
            "a limit has a count in a window or a rate, not both; leave {given} out, or write \
             {it} as a limit of {its} own"
        ));
    }
    if entries.get(&of::COUNT).is_none() {
        reader.at(at).wrong("the limit has a window and no count; write count = 10000");
    }
    if entries.get(&of::WINDOW).is_none() {
        let what = "the limit has a count and no window; write window = \"day Europe/Berlin\"";
        reader.at(at).wrong(what);
    }
    let count = entries.read(reader, &of::COUNT);
    let calendar = entries.get(&of::WINDOW).and_then(|value| {
        let text = reader.string(value, "window", "such as \"day Europe/Berlin\"")?;
        let meant = || Calendar::meant_by(&text).map(|meant| quoted(&meant));
        Calendar::parse(&text).map_err(|what| reader.on(value).right(meant()).wrong(what)).ok()
    });
    Limit::counting(names.label.clone(), names.identity(""), count?, calendar?)
}

/// A rate with its quota, and what is to be said of the burst if none is written.
type WrittenRate = (Rate, Quota, String);

fn numbers(
    reader: &mut Reader<'_>,
    at: usize,
    rate: &str,
    burst: Option<u64>,
) -> Option<WrittenRate> {
    let parsed = rate.parse::<Rate>().and_then(|rate| Ok((rate, rate.quota(burst)?)));
    let error = match parsed {
        Ok((rate, quota)) => {
            let no_burst = match burst {
                Some(_) => String::new(),
                None => format!(" (no burst given: {}, the count)", quota.burst()),
            };
            return Some((rate, quota, no_burst));
        }
        Err(error) => error,
    };
    let meant = Meant::by(rate);
    // A rate alone takes the place of the value.
    let right = meant.as_ref().filter(|meant| meant.burst.is_none());
    let right = right.map(|meant| quoted(&meant.rate));
    let what = match (&error, meant) {
        (RateError::Text { .. }, Some(Meant { rate: right, burst })) => {
            let burst = burst.map(|burst| format!(", burst = {burst}")).unwrap_or_default();
            format!("'{rate}' is not a rate; write rate = \"{right}\"{burst}")
        }
        _ if ["deny", "unlimited"].contains(&rate) => must_stand_alone(rate),
        _ => table_error::rate(&error),
    };
    reader.at(at).right(right).refuse_text(rate, &what)
}

/// The key of a limit, if it has one of its own: `key`, or the policy's key with other prefix
/// lengths or another `lowercase`.
fn own_key<'t>(
    reader: &mut Reader<'t>,
    policy: WrittenFor<'_>,
    at: usize,
    entries: &Entries<'_, 't>,
) -> Option<KeyParts> {
    const GROUPS: [&str; 3] = ["ipv4_prefix", "ipv6_prefix", "lowercase"];
    let groups = GROUPS.into_iter().filter_map(|name| Some((name, entries.place(name)?)));
    let groups: Vec<_> = groups.collect();
    if groups.is_empty() && entries.get(&of::KEY).is_none() {
        return None;
    }
    if policy.key.args.is_empty() {
        reader.at(at).wrong(format!(
            "a limit has a key of its own, so policy '{}' needs a 'key', too, which says what its \
             other limits and its overrides count by; write, for example, key = [\"ip\"]",
            policy.name
        ));
    }
    let key = key_parts(reader, entries, &policy.key.nat64, Some(policy.key));
    if key.args.is_empty() && !policy.key.args.is_empty() {
        for (name, at) in groups {
            reader.at(at).warn(format!(
                "with key = [] all clients count together, so {name} does nothing; leave it out"
            ));
        }
    }
    Some(key)
}

/// A sentence about a setting in the table of a limit that belongs to its policy.
fn of_the_policy<'t>(name: &str, _: &Node<'t>) -> Option<String> {
    POLICY_TABLE.has(name).then(|| {
        format!("'{name}' belongs to the policy; write it below the header of the policy")
    })
}

/// `{ arg = "plan", default = "10/s burst 20", most = "1000/s burst 2000" }`: a limit whose
/// numbers each message says, and the highest limit, which counts all of a client's requests.
fn limit_by_arg<'t>(
    reader: &mut Reader<'t>,
    policy: WrittenFor<'_>,
    at: usize,
    entries: &Entries<'_, 't>,
    names: &Names<'_>,
    key: Option<&KeyParts>,
) -> Option<Vec<Limit>> {
    let is_whole = has_all_of_by_arg(reader, at, entries)?;
    let arg = arg_with_numbers(reader, policy, entries, key, is_whole);
    let default = limit_in_an_entry(reader, entries, &of::DEFAULT);
    let most = limit_in_an_entry(reader, entries, &of::MOST);
    let (arg, default, most) = (arg?, default?, most?);
    let (quota, most_quota) = (default.1, most.1);
    if limit_from_arg::lowered(quota, most_quota) != Some(quota) {
        let what = "the default is above 'most' in its rate or its burst; lower the default, or \
                    raise most";
        reader.at(entries.at(&of::DEFAULT).unwrap_or(at)).wrong(what);
    }
    let (mut limit, within) = (names.limit("", &default), names.limit(".most", &most));
    limit.words = LimitWords {
        text: format!("the limit in the arg '{arg}', or {}{}", limit.words.text, default.2).into(),
        bound: format!("at most {}", within.words.text).into(),
    }
    .into();
    limit.numbers = LimitNumbers::ByArg(ByArg::new(&arg, quota, most_quota).into());
    Some(vec![limit, within])
}

/// Whether all settings of a limit by an arg are there. `None` if there are others, too.
fn has_all_of_by_arg<'t>(
    reader: &mut Reader<'t>,
    at: usize,
    entries: &Entries<'_, 't>,
) -> Option<bool> {
    const RIGHT: &str =
        "write { arg = \"plan\", default = \"10/s burst 20\", most = \"1000/s burst 2000\" }";
    const WHAT: [&str; 3] = [
        "'arg', the arg with its numbers",
        "'default', a limit for messages without valid numbers",
        "'most', the highest limit that a message can ask for",
    ];
    let others = OWN_NUMBERS.into_iter().filter_map(|name| Some((name, entries.place(name)?)));
    let (others, places): (Vec<_>, Vec<_>) = others.unzip();
    if let Some(at) = places.first() {
        let (it, them) = (list(&others, "or"), if others.len() == 1 { "it" } else { "them" });
        return reader.at(*at).refuse(format!(
            "a limit whose numbers are in an arg has no {it} of its own; leave {them} out, and \
             {RIGHT}"
        ));
    }
    let missing = BY_ARG.iter().zip(WHAT).filter(|(name, _)| entries.place(name).is_none());
    let missing: Vec<_> = missing.map(|(_, what)| what).collect();
    if !missing.is_empty() {
        let what = missing.join("; and no ");
        reader.at(at).wrong(format!("the limit has no {what}; {RIGHT}"));
    }
    Some(missing.is_empty())
}

/// A limit that is the value of `default` or `most`.
fn limit_in_an_entry<'t>(
    reader: &mut Reader<'t>,
    entries: &Entries<'_, 't>,
    setting: &Setting<Own>,
) -> Option<WrittenRate> {
    let (value, name) = (entries.get(setting)?, setting.about.name);
    let text = reader.string(value, name, "such as \"10/s burst 20\"")?;
    if ["", "deny", "unlimited"].contains(&text.trim()) {
        return reader.on(value).refuse(format!(
            "{name} = \"{text}\" is not possible, because {name} is a limit itself; write one, \
             such as {name} = \"10/s burst 20\""
        ));
    }
    in_a_string(reader, value.span().start, &text)
}

/// The arg with the numbers of a limit, which must not be part of a key. `is_whole` is whether the
/// limit has all its settings.
fn arg_with_numbers<'t>(
    reader: &mut Reader<'t>,
    policy: WrittenFor<'_>,
    entries: &Entries<'_, 't>,
    key: Option<&KeyParts>,
    is_whole: bool,
) -> Option<String> {
    let (at, name) = (entries.at(&of::ARG)?, entries.read(reader, &of::ARG)?);
    if is_whole && policy.key.args.is_empty() {
        reader.at(at).wrong(format!(
            "without a key, policy '{}' counts by all args, so each value of '{name}' would have \
             a bucket of its own; write the names of those that tell clients apart, such as key = \
             [\"ip\"]",
            policy.name
        ));
    }
    if [Some(policy.key), key].iter().flatten().any(|it| it.reads(name.as_bytes())) {
        reader.at(at).wrong(format!(
            "key and the arg of a limit both name '{name}', so each value would have a bucket of \
             its own; leave it out of key"
        ));
    }
    Some(name)
}

/// Notes a mistake where an arg has two meanings that do not go together. `limits` are all limits
/// of a policy. The arg is in the key of a limit, and is also the numbers of another limit, the
/// cost, or the number of cells to reserve. `costs` has the setting, the arg, and where it stands.
pub(crate) fn args_are_apart(
    reader: &mut Reader<'_>,
    at: usize,
    policy: &KeyParts,
    limits: &[&Limit],
    costs: [(&str, Option<&[u8]>, usize); 2],
) {
    let counts_by =
        |limit: &&&Limit, arg: &[u8]| limit.key.as_ref().is_some_and(|key| key.reads(arg));
    for (setting, arg, at) in costs {
        let Some(arg) = arg else { continue };
        let name = String::from_utf8_lossy(arg);
        let limit = limits.iter().find(|limit| counts_by(limit, arg));
        // Of the policy's key this was noted before.
        if let Some(limit) = limit.filter(|_| !policy.reads(arg)) {
            reader.at(at).wrong(format!(
                "{setting} and the key of the limit '{}' both name '{name}', so each number \
                 would have a bucket of its own; leave it out of that key",
                limit.label
            ));
        }
        let is_numbers = |limit: &&&Limit| limit.by_arg().is_some_and(|it| *it.arg == *arg);
        if let Some(limit) = limits.iter().find(is_numbers) {
            reader.at(at).wrong(format!(
                "{setting} and the arg of the limit '{}' both name '{name}', and no value is both \
                 a number of cells and a limit, such as \"10/s\"; write two args",
                limit.label
            ));
        }
    }
    for numbers in limits {
        let Some(by_arg) = numbers.by_arg() else { continue };
        // Of its own key, and of the policy's, this was noted before.
        let is_known = |limit: &&&Limit| limit.key == numbers.key || policy.reads(&by_arg.arg);
        let limit = limits.iter().find(|limit| counts_by(limit, &by_arg.arg));
        if let Some(limit) = limit.filter(|limit| !is_known(limit)) {
            reader.at(at).wrong(format!(
                "the key of the limit '{}' and the arg of the limit '{}' both name '{}', so each \
                 value would have a bucket of its own; leave it out of that key",
                limit.label,
                numbers.label,
                String::from_utf8_lossy(&by_arg.arg)
            ));
        }
    }
}

fn must_stand_alone(word: &str) -> String {
    format!("'{word}' must stand alone; write limits = \"{word}\"")
}

/// `10/s` or `10/s burst 20`.
fn in_a_string(reader: &mut Reader<'_>, at: usize, text: &str) -> Option<WrittenRate> {
    let mut words = text.split_whitespace();
    let Some(rate) = words.next() else {
        return reader.at(at).refuse_text(text, &not_a_limit(text));
    };
    if let word @ ("deny" | "unlimited") = rate {
        return reader.at(at).refuse_text(text, &must_stand_alone(word));
    }
    let is_rate = rate.parse::<Rate>().is_ok();
    let (word, count, more) = (words.next(), words.next(), words.next());
    match (word, count.map(str::parse), more) {
        (None, ..) if is_rate => return numbers(reader, at, rate, None),
        (Some("burst"), Some(Ok(count)), None) if is_rate => {
            return numbers(reader, at, rate, Some(count));
        }
        _ => {}
    }
    let meant = Meant::by(text).map(|Meant { rate, burst }| {
        let burst = burst.map(|burst| format!(" burst {burst}")).unwrap_or_default();
        quoted(&format!("{rate}{burst}"))
    });
    let what = if let Some(meant) = &meant {
        format!("'{text}' is not a valid limit; write {meant}")
    } else if text.contains(',') {
        format!(
            "'{text}' is not one limit; write a list with a string for each, such as [\"10/s \
             burst 20\", \"1000/h\"]"
        )
    } else {
        match (word, more) {
            // Why it is not a rate is said by the parser of rates.
            (None, _) => return numbers(reader, at, rate, None),
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
    reader.at(at).right(meant).refuse_text(text, &what)
}

fn limit_name<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<String> {
    let name = reader.string(value, "name", "such as \"hourly\"")?;
    if !is_name(&name) {
        reader.on(value).wrong(format!("'{name}' is not a valid name for a limit: {NAME_RULE}"));
    }
    Some(name)
}

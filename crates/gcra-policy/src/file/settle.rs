//! The grammar of `settle`, `reserve`, `max_debt`, `settle_within` and `unsettled`, and whether
//! they can work.

use std::ops::RangeInclusive;
use std::time::Duration;

use gcra_table::{MOST_UNSETTLED, Nanos, Quota, limit_id};
use gcra_text::count::Count;
use gcra_text::duration::{Exact, nanoseconds};

use crate::file::key::not_an_arg;
use crate::file::reader::{Entries, Node, Reader, list};
use crate::key_parts::KeyParts;
use crate::limit::Limit;
use crate::policy::Policy;
use crate::settle::{RESERVED, Settle, UnsettledCost, with_max_debt};
use crate::words::text;

/// How far responses may lead a client beyond its burst, unless it is set.
const DEFAULT_MAX_DEBT: Duration = Duration::from_secs(3_600);

/// How far they may lead it.
const MAX_DEBT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(2_592_000);

/// How old a reservation can be to be given back, unless it is set.
const DEFAULT_WITHIN: Duration = Duration::from_secs(600);

/// How old it can be.
const WITHIN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

/// The settings of a policy that mean something beside `settle` only.
pub(crate) const SETTINGS: [&str; 4] = ["reserve", "max_debt", "settle_within", "unsettled"];

/// The settings as they were read, and where those stand that are there.
pub(crate) struct SettleEntries {
    pub at: usize,
    pub(crate) reserve_at: Option<usize>,
    pub(crate) max_debt_at: Option<usize>,
    pub(crate) unsettled_at: Option<usize>,
    pub settle: Settle,
}

/// Takes the settings of the policy with this name, which is for this message. `cost` is the arg
/// with the cost, if the policy has one.
pub(crate) fn settle<'t>(
    reader: &mut Reader<'t>,
    entries: &mut Entries<'_, 't>,
    policy: &str,
    (key, message): (&KeyParts, &str),
    cost: Option<&str>,
    settling: Option<(&Node<'t>, Option<String>)>,
) -> Option<SettleEntries> {
    let [reserve, max_debt, mut within, unsettled] = SETTINGS.map(|name| entries.take(name));
    let Some((value, settling)) = settling else {
        let given = SETTINGS.into_iter().zip([reserve, max_debt, within, unsettled]);
        let given = given.filter_map(|(name, value)| Some((name, value?.span().start)));
        let (names, places): (Vec<_>, Vec<_>) = given.unzip();
        if let Some(at) = places.into_iter().min() {
            let (has, it) = if let [one] = names[..] { ("has", one) } else { ("have", "them") };
            reader.at(at).wrong(format!(
                "{} {has} no effect without settle; write settle = \"MESSAGE\", the \
                 spoe-message of the response, or leave {it} out",
                list(&names, "and")
            ));
        }
        return None;
    };
    let at = value.span().start;
    if settling.as_deref() == Some(message) {
        reader.at(at).wrong(format!(
            "settle and message of policy '{policy}' both name '{message}'; give the response a \
             spoe-message of its own"
        ));
    }
    if key.args.is_empty() {
        reader.at(at).wrong(format!(
            "policy '{policy}' has settle and no key, and the messages of a request and of its \
             response have different args; write the names of those that tell clients apart, \
             such as key = [\"ip\"]"
        ));
    }
    if cost == Some(RESERVED) || key.reads(RESERVED.as_bytes()) {
        reader.at(at).wrong(format!(
            "policy '{policy}' has settle, and then the arg '{RESERVED}' is what the agent has \
             answered; give the other arg another name"
        ));
    }
    let (reserve_at, mut arg, mut cells) = (reserve.map(|value| value.span().start), None, 0);
    if let Some(value) = reserve {
        if value.get_ref().as_str().is_some() {
            arg = reserve_arg(reader, value, key, cost.is_some());
        } else {
            let number = reader.number(value, "reserve", 0..=u32::MAX.into());
            cells = u32::try_from(number.unwrap_or(0)).unwrap_or(u32::MAX);
        }
    }
    let reserves = cells > 0 || arg.is_some() || unsettled.is_some();
    if let Some(value) = within.filter(|_| !reserves && reader.is_content()) {
        within = None;
        let what = "settle_within has no effect without reserve, because nothing is given back; \
                    leave it out";
        reader.on(value).wrong(what);
    }
    let mut time = |value: Option<&Node<'t>>, name, range, like, default| match value {
        Some(value) => reader.time(value, name, range, like).unwrap_or(default),
        None => default,
    };
    let within = time(within, "settle_within", WITHIN, "10m", DEFAULT_WITHIN);
    let max_debt_at = max_debt.map(|value| value.span().start);
    let max_debt = time(max_debt, "max_debt", MAX_DEBT, "1h", DEFAULT_MAX_DEBT);
    let least = cells.saturating_add(1);
    let unsettled_at = unsettled.map(|value| value.span().start);
    let unsettled = unsettled
        .and_then(|value| self::unsettled(reader, value, (policy, within), least, cost.is_some()));
    let settle = Settle {
        message: settling.unwrap_or_default().into_bytes().into(),
        cost: cost.map(|name| name.as_bytes().into()),
        reserve: arg,
        cells,
        max_debt,
        within,
        unsettled,
    };
    Some(SettleEntries { at, reserve_at, max_debt_at, unsettled_at, settle })
}

/// The cost of a request that no response settles in time. The response has to say what a request
/// has cost, because it must come for each, also for one that is free.
fn unsettled<'t>(
    reader: &mut Reader<'t>,
    value: &Node<'t>,
    (policy, within): (&str, Duration),
    least: u32,
    has_cost: bool,
) -> Option<UnsettledCost> {
    if !has_cost {
        reader.on(value).wrong(
            "unsettled needs the message of every response, and without cost each of them costs \
             one cell; write the arg that says what a request has cost, 0 if it is free, such as \
             cost = \"tokens\"",
        );
    }
    let cells = reader.number(value, "unsettled", 1..=MOST_UNSETTLED.into())?;
    let cells = u32::try_from(cells).ok()?;
    if cells < least {
        reader.on(value).wrong(format!(
            "unsettled has no effect, because each request reserves {} already; write {least} or \
             more, or leave it out",
            Count(least - 1, "cell", "cells")
        ));
    }
    let numbers = [&cells.to_le_bytes()[..], &within.as_nanos().to_le_bytes()].concat();
    let id = limit_id(&[policy.as_bytes(), b"unsettled", &numbers]);
    Some(UnsettledCost { cells, id })
}

/// The name of the arg with the cells to reserve, which must not be part of the key. The response
/// has to say what the request has cost, then.
fn reserve_arg<'t>(
    reader: &mut Reader<'t>,
    value: &Node<'t>,
    key: &KeyParts,
    has_cost: bool,
) -> Option<Box<[u8]>> {
    let at = value.span().start;
    let name = reader.name(value, "reserve", "a number of cells, or the name of an arg")?;
    if name.is_empty() {
        // That is a mistake already.
        return Some(Box::default());
    }
    if let Some(what) = not_an_arg(&name, "reserve") {
        reader.at(at).wrong(&what);
    } else if name.bytes().all(|byte| byte.is_ascii_digit()) {
        reader.at(at).wrong(format!("reserve is a number in quotes; write reserve = {name}"));
    } else if key.reads(name.as_bytes()) {
        reader.at(at).wrong(format!(
            "key and reserve both name '{name}', so each number of cells would have a bucket of \
             its own; leave it out of key"
        ));
    } else if !has_cost {
        reader.at(at).wrong(format!(
            "without cost each response costs one cell, so the rest of what '{name}' reserves \
             would always be given back; write the arg of the response that says what the \
             request has cost, such as cost = \"tokens\""
        ));
    }
    Some(name.into_bytes().into())
}

/// Puts the largest debt into the quotas of a policy's rule and of its overrides. Notes a mistake
/// where the settings cannot work.
pub(crate) fn apply<'l>(
    reader: &mut Reader<'_>,
    policy: &str,
    written: &SettleEntries,
    rule_is_known: bool,
    limits: impl Iterator<Item = &'l mut Limit>,
) {
    let SettleEntries { at, reserve_at, max_debt_at, unsettled_at, settle } = written;
    // The limit whose cells take longest to be paid off.
    let mut slowest: Option<(Quota, String)> = None;
    let mut limits = limits.peekable();
    if rule_is_known && limits.peek().is_none() {
        reader.at(*at).wrong(format!(
            "settle of policy '{policy}' has no effect, because the policy has no limit; leave it \
             out"
        ));
    }
    for limit in limits {
        if let Some(at) = unsettled_at.filter(|_| limit.key.is_some()) {
            reader.at(at).wrong(format!(
                "policy '{policy}' cannot have unsettled, because its limit '{}' has a key of its \
                 own, and such requests are charged with a later one, which may have another \
                 value; leave the key of the limit or unsettled out",
                limit.words.text
            ));
        }
        if settle.cells > limit.burst() {
            reader.at(reserve_at.unwrap_or(*at)).wrong(format!(
                "policy '{policy}' would block every request under the limit '{}', because \
                 reserve is more than its burst; write a reserve of at most {}",
                limit.words.text,
                limit.burst()
            ));
        }
        // A count ends with its window, so that it needs no ceiling.
        let Some((quota, words)) = limit.default_rate() else { continue };
        let interval = quota.emission_interval();
        if slowest.as_ref().is_none_or(|(slowest, _)| slowest.emission_interval() < interval) {
            slowest = Some((quota, words));
        }
        let max_debt = Nanos(nanoseconds(settle.max_debt));
        if let Some(by_arg) = limit.by_arg_mut() {
            by_arg.max_debt = max_debt;
        }
        let Some(rate) = limit.rate_mut() else { continue };
        match with_max_debt(*rate, max_debt) {
            Ok(quota) => *rate = quota,
            Err(error) => {
                reader.at(*at).wrong(format!(
                    "with max_debt of policy '{policy}', {error}; lower max_debt or the burst"
                ));
            }
        }
    }
    if let Some((quota, words)) = slowest
        && let Some(why) = charges_none_beyond(quota, &words, settle.max_debt)
    {
        reader.at(max_debt_at.unwrap_or(*at)).warn(format!("in policy '{policy}', {why}"));
    }
}

/// Why responses charge no cell beyond the burst of a limit, if that is so.
fn charges_none_beyond(quota: Quota, words: &str, max_debt: Duration) -> Option<String> {
    let cap = with_max_debt(quota, Nanos(nanoseconds(max_debt))).ok()?;
    if cap.up_to_cap().burst() > quota.burst() {
        return None;
    }
    let takes = Duration::from_secs(quota.emission_interval().secs_ceil());
    let remedy = match MAX_DEBT.contains(&takes) {
        true => format!("write max_debt = \"{}\" or more", Exact(takes)),
        false => format!(
            "raise the rate to a cell in {0} or less, and write max_debt = \"{0}\"",
            Exact(*MAX_DEBT.end())
        ),
    };
    Some(format!(
        "responses charge nothing beyond the burst of the limit '{words}', because one cell takes \
         {} to be paid off and max_debt is {}; {remedy}",
        Exact(takes),
        Exact(max_debt)
    ))
}

/// Notes the settings that a policy cannot have beside `settle`, which are there.
pub(crate) fn goes_alone(
    reader: &mut Reader<'_>,
    at: usize,
    policy: &str,
    others: [(&str, bool); 3],
) {
    for (name, _) in others.into_iter().filter(|(_, is_there)| *is_there) {
        let why = match name {
            "penalty" => "both let a client owe more than its burst, by rules of their own",
            "max_delay" => "a response could move the place of requests that wait already",
            _ => "what a trial has reserved is not sent back by the response",
        };
        reader.at(at).wrong(format!(
            "policy '{policy}' cannot have {name} and settle, because {why}; leave one of them out"
        ));
    }
}

/// Notes messages that settle and are also those of requests, and those that settle for several
/// policies that their `when` does not tell apart.
pub(crate) fn are_clear(reader: &mut Reader<'_>, list: &[Policy], places: &[usize]) {
    for (place, (policy, at)) in list.iter().zip(places).enumerate() {
        let Some(settle) = policy.settle() else { continue };
        let (name, message) = (&policy.name, text(&settle.message));
        let of_request = |other: &&Policy| other.message.as_deref() == Some(&*settle.message);
        let is_own = policy.message.as_deref() == Some(&*settle.message);
        if let Some(other) = list.iter().find(of_request).filter(|_| !is_own) {
            reader.at(*at).wrong(format!(
                "policy '{name}' is settled by the message '{message}', and policy '{}' is for \
                 it; give the response a spoe-message of its own",
                other.name
            ));
        }
        let hides = |other: &&Policy| {
            let is_same = other.settle().is_some_and(|it| it.message == settle.message);
            is_same
                && match (&other.when, &policy.when) {
                    (None, _) => true,
                    (Some(first), Some(then)) => {
                        first.arg == then.arg
                            && then.values.iter().any(|value| first.values.contains(value))
                    }
                    (Some(_), None) => false,
                }
        };
        if let Some(other) = list.iter().take(place).find(hides) {
            reader.at(*at).wrong(format!(
                "the message '{message}' settles policy '{}', so it cannot settle policy '{name}' \
                 for the same requests; give each a spoe-message of its own, or a 'when' that \
                 tells them apart",
                other.name
            ));
        }
    }
}

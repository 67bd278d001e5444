//! The grammar of `settle`, `reserve`, `max_debt`, `settle_within` and `unsettled`, and whether
//! they can work.

use std::time::Duration;

use gcra_table::{Nanos, Quota, limit_id};
use gcra_text::count::Count;
use gcra_text::duration::{Exact, nanoseconds};

use crate::file::entries::{Entries, SettingKind as _};
use crate::file::names::not_an_arg;
use crate::file::reader::{Node, Reader, list};
use crate::file::settings::Number;
use crate::file::settings::of_policy::{MAX_DEBT, RESERVE, SETTLE, SETTLE_WITHIN, UNSETTLED};
use crate::key_parts::KeyParts;
use crate::limit::Limit;
use crate::settle::{RESERVED, Settle, UnsettledCost, with_max_debt};

/// A policy whose settings are read.
#[derive(Clone, Copy)]
pub(crate) struct OfPolicy<'p> {
    pub name: &'p str,
    pub message: &'p str,
    pub key: &'p KeyParts,
    /// The arg with the cost, if there is one.
    pub cost: Option<&'p str>,
}

/// Reads the settings of a policy.
pub(crate) fn settle<'t>(
    reader: &mut Reader<'t>,
    entries: &Entries<'_, 't>,
    policy: OfPolicy<'_>,
) -> Option<Settle> {
    let Some(value) = entries.get(&SETTLE) else {
        if let Some((names, at)) = entries.that_need(&SETTLE) {
            let (has, it) = if let [one] = names[..] { ("has", one) } else { ("have", "them") };
            reader.at(at).wrong(format!(
                "{} {has} no effect without settle; write settle = \"MESSAGE\", the \
                 spoe-message of the response, or leave {it} out",
                list(&names, "and")
            ));
        }
        return None;
    };
    let message = SETTLE.read(reader, value);
    let at = value.span().start;
    goes_with_message(reader, at, policy, message.as_deref());
    let (mut reserve, mut cells) = (None, 0);
    if let Some(value) = entries.get(&RESERVE) {
        if value.get_ref().as_str().is_some() {
            reserve = reserve_arg(reader, value, policy);
        } else {
            cells = Number(0..=u32::MAX).read(reader, &RESERVE.about, value).unwrap_or(0);
        }
    }
    let gives_back = cells > 0 || reserve.is_some() || entries.get(&UNSETTLED).is_some();
    let within = match entries.get(&SETTLE_WITHIN) {
        Some(value) if !gives_back && reader.is_content() => {
            let what = "settle_within has no effect without reserve, because nothing is given \
                        back; leave it out";
            reader.on(value).refuse(what)
        }
        _ => entries.read(reader, &SETTLE_WITHIN),
    };
    let within = within.unwrap_or(SETTLE_WITHIN.default());
    let max_debt = entries.read(reader, &MAX_DEBT).unwrap_or(MAX_DEBT.default());
    Some(Settle {
        message: message.unwrap_or_default().into_bytes().into(),
        cost: policy.cost.map(|name| name.as_bytes().into()),
        reserve,
        cells,
        max_debt,
        within,
        unsettled: unsettled(reader, entries, policy, within, cells.saturating_add(1)),
    })
}

/// Notes where the message of the response, and the args that it needs, are those of others.
fn goes_with_message(
    reader: &mut Reader<'_>,
    at: usize,
    OfPolicy { name, message, key, cost }: OfPolicy<'_>,
    settling: Option<&str>,
) {
    if settling == Some(message) {
        reader.at(at).wrong(format!(
            "settle and message of policy '{name}' both name '{message}'; give the response a \
             spoe-message of its own"
        ));
    }
    if key.args.is_empty() {
        reader.at(at).wrong(format!(
            "policy '{name}' has settle and no key, and the messages of a request and of its \
             response have different args; write the names of those that tell clients apart, \
             such as key = [\"ip\"]"
        ));
    }
    if cost == Some(RESERVED) || key.reads(RESERVED.as_bytes()) {
        reader.at(at).wrong(format!(
            "policy '{name}' has settle, and then the arg '{RESERVED}' is what the agent has \
             answered; give the other arg another name"
        ));
    }
}

/// The cost of a request that no response settles in time. The response has to say what a request
/// has cost, because it must come for each, also for one that is free.
fn unsettled<'t>(
    reader: &mut Reader<'t>,
    entries: &Entries<'_, 't>,
    policy: OfPolicy<'_>,
    within: Duration,
    least: u32,
) -> Option<UnsettledCost> {
    let value = entries.get(&UNSETTLED)?;
    if policy.cost.is_none() {
        reader.on(value).wrong(
            "unsettled needs the message of every response, and without cost each of them costs \
             one cell; write the arg that says what a request has cost, 0 if it is free, such as \
             cost = \"tokens\"",
        );
    }
    let cells = UNSETTLED.read(reader, value)?;
    if cells < least {
        reader.on(value).wrong(format!(
            "unsettled has no effect, because each request reserves {} already; write {least} or \
             more, or leave it out",
            Count(least - 1, "cell", "cells")
        ));
    }
    let numbers = [&cells.to_le_bytes()[..], &within.as_nanos().to_le_bytes()].concat();
    let id = limit_id(&[policy.name.as_bytes(), b"unsettled", &numbers]);
    Some(UnsettledCost { cells, id })
}

/// The name of the arg with the cells to reserve, which must not be part of the key. The response
/// has to say what the request has cost, then.
fn reserve_arg<'t>(
    reader: &mut Reader<'t>,
    value: &Node<'t>,
    OfPolicy { key, cost, .. }: OfPolicy<'_>,
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
    } else if cost.is_none() {
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
    entries: &Entries<'_, '_>,
    policy: &str,
    settle: &Settle,
    rule_is_known: bool,
    limits: impl Iterator<Item = &'l mut Limit>,
) {
    let at = entries.at(&SETTLE).unwrap_or(0);
    // The limit whose cells take longest to be paid off.
    let mut slowest: Option<(Quota, String)> = None;
    let mut limits = limits.peekable();
    if rule_is_known && limits.peek().is_none() {
        reader.at(at).wrong(format!(
            "settle of policy '{policy}' has no effect, because the policy has no limit; leave it \
             out"
        ));
    }
    for limit in limits {
        if let Some(at) = entries.at(&UNSETTLED).filter(|_| limit.key.is_some()) {
            reader.at(at).wrong(format!(
                "policy '{policy}' cannot have unsettled, because its limit '{}' has a key of its \
                 own, and such requests are charged with a later one, which may have another \
                 value; leave the key of the limit or unsettled out",
                limit.words.text
            ));
        }
        if settle.cells > limit.burst() {
            reader.at(entries.at(&RESERVE).unwrap_or(at)).wrong(format!(
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
                reader.at(at).wrong(format!(
                    "with max_debt of policy '{policy}', {error}; lower max_debt or the burst"
                ));
            }
        }
    }
    if let Some((quota, words)) = slowest
        && let Some(why) = charges_none_beyond(quota, &words, settle.max_debt)
    {
        reader
            .at(entries.at(&MAX_DEBT).unwrap_or(at))
            .warn(format!("in policy '{policy}', {why}"));
    }
}

/// Why responses charge no cell beyond the burst of a limit, if that is so.
fn charges_none_beyond(quota: Quota, words: &str, max_debt: Duration) -> Option<String> {
    let cap = with_max_debt(quota, Nanos(nanoseconds(max_debt))).ok()?;
    if cap.up_to_cap().burst() > quota.burst() {
        return None;
    }
    let takes = Duration::from_secs(quota.emission_interval().secs_ceil());
    let remedy = match MAX_DEBT.kind.0.contains(&takes) {
        true => format!("write max_debt = \"{}\" or more", Exact(takes)),
        false => format!(
            "raise the rate to a cell in {0} or less, and write max_debt = \"{0}\"",
            Exact(*MAX_DEBT.kind.0.end())
        ),
    };
    Some(format!(
        "responses charge nothing beyond the burst of the limit '{words}', because one cell takes \
         {} to be paid off and max_debt is {}; {remedy}",
        Exact(takes),
        Exact(max_debt)
    ))
}

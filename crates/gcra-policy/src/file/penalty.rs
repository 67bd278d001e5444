//! The grammar of `penalty`, and whether it can take effect.

use std::time::Duration;

use gcra_table::{Nanos, Quota};
use gcra_text::duration::{self, Exact};

use crate::file::entries::Entries;
use crate::file::reader::{Node, Reader, meant_time};
use crate::file::settings::of_penalty::{CEILING, CELLS};
use crate::file::settings::{MAX_CEILING_NS, PENALTY_TABLE};
use crate::limit::Limit;
use crate::policy::Penalty;

/// `{ cells = 1, ceiling = "10m" }`.
pub(crate) fn penalty<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<Penalty> {
    let at = value.span().start;
    let table = reader
        .table(value, "penalty must be a table, such as { cells = 1, ceiling = \"10m\" }")?;
    let entries = Entries::new("penalty", &PENALTY_TABLE, table);
    let cells = entries.read_or_default(reader, &CELLS);
    let ceiling_ns = match entries.get(&CEILING) {
        Some(value) => ceiling_ns(reader, value),
        None => reader.at(at).refuse(
            "penalty has no ceiling, so a client could stay blocked without end; write \
             ceiling = \"10m\"",
        ),
    };
    entries.no_others(reader, |_, _| None);
    Some(Penalty { cells: cells?, ceiling_ns: ceiling_ns? })
}

fn ceiling_ns<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<u64> {
    let text = reader.string(value, "ceiling", "such as \"10m\"")?;
    let ns = duration::parse(&text).map(duration::nanoseconds);
    ns.filter(|ns| (1..=MAX_CEILING_NS).contains(ns)).or_else(|| {
        let range = Duration::from_nanos(1)..=Duration::from_nanos(MAX_CEILING_NS);
        reader.on(value).right(meant_time(&text, &range)).refuse(format!(
            "'{text}' is not a valid time; write a whole number and a unit ({}), up to 30d, such \
             as \"10m\"",
            duration::UNITS_IN_WORDS
        ))
    })
}

/// Puts the penalty into the quotas of a policy's rule, unless that is wrong, and of its
/// overrides. Notes a mistake where the penalty could never be charged.
pub(crate) fn apply<'l>(
    reader: &mut Reader<'_>,
    at: usize,
    policy: &str,
    penalty: Penalty,
    rule_is_known: bool,
    limits: impl Iterator<Item = &'l mut Limit>,
) {
    // A count in a window is of requests that were allowed.
    let mut limits: Vec<_> = limits.filter(|limit| limit.rate().is_some()).collect();
    let has_rate = !limits.is_empty();
    // For a penalty under a key of its own, other clients would wait.
    limits.retain(|limit| limit.key.is_none());
    if rule_is_known && limits.is_empty() {
        let why = match has_rate {
            false => "the policy has no limit with a rate",
            true => "each of its limits has a key of its own, and other clients would wait for it",
        };
        reader.at(at).wrong(format!(
            "the penalty of policy '{policy}' is never charged, because {why}; leave it out"
        ));
    }
    for limit in limits {
        // Other numbers that messages say are not known here.
        if let Some((quota, words)) = limit.default_rate()
            && let Some(what) = never_charged(penalty, quota, &words, policy)
        {
            reader.at(at).wrong(&what);
        }
        let Some(rate) = limit.rate_mut() else { continue };
        // Penalties are charged in whole cells, so the longest delay counts as whole cells, too:
        // then there is space for the penalty below the ceiling, however much a client owes that
        // is denied.
        let interval = rate.emission_interval().0;
        let delay = Nanos(rate.max_delay().0.next_multiple_of(interval));
        let drain = rate.drain_time().saturating_add(delay);
        let most_owed = drain.saturating_add(Nanos(penalty.ceiling_ns));
        match rate.with_most_owed(most_owed) {
            Ok(quota) => *rate = quota,
            Err(error) => {
                reader.at(at).wrong(format!(
                    "with the penalty of policy '{policy}', {error}; lower the ceiling or the \
                     burst"
                ));
            }
        }
    }
}

/// Why a penalty is never charged to a limit, if that is so. A client that is blocked owes more
/// than all but one of the burst's cells, so the cells of the penalty fit below the ceiling only
/// if they drain within it.
fn never_charged(penalty: Penalty, quota: Quota, words: &str, policy: &str) -> Option<String> {
    let interval_ns = quota.emission_interval().0;
    let takes_ns = interval_ns.saturating_mul(penalty.cells.into());
    if takes_ns <= penalty.ceiling_ns {
        return None;
    }
    // In milliseconds, because these are the numbers that people write.
    let takes = Exact(Duration::from_millis(takes_ns.div_ceil(1_000_000)));
    let (more, remedy) = match MAX_CEILING_NS / interval_ns {
        _ if takes_ns <= MAX_CEILING_NS => {
            ("more than the ceiling", format!("write a ceiling of at least \"{takes}\""))
        }
        0 => (
            "more than any ceiling",
            "leave the penalty out, because one cell takes longer than 30d".to_owned(),
        ),
        most => ("more than any ceiling", format!("write at most {most} cells")),
    };
    let cells = match penalty.cells {
        1 => "its 1 cell takes".to_owned(),
        cells => format!("its {cells} cells take"),
    };
    Some(format!(
        "the penalty of policy '{policy}' is never charged to the limit '{words}': {cells} \
         {takes} to pay off, {more}; {remedy}"
    ))
}

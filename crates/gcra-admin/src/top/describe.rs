//! How notes and numbers are written.

use std::time::Duration;

use gcra_text::columns::{Column, Style, Styled, length};
use gcra_text::count::Count;
use gcra_text::duration::Short;

use crate::status::{Counts, LatencyBound, TableStatus};
use crate::status_sum::Together;

/// Events since the start that should not have happened.
pub(super) fn oddities<'a>(
    together: &Together,
    tables: impl Iterator<Item = &'a TableStatus> + Clone,
) -> Vec<String> {
    let Counts { notifies, connections, config_reloads, .. } = &together.counts;
    let evictions = sum(tables.clone().map(|table| table.evictions));
    let gave_up = sum(tables.map(|table| table.gave_up));
    let undecided = sum(together.policies.iter().map(|policy| policy.decided("undecided")));
    let timeouts = connections.ended.get("timeout").copied().unwrap_or(0);
    let refused = config_reloads.get("refused").copied().unwrap_or(0);
    let store = together.counts.store.clone().unwrap_or_default();
    let without_store = together.policies.iter().flat_map(|policy| policy.without_store.values());
    let leaps = sum(store.clock_leaps.values().copied());
    let errors = sum(connections.protocol_errors.values().copied());
    [
        Count(evictions, "bucket evicted (table too small)", "buckets evicted (table too small)"),
        Count(notifies.handler_panics, "panic", "panics"),
        Count(notifies.shed, "NOTIFY without a decision", "NOTIFYs without a decision"),
        Count(notifies.overdue, "late reply overdue", "late replies overdue"),
        Count(together.counts.unmatched, "message without a policy", "messages without a policy"),
        Count(undecided, "message undecided", "messages undecided"),
        Count(errors, "protocol error", "protocol errors"),
        Count(timeouts, "connection timed out", "connections timed out"),
        Count(connections.accept_errors, "connection not accepted", "connections not accepted"),
        Count(gave_up, "request given up", "requests given up"),
        Count(refused, "configuration refused", "configurations refused"),
        Count(
            sum(without_store.copied()),
            "message decided without the store",
            "messages decided without the store",
        ),
        Count(
            store.timed_out,
            "request stopped waiting for the store",
            "requests stopped waiting for the store",
        ),
        Count(leaps, "leap of a store's clock", "leaps of a store's clock"),
        Count(
            store.leases.evicted,
            "lease evicted (file too small)",
            "leases evicted (file too small)",
        ),
    ]
    .iter()
    .filter(|count| count.0 > 0)
    .map(ToString::to_string)
    .collect()
}

/// Other processes may say anything, so no sum overflows.
pub(super) fn sum(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

pub(super) fn labelled(label: &str, said: &str, style: Style) -> Styled {
    Styled::new(format!("{label:<12} {said}"), style)
}

/// Words after a label, on as many lines as they take.
pub(super) fn wrapped(
    label: &str,
    words: &[String],
    separator: &str,
    width: usize,
    style: Style,
) -> Vec<Styled> {
    let mut lines: Vec<String> = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let word = if at + 1 < words.len() { format!("{word}{separator}") } else { word.clone() };
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(&word) <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            last => {
                let label = if last.is_none() { label } else { "" };
                lines.push(format!("{label:<12} {word}"));
            }
        }
    }
    lines.into_iter().map(|line| Styled::new(line, style)).collect()
}

/// The bound below which this many percent lie.
pub(super) fn quantile(buckets: &[LatencyBound], percent: u64) -> Option<String> {
    let total = sum(buckets.iter().map(|bucket| bucket.count));
    let mut below = 0_u64;
    let bucket = buckets.iter().find(|bucket| {
        below = below.saturating_add(bucket.count);
        total > 0 && u128::from(below) * 100 >= u128::from(total) * u128::from(percent)
    })?;
    Some(match bucket.at_most_seconds {
        Some(bound) if bound < 0.001 => format!("≤ {:.0} µs", bound * 1e6),
        Some(bound) => format!("≤ {:.0} ms", bound * 1e3),
        None => "> 1 s".to_owned(),
    })
}

pub(super) fn bar(share: f64) -> String {
    const WIDTH: u32 = 20;
    let filled =
        (1..=WIDTH).filter(|step| share * f64::from(WIDTH) + 0.5 >= f64::from(*step)).count();
    (0..WIDTH as usize).map(|place| if place < filled { '█' } else { '░' }).collect()
}

pub(super) fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => "-".to_owned(),
        Some(rate) if rate > 0.0 && rate < 0.1 => format!("{rate:.2}"),
        Some(rate) if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

pub(super) fn short(seconds: f64) -> Short {
    // The numbers are another process's, so they may be anything.
    Short(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

pub(super) fn text(heading: &str, cells: Vec<(String, Style)>, rank: u8) -> Column {
    Column { heading: heading.to_owned(), cells, is_number: false, is_flexible: false, rank }
}

pub(super) fn number(heading: &str, cells: Vec<(String, Style)>, rank: u8) -> Column {
    Column { heading: heading.to_owned(), cells, is_number: true, is_flexible: false, rank }
}

pub(super) fn plain(text: String) -> (String, Style) {
    (text, Style::Plain)
}

/// A rate in a colour if it is not 0. The colour is a help and says nothing by itself.
pub(super) fn styled(text: String, rate: Option<f64>, style: Style) -> (String, Style) {
    (text, if rate > Some(0.0) { style } else { Style::Plain })
}

//! The limits that are suggested, and what the log shows for them.

use std::cmp::Reverse;

use gcra_text::count::Count;
use serde::Serialize;

use super::collector::{Collector, FollowedClient};
use super::grid::{BURSTS, Grid, PerLimit, RATE_COUNT, f64_from};
use super::peaks::{self, Bin};
use super::target::Target;

const MOST_SUSPECTS: usize = 20;

/// All that was found; serialized, it is the `suggest` object of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Suggestions {
    pub key: String,
    pub clients: u64,
    pub requests: u64,
    /// Requests of clients beyond the most that are followed. They count nowhere else.
    pub(crate) not_followed: u64,
    /// A suggested limit touches fewer than this share.
    pub target: f64,
    /// "clients" or "requests".
    pub(crate) target_of: String,
    pub(crate) suggestions: Vec<Suggestion>,
    pub(crate) curve: Vec<Point>,
    /// By the busiest second of the clock.
    pub(crate) peaks: Vec<Bin>,
    /// By the busiest minute of the clock.
    pub(crate) peaks_minute: Vec<Bin>,
    pub(crate) suspects: Vec<Suspect>,
    pub(crate) cannot_tell: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Suggestion {
    /// "tight", "usual" or "generous".
    pub name: String,
    pub rate: String,
    pub(crate) rate_per_second: f64,
    pub burst: u32,
    pub(crate) clients_touched: u64,
    pub(crate) requests_blocked: u64,
    pub why: String,
}

/// A limit that was tried, and how much it would have blocked.
#[derive(Debug, Serialize)]
pub(crate) struct Point {
    pub rate: String,
    pub(crate) rate_per_second: f64,
    pub burst: u32,
    /// Blocked at least once.
    pub clients: u64,
    pub requests: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Suspect {
    pub client: String,
    pub requests: u64,
    /// The most requests in a second of the clock.
    pub(crate) peak: u32,
    /// The most requests in a minute of the clock.
    pub(crate) busiest_minute: u32,
    /// The names of the suggestions that would have blocked it at least once.
    pub(crate) touched_by: Vec<String>,
}

/// A limit of the grid, by its position.
type Place = (usize, usize);

pub(crate) fn find(mut collected: Collector) -> Suggestions {
    let blocked = *collected.blocked.requests();
    let touched = collected.touched();
    let collected = &collected;
    let Collector { grid, clients, .. } = collected;
    let chosen = choose(collected, &touched, &blocked);
    let (target, target_of) = match collected.target {
        Target::Clients(share) => (share, "clients"),
        Target::Requests(share) => (share, "requests"),
    };
    let suggested = |&(name, (rate, burst), ref why): &Chosen| Suggestion {
        name: name.into(),
        rate: grid.0[rate].rate.into(),
        rate_per_second: grid.0[rate].per_second,
        burst: grid.0[rate].bursts[burst],
        clients_touched: touched[rate][burst],
        requests_blocked: blocked[rate][burst],
        why: why.clone(),
    };
    Suggestions {
        key: collected.key.clone(),
        clients: clients.len() as u64,
        requests: collected.requests,
        not_followed: collected.not_followed,
        target,
        target_of: target_of.into(),
        suggestions: chosen.iter().map(suggested).collect(),
        curve: grid
            .limits()
            .map(|(rate, burst)| Point {
                rate: grid.0[rate].rate.into(),
                rate_per_second: grid.0[rate].per_second,
                burst: grid.0[rate].bursts[burst],
                clients: touched[rate][burst],
                requests: blocked[rate][burst],
            })
            .collect(),
        peaks: peaks::distribution(clients.iter().map(|client| client.second.most)),
        peaks_minute: peaks::distribution(clients.iter().map(|client| client.minute.most)),
        suspects: suspects(clients, &chosen),
        cannot_tell: cannot_tell(collected, &touched, chosen.is_empty()),
    }
}

type Chosen = (&'static str, Place, String);

/// The smallest limit that keeps the target, and two with space for more traffic.
///
/// A limit of twice the rate and twice the burst has this meaning: if each request had come
/// twice, it would have touched the same clients. (Each pair adds 2 * T/2 to the debt, and the
/// second of a pair finds T/2 more; the tolerance grows from (b-1) * T to (2b-1) * T/2, which is
/// T/2 more.)
fn choose(collected: &Collector, touched: &PerLimit<u64>, blocked: &PerLimit<u64>) -> Vec<Chosen> {
    if collected.clients.is_empty() {
        return Vec::new();
    }
    let grid = &collected.grid;
    let is_kept = |(rate, burst): &Place| match collected.target {
        Target::Clients(share) => {
            is_fewer(touched[*rate][*burst], share, collected.clients.len() as u64)
        }
        Target::Requests(share) => is_fewer(blocked[*rate][*burst], share, collected.requests),
    };
    let Some(tight) = smallest(grid, is_kept) else { return Vec::new() };
    let why = format!(
        "the smallest of those tried that keeps the target: at most {} in any ten seconds",
        Count(most_in_ten_seconds(grid, tight), "request", "requests")
    );
    let mut chosen = vec![("tight", tight, why)];
    for (name, times, words) in [("usual", 2, "twice"), ("generous", 5, "five times")] {
        let per_second = grid.0[tight.0].per_second * f64::from(times);
        let burst = grid.0[tight.0].bursts[tight.1].saturating_mul(times);
        if let Some(place) = grid.at_least(per_second, burst) {
            let why = format!("for {words} the traffic of this log, rounded up");
            chosen.push((name, place, why));
        }
    }
    chosen
}

/// The smallest limit that keeps a condition.
fn smallest(grid: &Grid, is_kept: impl Fn(&Place) -> bool) -> Option<Place> {
    grid.limits().filter(is_kept).min_by_key(|place| most_in_ten_seconds(grid, *place))
}

/// The most that a limit allows in any ten seconds. Of limits that differ in rate and burst, this
/// says which is smaller.
fn most_in_ten_seconds(grid: &Grid, (rate, burst): Place) -> u64 {
    let row = &grid.0[rate];
    u64::from(row.bursts[burst]) + 10_000_000 / u64::from(row.interval.unsigned_abs())
}

/// None at all is few enough for any target.
fn is_fewer(part: u64, share: f64, whole: u64) -> bool {
    part == 0 || f64_from(part) < share * f64_from(whole)
}

/// First those that the tightest suggestion touches, then the busiest.
fn suspects(clients: &[FollowedClient], chosen: &[Chosen]) -> Vec<Suspect> {
    let is_touched = |client: &FollowedClient, (rate, burst): Place| {
        usize::from(client.debts.touched[rate]) > burst
    };
    let touched_by = |client: &FollowedClient| -> Vec<String> {
        let touching = chosen.iter().filter(|(_, place, _)| is_touched(client, *place));
        touching.map(|(name, ..)| (*name).into()).collect()
    };
    let rank = |client: &FollowedClient| {
        let tight = chosen.first().is_some_and(|(_, place, _)| is_touched(client, *place));
        (!tight, Reverse((client.minute.most, client.requests)))
    };
    let order = |a: &&FollowedClient, b: &&FollowedClient| {
        rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name))
    };
    let mut known: Vec<_> = clients.iter().filter(|client| client.name.is_some()).collect();
    if known.len() > MOST_SUSPECTS {
        known.select_nth_unstable_by(MOST_SUSPECTS, order);
        known.truncate(MOST_SUSPECTS);
    }
    known.sort_by(order);
    known
        .into_iter()
        .map(|client| Suspect {
            client: client.name.as_deref().unwrap_or_default().to_owned(),
            requests: client.requests,
            peak: client.second.most,
            busiest_minute: client.minute.most,
            touched_by: touched_by(client),
        })
        .collect()
}

/// Sentences about conclusions that do not follow from this log.
fn cannot_tell(
    collected: &Collector,
    touched: &PerLimit<u64>,
    is_none_found: bool,
) -> Vec<String> {
    let clients = collected.clients.len() as u64;
    if clients == 0 {
        return vec![format!("No request of the log has the key {}.", collected.key)];
    }
    let mut sentences = Vec::new();
    if is_none_found {
        sentences.push(
            "No limit that was tried keeps the target: the highest is 10000/s with a burst of \
             100000."
                .into(),
        );
    }
    if let Target::Clients(share) = collected.target
        && share * f64_from(clients) <= 1.0
    {
        sentences.push(format!(
            "With {}, fewer than {} % of them is none, so that the tight limit follows from the \
             busiest client alone, even if that is one that ought to be blocked.",
            Count(clients, "client", "clients"),
            share * 100.0
        ));
        sentences.extend(if_few_may_be_touched(&collected.grid, touched));
    }
    let (first, last) = collected.period.unwrap_or_default();
    let hour = |at: i64| at.div_euclid(3_600_000_000);
    // Hours of the clock, also those of which it has a part.
    if hour(last) - hour(first) + 1 < 24 {
        let length = match f64_from(last.abs_diff(first)) / 1e6 {
            seconds if seconds < 1.0 => "less than a second".into(),
            seconds if seconds < 120.0 => format!("{seconds:.0} seconds"),
            seconds if seconds < 7200.0 => format!("{:.0} minutes", seconds / 60.0),
            seconds => format!("{:.0} hours", seconds / 3600.0),
        };
        sentences.push(format!(
            "The log covers {length}. Other hours and days may be busier; a week shows more."
        ));
    }
    if !collected.has_fractions {
        sentences.push(
            "The times of the log are whole seconds. The requests of a second count as if they \
             came at once, so the bursts are larger than needed."
                .into(),
        );
    }
    if collected.not_followed > 0 {
        sentences.push(format!(
            "Only the first {} clients are followed. What came from others counts nowhere: {}.",
            collected.most_clients,
            Count(collected.not_followed, "request", "requests")
        ));
    }
    sentences
}

/// The smallest limits for those who would rather touch the one client that is out of line.
fn if_few_may_be_touched(grid: &Grid, touched: &PerLimit<u64>) -> Option<String> {
    let limit = |most: u64| -> Option<(u64, Place)> {
        let place = smallest(grid, |(rate, burst)| touched[*rate][*burst] <= most)?;
        Some((touched[place.0][place.1], place))
    };
    let mut limits: Vec<_> = (1..=3).filter_map(limit).filter(|(count, _)| *count > 0).collect();
    limits.dedup();
    let words: Vec<_> = limits
        .iter()
        .map(|(count, (rate, burst))| {
            let row = &grid.0[*rate];
            let clients = Count(*count, "client", "clients");
            format!("{} burst {} touches {clients}", row.rate, row.bursts[*burst])
        })
        .collect();
    (!words.is_empty()).then(|| format!("If a few may be touched: {}.", words.join("; ")))
}

const _: () = assert!(RATE_COUNT * BURSTS * size_of::<u32>() < 700);

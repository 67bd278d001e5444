//! Suggestions against a naive model: for each limit and client a bucket of its own.

use std::collections::HashMap;

use gcra_table::{Admission, Quota, Rate, Time};
use proptest::prelude::*;

use super::collector::{Collector, FollowedClient};
use super::grid::{self, BURSTS, RATE_COUNT};
use super::suggestions::{Suggestions, find};
use super::target::Target;
use crate::page::Page;

const TARGET: Target = Target::Clients(0.001);

/// Clients touched and requests blocked under one quota, by the table's own arithmetic.
fn naive(requests: &[(u64, i64)], quota: Quota) -> (u64, u64) {
    let mut tats: HashMap<u64, (Time, u64)> = HashMap::new();
    for (client, at) in requests {
        let now = Time(u64::try_from(*at).unwrap() * 1000);
        let (tat, blocked) = tats.entry(*client).or_insert((Time::ZERO, 0));
        match quota.admit(*tat, now, 1) {
            Admission::Conforming { tat: charged } => *tat = charged,
            Admission::Early { .. } | Admission::Oversize => *blocked += 1,
        }
    }
    let blocked = tats.values().map(|(_, blocked)| *blocked);
    (blocked.clone().filter(|blocked| *blocked > 0).count() as u64, blocked.sum())
}

fn naive_peak(requests: &[(u64, i64)], client: u64, period_s: i64) -> u32 {
    let mut counts: HashMap<i64, u32> = HashMap::new();
    for (_, at) in requests.iter().filter(|(of, _)| *of == client) {
        *counts.entry(at / 1_000_000 / period_s).or_default() += 1;
    }
    counts.into_values().max().unwrap()
}

fn collect(requests: &[(u64, i64)], target: f64) -> Collector {
    let mut collector = Collector::new("ip", Target::Clients(target));
    for (client, at) in requests {
        collector.add(*client, *at, |name| name.push_str(&client.to_string()));
    }
    collector
}

/// Their hashes differ from run to run.
#[test]
fn clients_that_are_alike_are_listed_by_their_names() {
    let listed = |hash: fn(u64) -> u64| {
        let mut collector = Collector::new("ip", TARGET);
        for at in 0..20 {
            for client in 0..30 {
                collector.add(hash(client), at, |name| name.push_str(&format!("{client:02}")));
            }
        }
        let suspects = find(collector).suspects.into_iter();
        suspects.map(|suspect| suspect.client).collect::<Vec<_>>()
    };
    let names: Vec<_> = (0..20).map(|client| format!("{client:02}")).collect();
    assert_eq!(listed(|client| client), names);
    assert_eq!(listed(|client| !client), names);
}

/// Adds what was collected about other clients.
fn absorb(all: &mut Collector, mut other: Collector) {
    all.blocked.settle();
    other.blocked.settle();
    let sums = all.blocked.sums.as_flattened_mut().iter_mut();
    sums.zip(other.blocked.sums.as_flattened()).for_each(|(sum, more)| *sum += more);
    all.requests += other.requests;
    all.not_followed += other.not_followed;
    all.clients.extend(other.clients);
    all.has_fractions |= other.has_fractions;
    all.period = match (all.period, other.period) {
        (Some((first, last)), Some((other_first, other_last))) => {
            Some((first.min(other_first), last.max(other_last)))
        }
        (one, another) => one.or(another),
    };
}

fn agrees_with_naive(requests: &[(u64, i64)]) {
    let found = find(collect(requests, 0.001));
    for point in &found.curve {
        let rate: Rate = point.rate.parse().unwrap();
        let quota = rate.quota(Some(point.burst.into())).unwrap();
        let expected = naive(requests, quota);
        assert_eq!((point.clients, point.requests), expected, "{} {}", point.rate, point.burst);
    }
    for suspect in &found.suspects {
        let client = suspect.client.parse().unwrap();
        assert_eq!(suspect.peak, naive_peak(requests, client, 1));
        assert_eq!(suspect.busiest_minute, naive_peak(requests, client, 60));
    }
}

/// Gaps of all lengths that matter to the grid, in microseconds, also repeated ones.
fn gaps() -> impl Strategy<Value = Vec<i64>> {
    let gap = prop_oneof![
        3 => Just(0_i64),
        3 => 0_i64..200,
        3 => 0_i64..20_000,
        3 => 0_i64..2_000_000,
        2 => 0_i64..100_000_000,
        1 => 0_i64..10_000_000_000,
        2 => prop::sample::select(vec![100_i64, 1000, 10_000, 100_000, 500_000, 1_000_000]),
    ];
    prop::collection::vec((gap, 1_usize..60), 1..25).prop_map(|runs| {
        runs.into_iter().flat_map(|(gap, times)| std::iter::repeat_n(gap, times)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn one_client_is_counted_exactly(gaps in gaps()) {
        let mut at = 1_763_700_000_000_000;
        let requests: Vec<_> = gaps.into_iter().map(|gap| { at += gap; (7, at) }).collect();
        agrees_with_naive(&requests);
    }

    #[test]
    fn several_clients_are_counted_exactly(
        requests in prop::collection::vec((0_u64..5, 0_i64..400_000), 1..800),
    ) {
        let mut at = 1_763_700_000_000_000;
        let requests: Vec<_> =
            requests.into_iter().map(|(client, gap)| { at += gap; (client, at) }).collect();
        agrees_with_naive(&requests);
    }

    #[test]
    fn shards_add_up(requests in prop::collection::vec((0_u64..6, 0_i64..300_000), 1..500)) {
        let mut at = 1_763_700_000_000_000;
        let requests: Vec<_> =
            requests.into_iter().map(|(client, gap)| { at += gap; (client, at) }).collect();
        let (even, odd): (Vec<_>, Vec<_>) =
            requests.iter().copied().partition(|(client, _)| client % 2 == 0);
        let mut shards = collect(&even, 0.1);
        absorb(&mut shards, collect(&odd, 0.1));
        let json = |collected: Collector| serde_json::to_value(find(collected)).unwrap();
        prop_assert_eq!(json(shards), json(collect(&requests, 0.1)));
    }

    /// A limit of k times the rate and the burst does to k copies what the limit does to one.
    #[test]
    fn a_limit_scales_with_the_traffic(gaps in gaps(), times in 2_usize..6) {
        let (rate, burst) = (Rate::quota, 7);
        let quota = |per_second: u64, burst: u64| {
            rate(&format!("{per_second}/s").parse().unwrap(), Some(burst)).unwrap()
        };
        let mut at = 1_763_700_000_000_000;
        let requests: Vec<_> = gaps.into_iter().map(|gap| { at += gap; (7, at) }).collect();
        let copies: Vec<_> =
            requests.iter().flat_map(|request| std::iter::repeat_n(*request, times)).collect();
        // Only for rates whose interval is exact, so that rounding has no part in it.
        let times = times as u64;
        prop_assume!(1_000_000_000 % (10 * times) == 0);
        let (one, _) = naive(&requests, quota(10, burst));
        let (many, _) = naive(&copies, quota(10 * times, burst * times));
        prop_assert_eq!(one, many);
    }
}

/// Visitors with a few requests each, a machine once a second, an office by day, and a scanner.
fn traffic() -> Collector {
    let mut collector = Collector::new("ip", TARGET);
    let mut random = fastrand::Rng::with_seed(16);
    let start: i64 = 1_763_683_200_000_000; // midnight
    let mut requests: Vec<(i64, u64)> = Vec::new();
    for visitor in 100..6000 {
        let begin = start + random.i64(0..86_400_000_000 * 2);
        for page in 0..random.i64(1..6) {
            for part in 0..random.i64(1..12) {
                let at = begin + page * 20_000_000 + part * random.i64(1_000..80_000);
                requests.push((at, visitor));
            }
        }
    }
    for tick in 0..86_400 * 2 {
        let at = start + tick * 1_000_000 + random.i64(0..30_000);
        requests.push((at, 1));
    }
    for day in 0..2 {
        for _ in 0..40_000 {
            let at = start + day * 86_400_000_000 + random.i64(28_800_000_000..64_800_000_000);
            requests.push((at, 2));
        }
    }
    for part in 0..3000 {
        requests.push((start + 50_000_000_000 + part * 3_000, 3));
    }
    requests.sort_unstable();
    for (at, client) in requests {
        collector.add(client, at, |name| name.push_str(&format!("ip=192.0.2.{client}")));
    }
    collector
}

/// The scanner has few requests, and more in one minute than any other.
#[test]
fn the_busiest_clients_are_listed() {
    let found = find(traffic());
    let place =
        |client: &str| found.suspects.iter().position(|suspect| suspect.client == client).unwrap();
    let [machine, office, scanner] = ["ip=192.0.2.1", "ip=192.0.2.2", "ip=192.0.2.3"].map(place);
    assert_eq!(scanner, 0, "it has the busiest minute");
    let suspect = &found.suspects[scanner];
    assert_eq!((suspect.requests, suspect.busiest_minute), (3000, 3000));
    assert_eq!(suspect.touched_by, ["tight", "usual", "generous"]);
    assert_eq!(found.suspects[machine].requests, 86_400 * 2);
    assert!(!found.suspects[office].touched_by.is_empty(), "more than once a second");
    assert_eq!(found.suspects.len(), 20);
    assert_eq!(found.cannot_tell, Vec::<String>::new());
}

#[test]
fn the_tight_limit_is_the_smallest_that_keeps_the_target() {
    let found = find(traffic());
    let names: Vec<_> = found.suggestions.iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(names, ["tight", "usual", "generous"]);
    let [tight, usual, generous] = &found.suggestions[..] else { unreachable!() };
    let most = 0.001 * grid::f64_from(found.clients);
    let touches = |clients: u64| grid::f64_from(clients);
    assert!(touches(tight.clients_touched) < most);
    let in_ten_seconds = |rate: f64, burst: u32| rate * 10.0 + f64::from(burst);
    let size = in_ten_seconds(tight.rate_per_second, tight.burst);
    for point in &found.curve {
        if in_ten_seconds(point.rate_per_second, point.burst) < size.floor() {
            assert!(touches(point.clients) >= most, "{point:?}");
        }
    }
    assert!(usual.rate_per_second >= 2.0 * tight.rate_per_second);
    assert!(usual.burst >= 2 * tight.burst);
    assert!(generous.rate_per_second >= 5.0 * tight.rate_per_second);
    assert!(generous.clients_touched <= usual.clients_touched);
    assert!(usual.clients_touched <= tight.clients_touched);
}

#[test]
fn a_share_of_requests_can_be_the_target() {
    let mut collector = traffic();
    collector.target = Target::Requests(0.001);
    let by_requests = find(collector);
    assert_eq!(by_requests.target_of, "requests");
    let tight = &by_requests.suggestions[0];
    let most = 0.001 * grid::f64_from(by_requests.requests);
    assert!(grid::f64_from(tight.requests_blocked) < most);
}

#[test]
fn what_cannot_be_told_is_said() {
    let nothing = find(Collector::new("ip", TARGET));
    assert!(nothing.suggestions.is_empty() && nothing.peaks.is_empty());
    assert_eq!(nothing.cannot_tell, ["No request of the log has the key ip."]);

    let one = find(collect(&[(1, 1_763_700_000_000_000)], 0.001));
    assert_eq!((one.suggestions[0].rate.as_str(), one.suggestions[0].burst), ("1/m", 1));
    let said = one.cannot_tell.join("\n");
    for words in ["With 1 client", "covers less than a second", "whole seconds"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// Ten quiet clients and a machine: the target is to touch no client. The price of keeping the
/// machine out is named as well.
#[test]
fn a_smaller_limit_that_touches_one_client_is_named() {
    let mut requests: Vec<(u64, i64)> = Vec::new();
    for at in 0..1000_i64 {
        requests.push((99, 1_763_700_000_000_000 + at * 50_000));
        if at % 100 == 0 {
            requests.extend((0..10).map(|client| (client, 1_763_700_000_000_000 + at * 50_000)));
        }
    }
    let found = find(collect(&requests, 0.001));
    let [tight, ..] = &found.suggestions[..] else { unreachable!() };
    assert_eq!((tight.rate.as_str(), tight.burst, tight.clients_touched), ("20/s", 2, 0));
    let said = found.cannot_tell.join("\n");
    assert!(said.contains("If a few may be touched: 20/m burst 1 touches 1 client."), "{said}");
}

#[test]
fn clients_beyond_the_most_are_counted() {
    let mut collector = Collector::new("ip", TARGET);
    collector.most_clients = 2;
    for client in [1, 2, 3, 4, 1, 3] {
        collector.add(client, 0, |_| ());
    }
    let found = find(collector);
    assert_eq!((found.clients, found.requests, found.not_followed), (2, 3, 3));
    assert!(found.cannot_tell.join("").contains("counts nowhere: 3 requests"));
}

#[test]
fn a_client_takes_at_most_a_kilobyte() {
    let rows = RATE_COUNT.next_multiple_of(4) * BURSTS * size_of::<u32>();
    let name = "ip=2001:db8:ffff:ffff:ffff:ffff:ffff:ffff".len();
    let all = size_of::<FollowedClient>() + rows + name;
    assert!(all <= 1100, "{all}");
}

fn in_words(found: &Suggestions, width: usize) -> String {
    let mut page = Page::new(Some(width));
    found.write(&mut page);
    page.text
}

#[test]
fn words_fit_the_width() {
    let found = find(traffic());
    for width in [60, 80, 100] {
        let words = in_words(&found, width);
        for line in words.lines().filter(|line| !line.contains("ip=") && !line.contains("burst")) {
            assert!(line.chars().count() <= width, "{line}");
        }
    }
    let none = find(Collector::new("ip", TARGET));
    assert!(in_words(&none, 80).contains("No request"));
}

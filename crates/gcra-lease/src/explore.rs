//! Every interleaving of small models. Asks and replies are lost, late without end, doubled and
//! overtaken, and some replies are void. Time-outs come at any moment. Hosts lose their memory or
//! forget a key, the store loses its memory, and its clock leaps. The models also run with
//! holdings that are put into words after each step ([`Packed`](crate::Packed)).
//!
//! The worlds are made of the real machines: [`Record`](crate::Record),
//! [`Holding`](crate::Holding) and [`next_step`](crate::next_step). Each rule of the protocol is taken
//! away once, and the shortest way to a violation is printed.
//!
//! `cargo test` looks at small models; `make lease-explore` at those that take minutes.

mod changes;
mod fingerprint;
mod packed;
mod search;
mod world;

use crate::rule::{Rule, take_away};
use search::search;
use world::Model;

const ALL: u32 = u32::MAX;
/// One host, one cell. It drains in twice the time for which a lease is valid.
const ONE_CELL: Model =
    Model { hosts: 1, burst: 1, interval: 4, wants: &[(1, 1)], validities: &[2], ..Model::PLAIN };
/// Two hosts, one cell.
const SHARED_CELL: Model = Model { hosts: 2, interval: 3, ..ONE_CELL };
/// Two limits with a cell each, under which all requests are.
const TWO_LIMITS: Model = Model { limits: 2, interval: 2, ..SHARED_CELL };
/// A key that gets two penalties of two cells each, and may owe four.
const PUNISHED: Model = Model { penalties: 2, penalty: 2, ceiling: 4, ..ONE_CELL };

/// Small enough for each run of the tests.
const SMALL: &[(&str, Model)] = &[
    ("2 hosts, burst 1", Model { gives_back: &[ALL], ..SHARED_CELL }),
    ("1 host, burst 2, 3 asks", Model { hosts: 1, asks: 3, ..Model::PLAIN }),
    ("1 host, burst 1, leases of 1 and 3 µs", Model { validities: &[1, 3], asks: 3, ..ONE_CELL }),
    (
        "1 host, burst 3, requests of 1 and 2 cells",
        Model { hosts: 1, burst: 3, costs: &[1, 2], wants: &[(1, 1), (2, 2)], ..Model::PLAIN },
    ),
    ("2 hosts, 2 limits, 1 ask for each", Model { asks: 1, ..TWO_LIMITS }),
    ("3 hosts, burst 1, 1 ask each", Model { hosts: 3, asks: 1, ..SHARED_CELL }),
    ("a host loses its memory", Model { crashes: 1, asks: 3, ..ONE_CELL }),
    ("a host forgets the key", Model { evictions: 1, asks: 3, ..ONE_CELL }),
    ("void replies", Model { voids: 1, asks: 3, ..ONE_CELL }),
    ("the store loses its memory", Model { losses: 1, asks: 3, ..ONE_CELL }),
    ("and knows it", Model { losses: 1, strict: true, asks: 3, ..ONE_CELL }),
    ("its clock leaps forward", Model { leaps: 1, leap: 3, asks: 3, ..ONE_CELL }),
    ("its clock leaps back", Model { leaps: 1, leap: -3, asks: 3, ..ONE_CELL }),
    ("2 penalties beyond the burst", Model { asks: 3, ..PUNISHED }),
    ("2 penalties, and its clock leaps back", Model { leaps: 1, leap: -3, ..PUNISHED }),
];

/// The models that take minutes: `make lease-explore`. Those that are not complete before
/// 7 million worlds, or before GCRA_LEASE_STATES, say so.
const LARGE: &[(&str, Model)] = &[
    ("2 hosts, burst 2", Model::PLAIN),
    ("2 hosts, burst 2, a part is given back", Model { gives_back: &[1, ALL], ..Model::PLAIN }),
    ("2 hosts, burst 3, T 4", Model { burst: 3, interval: 4, wants: &[(3, 1)], ..Model::PLAIN }),
    ("2 hosts, burst 1, 3 asks each", Model { asks: 3, ..SHARED_CELL }),
    ("2 hosts, burst 1, leases of 1 and 3 µs", Model { validities: &[1, 3], ..SHARED_CELL }),
    ("2 hosts, burst 2, leases of 1 and 3 µs", Model { validities: &[1, 3], ..Model::PLAIN }),
    (
        "2 hosts, burst 2, requests of 1 and 2 cells",
        Model { costs: &[1, 2], wants: &[(2, 2)], ..Model::PLAIN },
    ),
    (
        "2 hosts, burst 3, requests of 1 and 2 cells",
        Model { burst: 3, costs: &[1, 2], wants: &[(1, 1), (2, 2)], ..Model::PLAIN },
    ),
    ("2 hosts, burst 2, a host forgets the key", Model { evictions: 1, ..Model::PLAIN }),
    ("2 hosts, burst 2, a host loses its memory", Model { crashes: 1, ..Model::PLAIN }),
    ("2 hosts, burst 1, memory is lost twice", Model { crashes: 2, ..SHARED_CELL }),
    ("2 hosts, burst 1, 2 void replies", Model { voids: 2, ..SHARED_CELL }),
    ("2 hosts, burst 2, a void reply", Model { voids: 1, ..Model::PLAIN }),
    ("2 hosts, burst 2, the store loses its memory", Model { losses: 1, ..Model::PLAIN }),
    ("2 hosts, burst 2, and knows it", Model { losses: 1, strict: true, ..Model::PLAIN }),
    (
        "2 hosts, burst 1, and knows it, and a host forgets the key",
        Model { losses: 1, strict: true, evictions: 1, ..SHARED_CELL },
    ),
    ("2 hosts, burst 2, clock 3 µs forward", Model { leaps: 1, leap: 3, ..Model::PLAIN }),
    ("2 hosts, burst 2, clock 3 µs back", Model { leaps: 1, leap: -3, ..Model::PLAIN }),
    (
        "2 hosts, burst 2, a penalty, clock 3 µs back",
        Model { penalties: 1, penalty: 3, ceiling: 4, leaps: 1, leap: -3, ..Model::PLAIN },
    ),
    ("2 hosts, 2 limits, 2 asks for each", TWO_LIMITS),
    (
        "3 hosts, burst 2, 1 ask each, and a crash",
        Model { hosts: 3, asks: 1, crashes: 1, ..Model::PLAIN },
    ),
    ("3 hosts, burst 1, 2 asks each", Model { hosts: 3, ..SHARED_CELL }),
];

fn explore(models: &[(&str, Model)], most: usize) -> usize {
    let mut states = 0;
    for (name, model) in models {
        let found = search(model, most);
        println!(
            "{name}: {} states, {} steps deep, {:.1} s{}",
            found.states,
            found.depth,
            found.took.as_secs_f64(),
            if found.complete { "" } else { ", NOT COMPLETE" }
        );
        if let Some(trace) = found.violation {
            panic!("{name}:\n  {}", trace.join("\n  "));
        }
        states += found.states;
    }
    println!("{states} states in {} models", models.len());
    states
}

#[test]
fn small_models_hold() {
    explore(SMALL, usize::MAX);
}

/// The same models, with holdings in words after each step, in which a tick takes `tick` µs: what
/// words cannot hold is lost.
fn in_words(models: &[(&'static str, Model)], tick: u64) -> Vec<(&'static str, Model)> {
    let words = Some(tick);
    models.iter().map(|(name, model)| (*name, Model { words, ..*model })).collect()
}

#[test]
fn small_models_hold_in_words() {
    // With ticks of 1 µs, words lose nothing: there are as many worlds as without them.
    let some = &SMALL[1..4];
    assert_eq!(explore(&in_words(some, 1), usize::MAX), explore(some, usize::MAX));
    explore(&in_words(&SMALL[1..], 2), usize::MAX);
}

#[test]
#[ignore = "takes minutes: make lease-explore"]
fn large_models_hold() {
    let most = std::env::var("GCRA_LEASE_STATES").map_or(7_000_000, |most| most.parse().unwrap());
    assert!(explore(LARGE, most) >= 10_000_000);
    explore(&in_words(&SMALL[..1], 2), most);
    explore(&in_words(LARGE, 2), most / 5);
}

/// For each rule a model in which it is needed.
#[test]
fn without_a_rule_too_many_are_allowed() {
    let short_and_long = Model { asks: 4, interval: 1, validities: &[1, 4], ..ONE_CELL };
    let cases = [
        (Rule::ChargeAtExpiry, ONE_CELL),
        (Rule::ChargeOnReport, ONE_CELL),
        (Rule::LentIsNotFree, ONE_CELL),
        (Rule::Numbers, ONE_CELL),
        (
            Rule::ExpiryNotSooner,
            Model { hosts: 1, asks: 3, wants: &[(1, 1)], validities: &[1, 4], ..Model::PLAIN },
        ),
        (Rule::FreshCountsAsSpent, Model { evictions: 1, ..ONE_CELL }),
        (Rule::Epoch, Model { losses: 1, strict: true, ..ONE_CELL }),
        (Rule::ValidFromSending, ONE_CELL),
        (Rule::OnlyHeldKeepLater, short_and_long),
        (
            Rule::UnknownAreDropped,
            Model { losses: 1, strict: true, asks: 4, interval: 1, ..ONE_CELL },
        ),
        (Rule::SpentStaysCounted, Model { asks: 3, ..ONE_CELL }),
        (Rule::LatestOnly, ONE_CELL),
        (Rule::TakenOnce, ONE_CELL),
        (Rule::GiveBackAtSending, Model { gives_back: &[ALL], ..SHARED_CELL }),
        (Rule::FreshUntilReply, Model { evictions: 1, ..ONE_CELL }),
        (Rule::AllOrNone, TWO_LIMITS),
        (Rule::AnotherHostAfterLoss, Model { crashes: 1, asks: 3, interval: 2, ..ONE_CELL }),
        (Rule::VoidCountsAsNone, Model { voids: 1, ..ONE_CELL }),
    ];
    let in_words = cases.map(|(rule, model)| (rule, Model { words: Some(1), ..model }));
    let mut missed = Vec::new();
    for (rule, model) in cases.into_iter().chain(in_words) {
        let _back = take_away(Some(rule));
        let found = search(&model, 3_000_000);
        match found.violation {
            Some(trace) => {
                let steps = trace.len() - 1;
                println!("without {rule:?}, {} states, {steps} steps:", found.states);
                println!("  {}", trace.join("\n  "));
            }
            None => missed.push((rule, found.states)),
        }
    }
    assert!(missed.is_empty(), "nothing was noticed without: {missed:?}");
}

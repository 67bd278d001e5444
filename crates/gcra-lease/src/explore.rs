//! Every interleaving of small models: asks and replies that are lost, late without end, doubled
//! and overtaken; time-outs at any moment; hosts that lose their memory or forget a key; replies
//! that are void; a store that loses its memory, and whose clock leaps.
//!
//! The worlds are made of the real machines: [`Record`](crate::Record),
//! [`Holding`](crate::Holding) and [`decide`](crate::decide).

mod fingerprint;
mod search;
mod world;

use crate::rule::{Rule, take_away};
use search::search;
use world::Model;

const ALL: u32 = u32::MAX;

/// Small enough for each run of the tests.
const SMALL: &[(&str, Model)] = &[
    ("2 hosts, burst 2", Model { evictions: 1, ..Model::PLAIN }),
    (
        "2 hosts, burst 1, memory lost",
        Model { burst: 1, wants: &[(1, 1)], crashes: 1, ..Model::PLAIN },
    ),
];

fn explore(models: &[(&str, Model)], most: usize) -> usize {
    let mut states = 0;
    for (name, model) in models {
        let found = search(model, most);
        println!(
            "{name}: {} states, {} steps deep, {} s{}",
            found.states,
            found.depth,
            found.took.as_secs(),
            if found.complete { "" } else { ", NOT COMPLETE" }
        );
        if let Some(trace) = found.violation {
            panic!("{name}:\n  {}", trace.join("\n  "));
        }
        states += found.states;
    }
    states
}

#[test]
fn small_models_hold() {
    explore(SMALL, usize::MAX);
}

#[test]
fn try_rules() {
    use Rule::*;
    let tries = [
    (OnlyHeldKeepLater, Model { hosts: 1, burst: 1, asks: 4, interval: 1, validities: &[1, 4], wants: &[(1,1)], ..Model::PLAIN }),
    (OnlyHeldKeepLater, Model { hosts: 1, burst: 2, asks: 4, interval: 2, validities: &[1, 4], wants: &[(1,1)], ..Model::PLAIN }),
    ];
    for (rule, model) in tries {
        let _back = take_away(Some(rule));
            let found = search(&model, 3_000_000);
            if let Some(v) = found.violation { 
        println!("== {rule:?}: {} states {} steps\n   {}", found.states, v.len() - 1, v.join("\n   ")); } else {println!("== {rule:?} none {} {}", found.states, found.complete) }
        }
}

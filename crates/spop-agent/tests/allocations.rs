//! Serving allocates nothing for a NOTIFY, whether it comes alone or with many others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod counting;
mod peer;

use counting::Counting;
use peer::{measure, notify};
use spop_agent::Agent;

#[test]
fn an_agent_that_has_warmed_up_allocates_nothing() {
    let counting =
        Counting::new(Agent::new(measure), |bytes| bytes.extend(notify(1, b"192.0.2.1")));
    counting.allocations(1000, 10);
    for (together, times) in [(1, 1000), (64, 100), (1000, 50)] {
        let allocations = counting.allocations(together, times);
        assert_eq!(allocations, 0, "while {times} times {together} NOTIFYs were answered");
    }
}

/// A frame that a read cuts in two is kept for the next read, and so are answers that the client
/// does not read.
#[test]
fn bursts_longer_than_a_read_cost_allocations_by_the_read_and_not_by_the_notify() {
    let counting =
        Counting::new(Agent::new(measure), |bytes| bytes.extend(notify(1, b"192.0.2.1")));
    counting.allocations(1000, 10);
    let allocations = counting.allocations(20_000, 10);
    assert!(allocations <= 200_000 / 500, "{allocations} allocations for 200 000 NOTIFYs");
}

//! Requests that are answered by their shapes get the answers that they would get otherwise.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    reason = "tests may panic, and describe themselves"
)]

mod both_ways;

use arbitrary::Unstructured;
use proptest::prelude::*;

proptest! {
    /// Random configurations and streams, cut anywhere, with reloads.
    #[test]
    fn both_ways_write_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        // A script that ends early is a shorter one.
        let _ = both_ways::compare(&mut Unstructured::new(&bytes));
    }
}

/// Otherwise the other test would compare one way with itself.
#[test]
fn most_usual_requests_are_answered_by_their_shape() {
    for configuration in both_ways::ANSWERED_BY_SHAPE {
        let [asked, of_all] = both_ways::compare_usual(configuration);
        assert!(of_all == 2000 && asked < 250, "{configuration}: {asked} of {of_all}");
    }
}

/// Eight shapes that nobody asks about again do not keep the usual one away.
#[test]
fn the_usual_shape_gets_a_place_that_an_odd_one_has() {
    let [asked, of_all] = both_ways::compare_usual_behind_odd(1000);
    assert!(of_all == 3008 && asked < 1108, "{asked} of {of_all}");
}

/// A few requests without a place cost the other shapes nothing.
#[test]
fn known_shapes_stay_while_few_requests_have_others() {
    let [asked, of_all] = both_ways::compare_usual_behind_odd(900);
    assert_eq!([asked, of_all], [2908, 2908]);
}

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
    let [asked, of_all] = both_ways::compare_usual();
    assert!(of_all == 2000 && asked < 100, "{asked} of {of_all}");
}

//! Requests that are answered by their shapes, and the same requests asked about one by one: the
//! ACKs are the same bytes, and the counts are the same.
#![no_main]

#[path = "../../crates/gcra-limiter/tests/both_ways/mod.rs"]
mod both_ways;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // An input that ends early is a shorter script.
    let _ = both_ways::compare(&mut Unstructured::new(input));
});

//! Requests that are answered by their shapes, and the same requests asked about one by one: the
//! ACKs are the same bytes, and the counts are the same.

use arbitrary::Unstructured;

use crate::both_ways;

/// One input.
pub fn run(input: &[u8]) {
    // An input that ends early is a shorter script.
    let _ = both_ways::compare(&mut Unstructured::new(input));
}

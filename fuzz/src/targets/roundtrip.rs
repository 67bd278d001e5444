//! Values that are written read back the same, and a buffer of any size is enough or refused.
#![no_main]

#[path = "../../crates/spop-codec/tests/roundtrip/mod.rs"]
mod roundtrip;

use arbitrary::Unstructured;
use gcra_spoa_fuzz::generate;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // An input that ends early gives zeros, and no error that matters.
    let _ = roundtrip::any(&mut Unstructured::new(input));
});

//! The fuzz targets with their seeds, with changed seeds, and with random bytes. `make fuzz` tries
//! many more inputs, and finds them by the branches that they take.
//!
//! The targets `roundtrip` and `shapes` are missing: tests of gcra-limiter and spop-codec run the
//! same functions.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::fs;
use std::path::Path;

use fuzz::targets;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The seeds of a target, and an empty input.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let files = fs::read_dir(folder).into_iter().flatten();
    let seeds = files.map(|file| fs::read(file.unwrap().path()).unwrap());
    [Vec::new()].into_iter().chain(seeds).collect()
}

/// Sets, inserts, removes or repeats bytes.
fn changed(mut bytes: Vec<u8>, changes: Vec<(Index, u8, u8)>) -> Vec<u8> {
    for (at, how, value) in changes {
        let at = at.index(bytes.len() + 1);
        match how % 4 {
            0 if at < bytes.len() => bytes[at] = value,
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => {
                let repeated: Vec<u8> = bytes[at..].iter().copied().take(value.into()).collect();
                bytes.splice(at..at, repeated);
            }
            _ => bytes.insert(at, value),
        }
    }
    bytes
}

fn inputs(target: &str) -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<Index>(), any::<u8>(), any::<u8>()), 1..8);
    let of_seeds = (select(seeds(target)), changes);
    prop_oneof![
        of_seeds.prop_map(|(seed, changes)| changed(seed, changes)),
        vec(any::<u8>(), 0..2048),
    ]
}

/// How many inputs each target has besides its seeds.
const INPUTS: u32 = 500;

/// A test for each target.
macro_rules! each {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                let name = stringify!($target);
                seeds(name).iter().for_each(|seed| targets::$target::run(seed));
                proptest!(ProptestConfig::with_cases(INPUTS), |(input in inputs(name))| {
                    targets::$target::run(&input);
                });
            }
        )*
    };
}

each! { admin agent config connection decode logs reference table }

//! The arguments of a bench. Cargo adds one of its own, `--bench`.
#![allow(dead_code, reason = "not every bench has a choice of rows")]
#![allow(clippy::expect_used, reason = "a bench may end with a message")]

/// Whether a flag was given.
pub(crate) fn flag(name: &str) -> bool {
    std::env::args().any(|arg| arg == name)
}

/// The values of a flag, in their order.
pub(crate) fn values(name: &str) -> Vec<String> {
    let args: Vec<_> = std::env::args().collect();
    args.windows(2).filter(|pair| pair[0] == name).map(|pair| pair[1].clone()).collect()
}

/// The number that is the value of a flag.
pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    values(name).first().map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Whether the bench is only tried out: in a few seconds it does a little of all that it does,
/// and its figures mean nothing. CI runs all benches so, `make bench-quick`.
pub(crate) fn quick() -> bool {
    flag("--quick")
}

/// A part of the names of the rows to measure; an empty part is in all names.
pub(crate) fn wanted() -> String {
    std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default()
}

//! The arguments of a bench. Cargo adds one of its own, `--bench`.
#![allow(dead_code, reason = "not every bench has a choice of rows")]

/// Whether a flag was given.
pub(crate) fn flag(name: &str) -> bool {
    std::env::args().any(|arg| arg == name)
}

/// Whether the bench is only tried out: in a few seconds it does a little of all that it does,
/// and its figures mean nothing. CI runs all benches so, `make bench-quick`.
pub(crate) fn quick() -> bool {
    flag("--quick")
}

/// A part of the names of what is to be measured; all names have the empty one in them.
pub(crate) fn wanted() -> String {
    std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default()
}

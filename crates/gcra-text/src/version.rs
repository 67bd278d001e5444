//! The version, as the program names it.

pub const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// The number, and the commit of a released program: `0.1.0 (1a20328c8f5e)`.
///
/// `deploy/release/static` sets it. A build script that asked git would run for each commit.
pub const WORDS: &str = match option_env!("GCRA_SPOA_VERSION") {
    Some(words) => words,
    None => NUMBER,
};

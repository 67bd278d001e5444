//! The limit of the daemon in a bench.

/// Its arguments: those in `AGENT_ARGS`, to compare, or the limit that all benches have.
pub(crate) fn args() -> String {
    std::env::var("AGENT_ARGS").unwrap_or_else(|_| "--rate 100/s --burst 20".to_owned())
}

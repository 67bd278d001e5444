//! Panics that a test with a real HAProxy asks for.

/// Panics if the variable `GCRA_LUA_PANICS` names this place: a message, or "beat". Words have a
/// space between them. Only debug builds read it.
#[inline]
#[allow(clippy::panic, reason = "a test asks for it, and a release has none of it")]
pub(crate) fn may_panic(place: &[u8]) {
    if cfg!(debug_assertions)
        && let Ok(places) = std::env::var("GCRA_LUA_PANICS")
        && places.split(' ').any(|other| other.as_bytes() == place)
    {
        panic!("a test has asked for it");
    }
}

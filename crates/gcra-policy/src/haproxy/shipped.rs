//! The shipped files for HAProxy, whose parts are printed, so that a rule is written once.

pub(crate) const CFG: &str = include_str!("../../../../haproxy/haproxy.cfg");
pub(crate) const CONF: &str = include_str!("../../../../haproxy/spoe-gcra.conf");
pub(crate) const SETTLING_CFG: &str = include_str!("../../../../haproxy/failed-logins.cfg");
pub(crate) const POLICIES_CFG: &str = include_str!("../../../../haproxy/policies.cfg");
pub(crate) const HEADERS_CFG: &str = include_str!("../../../../haproxy/headers.cfg");
pub(crate) const BANDWIDTH_CFG: &str = include_str!("../../../../haproxy/bandwidth.cfg");
pub(crate) const DELAY_CFG: &str = include_str!("../../../../haproxy/delay.cfg");
pub(crate) const ARGS_CFG: &str = include_str!("../../../../haproxy/printed/args.cfg");
pub(crate) const IN_PROCESS_CFG: &str =
    include_str!("../../../../haproxy/in-process/in-process.cfg");

/// The part of a shipped file from one text up to another one, or to the end if that is empty.
pub(crate) fn part(shipped: &'static str, from: &str, to: &str) -> &'static str {
    debug_assert!(shipped.contains(from) && shipped.contains(to), "no {from} or no {to}");
    let part = shipped.find(from).map_or("", |begin| &shipped[begin..]);
    let end = part.find(to).filter(|_| !to.is_empty());
    &part[..end.unwrap_or(part.len())]
}

/// The line that begins so, with its end.
pub(crate) fn line(shipped: &'static str, begin: &str) -> &'static str {
    part(shipped, begin, "").split_inclusive('\n').next().unwrap_or_default()
}

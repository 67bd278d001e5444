//! The message in which HAProxy says how many requests had no decision. No policy is for it.

/// How its name begins. HAProxy allows a message in one group only, so there may be several.
pub const REPORT: &str = "gcra-undecided";

/// The arg that names the host of HAProxy.
pub const HOST: &str = "host";

/// The arg that tells one HAProxy process of a host from those before it: when it was started.
pub const SINCE: &str = "since";

/// The arg, and the variable of the scope `proc`, that says up to when HAProxy has reported: the
/// agent sets the variable to the value of the arg. HAProxy reports until that is later than the
/// last request without a decision.
pub const TOLD: &str = "told";

/// The line for the section `global` of HAProxy, so that it has a value for [`SINCE`].
pub const SET_SINCE: &str = "set-var proc.gcra_since date(0,us)";

/// The values of HAProxy's variable `err` for which gcra-spoa can be the cause. For each, an arg
/// such as `err257` says how many requests had it.
pub const ERRS: [&str; 14] =
    ["1", "2", "3", "4", "255", "256", "257", "258", "259", "260", "266", "267", "269", "355"];

/// The arg that says how many messages of responses had no answer.
pub const UNSETTLED: &str = "unsettled";

/// Whether a message with this name is a report.
#[inline(always)]
pub fn is_report(message: &[u8]) -> bool {
    message.starts_with(REPORT.as_bytes())
}

/// The line of the message with the arg [`UNSETTLED`].
pub(crate) const UNSETTLED_ARG: &str = "    args unsettled=int(0),table_gpc0(unsettled)\n";

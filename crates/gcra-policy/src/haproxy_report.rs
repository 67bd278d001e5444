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

/// What HAProxy has to write in its section `global`, so that it has a value for [`SINCE`].
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

/// The rules that count requests without a decision, and messages of responses without an answer
/// where these settle.
pub(crate) fn rules(settles: bool) -> String {
    let undecided =
        "    # Counts requests that had no decision; above all rules that end a request.
    http-request track-sc2 var(txn.gcra.err) table undecided
    http-request set-var(proc.gcra_undecided) date(0,us) if { var(txn.gcra.err) -m found }
";
    let both = "if { var(txn.gcra.blocked) -m found } { var(txn.gcra.err) -m found }";
    let unsettled = format!(
        "    http-response track-sc1 int(0) table unsettled {both}
    http-response sc-inc-gpc0(1) {both}
    http-response set-var(proc.gcra_undecided) date(0,us) {both}
"
    );
    format!("{undecided}{}", if settles { &unsettled } else { "" })
}

/// The tables in which they count, and the line of the section `global`.
pub(crate) fn tables(settles: bool) -> String {
    let unsettled = match settles {
        true => "backend unsettled\n    stick-table type integer size 64 store gpc0\n",
        false => "",
    };
    format!(
        "
# ---- haproxy.cfg: how many requests had no decision
global
    {SET_SINCE}
backend undecided
    stick-table type integer size 64 store http_req_cnt
{unsettled}"
    )
}

/// When it is sent: after a request without a decision, until an agent has answered.
const EVENT: &str = "    event on-frontend-http-request if { var(proc.gcra_undecided) -m found } \
                     !{ var(proc.gcra.told),sub(proc.gcra_undecided) ge 0 }\n";

/// The section of the report.
pub(crate) fn section(settles: bool) -> String {
    let mut lines = format!(
        "spoe-message {REPORT}
    args {HOST}=hostname {SINCE}=var(proc.gcra_since) {TOLD}=date(-1,us)
"
    );
    let count = |err: &&str| format!(" err{err}=int({err}),table_http_req_cnt(undecided)");
    for two in ERRS.chunks(2) {
        let args: String = two.iter().map(count).collect();
        lines.push_str(&format!("    args{args}\n"));
    }
    if settles {
        lines.push_str(&format!("    args {UNSETTLED}=int(0),table_gpc0(unsettled)\n"));
    }
    lines + EVENT
}

//! The grammar of `max_delay`: how long a request over the limit may be held back instead of being
//! blocked.

use std::time::Duration;

use gcra_table::Nanos;
use gcra_text::duration;

use crate::file::reader::{Node, Reader, meant_time};
use crate::file::settings::LONGEST_DELAY;
use crate::limit::Limit;

/// `"2s"`.
pub(crate) fn max_delay<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<Nanos> {
    const LIKE: &str = "such as \"2s\"";
    let text = reader.string(value, "max_delay", LIKE)?;
    let delay = duration::parse(&text);
    let is_whole = |delay: &Duration| delay.subsec_nanos().is_multiple_of(1_000_000);
    let what = match delay {
        Some(Duration::ZERO) => format!(
            "with max_delay = \"{text}\" no request is delayed; leave it out, or write a time, \
             {LIKE}"
        ),
        Some(delay) if delay > LONGEST_DELAY => {
            format!("'{text}' is longer than HAProxy can hold a request; write up to 24d, {LIKE}")
        }
        Some(delay) if !is_whole(&delay) => format!(
            "'{text}' is not a whole number of milliseconds, in which HAProxy counts; write one, \
             such as \"1ms\" or \"2s\""
        ),
        Some(delay) => return u64::try_from(delay.as_nanos()).ok().map(Nanos),
        None => format!(
            "'{text}' is not a valid time; write a whole number and a unit (ms, s, m, h or d), up \
             to 24d, {LIKE}"
        ),
    };
    let meant = meant_time(&text, &(Duration::from_millis(1)..=LONGEST_DELAY));
    reader.on(value).right(meant.filter(|_| delay.is_none())).refuse(&what)
}

/// Puts the longest delay into the quotas of a policy's rule, of its overrides and of its trial.
/// Notes a mistake where no request could ever be delayed.
pub(crate) fn apply<'l>(
    reader: &mut Reader<'_>,
    at: usize,
    policy: &str,
    max_delay: Nanos,
    rule_is_known: bool,
    limits: impl Iterator<Item = (&'l mut Limit, &'static str)>,
) {
    // No request waits for the end of a window.
    let mut limits = limits.filter(|(limit, _)| limit.rate().is_some()).peekable();
    if rule_is_known && limits.peek().is_none() {
        reader.at(at).wrong(format!(
            "max_delay of policy '{policy}' has no effect, because the policy has no limit with a \
             rate; leave it out"
        ));
    }
    for (limit, of) in limits {
        let Some(rate) = limit.rate_mut() else { continue };
        match rate.with_max_delay(max_delay) {
            Ok(quota) => *rate = quota,
            Err(error) => {
                reader.at(at).wrong(format!(
                    "max_delay of policy '{policy}' is too long for the limit '{}'{of}: {error}; \
                     lower max_delay or the burst",
                    limit.words.text
                ));
            }
        }
    }
}

//! How many bytes an answer may have, and whether they fit into a frame.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::iter::repeat_n;

use spop_codec::{AckWriter, Value};

use crate::answers::{Answers, LONGEST_CLIENT, LONGEST_NUMBERS, MAX_LISTED, MOST_RESERVED, Var};
use crate::policies::Policies;
use crate::policy::Policy;

/// The bytes that the longest ACKs about messages of a list of policies have in common.
pub(crate) struct AnswerSizes {
    /// The variables that every answer has, without what a policy's limits need.
    variables: usize,
    /// How many lists of limits have a member for each limit.
    fields: usize,
    lists: usize,
    /// The most policies that one NOTIFY may have messages for.
    together: usize,
}

impl AnswerSizes {
    pub(crate) fn new(answers: &Answers, list: &[impl Borrow<Policy>]) -> Self {
        // A list has both fields, and about as much for their names, `retry-after` and its end.
        const LIST: usize = "ratelimit-policyratelimitretry-after".len() + 32;
        let has = |wanted: Var| usize::from(answers.others.contains(&wanted));
        // No value takes more than the largest number, except strings: header fields, and the
        // names of a policy, a limit and a client.
        let largest = Value::Uint64(u64::MAX);
        let sizes = answers.others.iter().map(|var| AckWriter::set_var_size(var.name(), &largest));
        let variables =
            AckWriter::set_var_size(answers.blocked, &Value::Bool(true)) + sizes.sum::<usize>();
        let list: Vec<&Policy> = list.iter().map(Borrow::borrow).collect();
        let names = list.iter().map(|policy| policy.name.len()).max().unwrap_or(0);
        let limits = list.iter().flat_map(|policy| policy.limits());
        let labels = limits.map(|limit| limit.label.len()).max().unwrap_or(0);
        let names = names + has(Var::LimitName) * labels + has(Var::Client) * LONGEST_CLIENT;
        let messages: BTreeSet<_> = list.iter().map(|policy| &policy.message).collect();
        // The variable `reserved` has an entry for each policy that reserves cells.
        let reserving = || list.iter().filter(|policy| policy.reserves());
        let entry = reserving().map(|policy| policy.name.len() + LONGEST_NUMBERS).max();
        let reserving: BTreeSet<_> = reserving().map(|policy| &policy.message).collect();
        let reserved = entry.unwrap_or(0) * reserving.len().min(MOST_RESERVED);
        Self {
            variables: variables + names + reserved,
            fields: has(Var::RateLimit) + has(Var::RateLimitPolicy) + 2 * has(Var::Headers),
            lists: has(Var::Headers) * LIST,
            // One NOTIFY may have messages for two policies, or for all those that reserve cells
            // for one request.
            together: messages.len().min(reserving.len().clamp(2, MOST_RESERVED)),
        }
    }

    /// The LENGTH of the longest ACK about a message of this policy, perhaps together with those
    /// of other policies in the list whose limits have names as long.
    pub(crate) fn longest(&self, policy: &Policy) -> usize {
        // `"";r=4294967295;t=4294967295, `
        const MEMBER: usize = 30;
        let members = policy.rules().map(|rule| {
            let mut each: Vec<_> =
                rule.limits().iter().map(|limit| limit.label.len() + MEMBER).collect();
            each.sort_unstable_by(|one, other| other.cmp(one));
            each.into_iter()
                .flat_map(|bytes| repeat_n(bytes, self.together))
                .take(MAX_LISTED)
                .sum::<usize>()
        });
        let members = members.max().unwrap_or(0);
        AckWriter::max_length(self.variables + self.lists + self.fields * members)
    }
}

impl Policies {
    /// The mistake, as a sentence, if an answer may be longer than fits into a frame of this size.
    pub fn about_frames(&self, max_frame_size: u32) -> Option<String> {
        let sizes = AnswerSizes::new(&self.answers, &self.list);
        let bytes = self.list.iter().map(|policy| sizes.longest(policy)).max()?;
        // HAProxy takes an ACK that is shorter than a frame.
        let needed = bytes + 1;
        (needed > max_frame_size as usize).then(|| {
            format!(
                "with --max-frame-size {max_frame_size} some answers may be too long, and then \
                 have only the variables that fit ('blocked' and 'delay_ms' always do); write \
                 --max-frame-size {needed} or more, or fewer variables in answer"
            )
        })
    }
}

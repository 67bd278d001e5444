//! Counts what came of messages, with the names of their clients.

use std::mem;

use arrayvec::ArrayVec;
use gcra_table::KeyHash;
use spop_agent::Message;

use crate::in_force::InForce;
use crate::policy::{Part, Policy};
use crate::question::{Question, Unanswerable};
use crate::redact::{NamedPart, write_name};
use crate::stats::Lane;
use crate::undecided::Undecided;
use crate::verdict::Verdict;

/// The parts of a key that are written when a client is named. The others still make the key.
const MAX_NAMED_PARTS: usize = 8;

/// Counts the verdict on a message.
#[inline(always)]
pub(crate) fn count<'m>(
    in_force: &InForce,
    lane: Lane,
    Question { policy, key, .. }: Question,
    verdict: Verdict,
    message: impl Fn() -> Option<Message<'m>>,
) {
    in_force.each[policy].stats.count(lane, verdict.outcome, key, |name| {
        write_client(name, &in_force.policies.list[policy], key, message());
    });
}

/// Counts a message that got no decision.
#[cold]
pub(crate) fn count_undecided(
    in_force: &InForce,
    undecided: &Undecided,
    lane: Lane,
    why: Unanswerable,
    message: &Message<'_>,
) {
    match why {
        Unanswerable::NoMessage => {}
        Unanswerable::Unmatched => undecided.count_unmatched(&in_force.policies, message),
        Unanswerable::Undecided(policy) => {
            in_force.each[policy].stats.count_undecided(lane);
            undecided.count_undecided(&in_force.policies.list[policy], message);
        }
    }
}

/// Writes the name of a message's client, for logs.
#[cold]
pub(crate) fn write_client<'m>(
    name: &mut String,
    policy: &Policy,
    key: KeyHash,
    message: Option<Message<'m>>,
) {
    /// The number of the fallback that the next part comes from, and the parts before it.
    type Parts<'m> = (u8, ArrayVec<NamedPart<'m>, MAX_NAMED_PARTS>);
    let mut parts = Parts::default();
    if let Some(message) = message {
        let part = |(fallback, parts): &mut Parts<'m>, part: Part<'m>| {
            let (fallback, prefix) = (mem::take(fallback), policy.key.prefix_of(part));
            let _ = parts.try_push(NamedPart { fallback, value: part.value, prefix });
        };
        let fallback = |parts: &mut Parts<'m>, number| parts.0 = number;
        let _ = policy.for_each_part(&message, &mut parts, part, fallback);
    }
    write_name(name, key, parts.1);
}

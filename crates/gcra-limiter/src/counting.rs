//! Counts the outcomes of messages, and samples the names of their clients.

// ADR 32: Counting takes no locked instruction, and names are sampled.

use std::net::IpAddr;

use gcra_policy::{Policy, RuleAt};
use gcra_table::KeyHash;
use spop_agent::{Message, Value};

use crate::active_policies::{ActivePolicies, ActivePolicy};
use crate::client_name::write_client;
use crate::heaviest::{Heaviest, Under};
use crate::question::{Question, Unanswerable};
use crate::stats::{Lane, LaneStats};
use crate::undecided::{PrintableName, Undecided};
use crate::verdict::{Outcome, Verdict};

/// Counts the verdict on a message of the policy in this row.
#[inline(always)]
pub(crate) fn count<'m>(
    in_force: &ActivePolicies,
    row: &ActivePolicy,
    stats: LaneStats<'_>,
    question: Question,
    verdict: Verdict,
    message: impl FnOnce() -> Option<Message<'m>>,
) {
    if let Some(heaviest) = stats.count(verdict.outcome) {
        let Question { rule, key, .. } = question;
        sample(heaviest, in_force, row, rule, key, message);
    }
}

/// Counts the verdict of a trial on a message, after the `verdict_in_force` of its policy.
pub(crate) fn count_tried(
    in_force: &ActivePolicies,
    row: &ActivePolicy,
    lane: Lane,
    question: Question,
    verdict: Verdict,
    verdict_in_force: Verdict,
    message: &Message<'_>,
) {
    let message = || Some(message.clone());
    if verdict.outcome == Outcome::Allowed {
        return count(in_force, row, row.stats.on(lane), question, verdict, message);
    }
    let is_new = verdict_in_force.outcome == Outcome::Allowed;
    if let Some(heaviest) = row.stats.count_tried(lane, is_new) {
        sample(heaviest, in_force, row, question.rule, question.key, message);
    }
}

/// Gives a sample to a sketch. The parts of its question are apart, because they stay in registers
/// then. Only a client that is new to the sketch needs the message.
#[cold]
#[inline(never)]
fn sample<'m>(
    heaviest: &Heaviest,
    in_force: &ActivePolicies,
    row: &ActivePolicy,
    rule: RuleAt,
    key: KeyHash,
    message: impl FnOnce() -> Option<Message<'m>>,
) {
    let under = || Under { rules: row.rules, rule };
    heaviest.offer(key, under, |name| {
        let message = message();
        if let Some(message) = &message {
            in_force.look_for_misfits(message);
            row.stats.note_text_address(|| text_address(&row.policy, message));
        }
        write_client(name, &row.policy, key, message);
    });
}

/// The name of an arg of the key whose value is an address written as a string, if there is one.
/// No prefix and no override of an address applies to such a value.
#[cold]
fn text_address(policy: &Policy, message: &Message<'_>) -> Option<PrintableName> {
    let is_text_address = |value: Value<'_>| {
        let Value::String(text) = value else { return false };
        std::str::from_utf8(text).is_ok_and(|text| text.trim().parse::<IpAddr>().is_ok())
    };
    let is_in_key = |name: &[u8]| {
        policy.key.args.is_empty() || policy.key.names().any(|known| *known == *name)
    };
    let found = message.args().find(|arg| is_text_address(arg.value) && is_in_key(arg.name));
    found.map(|arg| PrintableName::new(arg.name))
}

/// Counts a message that got no decision.
#[cold]
pub(crate) fn count_undecided(
    in_force: &ActivePolicies,
    undecided: &Undecided,
    lane: Lane,
    why: Unanswerable,
    message: &Message<'_>,
) {
    match why {
        Unanswerable::NoMessage => {}
        Unanswerable::Unmatched => {
            in_force.look_for_misfits(message);
            undecided.count_unmatched(&in_force.policies, message);
        }
        Unanswerable::Undecided(policy) => {
            let row = in_force.row(policy);
            row.stats.count_undecided(lane);
            undecided.count_undecided(&row.policy, message);
        }
    }
}

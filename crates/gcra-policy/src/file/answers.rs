//! The grammar of `answer` and `scope`, and whether the answers go with the policies.

use gcra_table::Nanos;
use spop_codec::{Limits, Scope};

use crate::answers::{Answers, Var};
use crate::file::answer_size::AnswerSizes;
use crate::file::entries::Entries;
use crate::file::precedence::PlacedPolicies;
use crate::file::reader::{Reader, quoted};
use crate::file::settings::of_file::{ANSWER, POLICY, SCOPE};
use crate::file::settings::of_policy::BANDWIDTH;

/// The scope, and the variables that the file names.
pub(crate) fn written<'t>(reader: &mut Reader<'t>, entries: &Entries<'_, 't>) -> Answers {
    let scope = entries.read(reader, &SCOPE).and_then(|word| word.parse().ok());
    let mut others = Vec::new();
    for (name, at) in entries.read(reader, &ANSWER).unwrap_or_default() {
        match Var::from_word(&name) {
            _ if name == "blocked" => {}
            Some(var) if !others.contains(&var) => others.push(var),
            Some(_) => {
                let what = format!("answer names '{name}' twice; once is enough");
                reader.at(at).wrong(what);
            }
            None => {
                let known = Var::ALL.map(Var::as_str);
                reader.at(at).unknown("a variable", &name, &known, quoted);
            }
        }
    }
    Answers { scope: scope.unwrap_or(Scope::Transaction), others, ..Answers::blocked_only() }
}

/// Adds the variables without which the policies do not work, and notes those that do not go with
/// them.
pub(crate) fn complete(
    reader: &mut Reader<'_>,
    entries: &Entries<'_, '_>,
    answers: &mut Answers,
    policies: &PlacedPolicies,
) {
    let at = entries.at(&ANSWER).unwrap_or(0);
    let can_delay = policies.list.iter().any(|policy| policy.max_delay() > Nanos::ZERO);
    // Without it HAProxy would let requests pass at once, and no limit would be kept.
    let what = "answer names 'delay_ms', and no policy has max_delay; write max_delay in a \
                policy, or leave delay_ms out";
    answer_early(reader, answers, at, Var::DelayMs, can_delay, what);
    if let Some(at) = entries.at(&SCOPE).filter(|_| can_delay)
        && matches!(answers.scope, Scope::Process | Scope::Session)
    {
        reader.at(at).wrong(format!(
            "with scope = \"{}\" requests share one delay_ms, so that one could wait for the \
             delay of another; for max_delay write scope = \"txn\"",
            answers.scope.as_str()
        ));
    }
    answer_reservations(reader, answers, at, policies);
    answers_fit(reader, answers, policies);
    answer_bandwidth(reader, entries, answers);
}

/// Adds the variable `reserved` if a policy reserves cells: without it, no response could give
/// them back.
fn answer_reservations(
    reader: &mut Reader<'_>,
    answers: &mut Answers,
    at: usize,
    policies: &PlacedPolicies,
) {
    let reserving = policies.iter().find(|(_, policy)| policy.reserves());
    if let Some((at, policy)) = reserving.filter(|_| answers.scope != Scope::Transaction) {
        let reserves = policy.settle().is_some_and(|it| it.cells > 0 || it.reserve.is_some());
        let reserve = if reserves { "reserve" } else { "unsettled" };
        reader.at(at).wrong(format!(
            "policy '{}' has {reserve}, and the variables of the scope {} are not those of one \
             request and its response; write scope = \"txn\"",
            policy.name,
            answers.scope.as_str()
        ));
    }
    let what = "answer names 'reserved', and no policy has reserve; write reserve in a policy \
                with settle, or leave reserved out";
    answer_early(reader, answers, at, Var::Reserved, reserving.is_some(), what);
}

/// Adds a variable if it is needed, before all that a client can do without: the first variables
/// fit into every usual ACK. `what` is the mistake if it is named and not needed.
fn answer_early(
    reader: &mut Reader<'_>,
    answers: &mut Answers,
    at: usize,
    var: Var,
    is_needed: bool,
    what: &str,
) {
    let others = &mut answers.others;
    if is_needed {
        others.retain(|other| *other != var);
        let delays = others.iter().take_while(|other| **other == Var::DelayMs).count();
        others.insert(delays, var);
    } else if others.contains(&var) && reader.is_content() {
        // If a policy is wrong, it may be the one that needs it.
        reader.at(at).wrong(what);
    }
}

/// An ACK may have 815 bytes, so that it fits HAProxy's smallest buffers, and header fields grow
/// with the names in them.
fn answers_fit(reader: &mut Reader<'_>, answers: &Answers, policies: &PlacedPolicies) {
    let has = |wanted: Var| answers.others.contains(&wanted);
    let leave_out = match (has(Var::Headers), has(Var::RateLimit) || has(Var::RateLimitPolicy)) {
        (false, false) => return,
        (false, true) => "ratelimit or ratelimit_policy",
        (true, false) => "headers",
        (true, true) => "ratelimit, ratelimit_policy or headers",
    };
    let most = Limits::default().max_ack_size as usize;
    let sizes = AnswerSizes::new(answers, &policies.list);
    for (at, policy) in policies.iter() {
        let bytes = sizes.longest(policy);
        if bytes > most {
            reader.at(at).wrong(format!(
                "with the header fields of policy '{}' an answer may have {bytes} bytes, and at \
                 most {most} are certain to fit into HAProxy's buffers; use shorter names or \
                 fewer limits, or leave {leave_out} out of answer",
                policy.name
            ));
        }
    }
}

/// Notes where the variable `bandwidth` and the setting do not go together.
fn answer_bandwidth(reader: &mut Reader<'_>, entries: &Entries<'_, '_>, answers: &Answers) {
    let policies = entries.get(&POLICY).and_then(|value| value.get_ref().as_table());
    let settings = policies.into_iter().flatten().filter_map(|(_, policy)| {
        // It may be wrong.
        policy.get_ref().as_table()?.get(BANDWIDTH.about.name).map(|it| it.span().start)
    });
    let settings: Vec<_> = settings.collect();
    match entries.at(&ANSWER).filter(|_| answers.others.contains(&Var::Bandwidth)) {
        Some(at) if settings.is_empty() => reader.at(at).wrong(format!(
            "answer names 'bandwidth', but no policy has it; write bandwidth = {} in a policy, or \
             leave it out of answer",
            BANDWIDTH.about.example
        )),
        Some(_) => {}
        None => {
            for at in settings {
                let what = "this bandwidth slows no response, because answer does not name \
                            'bandwidth'; write it there, above the first policy";
                reader.at(at).warn(what);
            }
        }
    }
}

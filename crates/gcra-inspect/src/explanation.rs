//! The decision about a message now, and why: which policy is the one for it, by which key and
//! override, and the standing of each limit. It asks the code that decides, and charges nothing.

use std::sync::Arc;

use gcra_lease::HostTime;
use gcra_limiter::active_policies::ActivePolicies;
use gcra_limiter::client_name::write_client;
use gcra_limiter::decide::claim::{SharedClient, SharedQuestion};
use gcra_limiter::decide::local::{Preview, preview};
use gcra_limiter::lease_client::LeaseClient;
use gcra_limiter::question::{Question, Unanswerable};
use gcra_limiter::unsettled::unsettled;
use gcra_limiter::verdict::{Reason, Verdict};
use gcra_limiter::written_message::WrittenMessage;
use gcra_policy::describe::text;
use gcra_policy::key::{InKey, NamedValue, Shown, WrittenValue};
use gcra_policy::key_parts::{KeyArg, KeyParts, NoValue};
use gcra_policy::{
    GroupedValue, Limit, OverrideKey, Policies, Policy, Price, Rule, RuleAt, Sharing, When,
};
use gcra_table::board::OrderKind;
use gcra_table::{Leases, Nanos, Table};
use gcra_text::network::VALUE;
use ipnet::IpNet;
use serde::Serialize;
use spop_agent::{Message, Value};

use crate::key_readings::exact_key;
use crate::lease_state::{Held, HeldNow, Stored, wait_and_delay};
use crate::order_state::OrderState;
use crate::outage_words::{OutageWords, is_used};
use crate::store_reader::InStore;

/// The decision about a message now, and why.
#[derive(Debug, Default, Serialize)]
pub struct Explanation {
    /// The name of the message; empty for an agent without a file, whose policy is for all.
    pub message: String,
    /// The policy that decides; `None` if none is for the message.
    pub policy: Option<String>,
    /// Which policies for the message were passed over, and what decided about that, in words.
    pub passed_over: Vec<String>,
    /// Why there is no decision, in words.
    pub undecided: Option<String>,
    #[serde(flatten)]
    pub decided: Option<Decided>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleKind {
    Limits,
    Deny,
    Unlimited,
}

/// The decision of the policy for a message.
#[derive(Clone, Debug, Serialize)]
pub struct Decided {
    pub key: Vec<KeyPart>,
    /// The name of the client in logs, in `top` and in /status.
    pub client: String,
    /// What it is known as, by `names_file`.
    pub(crate) known_as: Option<String>,
    /// The key as `table get`, `table reset`, `exempt` and `block` take it.
    pub(crate) written_key: String,
    pub cells: u32,
    #[serde(rename = "override")]
    pub(crate) applied_override: Option<AppliedOverride>,
    pub rule: RuleKind,
    pub limits: Vec<LimitState>,
    /// The limits of `observe`, which never block.
    pub observed: Vec<LimitState>,
    /// If machines share the policy: what happens without the store, in words.
    pub without_store: Option<String>,
    /// If machines share the policy: its limits, which are not in `limits` then.
    pub held: Vec<Held>,
    /// The same of `observe`.
    pub(crate) observed_held: Vec<Held>,
    /// Whether the store is asked about a request now, and decides. Then it is not known whether
    /// the request would be blocked.
    pub(crate) asks_store: bool,
    /// Whether it is known that the store can be asked now.
    pub(crate) store_is_there: bool,
    /// The words about the store that is away, if it would have to be asked.
    pub away: Option<OutageWords>,
    /// Whether a request now would be blocked, by the order too.
    pub blocked: bool,
    /// The value of the variable `would_block`.
    pub would_block: bool,
    /// The value of the variable `reason`.
    pub reason: Option<Reason>,
    /// How long a request now would have to wait before it goes on, if it is not blocked.
    pub delay_ms: u64,
    /// How long the client has to wait, if it sends no request in that time: under an order, until
    /// that ends.
    pub retry_after_ms: u64,
    /// The wait in the answer to a request now, which has the penalty in it.
    pub retry_after_ms_if_asked: u64,
    /// Whether the policy only observes, and blocks no request.
    pub observes: bool,
    /// When all clients of the policy were reset, in nanoseconds since 1970; 0 if they never were.
    #[serde(skip)]
    pub(crate) reset_at: u64,
    /// The message that settles what a request costs, if the policy has `settle`.
    pub settled_by: Option<String>,
    /// What its requests cost that no response has settled yet, if the policy has `unsettled`.
    pub unsettled: Option<UnsettledState>,
    /// The order about the client, if there is one.
    pub order: Option<OrderState>,
    /// Whether a request now would be blocked without the order.
    pub(crate) blocked_otherwise: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct KeyPart {
    /// The name of the arg; `None` if the key is all args.
    pub arg: Option<String>,
    /// The arg that has no value, if this one stands for it.
    pub instead_of: Option<String>,
    pub value: String,
    /// The value as the policy counts it: its network, or lower case.
    pub(crate) counted_as: String,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct AppliedOverride {
    /// The network or value that it is for.
    pub entry: String,
    pub limits: String,
    /// The list that it comes from, and the line. The caller finds it, because that takes reading
    /// files.
    pub list: Option<String>,
    #[serde(skip)]
    pub key: Option<OverrideKey>,
}

/// What requests of a client cost that no response has settled yet.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UnsettledState {
    /// Cells that responses may still settle.
    pub open: u32,
    /// Cells that are charged with the next request.
    pub overdue: u32,
}

/// The debt of a client under a limit.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LimitState {
    /// The name of the limit in header fields.
    pub limit: String,
    /// "10 per second, up to 20 at once".
    pub text: String,
    pub bucket: bool,
    /// Whether the client owes more than its bucket says, because limits were changed.
    pub(crate) carried_over: bool,
    /// Whether one cell would be denied.
    pub blocked: bool,
    pub remaining: u32,
    pub burst: u32,
    /// How long a request of one cell would have to wait before it goes on, if it is not denied.
    pub delay_ms: u64,
    /// If it is denied: how long the next one that is allowed would have to wait before it goes
    /// on. It is the longest delay of the policy.
    pub(crate) next_delay_ms: u64,
    pub retry_after_ms: u64,
    pub(crate) full_after_ms: u64,
    /// How much of the debt is beyond the burst and the longest delay, and so can only be penalty,
    /// or charged by responses.
    pub penalty_ms: u64,
    /// Whether responses can charge beyond the burst.
    pub settled: bool,
    /// If it counts in windows: which, as they are written in the file.
    pub window: Option<String>,
    /// When that ends, in words.
    pub window_ends: Option<String>,
    /// The same in seconds since 1970.
    pub window_ends_seconds: Option<i64>,
}

/// Where it is known what is so under limits that machines share.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedSources<'a> {
    /// The leases of this machine.
    pub leases: Option<&'a Leases>,
    /// The store, if it is to be asked.
    pub store: Option<&'a InStore>,
    /// The lease client of this process, if it is an agent.
    pub lease_client: Option<&'a LeaseClient>,
}

/// A message, and what is needed to know what is decided about it.
#[derive(Clone, Copy)]
pub struct Asked<'a, 'm> {
    pub in_force: &'a ActivePolicies,
    pub table: &'a Table,
    pub shared: SharedSources<'a>,
    pub message: &'a Message<'m>,
}

/// Explains what is decided now about a message with these args: for each message that the
/// policies are for, or for the one with this name.
///
/// # Errors
///
/// No policy is for the message, or a message cannot have that many args. The error is a sentence.
pub fn explain_all(
    in_force: &ActivePolicies,
    table: &Table,
    shared: SharedSources<'_>,
    name: Option<&str>,
    args: &[NamedValue],
) -> Result<Vec<Explanation>, String> {
    let mut names: Vec<&[u8]> = Vec::new();
    for policy in &in_force.policies.list {
        let name = policy.message.as_deref().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if let Some(name) = name {
        // The policy of flags has no message, because it is for every one.
        let is_known = |known: &&[u8]| known.is_empty() || *known == name.as_bytes();
        if !names.iter().any(is_known) {
            let known: Vec<_> = names.iter().map(|name| text(name)).collect();
            return Err(format!(
                "no policy is for the message '{name}'; there are policies for {}",
                known.join(", ")
            ));
        }
        names = vec![name.as_bytes()];
    }
    let is_meant =
        |policy: &&Policy| policy.message.as_deref().is_none_or(|name| names.contains(&name));
    let policies: Vec<_> =
        in_force.policies.list.iter().map(|policy| &**policy).filter(is_meant).collect();
    check(args, &policies)?;
    let (mut explanations, mut misfits) = (Vec::new(), Vec::new());
    for name in names {
        let write = |args: &[NamedValue]| {
            WrittenMessage::new(name, args)
                .map_err(|_| "a message has at most 255 args; leave some out".to_owned())
        };
        let mut written = write(args)?;
        let policy = written.message().and_then(|message| in_force.policies.of(&message));
        let mut misfit = None;
        if let Some(policy) = policy.map(|index| &in_force.policies.list[index]) {
            match of_a_group(policy, args, |args| Ok((write(args)?, ()))) {
                Ok((of_group, ())) => written = of_group,
                Err(sentence) => misfit = Some(sentence),
            }
        }
        let Some(message) = written.message() else { continue };
        let mut explanation = explain(in_force, table, shared, &message);
        if let Some(misfit) = misfit {
            explanation.decided = None;
            explanation.undecided = Some(misfit.clone());
            misfits.push(misfit);
        }
        explanations.push(explanation);
    }
    match misfits.pop() {
        Some(misfit) if explanations.iter().all(|it| it.decided.is_none()) => Err(misfit),
        _ => Ok(explanations),
    }
}

/// Fails if HAProxy cannot send these args for one of these policies. The error is a sentence.
fn check(args: &[NamedValue], policies: &[&Policy]) -> Result<(), String> {
    for (place, NamedValue { name, value }) in args.iter().enumerate() {
        let is_it = |known: &[u8]| *known == *name.as_bytes();
        if args[..place].iter().any(|other| other.name == *name) {
            return Err(format!(
                "the arg '{name}' is given twice, and a message has each arg once; leave one out"
            ));
        }
        let is_cost = |policy: &&Policy| policy.price.arg().is_some_and(is_it);
        let is_read_otherwise = |policy: &&Policy| {
            policy.key.names().any(is_it)
                || policy.when.as_ref().is_some_and(|it| is_it(&it.arg))
                || policy.args_of_limits().any(is_it)
        };
        // An integer below 0 is one that HAProxy can send; of that the explanation says more.
        let can_be_sent =
            matches!(value, WrittenValue::Int32(_) | WrittenValue::Int64(_) | WrittenValue::Null)
                || Price::cells_of(value.value()).is_some();
        if !can_be_sent && policies.iter().any(is_cost) && !policies.iter().any(is_read_otherwise)
        {
            return Err(format!(
                "the arg '{name}' is a cost, and agents decide only about a cost that is an \
                 integer or a string of digits; write a number, such as {name}=int64:1, instead \
                 of {name}={value}"
            ));
        }
    }
    Ok(())
}

/// Explains what is decided about a message now.
pub fn explain(
    in_force: &ActivePolicies,
    table: &Table,
    shared: SharedSources<'_>,
    message: &Message<'_>,
) -> Explanation {
    let policies = &*in_force.policies;
    let explanation = |index: Option<usize>| Explanation {
        message: text(message.name),
        policy: index.map(|index| policies.list[index].name.to_string()),
        passed_over: passed_over(policies, index, message),
        ..Explanation::default()
    };
    match Question::if_sent(in_force, table, message) {
        Ok(question) => Explanation {
            decided: Some(decided(Asked { in_force, table, shared, message }, question)),
            ..explanation(Some(question.policy))
        },
        Err(Unanswerable::Undecided(index)) => Explanation {
            undecided: Some(why_undecided(&policies.list[index], message)),
            ..explanation(Some(index))
        },
        Err(why) => Explanation {
            undecided: Some(match why.settles(policies, message) {
                Some(index) => format!(
                    "it settles requests of policy '{}', and asks nothing",
                    policies.list[index].name
                ),
                None => "no policy is for it".to_owned(),
            }),
            ..explanation(None)
        },
    }
}

/// Says what the limits of a client are and what it owes, for a question about one of its
/// messages.
pub fn decided(asked: Asked<'_, '_>, question: Question) -> Decided {
    let Asked { in_force, table, message, .. } = asked;
    let policy = &in_force.policies.list[question.policy];
    let said = |question| AllLimits::of(asked, question);
    let own = said(question);
    let verdict = own.verdict;
    let mut client = String::new();
    write_client(&mut client, policy, question.key, Some(message.clone()));
    let order = in_force.row(question.policy).order(question.key, message, table.now());
    let order = order.and_then(|order| in_force.orders.get(order.place));
    let trial = question.of_trial(policy).filter(|_| order.is_none()).map(said);
    let on_trial = trial.as_ref().is_some_and(|said| said.verdict.would_block());
    let is_limited = order.is_none();
    let is_ordered = order.is_some_and(|order| order.kind == OrderKind::Block);
    let reason = verdict.reason.or(trial.as_ref().and_then(|said| said.verdict.reason));
    let reason = if is_ordered { Some(Reason::Blocked) } else { reason.filter(|_| is_limited) };
    let is_shared = !own.held.is_empty();
    let order = order.map(|order| OrderState::of(order, table));
    let waits = [own.wait, own.wait_if_asked].map(Nanos::millis_ceil);
    let [retry_after_ms, retry_after_ms_if_asked] = match &order {
        Some(order) => [order.wait_ms(); 2],
        None => waits,
    };
    let (observed, observed_held) = trial.map(|said| (said.limits, said.held)).unwrap_or_default();
    Decided {
        key: key_parts(policy, message),
        known_as: in_force.policies.known.get(&client).map(str::to_owned),
        client,
        written_key: written_key(policy, message),
        cells: question.cells,
        applied_override: applied_override(policy, question.rule, message),
        rule: match policy.rule(question.rule) {
            Rule::Limits(_) => RuleKind::Limits,
            Rule::Deny => RuleKind::Deny,
            Rule::Unlimited => RuleKind::Unlimited,
        },
        limits: own.limits,
        observed,
        without_store: policy.shared.filter(|_| is_shared).map(Sharing::without_store_in_words),
        asks_store: is_limited && own.asks_store,
        store_is_there: own.store_is_there,
        away: own.away.filter(|_| is_limited),
        held: own.held,
        observed_held,
        blocked: if is_limited { verdict.is_blocked() } else { is_ordered && !policy.observes },
        would_block: is_ordered || is_limited && (verdict.would_block() || on_trial),
        reason,
        blocked_otherwise: !is_limited && verdict.is_blocked(),
        delay_ms: if is_limited { own.verdict.delay_ms().into() } else { 0 },
        retry_after_ms,
        retry_after_ms_if_asked,
        observes: policy.observes,
        reset_at: policy.reset_at,
        settled_by: policy.settle().map(|settle| text(&settle.message)),
        unsettled: unsettled(table, in_force, question)
            .map(|it| UnsettledState { open: it.open, overdue: it.overdue }),
        order,
    }
}

/// The standing of a message under the limits of a policy now.
struct AllLimits {
    verdict: Verdict,
    /// How long the client has to wait, if it sends no request in that time.
    wait: Nanos,
    /// The wait in the answer to a request now, which has the penalty in it.
    wait_if_asked: Nanos,
    /// The limits of this machine alone.
    limits: Vec<LimitState>,
    /// Those that machines share.
    held: Vec<Held>,
    asks_store: bool,
    store_is_there: bool,
    away: Option<OutageWords>,
}

impl AllLimits {
    fn of(asked: Asked<'_, '_>, question: Question) -> Self {
        let Asked { in_force, table, shared, message } = asked;
        let policy = &in_force.policies.list[question.policy];
        let (limits, at_once) = match (policy.shared, policy.rule(question.rule)) {
            (Some(sharing), Rule::Limits(limits)) => (limits, sharing.at_once),
            _ => return Self::of_local(asked, question),
        };
        let leases = (shared.leases, HostTime::from(table.now()));
        let held = |limit| Held::of(leases, table, (question, at_once), message, limit);
        let mut held: Vec<_> = limits.iter().map(held).collect();
        if let Some(store) = shared.store {
            for (held, limit) in held.iter_mut().zip(limits) {
                let client = SharedClient { in_force, table, question, message };
                let bucket = store.bucket(client, limit, limit.quota(Some(message)));
                match bucket.and_then(|bucket| store.read(&bucket)) {
                    Ok(found) => {
                        held.store = Some(Stored::new(found, held.burst));
                        held.decide(question, policy, limit, message);
                    }
                    Err(error) => held.store_fault = Some(error.to_string()),
                }
            }
        }
        let reason_of = |held: &Held| match held.now {
            HeldNow::Oversize => Some(Reason::Oversize),
            HeldNow::Blocked => Some(Reason::Limit),
            HeldNow::Allowed | HeldNow::Asks | HeldNow::Away => None,
        };
        let reason = held.iter().filter_map(reason_of).max();
        let asks =
            held.iter().position(|held| held.now == HeldNow::Asks).filter(|_| reason.is_none());
        if let Some(place) = asks
            && let Some((away, reason, wait)) = without_store(asked, question, (limits, place))
        {
            let asking = held.iter_mut().filter(|held| held.now == HeldNow::Asks);
            asking.for_each(|held| held.now = HeldNow::Away);
            let verdict = Verdict::new(question.policy, policy.observes, reason);
            let said = Self::of_verdict(verdict, wait, wait);
            return Self { held, away: Some(away), ..said };
        }
        let delay = held.iter().map(|held| Nanos::from_millis(held.delay_ms)).max();
        let verdict = Verdict::new(question.policy, policy.observes, reason);
        let verdict = verdict.after(delay.unwrap_or_default());
        let waits = held.iter().zip(limits).filter(|(held, _)| held.now == HeldNow::Blocked);
        let wait_of = |held: &Held| Nanos::from_millis(held.blocked_ms);
        let longest = waits.map(|(held, limit)| (wait_of(held), limit)).max_by_key(|it| it.0);
        let (wait, wait_if_asked) = longest.map_or_else(Default::default, |(wait, limit)| {
            let quota = limit.quota(Some(message));
            let longer = policy.penalty_under(limit).and_then(|it| it.after(wait, quota));
            (wait, longer.unwrap_or(wait))
        });
        let asked = |held: &Held| held.now != HeldNow::Asks || held.store.is_some();
        let store_is_there = match shared.store {
            Some(_) => held.iter().all(asked),
            None => {
                shared.lease_client.is_some()
                    || shared.leases.is_some_and(|leases| is_used(leases, table))
            }
        };
        let said = Self::of_verdict(verdict, wait, wait_if_asked);
        Self { asks_store: asks.is_some(), store_is_there, held, ..said }
    }

    fn of_verdict(verdict: Verdict, wait: Nanos, wait_if_asked: Nanos) -> Self {
        let (limits, held, asks_store, store_is_there, away) = Default::default();
        Self { verdict, wait, wait_if_asked, limits, held, asks_store, store_is_there, away }
    }

    /// The same for a policy of this machine alone.
    fn of_local(asked: Asked<'_, '_>, question: Question) -> Self {
        let Asked { in_force, table, message, .. } = asked;
        let (verdict, preview) = preview(table, in_force, question, message);
        let wait = preview.iter().map(|preview| preview.usage.wait).max();
        let wait_if_asked = preview.iter().map(|preview| preview.wait_if_asked).max();
        let settled = in_force.policies.list[question.policy].settle().is_some();
        let limits = preview.iter().map(|it| LimitState::of(it, settled, message)).collect();
        let wait_if_asked = wait_if_asked.unwrap_or_default();
        Self { limits, ..Self::of_verdict(verdict, wait.unwrap_or_default(), wait_if_asked) }
    }
}

/// The decision now about a request that has to ask the store about one of these limits, if the
/// store is away: why it is blocked, if it is, and for how long.
fn without_store(
    asked: Asked<'_, '_>,
    question: Question,
    (limits, place): (&[Limit], usize),
) -> Option<(OutageWords, Option<Reason>, Nanos)> {
    let Asked { in_force, table, shared, message } = asked;
    let sharing = in_force.policies.list[question.policy].shared?;
    let leases = shared.leases?;
    let Some(lease_client) = shared.lease_client else {
        let (away, reason) = OutageWords::of_machine(leases, table, sharing)?;
        return Some((away, reason, Nanos::ZERO));
    };
    let shared =
        SharedQuestion { lease_client, leases, table, in_force, sharing, question, message };
    let preview = shared.foresee_without_store(limits, place)?;
    let bursts = limits.iter().map(|limit| limit.quota(Some(message)).burst());
    let away = OutageWords::of_agent(&preview, bursts.min().unwrap_or_default());
    Some((away, preview.reason, preview.wait))
}

fn applied_override(
    policy: &Policy,
    rule: RuleAt,
    message: &Message<'_>,
) -> Option<AppliedOverride> {
    let (_, key) = policy.override_entry(message)?;
    let limits = policy.rule(rule).in_words();
    Some(AppliedOverride { entry: key.to_string(), limits, list: None, key: Some(key) })
}

/// Which policies that are for the message by its name come before the one at `index`, or all of
/// them, and why each is passed over.
fn passed_over(policies: &Policies, index: Option<usize>, message: &Message<'_>) -> Vec<String> {
    let before = policies.list.iter().take(index.unwrap_or(usize::MAX));
    let named = before
        .filter(|policy| !policy.is_trial && policy.message.as_deref() == Some(message.name));
    let reason = |policy: &Arc<Policy>| {
        let When { arg, values, .. } = policy.when.as_ref()?;
        let values: Vec<_> = values.iter().map(|value| format!("'{}'", text(value))).collect();
        let (arg_name, values) = (text(arg), values.join(" or "));
        let given = match message.arg(arg) {
            None => format!("the arg '{arg_name}' is not given"),
            Some(value) => format!("it is {}", Shown(value)),
        };
        Some(format!("'{}' is for {arg_name} {values}, and {given}", policy.name))
    };
    named.filter_map(reason).collect()
}

/// Why a policy cannot decide about a message: what is missing or wrong.
fn why_undecided(policy: &Policy, message: &Message<'_>) -> String {
    let lacking = |key: &KeyParts, its_key: &str| {
        let lacks = |arg: &KeyArg| {
            let lack = match arg.lacks(message)? {
                NoValue::Missing => "is not given",
                NoValue::Null => "is null",
            };
            Some(format!("the arg '{}' of {its_key} {lack}", text(&arg.name)))
        };
        key.args.iter().filter_map(lacks).collect::<Vec<_>>()
    };
    let of_limit = |limit: &Limit| {
        Some(lacking(limit.key.as_deref()?, &format!("the key of '{}'", limit.label)))
    };
    let mut missing = lacking(&policy.key, "its key");
    if missing.is_empty() {
        missing = policy.rule.limits().iter().filter_map(of_limit).flatten().collect();
    }
    match (&missing[..], policy.price.arg()) {
        ([], Some(cost)) => {
            let value = message.arg(cost).unwrap_or(Value::Null);
            format!(
                "its cost, the arg '{}', is {}, and not a whole number of 0 or more",
                text(cost),
                Shown(value)
            )
        }
        ([], None) => "its key is not whole".to_owned(),
        (missing, _) => missing.join(", and "),
    }
}

/// The values of a message's key, and what the policy makes of them.
pub fn key_parts(policy: &Policy, message: &Message<'_>) -> Vec<KeyPart> {
    let (mut values, mut parts) = (Vec::new(), Vec::new());
    let _ = policy.for_each_value(message, |value, fallback| values.push((value, fallback)));
    let _ = policy.for_each_part(message, &mut parts, Vec::push, |_, _| {});
    let args = policy.key.args.iter().map(Some).chain(std::iter::repeat(None));
    args.zip(values.iter().zip(parts))
        .map(|(arg, ((value, fallback), part))| KeyPart {
            arg: arg.and_then(|arg| arg.names().nth((*fallback).into())).map(text),
            instead_of: arg.filter(|_| *fallback > 0).map(|arg| text(&arg.name)),
            value: Shown(*value).to_string(),
            counted_as: counted_as(policy, part),
        })
        .collect()
}

/// Calls `make` with the args of a message. If one of the args is a network, `make` gets an
/// address in it that the policy counts by exactly this network: the first one or the last one,
/// because some may have an override. The error is a sentence.
pub(crate) fn of_a_group<T>(
    policy: &Policy,
    args: &[NamedValue],
    make: impl Fn(&[NamedValue]) -> Result<(WrittenMessage, T), String>,
) -> Result<(WrittenMessage, T), String> {
    let is_in_key = |name: &str| policy.key.names().any(|known| *known == *name.as_bytes());
    let nets: Vec<IpNet> = args
        .iter()
        .filter(|arg| policy.key.args.is_empty() || is_in_key(&arg.name))
        .filter_map(|arg| if let WrittenValue::Net(net) = arg.value { Some(net) } else { None })
        .collect();
    if nets.is_empty() {
        return make(args);
    }
    let mut misfit = None;
    for address_in in [IpNet::network, IpNet::broadcast] {
        let pick = |NamedValue { name, value }: &NamedValue| NamedValue {
            name: name.clone(),
            value: match value {
                WrittenValue::Net(net) => WrittenValue::Ip(address_in(net)),
                value => value.clone(),
            },
        };
        let made = make(&args.iter().map(pick).collect::<Vec<_>>())?;
        let parts = made.0.message().map(|message| key_parts(policy, &message));
        let parts = parts.unwrap_or_default();
        let wrong = nets.iter().find_map(|net| {
            let (net_text, address) = (net.to_string(), address_in(net).to_string());
            let part = parts.iter().find(|part| part.value == address)?;
            (part.counted_as != net_text).then(|| (net_text, part.counted_as.clone()))
        });
        let Some((net, counted_as)) = wrong else { return Ok(made) };
        misfit = misfit.or(Some((net, counted_as)));
    }
    let (net, counted_as) = misfit.unwrap_or_default();
    Err(format!(
        "'{net}' is not a group of the policy, such as {counted_as}; write one address, or \
         {VALUE}{net} for the text itself"
    ))
}

/// The key of a message as a command takes it.
pub(crate) fn written_key(policy: &Policy, message: &Message<'_>) -> String {
    // Where an address is expected, orders take a string only if it is said to be one.
    let expects_address = policy.is_for_addresses() && policy.key.names().count() == 1;
    let mut values = Vec::new();
    let _ = policy.for_each_value(message, |value, fallback| {
        let text = InKey(value).to_string();
        let is_marked = text.starts_with(VALUE) || text.starts_with("strhex:");
        let is_plain_string = matches!(value, Value::String(_)) && !is_marked;
        let mark = if expects_address && is_plain_string { VALUE } else { "" };
        values.push((fallback, format!("{mark}{text}")));
    });
    exact_key(&policy.key.args, values)
}

fn counted_as(policy: &Policy, part: GroupedValue<'_>) -> String {
    match (part.value, policy.key.prefix_of(part)) {
        (Value::String(bytes), _) if policy.key.lowercase => {
            Shown(Value::String(&bytes.to_ascii_lowercase())).to_string()
        }
        (value, Some(prefix)) => format!("{}/{prefix}", Shown(value)),
        (value, None) => Shown(value).to_string(),
    }
}

impl LimitState {
    fn of(preview: &Preview<'_>, settled: bool, message: &Message<'_>) -> Self {
        let Preview { limit, usage, bucket, window_end, .. } = preview;
        let (quota, owed, remaining) = (usage.quota, usage.owed, usage.remaining());
        let state = Self {
            limit: limit.label.to_string(),
            text: limit.in_words_for(message),
            bucket: bucket.is_some(),
            remaining,
            burst: quota.burst(),
            settled,
            ..Self::default()
        };
        if let Some(calendar) = limit.calendar() {
            let ends_ms = usage.window_ends.millis_ceil();
            return Self {
                blocked: remaining == 0,
                retry_after_ms: if remaining == 0 { ends_ms } else { 0 },
                full_after_ms: if owed > Nanos::ZERO { ends_ms } else { 0 },
                window: Some(calendar.as_written()),
                window_ends: window_end.map(|end| calendar.moment_in_words(end)),
                window_ends_seconds: *window_end,
                ..state
            };
        }
        let (wait, delay) = wait_and_delay(quota, owed, 1);
        let max_delay = quota.max_delay();
        let next_delay = if wait > Nanos::ZERO { max_delay } else { Nanos::ZERO };
        Self {
            carried_over: owed > bucket.unwrap_or_default(),
            blocked: wait > Nanos::ZERO,
            delay_ms: delay.millis_ceil(),
            next_delay_ms: next_delay.millis_ceil(),
            retry_after_ms: wait.millis_ceil(),
            full_after_ms: owed.millis_ceil(),
            penalty_ms: quota.delay(owed).saturating_sub(max_delay).millis_ceil(),
            ..state
        }
    }
}

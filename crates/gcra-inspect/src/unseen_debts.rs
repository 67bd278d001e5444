//! Debts that agents count and that a command cannot see.
//!
//! After a reload a client keeps what it owed. Where the policies have overrides, or another `key`
//! than before, only what was in force before says which buckets these debts are in. The agents
//! keep that beside the table (`policies_file.rs`). It is missing there if it was too large, and
//! numbers that the table's register has had no space for are known to nobody else.

use std::collections::BTreeSet;

use gcra_limiter::policies_in_force::InForce;
use gcra_policy::key::{NamedValue, WrittenValue};
use gcra_policy::key_parts::KeyArg;
use gcra_policy::{Limit, Policy};
use gcra_table::{Nanos, Process, Quota, Table, Time};
use gcra_text::duration::Left;

use crate::process_list;
use crate::process_state::living;

/// The words about a client without a bucket, if there may be one.
pub(crate) const NO_SEEN_BUCKET: &str = "no bucket that this command can see";

/// The agents that count debts from before a change of their limits of which nothing in the table
/// tells, and until when one of them does. `None` if no agent does.
pub(crate) fn remembered(table: &Table) -> Option<(Vec<Process>, Time)> {
    let until =
        |process: &Process| process.profile.map_or(Time::ZERO, |profile| profile.remembers_until);
    let (mut agents, now) = (living(table), table.now());
    agents.retain(|process| until(process) > now);
    let last = agents.iter().map(until).max()?;
    Some((agents, last))
}

/// Until when a client may owe something under earlier numbers of the limits of this policy that
/// the table has had no space for. `None` if it has them all, or if nobody can owe anything by
/// them any more.
pub(crate) fn unlisted_until(table: &Table, policy: &Policy) -> Option<Time> {
    // Counts in windows are found without a list. So are the numbers in messages, as far as the
    // table has them; a separate note tells of the others.
    let quotas = policy.limits().filter_map(Limit::fixed);
    // Debts at a change of numbers can last as long as these numbers let anybody owe something.
    let longest = quotas.map(Quota::most_owed).max()?;
    let until = table.missing_until()?.saturating_add(longest);
    (until > table.now()).then_some(until)
}

/// Says that clients of these policies may owe more than a command can see, if that is so.
/// `misses_history` is whether it does not know what was in force before.
pub(crate) fn note<'p>(
    table: &Table,
    misses_history: bool,
    policies: impl Iterator<Item = &'p Policy>,
) -> Option<String> {
    let left = |until: Time| Left(until.saturating_since(table.now()).into());
    if misses_history && let Some((agents, until)) = remembered(table) {
        return Some(format!(
            "the policies were changed by a reload; for up to {} {} may count what clients owed \
             before, which the file beside the table does not tell: a client may owe more than is \
             shown",
            left(until),
            process_list::agents(&agents).0
        ));
    }
    let until = policies.filter_map(|policy| unlisted_until(table, policy)).max()?;
    let agents = living(table);
    (!agents.is_empty()).then(|| {
        format!(
            "the limits have had more numbers than the table has space for; for up to {} {} may \
             count what clients owed by earlier ones, which this command cannot see: a client may \
             owe more than is shown",
            left(until),
            process_list::agents(&agents).0
        )
    })
}

/// Says that a client of this policy may owe more by the key that the policy had before a change,
/// if a message needs other args for that than these.
pub(crate) fn note_about_former_args(
    table: &Table,
    in_force: &InForce,
    policy: &Policy,
    args: &[NamedValue],
) -> Option<String> {
    let left = in_force.earlier.remembered_until().saturating_since(table.now());
    let former = in_force.earlier.history().iter().flat_map(|(former, _)| &former.list);
    let former = former.filter(|former| former.name == policy.name);
    let lacking = former.flat_map(|former| &former.key.args);
    let lacking = lacking.filter_map(|arg| lacking_name(arg, &policy.key.args, args));
    let names = lacking.map(|name| format!("{}=...", String::from_utf8_lossy(name)));
    let names: BTreeSet<_> = names.collect();
    (!names.is_empty() && left > Nanos::ZERO).then(|| {
        format!(
            "policy '{}' had another key before a reload; for up to {} its clients may owe more \
             by that, which 'gcra-spoa explain' shows with {}",
            policy.name,
            Left(left.into()),
            Vec::from_iter(names).join(" ")
        )
    })
}

/// The arg that must be known to say which value this arg of a former key had. `key` is the key
/// that the policy has now: where that takes a fallback, the args before it were not there.
fn lacking_name<'a>(arg: &'a KeyArg, key: &[KeyArg], args: &[NamedValue]) -> Option<&'a [u8]> {
    let given = |name: &[u8]| args.iter().find(|given| given.name.as_bytes() == name);
    let was_passed_over = |name: &[u8]| {
        let others = key.iter().filter(|now| now.names().any(|known| *known == *name));
        others
            .flat_map(KeyArg::names)
            .skip_while(|known| **known != *name)
            .any(|it| given(it).is_some())
    };
    for name in arg.names() {
        match given(name) {
            Some(given) if given.value != WrittenValue::Null => return None,
            Some(_) => {}
            None if was_passed_over(name) => {}
            None => return Some(name),
        }
    }
    None
}

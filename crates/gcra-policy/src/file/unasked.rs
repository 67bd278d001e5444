//! The grammar of `unasked`, `asked_by` and `reload_every`, and whether the limits of a policy can
//! be kept with them.

use gcra_table::{MAX_BURST, Nanos};
use gcra_text::duration::nanoseconds;

use crate::file::limits::WrittenFor;
use crate::file::reader::{Entries, Reader, list};
use crate::limit::Limit;
use crate::overrides::Overrides;
use crate::reserve::Written;
use crate::unasked::{PROCESSES, RELOADS, Unasked};

/// Takes the settings of a policy. Returns where `unasked` stands, and what it means.
pub(crate) fn unasked<'t>(
    reader: &mut Reader<'t>,
    entries: &mut Entries<'_, 't>,
) -> Option<(usize, Unasked)> {
    let requests = entries.take("unasked");
    let [processes, reloads] = ["asked_by", "reload_every"].map(|name| (name, entries.take(name)));
    let Some(value) = requests else {
        let given = [processes, reloads].into_iter();
        let given = given.filter_map(|(name, value)| Some((name, value?.span().start)));
        let (names, places): (Vec<_>, Vec<_>) = given.unzip();
        if let Some(at) = places.into_iter().min() {
            let (has, it) = if names.len() == 1 { ("has", "it") } else { ("have", "them") };
            reader.at(at).wrong(format!(
                "{} {has} no effect without unasked, which says how many requests HAProxy lets \
                 pass without asking; write unasked = 7, or leave {it} out",
                list(&names, "and")
            ));
        }
        return None;
    };
    let at = value.span().start;
    let requests = reader.number(value, "unasked", 1..=MAX_BURST.into());
    let asked_by = |value| reader.number(value, "asked_by", PROCESSES);
    let processes = processes.1.map_or(Some(1), asked_by);
    let reload_every = match reloads.1 {
        Some(value) => Some(reader.time(value, "reload_every", RELOADS, "10m")?),
        None => None,
    };
    let unasked = Unasked {
        requests: u32::try_from(requests?).ok()?,
        processes: u32::try_from(processes?).ok()?,
        reload_every: reload_every.map(|time| Nanos(nanoseconds(time))),
    };
    Some((at, unasked))
}

/// Notes what a policy cannot have beside `unasked`, and does. `others` are settings, and whether
/// they are there.
pub(crate) fn goes_with(
    reader: &mut Reader<'_>,
    at: usize,
    WrittenFor { name, key }: WrittenFor<'_>,
    has_cost: bool,
    others: [(&str, bool); 4],
    overrides: &Overrides,
) {
    if !has_cost {
        reader.at(at).wrong(format!(
            "policy '{name}' has unasked and no cost, so nobody would pay for the requests \
             that pass without asking; write the arg in which HAProxy says for how many a \
             question pays, such as cost = \"cost\""
        ));
    }
    for (setting, _) in others.into_iter().filter(|(_, is_there)| *is_there) {
        let why = match setting {
            "when" => {
                "a request that is not asked about has no args, so that another policy could be \
                 made to pay for it"
            }
            "settle" => "a request that is not asked about reserves nothing",
            "max_delay" => "a request that is not asked about is not delayed",
            _ => "the response to a request that is not asked about is not slowed",
        };
        reader.at(at).wrong(format!(
            "policy '{name}' cannot have {setting} and unasked, because {why}; leave one of \
             them out"
        ));
    }
    if let Some(net) = overrides.narrower_than(key).next() {
        reader.at(at).wrong(format!(
            "policy '{name}' cannot have unasked and the override '{net}', which is narrower \
             than its groups, because HAProxy counts a group together, so that one part of it \
             could be made to pay for the other; leave one of them out"
        ));
    }
}

/// Keeps cells of each limit in reserve. Notes a mistake where nothing is left, and where it is
/// not known who would pay for a request.
pub(crate) fn apply<'l>(
    reader: &mut Reader<'_>,
    at: usize,
    name: &str,
    unasked: Unasked,
    rule_is_known: bool,
    denies: bool,
    limits: impl Iterator<Item = (&'l mut Limit, &'static str)>,
) {
    let mut limits = limits.peekable();
    if denies {
        reader.at(at).wrong(format!(
            "policy '{name}' cannot have unasked and \"deny\", because a client that is denied \
             would have {} without asking; deny it by a rule of HAProxy, or leave unasked out",
            passes(unasked)
        ));
    } else if rule_is_known && limits.peek().is_none() {
        reader.at(at).wrong(format!(
            "unasked of policy '{name}' has no effect, because the policy has no limit; leave it \
             out"
        ));
    }
    let mut said = Vec::new();
    for (limit, of) in limits {
        let label = &limit.label;
        let what = if limit.key.is_some() {
            format!(
                "policy '{name}' cannot have unasked and a key for the limit '{label}'{of}, by \
                 which several clients count, each of which would have {} without asking; leave \
                 one of them out",
                passes(unasked)
            )
        } else if limit.by_arg().is_some() {
            format!(
                "policy '{name}' cannot have unasked and the limit '{label}'{of}, whose numbers \
                 each message says, because a request that is not asked about has no message; \
                 leave one of them out"
            )
        } else if let Err(what) = limit.keep_in_reserve(unasked, Written::InFile) {
            format!("policy '{name}': {what}")
        } else {
            continue;
        };
        // The same limit may stand in several overrides.
        if !said.contains(&what) {
            reader.at(at).wrong(&what);
            said.push(what);
        }
    }
}

/// "7 requests that pass".
fn passes(unasked: Unasked) -> String {
    match unasked.unpaid() {
        1 => "1 request that passes".to_owned(),
        more => format!("{more} requests that pass"),
    }
}

//! The grammar of `bandwidth`, and whether it has an effect.

use crate::bandwidth::{Bandwidth, Size, size};
use crate::file::entries::Entries;
use crate::file::reader::{Node, Reader};
use crate::file::settings::of_bandwidth::{FULL, LEAST};
use crate::file::settings::{BANDWIDTH_TABLE, Declared, Setting, Text};
use crate::limit::Rule;
use crate::policy::Policy;

const HOW: &str = "bandwidth = { full = \"10m\", least = \"50k\" }";

/// `{ full = "10m", least = "50k" }`.
pub(crate) fn bandwidth<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<Bandwidth> {
    let at = value.span().start;
    let table = reader.table(value, &format!("bandwidth must be a table; write {HOW}"))?;
    let entries = Entries::new("bandwidth", &BANDWIDTH_TABLE, table);
    let mut part = |setting: &Setting<Text>| {
        let Declared { name, example, .. } = setting.about;
        let Some(value) = entries.get(setting) else {
            return reader.at(at).refuse(format!("bandwidth has no {name}; write {HOW}"));
        };
        let text = setting.read(reader, value)?;
        size(&text).or_else(|| {
            reader.on(value).refuse(format!(
                "'{text}' in {name} is not a number of bytes per second from 1 to 1g; write a \
                 whole number, with k, m or g behind it for 1024, 1024k or 1024m bytes, such as \
                 {example}"
            ))
        })
    };
    let (full, least) = (part(&FULL), part(&LEAST));
    entries.no_others(reader, |_, _| None);
    let (full, least) = (full?, least?);
    if least > full {
        reader.at(at).wrong(format!(
            "least is more than full in bandwidth; write a least of at most \"{}\"",
            Size(full)
        ));
    }
    Some(Bandwidth { full, least })
}

/// Notes where the bandwidth of a policy has no effect.
pub(crate) fn check(reader: &mut Reader<'_>, at: usize, policy: &Policy) {
    let name = &policy.name;
    if policy.rules().all(|rule| !matches!(rule, Rule::Limits(_))) {
        reader.at(at).wrong(format!(
            "the bandwidth of policy '{name}' is never used, because the policy has no limit; \
             leave it out"
        ));
    } else if policy.limits().any(|limit| limit.calendar().is_some()) {
        reader.at(at).wrong(format!(
            "policy '{name}' cannot have a bandwidth and a limit with a window, because what is \
             counted in a window comes back all at once; leave one of them out"
        ));
    } else if policy.observes {
        reader.at(at).warn(format!(
            "the bandwidth of policy '{name}' slows no response as long as the policy only \
             observes; leave out mode when it is to slow them"
        ));
    } else if is_used_up_by_one(policy) {
        reader.at(at).warn(format!(
            "each allowed request of policy '{name}' gets the least bandwidth, because one \
             request uses up a burst of 1; write a larger burst"
        ));
    }
}

/// Whether one request uses up the burst of a limit, whichever rule is for it.
fn is_used_up_by_one(policy: &Policy) -> bool {
    let is_small = |rule: &Rule| match rule {
        Rule::Limits(limits) => limits.iter().any(|limit| limit.burst() == 1),
        // Without a limit there is no bandwidth.
        Rule::Deny | Rule::Unlimited => true,
    };
    let differs = policy.bandwidth.is_some_and(|bandwidth| bandwidth.full > bandwidth.least);
    // A cost can be 0.
    differs && policy.price.arg().is_none() && policy.rules().all(is_small)
}

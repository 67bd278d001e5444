//! Which clients begin with no debts when other policies come into force, and why.

// ADR 16: The numbers of a limit are part of its buckets' identity.
// ADR 17: Debts survive a change of numbers without a conversion.

use gcra_text::count::Count;

use crate::calendar::Calendar;
use crate::describe::text;
use crate::limit::Limit;
use crate::policies::Policies;
use crate::policy::Policy;

/// A sentence for each policy or limit under which clients begin with no debts when `new` takes
/// the place of `old`. One that is new, and takes the place of none, is not named.
pub fn begin_anew(old: &Policies, new: &Policies) -> Vec<String> {
    let mut sentences = Vec::new();
    for policy in new.without_trials() {
        if let Some(before) = old.named(&policy.name) {
            sentences.extend(of_policy(before, policy));
            continue;
        }
        let mut gone = old.without_trials().filter(|gone| new.named(&gone.name).is_none());
        if let Some(gone) = gone.find(|gone| gone.message == policy.message) {
            sentences.push(format!(
                "policy '{}' has no debts of '{}', which was for the same message",
                policy.name, gone.name
            ));
        }
    }
    sentences
}

fn of_policy(old: &Policy, new: &Policy) -> Vec<String> {
    let name = &new.name;
    if old.key_digest() != new.key_digest() {
        return vec![format!(
            "clients of policy '{name}' begin with no debts, because its key changes: it was {}, \
             and becomes {}",
            key_in_words(old),
            key_in_words(new)
        )];
    }
    if old.shared.is_some() != new.shared.is_some() {
        let now = if new.shared.is_some() { "begins" } else { "ceases" };
        return vec![format!(
            "clients of policy '{name}' begin with no debts, because it {now} to be shared"
        )];
    }
    let (before, now) = (old.narrow_nets(), new.narrow_nets());
    let changed: Vec<_> = before.symmetric_difference(&now).collect();
    let mut sentences = Vec::new();
    if let Some(first) = changed.first() {
        let more = match changed.len() - 1 {
            0 => String::new(),
            more => format!(" and {}", Count(more, "more network", "more networks")),
        };
        sentences.push(format!(
            "clients in {first}{more} begin with no debts under policy '{name}', because an \
             override that is narrower than the groups of the policy comes or goes"
        ));
    }
    let is_gone = |limit: &&Limit| new.limits().all(|now| now.id != limit.id);
    let gone: Vec<_> = old.limits().filter(is_gone).collect();
    let of_limit = |limit: &Limit| {
        let same: Vec<_> = old.limits().filter(|before| before.id == limit.id).collect();
        if same.is_empty() {
            let gone = gone.iter().find(|it| it.label == limit.label).or(gone.first())?;
            if gone.key != limit.key {
                return Some(format!(
                    "clients begin with no debts under limit '{}' of policy '{name}', because its \
                     key changes",
                    limit.label
                ));
            }
            return Some(format!(
                "limit '{}' of policy '{name}' begins with no debts of '{}', which is gone: the \
                 name of a limit, or its place in the list, is part of its key",
                limit.label, gone.label
            ));
        }
        let kind =
            |limit: &Limit| (limit.calendar().map(Calendar::as_written), limit.by_arg().is_some());
        let is_other_kind = !same.iter().any(|before| kind(before) == kind(limit));
        let has_other_key = !same.iter().any(|before| before.key == limit.key);
        let why = match (has_other_key, is_other_kind) {
            (true, _) => "its key changes",
            (false, true) => "it counts in another way",
            (false, false) => return None,
        };
        Some(format!(
            "clients begin with no debts under limit '{}' of policy '{name}', because {why}",
            limit.label
        ))
    };
    sentences.extend(new.limits().filter_map(of_limit));
    sentences.dedup();
    sentences
}

/// "for each ip (IPv6 by /64)", with the args that a key of all args leaves out.
fn key_in_words(policy: &Policy) -> String {
    let words = policy.key.in_words(policy.overrides.has_networks());
    let left_out: Vec<_> = policy.left_out_of_key().into_iter().flatten().map(text).collect();
    match (policy.key.args.is_empty(), &left_out[..]) {
        (true, [_, ..]) => format!("{words}, except {}", left_out.join(" and ")),
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::file::document;

    fn sentences(old: &str, new: &str) -> Vec<String> {
        let policies = |text: &str| document::parse(Path::new("f"), text).unwrap();
        begin_anew(&policies(old), &policies(new))
    }

    #[test]
    fn whatever_makes_the_key_is_named_and_nothing_else() {
        let file = |more: &str| format!("[policy.api]\nlimits = \"5/d\"\nkey = [\"ip\"]\n{more}");
        let base = file("");
        for more in ["max_delay = \"1s\"\n", "mode = \"observe\"\n", "cost = \"n\"\n", ""] {
            assert_eq!(sentences(&base, &file(more)), [""; 0], "{more}");
        }
        assert_eq!(sentences(&base, &base.replace("5/d", "6/h")), [""; 0]);
        let prefix = sentences(&base, &file("ipv4_prefix = 24\n"));
        assert_eq!(
            prefix,
            ["clients of policy 'api' begin with no debts, because its key changes: it was for \
              each ip (IPv6 by /64), and becomes for each ip (IPv4 by /24, IPv6 by /64)"]
        );
        for more in ["ipv6_prefix = 48\n", "lowercase = true\n"] {
            assert_eq!(sentences(&base, &file(more)).len(), 1, "{more}");
        }
        let nat64 = format!("nat64 = [\"2001:db8::/96\"]\n{base}");
        assert_eq!(sentences(&base, &nat64).len(), 1);
        assert_eq!(sentences(&base, &base.replace("\"ip\"", "\"src\"")).len(), 1);
    }

    #[test]
    fn overrides_with_keys_of_their_own_are_named() {
        let file = |net: &str| {
            format!(
                "[policy.api]\nlimits = \"5/d\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
                 [policy.api.overrides]\n\"{net}\" = \"9/d\"\n"
            )
        };
        let narrow = sentences(&file("192.0.2.0/24"), &file("192.0.2.1"));
        assert!(narrow[0].starts_with("clients in 192.0.2.1/32 begin with no debts under policy"));
        let two = sentences(&file("192.0.2.1"), &file("192.0.2.0/28"));
        assert!(two[0].starts_with("clients in 192.0.2.0/28 and 1 more network begin"), "{two:?}");
        assert_eq!(sentences(&file("192.0.2.0/24"), &file("192.0.0.0/16")), [""; 0]);
    }

    #[test]
    fn args_that_a_key_of_all_args_leaves_out_are_named() {
        let file = |more: &str| format!("[policy.api]\nlimits = \"5/d\"\n{more}");
        let said = sentences(&file(""), &file("cost = \"n\"\n"));
        assert!(said[0].ends_with("args (IPv6 by /64), except n"), "{said:?}");
        let when = file("when = { plan = \"a\" }\n");
        assert!(sentences(&when, &file(""))[0].contains(", except plan, and becomes for each"));
    }

    #[test]
    fn names_of_policies_and_limits_are_part_of_the_key() {
        let file = |policy: &str, limits: &str| {
            format!("[policy.{policy}]\nmessage = \"m\"\nkey = [\"ip\"]\nlimits = {limits}\n")
        };
        assert_eq!(
            sentences(&file("login", "\"5/d\""), &file("logins", "\"5/d\"")),
            ["policy 'logins' has no debts of 'login', which was for the same message"]
        );
        let named = |name: &str| file("api", &format!("{{ name = \"{name}\", rate = \"5/d\" }}"));
        let said = sentences(&named("day"), &named("daily"));
        assert!(said[0].starts_with("limit 'api.daily' of policy 'api' begins with no debts of"));
        let two = file("api", "[\"5/d\", { name = \"b\", rate = \"9/d\" }]");
        assert_eq!(sentences(&file("api", "[\"5/d\"]"), &two), [""; 0], "one more limit");
        let window = file("api", "{ count = 5, window = \"day\" }");
        let said = sentences(&file("api", "\"5/d\""), &window);
        let other_way = "under limit 'api' of policy 'api', because it counts in another way";
        assert!(said[0].ends_with(other_way));
        let week = file("api", "{ count = 9, window = \"week\" }");
        assert!(sentences(&window, &week)[0].ends_with(other_way));
        assert_eq!(sentences(&window, &window.replace("count = 5", "count = 6")), [""; 0]);
    }
}

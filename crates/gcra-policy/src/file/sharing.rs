//! The grammar of `shared`, `without_store` and `open_for`, and whether limits can be shared.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use gcra_lease::MOST_CELLS;
use gcra_table::Nanos;

use crate::file::reader::{Entries, Node, Reader};
use crate::limit::Limit;
use crate::policy::Policy;
use crate::sharing::{Sharing, WORDS, WithoutStore, in_whole_cells, lent};

/// How long a policy may be open without the store.
const OPEN_FOR: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

/// The settings of a policy that are read here.
pub(crate) const SETTINGS: [&str; 3] = ["shared", "without_store", "open_for"];

/// Takes the settings of the policy with this name. Returns how it is shared, if it is, and where
/// that stands.
pub fn sharing<'t>(
    reader: &mut Reader<'t>,
    entries: &mut Entries<'_, 't>,
    policy: &str,
    has_store: bool,
) -> Option<(usize, Sharing)> {
    let [shared, without, open_for] = SETTINGS.map(|name| entries.take(name));
    let is_shared = shared.and_then(|value| reader.boolean(value, "shared"));
    if shared.is_some() && is_shared.is_none() {
        // It is wrong, and may have been meant.
        let _ = without.map(|value| word(reader, value));
        let _ = open_for.map(|value| reader.time(value, "open_for", OPEN_FOR, "10s"));
        return None;
    }
    if is_shared != Some(true) {
        let needs = [("without_store", without), ("open_for", open_for)];
        for (name, value) in needs.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            let what = format!("{name} has no effect without shared = true; leave it out");
            reader.wrong(value.span().start, &what);
        }
        return None;
    }
    let at = shared.map_or(0, |value| value.span().start);
    if !has_store {
        let what = format!(
            "policy '{policy}' is shared, and the file has no store; write [store], and below it \
             url = \"redis://HOST:PORT\""
        );
        reader.wrong(at, &what);
    }
    let without_store = without.map(|value| word(reader, value));
    let without_store = match (without_store, open_for) {
        (Some(Some(WithoutStore::Open { for_ })), Some(value)) => {
            let time = reader.time(value, "open_for", OPEN_FOR, "10s");
            WithoutStore::Open { for_: time.unwrap_or(for_) }
        }
        // If the word is wrong, "open" may have been meant.
        (Some(None), _) => WithoutStore::default(),
        (without_store, Some(value)) => {
            let what = "open_for has no effect without without_store = \"open\"; leave it out";
            reader.wrong(value.span().start, what);
            without_store.flatten().unwrap_or_default()
        }
        (Some(Some(without_store)), None) => without_store,
        (None, None) => WithoutStore::default(),
    };
    Some((at, Sharing { without_store, at_once: false }))
}

fn word<'t>(reader: &mut Reader<'t>, value: &Node<'t>) -> Option<WithoutStore> {
    let like = "\"share\", \"closed\" or \"open\"";
    let word = reader.string(value, "without_store", like)?;
    let found = WithoutStore::of_word(&word);
    if found.is_none() {
        let at = value.span().start;
        reader.unknown(at, "a way to do without the store", &word, &WORDS);
    }
    found
}

/// Lets the limits of a shared policy, its overrides and its trial owe whole cells.
pub(crate) fn apply<'l>(limits: impl Iterator<Item = &'l mut Limit>) {
    for limit in limits.filter(|limit| limit.calendar.is_none()) {
        limit.quota = in_whole_cells(limit.quota);
        // It was made for this limit just now, so that nothing else has it.
        if let Some(by_arg) = limit.by_arg.as_mut().and_then(Arc::get_mut) {
            by_arg.is_shared = true;
        }
    }
}

/// Why a limit cannot be shared, if it cannot: a sentence that begins with the limit. `has_cost`
/// is whether requests can cost more than a cell that is lent.
pub(crate) fn not_shareable(limit: &Limit, has_cost: bool) -> Option<String> {
    let (quota, text) = (limit.quota, &limit.words.text);
    if limit.calendar.is_some() {
        return None;
    }
    if has_cost && quota.burst() > MOST_CELLS {
        return Some(format!(
            "the limit '{text}' cannot be shared, because a request with a 'cost' can have at \
             most {MOST_CELLS} cells then; give it a burst of at most {MOST_CELLS}, or do not \
             share it"
        ));
    }
    let error = lent(quota).err()?;
    Some(format!("the limit '{text}' cannot be shared: {error}; lower its burst"))
}

/// Notes what makes it impossible to share a policy, or its trial with these limits.
pub fn check(reader: &mut Reader<'_>, at: usize, policy: &Policy, trial: &[Limit]) {
    if policy.limits().next().is_none() && trial.is_empty() {
        let what = format!(
            "policy '{}' has no limit that could be shared; leave shared out",
            policy.name
        );
        reader.wrong(at, &what);
    }
    let at_once = policy.shared.is_some_and(|shared| shared.at_once);
    let has_share =
        policy.shared.is_some_and(|shared| shared.without_store == WithoutStore::Share);
    let has_limits = policy.limits().next().is_some() || !trial.is_empty();
    if at_once && has_share && has_limits {
        let has = match policy {
            _ if policy.settle.is_some() => "settle",
            _ if policy.max_delay() > Nanos::ZERO => "max_delay",
            _ if policy.bandwidth.is_some() => "bandwidth",
            _ => "a limit with a window",
        };
        let what = format!(
            "policy '{}' is shared and has {has}, so no machine can have a share of its \
             limits while the store is away; write without_store = \"closed\" to block requests \
             then, or \"open\" to allow them for a time",
            policy.name
        );
        reader.wrong(at, &what);
    }
    let mut said = Vec::new();
    let not_shareable = |limit| not_shareable(limit, policy.cost.is_some() && !at_once);
    for what in policy.limits().chain(trial).filter_map(not_shareable) {
        // The same limit may stand in several overrides.
        if !said.contains(&what) {
            reader.wrong(at, &format!("policy '{}': {what}", policy.name));
            said.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::file::document::parse;
    use crate::policies::Policies;
    use crate::words::{blocked_without_store, without_store_in_words};

    const STORE: &str = "[store]\nurl = \"redis://a\"\n";

    fn read(text: &str) -> Result<Policies, Vec<String>> {
        parse(Path::new("x.toml"), text)
    }

    fn shared(settings: &str) -> Option<Sharing> {
        let text = format!("{STORE}[policy.api]\nlimits = \"1/s\"\n{settings}\n");
        read(&text).unwrap().list[0].shared
    }

    #[test]
    fn a_policy_is_shared_only_if_it_says_so() {
        let with = |without_store| Some(Sharing { without_store, at_once: false });
        assert_eq!(shared(""), None);
        assert_eq!(shared("shared = false"), None);
        assert_eq!(shared("shared = true"), with(WithoutStore::Share));
        assert_eq!(shared("shared = true\nwithout_store = \"share\""), with(WithoutStore::Share));
        assert_eq!(
            shared("shared = true\nwithout_store = \"closed\""),
            with(WithoutStore::Closed)
        );
        let open = |seconds| with(WithoutStore::Open { for_: Duration::from_secs(seconds) });
        assert_eq!(shared("shared = true\nwithout_store = \"open\""), open(10));
        let text = "shared = true\nwithout_store = \"open\"\nopen_for = \"1m\"";
        assert_eq!(shared(text), open(60));
    }

    #[test]
    fn a_trial_is_shared_as_its_policy_is() {
        let text = format!(
            "{STORE}[policy.api]\nlimits = \"1/s\"\nobserve = \"2/s\"\nshared = true\n\
             without_store = \"closed\"\n[policy.web]\nlimits = \"1/s\"\nobserve = \"2/s\"\n"
        );
        let policies = read(&text).unwrap();
        let shared: Vec<_> = policies.list.iter().map(|policy| policy.shared).collect();
        let closed = Some(Sharing { without_store: WithoutStore::Closed, at_once: false });
        assert_eq!(shared, [closed, None, closed, None]);
    }

    #[test]
    fn what_may_be_shared_is_shared() {
        for settings in [
            "limits = \"1/s burst 8191\"\ncost = \"n\"",
            "limits = \"100000/s\"",
            "limits = \"1/h burst 8191\"",
            "limits = \"1000000000/s burst 1\"",
            "limits = \"1/365d\"",
            "limits = \"1/s\"\npenalty = { ceiling = \"1m\" }",
            "limits = \"1/s burst 5\"\ncost = \"n\"",
            "limits = \"deny\"\noverrides = { \"192.0.2.1\" = \"1/s\" }",
            "limits = \"1/s\"\noverrides = { a = \"deny\", b = \"unlimited\" }",
            "limits = \"unlimited\"\nobserve = \"1/s\"",
        ] {
            let policies = read(&format!("{STORE}[policy.api]\nshared = true\n{settings}\n"));
            let policies = policies.unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
            assert!(policies.list[0].shared.is_some() && policies.warnings.is_empty());
        }
    }

    #[test]
    fn each_wrong_setting_is_one_clear_sentence() {
        let api = |settings: &str| format!("[policy.api]\nlimits = \"1/s\"\n{settings}\n");
        for (text, sentence) in [
            (api("shared = true"), "3: policy 'api' is shared, and the file has no store; write"),
            (
                api("without_store = \"share\""),
                "3: without_store has no effect without shared = true; leave it out",
            ),
            (
                STORE.to_owned() + &api("shared = false\nopen_for = \"1s\""),
                "6: open_for has no effect without shared = true; leave it out",
            ),
            (
                STORE.to_owned() + &api("shared = true\nopen_for = \"1s\""),
                "6: open_for has no effect without without_store = \"open\"; leave it out",
            ),
            (
                STORE.to_owned()
                    + &api("shared = true\nwithout_store = \"closed\"\nopen_for = \"1s\""),
                "7: open_for has no effect without without_store = \"open\"; leave it out",
            ),
            (
                STORE.to_owned()
                    + &api("shared = true\nwithout_store = \"open\"\nopen_for = \"2h\""),
                "7: '2h' in open_for is not a time from 1s to 1h; write a whole number and a unit",
            ),
            (
                STORE.to_owned()
                    + &api("shared = true\nwithout_store = \"opn\"\nopen_for = \"2s\""),
                "6: 'opn' is not a way to do without the store; did you mean 'open'?",
            ),
            (
                STORE.to_owned() + &api("shared = true\nwithout_store = \"deny\""),
                "6: 'deny' is not a way to do without the store; use one of share, closed, open",
            ),
            (
                STORE.to_owned() + &api("shared = \"yes\"\nwithout_store = \"open\""),
                "5: shared must be true or false, without quotes",
            ),
            (
                STORE.to_owned() + "[policy.api]\nlimits = \"deny\"\nshared = true\n",
                "5: policy 'api' has no limit that could be shared; leave shared out",
            ),
            (
                STORE.to_owned()
                    + "[policy.api]\nlimits = \"9000/s\"\nshared = true\ncost = \"n\"\n",
                "5: policy 'api': the limit '9000 per second, up to 9000 at once' cannot be \
                 shared, because a request with a 'cost' can have at most 8191 cells then; give \
                 it a burst of at most 8191, or do not share it",
            ),
            (
                STORE.to_owned() + &api("shared = true\ncost = \"n\"\nobserve = \"9000/s\""),
                "5: policy 'api': the limit '9000 per second, up to 9000 at once' cannot be",
            ),
            (
                STORE.to_owned()
                    + &api("shared = true\ncost = \"n\"\n[policy.api.overrides]\n\
                         a = \"1/s burst 8192\"\nb = \"1/s burst 8192\""),
                "5: policy 'api': the limit '1 per second, up to 8192 at once' cannot be shared",
            ),
        ] {
            let mistakes = read(&text).unwrap_err();
            let expected = format!("x.toml:{sentence}");
            assert!(mistakes.len() == 1 && mistakes[0].starts_with(&expected), "{mistakes:#?}");
        }
    }

    #[test]
    fn what_stands_beside_a_wrong_shared_is_read() {
        let text = "[policy.api]\nlimits = \"1/s\"\nshared = \"yes\"\nwithout_store = \
                    \"fail-open\"\nopen_for = \"2h\"\n";
        let mistakes = read(&(STORE.to_owned() + text)).unwrap_err();
        let begins = |(mistake, begin): (&String, &str)| mistake.starts_with(begin);
        let expected = [
            "x.toml:5: shared must be true or false",
            "x.toml:6: 'fail-open' is not a way to do without the store",
            "x.toml:7: '2h' in open_for is not a time",
        ];
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:#?}");
        assert!(mistakes.iter().zip(expected).all(begins), "{mistakes:#?}");
    }

    #[test]
    fn a_store_that_no_policy_uses_gets_a_warning() {
        let text = format!("{STORE}[policy.api]\nlimits = \"1/s\"\n");
        let warnings = read(&text).unwrap().warnings;
        let warning = "x.toml:1: warning: no policy uses the store; write shared = true in those";
        assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{warnings:?}");
    }

    #[test]
    fn sharing_and_what_happens_without_the_store_are_said() {
        let text = format!("{STORE}[policy.api]\nlimits = \"1/s burst 2\"\nshared = true\n");
        let words = |more: &str| read(&(text.clone() + more)).unwrap().in_words();
        let said = words("");
        let shared = "\n    shared with all machines that use the store; without the store, ";
        assert!(
            said.contains(&format!("{shared}each machine allows its share of the limit\n")),
            "{said}"
        );
        assert!(
            said.contains("\nstore: redis://a, for which a request waits at most 20ms\n"),
            "{said}"
        );
        let said = words("without_store = \"closed\"\n");
        assert!(said.contains(&format!("{shared}requests are blocked\n")), "{said}");
        let said = words("without_store = \"open\"\nopen_for = \"90s\"\n");
        let open = "requests are allowed for 90s, and then each machine allows its share of the";
        assert!(said.contains(&format!("{shared}{open}")), "{said}");
    }

    #[test]
    fn a_burst_that_cannot_be_divided_is_named() {
        let text = format!(
            "{STORE}[policy.api]\nlimits = \"1/s burst 2\"\nshared = true\n\
             [policy.api.overrides]\na = \"5/s\"\n\
             [policy.web]\nmessage = \"web\"\nlimits = \"1/s burst 2\"\nshared = \
             true\nwithout_store = \"open\"\n[policy.shut]\nmessage = \"shut\"\nlimits = \
             \"1/s\"\nshared = true\nwithout_store = \"closed\"\n"
        );
        let policies = read(&text).unwrap();
        let words = |machines| {
            let words = |policy: &Policy| {
                let sharing = policy.shared.unwrap_or_default();
                without_store_in_words(policy, sharing, machines)
            };
            policies.list.iter().map(words).collect::<Vec<_>>()
        };
        let share = "each machine allows its share of the limit".to_owned();
        let open = format!("requests are allowed for 10s, and then {share}");
        for machines in [0, 1, 2] {
            assert_eq!(words(machines), [&share, &open, "requests are blocked"]);
        }
        let blocked = "all requests under '1 per second, up to 2 at once' are blocked, because 3 \
                       machines cannot share a burst of less than 3";
        let others = format!("{blocked}; under other limits, each machine allows its share");
        let open = format!("requests are allowed for 10s, and then {blocked}");
        assert_eq!(words(3), [&others, &open, "requests are blocked"]);
        assert!(words(6)[0].contains("at once' and '5 per second, up to 5 at once' are blocked"));
        let many = "1 = \"1/s\", 2 = \"2/s\", 3 = \"3/s\", 4 = \"1/s\", 5 = \"5/s\"";
        let many = many.replace(" =", "a =");
        let text = format!(
            "{STORE}[policy.api]\nlimits = \"3/s\"\nshared = true\noverrides = {{ {many} }}\n"
        );
        let requests = blocked_without_store(&read(&text).unwrap().list[0], 9).unwrap();
        assert!(requests.ends_with("up to 3 at once' and 1 other limit"), "{requests}");
    }

    #[test]
    fn agents_that_share_in_other_ways_have_other_limits() {
        let digest = |store: &str, settings: &str| {
            let text = format!("{store}[policy.api]\nlimits = \"1/s\"\n{settings}\n");
            read(&text).unwrap().limits_digest
        };
        let digests = [
            digest(STORE, ""),
            digest(STORE, "shared = true"),
            digest(STORE, "shared = true\nwithout_store = \"closed\""),
            digest(STORE, "shared = true\nwithout_store = \"open\""),
            digest(STORE, "shared = true\nwithout_store = \"open\"\nopen_for = \"11s\""),
        ];
        for (place, one) in digests.iter().enumerate() {
            assert!(!digests[..place].contains(one), "{place}");
        }
        assert_eq!(digest("", ""), digests[0], "a store alone changes no limit");
        let other = digest("[store]\nurl = \"redis://b\"\nwait = \"1s\"\n", "shared = true");
        assert_eq!(other, digests[1], "the names of the store do not count");
    }
}

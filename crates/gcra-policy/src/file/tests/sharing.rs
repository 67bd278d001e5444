//! Whether policies are shared.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::describe::{blocked_without_store, without_store_in_words};
use crate::file::document::parse;
use crate::file::tests::sentences;
use crate::policies::Policies;
use crate::policy::Policy;
use crate::sharing::{Sharing, WithoutStore};

const STORE: &str = "[store]\nurl = \"redis://a\"\n";

fn read(text: &str) -> Result<Policies, Vec<String>> {
    parse(Path::new("x.toml"), text).map_err(|mistakes| sentences(&mistakes))
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
    assert_eq!(shared("shared = true\nwithout_store = \"closed\""), with(WithoutStore::Closed));
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
fn sharing_and_what_happens_without_the_store_are_said() {
    let text = format!("{STORE}[policy.api]\nlimits = \"1/s burst 2\"\nshared = true\n");
    let words = |more: &str| read(&(text.clone() + more)).unwrap().in_words(UNIX_EPOCH);
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
        let words = |policy: &Arc<Policy>| {
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

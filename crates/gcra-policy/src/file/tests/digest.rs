//! The digest of limits.

use std::path::Path;

use crate::file::document::parse;

fn digest(text: &str) -> u64 {
    parse(Path::new("gcra-spoa.toml"), text).unwrap().limits_digest
}

#[test]
fn the_same_limits_in_other_words_have_the_same_digest() {
    let one = "[policy.api]\nlimits = \"60/m burst 5\"\nkey = [\"ip\"]\n\
               [policy.api.overrides]\n\"192.0.2.1\" = \"deny\"\n\"10.0.0.0/8\" = \"1/s\"\n\
               \"alice\" = \"unlimited\"\n";
    let other = "# The API.\nanswer = [\"policy\"]\n[policy.api]\nkey = [\"ip\"]\n\
                 limits = [{ rate = \"1/s\", burst = 5 }]\n[policy.api.overrides]\n\
                 alice = \"unlimited\"\n\"10.0.0.0/8\" = \"1/s\"\n\
                 \"192.0.2.1/32\" = \"deny\"\n";
    assert_eq!(digest(one), digest(other));
    let trial = other.replace("key = [\"ip\"]", "key = [\"ip\"]\nobserve = [\"1/h\"]");
    assert_eq!(digest(one), digest(&trial));
    let [gold, web] = [
        "[policy.gold]\nmessage = \"api\"\nlimits = \"2/s\"\n\
         when = { plan = [\"a\", \"b\"] }\n",
        "[policy.web]\nlimits = \"1/s\"\n",
    ];
    let gold_again = gold.replace("[\"a\", \"b\"]", "[\"b\", \"a\"]");
    assert_eq!(digest(&[gold, web].concat()), digest(&[web, &gold_again].concat()));
}

#[test]
fn the_order_of_policies_for_one_message_counts() {
    let policy = |name: &str, plan: &str| {
        format!(
            "[policy.{name}]\nmessage = \"api\"\nlimits = \"2/s\"\n\
             when = {{ plan = \"{plan}\" }}\n"
        )
    };
    let [one, other] = [policy("one", "a"), policy("other", "b")];
    assert_ne!(digest(&[&*one, &other].concat()), digest(&[&*other, &one].concat()));
}

#[test]
fn every_difference_counts() {
    let base = "[policy.api]\nlimits = \"1/s\"\nkey = [\"ip\"]\n";
    let digests: Vec<_> = [
        base.to_owned(),
        base.replace("policy.api", "policy.web"),
        base.replace("1/s", "1/s burst 2"),
        base.replace("1/s", "2/s"),
        base.replace("\"1/s\"", "\"deny\""),
        base.replace("\"1/s\"", "\"unlimited\""),
        base.replace("\"1/s\"", "[\"1/s\", \"1/s\"]"),
        base.replace("\"1/s\"", "{ count = 5, window = \"day\" }"),
        base.replace("\"1/s\"", "{ count = 6, window = \"day\" }"),
        base.replace("\"1/s\"", "{ count = 5, window = \"week\" }"),
        base.replace("\"1/s\"", "{ count = 5, window = \"day Europe/Berlin\" }"),
        base.replace("\"ip\"", "\"ip\", \"path\""),
        base.replace("key = [\"ip\"]", ""),
        base.replace("\"ip\"", "\"ip\", \"else path\""),
        base.replace("\"ip\"", "\"ip\", \"else null\""),
        format!("{base}message = \"x\""),
        format!("{base}when = {{ plan = \"gold\" }}"),
        format!("{base}when = {{ plan = [\"gold\", \"silver\"] }}"),
        format!("{base}cost = \"n\""),
        format!("{base}mode = \"observe\""),
        format!("{base}ipv6_prefix = 48"),
        format!("{base}lowercase = true"),
        format!("{base}penalty = {{ cells = 1, ceiling = \"1m\" }}"),
        format!("{base}penalty = {{ cells = 2, ceiling = \"1m\" }}"),
        format!("{base}penalty = {{ cells = 1, ceiling = \"2m\" }}"),
        format!("{base}bandwidth = {{ full = \"2m\", least = \"1m\" }}"),
        format!("{base}bandwidth = {{ full = \"2m\", least = \"2m\" }}"),
        format!("{base}bandwidth = {{ full = \"3m\", least = \"1m\" }}"),
        format!("{base}max_delay = \"1m\""),
        format!("{base}max_delay = \"2m\""),
        format!("{base}max_delay = \"1m\"\npenalty = {{ cells = 1, ceiling = \"1m\" }}"),
        format!("{base}[policy.api.overrides]\n\"192.0.2.1\" = \"deny\"\n"),
        format!("{base}[policy.api.overrides]\n\"192.0.2.1\" = \"unlimited\"\n"),
        format!("{base}[policy.api.overrides]\n\"str:192.0.2.1\" = \"unlimited\"\n"),
        format!("{base}[policy.web]\nlimits = \"1/s\"\n"),
    ]
    .iter()
    .map(|text| digest(text))
    .collect();
    for (place, one) in digests.iter().enumerate() {
        assert!(!digests[..place].contains(one), "{place}");
    }
}

//! Overrides and lists.

use gcra_text::network::written_net;
use spop_codec::Value;

use crate::file::document;
use crate::file::tests::{api, good, parse, sentences, warnings};
use crate::limit::Rule;
use crate::policies::Policies;
use crate::policy::RuleAt;

#[test]
fn of_networks_the_smallest_counts() {
    let policies = good(
        r#"[policy.api]
limits = "1/s"
[policy.api.overrides]
"10.0.0.0/8" = "unlimited"
"10.1.0.0/16" = "deny"
"10.1.2.3" = "5/s"
"2001:db8::/32" = "deny"
"Partner" = "100/s"
"#,
    );
    let policy = &policies.list[0];
    let rule = |value: Value<'_>| {
        policy.rule(RuleAt::new(policy.override_for(value).map(|found| found.rule)))
    };
    let ip = |text: &str| Value::from(text.parse::<std::net::IpAddr>().unwrap());
    let burst = |rule: &Rule| match rule {
        Rule::Limits(limits) => limits[0].burst(),
        Rule::Deny | Rule::Unlimited => 0,
    };
    assert_eq!(*rule(ip("10.2.0.1")), Rule::Unlimited);
    assert_eq!(*rule(ip("10.1.9.9")), Rule::Deny);
    assert_eq!(*rule(ip("::ffff:10.1.9.9")), Rule::Deny, "the same address");
    assert_eq!(burst(rule(ip("10.1.2.3"))), 5);
    assert_eq!(*rule(ip("2001:db8:1::1")), Rule::Deny);
    assert_eq!(burst(rule("Partner".into())), 100);
    for other in [ip("192.0.2.1"), ip("2001:db9::1"), "partner".into(), Value::Null, 1_i64.into()]
    {
        assert_eq!(burst(rule(other)), 1, "{other:?}");
    }
}

/// A policy with this override, and one with a list of this one line; or what is wrong with it.
fn with_override(text: &str) -> [Result<Policies, Vec<String>>; 2] {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("list.txt"), format!("{text}\n")).unwrap();
    let table = "[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n";
    let list = "[policy.api]\nlimits = \"1/s\"\n[[policy.api.lists]]\nfile = \"list.txt\"\n\
                limits = \"deny\"\n";
    let file = directory.path().join("gcra-spoa.toml");
    [
        parse(&format!("{table}'{text}' = \"deny\"\n")),
        document::parse(&file, list).map_err(|mistakes| sentences(&mistakes)),
    ]
}

/// A typing error in a list of denied addresses must not allow an address of the list.
#[test]
fn an_override_that_is_nearly_an_address_is_a_mistake() {
    for text in ["300.1.1.1", "1.2.3.4/24", "10,0,0,1"] {
        let sentence = written_net(text).unwrap_err();
        for outcome in with_override(text) {
            let mistakes = outcome.expect_err(text);
            assert!(mistakes.len() == 1 && mistakes[0].ends_with(&*sentence), "{mistakes:?}");
        }
    }
    // A list cannot have these: its lines are trimmed, and may be empty.
    for text in ["", " 1.2.3.4", "partner\t"] {
        let [table, list] = with_override(text);
        assert!(table.is_err() && list.is_ok(), "{text:?}");
    }
}

#[test]
fn a_comment_in_a_list_begins_with_a_hash() {
    for (text, mark) in
        [("; partners", ";"), (";10.0.0.1", ";"), ("// partners", "//"), ("//10.0.0.1", "//")]
    {
        let [_, list] = with_override(text);
        let mistakes = list.expect_err(text);
        let said = format!(
            "line 1: '{text}' begins with '{mark}'; write # before a comment, or str:{text} for \
             the text itself"
        );
        assert!(mistakes.len() == 1 && mistakes[0].ends_with(&said), "{text:?}: {mistakes:?}");
        let [_, list] = with_override(&format!("str:{text}"));
        assert!(list.unwrap().list[0].override_for(text.into()).is_some(), "{text:?}");
    }
    let [_, list] = with_override("# 10.0.0.1");
    assert!(list.is_ok());
}

#[test]
fn an_override_is_for_an_address_a_network_or_a_value() {
    let matches = |text: &str, value: Value<'_>| {
        with_override(text).map(|outcome| {
            let policies = outcome.unwrap_or_else(|mistakes| panic!("{text:?}: {mistakes:?}"));
            policies.list[0].override_for(value).is_some()
        })
    };
    let ip = |text: &str| Value::from(text.parse::<std::net::IpAddr>().unwrap());
    for (text, value) in [
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3/32", "::ffff:10.1.2.3"),
        ("0.0.0.0/0", "10.1.2.3"),
        ("2001:db8::/32", "2001:db8::1"),
        ("2001:DB8::1", "2001:db8::1"),
        // An IPv4 address is the same in either form, here too.
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::ffff:10.0.0.0/104", "10.1.2.3"),
        ("::ffff:0.0.0.0/96", "10.1.2.3"),
    ] {
        assert_eq!(matches(text, ip(value)), [true; 2], "{text}");
    }
    for value in [
        "a/b",
        "Partner",
        "12345",
        "-1",
        "user:123:45",
        "/login",
        "/24",
        "/1/2",
        "app1:8080",
        "www.example.com",
        "http://192.0.2.1/",
        "ec2-192-0-2-1.example.com",
        "App::Module",
        "curl/7.88.1",
        "123e4567-e89b-12d3",
        "null:",
        "Mozilla/5.0 (X11; Linux x86_64)",
        "a b",
        "bob",
        "\"bob\"",
        "a-b",
        "a,b",
        "key_1",
        "http://10.0.0.1",
        "2024-01-02",
        "2024-01-02T10:30",
        "10-0-0-1.example.com",
        "0x0a0000",
        "c:/windows",
    ] {
        assert_eq!(matches(value, value.into()), [true; 2], "{value}");
    }
    // A string that looks like an address says so, as on the command line.
    for value in
        ["300.1.1.1", "10.1.2.3", "1.2.3", "*", "str:x", "a", "10:30", "10-0-0-1", "0x0a000001"]
    {
        assert_eq!(matches(&format!("str:{value}"), value.into()), [true; 2], "{value}");
    }
    assert_eq!(matches("str:10.1.2.3", ip("10.1.2.3")), [false; 2]);
    let [table, _] = with_override("str: with space ");
    assert!(table.unwrap().list[0].override_for(" with space ".into()).is_some());
}

#[test]
fn a_warning_about_a_list_names_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("list.txt");
    let file = directory.path().join("gcra-spoa.toml");
    let warnings = |lines: &str| {
        std::fs::write(&list, lines).unwrap();
        let text = "[policy.api]\nlimits = \"1/s\"\n[[policy.api.lists]]\nfile = \"list.txt\"\n\
                    limits = \"deny\"\n";
        document::parse(&file, text)
            .map(|policies| sentences(&policies.warnings))
            .map_err(|mistakes| sentences(&mistakes))
    };
    let at = |line: u8| {
        format!("{}:3: warning: the list {}, line {line}: ", file.display(), list.display())
    };
    let found = warnings("# ours\n10.0.0.1\n10.0.0.2 # two\noffice\nstr:home\nlab#1\n").unwrap();
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(
        found[1],
        at(4)
            + "'office' is a string among addresses, so no address will ever match it; write an \
               address, or str: in front of it if it is meant"
    );
    assert_eq!(
        found[0],
        at(6)
            + "the # is part of the value 'lab#1', because a comment begins after white space; \
               write white space before the #, or str:lab#1 if it is meant"
    );
    let found = warnings("\"alice\"\n").unwrap();
    assert_eq!(
        found,
        [at(1)
            + "the quotes are part of the value \"alice\", because a list needs none; write \
               alice, or str:\"alice\" if they are meant"]
    );
    let found = warnings("str:\"alice\"\nbob\t# a friend\nal#ice\n").unwrap();
    assert!(found.len() == 1 && found[0].starts_with(&at(3)), "{found:#?}");
    let mistakes = warnings("10.0.0.1#one\n").unwrap_err();
    assert!(mistakes[0].contains("write white space before the comment"), "{mistakes:#?}");
    // Of many there are only the first, and behind them the number of the others.
    let many: String = (0..50).map(|number| format!("\"a{number}\"\n")).collect();
    let found = warnings(&many).unwrap();
    assert_eq!(found.len(), 11);
    for (warning, number) in found.iter().zip(1..=10) {
        assert!(warning.starts_with(&at(number)), "{found:#?}");
    }
    assert!(found[10].contains("has 40 more entries with quotes"), "{found:#?}");
}

#[test]
fn warnings_are_counted_although_not_all_are_lines() {
    let policies: String = (0..150)
        .map(|number| format!("[policy.p{number}]\nlimits = [\"10/s\", \"20/s burst 30\"]\n"))
        .collect();
    let policies = good(&policies);
    assert_eq!((policies.warnings.len(), policies.warning_count), (101, 150));
    assert_eq!(&*policies.warnings[100], "gcra-spoa.toml: and 50 more warnings");

    let directory = tempfile::tempdir().unwrap();
    let many: String = (0..50).map(|number| format!("\"a{number}\"\n")).collect();
    std::fs::write(directory.path().join("list.txt"), many).unwrap();
    let text = "[policy.api]\nlimits = \"1/s\"\n[[policy.api.lists]]\nfile = \"list.txt\"\n\
                limits = \"deny\"\n";
    let policies = document::parse(&directory.path().join("gcra-spoa.toml"), text).unwrap();
    assert_eq!((policies.warnings.len(), policies.warning_count), (11, 50));
}

/// Files in haproxy/ cut addresses to their /64, so that the agent never sees these.
#[test]
fn an_override_for_less_than_a_64_gets_a_warning() {
    let of = |settings: &str| {
        warnings(&api(&format!(
            "limits = \"1/s\"\n{settings}[policy.api.overrides]\n\
            \"2001:db8::/64\" = \"deny\"\n\"192.0.2.1\" = \"deny\"\n\
            \"::ffff:192.0.2.2\" = \"deny\"\n\"2001:db8:0:1::1\" = \"deny\"\n\
            \"2001:db8:0:2::/80\" = \"deny\"\n"
        )))
    };
    let found = of("key = [\"ip\"]\n");
    assert_eq!(
        found,
        ["8: warning: the override '2001:db8:0:1::1' and 1 more override of policy 'api' are \
             for less than a /64; they apply only if HAProxy sends whole addresses (args ip=src), \
             and never with ip=src,ipmask(32,64), as in some files of haproxy/",]
    );
    assert_eq!(of("ipv6_prefix = 128\n"), [""; 0]);
    assert_eq!(of("ipv6_prefix = 56\n").len(), 1);
}

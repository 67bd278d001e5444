//! By which key a message is counted, and the reason if it has no key.

use super::*;

/// A bucket has one name in the lists, however the client spells its key.
#[tokio::test]
async fn a_client_has_one_name_with_lowercase() {
    let text = "[policy.api]\nlimits = \"9/s\"\nkey = [\"host\"]\nlowercase = true\n";
    let mut scenario = Scenario::new(text).await;
    let mut listed = Vec::new();
    for host in ["SHOP.Example.com", "shop.example.com", "Shop.example.COM"] {
        scenario.ask(&[("host", host.into())]).await;
        // Names are made when somebody looks.
        listed = scenario.stats.policy("api").heaviest(Outcome::Allowed, Minutes::Now).heaviest;
    }
    let [client] = &listed[..] else { panic!("{listed:?}") };
    assert!(client.client.starts_with("shop…(16)#"), "{}", client.client);
    assert_eq!(client.requests, 3);
}

/// A throttled address must not free the network that it is grouped with, nor use its limit up;
/// nor the other way round.
#[tokio::test]
async fn an_override_within_a_group_has_a_bucket_of_its_own() {
    let cases = [
        ("1000/h", "5/s burst 5", ["2001:db8::1", "2001:db8::2"], (1000, 5)),
        ("10/s burst 20", "1000/h", ["2001:db8::1", "2001:db8::2"], (20, 1000)),
        ("10/h burst 7", "10/h burst 7", ["2001:db8::", "2001:db8::2"], (7, 7)),
        ("10/h burst 7", "5/s burst 5", ["192.0.2.1", "192.0.2.2"], (7, 5)),
        ("10/h burst 7", "5/s burst 5", ["192.0.2.0", "::ffff:192.0.2.2"], (7, 5)),
    ];
    for (group, limit, [one, other], bursts) in cases {
        let mut scenario = Scenario::new(&format!(
            "[policy.api]\nlimits = \"{group}\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
             [policy.api.overrides]\n\"{one}\" = \"{limit}\"\n"
        ))
        .await;
        let mut passed = (0, 0);
        for _ in 0..1500 {
            passed.0 += u32::from(scenario.passes(other).await);
            passed.1 += u32::from(scenario.passes(one).await);
        }
        assert_eq!(passed, bursts, "{group}, {one} {limit}");
    }
}

#[tokio::test]
async fn overrides_within_overrides_and_side_by_side_have_buckets_of_their_own() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = \"10/h burst 2\"\nkey = [\"ip\"]\n[policy.api.overrides]\n\
         \"2001:db8:0:0:1::/80\" = \"10/h burst 3\"\n\"2001:db8:0:0:1::5\" = \"10/h burst 3\"\n\
         \"2001:db8:0:0:1::6\" = \"10/h burst 3\"\n\"2001:db8:1::/48\" = \"10/h burst 4\"\n",
    )
    .await;
    assert_eq!(scenario.passed("2001:db8::7", 9).await, 2, "the policy's group");
    assert_eq!(scenario.passed("2001:db8:0:0:1::7", 9).await, 3);
    assert_eq!(
        scenario.passed("2001:db8:0:0:1::8", 9).await,
        0,
        "the network of the override is one client"
    );
    assert_eq!(scenario.passed("2001:db8:0:0:1::5", 9).await, 3);
    assert_eq!(scenario.passed("2001:db8:0:0:1::6", 9).await, 3);
    assert_eq!(scenario.passed("2001:db8:1:1::1", 9).await, 4);
    assert_eq!(
        scenario.passed("2001:db8:1:2::1", 9).await,
        4,
        "wider than a group: each group is a client"
    );
    assert_eq!(scenario.passed("2001:db8:1:2::2", 9).await, 0);
}

#[tokio::test]
async fn a_request_without_a_value_for_the_key_has_no_decision() {
    let file = |more: &str| format!("[policy.api]\nlimits = \"1/d\"\nkey = [\"ip\"]\n{more}");
    let plain = Scenario::of(flags(&["--rate", "1/d", "--key", "ip"])).await;
    let exact = Scenario::new(&file("ipv6_prefix = 128\n")).await;
    for mut scenario in [plain, exact, Scenario::new(&file("")).await] {
        for _ in 0..2 {
            assert_eq!(blocked(&mut scenario, &[("ip", Value::Null)]).await, None);
            assert_eq!(blocked(&mut scenario, &[("host", address("192.0.2.1"))]).await, None);
        }
        assert_eq!(blocked(&mut scenario, &[("ip", address("192.0.2.1"))]).await, Some(false));
        assert_eq!(blocked(&mut scenario, &[("ip", address("192.0.2.1"))]).await, Some(true));
    }
    // Without the names of args, null is one of the values.
    let mut all = Scenario::of(flags(&["--rate", "1/d"])).await;
    let args = [("ip", address("192.0.2.1")), ("key", Value::Null)];
    assert_eq!(blocked(&mut all, &args).await, Some(false));
    assert_eq!(blocked(&mut all, &args).await, Some(true));
}

#[tokio::test]
async fn another_arg_stands_for_one_without_a_value() {
    let key = "key = [\"key\", \"else token\", \"else ip\"]";
    let mut scenario = Scenario::new(&format!(
        "[policy.api]\nlimits = \"1/d\"\n{key}\nipv4_prefix = 24\n[policy.api.overrides]\n\
         \"198.51.100.0/24\" = \"2/d\"\n\"gold\" = \"3/d\"\n"
    ))
    .await;
    let ip = |ip: &str| ("ip", address(ip));
    let (null, text) = (Value::Null, |text: &'static str| Value::String(text.as_bytes()));
    for (args, passes) in [
        (vec![("key", text("a")), ip("192.0.2.1")], 1),
        (vec![("key", null), ip("192.0.2.1")], 1),
        // The address is grouped, also where the arg is missing.
        (vec![ip("192.0.2.2")], 0),
        (vec![ip("192.0.3.2")], 1),
        // A value of the arg, of the first fallback and of the second are different clients.
        (vec![("key", null), ("token", text("a")), ip("192.0.2.1")], 1),
        (vec![("key", null), ("token", null), ("ip", text("a"))], 1),
        (vec![("key", address("192.0.2.1"))], 1),
        // Overrides are looked up by the value that is used.
        (vec![("key", null), ip("198.51.100.7")], 2),
        (vec![("key", text("b")), ip("198.51.100.7")], 1),
        (vec![("token", text("gold")), ip("198.51.100.7")], 3),
        (vec![("key", text("gold"))], 3),
    ] {
        let mut passed = 0;
        for _ in 0..5 {
            passed += u32::from(blocked(&mut scenario, &args).await == Some(false));
        }
        assert_eq!(passed, passes, "{args:?}");
    }
    assert_eq!(blocked(&mut scenario, &[("key", null), ("ip", null)]).await, None);
}

#[tokio::test]
async fn null_is_a_value_of_the_key_where_the_policy_says_so() {
    let of_flags = flags(&["--rate", "1/d", "--key", "ip,key,else null"]);
    let of_a_file =
        policies("[policy.api]\nlimits = \"1/d\"\nkey = [\"ip\", \"key\", \"else null\"]\n");
    for policies in [of_flags, of_a_file] {
        let mut scenario = Scenario::of(policies).await;
        let (one, other) = (("ip", address("192.0.2.1")), ("ip", address("192.0.2.2")));
        assert_eq!(blocked(&mut scenario, &[one, ("key", Value::Null)]).await, Some(false));
        assert_eq!(blocked(&mut scenario, &[one]).await, Some(true));
        assert_eq!(blocked(&mut scenario, &[other]).await, Some(false));
        assert_eq!(blocked(&mut scenario, &[("key", Value::Null)]).await, None);
    }
}

/// All settings that make the key are part of it. After a change all clients begin anew, and a
/// former client is never a client of now. With the first key again, they have their former debts.
#[tokio::test]
async fn clients_begin_anew_with_another_key() {
    let file = |key: &str| format!("[policy.api]\nlimits = \"5/d\"\n{key}\n");
    for (key, other, args) in [
        ("key = [\"ip\"]", "key = [\"ip\", \"else host\"]", vec![("ip", address("10.0.0.0"))]),
        ("key = [\"ip\"]", "key = [\"ip\"]\nipv4_prefix = 24", vec![("ip", address("10.0.0.0"))]),
        (
            "key = [\"ip\"]\nipv4_prefix = 16",
            "key = [\"ip\"]\nipv4_prefix = 24",
            vec![("ip", address("10.0.0.5"))],
        ),
        (
            "key = [\"ip\"]",
            "key = [\"ip\"]\nipv6_prefix = 48",
            vec![("ip", address("2001:db8::"))],
        ),
        ("key = [\"k\"]", "key = [\"k\"]\nlowercase = true", vec![("k", "abc".into())]),
        ("key = [\"k\"]", "key = [\"l\"]", vec![("k", "abc".into()), ("l", "abc".into())]),
        ("", "cost = \"n\"", vec![("k", "abc".into())]),
        ("", "when = { plan = \"a\" }", vec![("k", "abc".into()), ("plan", "a".into())]),
    ] {
        for (key, other) in [(key, other), (other, key)] {
            let mut scenario = Scenario::new(&file(key)).await;
            for requests in [[6, 5], [3, 0]] {
                for _ in 0..requests[0] {
                    scenario.ask(&args).await;
                }
                assert_eq!(blocked(&mut scenario, &args).await, Some(true), "{key}");
                scenario.reload(&file(other));
                let mut restarted = scenario.another(&file(other)).await;
                for _ in 0..requests[1] {
                    assert_eq!(blocked(&mut restarted, &args).await, Some(false), "{other}");
                }
                assert_eq!(blocked(&mut scenario, &args).await, Some(true), "{other}");
                scenario.reload(&file(key));
            }
        }
    }
}

#[tokio::test]
async fn the_log_says_why_the_last_message_had_no_decision() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = \"1/d\"\nkey = [\"ip\", \"key\", \"else token\"]\ncost = \"n\"\n\
         [policy.gold]\nmessage = \"plans\"\nwhen = { plan = \"gold\" }\nlimits = \"1/d\"\n",
    )
    .await;
    let (ip, key) = (("ip", address("192.0.2.1")), ("key", Value::String(b"k")));
    for (args, said) in [
        (vec![key], "the arg 'ip' is missing; compare"),
        (vec![("ip", Value::Null), key], "the arg 'ip' is null, as for a header"),
        (vec![ip, ("key", Value::Null)], "the arg 'key' and all its fallbacks in 'key' are null"),
        (vec![ip], "the arg 'key' is missing"),
        (vec![ip, key, ("n", Value::Int32(-1))], "the arg 'n' is not a valid cost"),
    ] {
        scenario.ask(&[]).await;
        scenario.ask(&args).await;
        let sentence = scenario.undecided.about_undecided(2);
        let start = "2 messages got no decision; of the last one, 'api' for policy 'api', ";
        let rest = sentence.strip_prefix(start).unwrap_or_else(|| panic!("{sentence}"));
        assert!(rest.starts_with(said), "{sentence}");
    }
    let long = "\x1b[2J".repeat(100);
    for (message, said) in [
        ("apii", "the last one was 'apii'; compare the names"),
        ("plans", "the last one was 'plans', and the 'when' of no policy for it fitted"),
        (&long, "the last one was '?[2J?[2J"),
    ] {
        scenario.client.ask(&[(message, &[][..])]).await.unwrap();
        let sentence = scenario.undecided.about_unmatched(1);
        let start = "1 message matched no policy and got no decision; ";
        let rest = sentence.strip_prefix(start).unwrap_or_else(|| panic!("{sentence}"));
        assert!(rest.starts_with(said) && rest.len() < 200, "{sentence}");
    }
}

/// Prefixes and overrides are for addresses, so a string that is an address is noticed.
#[tokio::test]
async fn an_address_that_is_sent_as_a_text_is_noticed() {
    let text = "[policy.api]\nlimits = \"1/h\"\nkey = [\"ip\"]\n[policy.all]\nlimits = \"1/h\"\n";
    let mut scenario = Scenario::new(text).await;
    let noticed = |scenario: &Scenario, policy| {
        scenario.stats.policy(policy).text_address().map(|arg| arg.to_string())
    };
    scenario.ask(&[("ip", address("192.0.2.1")), ("of", "192.0.2.1".into())]).await;
    scenario.ask(&[("ip", "192.0.2.300".into())]).await;
    assert_eq!(noticed(&scenario, "api"), None);
    scenario.ask(&[("ip", "192.0.2.1".into())]).await;
    assert_eq!(noticed(&scenario, "api").as_deref(), Some("ip"));
    let args = [("of\x1b", "2001:db8::1".into())];
    scenario.client.ask(&[("all", &args[..])]).await.unwrap();
    assert_eq!(noticed(&scenario, "all").as_deref(), Some("of?"));
}

/// An arg that HAProxy does not send at all is a mistake in its configuration. Null is not.
#[tokio::test]
async fn the_log_says_what_a_request_or_its_response_lacks() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = \"100/h burst 100\"\nkey = [\"key\"]\nreserve = \
         \"estimate\"\ncost = \"tokens\"\nsettle = \"usage\"\n",
    )
    .await;
    let null = Value::Null;
    let (key, estimate) = (("key", Value::String(b"k")), ("estimate", null));
    let said = |scenario: &Scenario| {
        let count = scenario.undecided.unsettled.swap(0, Ordering::Relaxed);
        (count > 0).then(|| scenario.undecided.about_unsettled(count))
    };
    scenario.ask(&[key, estimate]).await;
    assert_eq!(said(&scenario), None);
    scenario.ask(&[key, ("estimate", "20".into())]).await;
    assert_eq!(said(&scenario), None, "a string of digits is a number");
    scenario.ask(&[key]).await;
    let sentence = said(&scenario).unwrap();
    let start = "1 message for policy 'api' said too little: of the last one, 'api', the arg \
                 'estimate' is missing, so nothing is reserved; write it into the 'args' line";
    assert!(sentence.starts_with(start), "{sentence}");
    let (tokens, reserved) = (("tokens", Value::Int32(3)), ("reserved", null));
    for (args, expected) in [
        (vec![key, tokens, reserved], None),
        (vec![key, ("tokens", null), reserved], None),
        (
            vec![key, reserved],
            Some("the arg 'tokens' is missing, so what is reserved stays charged; write it into"),
        ),
        (
            vec![key, ("tokens", "12,345".into()), reserved],
            Some("the arg 'tokens' is not a number of cells, so what is reserved stays charged"),
        ),
        (
            vec![key, tokens],
            Some("the arg 'reserved' is missing, so each request is charged twice; write it into"),
        ),
    ] {
        scenario.client.ask(&[("usage", &args[..])]).await.unwrap();
        let sentence = said(&scenario);
        match expected {
            None => assert_eq!(sentence, None),
            Some(expected) => {
                let sentence = sentence.unwrap();
                assert!(sentence.contains("of the last one, 'usage', "), "{sentence}");
                assert!(sentence.contains(expected), "{sentence}");
            }
        }
    }
    let args = [("key", null), tokens, reserved];
    scenario.client.ask(&[("usage", &args[..])]).await.unwrap();
    let sentence = scenario.undecided.about_undecided(1);
    let expected = "the arg 'key' is null, because HAProxy does not know it any more when the \
                    response comes; keep it with 'http-request set-var(txn.key)', and send \
                    key=var(txn.key)";
    assert!(sentence.ends_with(expected), "{sentence}");
    scenario.reload(
        "[policy.api]\nwhen = { plan = \"gold\" }\nlimits = \"9/h\"\nkey = [\"key\"]\nsettle = \
         \"usage\"\n",
    );
    scenario.client.ask(&[("usage", &[key][..])]).await.unwrap();
    let sentence = scenario.undecided.about_unmatched(1);
    assert!(sentence.contains("; let it have the arg of 'when', as the message"), "{sentence}");
}

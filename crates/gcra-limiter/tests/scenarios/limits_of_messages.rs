//! Limits with a key of their own, and limits whose numbers each message says.

use std::collections::HashMap;

use gcra_policy::limit_from_arg::ArgValue;

use super::*;

/// The debt of the requests of one bucket, in nanoseconds, and since when.
#[derive(Clone, Copy, Debug, Default)]
struct Naive {
    owed: u64,
    at: u64,
}

/// A rate per second and a burst.
type Numbers = (u32, u32);

impl Naive {
    /// How long `cells` cells have to wait under these numbers.
    fn wait(&self, now: u64, (rate, burst): Numbers, cells: u64) -> u64 {
        let interval = 1_000_000_000_u64.div_ceil(rate.into());
        let owed = self.owed.saturating_sub(now - self.at);
        (owed + cells * interval).saturating_sub(interval * u64::from(burst))
    }

    fn charge(&mut self, now: u64, (rate, _): Numbers, cells: u64) {
        let interval = 1_000_000_000_u64.div_ceil(rate.into());
        *self = Self { owed: self.owed.saturating_sub(now - self.at) + cells * interval, at: now };
    }
}

fn text(numbers: &[Numbers; 4]) -> String {
    let [address, net, asn, all] = numbers.map(|(rate, burst)| format!("{rate}/s burst {burst}"));
    let [net, asn, all] = [net, asn, all].map(|limit| {
        let (rate, burst) = limit.split_once(" burst ").unwrap();
        format!("rate = \"{rate}\", burst = {burst}")
    });
    format!(
        "answer = [\"retry_after_ms\"]\n[policy.api]\nkey = [\"ip\"]\ncost = \"cost\"\n\
         limits = [\"{address}\", {{ name = \"net\", {net}, ipv4_prefix = 24 }}, \
         {{ name = \"asn\", {asn}, key = [\"asn\", \"else ip\"] }}, \
         {{ name = \"all\", {all}, key = [] }}]\n"
    )
}

fn numbers(most_burst: u32) -> impl Strategy<Value = Numbers> {
    (1..=20_u32, 1..=most_burst)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// All limits are charged or none, whatever they count by, and the wait in the answer is that
    /// of the strictest: as by one list for each bucket.
    #[test]
    fn limits_with_keys_of_their_own_are_charged_together(
        address in numbers(8),
        net in numbers(12),
        asn in numbers(12),
        all in numbers(20),
        steps in prop::collection::vec(
            (0..300_u64, 0..6_u8, prop::option::of(0..2_u8), 0..4_i32, any::<bool>()),
            1..120,
        ),
    ) {
        let limits = [address, net, asn, all];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let text = text(&limits);
            let mut first = Scenario::new(&text).await;
            let mut other = first.another(&text).await;
            let mut buckets = HashMap::<(usize, String), Naive>::new();
            for (pause_ms, client, asn, cells, by_other) in &steps {
                first.clock.advance(Nanos::from_millis(*pause_ms));
                let now = first.table.load().now().0;
                // Two networks with three addresses each.
                let ip = [192, 0, 2 + client / 3, client % 3];
                let asn_arg = asn.map_or(Value::Null, |asn| Value::Uint32(asn.into()));
                let args =
                    [("ip", Value::Ipv4(ip.into())), ("asn", asn_arg), ("cost", (*cells).into())];
                let agent = if *by_other { &mut other } else { &mut first };
                let answer = agent.ask(&args).await;
                let blocked = answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true));
                let keys = [
                    format!("{ip:?}"),
                    format!("{:?}", &ip[..3]),
                    asn.map_or(format!("{ip:?}"), |asn| asn.to_string()),
                    String::new(),
                ];
                let keys: Vec<_> = keys.into_iter().enumerate().collect();
                let cells = u64::try_from(*cells).unwrap();
                let wait = |(key, numbers): (&(usize, String), &Numbers)| {
                    let bucket = buckets.get(key).copied().unwrap_or_default();
                    bucket.wait(now, *numbers, cells)
                };
                let is_over = limits.iter().any(|(_, burst)| cells > u64::from(*burst));
                let longest = keys.iter().zip(&limits).map(wait).max().unwrap_or(0);
                let expected = cells > 0 && (is_over || longest > 0);
                if blocked != expected {
                    return Err(format!("{args:?}: {answer:?} and a wait of {longest} ns"));
                }
                if cells > 0 && !is_over {
                    let wait_ms = longest.div_ceil(1_000_000);
                    if number(&answer, "retry_after_ms") != wait_ms {
                        return Err(format!("{args:?}: {answer:?} instead of {wait_ms} ms"));
                    }
                }
                if !blocked {
                    for (key, numbers) in keys.into_iter().zip(&limits) {
                        buckets.entry(key).or_default().charge(now, *numbers, cells);
                    }
                }
            }
            Ok(())
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    /// A message is decided by the limit that it says, lowered to the highest, or by the default.
    /// With any limits in its messages, a client never gets more than the highest in all.
    #[test]
    fn a_limit_in_an_arg_is_a_limit_of_its_own_below_the_highest(
        steps in prop::collection::vec((0..200_u64, 0..2_u8, 0..8_usize, any::<bool>()), 1..150),
    ) {
        const MOST: Numbers = (20, 10);
        const DEFAULT: Numbers = (2, 3);
        const VALUES: [(Option<&str>, Numbers, ArgValue); 8] = [
            (Some("5/s burst 4"), (5, 4), ArgValue::Valid),
            (Some(" 10/s  burst 2 "), (10, 2), ArgValue::Valid),
            (Some("7/s"), (7, 7), ArgValue::Valid),
            (Some("1000/s burst 4"), (20, 4), ArgValue::Lowered),
            (Some("5/s burst 5000"), (5, 10), ArgValue::Lowered),
            (Some("20 per second"), DEFAULT, ArgValue::Invalid),
            (Some(""), DEFAULT, ArgValue::Invalid),
            (None, DEFAULT, ArgValue::Missing),
        ];
        let text = "[policy.api]\nkey = [\"ip\"]\nlimits = { arg = \"plan\", \
                    default = \"2/s burst 3\", most = \"20/s burst 10\" }\n";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let mut first = Scenario::new(text).await;
            let mut other = first.another(text).await;
            let mut buckets = HashMap::<(u8, Option<Numbers>), Naive>::new();
            let mut said = [0; 4];
            for (pause_ms, client, value, by_other) in &steps {
                first.clock.advance(Nanos::from_millis(*pause_ms));
                let now = first.table.load().now().0;
                let (plan, numbers, outcome) = VALUES[*value];
                said[outcome as usize] += 1;
                let plan = plan.map_or(Value::Null, |plan| Value::String(plan.as_bytes()));
                let args = [("ip", Value::Ipv4([192, 0, 2, *client].into())), ("plan", plan)];
                let agent = if *by_other { &mut other } else { &mut first };
                let blocked = blocked(agent, &args).await;
                // The highest limit counts all values together.
                let both = [((*client, Some(numbers)), numbers), ((*client, None), MOST)];
                let waits = both.iter().map(|(key, numbers)| {
                    buckets.get(key).copied().unwrap_or_default().wait(now, *numbers, 1)
                });
                let expected = waits.max() > Some(0);
                if blocked != Some(expected) {
                    return Err(format!("{args:?}: {blocked:?}"));
                }
                if !expected {
                    for (key, numbers) in both {
                        buckets.entry(key).or_default().charge(now, numbers, 1);
                    }
                }
            }
            let counted = [&first, &other]
                .map(|agent| agent.stats.policy("api").seldom.limit_args.each());
            let both = counted[0].iter().zip(&counted[1]);
            let counted: Vec<_> = both.map(|((_, a), (_, b))| a + b).collect();
            if counted == said { Ok(()) } else { Err(format!("{counted:?} instead of {said:?}")) }
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

/// A message without a value for one of the keys gets no decision, and charges no limit.
#[tokio::test]
async fn a_request_without_a_value_for_a_limits_key_has_no_decision() {
    let text = "[policy.api]\nkey = [\"ip\"]\nlimits = [\"1/m burst 2\", { name = \"asn\", \
                rate = \"100/m\", key = [\"asn\"] }]\n";
    let mut scenario = Scenario::new(text).await;
    let known = [("ip", address("192.0.2.1")), ("asn", Value::Uint32(64496))];
    let unknown = [("ip", address("192.0.2.1")), ("asn", Value::Null)];
    for _ in 0..3 {
        assert_eq!(blocked(&mut scenario, &unknown).await, None);
    }
    let said = scenario.undecided.about_undecided(3);
    assert!(said.contains("the arg 'asn' of the key of 'api.asn' is null, as for a"), "{said}");
    assert_eq!(blocked(&mut scenario, &[("ip", address("192.0.2.1"))]).await, None);
    let said = scenario.undecided.about_undecided(1);
    let missing = "the arg 'asn' of the key of 'api.asn' is missing; compare 'key' of the limit";
    assert!(said.contains(missing), "{said}");
    let said = scenario.explain(&unknown).in_words();
    assert!(said.contains("the arg 'asn' of the key of 'api.asn' is null"), "{said}");
    for expected in [false, false, true] {
        assert_eq!(blocked(&mut scenario, &known).await, Some(expected));
    }
}

/// A client that is blocked, also because of others, does not make them wait for longer.
#[tokio::test]
async fn a_penalty_is_not_charged_to_others() {
    let text = "answer = [\"retry_after_ms\"]\n[policy.api]\nkey = [\"ip\"]\n\
                penalty = { cells = 1, ceiling = \"10m\" }\nlimits = [\"10/s burst 2\", { name = \
                \"all\", rate = \"1/s\", burst = 3, key = [] }]\n";
    let mut scenario = Scenario::new(text).await;
    let [first, second] = ["192.0.2.1", "192.0.2.2"].map(|ip| [("ip", address(ip))]);
    for (args, expected) in [(first, false), (first, false), (second, false)] {
        assert_eq!(blocked(&mut scenario, &args).await, Some(expected));
    }
    // Denied by its own limit, and by that of all.
    for wait_ms in [200, 300, 400] {
        let answer = scenario.ask(&first).await;
        assert_eq!(number(&answer, "retry_after_ms"), 1000.max(wait_ms), "{answer:?}");
    }
    for _ in 0..3 {
        let answer = scenario.ask(&second).await;
        assert_eq!(number(&answer, "retry_after_ms"), 1000, "{answer:?}");
    }
    scenario.advance_ms(1000);
    assert_eq!(blocked(&mut scenario, &second).await, Some(false));
}

/// Clients keep what they owe under a limit with a key of its own when its numbers change.
#[tokio::test]
async fn a_debt_by_a_limits_own_key_survives_a_change() {
    let text = |all: &str| {
        format!(
            "[policy.api]\nkey = [\"ip\"]\nlimits = [\"100/s\", {{ name = \"net\", {all}, \
             ipv4_prefix = 24 }}]\n"
        )
    };
    let mut scenario = Scenario::new(&text("rate = \"4/h\"")).await;
    for place in 0..3 {
        let ip = format!("192.0.2.{place}");
        assert_eq!(blocked(&mut scenario, &[("ip", address(&ip))]).await, Some(false));
    }
    scenario.advance_ms(1);
    scenario.reload(&text("rate = \"5/h\""));
    let mut passed = 0;
    for place in 10..20 {
        let ip = format!("192.0.2.{place}");
        passed += u32::from(blocked(&mut scenario, &[("ip", address(&ip))]).await == Some(false));
    }
    assert_eq!(passed, 2, "three of five were used");
    assert!(scenario.passes("198.51.100.1").await);
    // And over a restart.
    scenario.advance_ms(1);
    let mut started = scenario.another(&text("rate = \"6/h\"")).await;
    let mut passed = 0;
    for place in 20..30 {
        let ip = format!("192.0.2.{place}");
        passed += u32::from(blocked(&mut started, &[("ip", address(&ip))]).await == Some(false));
    }
    assert_eq!(passed, 1, "five of six were used");
}

/// The same name and the same numbers, and equal values: still other clients, because the values
/// are those of other args, or stand for other networks.
#[tokio::test]
async fn limits_by_other_args_share_no_bucket() {
    let limit = |key: &str| format!("{{ name = \"h\", rate = \"2/h\", {key} }}");
    let text = |key: &str, other: &str| {
        format!(
            "[policy.api]\nkey = [\"ip\"]\nlimits = [{}]\n[policy.api.overrides]\n\
             \"192.0.2.9\" = [{}]\n",
            limit(key),
            limit(other)
        )
    };
    let args = |ip: &'static str| {
        let same = Value::String(b"same");
        let net = Value::Ipv4([10, 0, 0, 0].into());
        let own = [("tenant", same), ("host", same), ("none", Value::Null), ("net", net)];
        [&[("ip", address(ip))], &own[..]].concat()
    };
    let pairs = [
        ("key = [\"host\"]", "key = [\"tenant\"]"),
        ("key = [\"none\", \"else host\"]", "key = [\"none\", \"else tenant\"]"),
        ("key = [\"net\"], ipv4_prefix = 8", "key = [\"net\"], ipv4_prefix = 16"),
        ("key = [\"net\"], ipv4_prefix = 8", "key = [\"net\"]"),
        ("key = [\"host\"]", "key = [\"host\"], lowercase = true"),
    ];
    for (key, other) in pairs {
        let mut scenario = Scenario::new(&text(key, other)).await;
        for ip in ["192.0.2.1", "192.0.2.9"] {
            for expected in [false, false, true] {
                let blocked = blocked(&mut scenario, &args(ip)).await;
                assert_eq!(blocked, Some(expected), "{key} and {other}");
            }
        }
    }
    // With the same key it is one bucket, as for all clients together.
    for key in ["key = [\"host\"]", "key = [\"host\"], lowercase = true", "key = []"] {
        let mut scenario = Scenario::new(&text(key, key)).await;
        for (ip, expected) in [("192.0.2.1", false), ("192.0.2.9", false), ("192.0.2.9", true)] {
            assert_eq!(blocked(&mut scenario, &args(ip)).await, Some(expected), "{key}");
        }
    }
}

/// By another key clients begin anew, and nobody has the debts of another arg with the same value.
#[tokio::test]
async fn a_limit_whose_key_was_changed_has_no_debts_of_others() {
    let text = |key: &str| {
        format!(
            "[policy.api]\nkey = [\"ip\"]\nlimits = [\"100/s\", {{ name = \"h\", rate = \
             \"2/h\", key = [\"{key}\"] }}]\n"
        )
    };
    let args = |client: &'static str, host: &'static str| {
        let text = |text: &'static str| Value::String(text.as_bytes());
        [("ip", address("192.0.2.1")), ("as", text(client)), ("host", text(host))]
    };
    let mut scenario = Scenario::new(&text("as")).await;
    for expected in [false, false, true] {
        assert_eq!(blocked(&mut scenario, &args("x", "y")).await, Some(expected));
    }
    scenario.advance_ms(1);
    scenario.reload(&text("host"));
    // It comes from no AS that owes anything.
    for expected in [false, false, true] {
        assert_eq!(blocked(&mut scenario, &args("z", "x")).await, Some(expected));
    }
    // And the AS begins anew.
    assert_eq!(blocked(&mut scenario, &args("x", "w")).await, Some(false));
}

/// `explain` names the numbers that count for a message, and where they are from.
#[tokio::test]
async fn the_numbers_of_a_message_are_explained() {
    let text = "[policy.api]\nkey = [\"ip\"]\nlimits = { arg = \"rl\", default = \"5/m\", most = \
                \"10/s burst 20\", key = [] }\n";
    let scenario = Scenario::new(text).await;
    let string = |text: &'static str| Value::String(text.as_bytes());
    for (value, numbers) in [
        (string("2/h burst 3"), "2 per hour, up to 3 at once (from the arg 'rl')"),
        (string("9/s burst 99"), "9 per second, up to 20 at once (because the arg 'rl' says more"),
        (string("many"), "5 per minute, up to 5 at once (the default, because the arg 'rl' is no"),
        (Value::Null, "5 per minute, up to 5 at once (the default, because the arg 'rl' is miss"),
    ] {
        let said = scenario.explain(&[("ip", address("192.0.2.1")), ("rl", value)]).in_words();
        let fits = said.contains(numbers) && said.contains("), for all clients together");
        assert!(fits, "{said} without {numbers}");
    }
}

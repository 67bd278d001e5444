//! Policies and limits that only observe, and clients that are exempt.

use super::*;

/// A limit that is only observed changes nothing in the answer of one that is enforced.
#[tokio::test]
async fn a_policy_that_observes_leaves_the_numbers_of_the_others_alone() {
    let mut scenario = Scenario::new(
        "answer = [\"retry_after\", \"limit\", \"ratelimit\"]\n\
         [policy.api]\nlimits = \"60/m burst 1\"\nkey = [\"ip\"]\n\
         [policy.trial]\nlimits = \"1/d\"\nkey = [\"ip\"]\nmode = \"observe\"\n",
    )
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    for messages in [["api", "trial"], ["trial", "api"]] {
        for (pause_ms, blocked, retry_after) in [(2000, false, 0), (0, true, 1), (1000, false, 0)]
        {
            scenario.advance_ms(pause_ms);
            let asked = messages.map(|message| (message, &ip[..]));
            let answer = scenario.client.ask(&asked).await.unwrap();
            assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(blocked)));
            assert_eq!(number(&answer, "retry_after"), retry_after);
            assert_eq!(number(&answer, "limit"), 1);
            let fields = answer.var(Scope::Transaction, "ratelimit").unwrap();
            assert!(!format!("{fields:?}").contains("trial"), "{fields:?}");
        }
    }
    let answer = scenario.client.ask(&[("trial", &ip)]).await.unwrap();
    assert_eq!(number(&answer, "retry_after"), 86_400 - 4, "alone, it answers for itself");
}

/// A trial is charged beside the limit in force, and shows in `would_block` only.
#[tokio::test]
async fn a_trial_blocks_nothing_and_says_what_it_would_block() {
    let mut scenario = Scenario::new(
        "answer = [\"would_block\", \"policy\", \"reason\", \"remaining\", \"ratelimit\"]\n\
         [policy.api]\nlimits = \"1/h burst 5\"\nobserve = [\"1/h burst 3\", \"1/d burst 9\"]\n\
         key = [\"ip\"]\n[policy.api.overrides]\n\"192.0.2.9\" = \"1/d burst 4\"\n",
    )
    .await;
    for request in 0..7 {
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        let var = |name| answer.var(Scope::Transaction, name);
        assert_eq!(var("blocked"), Some(Value::Bool(request >= 5)), "{request}");
        assert_eq!(var("would_block"), Some(Value::Bool(request >= 3)), "{request}");
        assert_eq!(number(&answer, "remaining"), 4_u64.saturating_sub(request), "{request}");
        let policy = if (3..5).contains(&request) { "api.observe" } else { "api" };
        assert_eq!(var("policy"), Some(policy.into()), "{request}");
        assert_eq!(var("reason"), (request >= 3).then(|| "limit".into()), "{request}");
        let fields = format!("{:?}", var("ratelimit"));
        assert!(!fields.contains("observe"), "{fields}");
    }
    assert_eq!(scenario.counts("api"), [5, 0, 2, 0]);
    // Also when a limit in force has blocked the request.
    assert_eq!(scenario.counts("api.observe"), [3, 4, 0, 0]);
    assert_eq!(scenario.passed("192.0.2.9", 5).await, 4, "an override is not tried");
    assert_eq!(scenario.counts("api.observe"), [3, 4, 0, 0]);
}

/// A rule of HAProxy may deny a request by these numbers.
#[tokio::test]
async fn the_numbers_of_a_trial_are_not_answered() {
    for limits in ["unlimited", "deny"] {
        let mut scenario = Scenario::new(&format!(
            "answer = [\"remaining\", \"retry_after\", \"ratelimit\", \"reason\"]\n\
             [policy.api]\nlimits = \"{limits}\"\nobserve = \"1/h burst 1\"\nkey = [\"ip\"]\n"
        ))
        .await;
        for reason in [None, Some("limit")] {
            let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
            let var = |name| answer.var(Scope::Transaction, name);
            assert_eq!(var("blocked"), Some(Value::Bool(limits == "deny")));
            let numbers = ["remaining", "retry_after", "ratelimit"].map(var);
            assert_eq!(numbers, [None, None, None]);
            let reason = if limits == "deny" { Some("denied") } else { reason };
            assert_eq!(var("reason"), reason.map(Value::from));
        }
        assert_eq!(scenario.counts("api.observe"), [1, 1, 0, 0]);
    }
}

#[tokio::test]
async fn a_trial_keeps_its_debts_when_it_changes() {
    let with = |trial: &str| format!("{}observe = \"{trial}\"\n", limits("\"100/d\""));
    let mut scenario = Scenario::new(&with("10/d")).await;
    assert_eq!(scenario.passed("192.0.2.1", 10).await, 10);
    scenario.reload(&with("20/d"));
    assert_eq!(scenario.passed("192.0.2.1", 20).await, 20);
    assert_eq!(scenario.counts("api.observe"), [20, 10, 0, 0]);
    scenario.advance_ms(1);
    let mut restarted = scenario.another(&with("25/d")).await;
    assert_eq!(restarted.passed("192.0.2.1", 20).await, 20);
    assert_eq!(restarted.counts("api.observe"), [5, 15, 0, 0]);
    // Without it, its limits are not charged any more.
    restarted.reload(&limits("\"100/d\""));
    assert_eq!(restarted.passed("192.0.2.1", 60).await, 50);
    assert_eq!(restarted.counts("api.observe"), [5, 15, 0, 0]);
}

#[tokio::test]
async fn an_exempt_client_is_allowed_without_a_charge_until_it_ends() {
    let file = "[policy.api]\nlimits = \"1/d burst 2\"\nkey = [\"ip\"]\nobserve = \"1/d\"\n\
                penalty = { ceiling = \"10d\" }\nipv6_prefix = 128\n[policy.api.overrides]\n\
                \"192.0.2.8\" = \"deny\"\n\"192.0.2.9\" = \"1/d burst 1\"\n\
                [policy.other]\nmessage = \"other\"\nlimits = \"1/d\"\n";
    let plain = "[policy.api]\nlimits = \"1/d burst 2\"\nkey = [\"ip\"]\nipv6_prefix = 128\n";
    for text in [file, plain] {
        let mut scenario = Scenario::new(text).await;
        assert_eq!(scenario.passed("192.0.2.1", 5).await, 2);
        let before = [scenario.counts("api"), scenario.counts("api.observe")];
        for client in ["192.0.2.1", "192.0.2.8", "192.0.2.9"] {
            scenario.exempt("api", client, 60);
            assert_eq!(scenario.passed(client, 20).await, 20, "{client}");
        }
        let [allowed, would_block, blocked, _] = scenario.counts("api");
        assert_eq!((allowed - before[0][0], would_block, blocked - before[0][2]), (60, 0, 0));
        assert_eq!(scenario.counts("api.observe"), before[1]);
        assert_eq!(scenario.passed("192.0.2.2", 5).await, 2, "another client");
        // By the clock at the decision: the housekeeping has not read it again.
        scenario.clock.advance(Nanos::from_secs(59));
        assert!(scenario.passes("192.0.2.1").await);
        scenario.clock.advance(Nanos::from_secs(1));
        assert!(!scenario.passes("192.0.2.1").await, "as blocked as before");
        scenario.housekeeping();
        assert!(!scenario.passes("192.0.2.1").await);
        // A reload leaves it alone, and it can be ended.
        scenario.exempt("api", "192.0.2.1", 60);
        scenario.reload(&format!("{plain}penalty = {{ ceiling = \"2d\" }}\n"));
        assert!(scenario.passes("192.0.2.1").await);
        scenario.exempt("api", "192.0.2.1", 0);
        assert!(!scenario.passes("192.0.2.1").await);
        scenario.exempt("nowhere", "192.0.2.1", 60);
        assert!(!scenario.passes("192.0.2.1").await, "that is for another policy");
    }
}

/// A block is told apart by its reason, has no wait, and is charged nothing; and of several orders
/// about a client the most specific one counts.
#[tokio::test]
async fn a_blocked_client_is_blocked_without_a_charge_until_it_ends() {
    let file = "answer = [\"reason\", \"retry_after\", \"retry_after_ms\", \
                \"policy\", \"remaining\", \"would_block\"]\n\
                [policy.api]\nlimits = \"1/d burst 2\"\nkey = [\"ip\"]\nobserve = \"1/d\"\n\
                penalty = { ceiling = \"10d\" }\n[policy.api.overrides]\n\
                \"192.0.2.9\" = \"unlimited\"\n\
                [policy.other]\nmessage = \"other\"\nlimits = \"1/d\"\n";
    let mut scenario = Scenario::new(file).await;
    for client in ["192.0.2.1", "192.0.2.9", "2001:db8::7"] {
        let before = scenario.counts("api");
        scenario.order(OrderKind::Block, "api", client, 60);
        for _ in 0..5 {
            let answer = scenario.ask(&[("ip", address(client))]).await;
            let var = |name| answer.var(Scope::Transaction, name);
            assert_eq!(var("blocked"), Some(Value::Bool(true)), "{client}");
            assert_eq!(var("would_block"), Some(Value::Bool(true)));
            assert_eq!(var("reason"), Some("blocked".into()));
            assert_eq!(var("policy"), Some("api".into()));
            assert_eq!([var("retry_after"), var("retry_after_ms"), var("remaining")], [None; 3]);
        }
        let after = scenario.counts("api");
        assert_eq!((after[0], after[2] - before[2]), (before[0], 5), "{client}");
        assert_eq!(scenario.counts("api.observe"), [0; 4], "the trial is not asked");
        scenario.order(OrderKind::Block, "api", client, 0);
    }
    assert_eq!(scenario.stats.policy("api").seldom.ordered.each()[1], ("block", 15));
    assert_eq!(scenario.passed("192.0.2.1", 5).await, 2, "nothing was charged");

    // The most specific order counts, in whatever order they were given.
    scenario.exempt("api", "192.0.2.5", 60);
    scenario.order(OrderKind::Block, "api", "192.0.2.0/28", 60);
    scenario.exempt("api", "192.0.2.8/30", 30);
    scenario.order(OrderKind::Block, "api", "2001:db8::/48", 60);
    for (client, passes) in [
        ("192.0.2.5", 4),
        ("192.0.2.6", 0),
        ("192.0.2.10", 4),
        ("192.0.2.16", 2),
        ("2001:db8:0:7::1", 0),
        ("2001:db8:1::1", 2),
        ("::ffff:192.0.2.6", 0),
    ] {
        assert_eq!(scenario.passed(client, 4).await, passes, "{client}");
    }
    // One that has ended hides no other, even before the housekeeping has seen it.
    scenario.clock.advance(Nanos::from_secs(30));
    assert_eq!(scenario.passed("192.0.2.10", 4).await, 0);
    scenario.advance_ms(30_000);
    assert_eq!(scenario.passed("192.0.2.10", 4).await, 2);

    // A policy that only observes blocks nothing, by an order neither.
    scenario.order(OrderKind::Block, "api", "192.0.2.0/28", 60);
    scenario.reload(&file.replacen("limits =", "mode = \"observe\"\nlimits =", 1));
    let answer = scenario.ask(&[("ip", address("192.0.2.3"))]).await;
    let var = |name| answer.var(Scope::Transaction, name);
    assert_eq!(var("blocked"), Some(Value::Bool(false)));
    assert_eq!(var("reason"), Some("blocked".into()));
}

/// Only a policy with an order leaves the short path, and only as long as it has one.
#[tokio::test]
async fn a_policy_without_orders_keeps_its_short_path() {
    let one = |name: &str| format!("[policy.{name}]\nlimits = \"1/d\"\nkey = [\"ip\"]\n");
    let scenario = Scenario::new(&(one("api") + &one("other"))).await;
    let usual = || {
        let in_force = scenario.policies.load();
        in_force
            .rows()
            .iter()
            .map(|row| matches!(row.path, DecisionPath::SingleCharge(_)))
            .collect::<Vec<_>>()
    };
    assert_eq!(usual(), [true, true]);
    scenario.exempt("other", "192.0.2.1", 60);
    assert_eq!(usual(), [true, false]);
    scenario.advance_ms(60_000);
    assert_eq!(usual(), [true, true]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// A trial changes nothing but `would_block`, and counts what a policy with these limits that
    /// only observes would count; and how much of that passes, which is in the list, too.
    #[test]
    fn a_trial_is_a_policy_beside_that_observes(
        steps in prop::collection::vec(step(), 1..60),
        (rate, burst, more) in (1..5_u32, 1..9_u32, 0..8_usize),
        (trial_rate, trial_burst, trial_more) in (1..5_u32, 1..9_u32, any::<bool>()),
    ) {
        let limit = format!("{rate}/s burst {burst}");
        let (limits, penalty) = match more {
            0 => ("\"deny\"".to_owned(), ""),
            1 => ("\"unlimited\"".to_owned(), ""),
            2 | 3 => (format!("[\"{limit}\", \"2/s burst 3\"]"), ""),
            4 => (format!("\"{limit}\""), "penalty = { ceiling = \"2s\" }\n"),
            _ => (format!("\"{limit}\""), ""),
        };
        let trial = format!("{trial_rate}/s burst {trial_burst}");
        let another = if trial_more { ", \"2/s burst 4\"" } else { "" };
        let trial = format!("\"{trial}\"{another}");
        let policy = |limits: &str, more: &str| {
            format!(
                "answer = [\"would_block\"]\n[policy.api]\nlimits = {limits}\nkey = [\"ip\"]\n\
                 cost = \"cost\"\n{more}"
            )
        };
        let overrides = "[policy.api.overrides]\n\"192.0.2.2\" = \"2/s burst 2\"\n";
        let without = policy(&limits, &format!("{penalty}{overrides}"));
        let with = policy(&limits, &format!("{penalty}observe = [{trial}]\n{overrides}"));
        let beside = policy(&format!("[{trial}]"), "mode = \"observe\"\n");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (answers, counts, newly_blocked) = runtime.block_on(async {
            let mut with = Scenario::new(&with).await;
            let mut without = Scenario::new(&without).await;
            let mut beside = Scenario::new(&beside).await;
            let mut answers = Vec::new();
            for (pause_ms, client, cells) in &steps {
                let pause = Nanos::from_millis(*pause_ms);
                let args = [
                    ("ip", Value::Ipv4([192, 0, 2, *client].into())),
                    ("cost", Value::Int32(*cells)),
                ];
                let truth = |answer: &Answer, name| {
                    answer.var(Scope::Transaction, name) == Some(Value::Bool(true))
                };
                for scenario in [&with, &without, &beside] {
                    scenario.clock.advance(pause);
                }
                let (one, other) = (with.ask(&args).await, without.ask(&args).await);
                // The client with an override is not tried.
                let tried = *client != 2 && truth(&beside.ask(&args).await, "would_block");
                answers.push((
                    [truth(&one, "blocked"), truth(&one, "would_block")],
                    [truth(&other, "blocked"), truth(&other, "blocked") || tried],
                ));
            }
            let trial = with.stats.policy("api.observe");
            let listed = trial.heaviest(Outcome::WouldBlock, Minutes::Now);
            let listed: u64 = listed.heaviest.iter().map(|client| client.requests).sum();
            let newly_blocked = [with.newly_blocked("api.observe"), listed];
            (answers, [with.counts("api.observe"), beside.counts("api")], newly_blocked)
        });
        for (step, (with, without)) in answers.iter().enumerate() {
            prop_assert_eq!(with, without, "step {}", step);
        }
        prop_assert_eq!(counts[0], counts[1]);
        let passed = answers.iter().filter(|(with, _)| *with == [false, true]).count() as u64;
        prop_assert_eq!(newly_blocked, [passed; 2]);
    }

    /// One limit decides the same, whether it comes from flags or from a file, in the usual case
    /// and in all others. These have more variables, an override for another client, a second
    /// limit that never denies, a trial, or an arg that could stand for the key. Or another client
    /// is exempt, no client owes anything under an earlier policy, or the policy only observes.
    #[test]
    fn every_shape_of_a_limit_decides_the_same(
        steps in prop::collection::vec(step(), 1..40),
        rate in 1..5_u32,
        burst in 1..9_u32,
    ) {
        let limit = format!("{rate}/s burst {burst}");
        let policy = |limits: &str, more: &str| {
            format!("[policy.api]\nlimits = {limits}\nkey = [\"ip\"]\ncost = \"cost\"\n{more}")
        };
        let one = policy(&format!("\"{limit}\""), "");
        let with_variables = format!("answer = [\"reason\", \"ratelimit\", \"remaining\"]\n{one}");
        let with_override = format!("{one}[policy.api.overrides]\n\"203.0.113.9\" = \"deny\"\n");
        let with_two = policy(&format!("[\"{limit}\", \"1000000/s\"]"), "");
        let with_trial = policy(&format!("\"{limit}\""), "observe = \"1/d\"\n");
        let with_fallback = one.replace("[\"ip\"]", "[\"ip\", \"else other\"]");
        let observed = policy(&format!("\"{limit}\""), "mode = \"observe\"\n");
        let observed = format!("answer = [\"would_block\"]\n{observed}");
        let earlier = policy("\"1/s burst 1\"", "");
        let (rate, burst) = (format!("{rate}/s"), burst.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answers = runtime.block_on(async {
            let reloaded = Scenario::new(&earlier).await;
            reloaded.reload(&one);
            let of_flags =
                flags(&["--rate", &rate, "--burst", &burst, "--key", "ip", "--cost", "cost"]);
            let with_exemption = Scenario::new(&one).await;
            with_exemption.exempt("api", "203.0.113.9", 3600);
            let mut shapes = vec![Scenario::of(of_flags).await, reloaded, with_exemption];
            for text in [
                &one, &with_variables, &with_override, &with_two, &with_trial, &with_fallback,
                &observed,
            ] {
                shapes.push(Scenario::new(text).await);
            }
            let observed = shapes.len() - 1;
            let mut answers = Vec::new();
            for (pause_ms, client, cells) in &steps {
                let ip = Value::Ipv4([192, 0, 2, *client].into());
                let mut said = Vec::new();
                for (place, shape) in shapes.iter_mut().enumerate() {
                    shape.clock.advance(Nanos::from_millis(*pause_ms));
                    let answer = shape.ask(&[("ip", ip), ("cost", Value::Int32(*cells))]).await;
                    let name = if place == observed { "would_block" } else { "blocked" };
                    said.push(answer.var(Scope::Transaction, name) == Some(Value::Bool(true)));
                }
                answers.push(said);
            }
            answers
        });
        for (step, said) in answers.iter().enumerate() {
            prop_assert!(said.iter().all(|one| *one == said[0]), "step {}: {:?}", step, said);
        }
    }
}

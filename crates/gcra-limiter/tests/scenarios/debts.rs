//! The debt of a client goes along when limits change and when agents are started again.

use super::*;

#[tokio::test]
async fn a_raised_limit_helps_a_blocked_client_at_once_and_in_proportion() {
    let mut scenario = Scenario::new(&limits("\"100/h\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 100);
    assert_eq!(scenario.passed("192.0.2.2", 40).await, 40);
    scenario.reload(&limits("\"1000/h\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 900);
    assert_eq!(scenario.passed("192.0.2.2", 2000).await, 960);
    assert_eq!(scenario.passed("192.0.2.3", 2000).await, 1000);
    // Twice as fast: the wait is half as long.
    let mut scenario = Scenario::new(&limits("\"10/m burst 5\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 5);
    scenario.reload(&limits("\"20/m burst 5\""));
    assert!(!scenario.passes("192.0.2.1").await);
    scenario.advance_ms(2_999);
    assert!(!scenario.passes("192.0.2.1").await);
    scenario.advance_ms(1);
    assert!(scenario.passes("192.0.2.1").await);
}

#[tokio::test]
async fn a_debt_survives_lowering_raising_and_taking_back() {
    let mut scenario = Scenario::new(&limits("\"1000/d\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 50).await, 50);
    scenario.reload(&limits("\"100/d\""));
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 50, "50 of 100 were used");
    scenario.reload(&limits("\"1000/d\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 900, "100 of 1000 were used");
    scenario.reload(&limits("\"100/d\""));
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 0);
    scenario.reload(&limits("\"99/d\""));
    scenario.reload(&limits("\"98/d\""));
    scenario.reload(&limits("\"97/d\""));
    assert_eq!(
        scenario.passed("192.0.2.1", 200).await,
        0,
        "several changes, and no request between them"
    );
    // A day later the debt is paid off. (The interval is rounded up, so it takes a few nanoseconds
    // more.)
    scenario.advance_ms(86_400_001);
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 97);
}

#[tokio::test]
async fn an_idle_client_has_its_full_burst_whatever_it_owed_long_before_a_change() {
    let mut scenario = Scenario::new(&limits("\"10/h\"")).await;
    assert_eq!(scenario.passed("192.0.2.1", 20).await, 10);
    scenario.reload(&limits("\"100/s burst 20\""));
    assert_eq!(scenario.passed("192.0.2.1", 40).await, 10);
    for _ in 0..5 {
        scenario.advance_ms(200);
        assert_eq!(scenario.passed("192.0.2.1", 40).await, 20, "the old hour matters no more");
    }
}

#[tokio::test]
async fn a_debt_goes_along_into_an_override_and_back_and_not_into_another_group() {
    let with =
        |overrides: &str| format!("{}[policy.api.overrides]\n{overrides}\n", limits("\"100/h\""));
    let mut scenario = Scenario::new(&with("")).await;
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 100);
    scenario.reload(&with("\"192.0.2.1\" = \"1000/h\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 900);
    scenario.reload(&with("\"192.0.2.0/24\" = \"1001/h\""));
    assert_eq!(scenario.passed("192.0.2.1", 2000).await, 1);
    scenario.reload(&with("\"192.0.2.1\" = \"unlimited\""));
    assert_eq!(scenario.passed("192.0.2.1", 50).await, 50);
    scenario.reload(&with(""));
    assert_eq!(scenario.passed("192.0.2.1", 200).await, 0, "its old bucket is there still");

    let prefix = |bits: u8| format!("{}ipv6_prefix = {bits}\n", limits("\"10/h\""));
    let mut scenario = Scenario::new(&prefix(64)).await;
    assert_eq!(scenario.passed("2001:db8::1", 7).await, 7);
    scenario.reload(&prefix(56));
    assert_eq!(scenario.passed("2001:db8::2", 20).await, 10, "another key begins anew");
    scenario.reload(&prefix(64));
    assert_eq!(scenario.passed("2001:db8::1", 20).await, 3, "it is the first key again");
}

#[tokio::test]
async fn a_debt_survives_a_restart_with_other_numbers() {
    let mut before = Scenario::new(&limits("\"100/h\"")).await;
    assert_eq!(before.passed("192.0.2.1", 200).await, 100);
    let mut raised = before.another(&limits("\"1000/h\"")).await;
    let mut second = before.another(&limits("\"1000/h\"")).await;
    assert_eq!(raised.passed("192.0.2.1", 450).await, 450);
    assert_eq!(second.passed("192.0.2.1", 2000).await, 450, "one limit, whichever is asked");
    assert_eq!(before.passed("192.0.2.1", 200).await, 0, "the one that was not restarted yet");
    raised.advance_ms(10_000);
    // And back, an hour or so later: what was used meanwhile is owed.
    let mut again = before.another(&limits("\"100/h\"")).await;
    assert_eq!(again.passed("192.0.2.1", 200).await, 0);
    again.advance_ms(3_600_001);
    assert_eq!(again.passed("192.0.2.1", 200).await, 100);
}

/// A fleet of which a part has the new numbers already, and whose agents start again and again.
#[tokio::test]
async fn restarts_to_and_fro_forgive_nothing_of_a_third_limit() {
    let mut first = Scenario::new(&limits("\"1/d burst 20\"")).await;
    assert_eq!(first.passed("192.0.2.1", 30).await, 20);
    for round in 0..12 {
        let numbers = ["\"2/d burst 20\"", "\"2/d burst 19\""][round % 2];
        let mut agent = first.another(&limits(numbers)).await;
        assert_eq!(agent.passed("192.0.2.1", 30).await, 0, "round {round}");
        agent.reload(&limits("\"2/d burst 18\""));
        agent.reload(&limits(numbers));
        assert_eq!(agent.passed("192.0.2.1", 30).await, 0, "round {round}");
    }
}

/// No part of a cell is added by each change.
#[tokio::test]
async fn restarts_to_and_fro_add_nothing_to_a_debt() {
    let mut agent = Scenario::new(&limits("\"3/d burst 7\"")).await;
    for (numbers, requests) in [("1/d burst 7", 2), ("3/d burst 7", 1), ("1/d burst 7", 10)] {
        agent.advance_ms(1);
        agent = agent.another(&limits(&format!("\"{numbers}\""))).await;
        let passed = agent.passed("192.0.2.1", requests).await;
        assert_eq!(passed, requests.min(4));
    }
}

/// An override does not start with the debt of the rest of its group.
#[tokio::test]
async fn a_restart_carries_nothing_from_a_group_to_an_override() {
    let config = |limit: &str| {
        format!("{}[policy.api.overrides]\n\"2001:db8::1\" = \"10/h burst 9\"\n", limits(limit))
    };
    let mut before = Scenario::new(&config("\"10/h burst 5\"")).await;
    assert_eq!(before.passed("2001:db8::2", 20).await, 5);
    let mut after = before.another(&config("\"10/h burst 6\"")).await;
    assert_eq!(after.passed("2001:db8::1", 20).await, 9);
    assert_eq!(after.passed("2001:db8::2", 20).await, 1);
}

/// Agents that are out of step for a while: together they allow at most the sum of their limits.
#[tokio::test]
async fn agents_with_different_numbers_allow_at_most_the_sum() {
    let mut old = Scenario::new(&limits("\"1000/d burst 20\"")).await;
    let mut new = old.another(&limits("\"1000/d burst 30\"")).await;
    let mut passed = (0, 0);
    for _ in 0..5000 {
        passed.0 += u32::from(old.passes("192.0.2.1").await);
        passed.1 += u32::from(new.passes("192.0.2.1").await);
    }
    assert!(passed.0 <= 20 && passed.1 <= 30 && passed.0 + passed.1 >= 30, "{passed:?}");
}

/// For any changes in any order, at most the sum of the limits is allowed.
#[tokio::test]
async fn reloads_over_and_over_forgive_nothing() {
    let mut scenario = Scenario::new(&limits("\"1000/d burst 20\"")).await;
    let mut passed = 0;
    for round in 0..200 {
        passed += scenario.passed("192.0.2.1", 5).await;
        scenario.reload(&limits(
            ["\"1000/d burst 20\"", "\"1000/d burst 30\"", "\"500/d burst 10\""][round % 3],
        ));
    }
    // All of it was one debt, so it is not even the sum, but the largest burst.
    assert_eq!(passed, 30);
}

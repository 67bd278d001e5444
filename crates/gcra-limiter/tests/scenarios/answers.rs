//! The content of an answer where several limits and policies decide: the reason, and the wait.

use super::*;

/// A client that waits as long as its answer says is allowed.
#[tokio::test]
async fn the_wait_in_the_answer_includes_the_penalty() {
    for (limits, text) in [
        ("\"2/s burst 3\"", "one limit"),
        ("[\"2/s burst 3\", \"1000/h\"]", "two limits"),
        ("[\"1000/h burst 3\", \"2/s burst 3\"]", "two limits that both deny"),
    ] {
        let mut scenario = Scenario::new(&format!(
            "answer = [\"retry_after_ms\", \"retry_after\", \"reset\", \"remaining\"]\n\
             [policy.api]\nlimits = {limits}\n\
             key = [\"ip\"]\npenalty = {{ cells = 1, ceiling = \"10s\" }}\n"
        ))
        .await;
        assert_eq!(scenario.passed("192.0.2.1", 3).await, 3);
        let mut passed = 0;
        for _ in 0..20 {
            let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
            let wait_ms = number(&answer, "retry_after_ms");
            assert_eq!(number(&answer, "retry_after"), wait_ms.div_ceil(1000));
            assert!(number(&answer, "reset") * 1000 >= wait_ms);
            passed += u32::from(wait_ms == 0);
            if wait_ms > 0 {
                assert_eq!(number(&answer, "remaining"), 0);
                scenario.advance_ms(wait_ms - 1);
                // Asking too early would be charged, and is not tried here; a millisecond later it
                // passes.
                scenario.advance_ms(1);
            }
        }
        assert_eq!(passed, 10, "{text}: every second request");
    }
}

/// A request with a cost of 0 is never blocked or charged, not by a penalty either.
#[tokio::test]
async fn a_peek_is_never_blocked_or_charged() {
    for (limits, wait_ms) in
        [("\"2/s burst 3\"", 1000), ("[\"2/s burst 3\", \"1000/h burst 3\"]", 7200)]
    {
        let mut scenario = Scenario::new(&format!(
            "answer = [\"retry_after_ms\", \"reset\"]\n[policy.api]\nlimits = {limits}\n\
             key = [\"ip\"]\ncost = \"cost\"\n\
             penalty = {{ cells = 1, ceiling = \"10s\" }}\n"
        ))
        .await;
        let ip = address("192.0.2.1");
        for cost in [3, 1] {
            scenario.ask(&[("ip", ip), ("cost", Value::Int32(cost))]).await;
        }
        let mut resets = Vec::new();
        for _ in 0..6 {
            let answer = scenario.ask(&[("ip", ip), ("cost", Value::Int32(0))]).await;
            assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(false)));
            assert_eq!(number(&answer, "retry_after_ms"), wait_ms, "until one cell is there");
            resets.push(number(&answer, "reset"));
        }
        assert!(resets.iter().all(|reset| *reset == resets[0]), "{resets:?}");
    }
}

/// The numbers of an answer are those of the most restrictive limit, however many there are.
#[tokio::test]
async fn the_limit_that_blocks_is_answered_behind_any_number_of_others() {
    let four = "[\"100/h\", \"100/h\", \"100/h\", \"100/h\"]";
    let mut scenario = Scenario::new(&format!(
        "answer = [\"retry_after\", \"remaining\"]\n[policy.a]\nlimits = {four}\n\
         [policy.b]\nlimits = {four}\n[policy.c]\nlimits = [\"1/h\"]\n"
    ))
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    scenario.client.ask(&[("c", &ip)]).await.unwrap();
    let answer = scenario.client.ask(&[("a", &ip), ("b", &ip), ("c", &ip)]).await.unwrap();
    assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(true)));
    assert_eq!((number(&answer, "retry_after"), number(&answer, "remaining")), (3600, 0));
}

#[tokio::test]
async fn a_cost_that_can_never_be_allowed_is_the_stronger_reason() {
    let mut scenario = Scenario::new(
        "answer = [\"reason\"]\n[policy.api]\nlimits = [\"10/h burst 10\", \"1000/s burst 2\"]\n\
         key = [\"ip\"]\ncost = \"cost\"\n",
    )
    .await;
    let ip = address("192.0.2.1");
    for _ in 0..5 {
        scenario.ask(&[("ip", ip), ("cost", Value::Int32(2))]).await;
        scenario.advance_ms(10);
    }
    let answer = scenario.ask(&[("ip", ip), ("cost", Value::Int32(3))]).await;
    assert_eq!(answer.var(Scope::Transaction, "reason"), Some(Value::String(b"oversize")));
}

#[tokio::test]
async fn the_largest_cost_is_above_the_largest_burst() {
    let mut scenario =
        Scenario::of(flags(&["--rate", "1000000/ms", "--burst", "4294967294", "--cost", "cost"]))
            .await;
    for cost in [1_u64 << 32, u64::MAX, u64::from(u32::MAX)] {
        let answer = scenario.ask(&[("cost", Value::Uint64(cost))]).await;
        assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(true)), "{cost}");
    }
}

//! Counts in windows of a calendar.

use super::*;

/// A response counts in the window of its own moment, also beyond the count, and what is reserved
/// in a window comes back in that window only.
#[tokio::test]
async fn responses_settle_what_is_counted_in_a_window() {
    let text = "answer = [\"remaining\", \"retry_after\"]\n[policy.api]\nlimits = { count = 100, \
                window = \"day UTC\" }\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \
                \"tokens\"\nsettle = \"usage\"\n";
    let mut scenario = Scenario::new(text).await;
    // The moment of a reservation is that of the real clock.
    let now = gcra_limiter::reservations::wall_clock();
    let today = now.as_secs() - now.as_secs() % 86_400;
    let set = |scenario: &Scenario, at: u64| scenario.clock.set_wall(at * 1_000_000_000);
    set(&scenario, today + 86_399);
    let answer = scenario.estimate("a", 60_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(40));
    let reserved = Scenario::reserved_at(&answer, u128::from(today + 43_200) * 1000);
    let within = text.replace("settle =", "settle_within = \"1d\"\nsettle =");
    scenario.reload(&within);
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    // More than the count: no further request in this window.
    let answer = scenario.settle("a", 95_i32.into(), None).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(0));
    assert_eq!(scenario.settled("api"), ([1, 1, 0, 0, 0, 0, 0], [95, 50, 5, 0, 0]));
    let answer = scenario.estimate("a", Value::Null).await;
    assert!(Scenario::is_blocked(&answer));
    assert_eq!(Scenario::integer(&answer, "retry_after"), Some(1));
    // The next day begins at 0, and what was reserved the day before does not come back there.
    set(&scenario, today + 86_400);
    let answer = scenario.estimate("a", 30_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(70));
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(70));
    assert_eq!(scenario.settled("api"), ([1, 1, 0, 1, 0, 0, 0], [95, 50, 5, 0, 0]), "late");
}

/// The largest number that a window holds is never passed, and nothing that came near it is lost.
#[tokio::test]
async fn responses_fill_a_window_up_to_the_largest_number() {
    let mut scenario = Scenario::new(
        "answer = [\"remaining\"]\n[policy.api]\nlimits = { count = 4000000000, window = \
         \"day UTC\" }\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \"tokens\"\n\
         settle = \"usage\"\n",
    )
    .await;
    let remaining = |answer: &Answer| Scenario::integer(answer, "remaining");
    let reserved = Scenario::reserved(&scenario.estimate("a", 1_i32.into()).await).unwrap();
    let answer = scenario.settle("a", 3_899_999_999_i64.into(), None).await;
    assert_eq!(remaining(&answer), Some(100_000_000));
    let answer = scenario.settle("a", 500_000_000_i64.into(), None).await;
    assert_eq!(remaining(&answer), Some(0));
    // 2^32 - 1 are counted, and the rest is not.
    let most = u64::from(u32::MAX);
    let forgiven = 4_400_000_000 - most;
    assert_eq!(scenario.settled("api").1, [most - 1, 0, most - 4_000_000_000, forgiven, 0]);
    assert!(Scenario::is_blocked(&scenario.estimate("a", 1_i32.into()).await));
    // The number of cells beyond that is not known, so none comes back.
    let reserved = reserved.replace("api 1 ", "api 1000000000 ");
    let answer = scenario.settle("a", 0_i32.into(), Some(&reserved)).await;
    assert_eq!(remaining(&answer), Some(0));
    assert!(Scenario::is_blocked(&scenario.estimate("a", 1_i32.into()).await));
}

#[tokio::test]
async fn a_count_begins_again_at_midnight() {
    let mut scenario = Scenario::new(CONTRACT).await;
    scenario.clock.set_wall(wall("2026-03-28T23:00:00Z"));
    for left in (0..5).rev() {
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        assert_eq!((number(&answer, "remaining"), number(&answer, "limit")), (left, 5));
        assert_eq!((number(&answer, "retry_after"), number(&answer, "reset")), (0, 23 * 3600));
        assert_eq!(text_of(&answer, "reason"), None);
        assert_eq!(text_of(&answer, "ratelimit"), Some(format!("\"api\";r={left};t=82800")));
        assert_eq!(text_of(&answer, "ratelimit_policy").as_deref(), Some("\"api\";q=5;w=86400"));
    }
    for (pause_ms, wait_s) in [(0, 23 * 3600), (1, 23 * 3600), (999, 23 * 3600 - 1)] {
        scenario.advance_ms(pause_ms);
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        assert_eq!((number(&answer, "remaining"), number(&answer, "retry_after")), (0, wait_s));
        assert_eq!(text_of(&answer, "reason").as_deref(), Some("limit"));
    }
    // A client that waits as long as its answer says is allowed, and not a moment before.
    scenario.advance_ms((23 * 3600 - 1) * 1000 - 1);
    assert_eq!(scenario.passed("192.0.2.1", 2).await, 0);
    assert_eq!(scenario.passed("192.0.2.2", 9).await, 5);
    scenario.advance_ms(1);
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 5);
    assert_eq!(scenario.passed("192.0.2.2", 9).await, 5, "that of yesterday and that of today");
}

#[tokio::test]
async fn agents_of_one_table_count_together_and_an_explanation_says_the_window() {
    let mut one = Scenario::new(CONTRACT).await;
    one.clock.set_wall(wall("2026-10-25T00:30:00Z"));
    let mut other = one.another(CONTRACT).await;
    assert_eq!(one.passed("192.0.2.1", 3).await + other.passed("192.0.2.1", 9).await, 5);
    assert_eq!(one.passed("192.0.2.1", 3).await, 0);
    let explanation = one.explain(&[("ip", address("192.0.2.1"))]);
    let decided = explanation.decided.as_ref().unwrap();
    assert!(decided.blocked && decided.limits[0].remaining == 0);
    assert_eq!(decided.limits[0].window.as_deref(), Some("day Europe/Berlin"));
    let words = explanation.in_words();
    assert!(words.contains("5 per calendar day in Europe/Berlin"), "{words}");
    // This day has 25 hours.
    assert_eq!(decided.retry_after_ms, 22 * 3_600_000 + 1_800_000);
    assert!(words.contains("the window ends at 2026-10-26 00:00:00 in Europe/Berlin"), "{words}");
}

/// A request that the rate denies is not counted, and one that the count denies is not charged.
#[tokio::test]
async fn a_count_and_a_rate_are_charged_all_or_none() {
    let mut scenario = Scenario::new(
        "answer = [\"ratelimit\", \"retry_after\"]\n[policy.api]\nkey = [\"ip\"]\n\
         cost = \"cost\"\nlimits = [\"1/s burst 3\", { name = \"contract\", count = 7, \
         window = \"hour\" }]\n",
    )
    .await;
    let state = |answer: &Answer| {
        let blocked = answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true));
        (blocked, text_of(answer, "ratelimit").unwrap())
    };
    let said = |blocked, free, owed, left, ends| {
        (blocked, format!("\"api.1\";r={free};t={owed}, \"api.contract\";r={left};t={ends}"))
    };
    let cost = |cost| [("ip", address("192.0.2.1")), ("cost", Value::Int32(cost))];
    assert_eq!(state(&scenario.ask(&cost(3)).await), said(false, 0, 3, 4, 3599));
    // By the rate.
    assert_eq!(state(&scenario.ask(&cost(1)).await), said(true, 0, 3, 4, 3599));
    scenario.advance_ms(3000);
    assert_eq!(state(&scenario.ask(&cost(3)).await), said(false, 0, 3, 1, 3596));
    scenario.advance_ms(3000);
    // By the count. A cost of 0 only asks.
    let answer = scenario.ask(&cost(2)).await;
    assert_eq!(state(&answer), said(true, 3, 0, 1, 3593));
    assert_eq!(number(&answer, "retry_after"), 3593);
    assert_eq!(state(&scenario.ask(&cost(0)).await), said(false, 3, 0, 1, 3593));
    assert_eq!(state(&scenario.ask(&cost(1)).await), said(false, 2, 1, 0, 3593));
    assert_eq!(state(&scenario.ask(&cost(0)).await), said(false, 2, 1, 0, 3593));
    // More than the count, and more than the burst, can never be allowed.
    scenario.advance_ms(3_593_000);
    assert_eq!(state(&scenario.ask(&cost(8)).await), said(true, 3, 0, 7, 3600));
    assert_eq!(state(&scenario.ask(&cost(1)).await), said(false, 2, 1, 6, 3600));
}

#[tokio::test]
async fn another_count_goes_on_and_another_window_begins() {
    let file = |limit: &str| format!("[policy.api]\nkey = [\"ip\"]\nlimits = {limit}\n");
    let day = |count| file(&format!("{{ count = {count}, window = \"day Asia/Kolkata\" }}"));
    let mut scenario = Scenario::new(&day(5)).await;
    scenario.clock.set_wall(wall("2026-03-28T20:00:00Z"));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 5);
    scenario.reload(&day(8));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 3);
    scenario.reload(&day(4));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 0);
    let decided = scenario.explain(&[("ip", address("192.0.2.1"))]).decided.unwrap();
    assert_eq!((decided.limits[0].remaining, decided.limits[0].penalty_ms), (0, 0));
    scenario.reload(&day(9));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 1);
    // Also for an override, which counts in the same windows.
    scenario.reload(&format!(
        "{}[policy.api.overrides]\n\"192.0.2.1\" = {{ count = 12, window = \"day \
         Asia/Kolkata\" }}\n",
        day(9)
    ));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 3);
    // By a restart.
    let mut other = scenario.another(&day(13)).await;
    assert_eq!(other.passed("192.0.2.1", 9).await, 1);
    for (limit, passes) in [
        ("{ count = 5, window = \"day Asia/Tokyo\" }", 5),
        ("{ count = 5, window = \"week Asia/Kolkata\" }", 5),
        ("\"6/h\"", 6),
        ("{ count = 14, window = \"day Asia/Kolkata\" }", 1),
        ("\"6/h\"", 0),
    ] {
        scenario.reload(&file(limit));
        assert_eq!(scenario.passed("192.0.2.1", 9).await, passes, "{limit}");
    }
}

/// The contract of all clients together, beside that of each.
#[tokio::test]
async fn a_count_can_have_a_key_of_its_own() {
    let mut scenario = Scenario::new(
        "[policy.api]\nkey = [\"ip\"]\n\
         limits = [{ name = \"each\", count = 3, window = \"hour\" }, \
         { name = \"all\", count = 7, window = \"day\", key = [] }]\n",
    )
    .await;
    for (client, passes) in [(1, 3), (2, 3), (3, 1), (4, 0), (1, 0)] {
        assert_eq!(scenario.passed(&format!("192.0.2.{client}"), 5).await, passes, "{client}");
    }
    scenario.advance_ms(3_600_000);
    assert_eq!(scenario.passed("192.0.2.1", 5).await, 0, "what all have used");
    scenario.advance_ms(23 * 3_600_000);
    assert_eq!(scenario.passed("192.0.2.1", 5).await, 3);
}

#[tokio::test]
async fn a_count_can_be_observed_and_is_not_part_of_a_penalty_or_a_delay() {
    let count = "{ name = \"count\", count = 3, window = \"hour\" }";
    let mut scenario = Scenario::new(&format!(
        "[policy.api]\nlimits = \"100/s\"\nobserve = {count}\nkey = [\"ip\"]\n"
    ))
    .await;
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 9);
    let [allowed, would_block, ..] = scenario.counts("api.observe");
    assert_eq!((allowed, would_block), (3, 6), "{:?}", scenario.counts("api.observe"));

    let mut scenario = Scenario::new(&format!(
        "answer = [\"retry_after\"]\n[policy.api]\nlimits = [\"1/s burst 1\", {count}]\n\
         key = [\"ip\"]\npenalty = {{ cells = 1, ceiling = \"1s\" }}\nmax_delay = \"1s\"\n"
    ))
    .await;
    let mut said = Vec::new();
    for _ in 0..5 {
        let answer = scenario.ask(&[("ip", address("192.0.2.1"))]).await;
        said.push((number(&answer, "delay_ms"), number(&answer, "retry_after")));
        scenario.advance_ms(1000);
    }
    // The clock began at 1 s.
    assert_eq!(said, [(0, 0), (0, 0), (0, 0), (0, 3596), (0, 3595)]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A count in hours and a limit with a rate, as their promises are: in each hour of the zone,
    /// and in any time.
    #[test]
    fn in_each_window_and_in_any_time_no_more_is_allowed(
        most in 1_u64..40,
        steps in prop::collection::vec((0_u64..200_000, 1_i32..4), 1..200),
    ) {
        const BURST: u64 = 6;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let mut scenario = Scenario::new(&format!(
                "[policy.api]\nkey = [\"ip\"]\ncost = \"cost\"\n\
                 limits = [{{ count = {most}, window = \"hour Asia/Kolkata\" }}, \
                 \"1/10s burst {BURST}\"]\n"
            ))
            .await;
            let start = wall("2026-03-28T20:17:00Z") / 1_000_000;
            scenario.clock.set_wall(start * 1_000_000);
            let (mut now_ms, mut counted) = (start, std::collections::HashMap::new());
            let mut allowed: Vec<(u64, u64)> = Vec::new();
            for (pause_ms, cost) in &steps {
                scenario.advance_ms(*pause_ms);
                now_ms += pause_ms;
                let hour = counted.entry((now_ms + 1_800_000) / 3_600_000).or_insert(0_u64);
                let cells = u64::from(cost.unsigned_abs());
                let mut within = cells;
                let conforms = allowed.iter().rev().all(|(at, cells)| {
                    within += cells;
                    within <= BURST + (now_ms - at) / 10_000
                });
                let expected = *hour + cells <= most && conforms;
                let args = [("ip", address("192.0.2.1")), ("cost", Value::Int32(*cost))];
                let answer = scenario.ask(&args).await;
                let blocked = answer.var(Scope::Transaction, "blocked");
                if blocked != Some(Value::Bool(!expected)) {
                    return Err(format!("{blocked:?} at {now_ms}: {hour} of {most}"));
                }
                if expected {
                    *hour += cells;
                    allowed.push((now_ms, cells));
                }
            }
            Ok(())
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

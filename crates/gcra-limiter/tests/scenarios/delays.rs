//! Requests that wait for their place in a queue.

use super::*;

/// A request of a queue: when it came in, or when it left, in nanoseconds, and what it costs.
type Left = (u64, u32);

/// When a request leaves a queue that lets nobody overtake and keeps to a limit: at the earliest
/// moment at which what has left in each interval before it stays within `burst + t / T`.
fn leaves(queue: &[Left], (now, cells): Left, interval_ns: u64, burst: u32) -> u64 {
    let mut within = u64::from(cells);
    let earliest = queue.iter().rev().map(|&(at, cells)| {
        within += u64::from(cells);
        at + within.saturating_sub(burst.into()) * interval_ns
    });
    earliest.max().unwrap_or(0).max(queue.last().map_or(0, |(at, _)| *at)).max(now)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Two agents on one table are one queue for each client. Each answer is that of the queue:
    /// the delay to the millisecond, and what would wait for too long is blocked, with the time
    /// until the queue is short enough. A request that costs nothing never waits.
    #[test]
    fn with_max_delay_all_agents_are_one_queue(
        steps in prop::collection::vec((step(), any::<bool>()), 1..80),
        (rate, burst, max_delay_ms) in (1..9_u32, 1..7_u32, 1..4_000_u64),
        second in prop::option::of((1..9_u32, 1..7_u32)),
        has_override in any::<bool>(),
    ) {
        let limit = |(rate, burst)| format!("\"{rate}/s burst {burst}\"");
        let own = (rate, burst);
        let several = second.map_or(String::new(), |more| format!(", {}", limit(more)));
        let of_policy = if has_override { "\"1/d\"".to_owned() } else { limit(own) + &several };
        let overrides = (0..4).map(|client| {
            format!("\"192.0.2.{client}\" = [{}{several}]\n", limit(own))
        });
        let overrides: String = overrides.filter(|_| has_override).collect();
        let text = format!(
            "answer = [\"retry_after_ms\", \"remaining\", \"reset\"]\n[policy.api]\n\
             limits = [{of_policy}]\nkey = [\"ip\"]\ncost = \"cost\"\n\
             max_delay = \"{max_delay_ms}ms\"\n[policy.api.overrides]\n{overrides}"
        );
        let interval = |rate: u32| 1_000_000_000_u64.div_ceil(rate.into());
        let limits: Vec<_> = [own].into_iter().chain(second).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let mut first = Scenario::new(&text).await;
            let mut other = first.another(&text).await;
            let mut queues = vec![vec![Vec::<Left>::new(); limits.len()]; 4];
            let mut delayed = 0;
            for ((pause_ms, client, cells), by_other) in &steps {
                first.clock.advance(Nanos::from_millis(*pause_ms));
                let now = first.table.load().now().0;
                let agent = if *by_other { &mut other } else { &mut first };
                let args = [
                    ("ip", Value::Ipv4([192, 0, 2, *client].into())),
                    ("cost", Value::Int32(*cells)),
                ];
                let answer = agent.ask(&args).await;
                let blocked = answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true));
                let said = (blocked, number(&answer, "delay_ms"));
                let cells = u32::try_from(*cells).unwrap();
                let queue = &mut queues[usize::from(*client)];
                let delays: Vec<_> = limits
                    .iter()
                    .zip(&*queue)
                    .map(|(limit, queue)| {
                        leaves(queue, (now, cells), interval(limit.0), limit.1) - now
                    })
                    .collect();
                let longest = delays.iter().copied().max().unwrap_or(0);
                let most = max_delay_ms * 1_000_000;
                let expected = match cells {
                    0 => (false, 0),
                    _ if limits.iter().any(|limit| cells > limit.1) => (true, 0),
                    _ if longest > most => {
                        let wait_ms = (longest - most).div_ceil(1_000_000);
                        if number(&answer, "retry_after_ms") != wait_ms {
                            return Err(format!("{answer:?} instead of a wait of {wait_ms} ms"));
                        }
                        (true, 0)
                    }
                    _ => {
                        for (queue, delay) in queue.iter_mut().zip(&delays) {
                            queue.push((now + delay, cells));
                        }
                        (false, longest.div_ceil(1_000_000))
                    }
                };
                if said != expected {
                    return Err(format!("{said:?} instead of {expected:?}"));
                }
                if expected.1 > 0 {
                    delayed += 1;
                    let [left, wait] = ["remaining", "retry_after_ms"].map(|name| {
                        number(&answer, name)
                    });
                    // A full burst is owed, and more.
                    if (left, wait) != (0, 0) || number(&answer, "reset") * 1_000 < expected.1 {
                        return Err(format!("{answer:?}"));
                    }
                }
            }
            let counted = [&first, &other]
                .map(|agent| agent.stats.policy("api").seldom.delayed.sum());
            match counted.iter().sum::<u64>() {
                sum if sum == delayed => Ok(()),
                sum => Err(format!("{sum} were counted instead of {delayed}")),
            }
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

/// A client in the queue stays in it when the limits change: as many requests as it owes go before
/// the next one, at the new rate.
#[tokio::test]
async fn a_queue_is_kept_when_limits_change() {
    let text = |limit: &str, more: &str| {
        format!(
            "answer = [\"retry_after_ms\"]\n[policy.api]\nlimits = \"{limit}\"\nkey = \
             [\"ip\"]\n{more}"
        )
    };
    let ip = [("ip", address("192.0.2.1"))];
    let mut scenario = Scenario::new(&text("10/s burst 1", "max_delay = \"2s\"\n")).await;
    for place in 0..=10 {
        assert_eq!(number(&scenario.ask(&ip).await, "delay_ms"), place * 100);
    }
    let said = scenario.explain(&ip).in_words();
    assert!(said.contains("a request now is allowed, with a delay of 1100 ms\n"), "{said}");
    assert!(
        said.contains(
            "none of 1 left; a request now is delayed by 1100 ms, all 1 again in 1100 ms"
        ),
        "{said}"
    );
    // The 11 requests are 11 at the new rate.
    let changed = text("5/s burst 1", "max_delay = \"3s\"\n");
    scenario.reload(&changed);
    assert_eq!(number(&scenario.ask(&ip).await, "delay_ms"), 11 * 200);
    // A process that starts finds them in the table, and so does one after it.
    scenario.advance_ms(100);
    let mut started = scenario.another(&changed).await;
    assert_eq!(number(&started.ask(&ip).await, "delay_ms"), 12 * 200 - 100);
    scenario.advance_ms(100);
    let mut restarted = scenario.another(&text("5/s burst 1", "max_delay = \"4s\"\n")).await;
    assert_eq!(number(&restarted.ask(&ip).await, "delay_ms"), 13 * 200 - 200);
    // Up to the longest delay, which is shorter now.
    scenario.reload(&text("5/s burst 1", "max_delay = \"1s\"\n"));
    let answer = scenario.ask(&ip).await;
    assert_eq!(answer.var(Scope::Transaction, "blocked"), Some(Value::Bool(true)));
    assert_eq!(number(&answer, "retry_after_ms"), 200);
    assert_eq!(number(&answer, "delay_ms"), 0);
    let said = scenario.explain(&ip).in_words();
    let blocked = "blocked; the next one is allowed in 200 ms with a delay of 1000 ms\n";
    assert!(said.contains(blocked), "{said}");
    let next = "blocked; the next request is allowed in 200 ms with a delay of 1000 ms, all 1 ";
    assert!(said.contains(next), "{said}");
    // Without it, a full burst is owed.
    scenario.reload(&text("5/s burst 1", ""));
    let answer = scenario.ask(&ip).await;
    assert_eq!(number(&answer, "retry_after_ms"), 200);
    assert_eq!(answer.var(Scope::Transaction, "delay_ms"), None);
}

/// A policy that only observes, and a trial, delay nothing. They count what they would delay.
#[tokio::test]
async fn what_only_observes_delays_nothing() {
    let ip = [("ip", address("192.0.2.1"))];
    for (text, policy) in [
        ("limits = \"1/s burst 2\"\nmode = \"observe\"", "api"),
        ("limits = \"unlimited\"\nobserve = \"1/s burst 2\"", "api.observe"),
    ] {
        let text = format!(
            "answer = [\"would_block\"]\n[policy.api]\nkey = [\"ip\"]\nmax_delay = \"2s\"\n{text}"
        );
        let mut scenario = Scenario::new(&text).await;
        for place in 0..6 {
            let answer = scenario.ask(&ip).await;
            assert_eq!(answer.var(Scope::Transaction, "delay_ms"), None);
            let would_block = answer.var(Scope::Transaction, "would_block");
            assert_eq!(would_block, Some(Value::Bool(place >= 4)), "{place}");
        }
        assert_eq!(scenario.counts(policy), [4, 2, 0, 0]);
        assert_eq!(scenario.stats.policy(policy).seldom.delayed.sum(), 2);
    }
}

/// HAProxy may ask twice about a request. The second answer leaves the delay of the first one as
/// it is, unless the policy that decides about it delays requests, too.
#[tokio::test]
async fn an_answer_leaves_the_delay_of_another_policy_as_it_is() {
    let mut scenario = Scenario::new(
        "answer = [\"reason\"]\n[policy.api]\nlimits = \"1/s burst 1\"\nkey = [\"ip\"]\n\
         max_delay = \"2s\"\n[policy.api.overrides]\n\"192.0.2.8\" = \"unlimited\"\n\
         [policy.more]\nlimits = \"1/s burst 2\"\nkey = [\"ip\"]\n[policy.tried]\n\
         limits = \"1/s burst 1\"\nmode = \"observe\"\nmax_delay = \"1s\"\nkey = [\"ip\"]\n",
    )
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    let none = Some(Value::Null);
    let delay = |value: u32| Some(Value::Uint32(value));
    for (messages, expected) in [
        (&["api"][..], delay(0)),
        (&["api"], delay(1_000)),
        (&["more"], none),
        (&["tried"], none),
        (&["tried", "more"], none),
        // A request that is blocked does not wait, whichever policy blocks it.
        (&["more"], delay(0)),
        (&["more", "api"], delay(0)),
    ] {
        let messages: Vec<_> = messages.iter().map(|name| (*name, &ip[..])).collect();
        let answer = scenario.client.ask(&messages).await.unwrap();
        let said = answer.var(Scope::Transaction, "delay_ms").or(Some(Value::Null));
        assert_eq!(said, expected, "{messages:?}: {answer:?}");
    }
    for (client, exempt) in [("192.0.2.8", false), ("192.0.2.9", true)] {
        if exempt {
            scenario.exempt("api", client, 60);
        }
        let answer = scenario.ask(&[("ip", address(client))]).await;
        assert_eq!(answer.var(Scope::Transaction, "delay_ms"), delay(0), "{client}");
    }
}

/// HAProxy may agree to frames of 256 bytes. A variable that does not fit then is left out whole,
/// and never the delay, without which the limit would be exceeded.
#[tokio::test]
async fn the_delay_is_in_the_smallest_answer() {
    let [one, two] = ["api", "more"].map(|name| {
        format!(
            "[policy.policy-with-a-name-as-long-as-this-{name}]\nmessage = \"{name}\"\n\
             limits = \"2/s burst 2\"\nkey = [\"ip\"]\nmax_delay = \"2s\"\n"
        )
    });
    let names = [
        "headers",
        "ratelimit",
        "policy",
        "reason",
        "would_block",
        "remaining",
        "limit",
        "retry_after",
        "retry_after_ms",
        "reset",
        "delay_ms",
    ];
    let ip = [("ip", address("192.0.2.1"))];
    for place in 0..names.len() {
        let mut answer = names;
        answer.rotate_left(place);
        let text = format!("answer = {answer:?}\n{one}{two}");
        let mut whole = Scenario::new(&text).await;
        let mut small = Scenario::new(&text).await;
        assert!(policies(&text).about_frames(16_380).is_none());
        let said = policies(&text).about_frames(256).unwrap();
        assert!(said.starts_with("with --max-frame-size 256 some answers may be too "), "{said}");
        let mut limits = spop_agent::Limits::default();
        limits.max_frame_size = 256;
        let limiter = Limiter::new(small.table.clone(), small.policies.clone());
        small.client = Client::of(Agent::new(limiter).limits(limits)).await.unwrap();
        let both = [("api", &ip[..]), ("more", &ip)];
        let (mut delayed, mut left_out) = (0, 0);
        for messages in [&both[..1]; 7].into_iter().chain([&both[..]; 7]) {
            let whole = whole.client.ask(messages).await.unwrap();
            let small = small.client.ask(messages).await.unwrap();
            for name in ["blocked"].into_iter().chain(names) {
                let value = small.var(Scope::Transaction, name);
                let is_short = ["blocked", "delay_ms"].contains(&name);
                if is_short || value.is_some() {
                    assert_eq!(value, whole.var(Scope::Transaction, name), "{name}: {small:?}");
                }
            }
            delayed += u32::from(number(&small, "delay_ms") > 0);
            // The variables after a list that does not fit are in the answer all the same.
            if small.var(Scope::Transaction, "headers").is_none() {
                left_out += 1;
                let next = small.var(Scope::Transaction, "policy");
                assert!(place > 0 || next.is_some(), "{small:?}");
            }
        }
        assert_eq!(delayed, 4);
        assert!(left_out >= 7, "two policies have longer header fields");
    }
}

/// A client that asks while it is blocked pays the penalty on top of its place in the queue.
#[tokio::test]
async fn a_penalty_comes_on_top_of_the_longest_delay() {
    let mut scenario = Scenario::new(
        "answer = [\"retry_after_ms\"]\n[policy.api]\nlimits = \"10/s burst 1\"\n\
         key = [\"ip\"]\nmax_delay = \"150ms\"\npenalty = { cells = 2, ceiling = \"200ms\" }\n",
    )
    .await;
    let ip = [("ip", address("192.0.2.1"))];
    let mut said = Vec::new();
    for _ in 0..5 {
        let answer = scenario.ask(&ip).await;
        said.push((number(&answer, "delay_ms"), number(&answer, "retry_after_ms")));
    }
    // The third one would wait for 200 ms, which is 50 too many, and pays 200 ms. Then the ceiling
    // is reached.
    assert_eq!(said, [(0, 0), (100, 0), (0, 250), (0, 250), (0, 250)]);
    scenario.advance_ms(250);
    let answer = scenario.ask(&ip).await;
    assert_eq!((number(&answer, "delay_ms"), number(&answer, "retry_after_ms")), (150, 0));
}

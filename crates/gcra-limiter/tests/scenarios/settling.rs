//! Responses that charge what their requests have cost.

use super::*;

#[tokio::test]
async fn only_responses_charge_and_a_request_needs_a_cell() {
    let mut scenario = Scenario::new(FAILED_LOGINS).await;
    let ip: Value<'_> = "192.0.2.1".parse::<IpAddr>().unwrap().into();
    for left in [3, 2, 1] {
        for _ in 0..5 {
            let answer = scenario.ask(&[("ip", ip)]).await;
            assert!(!Scenario::is_blocked(&answer));
            assert_eq!(Scenario::integer(&answer, "remaining"), Some(left));
        }
        let failed = scenario.client.ask(&[("failed", &[("ip", ip)])]).await.unwrap();
        assert_eq!(Scenario::integer(&failed, "remaining"), Some(left - 1));
        for name in ["blocked", "retry_after", "reserved"] {
            assert_eq!(failed.var(Scope::Transaction, name), None, "that is of the request");
        }
    }
    let answer = scenario.ask(&[("ip", ip)]).await;
    assert!(Scenario::is_blocked(&answer));
    assert_eq!(Scenario::integer(&answer, "retry_after"), Some(20));
    assert_eq!(scenario.counts("api"), [15, 0, 1, 0], "responses are no requests");
    let words = scenario.explain(&[("ip", ip)]).in_words();
    assert!(
        words.contains("a request now is blocked; the next one is allowed in 20 s"),
        "{words}"
    );
    // Those that were under way fail, too.
    for _ in 0..2 {
        scenario.client.ask(&[("failed", &[("ip", ip)])]).await.unwrap();
    }
    let words = scenario.explain(&[("ip", ip)]).in_words();
    let beyond = "; 40 s of that is beyond the burst, charged by responses";
    assert!(words.contains(beyond), "{words}");
    scenario.advance_ms(59_999);
    assert!(Scenario::is_blocked(&scenario.ask(&[("ip", ip)]).await));
    scenario.advance_ms(1);
    assert!(!Scenario::is_blocked(&scenario.ask(&[("ip", ip)]).await));
    assert_eq!(scenario.settled("api"), ([5, 0, 0, 0, 0, 0, 0], [5, 0, 2, 0, 0]));
    // A response without a key settles nothing.
    scenario.client.ask(&[("failed", &[("ip", Value::Null)])]).await.unwrap();
    assert_eq!(scenario.counts("api")[3], 1);
}

#[tokio::test]
async fn what_a_response_cost_corrects_what_was_reserved() {
    let mut scenario = Scenario::new(TOKENS).await;
    let answer = scenario.estimate("a", 60_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(40));
    let reserved = Scenario::reserved(&answer).unwrap();
    assert!(reserved.starts_with("api 60 "), "{reserved}");
    let answer = scenario.estimate("a", 41_i32.into()).await;
    assert!(Scenario::is_blocked(&answer));
    assert_eq!(Scenario::reserved(&answer), None);

    // It has cost less: the rest is given back, and can be spent.
    let answer = scenario.settle("a", "10".into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    assert_eq!(scenario.settled("api"), ([0, 1, 0, 0, 0, 0, 0], [0, 50, 0, 0, 0]));
    // It has cost more: beyond the burst, and up to the largest debt, which are 50 cells.
    let answer = scenario.estimate("a", 90_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    let answer = scenario.settle("a", 130_i64.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(0));
    scenario.settle("a", 110_i32.into(), None).await;
    assert_eq!(scenario.settled("api"), ([2, 1, 0, 0, 0, 0, 0], [50, 50, 50, 100, 0]));
    // The debt is 150 cells now.
    let answer = scenario.estimate("a", Value::Null).await;
    assert!(Scenario::is_blocked(&answer), "a request needs a cell, whatever it reserves");
    scenario.advance_ms(5_099);
    assert!(Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
    scenario.advance_ms(1);
    let answer = scenario.estimate("a", Value::Null).await;
    assert!(!Scenario::is_blocked(&answer));
    assert_eq!(Scenario::reserved(&answer), None, "nothing is reserved");
    assert_eq!(scenario.counts("api")[0], 3);

    // Another client: the response says nothing, or what was reserved.
    let answer = scenario.estimate("b", 70_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    let costs: [Value<'_>; 4] = [Value::Null, (-1_i32).into(), "much".into(), 70_u64.into()];
    for cost in costs {
        let answer = scenario.settle("b", cost, Some(&reserved)).await;
        assert_eq!(Scenario::integer(&answer, "remaining"), Some(30), "{cost:?}");
    }
    let (outcomes, _) = scenario.settled("api");
    assert_eq!(outcomes[2..], [1, 0, 0, 3, 0]);
}

#[tokio::test]
async fn a_late_response_gives_nothing_back_and_still_charges() {
    let mut scenario = Scenario::new(TOKENS).await;
    let asked = scenario.estimate("a", 70_i32.into()).await;
    let now = gcra_limiter::reservations::wall_clock().as_millis();
    scenario.clock.set_wall(u64::try_from(now).unwrap() * 1_000_000);
    let late = Scenario::reserved_at(&asked, now - 601_000);
    let answer = scenario.settle("a", 10_i32.into(), Some(&late)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(30));
    assert_eq!(scenario.settled("api").0, [0, 0, 0, 1, 0, 0, 0]);
    let answer = scenario.settle("a", 80_i32.into(), Some(&late)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(20));
    // A clock that is ahead, on another machine.
    let early = Scenario::reserved_at(&asked, now + 3_600_000);
    let answer = scenario.settle("a", 60_i32.into(), Some(&early)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(30));
}

#[tokio::test]
async fn each_policy_and_each_limit_is_settled_for_itself() {
    let text = "answer = [\"ratelimit\"]\n\
                [policy.api]\nlimits = [{ name = \"few\", rate = \"1/h\", burst = 10 }, \
                { name = \"many\", rate = \"1/h\", burst = 100 }]\nkey = [\"key\"]\n\
                reserve = 5\ncost = \"tokens\"\nsettle = \"usage\"\nmax_debt = \"2h\"\n\
                [policy.tenant]\nlimits = \"1/h burst 50\"\nkey = [\"tenant\"]\nreserve = 7\n\
                cost = \"tokens\"\nsettle = \"usage-tenant\"\n";
    let mut scenario = Scenario::new(text).await;
    let (key, tenant) = (("key", "a".into()), ("tenant", "t".into()));
    let answer = scenario.client.ask(&[("api", &[key]), ("tenant", &[tenant])]).await.unwrap();
    let reserved = Scenario::reserved(&answer).unwrap();
    let entries: Vec<Vec<_>> = reserved.split(", ").map(|it| it.split(' ').collect()).collect();
    let [api, tenants] = &entries[..] else { panic!("{reserved}") };
    assert_eq!((&api[..2], &tenants[..2]), (&["api", "5"][..], &["tenant", "7"][..]));
    let marks = [api, tenants].map(|entry| entry[3].split('.').count());
    assert_eq!(marks, [2, 1], "one for each limit");
    let text = |answer: &Answer| {
        let value = answer.var(Scope::Transaction, "ratelimit").unwrap();
        let text = String::from_utf8(value.as_bytes().unwrap().to_vec()).unwrap();
        text.split(";t=").map(|it| it.rsplit_once(' ').map_or(it, |it| it.1).to_owned()).collect()
    };
    let left: Vec<String> = text(&answer);
    assert_eq!(left[..3], ["\"api.few\";r=5", "\"api.many\";r=95", "\"tenant\";r=43"]);
    // The smaller limit can owe 12 cells, and the larger one all of it.
    let brought = ("reserved", reserved.as_str().into());
    let both = [
        ("usage", &[key, ("tokens", 20_i32.into()), brought][..]),
        ("usage-tenant", &[tenant, ("tokens", 2_i32.into()), brought][..]),
    ];
    let answer = scenario.client.ask(&both).await.unwrap();
    let left: Vec<String> = text(&answer);
    assert_eq!(left[..3], ["\"api.few\";r=0", "\"api.many\";r=80", "\"tenant\";r=48"]);
    assert_eq!(scenario.settled("api"), ([1, 0, 0, 0, 0, 0, 0], [15, 0, 2, 8, 0]));
    assert_eq!(scenario.settled("tenant"), ([0, 1, 0, 0, 0, 0, 0], [0, 5, 0, 0, 0]));
    // One of the two limits has no cell.
    assert!(Scenario::is_blocked(&scenario.ask(&[key]).await));
}

#[tokio::test]
async fn settling_knows_overrides_modes_and_orders() {
    let more = "mode = \"observe\"\n[policy.api.overrides]\nunlimited = \"unlimited\"\n\
                large = \"10/s burst 1000\"\n";
    let mut scenario = Scenario::new(&format!("{TOKENS}{more}")).await;
    let answer = scenario.estimate("unlimited", 60_i32.into()).await;
    assert_eq!(Scenario::reserved(&answer), None, "nothing is charged");
    scenario.settle("unlimited", 60_i32.into(), None).await;
    let answer = scenario.estimate("large", 600_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    let answer = scenario.settle("large", 100_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(900));
    // A request that would be blocked goes on, and its response is charged.
    scenario.estimate("a", 100_i32.into()).await;
    let answer = scenario.estimate("a", 10_i32.into()).await;
    assert!(!Scenario::is_blocked(&answer));
    assert_eq!(Scenario::reserved(&answer), None, "nothing was reserved for it");
    let before = scenario.settled("api").1[0];
    scenario.settle("a", 10_i32.into(), None).await;
    assert_eq!(scenario.settled("api").1[0] - before, 10);

    // Under an order, neither the request nor its response is charged.
    for kind in [OrderKind::Exempt, OrderKind::Block] {
        let mut scenario = Scenario::new(TOKENS).await;
        let before = Scenario::reserved(&scenario.estimate("b", 60_i32.into()).await).unwrap();
        scenario.order(kind, "api", "a", 60);
        scenario.order(kind, "api", "b", 60);
        let answer = scenario.estimate("a", 60_i32.into()).await;
        assert_eq!(Scenario::is_blocked(&answer), kind == OrderKind::Block);
        assert_eq!(Scenario::reserved(&answer), None);
        scenario.settle("a", 60_i32.into(), None).await;
        // What was reserved before the order is given back.
        scenario.settle("b", 10_i32.into(), Some(&before)).await;
        scenario.order(kind, "api", "a", 0);
        scenario.order(kind, "api", "b", 0);
        for (client, left) in [("a", 100), ("b", 90)] {
            let answer = scenario.estimate(client, Value::Null).await;
            assert_eq!(Scenario::integer(&answer, "remaining"), Some(left), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn what_responses_charged_and_what_is_reserved_survive_a_reload() {
    let mut scenario = Scenario::new(TOKENS).await;
    let answer = scenario.estimate("a", 90_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    scenario.reload(&TOKENS.replace("10/s burst 100", "20/s burst 200"));
    // 80 of the 90 come back.
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(190));
    let answer = scenario.estimate("a", 20_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(170));
    // 30 cells are owed. 40 beyond the burst of 200 are 2 s at this rate, and 40 cells later.
    scenario.settle("a", 210_i32.into(), None).await;
    scenario.reload(&TOKENS.replace("10/s burst 100", "40/s burst 100"));
    assert!(Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
    // 240 cells: the burst of 100, and 5 s of debt, which are 200 cells here.
    scenario.advance_ms(140 * 25 + 24);
    assert!(Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
    scenario.advance_ms(1);
    assert!(!Scenario::is_blocked(&scenario.estimate("a", Value::Null).await));
}

/// Cells that another request has carried into the bucket of the new numbers stay there: nobody
/// knows any more where those in it were charged.
#[tokio::test]
async fn what_was_carried_over_is_not_given_back() {
    let mut scenario = Scenario::new(TOKENS).await;
    let answer = scenario.estimate("a", 90_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    scenario.reload(&TOKENS.replace("10/s burst 100", "20/s burst 200"));
    let answer = scenario.estimate("a", 20_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(90));
    assert_eq!(scenario.settled("api"), ([0, 1, 0, 0, 0, 0, 0], [0, 80, 0, 0, 0]));
}

/// Two agents with different numbers: a response frees nothing in a bucket that its request was
/// not charged in. The order in which the agents start does not matter.
#[tokio::test]
async fn a_response_gives_cells_back_only_where_they_were_charged() {
    let group = |prefix: u8| format!("{TOKENS}ipv4_prefix = {prefix}\n");
    for (first, second, ip) in [
        (TOKENS.to_owned(), TOKENS.replace("10/s", "20/s"), "a"),
        (TOKENS.replace("10/s", "20/s"), TOKENS.to_owned(), "a"),
        (TOKENS.to_owned(), TOKENS.replace("burst 100", "burst 120"), "a"),
        (TOKENS.to_owned(), TOKENS.replace("5s", "6s"), "a"),
        (group(24), group(32), "192.0.2.200"),
        (
            TOKENS.to_owned(),
            format!("{TOKENS}[policy.api.overrides]\n\"a\" = \"10/s burst 90\"\n"),
            "a",
        ),
    ] {
        let key = ip.parse().map_or(Value::String(ip.as_bytes()), |ip: IpAddr| ip.into());
        for changes_by_reload in [false, true] {
            let mut a = Scenario::new(&first).await;
            let mut b = match changes_by_reload {
                false => a.another(&second).await,
                true => {
                    let b = a.another(&first).await;
                    b.reload(&second);
                    b
                }
            };
            let (mut spent, mut reserved_at_b) = (0, Vec::new());
            for _ in 0..40 {
                // At the first one, all is spent that was reserved.
                let request = [("key", key), ("estimate", 10_i32.into())];
                spent += 10 * i32::from(!Scenario::is_blocked(&a.ask(&request).await));
                // At the second one, nothing is, and all of it is given back, at either.
                let answer = b.ask(&request).await;
                if let Some(reserved) = Scenario::reserved(&answer) {
                    reserved_at_b.push(reserved);
                }
                let Some(reserved) = reserved_at_b.pop() else { continue };
                let response = [
                    ("key", key),
                    ("tokens", 0_i32.into()),
                    ("reserved", reserved.as_str().into()),
                ];
                let agent = if spent % 20 == 0 { &mut a } else { &mut b };
                agent.client.ask(&[("usage", &response)]).await.unwrap();
            }
            let burst = if first.contains("burst 120") { 120 } else { 100 };
            assert_eq!(spent, burst, "{second}, by a reload: {changes_by_reload}");
        }
    }
}

/// A cell of 3/s takes a third of a second, which is no whole number of nanoseconds.
#[tokio::test]
async fn all_cells_that_come_back_in_max_debt_can_be_owed() {
    let text = "[policy.api]\nlimits = LIMIT\nkey = [\"key\"]\ncost = \"tokens\"\nsettle = \
                \"usage\"\nmax_debt = \"1s\"\n";
    for (limit, overdrawn) in [
        ("\"3/s burst 2\"", 3),
        ("\"7/s burst 2\"", 7),
        ("\"10/s burst 2\"", 10),
        ("\"1000000/s burst 2\"", 1_000_000),
        // Of two cells that take 4/3 s, only one fits.
        ("\"3/2s burst 2\"", 1),
        ("\"1/d burst 2\"", 0),
        ("{ arg = \"plan\", default = \"3/s burst 2\", most = \"10/s burst 9\" }", 3),
    ] {
        let mut scenario = Scenario::new(&text.replace("LIMIT", limit)).await;
        let args = [("key", "a".into()), ("tokens", 2_000_000_i32.into())];
        scenario.client.ask(&[("usage", &args)]).await.unwrap();
        let [charged, _, beyond, ..] = scenario.settled("api").1;
        if limit.starts_with('{') {
            // The limit with the most is the one that counts.
            assert_eq!(charged, 19, "{limit}");
            let words = scenario.explain(&[("key", "a".into())]).in_words();
            assert!(words.contains("all 2 again in 1667 ms"), "{words}");
        } else {
            assert_eq!((charged, beyond), (2 + overdrawn, overdrawn), "{limit}");
        }
    }
}

/// `reset` and the `t` of the header field are one number, also where nothing is owed, and after a
/// response was settled.
#[tokio::test]
async fn the_header_field_says_when_the_burst_is_back_as_reset_does() {
    let text = "answer = [\"ratelimit\", \"reset\"]\n[policy.api]\nlimits = LIMIT\nkey = \
                [\"key\"]\nreserve = \"estimate\"\ncost = \"tokens\"\nsettle = \"usage\"\n";
    for (limit, is_counted) in [("\"3/m\"", false), ("{ count = 3, window = \"day\" }", true)] {
        let mut scenario = Scenario::new(&text.replace("LIMIT", limit)).await;
        let now = gcra_limiter::reservations::wall_clock().as_secs();
        scenario.clock.set_wall((now - now % 86_400 + 86_400 - 1_000) * 1_000_000_000);
        let check = |answer: &Answer, left: u32, reset: u64| {
            let reset = if is_counted { 1_000 } else { reset };
            assert_eq!(number(answer, "reset"), reset, "{limit}");
            assert_eq!(text_of(answer, "ratelimit"), Some(format!("\"api\";r={left};t={reset}")));
        };
        // A request that only looks.
        check(&scenario.estimate("a", 0_i32.into()).await, 3, 0);
        let answer = scenario.estimate("a", 2_i32.into()).await;
        check(&answer, 1, 40);
        check(&scenario.settle("a", 1_i32.into(), None).await, 0, 60);
        if !is_counted {
            let reserved = Scenario::reserved(&answer);
            check(&scenario.settle("b", 0_i32.into(), reserved.as_deref()).await, 3, 0);
        }
    }
}

/// A step of a run: a pause in milliseconds, the client, what its request reserves; and then which
/// of the requests under way gets its response, and what that says it has cost.
type SettledStep = (u64, u8, i32, Option<(usize, Option<i32>)>);

fn settled_step() -> impl Strategy<Value = SettledStep> {
    let pause = prop_oneof![Just(0), 0..3000_u64];
    let response = (0..6_usize, prop::option::weighted(0.9, prop_oneof![0..9_i32, 0..60]));
    (pause, 0..3_u8, prop_oneof![Just(0), 0..12_i32], prop::option::of(response))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Two agents on one table decide and settle as a bucket for each client and limit does that
    /// is written down naively: what is owed goes down with the time.
    #[test]
    fn all_agents_settle_one_debt(
        steps in prop::collection::vec((settled_step(), any::<bool>()), 1..80),
        limits in prop::collection::vec((1..9_u32, 1..15_u32), 1..4),
        max_debt_s in 1..6_u32,
    ) {
        let each: Vec<_> =
            limits.iter().map(|(rate, burst)| format!("\"{rate}/s burst {burst}\"")).collect();
        let text = format!(
            "[policy.api]\nlimits = [{}]\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \
             \"tokens\"\nsettle = \"usage\"\nmax_debt = \"{max_debt_s}s\"\n",
            each.join(", ")
        );
        let interval = |rate: u32| 1_000_000_000_u64.div_ceil(rate.into());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let outcome = runtime.block_on(async {
            let mut first = Scenario::new(&text).await;
            let mut other = first.another(&text).await;
            let mut owed = vec![vec![0_u64; limits.len()]; 3];
            let mut under_way = Vec::new();
            // The cells that were charged, given back and forgiven under the limit with the most.
            let mut sums = [0_u64; 3];
            for ((pause_ms, client, estimate, response), by_other) in &steps {
                let pause = Nanos::from_millis(*pause_ms);
                first.clock.advance(pause);
                owed.iter_mut().flatten().for_each(|owed| *owed = owed.saturating_sub(pause.0));
                let agent = if *by_other { &mut other } else { &mut first };
                let key = ["a", "b", "c"][usize::from(*client)];
                let answer = agent.estimate(key, (*estimate).into()).await;
                let reserves = u64::try_from(*estimate).unwrap();
                let mine = &mut owed[usize::from(*client)];
                let blocks = |((rate, burst), owed): (&(u32, u32), &u64)| {
                    owed + reserves.max(1) * interval(*rate) > u64::from(*burst) * interval(*rate)
                };
                let blocked = limits.iter().zip(&*mine).any(blocks);
                if Scenario::is_blocked(&answer) != blocked {
                    return Err(format!("{answer:?}, and {mine:?} are owed"));
                }
                let reserved = Scenario::reserved(&answer);
                if reserved.is_some() != (!blocked && reserves > 0) {
                    return Err(format!("{reserved:?}"));
                }
                if !blocked {
                    for ((rate, _), owed) in limits.iter().zip(mine) {
                        *owed += reserves * interval(*rate);
                    }
                    under_way.push((*client, reserves, reserved));
                }
                let Some((which, cost)) = response.filter(|_| !under_way.is_empty()) else {
                    continue;
                };
                let (client, reserves, reserved) = under_way.remove(which % under_way.len());
                let key = ["a", "b", "c"][usize::from(client)];
                let cost_said = cost.map_or(Value::Null, Value::from);
                agent.settle(key, cost_said, reserved.as_deref()).await;
                let Some(cost) = cost.and_then(|cost| u64::try_from(cost).ok()) else { continue };
                let (more, less) = (cost.saturating_sub(reserves), reserves.saturating_sub(cost));
                let mut most = [0; 3];
                for ((rate, burst), owed) in limits.iter().zip(&mut owed[usize::from(client)]) {
                    let interval = interval(*rate);
                    // All cells that come back in `max_debt`, also where none takes a whole
                    // number of nanoseconds.
                    let cells = u64::from(*burst) + u64::from(max_debt_s) * u64::from(*rate);
                    let fits = (cells * interval).saturating_sub(*owed) / interval;
                    let charged = more.min(fits);
                    let given = (less * interval).min(*owed);
                    *owed = *owed + charged * interval - given;
                    let cells = [charged, given / interval, more - charged];
                    for (most, cells) in most.iter_mut().zip(cells) {
                        *most = cells.max(*most);
                    }
                }
                sums.iter_mut().zip(most).for_each(|(sum, most)| *sum += most);
            }
            let counted = [&first, &other].map(|agent| agent.settled("api").1);
            let counted = [0, 1, 3].map(|kind| counted[0][kind] + counted[1][kind]);
            if counted == sums { Ok(()) } else { Err(format!("{counted:?}, and not {sums:?}")) }
        });
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

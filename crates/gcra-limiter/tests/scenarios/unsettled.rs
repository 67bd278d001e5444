//! Requests that no response settles.

use super::*;

/// A month has as many cells as one likes, and none comes back meanwhile: so what is left says
/// exactly what was charged.
const MONTH: &str = "answer = [\"remaining\"]\n[policy.api]\nlimits = { count = 4000000000, \
                     window = \"month UTC\" }\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \
                     \"tokens\"\nsettle = \"usage\"\nsettle_within = \"1m\"\nunsettled = 100\n";

const COUNT: i64 = 4_000_000_000;

const MINUTE: u64 = 60_000;

async fn at_the_beginning_of_a_month(text: &str) -> Scenario {
    let scenario = Scenario::new(text).await;
    scenario.clock.set_wall(wall("2026-03-01T00:00:00Z"));
    scenario
}

impl Scenario {
    /// How many cells of a client are charged, by an answer about it.
    fn charged(answer: &Answer) -> i64 {
        COUNT - Self::integer(answer, "remaining").unwrap()
    }

    /// The same by a message that settles nothing.
    async fn charged_now(&mut self, key: &str) -> i64 {
        Self::charged(&self.settle(key, 0_i32.into(), None).await)
    }
}

#[tokio::test]
async fn a_request_that_no_response_settles_costs_so_many_cells_in_all() {
    let mut scenario = at_the_beginning_of_a_month(MONTH).await;
    scenario.advance_ms(59_999);
    for estimate in [0_i32, 10, 100, 250] {
        assert!(Scenario::reserved(&scenario.estimate("a", estimate.into()).await).is_some());
    }
    assert_eq!(scenario.charged_now("a").await, 360);
    let held = |scenario: &Scenario| {
        let words = scenario.explain(&[("key", "a".into()), ("estimate", 0_i32.into())]);
        words.in_words()
    };
    let words = held(&scenario);
    assert!(words.contains("no response yet: 190 cells may follow"), "{words}");
    // The whole term after theirs is left to them.
    scenario.advance_ms(MINUTE);
    assert_eq!(Scenario::charged(&scenario.estimate("a", 0_i32.into()).await), 360);
    scenario.advance_ms(1);
    let words = held(&scenario);
    assert!(words.contains("190 cells are charged with the next request"), "{words}");
    assert!(words.contains("3999999450 of 4000000000 left"), "they are counted: {words}");
    assert_eq!(scenario.charged_now("a").await, 360, "a response charges nothing else");
    assert_eq!(Scenario::charged(&scenario.estimate("b", 0_i32.into()).await), 0);
    // Another agent charges them, and none a second time.
    let mut other = scenario.another(MONTH).await;
    assert_eq!(Scenario::charged(&other.estimate("a", 0_i32.into()).await), 550);
    assert_eq!(Scenario::charged(&scenario.estimate("a", 0_i32.into()).await), 550);
    assert_eq!(other.settled("api").1, [0, 0, 0, 0, 190]);
    assert_eq!(scenario.settled("api").1, [0; 5]);
}

#[tokio::test]
async fn a_response_settles_also_late_and_then_only_beyond_what_was_charged() {
    let mut scenario = at_the_beginning_of_a_month(MONTH).await;
    let mut reserved = Vec::new();
    for _ in 0..5 {
        let answer = scenario.estimate("a", 10_i32.into()).await;
        reserved.push(Scenario::reserved(&answer).unwrap());
    }
    let mut settled = reserved.iter().map(|it| Some(it.as_str()));
    // In time: it cost less.
    scenario.settle("a", 4_i32.into(), settled.next().unwrap()).await;
    // In time, but it does not say what it cost: it stays charged.
    scenario.settle("a", Value::Null, settled.next().unwrap()).await;
    // Late, and not charged yet.
    scenario.advance_ms(2 * MINUTE);
    scenario.settle("a", 7_i32.into(), settled.next().unwrap()).await;
    assert_eq!(scenario.charged_now("a").await, 4 + 10 + 10 + 20);
    // Two are charged, and their responses come after that.
    let answer = scenario.estimate("a", 0_i32.into()).await;
    assert_eq!(Scenario::charged(&answer), 4 + 10 + 10 + 200);
    scenario.settle("a", 60_i32.into(), settled.next().unwrap()).await;
    assert_eq!(scenario.charged_now("a").await, 4 + 10 + 10 + 200);
    scenario.settle("a", 130_i32.into(), settled.next().unwrap()).await;
    assert_eq!(scenario.charged_now("a").await, 4 + 10 + 10 + 100 + 130);
}

#[tokio::test]
async fn a_policy_that_reserves_nothing_can_count_what_is_not_settled() {
    let text = "[policy.api]\nlimits = \"3/h\"\nkey = [\"ip\"]\ncost = \"failed\"\nsettle = \
                \"done\"\nmax_debt = \"2h\"\nsettle_within = \"10s\"\nunsettled = 1\n";
    let mut scenario = at_the_beginning_of_a_month(text).await;
    let ip = address("192.0.2.1");
    for failed in [0_i32, 0, 0, 0, 0, 1] {
        let answer = scenario.ask(&[("ip", ip)]).await;
        let reserved = Scenario::reserved(&answer).unwrap();
        let args = [("ip", ip), ("failed", failed.into()), ("reserved", (&*reserved).into())];
        scenario.client.ask(&[("done", &args)]).await.unwrap();
    }
    // Six clients close their connections before the response.
    for _ in 0..6 {
        assert!(!Scenario::is_blocked(&scenario.ask(&[("ip", ip)]).await));
    }
    scenario.advance_ms(20_000);
    let answer = scenario.ask(&[("ip", ip)]).await;
    assert!(Scenario::is_blocked(&answer));
    assert_eq!(scenario.settled("api").1, [1, 0, 4, 0, 6], "six were not settled");
    let words = scenario.explain(&[("ip", ip)]).in_words();
    assert!(words.contains("the next one is allowed in 99 min 40 s"), "{words}");
}

#[tokio::test]
async fn a_request_that_is_blocked_has_no_response_to_wait_for() {
    let text = format!("{MONTH}[policy.other]\nlimits = \"1/h\"\nkey = [\"key\"]\n");
    let mut scenario = at_the_beginning_of_a_month(&text).await;
    for blocked in [false, true, true] {
        let (api, other) =
            ([("key", "a".into()), ("estimate", 10_i32.into())], [("key", "a".into())]);
        let answer = scenario.client.ask(&[("api", &api), ("other", &other)]).await.unwrap();
        assert_eq!(Scenario::is_blocked(&answer), blocked);
        assert_eq!(Scenario::reserved(&answer).is_none(), blocked);
    }
    scenario.advance_ms(3 * MINUTE);
    let answer = scenario.estimate("a", 0_i32.into()).await;
    assert_eq!(Scenario::charged(&answer), 30 + 90);
}

#[tokio::test]
async fn what_is_beyond_the_largest_debt_is_forgiven() {
    let text = TOKENS.replace("max_debt", "settle_within = \"1m\"\nunsettled = 70\nmax_debt");
    let mut scenario = at_the_beginning_of_a_month(&text).await;
    for _ in 0..4 {
        scenario.estimate("a", 5_i32.into()).await;
    }
    scenario.advance_ms(2 * MINUTE);
    // A burst of 100, and 5 s beyond it.
    assert!(Scenario::is_blocked(&scenario.estimate("a", 1_i32.into()).await));
    assert_eq!(scenario.settled("api").1, [0, 0, 50, 110, 150]);
    scenario.advance_ms(5_099);
    assert!(Scenario::is_blocked(&scenario.estimate("a", 1_i32.into()).await));
    scenario.advance_ms(1);
    assert!(!Scenario::is_blocked(&scenario.estimate("a", 1_i32.into()).await));
}

/// The facts that the model knows about a request.
#[derive(Clone, Debug)]
struct Naive {
    client: usize,
    at_ms: u64,
    text: String,
    /// The cells that it is charged in all.
    charged: u32,
    has_response: bool,
    is_overdue: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait { ms: u64 },
    Ask { agent: usize, client: usize, cells: u32 },
    Settle { agent: usize, which: usize, cost: Option<u32> },
    Restart { agent: usize },
}

const AGENTS: usize = 3;
const CLIENTS: [&str; 2] = ["a", "b"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![4 => 1..20_000_u64, 1 => 50_000..200_000_u64];
    let cost = prop::option::weighted(0.9, prop_oneof![0..30_u32, 90..130_u32]);
    let step = prop_oneof![
        4 => wait.prop_map(|ms| Step::Wait { ms }),
        10 => (0..AGENTS, 0..CLIENTS.len(), prop_oneof![0..20_u32, 95..110_u32])
            .prop_map(|(agent, client, cells)| Step::Ask { agent, client, cells }),
        6 => (0..AGENTS, any::<usize>(), cost)
            .prop_map(|(agent, which, cost)| Step::Settle { agent, which, cost }),
        1 => (0..AGENTS).prop_map(|agent| Step::Restart { agent }),
    ];
    prop::collection::vec(step, 20..120)
}

async fn run(steps: &[Step]) {
    let first = at_the_beginning_of_a_month(MONTH).await;
    let mut agents = Vec::new();
    for _ in 0..AGENTS {
        agents.push(first.another(MONTH).await);
    }
    let (mut requests, mut now) = (Vec::<Naive>::new(), 0);
    for step in steps {
        match *step {
            Step::Wait { ms } => {
                now += ms;
                first.clock.advance(Nanos::from_millis(ms));
            }
            Step::Ask { agent, client, cells } => {
                for request in requests.iter_mut().filter(|it| it.client == client) {
                    let is_overdue = request.at_ms / MINUTE + 2 <= now / MINUTE;
                    if is_overdue && !request.has_response && !request.is_overdue {
                        request.is_overdue = true;
                        request.charged = request.charged.max(100);
                    }
                }
                let answer = agents[agent].estimate(CLIENTS[client], cells.into()).await;
                let text = Scenario::reserved(&answer).unwrap();
                let (charged, has_response, is_overdue) = (cells, false, false);
                let at_ms = now;
                requests.push(Naive { client, at_ms, text, charged, has_response, is_overdue });
            }
            Step::Settle { agent, which, cost } => {
                let mut open: Vec<_> = requests.iter_mut().filter(|it| !it.has_response).collect();
                let count = open.len();
                if count == 0 {
                    continue;
                }
                let request = &mut open[which % count];
                request.has_response = true;
                let is_late = now - request.at_ms > MINUTE;
                request.charged = match cost {
                    None => request.charged,
                    Some(cost) if is_late => cost.max(request.charged),
                    Some(cost) => cost,
                };
                let cost = cost.map_or(Value::Null, Value::from);
                let (client, text) = (CLIENTS[request.client], request.text.clone());
                agents[agent].settle(client, cost, Some(&text)).await;
            }
            Step::Restart { agent } => agents[agent] = first.another(MONTH).await,
        }
        for (client, name) in CLIENTS.into_iter().enumerate() {
            let own = requests.iter().filter(|it| it.client == client);
            let charged: i64 = own.map(|it| i64::from(it.charged)).sum();
            assert_eq!(agents[0].charged_now(name).await, charged, "{step:?}: {requests:#?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Whichever agents get a request and its response, and whenever that comes or if it never
    /// does: the request costs what the naive model says.
    #[test]
    fn each_request_costs_what_its_response_says_or_the_setting(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(&steps));
    }
}

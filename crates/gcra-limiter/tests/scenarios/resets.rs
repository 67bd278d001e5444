//! All clients of a policy are reset at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gcra_table::board::PolicyReset;

use super::*;

const ANNA: &str = "192.0.2.1";
const BERT: &str = "192.0.2.2";

impl Scenario {
    fn reset(&self, policy: &str) {
        self.table.load().board().reset_policy(policy_id(policy), "anna").unwrap();
        self.housekeeping();
    }
}

#[tokio::test]
async fn a_reset_is_for_all_clients_of_one_policy_and_for_nothing_else() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = [\"3/d\", { rate = \"5/d\", key = [] }]\nobserve = \"2/d\"\n\
         key = [\"ip\"]\npenalty = { cells = 2, ceiling = \"1d\" }\n\
         [policy.api.overrides]\n\"192.0.2.2\" = \"4/d\"\n\
         [policy.login]\nlimits = \"2/d\"\nkey = [\"ip\"]\n",
    )
    .await;
    scenario.order(OrderKind::Block, "api", "192.0.2.3", 3600);
    let login = [("login", &[("ip", address(ANNA))][..])];
    for again in 0..3 {
        // The fifth request of all clients is the last one, but an override has limits of its own.
        assert_eq!(scenario.passed(ANNA, 5).await, 3, "{again}");
        assert_eq!(scenario.passed("192.0.2.9", 4).await, 2, "{again}");
        assert_eq!(scenario.passed(BERT, 5).await, 4, "{again}");
        assert!(!scenario.passes("192.0.2.3").await, "an order about a client stays");
        assert_eq!(scenario.counts("api.observe")[0], 4 * (again + 1), "the trial is reset, too");
        let answer = scenario.client.ask(&login).await.unwrap();
        assert_eq!(Scenario::is_blocked(&answer), again == 2, "another policy goes on");
        scenario.reset("api");
    }
    scenario.reset("logins");
    assert!(Scenario::is_blocked(&scenario.client.ask(&login).await.unwrap()));
}

#[tokio::test]
async fn a_reset_leaves_the_usual_path_and_the_known_mistakes_as_they_are() {
    let scenario = Scenario::new(&limits("\"3/d\"")).await;
    let before = scenario.policies.load_full();
    scenario.reset("api");
    let after = scenario.policies.load_full();
    assert!(matches!(after.row(0).path, DecisionPath::SingleCharge(_)));
    assert_eq!(after.row(0).rules, before.row(0).rules);
    assert!(Arc::ptr_eq(&after.row(0).stats, &before.row(0).stats));
    scenario.housekeeping();
    assert!(Arc::ptr_eq(&scenario.policies.load_full(), &after), "nothing has changed since");
}

#[tokio::test]
async fn a_debt_from_before_a_reset_does_not_come_back_by_a_reload() {
    let mut scenario = Scenario::new(&limits("\"4/d\"")).await;
    assert_eq!(scenario.passed(ANNA, 5).await, 4);
    scenario.advance_ms(1);
    scenario.reload(&limits("\"5/d\""));
    assert_eq!(scenario.passed(ANNA, 5).await, 1, "a reload forgives nothing");
    scenario.reset("api");
    assert_eq!(scenario.passed(ANNA, 2).await, 2);
    for (rate, passes) in [("4/d", 2), ("6/d", 2), ("5/d", 0)] {
        scenario.advance_ms(1);
        scenario.reload(&limits(&format!("\"{rate}\"")));
        assert_eq!(scenario.passed(ANNA, 9).await, passes, "{rate}: two were spent since");
        let mut started = scenario.another(&limits(&format!("\"{rate}\""))).await;
        assert!(!started.passes(ANNA).await, "{rate}: also in an agent that starts later");
    }
}

#[tokio::test]
async fn what_a_window_counts_and_what_messages_say_is_reset() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = [{ count = 3, window = \"month UTC\" }, { arg = \"limit\", \
         default = \"9/d\", most = \"9/d\" }]\nkey = [\"ip\"]\n",
    )
    .await;
    for _ in 0..2 {
        assert_eq!(scenario.passed(ANNA, 5).await, 3);
        let args = [("ip", address(BERT)), ("limit", "2/d".into())];
        for left in [2, 1, 0] {
            assert_eq!(blocked(&mut scenario, &args).await, Some(left == 0));
        }
        scenario.reset("api");
    }
}

/// Nothing of it is given back, because it is forgiven already.
#[tokio::test]
async fn a_response_to_a_request_from_before_a_reset_gives_nothing_back() {
    let text = TOKENS.replace("max_debt", "settle_within = \"1m\"\nunsettled = 70\nmax_debt");
    let mut scenario = Scenario::new(&text).await;
    scenario.clock.set_wall(wall("2026-03-01T00:00:00Z"));
    let answer = scenario.estimate("a", 60_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    scenario.estimate("a", 1_i32.into()).await;
    scenario.reset("api");
    let answer = scenario.estimate("a", 50_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(50));
    let answer = scenario.settle("a", 10_i32.into(), Some(&reserved)).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(50));
    // Two minutes later all is paid off. Only the request since the reset costs more by then.
    scenario.advance_ms(120_000);
    let answer = scenario.estimate("a", 0_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(80));
}

/// Another machine gave it, whose clock is an hour ahead.
#[tokio::test]
async fn a_response_settles_its_request_also_if_a_reset_seems_to_come_later() {
    let text = TOKENS.replace("max_debt", "settle_within = \"1m\"\nunsettled = 70\nmax_debt");
    let mut scenario = Scenario::new(&text).await;
    scenario.clock.set_wall(wall("2026-03-01T00:00:00Z"));
    let at = wall("2026-03-01T01:00:00Z");
    let reset = PolicyReset { policy: policy_id("api"), at, giver: "anna@b".to_owned() };
    scenario.table.load().board().take_reset(&reset).unwrap();
    scenario.housekeeping();
    let answer = scenario.estimate("a", 60_i32.into()).await;
    let reserved = Scenario::reserved(&answer).unwrap();
    scenario.settle("a", 60_i32.into(), Some(&reserved)).await;
    scenario.advance_ms(120_000);
    let answer = scenario.estimate("a", 0_i32.into()).await;
    assert_eq!(Scenario::integer(&answer, "remaining"), Some(100));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask { agent: usize, client: usize, requests: u32 },
    Reset,
    Beat { agent: usize },
    Restart { agent: usize },
    Resize { slots: u64 },
}

const AGENTS: usize = 3;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..AGENTS, 0..3_usize, 1..8_u32)
            .prop_map(|(agent, client, requests)| Step::Ask { agent, client, requests }),
        2 => Just(Step::Reset),
        4 => (0..AGENTS).prop_map(|agent| Step::Beat { agent }),
        1 => (0..AGENTS).prop_map(|agent| Step::Restart { agent }),
        1 => (9..12_u32).prop_map(|bits| Step::Resize { slots: 1 << bits }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Agents with a table in a file. No cell comes back while the test runs.
struct Fleet {
    path: PathBuf,
    agents: Vec<Scenario>,
    /// The last reset that each agent follows, and the last one of all.
    follows: Vec<u64>,
    last: u64,
    /// The requests of each client that were allowed since a reset.
    allowed: BTreeMap<(u64, usize), u32>,
}

const LIMIT: u32 = 4;

const ALL_CLIENTS: u32 = 9;

impl Fleet {
    async fn start(path: &Path) -> Scenario {
        let slots = Slots::new(1 << 10).ok().filter(|_| !path.exists());
        let (table, _) = Table::open_or_create(path, slots).unwrap();
        // It has the time of the machine.
        let clock = Table::with_manual_clock(Slots::new(8).unwrap()).unwrap().1;
        let text = format!(
            "[policy.api]\nlimits = [\"{LIMIT}/d\", {{ rate = \"{ALL_CLIENTS}/d\", key = [] }}]\n\
             key = [\"ip\"]\n"
        );
        let history = PolicyHistory::since(table.now());
        let (table, stats) = (ArcSwap::from_pointee(table).into(), Stats::new(NonZeroUsize::MIN));
        Scenario::on(Kept::default(), table, clock, stats, policies(&text), history).await
    }

    async fn new(path: &Path) -> Self {
        let mut agents = Vec::new();
        for _ in 0..AGENTS {
            agents.push(Self::start(path).await);
        }
        let (path, follows) = (path.to_owned(), vec![0; AGENTS]);
        Self { path, agents, follows, last: 0, allowed: BTreeMap::new() }
    }

    async fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask { agent, client, requests } => {
                let since = self.follows[agent];
                let (name, mut allowed) = (format!("192.0.2.{client}"), 0);
                for _ in 0..requests {
                    allowed += u32::from(self.agents[agent].passes(&name).await);
                }
                let of_reset = self.allowed.iter().filter(|((reset, _), _)| *reset == since);
                let left = ALL_CLIENTS - of_reset.map(|(_, allowed)| allowed).sum::<u32>();
                let before = self.allowed.entry((since, client)).or_default();
                prop_assert_eq!(allowed, requests.min(LIMIT - *before).min(left), "{}", name);
                *before += allowed;
            }
            Step::Reset => {
                let table = Table::inspect(&self.path).unwrap();
                self.last = table.board().reset_policy(policy_id("api"), "anna").unwrap().at;
            }
            Step::Beat { agent } => {
                let Scenario { table, .. } = &self.agents[agent];
                // An agent that is two tables behind needs two beats.
                while let Some(next) = table.load().successor().unwrap() {
                    table.store(next);
                }
                self.agents[agent].housekeeping();
                self.follows[agent] = self.last;
            }
            Step::Restart { agent } => {
                self.agents[agent] = Self::start(&self.path).await;
                self.follows[agent] = self.last;
            }
            Step::Resize { slots } => {
                let slots = Slots::new(slots).unwrap();
                if Table::inspect(&self.path).unwrap().slots() != slots {
                    Table::resize(&self.path, slots, Duration::ZERO).unwrap();
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..Default::default() })]

    /// Whatever happens in between, a client gets its limit once since each reset that an agent
    /// follows, and nothing else: not a cell more when an agent is behind, restarts or moves.
    #[test]
    fn since_each_reset_a_client_gets_its_limit_once(steps in steps()) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let mut fleet = Fleet::new(&directory.path().join("table")).await;
            for step in steps {
                fleet.step(step).await?;
            }
            Ok::<_, TestCaseError>(())
        })?;
    }
}

//! Responses that give cells back, at agents whose numbers differ and change: what is really spent
//! keeps to each limit.

use std::collections::BTreeMap;

use super::*;

/// Cells an hour, and the burst. A cell takes a whole number of nanoseconds.
type Numbers = (u64, u64);

fn cell_ns((hourly, _): Numbers) -> i128 {
    3_600_000_000_000 / i128::from(hourly)
}

/// A version of the file: its limits, and those of the client that has an override.
type Version = (Vec<Numbers>, Option<Vec<Numbers>>);

fn versions() -> impl Strategy<Value = Vec<Version>> {
    let numbers = (prop::sample::select(vec![100, 1_000, 36_000]), 10..60_u64);
    (1..4_usize).prop_flat_map(move |limits| {
        let numbers = prop::collection::vec(numbers.clone(), limits);
        let one = (numbers.clone(), prop::option::weighted(0.3, numbers));
        prop::collection::vec(one, 2..5)
    })
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait {
        ms: u64,
    },
    Ask {
        agent: usize,
        client: usize,
        cells: u32,
    },
    /// One of the responses that have not come yet: its request cost so many thousandths of the
    /// reserved cells.
    Settle {
        agent: usize,
        which: usize,
        cost: u32,
    },
    Reload {
        agent: usize,
        version: usize,
    },
    Restart {
        agent: usize,
        version: usize,
    },
}

const AGENTS: usize = 3;

const CLIENTS: [&str; 2] = ["a", "b"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![1..50_u64, 1_000..20_000_u64, 100_000..400_000_u64];
    let cost = prop_oneof![2 => Just(0), 1 => 0..1_000_u32, 1 => Just(1_000)];
    let (agent, version) = (0..AGENTS, any::<usize>());
    let step = prop_oneof![
        3 => wait.prop_map(|ms| Step::Wait { ms }),
        20 => (agent.clone(), 0..CLIENTS.len(), 1..12_u32)
            .prop_map(|(agent, client, cells)| Step::Ask { agent, client, cells }),
        16 => (agent.clone(), any::<usize>(), cost)
            .prop_map(|(agent, which, cost)| Step::Settle { agent, which, cost }),
        2 => (agent.clone(), version).prop_map(|(agent, version)| Step::Reload { agent, version }),
        1 => (agent, version).prop_map(|(agent, version)| Step::Restart { agent, version }),
    ];
    prop::collection::vec(step, 40..200)
}

fn file((own, overridden): &Version) -> String {
    let list = |limits: &[Numbers]| {
        let limits = limits.iter().enumerate().map(|(number, (hourly, burst))| {
            format!("{{ name = \"l{number}\", rate = \"{hourly}/h\", burst = {burst} }}")
        });
        format!("[{}]", limits.collect::<Vec<_>>().join(", "))
    };
    let overrides = overridden
        .as_ref()
        .map(|limits| format!("[policy.api.overrides]\n\"{}\" = {}\n", CLIENTS[0], list(limits)));
    format!(
        "[policy.api]\nlimits = {}\nkey = [\"key\"]\nreserve = \"estimate\"\ncost = \"tokens\"\n\
         settle = \"usage\"\nsettle_within = \"1d\"\n{}",
        list(own),
        overrides.unwrap_or_default()
    )
}

/// A response that has not come yet.
struct Pending {
    client: usize,
    cells: u32,
    reserved: String,
    /// Under which numbers it was charged.
    limits: Vec<Numbers>,
}

/// By limit, client and numbers: when cells were charged, and given back.
type Ledger = BTreeMap<(usize, usize, Numbers), Vec<(u64, i128)>>;

/// In any time t, at most burst + rate * t cells were charged and not given back.
fn keeps_to(numbers: Numbers, changes: &[(u64, i128)]) -> bool {
    (0..changes.len()).all(|first| {
        let mut net = 0;
        changes[first..].iter().all(|(at, cells)| {
            net += cells;
            let time = i128::from(at - changes[first].0);
            net * cell_ns(numbers) <= i128::from(numbers.1) * cell_ns(numbers) + time
        })
    })
}

async fn run(versions: &[Version], steps: &[Step]) -> Ledger {
    let mut agents = Vec::new();
    let first = Scenario::new(&file(&versions[0])).await;
    for _ in 0..AGENTS {
        agents.push((first.another(&file(&versions[0])).await, 0));
    }
    let mut pending: Vec<Pending> = Vec::new();
    let mut ledger = Ledger::new();
    for step in steps {
        match *step {
            Step::Wait { ms } => first.clock.advance(Nanos::from_millis(ms)),
            Step::Ask { agent, client, cells } => {
                let now = first.table.load().now().0;
                let (scenario, version) = &mut agents[agent];
                let key = ("key", CLIENTS[client].into());
                let answer = scenario.ask(&[key, ("estimate", cells.into())]).await;
                let Some(reserved) = Scenario::reserved(&answer) else { continue };
                let (own, overridden) = &versions[*version];
                let limits = overridden.as_ref().filter(|_| client == 0).unwrap_or(own).clone();
                for (limit, numbers) in limits.iter().enumerate() {
                    let changes = ledger.entry((limit, client, *numbers)).or_default();
                    changes.push((now, cells.into()));
                }
                pending.push(Pending { client, cells, reserved, limits });
            }
            Step::Settle { agent, which, cost } => {
                if pending.is_empty() {
                    continue;
                }
                let now = first.table.load().now().0;
                let Pending { client, cells, reserved, limits } =
                    pending.swap_remove(which % pending.len());
                let cost = cells * cost / 1_000;
                for (limit, numbers) in limits.iter().enumerate() {
                    let changes = ledger.entry((limit, client, *numbers)).or_default();
                    changes.push((now, i128::from(cost) - i128::from(cells)));
                }
                let (scenario, _) = &mut agents[agent];
                scenario.settle(CLIENTS[client], cost.into(), Some(&reserved)).await;
            }
            Step::Reload { agent, version } => {
                first.clock.advance(Nanos::from_millis(1));
                let version = version % versions.len();
                agents[agent].0.reload(&file(&versions[version]));
                agents[agent].1 = version;
            }
            Step::Restart { agent, version } => {
                first.clock.advance(Nanos::from_millis(1));
                let version = version % versions.len();
                agents[agent] = (first.another(&file(&versions[version])).await, version);
            }
        }
        agents.iter().for_each(|(scenario, _)| scenario.housekeeping());
    }
    ledger
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Wherever a response comes, and whatever was changed since its request: what requests have
    /// charged and responses have not given back keeps to each limit.
    #[test]
    fn what_is_really_spent_keeps_to_each_limit(versions in versions(), steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ledger = runtime.block_on(run(&versions, &steps));
        for ((limit, client, numbers), changes) in &ledger {
            let keeps = keeps_to(*numbers, changes);
            prop_assert!(keeps, "limit {limit}, client {client}, {numbers:?}");
        }
    }
}

//! A fleet of agents on one table whose files change: random sequences of reloads, restarts and
//! kills, beside a naive ledger.

use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::changes::policy;
use super::*;

const HOUR_NS: u64 = 3_600_000_000_000;

/// So many cells an hour, and so many at once. A cell takes a whole number of nanoseconds.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Numbers {
    hourly: u64,
    burst: u64,
}

impl Numbers {
    fn cell_ns(self) -> u64 {
        HOUR_NS / self.hourly
    }

    fn most_ns(self) -> u64 {
        self.burst * self.cell_ns()
    }
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let hourly = prop::sample::select(vec![10, 50, 100, 1_000, 3_600, 360_000]);
    (hourly, 1..13_u64).prop_map(|(hourly, burst)| Numbers { hourly, burst })
}

/// A policy in one version of the file: the numbers of its limits, and those of the client that
/// has an override. `None` if the file does not have it.
type PolicyVersion = Option<(Vec<Numbers>, Option<Vec<Numbers>>)>;

const VERSIONS: usize = 3;

/// Policies with up to four limits, in each version of the file.
fn policies() -> impl Strategy<Value = Vec<Vec<PolicyVersion>>> {
    let policy = (1..5_usize, any::<bool>()).prop_flat_map(|(limits, all)| {
        // Limits come and go in one of two policies.
        let least = if all { limits } else { 1 };
        let numbers = || prop::collection::vec(numbers(), least..=limits);
        let one = (numbers(), prop::option::weighted(0.3, numbers()));
        prop::collection::vec(prop::option::weighted(0.9, one), VERSIONS)
    });
    let count = prop_oneof![9 => 1..4_usize, 1 => 30..41_usize];
    count.prop_flat_map(move |count| prop::collection::vec(policy.clone(), count))
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Reload,
    /// The agent ends, by itself or by a signal, and another one starts.
    Restart,
    Kill,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait {
        ms: u64,
    },
    Ask {
        agent: usize,
        policy: usize,
        client: usize,
        requests: usize,
    },
    Change {
        agent: usize,
        version: usize,
        change: Change,
    },
    /// All agents restart, one after the other.
    Rolling {
        version: usize,
    },
}

const AGENTS: usize = 3;

const CLIENTS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![1..50_u64, 1_000..20_000_u64, 100_000..2_000_000_u64];
    let ask = (0..AGENTS, any::<usize>(), 0..CLIENTS.len(), 1..15_usize);
    let change = prop::sample::select(vec![Change::Reload, Change::Restart, Change::Kill]);
    let step = prop_oneof![
        3 => wait.prop_map(|ms| Step::Wait { ms }),
        8 => ask.prop_map(|(agent, policy, client, requests)| {
            Step::Ask { agent, policy, client, requests }
        }),
        3 => (0..AGENTS, 0..VERSIONS, change)
            .prop_map(|(agent, version, change)| Step::Change { agent, version, change }),
        1 => (0..VERSIONS).prop_map(|version| Step::Rolling { version }),
    ];
    prop::collection::vec(step, 20..120)
}

/// Numbers that an agent has put in force for a client.
#[derive(Clone, Copy)]
struct Put {
    at: u64,
    numbers: Numbers,
    agent: usize,
    is_override: bool,
}

/// An agent, as far as it matters for what it knows of one policy.
#[derive(Clone, Copy)]
struct Knows {
    agent: usize,
    /// When its process was started.
    started: u64,
    /// Since when it has these limits of the policy.
    since: u64,
}

impl Knows {
    /// Whether the agent must know that this was in force. While it runs, it does not learn of
    /// overrides that others put in force.
    fn knows(self, put: &Put) -> bool {
        !put.is_override || put.agent == self.agent || put.at < self.started
    }
}

/// The known facts about a client under one limit, written down without buckets.
#[derive(Default)]
struct Ledger {
    put: Vec<Put>,
    /// Until when the client owes something by these numbers, at least and at most.
    owes_until: BTreeMap<Numbers, (u64, u64)>,
    /// When requests were allowed by these numbers.
    allowed: BTreeMap<Numbers, Vec<u64>>,
}

impl Ledger {
    /// Since when these numbers have been put in force, without others between, when an agent got
    /// them: at the earliest and at the latest. Of a client that had an override in between, the
    /// agent may not know that.
    fn since(&self, numbers: Numbers, agent: Knows) -> [u64; 2] {
        let before = || self.put.iter().rev().skip_while(|put| put.at > agent.since);
        let is_same = |put: &&Put| put.numbers == numbers;
        let may_be_same = |put: &&Put| is_same(put) || put.is_override;
        let latest = before().take_while(is_same).last().unwrap().at;
        [before().take_while(may_be_same).last().unwrap().at, latest]
    }

    /// Until when the client owes something to an agent that has these numbers, at least and at
    /// most.
    ///
    /// At most it owes as many cells as it owes at this moment by any numbers. At least it owes
    /// those that it owed by numbers that the agent knows when these numbers came, paid off at the
    /// faster of both rates.
    fn owes_until(&self, now: u64, numbers: Numbers, agent: Knows) -> (u64, u64) {
        let (mut least, mut most) = self.owes_until.get(&numbers).copied().unwrap_or_default();
        let since = self.since(numbers, agent);
        for (before, (at_least, at_most)) in &self.owes_until {
            if *before == numbers {
                continue;
            }
            let [new_cell, old_cell] = [numbers, *before].map(|it| u128::from(it.cell_ns()));
            let product = |owed: u64| u128::from(owed.min(before.most_ns())) * new_cell;
            let in_ns = |owed: u128| u64::try_from(owed).unwrap().min(numbers.most_ns());
            let rounded_down = |owed: u64| in_ns(product(owed) / old_cell);
            let rounded_up = |owed: u64| in_ns(product(owed).div_ceil(old_cell));
            most = most.max(now + rounded_up(at_most.saturating_sub(now)));
            let of_these = |put: &&Put| put.numbers == *before && put.at < agent.since;
            if !self.put.iter().rev().find(of_these).is_some_and(|put| agent.knows(put)) {
                continue;
            }
            let by_these = since.map(|since| since + rounded_down(at_least.saturating_sub(since)));
            let by_those = now + rounded_down(at_least.saturating_sub(now));
            least = least.max(by_these[0].min(by_these[1]).min(by_those));
        }
        (least, most)
    }

    /// Whether one more request fits: certainly, and perhaps.
    fn fits(&self, now: u64, numbers: Numbers, agent: Knows) -> (bool, bool) {
        let (least, most) = self.owes_until(now, numbers, agent);
        let fits = |until: u64| until.saturating_sub(now) + numbers.cell_ns() <= numbers.most_ns();
        (fits(most), fits(least))
    }

    fn allow(&mut self, now: u64, numbers: Numbers, agent: Knows) {
        let (least, most) = self.owes_until(now, numbers, agent);
        let charged = |until: u64| until.max(now) + numbers.cell_ns();
        self.owes_until.insert(numbers, (charged(least), charged(most)));
        self.allowed.entry(numbers).or_default().push(now);
    }

    /// In each time t, at most burst + rate * t by each of the numbers.
    fn keeps_to_all_limits(&self) -> bool {
        self.allowed.iter().all(|(numbers, times)| {
            times.iter().enumerate().all(|(place, first)| {
                let mut counts = times[place..].iter().zip(1_u64..);
                counts.all(|(at, count)| {
                    count * numbers.cell_ns() <= numbers.most_ns() + (at - first)
                })
            })
        })
    }
}

/// The numbers of a policy's limits for one of the clients, and whether it has an override.
fn limits_for(version: &PolicyVersion, client: usize) -> Option<(&Vec<Numbers>, bool)> {
    let (own, overridden) = version.as_ref()?;
    match overridden {
        Some(overridden) if client == 0 => Some((overridden, true)),
        _ => Some((own, false)),
    }
}

/// A version of the file; `None` if it has no policy.
fn file(policies: &[Vec<PolicyVersion>], version: usize) -> Option<String> {
    let list = |limits: &[Numbers]| {
        let limits = limits.iter().enumerate().map(|(number, Numbers { hourly, burst })| {
            format!("{{ name = \"l{number}\", rate = \"{hourly}/h\", burst = {burst} }}")
        });
        format!("[{}]", limits.collect::<Vec<_>>().join(", "))
    };
    let policy = |(number, versions): (usize, &Vec<PolicyVersion>)| {
        let (own, overridden) = versions[version].as_ref()?;
        let overrides = overridden.as_ref().map(|limits| {
            format!("[policy.p{number}.overrides]\n\"{}\" = {}\n", CLIENTS[0], list(limits))
        });
        Some(policy(&format!("p{number}"), &list(own), &overrides.unwrap_or_default()))
    };
    let text: String = policies.iter().enumerate().filter_map(policy).collect();
    (!text.is_empty()).then_some(text)
}

/// An agent that runs.
struct Running {
    scenario: Scenario,
    /// Of its file.
    version: usize,
    started: u64,
    /// Since when it has the limits that each policy has.
    since: Vec<u64>,
}

/// Agents on one table.
struct Fleet {
    policies: Vec<Vec<PolicyVersion>>,
    agents: Vec<Option<Running>>,
    /// Has the table and its clock.
    first: Scenario,
    /// By policy, limit and client.
    ledgers: BTreeMap<(usize, usize, usize), Ledger>,
    asked: usize,
    /// Of which there was only one right answer.
    certain: usize,
}

impl Fleet {
    async fn new(policies: Vec<Vec<PolicyVersion>>) -> Self {
        let first = Scenario::new(&policy("other", "\"1/s\"", "")).await;
        let agents = (0..AGENTS).map(|_| None).collect();
        let ledgers = BTreeMap::new();
        let mut fleet = Self { policies, agents, first, ledgers, asked: 0, certain: 0 };
        for agent in 0..AGENTS {
            fleet.change(agent, 0, Change::Restart).await;
        }
        fleet
    }

    fn now(&self) -> u64 {
        self.first.table.load().now().0
    }

    async fn change(&mut self, agent: usize, version: usize, change: Change) {
        self.first.clock.advance(Nanos::from_millis(1));
        let Some(text) = file(&self.policies, version) else { return };
        let now = self.now();
        let running = match (change, self.agents[agent].take()) {
            (Change::Kill, _) => return,
            (Change::Reload, Some(mut running)) => {
                running.scenario.reload(&text);
                for (versions, since) in self.policies.iter().zip(&mut running.since) {
                    if versions[version] != versions[running.version] {
                        *since = now;
                    }
                }
                Running { version, ..running }
            }
            _ => {
                let since = vec![now; self.policies.len()];
                let scenario = self.first.another(&text).await;
                Running { scenario, version, started: now, since }
            }
        };
        self.agents[agent] = Some(running);
        for (place, versions) in self.policies.iter().enumerate() {
            for client in 0..CLIENTS.len() {
                let Some((limits, is_override)) = limits_for(&versions[version], client) else {
                    continue;
                };
                for (number, numbers) in limits.iter().enumerate() {
                    let ledger = self.ledgers.entry((place, number, client)).or_default();
                    ledger.put.push(Put { at: now, numbers: *numbers, agent, is_override });
                }
            }
        }
    }

    async fn ask(&mut self, agent: usize, policy: usize, client: usize) -> Result<(), String> {
        let now = self.now();
        let Some(running) = &mut self.agents[agent] else { return Ok(()) };
        let Some((limits, _)) = limits_for(&self.policies[policy][running.version], client) else {
            return Ok(());
        };
        let knows = Knows { agent, started: running.started, since: running.since[policy] };
        let (message, args) = (format!("p{policy}"), [("ip", address(CLIENTS[client]))]);
        let answer = running.scenario.client.ask(&[(&message, &args)]).await.unwrap();
        let is_blocked = Scenario::is_blocked(&answer);
        let ledgers = &mut self.ledgers;
        let (mut certainly, mut perhaps) = (true, true);
        for (number, numbers) in limits.iter().enumerate() {
            let fits = ledgers[&(policy, number, client)].fits(now, *numbers, knows);
            (certainly, perhaps) = (certainly && fits.0, perhaps && fits.1);
        }
        self.asked += 1;
        self.certain += usize::from(certainly == perhaps);
        let what = format!("client {client} under {limits:?} of p{policy}, at agent {agent}");
        match is_blocked {
            true if certainly => return Err(format!("is within its limits: {what}")),
            false if !perhaps => return Err(format!("has got too many: {what}")),
            true => {}
            false => {
                for (number, numbers) in limits.iter().enumerate() {
                    ledgers
                        .entry((policy, number, client))
                        .or_default()
                        .allow(now, *numbers, knows);
                }
            }
        }
        Ok(())
    }

    async fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Wait { ms } => self.first.clock.advance(Nanos::from_millis(ms)),
            Step::Ask { agent, policy, client, requests } => {
                for _ in 0..requests {
                    self.ask(agent, policy % self.policies.len(), client).await?;
                }
            }
            Step::Change { agent, version, change } => self.change(agent, version, change).await,
            Step::Rolling { version } => {
                for agent in 0..AGENTS {
                    self.change(agent, version, Change::Restart).await;
                    self.ask(agent, 0, 0).await?;
                }
            }
        }
        for Running { scenario, .. } in self.agents.iter().flatten() {
            scenario.housekeeping();
        }
        Ok(())
    }
}

/// Whatever is reloaded, restarted or killed, and in whatever order: no limit is passed, what was
/// owed is not forgotten, and a client that is within all its numbers is not blocked.
#[test]
fn what_clients_owe_survives_all_changes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (certain, asked) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() };
    // Each run tries the same cases, and GCRA_FLEET_SEED=2 others.
    let seed = std::env::var("GCRA_FLEET_SEED").map_or(1, |seed| seed.parse().expect("a byte"));
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(config, random);
    let outcome = runner.run(&(policies(), steps()), |(policies, steps)| {
        let fleet = runtime.block_on(async {
            let mut fleet = Fleet::new(policies).await;
            for step in steps {
                fleet.step(step).await.map_err(TestCaseError::fail)?;
            }
            Ok::<_, TestCaseError>(fleet)
        })?;
        prop_assert!(fleet.ledgers.values().all(Ledger::keeps_to_all_limits), "too many");
        certain.set(certain.get() + fleet.certain);
        asked.set(asked.get() + fleet.asked);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    // The model knows nearly always which answer is the right one.
    let (certain, asked) = (certain.get(), asked.get());
    assert!(certain * 10 > asked * 9, "{certain} of {asked}");
}

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

/// Times and debts in nanoseconds, which a double has without an error.
type Ns = f64;

/// Rounding to whole nanoseconds under a fast limit is worth so much under a slow one.
const SLACK_NS: Ns = 1e6;

/// The numbers that a client had under a limit for a time; `None` if it had no such limit.
#[derive(Clone, Copy)]
struct Former {
    numbers: Option<Numbers>,
    since: Ns,
    ended: Ns,
}

/// The requests of a client under one limit, written down without buckets.
#[derive(Default)]
struct Ledger {
    /// Until when the client owes something by these numbers, at least and at most.
    owes_until: BTreeMap<Numbers, [Ns; 2]>,
    /// When requests were allowed by these numbers.
    allowed: BTreeMap<Numbers, Vec<u64>>,
}

impl Ledger {
    /// The debt of a client to an agent that has these numbers, and had others before.
    ///
    /// It goes on owing the cells that it owed, paid off at the faster of both rates through each
    /// change since, and at most the burst.
    ///
    /// The larger debt counts what other agents, which still have former numbers, have charged
    /// after all that was owed at their end is paid off. An agent may have forgotten these.
    fn owes(&self, now: Ns, numbers: Numbers, former: &[Former]) -> [Ns; 2] {
        [0, 1].map(|most| self.owes_at(most, now, numbers, former))
    }

    /// The debt at least (0), or at most (1).
    fn owes_at(&self, most: usize, now: Ns, numbers: Numbers, former: &[Former]) -> Ns {
        let until = |numbers: &Numbers| self.owes_until.get(numbers).map_or(0.0, |it| it[most]);
        let mut owes = (until(&numbers) - now).max(0.0);
        let is_current = |former: &&Former| former.numbers == Some(numbers);
        let as_before = former.iter().rev().take_while(is_current).count();
        let former = &former[..former.len() - as_before];
        let cells = former.iter().filter_map(|former| Some(former.numbers?.cell_ns()));
        let fastest = cells.chain([numbers.cell_ns()]).min().unwrap();
        for (place, one) in former.iter().enumerate() {
            let Some(before) = one.numbers.filter(|before| *before != numbers) else { continue };
            if most == 0 && now >= one.ended + before.most_ns() as Ns {
                continue;
            }
            let cell = before.cell_ns() as Ns;
            let mut since = one.ended;
            let mut cells = (until(&before) - since) / cell;
            for next in &former[place + 1..] {
                // A configuration that came and went more than once is known by the last time.
                let is_known = next.since <= since;
                let beside =
                    if is_known { next.numbers.map(Numbers::cell_ns) } else { Some(fastest) };
                cells -= (next.ended - since) / cell.min(beside.map_or(cell, |cell| cell as Ns));
                since = next.ended;
            }
            let passed = now - since;
            // More was charged by agents that still had those numbers after they had ended here.
            let [burst, most] = [before, numbers].map(|numbers| numbers.burst as Ns);
            let by_these = cells.min(burst).min(most) - passed / numbers.cell_ns() as Ns;
            let by_those = (cells - passed / cell).min(burst);
            owes = owes.max(by_these.min(by_those) * numbers.cell_ns() as Ns);
        }
        owes
    }

    fn allow(&mut self, now: u64, numbers: Numbers, former: &[Former]) {
        let owes = self.owes(now as Ns, numbers, former);
        let until = owes.map(|owes| now as Ns + owes + numbers.cell_ns() as Ns);
        self.owes_until.insert(numbers, until);
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

/// The numbers of a policy's limits for one of the clients.
fn limits_for(version: &PolicyVersion, client: usize) -> Option<&Vec<Numbers>> {
    let (own, overridden) = version.as_ref()?;
    Some(overridden.as_ref().filter(|_| client == 0).unwrap_or(own))
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
    /// The versions that were in force before, and when.
    history: Vec<(usize, ActivePolicies)>,
    /// Since when its file is in force.
    since: Ns,
}

/// Since when a version of the file is or was in force, and when it ended.
#[derive(Clone, Copy, Default)]
struct ActivePolicies {
    since: Ns,
    ended: Ns,
}

/// Agents on one table.
struct Fleet {
    policies: Vec<Vec<PolicyVersion>>,
    agents: Vec<Option<Running>>,
    /// The history that agents keep beside the table, by version.
    kept: [ActivePolicies; VERSIONS],
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
        let (ledgers, kept) = (BTreeMap::new(), Default::default());
        let mut fleet = Self { policies, agents, kept, first, ledgers, asked: 0, certain: 0 };
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
        // Versions with the same text are one.
        let is_same = |other: &usize| file(&self.policies, *other).as_ref() == Some(&text);
        let version = (0..version).find(is_same).unwrap_or(version);
        let now = self.now() as Ns;
        let before = self.agents[agent].take();
        if matches!(change, Change::Kill) {
            return;
        }
        for (place, kept) in self.kept.iter_mut().enumerate() {
            match (place == version, kept.since > kept.ended) {
                (true, false) => kept.since = now,
                (false, true) => kept.ended = now,
                _ => {}
            }
        }
        let running = match (change, before) {
            (Change::Reload, Some(mut running)) => {
                running.scenario.reload(&text);
                running.history.retain(|(former, _)| *former != running.version);
                let former = ActivePolicies { since: running.since, ended: now };
                running.history.push((running.version, former));
                Running { version, since: now, ..running }
            }
            _ => {
                let scenario = self.first.another(&text).await;
                let kept = self.kept.iter().copied().enumerate();
                let mut history: Vec<_> =
                    kept.filter(|(place, it)| *place != version && it.ended > 0.0).collect();
                history.sort_by(|one, other| one.1.ended.total_cmp(&other.1.ended));
                let since = history.last().map_or(now, |(_, last)| last.ended);
                Running { scenario, version, history, since }
            }
        };
        self.agents[agent] = Some(running);
    }

    async fn ask(&mut self, agent: usize, policy: usize, client: usize) -> Result<(), String> {
        let now = self.now();
        let Some(running) = &mut self.agents[agent] else { return Ok(()) };
        let versions = &self.policies[policy];
        let Some(limits) = limits_for(&versions[running.version], client) else { return Ok(()) };
        let (message, args) = (format!("p{policy}"), [("ip", address(CLIENTS[client]))]);
        let answer = running.scenario.client.ask(&[(&message, &args)]).await.unwrap();
        let is_blocked = Scenario::is_blocked(&answer);
        let (mut certainly, mut perhaps) = (true, true);
        let mut asked = Vec::new();
        for (number, numbers) in limits.iter().enumerate() {
            let of = |version: usize| limits_for(&versions[version], client)?.get(number).copied();
            let former =
                running.history.iter().map(|(version, ActivePolicies { since, ended })| Former {
                    numbers: of(*version),
                    since: *since,
                    ended: *ended,
                });
            let former: Vec<Former> = former.collect();
            let ledger = self.ledgers.entry((policy, number, client)).or_default();
            let space = numbers.most_ns() as Ns - numbers.cell_ns() as Ns;
            let [least, most] = ledger.owes(now as Ns, *numbers, &former);
            certainly &= most <= space - SLACK_NS;
            perhaps &= least <= space + SLACK_NS;
            asked.push((number, *numbers, former));
        }
        self.asked += 1;
        self.certain += usize::from(certainly == perhaps);
        let what = format!("client {client} under {limits:?} of p{policy}, at agent {agent}");
        match is_blocked {
            true if certainly => return Err(format!("is within its limits: {what}")),
            false if !perhaps => return Err(format!("has got too many: {what}")),
            true => {}
            false => {
                for (number, numbers, former) in asked {
                    let ledger = self.ledgers.entry((policy, number, client)).or_default();
                    ledger.allow(now, numbers, &former);
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

/// Agents are reloaded, restarted and killed in any order. No limit is passed, no debt is
/// forgotten, and a client that is within all its numbers is not blocked.
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

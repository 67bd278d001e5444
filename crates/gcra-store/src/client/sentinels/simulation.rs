//! A simulation of servers, sentinels and agents in a network that fails, by seed. Sentinels elect
//! a leader and promote a replica, as those of Valkey do; agents follow the rule.

use super::{Fitness, Found, Said, agreed};
use crate::config::Address;

/// In steps, as all times here.
const DOWN_AFTER: u64 = 3;
const QUORUM: usize = 2;
const RECONFIGURES_AFTER: u64 = 4;

type Rule = fn(&[&Said], usize) -> Option<Found>;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 20).unwrap() % end
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }
}

/// A bit for each change.
#[derive(Clone, Copy, Default)]
struct Changes([u64; 10]);

impl Changes {
    fn count(bits: [u64; 10]) -> u32 {
        bits.iter().map(|it| it.count_ones()).sum()
    }
}

#[derive(Clone)]
struct Server {
    is_up: bool,
    follows: Option<usize>,
    /// It lives, and cannot replicate.
    is_refused: bool,
    /// For how long it has not followed.
    link_down: u64,
    data: Changes,
    /// It was given up, and misses changes that others have confirmed since.
    is_behind: bool,
    /// And it was promoted all the same, when it was back.
    was_behind: bool,
}

struct Sentinel {
    /// The epoch of its configuration, and the primary.
    config: (u64, usize),
    voted: u64,
    /// It answers, and does nothing else.
    is_stale: bool,
    /// When each server answered last, and how long its link was down then.
    seen: Vec<(u64, u64)>,
    /// Since when each server has been another's replica than it should.
    wrong_since: Vec<Option<u64>>,
    /// The replica that it has promoted, its epoch, and when that is over.
    promoting: Option<(usize, u64, u64)>,
    next_try: u64,
}

#[derive(Default)]
struct Agent {
    map: Option<Found>,
    /// The server in use, and how many replicas must confirm.
    link: Option<(usize, usize)>,
}

struct World {
    random: Random,
    now: u64,
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
    agents: Vec<Agent>,
    /// Of each pair of nodes, whether nothing passes.
    cut: Vec<Vec<bool>>,
    least_replicas: usize,
    only_splits: bool,
    confirmed: Changes,
    changes: usize,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    confirmed: u32,
    /// Confirmed changes that the server in use did not have later.
    lost: u32,
    /// The same, of a server that had been given up and was promoted when it came back.
    lost_behind: u32,
    failovers: u32,
    /// Steps in which two servers were in use.
    two: u32,
}

fn address(server: usize) -> Address {
    Address::Tcp("server".to_owned(), u16::try_from(server).unwrap())
}

fn place(address: &Address) -> usize {
    let Address::Tcp(_, port) = address else { panic!("{address}") };
    usize::from(*port)
}

impl World {
    fn new(seed: u64, servers: usize, sentinels: usize, least_replicas: usize) -> Self {
        let server = |place| Server {
            is_up: true,
            follows: (place > 0).then_some(0),
            is_refused: false,
            link_down: 0,
            data: Changes::default(),
            is_behind: false,
            was_behind: false,
        };
        let sentinel = |_| Sentinel {
            config: (0, 0),
            voted: 0,
            is_stale: false,
            seen: vec![(0, 0); servers],
            wrong_since: vec![None; servers],
            promoting: None,
            next_try: 0,
        };
        let nodes = servers + sentinels + 2;
        Self {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now: 0,
            servers: (0..servers).map(server).collect(),
            sentinels: (0..sentinels).map(sentinel).collect(),
            agents: vec![Agent::default(), Agent::default()],
            cut: vec![vec![false; nodes]; nodes],
            least_replicas,
            only_splits: false,
            confirmed: Changes::default(),
            changes: 0,
            outcome: Outcome::default(),
        }
    }

    fn sentinel_node(&self, sentinel: usize) -> usize {
        self.servers.len() + sentinel
    }

    fn agent_node(&self, agent: usize) -> usize {
        self.servers.len() + self.sentinels.len() + agent
    }

    fn reaches(&self, node: usize, server: usize) -> bool {
        self.servers[server].is_up && !self.cut[node][server]
    }

    fn set_cut(&mut self, one: usize, other: usize, is_cut: bool) {
        self.cut[one][other] = is_cut;
        self.cut[other][one] = is_cut;
    }

    fn fault(&mut self) {
        let nodes = self.cut.len();
        let server = self.random.below(self.servers.len());
        let sentinel = self.random.below(self.sentinels.len());
        let kind = if self.only_splits {
            [0, 1, 3, 7][self.random.below(4)]
        } else {
            self.random.below(9)
        };
        match kind {
            0 | 1 => {
                let side: Vec<_> = (0..nodes).map(|_| self.random.one_in(2)).collect();
                for (one, other) in (0..nodes).flat_map(|one| (0..one).map(move |it| (one, it))) {
                    self.set_cut(one, other, side[one] != side[other]);
                }
            }
            2 => {
                let (one, other) = (self.random.below(nodes), self.random.below(nodes));
                self.set_cut(one, other, true);
            }
            3 | 4 => self.cut = vec![vec![false; nodes]; nodes],
            5 => self.servers[server].is_up ^= true,
            6 => self.servers[server].is_refused ^= true,
            7 => self.sentinels[sentinel].is_stale ^= true,
            // As one with a wrong password.
            _ => {
                let node = self.sentinel_node(sentinel);
                (0..self.servers.len()).for_each(|server| self.set_cut(node, server, true));
            }
        }
    }

    fn follows(&self, replica: usize, primary: usize) -> bool {
        let it = &self.servers[replica];
        it.is_up
            && !it.is_refused
            && it.follows == Some(primary)
            && self.servers[primary].is_up
            && !self.cut[replica][primary]
    }

    fn connected(&self, primary: usize) -> Vec<usize> {
        (0..self.servers.len()).filter(|&it| self.follows(it, primary)).collect()
    }

    fn replicate(&mut self) {
        for replica in 0..self.servers.len() {
            let Some(primary) = self.servers[replica].follows else { continue };
            if self.follows(replica, primary) {
                self.servers[replica].data = self.servers[primary].data;
                self.servers[replica].link_down = 0;
                self.servers[replica].is_behind = self.servers[primary].is_behind;
                self.servers[replica].was_behind = self.servers[primary].was_behind;
            } else {
                self.servers[replica].link_down += 1;
            }
        }
    }

    fn is_down(&self, sentinel: usize, server: usize) -> bool {
        self.now - self.sentinels[sentinel].seen[server].0 > DOWN_AFTER
    }

    fn may_be_promoted(&self, sentinel: usize, replica: usize) -> bool {
        let it = &self.sentinels[sentinel];
        let primary = it.seen[it.config.1].0 + DOWN_AFTER;
        let down = self.now.saturating_sub(primary);
        !self.is_down(sentinel, replica) && it.seen[replica].1 <= 10 * DOWN_AFTER + down
    }

    fn said(&self, sentinel: usize) -> Said {
        let primary = self.sentinels[sentinel].config.1;
        let replicas = (0..self.servers.len()).filter(|&server| server != primary);
        let fitness = |replica| match self.may_be_promoted(sentinel, replica) {
            true => Fitness::MayBePromoted,
            false => Fitness::GivenUp,
        };
        let replicas = replicas.map(|replica| (address(replica), fitness(replica))).collect();
        Said {
            primary: address(primary),
            replicas,
            is_down: self.is_down(sentinel, primary),
            sentinels: self.sentinels.len(),
        }
    }

    fn sentinel(&mut self, sentinel: usize) {
        if self.sentinels[sentinel].is_stale {
            // Its view ages as the others' views do.
            self.sentinels[sentinel].seen.iter_mut().for_each(|(at, _)| *at += 1);
            return;
        }
        let (now, node) = (self.now, self.sentinel_node(sentinel));
        for server in 0..self.servers.len() {
            if self.reaches(node, server) {
                self.sentinels[sentinel].seen[server] = (now, self.servers[server].link_down);
            }
        }
        // They tell each other by way of the servers.
        for other in 0..self.sentinels.len() {
            let other_node = self.sentinel_node(other);
            let meet = (0..self.servers.len())
                .any(|it| self.reaches(node, it) && self.reaches(other_node, it));
            let config = self.sentinels[other].config;
            let is_news = config.0 > self.sentinels[sentinel].config.0;
            if meet && is_news && !self.sentinels[other].is_stale && self.random.one_in(2) {
                self.sentinels[sentinel].config = config;
                self.sentinels[sentinel].promoting = None;
            }
        }
        self.fail_over(sentinel);
        self.reconfigure(sentinel);
    }

    fn fail_over(&mut self, sentinel: usize) {
        let (now, node) = (self.now, self.sentinel_node(sentinel));
        if let Some((replica, epoch, until)) = self.sentinels[sentinel].promoting {
            if self.reaches(node, replica) && self.random.one_in(2) {
                self.sentinels[sentinel].config = (epoch, replica);
                self.outcome.failovers += 1;
            }
            if self.sentinels[sentinel].config.1 == replica || now > until {
                self.sentinels[sentinel].promoting = None;
            }
            return;
        }
        let primary = self.sentinels[sentinel].config.1;
        if !self.is_down(sentinel, primary) || now < self.sentinels[sentinel].next_try {
            return;
        }
        self.sentinels[sentinel].next_try = now + 4 + self.random.below(12) as u64;
        let all = self.sentinels.len();
        let others: Vec<_> = (0..all)
            .filter(|&it| it == sentinel || !self.cut[node][self.sentinel_node(it)])
            .filter(|&it| !self.sentinels[it].is_stale)
            .collect();
        if others.iter().filter(|&&it| self.is_down(it, primary)).count() < QUORUM {
            return;
        }
        let epochs = self.sentinels.iter().map(|it| it.voted.max(it.config.0));
        let epoch = epochs.max().unwrap() + 1;
        let voters: Vec<_> = others.into_iter().filter(|_| !self.random.one_in(5)).collect();
        voters.iter().for_each(|&it| self.sentinels[it].voted = epoch);
        if voters.len() <= all / 2 {
            return;
        }
        let fit = (0..self.servers.len())
            .filter(|&it| it != primary && self.may_be_promoted(sentinel, it))
            .filter(|&it| self.reaches(node, it));
        let fit: Vec<_> = fit.collect();
        let best = fit.into_iter().max_by_key(|&it| Changes::count(self.servers[it].data.0));
        if let Some(replica) = best {
            let server = &mut self.servers[replica];
            server.follows = None;
            server.was_behind = server.is_behind;
            self.sentinels[sentinel].promoting = Some((replica, epoch, now + 6));
        }
    }

    fn reconfigure(&mut self, sentinel: usize) {
        let (now, node) = (self.now, self.sentinel_node(sentinel));
        let primary = self.sentinels[sentinel].config.1;
        if self.is_down(sentinel, primary) || self.sentinels[sentinel].promoting.is_some() {
            return;
        }
        for server in 0..self.servers.len() {
            let should = (server != primary).then_some(primary);
            let is_wrong = self.reaches(node, server) && self.servers[server].follows != should;
            let since = &mut self.sentinels[sentinel].wrong_since[server];
            match (is_wrong, *since) {
                (false, _) => *since = None,
                (true, None) => *since = Some(now),
                (true, Some(then)) if now >= then + RECONFIGURES_AFTER && server != primary => {
                    self.servers[server].follows = should;
                    *since = None;
                }
                _ => {}
            }
        }
    }

    fn look(&mut self, agent: usize, rule: Rule) {
        let node = self.agent_node(agent);
        let answers =
            (0..self.sentinels.len()).filter(|&it| !self.cut[node][self.sentinel_node(it)]);
        let said: Vec<_> = answers.map(|it| self.said(it)).collect();
        let said: Vec<_> = said.iter().collect();
        let before = self.agents[agent].map.take();
        let map = rule(&said, self.sentinels.len()).or_else(|| {
            let mut before = before?;
            before.gives_up_none();
            Some(before)
        });
        self.agents[agent].link = map.as_ref().and_then(|map| {
            let primary = place(&map.address);
            let is_primary = self.servers[primary].follows.is_none();
            let connected: Vec<_> = self.connected(primary).into_iter().map(address).collect();
            let is_usable = self.reaches(node, primary)
                && is_primary
                && connected.len() >= self.least_replicas;
            is_usable.then(|| (primary, map.must_confirm(&connected)))
        });
        self.agents[agent].map = map;
    }

    fn write(&mut self, agent: usize) -> Option<usize> {
        let node = self.agent_node(agent);
        let (primary, needed) = self.agents[agent].link?;
        if !self.reaches(node, primary) || self.servers[primary].follows.is_some() {
            return None;
        }
        let connected = self.connected(primary);
        self.servers[primary].data.0[self.changes / 64] |= 1 << (self.changes % 64);
        self.changes += 1;
        for &replica in &connected {
            self.servers[replica].data = self.servers[primary].data;
        }
        let is_confirmed = connected.len() >= needed;
        if is_confirmed {
            let data = self.servers[primary].data;
            let lost =
                Changes::count(core::array::from_fn(|it| self.confirmed.0[it] & !data.0[it]));
            match self.servers[primary].was_behind {
                true => self.outcome.lost_behind += lost,
                false => self.outcome.lost += lost,
            }
            for &replica in &connected {
                self.servers[replica].is_behind = false;
            }
            self.servers[primary].is_behind = false;
            let given_up = self.agents[agent].map.iter().flat_map(|map| &map.given_up).map(place);
            for replica in given_up.filter(|it| !connected.contains(it)) {
                self.servers[replica].is_behind = true;
            }
            // Each is counted once.
            self.confirmed = self.servers[primary].data;
            self.outcome.confirmed += 1;
        }
        is_confirmed.then_some(primary)
    }

    fn run(mut self, steps: u64, rule: Rule) -> Outcome {
        for _ in 0..steps {
            self.now += 1;
            if self.random.one_in(12) {
                self.fault();
            }
            self.replicate();
            (0..self.sentinels.len()).for_each(|it| self.sentinel(it));
            let mut used = None;
            for agent in 0..self.agents.len() {
                self.look(agent, rule);
                if let Some(primary) = self.write(agent) {
                    self.outcome.two += u32::from(used.is_some_and(|it| it != primary));
                    used = Some(primary);
                }
            }
        }
        self.outcome
    }
}

/// The outcome of so many runs.
fn runs(
    rule: Rule,
    seeds: u64,
    (servers, sentinels): (usize, usize),
    least_replicas: usize,
    only_splits: bool,
) -> Outcome {
    let mut all = Outcome::default();
    for seed in 1..=seeds {
        let mut world = World::new(seed, servers, sentinels, least_replicas);
        world.only_splits = only_splits;
        let outcome = world.run(300, rule);
        all.confirmed += outcome.confirmed;
        all.lost += outcome.lost;
        all.lost_behind += outcome.lost_behind;
        all.failovers += outcome.failovers;
        all.two += outcome.two;
    }
    all
}

/// One primary and one, two or three replicas, and three or five sentinels.
const GROUPS: [(usize, usize); 4] = [(2, 3), (3, 3), (4, 3), (4, 5)];

fn first(said: &[&Said], _: usize) -> Option<Found> {
    agreed(said.iter().copied().take(1), 1)
}

fn most(said: &[&Said], all: usize) -> Option<Found> {
    agreed(said.iter().copied(), all)
}

/// Two servers are never in use at once. And hardly anything is lost, except by a replica that had
/// been given up, came back, and was promoted before it had caught up.
#[test]
fn more_than_half_of_the_sentinels_never_have_two_servers_used() {
    let seeds = 60;
    for group in GROUPS {
        for (least, only_splits) in [(1, true), (1, false), (0, true), (0, false)] {
            let outcome = runs(most, seeds, group, least, only_splits);
            assert_eq!(outcome.two, 0, "{group:?} {outcome:?}");
            assert!(outcome.failovers > 0 && outcome.confirmed > 1_000, "{group:?} {outcome:?}");
            let is_little = outcome.lost * 1_000 <= outcome.confirmed;
            assert!(is_little || least == 0, "{group:?} {outcome:?}");
        }
    }
    // One sentinel alone has both, if there are three replicas.
    let alone = runs(first, seeds, (4, 3), 1, true);
    assert!(alone.two > 0 && alone.lost * 10 > alone.confirmed, "{alone:?}");
}

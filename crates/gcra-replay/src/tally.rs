//! The outcomes of the requests of a log: by policy, limit, client and time.

use std::cmp::Reverse;
use std::sync::Arc;

use ahash::AHashMap;
use gcra_limiter::answer::LimitUsage;
use gcra_limiter::question::{Question, Unanswerable};
use gcra_limiter::verdict::{Outcome, Reason, Verdict};
use gcra_policy::{Limit, LimitPlace, Policy};
use gcra_table::Nanos;
use serde::Serialize;
use spop_agent::Message;

use crate::distinct::Distinct;
use crate::engine::{Decided, Engine, Step};
use crate::suggest::peaks::Peak;
use crate::timeline::{Longer, Steps, merge};

/// How many clients are followed. When there are more, those that are idle for longest are
/// forgotten, and count from nothing when they come back.
const MOST_CLIENTS: usize = 1 << 21;

/// How many clients with blocked requests are followed by name and time.
const MOST_HIT: usize = 4096;

/// How many requests came to what.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
pub(crate) struct Totals {
    pub allowed: u64,
    pub blocked: u64,
    pub would_block: u64,
    /// Those among them that were not blocked, and had to wait before they went on.
    pub delayed: u64,
    /// A policy is for the message, but its key has no value or its cost is not valid.
    pub undecided: u64,
    /// No policy is for any of its messages.
    pub unmatched: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplayedRequest {
    /// The strongest verdict on its messages, with the key that it is about.
    pub decided: Option<Decided>,
    is_undecided: bool,
}

impl ReplayedRequest {
    pub(crate) fn is(&self, outcome: Outcome) -> bool {
        self.decided.is_some_and(|decided| decided.verdict.outcome == outcome)
    }

    /// Adds what came of another message.
    fn and(&mut self, next: Result<Decided, Unanswerable>) {
        match (next, self.decided) {
            (Ok(next), Some(decided)) => {
                let verdict = decided.verdict.and(next.verdict);
                let is_stronger = next.verdict.outcome > decided.verdict.outcome;
                let key = if is_stronger { next.key } else { decided.key };
                self.decided = Some(Decided { verdict, key });
            }
            (Ok(next), None) => self.decided = Some(next),
            (Err(Unanswerable::Undecided(_)), _) => self.is_undecided = true,
            // A policy that is settled by responses is not replayed.
            (Err(Unanswerable::Unmatched | Unanswerable::NoMessage), _) => {}
        }
    }
}

/// The outcomes of the requests that one policy decided about.
#[derive(Debug, Default)]
pub(crate) struct PolicyTally {
    pub allowed: u64,
    /// Blocked, or would block if the policy only observes.
    pub(crate) hit: u64,
    /// Allowed, and had to wait before they went on.
    pub delayed: u64,
    pub undecided: u64,
    pub reasons: Reasons,
    pub limits: Vec<LimitTally>,
    pub clients: Distinct,
    pub(crate) clients_hit: Distinct,
}

/// Why requests were blocked, or would be.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Reasons {
    /// A limit is used up.
    pub limit: u64,
    /// The cost was above the burst.
    pub oversize: u64,
    /// The rule is `deny`.
    pub denied: u64,
}

#[derive(Debug)]
pub(crate) struct LimitTally {
    /// Where the limit lies, which tells it from others.
    address: usize,
    pub(crate) hit: u64,
    pub(crate) worst_wait: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientCounts {
    pub requests: u32,
    pub(crate) hit: u32,
    /// Blocked by this configuration, and not by the other one.
    pub(crate) newly: u32,
    /// In a second of the clock.
    pub(crate) peak: Peak,
}

/// A client with blocked requests, beside what is known of each.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub policy: usize,
    pub name: String,
    pub first: u64,
    pub last: u64,
    /// The longest wait, and the place of the limit that it was for among those of the policy.
    pub(crate) worst: Option<(Nanos, usize)>,
    /// The steps in which it asked since its first blocked request, with how many requests were
    /// allowed and blocked.
    pub steps: Vec<(usize, [u64; 2])>,
}

/// The outcomes of all requests of a log.
#[derive(Debug, Default)]
pub(crate) struct LogTally {
    pub totals: Totals,
    pub policies: Vec<PolicyTally>,
    pub clients: Distinct,
    pub(crate) clients_blocked: Distinct,
    pub(crate) clients_would_block: Distinct,
    by_key: AHashMap<u64, ClientCounts>,
    hits: AHashMap<u64, Hit>,
    /// Whether some clients were forgotten.
    pub(crate) has_forgotten: bool,
    pub steps: Steps,
    /// Allowed, blocked and would block; and blocked by the other configuration.
    pub(crate) series: Vec<[u64; 4]>,
    /// The time of the request, in seconds since 1970, and the place of its step.
    second: u64,
    place: usize,
}

/// The key of a client of a policy. Policies with the same key would have the same hashes.
fn client_of(policy: usize, hash: u64) -> u64 {
    hash ^ (policy as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn address(limit: &Limit) -> usize {
    std::ptr::from_ref(limit).addr()
}

impl LogTally {
    pub(crate) fn new(policies: &[Arc<Policy>]) -> Self {
        let policy = |policy: &Arc<Policy>| {
            let limit =
                |limit| LimitTally { address: address(limit), hit: 0, worst_wait: Nanos::ZERO };
            PolicyTally { limits: policy.limits().map(limit).collect(), ..PolicyTally::default() }
        };
        Self { policies: policies.iter().map(policy).collect(), ..Self::default() }
    }

    /// Looks at what is known of a client, so that it is near when its request is counted.
    pub(crate) fn touch(&self, question: Question) {
        let id = client_of(question.policy, question.key.get());
        std::hint::black_box(self.by_key.get(&id).is_some());
    }

    /// Begins a request at this moment, in microseconds since 1970.
    pub(crate) fn begin(&mut self, at: i64) {
        let second = u64::try_from(at / 1_000_000).unwrap_or(0).max(self.second);
        self.second = second;
        let (series, hits) = (&mut self.series, &mut self.hits);
        self.place = self.steps.place(second, |longer| {
            merge(series, longer);
            hits.values_mut().for_each(|hit| hit.merge(longer));
        });
    }

    /// Counts what a policy says about a message.
    fn step(&mut self, engine: &Engine, step: &Step<'_>, message: &Message<'_>) {
        let Step { verdict, key, .. } = *step;
        let is_hit = verdict.would_block();
        let id = client_of(verdict.policy, key.get());
        let client = self.by_key.entry(id).or_default();
        let second = u32::try_from(self.second).unwrap_or(u32::MAX);
        let is_new = client.requests == 0;
        let is_first_hit = is_hit && client.hit == 0;
        client.requests = client.requests.saturating_add(1);
        client.peak.count(second);
        client.hit = client.hit.saturating_add(is_hit.into());
        let was_hit = client.hit > 0;
        let policy = &mut self.policies[verdict.policy];
        if is_new {
            policy.clients.add(key.get());
            self.clients.add(key.get());
        }
        if is_first_hit {
            policy.clients_hit.add(key.get());
            match verdict.outcome {
                Outcome::Blocked => self.clients_blocked.add(key.get()),
                Outcome::Allowed | Outcome::WouldBlock => self.clients_would_block.add(key.get()),
            }
        }
        if !is_hit {
            policy.allowed += 1;
            policy.delayed += u64::from(verdict.delay_ms() > 0);
        }
        if was_hit {
            self.count_hit(engine, id, step, message);
        }
        if is_new && self.by_key.len() > MOST_CLIENTS {
            self.forget();
        }
    }

    /// Counts a request of a client that has blocked requests.
    fn count_hit(&mut self, engine: &Engine, id: u64, step: &Step<'_>, message: &Message<'_>) {
        let Step { verdict, key, usages } = *step;
        let Verdict { policy: place, reason, .. } = verdict;
        let is_hit = verdict.would_block();
        let policy = &mut self.policies[place];
        let mut worst: Option<(Nanos, usize)> = None;
        let is_longer =
            |worst: Option<(Nanos, usize)>, wait| worst.is_none_or(|(longest, _)| wait > longest);
        if is_hit {
            policy.hit += 1;
            match reason {
                Some(Reason::Oversize) => policy.reasons.oversize += 1,
                Some(Reason::Denied) => policy.reasons.denied += 1,
                // A replay has no orders.
                Some(Reason::Limit | Reason::Store | Reason::Blocked) | None => {
                    policy.reasons.limit += 1;
                }
            }
            for LimitUsage { limit, wait, .. } in usages.iter().filter(|it| it.wait > Nanos::ZERO)
            {
                let LimitPlace { policy: place, rule, limit } = *limit;
                let limit = &engine.policies()[place].rule(rule).limits()[limit as usize];
                let found = policy.limits.iter().position(|it| it.address == address(limit));
                let Some(found) = found else { continue };
                let limit = &mut policy.limits[found];
                limit.hit += 1;
                limit.worst_wait = limit.worst_wait.max(*wait);
                if is_longer(worst, *wait) {
                    worst = Some((*wait, found));
                }
            }
        }
        let known = self.hits.contains_key(&id);
        // A client that was left out is followed again from its next blocked request on.
        if !known && !is_hit {
            return;
        }
        let second = self.second;
        let hit = self.hits.entry(id).or_insert_with(|| {
            let mut name = String::new();
            engine.write_client(&mut name, place, key, message);
            Hit {
                policy: place,
                name,
                first: second,
                last: second,
                worst: None,
                steps: Vec::new(),
            }
        });
        if is_hit {
            hit.last = second;
            if let Some((wait, _)) = worst
                && is_longer(hit.worst, wait)
            {
                hit.worst = worst;
            }
        }
        if hit.steps.last().is_none_or(|(place, _)| *place != self.place) {
            hit.steps.push((self.place, [0; 2]));
        }
        if let Some((_, counts)) = hit.steps.last_mut() {
            counts[usize::from(is_hit)] += 1;
        }
        if !known && self.hits.len() > MOST_HIT {
            self.leave_out();
        }
    }

    /// Leaves out the half of the followed clients with the fewest blocked requests.
    fn leave_out(&mut self) {
        let hit = |id: &u64| self.by_key.get(id).map_or(0, |client| client.hit);
        let mut counts: Vec<_> = self.hits.keys().map(|id| (hit(id), *id)).collect();
        let middle = counts.len() / 2;
        counts.select_nth_unstable(middle);
        counts[..middle].iter().for_each(|(_, id)| {
            self.hits.remove(id);
        });
    }

    /// Forgets the half of the clients that are idle for longest, those without blocked requests
    /// first.
    fn forget(&mut self) {
        self.has_forgotten = true;
        let rank = |client: &ClientCounts| (client.hit > 0, client.peak.period);
        let mut ranks: Vec<_> = self.by_key.values().map(rank).collect();
        let middle = ranks.len() / 2;
        let (_, middle, _) = ranks.select_nth_unstable(middle);
        let middle = *middle;
        self.by_key.retain(|_, client| rank(client) > middle);
        let by_key = &self.by_key;
        self.hits.retain(|id, _| by_key.contains_key(id));
    }

    fn end(&mut self, request: &ReplayedRequest) {
        let totals = &mut self.totals;
        let Some(Decided { verdict, .. }) = request.decided else {
            totals.undecided += u64::from(request.is_undecided);
            totals.unmatched += u64::from(!request.is_undecided);
            return;
        };
        totals.delayed += u64::from(verdict.delay_ms() > 0);
        let (count, series) = match verdict.outcome {
            Outcome::Allowed => (&mut totals.allowed, 0),
            Outcome::Blocked => (&mut totals.blocked, 1),
            Outcome::WouldBlock => (&mut totals.would_block, 2),
        };
        *count += 1;
        self.count_at_place(series);
    }

    /// Counts that the other configuration blocked the request.
    pub(crate) fn end_of_other(&mut self, is_blocked: bool) {
        if is_blocked {
            self.count_at_place(3);
        }
    }

    fn count_at_place(&mut self, series: usize) {
        if self.series.len() <= self.place {
            self.series.resize(self.place + 1, [0; 4]);
        }
        self.series[self.place][series] += 1;
    }

    /// Counts that this configuration blocks a request that the other one did not block.
    pub(crate) fn newly(&mut self, decided: Decided) {
        let id = client_of(decided.verdict.policy, decided.key.get());
        if let Some(client) = self.by_key.get_mut(&id) {
            client.newly = client.newly.saturating_add(1);
        }
    }

    /// The clients that `rank` counts most of, the first of them first.
    pub(crate) fn most_hit(
        &self,
        most: usize,
        rank: fn(&ClientCounts) -> u32,
    ) -> Vec<(ClientCounts, Hit)> {
        let client = |id| self.by_key.get(id).copied().unwrap_or_default();
        let clients = self.hits.iter().map(|(id, hit)| (client(id), hit));
        let mut clients: Vec<_> = clients.filter(|(client, _)| rank(client) > 0).collect();
        clients.sort_by_key(|(client, hit)| (Reverse(rank(client)), &hit.name));
        clients.truncate(most);
        clients.into_iter().map(|(client, hit)| (client, hit.clone())).collect()
    }
}

impl Hit {
    fn merge(&mut self, longer: Longer) {
        let mut merged: Vec<(usize, [u64; 2])> = Vec::new();
        for (place, counts) in &self.steps {
            let place = longer.place(*place);
            match merged.last_mut() {
                Some((last, sums)) if *last == place => {
                    sums[0] += counts[0];
                    sums[1] += counts[1];
                }
                _ => merged.push((place, *counts)),
            }
        }
        self.steps = merged;
    }
}

/// Decides about each message of a request, of which the question is known, and counts what comes
/// of it.
pub(crate) fn decide_request<'m>(
    engine: &Engine,
    messages: impl IntoIterator<Item = (&'m Message<'m>, Result<Question, Unanswerable>)>,
    tally: &mut LogTally,
) -> ReplayedRequest {
    let mut request = ReplayedRequest::default();
    for (message, question) in messages {
        if let Err(Unanswerable::Undecided(policy)) = question {
            tally.policies[policy].undecided += 1;
        }
        request.and(question.map(|question| {
            engine.decide(question, message, |step| tally.step(engine, &step, message))
        }));
    }
    tally.end(&request);
    request
}

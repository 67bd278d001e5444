//! The counts of the last minutes: a ring of sums, one for each two seconds, so that a page that
//! was just opened can draw what came before.
//!
//! The housekeeping adds to it with each beat, from the counters that exist, so requests pay
//! nothing for it. A beat takes about a second and ends in the middle of a slot: what was counted
//! in it is divided between the slots, and no request is counted twice or lost. The numbers of the
//! slots come from the time since the machine was started, which all agents of a table have in
//! common, so the slots of several agents can be added up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gcra_policy::policy::is_trial_name;
use serde::{Deserialize, Serialize};
use spop_agent::Latency;

use crate::verdict::{COUNTS, NEWLY_BLOCKED};

/// How long a slot is, in seconds.
pub const STEP: u64 = 2;

/// How many slots there are: ten minutes.
pub const SLOTS: usize = 300;

/// How many slots are in a short answer, for a viewer that has the others.
pub const RECENT: usize = 15;

/// How many policies have numbers of their own. The others, by name, share one.
const POLICIES: usize = 64;

/// The name for the policies beyond these. No policy can have it.
const OTHERS: &str = "(other policies)";

/// The ring of one agent.
#[derive(Debug, Default)]
pub struct History {
    /// The latest slot is the last one. Their numbers have no gaps.
    slots: VecDeque<Slot>,
    /// The number of the first of them.
    first: u64,
    /// The counts at the last beat, by policy, and when that was.
    last: Option<(Duration, PastCounts)>,
}

#[derive(Debug, Default)]
struct Slot {
    counts: PastCounts,
    /// For how much of the slot there are counts.
    covered: Duration,
}

/// The counts since the start, or of a part of that time.
#[derive(Clone, Debug, Default)]
pub struct PastCounts {
    /// By name, in the order of [`OUTCOMES`](crate::verdict::OUTCOMES), and what was
    /// [`NEWLY_BLOCKED`].
    pub(crate) policies: BTreeMap<Arc<str>, [u64; COUNTS]>,
    pub(crate) notifies: u64,
    pub(crate) unmatched: u64,
    pub(crate) latency: [u64; Latency::BUCKETS],
}

impl PastCounts {
    /// Those of these policies, and nothing else.
    pub(crate) fn of_policies<'a>(each: impl Iterator<Item = (&'a str, [u64; COUNTS])>) -> Self {
        let mut policies: BTreeMap<Arc<str>, _> = BTreeMap::new();
        for (place, (name, counts)) in each.enumerate() {
            let (name, counts) = match place < POLICIES {
                true => (name, counts),
                // Requests that a trial has decided about are counted under its policy, too.
                false if is_trial_name(name) => (OTHERS, only_new(&counts)),
                false => (OTHERS, counts),
            };
            add(policies.entry(name.into()).or_default(), &counts);
        }
        Self { policies, ..Self::default() }
    }

    /// Takes `part` of `whole` of these counts out, rounded down.
    fn take(&mut self, part: Duration, whole: Duration) -> Self {
        let mut take = |count: &mut u64| {
            let share = u128::from(*count) * part.as_nanos() / whole.as_nanos().max(1);
            let share = u64::try_from(share).unwrap_or(*count).min(*count);
            *count -= share;
            share
        };
        let each = self.policies.iter_mut();
        let policies =
            each.map(|(name, counts)| (name.clone(), counts.each_mut().map(&mut take))).collect();
        Self {
            policies,
            notifies: take(&mut self.notifies),
            unmatched: take(&mut self.unmatched),
            latency: self.latency.each_mut().map(take),
        }
    }

    fn add(&mut self, more: Self) {
        for (name, counts) in more.policies {
            if counts.iter().any(|count| *count > 0) {
                add(self.policies.entry(name).or_default(), &counts);
            }
        }
        self.notifies = self.notifies.saturating_add(more.notifies);
        self.unmatched = self.unmatched.saturating_add(more.unmatched);
        add(&mut self.latency, &more.latency);
    }

    /// The counts after `before`.
    fn since(&self, before: &Self) -> Self {
        let policy = |(name, counts): (&Arc<str>, &[u64; COUNTS])| {
            let before = before.policies.get(name).copied().unwrap_or_default();
            (name.clone(), std::array::from_fn(|at| counts[at].saturating_sub(before[at])))
        };
        Self {
            policies: self.policies.iter().map(policy).collect(),
            notifies: self.notifies.saturating_sub(before.notifies),
            unmatched: self.unmatched.saturating_sub(before.unmatched),
            latency: std::array::from_fn(|at| self.latency[at].saturating_sub(before.latency[at])),
        }
    }
}

fn only_new(counts: &[u64; COUNTS]) -> [u64; COUNTS] {
    std::array::from_fn(|at| if at == NEWLY_BLOCKED { counts[at] } else { 0 })
}

fn add<const N: usize>(sums: &mut [u64; N], more: &[u64; N]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}

impl History {
    /// Takes note of the counts until now, `now` after the start of the machine.
    pub fn beat(&mut self, now: Duration, counted: &PastCounts) {
        let Some((last, before)) = self.last.replace((now, counted.clone())) else { return };
        let mut rest = counted.since(&before);
        // If nothing was noted for longer than the ring, the latest part of that is kept.
        let longest = Duration::from_secs(STEP * SLOTS as u64);
        let mut from = last.max(now.saturating_sub(longest));
        // One slot each time, at most `SLOTS + 1`.
        while from < now {
            let number = from.as_secs() / STEP;
            let end = Duration::from_secs((number + 1) * STEP).min(now);
            let (part, left) = (end - from, now - from);
            let share = rest.take(part, left);
            if let Some(slot) = self.slot(number) {
                slot.counts.add(share);
                slot.covered += part;
            }
            from = end;
        }
    }

    /// The slot with this number, which is made if it is a later one than those that there are.
    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let next = self.first + self.slots.len() as u64;
        if self.slots.is_empty() || number >= next + SLOTS as u64 {
            self.slots.clear();
            self.first = number;
        }
        // At most `SLOTS` times.
        while self.first + self.slots.len() as u64 <= number {
            self.slots.push_back(Slot::default());
            if self.slots.len() > SLOTS {
                self.slots.pop_front();
                self.first += 1;
            }
        }
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(place)
    }

    /// The slots that are full, at most the last `most` of them. A slot that is not wholly covered
    /// has no numbers: the agent was started in it.
    pub fn past(&self, now: Duration, most: usize) -> Past {
        let full = (now.as_secs() / STEP).saturating_sub(self.first);
        // The last beat may have been before the end of the last of them.
        let beaten = self.last.as_ref().map_or(0, |(last, _)| last.as_secs() / STEP);
        let full = full.min(beaten.saturating_sub(self.first));
        let full = usize::try_from(full).unwrap_or(usize::MAX).min(self.slots.len());
        let from = full.saturating_sub(most);
        let mut past = Past { first: self.first + from as u64, ..Past::default() };
        for (place, slot) in self.slots.range(from..full).enumerate() {
            past.agents.push((slot.covered >= Duration::from_secs(STEP)).into());
            let counts =
                if past.agents[place] > 0 { &slot.counts } else { &PastCounts::default() };
            past.notifies.push(counts.notifies);
            past.unmatched.push(counts.unmatched);
            let used = counts.latency.iter().rposition(|count| *count > 0).map_or(0, |at| at + 1);
            past.latency.push(counts.latency[..used].to_vec());
            for (name, counts) in &counts.policies {
                past.policy(name).add(place, counts);
            }
        }
        past.fill();
        past
    }
}

/// The counts of each slot, by one agent or by several.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Past {
    /// The number of the first slot. The others follow.
    pub first: u64,
    /// For each slot: how many agents have counted during the whole of it. Without any, the
    /// numbers of the slot are not known.
    pub agents: Vec<u64>,
    pub notifies: Vec<u64>,
    pub unmatched: Vec<u64>,
    /// For each slot, how many NOTIFYs took at most 1, 2, 4, … microseconds and longer than the
    /// ones before. Zeros at the end are left out.
    pub latency: Vec<Vec<u64>>,
    pub policies: Vec<PastPolicy>,
}

/// The decisions of one policy in each slot, by outcome. For a trial, also the requests that the
/// trial would block and the policy has allowed.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PastPolicy {
    pub name: String,
    pub allowed: Vec<u64>,
    pub would_block: Vec<u64>,
    pub blocked: Vec<u64>,
    pub undecided: Vec<u64>,
    pub newly_blocked: Vec<u64>,
}

impl PastPolicy {
    fn outcomes(&mut self) -> [&mut Vec<u64>; COUNTS] {
        // In the order of OUTCOMES, and NEWLY_BLOCKED.
        let Self { name: _, allowed, would_block, blocked, undecided, newly_blocked } = self;
        [allowed, would_block, blocked, undecided, newly_blocked]
    }

    /// Adds to the slot at this place. Slots before it have nothing if they are not there.
    fn add(&mut self, place: usize, counts: &[u64; COUNTS]) {
        for (list, count) in self.outcomes().into_iter().zip(counts) {
            add_at(list, place, *count);
        }
    }
}

fn add_at(list: &mut Vec<u64>, place: usize, count: u64) {
    if list.len() <= place {
        list.resize(place + 1, 0);
    }
    list[place] = list[place].saturating_add(count);
}

impl Past {
    fn policy(&mut self, name: &str) -> &mut PastPolicy {
        let place = match self.policies.iter().position(|policy| *policy.name == *name) {
            Some(place) => place,
            None => {
                self.policies.push(PastPolicy { name: name.to_owned(), ..PastPolicy::default() });
                self.policies.len() - 1
            }
        };
        &mut self.policies[place]
    }

    /// Gives each list as many numbers as there are slots.
    fn fill(&mut self) {
        let slots = self.agents.len();
        self.notifies.resize(slots, 0);
        self.unmatched.resize(slots, 0);
        self.latency.resize(slots, Vec::new());
        for policy in &mut self.policies {
            policy.outcomes().into_iter().for_each(|list| list.resize(slots, 0));
        }
    }

    /// Adds up the counts of several agents: the last `most` slots until the latest of all. Other
    /// processes may say anything, so every list is bounded.
    pub fn sum<'a>(agents: impl Iterator<Item = &'a Self> + Clone, most: usize) -> Self {
        let end = |past: &Self| past.first.saturating_add(past.agents.len().min(SLOTS) as u64);
        // The first agent is this one. A number that is far from its own is wrong, unless it has
        // none.
        let mut ends = agents.clone().filter(|past| !past.agents.is_empty()).map(end);
        let Some(own) = ends.next() else { return Self::default() };
        // The beats of agents differ by a second, and one slot later all of them have the slot.
        let latest = ends.filter(|end| *end < own && own - *end <= 2).fold(own, u64::min);
        let most = most.min(SLOTS) as u64;
        let first = agents.clone().filter(|past| !past.agents.is_empty()).map(|past| past.first);
        let first = first.min().unwrap_or(latest).max(latest.saturating_sub(most)).min(latest);
        let mut sum = Self { first, ..Self::default() };
        sum.agents.resize(usize::try_from(latest - first).unwrap_or(0), 0);
        sum.fill();
        for past in agents {
            let place = |at: usize| {
                let place = past.first.checked_add(at as u64)?.checked_sub(first)?;
                usize::try_from(place)
                    .ok()
                    .filter(|place| *place < SLOTS && first + (*place as u64) < latest)
            };
            let each = |list: &[u64], to: &mut Vec<u64>| {
                for (at, count) in list.iter().enumerate().take(SLOTS) {
                    if let Some(place) = place(at) {
                        add_at(to, place, *count);
                    }
                }
            };
            each(&past.agents, &mut sum.agents);
            each(&past.notifies, &mut sum.notifies);
            each(&past.unmatched, &mut sum.unmatched);
            for (at, buckets) in past.latency.iter().enumerate().take(SLOTS) {
                let Some(place) = place(at) else { continue };
                for (bucket, count) in buckets.iter().enumerate().take(Latency::BUCKETS) {
                    add_at(&mut sum.latency[place], bucket, *count);
                }
            }
            for policy in past.policies.iter().take(POLICIES + 1) {
                let to = sum.policy(&policy.name);
                each(&policy.allowed, &mut to.allowed);
                each(&policy.would_block, &mut to.would_block);
                each(&policy.blocked, &mut to.blocked);
                each(&policy.undecided, &mut to.undecided);
                each(&policy.newly_blocked, &mut to.newly_blocked);
            }
        }
        sum.policies.sort_by(|a, b| a.name.cmp(&b.name));
        sum.fill();
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(allowed: u64, blocked: u64) -> PastCounts {
        let policies = [("api", [allowed, 0, blocked, 0, 0])];
        PastCounts { notifies: allowed + blocked, ..PastCounts::of_policies(policies.into_iter()) }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn each_request_is_in_one_slot() {
        let mut history = History::default();
        // Ten requests a second from 1000.3 s on, which is in the middle of a slot.
        for beat in 0..=20 {
            history.beat(ms(1_000_300 + beat * 1_000), &counted(beat * 10, beat));
        }
        let past = history.past(ms(1_020_400), SLOTS);
        assert_eq!((past.first, past.agents.len()), (500, 10));
        assert_eq!(past.agents, [&[0][..], &[1; 9]].concat(), "the first is not wholly covered");
        assert_eq!(past.policies.len(), 1);
        let api = &past.policies[0];
        assert_eq!(api.allowed[0], 0, "and so has no number");
        // A few requests more or less, because each share of a beat is rounded.
        assert!(api.allowed[1..].iter().all(|count| (19..=21).contains(count)), "{api:?}");
        let all = |slot: &Slot| slot.counts.notifies;
        assert_eq!(history.slots.iter().map(all).sum::<u64>(), 220, "none is lost");
        assert_eq!(
            past.notifies.iter().sum::<u64>(),
            api.allowed.iter().chain(&api.blocked).sum::<u64>()
        );
        let recent = history.past(ms(1_020_400), 3);
        assert_eq!((recent.first, recent.agents.len()), (507, 3));
        assert_eq!(recent.policies[0].allowed, api.allowed[7..]);
    }

    #[test]
    fn the_ring_is_bounded_and_a_long_silence_leaves_no_hole() {
        let mut history = History::default();
        for beat in 0..3_000 {
            history.beat(Duration::from_secs(beat), &counted(beat, 0));
        }
        assert_eq!(history.slots.len(), SLOTS);
        // An hour without a beat, as of a machine that was suspended.
        history.beat(Duration::from_secs(6_600), &counted(3_000 + SLOTS as u64 * 2, 0));
        assert_eq!(history.slots.len(), SLOTS);
        let past = history.past(Duration::from_secs(6_600), SLOTS);
        assert_eq!(past.agents, [1; SLOTS]);
        assert!(past.policies[0].allowed.iter().all(|count| (1..=3).contains(count)));
        // A clock that stands still or goes back changes nothing.
        history.beat(Duration::from_secs(6_000), &counted(4_000, 0));
        assert_eq!(history.slots.len(), SLOTS);
    }

    #[test]
    fn the_slots_of_agents_are_added_up_by_their_numbers() {
        let of = |first: u64, agents: &[u64], allowed: &[u64]| Past {
            first,
            agents: agents.to_vec(),
            notifies: allowed.to_vec(),
            unmatched: vec![0; agents.len()],
            latency: vec![vec![0, 2]; agents.len()],
            policies: vec![PastPolicy {
                name: "api".to_owned(),
                allowed: allowed.to_vec(),
                ..PastPolicy::default()
            }],
        };
        let (old, new) =
            (of(100, &[1, 1, 1, 1], &[1, 2, 3, 4]), of(102, &[0, 1, 1], &[0, 10, 20]));
        let sum = Past::sum([&old, &new].into_iter(), SLOTS);
        assert_eq!((sum.first, &sum.agents[..]), (100, &[1, 1, 1, 2][..]));
        assert_eq!(sum.policies[0].allowed, [1, 2, 3, 14], "until the end of the first");
        assert_eq!(sum.policies[0].blocked, [0; 4]);
        assert_eq!(sum.latency[3], [0, 4]);
        let recent = Past::sum([&old, &new].into_iter(), 2);
        assert_eq!((recent.first, &recent.notifies[..]), (102, &[3, 14][..]));

        // Another process can say anything.
        let mut wild = of(u64::MAX - 1, &[1, 1, 1], &[u64::MAX; 3]);
        wild.policies[0].allowed = vec![u64::MAX; 5_000];
        wild.latency = vec![vec![1; 900]; 5_000];
        let sum = Past::sum([&old, &wild, &of(0, &[1; 4], &[9; 4])].into_iter(), SLOTS);
        assert_eq!((sum.agents.len(), sum.latency.len()), (104, 104));
        assert_eq!(sum.policies[0].allowed[100..], [1, 2, 3, 4]);
        wild.first = 100;
        let sum = Past::sum([&old, &wild].into_iter(), SLOTS);
        assert_eq!(
            sum.policies[0].allowed,
            [u64::MAX; 3],
            "until the end of the one that is behind"
        );
        assert!(sum.latency.iter().all(|buckets| buckets.len() <= Latency::BUCKETS));
        assert_eq!(Past::sum([].into_iter(), SLOTS).agents.len(), 0);
    }
}

//! The sums over several agents, for `/status` and `top`.

use std::collections::BTreeMap;

use gcra_limiter::haproxy_undecided;
use serde::Serialize;

use crate::client_waits::WaitReason;
use crate::family::Sum;
use crate::status::{ClientRow, Counts, ExactLists, PolicyStatus, Status, TOP};

/// The work of several agents together. All numbers are sums.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Together {
    pub agents: u64,
    pub policies: Vec<PolicyStatus>,
    #[serde(flatten)]
    pub counts: Counts,
    /// Why HAProxy got no answer for most requests of the last minute for which it got none, and
    /// what helps.
    pub haproxy_undecided_why: Option<&'static str>,
}

impl Together {
    pub(crate) fn of<'a>(statuses: impl IntoIterator<Item = &'a Status>) -> Self {
        let (mut agents, mut counts) = (0, Counts::default());
        let mut policies: BTreeMap<&str, OnePolicy<'a>> = BTreeMap::new();
        for status in statuses {
            agents += 1;
            counts.add(&status.counts);
            for policy in &status.policies {
                policies.entry(&policy.name).or_default().add(policy);
            }
        }
        let policies = policies.into_iter().map(|(name, policy)| policy.sum(name)).collect();
        let undecided = &counts.haproxy_undecided_last_minute;
        let most = undecided.iter().max_by_key(|(_, count)| **count);
        let haproxy_undecided_why = most.map(|(err, _)| haproxy_undecided::why(err));
        Self { agents, policies, counts, haproxy_undecided_why }
    }
}

impl Sum for ClientRow {
    /// Adds what another agent lists about the same client.
    fn add(&mut self, other: &Self) {
        let Self { client, known_as, requests, per_second, wait_ms, reason, limit } = other;
        self.client.clone_from(client);
        if known_as.is_some() {
            self.known_as.clone_from(known_as);
        }
        self.requests.add(requests);
        self.per_second.add(per_second);
        if *wait_ms >= self.wait_ms && limit.is_some() {
            self.limit.clone_from(limit);
        }
        // All agents look at one table, at slightly different times.
        self.wait_ms = self.wait_ms.max(*wait_ms);
        // A word that an agent of another version has written says least.
        let says = |word: Option<&str>| (word.and_then(WaitReason::from_word), word.is_some());
        if says(reason.as_deref()) > says(self.reason.as_deref()) {
            self.reason.clone_from(reason);
        }
    }
}

#[derive(Default)]
struct OnePolicy<'a> {
    agents: usize,
    sum: PolicyStatus,
    /// The lists in the order blocked, would block, allowed.
    lists: [BTreeMap<&'a str, ClientRow>; 3],
    /// By list: some agent has left clients out.
    is_cut: [bool; 3],
    /// By list: some agent has not counted every request.
    is_estimated: [bool; 3],
}

impl<'a> OnePolicy<'a> {
    fn add(&mut self, policy: &'a PolicyStatus) {
        self.agents += 1;
        self.sum.add(policy);
        let lists = [&policy.top_blocked, &policy.top_would_block, &policy.top_allowed];
        for (at, is_exact) in policy.top_is_exact.each().into_iter().enumerate() {
            self.is_estimated[at] |= !is_exact;
            self.is_cut[at] |= lists[at].len() >= TOP;
        }
        for (sum, list) in self.lists.iter_mut().zip(lists) {
            for row in list {
                sum.entry(&row.client).or_default().add(row);
            }
        }
    }

    fn sum(self, name: &str) -> PolicyStatus {
        let [top_blocked, top_would_block, top_allowed] = self.lists.map(|list| {
            let mut clients: Vec<_> = list.into_values().collect();
            // Clients with equally many requests stay in the order of their names.
            clients.sort_by_key(|client| std::cmp::Reverse(client.requests));
            clients.truncate(TOP);
            clients
        });
        // A client that one agent lists may be among those that another has left out.
        let [blocked, would_block, allowed] = std::array::from_fn(|at| {
            !self.is_estimated[at] && (self.agents == 1 || !self.is_cut[at])
        });
        PolicyStatus {
            name: name.to_owned(),
            top_blocked,
            top_would_block,
            top_allowed,
            top_is_exact: ExactLists { blocked, would_block, allowed },
            ..self.sum
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agents::{ListedAgent, Own};
    use crate::family::Amount;
    use crate::sample::status;

    fn named(list: &[ClientRow]) -> Vec<(&str, u64)> {
        list.iter().map(|client| (&*client.client, client.requests)).collect()
    }

    #[test]
    fn counts_and_clients_of_several_agents_add_up() {
        let (a, mut b) = (status(1, 100, 2000, 500), status(2, 50, 100, 30));
        b.policies[0].top_blocked.truncate(1);
        b.counts.unmatched = 3;
        let sum = Together::of([&a, &b]);
        assert_eq!((sum.agents, sum.counts.unmatched, sum.counts.notifies.answered), (2, 3, 2630));
        let names: Vec<_> = sum.policies.iter().map(|policy| &*policy.name).collect();
        assert_eq!(names, ["default", "login", "login.observe"]);
        let first = &sum.policies[0];
        assert_eq!(first.decisions["blocked"], 530);
        assert_eq!(named(&first.top_blocked), [("192.0.2.1", 530), ("2001:db8:1:2::", 3)]);
        assert_eq!(named(&sum.policies[2].top_would_block), [("192.0.2.1", 530)]);
        assert!((first.top_blocked[0].per_second.0 - 5.6).abs() < 1e-9, "5 + 0.6 a second");
        assert_eq!(sum.counts.latency.buckets[0].count, 1050);
        assert_eq!(sum.counts.connections.open, 24);
    }

    #[test]
    fn why_haproxy_got_no_answer_is_said_about_most_requests_of_all_agents() {
        let (mut a, mut b) = (status(1, 100, 2000, 500), status(2, 50, 100, 30));
        assert_eq!(Together::of([&a, &b]).haproxy_undecided_why, None);
        let counts = |counts: [(&str, u64); 2]| counts.map(|(err, n)| (err.to_owned(), n)).into();
        a.counts.haproxy_undecided_last_minute = counts([("1", 5), ("257", 4)]);
        b.counts.haproxy_undecided_last_minute = counts([("1", 1), ("257", 3)]);
        let sum = Together::of([&a, &b]);
        assert_eq!(sum.counts.haproxy_undecided_last_minute, counts([("1", 6), ("257", 7)]));
        assert!(sum.haproxy_undecided_why.unwrap().starts_with("no agent answered"));
    }

    /// During an upgrade, agents without this count are there.
    #[test]
    fn what_trials_would_block_adds_up_over_the_agents_that_count_it() {
        let (mut a, mut b) = (status(1, 100, 2000, 500), status(2, 50, 100, 30));
        let trial =
            |sum: &Together| (sum.policies[2].newly_blocked, sum.policies[2].would_block());
        assert_eq!(trial(&Together::of([&a, &b])), (None, 530));
        a.policies[2].newly_blocked = Some(40);
        assert_eq!(trial(&Together::of([&a, &b])), (Some(40), 40));
        b.policies[2].newly_blocked = Some(2);
        let sum = Together::of([&a, &b]);
        assert_eq!(trial(&sum), (Some(42), 42));
        assert_eq!(sum.policies[2].decisions["would_block"], 530);
        assert_eq!(sum.policies[0].newly_blocked, None);
    }

    /// An agent of an older version does not count all that this one does.
    #[test]
    fn a_status_without_some_counter_is_read_and_added_up() {
        let ours = status(1, 100, 2000, 500);
        let whole = serde_json::to_value(&ours).unwrap();
        for part in ["", "/notifies", "/connections", "/latency", "/table", "/policies/0"] {
            for name in whole.pointer(part).unwrap().as_object().unwrap().keys() {
                let mut less = whole.clone();
                less.pointer_mut(part).unwrap().as_object_mut().unwrap().remove(name);
                let older: Status = serde_json::from_value(less)
                    .unwrap_or_else(|error| panic!("without {part}/{name}: {error}"));
                let sum = Together::of([&older, &ours]);
                assert!(sum.counts.notifies.answered >= 2500, "without {part}/{name}");
            }
        }
        let other = json!({"status": {}, "past": {"policies": [{}]}, "events": [{}]});
        serde_json::from_value::<Own>(other).unwrap();
        serde_json::from_value::<ListedAgent>(json!({})).unwrap();
    }

    /// A client that one agent lists may be more than 20 places down at another.
    #[test]
    fn a_sum_with_a_list_that_was_cut_is_not_exact() {
        let (a, mut b) = (status(1, 100, 2000, 500), status(2, 100, 100, 30));
        let exact = |sum: &Together| sum.policies[0].top_is_exact;
        assert!(exact(&Together::of([&a, &b])).blocked);
        let client = |number: usize| ClientRow {
            client: format!("192.0.2.{number}"),
            requests: 1,
            per_second: Amount(0.01),
            ..ClientRow::default()
        };
        b.policies[0].top_blocked = (0..TOP).map(client).collect();
        let sum = Together::of([&a, &b]);
        assert!(!exact(&sum).blocked && exact(&sum).allowed, "{:?}", exact(&sum));
        assert_eq!(sum.policies[0].top_blocked.len(), TOP);
        assert!(exact(&Together::of([&b])).blocked, "one agent knows its own order");
        b.policies[0].top_is_exact.allowed = false;
        assert!(!exact(&Together::of([&b])).allowed);
    }

    /// Another process can say anything.
    #[test]
    fn no_number_is_too_large_to_be_added_up() {
        let mut wild = status(1, 100, 10, 10);
        wild.counts.unmatched = u64::MAX;
        wild.uptime_seconds = Amount(1e308);
        wild.policies[0].decisions.insert("blocked".to_owned(), u64::MAX);
        wild.policies[0].top_blocked[0].requests = u64::MAX;
        wild.policies[0].top_blocked[0].per_second = Amount(1e308);
        wild.counts.latency.buckets[0].count = u64::MAX;
        wild.counts.latency.sum_seconds = Amount(1e308);
        let wild = serde_json::from_str(&serde_json::to_string(&wild).unwrap()).unwrap();
        let sum = Together::of([&wild; 64]);
        assert_eq!(sum.counts.unmatched, u64::MAX);
        assert!(sum.counts.latency.sum_seconds.0.is_finite());
        assert!(sum.policies[0].top_blocked[0].per_second.0.is_finite());
    }
}

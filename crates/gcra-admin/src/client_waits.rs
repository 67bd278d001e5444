//! Whether the clients in a list are blocked now, and how long they have to wait. Only the hash of
//! their keys and their names are known.

use gcra_lease::{HostTime, Look, Micros};
use gcra_limiter::active_policies::{ActivePolicies, ActivePolicy};
use gcra_limiter::heaviest::{HeavyClient, Under};
use gcra_limiter::lease_client::LeaseClient;
use gcra_limiter::limit_bucket::LimitBucket;
use gcra_limiter::verdict::Outcome;
use gcra_policy::key::WrittenValue;
use gcra_policy::orders::OrderInForce;
use gcra_policy::{ClientAddress, Limit, Rule, WithoutStore};
use gcra_table::board::OrderKind;
use gcra_table::{KeyHash, Leases, Nanos, Table};

/// How many overrides of a policy are looked at if it is not known which one is for the client. (A
/// client has buckets under the limits of its own rule only, and which one that is cannot be seen
/// from the hash.)
const MOST_RULES: usize = 16;

/// The fate of a request of a client now.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Waiting {
    /// How long it takes until one is allowed. `None` if it is allowed now, or if that is not
    /// known.
    pub wait: Option<Nanos>,
    /// Why it is blocked. `None` if it is allowed.
    pub reason: Option<WaitReason>,
}

gcra_text::words! {
    /// Why the clients in a list wait. Of what several agents say about a client, the last of
    /// these counts: it says most.
    #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
    pub enum WaitReason {
        Denied = "denied",
        /// By an order, until it ends.
        Blocked = "blocked",
        /// A limit has a wait, as an order has.
        Limit = "limit",
        /// It is not known whether it is blocked, because a share of the limit decides.
        Share = "share",
        /// The store is away, and the policy is closed without it.
        Store = "store",
    }
}

impl Waiting {
    const NOT: Self = Self { wait: None, reason: None };

    const fn by(reason: WaitReason) -> Self {
        Self { wait: None, reason: Some(reason) }
    }

    fn of(wait: Nanos) -> Self {
        match wait {
            Nanos::ZERO => Self::NOT,
            wait => Self { wait: Some(wait), reason: Some(WaitReason::Limit) },
        }
    }
}

/// The sources about the clients of the policy at a place in the list of those in force.
#[derive(Clone, Copy, Debug)]
pub struct ClientSources<'a> {
    pub in_force: &'a ActivePolicies,
    pub place: usize,
    pub table: &'a Table,
    pub leases: Option<&'a Leases>,
    pub lease_client: Option<&'a LeaseClient>,
}

impl ClientSources<'_> {
    /// The fate of a request of this client now, as far as the table and the leases know.
    /// `listed_as` is the outcome for
    /// which it is listed: a client that was blocked waits until a request is allowed, and one
    /// that would have been, until it would not be.
    pub fn waiting(&self, heavy: &HeavyClient, listed_as: Outcome) -> Waiting {
        let HeavyClient { key, under, .. } = *heavy;
        let row = self.in_force.row(self.place);
        let policy = &row.policy;
        if policy.observes && listed_as == Outcome::Blocked {
            return Waiting::NOT;
        }
        match self.order(heavy) {
            Some(order) if order.kind == OrderKind::Block => {
                let left = order.until.saturating_since(self.table.now());
                return Waiting { wait: Some(left), reason: Some(WaitReason::Blocked) };
            }
            Some(_) => return Waiting::NOT,
            None => {}
        }
        let all = || {
            let overrides = policy.overrides.rules.iter().take(MOST_RULES);
            [&policy.rule].into_iter().chain(overrides).collect()
        };
        // After a reload that has changed the rules, another one may be the client's.
        let is_known = under.rules == row.rules;
        let rules: Vec<_> = if is_known { vec![policy.rule(under.rule)] } else { all() };
        if rules.iter().all(|rule| **rule == Rule::Deny) {
            return Waiting::by(WaitReason::Denied);
        }
        let rules = rules.into_iter().map(Rule::limits);
        match (policy.shared, self.leases) {
            (None, _) => Waiting::of(
                rules
                    .flatten()
                    .map(|limit| self.owed_for(limit, key))
                    .max()
                    .unwrap_or(Nanos::ZERO),
            ),
            (Some(_), None) => Waiting::NOT,
            (Some(sharing), Some(leases)) => {
                self.shared(leases, rules, key, sharing.without_store)
            }
        }
    }

    /// The name of the limit that a client waits for longest, if this machine alone counts it.
    pub fn limit(&self, key: KeyHash, under: Under) -> Option<&str> {
        let row = self.in_force.row(self.place);
        let (policy, is_known) = (&row.policy, under.rules == row.rules);
        let limits = match policy.shared {
            None if is_known => policy.rule(under.rule).limits(),
            _ => return None,
        };
        let owed = limits.iter().map(|limit| (self.owed_for(limit, key), &*limit.label));
        let longest = owed.max_by_key(|(owed, _)| *owed);
        longest.filter(|(owed, _)| *owed > Nanos::ZERO).map(|(_, label)| label)
    }

    /// The order about a client of the policy, or of the one whose trial it is. Its address is
    /// known from its name.
    fn order(&self, HeavyClient { key, client, .. }: &HeavyClient) -> Option<OrderInForce> {
        let tries = |row: &ActivePolicy| row.policy.trial == Some(self.place);
        let parent = self.in_force.rows().iter().position(tries);
        let orders = self.in_force.row(parent.unwrap_or(self.place)).orders.as_deref()?;
        let address = || {
            let (ip, prefix) = match client.parse() {
                Ok(WrittenValue::Ip(ip)) => (ip, if ip.is_ipv4() { 32 } else { 128 }),
                Ok(WrittenValue::Net(net)) => (net.addr(), net.prefix_len()),
                _ => return None,
            };
            Some(ClientAddress { ip, sent: ip, prefix })
        };
        orders.find(*key, self.table.now(), address)
    }

    /// For how long the client owes too much under a limit of this machine.
    fn owed_for(&self, limit: &Limit, key: KeyHash) -> Nanos {
        let (table, LimitBucket { key, quota }) =
            (self.table, LimitBucket::of(self.table, limit, key, None));
        if let Some(calendar) = limit.calendar() {
            let now = table.wall_reading();
            let used = table.counted_in(key, calendar.window(now)).unwrap_or(0);
            // Overrides count in the same bucket, up to counts of their own. A client that has
            // more than one of these is not its client.
            let policy = &self.in_force.policies.list[self.place];
            let allows_more = |other: &Limit| {
                let is_same = (other.id, other.calendar()) == (limit.id, limit.calendar());
                is_same && other.burst() > quota.burst()
            };
            let is_full =
                used == quota.burst() || used > quota.burst() && !policy.limits().any(allows_more);
            return if is_full { calendar.ends_in(now) } else { Nanos::ZERO };
        }
        let owed = table.owed(key, quota, table.now());
        let at_most = quota.burst_tolerance().saturating_add(quota.max_delay());
        owed.saturating_sub(at_most)
    }

    /// The same under limits that machines share: `rules` are those that may be the client's.
    fn shared<'l>(
        &self,
        leases: &Leases,
        rules: impl Iterator<Item = &'l [Limit]>,
        key: KeyHash,
        without_store: WithoutStore,
    ) -> Waiting {
        let now = HostTime::from(self.table.now());
        let look = |limit: &Limit| {
            let key = LimitBucket::of(self.table, limit, key, None).lease_key(limit);
            // Whether an ask is under way makes no difference.
            leases.holding(key, now).look(now, 1, Micros(0))
        };
        let (mut blocked, mut asks) = (Nanos::ZERO, false);
        for limits in rules.filter(|limits| !limits.is_empty()) {
            let mut spends = true;
            for limit in limits {
                match look(limit) {
                    Look::Enough => {}
                    // This machine does not ask the store about the client until then.
                    Look::Blocked { until } => {
                        let wait = Nanos(until.saturating_since(now).0.saturating_mul(1_000));
                        (blocked, spends) = (blocked.max(wait), false);
                    }
                    Look::Waiting { .. } | Look::Lacking => (asks, spends) = (true, false),
                }
            }
            // It has cells only under the limits of its own rule.
            if spends {
                return Waiting::NOT;
            }
        }
        let is_away = || {
            let of = |lease_client: &LeaseClient| lease_client.is_wholly_away(self.table.now());
            self.lease_client.is_some_and(of)
        };
        if blocked > Nanos::ZERO || !asks || !is_away() {
            return Waiting::of(blocked);
        }
        match without_store {
            WithoutStore::Closed => Waiting::by(WaitReason::Store),
            WithoutStore::Share | WithoutStore::Open { .. } => Waiting::by(WaitReason::Share),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::path::Path;

    use gcra_limiter::decide::local::decide;
    use gcra_limiter::question::Question;
    use gcra_limiter::stats::Stats;
    use gcra_limiter::written_message::WrittenMessage;
    use gcra_policy::file::document;
    use gcra_policy::key::NamedValue;
    use gcra_table::Slots;

    use super::*;

    #[test]
    fn who_has_used_a_count_waits_for_the_end_of_the_window() {
        let text = "[policy.api]\nkey = [\"ip\"]\nlimits = [\"9/s\", { name = \"c\", count = 5, \
                    window = \"hour\" }]\n[policy.api.overrides]\n\"192.0.2.2\" = { name = \"c\", \
                    count = 2, window = \"hour\" }\n";
        let policies = document::parse(Path::new("gcra-spoa.toml"), text).unwrap();
        let (table, clock) = Table::with_manual_clock(Slots::new(4096).unwrap()).unwrap();
        let in_force = ActivePolicies::at_start(policies, &Stats::new(NonZeroUsize::MIN), &table);
        let ask = |client: &str, requests: usize| {
            let ip: NamedValue = format!("ip={client}").parse().unwrap();
            let message = WrittenMessage::new(b"api", &[ip]).unwrap();
            let message = message.message().unwrap();
            let question = Question::new(&in_force, &table, &message).unwrap();
            for _ in 0..requests {
                let now = &mut table.reading();
                decide(&table, now, in_force.row(question.policy), question, None, None, || {
                    Some(message.clone())
                });
            }
            let of = ClientSources {
                in_force: &in_force,
                place: 0,
                table: &table,
                leases: None,
                lease_client: None,
            };
            // As after a reload that has changed the rules.
            let under = Under { rules: u64::MAX, ..Under::own() };
            let (client, requests) = (client.to_owned(), 1);
            let heavy = HeavyClient { client, key: question.key, under, requests };
            of.waiting(&heavy, Outcome::Blocked).wait.map(Nanos::secs_ceil)
        };
        // The clock starts at one second.
        assert_eq!(ask("192.0.2.1", 4), None);
        assert_eq!(ask("192.0.2.1", 9), Some(3599));
        assert_eq!(ask("192.0.2.2", 1), None);
        assert_eq!(ask("192.0.2.2", 9), Some(3599));
        assert_eq!(ask("192.0.2.3", 0), None);
        clock.advance(Nanos::from_secs(3_599));
        assert_eq!(ask("192.0.2.1", 0), None);
    }
}

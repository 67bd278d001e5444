//! [`StoreStatus`]: what an agent says about the store through which limits are shared, and about
//! the cells that its machine holds.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gcra_limiter::borrower::Borrower;
use gcra_table::{LeaseCounts, Time};
use serde::{Deserialize, Serialize};

/// What an agent says about its store. Counters begin at 0 with the agent.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct StoreStatus {
    /// Whether the store can be asked about every key.
    pub up: bool,
    /// For how long no server could be used; `None` while there is one.
    pub(crate) away_seconds: Option<f64>,
    /// For how long there was none, all times together.
    pub(crate) away_seconds_total: f64,
    /// Why servers cannot be used, a sentence for each.
    pub faults: Vec<String>,
    /// Asks that were sent.
    pub asks: u64,
    /// Charges that were sent: requests that were charged at once, and what settles them.
    pub charges: u64,
    /// Of these, the ones without a reply that can be used.
    pub(crate) charges_unknown: u64,
    /// Charges that were not sent.
    pub(crate) charges_away: u64,
    /// The asks of one round that go to one server are one call.
    pub calls: u64,
    /// Replies that can be used.
    pub(crate) replies: u64,
    /// The time until these replies, all together.
    pub(crate) answer_seconds: f64,
    pub(crate) granted_cells: u64,
    /// Asks that the store has ignored, because it knows a later one.
    pub ignored: u64,
    /// Asks without a reply that can be used.
    pub void: u64,
    /// Of these, the ones that were not answered in time.
    pub late: u64,
    /// Asks that were not sent, because no server could be used or too many were under way.
    pub(crate) not_sent: u64,
    /// How often the clock of a server has leapt, by direction.
    pub(crate) clock_leaps: BTreeMap<String, u64>,
    /// Requests that wait for a reply now.
    pub waiting: u64,
    /// Requests that have waited for a reply.
    pub waited: u64,
    /// Of these, the ones that stopped waiting because `--store-wait` was over.
    pub timed_out: u64,
    /// What the machine holds. It is the same for all agents of a table.
    pub leases: LeasesStatus,
}

/// What a machine holds of shared limits.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct LeasesStatus {
    pub entries: u64,
    /// How many entries are in each state. Empty if they have not been counted.
    pub(crate) states: BTreeMap<String, u64>,
    /// Cells that can be spent, when the entries were counted.
    pub held_cells: u64,
    /// How many machines share limits with this one, itself included; 0 if that is not known.
    pub machines: u64,
    /// Entries that another key took although their own key needed them.
    pub evicted: u64,
}

impl StoreStatus {
    /// What is so now. `counts` is what was found when the entries were counted last.
    pub(crate) fn of(borrower: &Borrower, now: Time, counts: Option<LeaseCounts>) -> Self {
        let store = borrower.store();
        let (counters, health) = (store.counters(), store.health());
        let of_server = |server: gcra_store::ServerHealth| {
            Some(format!("{}: {}", server.address, server.fault?))
        };
        let faults = health.fault.iter().map(ToString::to_string);
        let away = store.away_since().map(|since| since.elapsed().as_secs_f64());
        let leaps = [("forward", counters.leaps_forward), ("back", counters.leaps_back)];
        let counted = &borrower.counts;
        Self {
            up: borrower.can_ask(now),
            away_seconds: away,
            away_seconds_total: store.away_total().as_secs_f64(),
            faults: faults.chain(health.servers.into_iter().filter_map(of_server)).collect(),
            asks: counters.asks,
            charges: counters.charges,
            charges_unknown: counters.charges_unknown,
            charges_away: counters.charges_away,
            calls: counters.calls,
            replies: counters.replies,
            answer_seconds: Duration::from_micros(counters.micros).as_secs_f64(),
            granted_cells: counters.granted,
            ignored: counters.ignored,
            void: counters.void,
            late: counters.late,
            not_sent: counters.away,
            clock_leaps: leaps.map(|(name, count)| (name.to_owned(), count)).into(),
            waiting: borrower.waiting(),
            waited: counted.waited.load(Ordering::Relaxed),
            timed_out: counted.timed_out.load(Ordering::Relaxed),
            leases: LeasesStatus::of(borrower, now, counts),
        }
    }

    /// The numbers that are not whole.
    pub(crate) fn floats(&mut self) -> impl Iterator<Item = &mut f64> {
        let Self { away_seconds, away_seconds_total, answer_seconds, .. } = self;
        away_seconds.iter_mut().chain([away_seconds_total, answer_seconds])
    }

    /// Adds what another agent says: numbers of agents are added up, and of those that all agents
    /// of a machine have in common the largest is taken.
    pub(crate) fn add(&mut self, other: &Self) {
        // Every field is named, so that a new one can't be forgotten here.
        let Self {
            up,
            away_seconds,
            away_seconds_total,
            faults,
            asks,
            charges,
            charges_unknown,
            charges_away,
            calls,
            replies,
            answer_seconds,
            granted_cells,
            ignored,
            void,
            late,
            not_sent,
            clock_leaps,
            waiting,
            waited,
            timed_out,
            leases,
        } = other;
        self.up &= up;
        let longest = away_seconds.unwrap_or_default().max(self.away_seconds.unwrap_or_default());
        self.away_seconds = self.away_seconds.or(*away_seconds).map(|_| longest);
        // An outage of the store is one outage for all of them.
        self.away_seconds_total = self.away_seconds_total.max(*away_seconds_total);
        for fault in faults {
            if !self.faults.contains(fault) {
                self.faults.push(fault.clone());
            }
        }
        self.answer_seconds += answer_seconds;
        for (sum, more) in [
            (&mut self.asks, asks),
            (&mut self.charges, charges),
            (&mut self.charges_unknown, charges_unknown),
            (&mut self.charges_away, charges_away),
            (&mut self.calls, calls),
            (&mut self.replies, replies),
            (&mut self.granted_cells, granted_cells),
            (&mut self.ignored, ignored),
            (&mut self.void, void),
            (&mut self.late, late),
            (&mut self.not_sent, not_sent),
            (&mut self.waiting, waiting),
            (&mut self.waited, waited),
            (&mut self.timed_out, timed_out),
        ] {
            *sum = sum.saturating_add(*more);
        }
        for (direction, leaps) in clock_leaps {
            let sum = self.clock_leaps.entry(direction.clone()).or_default();
            *sum = sum.saturating_add(*leaps);
        }
        self.leases.add(leases);
    }
}

impl LeasesStatus {
    fn of(borrower: &Borrower, now: Time, counts: Option<LeaseCounts>) -> Self {
        let leases = borrower.leases();
        let states = counts.map(|counts| {
            let LeaseCounts {
                in_use, blocked, free, over, announced, held: _, unreported: _, ..
            } = counts;
            [
                ("in_use", in_use),
                ("blocked", blocked),
                ("free", free),
                ("over", over),
                ("announced", announced),
            ]
            .map(|(state, count)| (state.to_owned(), count))
        });
        Self {
            entries: leases.entries(),
            states: states.map(BTreeMap::from).unwrap_or_default(),
            held_cells: counts.unwrap_or_default().held,
            machines: borrower.hosts(now).into(),
            evicted: leases.evictions(),
        }
    }

    fn add(&mut self, other: &Self) {
        let Self { entries, states, held_cells, machines, evicted } = other;
        self.entries = self.entries.max(*entries);
        if self.states.is_empty() {
            self.states.clone_from(states);
        }
        self.held_cells = self.held_cells.max(*held_cells);
        self.machines = self.machines.max(*machines);
        self.evicted = self.evicted.max(*evicted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_one_outage_for_all_agents() {
        let of = |away, asks| StoreStatus {
            away_seconds: Some(away),
            away_seconds_total: away,
            asks,
            ..StoreStatus::default()
        };
        let mut sum = of(15.0, 3);
        sum.add(&of(16.0, 4));
        sum.add(&of(0.5, 5));
        assert_eq!((sum.away_seconds_total, sum.away_seconds, sum.asks), (16.0, Some(16.0), 12));
    }
}

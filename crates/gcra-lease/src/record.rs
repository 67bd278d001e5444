//! [`Record`]: the store's end. The debt of one key, and which cells are lent to which host.
//!
//! Nothing is charged when cells are lent. A lent cell counts in full, without draining, until its
//! host reports it as spent (it is charged then), gives it back, or the lease expires (it is
//! charged then, as if spent at the last moment). So a cell is never charged before it was spent,
//! and until it is charged it is not free: what is owed and what is lent are together never less
//! than what one exact bucket would owe that saw each request when it came.

// ADR 44: What cannot be lent is charged in the store.

use alloc::vec::Vec;

use crate::limit::{SharedLimit, Units};
use crate::message::{Ask, AskNumber, AskReply, HostId};
use crate::rule::{Rule, without};
use crate::time::{Micros, StoreTime};

/// A host comes back after this time at the latest.
const LONGEST_WAIT: Micros = Micros::from_millis(60_000);

/// How long a cell of a slow limit takes to drain, at least.
const SLOW: Micros = Micros::from_millis(50);

/// The debt and the leases of one key under one limit.
///
/// All arithmetic is on whole numbers below 2^53, so a script that computes with doubles gives the
/// same answers, bit for bit (a test of this file shows it).
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Record {
    /// When `owed` was what it says.
    pub(crate) at: StoreTime,
    pub(crate) owed: Units,
    pub(crate) leases: Vec<Lease>,
    pub(crate) denied: Option<Denied>,
}

/// Cells that are lent to one host.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lease {
    /// Who holds the cells.
    pub host: HostId,
    /// How many. A lease of none remembers the number of the last ask.
    pub cells: u32,
    /// When the store counts them as spent.
    pub expiry: StoreTime,
    /// The number of the last ask of this host.
    pub number: AskNumber,
}

/// An ask for several cells that was denied: who asked, and how long others wait for it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Denied {
    pub(crate) host: HostId,
    pub(crate) until: StoreTime,
}

impl Record {
    /// The record of a key that was never asked for.
    pub const fn new(now: StoreTime) -> Self {
        Self { at: now, owed: Units::ZERO, leases: Vec::new(), denied: None }
    }

    /// A record as a store has kept it: what was owed `at` a moment, and the leases. That an ask
    /// was denied is left out.
    pub const fn kept(at: StoreTime, owed: Units, leases: Vec<Lease>) -> Self {
        Self { at, owed, leases, denied: None }
    }

    /// The record of a key that the store does not know, if the store's memory began at `epoch`
    /// and what was before may have been lost (`strict`).
    ///
    /// Before the epoch, what was owed and what was lent were together at most a full burst; and
    /// what was lent is spent by the end of the longest validity. So the key owes at most a full
    /// burst at that time. Once that has drained, a new record is like any other. Penalties that
    /// were lost are not charged again.
    ///
    /// A [count](SharedLimit::count) whose window began before the epoch is full until the window ends.
    /// One whose window began later is not: nothing of it can have been lost.
    #[must_use]
    pub fn after_loss(limit: &SharedLimit, epoch: StoreTime, now: StoreTime) -> Self {
        Self::after_loss_of(limit, epoch, now, limit.most_owed_by_lending())
    }

    /// The same, if so much may have been owed at the epoch.
    pub(crate) fn after_loss_of(
        limit: &SharedLimit,
        epoch: StoreTime,
        now: StoreTime,
        most: Units,
    ) -> Self {
        let mut record = Self::new(now);
        let began_later =
            limit.window().is_some_and(|window| window.begin.saturating_mul(1_000_000) >= epoch.0);
        if !without(Rule::Epoch) && !began_later {
            record.at = epoch;
            record.owed = most;
            record.settle(limit, now);
        }
        record
    }

    /// How long the store keeps the record from now on (`PX`), after it was [settled] at `now`: as
    /// [`SharedLimit::keeps_record`] says, and in any case until all is drained that requests wait
    /// for. The record of a [count](SharedLimit::count) is kept until an hour after its window, by
    /// the store's clock, and for an hour at least.
    ///
    /// [settled]: Self::settle
    pub fn kept_for(&self, limit: &SharedLimit) -> Micros {
        let later = limit.keeps_record();
        match limit.window() {
            Some(window) => {
                let end = StoreTime(window.end.saturating_mul(1_000_000));
                later.saturating_add(end.saturating_since(self.at))
            }
            None => later.max(limit.time_to_drain(self.owed).saturating_add(SharedLimit::SPARE)),
        }
    }

    /// Takes an ask at the moment `now`. `None`: the ask is a copy of an earlier one or was
    /// overtaken by a later one, and is ignored.
    pub fn ask(&mut self, limit: &SharedLimit, now: StoreTime, ask: &Ask) -> Option<AskReply> {
        self.ask_beside(limit, now, ask, Units::ZERO)
    }

    /// The same, with so much that is taken besides.
    pub(crate) fn ask_beside(
        &mut self,
        limit: &SharedLimit,
        now: StoreTime,
        ask: &Ask,
        beside: Units,
    ) -> Option<AskReply> {
        self.settle(limit, now);
        let place = self.leases.iter().position(|lease| lease.host == ask.host);
        let before = place.map(|place| self.leases[place]);
        if !without(Rule::Numbers) && before.is_some_and(|lease| ask.number <= lease.number) {
            return None;
        }

        let lent = before.map_or(0, |lease| lease.cells);
        let (kept, spent) = if ask.fresh {
            (0, if without(Rule::FreshCountsAsSpent) { 0 } else { lent })
        } else {
            // An expired lease was charged as a whole.
            let kept = ask.holds.min(lent);
            (kept, ask.spent.min(lent - kept))
        };
        let charged = if without(Rule::ChargeOnReport) { 0 } else { spent };
        self.charge(limit, charged);
        self.charge(limit, ask.debt);
        let full = limit.cells(limit.burst());
        self.owed = self.owed.max(full.saturating_sub(limit.drained_in(ask.owed_ago)));

        let others = self.lent() - lent;
        let lent = if without(Rule::LentIsNotFree) { 0 } else { others.saturating_add(kept) };
        let taken = self.owed.saturating_add(limit.cells(lent)).saturating_add(beside);
        let free = limit.cells(limit.burst()).saturating_sub(taken);
        let free_cells = limit.whole_cells(free);
        let denied_to_another = self.denied.is_some_and(|denied| denied.host != ask.host);
        let ahead = if denied_to_another { 0 } else { free_cells.div_ceil(2) };
        let granted = if free_cells >= ask.least { ask.want.min(ahead.max(ask.least)) } else { 0 };

        let validity = ask.validity.min(limit.longest_validity());
        let expiry = now.saturating_add(validity);
        let expiry = match before {
            Some(before) if kept > 0 && !without(Rule::ExpiryNotSooner) => {
                expiry.max(before.expiry)
            }
            _ => expiry,
        };
        let lease = Lease { host: ask.host, cells: kept + granted, expiry, number: ask.number };
        match place {
            Some(place) => self.leases[place] = lease,
            None => self.leases.push(lease),
        }

        // A host that shares the key with no other one, or whose limit is a slow one, gets more as
        // soon as it needs more: a client that is entitled to its burst has it.
        let left = free_cells - granted;
        let has_more = left >= ask.least.max(1) && (self.leases.len() == 1 || is_slow(limit));
        let come_back_after = if granted < ask.want && !has_more {
            // Until the least is free if nothing is given back.
            let lack = limit
                .cells(ask.least)
                .saturating_add(taken)
                .saturating_sub(limit.cells(limit.burst()));
            self.come_back_after(limit, now, ask.host, lack)
        } else {
            Micros::ZERO
        };
        if granted < ask.least {
            let until = now.saturating_add(come_back_after).saturating_add(validity);
            if ask.least > 1 && !denied_to_another && !without(Rule::NoteDenied) {
                self.denied = Some(Denied { host: ask.host, until });
            }
        } else if !denied_to_another {
            self.denied = None;
        }
        Some(AskReply {
            number: ask.number,
            kept,
            granted,
            free: left,
            come_back_after,
            scarce: denied_to_another,
            lent: granted < ask.least
                && self.owed.saturating_add(limit.cells(kept.saturating_add(ask.least)))
                    <= limit.cells(limit.burst()),
            hosts: u32::try_from(self.leases.len()).unwrap_or(u32::MAX),
            now,
        })
    }

    /// The leases that have not expired, those of no cells included.
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The debt at the moment of the last ask, without the cells that are lent.
    pub const fn owed(&self) -> Units {
        self.owed
    }

    /// The cells that are lent to all hosts.
    pub fn lent(&self) -> u32 {
        self.leases.iter().map(|lease| lease.cells).sum()
    }

    /// Whole cells that are neither owed nor lent.
    pub fn free(&self, limit: &SharedLimit) -> u32 {
        let taken = self.owed.saturating_add(limit.cells(self.lent()));
        limit.whole_cells(limit.cells(limit.burst()).saturating_sub(taken))
    }

    /// Advances the record to `now`: charges leases that have expired, and lets debt drain.
    pub fn settle(&mut self, limit: &SharedLimit, now: StoreTime) {
        self.advance(limit, now);
    }

    /// The same. Returns when the record was last used before that, or the last lease expired.
    pub(crate) fn advance(&mut self, limit: &SharedLimit, now: StoreTime) -> StoreTime {
        if now < self.at {
            self.follow_back(limit, now);
        }
        // Each round removes a lease.
        while let Some(place) = self.soonest().filter(|&place| self.leases[place].expiry <= now) {
            let lease = self.leases.remove(place);
            self.drain_until(limit, lease.expiry);
            if !without(Rule::ChargeAtExpiry) {
                self.charge(limit, lease.cells);
            }
        }
        let last_used = self.at;
        self.drain_until(limit, now);
        self.denied = self.denied.filter(|denied| denied.until > now);
        last_used
    }

    /// The clock went back. Debts drain at the moment at which they would have, or when a full
    /// burst would have if that is sooner; leases expire after the longest validity at the latest.
    /// Penalties beyond a full burst stay, but a clock makes no debt a penalty.
    fn follow_back(&mut self, limit: &SharedLimit, now: StoreTime) {
        let back = limit.drained_in(self.at.saturating_since(now));
        self.at = now;
        if without(Rule::ClampWhenClockGoesBack) {
            if self.owed > Units::ZERO {
                self.owed = self.owed.saturating_add(back);
            }
            return;
        }
        if self.owed > Units::ZERO {
            let later = self.owed.saturating_add(back).min(limit.most_owed_by_lending());
            self.owed = self.owed.max(later);
        }
        let latest = now.saturating_add(limit.longest_validity());
        self.leases.iter_mut().for_each(|lease| lease.expiry = lease.expiry.min(latest));
        self.denied = None;
    }

    fn soonest(&self) -> Option<usize> {
        (0..self.leases.len()).min_by_key(|&place| self.leases[place].expiry)
    }

    fn drain_until(&mut self, limit: &SharedLimit, then: StoreTime) {
        let drained = limit.drained_in(then.saturating_since(self.at));
        self.owed = self.owed.saturating_sub(drained);
        self.at = self.at.max(then);
    }

    pub(crate) fn charge(&mut self, limit: &SharedLimit, cells: u32) {
        let owed = self.owed.saturating_add(limit.cells(cells));
        // More than that is owed where requests wait.
        self.owed = self.owed.max(owed.min(limit.most_owed()));
    }

    /// When a host that did not get all its cells comes back: when `lack` has drained. With many
    /// hosts, each waits until half a fair share has drained; all fair shares together are a
    /// quarter of the burst. It comes back earlier for a cell of a slow limit, and when a lease of
    /// another host expires.
    fn come_back_after(
        &self,
        limit: &SharedLimit,
        now: StoreTime,
        host: HostId,
        lack: Units,
    ) -> Micros {
        let hosts = u32::try_from(self.leases.len()).unwrap_or(u32::MAX);
        let fair = (limit.burst() / 4 / hosts.max(1)).max(1);
        let shares = limit.cells(fair.saturating_mul(hosts));
        let worth = if is_slow(limit) { Units::ZERO } else { Units(shares.0 / 2) };
        let wait = limit.time_to_drain(lack.max(worth));
        let others = self.leases.iter().filter(|lease| lease.host != host && lease.cells > 0);
        others
            .map(|lease| lease.expiry.saturating_since(now))
            .min()
            .map_or(wait, |soonest| wait.min(soonest))
            .min(LONGEST_WAIT)
    }
}

/// Whether hosts may ask for each cell of a limit by itself: a cell takes this long to drain.
fn is_slow(limit: &SharedLimit) -> bool {
    limit.time_to_drain(limit.cells(1)) >= SLOW
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const START: StoreTime = StoreTime(1_800_000_000_000_000);

    fn limit(interval_us: u64, burst: u32) -> SharedLimit {
        SharedLimit::new(Duration::from_micros(interval_us), burst).unwrap()
    }

    fn ask(host: u64, number: u64, want: u32) -> Ask {
        Ask {
            host: HostId(host),
            number: AskNumber(number),
            fresh: false,
            spent: 0,
            debt: 0,
            owed_ago: Ask::NOTHING_OWED,
            holds: 0,
            want,
            least: want.min(1),
            validity: Micros::from_millis(500),
        }
    }

    fn after(milliseconds: u64) -> StoreTime {
        START.saturating_add(Micros::from_millis(milliseconds))
    }

    #[test]
    fn half_of_what_is_free_is_lent_ahead_of_need() {
        let limit = limit(10_000, 20);
        let mut record = Record::new(START);
        let reply = record.ask(&limit, START, &ask(1, 1, 20)).unwrap();
        assert_eq!((reply.granted, reply.kept, reply.hosts), (10, 0, 1));
        let reply = record.ask(&limit, START, &ask(2, 1, 20)).unwrap();
        assert_eq!((reply.granted, reply.hosts), (5, 2));
        let all = Ask { least: 6, ..ask(3, 1, 6) };
        let reply = record.ask(&limit, START, &all).unwrap();
        assert_eq!((reply.granted, reply.come_back_after.0 > 0), (0, true), "5 are free");
        assert_eq!(record.ask(&limit, START, &ask(1, 1, 20)), None, "a copy");
    }

    #[test]
    fn cells_that_are_owed_or_lent_to_any_host_are_not_free() {
        let limit = limit(10_000, 20);
        let mut record = Record::new(START);
        assert_eq!(record.ask(&limit, START, &ask(1, 1, 8)).unwrap().free, 12);
        let owes = Ask { debt: 3, ..ask(2, 1, 4) };
        assert_eq!(record.ask(&limit, START, &owes).unwrap().free, 5);
        let drained = record.ask(&limit, after(15), &ask(3, 1, 0)).unwrap();
        assert_eq!(drained.free, 6, "1.5 of the 3 cells have drained: only whole cells count");
        let denied = Ask { least: 7, ..ask(3, 2, 7) };
        assert_eq!(record.ask(&limit, after(15), &denied).unwrap().free, 6);
        let overdrawn = Ask { debt: 100, ..ask(3, 3, 0) };
        assert_eq!(record.ask(&limit, after(15), &overdrawn).unwrap().free, 0);
    }

    #[test]
    fn lent_cells_do_not_drain_and_are_charged_when_they_expire() {
        let limit = limit(10_000, 20);
        let mut record = Record::new(START);
        let whole = Ask { least: 20, ..ask(1, 1, 20) };
        assert_eq!(record.ask(&limit, START, &whole).unwrap().granted, 20);
        assert_eq!(record.ask(&limit, after(499), &ask(2, 1, 1)).unwrap().granted, 0);
        let reply = record.ask(&limit, after(505), &ask(2, 2, 1)).unwrap();
        assert_eq!(reply.granted, 0, "charged at 500 ms");
        let reply = record.ask(&limit, after(510), &ask(2, 3, 1)).unwrap();
        assert_eq!(reply.granted, 1, "one has drained");
    }

    #[test]
    fn a_debt_is_charged_although_it_was_not_lent() {
        let limit = limit(10_000, 20);
        let mut record = Record::new(START);
        record.ask(&limit, START, &Ask { debt: 15, ..ask(1, 1, 0) }).unwrap();
        assert_eq!(record.owed(), limit.cells(15));
        record.ask(&limit, START, &Ask { debt: u32::MAX, ..ask(1, 2, 0) }).unwrap();
        assert_eq!(record.owed(), limit.most_owed(), "no more than that");
    }

    #[test]
    fn penalties_are_owed_beyond_the_burst_up_to_the_ceiling() {
        let limit = limit(10_000, 20).with_most_owed(100).unwrap();
        let mut record = Record::new(START);
        record.ask(&limit, START, &Ask { debt: 70, ..ask(1, 1, 0) }).unwrap();
        assert_eq!(record.owed(), limit.cells(70));
        // The client is blocked, goes on, and is charged for that.
        let punished = Ask { debt: 400, ..ask(1, 2, 1) };
        let reply = record.ask(&limit, START, &punished).unwrap();
        assert_eq!((record.owed(), reply.granted, reply.free), (limit.most_owed(), 0, 0));
        // 100 cells and 2 s are 300 cells. 281 of them have to drain before one is free.
        assert_eq!(record.ask(&limit, after(2_809), &ask(1, 3, 1)).unwrap().granted, 0);
        assert_eq!(record.ask(&limit, after(2_810), &ask(1, 4, 1)).unwrap().granted, 1);

        let hours = limit.with_most_owed(1_000_000).unwrap();
        let reply = Record::new(START).ask(&hours, START, &Ask { debt: 900_000, ..ask(1, 5, 1) });
        assert_eq!(reply.unwrap().come_back_after, LONGEST_WAIT, "then it may look again");
    }

    /// All hosts report the cells that they may have allowed without the store, and these count
    /// once.
    #[test]
    fn a_key_owes_at_least_what_a_host_says() {
        let limit = limit(10_000, 10);
        let mut record = Record::new(START);
        let first = Ask { owed_ago: Micros::from_millis(20), ..ask(1, 1, 10) };
        let reply = record.ask(&limit, START, &first).unwrap();
        assert_eq!((reply.granted, reply.free), (1, 1));
        let second = Ask { owed_ago: Micros::from_millis(20), ..ask(2, 1, 10) };
        assert_eq!(record.ask(&limit, START, &second).unwrap().granted, 1, "of 10 cells");
        let more = Ask { owed_ago: Micros::ZERO, ..ask(3, 1, 10) };
        assert_eq!(record.ask(&limit, START, &more).unwrap().granted, 0);
        assert_eq!(record.owed(), limit.cells(10), "a full burst at most");
    }

    #[test]
    fn a_denial_says_whether_cells_are_owed_or_lent() {
        let limit = limit(10_000, 20).with_most_owed(100).unwrap();
        let mut record = Record::new(START);
        assert_eq!(record.ask(&limit, START, &ask(1, 1, 18)).unwrap().granted, 10);
        let denied = |record: &mut Record, number: u64, least: u32| {
            let ask = Ask { least, ..ask(2, number, least) };
            let reply = record.ask(&limit, START, &ask).unwrap();
            (reply.granted, reply.lent)
        };
        assert_eq!(denied(&mut record, 1, 11), (0, true));
        let spent = Ask { spent: 9, holds: 1, ..ask(1, 2, 0) };
        record.ask(&limit, START, &spent).unwrap();
        assert_eq!(denied(&mut record, 2, 11), (0, true), "9 are owed, and one is lent");
        assert_eq!(denied(&mut record, 3, 12), (0, false));
        assert_eq!(denied(&mut record, 4, 10), (10, false));
    }

    /// A clock that goes back must not make a debt of each key that is as large as a penalty.
    #[test]
    fn a_clock_that_goes_back_is_no_penalty() {
        let limit = limit(10_000, 20).with_most_owed(1_000_000).unwrap();
        let owed_after = |debt| {
            let mut record = Record::new(START);
            record.ask(&limit, after(9_000_000), &Ask { debt, ..ask(1, 1, 0) }).unwrap();
            record.settle(&limit, START);
            limit.whole_cells(record.owed())
        };
        assert_eq!([0, 1, 20, 219, 500].map(owed_after), [0, 220, 220, 220, 500]);
    }

    /// Otherwise a clock that was wrong for a moment would block a key for ever.
    #[test]
    fn a_clock_that_goes_back_blocks_for_a_bounded_time() {
        let blocked_after = |rule: Option<Rule>| {
            let _back = crate::rule::take_away(rule);
            let limit = limit(10_000, 20);
            let mut record = Record::new(START);
            record.ask(&limit, after(10_000_000), &Ask { spent: 0, debt: 5, ..ask(1, 1, 9) });
            let longest = limit.time_to_drain(limit.most_owed());
            let later = START.saturating_add(longest).saturating_add(longest);
            record.ask(&limit, START, &ask(2, 1, 0)).unwrap();
            record.ask(&limit, later, &ask(2, 2, 20)).unwrap().granted == 0
        };
        assert!(!blocked_after(None));
        assert!(blocked_after(Some(Rule::ClampWhenClockGoesBack)));
    }

    #[test]
    fn what_a_host_that_is_denied_waits_for_is_not_lent_ahead_of_need() {
        let limit = limit(10_000, 20);
        let mut record = Record::new(START);
        assert_eq!(record.ask(&limit, START, &ask(1, 1, 8)).unwrap().granted, 8);
        let large = Ask { least: 15, ..ask(2, 1, 15) };
        assert_eq!(record.ask(&limit, START, &large).unwrap().granted, 0);
        let renewal = Ask { spent: 8, ..ask(1, 2, 8) };
        let reply = record.ask(&limit, START, &renewal).unwrap();
        assert_eq!((reply.granted, reply.scarce), (1, true), "only what a request waits for");
        record.ask(&limit, after(30), &Ask { spent: 1, ..ask(1, 3, 0) }).unwrap();
        let again = Ask { number: AskNumber(2), ..large };
        assert_eq!(record.ask(&limit, after(40), &again).unwrap().granted, 15);
        let reply = record.ask(&limit, after(40), &ask(1, 4, 2)).unwrap();
        assert!(!reply.scarce, "it has got them");
    }

    /// After a loss of memory, a strict store lends nothing before all that it may have lent and
    /// charged is over.
    #[test]
    fn a_strict_store_begins_with_all_that_may_be_owed() {
        let limit = limit(10_000, 20);
        let granted = |after_ms| {
            let now = after(after_ms);
            let mut record = Record::after_loss(&limit, START, now);
            record.ask(&limit, now, &ask(1, 1, 20)).unwrap().granted
        };
        assert_eq!([0, 2_009, 2_010, 2_200, 1 << 40].map(granted), [0, 0, 1, 10, 10]);

        // No client is punished for what others may have done.
        let punishing = limit.with_most_owed(1_000).unwrap();
        assert_eq!(
            Record::after_loss(&punishing, START, START).owed(),
            Record::after_loss(&limit, START, START).owed()
        );
    }

    /// The record as a script in the store would compute it: in doubles, with a time that counts
    /// microseconds since 1970.
    #[derive(Clone, Debug, Default)]
    struct Script {
        at: f64,
        owed: f64,
        /// Host, cells, expiry, number.
        leases: Vec<[f64; 4]>,
        denied: Option<[f64; 2]>,
    }

    impl Script {
        fn settle(&mut self, limit: &SharedLimit, now: f64) {
            let scale = scale(limit);
            if now < self.at {
                if self.owed > 0.0 {
                    let later = (self.owed + (self.at - now) * scale).min(full(limit));
                    self.owed = self.owed.max(later);
                }
                self.at = now;
                let latest = now + limit.longest_validity().0 as f64;
                self.leases.iter_mut().for_each(|lease| lease[2] = lease[2].min(latest));
                self.denied = None;
            }
            let drain = |script: &mut Self, then: f64| {
                if then > script.at {
                    script.owed = (script.owed - (then - script.at) * scale).max(0.0);
                    script.at = then;
                }
            };
            let mut expired: Vec<_> =
                self.leases.iter().copied().filter(|lease| lease[2] <= now).collect();
            self.leases.retain(|lease| lease[2] > now);
            expired.sort_by(|one, other| one[2].total_cmp(&other[2]));
            for lease in expired {
                drain(self, lease[2]);
                self.charge(limit, lease[1]);
            }
            drain(self, now);
            self.denied = self.denied.filter(|denied| denied[1] > now);
        }

        fn charge(&mut self, limit: &SharedLimit, cells: f64) {
            if cells > 0.0 {
                self.owed = (self.owed + cells * cell(limit)).min(most_owed(limit));
            }
        }

        /// Kept, granted, free, and when to come back, in µs.
        fn ask(&mut self, limit: &SharedLimit, now: f64, ask: &Ask) -> Option<[f64; 4]> {
            self.settle(limit, now);
            let (host, number) = (ask.host.0 as f64, ask.number.0 as f64);
            let place = self.leases.iter().position(|lease| lease[0] == host);
            let before = place.map(|place| self.leases[place]);
            if before.is_some_and(|lease| number <= lease[3]) {
                return None;
            }
            let lent = before.map_or(0.0, |lease| lease[1]);
            let [holds, spent, debt, want, least] =
                [ask.holds, ask.spent, ask.debt, ask.want, ask.least].map(f64::from);
            let (kept, spent) = if ask.fresh {
                (0.0, lent)
            } else {
                let kept = holds.min(lent);
                (kept, spent.min(lent - kept))
            };
            self.charge(limit, spent);
            self.charge(limit, debt);
            let full = f64::from(limit.burst()) * cell(limit);
            self.owed = self.owed.max(full - ask.owed_ago.0 as f64 * scale(limit));
            let all: f64 = self.leases.iter().map(|lease| lease[1]).sum();
            let burst = f64::from(limit.burst());
            let taken = self.owed + (all - lent + kept) * cell(limit);
            let free = ((burst * cell(limit) - taken).max(0.0) / cell(limit)).floor();
            let other = self.denied.is_some_and(|denied| denied[0] != host);
            let ahead = if other { 0.0 } else { (free / 2.0).ceil() };
            let granted = if free >= least { want.min(ahead.max(least)) } else { 0.0 };
            let validity = (ask.validity.0 as f64).min(limit.longest_validity().0 as f64);
            let old = before.filter(|_| kept > 0.0).map_or(0.0, |lease| lease[2]);
            let lease = [host, kept + granted, (now + validity).max(old), number];
            match place {
                Some(place) => self.leases[place] = lease,
                None => self.leases.push(lease),
            }
            let mut wait = 0.0;
            let is_slow = cell(limit) > 49_999.0 * scale(limit);
            let has_more = free - granted >= least.max(1.0) && (self.leases.len() == 1 || is_slow);
            if granted < want && !has_more {
                let hosts = self.leases.len() as f64;
                let lack = (least * cell(limit) + taken - burst * cell(limit)).max(0.0);
                let fair = ((burst / 4.0).floor() / hosts).floor().max(1.0);
                let half = if is_slow { 0.0 } else { (fair * hosts * cell(limit) / 2.0).floor() };
                wait = (lack.max(half) / scale(limit)).ceil();
                for lease in self.leases.iter().filter(|lease| lease[0] != host && lease[1] > 0.0)
                {
                    wait = wait.min(lease[2] - now);
                }
                wait = wait.min(60e6);
            }
            if granted < least {
                if least > 1.0 && !other {
                    self.denied = Some([host, now + wait + validity]);
                }
            } else if !other {
                self.denied = None;
            }
            Some([kept, granted, free - granted, wait])
        }
    }

    /// Units in a microsecond.
    fn scale(limit: &SharedLimit) -> f64 {
        f64::from(1 << limit.fraction_bits())
    }

    fn cell(limit: &SharedLimit) -> f64 {
        limit.cells(1).0 as f64
    }

    fn most_owed(limit: &SharedLimit) -> f64 {
        limit.most_owed().0 as f64
    }

    fn full(limit: &SharedLimit) -> f64 {
        f64::from(limit.burst()) * cell(limit) + limit.longest_validity().0 as f64 * scale(limit)
    }

    prop_compose! {
        fn any_ask()(
            host in 1..5_u64,
            number in -1..3_i64,
            fresh in prop::bool::weighted(0.1),
            [spent, holds, want] in [0..40_u32, 0..40, 0..40],
            debt in prop_oneof![9 => Just(0_u32), 1 => 0..60_u32],
            owed_ago in prop_oneof![9 => Just(Ask::NOTHING_OWED.0), 1 => 0..3_000_000_u64],
            least in prop_oneof![Just(0_u32), Just(1), 0..25_u32],
            validity in prop::sample::select(vec![22_000_u64, 500_000, 2_000_000, 9_000_000]),
            passes in prop_oneof![
                20 => 0..20_000_i64,
                10 => 0..3_000_000_i64,
                1 => -3_000_000..0_i64,
                1 => 0..40_000_000_000_i64,
            ],
        ) -> (Ask, i64, i64) {
            let ask = Ask {
                host: HostId(host),
                number: AskNumber(0),
                fresh, spent, debt, owed_ago: Micros(owed_ago), holds,
                want: want.max(least),
                least,
                validity: Micros(validity),
            };
            (ask, number, passes)
        }
    }

    proptest! {
        /// Whole numbers and doubles say the same, whatever is asked.
        #[test]
        fn a_script_with_doubles_says_the_same(
            (interval, burst) in prop_oneof![
                Just((100_u64, 10_000_000_u32)),           // 10M/s
                Just((333_333, 200)),
                Just((1_000_001, 20)),
                Just((10_000_000, 7)),
                Just((365 * 86_400 * 1_000_000_000, 4)),
            ],
            beyond in prop_oneof![Just(0_u32), Just(3), Just(100)],
            asks in prop::collection::vec(any_ask(), 1..60),
        ) {
            let limit = SharedLimit::new(Duration::from_nanos(interval), burst).unwrap();
            // One cell a year for 100 years is too long.
            let limit = limit.with_most_owed(burst + beyond).unwrap_or(limit);
            let mut record = Record::new(START);
            let mut script = Script { at: START.0 as f64, ..Script::default() };
            let (mut now, mut numbers) = (START.0, [0_u64; 5]);
            for (ask, number, passes) in asks {
                now = now.saturating_add_signed(passes);
                let last = &mut numbers[usize::try_from(ask.host.0).unwrap()];
                *last = last.saturating_add_signed(number);
                let ask = Ask { number: AskNumber(*last), ..ask };
                let reply = record.ask(&limit, StoreTime(now), &ask);
                let said = script.ask(&limit, now as f64, &ask);
                let says = reply.map(|reply| {
                    let wait = reply.come_back_after.0 as f64;
                    let [kept, granted, free] =
                        [reply.kept, reply.granted, reply.free].map(f64::from);
                    [kept, granted, free, wait]
                });
                prop_assert_eq!(says, said);
                prop_assert_eq!(record.owed.0 as f64, script.owed);
                let leases = record.leases.iter().map(|lease| {
                    [lease.host.0 as f64, f64::from(lease.cells), lease.expiry.0 as f64,
                        lease.number.0 as f64]
                });
                prop_assert_eq!(leases.collect::<Vec<_>>(), script.leases.clone());
            }
        }
    }
}

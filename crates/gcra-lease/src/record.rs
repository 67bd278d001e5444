//! [`Record`]: the store's end. What is owed for one key, and which cells are lent to which host.
//!
//! Nothing is charged when cells are lent. A lent cell counts in full, without draining, until its
//! host reports it as spent (it is charged then), gives it back, or the lease expires (it is
//! charged then, as if spent at the last moment). So a cell is never charged before it was spent,
//! and until it is charged it is not free: what is owed and what is lent are together never less
//! than what one exact bucket would owe that saw each request when it came.

use crate::limit::{Limit, Units};
use crate::message::{Ask, AskNumber, HostId, Reply};
use crate::rule::{Rule, without};
use crate::time::{Micros, StoreTime};

/// A host comes back after this time at the latest.
const LONGEST_WAIT: Micros = Micros::from_millis(60_000);

/// What the store knows about one key under one limit.
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
    #[must_use]
    pub const fn new(now: StoreTime) -> Self {
        Self { at: now, owed: Units::ZERO, leases: Vec::new(), denied: None }
    }

    /// The record of a key that the store does not know, if the store's memory began at `epoch`
    /// and what was before may have been lost (`strict`).
    ///
    /// Before the epoch, what was owed and what was lent were together at most a full burst; and
    /// what was lent is spent by the end of the longest validity. So the key owes at most a full
    /// burst at that time. Once that has drained, a new record is like any other.
    #[must_use]
    pub fn after_loss(limit: &Limit, epoch: StoreTime, now: StoreTime) -> Self {
        let mut record = Self::new(now);
        if !without(Rule::Epoch) {
            record.at = epoch;
            record.owed = limit.most_owed();
            record.settle(limit, now);
        }
        record
    }

    /// The record of a key whose limit was changed, from the record that it has under the limit
    /// `before`. What was owed and what is lent counts in cells, at most the new burst.
    #[must_use]
    pub fn carried_over(mut self, before: &Limit, limit: &Limit, now: StoreTime) -> Self {
        self.settle(before, now);
        let all = self.owed.saturating_add(before.cells(self.lent_to_all()));
        let cells = all.0.div_ceil(before.cells(1).0).min(u64::from(limit.burst()));
        let cells = u32::try_from(cells).unwrap_or(limit.burst());
        Self { owed: limit.cells(cells), ..Self::new(now) }
    }

    /// Takes an ask at the moment `now`. `None`: the ask is a copy of an earlier one or was
    /// overtaken by a later one, and is ignored.
    pub fn ask(&mut self, limit: &Limit, now: StoreTime, ask: &Ask) -> Option<Reply> {
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

        let others = self.lent_to_all() - lent;
        let lent = if without(Rule::LentIsNotFree) { 0 } else { others.saturating_add(kept) };
        let taken = self.owed.saturating_add(limit.cells(lent));
        let free = limit.cells(limit.burst()).saturating_sub(taken);
        let free_cells = limit.whole_cells(free);
        let denied_to_another = self.denied.is_some_and(|denied| denied.host != ask.host);
        let ahead = if denied_to_another { 0 } else { free_cells / 2 };
        let granted =
            if free_cells >= ask.least { ask.want.min(ahead.max(ask.least)) } else { 0 };

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

        let come_back_after = if granted < ask.want {
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
        Some(Reply {
            number: ask.number,
            kept,
            granted,
            come_back_after,
            scarce: denied_to_another,
            hosts: u32::try_from(self.leases.len()).unwrap_or(u32::MAX),
            now,
        })
    }

    /// The leases that have not expired, those of no cells included.
    #[must_use]
    pub fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// What is owed at the moment of the last ask, without the cells that are lent.
    #[must_use]
    pub const fn owed(&self) -> Units {
        self.owed
    }

    /// Advances the record to `now`: charges leases that have expired, and lets debt drain.
    pub(crate) fn settle(&mut self, limit: &Limit, now: StoreTime) {
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
        self.drain_until(limit, now);
        self.denied = self.denied.filter(|denied| denied.until > now);
    }

    /// The clock went back. Debts drain at the moment at which they would have, or when a full
    /// burst would have; leases expire after the longest validity at the latest.
    fn follow_back(&mut self, limit: &Limit, now: StoreTime) {
        let back = limit.drained_in(self.at.saturating_since(now));
        self.at = now;
        if without(Rule::ClampWhenClockGoesBack) {
            if self.owed > Units::ZERO {
                self.owed = self.owed.saturating_add(back);
            }
            return;
        }
        if self.owed > Units::ZERO {
            self.owed = self.owed.saturating_add(back).min(limit.most_owed());
        }
        let latest = now.saturating_add(limit.longest_validity());
        for lease in &mut self.leases {
            lease.expiry = lease.expiry.min(latest);
        }
        self.denied = None;
    }

    fn soonest(&self) -> Option<usize> {
        (0..self.leases.len()).min_by_key(|&place| self.leases[place].expiry)
    }

    fn drain_until(&mut self, limit: &Limit, then: StoreTime) {
        let drained = limit.drained_in(then.saturating_since(self.at));
        self.owed = self.owed.saturating_sub(drained);
        self.at = self.at.max(then);
    }

    fn charge(&mut self, limit: &Limit, cells: u32) {
        let owed = self.owed.saturating_add(limit.cells(cells));
        // A record that is followed back without a clamp may owe more already.
        self.owed = if cells == 0 { self.owed } else { owed.min(limit.most_owed()) };
    }

    fn lent_to_all(&self) -> u32 {
        self.leases.iter().map(|lease| lease.cells).sum()
    }

    /// When a host that did not get what it wanted comes back: when `lack` has drained. If many
    /// hosts come for what drains, each waits until there is something worth coming for: half of
    /// what a fair share for each of them takes to drain, where all fair shares are a quarter of
    /// the burst. But when a lease of another host expires there may be more.
    fn come_back_after(
        &self,
        limit: &Limit,
        now: StoreTime,
        host: HostId,
        lack: Units,
    ) -> Micros {
        let hosts = u32::try_from(self.leases.len()).unwrap_or(u32::MAX);
        let fair = (limit.burst() / 4 / hosts.max(1)).max(1);
        let shares = limit.cells(fair.saturating_mul(hosts));
        let wait = limit.time_to_drain(lack.max(Units(shares.0 / 2)));
        let others = self.leases.iter().filter(|lease| lease.host != host && lease.cells > 0);
        others
            .map(|lease| lease.expiry.saturating_since(now))
            .min()
            .map_or(wait, |soonest| wait.min(soonest))
            .min(LONGEST_WAIT)
    }
}

//! [`Charge`]: what is charged in the store at once, without being lent.
//!
//! Cells that are lent are cheap, because a host spends them without asking. But they are of no
//! use where it matters what *all* hosts owe at this moment: how long a request has to wait until
//! its cells are free, whether a response has left a cell for the next request, or how many of a
//! count are used in the window of a calendar, in which nothing comes back. Then each request and
//! each response asks by itself.
//!
//! A record can be lent from and charged in turn. What is lent counts in full for both.
//!
//! **At most once.** A host sends a charge once, and never again, because it cannot know whether
//! the store has taken it. If the reply is lost, the cells of a request are charged and unused,
//! and those of a response are perhaps not charged, or not given back.

use crate::limit::{Limit, Units};
use crate::record::Record;
use crate::time::{Micros, StoreTime};

/// What is to be charged.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Charge {
    /// The cells of a request: all of them if they are free, or none.
    Take {
        /// How many, at most the burst.
        cells: u32,
        /// The cells that must be free, if they are more than `cells`. A request that is charged
        /// later, by its response, has no cells and needs one. One that needs none is allowed.
        needs: u32,
        /// How long the request can wait until its cells are free. That is its place in a queue.
        max_delay: Micros,
    },
    /// Cells that a request has cost beyond those that were taken for it: as many as the ceiling
    /// of the limit allows, whatever is free.
    More {
        /// How many.
        cells: u32,
    },
    /// Cells that were taken for a request and that it has not cost. As many are given back as are
    /// owed.
    Less {
        /// How many.
        cells: u32,
    },
}

/// What came of a [`Charge`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Charged {
    /// Whether a request is allowed. It is true for other charges.
    pub allowed: bool,
    /// The cells that were charged or given back: whole cells, rounded down.
    pub cells: u32,
    /// Of the cells that were charged: how many lie beyond the burst, the whole or a part of them.
    pub beyond_burst: u32,
    /// What is owed and lent after that. For a [count](Limit::count) a unit is a cell.
    pub taken: Units,
    /// The store's clock.
    pub now: StoreTime,
}

impl Charged {
    /// How long a request that is allowed has to wait from now on, until its cells are free.
    #[must_use]
    pub fn delay(&self, limit: &Limit) -> Micros {
        if !self.allowed || self.cells == 0 {
            return Micros::ZERO;
        }
        limit.time_to_drain(self.taken.saturating_sub(limit.cells(limit.burst())))
    }

    /// How long it takes until a request that was denied would be allowed, if nothing else is
    /// charged. Zero for a [count](Limit::count), of which nothing comes back.
    #[must_use]
    pub fn wait(&self, limit: &Limit, charge: &Charge) -> Micros {
        let Charge::Take { cells, needs, max_delay } = *charge else { return Micros::ZERO };
        if self.allowed {
            return Micros::ZERO;
        }
        let asked = self.taken.saturating_add(limit.cells(cells.max(needs)));
        limit.time_to_drain(asked.saturating_sub(most_taken(limit, max_delay)))
    }
}

/// The most that may be owed and lent with the cells of a request.
fn most_taken(limit: &Limit, max_delay: Micros) -> Units {
    limit.cells(limit.burst()).saturating_add(limit.drained_in(max_delay))
}

impl Record {
    /// Takes a charge at the moment `now`.
    pub fn charge_at_once(&mut self, limit: &Limit, now: StoreTime, charge: &Charge) -> Charged {
        self.settle(limit, now);
        let lent = limit.cells(self.lent());
        let before = self.owed;
        let (mut allowed, mut charged, mut beyond_burst) = (true, 0, 0);
        match *charge {
            Charge::Take { cells, needs, max_delay } => {
                let needs = cells.max(needs);
                let asked = before.saturating_add(lent).saturating_add(limit.cells(needs));
                allowed = needs == 0 || asked <= most_taken(limit, max_delay);
                if allowed {
                    charged = cells;
                    self.owed = before.saturating_add(limit.cells(cells));
                }
            }
            Charge::More { cells } => {
                let ceiling = limit.cells(limit.ceiling());
                charged = cells.min(limit.whole_cells(ceiling.saturating_sub(before)));
                self.owed = before.saturating_add(limit.cells(charged));
                let beyond = self.owed.saturating_sub(limit.cells(limit.burst()));
                beyond_burst = limit.cells_up(beyond).min(charged);
            }
            Charge::Less { cells } => {
                self.owed = before.saturating_sub(limit.cells(cells));
                charged = limit.whole_cells(before.saturating_sub(self.owed));
            }
        }
        let taken = self.owed.saturating_add(lent);
        Charged { allowed, cells: charged, beyond_burst, taken, now }
    }
}

//! [`Charge`]: what is charged in the store at once, without being lent.
//!
//! Cells that are lent are cheap, because a host spends them without asking. But they are of no
//! use where a decision depends on the debt of *all* hosts at this moment. A request that waits
//! must know when its cells are free. A response may have left no cell for the next request. A
//! count in the window of a calendar must know how many cells are used, because no cell comes back
//! there. Then each request and each response asks by itself.
//!
//! A record can be lent from and charged in turn. Lent cells count in full for both. But a request
//! waits only while nothing is lent. The debt drains while it waits, and lent cells do not. So
//! when its turn comes, the host that holds the cells could spend them as well.
//!
//! **At most once.** A host sends a charge once, and never again, because it cannot know whether
//! the store has taken it. If the reply is lost, the cells of a request are charged and unused,
//! and those of a response are perhaps not charged, or not given back.

// ADR 44: What cannot be lent is charged in the store.

use crate::limit::{SharedLimit, Units};
use crate::record::Record;
use crate::rule::{Rule, without};
use crate::time::{Micros, StoreTime};

/// Cells to charge at once, or to give back.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Charge {
    /// The cells of a request: all of them if they are free, or none.
    Take {
        /// How many. More than the burst are never allowed.
        cells: u32,
        /// The cells that must be free, if they are more than `cells`. A request that is charged
        /// later, by its response, has no cells and needs one. One that needs none is allowed.
        needs: u32,
        /// How long the request can wait until its cells are free, at most
        /// [`SharedLimit::longest_delay`]. That is its place in a queue. While cells are lent, it
        /// cannot wait.
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
    ///
    /// It is not for a limit under which requests wait. Those that wait behind keep their turn, so
    /// as many cells as are given back could go on beside them.
    Less {
        /// How many.
        cells: u32,
        /// For a request that is denied after all: when they were taken. The part of the cells
        /// that has drained from then until the key was last used is not given back. Without these
        /// cells the key might have had no debt that could drain. So requests that were allowed
        /// meanwhile are owed as if the denied one had never come.
        ///
        /// `None` for one that was allowed and has cost less.
        taken_at: Option<StoreTime>,
    },
}

/// The outcome of a [`Charge`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Charged {
    /// Whether a request is allowed. It is true for other charges.
    pub allowed: bool,
    /// The cells that were charged or given back: whole cells, rounded down.
    pub cells: u32,
    /// Of the cells that were charged: how many lie beyond the burst, the whole or a part of them.
    pub beyond_burst: u32,
    /// The units owed and lent after that. For a [count](SharedLimit::count) a unit is a cell.
    pub taken: Units,
    /// The store's clock.
    pub now: StoreTime,
}

impl Charged {
    /// How long a request that is allowed has to wait from now on, until its cells are free.
    pub fn delay(&self, limit: &SharedLimit) -> Micros {
        if !self.allowed || self.cells == 0 {
            return Micros::ZERO;
        }
        limit.time_to_drain(self.taken.saturating_sub(limit.cells(limit.burst())))
    }

    /// The moment from which on the limit has the cells of a request that is allowed, in ns by the
    /// store's clock. It is the [`delay`](Self::delay) after [`now`](Self::now), or a moment
    /// before `now` if the request need not wait. It is not rounded to microseconds. These moments
    /// keep to the limit, and so do later ones up to `now`. 0 for a request without cells, and for
    /// a [count](SharedLimit::count).
    pub fn has_cells_ns(&self, limit: &SharedLimit) -> u64 {
        if self.cells == 0 || limit.window().is_some() {
            return 0;
        }
        let now = self.now.0.saturating_mul(1_000);
        let burst = limit.cells(limit.burst());
        let early = burst.saturating_sub(self.taken);
        let late = self.taken.saturating_sub(burst);
        now.saturating_add(limit.ns_up(late)).saturating_sub(limit.ns_down(early))
    }

    /// How long it takes until a request that was denied would be allowed, if nothing else is
    /// charged or lent. If only cells that are lent keep it from waiting in the queue, it is the
    /// time that one cell takes to drain, because it is not known when they are spent. Zero for a
    /// [count](SharedLimit::count), of which nothing comes back.
    pub fn wait(&self, limit: &SharedLimit, charge: &Charge) -> Micros {
        let Charge::Take { cells, needs, .. } = *charge else { return Micros::ZERO };
        if self.allowed {
            return Micros::ZERO;
        }
        let asked = self.taken.saturating_add(limit.cells(cells.max(needs)));
        let most = limit.cells(limit.burst()).saturating_add(charge.drains_meanwhile(limit));
        let lack = asked.saturating_sub(most);
        limit.time_to_drain(if lack == Units::ZERO { limit.cells(1) } else { lack })
    }
}

impl Charge {
    /// The debt that drains while the request waits, in units: at most 2^52, so that all sums with
    /// it stay below 2^53. Zero for a charge that does not wait.
    pub fn drains_meanwhile(&self, limit: &SharedLimit) -> Units {
        match *self {
            Self::Take { max_delay, .. } => limit.drained_in(max_delay.min(limit.longest_delay())),
            Self::More { .. } | Self::Less { .. } => Units::ZERO,
        }
    }

    /// The most that a key may have owed when a strict store lost its memory. For a
    /// [count](SharedLimit::count) whose window had begun by then, all of it.
    pub fn supposes(&self, limit: &SharedLimit) -> Units {
        let queue = limit.cells(limit.burst()).saturating_add(self.drains_meanwhile(limit));
        limit.most_owed_by_lending().max(queue)
    }
}

impl Record {
    /// The record of a key that the store does not know and that is charged at once. The store's
    /// memory began at `epoch`, and earlier records may have been lost (`strict`). The record is
    /// as [`after_loss`](Self::after_loss), but requests may have been told to wait until then.
    /// The last one waits for `max_delay` at most, so the debt beyond the burst is at most that.
    ///
    /// Requests that waited under another `max_delay`, because that was changed meanwhile, are not
    /// known.
    #[must_use]
    pub fn charged_after_loss(
        limit: &SharedLimit,
        epoch: StoreTime,
        now: StoreTime,
        charge: &Charge,
    ) -> Self {
        Self::after_loss_of(limit, epoch, now, charge.supposes(limit))
    }

    /// Takes a charge at the moment `now`.
    pub fn charge_at_once(
        &mut self,
        limit: &SharedLimit,
        now: StoreTime,
        charge: &Charge,
    ) -> Charged {
        let last_used = self.advance(limit, now);
        self.charge_beside(limit, charge, last_used, Units::ZERO)
    }

    /// The same for a record that was [advanced](Self::advance), with so much that is lent besides.
    pub(crate) fn charge_beside(
        &mut self,
        limit: &SharedLimit,
        charge: &Charge,
        last_used: StoreTime,
        beside: Units,
    ) -> Charged {
        let lent = limit.cells(self.lent()).saturating_add(beside);
        let before = self.owed;
        let (mut allowed, mut charged, mut beyond_burst) = (true, 0, 0);
        match *charge {
            Charge::Take { cells, needs, .. } => {
                let needs = cells.max(needs);
                let asked = before.saturating_add(lent).saturating_add(limit.cells(needs));
                let burst = limit.cells(limit.burst());
                // Lent cells do not drain while the request waits.
                let waits = lent == Units::ZERO || without(Rule::LentIsNotWaitedFor);
                let drains = if waits { charge.drains_meanwhile(limit) } else { Units::ZERO };
                let fits = needs <= limit.burst() && asked <= burst.saturating_add(drains);
                allowed = needs == 0 || fits;
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
            // How much there was that a full window could not hold is not known.
            Charge::Less { .. } if limit.window().is_some() && before >= limit.cells(u32::MAX) => {
            }
            Charge::Less { cells, taken_at } => {
                let cells = limit.cells(cells);
                let drained = drained(limit, taken_at, last_used);
                self.owed = before.saturating_sub(cells.saturating_sub(drained));
                charged = limit.whole_cells(before.saturating_sub(self.owed));
            }
        }
        let taken = self.owed.saturating_add(lent);
        Charged { allowed, cells: charged, beyond_burst, taken, now: self.at }
    }
}

/// The part of cells that were taken at a moment that is not given back. All, if the clock went
/// back behind it.
fn drained(limit: &SharedLimit, taken_at: Option<StoreTime>, last_used: StoreTime) -> Units {
    match taken_at {
        None => Units::ZERO,
        Some(_) if without(Rule::DrainedIsGone) => Units::ZERO,
        Some(at) if last_used < at => limit.drained_in(Micros(u64::MAX)),
        Some(at) => limit.drained_in(last_used.saturating_since(at)),
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::holding::{Holding, Wish};
    use crate::limit::Window;
    use crate::message::{Ask, AskNumber, HostId};
    use crate::police::Police;
    use crate::rule::take_away;
    use crate::time::HostTime;

    const START: StoreTime = StoreTime(1_800_000_000_000_000);
    const HOUR: Window = Window { begin: 1_800_000_000, end: 1_800_003_600 };

    fn limit(interval_us: u64, burst: u32) -> SharedLimit {
        SharedLimit::new(Duration::from_micros(interval_us), burst).unwrap()
    }

    fn count(most: u32) -> SharedLimit {
        SharedLimit::count(most, HOUR).unwrap()
    }

    fn after(milliseconds: u64) -> StoreTime {
        START.saturating_add(Micros::from_millis(milliseconds))
    }

    fn take(cells: u32, max_delay_ms: u64) -> Charge {
        Charge::Take { cells, needs: 0, max_delay: Micros::from_millis(max_delay_ms) }
    }

    fn look(needs: u32) -> Charge {
        Charge::Take { cells: 0, needs, max_delay: Micros::ZERO }
    }

    fn less(cells: u32) -> Charge {
        Charge::Less { cells, taken_at: None }
    }

    fn lend(record: &mut Record, limit: &SharedLimit, now: StoreTime, cells: u32) {
        let validity = Micros::from_millis(500);
        let ask = Ask {
            host: HostId(1),
            number: AskNumber(1),
            fresh: true,
            spent: 0,
            debt: 0,
            owed_ago: Ask::NOTHING_OWED,
            holds: 0,
            want: cells,
            least: cells,
            validity,
        };
        assert_eq!(record.ask(limit, now, &ask).unwrap().granted, cells);
    }

    #[test]
    fn requests_wait_for_their_turn_up_to_the_longest_delay() {
        let limit = limit(10_000, 5);
        let mut record = Record::new(START);
        let mut delays = Vec::new();
        for _ in 0..9 {
            let charged = record.charge_at_once(&limit, START, &take(1, 30));
            assert_eq!((charged.cells, charged.beyond_burst), (charged.allowed.into(), 0));
            delays.push(charged.allowed.then(|| charged.delay(&limit).0 / 1_000));
        }
        let in_turn = [0, 0, 0, 0, 0, 10, 20, 30].map(Some);
        assert_eq!(delays, [&in_turn[..], &[None]].concat());
        let denied = record.charge_at_once(&limit, after(5), &take(1, 30));
        assert_eq!((denied.allowed, denied.delay(&limit)), (false, Micros::ZERO));
        let wait = denied.wait(&limit, &take(1, 30));
        assert_eq!(wait, Micros::from_millis(5));
        let two = record.charge_at_once(&limit, after(5), &take(2, 30));
        assert_eq!(two.wait(&limit, &take(2, 30)), Micros::from_millis(15));
        assert!(record.charge_at_once(&limit, after(20), &take(2, 30)).allowed);
    }

    #[test]
    fn more_than_the_burst_never_fits() {
        let limit = limit(10_000, 5);
        let take = |cells| Record::new(START).charge_at_once(&limit, START, &take(cells, 9_000));
        assert_eq!([4, 5, 6, u32::MAX].map(|it| take(it).allowed), [true, true, false, false]);
        let look = |needs| Record::new(START).charge_at_once(&limit, START, &look(needs)).allowed;
        assert_eq!([0, 5, 6].map(look), [true, true, false]);
    }

    #[test]
    fn a_look_charges_nothing_and_needs_what_it_needs() {
        let limit = limit(10_000, 5);
        let mut record = Record::new(START);
        assert!(record.charge_at_once(&limit, START, &take(4, 0)).allowed);
        let one = record.charge_at_once(&limit, START, &look(1));
        assert_eq!((one.allowed, one.cells, one.delay(&limit)), (true, 0, Micros::ZERO));
        let two = record.charge_at_once(&limit, START, &look(2));
        assert_eq!((two.allowed, two.wait(&limit, &look(2)).0), (false, 10_000));
        assert_eq!(record.owed(), limit.cells(4));
    }

    #[test]
    fn responses_charge_up_to_the_ceiling_and_give_back_what_is_owed() {
        let limit = limit(10_000, 5).with_most_owed(8).unwrap();
        let mut record = Record::new(START);
        let mut charge = |charge: Charge| {
            let charged = record.charge_at_once(&limit, START, &charge);
            (
                charged.allowed,
                charged.cells,
                charged.beyond_burst,
                limit.whole_cells(charged.taken),
            )
        };
        assert_eq!(charge(take(3, 0)), (true, 3, 0, 3));
        assert_eq!(charge(Charge::More { cells: 3 }), (true, 3, 1, 6));
        assert_eq!(charge(take(0, 0)), (true, 0, 0, 6), "what needs nothing is allowed");
        assert_eq!(charge(Charge::More { cells: u32::MAX }), (true, 2, 2, 8));
        assert_eq!(charge(Charge::More { cells: 1 }), (true, 0, 0, 8));
        assert_eq!(charge(less(6)), (true, 6, 0, 2));
        assert_eq!(charge(less(u32::MAX)), (true, 2, 0, 0));
        assert_eq!(charge(less(1)), (true, 0, 0, 0));
    }

    /// The queue moves on by itself; what is lent does not.
    #[test]
    fn nothing_waits_while_cells_are_lent() {
        let limit = limit(10_000, 10);
        // One host holds all cells. When the turn of the request came, it could spend them.
        let fits = || {
            let mut record = Record::new(START);
            lend(&mut record, &limit, START, 10);
            let charged = record.charge_at_once(&limit, START, &take(1, 100));
            let mut police = Police::default();
            let then = START.0 + charged.delay(&limit).0;
            let request = police.allow(&limit, then, charged.cells);
            (charged.allowed, request.max(police.allow(&limit, then, 10)))
        };
        assert_eq!(fits(), (false, 0));
        let _back = take_away(Some(Rule::LentIsNotWaitedFor));
        assert_eq!(fits(), (true, 1));
    }

    /// Why [`Charge::Less`] is not for a queue: the place that it makes is not the one that was
    /// given up.
    #[test]
    fn what_is_given_back_beside_a_queue_is_allowed_besides() {
        let limit = limit(10_000, 1);
        let mut record = Record::new(START);
        let mut goes_on = |charge| {
            let charged = record.charge_at_once(&limit, START, &charge);
            (charged.allowed, charged.delay(&limit).0 / 1_000)
        };
        assert_eq!([0; 3].map(|_| goes_on(take(1, 50))), [0, 10, 20].map(|ms| (true, ms)));
        goes_on(less(1));
        assert_eq!(goes_on(take(1, 50)), (true, 20), "beside the last one");
    }

    /// Another limit denies the first request after its cells have drained. Whoever came meanwhile
    /// was allowed for that, and his cells are owed.
    #[test]
    fn what_has_drained_is_not_given_back() {
        let limit = limit(10_000, 20);
        let run = || {
            let mut record = Record::new(START);
            let first = record.charge_at_once(&limit, START, &take(20, 0));
            assert!(record.charge_at_once(&limit, after(380), &take(20, 0)).allowed);
            let back = Charge::Less { cells: first.cells, taken_at: Some(first.now) };
            record.charge_at_once(&limit, after(400), &back);
            record.charge_at_once(&limit, after(420), &take(20, 0)).allowed
        };
        assert!(!run());
        let _back = take_away(Some(Rule::DrainedIsGone));
        assert!(run(), "40 cells in 40 ms");
    }

    #[test]
    fn what_nobody_else_has_used_comes_back() {
        let limit = limit(10_000, 20);
        let back = |owed, at, again: Option<u64>| {
            let mut record = Record::new(START);
            assert!(record.charge_at_once(&limit, START, &take(owed, 0)).allowed);
            let taken = record.charge_at_once(&limit, START, &take(5, 0));
            let less = Charge::Less { cells: taken.cells, taken_at: Some(taken.now) };
            again.into_iter().for_each(|ms| record.settle(&limit, after(ms)));
            record.charge_at_once(&limit, after(at), &less).cells
        };
        assert_eq!(back(10, 0, None), 5);
        assert_eq!(back(10, 90, None), 5);
        assert_eq!(back(10, 120, None), 3, "no more is owed");
        assert_eq!(back(10, 90, Some(20)), 3, "it was used when two had drained");
        assert_eq!(back(10, 90, Some(60)), 0);
    }

    /// It is not known what has drained.
    #[test]
    fn nothing_comes_back_if_the_clock_went_back() {
        let limit = limit(10_000, 20);
        let mut record = Record::new(after(50));
        let taken = record.charge_at_once(&limit, after(50), &take(5, 0));
        let less = Charge::Less { cells: taken.cells, taken_at: Some(taken.now) };
        assert_eq!(record.charge_at_once(&limit, after(40), &less).cells, 0);
        let mut record = Record::new(after(50));
        record.charge_at_once(&count(9), after(50), &take(5, 0));
        assert_eq!(record.charge_at_once(&count(9), after(40), &less).cells, 5, "nothing drains");
    }

    /// A report must not shorten the queue.
    #[test]
    fn what_requests_wait_for_is_not_cut() {
        let limit = limit(1_000_000, 2);
        let mut record = Record::new(START);
        lend(&mut record, &limit, START, 0);
        for _ in 0..22 {
            assert!(record.charge_at_once(&limit, START, &take(1, 20_000)).allowed);
        }
        let queue = record.owed();
        assert!(queue > limit.most_owed());
        let debt = Ask {
            host: HostId(1),
            number: AskNumber(2),
            fresh: false,
            spent: 1,
            debt: 1,
            owed_ago: Micros::ZERO,
            holds: 0,
            want: 1,
            least: 1,
            validity: Micros::ZERO,
        };
        assert_eq!(record.ask(&limit, START, &debt).unwrap().granted, 0);
        assert_eq!(record.owed(), queue);
        assert_eq!(record.kept_for(&limit), Micros::from_millis(32_000));
        record.settle(&limit, after(22_000));
        assert_eq!(record.kept_for(&limit), limit.keeps_record());
    }

    /// 24 days at 10 million a second are more units than a double holds, unless the limit is made
    /// for that.
    #[test]
    fn a_long_delay_is_cut_to_what_can_be_counted() {
        let days = Micros::from_millis(24 * 86_400_000);
        let charge = Charge::Take { cells: 1, needs: 0, max_delay: days };
        let fast = SharedLimit::new(Duration::from_nanos(100), 10).unwrap();
        assert_eq!(fast.longest_delay().0 / 60_000_000, 71);
        assert_eq!(charge.drains_meanwhile(&fast), Units(1 << 52));
        let slow = limit(1_000_000, 10).with_most_owed(10 + 24 * 86_400).unwrap();
        assert!(slow.longest_delay() > days);
        assert_eq!(charge.drains_meanwhile(&slow), slow.drained_in(days));
        assert!(charge.supposes(&slow).0 < 1 << 50);
    }

    /// How much there was that it could not hold is not known.
    #[test]
    fn nothing_comes_back_from_a_full_window() {
        let limit = count(5);
        let mut record = Record::new(START);
        let mut charge = |charge| record.charge_at_once(&limit, START, &charge).cells;
        assert_eq!(charge(Charge::More { cells: u32::MAX - 1 }), u32::MAX - 1);
        assert_eq!(charge(less(2)), 2);
        assert_eq!(charge(Charge::More { cells: 9 }), 3);
        assert_eq!(charge(less(u32::MAX)), 0);
        assert_eq!(charge(Charge::More { cells: 1 }), 0);
    }

    #[test]
    fn a_count_never_drains_and_ends_with_its_window() {
        let limit = count(5);
        let mut record = Record::new(START);
        let mut charge = |now, charge: Charge| {
            let charged = record.charge_at_once(&limit, now, &charge);
            assert_eq!(charged.delay(&limit), Micros::ZERO);
            assert_eq!(charged.wait(&limit, &charge), Micros::ZERO);
            (charged.allowed, charged.cells, charged.beyond_burst, charged.taken.0)
        };
        assert_eq!(charge(START, take(4, 60_000)), (true, 4, 0, 4));
        assert_eq!(charge(after(3_000_000), take(2, 60_000)), (false, 0, 0, 4), "no queue");
        assert_eq!(charge(after(3_000_000), Charge::More { cells: 9 }), (true, 9, 8, 13));
        assert_eq!(charge(START, less(9)), (true, 9, 0, 4), "the clock went back");
        assert_eq!(charge(START, take(1, 0)), (true, 1, 0, 5));
        assert_eq!(charge(START, look(1)), (false, 0, 0, 5));
        let kept_for = |ms| {
            let mut record = record.clone();
            record.settle(&limit, after(ms));
            record.kept_for(&limit).0 / 1_000_000
        };
        assert_eq!(
            [0, 1_000_000, 3_600_000, 9_000_000].map(kept_for),
            [7_200, 6_200, 3_600, 3_600]
        );
        assert_eq!(limit.with_most_owed(9), Ok(limit), "it has no ceiling");
    }

    /// All that waited when the memory was lost still goes on.
    #[test]
    fn a_strict_store_begins_with_the_whole_queue() {
        let limit = limit(10_000, 20);
        let allowed = |charge: Charge, after_ms| {
            let now = after(after_ms);
            let mut record = Record::charged_after_loss(&limit, START, now, &charge);
            record.charge_at_once(&limit, now, &charge).allowed
        };
        // Without a queue: a burst, and the longest validity.
        assert_eq!([0, 2_009, 2_010].map(|ms| allowed(take(1, 0), ms)), [false, false, true]);
        // 5 s of a queue are longer. Its last place is free when one cell has drained.
        assert_eq!([0, 9, 10].map(|ms| allowed(take(1, 5_000), ms)), [false, false, true]);
        let mut record = Record::charged_after_loss(&limit, START, after(10), &take(1, 5_000));
        let last = record.charge_at_once(&limit, after(10), &take(1, 5_000));
        assert_eq!(last.delay(&limit), Micros::from_millis(5_000));
        // A response knows of no queue.
        let more = Record::charged_after_loss(&limit, START, START, &Charge::More { cells: 1 });
        assert_eq!(more, Record::after_loss(&limit, START, START));
    }

    #[test]
    fn a_strict_store_blocks_a_count_whose_window_had_begun() {
        let limit = count(5);
        let owed = |epoch: u64| {
            let charge = take(1, 0);
            Record::charged_after_loss(&limit, StoreTime(epoch), after(9_000), &charge).owed().0
        };
        let begin = HOUR.begin * 1_000_000;
        assert_eq!([begin + 1, begin, begin - 1].map(owed), [5, 0, 0]);
    }

    #[test]
    fn another_count_keeps_what_was_charged() {
        let mut record = Record::new(START);
        record.charge_at_once(&count(100), START, &take(30, 0));
        let smaller = record.charge_at_once(&count(10), after(5), &look(1));
        assert_eq!((smaller.allowed, smaller.taken.0), (false, 30), "the same record");
    }

    /// One charge of a model: when, and how many units more or less.
    fn owed_by_list(limit: &SharedLimit, list: &[(u64, i128)], now: u64) -> i128 {
        let drained = |micros: u64| i128::from(limit.drained_in(Micros(micros)).0);
        let mut owed = 0;
        let mut at = 0;
        for &(then, units) in list {
            owed = (owed - drained(then - at)).max(0) + units;
            at = then;
        }
        (owed - drained(now - at)).max(0)
    }

    fn any_charge() -> impl Strategy<Value = Charge> {
        prop_oneof![
            4 => (0..9_u32, 0..9_u32, 0..90_000_u64).prop_map(|(cells, needs, delay)| {
                Charge::Take { cells, needs, max_delay: Micros(delay) }
            }),
            1 => (0..12_u32).prop_map(|cells| Charge::More { cells }),
            1 => (0..12_u32).prop_map(less),
            1 => (0..12_u32, 0..500_000_u64).prop_map(|(cells, after)| {
                let taken_at = Some(START.saturating_add(Micros(after)));
                Charge::Less { cells, taken_at }
            }),
        ]
    }

    /// The µs that pass, who does something (the first two are hosts), a charge, and the cells
    /// that a host wants.
    fn any_step() -> impl Strategy<Value = (u64, usize, Charge, u32)> {
        (0..25_000_u64, 0..4_usize, any_charge(), 0..9_u32)
    }

    /// After how many µs it is known that another limit denies a request, if one does.
    fn any_denial() -> impl Strategy<Value = Option<u64>> {
        prop::option::weighted(0.4, prop_oneof![0..3_000_u64, 0..150_000_u64])
    }

    /// Gives back what requests have taken that are known to be denied by `now`, each when it is.
    fn give_back(
        denied: &mut Vec<(u64, Charged)>,
        record: &mut Record,
        limit: &SharedLimit,
        now: u64,
    ) {
        denied.sort_by_key(|&(when, _)| when);
        let known = denied.partition_point(|&(when, _)| when <= now);
        for (when, Charged { cells, now, .. }) in denied.drain(..known) {
            let less = Charge::Less { cells, taken_at: Some(now) };
            record.charge_at_once(limit, StoreTime(when), &less);
        }
    }

    fn any_limit() -> impl Strategy<Value = SharedLimit> {
        let numbers = prop::sample::select(vec![
            (1_000_u64, 5_u32),
            (10_000, 1),
            (10_001, 7),
            (33_333, 8),
            (1, 200),
        ]);
        let rate = (numbers, 0..6_u32).prop_map(|((interval, burst), beyond)| {
            limit(interval, burst).with_most_owed(burst + beyond).unwrap()
        });
        prop_oneof![4 => rate, 1 => (1..40_u32).prop_map(count)]
    }

    proptest! {
        /// A request that is denied is allowed after its wait, and not a microsecond earlier.
        #[test]
        fn a_wait_is_exact(
            limit in any_limit(),
            steps in prop::collection::vec((0..30_000_u64, any_charge()), 1..40),
        ) {
            let mut record = Record::new(START);
            let mut now = START;
            for (passes, charge) in steps {
                now = now.saturating_add(Micros(passes));
                let charged = record.charge_at_once(&limit, now, &charge);
                let Charge::Take { cells, needs, .. } = charge else { continue };
                let is_possible = cells.max(needs) <= limit.burst() && limit.window().is_none();
                if charged.allowed || !is_possible {
                    continue;
                }
                let at = now.saturating_add(charged.wait(&limit, &charge));
                let asked = |at| record.clone().charge_at_once(&limit, at, &charge).allowed;
                prop_assert!(asked(at));
                prop_assert!(!asked(at.saturating_sub(Micros(1))));
            }
        }

        /// The moments at which requests go on, in ns, keep to a limit in ns exactly.
        #[test]
        fn the_moments_keep_to_the_limit(
            (interval_ns, burst) in prop::sample::select(vec![
                (3_333_333_u64, 7_u32),
                (1_000_000, 1),
                (999, 200),
                (333, 5),
                (10_000_001, 3),
            ]),
            max_delay in 0..100_000_u64,
            steps in prop::collection::vec((0..20_000_u64, 1..4_u32), 1..80),
        ) {
            let limit = SharedLimit::new(Duration::from_nanos(interval_ns), burst).unwrap();
            let limit = limit.with_most_owed(burst + 400_000).unwrap();
            let mut record = Record::new(START);
            let (mut now, mut tat, mut last) = (START, 0, 0);
            for (passes, cells) in steps {
                now = now.saturating_add(Micros(passes));
                let max_delay = Micros(max_delay);
                let take = Charge::Take { cells: cells.min(burst), needs: 0, max_delay };
                let charged = record.charge_at_once(&limit, now, &take);
                if !charged.allowed {
                    continue;
                }
                let moment = charged.has_cells_ns(&limit).max(now.0 * 1_000);
                prop_assert!(moment >= last, "in order");
                last = moment;
                tat = moment.max(tat) + interval_ns * u64::from(charged.cells);
                prop_assert!(tat - moment <= interval_ns * u64::from(burst));
            }
        }

        /// Each charge is what a list of all charges before it says.
        #[test]
        fn a_list_of_charges_says_the_same(
            limit in any_limit(),
            steps in prop::collection::vec((0..30_000_u64, any_charge()), 1..60),
        ) {
            let mut record = Record::new(START);
            let mut list = Vec::new();
            let mut now = START.0;
            let cell = i128::from(limit.cells(1).0);
            let burst = cell * i128::from(limit.burst());
            let (mut all, mut most, mut back, mut last) = (0, 0, 0, START.0);
            for (passes, charge) in steps {
                now += passes;
                let owed = owed_by_list(&limit, &list, now);
                let got = record.charge_at_once(&limit, StoreTime(now), &charge);
                let (allowed, cells) = match charge {
                    Charge::Take { cells, needs, max_delay } => {
                        let needs = i128::from(cells.max(needs));
                        let queue = i128::from(limit.drained_in(max_delay).0);
                        most = most.max(queue);
                        let fits = owed + needs * cell <= burst + queue;
                        let fits = fits && needs * cell <= burst;
                        let allowed = needs == 0 || fits;
                        (allowed, if allowed { i128::from(cells) } else { 0 })
                    }
                    Charge::More { cells } => {
                        let free = cell * i128::from(limit.ceiling()) - owed;
                        (true, i128::from(cells).min(free.max(0) / cell))
                    }
                    Charge::Less { cells, taken_at } => {
                        let drained = match taken_at.map(|at| last.checked_sub(at.0)) {
                            None => 0,
                            _ if limit.window().is_some() => 0,
                            Some(None) => i128::MAX,
                            Some(Some(passed)) => i128::from(limit.drained_in(Micros(passed)).0),
                        };
                        back = owed.min((i128::from(cells) * cell - drained).max(0));
                        (true, back / cell)
                    }
                };
                last = now;
                let units = match charge {
                    Charge::Less { .. } => -back,
                    _ => cells * cell,
                };
                list.push((now, units));
                all += units;
                prop_assert_eq!((got.allowed, i128::from(got.cells)), (allowed, cells));
                prop_assert_eq!(i128::from(got.taken.0), owed + units);
                prop_assert_eq!(record.owed(), got.taken);
                let beyond = ((owed + units - burst).max(0) + cell - 1) / cell;
                let beyond = if matches!(charge, Charge::More { .. }) { beyond } else { 0 };
                prop_assert_eq!(i128::from(got.beyond_burst), beyond.min(cells));
                if got.allowed && got.cells > 0 && matches!(charge, Charge::Take { .. }) {
                    let delay = got.delay(&limit);
                    let owes_then = |delay| owed + units - i128::from(limit.drained_in(delay).0);
                    prop_assert!(owes_then(delay) <= burst);
                    let sooner = delay.saturating_sub(Micros(1));
                    prop_assert!(delay == Micros::ZERO || owes_then(sooner) > burst);
                }
                // Less the cells given back, never more than the promise.
                let drained = i128::from(limit.drained_in(Micros(now - START.0)).0);
                let ceiling = cell * i128::from(limit.ceiling());
                prop_assert!(all <= ceiling.max(burst + most) + drained);
            }
        }

        /// Requests that are denied after all, each after its delay, leave no room for others:
        /// those that are allowed keep to the limit, each at the moment of its charge.
        #[test]
        fn denied_requests_make_no_room(
            (interval, burst) in (1_000..20_000_u64, 1..20_u32),
            steps in prop::collection::vec((0..100_u64, 1..100_u32, any_denial()), 1..60),
        ) {
            let limit = limit(interval, burst);
            let (mut record, mut police) = (Record::new(START), Police::default());
            let (mut now, mut denied) = (START.0, Vec::new());
            for (passes, cells, denial) in steps {
                // Up to a burst, after up to the time in which one drains.
                now += passes * interval * u64::from(burst) / 100;
                give_back(&mut denied, &mut record, &limit, now);
                let take = take((cells * burst).div_ceil(100), 0);
                let got = record.charge_at_once(&limit, StoreTime(now), &take);
                match denial {
                    _ if !got.allowed => {}
                    Some(after) => denied.push((now + after, got)),
                    None => prop_assert_eq!(police.allow(&limit, now, got.cells), 0),
                }
            }
        }

        /// Whatever is lent and charged, and taken for requests that are denied after all: when
        /// the other requests go on, one exact bucket allows them.
        #[test]
        fn never_too_many_beside_leases(
            limit in any_limit(),
            steps in prop::collection::vec((any_step(), any_denial()), 1..80),
            max_delay in prop_oneof![Just(0_u64), 0..200_000_u64],
            [debts, gives_back] in [prop::bool::weighted(0.3), prop::bool::weighted(0.2)],
        ) {
            let mut record = Record::new(START);
            let mut given_back = 0;
            let mut holdings = [Holding::new(); 2];
            let mut events = Vec::new();
            let (mut now, mut last, mut number) = (START.0, 0, 0);
            let mut denied = Vec::new();
            for ((passes, who, charge, cells), denial) in steps {
                now += passes;
                give_back(&mut denied, &mut record, &limit, now);
                if let (Some(holding), true) = (holdings.get_mut(who), limit.window().is_none()) {
                    let clock = HostTime(now);
                    if holding.spend(clock, cells) {
                        events.push((now, cells));
                        continue;
                    }
                    number += 1;
                    let validity = Micros(passes * 4);
                    let wish = Wish { want: cells, least: cells / 2, validity };
                    if debts {
                        holding.charge(cells / 3);
                    }
                    let host = HostId(who as u64);
                    let sent = if cells % 3 == 1 {
                        holding.give_back(&limit, clock, host, AskNumber(number), cells / 2)
                    } else {
                        holding.ask(&limit, clock, host, AskNumber(number), wish)
                    };
                    let reply = record.ask(&limit, StoreTime(now), &sent.ask).unwrap();
                    prop_assert!(holding.reply(clock, &sent, &reply));
                    continue;
                }
                // The charges of responses were allowed by nobody.
                let charge = match charge {
                    Charge::Take { cells, needs, .. } => {
                        Charge::Take { cells, needs, max_delay: Micros(max_delay) }
                    }
                    Charge::Less { taken_at, .. } if !gives_back || taken_at.is_some() => continue,
                    other => other,
                };
                let got = record.charge_at_once(&limit, StoreTime(now), &charge);
                if matches!(charge, Charge::Less { .. }) {
                    given_back += got.cells + 1; // A part of a cell, too.
                }
                if let (true, Charge::Take { .. }) = (got.allowed, charge) {
                    // Neither a place in a queue nor what responses give back is undone exactly.
                    if let Some(after) = denial.filter(|_| max_delay == 0 && !gives_back) {
                        denied.push((now + after, got));
                        continue;
                    }
                    let goes_on = now + got.delay(&limit).0;
                    prop_assert!(got.delay(&limit).0 <= max_delay);
                    if got.delay(&limit) > Micros::ZERO {
                        prop_assert!(gives_back || goes_on >= last, "in order");
                        last = goes_on;
                    }
                    events.push((goes_on, got.cells));
                }
            }
            events.sort_by_key(|&(when, _)| when);
            let mut police = Police::default();
            police.tolerate(given_back);
            for (when, cells) in events {
                prop_assert_eq!(police.allow(&limit, when, cells), 0, "at {}", when - START.0);
            }
        }
    }
}

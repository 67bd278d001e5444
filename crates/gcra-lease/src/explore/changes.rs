//! Every order of a few steps of a host whose limit gets other numbers. It asks, spends and loses
//! replies, and leases expire. Before it asks under the new numbers, it gives back the cells that
//! it holds.

use core::time::Duration;

use crate::holding::{Holding, Wish};
use crate::limit::SharedLimit;
use crate::message::{AskNumber, HostId};
use crate::record::Record;
use crate::records::{Change, Records};
use crate::rule::{Rule, take_away};
use crate::time::{HostTime, Micros, StoreTime};

const HOST: HostId = HostId(1);
const STEPS: usize = 10;

/// The numbers before the change, and after it. Nothing drains in so short a time.
fn numbers() -> [SharedLimit; 2] {
    [4, 3].map(|burst| {
        let limit = SharedLimit::new(Duration::from_secs(1_000), burst).unwrap();
        limit.with_longest_validity(Micros(3))
    })
}

#[derive(Clone, Debug)]
struct World {
    now: u64,
    records: Records,
    /// Under the numbers before and after.
    holdings: [Holding; 2],
    changed: Option<u64>,
    spent: [u32; 2],
    number: u64,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// All leases are over.
    Tick,
    Spend,
    Ask {
        is_answered: bool,
    },
    Change,
}

const MOVES: [Move; 5] = [
    Move::Tick,
    Move::Spend,
    Move::Ask { is_answered: true },
    Move::Ask { is_answered: false },
    Move::Change,
];

impl World {
    fn new() -> Self {
        Self {
            now: 1_000_000,
            records: Records::default(),
            holdings: [Holding::new(); 2],
            changed: None,
            spent: [0; 2],
            number: 0,
        }
    }

    fn under(&self) -> usize {
        usize::from(self.changed.is_some())
    }

    /// Sends an ask for these numbers, or gives back what is held under them.
    fn ask(&mut self, under: usize, gives_back: bool, is_answered: bool) {
        let (limit, now) = (numbers()[under], HostTime(self.now));
        self.number += 1;
        let number = AskNumber(self.number);
        let sent = if gives_back {
            self.holdings[under].give_back(&limit, now, HOST, number, u32::MAX)
        } else {
            let wish = Wish { want: 2, least: 1, validity: Micros(3) };
            self.holdings[under].ask(&limit, now, HOST, number, wish)
        };
        let change = match self.changed {
            Some(at) if under == 1 => {
                Change { ago: Micros(self.now - at), most: limit.cells(limit.burst()) }
            }
            _ => Change::NONE,
        };
        let store = StoreTime(self.now);
        let begin = || Record::new(store);
        let reply = self.records.ask((&limit, &change), store, begin, &sent.ask);
        if let Some(reply) = reply.filter(|_| is_answered) {
            self.holdings[under].reply(now, &sent, &reply);
        }
    }

    /// False: the step changes nothing.
    fn take(&mut self, step: Move) -> bool {
        let (under, now) = (self.under(), HostTime(self.now));
        match step {
            Move::Tick => self.now += 3,
            Move::Change if under == 1 => return false,
            Move::Change => self.changed = Some(self.now),
            Move::Spend if self.holdings[under].spend(now, 1) => self.spent[under] += 1,
            Move::Spend => return false,
            Move::Ask { is_answered } => {
                let before = &self.holdings[0];
                if under == 1 && (before.held(now) > 0 || before.unreported() > 0) {
                    self.ask(0, true, true);
                }
                self.ask(under, false, is_answered);
            }
        }
        true
    }

    /// The cells that were spent before the change count after it.
    fn is_fine(&self) -> bool {
        let [before, after] = self.spent;
        before <= 4 && (after == 0 || before + after <= 3)
    }
}

/// How many worlds were seen, and the first steps after which too much was allowed.
fn explore(world: &World, steps: usize, way: &mut Vec<Move>, seen: &mut u64) -> bool {
    *seen += 1;
    if !world.is_fine() {
        return false;
    }
    steps == 0
        || MOVES.into_iter().all(|step| {
            let mut next = world.clone();
            if !next.take(step) {
                return true;
            }
            way.push(step);
            let is_fine = explore(&next, steps - 1, way, seen);
            if is_fine {
                way.pop();
            }
            is_fine
        })
}

#[test]
fn what_was_spent_before_a_change_counts_after_it() {
    let (mut way, mut seen) = (Vec::new(), 0);
    let is_fine = explore(&World::new(), STEPS, &mut way, &mut seen);
    assert!(is_fine, "{way:?}");
    assert!(seen > 100_000, "{seen}");
}

#[test]
fn without_a_rule_a_change_forgets() {
    let _back = take_away(Some(Rule::GrantIsWritten));
    assert!(!explore(&World::new(), STEPS, &mut Vec::new(), &mut 0));
}

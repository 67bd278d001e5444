//! [`decide`]: one request under several limits.

use crate::holding::{Holding, Look};
use crate::rule::{Rule, without};
use crate::time::{HostTime, Micros};

/// What a request needs under one limit.
#[derive(Debug)]
pub struct Need<'a> {
    /// What this host holds for the key.
    pub holding: &'a mut Holding,
    /// The cost of the request in cells; 0 if it only asks what is known.
    pub cells: u32,
    /// The burst of the limit.
    pub burst: u32,
}

/// What is to be done about a request. The limit is its place in the list of needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// The cells are spent under all limits: the request is allowed.
    Allow,
    /// The request costs more than the burst of a limit, and is blocked for ever.
    TooLarge {
        /// Which limit.
        limit: usize,
    },
    /// The request is blocked without asking the store.
    Block {
        /// Which limit.
        limit: usize,
        /// When the host may ask again.
        until: HostTime,
    },
    /// An ask for the cells is under way. [`decide`] again when its reply has come.
    Wait {
        /// Which limit.
        limit: usize,
        /// When the ask was sent.
        since: HostTime,
    },
    /// Cells are to be asked for ([`Holding::ask`]).
    /// [`decide`] again when the reply has come.
    Ask {
        /// Which limit.
        limit: usize,
        /// The cells of the request that are not here.
        least: u32,
    },
}

/// Decides about a request under several limits, or goes one step further with it.
///
/// The needs stand in an order that is the same on all hosts (by key). All are looked at before the
/// store is asked for any, and the next one is asked for only when the one before is here.
/// Otherwise one host could hold the last cell of one limit and another host that of the other
/// limit, both would block their request, and the cells would be lost, again and again.
///
/// A caller that gets an answer other than [`Step::Allow`] in the end (also because it waited for
/// too long) gives back what it asked for on the way ([`Holding::give_back`]).
pub fn decide(now: HostTime, needs: &mut [Need<'_>], patience: Micros) -> Step {
    if let Some(limit) = needs.iter().position(|need| need.cells > need.burst) {
        return Step::TooLarge { limit };
    }
    let look = |need: &Need<'_>| need.holding.look(now, need.cells, patience);
    let blocked = needs.iter().enumerate().find_map(|(limit, need)| match look(need) {
        Look::Blocked { until } => Some(Step::Block { limit, until }),
        _ => None,
    });
    if let Some(step) = blocked {
        return step;
    }
    if without(Rule::AllOrNone) {
        // What is here is spent, whatever the others say.
        for need in needs.iter_mut().filter(|need| look(need) == Look::Enough) {
            need.holding.spend(now, need.cells);
        }
    }
    for (limit, need) in needs.iter().enumerate() {
        match look(need) {
            Look::Enough => {}
            Look::Blocked { until } => return Step::Block { limit, until },
            Look::Waiting { since } => return Step::Wait { limit, since },
            Look::Lacking => {
                let least = need.cells - need.holding.held(now).min(need.cells);
                return Step::Ask { limit, least };
            }
        }
    }
    if !without(Rule::AllOrNone) {
        for need in needs {
            need.holding.spend(now, need.cells);
        }
    }
    Step::Allow
}

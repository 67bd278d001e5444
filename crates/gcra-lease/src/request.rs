//! [`next_step`]: one request under several limits.

use crate::holding::Look;
use crate::time::HostTime;

/// The next step for a request. The limit is its place in the list of needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// The cells are here under all limits: the request is allowed.
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
    /// An ask for the cells is under way. Look again when its reply has come.
    Wait {
        /// Which limit.
        limit: usize,
        /// When the ask was sent.
        since: HostTime,
    },
    /// Cells are to be asked for ([`Holding::ask`](crate::Holding::ask)). Look again when the
    /// reply has come.
    Ask {
        /// Which limit.
        limit: usize,
        /// The cells of the request that are not here.
        least: u32,
    },
}

/// Decides about a request under several limits, or goes one step further with it: `costs` are
/// what each limit needs as cells and burst, and `look` says what is held for it.
///
/// The limits stand in an order that is the same on all hosts (by key). All are looked at before
/// the store is asked for any, and the next one is asked for only when the one before is here.
/// Otherwise one host could hold the last cell of one limit, and another host the last cell of the
/// other limit. Both would block their request, and the cells would be lost, again and again.
///
/// Nothing is spent: after [`Step::Allow`], the caller spends the cells under all limits. Where
/// processes share the holdings, it takes that back if another one was faster under one. A
/// caller that gets another answer in the end (also because it waited for too long) gives back
/// what it asked for on the way ([`Holding::give_back`](crate::Holding::give_back)).
pub fn next_step(
    costs: impl Iterator<Item = (u32, u32)> + Clone,
    look: impl Fn(usize) -> (Look, u32),
) -> Step {
    let costs = costs.enumerate();
    if let Some((limit, _)) = costs.clone().find(|(_, (cells, burst))| cells > burst) {
        return Step::TooLarge { limit };
    }
    // First, whether a limit blocks.
    let mut next = None;
    for (limit, (cells, _)) in costs {
        let (found, held) = look(limit);
        match found {
            Look::Blocked { until } => return Step::Block { limit, until },
            Look::Enough => {}
            Look::Waiting { since } => next = next.or(Some(Step::Wait { limit, since })),
            Look::Lacking => {
                let least = cells.saturating_sub(held);
                next = next.or(Some(Step::Ask { limit, least }));
            }
        }
    }
    next.unwrap_or(Step::Allow)
}

#[cfg(test)]
pub(crate) mod unpacked {
    //! Holdings that no other process changes, for the models.

    use super::{Step, next_step};
    use crate::holding::Holding;
    use crate::rule::{Rule, without};
    use crate::time::{HostTime, Micros};

    /// The cells that a request needs under one limit.
    pub(crate) struct Need<'a> {
        /// The holding of this host for the key.
        pub(crate) holding: &'a mut Holding,
        /// The cost of the request in cells; 0 if it only asks what is known.
        pub(crate) cells: u32,
        /// The burst of the limit.
        pub(crate) burst: u32,
    }

    /// Finds the next step, and spends the cells if the request is allowed.
    pub(crate) fn decide(now: HostTime, needs: &mut [Need<'_>], patience: Micros) -> Step {
        let costs = needs.iter().map(|need| (need.cells, need.burst));
        let step = next_step(costs, |limit| {
            let Need { holding, cells, .. } = &needs[limit];
            (holding.look(now, *cells, patience), holding.held(now))
        });
        if step == Step::Allow || without(Rule::AllOrNone) {
            for need in needs {
                need.holding.spend(now, need.cells);
            }
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::unpacked::{Need, decide};
    use super::*;
    use crate::holding::{Holding, Wish};
    use crate::limit::SharedLimit;
    use crate::message::{AskNumber, AskReply, HostId};
    use crate::time::{Micros, StoreTime};

    const PATIENCE: Micros = Micros::from_millis(50);

    /// A holding after a reply.
    fn holding(granted: u32, come_back_after: Micros) -> Holding {
        let limit = SharedLimit::new(Duration::from_millis(10), 20).unwrap();
        let mut holding = Holding::new();
        let wish = Wish { want: 5, least: 5, validity: Micros::from_millis(500) };
        let sent = holding.ask(&limit, HostTime(0), HostId(1), AskNumber(1), wish);
        let reply = AskReply {
            number: AskNumber(1),
            kept: 0,
            granted,
            free: 0,
            come_back_after,
            scarce: false,
            lent: false,
            hosts: 1,
            now: StoreTime(0),
        };
        assert!(holding.reply(HostTime(0), &sent, &reply));
        holding
    }

    fn decide_about(holdings: &mut [(Holding, u32)]) -> Step {
        let mut needs: Vec<_> = holdings
            .iter_mut()
            .map(|(holding, cells)| Need { holding, cells: *cells, burst: 20 })
            .collect();
        decide(HostTime(0), &mut needs, PATIENCE)
    }

    #[test]
    fn a_cost_is_spent_whole_under_all_limits_or_not_at_all() {
        let mut both = [(holding(5, Micros::ZERO), 3), (holding(3, Micros::ZERO), 2)];
        assert_eq!(decide_about(&mut both), Step::Allow);
        assert_eq!(both.map(|(holding, _)| holding.held(HostTime(0))), [2, 1]);
        assert_eq!(decide_about(&mut both), Step::Ask { limit: 0, least: 1 });
        both[0].1 = 2;
        assert_eq!(decide_about(&mut both), Step::Ask { limit: 1, least: 1 });
        assert_eq!(both.map(|(holding, _)| holding.held(HostTime(0))), [2, 1]);
    }

    #[test]
    fn what_blocks_is_looked_for_before_anything_is_asked_for() {
        let later = Micros::from_millis(7);
        let mut both = [(Holding::new(), 1), (holding(0, later), 5)];
        let until = HostTime(7_000);
        assert_eq!(decide_about(&mut both), Step::Block { limit: 1, until });
        both[1].1 = 4;
        let step = decide_about(&mut both);
        assert_eq!(step, Step::Ask { limit: 0, least: 1 }, "only 5 cells were denied");
        both[1].1 = 21;
        assert_eq!(decide_about(&mut both), Step::TooLarge { limit: 1 });
    }

    #[test]
    fn a_cost_of_zero_asks_only_where_nothing_is_known() {
        assert_eq!(decide_about(&mut [(Holding::new(), 0)]), Step::Ask { limit: 0, least: 0 });
        let denied = holding(0, Micros::from_millis(7));
        assert_eq!(decide_about(&mut [(denied, 0)]), Step::Allow);
    }

    #[test]
    fn an_ask_that_is_lost_is_taken_over() {
        let limit = SharedLimit::new(Duration::from_millis(10), 20).unwrap();
        let mut holding = Holding::new();
        let wish = Wish { want: 1, least: 1, validity: Micros::from_millis(20) };
        let sent = holding.ask(&limit, HostTime(0), HostId(1), AskNumber(1), wish);
        let at = |now, holding: &mut Holding| {
            decide(HostTime(now), &mut [Need { holding, cells: 1, burst: 20 }], PATIENCE)
        };
        let waits = Step::Wait { limit: 0, since: HostTime(0) };
        assert_eq!(at(49_999, &mut holding), waits);
        assert_eq!(at(50_000, &mut holding), Step::Ask { limit: 0, least: 1 });
        assert!(holding.void(&sent), "or at once, if it is known to be lost");
        assert_eq!(at(1, &mut holding), Step::Ask { limit: 0, least: 1 });
    }
}

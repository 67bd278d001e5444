//! The whole limit in small: one client's bucket at the agents, its counters in each HAProxy
//! process, and one exact bucket beside them, which is charged for each request that passes.

use std::collections::HashSet;

/// A limit, and how it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub burst: u8,
    /// The ticks for each cell.
    pub interval: u8,
    /// The burst and the interval that the agents decide by.
    pub agents: (u8, u8),
    /// Every k-th request asks.
    pub k: u8,
    pub processes: usize,
    /// How many ticks without a request a process forgets the client after, if it ever does.
    pub expire: Option<u8>,
}

/// More than any limit here: the state after that is of no interest.
const FAR_TOO_MANY: u8 = 40;

const PROCESSES: usize = 2;

/// One moment.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
struct State {
    /// In ticks: what was charged at the agents, and what has passed.
    charged: u8,
    passed: u8,
    /// Of each process: uncharged requests, and ticks since the last request.
    counted: [u8; PROCESSES],
    idle: [u8; PROCESSES],
}

/// The most cells that the exact bucket is ever charged with.
pub(crate) fn most_at_once(limit: Limit) -> u8 {
    let start = State { charged: 0, passed: 0, counted: [0; PROCESSES], idle: [0; PROCESSES] };
    let (mut seen, mut todo, mut most) = (HashSet::from([start]), vec![start], 0);
    while let Some(state) = todo.pop() {
        most = most.max(state.passed.div_ceil(limit.interval));
        if most > FAR_TOO_MANY {
            break;
        }
        for next in after(limit, state) {
            if seen.insert(next) {
                todo.push(next);
            }
        }
    }
    most
}

/// A tick later, or a request later.
fn after(limit: Limit, state: State) -> Vec<State> {
    let later = |idle: u8| limit.expire.map_or(0, |expire| expire.min(idle + 1));
    let mut all = vec![State {
        charged: state.charged.saturating_sub(1),
        passed: state.passed.saturating_sub(1),
        idle: state.idle.map(later),
        ..state
    }];
    for process in 0..limit.processes {
        // An entry that has expired may be gone or not.
        let is_old = limit.expire == Some(state.idle[process]);
        let counts = [Some(state.counted[process]), is_old.then_some(0)];
        for counted in counts.into_iter().flatten() {
            let mut pass = |cost: u8, counted| {
                let (burst, interval) = limit.agents;
                let charged = state.charged + cost * interval;
                if charged <= burst * interval || cost == 0 {
                    let mut next = state;
                    next.charged = charged;
                    next.passed += limit.interval;
                    next.counted[process] = counted;
                    next.idle[process] = 0;
                    all.push(next);
                }
            };
            if counted + 1 < limit.k {
                pass(0, counted + 1);
            } else {
                pass(limit.k, 0);
                // While another request has the lock.
                pass(1, counted);
            }
            // A request that is blocked keeps the entry.
            let mut blocked = state;
            blocked.counted[process] = counted;
            blocked.idle[process] = 0;
            all.push(blocked);
        }
    }
    all
}

//! Every interleaving of some requests of one client, by the rules of a shipped file.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use crate::rules::{Access, Next, Progress, Rules};

/// The events to explore beside the order of the requests' steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    /// Whether HAProxy has an entry for the client. Without one, no counter can be fetched.
    pub tracked: bool,
    /// How often the client's entry may be forgotten, while it has no request.
    pub forgets: u8,
    /// Whether answers may be lost, with the charge made or not, and requests may end while they
    /// are asked about.
    pub losses: bool,
}

/// The findings over all windows: of the time in which one begins and ends, any two moments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Found {
    pub states: usize,
    /// The most requests that passed in a window and were not charged in it. Counted are those
    /// that began in it; those without an answer are not.
    pub unpaid: i8,
    /// The most that was charged in a window and did not pass in it, if no request was under way
    /// as it began and ended.
    pub overpaid: i8,
}

/// All requests that one exploration can have; more would not end in time.
pub(crate) const MOST: usize = 10;

const COUNTERS: usize = 3;

/// The client's counters, the window, and each request's progress by its number.
#[derive(Clone, Copy)]
struct State {
    counters: [u8; COUNTERS],
    /// Whether there is one; and whether it began while no request was under way.
    window: bool,
    quiet: bool,
    forgets: u8,
    /// Passed and not charged, in the window.
    unpaid: i8,
    requests: [u8; MOST],
}

/// Numbers of requests that are not under way. Those that are have larger ones.
const NOT_BEGUN: u8 = 0;
const ENDED: u8 = 1;
const FIRST: usize = 2;

/// A request that has begun, and whether that was in the window.
type Begun = (Progress, bool);

struct Explorer<'r> {
    rules: &'r Rules,
    world: World,
    /// Larger values of counters are alike: all comparisons have the same result.
    most: u8,
    begun: Vec<Begun>,
    numbers: HashMap<Begun, u8>,
    /// The number of a request after its access has given a value.
    after: HashMap<(u8, Option<u8>), u8>,
    seen: HashSet<u128, BuildHasherDefault<Fast>>,
    todo: Vec<State>,
}

/// Explores `requests` requests.
pub(crate) fn explore(rules: &Rules, world: World, requests: usize) -> Found {
    let mut explorer = Explorer {
        rules,
        world,
        most: rules.largest() + 1,
        begun: Vec::new(),
        numbers: HashMap::new(),
        after: HashMap::new(),
        seen: HashSet::default(),
        todo: Vec::new(),
    };
    let mut first = [ENDED; MOST];
    first[..requests].fill(NOT_BEGUN);
    explorer.add(State {
        counters: [0; COUNTERS],
        window: false,
        quiet: false,
        forgets: 0,
        unpaid: 0,
        requests: first,
    });
    let mut found = Found::default();
    while let Some(state) = explorer.todo.pop() {
        found.unpaid = found.unpaid.max(state.unpaid);
        if state.quiet && state.is_quiet() {
            found.overpaid = found.overpaid.max(-state.unpaid);
        }
        explorer.steps(state);
    }
    found.states = explorer.seen.len();
    found
}

impl State {
    /// No request is under way.
    fn is_quiet(&self) -> bool {
        self.requests.iter().all(|request| *request <= ENDED)
    }

    /// All of it in one number.
    fn packed(&self) -> u128 {
        let mut bytes = [0; 16];
        bytes[..COUNTERS].copy_from_slice(&self.counters);
        bytes[3] = u8::from(self.window) | u8::from(self.quiet) << 1 | self.forgets << 2;
        bytes[4] = self.unpaid.to_ne_bytes()[0];
        bytes[5..5 + MOST].copy_from_slice(&self.requests);
        u128::from_ne_bytes(bytes)
    }
}

impl Explorer<'_> {
    fn add(&mut self, mut state: State) {
        state.requests.sort_unstable();
        if self.seen.insert(state.packed()) {
            self.todo.push(state);
        }
    }

    /// All that can happen next.
    fn steps(&mut self, state: State) {
        if !state.window {
            self.add(State { window: true, quiet: state.is_quiet(), ..state });
        }
        if state.forgets < self.world.forgets && state.is_quiet() {
            let forgets = state.forgets + 1;
            self.add(State { counters: [0; COUNTERS], forgets, ..state });
        }
        for at in 0..MOST {
            // Of requests that are alike, one is enough.
            let number = state.requests[at];
            if number == ENDED || (at > 0 && state.requests[at - 1] == number) {
                continue;
            }
            if number == NOT_BEGUN {
                let number = self.number((self.rules.begin(), state.window));
                self.step(state, at, number);
            } else {
                self.step(state, at, number);
            }
        }
    }

    /// All that the next access of a request can do.
    fn step(&mut self, state: State, at: usize, number: u8) {
        let (progress, _) = &self.begun[usize::from(number) - FIRST];
        let Next::Access(access) = self.rules.next(progress) else {
            return self.reach(state, at, number);
        };
        let mut after = state;
        let value = match access {
            Access::Ask { cost } => {
                return self.ask(state, at, number, i8::try_from(cost).unwrap());
            }
            _ if !self.world.tracked => None,
            Access::Increment(counter) => {
                after.counters[counter] = self.most.min(after.counters[counter] + 1);
                Some(after.counters[counter])
            }
            Access::Read(counter) => Some(after.counters[counter]),
            Access::Clear(counter) => Some(std::mem::take(&mut after.counters[counter])),
            // It is above zero for some time after an increment, and then no more.
            Access::Rate(counter) => {
                if after.counters[counter] > 0 {
                    self.go_on(after, at, number, Some(1));
                }
                Some(0)
            }
        };
        self.go_on(after, at, number, value);
    }

    /// All that the agent can do.
    fn ask(&mut self, state: State, at: usize, number: u8, cost: i8) {
        let unpaid = if state.window { state.unpaid - cost } else { state.unpaid };
        let charged = State { unpaid, ..state };
        self.go_on(charged, at, number, Some(0));
        self.go_on(state, at, number, Some(1));
        if self.world.losses {
            for mut state in [charged, state] {
                self.go_on(state, at, number, None);
                state.requests[at] = ENDED;
                self.add(state);
            }
        }
    }

    fn go_on(&mut self, state: State, at: usize, number: u8, value: Option<u8>) {
        let after = match self.after.get(&(number, value)) {
            Some(after) => *after,
            None => {
                let (progress, in_window) = &self.begun[usize::from(number) - FIRST];
                let after = self.number((self.rules.after(progress, value), *in_window));
                self.after.insert((number, value), after);
                after
            }
        };
        self.reach(state, at, after);
    }

    /// The request has come to where its next access is, or to its end.
    fn reach(&mut self, mut state: State, at: usize, number: u8) {
        let (progress, in_window) = &self.begun[usize::from(number) - FIRST];
        state.requests[at] = match self.rules.next(progress) {
            Next::Access(_) => number,
            Next::Denied => ENDED,
            Next::Passed { asked, decided } => {
                // Without an answer it passes whatever the limit says.
                state.unpaid += i8::from(*in_window && (decided || !asked));
                ENDED
            }
        };
        self.add(state);
    }

    fn number(&mut self, begun: Begun) -> u8 {
        *self.numbers.entry(begun).or_insert_with_key(|begun| {
            self.begun.push(begun.clone());
            u8::try_from(self.begun.len() - 1 + FIRST).expect("fewer requests than that")
        })
    }
}

/// A hasher that is fast without optimization, too. Nobody chooses these values against it.
#[derive(Default)]
struct Fast(u64);

impl std::hash::Hasher for Fast {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed")
    }

    fn write_u128(&mut self, value: u128) {
        let halves = [value & u128::from(u64::MAX), value >> 64];
        let [low, high] = halves.map(|half| u64::try_from(half).unwrap());
        let mixed = low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ high.rotate_left(29);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.0 = mixed ^ mixed >> 32;
    }
}

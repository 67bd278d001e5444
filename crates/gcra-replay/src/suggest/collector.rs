//! Collects the requests of a log, by client: what suggestions are made from.

use ahash::AHashMap;

use super::debts::{Blocked, Debts};
use super::grid::{BURSTS, Grid, PerLimit, RATE_COUNT};
use super::peaks::Peak;
use super::target::Target;

/// The most clients that are followed. Each takes 1 kB at most, and most take 200 bytes.
const MOST_CLIENTS: usize = 1 << 22;

/// From this many requests on, a client has a name, and may be listed among the busiest. Most
/// clients of a log have fewer, and need no memory for a name.
const FEW_REQUESTS: u64 = 16;

/// The clients of a log so far, with their requests.
pub(crate) struct Collector {
    /// As the operator wrote it.
    pub(super) key: String,
    pub(super) target: Target,
    pub(super) most_clients: usize,
    pub(super) grid: Grid,
    pub(super) blocked: Blocked,
    places: AHashMap<u64, u32>,
    pub(super) clients: Vec<FollowedClient>,
    /// Those of the clients that are followed.
    pub(super) requests: u64,
    /// Requests of clients beyond the most that are followed.
    pub(super) not_followed: u64,
    /// When the first and the last request came, in microseconds since 1970.
    pub(super) period: Option<(i64, i64)>,
    /// Whether a time of the log was not a whole second.
    pub(super) has_fractions: bool,
}

#[derive(Default)]
pub(super) struct FollowedClient {
    /// The time of its last request, in microseconds since 1970.
    last: i64,
    pub(super) requests: u64,
    pub(super) debts: Debts,
    pub(super) second: Peak,
    pub(super) minute: Peak,
    /// As the report shows it.
    pub(super) name: Option<Box<str>>,
}

impl Collector {
    pub(crate) fn new(key: &str, target: Target) -> Self {
        Self {
            key: key.into(),
            target,
            most_clients: MOST_CLIENTS,
            grid: Grid::new(),
            blocked: Blocked::new(),
            places: AHashMap::default(),
            clients: Vec::new(),
            requests: 0,
            not_followed: 0,
            period: None,
            has_fractions: false,
        }
    }

    /// Counts a request. `client` is a uniform hash of the key, and `at` microseconds since 1970.
    /// The requests of a client come in the order of time; one that is older than the one before
    /// counts as one at the same time. `name` writes the client as the report shows it, and is
    /// called at most once for a client.
    pub(crate) fn add(&mut self, client: u64, at: i64, name: impl FnOnce(&mut String)) {
        let (first, last) = self.period.get_or_insert((at, at));
        (*first, *last) = ((*first).min(at), (*last).max(at));
        self.has_fractions |= at % 1_000_000 != 0;
        let Some(place) = self.places.get(&client) else {
            return self.add_client(client, at);
        };
        let Some(followed) = self.clients.get_mut(*place as usize) else { return };
        self.requests += 1;
        followed.add(at, name, &self.grid, &mut self.blocked);
    }

    fn add_client(&mut self, client: u64, at: i64) {
        let place = self.clients.len();
        match u32::try_from(place) {
            Ok(number) if place < self.most_clients => {
                self.requests += 1;
                self.places.insert(client, number);
                self.clients.push(FollowedClient::new(at));
            }
            _ => self.not_followed += 1,
        }
    }

    /// How many clients each limit would have blocked at least once.
    pub(super) fn touched(&self) -> PerLimit<u64> {
        let mut clients = [[0; BURSTS]; RATE_COUNT];
        for client in &self.clients {
            for (clients, touched) in clients.iter_mut().zip(&client.debts.touched) {
                clients[..usize::from(*touched)].iter_mut().for_each(|clients| *clients += 1);
            }
        }
        clients
    }
}

impl FollowedClient {
    fn new(at: i64) -> Self {
        let mut new = Self { last: at, requests: 1, ..Self::default() };
        new.count_peaks(second_of(at));
        new
    }

    fn add(
        &mut self,
        at: i64,
        name: impl FnOnce(&mut String),
        grid: &Grid,
        blocked: &mut Blocked,
    ) {
        let at = at.max(self.last);
        let gap = i32::try_from(at.abs_diff(self.last)).unwrap_or(i32::MAX);
        self.last = at;
        self.requests += 1;
        self.debts.charge(gap, grid, blocked);
        self.count_peaks(second_of(at));
        if self.requests == FEW_REQUESTS {
            let mut written = String::new();
            name(&mut written);
            self.name = Some(written.into());
        }
    }

    fn count_peaks(&mut self, second: u32) {
        self.second.count(second);
        self.minute.count(second / 60);
    }
}

/// The second of a time, since 1970. It fits until the year 2106.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a period's number")]
const fn second_of(at: i64) -> u32 {
    at.div_euclid(1_000_000) as u32
}

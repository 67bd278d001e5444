//! [`Demand`]: how much a host expects to spend for one key, and so how much it asks for.
//!
//! Nothing here decides whether a request is allowed: it only makes asks rare.

use crate::holding::{Holding, Wish};
use crate::limit::SharedLimit;
use crate::time::{HostTime, Micros};

/// Where a host may hold this many cells or more, its leases are long.
const CELLS_FOR_LONG: u32 = 4;
const SHORT: Micros = Micros::from_millis(500);
/// A lease for a single request is as long as the answer takes, and this.
const SINGLE: Micros = Micros::from_millis(20);
/// Cells that are not needed go back this long before their lease ends.
const GIVE_BACK_BEFORE: Micros = Micros::from_millis(50);

/// How fast the requests of one host for one key come. An estimate, which one process keeps for
/// itself and may forget.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Cells per microsecond.
    pub(crate) rate: f64,
    /// Cells that were asked for by requests since the last ask.
    pub(crate) recent: u32,
    pub(crate) asked_at: Option<HostTime>,
    /// Hosts that have a lease, 0 before the first reply.
    pub(crate) hosts: u32,
    pub(crate) scarce: bool,
}

impl Demand {
    /// Nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a request of `cells`, allowed or not.
    pub fn note(&mut self, cells: u32) {
        self.recent = self.recent.saturating_add(cells);
    }

    /// Notes what a reply says.
    pub fn reply(&mut self, hosts: u32, scarce: bool) {
        self.hosts = hosts;
        self.scarce = scarce;
    }

    /// The cells to ask for at `now`. `waiting` is the cost of all requests that wait, `least`
    /// that of the first of them; both are 0 if none waits.
    pub fn wish(
        &mut self,
        limit: &SharedLimit,
        now: HostTime,
        waiting: u32,
        least: u32,
        round_trip: Micros,
    ) -> Wish {
        self.ask(now);
        let long = if self.holds_many(limit) { limit.longest_validity() } else { SHORT };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let expected = (self.rate * long.0 as f64 / 2.0).min(f64::from(limit.burst())) as u32;
        let share = limit.burst() / self.hosts.max(1);
        let ahead = if self.scarce { 0 } else { expected.min(share) };
        let want = ahead.max(waiting).min(limit.burst());
        let validity = if want > waiting { long } else { single(round_trip) };
        Wish { want, least, validity }
    }

    /// Notes that an ask is sent: what was asked for since the last one goes into the estimate.
    pub(crate) fn ask(&mut self, now: HostTime) {
        if let Some(asked_at) = self.asked_at {
            let elapsed = now.saturating_since(asked_at).0.max(100);
            self.rate = 0.5 * self.rate + 0.5 * f64::from(self.recent) / elapsed as f64;
        }
        self.recent = 0;
        self.asked_at = Some(now);
    }

    /// Whether to ask for more now, although nobody waits: what is held will not last for two
    /// round trips.
    pub fn needs_more(&self, held: u32, round_trip: Micros) -> bool {
        self.rate * SHORT.0 as f64 > 2.0
            && f64::from(held) <= self.rate * 2.0 * round_trip.0 as f64
    }

    /// When to give back what is held, if it is held for long enough.
    pub fn gives_back_at(holding: &Holding, sent_at: HostTime) -> Option<HostTime> {
        let until = holding.valid_until();
        let long = until.saturating_since(sent_at) > Micros(2 * GIVE_BACK_BEFORE.0);
        long.then(|| until.saturating_sub(GIVE_BACK_BEFORE))
    }

    /// Whether to report spent cells as soon as none are held, although nobody waits. Cells that
    /// are not reported do not drain before their lease expires. Where a host gets few cells and a
    /// burst drains in not much more than the shortest lease lasts, that is most of the limit.
    pub fn reports_at_once(&self, limit: &SharedLimit, round_trip: Micros) -> bool {
        let drains = limit.time_to_drain(limit.cells(limit.burst()));
        !self.holds_many(limit) && drains.0 / 8 < single(round_trip).0
    }

    fn holds_many(&self, limit: &SharedLimit) -> bool {
        self.hosts > 0 && limit.burst() / CELLS_FOR_LONG >= self.hosts
    }
}

/// How long a lease for requests that wait is valid.
const fn single(round_trip: Micros) -> Micros {
    SINGLE.saturating_add(Micros(4 * round_trip.0))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const ROUND_TRIP: Micros = Micros(500);

    /// A host that gets 100 requests in 100 ms, of a limit of 1000/s.
    fn busy(burst: u32, hosts: u32) -> (Wish, Demand) {
        let limit = SharedLimit::new(Duration::from_millis(1), burst).unwrap();
        let mut demand = Demand::new();
        demand.wish(&limit, HostTime(0), 1, 1, ROUND_TRIP);
        demand.reply(hosts, false);
        demand.note(100);
        (demand.wish(&limit, HostTime(100_000), 1, 1, ROUND_TRIP), demand)
    }

    #[test]
    fn the_first_ask_is_for_what_waits() {
        let limit = SharedLimit::new(Duration::from_millis(1), 200).unwrap();
        let wish = Demand::new().wish(&limit, HostTime(0), 3, 1, ROUND_TRIP);
        assert_eq!(wish, Wish { want: 3, least: 1, validity: Micros::from_millis(22) });
    }

    #[test]
    fn a_host_wants_what_it_expects_to_spend_and_its_share_at_most() {
        let (wish, demand) = busy(10_000, 4);
        assert_eq!(wish, Wish { want: 500, least: 1, validity: Micros::from_millis(2_000) });
        assert!(demand.needs_more(0, ROUND_TRIP) && !demand.needs_more(1, ROUND_TRIP));
        assert_eq!(busy(200, 4).0.want, 50);
        let (few, _) = busy(12, 4);
        assert_eq!((few.want, few.validity), (3, Micros::from_millis(500)), "for a short time");
        assert_eq!(busy(2, 4).0.validity, Micros::from_millis(22), "nothing ahead of need");
    }

    #[test]
    fn cells_are_reported_at_once_where_few_of_them_drain_quickly() {
        let at_once = |interval_ms: u64, burst: u32| {
            let limit = SharedLimit::new(Duration::from_millis(interval_ms), burst).unwrap();
            busy(burst, 4).1.reports_at_once(&limit, ROUND_TRIP)
        };
        assert!(at_once(10, 2));
        assert!(!at_once(1, 200), "many cells");
        assert!(!at_once(1_000, 2), "22 ms more do not matter");
    }
}

//! [`Held`]: what this machine holds of a client under a limit that machines share, and what would
//! happen to a request now. Nothing is spent, and the store is not asked.

use std::time::Duration;

use gcra_lease::{HostTime, Look, Micros};
use gcra_limiter::limit_bucket::LimitBucket;
use gcra_limiter::question::Question;
use gcra_limiter::reservations::wall_clock;
use gcra_policy::store::WAITS;
use gcra_policy::{Limit, Policy};
use gcra_store::Standing;
use gcra_table::{Admission, Leases, Nanos, Quota, Table, Time};
use gcra_text::count::Count;
use gcra_text::duration::{Wait, nanoseconds};
use serde::Serialize;
use spop_agent::Message;

/// The decision now by the leases of this machine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldNow {
    Allowed,
    Blocked,
    /// A request costs more than a burst.
    Oversize,
    /// The store is asked, and decides.
    #[default]
    Asks,
    /// The store would have to be asked, and is away.
    Away,
}

/// The cells that this machine holds for a client under one shared limit.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Held {
    /// The name of the limit in header fields.
    pub limit: String,
    /// "10 per second, up to 20 at once".
    pub text: String,
    pub now: HeldNow,
    /// Cells that can be spent without asking.
    pub cells: u32,
    pub burst: u32,
    /// How long they can still be spent.
    pub(crate) valid_ms: u64,
    /// Cells that were spent, and of which the store has not confirmed that it knows it.
    pub unreported: u32,
    /// How long this machine does not ask the store, because the store said so.
    pub(crate) blocked_ms: u64,
    /// How long a request now would have to wait, if it is allowed with a delay.
    pub delay_ms: u64,
    /// Whether an ask is under way.
    pub asking: bool,
    /// Whether this machine knows anything about the client.
    pub known: bool,
    /// Whether the store is asked about each request, so that no cells are lent.
    pub at_once: bool,
    /// Whether the limit counts in windows.
    pub counts: bool,
    pub store: Option<Stored>,
    /// Why the store could not be asked.
    pub(crate) store_fault: Option<String>,
}

/// The debt and the leases of a client in the store under one shared limit.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Stored {
    /// Cells that are owed, without those that are lent.
    pub owed: u32,
    /// Cells that machines hold.
    pub lent: u32,
    /// Cells that are neither owed nor lent.
    pub free: u32,
    /// Machines that have asked in the last seconds.
    pub machines: u32,
    /// How long it takes until nothing is owed any more.
    pub(crate) full_after_ms: u64,
}

impl Stored {
    /// `usage` is what the store knows about a bucket of this burst, if it knows anything.
    pub(crate) fn new(usage: Option<Standing>, burst: u32) -> Self {
        match usage {
            None => Self { free: burst, ..Self::default() },
            Some(usage) => Self {
                owed: usage.owed,
                lent: usage.lent,
                free: usage.free,
                machines: usage.hosts,
                full_after_ms: usage.drains_in.0.div_ceil(1_000),
            },
        }
    }

    fn in_words(self, burst: u32, counts: bool) -> String {
        let Self { owed, lent, free, machines, full_after_ms } = self;
        if counts {
            return format!("in the store: {owed} of {burst} counted in this window");
        }
        match (owed, lent) {
            (_, 0) if owed > 0 => format!(
                "in the store: {} owed, {free} of {burst} free; all {burst} in {}",
                Count(owed, "cell", "cells"),
                left(full_after_ms)
            ),
            (0, 0) => format!("in the store: nothing is owed or lent, so all {burst} are free"),
            _ => {
                let mut words = format!(
                    "in the store: {} owed, {lent} lent ({}), {free} of {burst} free",
                    Count(owed, "cell", "cells"),
                    Count(machines, "machine has asked lately", "machines have asked lately"),
                );
                if full_after_ms > 0 {
                    words.push_str(&format!("; nothing is owed in {}", left(full_after_ms)));
                }
                words
            }
        }
    }
}

impl Held {
    /// The cells held under this limit of the policy of the question. `leases` are those beside
    /// the table, as they are `now`; without them, nothing is held. `at_once` is whether the store
    /// is asked about each request.
    pub(crate) fn of(
        (leases, now): (Option<&Leases>, HostTime),
        table: &Table,
        (Question { key, cells, .. }, at_once): (Question, bool),
        message: &Message<'_>,
        limit: &Limit,
    ) -> Self {
        let bucket = LimitBucket::of(table, limit, key, Some(message));
        let burst = bucket.quota.burst();
        let nothing = Self {
            limit: limit.label.to_string(),
            text: limit.in_words_for(message),
            burst,
            now: if cells > burst { HeldNow::Oversize } else { HeldNow::Asks },
            at_once,
            counts: limit.calendar().is_some(),
            ..Self::default()
        };
        let Some(leases) = leases.filter(|_| !at_once) else { return nothing };
        let key = bucket.lease_key(limit);
        // The `--store-wait` of agents is not known here. An ask of this age is lost in any case.
        let longest = u64::try_from(WAITS.end().as_micros()).unwrap_or(u64::MAX);
        let (holding, patience) = (leases.holding(key, now), Micros(longest));
        let held = holding.held(now);
        let look = holding.look(now, cells, patience);
        let left = |until: HostTime| until.saturating_since(now).0.div_ceil(1_000);
        // A key of which nothing is held is blocked for a request of any cost, or for one that
        // costs as much as was denied.
        let blocked_ms = match holding.look(now, cells.max(1), patience) {
            Look::Blocked { until } => left(until),
            Look::Enough | Look::Waiting { .. } | Look::Lacking => 0,
        };
        let asking = holding.is_asking(now, patience);
        Self {
            now: match look {
                _ if cells > burst => HeldNow::Oversize,
                Look::Enough => HeldNow::Allowed,
                Look::Blocked { .. } => HeldNow::Blocked,
                Look::Waiting { .. } | Look::Lacking => HeldNow::Asks,
            },
            cells: held,
            valid_ms: if held > 0 { left(holding.valid_until()) } else { 0 },
            unreported: holding.unreported(),
            blocked_ms,
            asking,
            known: held > 0 || holding.unreported() > 0 || blocked_ms > 0 || asking,
            ..nothing
        }
    }

    /// Adds the store's decision about a request of this cost now. Does so only if agents ask the
    /// store about each request, and the record is known.
    pub(crate) fn decide(
        &mut self,
        Question { cells, .. }: Question,
        policy: &Policy,
        limit: &Limit,
        message: &Message<'_>,
    ) {
        let Some(stored) = self.store.filter(|_| self.at_once && self.now == HeldNow::Asks) else {
            return;
        };
        // One that its response will charge needs a cell, whatever it reserves.
        let needs = cells.max(u32::from(policy.settle().is_some()));
        let (wait, delay) = match limit.calendar() {
            _ if needs == 0 || needs <= stored.free => (Nanos::ZERO, Nanos::ZERO),
            Some(calendar) => {
                let now = wall_clock();
                let second = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
                let end = u64::try_from(calendar.bounds_at(second).end).unwrap_or_default();
                let left = Duration::from_secs(end).saturating_sub(now);
                (Nanos(nanoseconds(left).max(1)), Nanos::ZERO)
            }
            None => {
                let owed = Nanos::from_millis(stored.full_after_ms);
                wait_and_delay(limit.quota(Some(message)), owed, needs)
            }
        };
        let is_blocked = wait > Nanos::ZERO;
        self.now = if is_blocked { HeldNow::Blocked } else { HeldNow::Allowed };
        self.blocked_ms = wait.millis_ceil();
        self.delay_ms = if is_blocked { 0 } else { delay.millis_ceil() };
    }

    /// "this machine holds 5 cells, for 1.9 s; 3 spent cells are not confirmed by the store yet".
    pub(crate) fn in_words(&self) -> String {
        let mut parts = vec![match (self.cells, self.blocked_ms) {
            _ if self.at_once => "the store is asked about each request".to_owned(),
            (0, 0) => "this machine holds no cells".to_owned(),
            (0, ms) => format!(
                "blocked on this machine for another {}, as the store said; then the store is \
                 asked again",
                left(ms)
            ),
            (cells, _) => format!(
                "this machine holds {} for another {}",
                Count(cells, "cell", "cells"),
                left(self.valid_ms)
            ),
        }];
        if self.unreported > 0 {
            let are = Count(self.unreported, "spent cell is", "spent cells are");
            parts.push(format!("{are} not reported to the store yet"));
        }
        if self.asking {
            parts.push("the store is being asked".to_owned());
        }
        let of_store = |store: Stored| store.in_words(self.burst, self.counts);
        parts.extend(self.store.map(of_store));
        parts.extend(self.store_fault.clone());
        parts.join("; ")
    }
}

/// How long a client that owes this much has to wait until so many cells are allowed; and for how
/// long they are delayed, if they are allowed now.
pub(crate) fn wait_and_delay(quota: Quota, owed: Nanos, cells: u32) -> (Nanos, Nanos) {
    match quota.admit(Time(owed.0), Time::ZERO, cells) {
        Admission::Conforming { tat } => (Nanos::ZERO, quota.delay(Nanos(tat.0))),
        Admission::Early { wait } => (wait, Nanos::ZERO),
        Admission::Oversize => (quota.drain_time(), Nanos::ZERO),
    }
}

/// A time that still has to pass.
pub(crate) fn left(milliseconds: u64) -> Wait {
    Wait(Duration::from_millis(milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_only_lent_drains_in_no_time_and_nothing_is_said_of_it() {
        let lent = Stored { lent: 3, free: 7, machines: 1, ..Stored::default() };
        let words =
            "in the store: 0 cells owed, 3 lent (1 machine has asked lately), 7 of 10 free";
        assert_eq!(lent.in_words(10, false), words);
        let owed = Stored { owed: 2, full_after_ms: 1_500, ..lent };
        assert!(owed.in_words(10, false).ends_with("7 of 10 free; nothing is owed in 1500 ms"));
    }
}

//! [`Shared`]: what the threads of a process and the task of its store share.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use gcra_lease::Micros;

use crate::client::fault::Fault;

/// How long a server must be there without a break so that every host finds it. The host looks for
/// it with [`look_every`](crate::Config::look_every) of half a second: a new attempt begins every
/// 62 ms, whether the one before has ended or not.
pub const FOUND_WITHIN: Duration = Duration::from_millis(150);

/// The state that the threads and the task share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Asks and charges that are under way, answers to asks that were not fetched included.
    under_way: AtomicUsize,
    most_asks: usize,
    /// The number of the next charge.
    pub(crate) charges: AtomicU64,
    /// No server can be used.
    pub(crate) away: AtomicBool,
    /// The parts of the store, which fail apart.
    pub(crate) parts: Box<[Part]>,
    pub(crate) opened: Instant,
    pub(crate) round_trip: RoundTrip,
    pub(crate) counters: AtomicCounters,
}

impl Shared {
    pub(crate) fn new(most_asks: usize, parts: usize) -> Self {
        Self {
            parts: (0..parts).map(|_| Part::default()).collect(),
            opened: Instant::now(),
            under_way: AtomicUsize::new(0),
            most_asks,
            charges: AtomicU64::new(1),
            away: AtomicBool::new(true),
            round_trip: RoundTrip::default(),
            counters: AtomicCounters::default(),
        }
    }
}

/// The known state of a part of the store. Moments are microseconds since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Its server can be used.
    pub(crate) usable: AtomicBool,
    /// When it is known to have been away, at the latest.
    pub(crate) missed: AtomicU64,
    /// The number of its server. Another server has another number.
    pub(crate) server: AtomicU64,
    /// Since when the connection to its server is there.
    pub(crate) connected: AtomicU64,
    /// When it is known to have been there for [`FOUND_WITHIN`], at the latest; 0 if it never was.
    pub(crate) steady: AtomicU64,
}

/// A place among the asks and charges that may be under way at once.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Shared>);

impl Permit {
    pub(crate) fn take(shared: &Arc<Shared>, count: usize) -> Option<impl Iterator<Item = Self>> {
        let before = shared.under_way.fetch_add(count, Ordering::Relaxed);
        if before.saturating_add(count) > shared.most_asks {
            shared.under_way.fetch_sub(count, Ordering::Relaxed);
            return None;
        }
        Some((0..count).map(|_| Self(shared.clone())).collect::<Vec<_>>().into_iter())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A smoothed estimate of the time from submitting an ask to its reply. One task writes it.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    /// In eighths of a microsecond: what is new counts an eighth. 0 before the first reply.
    eighths: AtomicU64,
}

impl RoundTrip {
    const FEWEST: Micros = Micros(100);
    const MOST: Micros = Micros::from_millis(500);
    /// The round trip that is supposed before the first reply.
    const SUPPOSED: Micros = Micros(500);

    /// The first reply is one of many.
    pub(crate) const fn supposed() -> Self {
        Self { eighths: AtomicU64::new(8 * Self::SUPPOSED.0) }
    }

    pub(crate) fn note(&self, took: Micros) {
        let before = self.eighths.load(Ordering::Relaxed);
        let took = took.clamp(Self::FEWEST, Self::MOST);
        let now = if before == 0 { 8 * took.0 } else { before - before / 8 + took.0 };
        self.eighths.store(now, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Micros {
        match self.eighths.load(Ordering::Relaxed) {
            0 => Self::SUPPOSED,
            eighths => Micros(eighths / 8),
        }
    }
}

/// The servers of a store. Before the first look there are none.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// Each primary.
    pub servers: Vec<ServerHealth>,
    /// Why it cannot be found out where the servers are: what the sentinels, or the nodes of the
    /// cluster, say.
    pub fault: Option<Fault>,
    /// How often the servers were looked at.
    pub looks: u64,
    /// Since when there is no server that can be used: since the last one was lost, or since the
    /// store was opened. `None` while there is one.
    pub away_since: Option<Instant>,
    /// For how long there was none before that, all times together.
    pub away_before: Duration,
}

impl Health {
    pub(crate) const fn new(opened: Instant) -> Self {
        Self {
            servers: Vec::new(),
            fault: None,
            looks: 0,
            away_since: Some(opened),
            away_before: Duration::ZERO,
        }
    }

    /// Notes whether there is a server that can be used. The clock is read here, where no other
    /// thread can read it, so that the time that the store was away never becomes less.
    pub(crate) fn note(&mut self, usable: bool) {
        if !usable {
            self.away_since.get_or_insert_with(Instant::now);
        } else if let Some(since) = self.away_since.take() {
            self.away_before += since.elapsed();
        }
    }

    /// For how long there was no server that can be used, until now.
    pub(crate) fn away_total(&self) -> Duration {
        self.away_before + self.away_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether a look has found that something is wrong.
    pub fn has_failed(&self) -> bool {
        self.fault.is_some() || self.servers.iter().any(|server| server.fault.is_some())
    }

    /// Whether there are servers, and all of them can be used.
    pub fn is_well(&self) -> bool {
        !self.servers.is_empty() && self.servers.iter().all(|server| server.fault.is_none())
    }
}

/// One primary.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerHealth {
    /// Its address.
    pub address: String,
    /// Why it cannot be used, if it cannot.
    pub fault: Option<Fault>,
    /// How many replicas confirm each reply. 0 if it is not durable.
    pub replicas: u32,
    /// Since when it can be used, or cannot.
    pub since: Instant,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How often something has happened since the store was opened.
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        #[non_exhaustive]
        pub struct StoreCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct AtomicCounters {
            $(pub(crate) $name: Tally,)*
        }

        impl AtomicCounters {
            pub(crate) fn read(&self) -> StoreCounters {
                StoreCounters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Asks that were sent. Charges are counted apart.
    asks,
    /// Calls: the asks and charges of one round that go to one server.
    calls,
    /// Replies that may be used.
    replies,
    /// Cells that they granted.
    granted,
    /// Microseconds from submitting these asks to their replies, all together.
    micros,
    /// Asks that the store has ignored.
    ignored,
    /// Asks without a reply that may be used.
    void,
    /// Of these, the asks that were not answered in time.
    late,
    /// Asks that were not sent.
    away,
    /// Charges that were sent, those that were sent again included.
    charges,
    /// Charges without a reply that may be used, which the store may have made.
    charges_unknown,
    /// Charges that were not sent, or that a server did nothing with.
    charges_away,
    /// How often the clock of a server went ahead by more than 20 ms.
    leaps_forward,
    /// How often it went back.
    leaps_back,
}

/// One of the counters.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    pub(crate) fn add(&self, count: impl TryInto<u64>) {
        self.0.fetch_add(count.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_smoothed_and_stays_in_its_bounds() {
        let round_trip = RoundTrip::default();
        assert_eq!(round_trip.get(), Micros(500));
        round_trip.note(Micros(160_000));
        assert_eq!(round_trip.get(), Micros(160_000), "a store that is far away");
        let round_trip = RoundTrip::supposed();
        assert_eq!(round_trip.get(), Micros(500));
        round_trip.note(Micros(1_300));
        assert_eq!(round_trip.get(), Micros(600));
        for (took, becomes) in [(7_000, 7_000), (7_007, 7_007), (0, 100), (1 << 60, 500_000)] {
            for _ in 0..200 {
                round_trip.note(Micros(took));
            }
            assert_eq!(round_trip.get(), Micros(becomes), "after many of {took} µs");
        }
    }
}

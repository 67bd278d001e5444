//! The counters of a policy beside its decisions. They count seldom, or in requests that can spare
//! some nanoseconds, so all workers share one of each counter.

// ADR 32: Counting takes no locked instruction, and names are sampled.

use std::sync::atomic::{AtomicU64, Ordering};

use gcra_policy::limit_from_arg::ArgValue;
use gcra_table::board::OrderKind;

use crate::settlement::{SettledCells, Settlement};
use crate::verdict::{DECISIONS, OUTCOMES};

/// To add a counter, add a field here, and the line in gcra-admin's `status.rs` that shows it.
#[derive(Debug)]
pub struct SeldomCounts {
    /// Decisions that were made without the store, by outcome. They are decisions, too.
    pub without_store: NamedCounters<DECISIONS>,
    /// Messages that were allowed with a delay. They are decisions, too.
    pub delayed: NamedCounters<1>,
    /// Messages about limits whose numbers are in an arg, by what the arg said.
    pub limit_args: NamedCounters<{ ArgValue::ALL.len() }>,
    /// Messages that have settled requests, by how.
    pub settled: NamedCounters<{ Settlement::ALL.len() }>,
    /// The cells that these have settled.
    pub settled_cells: NamedCounters<{ SettledCells::NAMES.len() }>,
    /// Messages that an order has decided about, by what it says. They are decisions, too.
    pub ordered: NamedCounters<2>,
}

impl Default for SeldomCounts {
    fn default() -> Self {
        Self {
            without_store: NamedCounters::of(std::array::from_fn(|place| OUTCOMES[place])),
            delayed: NamedCounters::of(["delayed"]),
            limit_args: NamedCounters::of(ArgValue::ALL.map(ArgValue::as_str)),
            settled: NamedCounters::of(Settlement::ALL.map(Settlement::as_str)),
            settled_cells: NamedCounters::of(SettledCells::NAMES),
            ordered: NamedCounters::of(["exempt", "block"]),
        }
    }
}

impl SeldomCounts {
    pub(crate) fn count_ordered(&self, order: OrderKind) {
        let place = match order {
            OrderKind::Exempt => 0,
            OrderKind::Block => 1,
        };
        self.ordered.add(place, 1);
    }
}

/// Counters with names, which any thread may add to.
#[derive(Debug)]
pub struct NamedCounters<const N: usize>([(&'static str, AtomicU64); N]);

impl<const N: usize> NamedCounters<N> {
    fn of(names: [&'static str; N]) -> Self {
        Self(names.map(|name| (name, AtomicU64::new(0))))
    }

    /// Adds to the counter at this place.
    pub(crate) fn add(&self, place: usize, count: u64) {
        self.0[place].1.fetch_add(count, Ordering::Relaxed);
    }

    /// All of them, with their names.
    pub fn each(&self) -> [(&'static str, u64); N] {
        self.0.each_ref().map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
    }

    pub fn sum(&self) -> u64 {
        self.each().iter().map(|(_, count)| count).sum()
    }
}

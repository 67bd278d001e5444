//! How responses settle what their requests have reserved.

// ADR 41: A response settles what its request reserved.

use std::time::Duration;

use gcra_table::{Nanos, Quota, QuotaError};

/// The arg of a settling message that brings back what the request was answered.
pub const RESERVED: &str = "reserved";

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settle {
    /// The name of the message of the response.
    pub message: Box<[u8]>,
    /// The name of the arg of that message with the real cost. Without one, it is one cell.
    pub cost: Option<Box<[u8]>>,
    /// The arg of the request's message that says how many cells to reserve.
    pub reserve: Option<Box<[u8]>>,
    /// How many cells to reserve without a value of that arg.
    pub cells: u32,
    /// How old a reservation can be so that something of it is given back.
    pub within: Duration,
    /// The cost of a request that no response settles within that time, if it is more than what
    /// the request has reserved.
    pub unsettled: Option<UnsettledCost>,
    /// How long a debt beyond the burst may take to be paid off. It is a part of the quotas.
    pub max_debt: Duration,
}

/// The cost of requests that no response settles.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnsettledCost {
    /// In all, with the cells that the request has reserved.
    pub cells: u32,
    /// The number by which agents find what such requests of a client cost. It follows from the
    /// policy, the cells and the time, so that agents that differ in them never mix them up.
    pub id: u64,
}

impl Settle {
    /// Whether requests can reserve cells, or must be settled in time. Then each gets the variable
    /// `reserved`.
    pub fn reserves(&self) -> bool {
        self.cells > 0 || self.reserve.is_some() || self.unsettled.is_some()
    }
}

/// The same quota, for keys that may owe what drains in `max_debt` beyond the burst.
///
/// The time for a cell is rounded up to a whole nanosecond. So the cells that come back in
/// `max_debt` by the rate can take a nanosecond longer for each of them, and they still count.
pub(crate) fn with_max_debt(quota: Quota, max_debt: Nanos) -> Result<Quota, QuotaError> {
    let interval = quota.emission_interval().0;
    let cells = max_debt.0.div_ceil(interval);
    let takes = cells.saturating_mul(interval);
    let is_rounded = takes.saturating_sub(max_debt.0) < cells;
    let beyond = if is_rounded { Nanos(takes) } else { max_debt };
    quota.with_most_owed(quota.drain_time().saturating_add(beyond))
}

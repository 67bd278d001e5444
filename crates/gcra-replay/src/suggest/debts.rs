//! The debt of a client under each limit of the grid.

use super::grid::{BURSTS, Grid, PerLimit, RATE_COUNT, Row};

/// Rows are added in steps of this, so that a client has no more memory than it needs.
const STEP: usize = 4;

/// How many requests of all clients each limit would have blocked.
#[derive(Clone, Debug)]
pub(crate) struct Blocked {
    pub(super) sums: Box<PerLimit<u64>>,
    /// Requests that are still to be added to the sums. Counts as wide as debts take no time
    /// beside them.
    recent: Box<PerLimit<i32>>,
    recent_requests: u32,
}

/// No count of recent requests can overflow before they are added to the sums.
const MOST_RECENT: u32 = 1 << 30;

impl Blocked {
    pub(crate) fn new() -> Self {
        Self {
            sums: Box::new([[0; BURSTS]; RATE_COUNT]),
            recent: Box::new([[0; BURSTS]; RATE_COUNT]),
            recent_requests: 0,
        }
    }

    /// The requests that each limit would have blocked.
    pub(crate) fn requests(&mut self) -> &PerLimit<u64> {
        self.settle();
        &self.sums
    }

    pub(super) fn settle(&mut self) {
        let sums = self.sums.as_flattened_mut().iter_mut();
        for (sum, more) in sums.zip(self.recent.as_flattened_mut()) {
            *sum += u64::from(std::mem::take(more).unsigned_abs());
        }
        self.recent_requests = 0;
    }

    fn begin_request(&mut self) {
        self.recent_requests += 1;
        if self.recent_requests == MOST_RECENT {
            self.settle();
        }
    }
}

/// The debts of one client under each limit since its last request, in microseconds; exactly what
/// the agent would have counted ([`gcra_table::Quota::admit`] for one cell).
#[derive(Clone, Debug, Default)]
pub(crate) struct Debts {
    /// For the lowest rates. Under the rates after these it was idle at its last request, so that
    /// since then it owes one cell.
    rows: Vec<[i32; BURSTS]>,
    /// Under each rate, how many bursts (the smallest ones) have blocked the client.
    pub(super) touched: [u8; RATE_COUNT],
}

impl Debts {
    /// Charges a request that came `gap` microseconds after the one before. (No debt is longer
    /// than the longest gap that can be written.)
    pub(crate) fn charge(&mut self, gap: i32, grid: &Grid, blocked: &mut Blocked) {
        let Self { rows, touched } = self;
        while let Some(limits) = grid.0.get(rows.len()).filter(|limits| limits.interval > gap) {
            if rows.len() == rows.capacity() {
                rows.reserve_exact(STEP);
            }
            rows.push([limits.interval; BURSTS]);
        }
        blocked.begin_request();
        let each = rows.iter_mut().zip(&grid.0).zip(blocked.recent.iter_mut()).zip(touched);
        for (((row, limits), blocked), touched) in each {
            let denied = charge_row(row, gap, limits, blocked);
            if *touched < BURSTS_U8 {
                *touched = (*touched).max(highest(&denied));
            }
        }
        // The largest burst owes the most, and one cell is what this request has cost.
        while let Some((row, limits)) = rows.last().zip(grid.0.get(rows.len().wrapping_sub(1)))
            && row[BURSTS - 1] == limits.interval
        {
            rows.pop();
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a row is short")]
const BURSTS_U8: u8 = BURSTS as u8;

/// Decides about one cell under each burst of a rate, -1 where it is denied.
///
/// There is no branch, and all numbers have the same width, so that the compiler decides about
/// four bursts or more in each instruction.
fn charge_row(
    row: &mut [i32; BURSTS],
    gap: i32,
    limits: &Row,
    blocked: &mut [i32; BURSTS],
) -> [i32; BURSTS] {
    let mut denied = [0; BURSTS];
    for at in 0..BURSTS {
        let owed = row[at] - gap;
        // No less than 0.
        let owed = owed & !(owed >> 31);
        denied[at] = (limits.tolerance[at] - owed) >> 31;
        row[at] = owed + (limits.interval & !denied[at]);
        blocked[at] -= denied[at];
    }
    denied
}

/// How many bursts have certainly blocked the client if this request is `denied` under some: up to
/// the largest of those.
fn highest(denied: &[i32; BURSTS]) -> u8 {
    (1..=BURSTS_U8)
        .zip(denied)
        .filter(|(_, denied)| **denied != 0)
        .map(|(at, _)| at)
        .max()
        .unwrap_or(0)
}

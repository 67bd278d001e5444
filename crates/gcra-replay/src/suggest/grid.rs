//! The grid: the limits that are tried on each client.
//!
//! # Why a few steps are enough for each request
//!
//! All debts are exact, and what follows only saves work. A client that was idle under a limit is
//! described by the time of its last request: it owes one emission interval since then. So a
//! client keeps rows for the lowest rates only, up to the highest under which it was not idle.
//!
//! Under one rate, a larger burst never owes less: let the debts be a <= b under the bursts
//! m < n. If m blocks, a does not grow. If n blocks and m allows, then a + T <= m * T, because m
//! allows, and b > (n - 1) * T >= m * T, because n blocks. If both allow, both grow by T. So the
//! debt under the largest burst says whether a whole row is idle.
//!
//! For the same reason, a request that is the first that a burst blocks has been blocked by each
//! smaller burst, then or before. (Until its first blocked request, a client owes under each burst
//! what it would owe without a burst.) So a client's touched bursts under a rate are a number: the
//! smallest ones.

use gcra_table::{MAX_BURST, Quota, Rate};

/// The rates that are tried, lowest first, as a person would write them.
const RATES: [&str; RATE_COUNT] = [
    "1/m", "2/m", "5/m", "10/m", "20/m", "30/m", "1/s", "2/s", "5/s", "10/s", "20/s", "50/s",
    "100/s", "200/s", "500/s", "1000/s", "2000/s", "5000/s", "10000/s",
];
pub(crate) const RATE_COUNT: usize = 19;

/// How many bursts are tried with each rate. Eight debts are a row of 32 bytes.
pub(crate) const BURSTS: usize = 8;

/// A limit from which a client recovers later than this is not tried.
const LONGEST_DRAIN_US: u64 = 1_800_000_000;

/// Something for each limit.
pub(crate) type PerLimit<T> = [[T; BURSTS]; RATE_COUNT];

/// A rate with its bursts, in microseconds. Microseconds are exact: the emission interval of each
/// rate above is a whole number of them, and so are the times of a log.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub rate: &'static str,
    pub per_second: f64,
    /// T, the time for a cell. Signed, as what is compared with it.
    pub interval: i32,
    /// Ascending. Where the drain time would be too long, the largest burst is repeated.
    pub bursts: [u32; BURSTS],
    /// How many of the bursts differ.
    pub len: usize,
    /// τ for each burst.
    pub(crate) tolerance: [i32; BURSTS],
}

/// The limits that are tried, lowest rate first.
#[derive(Clone, Debug)]
pub(crate) struct Grid(pub Vec<Row>);

impl Grid {
    pub(crate) fn new() -> Self {
        // Each of the rates is one (a test reads them all), so none is left out.
        Self(RATES.iter().filter_map(|rate| row(rate)).collect())
    }

    /// Each limit once: the positions of its rate and its burst.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.iter().enumerate().flat_map(|(at, row)| (0..row.len).map(move |burst| (at, burst)))
    }

    /// The lowest limit with this rate and burst at least.
    pub(crate) fn at_least(&self, per_second: f64, burst: u32) -> Option<(usize, usize)> {
        // 60 per minute are 1 per second.
        self.limits().find(|(rate, at)| {
            let row = &self.0[*rate];
            row.per_second >= per_second * 0.999_999 && row.bursts[*at] >= burst
        })
    }
}

/// The row of a rate. The smallest burst is what the rate allows in a tenth of a second, and
/// those after it are written like the rates: 1, 2, 5, 10 and so on.
fn row(rate: &'static str) -> Option<Row> {
    let parsed: Rate = rate.parse().ok()?;
    let quota = |burst: u32| -> Option<Quota> {
        let quota = parsed.quota(Some(burst.into())).ok()?;
        (quota.drain_time().get() / 1000 <= LONGEST_DRAIN_US).then_some(quota)
    };
    let interval_us = quota(1)?.emission_interval().get() / 1000;
    let least = 100_000_u64.div_ceil(interval_us);
    let all = written_counts().skip_while(|burst| u64::from(*burst) < least);
    let tried: Vec<Quota> = all.take(BURSTS).map_while(quota).collect();
    let last = tried.len().checked_sub(1)?;
    let burst = |at: usize| tried[at.min(last)];
    let micros = |nanos: u64| i32::try_from(nanos / 1000).unwrap_or(i32::MAX);
    Some(Row {
        rate,
        per_second: 1e9 / f64_from(quota(1)?.emission_interval().get()),
        interval: i32::try_from(interval_us).ok()?,
        bursts: std::array::from_fn(|at| burst(at).burst()),
        len: tried.len(),
        tolerance: std::array::from_fn(|at| micros(burst(at).burst_tolerance().get())),
    })
}

/// 1, 2, 5, 10, 20, 50 and so on.
fn written_counts() -> impl Iterator<Item = u32> {
    let decades = std::iter::successors(Some(1_u32), |decade| decade.checked_mul(10));
    decades
        .flat_map(|decade| [1, 2, 5].map(|count| decade.saturating_mul(count)))
        .take_while(|count| *count < MAX_BURST)
}

/// Counts are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "a share or a rate needs no more digits")]
pub(crate) const fn f64_from(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_exact_in_microseconds() {
        let grid = Grid::new();
        assert_eq!(grid.0.len(), RATES.len());
        for row in &grid.0 {
            let rate: Rate = row.rate.parse().unwrap();
            for at in 0..row.len {
                let quota = rate.quota(Some(row.bursts[at].into())).unwrap();
                assert_eq!(
                    quota.emission_interval().get(),
                    u64::from(row.interval.unsigned_abs()) * 1000
                );
                let tolerance = u64::from(row.tolerance[at].unsigned_abs()) * 1000;
                assert_eq!(quota.burst_tolerance().get(), tolerance);
            }
            // A debt never overflows.
            assert!(row.tolerance[BURSTS - 1].checked_add(row.interval).is_some());
            assert!(row.bursts.is_sorted(), "{row:?}");
        }
        assert!(grid.0.is_sorted_by(|low, high| low.interval > high.interval));
    }

    #[test]
    fn bursts_as_a_person_would_write_them() {
        let grid = Grid::new();
        let bursts = |rate: &str| {
            let row = grid.0.iter().find(|row| row.rate == rate).unwrap();
            row.bursts[..row.len].to_vec()
        };
        assert_eq!(bursts("1/m"), [1, 2, 5, 10, 20]);
        assert_eq!(bursts("1/s"), [1, 2, 5, 10, 20, 50, 100, 200]);
        assert_eq!(bursts("100/s"), [10, 20, 50, 100, 200, 500, 1000, 2000]);
    }

    #[test]
    fn at_least() {
        let grid = Grid::new();
        let found = |per_second, burst| {
            let (rate, at) = grid.at_least(per_second, burst)?;
            Some((grid.0[rate].rate, grid.0[rate].bursts[at]))
        };
        assert_eq!(found(1.0, 20), Some(("1/s", 20)));
        assert_eq!(found(4.0, 40), Some(("5/s", 50)));
        assert_eq!(found(100.0, 1), Some(("100/s", 10)));
        assert_eq!(found(10_001.0, 1), None);
    }
}

//! How busy clients were in their busiest second and minute, and how many were that busy.

use serde::Serialize;

/// The most requests in one period of the clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peak {
    /// The number of the last period with a request, and how many that has.
    pub(crate) period: u32,
    requests: u32,
    pub most: u32,
}

impl Peak {
    /// Counts a request in the period with this number.
    pub(crate) fn count(&mut self, period: u32) {
        self.requests = if self.period == period { self.requests.saturating_add(1) } else { 1 };
        self.period = period;
        self.most = self.most.max(self.requests);
    }
}

/// Clients whose busiest period had from `from` to `to` requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Bin {
    pub from: u32,
    pub to: u32,
    pub clients: u64,
}

/// The bounds of bins within a decade: each bin begins at a bound.
const BEGINS: [u32; 7] = [10, 15, 20, 30, 40, 50, 70];

/// The clients by the requests of their busiest period, in bins that grow with it; none after the
/// last that has a client.
pub(crate) fn distribution(peaks: impl Iterator<Item = u32>) -> Vec<Bin> {
    let decades = std::iter::successors(Some(10_u32), |decade| decade.checked_mul(10));
    let large = decades.flat_map(|decade| {
        BEGINS.iter().filter_map(move |begin| (decade / 10).checked_mul(*begin))
    });
    let begins: Vec<u32> = (1..10).chain(large).collect();
    let ends = begins.iter().skip(1).map(|next| next - 1).chain([u32::MAX]);
    let mut bins: Vec<Bin> =
        begins.iter().zip(ends).map(|(from, to)| Bin { from: *from, to, clients: 0 }).collect();
    for peak in peaks.filter(|peak| *peak > 0) {
        bins[begins.partition_point(|begin| *begin <= peak) - 1].clients += 1;
    }
    let used = bins.iter().rposition(|bin| bin.clients > 0).map_or(0, |last| last + 1);
    bins.truncate(used);
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_period() {
        let mut peak = Peak::default();
        [7, 7, 8, 8, 8, 9, 20].into_iter().for_each(|second| peak.count(second));
        assert_eq!(peak.most, 3);
    }

    #[test]
    fn bins() {
        let bins = distribution([1, 1, 3, 9, 10, 14, 15, 99, 100].into_iter());
        let used: Vec<_> = bins.iter().filter(|bin| bin.clients > 0).collect();
        let used: Vec<_> = used.iter().map(|bin| (bin.from, bin.to, bin.clients)).collect();
        assert_eq!(
            used,
            [
                (1, 1, 2),
                (3, 3, 1),
                (9, 9, 1),
                (10, 14, 2),
                (15, 19, 1),
                (70, 99, 1),
                (100, 149, 1)
            ]
        );
        assert_eq!(distribution(std::iter::empty()), []);
        assert_eq!(distribution([u32::MAX].into_iter()).last().unwrap().to, u32::MAX);
    }
}

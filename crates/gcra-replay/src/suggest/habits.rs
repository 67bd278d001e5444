//! How a client comes: its gaps, its hours, its user agents and paths.

use super::Hints;
use super::grid::f64_from;

/// Names that are told apart. A client with this many may have more.
pub(crate) const MOST_NAMES: usize = 8;

/// Gaps below this are too short for the milliseconds of a log.
const SHORT_GAP_US: u32 = 2_000;
/// Up to 35 minutes, which is the longest gap that is counted in microseconds.
const GAP_BINS: usize = 42;

/// What the log shows of a client that came more than a few times. About 220 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// As REPLAY writes it.
    pub name: Box<str>,
    /// Gaps by their length, two bins to a doubling; the first has those too short to tell, and
    /// the last all longer ones.
    gaps: [u16; GAP_BINS],
    /// Requests by the hour of the day, in UTC.
    hours: [u16; 24],
    /// How many hours of the clock had a request, and which was the last one.
    pub(crate) active_hours: u32,
    last_hour: u32,
    pub agents: Names,
    pub paths: Names,
}

impl Habits {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name: name.into(),
            gaps: [0; GAP_BINS],
            hours: [0; 24],
            active_hours: 0,
            last_hour: u32::MAX,
            agents: Names::default(),
            paths: Names::default(),
        }
    }

    #[inline]
    pub(crate) fn observe(&mut self, gap: u32, second: u32, hints: Hints<'_>) {
        count(&mut self.gaps, gap_bin(gap));
        let hour = second / 3600;
        count(&mut self.hours, (hour % 24) as usize);
        if hour != self.last_hour {
            self.active_hours = self.active_hours.saturating_add(1);
            self.last_hour = hour;
        }
        self.agents.observe(hints.user_agent);
        self.paths.observe(hints.path);
    }

    /// How much of its gaps are about as long as the most common one (a third more or less), and
    /// that length in seconds. `None` if most gaps are too short to tell. Long ones are of any
    /// length, so no two of them are alike.
    pub(crate) fn steadiness(&self) -> Option<(f64, f64)> {
        let sum: u64 = self.gaps.iter().map(|gaps| u64::from(*gaps)).sum();
        let pair = |at: usize| u64::from(self.gaps[at]) + u64::from(self.gaps[at + 1]);
        let common = (1..GAP_BINS - 2).max_by_key(|at| pair(*at))?;
        let told = sum - u64::from(self.gaps[0]);
        if sum == 0 || told * 2 < sum {
            return None;
        }
        Some((f64_from(pair(common)) / f64_from(sum), gap_of_bin(common + 1)))
    }

    /// The share of its requests in its quietest six hours of the day that follow each other:
    /// a quarter if it comes at any hour alike.
    pub(crate) fn night(&self) -> f64 {
        let of = |hours: &mut dyn Iterator<Item = usize>| -> u64 {
            hours.map(|hour| u64::from(self.hours[hour % 24])).sum()
        };
        let all = of(&mut (0..24)).max(1);
        let quietest = (0..24).map(|begin| of(&mut (begin..begin + 6))).min().unwrap_or(0);
        f64_from(quietest) / f64_from(all)
    }
}

/// Counts in 16 bits: what was counted before is halved when a count is full.
#[inline]
fn count(counts: &mut [u16], at: usize) {
    if counts[at] == u16::MAX {
        counts.iter_mut().for_each(|count| *count /= 2);
    }
    counts[at] += 1;
}

#[inline]
const fn gap_bin(gap: u32) -> usize {
    if gap < SHORT_GAP_US {
        return 0;
    }
    let ratio = gap / (SHORT_GAP_US / 2);
    let doublings = ratio.ilog2();
    let half = (ratio >> (doublings - 1)) & 1;
    let bin = (2 * doublings + half - 1) as usize;
    if bin < GAP_BINS { bin } else { GAP_BINS - 1 }
}

/// The shortest gap of a bin, in seconds.
fn gap_of_bin(bin: usize) -> f64 {
    let bin = bin.max(1) + 1;
    let whole = f64_from(u64::from(SHORT_GAP_US / 2) << (bin / 2));
    whole * if bin % 2 == 1 { 1.5 } else { 1.0 } / 1e6
}

/// How many different texts there were, up to [`MOST_NAMES`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names {
    hashes: [u32; MOST_NAMES],
    pub len: u8,
    /// Whether the log had the text at all.
    pub(crate) are_known: bool,
}

impl Names {
    #[inline]
    fn observe(&mut self, name: Option<&[u8]>) {
        let Some(name) = name else { return };
        self.are_known = true;
        let len = usize::from(self.len);
        if len == MOST_NAMES {
            return;
        }
        let hash = hash(name);
        if !self.hashes[..len].contains(&hash) {
            self.hashes[len] = hash;
            self.len += 1;
        }
    }
}

/// FNV-1a by words instead of bytes. Clients may provoke collisions: then two of their names count
/// as one.
fn hash(text: &[u8]) -> u32 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let (words, rest) = text.as_chunks();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let all = words.chain(rest.iter().map(|byte| u64::from(*byte)));
    let hash = all.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        ((hash ^ word).wrapping_mul(PRIME)).rotate_left(29)
    });
    ((hash ^ hash << 32) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_begins_where_it_says() {
        assert_eq!(gap_bin(SHORT_GAP_US - 1), 0);
        for bin in 1..GAP_BINS - 1 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let begin = (gap_of_bin(bin) * 1e6) as u32;
            assert_eq!(gap_bin(begin), bin);
            assert_eq!(gap_bin(begin - 1), bin - 1);
        }
        assert_eq!(gap_bin(u32::MAX), GAP_BINS - 1);
    }

    #[test]
    fn steady_gaps_are_told_from_irregular_ones() {
        let steadiness = |gaps: &mut dyn Iterator<Item = u32>| {
            let mut habits = Habits::new(String::new());
            gaps.for_each(|gap| habits.observe(gap, 0, Hints::default()));
            habits.steadiness()
        };
        let mut random = fastrand::Rng::with_seed(1);
        let (share, gap) =
            steadiness(&mut (0..100_000).map(|_| random.u32(450_000..550_000))).unwrap();
        assert!(share > 0.99, "{share}");
        assert!((0.3..0.6).contains(&gap), "{gap}");

        // A Poisson process, with the same mean.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mut irregular = (0..10_000).map(|_| (-random.f64().ln() * 500_000.0) as u32);
        let (share, _) = steadiness(&mut irregular).unwrap();
        assert!(share < 0.35, "{share}");

        // Minutes and hours between its requests, no two alike.
        let mut rare = (0..100).map(|_| random.u32(60_000_000..u32::MAX));
        let (share, _) = steadiness(&mut rare).unwrap();
        assert!(share < 0.45, "{share}");
        // Each five minutes.
        let (share, gap) = steadiness(&mut [300_100_000; 100].into_iter()).unwrap();
        assert!(share > 0.99, "{share}");
        assert!((200.0..400.0).contains(&gap), "{gap}");

        assert_eq!(steadiness(&mut [1_000; 100].into_iter()), None);
        assert_eq!(steadiness(&mut std::iter::empty()), None);
    }

    #[test]
    fn names_are_counted_up_to_a_few() {
        let mut names = Names::default();
        names.observe(None);
        assert!(!names.are_known);
        for agent in ["a", "b", "a", "curl/8.5.0 (linux)", "curl/8.5.1 (linux)"] {
            names.observe(Some(agent.as_bytes()));
        }
        assert!(names.are_known);
        assert_eq!(names.len, 4);
        (0..100_u8).for_each(|agent| names.observe(Some(&[agent])));
        assert_eq!(usize::from(names.len), MOST_NAMES);
    }
}

//! Steps of time, as many as a picture needs: they become longer while a log goes on.

/// The lengths of a step in seconds. Each is a multiple of the one before.
const STEPS: [u64; 10] = [1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400];

/// The most steps. A day has 1440 of a minute.
pub(crate) const MOST_STEPS: usize = 1500;

/// The most steps when even those of a day are too many. Later moments count in the last one.
const LAST_STEP: usize = 100_000;

/// From moments to the places of their steps.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// The place in [`STEPS`].
    length: usize,
    /// When the first step begins, in seconds since 1970; `None` before the first moment.
    start: Option<u64>,
}

/// How places change when steps become longer: `offset` steps are put in front, and each `factor`
/// steps become one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Longer {
    offset: u64,
    factor: u64,
}

impl Longer {
    /// The new place of a step.
    pub(crate) fn place(self, place: usize) -> usize {
        usize::try_from((place as u64 + self.offset) / self.factor).unwrap_or(usize::MAX)
    }
}

impl Steps {
    pub(crate) fn seconds(&self) -> u64 {
        STEPS[self.length]
    }

    /// When the first step begins, in seconds since 1970.
    pub(crate) fn start(&self) -> u64 {
        self.start.unwrap_or(0)
    }

    /// The place of the step with this moment, in seconds since 1970. If there would be too many,
    /// steps become longer first: `longer` brings each series up to that.
    pub(crate) fn place(&mut self, second: u64, mut longer: impl FnMut(Longer)) -> usize {
        loop {
            let step = self.seconds();
            let start = *self.start.get_or_insert(second / step * step);
            let place = usize::try_from(second.saturating_sub(start) / step).unwrap_or(usize::MAX);
            if place < MOST_STEPS {
                return place;
            }
            let Some(next) = STEPS.get(self.length + 1) else { return place.min(LAST_STEP) };
            let new_start = start / next * next;
            self.start = Some(new_start);
            self.length += 1;
            longer(Longer { offset: (start - new_start) / step, factor: next / step });
        }
    }
}

/// Brings the sums of a series to longer steps.
pub(crate) fn merge<const N: usize>(series: &mut Vec<[u64; N]>, longer: Longer) {
    let mut merged: Vec<[u64; N]> = Vec::new();
    for (place, sums) in series.iter().enumerate() {
        let place = longer.place(place);
        merged.resize(merged.len().max(place + 1), [0; N]);
        merged[place].iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
    }
    *series = merged;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each sum is where a count by the final step puts it.
    #[test]
    fn longer_steps_keep_each_request_in_its_time() {
        let mut random = fastrand::Rng::with_seed(3);
        for span in [10_u64, 1_499, 1_500, 9_000, 100_000, 700_000, 40_000_000] {
            let start = 1_763_700_000 + random.u64(..5_000);
            let mut moments: Vec<_> = (0..2_000).map(|_| start + random.u64(..span)).collect();
            moments.sort_unstable();
            let mut steps = Steps::default();
            let mut series: Vec<[u64; 1]> = Vec::new();
            for moment in &moments {
                let place = steps.place(*moment, |longer| merge(&mut series, longer));
                series.resize(series.len().max(place + 1), [0]);
                series[place][0] += 1;
            }
            let mut expected = vec![[0]; series.len()];
            for moment in &moments {
                let place = (moment - steps.start()) / steps.seconds();
                expected[usize::try_from(place).unwrap()][0] += 1;
            }
            assert_eq!(series, expected, "{span}");
            assert!(series.len() <= MOST_STEPS);
            assert_eq!(steps.start() % steps.seconds(), 0);
        }
    }
}

//! [`Random`]: numbers that follow from a seed (SplitMix64, Steele et al. 2014).

pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// At least 0, below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// Between two times, in µs.
    pub(crate) fn between(&mut self, least: f64, most: f64) -> u64 {
        micros(least + (most - least) * self.unit())
    }

    /// The time to the next of events that come `per_second` on average, in µs.
    pub(crate) fn next(&mut self, per_second: f64) -> u64 {
        micros(-(1.0 - self.unit()).ln() / per_second * 1e6)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = self.word() % choices.len() as u64;
        choices[usize::try_from(index).unwrap()]
    }
}

fn micros(time: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, positive")]
    let micros = time as u64;
    micros
}

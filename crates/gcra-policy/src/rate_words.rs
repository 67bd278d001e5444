//! A quota as people write it: the rate and the burst that give it.

use gcra_table::{Quota, Rate};
use gcra_text::duration::Short;

/// The units of periods in nanoseconds, those first in which people think first.
const UNITS: [(&str, u64); 5] = [
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("ms", 1_000_000),
];

/// "10 per second, up to 20 at once", of a quota that may stand for no simple rate.
pub fn numbers_in_words(quota: Quota) -> String {
    let burst = quota.burst();
    // Without what may be owed beyond the burst, which no rate has.
    let plain = Quota::new(quota.emission_interval(), burst).ok();
    match plain.and_then(rate_of) {
        Some((_, rate)) => format!("{rate}, up to {burst} at once"),
        None => {
            let interval = Short(quota.emission_interval().into());
            format!("one request per {interval}, up to {burst} at once")
        }
    }
}

/// The simple rate with this burst that gives this quota, as it can be typed; `None` if there is
/// none.
pub fn rate_of(quota: Quota) -> Option<(String, Rate)> {
    let (interval, burst) = (quota.emission_interval().0, u64::from(quota.burst()));
    // An interval is rounded up to whole nanoseconds, so the count is the nearest one.
    let in_a_unit = UNITS.iter().map(|(unit, ns)| {
        let count = ns.saturating_add(interval / 2) / interval.max(1);
        format!("{count}/{unit}")
    });
    let longer = [3, 2, 1, 0, 4].map(|at: usize| UNITS[at]).into_iter();
    let longer = longer.filter(|(_, ns)| interval.is_multiple_of(*ns));
    let longer = longer.map(|(unit, ns)| format!("1/{}{unit}", interval / ns));
    in_a_unit.chain(longer).find_map(|text| {
        let rate: Rate = text.parse().ok()?;
        let is_it = rate.quota(Some(burst)).is_ok_and(|found| found == quota);
        is_it.then_some((text, rate))
    })
}

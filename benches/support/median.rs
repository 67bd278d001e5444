//! The figure in the middle.

/// The median; of an even number of values the larger one in the middle, and of none not a number.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

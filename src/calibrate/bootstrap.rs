//! Percentile bootstrap of a median.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::rows::median;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 1000;
/// Seed of all bootstraps: an interval is a property of the data, not of the run.
const SEED: u64 = 7264;

/// Central `level` interval of the median of `values` (0.9: from the 5th to the 95th percentile).
/// Nothing for fewer than three values.
pub fn median_interval(values: &[f64], level: f64) -> Option<(f64, f64)> {
    if values.len() < 3 {
        return None;
    }
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let pick = |_| values[rng.random_range(0..values.len())];
            median(&(0..values.len()).map(pick).collect::<Vec<f64>>())
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - level) / 2.0;
    let at = |q: f64| medians[((RESAMPLES - 1) as f64 * q).round() as usize];
    Some((at(tail), at(1.0 - tail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_an_interval_of_no_width() {
        assert_eq!(median_interval(&[2.0; 10], 0.9), Some((2.0, 2.0)));
    }

    #[test]
    fn the_interval_holds_the_median_and_narrows_with_more_values() {
        let values = |n: usize| {
            (0..n)
                .map(|k| 1.0 + (k * 37 % 101) as f64)
                .collect::<Vec<_>>()
        };
        let (few, many) = (values(20), values(2000));
        let width = |v: &[f64]| median_interval(v, 0.9).map(|(low, high)| high - low);
        assert!(width(&many) < width(&few));
        let (low, high) = median_interval(&many, 0.9).unwrap_or_default();
        assert!(low <= median(&many) && median(&many) <= high);
    }

    #[test]
    fn two_values_are_too_few() {
        assert_eq!(median_interval(&[1.0, 2.0], 0.9), None);
    }
}

//! Intervals of a mean by resampling, with a fixed seed.

use rand::SeedableRng as _;
use rand_distr::{Distribution as _, Uniform};
use rand_pcg::Pcg64Mcg;

/// Resamples; the ends of a 90 % interval move by about a percent of its width between seeds.
const RESAMPLES: usize = 1000;

/// A mean with the 90 % percentile-bootstrap interval of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interval {
    /// Mean.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The mean of `values` and its interval (Efron and Tibshirani 1993, section 13.3).
pub fn mean_interval(values: &[f64], seed: u64) -> Interval {
    let mean = |values: &mut dyn Iterator<Item = f64>, n: usize| values.sum::<f64>() / n as f64;
    let n = values.len();
    let Ok(index) = Uniform::new(0, n) else {
        return Interval::default();
    };
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| mean(&mut (0..n).map(|_| values[index.sample(&mut random)]), n))
        .collect();
    means.sort_by(f64::total_cmp);
    Interval {
        mean: mean(&mut values.iter().copied(), n),
        low: means[RESAMPLES / 20],
        high: means[RESAMPLES - 1 - RESAMPLES / 20],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_no_width() {
        let interval = mean_interval(&[5.0; 10], 1);
        assert_eq!(
            (interval.mean, interval.low, interval.high),
            (5.0, 5.0, 5.0)
        );
    }

    #[test]
    fn the_interval_is_that_of_a_normal_mean_and_the_same_for_the_same_seed() {
        // 0..=100 has standard deviation 29.2, so the mean of 101 values has 2.9, and 90 % of a
        // normal lie within 1.64 of them.
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        let interval = mean_interval(&values, 7);
        assert_eq!(interval, mean_interval(&values, 7));
        assert!((interval.mean - 50.0).abs() < 1e-9);
        for end in [interval.low - 50.0, 50.0 - interval.high] {
            assert!((-5.5..-4.1).contains(&end), "{end}");
        }
        assert_eq!(mean_interval(&[], 1), Interval::default());
    }
}

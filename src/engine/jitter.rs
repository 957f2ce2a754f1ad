//! Seeded jitter: every draw is keyed, so an edit of the Program leaves the draws of the other
//! actions as they were (common random numbers for paired comparisons).

use rand::SeedableRng as _;
use rand_distr::{Distribution as _, StandardNormal};
use rand_pcg::Pcg64Mcg;

/// How host time spreads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct JitterOptions {
    /// Standard deviation of the logarithm of a whole step's host time.
    pub step_log_sigma: f64,
    /// Whether single actions spread by their own `log_sigma`.
    pub actions: bool,
}

/// Mixes a key into a well-spread seed (splitmix64's finaliser).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A standard normal draw for a key.
fn normal(key: u64) -> f64 {
    StandardNormal.sample(&mut Pcg64Mcg::seed_from_u64(mix(key)))
}

/// Factor of a whole step's host time: log-normal with median 1, drawn independently for each
/// iteration.
///
/// Steps of one machine scatter by a tenth and more, so the median of twenty wanders by several
/// percent with the seed, as a measured one does. Draws spread evenly would hide that, and would
/// make intervals and distances between distributions look better than they are. Quote the step
/// without jitter where one figure is wanted.
pub(super) fn step_factor(options: &JitterOptions, seed: u64, iteration: u64) -> f64 {
    if options.step_log_sigma == 0.0 {
        return 1.0;
    }
    (options.step_log_sigma * normal(seed ^ mix(iteration.wrapping_add(1)))).exp()
}

/// Factor of one action: log-normal with mean 1, since the calibrated centre is a mean.
pub(super) fn action_factor(log_sigma: f64, seed: u64, iteration: u64, action: u64) -> f64 {
    if log_sigma == 0.0 {
        return 1.0;
    }
    let key = seed ^ mix(iteration.wrapping_add(1)) ^ mix(action.wrapping_add(0x1_0000_0000));
    (log_sigma * normal(key) - log_sigma * log_sigma / 2.0).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGMA: f64 = 0.15;

    fn logs(seed: u64, count: u64) -> Vec<f64> {
        let options = JitterOptions {
            step_log_sigma: SIGMA,
            actions: false,
        };
        (0..count)
            .map(|iteration| step_factor(&options, seed, iteration).ln())
            .collect()
    }

    #[test]
    fn steps_have_median_one_and_the_asked_spread() {
        let logs = logs(1, 20_000);
        let mean = logs.iter().sum::<f64>() / 20_000.0;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.005, "{mean}");
        assert!((variance.sqrt() - SIGMA).abs() < 0.005, "{variance}");
    }

    #[test]
    fn the_mean_of_twenty_steps_scatters_as_that_of_independent_draws() {
        // Draws that spread themselves evenly scatter far less and make every interval too narrow.
        let seeds = 2_000;
        let square: f64 = (0..seeds)
            .map(|seed| (logs(seed, 20).iter().sum::<f64>() / 20.0).powi(2))
            .sum::<f64>();
        let scatter = (square / seeds as f64).sqrt();
        let expected = SIGMA / 20.0_f64.sqrt();
        assert!(
            (scatter / expected - 1.0).abs() < 0.06,
            "{scatter} against {expected}"
        );
    }
}

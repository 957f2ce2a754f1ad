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

/// Factor of a whole step's host time: log-normal with median 1.
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

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
///
/// Steps of one machine scatter by a tenth and more, so that the median of twenty independent draws
/// would miss the distribution's by several percent. The draws of successive iterations are therefore
/// spread evenly over the distribution: a seeded start, then steps of the golden ratio around the
/// circle of quantiles (a randomly shifted Weyl sequence).
pub(super) fn step_factor(options: &JitterOptions, seed: u64, iteration: u64) -> f64 {
    if options.step_log_sigma == 0.0 {
        return 1.0;
    }
    let turn = mix(!seed).wrapping_add(iteration.wrapping_mul(GOLDEN_RATIO));
    let quantile = ((turn >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (options.step_log_sigma * normal_quantile(quantile)).exp()
}

/// 2^64 over the golden ratio, odd.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Quantile of the standard normal distribution to seven digits, for `0 < p < 1` (Wichura 1988,
/// algorithm AS 241, PPND7).
fn normal_quantile(p: f64) -> f64 {
    let ratio = |above: [f64; 4], below: [f64; 3], x: f64| {
        let numerator = above.iter().rev().fold(0.0, |sum, c| sum * x + c);
        numerator / (below.iter().rev().fold(0.0, |sum, c| sum * x + c) * x + 1.0)
    };
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        const A: [f64; 4] = [3.3871327179, 50.434271938, 159.29113202, 59.109374720];
        const B: [f64; 3] = [17.895169469, 78.757757664, 67.187563600];
        return q * ratio(A, B, 0.180625 - q * q);
    }
    let r = (-p.min(1.0 - p).ln()).sqrt();
    let z = if r <= 5.0 {
        const C: [f64; 4] = [1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103];
        const D: [f64; 3] = [0.73700164250, 0.12021132975, 0.0];
        ratio(C, D, r - 1.6)
    } else {
        const E: [f64; 4] = [6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997];
        const F: [f64; 3] = [0.24197894225, 0.012258202635, 0.0];
        ratio(E, F, r - 5.0)
    };
    z.copysign(q)
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

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (p, z) in [
            (0.5, 0.0),
            (0.75, 0.674_489_750),
            (0.9, 1.281_551_566),
            (0.975, 1.959_963_985),
            (0.999, 3.090_232_306),
            (1e-12, -7.034_483_825),
        ] {
            assert!(
                (normal_quantile(p) - z).abs() < 1e-6,
                "{p}: {}",
                normal_quantile(p)
            );
            assert!((normal_quantile(1.0 - p) + normal_quantile(p)).abs() < 1e-4);
        }
    }

    #[test]
    fn twenty_steps_have_the_median_of_the_distribution_whatever_the_seed() {
        let options = JitterOptions {
            step_log_sigma: 0.15,
            actions: false,
        };
        let mut off = 0.0;
        for seed in 0..500 {
            for first in [0, 1, 100] {
                let mut factors: Vec<f64> = (first..first + 20)
                    .map(|iteration| step_factor(&options, seed, iteration))
                    .collect();
                factors.sort_by(f64::total_cmp);
                let median = (factors[9] + factors[10]) / 2.0;
                off += (median - 1.0).abs() / 1500.0;
                assert!((median - 1.0).abs() < 0.03, "{seed}: {median}");
                assert!(
                    factors[0] < 0.83 && factors[19] > 1.2,
                    "{seed}: both tails are there"
                );
            }
        }
        // Independent draws would be off by 0.034 on average.
        assert!(off < 0.01, "{off}");
    }
}

//! The gap between two steps, split over causes.
//!
//! The causes in which the two Programs differ are removed from both, one after the other, and each
//! intermediate pair is simulated: a cause contributes what its removal takes from the right step
//! less what it takes from the left. The contributions of one order add up to the gap, whatever
//! hides behind what; but when two causes overlap, the one removed first gains less. So the split is
//! averaged over orders (the Shapley value: Shapley 1953; sampled as Castro et al. 2009 do, each
//! order with its reverse), and the spread between orders says how much of a figure is the order's.
//!
//! What is left when every differing cause is gone from both is the unexplained remainder.

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng as _;
use rand_distr::{Distribution as _, Uniform};
use rand_pcg::Pcg64Mcg;
use rayon::prelude::*;

use crate::engine::EngineError;
use crate::program::{ActionKind, Program};
use crate::units::Ns;

use super::edit::{Edit, Selector};
use super::scenario::Scenario;

/// Up to this many causes, all orders are taken.
const EXACT_CAUSES: usize = 5;
/// Sampled orders otherwise: half of them drawn, the other half their reverses.
const SAMPLED_ORDERS: usize = 16;

/// The part of the gap that a cause is responsible for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contribution {
    /// Cause.
    pub cause: String,
    /// Share of the gap: positive if it makes the right step longer.
    pub ns: i64,
    /// Least share over the orders.
    pub low_ns: i64,
    /// Largest share over the orders.
    pub high_ns: i64,
    /// What removing it takes from the left step, mean over the orders.
    pub left_ns: i64,
    /// What removing it takes from the right step.
    pub right_ns: i64,
}

/// A gap, split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Left step without jitter.
    pub left_ns: Ns,
    /// Right step without jitter.
    pub right_ns: Ns,
    /// Contributions, largest first. With `unexplained_ns` they add up to the gap.
    pub contributions: Vec<Contribution>,
    /// Left step without any of the causes.
    pub left_rest_ns: Ns,
    /// Right step without any of the causes.
    pub right_rest_ns: Ns,
    /// Orders of removal averaged over.
    pub orders: usize,
    /// Whether these are all orders.
    pub exact: bool,
}

impl Comparison {
    /// Right less left.
    pub fn gap_ns(&self) -> i64 {
        self.right_ns as i64 - self.left_ns as i64
    }

    /// What no cause explains.
    pub fn unexplained_ns(&self) -> i64 {
        self.right_rest_ns as i64 - self.left_rest_ns as i64
    }
}

/// Splits the gap between two steps without jitter.
///
/// # Errors
/// [`EngineError`] if a Program does not run to its end.
pub fn compare(left: &Scenario, right: &Scenario, seed: u64) -> Result<Comparison, EngineError> {
    let causes = differing_causes(left, right);
    let exact = causes.len() <= EXACT_CAUSES;
    let orders = if exact {
        all_orders(causes.len())
    } else {
        sampled_orders(causes.len(), seed)
    };
    let side = |scenario: &Scenario| -> Result<Vec<Vec<Ns>>, EngineError> {
        orders
            .par_iter()
            .map(|order| removal_steps(scenario, &causes, order))
            .collect()
    };
    let (left_steps, right_steps) = (side(left)?, side(right)?);
    let (left_taken, right_taken) = (taken(&orders, &left_steps), taken(&orders, &right_steps));
    let (left_mean, right_mean) = (exact_means(&left_taken), exact_means(&right_taken));
    let mut contributions: Vec<Contribution> = causes
        .into_iter()
        .enumerate()
        .map(|(cause, name)| {
            let share = |order: usize| right_taken[order][cause] - left_taken[order][cause];
            let shares: Vec<i64> = (0..orders.len()).map(share).collect();
            Contribution {
                cause: name,
                ns: right_mean[cause] - left_mean[cause],
                low_ns: shares.iter().copied().min().unwrap_or(0),
                high_ns: shares.iter().copied().max().unwrap_or(0),
                left_ns: left_mean[cause],
                right_ns: right_mean[cause],
            }
        })
        .collect();
    contributions.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.cause.cmp(&b.cause)));
    let first = |steps: &[Vec<Ns>]| steps.first().and_then(|s| s.first().copied()).unwrap_or(0);
    let last = |steps: &[Vec<Ns>]| steps.first().and_then(|s| s.last().copied()).unwrap_or(0);
    Ok(Comparison {
        left_ns: first(&left_steps),
        right_ns: first(&right_steps),
        contributions,
        left_rest_ns: last(&left_steps),
        right_rest_ns: last(&right_steps),
        orders: orders.len(),
        exact,
    })
}

/// What a cause amounts to in a Program: host time, kernel time, collective time, waits.
type Amount = [u64; 5];

/// Causes whose amounts differ, in alphabetical order.
fn differing_causes(left: &Scenario, right: &Scenario) -> Vec<String> {
    let (left, right) = (amounts(left), amounts(right));
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    names
        .into_iter()
        .filter(|name| left.get(*name) != right.get(*name))
        .cloned()
        .collect()
}

fn amounts(scenario: &Scenario) -> BTreeMap<String, Amount> {
    let (program, prices) = (&scenario.program, &scenario.prices);
    // Rounded one by one: the sum must not depend on the order.
    let mut amounts: BTreeMap<String, Amount> = BTreeMap::new();
    for class in 0..program.classes.len() {
        for (_, action) in program.actions(class) {
            let name = program.cause_name(program.tag(action).cause);
            let amount = amounts.entry(name.to_owned()).or_default();
            amount[0] += prices.host[action.host.index()].centre_ns.round() as u64;
            match action.kind {
                ActionKind::Launch { kernel, .. } => {
                    amount[1] += prices.kernel_ns[kernel.index()];
                }
                ActionKind::Collective { call, comm, .. } => {
                    amount[2] += 1;
                    let groups = &prices.collective_ns[call.index()][comm.index()];
                    amount[3] += groups.first().copied().unwrap_or(0);
                }
                kind => amount[4] += u64::from(waits(kind)),
            }
        }
    }
    amounts.retain(|_, amount| *amount != Amount::default());
    amounts
}

fn waits(kind: ActionKind) -> bool {
    matches!(
        kind,
        ActionKind::StreamWait { .. }
            | ActionKind::HostWaitEvent { .. }
            | ActionKind::HostWaitStream { .. }
            | ActionKind::HostWaitDevice
    )
}

/// Step times with the first 0, 1, 2, ... causes of `order` removed.
fn removal_steps(
    scenario: &Scenario,
    causes: &[String],
    order: &[usize],
) -> Result<Vec<Ns>, EngineError> {
    let mut scenario = scenario.clone();
    let mut steps = Vec::with_capacity(order.len() + 1);
    let mut step_ns = scenario.still_ns()?;
    steps.push(step_ns);
    for &cause in order {
        let name = &causes[cause];
        if present(&scenario.program, name) {
            // Cannot fail: the cause is there.
            let _ = Edit::Remove(Selector::cause(name)).apply(&mut scenario);
            step_ns = scenario.still_ns()?;
        }
        steps.push(step_ns);
    }
    Ok(steps)
}

fn present(program: &Program, name: &str) -> bool {
    program.causes.iter().any(|cause| cause == name)
}

/// For each order, what each cause took away.
fn taken(orders: &[Vec<usize>], steps: &[Vec<Ns>]) -> Vec<Vec<i64>> {
    orders
        .iter()
        .zip(steps)
        .map(|(order, steps)| {
            let mut taken = vec![0; order.len()];
            for (pair, &cause) in steps.windows(2).zip(order) {
                taken[cause] = pair[0] as i64 - pair[1] as i64;
            }
            taken
        })
        .collect()
}

/// Means over the orders in whole nanoseconds that add up to what each order adds up to: fractions
/// are rounded down and the nanoseconds left over go to the largest fractions.
fn exact_means(taken: &[Vec<i64>]) -> Vec<i64> {
    let orders = taken.len() as i64;
    let Some(first) = taken.first() else {
        return Vec::new();
    };
    let total: i64 = first.iter().sum();
    let sums: Vec<i64> = (0..first.len())
        .map(|cause| taken.iter().map(|order| order[cause]).sum())
        .collect();
    let mut means: Vec<i64> = sums.iter().map(|sum| sum.div_euclid(orders)).collect();
    let mut by_fraction: Vec<usize> = (0..sums.len()).collect();
    by_fraction.sort_by_key(|&cause| (-sums[cause].rem_euclid(orders), cause));
    let left_over = total - means.iter().sum::<i64>();
    for &cause in by_fraction.iter().take(left_over.max(0) as usize) {
        means[cause] += 1;
    }
    means
}

fn all_orders(n: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for next in 0..n {
        let insert = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, next);
                order
            })
        };
        orders = orders.iter().flat_map(insert).collect();
    }
    orders
}

fn sampled_orders(n: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut orders = Vec::with_capacity(SAMPLED_ORDERS);
    while orders.len() < SAMPLED_ORDERS {
        let mut order: Vec<usize> = (0..n).collect();
        // Fisher and Yates.
        for at in (1..n).rev() {
            if let Ok(range) = Uniform::new_inclusive(0, at) {
                order.swap(at, range.sample(&mut random));
            }
        }
        let reverse = order.iter().rev().copied().collect();
        orders.extend([order, reverse]);
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_causes_have_120_orders_and_all_differ() {
        let orders: BTreeSet<Vec<usize>> = all_orders(5).into_iter().collect();
        assert_eq!(orders.len(), 120);
    }

    #[test]
    fn sampled_orders_are_permutations_with_their_reverses() {
        for pair in sampled_orders(9, 3).chunks(2) {
            let mut sorted = pair[0].clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..9).collect::<Vec<_>>());
            assert!(pair[0].iter().eq(pair[1].iter().rev()));
        }
    }

    #[test]
    fn means_of_equal_totals_keep_the_total() {
        // Totals 10; means 10/3, 20/3 of three orders.
        let taken = [vec![4, 6], vec![3, 7], vec![3, 7]];
        assert_eq!(exact_means(&taken), [3, 7]);
        let negative = [vec![-1, 2, 0], vec![0, 1, 0], vec![0, 0, 1]];
        assert_eq!(exact_means(&negative).iter().sum::<i64>(), 1);
    }
}

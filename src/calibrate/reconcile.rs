//! Brings fitted classes and measured phase totals together.
//!
//! A phase's plain total is known to a percent, a class's share of it only to what recording
//! disturbs. So the classes of each family (what all implementations share, and each one's own) get
//! one factor a phase: the factors closest to 1 with which every measured total comes out.

use std::collections::BTreeMap;

use crate::program::Program;

use super::host_fit::ClassCost;
use super::nnls::{Row, solve};
use super::targets::Targets;

/// Weight of a measured total against a factor's wish to stay 1.
const TOTAL_WEIGHT: f64 = 300.0;

/// Factor by family and phase.
pub type Factors = BTreeMap<(String, &'static str), f64>;

/// The family of a class: the implementation whose own work it is, else `shared`.
fn family(class: &str) -> &str {
    match class.split_once(['.', '/']) {
        Some((family @ ("ddp" | "v1" | "v2"), _)) => family,
        _ => "shared",
    }
}

/// Scales the classes; returns the factors. `programs` are the measured configurations.
pub fn reconcile(
    classes: &mut BTreeMap<String, ClassCost>,
    fixed: &BTreeMap<String, f64>,
    programs: &[(&str, Program)],
    targets: &Targets,
) -> Factors {
    let mut keys: Vec<(String, &'static str)> = Vec::new();
    let mut rows = Vec::new();
    for (version, program) in programs {
        let Some(plain) = targets.phase_ms.get(*version) else {
            continue;
        };
        for (phase, (sums, fixed_ns)) in phase_sums(program, classes, fixed) {
            let Some(plain_ns) = plain.get(phase).map(|ms| ms * 1e6).filter(|&ns| ns > 0.0) else {
                continue;
            };
            let mut terms = Vec::new();
            for (family, ns) in sums {
                let key = (family, phase);
                let index = keys
                    .iter()
                    .position(|known| *known == key)
                    .unwrap_or_else(|| {
                        keys.push(key);
                        keys.len() - 1
                    });
                terms.push((index, ns / plain_ns));
            }
            let value = 1.0 - fixed_ns / plain_ns;
            rows.push(Row {
                terms,
                value,
                weight: TOTAL_WEIGHT,
            });
        }
    }
    let wishes = (0..keys.len()).map(|index| Row {
        terms: vec![(index, 1.0)],
        value: 1.0,
        weight: 1.0,
    });
    rows.extend(wishes.collect::<Vec<_>>());
    let x = solve(&rows, keys.len(), 0.0);
    let factors: Factors = keys.into_iter().zip(x).collect();
    apply(classes, fixed, programs, &factors);
    factors
}

type Sums = BTreeMap<&'static str, (BTreeMap<String, f64>, f64)>;

/// Host time by phase and family, and that of fixed classes.
fn phase_sums(
    program: &Program,
    classes: &BTreeMap<String, ClassCost>,
    fixed: &BTreeMap<String, f64>,
) -> Sums {
    let mut sums = Sums::new();
    for (_, action) in program.actions(0) {
        let work = program.host_work(action);
        let Some(cost) = classes.get(&work.class) else {
            continue;
        };
        let ns = cost.ns * f64::from(work.count);
        let (families, fixed_ns) = sums.entry(program.tag(action).phase.name()).or_default();
        if fixed.contains_key(&work.class) {
            *fixed_ns += ns;
        } else {
            *families.entry(family(&work.class).to_owned()).or_default() += ns;
        }
    }
    sums
}

/// A class that occurs in several phases gets the mean of their factors, weighted by its time.
fn apply(
    classes: &mut BTreeMap<String, ClassCost>,
    fixed: &BTreeMap<String, f64>,
    programs: &[(&str, Program)],
    factors: &Factors,
) {
    let mut weights: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for (_, program) in programs {
        for (_, action) in program.actions(0) {
            let work = program.host_work(action);
            let key = (
                family(&work.class).to_owned(),
                program.tag(action).phase.name(),
            );
            if let Some(factor) = factors.get(&key) {
                let weight = weights.entry(work.class.clone()).or_default();
                weight.0 += factor * f64::from(work.count);
                weight.1 += f64::from(work.count);
            }
        }
    }
    for (class, (sum, weight)) in weights {
        if weight > 0.0 && !fixed.contains_key(&class) {
            classes
                .entry(class)
                .and_modify(|cost| cost.ns *= sum / weight);
        }
    }
}

//! Host cost per class from the equations of many recorded steps.

use std::collections::BTreeMap;

use crate::program::{Phase, Program};

use super::expected::is_unrecorded;
use super::nnls::{Row, solve};
use super::recorded::Events;
use super::samples::{Equation, StepSamples};

/// Host time of a recorded event of each kind, and how much slower than the reference the host was.
#[derive(Debug, Clone, PartialEq)]
pub struct Inflation {
    /// Extra host time of a recorded operator or annotation.
    pub operator_ns: f64,
    /// Extra host time of a recorded runtime call.
    pub runtime_ns: f64,
    /// Recorded time over reference time once the events' cost is taken off, by phase name.
    pub slowness: BTreeMap<&'static str, f64>,
}

impl Inflation {
    /// Host time without the profiler, on the reference host.
    fn plain(&self, ns: f64, events: Events, phase: Phase) -> f64 {
        let cost = self.operator_ns * f64::from(events.operators)
            + self.runtime_ns * f64::from(events.runtime);
        (ns - cost) / self.slowness.get(phase.name()).copied().unwrap_or(1.0)
    }
}

/// A recorded step with the Program that it ran.
#[derive(Debug)]
pub struct TracedStep<'a> {
    /// The Program.
    pub program: &'a Program,
    /// Its samples.
    pub samples: &'a StepSamples,
    /// How the recording slowed it.
    pub inflation: Inflation,
}

/// Fitted cost of a class.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClassCost {
    /// Mean host time.
    pub ns: f64,
    /// Standard deviation of its logarithm.
    pub log_sigma: f64,
    /// Samples behind it.
    pub samples: u32,
}

/// A sample that is this many times the median (and as many microseconds away) is a pause of the
/// interpreter or the machine, which jitter models apart.
const OUTLIER_FACTOR: f64 = 8.0;
/// See [`OUTLIER_FACTOR`].
const OUTLIER_NS: f64 = 150_000.0;
/// The ridge of the gap fit, relative to the curvature: decides between equal explanations only.
const RIDGE: f64 = 1e-4;

/// Mean, spread and number of samples without outliers.
pub fn centre(samples: &mut [f64]) -> ClassCost {
    if samples.is_empty() {
        return ClassCost::default();
    }
    samples.sort_by(f64::total_cmp);
    let median = samples[samples.len() / 2].max(0.0);
    let limit = (median * OUTLIER_FACTOR).max(median + OUTLIER_NS);
    let kept: Vec<f64> = samples.iter().copied().filter(|&ns| ns <= limit).collect();
    let count = kept.len().max(1) as f64;
    let ns = (kept.iter().sum::<f64>() / count).max(0.0);
    let logs: Vec<f64> = kept
        .iter()
        .filter(|&&ns| ns > 1.0)
        .map(|ns| ns.ln())
        .collect();
    let mean_log = logs.iter().sum::<f64>() / logs.len().max(1) as f64;
    let variance =
        logs.iter().map(|log| (log - mean_log).powi(2)).sum::<f64>() / logs.len().max(2) as f64;
    ClassCost {
        ns,
        log_sigma: variance.sqrt(),
        samples: samples.len() as u32,
    }
}

/// Fits every class. `known_ns` fixes classes that microbenchmarks measured.
pub fn fit_classes(
    steps: &[TracedStep<'_>],
    known_ns: &BTreeMap<String, f64>,
) -> BTreeMap<String, ClassCost> {
    let mut classes = operator_costs(steps, known_ns);
    let gaps = fit_gaps(steps, known_ns);
    for (class, gap) in gaps {
        let cost = classes.entry(class).or_default();
        cost.ns += gap.ns;
        cost.samples = cost.samples.max(gap.samples);
        cost.log_sigma = cost.log_sigma.max(gap.log_sigma);
    }
    for (class, &ns) in known_ns {
        classes.insert(
            class.clone(),
            ClassCost {
                ns,
                log_sigma: 0.0,
                samples: 1,
            },
        );
    }
    classes
}

/// Own time of every operator class; collectives get a part per peer.
fn operator_costs(
    steps: &[TracedStep<'_>],
    known_ns: &BTreeMap<String, f64>,
) -> BTreeMap<String, ClassCost> {
    let launch_ns = known_ns.get("launch/runtime").copied().unwrap_or(0.0);
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut peer_rows: BTreeMap<(String, u32), Vec<f64>> = BTreeMap::new();
    for step in steps {
        for equation in &step.samples.operators {
            let Some(work) = equation.works.first() else {
                continue;
            };
            let class = &step.program.host_works[work.index()].class;
            let ns = step
                .inflation
                .plain(equation.ns, equation.events, equation.phase)
                - launch_ns * f64::from(equation.launches);
            if equation.peers > 0 {
                peer_rows
                    .entry((class.clone(), equation.peers))
                    .or_default()
                    .push(ns);
            } else {
                samples.entry(class.clone()).or_default().push(ns);
            }
        }
    }
    let mut costs: BTreeMap<String, ClassCost> = samples
        .into_iter()
        .map(|(class, mut list)| (class, centre(&mut list)))
        .collect();
    // Base per class and one cost per peer shared by all classes.
    let names: Vec<String> = peer_rows.keys().map(|(class, _)| class.clone()).collect();
    let mut unknowns: Vec<String> = names;
    unknowns.dedup();
    let peer = unknowns.len();
    let mut spread = BTreeMap::new();
    let rows: Vec<Row> = peer_rows
        .iter_mut()
        .map(|((class, peers), list)| {
            let cost = centre(list);
            spread.insert(class.clone(), cost);
            let index = unknowns
                .iter()
                .position(|known| known == class)
                .unwrap_or(peer);
            let terms = vec![(index, 1.0), (peer, f64::from(*peers))];
            Row {
                terms,
                value: cost.ns,
                weight: f64::from(cost.samples),
            }
        })
        .collect();
    let x = solve(&rows, peer + 1, 0.0);
    for (index, class) in unknowns.into_iter().enumerate() {
        let ClassCost {
            log_sigma, samples, ..
        } = spread.get(&class).copied().unwrap_or_default();
        costs.insert(
            class,
            ClassCost {
                ns: x[index],
                log_sigma,
                samples,
            },
        );
    }
    if !rows.is_empty() {
        let samples = rows.iter().map(|row| row.weight as u32).sum();
        costs.insert(
            "c10d.peer".to_owned(),
            ClassCost {
                ns: x[peer],
                log_sigma: 0.0,
                samples,
            },
        );
    }
    costs
}

/// Splits the gaps: an operator's own gap where nothing else precedes it, and what unrecorded work
/// adds where it does.
fn fit_gaps(
    steps: &[TracedStep<'_>],
    known_ns: &BTreeMap<String, f64>,
) -> BTreeMap<String, ClassCost> {
    type Key = Vec<(String, u32)>;
    let mut grouped: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for step in steps {
        for equation in &step.samples.gaps {
            let mut ns = step
                .inflation
                .plain(equation.ns, equation.events, equation.phase);
            let mut key: BTreeMap<String, u32> = BTreeMap::new();
            for work in terms(step.program, equation) {
                match known_ns.get(&work.0) {
                    Some(known) => ns -= known * f64::from(work.1),
                    None => *key.entry(work.0).or_default() += work.1,
                }
            }
            grouped
                .entry(key.into_iter().collect())
                .or_default()
                .push(ns);
        }
    }
    let mut costs: BTreeMap<String, ClassCost> = BTreeMap::new();
    let mut open = Vec::new();
    for (key, mut list) in grouped {
        let cost = centre(&mut list);
        match key.as_slice() {
            [(class, 1)] if !is_unrecorded(class) => {
                costs.insert(class.clone(), cost);
            }
            _ => open.push((key, cost)),
        }
    }
    let mut unknowns: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    let mut index: BTreeMap<String, usize> = BTreeMap::new();
    for (key, cost) in &open {
        let mut value = cost.ns;
        let mut terms = Vec::new();
        for (class, count) in key {
            if let Some(known) = costs.get(class) {
                value -= known.ns * f64::from(*count);
                continue;
            }
            let next = unknowns.len();
            let unknown = *index.entry(class.clone()).or_insert(next);
            if unknown == next {
                unknowns.push(class.clone());
            }
            terms.push((unknown, f64::from(*count)));
        }
        if !terms.is_empty() {
            rows.push(Row {
                terms,
                value,
                weight: f64::from(cost.samples),
            });
        }
    }
    let x = solve(&rows, unknowns.len(), RIDGE);
    let mut seen = vec![(0u32, 0.0f64); unknowns.len()];
    for (row, (_, cost)) in rows.iter().zip(&open) {
        for &(unknown, _) in &row.terms {
            seen[unknown].0 += cost.samples;
            seen[unknown].1 = seen[unknown].1.max(cost.log_sigma);
        }
    }
    for ((class, ns), (samples, log_sigma)) in unknowns.into_iter().zip(x).zip(seen) {
        costs.insert(
            class,
            ClassCost {
                ns,
                log_sigma,
                samples,
            },
        );
    }
    costs
}

/// Classes and counts of an equation.
fn terms<'a>(
    program: &'a Program,
    equation: &'a Equation,
) -> impl Iterator<Item = (String, u32)> + 'a {
    equation.works.iter().map(|work| {
        let work = &program.host_works[work.index()];
        (work.class.clone(), work.count)
    })
}

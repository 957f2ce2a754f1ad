//! Brings fitted classes and measured phase totals together.
//!
//! A phase's plain total is known to a percent or two, a class's share of it only to what recording
//! disturbs. So the classes of each family (attention, mixture of experts, the per-parameter and the
//! per-unit work of each implementation, ...) get one factor a phase: those closest to 1 with which
//! the measured totals of all configurations come out. Configurations differ in layers, experts and
//! kinds of layers, which tells the families apart; a process that measured other configurations
//! has a host speed of its own, which is fitted along.

use std::collections::BTreeMap;

use crate::program::Program;

use super::expected::is_unrecorded;
use super::host_fit::ClassCost;
use super::nnls::{Row, solve};

/// Weight of a measured total against a factor's wish to stay 1: totals are good to about 2 percent,
/// families to about 20.
const TOTAL_WEIGHT: f64 = 100.0;

/// Phases below this are left alone.
const SHORT_NS: f64 = 1e6;
/// Rounds of fitting factors and host speeds in turn.
const ROUNDS: usize = 12;

/// The same for the recorded configuration, whose totals pool several rows and set the scale.
const REFERENCE_WEIGHT: f64 = 3000.0;

/// Factor by family and phase.
pub type Factors = BTreeMap<(String, &'static str), f64>;

/// A configuration with known plain phase times.
#[derive(Debug)]
pub struct KnownTotals {
    /// What runs.
    pub program: Program,
    /// Milliseconds by phase name.
    pub phase_ms: BTreeMap<&'static str, f64>,
    /// Process that measured it; `None` for the reference host.
    pub group: Option<String>,
}

/// Classes whose costs err alike.
fn family(class: &str) -> String {
    let (head, _) = class.split_once(['.', '/']).unwrap_or((class, ""));
    let per_parameter = |loops: &[&str]| loops.iter().any(|part| class.contains(part));
    match head {
        "v1" if per_parameter(&V1_PER_PARAMETER) => "v1.parameters".to_owned(),
        "v2" if per_parameter(&V2_PER_PARAMETER) => "v2.parameters".to_owned(),
        "v1" | "v2" if is_unrecorded(class) => format!("{head}.python"),
        "v1" | "v2" | "ddp" | "mla" | "moe" | "mlp" | "c10d:" | "c10d" | "autograd" => {
            head.trim_end_matches(':').to_owned()
        }
        _ => "rest".to_owned(),
    }
}

/// Parts of class names that stand for work done once a parameter.
const V1_PER_PARAMETER: [&str; 7] = [
    "v1.repoint",
    "v1.param_hook",
    "v1.update_main_grads",
    "v1.main_to_model",
    "v1.wait_bucket",
    "v1.post_forward/python",
    "v1.post_backward/python",
];
/// See [`V1_PER_PARAMETER`].
const V2_PER_PARAMETER: [&str; 6] = [
    "v2.unshard/aten",
    "v2.pack",
    "v2.rebind",
    "v2.param_switch",
    "v2.param_hook",
    "v2.reduce/python",
];

/// Scales the classes; returns the factors.
pub fn reconcile(
    classes: &mut BTreeMap<String, ClassCost>,
    fixed: &BTreeMap<String, f64>,
    known: &[KnownTotals],
) -> Factors {
    let mut keys: Vec<(String, &'static str)> = Vec::new();
    let mut groups: Vec<&str> = Vec::new();
    let mut totals_ns = Vec::new();
    for totals in known {
        let group = totals
            .group
            .as_deref()
            .map(|group| index_of(&mut groups, group));
        for (phase, (sums, fixed_ns)) in phase_sums(&totals.program, classes, fixed) {
            let plain_ns = totals.phase_ms.get(phase).map_or(0.0, |ms| ms * 1e6);
            // Short phases say little and would weigh as much as long ones.
            if plain_ns < SHORT_NS {
                continue;
            }
            let families = sums.into_iter();
            let families = families.map(|(name, ns)| (index_of(&mut keys, (name, phase)), ns));
            totals_ns.push(Total {
                families: families.collect(),
                fixed_ns,
                plain_ns,
                group,
            });
        }
    }
    let mut slowness = vec![1.0; groups.len()];
    let mut x = vec![1.0; keys.len()];
    for _ in 0..ROUNDS {
        fit_slowness(&totals_ns, &x, &mut slowness);
        let of = |total: &Total| total.group.map_or(1.0, |group| slowness[group]);
        let mut rows: Vec<Row> = totals_ns.iter().map(|total| total.row(of(total))).collect();
        let wish = |key| Row {
            terms: vec![(key, 1.0)],
            value: 1.0,
            weight: 1.0,
        };
        rows.extend((0..keys.len()).map(wish));
        x = solve(&rows, keys.len(), 0.0);
    }
    let factors: Factors = keys.into_iter().zip(x).collect();
    apply(classes, fixed, known, &factors);
    factors
}

/// A phase of a configuration: what it holds and what it takes.
struct Total {
    /// Host time by family.
    families: Vec<(usize, f64)>,
    /// Host time of classes that are known.
    fixed_ns: f64,
    /// Plain time on the host that measured it.
    plain_ns: f64,
    /// Process that measured it.
    group: Option<usize>,
}

impl Total {
    fn fitted_ns(&self, factors: &[f64]) -> f64 {
        self.fixed_ns
            + self
                .families
                .iter()
                .map(|&(key, ns)| factors[key] * ns)
                .sum::<f64>()
    }

    /// Fitted over plain time on the reference host shall be 1.
    fn row(&self, slowness: f64) -> Row {
        let plain_ns = self.plain_ns / slowness;
        let terms = self
            .families
            .iter()
            .map(|&(key, ns)| (key, ns / plain_ns))
            .collect();
        Row {
            terms,
            value: 1.0 - self.fixed_ns / plain_ns,
            weight: if self.group.is_none() {
                REFERENCE_WEIGHT
            } else {
                TOTAL_WEIGHT
            },
        }
    }
}

/// Each process's slowness: the mean of measured over fitted logarithms.
fn fit_slowness(totals: &[Total], factors: &[f64], slowness: &mut [f64]) {
    for (index, slowness) in slowness.iter_mut().enumerate() {
        let own = totals.iter().filter(|total| total.group == Some(index));
        let logs: Vec<f64> = own
            .map(|total| (total.plain_ns / total.fitted_ns(factors)).ln())
            .collect();
        *slowness = (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp();
    }
}

fn index_of<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter()
        .position(|known| *known == item)
        .unwrap_or_else(|| {
            list.push(item);
            list.len() - 1
        })
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
            *families.entry(family(&work.class)).or_default() += ns;
        }
    }
    sums
}

/// A class that occurs in several phases gets the mean of their factors, weighted by its time.
fn apply(
    classes: &mut BTreeMap<String, ClassCost>,
    fixed: &BTreeMap<String, f64>,
    known: &[KnownTotals],
    factors: &Factors,
) {
    let mut weights: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for KnownTotals { program, .. } in known {
        for (_, action) in program.actions(0) {
            let work = program.host_work(action);
            let key = (family(&work.class), program.tag(action).phase.name());
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

//! Samples of host cost per class from aligned traces.

use std::collections::BTreeMap;

use crate::program::{HostWorkId, Phase, Program};

use super::align::align;
use super::expected::{ExpectedItem, expected_items};
use super::recorded::{Events, RecordedItem};

/// One equation: a recorded stretch of host time is the sum of the work that it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Equation {
    /// Host works in it.
    pub works: Vec<HostWorkId>,
    /// Ranks of the collective in it, if any (a term per peer).
    pub peers: u32,
    /// Host time.
    pub ns: f64,
    /// Launch calls in it, whose cost is known apart.
    pub launches: u32,
    /// Events recorded in it.
    pub events: Events,
    /// Part of the step.
    pub phase: Phase,
}

/// What one recorded step says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepSamples {
    /// Gaps: unrecorded work plus the gap of the operator that follows.
    pub gaps: Vec<Equation>,
    /// Operators, with the launches inside them; bare launches name no work.
    pub operators: Vec<Equation>,
    /// Host time of all items.
    pub total_ns: f64,
    /// Host time that found its place in the Program, by phase name.
    pub matched_ns: BTreeMap<&'static str, f64>,
    /// Host time that did not, by phase name of the neighbouring match.
    pub unmatched_ns: BTreeMap<&'static str, f64>,
    /// Expected items that the trace does not show.
    pub missing_items: usize,
    /// Recorded items that the Program does not have.
    pub extra_items: usize,
}

/// Name under which equal operators are compared: in-place and plain variants, graph numbers of
/// compiled regions and launch variants are one.
fn key(name: &str) -> &str {
    if name.starts_with("Torch-Compiled Region") {
        return "Torch-Compiled Region";
    }
    if name.starts_with("cuLaunchKernel") || name.starts_with("cudaLaunchKernel") {
        return "cudaLaunchKernel";
    }
    match name {
        "aten::add_" => "aten::add",
        other => other,
    }
}

/// At most this many differences are tried between a Program and a recorded step.
const MAX_DIFFERENCES: usize = 3000;

/// Aligns a recorded step with the Program and collects the equations.
pub fn step_samples(program: &Program, recorded: &[RecordedItem]) -> StepSamples {
    let expected = expected_items(program);
    let names: Vec<&str> = expected.iter().map(|item| key(&item.name)).collect();
    let seen: Vec<&str> = recorded.iter().map(|item| key(&item.name)).collect();
    let pairs = align(&names, &seen, MAX_DIFFERENCES);
    let mut samples = StepSamples {
        missing_items: expected.len() - pairs.len(),
        extra_items: recorded.len() - pairs.len(),
        ..Default::default()
    };
    let mut next_recorded = 0;
    let mut previous: Option<&ExpectedItem> = None;
    let mut carried: Vec<HostWorkId> = Vec::new();
    let mut next_expected = 0;
    for (e, r) in pairs {
        let item = &expected[e];
        // Work before expected items that were not recorded still happened in this gap.
        for skipped in &expected[next_expected..e] {
            carried.extend(&skipped.before);
            carried.extend(skipped.work);
        }
        next_expected = e + 1;
        let mut works = std::mem::take(&mut carried);
        works.extend(&item.before);
        let extra = &recorded[next_recorded..r];
        next_recorded = r + 1;
        samples.add(item, &recorded[r], works, extra, previous);
        previous = Some(item);
    }
    samples
}

impl StepSamples {
    fn add(
        &mut self,
        item: &ExpectedItem,
        recorded: &RecordedItem,
        mut works: Vec<HostWorkId>,
        extra: &[RecordedItem],
        previous: Option<&ExpectedItem>,
    ) {
        let phase = item.phase.name();
        // In a fake process group a copy stands in for the collective's kernel: what is recorded
        // around the call belongs to it.
        let stand_in = item.collective || previous.is_some_and(|previous| previous.collective);
        let (mut extra_ns, mut extra_events) = (0.0, Events::default());
        for item in extra {
            extra_ns += item.gap_ns + item.self_ns + item.launch_ns.iter().sum::<f64>();
            extra_events.operators += item.gap_events.operators + item.self_events.operators;
            extra_events.runtime +=
                item.gap_events.runtime + item.self_events.runtime + item.launch_ns.len() as u32;
        }
        if !extra.is_empty() {
            let place = if stand_in {
                &mut self.matched_ns
            } else {
                &mut self.unmatched_ns
            };
            *place.entry(phase).or_default() += extra_ns;
        }
        let own = recorded.self_ns + recorded.launch_ns.iter().sum::<f64>() + recorded.gap_ns;
        *self.matched_ns.entry(phase).or_default() += own;
        self.total_ns += own + extra_ns;
        works.extend(item.work);
        self.gaps.push(Equation {
            works,
            peers: 0,
            ns: recorded.gap_ns,
            launches: 0,
            events: recorded.gap_events,
            phase: item.phase,
        });
        // Launches inside a collective are the stand-in's.
        let launches = if item.collective {
            0
        } else {
            recorded.launch_ns.len() as u32
        };
        let mut equation = Equation {
            works: item.work.into_iter().collect(),
            peers: if item.collective { item.peers } else { 0 },
            ns: recorded.self_ns + recorded.launch_ns.iter().sum::<f64>(),
            launches,
            events: recorded.self_events,
            phase: item.phase,
        };
        equation.events.runtime += recorded.launch_ns.len() as u32;
        if stand_in && item.collective {
            equation.ns += extra_ns;
            equation.events.operators += extra_events.operators;
            equation.events.runtime += extra_events.runtime;
        }
        self.operators.push(equation);
    }
}

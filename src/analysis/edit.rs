//! Changes of a priced Program: what a what-if and a comparison are made of.
//!
//! An edit keeps every action at its place on its thread, so that an action draws the same jitter
//! before and after (see the engine's contract), and differences between the two runs are due to the
//! edit alone. An action that vanishes becomes host work of no duration.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::cost::HostCost;
use crate::program::{Action, ActionKind, HostWork, HostWorkId, Phase, Program};
use crate::units::Ns;

use super::breakdown::LAUNCH_CLASS;
use super::scenario::Scenario;

/// Which actions an edit is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    /// Cause, or the start of one followed by `*`.
    pub cause: String,
    /// Start of the class of host work; empty for any. A launch belongs to the operator before it.
    pub class: String,
    /// End of the unit's name; empty for any.
    pub unit: String,
    /// Which parameters of a unit, for causes that loop over them: the `k`-th action of a class in
    /// a phase and unit belongs to parameter `k` modulo the length. Absent: all.
    pub parameters: Option<BTreeMap<String, Vec<bool>>>,
}

impl Selector {
    /// All actions of a cause (or of causes, with a final `*`).
    pub fn cause(cause: &str) -> Self {
        Selector {
            cause: cause.to_owned(),
            ..Default::default()
        }
    }

    /// Only host work whose class starts with `class`.
    #[must_use]
    pub fn class(self, class: &str) -> Self {
        Selector {
            class: class.to_owned(),
            ..self
        }
    }

    /// Only units whose name ends with `unit`.
    #[must_use]
    pub fn unit(self, unit: &str) -> Self {
        Selector {
            unit: unit.to_owned(),
            ..self
        }
    }

    /// Whether a cause is meant.
    pub fn names(&self, cause: &str) -> bool {
        match self.cause.strip_suffix('*') {
            Some(start) => cause.starts_with(start),
            None => cause == self.cause,
        }
    }
}

/// A change of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// What the actions do is not done: no host work, no launch, no collective, no wait. Hand-overs,
    /// event records and memory stay, so that the rest of the Program still means the same.
    Remove(Selector),
    /// Host work and device work take `factor` times as long.
    Scale(Selector, f64),
    /// Host work takes `factor` times as long; the device does what it did.
    ScaleHost(Selector, f64),
    /// A loop becomes one call: in each phase and unit, of the actions of a class the last stays,
    /// done once. Its kernel takes as long as all of them together.
    Batch(Selector),
    /// Units are handled `units` at a time, in their order in the step: of a group's actions of a
    /// class the first stays.
    MergeUnits(Selector, usize),
    /// All host work is `factor` times as fast.
    HostSpeed(f64),
    /// No long pauses of the host.
    NoPauses,
    /// Collectives get a stream of their own, which the compute stream joins in `join`.
    OwnStream(Selector, Phase),
    /// Collectives get a communicator of their own.
    OwnCommunicator(Selector),
    /// One launch replaces all host work of the phase.
    Graph(&'static str),
}

/// An edit that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EditError {
    /// The selector names nothing that is there.
    #[error("no action of this step has the cause `{cause}`{detail}")]
    Nothing {
        /// What was asked for.
        cause: String,
        /// What else the selector asked for.
        detail: String,
        /// Causes of the Program.
        known: Vec<String>,
    },
    /// The calibration has no pauses.
    #[error("this calibration has no long pauses of the host, so there is nothing to leave out")]
    NoPauses,
    /// A factor that is not a non-negative number.
    #[error("the factor of `{what}` is {factor}; expected a number from 0 up")]
    Factor {
        /// What it scales.
        what: String,
        /// The factor.
        factor: String,
    },
    /// A region that no graph can hold.
    #[error(
        "the {phase} cannot be captured in a CUDA graph: the host waits for the device there \
         ({cause}, {unit})"
    )]
    Capture {
        /// The phase.
        phase: String,
        /// Cause of the wait.
        cause: String,
        /// Unit of the wait.
        unit: String,
    },
}

impl Edit {
    /// Makes the change.
    ///
    /// # Errors
    /// [`EditError`]; the scenario is then as it was or partly changed, and of no further use.
    pub fn apply(&self, scenario: &mut Scenario) -> Result<(), EditError> {
        match self {
            Edit::Remove(selector) => {
                let mut editor = Editor::new(scenario, selector)?;
                editor.each(|editor, action| editor.vanish(action));
            }
            Edit::Scale(selector, factor) => scale(scenario, selector, *factor, true)?,
            Edit::ScaleHost(selector, factor) => scale(scenario, selector, *factor, false)?,
            Edit::Batch(selector) => super::merge::batch(scenario, selector)?,
            Edit::MergeUnits(selector, units) => {
                super::merge::units(scenario, selector, *units)?;
            }
            Edit::HostSpeed(factor) => host_speed(scenario, *factor)?,
            Edit::NoPauses => no_pauses(scenario)?,
            Edit::OwnStream(selector, join) => super::lanes::own_stream(scenario, selector, *join)?,
            Edit::OwnCommunicator(selector) => super::lanes::own_communicator(scenario, selector)?,
            Edit::Graph(phase) => super::lanes::graph(scenario, phase)?,
        }
        Ok(())
    }
}

fn scale(
    scenario: &mut Scenario,
    selector: &Selector,
    factor: f64,
    device: bool,
) -> Result<(), EditError> {
    check_factor(&selector.cause, factor)?;
    let mut editor = Editor::new(scenario, selector)?;
    editor.each(|editor, action| {
        action.host = editor.scaled_host(action.host, factor);
        if device {
            action.kind = editor.scaled_device(action.kind, factor);
        }
    });
    Ok(())
}

fn host_speed(scenario: &mut Scenario, factor: f64) -> Result<(), EditError> {
    check_factor("host speed", factor)?;
    if factor == 0.0 {
        return Err(EditError::Factor {
            what: "host speed".to_owned(),
            factor: "0".to_owned(),
        });
    }
    for cost in &mut scenario.prices.host {
        cost.centre_ns /= factor;
    }
    Ok(())
}

/// Garbage collections and other long pauses, which the engine draws beside the jitter.
fn no_pauses(scenario: &mut Scenario) -> Result<(), EditError> {
    let _ = scenario;
    Err(EditError::NoPauses)
}

fn check_factor(what: &str, factor: f64) -> Result<(), EditError> {
    if factor.is_finite() && factor >= 0.0 {
        return Ok(());
    }
    Err(EditError::Factor {
        what: what.to_owned(),
        factor: factor.to_string(),
    })
}

/// Index of an action: rank class, thread, position.
pub(super) type Place = (usize, usize, usize);

/// Changes selected actions of a scenario and prices what is new.
pub(super) struct Editor<'a> {
    pub(super) scenario: &'a mut Scenario,
    /// Selected actions in program order.
    pub(super) places: Vec<Place>,
    scaled_hosts: BTreeMap<(HostWorkId, u64), HostWorkId>,
}

impl<'a> Editor<'a> {
    /// Finds what `selector` means.
    pub(super) fn new(scenario: &'a mut Scenario, selector: &Selector) -> Result<Self, EditError> {
        let places = select(&scenario.program, selector);
        if places.is_empty() {
            let mut detail = String::new();
            if !selector.class.is_empty() {
                detail.push_str(&format!(" and the class `{}...`", selector.class));
            }
            if !selector.unit.is_empty() {
                detail.push_str(&format!(" in a unit `...{}`", selector.unit));
            }
            return Err(EditError::Nothing {
                cause: selector.cause.clone(),
                detail,
                known: scenario.program.causes.clone(),
            });
        }
        Ok(Editor {
            scenario,
            places,
            scaled_hosts: BTreeMap::new(),
        })
    }

    /// Runs `change` on every selected action.
    pub(super) fn each(&mut self, mut change: impl FnMut(&mut Self, &mut Action)) {
        for place in std::mem::take(&mut self.places) {
            self.change(place, &mut change);
        }
    }

    /// Runs `change` on one action.
    pub(super) fn change(
        &mut self,
        (class, thread, index): Place,
        change: impl FnOnce(&mut Self, &mut Action),
    ) {
        let mut action = self.scenario.program.classes[class].threads[thread].actions[index];
        change(self, &mut action);
        self.scenario.program.classes[class].threads[thread].actions[index] = action;
    }

    /// Makes an action do nothing.
    pub(super) fn vanish(&mut self, action: &mut Action) {
        // The class stays, so that a later edit still finds the action.
        action.host = self.scaled_host(action.host, 0.0);
        match action.kind {
            ActionKind::Launch { .. }
            | ActionKind::Collective { .. }
            | ActionKind::StreamWait { .. }
            | ActionKind::HostWaitEvent { .. }
            | ActionKind::HostWaitStream { .. }
            | ActionKind::HostWaitDevice => action.kind = ActionKind::Host,
            ActionKind::Host
            | ActionKind::EventRecord { .. }
            | ActionKind::Alloc { .. }
            | ActionKind::Free { .. }
            | ActionKind::Signal { .. }
            | ActionKind::Await { .. } => {}
        }
    }

    /// The same host work, `factor` times as long.
    pub(super) fn scaled_host(&mut self, host: HostWorkId, factor: f64) -> HostWorkId {
        if host == HostWorkId(0) {
            return host;
        }
        if let Some(&id) = self.scaled_hosts.get(&(host, factor.to_bits())) {
            return id;
        }
        let old = self.scenario.prices.host[host.index()];
        let class = self.scenario.program.host_works[host.index()].class.clone();
        let cost = HostCost {
            centre_ns: old.centre_ns * factor,
            ..old
        };
        let id = self.new_host(&class, cost);
        self.scaled_hosts.insert((host, factor.to_bits()), id);
        id
    }

    pub(super) fn new_host(&mut self, class: &str, cost: HostCost) -> HostWorkId {
        let id = HostWorkId(self.scenario.program.host_works.len() as u32);
        self.scenario.program.host_works.push(HostWork {
            class: class.to_owned(),
            count: 1,
            recorded_events: 0,
            measured_ns: None,
        });
        self.scenario.prices.host.push(cost);
        id
    }

    /// The same launch or collective, `factor` times as long on the device.
    fn scaled_device(&mut self, kind: ActionKind, factor: f64) -> ActionKind {
        let scaled = |ns: Ns| (ns as f64 * factor).round() as Ns;
        let device_ns = match kind {
            ActionKind::Launch { kernel, .. } => {
                scaled(self.scenario.prices.kernel_ns[kernel.index()])
            }
            ActionKind::Collective { call, .. } => {
                return self.with_collective(kind, call, scaled);
            }
            other => return other,
        };
        self.with_kernel(kind, device_ns)
    }

    /// The launch with a kernel of another duration.
    pub(super) fn with_kernel(&mut self, kind: ActionKind, device_ns: Ns) -> ActionKind {
        let ActionKind::Launch { stream, kernel } = kind else {
            return kind;
        };
        let description = self.scenario.program.kernels[kernel.index()].clone();
        let kernel = crate::program::KernelId(self.scenario.program.kernels.len() as u32);
        self.scenario.program.kernels.push(description);
        self.scenario.prices.kernel_ns.push(device_ns);
        ActionKind::Launch { stream, kernel }
    }

    /// The collective with other durations.
    pub(super) fn with_collective(
        &mut self,
        kind: ActionKind,
        call: crate::program::CollectiveId,
        duration: impl Fn(Ns) -> Ns,
    ) -> ActionKind {
        let ActionKind::Collective { comm, stream, .. } = kind else {
            return kind;
        };
        let description = self.scenario.program.collectives[call.index()].clone();
        let prices = self.scenario.prices.collective_ns[call.index()].clone();
        let call = crate::program::CollectiveId(self.scenario.program.collectives.len() as u32);
        self.scenario.program.collectives.push(description);
        let prices = prices
            .into_iter()
            .map(|groups| groups.into_iter().map(&duration).collect())
            .collect();
        self.scenario.prices.collective_ns.push(prices);
        ActionKind::Collective { comm, stream, call }
    }
}

/// The actions that `selector` means, in program order.
pub(super) fn select(program: &Program, selector: &Selector) -> Vec<Place> {
    let causes: Vec<bool> = program
        .causes
        .iter()
        .map(|cause| selector.names(cause))
        .collect();
    let mut places = Vec::new();
    if !causes.contains(&true) {
        return places;
    }
    for (class, rank) in program.classes.iter().enumerate() {
        for (thread, list) in rank.threads.iter().enumerate() {
            let mut seen: BTreeMap<(u32, u32), usize> = BTreeMap::new();
            let mut operator = "";
            for (index, action) in list.actions.iter().enumerate() {
                let tag = program.tag(action);
                if !causes[tag.cause.index()] {
                    continue;
                }
                let work = program.host_work(action);
                if action.kind == ActionKind::Host && !work.class.starts_with(LAUNCH_CLASS) {
                    operator = work.class.as_str();
                }
                let in_class = operator.starts_with(&selector.class)
                    || work.class.starts_with(&selector.class);
                if !in_class || !tag.unit.ends_with(&selector.unit) {
                    continue;
                }
                if let Some(parameters) = &selector.parameters {
                    let count = seen.entry((action.tag.0, action.host.0)).or_default();
                    let wanted = parameters
                        .get(&tag.unit)
                        .filter(|list| !list.is_empty())
                        .is_some_and(|list| list[*count % list.len()]);
                    *count += 1;
                    if !wanted {
                        continue;
                    }
                }
                places.push((class, thread, index));
            }
        }
    }
    places
}

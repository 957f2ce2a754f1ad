//! One step in figures: where the host's time goes, what the device does, what is exposed.

use std::collections::BTreeMap;

use crate::engine::{DeviceSpan, Iteration, Wait};
use crate::program::{ActionKind, Program};
use crate::units::Ns;

/// Where the time of one step goes. `causes_ns`, `launch_ns` and the waits add up to `step_ns`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    /// Step time.
    pub step_ns: Ns,
    /// Host work by cause, launch calls excluded, largest first.
    pub causes_ns: Vec<(String, Ns)>,
    /// Host work by phase, launch calls included.
    pub phases_ns: Vec<(&'static str, Ns)>,
    /// Launch calls.
    pub launch_ns: Ns,
    /// The host waits for communication: exposed communication.
    pub exposed_communication_ns: Ns,
    /// The host waits for kernels or for its launch queue.
    pub device_wait_ns: Ns,
    /// At least one stream is busy.
    pub device_busy_ns: Ns,
    /// At least one stream runs a collective.
    pub communication_ns: Ns,
    /// Kernels and copies that were launched.
    pub kernels: usize,
    /// Collectives that were enqueued.
    pub collectives: usize,
}

impl Summary {
    /// All host work.
    pub fn host_ns(&self) -> Ns {
        self.causes_ns.iter().map(|(_, ns)| ns).sum()
    }

    /// Time in which no stream is busy.
    pub fn device_idle_ns(&self) -> Ns {
        self.step_ns.saturating_sub(self.device_busy_ns)
    }

    /// Whether the host decides the step: it waits for the device for less than a tenth of it.
    pub fn host_bound(&self) -> bool {
        10 * (self.exposed_communication_ns + self.device_wait_ns) < self.step_ns
    }
}

/// Summarises a recorded iteration. Threads take turns, so host work and waits other than
/// hand-overs add up to the step.
pub fn summarise(program: &Program, iteration: &Iteration) -> Summary {
    let mut summary = Summary {
        step_ns: iteration.step_ns(),
        ..Default::default()
    };
    let mut causes: BTreeMap<&str, Ns> = BTreeMap::new();
    let mut phases: BTreeMap<&'static str, Ns> = BTreeMap::new();
    for span in &iteration.host {
        let thread = &program.classes[0].threads[span.thread as usize];
        let action = &thread.actions[span.action as usize];
        let tag = program.tag(action);
        let work_ns = span.work_end_ns - span.start_ns;
        *phases.entry(tag.phase.name()).or_default() += work_ns;
        if program.host_work(action).class.starts_with("launch/") {
            summary.launch_ns += work_ns;
        } else {
            *causes.entry(program.cause_name(tag.cause)).or_default() += work_ns;
        }
        let wait_ns = span.end_ns - span.work_end_ns;
        let communication = span
            .waited_for
            .is_some_and(|device| iteration.device[device as usize].collective);
        match span.wait {
            Wait::None | Wait::HandOver => {}
            _ if communication => summary.exposed_communication_ns += wait_ns,
            _ => summary.device_wait_ns += wait_ns,
        }
        match action.kind {
            ActionKind::Launch { .. } => summary.kernels += 1,
            ActionKind::Collective { .. } => summary.collectives += 1,
            _ => {}
        }
    }
    summary.causes_ns = causes
        .into_iter()
        .map(|(name, ns)| (name.to_owned(), ns))
        .collect();
    summary
        .causes_ns
        .sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    summary.phases_ns = phases.into_iter().collect();
    summary.device_busy_ns = union_ns(iteration.device.iter());
    summary.communication_ns = union_ns(iteration.device.iter().filter(|span| span.collective));
    summary
}

/// Length of the union of the spans.
fn union_ns<'a>(spans: impl Iterator<Item = &'a DeviceSpan>) -> Ns {
    let mut intervals: Vec<(Ns, Ns)> = spans.map(|span| (span.start_ns, span.end_ns)).collect();
    intervals.sort_unstable();
    let (mut total, mut end) = (0, 0);
    for (start, stop) in intervals {
        let from = start.max(end);
        if stop > from {
            total += stop - from;
            end = stop;
        }
    }
    total
}

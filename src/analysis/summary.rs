//! One step in figures: where the host's time goes, what the device does, what is exposed.

use crate::engine::{DeviceSpan, Iteration};
use crate::program::{ActionKind, Program};
use crate::units::Ns;

use super::breakdown::{Breakdown, Part, action_of};

/// Where the time of one step goes. Host work by cause, launch calls and the waits add up to
/// `step_ns` exactly.
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
    /// The host waits for communication, the last rank's arrival included.
    pub exposed_communication_ns: Ns,
    /// The host waits for kernels, for its launch queue, or for a thread that does nothing.
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

    /// Communication that runs beside the host's work.
    pub fn hidden_communication_ns(&self) -> Ns {
        self.communication_ns
            .saturating_sub(self.exposed_communication_ns)
    }

    /// Whether the host decides the step: it waits for the device for less than a tenth of it.
    pub fn host_bound(&self) -> bool {
        10 * (self.exposed_communication_ns + self.device_wait_ns) < self.step_ns
    }
}

/// Summarises a recorded iteration of rank 0.
pub fn summarise(program: &Program, iteration: &Iteration) -> Summary {
    let breakdown = Breakdown::new(program, iteration, 0);
    let works = |part: Part| matches!(part, Part::Host | Part::Launch);
    let cause = |tag: crate::program::TagId| {
        let cause = program.tags[tag.index()].cause;
        program.cause_name(cause).to_owned()
    };
    let phase = |tag: crate::program::TagId| program.tags[tag.index()].phase.name();
    let mut phases_ns = breakdown.by(|segment| works(segment.part).then(|| phase(segment.tag)));
    phases_ns.sort_unstable();
    let part_ns = |part| breakdown.part_ns(part);
    let count = |wanted: fn(&ActionKind) -> bool| {
        let own = iteration.host.iter().filter(|span| span.rank == 0);
        own.filter(|span| wanted(&action_of(program, span).kind))
            .count()
    };
    let own = || iteration.device.iter().filter(|span| span.rank == 0);
    Summary {
        step_ns: iteration.step_ns(),
        causes_ns: breakdown.by(|segment| (segment.part == Part::Host).then(|| cause(segment.tag))),
        phases_ns,
        launch_ns: part_ns(Part::Launch),
        exposed_communication_ns: part_ns(Part::ExposedCommunication) + part_ns(Part::LateRank),
        device_wait_ns: part_ns(Part::DeviceWait)
            + part_ns(Part::LaunchQueue)
            + part_ns(Part::ThreadWait),
        device_busy_ns: union_ns(own()),
        communication_ns: union_ns(own().filter(|span| span.collective)),
        kernels: count(|kind| matches!(kind, ActionKind::Launch { .. })),
        collectives: count(|kind| matches!(kind, ActionKind::Collective { .. })),
    }
}

/// Length of the union of the spans.
pub(super) fn union_ns<'a>(spans: impl Iterator<Item = &'a DeviceSpan>) -> Ns {
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

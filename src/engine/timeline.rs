//! The result of a simulation: when every action ran, what it waited for, what determined its start.

use crate::units::Ns;

/// Why a host thread waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// It did not.
    None,
    /// The launch queue was full.
    LaunchQueue,
    /// An event, a stream or the device had to finish.
    Device,
    /// Another thread had to hand over.
    HandOver,
}

/// One action on a host thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSpan {
    /// Rank.
    pub rank: u32,
    /// Thread of the rank.
    pub thread: u32,
    /// Index of the action on its thread.
    pub action: u32,
    /// Start of its host work.
    pub start_ns: Ns,
    /// End of its host work.
    pub work_end_ns: Ns,
    /// End of its wait; equal to `work_end_ns` without one.
    pub end_ns: Ns,
    /// Why it waited.
    pub wait: Wait,
    /// Device span that ended the wait, if one did.
    pub waited_for: Option<u32>,
}

/// What determined the start of a device span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// The host enqueued it no earlier: index of the host span.
    Host(u32),
    /// The span before it on its stream, or one that its stream waited for.
    Device(u32),
    /// Nothing in this iteration.
    Earlier,
}

/// One kernel, copy or collective on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSpan {
    /// Rank.
    pub rank: u32,
    /// Stream.
    pub stream: u32,
    /// Thread whose action enqueued it.
    pub thread: u32,
    /// Index of that action.
    pub action: u32,
    /// When the host had enqueued it.
    pub enqueued_ns: Ns,
    /// Start.
    pub start_ns: Ns,
    /// End.
    pub end_ns: Ns,
    /// Whether it is a collective.
    pub collective: bool,
    /// What determined its start.
    pub binding: Binding,
}

/// One training step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Iteration {
    /// When the main thread of rank 0 began.
    pub start_ns: Ns,
    /// When it was through.
    pub end_ns: Ns,
    /// Host spans in the order in which they ran; empty if not recorded.
    pub host: Vec<HostSpan>,
    /// Device spans in the order in which they were enqueued; empty if not recorded.
    pub device: Vec<DeviceSpan>,
}

impl Iteration {
    /// Step time.
    pub fn step_ns(&self) -> Ns {
        self.end_ns - self.start_ns
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// The iterations in order.
    pub iterations: Vec<Iteration>,
}

impl Timeline {
    /// Step times in order.
    pub fn step_ns(&self) -> Vec<Ns> {
        self.iterations.iter().map(Iteration::step_ns).collect()
    }
}

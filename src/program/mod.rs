//! The step as data: what happens, in which order, on which thread or stream, and why. No times.
//!
//! A schedule builder and a profiler trace produce the same [`Program`], so that everything behind
//! it (what-ifs, critical path, attribution, plots) works on both. A Program is one training step of
//! every rank class; the engine repeats it. Durations come from a cost model
//! ([`crate::cost::CostModel`]), which sees the [`HostWork`], [`Kernel`] and [`CollectiveCall`]
//! descriptions but never their order.
//!
//! ```text
//! rank class ── thread main      [Host, Launch(stream 0), EventRecord, StreamWait, Signal, Await, ...]
//!            └─ thread autograd  [Await, Host, Collective(comm 1, stream 2), ..., Signal]
//! ```

mod action;
mod builder;
mod check;
mod render;

pub use action::{
    Action, ActionKind, BlockId, CauseId, Collective, CollectiveCall, CollectiveId, CommId,
    Communicator, EventId, GraphId, HostWork, HostWorkId, Kernel, KernelClass, KernelId,
    MemoryCategory, Phase, SignalId, Stream, StreamId, Tag, TagId,
};
pub use builder::{ProgramBuilder, ThreadBuilder};
pub use check::ProgramError;
pub use render::text_timeline;

/// One training step of every rank class.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Distinct rank programs; see [`Program::rank_class`].
    pub classes: Vec<RankProgram>,
    /// For each rank of the world, the index of its program in `classes`. Ranks that nothing
    /// distinguishes share one class, and the engine may fold them.
    pub rank_class: Vec<u32>,
    /// Names of the causes, e.g. `v2.dtensor_rebind`; indexed by [`CauseId`].
    pub causes: Vec<String>,
    /// Why actions are there; indexed by [`TagId`].
    pub tags: Vec<Tag>,
    /// Host work descriptions; indexed by [`HostWorkId`]. Entry 0 is "no host work".
    pub host_works: Vec<HostWork>,
    /// Kernel descriptions; indexed by [`KernelId`].
    pub kernels: Vec<Kernel>,
    /// Collective descriptions; indexed by [`CollectiveId`].
    pub collectives: Vec<CollectiveCall>,
    /// Communicators; indexed by [`CommId`].
    pub communicators: Vec<Communicator>,
    /// Streams every rank has; indexed by [`StreamId`].
    pub streams: Vec<Stream>,
    /// Number of events, signals and memory blocks that the actions name.
    pub event_count: u32,
    /// Number of [`SignalId`]s in use.
    pub signal_count: u32,
    /// Size in bytes, pool stream and category of every memory block; indexed by [`BlockId`].
    pub blocks: Vec<Block>,
}

/// A block of device memory that [`ActionKind::Alloc`] asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Requested size in bytes, before the allocator's rounding.
    pub bytes: u64,
    /// The stream whose pool serves it.
    pub pool: StreamId,
    /// What it holds.
    pub category: MemoryCategory,
}

/// The host threads of one rank class.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RankProgram {
    /// Threads in a fixed order: main first, then autograd.
    pub threads: Vec<Thread>,
}

/// One host thread: its actions in program order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Thread {
    /// `main`, `autograd`, or the name a trace gives.
    pub name: String,
    /// Whether its host work needs the interpreter lock, which one thread at a time holds.
    pub holds_interpreter_lock: bool,
    /// Actions in program order.
    pub actions: Vec<Action>,
}

impl Program {
    /// World size: how many ranks there are.
    pub fn world_size(&self) -> usize {
        self.rank_class.len()
    }

    /// The name of a cause.
    pub fn cause_name(&self, cause: CauseId) -> &str {
        &self.causes[cause.0 as usize]
    }

    /// The tag of an action.
    pub fn tag(&self, action: &Action) -> &Tag {
        &self.tags[action.tag.0 as usize]
    }

    /// The host work of an action.
    pub fn host_work(&self, action: &Action) -> &HostWork {
        &self.host_works[action.host.0 as usize]
    }

    /// All actions of one class with the index of their thread, in program order per thread.
    pub fn actions(&self, class: usize) -> impl Iterator<Item = (usize, &Action)> {
        self.classes[class]
            .threads
            .iter()
            .enumerate()
            .flat_map(|(index, thread)| thread.actions.iter().map(move |action| (index, action)))
    }

    /// How many actions of `class` satisfy `predicate`.
    pub fn count(&self, class: usize, predicate: impl Fn(&Action) -> bool) -> usize {
        self.actions(class)
            .filter(|(_, action)| predicate(action))
            .count()
    }
}

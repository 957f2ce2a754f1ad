//! Builds a [`Program`]: interns descriptions, keeps the current phase, unit and cause, and checks
//! the invariants when done.

use rustc_hash::FxHashMap;

use super::{
    Action, ActionKind, Block, BlockId, CauseId, CollectiveCall, CollectiveId, CommId,
    Communicator, EventId, HostWork, HostWorkId, Kernel, KernelId, MemoryCategory, Phase, Program,
    ProgramError, RankProgram, SignalId, Stream, StreamId, Tag, TagId, Thread, check,
};

/// Collects the tables that all ranks share and the threads of each rank class.
#[derive(Debug)]
pub struct ProgramBuilder {
    program: Program,
    cause_ids: FxHashMap<String, CauseId>,
    tag_ids: FxHashMap<Tag, TagId>,
    work_ids: FxHashMap<(String, u32, u32, Option<u64>), HostWorkId>,
}

impl Default for ProgramBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgramBuilder {
    /// An empty program of no ranks.
    pub fn new() -> Self {
        let nothing = HostWork {
            class: String::new(),
            count: 0,
            recorded_events: 0,
            measured_ns: None,
        };
        ProgramBuilder {
            program: Program {
                classes: Vec::new(),
                rank_class: Vec::new(),
                causes: Vec::new(),
                tags: Vec::new(),
                host_works: vec![nothing],
                kernels: Vec::new(),
                collectives: Vec::new(),
                communicators: Vec::new(),
                streams: Vec::new(),
                event_count: 0,
                signal_count: 0,
                blocks: Vec::new(),
            },
            cause_ids: FxHashMap::default(),
            tag_ids: FxHashMap::default(),
            work_ids: FxHashMap::default(),
        }
    }

    /// Adds a stream. The first one is the compute stream.
    pub fn stream(&mut self, name: &str) -> StreamId {
        self.program.streams.push(Stream {
            name: name.to_owned(),
        });
        StreamId(self.program.streams.len() as u32 - 1)
    }

    /// Adds a communicator of disjoint groups.
    pub fn communicator(&mut self, name: &str, groups: Vec<Vec<u32>>) -> CommId {
        self.program.communicators.push(Communicator {
            name: name.to_owned(),
            groups,
        });
        CommId(self.program.communicators.len() as u32 - 1)
    }

    /// A new event.
    pub fn event(&mut self) -> EventId {
        self.program.event_count += 1;
        EventId(self.program.event_count - 1)
    }

    /// A new hand-over.
    pub fn signal(&mut self) -> SignalId {
        self.program.signal_count += 1;
        SignalId(self.program.signal_count - 1)
    }

    /// A new memory block of `bytes` in the pool of `pool`.
    pub fn block(&mut self, bytes: u64, pool: StreamId, category: MemoryCategory) -> BlockId {
        self.program.blocks.push(Block {
            bytes,
            pool,
            category,
        });
        BlockId(self.program.blocks.len() as u32 - 1)
    }

    /// Interns a cause.
    pub fn cause(&mut self, name: &str) -> CauseId {
        if let Some(&id) = self.cause_ids.get(name) {
            return id;
        }
        let id = CauseId(self.program.causes.len() as u32);
        self.program.causes.push(name.to_owned());
        self.cause_ids.insert(name.to_owned(), id);
        id
    }

    /// Interns a tag.
    pub fn tag(&mut self, phase: Phase, unit: &str, cause: &str) -> TagId {
        let cause = self.cause(cause);
        let tag = Tag {
            phase,
            unit: unit.to_owned(),
            cause,
        };
        if let Some(&id) = self.tag_ids.get(&tag) {
            return id;
        }
        let id = TagId(self.program.tags.len() as u32);
        self.program.tags.push(tag.clone());
        self.tag_ids.insert(tag, id);
        id
    }

    /// Interns a host work description.
    pub fn host_work(&mut self, class: &str, count: u32, recorded_events: u32) -> HostWorkId {
        self.intern_work(HostWork {
            class: class.to_owned(),
            count,
            recorded_events,
            measured_ns: None,
        })
    }

    /// Interns host work whose duration a trace measured.
    pub fn measured_host_work(&mut self, class: &str, events: u32, ns: u64) -> HostWorkId {
        self.intern_work(HostWork {
            class: class.to_owned(),
            count: 1,
            recorded_events: events,
            measured_ns: Some(ns),
        })
    }

    fn intern_work(&mut self, work: HostWork) -> HostWorkId {
        let key = (
            work.class.clone(),
            work.count,
            work.recorded_events,
            work.measured_ns,
        );
        if let Some(&id) = self.work_ids.get(&key) {
            return id;
        }
        let id = HostWorkId(self.program.host_works.len() as u32);
        self.program.host_works.push(work);
        self.work_ids.insert(key, id);
        id
    }

    /// Adds a kernel description.
    pub fn kernel(&mut self, kernel: Kernel) -> KernelId {
        if let Some(index) = self
            .program
            .kernels
            .iter()
            .rposition(|known| *known == kernel)
        {
            return KernelId(index as u32);
        }
        self.program.kernels.push(kernel);
        KernelId(self.program.kernels.len() as u32 - 1)
    }

    /// Adds a collective description.
    pub fn collective(&mut self, call: CollectiveCall) -> CollectiveId {
        if let Some(index) = self
            .program
            .collectives
            .iter()
            .rposition(|known| *known == call)
        {
            return CollectiveId(index as u32);
        }
        self.program.collectives.push(call);
        CollectiveId(self.program.collectives.len() as u32 - 1)
    }

    /// Adds a rank class; returns its index.
    pub fn rank_class(&mut self, threads: Vec<Thread>) -> u32 {
        self.program.classes.push(RankProgram { threads });
        self.program.classes.len() as u32 - 1
    }

    /// Says which class every rank has.
    pub fn ranks(&mut self, rank_class: Vec<u32>) {
        self.program.rank_class = rank_class;
    }

    /// The finished program.
    ///
    /// # Errors
    /// The first broken invariant; see [`ProgramError`].
    pub fn finish(self) -> Result<Program, ProgramError> {
        check::check(&self.program)?;
        Ok(self.program)
    }
}

/// A thread being written. It holds the context that tags each action.
#[derive(Debug)]
pub struct ThreadBuilder {
    /// The thread so far.
    pub thread: Thread,
    /// Current phase.
    pub phase: Phase,
    /// Current layer or FSDP unit.
    pub unit: String,
}

impl ThreadBuilder {
    /// A Python thread.
    pub fn python(name: &str) -> Self {
        ThreadBuilder {
            thread: Thread {
                name: name.to_owned(),
                holds_interpreter_lock: true,
                actions: Vec::new(),
            },
            phase: Phase::Outside,
            unit: "root".to_owned(),
        }
    }

    /// Appends an action with the current phase and unit.
    pub fn push(
        &mut self,
        program: &mut ProgramBuilder,
        cause: &str,
        host: HostWorkId,
        kind: ActionKind,
    ) {
        let tag = program.tag(self.phase, &self.unit, cause);
        self.thread.actions.push(Action { kind, host, tag });
    }
}

//! Writes actions of one rank: hides interning, keeps the current thread, expands recipes.

use crate::program::{
    ActionKind, Collective, CollectiveCall, CommId, EventId, HostWorkId, Kernel, KernelClass,
    Phase, ProgramBuilder, StreamId, ThreadBuilder,
};

/// Index of the main thread.
pub const MAIN: usize = 0;
/// Index of the autograd thread.
pub const AUTOGRAD: usize = 1;

/// Recorded events of a kernel launch: the runtime call.
pub(super) const LAUNCH_EVENTS: u32 = 1;

/// The streams of a rank.
#[derive(Debug, Clone, Copy)]
pub struct Streams {
    /// Compute.
    pub compute: StreamId,
    /// All-gather.
    pub gather: StreamId,
    /// Reduce-scatter.
    pub reduce: StreamId,
    /// Outer all-gather (v1).
    pub outer_gather: StreamId,
    /// Outer reduce-scatter (v1).
    pub outer_reduce: StreamId,
    /// Device-to-host copies of token counts.
    pub host_copy: StreamId,
    /// Transformer Engine's streams for grouped GEMMs.
    pub grouped: [StreamId; 4],
}

/// The communicators of a rank.
#[derive(Debug, Clone, Copy)]
pub struct Comms {
    /// Inner mesh of dense parameters.
    pub inner: CommId,
    /// All-gathers of the inner mesh, if they have their own communicator; else `inner`.
    pub inner_gather: CommId,
    /// Outer mesh of dense parameters.
    pub outer: CommId,
    /// Inner mesh of experts.
    pub expert_inner: CommId,
    /// Outer mesh of experts.
    pub expert_outer: CommId,
    /// Whole data-parallel mesh of experts (v2 shards experts over it).
    pub expert_data: CommId,
    /// Expert-parallel group.
    pub expert_parallel: CommId,
    /// All ranks.
    pub world: CommId,
}

/// A collective to enqueue.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Host class, e.g. `c10d.all_gather`.
    pub class: &'a str,
    /// What it does.
    pub op: Collective,
    /// Communicator.
    pub comm: CommId,
    /// Ranks in the group.
    pub ranks: u64,
    /// Stream.
    pub stream: StreamId,
    /// Bytes of the larger buffer.
    pub bytes: u64,
}

/// Writes the actions of one rank.
#[derive(Debug)]
pub struct Writer {
    /// Tables.
    pub program: ProgramBuilder,
    /// Main and autograd thread.
    pub threads: [ThreadBuilder; 2],
    /// Thread written to.
    pub current: usize,
    /// Streams.
    pub streams: Streams,
    /// Communicators.
    pub comms: Comms,
    /// Recorded after each copy of token counts to the host.
    pub(super) host_copies_done: EventId,
    /// Ends of the four grouped streams, then their common start.
    pub(super) grouped_event: [EventId; 5],
}

impl Writer {
    /// A writer with the given communicators.
    pub fn new(mut program: ProgramBuilder, comms: Comms) -> Self {
        let streams = Streams {
            compute: program.stream("compute"),
            gather: program.stream("all_gather"),
            reduce: program.stream("reduce_scatter"),
            outer_gather: program.stream("outer_all_gather"),
            outer_reduce: program.stream("outer_reduce_scatter"),
            host_copy: program.stream("host_copy"),
            grouped: [
                program.stream("grouped_gemm.0"),
                program.stream("grouped_gemm.1"),
                program.stream("grouped_gemm.2"),
                program.stream("grouped_gemm.3"),
            ],
        };
        let host_copies_done = program.event();
        let grouped_event = std::array::from_fn(|_| program.event());
        Writer {
            program,
            threads: [
                ThreadBuilder::python("main"),
                ThreadBuilder::python("autograd"),
            ],
            current: MAIN,
            streams,
            comms,
            host_copies_done,
            grouped_event,
        }
    }

    /// Sets phase and unit of what follows, on the current thread.
    pub fn at(&mut self, phase: Phase, unit: &str) {
        let thread = &mut self.threads[self.current];
        thread.phase = phase;
        unit.clone_into(&mut thread.unit);
    }

    /// Sets the unit of what follows.
    pub fn unit(&mut self, unit: &str) {
        unit.clone_into(&mut self.threads[self.current].unit);
    }

    /// The unit of what follows.
    pub fn current_unit(&self) -> String {
        self.threads[self.current].unit.clone()
    }

    pub(super) fn push(&mut self, cause: &str, host: HostWorkId, kind: ActionKind) {
        self.threads[self.current].push(&mut self.program, cause, host, kind);
    }

    /// Host work that no profiler event shows: Python between operators, `count` times.
    pub fn python(&mut self, cause: &str, class: &str, count: u64) {
        if count == 0 {
            return;
        }
        let host = self.program.host_work(class, count as u32, 0);
        self.push(cause, host, ActionKind::Host);
    }

    /// A dispatched operator without kernels.
    pub fn operator(&mut self, cause: &str, class: &str, events: u32) {
        let host = self.program.host_work(class, 1, events);
        self.push(cause, host, ActionKind::Host);
    }

    /// Launches one kernel on `stream`.
    pub fn launch(&mut self, cause: &str, stream: StreamId, kernel: Kernel) {
        let class = match kernel.class {
            KernelClass::Memcpy => "launch/memcpy",
            KernelClass::Memset => "launch/memset",
            KernelClass::Gemm | KernelClass::GroupedGemm => "launch/driver",
            _ => "launch/runtime",
        };
        let host = self.program.host_work(class, 1, LAUNCH_EVENTS);
        let kernel = self.program.kernel(kernel);
        self.push(cause, host, ActionKind::Launch { stream, kernel });
    }

    /// An operator that launches kernels of `class` over `bytes` on `stream`.
    pub fn kernel_operator(
        &mut self,
        cause: &str,
        class: &str,
        events: u32,
        stream: StreamId,
        kernel: Kernel,
    ) {
        self.operator(cause, class, events);
        self.launch(cause, stream, kernel);
    }

    /// A collective: the host path into c10d, its part per peer (zero under NCCL, a copy's dispatch
    /// in a fake group), then the enqueue.
    pub fn collective(&mut self, cause: &str, call: Call<'_>) {
        self.operator(cause, call.class, 1);
        let description = CollectiveCall {
            op: call.op,
            bytes: call.bytes,
            coalesced: 1,
            imbalance: 1.0,
            measured_ns: None,
        };
        let id = self.program.collective(description);
        let host = self.program.host_work("c10d.peer", call.ranks as u32, 0);
        let kind = ActionKind::Collective {
            comm: call.comm,
            stream: call.stream,
            call: id,
        };
        self.push(cause, host, kind);
    }

    /// `waiter.wait_stream(waited)`: record a new event on one stream, let the other wait.
    pub fn wait_stream(&mut self, cause: &str, waiter: StreamId, waited: StreamId) {
        let event = self.record(cause, "cuda.wait_stream/record", waited);
        self.wait_event(cause, "cuda.wait_stream/wait", waiter, event);
    }

    /// Records a new event on `stream`.
    pub fn record(&mut self, cause: &str, class: &str, stream: StreamId) -> EventId {
        let event = self.program.event();
        let host = self.program.host_work(class, 1, 1);
        self.push(cause, host, ActionKind::EventRecord { event, stream });
        event
    }

    /// Lets `stream` wait for an event.
    pub fn wait_event(&mut self, cause: &str, class: &str, stream: StreamId, event: EventId) {
        let host = self.program.host_work(class, 1, 1);
        self.push(cause, host, ActionKind::StreamWait { event, stream });
    }

    /// Records `event` at the tail of `stream` without host work: the end of a collective, whose
    /// event is recorded inside the call.
    pub fn mark(&mut self, cause: &str, stream: StreamId, event: EventId) {
        let kind = ActionKind::EventRecord { event, stream };
        self.push(cause, HostWorkId(0), kind);
    }

    /// Lets `stream` wait for an event; the host work is part of what surrounds it.
    pub fn wait_mark(&mut self, cause: &str, stream: StreamId, event: EventId) {
        self.push(
            cause,
            HostWorkId(0),
            ActionKind::StreamWait { event, stream },
        );
    }

    /// Hands over to the other thread and back: what `inside` writes runs there while this thread
    /// is parked.
    pub fn on_autograd(&mut self, inside: impl FnOnce(&mut Self)) {
        let (start, done) = (self.program.signal(), self.program.signal());
        let none = HostWorkId(0);
        self.push("model.autograd", none, ActionKind::Signal { signal: start });
        self.current = AUTOGRAD;
        self.threads[AUTOGRAD].phase = self.threads[MAIN].phase;
        self.push("model.autograd", none, ActionKind::Await { signal: start });
        inside(self);
        self.push("model.autograd", none, ActionKind::Signal { signal: done });
        self.current = MAIN;
        self.push("model.autograd", none, ActionKind::Await { signal: done });
    }

    /// The host waits for everything on the compute stream (`.item()`).
    pub fn item(&mut self, cause: &str, class: &str, events: u32) {
        self.operator(cause, class, events);
        let copy = Kernel {
            name: "copy to host".to_owned(),
            class: KernelClass::Memcpy,
            mnk: [0; 3],
            flops: 0.0,
            bytes: 4.0,
            measured_ns: None,
        };
        let stream = self.streams.compute;
        self.launch(cause, stream, copy);
        self.push(cause, HostWorkId(0), ActionKind::HostWaitStream { stream });
    }

    /// The host waits until the device is idle.
    pub fn synchronize(&mut self, cause: &str, class: &str) {
        let host = self.program.host_work(class, 1, 1);
        self.push(cause, host, ActionKind::HostWaitDevice);
    }
}

/// A kernel over `bytes` whose shape matters no further.
pub fn bytes_kernel(name: &str, class: KernelClass, bytes: u64) -> Kernel {
    Kernel {
        name: name.to_owned(),
        class,
        mnk: [0; 3],
        flops: 0.0,
        bytes: bytes as f64,
        measured_ns: None,
    }
}

//! Actions, their kinds, and the descriptions that cost models price.

use crate::units::Ns;

macro_rules! id {
    ($(#[$doc:meta] $name:ident),+ $(,)?) => {$(
        #[$doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);
        impl $name {
            /// The index as `usize`.
            pub fn index(self) -> usize { self.0 as usize }
        }
    )+};
}

id! {
    /// Index into [`super::Program::tags`].
    TagId,
    /// Index into [`super::Program::causes`].
    CauseId,
    /// Index into [`super::Program::host_works`].
    HostWorkId,
    /// Index into [`super::Program::kernels`].
    KernelId,
    /// Index into [`super::Program::collectives`].
    CollectiveId,
    /// Index into [`super::Program::communicators`].
    CommId,
    /// Index into [`super::Program::streams`]. Stream 0 is the compute stream.
    StreamId,
    /// A CUDA event.
    EventId,
    /// A one-shot hand-over between threads of a rank.
    SignalId,
    /// Index into [`super::Program::blocks`].
    BlockId,
    /// A CUDA graph: a region whose kernels one launch starts.
    GraphId,
}

/// The part of the step an action belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Clearing gradients before the first microbatch.
    ZeroGrad,
    /// Forward of a microbatch (0-based), loss included.
    Forward(u16),
    /// Backward of a microbatch (0-based).
    Backward(u16),
    /// `finalize_model_grads`: gradient synchronisation after the last backward.
    Finalize,
    /// Clipping, Adam, copying weights back, starting the parameter gather.
    Optimizer,
    /// Reading the loss, data loading, logging.
    Outside,
}

impl Phase {
    /// The name used in tables and files, microbatches merged: `forward`, `optimizer`, ...
    pub fn name(self) -> &'static str {
        match self {
            Phase::ZeroGrad => "zero_grad",
            Phase::Forward(_) => "forward",
            Phase::Backward(_) => "backward",
            Phase::Finalize => "finalize",
            Phase::Optimizer => "optimizer",
            Phase::Outside => "outside",
        }
    }
}

/// Why an action is there. What-ifs and attribution work on `cause`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Part of the step.
    pub phase: Phase,
    /// Layer or FSDP unit, e.g. `layers.1.experts`; `root` for what no layer owns.
    pub unit: String,
    /// Named cause, e.g. `v1.param_hook` or `model.attention`.
    pub cause: CauseId,
}

/// Work of the interpreter, the dispatcher or the driver on a host thread.
#[derive(Debug, Clone, PartialEq)]
pub struct HostWork {
    /// Calibration key `site/operator`, e.g. `mla.fwd.rope/aten::cat`, `v2.unshard.param/python`.
    pub class: String,
    /// How many times the work is done in a row (loop iterations over parameters, say). The cost is
    /// `count` times the class's cost.
    pub count: u32,
    /// Events a PyTorch profiler records for one of them; each costs host time when attached.
    pub recorded_events: u32,
    /// A duration that a trace measured, if the Program came from one; cost models pass it through.
    pub measured_ns: Option<Ns>,
}

/// How a kernel's duration follows from its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelClass {
    /// Dense matrix product of `m x n x k`.
    Gemm,
    /// One expert's GEMM as Transformer Engine launches it: `m` is the mean number of tokens.
    GroupedGemm,
    /// Fused attention forward: `batch x heads x seq`, head dims in flops and bytes.
    AttentionForward,
    /// Fused attention backward.
    AttentionBackward,
    /// Norm forward or backward.
    Norm,
    /// Bytes in, bytes out, one operation each: add, mul, silu, cat.
    Elementwise,
    /// Sum, mean, norm over an axis.
    Reduction,
    /// Device-to-device copy of one dtype.
    Copy,
    /// Copy that changes the dtype.
    Cast,
    /// Fill with a constant.
    Fill,
    /// Sort, top-k, scatter, gather, permutation.
    Index,
    /// Softmax and cross entropy.
    Softmax,
    /// Multi-tensor Adam.
    Adam,
    /// Host-to-device or device-to-host copy.
    Memcpy,
    /// Memory set.
    Memset,
    /// Split-K reductions and other small helpers whose time is the launch floor.
    Tiny,
}

/// Shape of a kernel, for the cost model.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// Name for people and traces.
    pub name: String,
    /// What kind of kernel it is.
    pub class: KernelClass,
    /// Rows, columns and depth of a product; zeros where they mean nothing.
    pub mnk: [u64; 3],
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// A duration that a trace measured, if the Program came from one.
    pub measured_ns: Option<Ns>,
}

/// What a collective does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Every rank ends with all shards.
    AllGather,
    /// Every rank ends with its reduced shard.
    ReduceScatter,
    /// Every rank ends with the whole reduction.
    AllReduce,
    /// Every rank sends a different part to every other.
    AllToAll,
    /// One rank's buffer reaches all.
    Broadcast,
    /// A barrier or any other call without payload.
    Barrier,
}

impl Collective {
    /// The name PyTorch and nccl-tests use.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllReduce => "all_reduce",
            Collective::AllToAll => "alltoall",
            Collective::Broadcast => "broadcast",
            Collective::Barrier => "barrier",
        }
    }
}

/// One collective call, for the cost model.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveCall {
    /// What it does.
    pub op: Collective,
    /// Bytes of the larger buffer (all-gather: gathered; reduce-scatter: input; all-reduce: payload;
    /// alltoall: what one rank sends in total).
    pub bytes: u64,
    /// Operations coalesced into this one call; at least 1.
    pub coalesced: u32,
    /// For alltoall with uneven splits, the largest share over the mean share; 1 when even.
    pub imbalance: f64,
    /// A duration that a trace measured, if the Program came from one.
    pub measured_ns: Option<Ns>,
}

/// A communicator: who meets on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Communicator {
    /// Name for people, e.g. `dp.inner`, `ep`.
    pub name: String,
    /// Disjoint groups of global ranks; each rank is in at most one. A rank's calls meet those of
    /// its own group. For a folded program the groups may hold ranks of the same class only.
    pub groups: Vec<Vec<u32>>,
}

impl Communicator {
    /// Size of the group that `rank` is in; 1 when it is in none.
    pub fn group_size(&self, rank: u32) -> usize {
        self.groups
            .iter()
            .find(|group| group.contains(&rank))
            .map_or(1, Vec::len)
    }
}

/// A CUDA stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Name for people, e.g. `compute`, `all_gather`.
    pub name: String,
}

/// What a block of device memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryCategory {
    /// Parameter shards and persistent weights.
    Parameters,
    /// Fp32 main weights and Adam moments.
    OptimizerState,
    /// Main gradients that persist over the step.
    MainGradients,
    /// Gathered weights.
    Unsharded,
    /// Gradients before reduction.
    Gradients,
    /// Activations kept for backward and short-lived temporaries.
    Activations,
    /// Library workspaces.
    Workspace,
    /// Anything else.
    Other,
}

/// One action of a host thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Action {
    /// What happens when the host gets there.
    pub kind: ActionKind,
    /// Host work that precedes it on the thread.
    pub host: HostWorkId,
    /// Why it is there.
    pub tag: TagId,
}

/// What an action does once its host work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionKind {
    /// Nothing more than the host work.
    Host,
    /// Enqueue a kernel, copy or fill on a stream.
    Launch {
        /// Stream it runs on.
        stream: StreamId,
        /// What runs.
        kernel: KernelId,
    },
    /// Enqueue a collective on a stream.
    Collective {
        /// Communicator on which the ranks meet.
        comm: CommId,
        /// Stream it runs on.
        stream: StreamId,
        /// What runs.
        call: CollectiveId,
    },
    /// Record an event at the tail of a stream.
    EventRecord {
        /// The event.
        event: EventId,
        /// The stream.
        stream: StreamId,
    },
    /// Later work of the stream waits for the last record of the event (of an earlier step if this
    /// step has not recorded it yet; nothing if it was never recorded).
    StreamWait {
        /// The event.
        event: EventId,
        /// The stream that waits.
        stream: StreamId,
    },
    /// The host waits for the last record of the event.
    HostWaitEvent {
        /// The event.
        event: EventId,
    },
    /// The host waits until everything enqueued on the stream is done (`.item()`, pageable copy).
    HostWaitStream {
        /// The stream.
        stream: StreamId,
    },
    /// The host waits until the device has nothing left (`cudaDeviceSynchronize`).
    HostWaitDevice,
    /// Ask the caching allocator for a block.
    Alloc {
        /// The block.
        block: BlockId,
    },
    /// Give a block back to the pool of its stream.
    Free {
        /// The block.
        block: BlockId,
    },
    /// Let the thread that awaits this signal go on.
    Signal {
        /// The hand-over.
        signal: SignalId,
    },
    /// Park until the signal is given in this step.
    Await {
        /// The hand-over.
        signal: SignalId,
    },
}
